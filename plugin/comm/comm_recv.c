/* SPDX-License-Identifier: Apache-2.0 */
/* comm_recv.c - the receiving end of one lane: DATA records to posted receives; the CREDITs of every receiver. */
#include <errno.h>

#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * Nothing is read while no receive is posted: a message without one waits in the lane, and TCP's
 * flow control holds the sender. Payload goes from the lane to its final place at once, in whole
 * 8-byte units (NCCL contract section 4.3).
 *
 * A CREDIT record costs a packet, so small messages go without. Receives are told, all that are
 * posted at once, when (a) the last message begun was large and the sender knows of half of the posted receives
 * at most, (b) half of the eager bytes, of messages that had not been told, or 64 messages have come since the
 * last time. docs/lanes.md section 5 shows that this suffices.
 */

/* ---- credits, of every comm -------------------------------------------------------------------- */

bool comm_recv_credit_due(const struct comm *comm, uint64_t posted)
{
	const struct comm_recv_state *rx = &comm->rx;
	uint64_t known = rx->told > comm->completed ? rx->told - comm->completed : 0;

	return rx->told != posted && ((rx->bulk && known <= posted - rx->told) ||
				      rx->bytes_since_told >= comm->eager_bytes / 2 ||
				      rx->messages_since_told >= COMM_CREDIT_MESSAGES);
}

void comm_recv_count(struct comm *comm, uint64_t message, uint64_t bytes)
{
	if (message >= comm->rx.told)
		comm->rx.bytes_since_told += bytes;
}

void comm_recv_credit(struct comm_lane *l, uint64_t posted)
{
	struct comm *comm = l->comm;
	struct record record = { .type = RECORD_CREDIT,
				 .message = comm->completed,
				 .total = posted,
				 .length = (uint32_t)(8 * (posted - comm->completed)) }; /* of 32 */

	comm_out_begin(l, &record);
	for (uint64_t m = comm->completed; m < posted; m++) {
		wire_put64(l->out.header + l->out.header_bytes, comm_request(comm, m)->size);
		l->out.header_bytes += 8;
	}
	comm->rx.told = posted;
	comm->rx.bytes_since_told = 0;
	comm->rx.messages_since_told = 0;
}

/* ---- one lane ---------------------------------------------------------------------------------- */

static void comm_recv_tell(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_acquire);

	/* A record still on its way out goes first. */
	if (comm->no_credit || l->send_broken || comm_out_push(l) != 1 || comm->end_error ||
	    !comm_recv_credit_due(comm, posted))
		return;
	comm_recv_credit(l, posted);
	(void)comm_out_push(l);
}

/* A DATA header: does it continue where we are? */
static int comm_recv_data(struct comm_lane *l, const struct record *record)
{
	struct comm *comm = l->comm;
	struct comm_recv_state *rx = &comm->rx;
	struct request *request = comm_request(comm, rx->current);

	if (record->message != rx->current || record->offset != rx->offset) {
		comm_fail_protocol(comm, l, "a DATA record out of order");
		return -EPROTO;
	}
	if (rx->in_message && record->total != rx->total) {
		comm_fail_protocol(comm, l, "a message that changes its size");
		return -EPROTO;
	}
	if (record->total > request->size) {
		comm_fail_truncated(comm, l, record, request->size);
		return -EMSGSIZE;
	}
	rx->in_message = true;
	rx->total = record->total;
	rx->bulk = record->total > COMM_BULK_BYTES;
	rx->payload_left = record->length;
	comm_recv_count(comm, rx->current, RECORD_HEADER_BYTES);
	return 0;
}

/* 1: the record's payload is complete, 0: more is to come, or the error. */
static int comm_recv_payload(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_recv_state *rx = &comm->rx;
	struct request *request = comm_request(comm, rx->current);

	while (rx->payload_left) {
		ssize_t n = l->lane->ops->recv(l->lane, request->data + rx->offset,
					       rx->payload_left, 8);

		if (n == -EAGAIN)
			return 0;
		if (n <= 0) {
			comm_end_by_error(comm, n ? (int)n : -EPIPE);
			return -EPIPE;
		}
		lane_page_add(l->row, HARP_LANE_received_bytes, (uint64_t)n);
		lane_page_add(l->row, HARP_LANE_payload_bytes, (uint64_t)n);
		rx->payload_left -= (uint64_t)n;
		rx->offset += (uint64_t)n;
		comm_recv_count(comm, rx->current, (uint64_t)n);
	}
	if (rx->offset == rx->total) {
		comm_complete(comm, l, rx->total);
		rx->current++;
		rx->messages_since_told++;
		rx->offset = 0;
		rx->in_message = false;
	}
	return 1;
}

static void comm_recv_read(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_recv_state *rx = &comm->rx;
	struct record record;
	int rc;

	while (rx->payload_left ||
	       rx->current < atomic_load_explicit(&comm->posted, memory_order_acquire)) {
		if (!rx->payload_left) {
			rc = comm_read_record(l, &record);
			if (rc < 0 && !comm->error)
				comm_end_by_error(comm, rc);
			if (rc != 1)
				return;
			if (record.type == RECORD_CLOSE) {
				comm_end_by_record(comm, &record);
				return;
			}
			if (record.type != RECORD_DATA) {
				comm_fail_protocol(comm, l,
						   "a record that only a receiver may send");
				return;
			}
			if (comm_recv_data(l, &record))
				return;
			if (rx->bulk) /* before the payload: the sender may be waiting */
				comm_recv_tell(l);
		}
		if (comm_recv_payload(l) != 1)
			return;
	}
}

void comm_recv_advance(struct comm_lane *l, uint64_t now_ns)
{
	(void)now_ns;
	if (!l->comm->end_error)
		comm_recv_read(l);
	if (!l->comm->error)
		comm_recv_tell(l);
}
