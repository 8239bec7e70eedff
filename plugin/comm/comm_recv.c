/* SPDX-License-Identifier: Apache-2.0 */
/* comm_recv.c - the receiver: delivers DATA records to posted receives, and keeps unexpected
 * ones. */
#include <errno.h>
#include <stdlib.h>

#include "comm/comm_impl.h"
#include "lane/place.h"

/*
 * Theory of operation
 *
 * Payload is copied from a lane straight to the receive buffer, in whole 8-byte units (NCCL
 * contract section 4.3). Messages complete in order.
 *
 * In a single-lane comm, a message without a posted receive waits in the lane, and TCP's flow
 * control stops the sender.
 *
 * In a multi-lane comm, chunks arrive on any lane in any order, and `ranges` records what has
 * arrived. While all posted receives are complete, a lane is read up to the first chunk of a
 * message without receive. Duplicates are acknowledged even then, because their sender may wait for
 * an ACK that was lost with its lane. While a receive is incomplete, every lane is read, and chunks
 * of messages without receive (unexpected messages) are stored in the comm's memory. The eager
 * limit bounds that memory.
 *
 * Two lanes may bring the same chunk, and one may die in the middle of it. The first lane that
 * completes the chunk counts; duplicates are read and dropped. So the target is looked up before
 * every piece.
 */

enum target_kind {
	TARGET_NONE,    /* nothing can be read now */
	TARGET_NOWHERE, /* a duplicate: drop it */
	TARGET_MEMORY,
	TARGET_FAULT, /* the comm has failed */
};

struct target {
	enum target_kind kind;
	uint8_t *memory;
	struct comm_unexpected *unexpected; /* that owns the memory, or NULL */
};

int comm_recv_init(struct comm *comm)
{
	struct comm_recv_state *rx = &comm->rx;

	if (!comm->multi_lane)
		return 0;
	rx->ranges.table = malloc(COMM_RANGES_MAX * sizeof(*rx->ranges.table));
	rx->ranges.max = COMM_RANGES_MAX;
	return rx->ranges.table ? 0 : -ENOMEM;
}

void comm_recv_free(struct comm *comm)
{
	struct comm_unexpected *u, *next;

	for (u = comm->rx.unexpected; u; u = next) {
		next = u->next;
		free(u);
	}
	free(comm->rx.ranges.table);
}

/* ---- unexpected messages -------------------------------------------------------------------- */

static struct comm_unexpected *unexpected_find(struct comm *comm, uint64_t message, uint64_t offset)
{
	struct comm_unexpected *u = comm->rx.unexpected;

	while (u && (u->message != message || u->offset != offset))
		u = u->next;
	return u;
}

/* Does one more unexpected chunk fit? Chunks whose receive is posted by now do not count as
 * bytes. */
static bool unexpected_fits(struct comm *comm, uint32_t length)
{
	uint64_t posted = comm_posted(comm), bytes = RECORD_HEADER_BYTES + (uint64_t)length;
	unsigned count = 1;

	for (const struct comm_unexpected *u = comm->rx.unexpected; u; u = u->next) {
		count++;
		if (u->message >= posted)
			bytes += RECORD_HEADER_BYTES + (uint64_t)u->length;
	}
	return bytes <= comm->eager_bytes && count <= COMM_UNEXPECTED_MAX;
}

static struct comm_unexpected *unexpected_new(struct comm *comm, const struct comm_in *in)
{
	struct comm_unexpected *u = aligned_alloc(64, (sizeof(*u) + in->length + 63) & ~(size_t)63);

	if (!u)
		return NULL;
	u->message = in->message;
	u->offset = in->offset;
	u->total = in->total;
	u->length = in->length;
	u->tag = in->tag;
	u->complete = false;
	u->next = comm->rx.unexpected;
	comm->rx.unexpected = u;
	return u;
}

/* ---- the target of a chunk ------------------------------------------------------------------ */

static struct target target_fault(struct comm_lane *l, const char *violation)
{
	comm_fail_protocol(l->comm, l, violation);
	return (struct target){ .kind = TARGET_FAULT };
}

static void recv_fail_truncated(struct comm *comm, struct comm_lane *l, const struct comm_in *in,
				size_t posted)
{
	struct record detail = { .total = posted, .offset = in->total };

	comm_fail(
		comm, l, -EMSGSIZE, CLOSE_TRUNCATED, &detail,
		"message truncated: %llu bytes came for a receive of %zu (message %llu, tag %#x): "
		"the ranks disagree on sizes; check that NCCL_PROTO, NCCL_ALGO and the like are equal "
		"on every rank",
		(unsigned long long)in->total, posted, (unsigned long long)in->message, in->tag);
}

/* Checks a record against its posted receive. l: NULL for an unexpected message; kind: of the lane
 * that brought it. Returns false if the comm has failed. */
static bool recv_admit(struct comm *comm, struct comm_lane *l, unsigned kind,
		       const struct comm_in *in)
{
	struct request *request = comm_request(comm, in->message);

	if (request->begun && request->total != in->total) {
		comm_fail_protocol(comm, l, "a message that changes its size");
		return false;
	}
	if (in->total > request->size) {
		recv_fail_truncated(comm, l, in, request->size);
		return false;
	}
	if (!request->begun)
		request->begun_ns = comm->now_ns;
	request->begun = true;
	request->used_kinds |= (uint8_t)kind;
	request->total = in->total;
	/* In a multi-lane comm, the ACK of a shorter message carries the CREDIT. */
	comm->rx.bulk = in->total > COMM_BULK_BYTES &&
			(!comm->multi_lane || in->total > comm->eager_bytes / 4);
	return true;
}

/* 1: all of the chunk has arrived, 0: none of it, -EPROTO: a part of it. */
static int recv_has(struct comm *comm, const struct comm_in *in, uint64_t posted)
{
	const struct request *request = comm_request(comm, in->message);

	if (in->message < comm->completed)
		return 1;
	if (in->message >= posted || !request->begun)
		return 0;
	if (request->received == request->total)
		return 1;
	if (!in->length)
		return 0;
	return ranges_have(&comm->rx.ranges, in->message, in->offset, in->offset + in->length);
}

static struct target target_unexpected(struct comm_lane *l, struct comm_unexpected *u)
{
	struct comm *comm = l->comm;
	const struct comm_in *in = &l->in;

	if (u && (u->length != in->length || u->total != in->total))
		return target_fault(l, "a DATA record that overlaps others");
	if (u && u->complete)
		return (struct target){ .kind = TARGET_NOWHERE };
	if (!u) {
		if (!unexpected_fits(comm, in->length))
			return target_fault(l, "more data than the credits allow");
		u = unexpected_new(comm, in);
	}
	if (!u) {
		comm_fail(comm, l, -ENOMEM, CLOSE_LOCAL, NULL, "out of memory");
		return (struct target){ .kind = TARGET_FAULT };
	}
	u->kind = (uint8_t)l->kind;
	return (struct target){ .kind = TARGET_MEMORY, .memory = u->data, .unexpected = u };
}

static struct target recv_target(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_in *in = &l->in;
	uint64_t posted = comm_posted(comm);
	struct comm_unexpected *u = NULL;
	int has = 0;

	if (comm->multi_lane) {
		has = recv_has(comm, in, posted);
		u = unexpected_find(comm, in->message, in->offset);
	}
	if (has < 0)
		return target_fault(l, "a DATA record that overlaps others");
	if (has)
		return (struct target){ .kind = TARGET_NOWHERE };
	if (!u && in->message >= posted && comm->completed == posted) /* no receive is incomplete */
		return (struct target){ .kind = TARGET_NONE };
	if (u || in->message >= posted)
		return target_unexpected(l, u);
	if (!in->admitted && !recv_admit(comm, l, l->kind, in))
		return (struct target){ .kind = TARGET_FAULT };
	in->admitted = true;
	return (struct target){ .kind = TARGET_MEMORY,
				.memory = comm_request(comm, in->message)->data + in->offset };
}

/* ---- arrival -------------------------------------------------------------------------------- */

/* The peer sent CLOSE: the comm ends when everything sent before has arrived, on all lanes. */
static void recv_close(struct comm *comm, const struct record *close)
{
	comm->rx.peer_closed = true;
	comm->rx.peer_close = *close;
	if (!comm->multi_lane || close->tag != CLOSE_ORDERLY || close->message <= comm->completed)
		comm_end_by_record(comm, close);
}

/* A chunk is complete in its receive buffer. */
static void recv_placed(struct comm *comm, struct comm_lane *l, uint64_t message, uint64_t offset,
			uint64_t length)
{
	struct comm_recv_state *rx = &comm->rx;
	struct request *request = comm_request(comm, message);
	uint64_t posted = comm_posted(comm);
	int rc = 1;

	if (comm->multi_lane && length < request->total)
		rc = ranges_add(&rx->ranges, message, offset, offset + length);
	if (rc < 0) {
		comm_fail_protocol(comm, l,
				   rc == -ENOSPC ? "too many holes between DATA records"
						 : "a DATA record that overlaps others");
		return;
	}
	request->received += rc ? length : 0;
	ack_count(comm, message, RECORD_HEADER_BYTES + length);
	while (comm->completed < posted) {
		request = comm_request(comm, comm->completed);
		if (!request->begun || request->received != request->total)
			break;
		if (comm->multi_lane)
			ranges_forget(&rx->ranges, comm->completed);
		comm_complete(comm, l, request->total);
		ack_message_done(comm, request->total);
	}
	if (rx->peer_closed)
		recv_close(comm, &rx->peer_close);
}

/* The payload of l->in is complete. */
static void recv_arrived(struct comm_lane *l, const struct target *target)
{
	struct comm_in *in = &l->in;

	in->active = false;
	if (target->kind == TARGET_NOWHERE) {
		LANE_STATS_ADD(l->stats, chunks_duplicate, 1);
		l->duplicate = true;
		l->idle_records++;
		return;
	}
	LANE_STATS_ADD(l->stats, payload_bytes, in->length);
	if (target->unexpected)
		target->unexpected->complete = true;
	else
		recv_placed(l->comm, l, in->message, in->offset, in->length);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Reads one piece. Returns bytes, 0 (nothing to read), or the error. */
static ssize_t recv_piece(struct comm_lane *l, const struct target *target)
{
	_Alignas(64) uint8_t nowhere[8192];
	size_t left = l->in.length - l->in.done;
	ssize_t n;

	if (target->kind == TARGET_MEMORY)
		n = l->lane->ops->recv(l->lane, target->memory + l->in.done, left, 8);
	else
		n = l->lane->ops->recv(l->lane, nowhere,
				       left < sizeof(nowhere) ? left : sizeof(nowhere), 8);
	if (n == -EAGAIN)
		return 0;
	if (n <= 0)
		return n ? n : -EPIPE;
	l->in.done += (uint32_t)n;
	l->turn_bytes += (uint32_t)n;
	lane_stats_received(l->stats, (uint64_t)n, l->comm->now_ns);
	return n;
}

/* 1: the payload is complete or the turn is over. 0: wait for more. Or the error that ended the
 * lane. */
static int recv_payload(struct comm_lane *l)
{
	struct comm *comm = l->comm;

	for (;;) {
		struct target target = recv_target(l);
		ssize_t n;

		if (target.kind == TARGET_NONE)
			l->waits = true;
		if (target.kind == TARGET_NONE || target.kind == TARGET_FAULT)
			return 0;
		if (!l->in.done && !target.unexpected && ack_is_urgent(comm))
			ack_run(comm);
		n = l->in.done < l->in.length ? recv_piece(l, &target) : 0;
		if (l->in.done == l->in.length) {
			recv_arrived(l, &target);
			return 1;
		}
		if (n <= 0)
			return (int)n;
		if (comm_lane_turn_is_over(l))
			return 1;
	}
}

/* Reads the next header. 1: l->in holds a DATA record. 0: none has arrived, or the comm has ended
 * or failed. -EPIPE: it was a CLOSE, and other lanes may bring more. */
static int recv_header(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	uint64_t posted = comm_posted(comm);
	struct record record;
	const char *violation = NULL;
	int rc;

	if (l->close_received)
		return -EPIPE;
	if (!comm->multi_lane && comm->completed == posted) {
		l->waits = true;
		return 0;
	}
	rc = comm_read_record(l, &record);
	if (rc != 1)
		return comm_has_failed(comm) ? 0 : rc;
	if (record.type == RECORD_CLOSE) {
		l->close_received = true;
		recv_close(comm, &record);
		return comm->end_error ? 0 : -EPIPE;
	}
	if (record.type != RECORD_DATA)
		violation = "a record that only a receiver may send";
	else if (record.message >= posted + COMM_EAGER_MESSAGES ||
		 (!comm->multi_lane &&
		  (record.message != comm->completed ||
		   record.offset != comm_request(comm, record.message)->received)))
		violation = "a DATA record out of order";
	if (violation) {
		comm_fail_protocol(comm, l, violation);
		return 0;
	}
	l->in = (struct comm_in){ .active = true,
				  .message = record.message,
				  .offset = record.offset,
				  .total = record.total,
				  .length = record.length,
				  .tag = record.tag };
	if (l->kind == LANE_KERNEL) {
		atomic_store_explicit(&comm->kernel_active_ns, comm->now_ns, memory_order_relaxed);
		atomic_store_explicit(&comm->kernel_message, record.message, memory_order_relaxed);
	}
	return 1;
}

int comm_recv_read(struct comm_lane *l)
{
	int rc = 1;

	l->waits = false;
	while (rc == 1 && !comm_lane_turn_is_over(l)) {
		if (!l->in.active)
			rc = recv_header(l);
		if (rc == 1)
			rc = recv_payload(l);
	}
	return rc;
}

/* ---- unexpected messages whose receives are posted ------------------------------------------ */

/* Delivers it unless another lane has done so. Returns false if the comm has failed. */
static bool unexpected_deliver(struct comm *comm, struct comm_unexpected *u)
{
	struct comm_in in = { .message = u->message,
			      .offset = u->offset,
			      .total = u->total,
			      .length = u->length,
			      .tag = u->tag };
	struct iovec piece = { u->data, u->length };
	int has = recv_has(comm, &in, comm_posted(comm));

	if (has == 1)
		return true;
	if (has < 0) {
		comm_fail_protocol(comm, NULL, "a DATA record that overlaps others");
		return false;
	}
	if (!recv_admit(comm, NULL, u->kind, &in))
		return false;
	if (u->length)
		place_gather(comm_request(comm, u->message)->data + u->offset, u->length, &piece,
			     1);
	recv_placed(comm, NULL, u->message, u->offset, u->length);
	return !comm_has_failed(comm);
}

static void unexpected_run(struct comm *comm)
{
	struct comm_unexpected **at = &comm->rx.unexpected, *u;
	uint64_t posted = comm_posted(comm);

	while ((u = *at)) {
		/* An incomplete chunk of a completed message: other lanes have delivered the
		 * bytes. */
		if (u->message >= posted || (!u->complete && u->message >= comm->completed)) {
			at = &u->next;
			continue;
		}
		*at = u->next;
		if (!unexpected_deliver(comm, u)) {
			free(u);
			return;
		}
		free(u);
	}
}

void comm_recv_run(struct comm *comm)
{
	uint64_t posted = comm_posted(comm);
	struct comm_lane *l;

	if (comm->rx.unexpected)
		unexpected_run(comm);
	if (comm_has_failed(comm) || comm->end_error)
		return;
	COMM_FOR_EACH_LANE(comm, l)
	if (l->waits && (l->in.active ? l->in.message < posted || comm->completed < posted
				      : comm->completed < posted)) {
		l->waits = false;
		comm_wake(l);
	}
	ack_run(comm);
}
