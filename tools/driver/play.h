/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play.h - one rank that calls an ncclNet plugin as NCCL does, without a GPU.
 *
 * A rank is opened (plugin loaded, all ranks met at the root), connected to its ring neighbors, used
 * by operations (stream.h, ring.h), and closed. It owns two threads, as in NCCL: the service thread
 * sets connections up and takes them down; the progress thread moves data and sleeps while there is
 * no operation. Collective calls (open, connect, run, barrier, gather) return when every rank has
 * made the same call, or with an error: at the latest timeout_s after the plugin last moved a
 * message, or twice timeout_s in a barrier or gather, so that the rank that hangs reports it first.
 * After an error every call returns the same code at once.
 *
 * Lines that say "main", "service", "progress" name the thread that may touch a member; the rest
 * is written before the threads start or under play->lock.
 */
#ifndef HARP_DRIVER_PLAY_H
#define HARP_DRIVER_PLAY_H

#include <pthread.h>
#include <stdatomic.h>

#include "net.h"
#include "rendezvous.h"

#define PLAY_CHANNELS_MAX 32
#define PLAY_GATHER_BYTES_MAX 65536
#define PLAY_SLOTS 8u                /* NCCL_STEPS */
#define PLAY_SLOT_BYTES (512u << 10) /* NCCL_BUFFSIZE / NCCL_STEPS */
#define PLAY_SPINS 64u               /* passes that move nothing before a rest */
#define PLAY_TICK_NS 100000000ull    /* interval of a waiting caller's checks */

struct play_options {
	const char *plugin; /* as NCCL_NET_PLUGIN: "harp" (libnccl-net-harp.so) or a path; NULL: the
			     * variable itself, else libnccl-net.so */
	const char *root;   /* "host:port" or "[ipv6]:port" where rank 0 listens (TCP, kernel) */
	int rank, ranks;    /* 1..PLAY_RANKS_MAX; 1: a ring to oneself */
	int channels;       /* connections per direction */
	int devices;        /* channel c uses device c % devices */
	double timeout_s;   /* longest time without any progress */
	/* Both threads sleep for so long after passes that moved nothing, where NCCL spins: for waits of
	 * milliseconds on a shared processor. 0: they spin. */
	unsigned rest_us;
	/* Channel c connects to the rank 1 + c % (ranks - 1) places on in the ring, so that ranks - 1 channels
	 * join each rank to every other one; for all-to-all. */
	bool mesh;
};

/* The name of the plugin's function that a thread is in; NULL: in none. Writer: that thread. */
struct play_mark {
	_Atomic(const char *) call;
};

/*
 * One direction of one connection. Counters count messages since the operation began; slot of
 * message m is m % depth.
 *
 * Sender:   done <= transmitted <= filled <= done + depth
 * Receiver: consumed <= received <= posted <= consumed + depth, and posted <= limit
 */
struct conn {
	struct play *play;
	int channel;
	int peer;
	int tag; /* rank of the sender */
	bool sends;
	unsigned depth; /* messages outstanding, at most PLAY_SLOTS */
	void *comm;     /* the plugin's */
	void *mhandle;
	char *buffer; /* PLAY_SLOTS slots */
	size_t slot_bytes;
	size_t slot_stride; /* messages may span slots: distance between two messages' starts */
	void *requests[PLAY_SLOTS];
	size_t sizes[PLAY_SLOTS]; /* sender: bytes of the message; receiver: bytes received */
	uint64_t filled, transmitted, done;
	uint64_t posted, received, consumed, limit;
	size_t post_bytes; /* receiver: size of each posted buffer */
};

/* The work of the progress thread; embedded. */
struct op {
	const char *name;
	/* Does what can be done now: 1 something moved, 0 nothing did, < 0: play has failed. */
	int (*pass)(struct op *op);
	/* What it waits for, in one line. */
	void (*describe)(struct op *op, char *text, size_t len);
	bool finished; /* progress thread */
};

/* Connections of one channel. */
struct channel {
	struct conn send, recv;
	void *listen_comm; /* service */
	char *handle;      /* service: the peer's, same memory until connected */
};

enum play_job { JOB_NONE, JOB_LISTEN, JOB_CONNECT, JOB_CLOSE, JOB_EXIT };

struct play {
	struct play_options options;
	struct net net;
	struct rendezvous rdv;
	char host[64];
	char device[64];   /* name of the first device */
	size_t slot_bytes; /* of the stream operations' slots; set before connect */
	struct channel *channels;
	uint64_t connect_ns; /* from the first connect() to the last comm; Writer: service */

	pthread_mutex_t lock;
	pthread_cond_t main_cond;     /* an op or job is over */
	pthread_cond_t service_cond;  /* a job is there */
	pthread_cond_t progress_cond; /* an op is there */
	pthread_t service_thread, progress_thread;
	bool service_started, progress_started;
	enum play_job job; /* JOB_NONE when done */
	struct op *op;     /* NULL when done */
	bool exiting;
	bool stuck; /* a thread never came back from the plugin */

	char *handles; /* JOB_LISTEN's result, one of NCCL_HANDLE_BYTES for each channel */

	atomic_bool abort; /* both threads leave what they do */
	atomic_bool interrupted;
	atomic_uint_fast64_t moved; /* messages and set-up steps done: the sign of life */
	struct play_mark service_mark, progress_mark;

	/* Called by a waiting main thread every tick_ns. */
	uint64_t tick_ns;
	void (*tick)(void *arg);
	void *tick_arg;

	atomic_int failed; /* enum play_result; set once */
	int failed_nccl;   /* the ncclResult_t behind PLAY_PLUGIN; 0 without one */
	char error[PLAY_ERROR_BYTES];

	/* Since the rank was opened. Writer: progress. Relaxed. */
	struct {
		atomic_uint_fast64_t sent_bytes, sent_messages;         /* whose isend completed */
		atomic_uint_fast64_t received_bytes, received_messages; /* as test() reported */
		atomic_uint_fast64_t cpu_ns;
	} stats;
};

/* Loads the plugin, meets the other ranks at the root, calls init and devices, starts the threads.
 * On error *out is NULL and error holds the text. */
int play_open(const struct play_options *options, struct play **out, char *error, size_t error_len);
/* Connects this rank to the next of the ring and accepts the previous one, on every channel, then
 * registers 8 slots of buffers per connection. Once per rank. */
int play_connect(struct play *play);
/* Returns when all ranks are in it. Kernel TCP through the root: the plugin is not involved. */
int play_barrier(struct play *play);
/* Collects len bytes (same on all ranks, at most PLAY_GATHER_BYTES_MAX) of every rank, in rank
 * order, into out (ranks * len bytes) of every rank. Through the root, like the barrier. */
int play_gather(struct play *play, const void *in, size_t len, void *out);
int play_run(struct play *play, struct op *op);
/*
 * Closes as NCCL does: no barrier; requests in flight are abandoned, buffers deregistered,
 * connections closed, threads joined, finalize, dlclose. NULL is accepted. Returns PLAY_OK, or
 * PLAY_HANG when a call of the plugin does not come back within timeout_s: then memory and
 * threads are left behind, and the process had better end; PLAY_PLUGIN when a rank without
 * error before found one in deregMr, close or finalize (the text goes to the log).
 */
int play_close(struct play *play);

uint64_t play_now_ns(void);
/* After a pass that moved nothing: yields the processor, or sleeps. passes counts them in a row. */
void play_rest(const struct play *play, unsigned *passes);
/* The first failure wins; returns -1 so that "return play_fail(...)" ends a pass. */
int play_fail(struct play *play, enum play_result result, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A call of the plugin returned nccl (not 0). peer < 0: none. */
int play_fail_call(struct play *play, const char *call, int nccl, int channel, int peer);
/* Has the service thread do it, and waits, watching for hangs. Main. */
int play_job(struct play *play, enum play_job job);

/* service.c */
void *service_main(void *arg);
/* progress.c */
void *progress_main(void *arg);
int conn_send_pass(struct conn *conn);
int conn_recv_pass(struct conn *conn);
bool conn_can_fill(const struct conn *conn);
/* Hands the next slot, filled with bytes, to the sender. */
void conn_fill(struct conn *conn, size_t bytes);
char *conn_fill_slot(const struct conn *conn);
/* The oldest message received and not consumed; NULL: none. bytes: its size. */
char *conn_take_slot(const struct conn *conn, size_t *bytes);
/* The oldest message must have expected bytes: 0, or -1. */
int conn_consume(struct conn *conn, size_t expected);
/* Before an op: messages may be `bytes` long, as far apart, and `depth` outstanding. */
void conn_shape(struct conn *conn, size_t bytes, unsigned depth);
void conn_describe(const struct conn *conn, char *text, size_t len);

static inline void play_bump(atomic_uint_fast64_t *counter, uint64_t by)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
			      memory_order_relaxed);
}

static inline void mark_enter(struct play_mark *mark, const char *call)
{
	atomic_store_explicit(&mark->call, call, memory_order_relaxed);
}

static inline void mark_leave(struct play_mark *mark)
{
	atomic_store_explicit(&mark->call, NULL, memory_order_relaxed);
}

/* log.c */
/* Log lines are printed with this rank's name from here on; NULL: not printed. */
void log_attach(const struct play *play);
void log_line(int level, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void log_last_warn(char *text, size_t len);
/* Copies the first line after *cursor (start with 0) to text and advances *cursor; returns its level,
 * or 0 when there is no further line. The last 256 are kept, printed or not. */
int log_next(uint64_t *cursor, char *text, size_t text_len);

#endif
