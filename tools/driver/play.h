/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play.h - one rank that calls an ncclNet plugin as NCCL does, without a GPU.
 *
 * A rank is opened (loads the plugin, meets the other ranks at the root), connected to its ring
 * neighbors, used by operations (stream.h, ring.h), and closed. It has two threads, as in NCCL: the
 * service thread opens and closes connections; the progress thread moves data and sleeps while
 * there is no operation. Collective calls (open, connect, run, barrier, gather) return when every
 * rank has made the same call, or with an error: at the latest timeout_s after the plugin last
 * moved a message, or twice timeout_s in a barrier or gather, so that the rank that hangs reports
 * it first. After an error, every call returns the same code immediately.
 *
 * Comments with "main", "service" or "progress" name the thread that may access a member. The other
 * members are written before the threads start, or under play->lock.
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
#define PLAY_SPINS 64u               /* idle passes before a pause */
#define PLAY_TICK_NS 100000000ull    /* interval of a waiting caller's checks */

struct play_options {
	const char *plugin; /* as NCCL_NET_PLUGIN: "harp" (libnccl-net-harp.so) or a path; NULL: the
			     * variable itself, else libnccl-net.so */
	const char *root;   /* "host:port" or "[ipv6]:port" where rank 0 listens (TCP, kernel) */
	int rank, ranks;    /* 1..PLAY_RANKS_MAX; 1: a ring of one rank */
	int channels;       /* connections per direction */
	int devices;        /* channel c uses device c % devices */
	double timeout_s;   /* maximum time without progress */
	/* Time that both threads sleep after idle passes, where NCCL spins: for waits of
	 * milliseconds on shared CPUs. 0: they spin. */
	unsigned pause_us;
	/* For all-to-all: channel c connects to the rank at distance 1 + c % (ranks - 1) in the
	 * ring, so that ranks - 1 channels connect each rank to all others. */
	bool mesh;
};

/* The plugin's function that a thread is calling; NULL: none. Writer: that thread. */
struct play_mark {
	_Atomic(const char *) call;
};

/*
 * One direction of one connection. Counters count messages since the start of the operation.
 * Message m uses slot m % depth.
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
	size_t slot_stride; /* distance between the starts of two messages, which may span slots */
	void *requests[PLAY_SLOTS];
	size_t sizes[PLAY_SLOTS]; /* sender: bytes of the message; receiver: bytes received */
	uint64_t filled, transmitted, done;
	uint64_t posted, received, consumed, limit;
	size_t post_bytes; /* receiver: size of each posted buffer */
};

/* The work of the progress thread, embedded in a struct of the operation. */
struct op {
	const char *name;
	/* Makes progress without waiting. Returns 1 if anything moved, 0 if not, < 0 on failure. */
	int (*pass)(struct op *op);
	/* Describes in one line what the operation waits for. */
	void (*describe)(struct op *op, char *text, size_t len);
	bool finished; /* progress thread */
};

/* Connections of one channel. */
struct channel {
	struct conn send, recv;
	void *listen_comm; /* service */
	char *handle;      /* service: the peer's handle, in the same memory until connected */
};

enum play_job { JOB_NONE, JOB_LISTEN, JOB_CONNECT, JOB_CLOSE, JOB_EXIT };

struct play {
	struct play_options options;
	struct net net;
	struct rendezvous rdv;
	char host[64];
	char device[64];   /* name of the first device */
	size_t slot_bytes; /* slots of stream operations; set before connect */
	struct channel *channels;
	uint64_t connect_ns; /* from the first connect() to the last comm. Writer: service */

	pthread_mutex_t lock;
	pthread_cond_t main_cond;     /* an op or job has ended */
	pthread_cond_t service_cond;  /* a job is pending */
	pthread_cond_t progress_cond; /* an op is pending */
	pthread_t service_thread, progress_thread;
	bool service_started, progress_started;
	enum play_job job; /* JOB_NONE when done */
	struct op *op;     /* NULL when done */
	bool exiting;
	bool stuck; /* a call of the plugin did not return */

	char *handles; /* result of JOB_LISTEN: NCCL_HANDLE_BYTES for each channel */

	atomic_bool abort; /* both threads stop their work */
	atomic_bool interrupted;
	atomic_uint_fast64_t moved; /* completed messages and set-up steps, to detect hangs */
	struct play_mark service_mark, progress_mark;

	/* The main thread calls tick() every tick_ns while it waits. */
	uint64_t tick_ns;
	void (*tick)(void *arg);
	void *tick_arg;

	atomic_int failed; /* enum play_result; set once */
	int failed_nccl;   /* the ncclResult_t of PLAY_PLUGIN; 0: none */
	char error[PLAY_ERROR_BYTES];

	/* Totals of the rank. Writer: progress. Relaxed. */
	struct {
		atomic_uint_fast64_t sent_bytes, sent_messages;         /* completed sends */
		atomic_uint_fast64_t received_bytes, received_messages; /* completed receives */
		atomic_uint_fast64_t cpu_ns;
	} stats;
};

/* Loads the plugin, meets the other ranks at the root, calls init and devices, starts the threads.
 * On error *out is NULL and error holds the text. */
int play_open(const struct play_options *options, struct play **out, char *error, size_t error_len);
/* On every channel, connects to the next rank of the ring, accepts the previous one, and registers
 * 8 slots per connection. Once per rank. */
int play_connect(struct play *play);
/* Returns when all ranks have called it. It uses kernel TCP to the root, not the plugin. */
int play_barrier(struct play *play);
/* Collects len bytes (same on all ranks, at most PLAY_GATHER_BYTES_MAX) of every rank, in rank
 * order, into out (ranks * len bytes) of every rank. It uses the root, like the barrier. */
int play_gather(struct play *play, const void *in, size_t len, void *out);
int play_run(struct play *play, struct op *op);
/*
 * Closes as NCCL does, without a barrier: abandons requests in flight, deregisters buffers, closes
 * connections, joins threads, calls finalize and dlclose. Accepts NULL. Returns PLAY_OK; PLAY_HANG
 * if a call of the plugin does not return within timeout_s, which leaks memory and threads, so the
 * process should exit; PLAY_PLUGIN if the rank's first error is in deregMr, close or finalize (the
 * text is in the log).
 */
int play_close(struct play *play);

uint64_t play_now_ns(void);
/* Yields the CPU or sleeps after an idle pass. *passes counts consecutive idle passes. */
void play_pause(const struct play *play, unsigned *passes);
/* Records the rank's failure, unless there is one. Returns -1, so that "return play_fail(...)" ends
 * a pass. */
int play_fail(struct play *play, enum play_result result, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Records that a call of the plugin returned nccl (not 0). peer < 0: none. */
int play_fail_call(struct play *play, const char *call, int nccl, int channel, int peer);
/* Main: lets the service thread run a job, and waits for its end or a hang. */
int play_job(struct play *play, enum play_job job);

/* service.c */
void *service_main(void *arg);
/* progress.c */
void *progress_main(void *arg);
int conn_send_pass(struct conn *conn);
int conn_recv_pass(struct conn *conn);
bool conn_can_fill(const struct conn *conn);
/* Passes the next slot, which contains `bytes` bytes, to the sender. */
void conn_fill(struct conn *conn, size_t bytes);
char *conn_fill_slot(const struct conn *conn);
/* Returns the oldest message that was not consumed, and its size; NULL: none. */
char *conn_take_slot(const struct conn *conn, size_t *bytes);
/* Consumes the oldest message. Fails (-1) unless it has the expected size. */
int conn_consume(struct conn *conn, size_t expected);
/* Before an op: sets the maximum message size, which is also the stride, and the number of
 * outstanding messages. */
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
/* From now on, log lines are printed with this rank's name; NULL: not printed. */
void log_attach(const struct play *play);
void log_line(int level, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void log_last_warn(char *text, size_t len);
/* Copies the line after *cursor (initially 0) to text and advances *cursor. Returns the line's
 * level, or 0 at the end. The last 256 lines are stored, whether or not they were printed. */
int log_next(uint64_t *cursor, char *text, size_t text_len);

#endif
