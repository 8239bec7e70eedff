/* SPDX-License-Identifier: Apache-2.0 */
/* comm_tell.c - the receiving end of several lanes: CREDIT and ACK. */
#include <errno.h>

#include "comm/comm_impl.h"

/* From the end of the last message until another receive is posted: who answers posts sooner. */
#define PAUSE_NS 100000u

/*
 * Theory of operation
 *
 * CREDIT follows the rules of one lane (comm_recv.c), with records counted when they reach their receive. ACK is told
 * when messages are done, once a turn, and each MiB of a long one. Both are cumulative, go on the control lane, and
 * are told again when that changes, and on a lane that brings what had come before: its peer has not heard of it.
 * While much comes, a turn can last until all that the sender had has been read: it would stand still behind it. So
 * it is told in the middle of a turn when half of the receives are done that it has not heard of.
 */

/* Of the driver; never 0. */
static uint64_t comm_rx_turn(const struct comm_lane *l)
{
	return atomic_load_explicit(&l->lane->driver->runs, memory_order_relaxed) + 1;
}

void comm_rx_due(struct comm_lane *l)
{
	l->comm->several->ack_due = true;
	if (!l->ack_turn && l->kind == LANE_HARP)
		l->ack_turn = comm_rx_turn(l);
}

void comm_rx_resumes(struct comm *comm, uint64_t posted)
{
	struct comm_several *s = comm->several;

	if (comm->completed && comm->completed + 1 == posted)
		s->pauses = comm_request(comm, comm->completed)->posted_ns >= s->done_ns + PAUSE_NS;
}

/*
 * An ACK that becomes due in this turn of the engine waits for the next turn, to leave together with the
 * application's answer: on its own it costs a kick of the NIC. It waits once. If the application stops
 * polling, the background poller takes that turn a millisecond later, and the sender may wait for the ACK.
 * So an ACK does not wait when every posted receive is complete and the application paused the last time
 * that this was so.
 */
bool comm_rx_puts_off(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	const struct comm_several *s = comm->several;
	bool put_off = l->ack_turn == comm_rx_turn(l);

	if (put_off) {
		comm_lock(comm);
		put_off = !(s->pauses &&
			    comm->completed ==
				    atomic_load_explicit(&comm->posted, memory_order_relaxed));
		comm_unlock(comm);
	}
	if (!put_off)
		l->ack_turn = 0;
	return put_off;
}

/* What it brought twice is to be answered now. What comes to a socket whose owner has closed it resets it, and what
 * was still on its way here is lost: so not while more of it is seen to come. Who waits for the answer has sent its
 * record to the end, or waits before one without receive. */
static bool comm_rx_answers(const struct comm_lane *l)
{
	return l->repeats && (l->kind != LANE_KERNEL || l->waits ||
			      (!l->in.here && !l->in_head_bytes && !comm_lane_is_over(l)));
}

/* Lock held: what is to be told on this lane is put into its out. */
static bool comm_rx_prepare(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);
	bool credit = comm_recv_credit_due(comm, posted), mine = s->control == l->index;
	bool answers = comm_rx_answers(l);
	struct record ack = { .type = RECORD_ACK, .message = comm->completed };

	if (l->dead || s->failing || comm->end_error || s->peer_closed)
		return false;
	credit |= s->credit_due && comm->rx.told;
	/* With an ACK it costs nothing, and is not needed on its own then; kept messages go with few of either. */
	credit |= mine && s->ack_due && !s->ack_kept && comm->rx.told != posted;
	if (!mine && (credit || s->ack_due))
		comm_wake(comm, s->control);
	if (!answers && (!mine || (!credit && !s->ack_due)))
		return false;
	l->out.header_bytes = l->out.header_sent = 0;
	if ((mine && credit) || (answers && comm->rx.told)) {
		comm_recv_credit(l, posted);
		s->credit_due &= !mine;
		s->ack_kept = mine ? 0 : s->ack_kept;
	}
	if ((mine && s->ack_due) || answers) {
		ack.offset = ranges_prefix(&s->ranges, comm->completed);
		record_encode(l->out.header + l->out.header_bytes, &ack);
		l->out.header_bytes += RECORD_HEADER_BYTES;
		s->ack_due &= !mine;
		s->ack_message = mine ? comm->completed : s->ack_message;
		s->ack_kept = mine ? 0 : s->ack_kept;
		s->ack_bytes = mine ? 0 : s->ack_bytes;
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
	struct comm_lane *control = NULL;

	comm_lock(comm);
	if (comm->several->control >= 0)
		control = comm->several->lanes[comm->several->control];
	/* Its baton is ours: nobody frees it. */
	if (control && control->lane->driver != l->lane->driver) {
		comm_wake(comm, control->index);
		control = NULL;
	}
	comm_unlock(comm);
	if (control)
		(void)comm_rx_tell(control, now_ns);
}
