/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclplay.h - calls an ncclNet plugin as NCCL does, without a GPU: one rank of a ring.
 *
 * A rank is opened (plugin loaded as NCCL loads it, all ranks met at the root), connected to its
 * ring neighbors, used, and closed.
 *
 * Threads: a rank owns two, as in NCCL. The service thread sets connections up and tears them down;
 * the progress thread moves data and sleeps while there is no operation. The plugin is called from
 * these two, and from the thread that opens and closes the rank (init, finalize). All functions
 * belong to that thread, except ncclplay_interrupt().
 *
 * Collective calls (open, connect, allreduce, barrier, gather) return when every rank has made
 * the same call, or with an error: at the latest timeout_s after the plugin last moved a message,
 * or twice timeout_s in a barrier or gather (so that the rank that hangs reports it first).
 *
 * Results: NCCLPLAY_OK, or one of the codes below with a line of text that names the cause. After
 * an error every call returns the same code at once; only close is left. The codes are also
 * harp-bench's exit codes.
 */
#ifndef NCCLPLAY_H
#define NCCLPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NCCLPLAY_ERROR_BYTES 1024 /* a buffer that holds every error text */
#define NCCLPLAY_CHANNELS_MAX 32
#define NCCLPLAY_RANKS_MAX 64
#define NCCLPLAY_GATHER_BYTES_MAX 65536

enum ncclplay_result {
	NCCLPLAY_OK = 0,
	NCCLPLAY_WRONG = 1, /* data or a message's size arrived wrong */
	NCCLPLAY_USAGE = 2, /* an option is out of range; the text says which */
	NCCLPLAY_HANG =
		3, /* nothing moved for timeout_s; the text names what waits, and for which rank */
	NCCLPLAY_PLUGIN = 4,      /* the plugin can't be loaded, or a call of it failed */
	NCCLPLAY_PEER = 5,        /* the root can't be reached, or another rank left or failed */
	NCCLPLAY_INTERRUPTED = 6, /* ncclplay_interrupt */
};

struct ncclplay; /* one rank */

struct ncclplay_options {
	const char *plugin; /* as NCCL_NET_PLUGIN: "harp" (libnccl-net-harp.so) or a path; NULL: the
			     * variable itself, else libnccl-net.so */
	int abi;            /* 6..12; 0: the newest that the plugin exports */
	int dev;            /* the plugin's device; its count and names are in the log */
	int rank, ranks;    /* ranks 1..NCCLPLAY_RANKS_MAX; 1: a ring to oneself */
	const char *root;   /* "host:port" or "[ipv6]:port" where rank 0 listens (TCP, kernel) */
	int channels;       /* connections per direction, 0 = 1 */
	double timeout_s;   /* 0 = 60: longest time without any progress */
	bool pin;           /* pin both threads to the processor cpu */
	int cpu;
	/* NCCL's LL protocol (64 KiB slots, data words with flags that are read while the buffer
	 * fills) for all-reduce instead of Simple (512 KiB slots). All ranks alike. */
	bool ll;
	int devices; /* channel c uses device dev + c % devices; 0 = 1 */
	/* Both threads sleep for so long after passes that moved nothing, where NCCL spins: for waits of
	 * milliseconds on a shared processor. 0: they spin. */
	unsigned rest_us;
	/* Channel c connects to the rank 1 + c % (ranks - 1) places on in the ring, so that ranks - 1 channels
	 * join each rank to every other one; for all-to-all. */
	bool mesh;
};

/*
 * Loads the plugin, starts the threads, meets the other ranks at the root, calls init and devices.
 * On error *out is NULL and error holds the text.
 */
int ncclplay_open(const struct ncclplay_options *options, struct ncclplay **out, char *error,
		  size_t error_len);

/*
 * Connects this rank to the next of the ring and accepts the previous one, on every channel, then
 * registers 8 slots of buffers per connection. Once per rank.
 */
int ncclplay_connect(struct ncclplay *play);

/*
 * dst[i] = sum over ranks of src[i], on every rank; dst == src is allowed, other overlap is not.
 * Both hold count float32 in host memory (any 4-byte alignment). Ring algorithm: the order of the
 * additions for element i depends on ranks, count and channels only, so that results are equal on
 * all ranks and from run to run. Blocks, wakes the progress thread, which moves and adds.
 */
int ncclplay_allreduce_f32(struct ncclplay *play, const float *src, float *dst, size_t count);

/* Returns when all ranks are in it. Kernel TCP through the root: the plugin is not involved. */
int ncclplay_barrier(struct ncclplay *play);

/*
 * Collects len bytes (same on all ranks, at most NCCLPLAY_GATHER_BYTES_MAX) of every rank, in rank
 * order, into out (ranks * len bytes) of every rank. Through the root, like the barrier.
 */
int ncclplay_gather(struct ncclplay *play, const void *in, size_t len, void *out);

/* Any thread: makes the collective call in progress, and all later ones, return
 * NCCLPLAY_INTERRUPTED within 100 ms. */
void ncclplay_interrupt(struct ncclplay *play);

/* What the plugin's getProperties returned; strings are cut to fit. */
struct ncclplay_properties {
	char net[32];   /* the plugin's name, e.g. "HARP" */
	char path[256]; /* the file that was loaded */
	char dev[64];   /* the device's name */
	int abi;        /* version of the table in use, 6..12 */
	int speed_mbps;
};
int ncclplay_properties(struct ncclplay *play, struct ncclplay_properties *out);

/* Counters since open. */
struct ncclplay_stats {
	uint64_t sent_bytes, sent_messages; /* whose isend completed */
	uint64_t received_bytes,
		received_messages; /* whose irecv completed; bytes as test() reported */
	uint64_t progress_cpu_ns;  /* processor time of the progress thread */
};
void ncclplay_stats(struct ncclplay *play, struct ncclplay_stats *out);

/*
 * The plugin's last 256 log lines (WARN, INFO), printed or not. Copies the first line after *cursor
 * (start with 0) to text and advances *cursor; returns its level, or 0 when there is no further
 * line. Lines that were overwritten are skipped.
 */
int ncclplay_log_next(uint64_t *cursor, char *text, size_t text_len);

/* The text of the error that failed this rank, "" without one. Valid until close. */
const char *ncclplay_error(struct ncclplay *play);
/* "ncclRemoteError", ... the ncclResult_t behind NCCLPLAY_PLUGIN as number; 0 without one. */
int ncclplay_error_nccl(struct ncclplay *play);

/*
 * Closes as NCCL does: no barrier; requests in flight are abandoned, buffers deregistered,
 * connections closed, threads joined, finalize, dlclose. NULL is accepted. Returns NCCLPLAY_OK, or
 * NCCLPLAY_HANG when a call of the plugin does not come back within timeout_s: then memory and
 * threads are left behind, and the process had better end; NCCLPLAY_PLUGIN when a rank without
 * error before found one in deregMr, close or finalize (the text goes to the log).
 */
int ncclplay_close(struct ncclplay *play);

#endif
