/* SPDX-License-Identifier: Apache-2.0 */
/* comm_send.c - the sending end: messages to DATA records, within the credits. */
#include <errno.h>

#include "comm.h"

/*
 * Theory of operation
 *
 * Messages whose receive is posted, as far as CREDIT records have told (message < granted), go out
 * whole. Beyond that at most eager_bytes of DATA records, headers included, and at most 256 messages:
 * so much can wait at the receiver. docs/lanes.md section 5 shows why the two ends can't wait for
 * each other. credited_bytes is the stream position behind message granted-1, so that
 * data_bytes - credited_bytes is what is out beyond the credits; end_ring remembers the positions of
 * the messages that a later CREDIT may cover.
 *
 * A request is done when the lane's done_bytes() passes its end: acknowledged by the peer's TCP
 * (HARP), or taken by the kernel (kernel lane).
 */

#define SEND_LOOK_NS 1000000u /* a kernel lane that waits for nothing is read so often */

static void comm_send_complete(struct comm *comm)
{
	uint64_t done_bytes;

	if (comm->completed == comm->tx.current)
		return;
	done_bytes = comm->lane->ops->done_bytes(comm->lane);
	while (comm->completed < comm->tx.current) {
		struct request *request = comm_request(comm, comm->completed);

		if (done_bytes < request->end_bytes)
			break;
		comm_complete(comm, request->size);
	}
}

/* Payload bytes that the next DATA record may carry; -1: not even a header. */
static int64_t comm_send_allowance(const struct comm *comm, uint64_t left)
{
	const struct comm_send_state *tx = &comm->tx;
	uint64_t used, room;

	if (left > RECORD_LENGTH_MAX)
		left = RECORD_LENGTH_MAX;
	if (comm->no_credit || tx->current < tx->granted)
		return (int64_t)left;
	if (tx->current - tx->granted >= COMM_EAGER_MESSAGES)
		return -1;
	used = tx->data_bytes - tx->credited_bytes;
	if (used + RECORD_HEADER_BYTES > comm->eager_bytes)
		return -1;
	room = comm->eager_bytes - used - RECORD_HEADER_BYTES;
	if (left <= room)
		return (int64_t)left;
	room &= ~(uint64_t)(RECORD_OFFSET_ALIGN - 1);
	return room ? (int64_t)room : -1;
}

/* Begins the next DATA record. False when there is no message or no credit for one. */
static bool comm_send_begin(struct comm *comm)
{
	struct comm_send_state *tx = &comm->tx;
	struct request *request = comm_request(comm, tx->current);
	struct record record = { .type = RECORD_DATA, .message = tx->current };
	int64_t length;

	/* Acquire: the slot's fields are there. */
	if (tx->current == atomic_load_explicit(&comm->posted, memory_order_acquire))
		return false;
	length = comm_send_allowance(comm, request->size - tx->offset);
	if (length < 0)
		return false;
	record.length = (uint32_t)length;
	record.total = request->size;
	record.offset = tx->offset;
	record.tag = (uint32_t)request->tag;
	comm_out_begin(comm, &record);
	comm->out.payload = request->data + tx->offset;
	comm->out.payload_left = (size_t)length;
	tx->offset += (uint64_t)length;
	tx->data_bytes += RECORD_HEADER_BYTES + (uint64_t)length;
	return true;
}

/* The record in comm->out is out: is the message? */
static void comm_send_end(struct comm *comm)
{
	struct comm_send_state *tx = &comm->tx;
	struct request *request = comm_request(comm, tx->current);

	if (tx->offset < request->size)
		return;
	/* Nothing but DATA goes this way before CLOSE. */
	request->end_bytes = comm->sent_bytes + tx->data_bytes;
	tx->end_ring[tx->current % COMM_EAGER_MESSAGES] = tx->data_bytes;
	tx->current++;
	tx->offset = 0;
	if (tx->current == tx->granted)
		tx->credited_bytes = tx->data_bytes;
}

static int comm_send_push(struct comm *comm)
{
	bool busy = comm->out.header_bytes != 0;

	for (;;) {
		int rc;

		if (!busy && !comm_send_begin(comm))
			return 1;
		rc = comm_out_push(comm);
		if (rc != 1)
			return rc;
		comm->out.header_bytes = 0;
		comm->out.header_sent = 0;
		comm_send_end(comm);
		busy = false;
	}
}

static int comm_send_credit(struct comm *comm, const struct record *record)
{
	struct comm_send_state *tx = &comm->tx;

	/* More received than sent, or fewer posted than before: nonsense. */
	if (record->message > tx->current || record->total <= tx->granted) {
		comm_fail_protocol(comm, "a CREDIT record out of order");
		return -EPROTO;
	}
	/* The sizes are for several lanes; the receiver alone judges truncation. */
	tx->granted = record->total;
	if (tx->granted <= tx->current)
		tx->credited_bytes = tx->end_ring[(tx->granted - 1) % COMM_EAGER_MESSAGES];
	return 0;
}

static void comm_send_read(struct comm *comm)
{
	struct record record;

	while (!comm->error && !comm->end_error && comm_read_record(comm, &record) == 1) {
		switch (record.type) {
		case RECORD_CREDIT:
			if (comm_send_credit(comm, &record))
				return;
			break;
		case RECORD_CLOSE:
			comm_end_by_record(comm, &record);
			break;
		case RECORD_ACK:
			comm_fail_protocol(comm, "an ACK record in a comm of one lane");
			break;
		default:
			comm_fail_protocol(comm, "a record that only a sender may send");
		}
	}
}

void comm_send_advance(struct comm *comm, uint64_t now_ns)
{
	int rc = comm->send_broken ? -EPIPE : comm_send_push(comm);

	/* Credits, CLOSE, the end of the stream. A kernel lane costs a system call to ask. */
	if (!comm->lane_polled || rc < 0 || now_ns - comm->tx.looked_ns >= SEND_LOOK_NS ||
	    (!comm->no_credit && comm->tx.current < comm->posted)) {
		comm->tx.looked_ns = now_ns;
		comm_send_read(comm);
		if (comm->error)
			return;
		if (rc == 1)
			rc = comm_send_push(comm); /* with the new credits */
	}
	comm_send_complete(comm);
	if (rc < 0) /* what the peer said, read above, explains it better */
		comm_end(comm, rc, lane_error_text(rc));
}
