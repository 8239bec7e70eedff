/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_impl.h - declarations that the files of libharp-coll share. Overview: ARCHITECTURE.md.
 *
 * Locking: runtime.lock protects everything below unless stated otherwise. Its holder is the
 * poller: only that thread calls the plugin. Callbacks of the caller (store, notify) run without
 * the lock.
 */
#ifndef HARP_COLL_IMPL_H
#define HARP_COLL_IMPL_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "harp_coll.h"

#define COLL_NSEC_PER_MSEC 1000000ll
#define COLL_NSEC_PER_SEC 1000000000ll
#define COLL_HANDLE_BYTES 128u
#define COLL_XFERS 32u                /* messages in progress per direction of a link */
#define COLL_INLINE_BYTES 32768u      /* data that fits a link's first message of an operation */
#define COLL_SCRATCH_KEEP (32u << 20) /* scratch memory that an idle group keeps, in bytes */
#define COLL_NAME_BYTES 65u
#define COLL_HOST_BYTES 64u
#define COLL_RANK_BYTES 96u /* text of meet_rank() */

struct harp_coll;
struct bounce;
struct link;

/* ---- coll_net.c: the ncclNet plugin ---------------------------------------------------------- */

int net_load(const char *plugin, char *error, size_t error_bytes);
void net_unload(void);
const struct harp_coll_net *net_info(void);
int net_devices(void);
int net_listen(int device, void *handle, void **listen_comm);
/* 0 with *comm NULL: in progress. The plugin may keep state in handle until then. */
int net_connect(int device, void *handle, void **comm);
int net_accept(void *listen_comm, void **comm);
/* 0 with *request NULL: not possible now. */
int net_isend(void *comm, void *data, size_t bytes, void **mhandle, void **request);
int net_irecv(void *comm, void *data, size_t bytes, void **mhandle, void **request);
int net_test(void *comm, void *request, void *mhandle, bool *done, size_t *bytes);
void net_close_send(void *comm);
void net_close_recv(void *comm);
void net_close_listen(void *listen_comm);

/* ---- coll_call.c: descriptions of operations ------------------------------------------------- */

#define CALL_MAGIC 0x4c4f4348u /* "HCOL", little-endian */
#define CALL_PROTOCOL 1u

enum call_kind { CALL_COLLECTIVE, CALL_MESSAGE, CALL_REQUEST, CALL_CLEAR, CALL_DATA };

/* First bytes of a link's first message in each operation, and of every point-to-point message. */
struct call_header {
	uint32_t magic;
	uint8_t protocol;
	uint8_t kind; /* enum call_kind */
	uint8_t op, dtype, reduce, wire, algorithm;
	uint8_t unused;
	uint32_t rank;
	/* number of the collective in its group, or of the message between two ranks; from 1 */
	uint64_t seq;
	uint64_t count;
	int32_t peer;
	int32_t tag;
	uint64_t link_bytes; /* bytes that this rank sends to the receiver in this operation */
	uint64_t counts_hash;
	uint64_t reserved; /* 0 */
};
static_assert(sizeof(struct call_header) == 64, "a header is one cache line");

/* Writes a text such as "allreduce(float32, 1024 elements, sum)". */
void call_describe(const struct call_header *call, char *text, size_t bytes);
const char *call_wire_name(unsigned wire);
/* enum harp_coll_wire, or -EINVAL. */
int call_wire_parse(const char *text);
/* The call's wire format, else the group's. */
enum harp_coll_wire call_wire(const struct harp_coll *group, const struct harp_coll_call *call);
/* True if both belong to the same operation; ignores link_bytes. */
bool call_matches(const struct call_header *mine, const struct call_header *theirs);
void call_fill(struct call_header *header, const struct harp_coll *group,
	       const struct harp_coll_call *call);
int call_check(const struct harp_coll *group, const struct harp_coll_call *call, char *error,
	       size_t error_bytes);

/* ---- coll_reduce.c, coll_half.c: arithmetic -------------------------------------------------- */

bool reduce_supported(enum harp_coll_dtype dtype, enum harp_coll_reduce reduce);
/* dst[i] = a[i] op b[i]; dst may equal a or b. AVG: only the sum. */
void reduce_apply(enum harp_coll_dtype dtype, enum harp_coll_reduce reduce, void *dst,
		  const void *a, const void *b, size_t count);
/* dst[i] /= divisor */
void reduce_divide(enum harp_coll_dtype dtype, void *dst, size_t count, unsigned divisor);
float half_to_float(uint16_t half);
uint16_t half_from_float(float value);
void half_encode(enum harp_coll_wire wire, uint16_t *dst, const float *src, size_t count);
void half_decode(enum harp_coll_wire wire, float *dst, const uint16_t *src, size_t count);
void half_decode_add(enum harp_coll_wire wire, float *dst, const float *a, const uint16_t *b,
		     size_t count);

/* ---- coll_link.c, coll_shm.c: FIFO messages between two ranks -------------------------------- */

/* A buffer for a header and inline data. Owner: the caller of bounce_get(), then the link that
 * sends it. */
struct bounce {
	struct bounce *next;
	_Alignas(64) unsigned char data[sizeof(struct call_header) + COLL_INLINE_BYTES];
};
struct bounce *bounce_get(void);
void bounce_put(struct bounce *bounce);

struct xfer {
	void *data;
	size_t bytes;
	size_t received; /* bytes */
	void *request, *mhandle;
	struct bounce *owned; /* send: freed when done */
};

/* One direction of a link: a FIFO. posted >= started >= done, done + COLL_XFERS >= posted. */
struct half {
	void *comm;
	uint64_t posted, started, done;
	size_t moved; /* shm: copied bytes of the oldest message, with its frame's header */
	size_t frame; /* shm: bytes of the message being received */
	struct xfer xfers[COLL_XFERS];
};

/* Collectives and point-to-point messages have separate links, so that neither waits for the
 * other. */
enum link_class { LINK_COLLECTIVE, LINK_MESSAGE, LINK_CLASSES };

/* First message on a comm: names its link. */
struct link_hello {
	uint32_t magic;
	uint32_t protocol;
	uint8_t group[16];
	uint32_t rank, to; /* sender and receiver; a process may have several ranks of a group */
	uint32_t link_class;
	uint8_t unused[28];
};
static_assert(sizeof(struct link_hello) == 64, "fixed on the wire");

struct shm_ring;
struct link {
	struct harp_coll *group;
	int peer;
	enum link_class class;
	bool is_connecting; /* messages wait for out.comm */
	bool is_counted;    /* in runtime.inbound_expected */
	bool is_busy;       /* in group->busy */
	unsigned char handle[COLL_HANDLE_BYTES];
	struct link_hello hello;
	void *hello_request, *hello_mhandle;
	struct half out, in;
	struct shm_ring *shm_out, *shm_in;
};

/* The link to a peer; NULL: out of memory, or of space in /dev/shm. */
struct link *link_get(struct harp_coll *group, int peer, enum link_class class);
static inline bool half_has_room(const struct half *half)
{
	return half->posted - half->done < COLL_XFERS;
}
/* Returns the message's ticket: done when half.done > ticket. Requires half_has_room(). */
uint64_t link_send(struct link *link, void *data, size_t bytes, struct bounce *owned);
uint64_t link_recv(struct link *link, void *data, size_t bytes);
/* Adds the link to group->busy: group_progress() polls it until it is idle. */
void link_wake(struct link *link);
/* Accepts the peer's connection before a receive is posted. */
void link_expect_inbound(struct link *link);
bool link_has_inbound(const struct link *link);
/* 1: progress; 0: none; -errno: the link is broken. */
int link_progress(struct link *link);
/* Closes the comms, so that the plugin no longer accesses buffers. */
void link_close(struct link *link);
bool link_is_idle(const struct link *link);
/* Accepts comms and assigns them to the links that their first messages name. */
int link_accept_progress(int64_t now_ns);
void link_accept_forget(void);
int link_listener(int device, void *handle);

struct shm;
int shm_open_group(struct harp_coll *group, int64_t deadline_ns, char *error, size_t error_bytes);
void shm_close_group(struct harp_coll *group);
/* Assigns the rings if the peer is on this host. Fails the group if there is no memory for them.
 * -errno. */
int shm_bind(struct link *link);
/* Informs the host's other ranks that this rank's group has ended or failed. */
void shm_set_closed(struct harp_coll *group);
bool shm_peer_closed(const struct harp_coll *group, int peer);
int shm_progress(struct link *link);

/* ---- coll_meet.c: the store ------------------------------------------------------------------ */

struct peer_info {
	uint32_t magic, protocol;
	uint32_t rank, world;
	uint64_t settings; /* hash of the settings that must be equal on all ranks */
	int32_t pid;
	uint32_t wire;          /* enum harp_coll_wire, for calls without one */
	uint64_t pid_namespace; /* inode */
	uint64_t start_ticks;   /* of the process: /proc/PID/stat, field 22 */
	char host[COLL_HOST_BYTES];
	char host_name[COLL_HOST_BYTES]; /* for error messages */
	unsigned char handle[COLL_HANDLE_BYTES];
	uint8_t id[16]; /* of the group; from rank 0 */
};

int meet_open(struct harp_coll *group, const struct harp_coll_options *options, int64_t deadline_ns,
	      char *error, size_t error_bytes);
/* Publishes or fetches the reason of a failure, then completes it. Call without the lock. */
void meet_settle(struct harp_coll *group);
/* Fails the group if another rank failed, called another operation or is missing at the timeout.
 * Call without the lock. */
void meet_diagnose(struct harp_coll *group);
/* Reads why another rank failed the group: its errno and text; 0: no entry. */
int meet_get_error(const struct harp_coll *group, char *text, size_t room);
/* Publishes the group's error and its text. */
void meet_put_error(const struct harp_coll *group);
/* Writes "3 (host NAME)" and returns it. */
const char *meet_rank(const struct harp_coll *group, int rank, char text[COLL_RANK_BYTES]);
/* False also if the rank is in another PID namespace. */
bool meet_process_is_dead(const struct harp_coll *group, int rank);

/* ---- coll_sched.c: operations as schedules --------------------------------------------------- */

enum act_kind {
	ACT_SEND,
	ACT_RECV,
	ACT_NOTHING,
	ACT_COPY,
	ACT_REDUCE,
	ACT_DIVIDE,
	ACT_ENCODE,
	ACT_DECODE,
	ACT_DECODE_ADD,
};
#define ACT_HELLO 1u  /* the message starts with a call_header */
#define ACT_INLINE 2u /* and contains data */

struct act {
	uint8_t kind, flags;
	bool done;
	int next;   /* in its stream; -1: last */
	int dep[2]; /* acts that must be done first; -1: none */
	uint64_t ticket;
	void *dst;
	const void *a, *b;
	size_t n; /* bytes of SEND, RECV, COPY; else elements */
};

/* Acts in their order. posted: the next to post; oldest: the first in progress. */
struct stream {
	int first, last, posted, oldest;
};

#define OP_LANES 4u /* streams of local acts */

struct op_link {
	struct link *link;
	struct bounce *hello_in;
	bool has_hello_out, has_hello_in, checked;
	uint64_t send_bytes, recv_bytes;
	struct stream out, in;
};

enum op_state { OP_QUEUED, OP_RUNNING, OP_DONE };

/* An operation and its request. */
struct harp_coll_request {
	struct harp_coll *group; /* NULL: the group is closed */
	/* In one of the group's queues, runtime.notify, or spare_ops. */
	TAILQ_ENTRY(harp_coll_request) link;
	struct harp_coll_call call;
	struct call_header header;
	void *arrays; /* copies of call's arrays */
	enum op_state state;
	atomic_int result; /* 1 in progress, then 0 or -errno. Release: results are in memory */
	bool is_released;  /* the caller freed the handle */
	/* moved_ns: last progress; diagnose_ns, death_ns: next checks */
	int64_t deadline_ns, moved_ns, diagnose_ns, death_ns;
	int source;
	size_t received;
	char *error;
	void (*notify)(void *arg);
	void *notify_arg;
	struct act *acts;
	int acts_count, acts_room;
	struct op_link *links;
	int links_count, links_room;
	struct stream lanes[OP_LANES];
	/* Point to point. */
	struct bounce *bounce;
	int message_state;
	size_t posted_bytes, done_bytes;
	uint64_t message_id, message_ticket;
};

TAILQ_HEAD(op_queue, harp_coll_request);

int sched_send(struct harp_coll_request *op, int peer, const void *data, size_t bytes, int dep);
/* *where, unless NULL: the address of the data, which is dst or in op_link.hello_in. */
int sched_recv(struct harp_coll_request *op, int peer, void *dst, size_t bytes, int dep,
	       const void **where);
int sched_local(struct harp_coll_request *op, unsigned lane, enum act_kind kind, void *dst,
		const void *a, const void *b, size_t n, int dep0, int dep1);
int sched_finish(struct harp_coll_request *op);
void sched_scratch_free(struct harp_coll *group);
void *sched_scratch(struct harp_coll_request *op, size_t bytes);
/* 1: progress; 0: none; -errno: failed. */
int sched_progress(struct harp_coll_request *op);
bool sched_is_done(const struct harp_coll_request *op);
void sched_clear(struct harp_coll_request *op);

/* ---- algorithms: build a schedule; 0 or -errno ----------------------------------------------- */

enum algorithm { ALGO_DIRECT, ALGO_DOUBLING, ALGO_RING, ALGO_TREE, ALGO_CHAIN, ALGO_2D };

enum algorithm algo_choose(const struct harp_coll *group, const struct harp_coll_call *call);
int algo_build(struct harp_coll_request *op);
int direct_allreduce(struct harp_coll_request *op);
int direct_exchange(struct harp_coll_request *op);
int direct_reduce_scatter(struct harp_coll_request *op);
int doubling_allreduce(struct harp_coll_request *op);
int ring_allreduce(struct harp_coll_request *op);
int ring_allgather(struct harp_coll_request *op);
int tree_broadcast(struct harp_coll_request *op);
int tree_reduce(struct harp_coll_request *op);
int chain_broadcast(struct harp_coll_request *op);
int chain_reduce(struct harp_coll_request *op);
int hosts_allreduce(struct harp_coll_request *op);
int grid_allgather(struct harp_coll_request *op);
int grid_reduce_scatter(struct harp_coll_request *op);

/* Block of rank r: its address and number of elements. */
const void *algo_in_block(const struct harp_coll_request *op, int r, size_t *count);
void *algo_out_block(const struct harp_coll_request *op, int r, size_t *count);
/* True if writing the output of a reduce-scatter may change input that is still needed. */
bool algo_overwrites_input(const struct harp_coll_request *op, const char *out, size_t bytes);
/* HARP_COLL_ALGO if it is invalid, else NULL. */
const char *algo_check_settings(void);
/* True if HARP_COLL_ALGO disables 2D algorithms. */
bool algo_is_flat(void);
/* Hash of the settings that must be equal on all ranks. */
uint64_t algo_settings_hash(void);
/* The largest of the counts of all ranks; counts NULL: count. */
size_t algo_largest(const size_t *counts, size_t count, int world);
/* Bytes of a piece of an array, and of a slot of scratch memory for a piece. Multiples of 4096,
 * equal on all ranks. */
size_t algo_piece_bytes(size_t total_bytes);
size_t algo_slot_bytes(size_t slots);

/* ---- coll_message.c: SEND and RECV ----------------------------------------------------------- */

struct message_peer;
int message_start(struct harp_coll_request *op);
int message_progress(struct harp_coll *group);
void message_forget(struct harp_coll *group);
bool message_is_waiting(const struct harp_coll *group);

/* ---- coll.c, coll_group.c -------------------------------------------------------------------- */

enum group_state { GROUP_OPEN, GROUP_FAILING, GROUP_FAILED };

struct scratch_block;

struct harp_coll {
	LIST_ENTRY(harp_coll) link; /* runtime.groups */
	LIST_ENTRY(harp_coll) active_link;
	bool is_active;
	int rank, world;
	char name[COLL_NAME_BYTES];
	uint8_t id[16];
	struct harp_coll_store store;
	int64_t timeout_ns;
	enum harp_coll_wire wire; /* of calls without one */
	int device;
	struct peer_info *peers;
	struct link **links; /* [class * world + peer] */
	struct link **busy;  /* links with messages in progress */
	int busy_count;
	/* Topology: ranks of this host in rank order, and hosts in order of their lowest rank. */
	int *local_ranks, local_count, local_index;
	int *host_of; /* [rank] */
	int hosts_count;
	bool is_regular; /* all hosts have local_count ranks */
	int *grid;       /* [host * local_count + local index]: the rank; if is_regular */
	struct shm *shm;
	struct op_queue queue;         /* collectives; the first one runs */
	struct op_queue sends, recvs;  /* point to point */
	struct message_peer *messages; /* [world] */
	uint64_t seq, operations;
	struct scratch_block *scratch;
	size_t scratch_used, scratch_bytes;
	enum group_state state;
	bool is_cause;      /* this rank detected the error and must inform the others */
	bool is_in_store;   /* a thread uses the store for this group */
	bool has_stalled;   /* an operation made no progress for long: diagnose it */
	bool has_timed_out; /* and its timeout has expired */
	int *waits;         /* the ranks that the stalled operation waits for */
	int waits_count;
	struct call_header waits_call;
	int error;
	char error_text[HARP_COLL_ERROR_BYTES];
	struct harp_coll_stats stats;
};

/* Fails the group. is_cause: this rank must inform the others. */
void group_fail(struct harp_coll *group, bool is_cause, int error, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Closes the links, then completes all requests with the group's error. */
void group_finish_failure(struct harp_coll *group);
int group_progress(struct harp_coll *group, int64_t now_ns);
/* True if the stalled operation is still in progress. */
bool group_still_waits(const struct harp_coll *group);
bool group_is_active(const struct harp_coll *group);
void group_set_active(struct harp_coll *group);
/* Starts the times of an operation: its timeout, and the interval until a diagnosis. */
void op_start_clock(struct harp_coll_request *op, int64_t now_ns);
void op_complete(struct harp_coll_request *op, int result, const char *error);
void group_close_links(struct harp_coll *group);
struct harp_coll_request *op_take(void);
void op_put(struct harp_coll_request *op);
void op_forget_spare(void);

/* ---- coll_progress.c ------------------------------------------------------------------------- */

LIST_HEAD(group_list, harp_coll);

struct runtime {
	pthread_mutex_t lock;
	struct group_list groups, active;
	atomic_bool has_active;       /* active is not empty; read without the lock */
	pthread_mutex_t process_lock; /* serializes process_enter() and process_leave() */
	/* Groups that are being opened, open or being closed. Writer: under lock. Reader: the fork
	 * handler. */
	atomic_uint groups_count;
	unsigned inbound_expected; /* links that wait for a peer's comm */
	atomic_uint waiters;       /* threads in harp_coll_wait(); they poll */
	struct op_queue notify;    /* completed requests whose callbacks were not called yet */
	bool has_store_work;       /* a group is failing, or an operation has stalled */
	atomic_bool is_child;      /* forked while a group was open. Writer: the child's handler */
	void (*log)(void *arg, int level, const char *text);
	void *log_arg;
};
extern struct runtime runtime;

void runtime_lock(void);
void runtime_unlock(void); /* then does the store's work and calls callbacks */
/* Polls once, unless another thread holds the lock. True: progress. */
bool runtime_poll(void);
/* Polls while *result is 1. deadline_ns 0: no deadline. */
void runtime_wait(const atomic_int *result, int64_t deadline_ns);
/* Call after starting an operation that no thread waits for yet. */
void runtime_kick(void);
int runtime_thread_start(void);
void runtime_thread_stop(void);
void runtime_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t coll_now_ns(void);

#endif
