/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - internal interface of the device side: connections, primitives, tasks. */
#ifndef NCCL_DEVICE_H
#define NCCL_DEVICE_H

#include "emulation.h"
#include "layout.h"

enum protocol { PROTOCOL_LL, PROTOCOL_LL128, PROTOCOL_SIMPLE }; /* NCCL_PROTO_* */

/* The values of ncclDataType_t that collectives support. */
enum element_type {
	ELEMENT_INT8,
	ELEMENT_UINT8,
	ELEMENT_INT32,
	ELEMENT_UINT32,
	ELEMENT_INT64,
	ELEMENT_UINT64,
	ELEMENT_FLOAT16,
	ELEMENT_FLOAT32,
	ELEMENT_FLOAT64,
};

/* A channel of a communicator, as one block of a kernel sees it. */
struct channel {
	const void *comm, *info; /* ncclKernelComm, ncclDevChannel */
	int id, rank, nranks;
};

void channel_open(struct channel *channel, const void *comm, int id);

/* ---- connection.c ---------------------------------------------------------------------------- */

enum { CONNECTION_STEPS = 8 }; /* NCCL_STEPS: slots of a connection's buffer */

/* One direction of a channel's connection to a peer. */
struct connection {
	const void *info; /* ncclConnInfo */
	bool is_send;
	enum protocol protocol;
	uint64_t step;
	uint64_t limit; /* last value of the peer's counter */
	uint64_t *head, *tail;
	char *buffer, *fifo;
	int *sizes, *offsets; /* up to NCCL 2.19; later versions use fifo */
	size_t step_bytes, step_lines;
};

/* round_steps: chunks start at multiples of this number of steps. */
void connection_open(struct connection *connection, const struct channel *channel, int peer,
		     bool is_send, int index, enum protocol protocol, int round_steps);
void connection_close(struct connection *connection); /* stores the step for the next kernel */
bool connection_is_ready(struct connection *connection, int steps);
char *connection_slot(const struct connection *connection);
void connection_set_size(const struct connection *connection, size_t bytes);
void connection_advance(struct connection *connection, int steps);

/* ---- primitive.c ----------------------------------------------------------------------------- */

/* Moves one chunk: [receive] [+ source] -> [send] [target]. Addresses are views, or NULL. */
struct primitive {
	const char *source;
	char *target;
	bool is_receiving, is_sending;
	size_t count; /* elements; 0: only the counters advance */
	/* The progress, initially zero. */
	bool is_started;
	int slice;
	size_t done; /* elements */
	size_t slice_elements;
};

/* The connections and types that the primitives of one work share. */
struct transfer {
	struct connection recv, send;
	enum protocol protocol;
	enum element_type type;
	size_t element_bytes;
	int slices, slice_steps; /* slices per chunk, steps per slice */
	size_t step_elements;
};

enum progress { PROGRESS_NONE, PROGRESS_SOME, PROGRESS_DONE };

enum progress primitive_poll(struct transfer *transfer, struct primitive *primitive);

/* ---- task.c: works as sequences of primitives ------------------------------------------------ */

enum collective {
	COLLECTIVE_NONE, /* send and receive */
	COLLECTIVE_ALLGATHER,
	COLLECTIVE_BROADCAST,
	COLLECTIVE_ALLREDUCE,
	COLLECTIVE_REDUCE,
	COLLECTIVE_REDUCESCATTER,
};

/* The meaning of a kernel's function id. */
struct function {
	enum collective collective;
	int reduction, type, algorithm;
	enum protocol protocol;
};

struct ring_work {
	enum collective collective;
	int index, nranks, root;
	const int *ranks; /* ranks of the ring, starting with this one */
	const char *source;
	char *target;
	size_t count;         /* elements of one rank's block */
	size_t first, length; /* elements of this channel's part */
	size_t chunk;         /* elements */
	size_t loop;          /* position in the part */
	int step;             /* primitive within the loop */
};

struct p2p_work {
	char *address;
	size_t bytes, chunk, done;
	bool is_send, is_first;
};

struct task {
	struct transfer transfer;
	struct primitive primitive;
	bool has_primitive, is_ring;
	union {
		struct ring_work ring;
		struct p2p_work p2p;
	};
};

struct task *task_ring(const struct channel *channel, const void *work,
		       const struct function *function);
struct task *task_p2p(const struct channel *channel, int peer, bool is_send, void *address,
		      size_t bytes, size_t chunk, bool is_ll);
enum progress task_poll(struct task *task);
void task_close(struct task *task); /* also for aborted tasks */

#endif
