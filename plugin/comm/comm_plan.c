/* SPDX-License-Identifier: Apache-2.0 */
/* comm_plan.c - the sending end of several lanes: what goes next, and by which lane. Lock held. */
#include "comm/comm_chunks.h"

/*
 * Theory of operation
 *
 * Messages are cut into chunks, in order, within the credits as on one lane (comm_send.c). When a lane has room
 * it asks for the next chunk; whether it gets it stripe.c says, by the time at which each lane would have
 * delivered it. If another lane would sooner, that one is woken, in the same hold of the lock: the chunk is
 * always somebody's, and as all lanes calculate with the same figures they agree whose.
 *
 * The chunks of a lane that died (`moved`) go before everything new. A lane that stalls keeps its own, but those of the
 * oldest message, which holds up all others, are sent by another lane again at once, and the rest when nothing new is to
 * be sent. So are then those of a lane that has become slow, where another would deliver them much sooner. The receiver drops
 * what comes twice. A chunk that is sent again has the offset and the length that it had.
 */

/* Chunks of a message that several lanes share. A kernel lane pays a system call for each, and 128 KiB is
 * where that no longer shows (some 10 us of copying for less than 1 us); smaller ones balance better, so a message
 * for which there is less of that for each lane is divided evenly down to 64 KiB. */
#define CHUNK_BYTES_MAX 131072u
#define CHUNK_BYTES_MIN 65536u
/* Where one lane takes everything: a turn, and what is sent again when it dies. */
#define CHUNK_BYTES_ALONE COMM_TURN_BYTES_MAX
#define HABIT_NS 100000u
#define HABIT_BYTES 32768u

enum plan_what { PLAN_NEW, PLAN_MOVED, PLAN_RESENT };

/* The next record of anyone's. */
struct plan {
	enum plan_what what;
	int16_t chunk; /* MOVED: it. RESENT: the one that is on the stalled or slow lane */
	int16_t kept;  /* place in the table of kept ones, -1: the request's memory */
	const struct comm_lane *stalled; /* RESENT: that lane */
	uint64_t message, offset;
	uint32_t length;
	unsigned kinds;
};

static void comm_plan_chunk(struct comm *comm, struct plan *plan, enum plan_what what, int16_t i)
{
	const struct comm_chunk *chunk = &comm->several->chunks[i];

	plan->what = what;
	plan->chunk = i;
	plan->message = chunk->message;
	plan->offset = chunk->offset;
	plan->length = chunk->length;
	plan->kept = chunk->kept;
	plan->kinds = chunk->kept < 0 ? comm_request(comm, chunk->message)->kinds
				      : comm->several->kept[chunk->kept].kinds;
}

/* A chunk that a stalled lane keeps: of the oldest message, or of any. */
static bool comm_plan_stalled(struct comm *comm, struct plan *plan, bool any)
{
	struct comm_several *s = comm->several;
	/* Kept ones are done before they are acknowledged. */
	uint64_t oldest = s->acked_message > comm->completed ? s->acked_message : comm->completed;
	uint32_t stalled = s->stripe.stalled;

	if (!stalled || stalled == s->stripe.live || s->unused.head < 0)
		return false;
	for (; stalled; stalled &= stalled - 1) {
		const struct comm_lane *l = s->lanes[__builtin_ctz(stalled)];

		for (int16_t i = l->under_way.head; i >= 0; i = s->chunks[i].next) {
			const struct comm_chunk *chunk = &s->chunks[i];

			if (chunk->resent || comm_tx_is_acked(s, chunk) ||
			    (!any && chunk->message > oldest))
				continue;
			comm_plan_chunk(comm, plan, PLAN_RESENT, i);
			plan->stalled = l;
			return true;
		}
	}
	return false;
}

static bool comm_plan_new(struct comm *comm, struct plan *plan)
{
	struct comm_several *s = comm->several;
	const struct comm_send_state *tx = &comm->tx;
	const struct request *request = comm_request(comm, tx->current);
	uint64_t length, limit = CHUNK_BYTES_ALONE;
	unsigned choices;
	int64_t allowed;
	int kept = -1;

	if (s->unused.head < 0 ||
	    tx->current == atomic_load_explicit(&comm->posted, memory_order_relaxed))
		return false;
	length = request->size - tx->offset;
	choices = length > CHUNK_BYTES_MIN ? stripe_choices(&s->stripe, request->kinds) : 1;
	if (choices > 1) {
		limit = (request->size / choices + RECORD_OFFSET_ALIGN) &
			~(uint64_t)(RECORD_OFFSET_ALIGN - 1);
		if (limit > CHUNK_BYTES_MAX)
			limit = CHUNK_BYTES_MAX;
		if (limit < CHUNK_BYTES_MIN)
			limit = CHUNK_BYTES_MIN;
	}
	allowed = comm_send_allowance(comm, length < limit ? length : limit);
	if (allowed < 0)
		return false;
	if (comm_is_kept(comm, request->size)) {
		kept = comm_kept_place(comm);
		if (kept < 0 || (uint64_t)allowed < length)
			return false;
	}
	*plan = (struct plan){ .what = PLAN_NEW,
			       .message = tx->current,
			       .offset = tx->offset,
			       .length = (uint32_t)allowed,
			       .kept = (int16_t)kept,
			       .kinds = request->kinds };
	return true;
}

/* A chunk that another lane would deliver much sooner than the slow one that has it: the first that lags. */
static bool comm_plan_late(struct comm *comm, struct plan *plan, uint64_t now_ns)
{
	struct comm_several *s = comm->several;

	for (uint32_t left = s->unused.head < 0 ? 0 : s->stripe.live; left; left &= left - 1) {
		unsigned index = (unsigned)__builtin_ctz(left);
		const struct comm_lane *l = s->lanes[index];
		uint64_t behind = 0;

		if (l->under_way.head < 0 || s->stripe.lane[index].stalled ||
		    !stripe_lags(&s->stripe, index, now_ns))
			continue;
		for (int16_t i = l->under_way.head; i >= 0; i = s->chunks[i].next)
			behind += RECORD_HEADER_BYTES + s->chunks[i].length;
		for (int16_t i = l->under_way.head; i >= 0; i = s->chunks[i].next) {
			const struct comm_chunk *chunk = &s->chunks[i];
			int best;

			behind -= RECORD_HEADER_BYTES + chunk->length;
			if (chunk->resent || comm_tx_is_acked(s, chunk))
				continue;
			best = stripe_best(&s->stripe, LANE_HARP | LANE_KERNEL, chunk->length,
					   now_ns);
			if (best < 0 || !stripe_late(&s->stripe, index, behind, (unsigned)best,
						     chunk->length, now_ns))
				continue;
			comm_plan_chunk(comm, plan, PLAN_RESENT, i);
			plan->stalled = l;
			plan->kinds = LANE_HARP | LANE_KERNEL;
			return true;
		}
	}
	return false;
}

static bool comm_plan_next(struct comm *comm, struct plan *plan, uint64_t now_ns)
{
	struct comm_several *s = comm->several;

	(void)comm_list_shed(s, &s->moved);
	if (s->moved.head >= 0) {
		comm_plan_chunk(comm, plan, PLAN_MOVED, s->moved.head);
		return true;
	}
	return comm_plan_stalled(comm, plan, false) || comm_plan_new(comm, plan) ||
	       comm_plan_stalled(comm, plan, true) || comm_plan_late(comm, plan, now_ns);
}

/* Small messages one behind the other go by the lane that was best for the first of some: to compare 16 lanes takes
 * as long as to send one. Nor does their receiver have to look elsewhere. */
static int comm_plan_best(struct comm *comm, const struct plan *plan, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	struct comm_habit *habit = &s->habit;
	bool small = plan->what == PLAN_NEW && plan->kept >= 0;
	uint32_t usable = s->stripe.live & ~s->stripe.stalled;
	int best;

	if (small && habit->kinds == plan->kinds && usable >> habit->lane & 1 &&
	    now_ns - habit->since_ns < HABIT_NS && !s->lanes[habit->lane]->full &&
	    s->stripe.lane[habit->lane].given_bytes < habit->until_bytes)
		return habit->lane;
	best = stripe_best(&s->stripe, plan->kinds, plan->length, now_ns);
	if (small && best >= 0)
		*habit = (struct comm_habit){ .lane = (uint8_t)best,
					      .kinds = (uint8_t)plan->kinds,
					      .since_ns = now_ns,
					      .until_bytes = s->stripe.lane[best].given_bytes +
							     HABIT_BYTES };
	return best;
}

void comm_tx_kick(struct comm *comm, struct comm_lane *self, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	struct plan plan;
	int best;

	if (s->failing || !comm_plan_next(comm, &plan, now_ns))
		return;
	best = comm_plan_best(comm, &plan, now_ns);
	s->told = plan.what == PLAN_NEW ? best : -1;
	s->told_ns = now_ns;
	/* One that is full hears of room by itself. */
	if (best >= 0 && s->lanes[best] != self && !s->lanes[best]->full)
		comm_wake(comm, best);
}

/* The plan becomes a chunk of the lane, and its record. */
static void comm_plan_commit(struct comm_lane *l, const struct plan *plan, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	/* A kept one's may be another message's by now. */
	struct request *request = comm_request(comm, plan->message);
	struct comm_kept *kept = plan->kept < 0 ? NULL : &s->kept[plan->kept];
	struct record record = { .type = RECORD_DATA,
				 .message = plan->message,
				 .offset = plan->offset,
				 .length = plan->length };
	int16_t i = comm_list_pop(s, plan->what == PLAN_MOVED ? &s->moved : &s->unused);

	if (plan->what == PLAN_RESENT) {
		s->chunks[plan->chunk].resent = true;
		l->counts.resent++;
		lane_page_add(plan->stalled->row, HARP_LANE_chunks_moved_away, 1);
	}
	if (plan->what != PLAN_NEW)
		lane_page_chunk_moved_here(l->row);
	if (plan->what == PLAN_NEW) {
		if (kept)
			comm_kept_take(comm, plan->kept, request, plan->message);
		(void)comm_send_cut(comm, plan->length);
	}
	l->counts.moved_in += plan->what == PLAN_MOVED;
	s->chunks[i] = (struct comm_chunk){ .message = plan->message,
					    .offset = plan->offset,
					    .length = plan->length,
					    .kept = plan->kept,
					    .again = plan->what != PLAN_NEW };
	if (plan->message >= comm->completed)
		request->carried |= (uint8_t)l->kind;
	comm_list_append(s, &l->under_way, i);
	stripe_give(&s->stripe, l->index, RECORD_HEADER_BYTES + plan->length, now_ns);
	comm_rouse(comm);
	l->unrated = stripe_is_unrated(&s->stripe.lane[l->index]);
	if (kept) {
		kept->lane = l;
		kept->end_bytes =
			s->stripe.lane[l->index].given_bytes; /* nothing else goes this way */
	}
	l->turn_bytes += plan->length;
	l->counts.chunks_out++;
	l->counts.bytes_out += plan->length;
	lane_page_add(l->row, HARP_LANE_chunks_sent, 1);
	lane_page_add(l->row, HARP_LANE_payload_bytes, plan->length);
	record.total = kept ? kept->size : request->size;
	record.tag = kept ? kept->tag : (uint32_t)request->tag;
	comm_out_begin(l, &record);
	l->out_message = plan->message;
	l->out_kept = plan->kept;
	if (plan->length) {
		l->out.payload =
			kept ? comm_kept_data(comm, plan->kept) : request->data + plan->offset;
		l->out.payload_left = plan->length;
	}
}

bool comm_tx_claim(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	struct plan plan;
	int best;

	if (l->turn_bytes >= COMM_TURN_BYTES_MAX && !s->closing) {
		comm_wake(comm, l->index);
		return false;
	}
	if (!comm_plan_next(comm, &plan, now_ns))
		return false;
	/* Who posts a message drives the lane that was told, and has looked at no clock since. */
	best = plan.what == PLAN_NEW && s->told == l->index && s->told_ns == now_ns
		       ? s->told
		       : comm_plan_best(comm, &plan, now_ns);
	/* Closing, it goes by whoever has room: there is no other time. */
	if (best != l->index && !(s->closing && plan.what == PLAN_MOVED)) {
		if (best >= 0 && !s->lanes[best]->full)
			comm_wake(comm, best);
		return false;
	}
	s->told = -1;
	comm_plan_commit(l, &plan, now_ns);
	/* The one behind it may be another's. Where there is none, who lags is seen to by looks at the lanes. */
	if (plan.what != PLAN_NEW || s->stripe.stalled ||
	    comm->tx.current < atomic_load_explicit(&comm->posted, memory_order_relaxed))
		comm_tx_kick(comm, l, now_ns);
	return true;
}
