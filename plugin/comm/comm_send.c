/* SPDX-License-Identifier: Apache-2.0 */
/* comm_send.c - the sender: chunks and their lanes, credits, buffered sends, acknowledgments. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * Credits. Messages that a CREDIT record has granted (message < granted) are sent whole. Beyond
 * the grant, the sender may have at most eager_bytes of DATA records (headers included) and 256
 * messages outstanding. docs/lanes.md section 5 shows why this cannot deadlock. credited_bytes is
 * the stream position after message granted-1, so data_bytes - credited_bytes is the number of
 * bytes sent beyond the grant. end_ring holds the positions that a later CREDIT may need.
 *
 * Chunks (multi-lane only). Messages are cut into chunks in order. The scheduler picks the lane
 * that would deliver the next chunk first; if that lane is full, the chunk waits for it. A chunk
 * stays on its lane's list until an ACK record covers it, or until the lane dies or stalls while
 * another one moves: then it joins the list of moved chunks, which are sent before new ones. When
 * nothing else is left to send, so does a chunk that another lane would deliver much earlier. The
 * receiver drops duplicates.
 *
 * Buffered sends. An ACK for each small message would double the number of packets. So a message of
 * up to buffer_bytes is done when its lane has copied it, before it is acknowledged. In a
 * multi-lane comm the sender keeps a copy of its own, to resend it. This buffer is free when an ACK
 * record covers it; the receiver sends one for every 16 such messages. Small messages wait for a
 * free buffer; docs/lanes.md section 5.3 shows why one always becomes free.
 *
 * A peer cannot prolong a turn: in a single-lane comm each CREDIT must grant more than the last,
 * and in a multi-lane comm a turn reads at most COMM_IDLE_RECORDS_MAX records from a lane.
 */

/* Chunk sizes of a message that several lanes share. Each chunk costs a kernel lane one system
 * call: less than 1 us for some 10 us of copying at 128 KiB. Smaller chunks balance the lanes
 * better, so a message with less than 128 KiB for each lane is divided evenly, down to 64 KiB. */
#define CHUNK_BYTES_MAX 131072u
#define CHUNK_BYTES_MIN 65536u
#define CHUNK_BYTES_ALONE COMM_TURN_BYTES_MAX /* when one lane takes the whole message */
#define STICKY_NS 100000u
#define STICKY_BYTES 32768u

/* The next record to send. */
struct plan {
	struct comm_chunk chunk;
	bool moved; /* the first of the moved chunks */
};

int comm_send_init(struct comm *comm, const struct comm_options *opt)
{
	struct comm_send_state *tx = &comm->tx;

	TAILQ_INIT(&tx->unused);
	TAILQ_INIT(&tx->moved);
	tx->harp_bytes_max = opt->harp_bytes_max;
	tx->buffers_free = ~UINT64_C(0);
	if (!comm->multi_lane)
		return 0;
	tx->chunks = malloc(COMM_CHUNKS_MAX * sizeof(*tx->chunks));
	if (!tx->chunks)
		return -ENOMEM;
	for (unsigned i = 0; i < COMM_CHUNKS_MAX; i++)
		TAILQ_INSERT_TAIL(&tx->unused, &tx->chunks[i], link);
	/* Reserves address space; pages get memory when they are used. */
	tx->buffer_data = malloc((size_t)COMM_BUFFERS_MAX * COMM_BUFFER_BYTES_MAX);
	return tx->buffer_data ? 0 : -ENOMEM;
}

void comm_send_free(struct comm *comm)
{
	free(comm->tx.chunks);
	free(comm->tx.buffer_data);
}

/* ---- lists of chunks ------------------------------------------------------------------------ */

static struct comm_chunk *list_pop(struct comm_list *list)
{
	struct comm_chunk *chunk = TAILQ_FIRST(list);

	if (chunk)
		TAILQ_REMOVE(list, chunk, link);
	return chunk;
}

static void chunk_free(struct comm_send_state *tx, struct comm_chunk *chunk)
{
	chunk->lane = NULL;
	TAILQ_INSERT_TAIL(&tx->unused, chunk, link);
}

static bool chunk_is_acked(const struct comm_send_state *tx, const struct comm_chunk *chunk)
{
	return chunk->message < tx->acked_message ||
	       (chunk->message == tx->acked_message && chunk->length &&
		chunk->offset + chunk->length <= tx->acked_offset);
}

/* Removes acknowledged chunks from the head of the list. If that empties it, returns how many bytes
 * the lane has delivered: up to the last chunk, if no other lane carried that. Else 0. */
static uint64_t list_drop_acked(struct comm_send_state *tx, struct comm_list *list)
{
	uint64_t delivered_bytes = 0;
	struct comm_chunk *chunk;

	while ((chunk = TAILQ_FIRST(list)) && chunk_is_acked(tx, chunk)) {
		delivered_bytes = chunk->again ? 0 : chunk->end_bytes;
		chunk_free(tx, list_pop(list));
	}
	return chunk ? 0 : delivered_bytes;
}

/* ---- credits -------------------------------------------------------------------------------- */

/* How many of the `left` bytes the next record may carry; -1: not even a header may be sent. */
static int64_t send_allowance(const struct comm *comm, uint64_t left)
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

/* Accounts for a record with `length` bytes of the current message. */
static void send_cut(struct comm *comm, uint64_t length)
{
	struct comm_send_state *tx = &comm->tx;
	struct request *request = comm_request(comm, tx->current);

	if (!tx->offset)
		request->begun_ns = comm->now_ns;
	tx->offset += length;
	tx->data_bytes += RECORD_HEADER_BYTES + length;
	if (tx->offset < request->size)
		return;
	request->end_bytes = tx->data_bytes;
	tx->end_ring[tx->current % COMM_EAGER_MESSAGES] = tx->data_bytes;
	tx->current++;
	tx->offset = 0;
	if (tx->current == tx->granted)
		tx->credited_bytes = tx->data_bytes;
}

static void send_grant(struct comm *comm, uint64_t granted)
{
	struct comm_send_state *tx = &comm->tx;

	tx->granted = granted;
	if (granted <= tx->current)
		tx->credited_bytes = tx->end_ring[(granted - 1) % COMM_EAGER_MESSAGES];
}

/* ---- buffered sends ------------------------------------------------------------------------- */

static uint8_t *buffer_data(const struct comm_send_state *tx, int buffer)
{
	return tx->buffer_data + (size_t)buffer * COMM_BUFFER_BYTES_MAX;
}

/* Is a lane in the middle of sending from this buffer? */
static bool buffer_is_read(struct comm *comm, int8_t buffer)
{
	struct comm_lane *l;

	COMM_FOR_EACH_LANE(comm, l)
	if (l->out.buffer == buffer && l->out.payload_left && l->out.payload)
		return true;
	return false;
}

static void buffers_free_acked(struct comm *comm)
{
	struct comm_send_state *tx = &comm->tx;
	uint64_t left = ~tx->buffers_free;

	for (; left; left &= left - 1) {
		int8_t buffer = (int8_t)__builtin_ctzll(left);

		if (tx->buffer_message[buffer] < tx->acked_message && !buffer_is_read(comm, buffer))
			tx->buffers_free |= left & -left;
	}
}

/* Updates the number of bytes of our records that the lane has copied and delivered. */
static void lane_update_delivered(struct comm_lane *l)
{
	uint64_t delivered_bytes = comm_lane_record_bytes(l, l->lane->ops->done_bytes(l->lane));

	l->copied_bytes = comm_lane_record_bytes(l, l->lane->ops->copied_bytes(l->lane));
	if (delivered_bytes == l->delivered_bytes)
		return;
	l->delivered_bytes = delivered_bytes;
	/* For a kernel lane, done_bytes counts bytes in the socket buffer, not acknowledged
	 * ones. */
	if (l->comm->multi_lane && l->kind == LANE_HARP)
		scheduler_acked(&l->comm->scheduler, l->index, delivered_bytes, l->comm->now_ns);
}

bool comm_send_has_buffered(const struct comm *comm)
{
	return comm->side == COMM_SEND && ~comm->tx.buffers_free;
}

/* Does the list have a buffered chunk of which the peer's TCP has not acknowledged acked_bytes? */
static bool list_has_undelivered(const struct comm_send_state *tx, const struct comm_list *list,
				 uint64_t acked_bytes)
{
	const struct comm_chunk *chunk;

	TAILQ_FOREACH(chunk, list, link)
	if (chunk->buffer >= 0 && chunk->end_bytes > acked_bytes && !chunk_is_acked(tx, chunk))
		return true;
	return false;
}

bool comm_send_has_undelivered(const struct comm *comm)
{
	const struct comm_send_state *tx = &comm->tx;
	struct comm_lane *l;

	COMM_FOR_EACH_LANE(comm, l)
	if (list_has_undelivered(tx, &l->in_flight, comm->scheduler.lane[l->index].acked_bytes))
		return true;
	return list_has_undelivered(tx, &tx->moved, 0);
}

/* ---- done ----------------------------------------------------------------------------------- */

static void send_complete(struct comm *comm, struct comm_lane *observer)
{
	struct comm_send_state *tx = &comm->tx;

	while (comm->completed < tx->current) {
		struct request *request = comm_request(comm, comm->completed);
		const struct comm_chunk *copy = request->chunk;
		const struct comm_lane *l = comm->lanes[0];
		bool done;

		if (comm->multi_lane)
			done = comm->completed < tx->acked_message ||
			       (copy && copy->lane && copy->lane->copied_bytes >= copy->end_bytes);
		else
			done = (request->size <= comm->buffer_bytes
					? l->copied_bytes
					: l->delivered_bytes) >= request->end_bytes;
		if (!done)
			return;
		comm_complete(comm, observer, request->size);
	}
}

void comm_send_finish_lane(struct comm_lane *l)
{
	lane_update_delivered(l);
	send_complete(l->comm, l);
}

/* The peer has all messages before `message`, and `offset` bytes of it. -EPROTO: more than was
 * sent. */
static int send_acked(struct comm *comm, uint64_t message, uint64_t offset)
{
	struct comm_send_state *tx = &comm->tx;
	struct comm_lane *l;

	if (message > tx->current || (message == tx->current && offset > tx->offset))
		return -EPROTO;
	if (message < tx->acked_message ||
	    (message == tx->acked_message && offset <= tx->acked_offset))
		return 0; /* an older ACK, overtaken by one on another lane */
	tx->acked_message = message;
	tx->acked_offset = offset;
	COMM_FOR_EACH_LANE(comm, l)
	{
		uint64_t delivered_bytes = list_drop_acked(tx, &l->in_flight);

		/* This replaces a TCP_INFO call. */
		if (delivered_bytes && l->kind == LANE_KERNEL)
			scheduler_acked(&comm->scheduler, l->index, delivered_bytes, comm->now_ns);
	}
	buffers_free_acked(comm);
	return 0;
}

/* Another lane is to send the chunk, which is on no list. */
static void chunk_move(struct comm_send_state *tx, struct comm_chunk *chunk)
{
	chunk->lane = NULL;
	chunk->again = true;
	TAILQ_INSERT_TAIL(&tx->moved, chunk, link);
}

unsigned comm_send_release(struct comm_lane *l, bool lost)
{
	struct comm_send_state *tx = &l->comm->tx;
	struct comm_chunk *chunk;
	unsigned moved = 0;

	while ((chunk = list_pop(&l->in_flight))) {
		if (!lost || chunk_is_acked(tx, chunk)) {
			chunk_free(tx, chunk);
			continue;
		}
		chunk_move(tx, chunk);
		moved++;
	}
	LANE_STATS_ADD(l->stats, chunks_moved_away, moved);
	return moved;
}

/* Moves the chunks of stalled lanes, if another lane is not stalled. */
static void send_release_stalled(struct comm *comm)
{
	uint32_t stalled = comm->scheduler.stalled;

	if (stalled == comm->scheduler.live)
		return;
	for (; stalled; stalled &= stalled - 1)
		(void)comm_send_release(comm->lanes[__builtin_ctz(stalled)], true);
}

/* Moves the first chunk that another lane would deliver much earlier than the slow lane that has
 * it. */
static bool send_release_late(struct comm *comm)
{
	const struct scheduler *scheduler = &comm->scheduler;
	struct comm_send_state *tx = &comm->tx;
	struct comm_lane *l;

	COMM_FOR_EACH_LANE(comm, l)
	{
		const struct scheduler_lane *lane = &scheduler->lane[l->index];
		struct comm_chunk *chunk;

		if (TAILQ_EMPTY(&l->in_flight) || lane->stalled ||
		    !scheduler_lags(scheduler, l->index, comm->now_ns))
			continue;
		TAILQ_FOREACH(chunk, &l->in_flight, link)
		{
			int best = scheduler_best(scheduler, LANE_HARP | LANE_KERNEL, chunk->length,
						  comm->now_ns);

			if (chunk_is_acked(tx, chunk) || best < 0 ||
			    !scheduler_late(scheduler, l->index,
					    lane->given_bytes - chunk->end_bytes, (unsigned)best,
					    chunk->length, comm->now_ns))
				continue;
			TAILQ_REMOVE(&l->in_flight, chunk, link);
			chunk->kinds = LANE_HARP | LANE_KERNEL;
			chunk_move(tx, chunk);
			LANE_STATS_ADD(l->stats, chunks_moved_away, 1);
			return true;
		}
	}
	return false;
}

/* ---- choosing the next record --------------------------------------------------------------- */

/* The size of the next chunk of a message. */
static uint64_t plan_chunk_bytes(const struct comm *comm, const struct request *request)
{
	uint64_t left = request->size - comm->tx.offset, limit;
	unsigned choices = 1;

	if (!comm->multi_lane)
		return left;
	if (left > CHUNK_BYTES_MIN)
		choices = scheduler_choices(&comm->scheduler, request->kinds);
	if (choices <= 1)
		return left < CHUNK_BYTES_ALONE ? left : CHUNK_BYTES_ALONE;
	limit = (request->size / choices + RECORD_OFFSET_ALIGN) &
		~(uint64_t)(RECORD_OFFSET_ALIGN - 1);
	if (limit > CHUNK_BYTES_MAX)
		limit = CHUNK_BYTES_MAX;
	if (limit < CHUNK_BYTES_MIN)
		limit = CHUNK_BYTES_MIN;
	return left < limit ? left : limit;
}

static bool plan_new(struct comm *comm, struct plan *plan)
{
	const struct comm_send_state *tx = &comm->tx;
	const struct request *request = comm_request(comm, tx->current);
	int8_t buffer = -1;
	int64_t allowed;

	if (tx->current == comm_posted(comm) || (comm->multi_lane && TAILQ_EMPTY(&tx->unused)))
		return false;
	allowed = send_allowance(comm, plan_chunk_bytes(comm, request));
	if (allowed < 0)
		return false;
	if (comm->multi_lane && request->size <= comm->buffer_bytes) {
		/* In one chunk. */
		if (!tx->buffers_free || (uint64_t)allowed < request->size)
			return false;
		buffer = (int8_t)__builtin_ctzll(tx->buffers_free);
	}
	plan->moved = false;
	plan->chunk = (struct comm_chunk){ .message = tx->current,
					   .offset = tx->offset,
					   .length = (uint32_t)allowed,
					   .tag = (uint32_t)request->tag,
					   .buffer = buffer,
					   .kinds = request->kinds };
	return true;
}

static bool plan_next(struct comm *comm, struct plan *plan)
{
	struct comm_send_state *tx = &comm->tx;

	if (comm->scheduler.stalled)
		send_release_stalled(comm);
	(void)list_drop_acked(tx, &tx->moved);
	if (TAILQ_EMPTY(&tx->moved)) {
		if (plan_new(comm, plan))
			return true;
		if (!comm->multi_lane || !send_release_late(comm))
			return false;
	}
	plan->moved = true;
	plan->chunk = *TAILQ_FIRST(&tx->moved);
	return true;
}

/* Consecutive small messages stay on one lane for STICKY_NS and STICKY_BYTES: comparing 16 lanes
 * takes as long as sending a message, and the receiver finds them on the lane that it polls
 * first. */
static struct comm_lane *plan_lane(struct comm *comm, const struct plan *plan)
{
	struct comm_send_state *tx = &comm->tx;
	struct scheduler *scheduler = &comm->scheduler;
	const struct comm_chunk *chunk = &plan->chunk;
	bool small = !plan->moved && chunk->buffer >= 0;
	struct comm_lane *l;
	int best;

	if (comm->closing) { /* last chance: any reachable lane with space */
		COMM_FOR_EACH_LANE(comm, l)
		if (comm_lane_is_reachable(l) && !l->send_error && !comm_lane_has_out(l))
			return l;
		return NULL;
	}
	l = comm->lanes[tx->sticky.lane];
	if (small && tx->sticky.kinds == chunk->kinds && l &&
	    !(scheduler->stalled >> tx->sticky.lane & 1) &&
	    comm->now_ns - tx->sticky.since_ns < STICKY_NS && !l->full &&
	    scheduler->lane[tx->sticky.lane].given_bytes < tx->sticky.until_bytes)
		return l;
	best = scheduler_best(scheduler, chunk->kinds, chunk->length, comm->now_ns);
	if (best < 0)
		return NULL;
	if (small) {
		tx->sticky.lane = (uint8_t)best;
		tx->sticky.kinds = chunk->kinds;
		tx->sticky.since_ns = comm->now_ns;
		tx->sticky.until_bytes = scheduler->lane[best].given_bytes + STICKY_BYTES;
	}
	return comm->lanes[best];
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Keeps the chunk until an ACK record covers it. */
static struct comm_chunk *send_track(struct comm_lane *l, const struct plan *plan)
{
	struct comm *comm = l->comm;
	struct comm_send_state *tx = &comm->tx;
	struct comm_chunk *chunk = list_pop(plan->moved ? &tx->moved : &tx->unused);
	struct scheduler_lane *lane = &comm->scheduler.lane[l->index];

	if (plan->moved)
		LANE_STATS_ADD(l->stats, chunks_moved_here, 1);
	scheduler_give(&comm->scheduler, l->index, RECORD_HEADER_BYTES + plan->chunk.length,
		       comm->now_ns);
	l->unrated = scheduler_is_unrated(lane);
	*chunk = plan->chunk;
	chunk->lane = l;
	/* These lanes send only what the scheduler counts, so this is the end position. */
	chunk->end_bytes = lane->given_bytes;
	TAILQ_INSERT_TAIL(&l->in_flight, chunk, link);
	return chunk;
}

/* Copies a message to the buffer of its chunk. */
static void send_buffer(struct comm_send_state *tx, const struct comm_chunk *chunk,
			const struct request *request)
{
	tx->buffer_message[chunk->buffer] = chunk->message;
	tx->buffers_free &= ~(UINT64_C(1) << chunk->buffer);
	if (request->size)
		memcpy(buffer_data(tx, chunk->buffer), request->data, request->size);
}

/* Turns the plan into the record in l->out. */
static void send_begin(struct comm_lane *l, const struct plan *plan)
{
	struct comm *comm = l->comm;
	struct comm_send_state *tx = &comm->tx;
	const struct comm_chunk *chunk = &plan->chunk;
	/* A buffered send may be done already, and its slot reused. */
	struct request *request = comm_request(comm, chunk->message);
	bool buffered = chunk->buffer >= 0;
	struct comm_chunk *tracked = NULL;
	const uint8_t *payload;

	if (chunk->message >= comm->completed)
		request->used_kinds |= (uint8_t)l->kind;
	if (comm->multi_lane)
		tracked = send_track(l, plan);
	if (!plan->moved) {
		if (buffered) {
			send_buffer(tx, chunk, request);
			request->chunk = tracked;
		}
		send_cut(comm, chunk->length);
	}
	l->turn_bytes += chunk->length;
	LANE_STATS_ADD(l->stats, chunks_sent, 1);
	LANE_STATS_ADD(l->stats, payload_bytes, chunk->length);
	comm_out_begin(l, &(struct record){ .type = RECORD_DATA,
					    .length = chunk->length,
					    .message = chunk->message,
					    .total = buffered ? chunk->length : request->size,
					    .offset = chunk->offset,
					    .tag = chunk->tag });
	payload = buffered ? buffer_data(tx, chunk->buffer) : request->data + chunk->offset;
	if (chunk->length && chunk->length <= COMM_JOINED_BYTES) {
		memcpy(l->out.header + RECORD_HEADER_BYTES, payload, chunk->length);
		l->out.header_bytes += chunk->length;
		return;
	}
	l->out.message = chunk->message;
	l->out.buffer = chunk->buffer;
	l->out.payload_left = chunk->length;
	if (chunk->length)
		l->out.payload = payload;
}

/* Continues to send the record in l->out. */
static void send_push(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_out *out = &l->out;
	uint64_t over = out->buffer < 0 ? comm->completed : comm->tx.acked_message;

	/* The request is done: its memory belongs to the application or to another message. */
	if (out->payload && comm->multi_lane && out->message < over)
		out->payload = NULL;
	(void)comm_lane_push(l);
}

/* Continues begun records on reachable lanes and updates their delivered bytes. Returns one of
 * these lanes, or NULL. */
static struct comm_lane *send_continue(struct comm *comm)
{
	struct comm_lane *l, *reachable = NULL;

	COMM_FOR_EACH_LANE(comm, l)
	{
		if (!comm_lane_is_reachable(l))
			continue;
		reachable = l;
		if (comm_lane_has_out(l) && !l->full && !l->send_error)
			send_push(l);
		lane_update_delivered(l);
	}
	return reachable;
}

static void send_schedule(struct comm *comm)
{
	struct comm_lane *l;
	struct plan plan;

	while (plan_next(comm, &plan)) {
		l = plan_lane(comm, &plan);
		if (!l || l->full || l->send_error || comm_lane_has_out(l))
			return; /* free space, or an acknowledgment, is an event */
		if (!comm_lane_is_reachable(l) ||
		    (l->turn_bytes >= COMM_TURN_BYTES_MAX && !comm->closing)) {
			comm_wake(l);
			return;
		}
		send_begin(l, &plan);
		send_push(l);
	}
}

void comm_send_run(struct comm *comm)
{
	struct comm_lane *l, *observer;

	if (comm->end_error) /* the peer sent CLOSE: it accepts no more data */
		return;
	observer = send_continue(comm);
	send_complete(comm, observer);
	send_schedule(comm);
	if (comm->completed == comm->tx.current)
		return;
	COMM_FOR_EACH_LANE(comm, l)
	if (comm_lane_is_reachable(l))
		lane_update_delivered(l);
	send_complete(comm, observer);
}

/* ---- the receiver's records ----------------------------------------------------------------- */

/* Returns the protocol violation, or NULL. In a single-lane comm, every CREDIT must grant more. */
static const char *send_credit(struct comm *comm, const struct record *record)
{
	if (comm->multi_lane) {
		if (send_acked(comm, record->message, 0))
			return "a CREDIT record of messages that were not sent";
		if (record->total > comm->tx.granted)
			send_grant(comm, record->total);
		return NULL;
	}
	if (comm->no_credit)
		return "a CREDIT record that was not wanted";
	if (record->message > comm->tx.current || record->total <= comm->tx.granted)
		return "a CREDIT record out of order";
	/* The sizes in the record are not needed: the receiver detects truncation. */
	send_grant(comm, record->total);
	return NULL;
}

/* Returns false after the last record of the lane. */
static bool send_record(struct comm_lane *l, const struct record *record)
{
	struct comm *comm = l->comm;
	const char *violation = NULL;

	switch (record->type) {
	case RECORD_CREDIT:
		violation = send_credit(comm, record);
		break;
	case RECORD_ACK:
		if (!comm->multi_lane)
			violation = "an ACK record in a comm of one lane";
		else if (send_acked(comm, record->message, record->offset))
			violation = "an ACK record of bytes that were not sent";
		break;
	case RECORD_CLOSE:
		if (comm->multi_lane)
			(void)send_acked(comm, record->message, 0);
		/* The segments that carried CLOSE may have acknowledged the last bytes. */
		comm_send_finish_lane(l);
		comm_end_by_record(comm, record);
		return false;
	default:
		violation = "a record that only a sender may send";
	}
	if (violation)
		comm_fail_protocol(comm, l, violation);
	return !violation;
}

int comm_send_read(struct comm_lane *l)
{
	struct record record;
	int rc;

	do {
		rc = comm_read_record(l, &record);
		if (rc != 1)
			break;
		l->idle_records++;
		if (!send_record(l, &record))
			return 0;
	} while (!comm_lane_turn_is_over(l));
	return rc;
}
