/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_coll.h - libharp-coll: collective operations of processes over any ncclNet plugin.
 *
 * A group is a set of processes, its ranks, which find each other through the caller's key-value
 * store. All ranks of a group start the same collectives in the same order. Several threads may
 * call functions of one group; the caller decides the order of their operations.
 *
 *	struct harp_coll_options options = { .size = sizeof(options), .rank = rank,
 *					     .world = world, .name = "job", .store = store };
 *	struct harp_coll *group;
 *	char error[HARP_COLL_ERROR_BYTES];
 *
 *	if (harp_coll_open(&options, &group, error, sizeof(error)))
 *		die(error);
 *	struct harp_coll_call call = { .size = sizeof(call), .op = HARP_COLL_ALLREDUCE,
 *				       .in = x, .out = x, .count = n,
 *				       .dtype = HARP_COLL_FLOAT32, .reduce = HARP_COLL_SUM };
 *	if (harp_coll_run(group, &call, error, sizeof(error)))
 *		die(error);
 *	harp_coll_close(group);
 *
 * Functions return 0 or -errno:
 *	-EINVAL      invalid argument, or a reduction that is not defined for the type
 *	-EPROTO      ranks called different operations, types or sizes; peers of other versions
 *	-ETIMEDOUT   a rank did not take part before the timeout; the text names it
 *	-ECONNRESET  a rank died or its host cannot be reached
 *	-EPROTONOSUPPORT  the plugin refuses to connect two ranks, for example on a required path
 *	-ECANCELED   harp_coll_abort() or harp_coll_close() ended the operation
 *	-EOWNERDEAD  the process was forked after the group was opened
 *	-ENOMEM      out of memory
 * The first error of a group is sticky: all its later operations fail with the same text.
 *
 * C11 and C++ clean.
 */
#ifndef HARP_COLL_H
#define HARP_COLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HARP_COLL_VERSION 1
#define HARP_COLL_ERROR_BYTES 1024 /* error texts of this library, with NUL */
#define HARP_COLL_WORLD_MAX 4096
#define HARP_COLL_ANY_RANK (-1) /* receive from any rank */

enum harp_coll_op {
	HARP_COLL_ALLREDUCE,
	HARP_COLL_BROADCAST,
	HARP_COLL_REDUCE,
	HARP_COLL_ALLGATHER,
	HARP_COLL_REDUCE_SCATTER,
	HARP_COLL_GATHER,
	HARP_COLL_SCATTER,
	HARP_COLL_ALLTOALL,
	HARP_COLL_BARRIER,
	HARP_COLL_SEND,
	HARP_COLL_RECV,
	HARP_COLL_OPS
};

enum harp_coll_dtype {
	HARP_COLL_INT8,
	HARP_COLL_UINT8,
	HARP_COLL_INT16,
	HARP_COLL_UINT16,
	HARP_COLL_INT32,
	HARP_COLL_UINT32,
	HARP_COLL_INT64,
	HARP_COLL_UINT64,
	HARP_COLL_FLOAT16,
	HARP_COLL_BFLOAT16,
	HARP_COLL_FLOAT32,
	HARP_COLL_FLOAT64,
	HARP_COLL_COMPLEX64,  /* SUM, AVG, PROD only */
	HARP_COLL_COMPLEX128, /* the same */
	HARP_COLL_BOOL,       /* one byte, 0 or 1; SUM is or, PROD is and; no AVG */
	HARP_COLL_DTYPES
};

/* MIN and MAX return NaN if a value is NaN. AVG of integers rounds toward zero. */
enum harp_coll_reduce {
	HARP_COLL_SUM,
	HARP_COLL_AVG,
	HARP_COLL_PROD,
	HARP_COLL_MIN,
	HARP_COLL_MAX,
	HARP_COLL_BAND, /* integers and bool only */
	HARP_COLL_BOR,
	HARP_COLL_BXOR,
	HARP_COLL_REDUCES
};

/*
 * Format in which an all-reduce with SUM or AVG sends float32 values between hosts. Sums are
 * computed in float32; the 16-bit formats round each sum that is sent. Arrays of up to 32 KiB, and
 * arrays of a group on one host, are not converted.
 */
enum harp_coll_wire {
	/* In a call: the group's format where it applies. In options: $HARP_COLL_WIRE, else
	 * native. */
	HARP_COLL_WIRE_DEFAULT,
	HARP_COLL_WIRE_NATIVE,
	HARP_COLL_WIRE_FLOAT16,
	HARP_COLL_WIRE_BFLOAT16,
	HARP_COLL_WIRES
};

/*
 * The caller's key-value store, shared by all ranks. Keys are printable ASCII of at most 200 bytes,
 * values have at most 2 MiB. The functions return 0 or -errno. The threads that call this library,
 * and the library's own thread, call them without holding a lock, for one group one at a time.
 * set() and get() must return within seconds, wait() after its timeout: they delay reports of
 * errors.
 */
struct harp_coll_store {
	size_t size; /* sizeof(struct harp_coll_store) */
	void *arg;
	int (*set)(void *arg, const char *key, const void *value, size_t bytes);
	/* Does not wait. *bytes: capacity, then the value's size. -ENOENT: no such key; -ENOSPC:
	 * the value does not fit. */
	int (*get)(void *arg, const char *key, void *value, size_t *bytes);
	/* Returns when the key exists; -ETIMEDOUT after timeout_ms. */
	int (*wait)(void *arg, const char *key, int64_t timeout_ms);
};

struct harp_coll_options {
	size_t size; /* sizeof(struct harp_coll_options) */
	int rank, world;
	/* Printable, without spaces, at most 64 bytes. Must be new in the store: a closed group's
	 * keys remain. */
	const char *name;
	struct harp_coll_store store;
	/* Path or name of an ncclNet plugin; NULL: $HARP_COLL_NET, else libnccl-net-harp.so in the
	 * folder of this library. A process's first group determines it for all. */
	const char *plugin;
	int device;         /* of the plugin, modulo the number of its devices; negative: 0 */
	int64_t timeout_ms; /* of harp_coll_open() and of each operation; 0: 300000 */
	/* Ranks with equal texts use shared memory. NULL: $HARP_COLL_HOST, else detected. Empty:
	 * this rank shares memory with no other. */
	const char *host;
	enum harp_coll_wire wire; /* of calls without one; equal on all ranks */
	/* Receives log lines of the plugin and of this library; level 2: warning, 3: information.
	 * May be NULL. A process's first group determines it for all. Any thread calls it, also
	 * while it holds this library's lock. So it must not call this library, nor acquire a lock
	 * (such as Python's GIL) whose holder may call this library or fork(). */
	void (*log)(void *arg, int level, const char *text);
	void *log_arg;
};

struct harp_coll;
struct harp_coll_request;

/*
 * One operation. Memory must stay valid until the request is done. Counts are elements of dtype.
 * `in` may equal `out` if both have the same number of elements. A broadcast's root may set `in` to
 * NULL: its data is in `out`.
 *
 *	op              in               out              count
 *	ALLREDUCE       count            count            of each rank
 *	BROADCAST       count (root)     count            of each rank
 *	REDUCE          count            count (root)     of each rank
 *	ALLGATHER       count            world * count    of each rank
 *	REDUCE_SCATTER  world * count    count            of each rank
 *	GATHER          count            world * count    (root) of each rank
 *	SCATTER         world * count    count            (root) of each rank
 *	ALLTOALL        world * count    world * count    of each pair
 *	SEND            count            -                to `peer` with `tag`
 *	RECV            -                count            from `peer` or HARP_COLL_ANY_RANK
 *
 * Blocks of different sizes: arrays of `world` counts, one for each rank.
 *
 *	ALLGATHER, GATHER        out_counts; optional on a gather's ranks that are not the root
 *	REDUCE_SCATTER, SCATTER  in_counts; optional on a scatter's ranks that are not the root
 *	ALLTOALL                 in_counts (to each rank) and out_counts (from each rank)
 *
 * Blocks are contiguous in rank order, unless in_blocks or out_blocks, arrays of `world` addresses,
 * locate each block.
 */
struct harp_coll_call {
	size_t size; /* sizeof(struct harp_coll_call) */
	enum harp_coll_op op;
	enum harp_coll_dtype dtype;
	enum harp_coll_reduce reduce;
	enum harp_coll_wire wire;
	int peer; /* root; SEND: destination; RECV: source */
	int tag;  /* SEND, RECV: a RECV matches messages with its tag; not negative */
	const void *in;
	void *out;
	size_t count;
	const size_t *in_counts, *out_counts;
	const void *const *in_blocks;
	void *const *out_blocks;
	int64_t timeout_ms; /* 0: the group's */
};

/* Returns when all ranks of the group have called it. */
int harp_coll_open(const struct harp_coll_options *options, struct harp_coll **out, char *error,
		   size_t error_bytes);

/*
 * Ends operations in progress with -ECANCELED, waits until messages of completed ones have been
 * sent (at most 5 s) and frees the group. Not collective. Requests of the group stay valid: free
 * them. NULL is accepted.
 */
void harp_coll_close(struct harp_coll *group);

/* Fails operations in progress and all later ones, on all ranks. Any thread may call it. */
void harp_coll_abort(struct harp_coll *group, const char *reason);

/* Starts an operation. It copies *call and its arrays of counts and addresses, but not the data. */
int harp_coll_start(struct harp_coll *group, const struct harp_coll_call *call,
		    struct harp_coll_request **out, char *error, size_t error_bytes);

/* Starts an operation and returns when it is done. Faster than harp_coll_start() with a wait. */
int harp_coll_run(struct harp_coll *group, const struct harp_coll_call *call, char *error,
		  size_t error_bytes);

/* 0: done; -EAGAIN: not yet; else the operation's error. Never sleeps. */
int harp_coll_test(struct harp_coll_request *request);

/* Returns when the request is done: its result; -EAGAIN after timeout_ms (-1: no limit). */
int harp_coll_wait(struct harp_coll_request *request, int64_t timeout_ms);

/* Calls fn once when the request is done; if it is done already, before returning. The thread that
 * completes the request calls fn, without holding a lock. fn may call this library, but must not
 * wait for operations. A request has one fn. */
void harp_coll_notify(struct harp_coll_request *request, void (*fn)(void *arg), void *arg);

/* Text of a failed request, "" for others. Valid until the request is freed. */
const char *harp_coll_request_error(const struct harp_coll_request *request);

/* Of a completed RECV: the sender's rank, and the number of received elements. Else -1 and 0. */
int harp_coll_request_source(const struct harp_coll_request *request);
size_t harp_coll_request_count(const struct harp_coll_request *request);

/* Frees the handle; an operation in progress continues. NULL is accepted. */
void harp_coll_request_free(struct harp_coll_request *request);

int harp_coll_rank(const struct harp_coll *group);
int harp_coll_world(const struct harp_coll *group);

/* Text of the group's first error, "" without one. Valid until the group is closed. */
const char *harp_coll_error(const struct harp_coll *group);

/* Bytes that this group sent and received: over the plugin (net) and through shared memory
 * (shm). */
struct harp_coll_stats {
	size_t size;
	uint64_t net_sent_bytes, net_sent_messages;
	uint64_t shm_sent_bytes, shm_sent_messages;
	uint64_t net_received_bytes, net_received_messages;
	uint64_t shm_received_bytes, shm_received_messages;
	uint64_t operations;
};
void harp_coll_stats(struct harp_coll *group, struct harp_coll_stats *stats);

/* The plugin in use: its name, its path and its device's name; "" before the first group. */
struct harp_coll_net {
	size_t size;
	char name[64], path[256], device[64];
	int abi, devices, speed_mbps;
};
void harp_coll_net(struct harp_coll *group, struct harp_coll_net *net);

/* Bytes of an element; 0: not a type. */
size_t harp_coll_dtype_bytes(enum harp_coll_dtype dtype);
const char *harp_coll_op_name(enum harp_coll_op op);

#ifdef __cplusplus
}
#endif

#endif
