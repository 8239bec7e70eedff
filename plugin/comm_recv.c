/* SPDX-License-Identifier: Apache-2.0 */
/* comm_recv.c - the receiving end: DATA records to posted receives, and telling what is posted. */
#include <errno.h>

#include "comm.h"

/*
 * Theory of operation
 *
 * Nothing is read while no receive is posted: a message without one waits in the lane, and TCP's
 * flow control holds the sender. Payload goes from the lane to its final place at once, in whole
 * 8-byte units (NCCL contract section 4.3).
 *
 * A CREDIT record costs a packet, so small messages go without. Receives are told, all that are
 * posted at once, when (a) the last message begun was large, (b) a quarter of the eager bytes or 64
 * messages have come since the last time. docs/lanes.md section 5 shows that this suffices.
 */

static void comm_recv_tell(struct comm *comm)
{
	struct comm_recv_state *rx = &comm->rx;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_acquire);
	struct record record = { .type = RECORD_CREDIT, .message = comm->completed };

	/* A record still on its way out goes first. */
	if (comm->no_credit || comm->send_broken || comm_out_push(comm) != 1 || comm->end_error)
		return;
	if (rx->told == posted || (!rx->bulk && rx->bytes_since_told < comm->eager_bytes / 4 &&
				   rx->messages_since_told < COMM_CREDIT_MESSAGES))
		return;
	record.total = posted;
	record.length = (uint32_t)(8 * (posted - comm->completed)); /* 32 at most */
	comm_out_begin(comm, &record);
	for (uint64_t m = comm->completed; m < posted; m++) {
		wire_put64(comm->out.header + comm->out.header_bytes, comm_request(comm, m)->size);
		comm->out.header_bytes += 8;
	}
	rx->told = posted;
	rx->bytes_since_told = 0;
	rx->messages_since_told = 0;
	(void)comm_out_push(comm);
}

static void comm_recv_truncated(struct comm *comm, const struct record *record, size_t posted)
{
	struct record detail = { .total = posted, .offset = record->total };

	comm_fail(
		comm, -EMSGSIZE, CLOSE_TRUNCATED, &detail,
		"message truncated: %llu bytes came for a receive of %zu (message %llu, tag %#x): "
		"the ranks disagree on sizes; check that NCCL_PROTO, NCCL_ALGO and the like are equal "
		"on every rank",
		(unsigned long long)record->total, posted, (unsigned long long)record->message,
		record->tag);
}

/* A DATA header: does it continue where we are? */
static int comm_recv_data(struct comm *comm, const struct record *record)
{
	struct comm_recv_state *rx = &comm->rx;
	struct request *request = comm_request(comm, rx->current);

	if (record->message != rx->current || record->offset != rx->offset) {
		comm_fail_protocol(comm, "a DATA record out of order");
		return -EPROTO;
	}
	if (rx->in_message && record->total != rx->total) {
		comm_fail_protocol(comm, "a message that changes its size");
		return -EPROTO;
	}
	if (record->total > request->size) {
		comm_recv_truncated(comm, record, request->size);
		return -EMSGSIZE;
	}
	rx->in_message = true;
	rx->total = record->total;
	rx->bulk = record->total > COMM_BULK_BYTES;
	rx->payload_left = record->length;
	rx->bytes_since_told += RECORD_HEADER_BYTES;
	return 0;
}

/* 1: the record's payload is complete, 0: more is to come, or the error. */
static int comm_recv_payload(struct comm *comm)
{
	struct comm_recv_state *rx = &comm->rx;
	struct request *request = comm_request(comm, rx->current);

	while (rx->payload_left) {
		ssize_t n = comm->lane->ops->recv(comm->lane, request->data + rx->offset,
						  rx->payload_left, 8);

		if (n == -EAGAIN)
			return 0;
		if (n < 0) {
			comm_end_by_error(comm, (int)n);
			return (int)n;
		}
		if (!n) {
			comm_end(comm, -ECONNRESET,
				 "connection closed in the middle of a message: the peer's process "
				 "died (see its log)");
			return -ECONNRESET;
		}
		rx->payload_left -= (uint64_t)n;
		rx->offset += (uint64_t)n;
		rx->bytes_since_told += (uint64_t)n;
	}
	if (rx->offset == rx->total) {
		comm_complete(comm, rx->total);
		rx->current++;
		rx->messages_since_told++;
		rx->offset = 0;
		rx->in_message = false;
	}
	return 1;
}

static void comm_recv_read(struct comm *comm)
{
	struct comm_recv_state *rx = &comm->rx;
	struct record record;

	while (rx->payload_left ||
	       rx->current < atomic_load_explicit(&comm->posted, memory_order_acquire)) {
		if (!rx->payload_left) {
			if (comm_read_record(comm, &record) != 1)
				return;
			if (record.type == RECORD_CLOSE) {
				comm_end_by_record(comm, &record);
				return;
			}
			if (record.type != RECORD_DATA) {
				comm_fail_protocol(comm, "a record that only a receiver may send");
				return;
			}
			if (comm_recv_data(comm, &record))
				return;
			if (rx->bulk) /* before the payload: the sender may be waiting */
				comm_recv_tell(comm);
		}
		if (comm_recv_payload(comm) != 1)
			return;
	}
}

void comm_recv_advance(struct comm *comm, uint64_t now_ns)
{
	(void)now_ns;
	if (!comm->end_error)
		comm_recv_read(comm);
	if (!comm->error)
		comm_recv_tell(comm);
}
