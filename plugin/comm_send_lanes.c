/* SPDX-License-Identifier: Apache-2.0 */
/* comm_send_lanes.c - the sending end of several lanes: chunks, acknowledgements, moves. */
#include <errno.h>
#include <string.h>

#include "comm.h"

/*
 * Theory of operation
 *
 * Messages are cut into chunks, in order, within the credits as on one lane (comm_send.c). When a lane has room
 * it asks for the next chunk; whether it gets it stripe.c says, by the time at which each lane would have
 * delivered it. If another lane would sooner, that one is woken, in the same hold of the lock: the chunk is
 * always somebody's, and as all lanes calculate with the same figures they agree whose.
 *
 * Every chunk stays on the list of its lane until an ACK covers it. A lane that dies leaves its chunks to
 * `moved`, and they go before everything new. A lane that stalls keeps them, but those of the oldest message,
 * which holds up all others, are sent by another lane again at once, and the rest when nothing new is to be sent. So
 * are then those of a lane that has become slow, where another would deliver them much sooner. The receiver drops
 * what comes twice. A chunk that is sent again has the offset and the length that it had.
 *
 * A request is done when all of it is acknowledged and no lane is reading it: it may have been sent again. Small
 * ones are kept (comm_kept.c), and done sooner.
 *
 * An ACK takes chunks off the heads of the lists. One that is covered but stands behind another (of a lane that
 * moved it here) is found when it comes to the head, or by who takes it up.
 */

#define LOOK_NS 1000000u /* a kernel lane that brings no credits is read so often */
/* Chunks of a message that several lanes share. A kernel lane pays a system call for each, and 128 KiB is
 * where that no longer shows (some 10 us of copying for less than 1 us); smaller ones balance better, so a message
 * for which there is less of that for each lane is divided evenly down to 64 KiB. */
#define CHUNK_BYTES_MAX 131072u
#define CHUNK_BYTES_MIN 65536u
/* Where one lane takes everything: what is sent again when it dies. */
#define CHUNK_BYTES_ALONE 1048576u

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

/* ---- lists of chunks; lock held ---------------------------------------------------------------- */

static void comm_list_append(struct comm_several *s, struct comm_list *list, int16_t chunk)
{
	s->chunks[chunk].next = -1;
	if (list->head < 0)
		list->head = chunk;
	else
		s->chunks[list->tail].next = chunk;
	list->tail = chunk;
}

static int16_t comm_list_pop(struct comm_several *s, struct comm_list *list)
{
	int16_t chunk = list->head;

	if (chunk >= 0)
		list->head = s->chunks[chunk].next;
	return chunk;
}

static bool comm_tx_is_acked(const struct comm_several *s, const struct comm_chunk *chunk)
{
	return chunk->message < s->acked_message ||
	       (chunk->message == s->acked_message && chunk->length &&
		chunk->offset + chunk->length <= s->acked_offset);
}

static void comm_list_shed(struct comm_several *s, struct comm_list *list)
{
	while (list->head >= 0 && comm_tx_is_acked(s, &s->chunks[list->head]))
		comm_list_append(s, &s->unused, comm_list_pop(s, list));
}

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

/* ---- what is next; lock held -------------------------------------------------------------------- */

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

	comm_list_shed(s, &s->moved);
	if (s->moved.head >= 0) {
		comm_plan_chunk(comm, plan, PLAN_MOVED, s->moved.head);
		return true;
	}
	return comm_plan_stalled(comm, plan, false) || comm_plan_new(comm, plan) ||
	       comm_plan_stalled(comm, plan, true) || comm_plan_late(comm, plan, now_ns);
}

void comm_tx_kick(struct comm *comm, struct comm_lane *self, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	struct plan plan;
	int best;

	if (s->failing || !comm_plan_next(comm, &plan, now_ns))
		return;
	best = stripe_best(&s->stripe, plan.kinds, plan.length, now_ns);
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
					    .kept = plan->kept };
	if (plan->message >= comm->completed)
		request->carried |= (uint8_t)l->kind;
	comm_list_append(s, &l->under_way, i);
	stripe_give(&s->stripe, l->index, RECORD_HEADER_BYTES + plan->length, now_ns);
	if (kept) {
		kept->lane = l;
		kept->end_bytes =
			s->stripe.lane[l->index].given_bytes; /* nothing else goes this way */
	}
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

static bool comm_tx_claim(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	struct plan plan;
	int best;

	if (!comm_plan_next(comm, &plan, now_ns))
		return false;
	best = stripe_best(&s->stripe, plan.kinds, plan.length, now_ns);
	/* Closing, it goes by whoever has room: there is no other time. */
	if (best != l->index && !(s->closing && plan.what == PLAN_MOVED)) {
		if (best >= 0 && !s->lanes[best]->full)
			comm_wake(comm, best);
		return false;
	}
	comm_plan_commit(l, &plan, now_ns);
	comm_tx_kick(comm, l, now_ns); /* the one behind it may be another's */
	return true;
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
		comm_choice_done(comm, request);
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
	for (uint32_t left = s->stripe.live; left; left &= left - 1)
		comm_list_shed(s, &s->lanes[__builtin_ctz(left)]->under_way);
	comm_kept_shed(comm);
	return 0;
}

bool comm_tx_post(struct comm *comm, struct request *request)
{
	bool news = comm_choice_take(comm, request);

	comm_tx_kick(comm, NULL, request->posted_ns);
	return news;
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
	if (l->dead || comm->several->failing || comm->end_error)
		return false;
	if (l->kind == LANE_HARP)
		stripe_acked(&comm->several->stripe, l->index, done_bytes, now_ns);
	if (full || l->send_broken)
		return false;
	if (!out->header_bytes && !comm_tx_claim(l, now_ns))
		return false;
	if (!out->payload_left)
		return true;
	if (out->payload && l->out_message < comm_tx_over(l))
		out->payload = NULL; /* the memory is not ours any more, or another message's */
	else if (out->payload)
		comm_use(l, l->out_kept < 0 ? COMM_USES_REQUEST : COMM_USES_KEPT, l->out_message, 0,
			 UINT64_MAX);
	return true;
}

int comm_tx_push(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	int rc = 1;

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

/* Records read, or -1: the lane's turn is over. */
static int comm_tx_read(struct comm_lane *l)
{
	struct record record;
	int rc, count = -1;

	do {
		rc = comm_read_record(l, &record);
		count++;
	} while (rc == 1 && comm_tx_record(l, &record));
	if (rc < 0 && rc != -EPROTO)
		comm_lane_die(l, rc, NULL);
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
	int rc = comm_tx_push(l, now_ns);

	/* Credits, ACKs, CLOSE, the end of the stream. A kernel lane costs a system call to ask. */
	if (rc < 0 || comm_tx_looks(l, now_ns)) {
		int count = comm_tx_read(l);

		l->looked_ns = now_ns;
		if (count < 0)
			return;
		if (rc >= 0 && count > 0)
			rc = comm_tx_push(l, now_ns); /* with the new credits */
	}
	if (rc < 0) /* what the peer said, read above, explains it better */
		comm_lane_die(l, rc, NULL);
}
