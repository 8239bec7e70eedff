/* SPDX-License-Identifier: Apache-2.0 */
/* comm_send_lanes.c - the sending end of several lanes: what is done, and a lane's turn. */
#include <errno.h>

#include "comm/comm_chunks.h"

/*
 * Theory of operation
 *
 * What goes next, and by which lane, comm_plan.c says.
 *
 * Every chunk stays on the list of its lane until an ACK covers it. A lane that dies leaves its chunks to `moved`.
 *
 * A request is done when all of it is acknowledged and no lane is reading it: it may have been sent again. Small
 * ones are kept (comm_kept.c), and done sooner.
 *
 * An ACK takes chunks off the heads of the lists. One that is covered but stands behind another (of a lane that
 * moved it here) is found when it comes to the head, or by who takes it up.
 */

#define LOOK_NS 1000000u /* a kernel lane that brings no credits is read so often */

/* ---- lanes that go; lock held -------------------------------------------------------------------- */

static void comm_tx_full(struct comm_lane *l, bool full)
{
	if (l->full == full)
		return;
	l->full = full;
	if (l->kind == LANE_KERNEL)
		atomic_fetch_add_explicit(&l->comm->several->kernel_pushing, full ? 1u : ~0u,
					  memory_order_relaxed);
}

unsigned comm_tx_orphan(struct comm_lane *l, bool lost)
{
	struct comm_several *s = l->comm->several;
	unsigned moved = 0;
	int16_t i;

	comm_tx_full(l, false);
	while ((i = comm_list_pop(s, &l->under_way)) >= 0) {
		const struct comm_chunk *chunk = &s->chunks[i];

		/* Of one that is acknowledged the place may be another's by now. */
		if (chunk->kept >= 0 && !comm_tx_is_acked(s, chunk) &&
		    s->kept[chunk->kept].lane == l)
			s->kept[chunk->kept].lane = NULL;
		if (comm_tx_is_acked(s, chunk) || chunk->resent || !lost) {
			comm_list_append(s, &s->unused, i);
			continue;
		}
		comm_list_append(s, &s->moved, i);
		moved++;
	}
	l->counts.moved_out += moved;
	lane_page_add(l->row, HARP_LANE_chunks_moved_away, moved);
	return moved;
}

/* ---- done; lock held ---------------------------------------------------------------------------- */

void comm_tx_complete(struct comm *comm, struct comm_lane *observer)
{
	while (comm->completed < comm->tx.current) {
		struct request *request = comm_request(comm, comm->completed);

		if (comm->completed < comm->several->acked_message
			    ? request->users
			    : !comm_kept_is_done(comm, request))
			return;
		comm_complete(comm, observer, request->size);
	}
}

int comm_tx_ack(struct comm *comm, uint64_t message, uint64_t offset)
{
	struct comm_several *s = comm->several;

	if (message > comm->tx.current || (message == comm->tx.current && offset > comm->tx.offset))
		return -EPROTO;
	if (message < s->acked_message ||
	    (message == s->acked_message && offset <= s->acked_offset))
		return 0; /* by another lane, overtaken */
	s->acked_message = message;
	s->acked_offset = offset;
	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		unsigned index = (unsigned)__builtin_ctz(left);
		const struct stripe_lane *lane = &s->stripe.lane[index];

		/* What has arrived its TCP has delivered, whose word a kernel lane is asked for seldom, and has late. */
		if (comm_list_shed(s, &s->lanes[index]->under_way) && lane->kind == LANE_KERNEL)
			stripe_acked(&s->stripe, index, lane->given_bytes, comm->now_ns);
	}
	comm_kept_shed(comm);
	return 0;
}

void comm_tx_post(struct comm *comm, struct request *request)
{
	/* A preference: the scheduler takes another kind's lane where this kind has none that works. */
	request->kinds = request->size <= comm->several->harp_bytes_max ? LANE_HARP : LANE_KERNEL;
	request->carried = 0;
	comm_tx_kick(comm, NULL, request->posted_ns);
}

/* ---- a turn; baton held ------------------------------------------------------------------------- */

/* Messages below it are not to be read any more. */
static uint64_t comm_tx_over(const struct comm_lane *l)
{
	return l->out_kept < 0 ? l->comm->completed : l->comm->several->acked_message;
}

/* Lock held, between two pushes: takes the last one back, and prepares the next. False: there is none. */
static bool comm_tx_prepare(struct comm_lane *l, uint64_t done_bytes, bool full, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_out *out = &l->out;

	comm_unuse(l);
	comm_tx_full(l, full && !l->dead);
	l->done_bytes = done_bytes;
	comm_tx_complete(comm, l);
	/* The memory is not ours any more, or another message's; also when nothing but CLOSE goes on. */
	if (out->payload && l->out_message < comm_tx_over(l))
		out->payload = NULL;
	if (l->dead || comm->several->failing || comm->end_error)
		return false;
	if (l->kind == LANE_HARP)
		stripe_acked(&comm->several->stripe, l->index, done_bytes, now_ns);
	if (full || l->send_broken)
		return false;
	if (!out->header_bytes && !comm_tx_claim(l, now_ns))
		return false;
	if (out->payload && out->payload_left)
		comm_use(l, l->out_kept < 0 ? COMM_USES_REQUEST : COMM_USES_KEPT, l->out_message, 0,
			 UINT64_MAX);
	return true;
}

int comm_tx_push(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	int rc = l->send_broken ? -EPIPE : 1;

	for (;;) {
		uint64_t done_bytes = l->lane->ops->done_bytes(l->lane) - l->sent_bytes;
		bool more;

		comm_lock(comm);
		more = comm_tx_prepare(l, done_bytes, rc == 0, now_ns);
		comm_unlock(comm);
		if (!more)
			return rc;
		rc = comm_out_push(l);
		if (rc == 1)
			l->out.header_bytes = l->out.header_sent = 0;
	}
}

/* One record of the receiver's. False: it is the last to be looked at. */
static bool comm_tx_record(struct comm_lane *l, const struct record *record)
{
	struct comm *comm = l->comm;
	const char *wrong = NULL;

	comm_lock(comm);
	switch (record->type) {
	case RECORD_CREDIT:
		if (comm_tx_ack(comm, record->message, 0))
			wrong = "a CREDIT record of messages that were not sent";
		else if (record->total > comm->tx.granted)
			comm_send_grant(comm, record->total);
		break;
	case RECORD_ACK:
		if (comm_tx_ack(comm, record->message, record->offset))
			wrong = "an ACK record of bytes that were not sent";
		break;
	case RECORD_CLOSE:
		(void)comm_tx_ack(comm, record->message, 0);
		comm_tx_complete(comm, l);
		comm_end_by_record(comm, record);
		break;
	default:
		wrong = "a record that only a sender may send";
	}
	comm_unlock(comm);
	if (wrong)
		comm_fail_protocol(comm, l, wrong);
	return !wrong && record->type != RECORD_CLOSE;
}

/* Records read, or -1: the lane's turn is over. An honest receiver has no use for as many as a turn takes. */
static int comm_tx_read(struct comm_lane *l)
{
	struct record record;
	int rc, count = -1;
	bool goes_on;

	do {
		rc = comm_read_record(l, &record);
		goes_on = rc == 1 && comm_tx_record(l, &record);
		l->vain_records += goes_on;
		count++;
	} while (goes_on && !comm_lane_is_vain(l));
	if (goes_on) {
		comm_lane_again(l);
		return count + 1;
	}
	if (rc < 0 && rc != -EPROTO)
		(void)comm_lane_die(l, rc, COMM_DEATH_ENDED);
	return rc ? -1 : count;
}

static bool comm_tx_looks(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	bool looks = l->kind == LANE_HARP || now_ns - l->looked_ns >= LOOK_NS;

	if (looks)
		return true;
	comm_lock(comm);
	looks = comm->several->control == l->index &&
		comm->completed < atomic_load_explicit(&comm->posted, memory_order_relaxed);
	comm_unlock(comm);
	return looks;
}

void comm_tx_advance(struct comm_lane *l, uint64_t now_ns)
{
	int rc;

	l->turn_bytes = l->vain_records = 0;
	rc = comm_tx_push(l, now_ns);
	/* Credits, ACKs, CLOSE, the end of the stream. A kernel lane costs a system call to ask. */
	if (rc < 0 || comm_tx_looks(l, now_ns)) {
		int count = comm_tx_read(l);

		l->looked_ns = comm_lane_is_vain(l) ? 0 : now_ns; /* it is to look again at once */
		if (count < 0)
			return;
		/* With the new credits; and what is acknowledged is done. How it broke the first push has said. */
		if (count > 0) {
			int again = comm_tx_push(l, now_ns);

			rc = rc < 0 ? rc : again;
		}
	}
	/* What the peer said, read above, explains it better; there may be more of it. */
	if (rc < 0 && !comm_lane_is_vain(l))
		(void)comm_lane_die(l, rc, COMM_DEATH_ENDED);
}
