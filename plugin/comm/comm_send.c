/* SPDX-License-Identifier: Apache-2.0 */
/* comm_send.c - the sending end of one lane: messages to DATA records; the credits of every sender. */
#include <errno.h>

#include "comm/comm_impl.h"

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
 * A peer can't hold a turn up: each CREDIT has to tell of more receives than the last, and of 64 at most behind the messages
 * sent, of which 256 at most are not credited. A sender that wants no credits, whose messages never are, takes none.
 *
 * A request is done when the lane's done_bytes() passes its end: acknowledged by the peer's TCP
 * (HARP), or taken by the kernel (kernel lane).
 */

#define SEND_LOOK_NS 1000000u /* a kernel lane that waits for nothing is read so often */

/* ---- credits, of every comm -------------------------------------------------------------------- */

int64_t comm_send_allowance(const struct comm *comm, uint64_t left)
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

bool comm_send_cut(struct comm *comm, uint64_t length)
{
	struct comm_send_state *tx = &comm->tx;

	tx->offset += length;
	tx->data_bytes += RECORD_HEADER_BYTES + length;
	if (tx->offset < comm_request(comm, tx->current)->size)
		return false;
	tx->end_ring[tx->current % COMM_EAGER_MESSAGES] = tx->data_bytes;
	tx->current++;
	tx->offset = 0;
	if (tx->current == tx->granted)
		tx->credited_bytes = tx->data_bytes;
	return true;
}

void comm_send_grant(struct comm *comm, uint64_t granted)
{
	struct comm_send_state *tx = &comm->tx;

	tx->granted = granted;
	if (granted <= tx->current)
		tx->credited_bytes = tx->end_ring[(granted - 1) % COMM_EAGER_MESSAGES];
}

/* ---- one lane ---------------------------------------------------------------------------------- */

static void comm_send_complete(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	uint64_t done_bytes;

	if (comm->completed == comm->tx.current)
		return;
	done_bytes = l->lane->ops->done_bytes(l->lane);
	while (comm->completed < comm->tx.current) {
		struct request *request = comm_request(comm, comm->completed);

		/* Cut, but perhaps not yet handed to the lane: its end is beyond what can be done. */
		if (done_bytes < request->end_bytes)
			break;
		comm_complete(comm, l, request->size);
	}
}

/* Begins the next DATA record. False when there is no message or no credit for one. */
static bool comm_send_begin(struct comm_lane *l)
{
	struct comm *comm = l->comm;
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
	comm_out_begin(l, &record);
	l->out.payload = request->data + tx->offset;
	l->out.payload_left = (size_t)length;
	lane_page_add(l->row, HARP_LANE_chunks_sent, 1);
	lane_page_add(l->row, HARP_LANE_payload_bytes, (uint64_t)length);
	/* Nothing but DATA goes this way before CLOSE. */
	if (comm_send_cut(comm, (uint64_t)length))
		request->end_bytes = l->sent_bytes + tx->data_bytes;
	return true;
}

static int comm_send_push(struct comm_lane *l)
{
	bool busy = l->out.header_bytes != 0;

	for (;;) {
		int rc;

		if (!busy && !comm_send_begin(l))
			return 1;
		rc = comm_out_push(l);
		if (rc != 1)
			return rc;
		l->out.header_bytes = 0;
		l->out.header_sent = 0;
		busy = false;
	}
}

static int comm_send_credit(struct comm_lane *l, const struct record *record)
{
	struct comm *comm = l->comm;

	if (comm->no_credit) {
		comm_fail_protocol(comm, l, "a CREDIT record that was not wanted");
		return -EPROTO;
	}
	/* More received than sent, or fewer posted than before: nonsense. */
	if (record->message > comm->tx.current || record->total <= comm->tx.granted) {
		comm_fail_protocol(comm, l, "a CREDIT record out of order");
		return -EPROTO;
	}
	/* The sizes are for several lanes; the receiver alone judges truncation. */
	comm_send_grant(comm, record->total);
	return 0;
}

static void comm_send_read(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct record record;
	int rc = 1;

	while (rc == 1 && !comm->error && !comm->end_error) {
		rc = comm_read_record(l, &record);
		if (rc < 0 && !comm->error)
			comm_end_by_error(comm, rc);
		if (rc != 1)
			return;
		switch (record.type) {
		case RECORD_CREDIT:
			if (comm_send_credit(l, &record))
				return;
			break;
		case RECORD_CLOSE:
			comm_end_by_record(comm, &record);
			break;
		case RECORD_ACK:
			comm_fail_protocol(comm, l, "an ACK record in a comm of one lane");
			break;
		default:
			comm_fail_protocol(comm, l, "a record that only a sender may send");
		}
	}
}

void comm_send_advance(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	int rc = l->send_broken ? -EPIPE : comm_send_push(l);

	/* Credits, CLOSE, the end of the stream. A kernel lane costs a system call to ask. */
	if (l->kind != LANE_KERNEL || rc < 0 || now_ns - l->looked_ns >= SEND_LOOK_NS ||
	    (!comm->no_credit && comm->tx.current < comm->posted)) {
		l->looked_ns = now_ns;
		comm_send_read(l);
		if (comm->error)
			return;
		if (rc == 1)
			rc = comm_send_push(l); /* with the new credits */
	}
	comm_send_complete(l);
	if (rc < 0) /* what the peer said, read above, explains it better */
		comm_end(comm, rc, lane_error_text(rc));
}
