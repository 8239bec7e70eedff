/* SPDX-License-Identifier: Apache-2.0 */
/* comm_tell.c - the receiving end of several lanes: CREDIT and ACK. */
#include <errno.h>

#include "comm_impl.h"

/*
 * Theory of operation
 *
 * CREDIT follows the rules of one lane (comm_recv.c), with records counted when they reach their receive. ACK is told
 * when messages are done, once a turn, and each MiB of a long one. Both are cumulative, go on the control lane, and
 * are told again when that changes, and on a lane that brings what had come before: its peer has not heard of it.
 *
 * Of a longer message that a kernel lane has brought to its end ACK goes back by that lane: with HARP's as control lane
 * it would take a packet of ours, another that acknowledges it, and an engine's turn at both ends, for each message of a stream
 * that is the kernel's because that costs less. Its sender, which pays a system call to look, looks there until the
 * oldest request that went that way is done; so no ACK that is due already, of messages that went other ways, changes over to such a lane.
 *
 * While much comes, a turn can last until all that the sender had has been read: it would stand still behind it. So
 * it is told in the middle of a turn when half of the receives are done that it has not heard of.
 */

/* What it brought twice is to be answered now. What comes to a socket whose owner has closed it resets it, and what
 * was still on its way here is lost: so not while more of it is seen to come. Who waits for the answer has sent its
 * record to the end, or waits before one without receive. */
static bool comm_rx_answers(const struct comm_lane *l)
{
	return l->repeats &&
	       (l->kind != LANE_KERNEL || l->waits || (!l->in.here && !l->in_head_bytes));
}

/* Lock held: the lane by which the next ACK goes. One that nothing can be sent by is none. */
static int comm_rx_teller(const struct comm_several *s)
{
	int index = s->ack_lane;

	return index >= 0 && s->lanes[index] && !s->stripe.lane[index].mute ? index : s->control;
}

/* It was told on that lane, or what says as much. */
static void comm_rx_told(struct comm_several *s, uint64_t completed)
{
	s->ack_due = false;
	s->ack_lane = -1;
	s->ack_message = completed;
	s->ack_kept = 0;
	s->ack_bytes = 0;
}

/* Lock held: what is to be told on this lane is put into its out. */
static bool comm_rx_prepare(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);
	bool mine = s->control == l->index, answers = comm_rx_answers(l);
	bool ack = s->ack_due && comm_rx_teller(s) == l->index, credit, due;
	struct record record = { .type = RECORD_ACK, .message = comm->completed };

	if (l->dead || s->failing || comm->end_error || s->peer_closed)
		return false;
	due = comm_recv_credit_due(comm, posted) || (s->credit_due && comm->rx.told);
	/* With an ACK it costs nothing, and is not needed on its own then; kept messages go with few of either. */
	credit = ack && !s->ack_kept && comm->rx.told != posted;
	if (!mine && due && (!credit || s->credit_due))
		comm_wake(comm, s->control);
	if (s->ack_due && !ack)
		comm_wake(comm, comm_rx_teller(s));
	credit |= mine && due;
	if (!answers && !credit && !ack)
		return false;
	l->out.header_bytes = l->out.header_sent = 0;
	if (credit || (answers && comm->rx.told)) {
		comm_recv_credit(l, posted);
		s->credit_due &= !mine;
		s->ack_kept = credit ? 0 : s->ack_kept;
	}
	if (ack || answers) {
		record.offset = ranges_prefix(&s->ranges, comm->completed);
		record_encode(l->out.header + l->out.header_bytes, &record);
		l->out.header_bytes += RECORD_HEADER_BYTES;
		if (ack || mine)
			comm_rx_told(s, comm->completed);
	}
	l->repeats &= !answers;
	stripe_give(&s->stripe, l->index, l->out.header_bytes, now_ns);
	comm_rouse(comm);
	return true;
}

int comm_rx_tell(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	bool more;
	int rc;

	do {
		rc = l->send_broken ? -EPIPE : comm_out_push(l);
		if (rc != 1)
			return rc;
		comm_lock(comm);
		more = comm_rx_prepare(l, now_ns);
		comm_unlock(comm);
	} while (more);
	return 1;
}

bool comm_rx_tells_early(const struct comm *comm, uint64_t posted)
{
	const struct comm_several *s = comm->several;

	return !s->peer_closed &&
	       ((comm->rx.bulk && comm_recv_credit_due(comm, posted)) ||
		(s->ack_due && comm->completed - s->ack_message >= posted - comm->completed));
}

void comm_rx_tell_early(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_lane *teller = NULL;
	int index;

	comm_lock(comm);
	index = comm->several->ack_due ? comm_rx_teller(comm->several) : comm->several->control;
	if (index >= 0)
		teller = comm->several->lanes[index];
	/* Its baton is ours: nobody frees it. */
	if (teller && teller->lane->driver != l->lane->driver) {
		comm_wake(comm, teller->index);
		teller = NULL;
	}
	comm_unlock(comm);
	if (teller)
		(void)comm_rx_tell(teller, now_ns);
}
