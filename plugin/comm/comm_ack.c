/* SPDX-License-Identifier: Apache-2.0 */
/* comm_ack.c - the ACK policy: when a receiver sends CREDIT and ACK records, and on which lane. */
#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * Both records are cumulative, so only the newest of each has to arrive. The receiver sends them at
 * the end of a turn, in one write, on the control lane: a HARP lane if one works, else the kernel
 * lane of the lowest index. No timer delays them.
 *
 *	CREDIT    the newest message is large, and the sender knows of at most half of the
 *	          incomplete receives
 *	CREDIT    since the last one: half of the eager bytes without credit, or 128 messages
 *	ACK (1)   a message longer than a buffered send is complete, or 16 buffered ones are
 *	ACK (1)   1 MiB has arrived since the last one
 *	CREDIT    an ACK is sent that covers no buffered sends, and receives are not advertised
 *	both (1)  another lane becomes the control lane: records on the old one may be lost
 *	both (1)  a lane brings a duplicate: on that lane, whose sender may have missed an ACK
 *
 * (1) multi-lane only. Before it reads a payload in the middle of a turn, the receiver sends
 * them at once if the sender may be waiting: a CREDIT of a large message, or an ACK when the sender
 * knows of only half of the completed receives.
 *
 * TCP's own ACKs. A buffered send does not wait for them, so TCP may delay them: pure ACKs would
 * double the number of packets. A larger message of a comm of one lane is acknowledged when it is
 * complete.
 */

#define ACK_BYTES 1048576u /* received since the last ACK */

static bool ack_credit_due(const struct comm *comm)
{
	const struct comm_recv_state *rx = &comm->rx;
	uint64_t posted = comm_posted(comm);
	uint64_t known = rx->advertised > comm->completed ? rx->advertised - comm->completed : 0;

	return rx->advertised != posted && !comm->no_credit &&
	       ((rx->bulk && known <= posted - rx->advertised) ||
		rx->bytes_since_credit >= comm->eager_bytes / 2 ||
		rx->messages_since_credit >= COMM_CREDIT_MESSAGES);
}

void ack_count(struct comm *comm, uint64_t message, uint64_t bytes)
{
	struct comm_recv_state *rx = &comm->rx;

	if (message >= rx->advertised)
		rx->bytes_since_credit += bytes;
	rx->ack_bytes += bytes;
	rx->ack_due |= comm->multi_lane && rx->ack_bytes >= ACK_BYTES;
}

void ack_message_done(struct comm *comm, uint64_t bytes)
{
	struct comm_recv_state *rx = &comm->rx;
	bool buffered = bytes <= comm->buffer_bytes;

	rx->messages_since_credit++;
	if (comm->multi_lane)
		rx->ack_due |= !buffered || ++rx->ack_buffered >= COMM_BUFFERED_MESSAGES;
	else if (!buffered)
		comm->lanes[0]->lane->ops->acknowledge(comm->lanes[0]->lane);
}

void ack_again(struct comm *comm)
{
	struct comm_recv_state *rx = &comm->rx;

	if (!comm->multi_lane || !(rx->advertised || comm->completed || rx->ranges.count))
		return;
	rx->credit_due = rx->ack_due = true;
	if (comm->control >= 0)
		comm_wake(comm->lanes[comm->control]);
}

bool ack_is_urgent(const struct comm *comm)
{
	const struct comm_recv_state *rx = &comm->rx;

	return (rx->bulk && ack_credit_due(comm)) ||
	       (rx->ack_due &&
		comm->completed - rx->ack_message >= comm_posted(comm) - comm->completed);
}

/* Is a duplicate acknowledged now? Not while a kernel lane still brings data: if the peer has
 * closed the socket, our record would provoke a RST, and the data on its way would be lost. A
 * sender that waits for the ACK has sent its record completely, or waits for a receive. */
static bool ack_answers(const struct comm_lane *l)
{
	return l->duplicate && (l->kind != LANE_KERNEL || l->waits ||
				(!l->in.active && !l->in_head_bytes && !comm_lane_turn_is_over(l)));
}

/* Puts a CREDIT into l->out. */
static void ack_put_credit(struct comm_lane *l, uint64_t posted)
{
	struct comm *comm = l->comm;
	struct record record = { .type = RECORD_CREDIT,
				 .message = comm->completed,
				 .total = posted,
				 .length = (uint32_t)(8 * (posted - comm->completed)) };

	comm_out_begin(l, &record);
	for (uint64_t m = comm->completed; m < posted; m++) {
		wire_put64(l->out.header + l->out.header_bytes, comm_request(comm, m)->size);
		l->out.header_bytes += 8;
	}
	/* Another lane may be silent unnoticed: a lane with nothing more to send does not stall. */
	if (comm->control != l->index)
		return;
	comm->rx.advertised = posted;
	comm->rx.bytes_since_credit = 0;
	comm->rx.messages_since_credit = 0;
}

static void ack_put_ack(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct record ack = { .type = RECORD_ACK,
			      .message = comm->completed,
			      .offset = ranges_prefix(&comm->rx.ranges, comm->completed) };

	record_encode(l->out.header + l->out.header_bytes, &ack);
	l->out.header_bytes += RECORD_HEADER_BYTES;
}

/* Puts the records that are due on this lane into l->out. Returns false if none is due. */
static bool ack_prepare(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_recv_state *rx = &comm->rx;
	uint64_t posted = comm_posted(comm);
	bool control = comm->control == l->index, answers = ack_answers(l), credit, ack;

	credit = ack_credit_due(comm) || (rx->credit_due && rx->advertised) ||
		 (rx->ack_due && !rx->ack_buffered && rx->advertised != posted);
	ack = control && rx->ack_due;
	credit = (control && credit) || (answers && rx->advertised);
	ack |= answers;
	if (!credit && !ack)
		return false;
	l->out.header_bytes = l->out.header_sent = 0;
	if (credit)
		ack_put_credit(l, posted);
	if (ack)
		ack_put_ack(l);
	l->duplicate &= !answers;
	if (control) {
		rx->credit_due &= !credit;
		rx->ack_due &= !ack;
		rx->ack_buffered = 0;
		rx->ack_bytes = ack ? 0 : rx->ack_bytes;
		rx->ack_message = ack ? comm->completed : rx->ack_message;
	}
	if (comm->multi_lane)
		scheduler_give(&comm->scheduler, l->index, l->out.header_bytes, comm->now_ns);
	return true;
}

void ack_run(struct comm *comm)
{
	const struct comm_recv_state *rx = &comm->rx;
	bool due = ack_credit_due(comm) || rx->ack_due || (rx->credit_due && rx->advertised);
	struct comm_lane *l;

	if (comm->end_error || rx->peer_closed)
		return;
	COMM_FOR_EACH_LANE(comm, l)
	{
		bool control = l->index == comm->control;

		if (!comm_lane_is_reachable(l)) {
			if (control && due)
				comm_wake(l);
			continue;
		}
		if (l->send_error || l->full ||
		    (!comm_lane_has_out(l) && !(control && due) && !l->duplicate))
			continue;
		while (comm_lane_push(l) == 1 && ack_prepare(l))
			;
	}
}
