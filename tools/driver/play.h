/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play.h - what the files of the driver share: one rank, its connections, its operation.
 *
 * Lines that say "main", "service", "progress" name the thread that may touch a member; the rest
 * is written before the threads start or under play->lock.
 */
#ifndef HARP_DRIVER_PLAY_H
#define HARP_DRIVER_PLAY_H

#include <pthread.h>
#include <stdatomic.h>

#include "ncclplay.h"
#include "net.h"
#include "rendezvous.h"

#define PLAY_SLOTS 8u                  /* NCCL_STEPS */
#define PLAY_SLOT_BYTES (512u << 10)   /* NCCL_BUFFSIZE / NCCL_STEPS */
#define PLAY_LL_SLOT_BYTES (64u << 10) /* of which half is payload */
#define PLAY_SPINS 64u                 /* passes that move nothing before a rest */
#define PLAY_TICK_NS 100000000ull      /* interval of a waiting caller's checks */

/* The name of the plugin's function that a thread is in; NULL: in none. Writer: that thread. */
struct play_mark {
	_Atomic(const char *) call;
};

/*
 * One direction of one connection. Counters count messages since the operation began; slot of
 * message m is m % depth.
 *
 * Sender:   done <= transmitted <= filled <= done + depth
 * Receiver: consumed, received <= posted <= min(consumed, received) + depth, and posted <= limit
 *
 * filled, consumed and limit belong to the thread that plays the GPU, with flag, expected[], and sizes[] of
 * a sender; all else to the progress thread. Mostly the progress thread is both; with LL the GPU is
 * a thread of its own, and count_put publishes (release) what count_get finds (acquire).
 */
typedef atomic_uint_fast64_t count_t;

static inline uint64_t count_get(const count_t *count)
{
	return atomic_load_explicit((count_t *)(uintptr_t)count, memory_order_acquire);
}

static inline void count_put(count_t *count, uint64_t value)
{
	atomic_store_explicit(count, value, memory_order_release);
}

/* By its one writer. */
static inline void count_add(count_t *count, uint64_t more)
{
	count_put(count, count_get(count) + more);
}

struct conn {
	struct ncclplay *play;
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
	count_t filled, done;
	count_t posted, received, consumed, limit;
	uint64_t transmitted, checked;
	size_t expected[PLAY_SLOTS]; /* receiver: bytes that a consumed message must have had */
	size_t post_bytes;           /* receiver: size of each posted buffer */
	bool optional;               /* receiver: NCCL_NET_OPTIONAL_RECV_COMPLETION (LL) */
	uint32_t flag; /* LL: flag of the last line written or awaited, never reused */
};

/* The work of the progress thread; embedded. */
struct op {
	const char *name;
	/* Does what can be done now: 1 something moved, 0 nothing did, < 0: play has failed. */
	int (*pass)(struct op *op);
	/* What it waits for, in one line. */
	void (*describe)(struct op *op, char *text, size_t len);
	/* NULL: pass() does this too. Else the GPU's part, for a thread of its own, which calls it
	 * until it returns -1: all done. 1 something moved, 0 nothing did. */
	int (*gpu)(struct op *op);
	bool finished; /* progress thread */
};

/* Connections of one channel. */
struct channel {
	struct conn send, recv;
	void *listen_comm; /* service */
	char *handle;      /* service: the peer's, same memory until connected */
	float *ll_in,
		*ll_out; /* progress, LL only: a slice read from lines, and one to be written */
};

enum play_job { JOB_NONE, JOB_LISTEN, JOB_CONNECT, JOB_CLOSE, JOB_EXIT };

struct ncclplay {
	struct ncclplay_options options;
	struct net net;
	struct rendezvous rdv;
	char host[64];
	size_t slot_bytes; /* of the stream operations' slots; set before connect */
	struct channel *channels;
	bool connected;
	uint64_t connect_ns; /* from the first connect() to the last comm; Writer: service */

	pthread_mutex_t lock;
	pthread_cond_t main_cond;     /* an op or job is over */
	pthread_cond_t service_cond;  /* a job is there */
	pthread_cond_t progress_cond; /* an op is there */
	pthread_cond_t gpu_cond;      /* the same, with a GPU's part */
	pthread_t service_thread, progress_thread, gpu_thread;
	bool service_started, progress_started, gpu_started;
	enum play_job job; /* JOB_NONE when done */
	struct op *op;     /* NULL when done */
	struct op *gpu_op; /* NULL when done */
	bool exiting;
	bool stuck; /* a thread never came back from the plugin */

	char *handles; /* JOB_LISTEN's result, channels * 128 bytes */

	atomic_bool abort; /* both threads leave what they do */
	atomic_bool interrupted;
	atomic_uint_fast64_t moved; /* messages and set-up steps done: the sign of life */
	struct play_mark service_mark, progress_mark, main_mark;

	/* Called by a waiting main thread every tick_ns. */
	uint64_t tick_ns;
	void (*tick)(void *arg, uint64_t moved);
	void *tick_arg;

	atomic_int failed; /* enum ncclplay_result; set once */
	int failed_nccl;
	char error[NCCLPLAY_ERROR_BYTES];

	/* Writer: progress. Relaxed. */
	struct {
		atomic_uint_fast64_t sent_bytes, sent_messages, received_bytes, received_messages;
		atomic_uint_fast64_t cpu_ns;
	} stats;
};

uint64_t play_now_ns(void);
/* After a pass that moved nothing: yields the processor, or sleeps. passes counts them in a row. */
void play_rest(const struct ncclplay *play, unsigned *passes);
uint64_t play_process_cpu_ns(void);
uint64_t play_process_wakes(void); /* how often its threads have slept, those that are over too */

/* play.c: the first failure wins; returns -1 so that "return play_fail(...)" ends a pass. */
int play_fail(struct ncclplay *play, enum ncclplay_result result, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A call of the plugin returned nccl (not 0). peer < 0: none. */
int play_fail_call(struct ncclplay *play, const char *call, int nccl, int channel, int peer);
/* Waits for the op or the job in hand, watching for hangs. Main. */
int play_wait(struct ncclplay *play, const char *what);
int play_run(struct ncclplay *play, struct op *op);
int play_job(struct ncclplay *play, enum play_job job);

/* service.c */
void *service_main(void *arg);
/* progress.c */
void *progress_main(void *arg);
/* gpu.c */
void *gpu_main(void *arg);
int conn_send_pass(struct conn *conn);
int conn_recv_pass(struct conn *conn);
bool conn_can_fill(const struct conn *conn);
/* Hands the next slot, filled with bytes, to the sender. */
void conn_fill(struct conn *conn, size_t bytes);
char *conn_fill_slot(const struct conn *conn);
/* The oldest message received and not consumed; NULL: none. bytes: its size. */
char *conn_take_slot(const struct conn *conn, size_t *bytes);
/* Where the next message to be consumed lies or will lie. */
char *conn_consume_slot(const struct conn *conn);
/* The message must have expected bytes: found out now or, when LL consumes before the completion,
 * then. */
void conn_consume(struct conn *conn, size_t expected);
/* 0, or -1 when a message had another size. */
int conn_check(struct conn *conn);
/* Before an op: messages may be `bytes` long, `stride` apart, `depth` outstanding. */
void conn_shape(struct conn *conn, size_t bytes, size_t stride, unsigned depth, bool optional);
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
void log_attach(const struct ncclplay *play);
void log_line(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
void log_last_warn(char *text, size_t len);

#endif
