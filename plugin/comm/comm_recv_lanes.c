/* SPDX-License-Identifier: Apache-2.0 */
/* comm_recv_lanes.c - the receiving end of several lanes: placing chunks, and early ones. */
#include <errno.h>

#include "comm/comm_impl.h"
#include "lane/place.h"

/*
 * Theory of operation
 *
 * Each lane reads its records one behind the other; the chunks of a message come by any lane in any order. A chunk
 * goes to its final place at once, at the offset that it names, in whole 8-byte units (NCCL contract section
 * 4.3). What has arrived is a table of ranges; a message of one chunk does without. Messages end in their order.
 *
 * The same chunk may come by two lanes, one of which may die in the middle of it. So each lane that brings it places
 * all of it that it has, one at a time (comm_is_used()), and whoever is first to have placed all of it is who brought
 * it; the others read the rest into nowhere. Before every piece a lane asks anew where it belongs
 * (comm_rx_target()): the message may be done by then and its memory the application's, or posted by now.
 *
 * While no receive is incomplete a lane is read up to the first chunk of a message without receive, and no
 * further: what comes twice is answered all the same, as its sender may wait for an ACK that was lost with its
 * lane. While one is incomplete every lane is read, whatever stands at its head: a chunk of a message without
 * receive goes to memory of ours (comm_early.c) until there is one. So no lane keeps back what is wanted because of
 * what is not. What is told of it all, comm_tell.c says.
 */

#define ACK_BYTES 1048576u /* received since the last ACK: tell */

enum target {
	TARGET_NONE,    /* nothing can be read now */
	TARGET_NOWHERE, /* it is here already */
	TARGET_MEMORY,
	TARGET_NEW, /* memory for an early one is to be made first */
	TARGET_FAULT,
};

/* Where the next piece goes, or what is wrong. */
struct where {
	uint8_t *memory;
	struct comm_early *early;
	const char *wrong; /* NULL: truncated */
	size_t posted;
};

/* ---- where a chunk belongs; lock held ----------------------------------------------------------- */

/* The first look at a message with a receive. */
static bool comm_rx_admit(struct comm *comm, uint64_t message, uint64_t total, struct where *where)
{
	struct request *request = comm_request(comm, message);

	where->wrong = NULL;
	where->posted = request->size;
	if (request->begun && request->total != total) {
		where->wrong = "a message that changes its size";
		return false;
	}
	if (total > request->size)
		return false;
	request->begun = true;
	request->total = total;
	/* Of shorter ones some may go unasked: the ACK behind has the CREDIT with it. */
	comm->rx.bulk = total > COMM_BULK_BYTES && total > comm->eager_bytes / 4;
	return true;
}

/* 1: all of it is in place, 0: not, or -EPROTO: it is cut otherwise than what is. */
static int comm_rx_has(struct comm *comm, const struct comm_in *in, uint64_t posted)
{
	const struct request *request = comm_request(comm, in->message);

	if (in->message < comm->completed)
		return 1;
	if (in->message >= posted || !request->begun)
		return 0;
	if (request->received == request->total)
		return 1;
	if (!in->length)
		return 0;
	return ranges_have(&comm->several->ranges, in->message, in->offset,
			   in->offset + in->length);
}

static enum target comm_rx_fault(struct where *where, const char *wrong)
{
	where->wrong = wrong;
	return TARGET_FAULT;
}

static enum target comm_rx_early(struct comm_lane *l, struct where *where, uint64_t posted)
{
	struct comm *comm = l->comm;

	if (comm->completed == posted) { /* nothing waits behind it */
		l->waits = l->unread = true;
		return TARGET_NONE;
	}
	if (!comm_early_fits(comm, l->in.length))
		return comm_rx_fault(where, "more data than the credits allow");
	return TARGET_NEW;
}

static enum target comm_rx_target(struct comm_lane *l, struct where *where)
{
	struct comm *comm = l->comm;
	struct comm_in *in = &l->in;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);
	int has;

	comm_unuse(l);
	l->waits = false;
	l->sees_early = comm->several->early != NULL;
	where->early = NULL;
	if (l->dead || comm->several->failing || comm->end_error)
		return TARGET_NONE;
	has = comm_rx_has(comm, in, posted);
	if (has)
		return has == 1 ? TARGET_NOWHERE
				: comm_rx_fault(where, "a DATA record that overlaps others");
	where->early = comm_early_find(comm, in->message, in->offset);
	if (where->early &&
	    (where->early->length != in->length || where->early->total != in->total))
		return comm_rx_fault(where, "a DATA record that overlaps others");
	if (where->early && where->early->complete)
		return TARGET_NOWHERE;
	if (!where->early && in->message >= posted)
		return comm_rx_early(l, where, posted);
	if (!where->early && !in->admitted && !comm_rx_admit(comm, in->message, in->total, where))
		return TARGET_FAULT;
	if (comm_is_used(l, in->message, in->offset, in->offset + in->length)) {
		l->blocked = l->unread = comm->several->blocked = true;
		return TARGET_NONE;
	}
	in->admitted |= !where->early;
	where->memory = where->early ? where->early->data
				     : comm_request(comm, in->message)->data + in->offset;
	comm_use(l, where->early ? COMM_USES_EARLY : COMM_USES_REQUEST, in->message, in->offset,
		 in->offset + in->length);
	return TARGET_MEMORY;
}

/* ---- what has arrived; lock held ---------------------------------------------------------------- */

/* All of a chunk is in its place. What is wrong with it, or NULL. */
static const char *comm_rx_placed(struct comm_lane *l, uint64_t message, uint64_t offset,
				  uint64_t length)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	struct request *request = comm_request(comm, message);
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);
	int rc = 1;

	if (length < request->total)
		rc = ranges_add(&s->ranges, message, offset, offset + length);
	if (rc < 0)
		return rc == -ENOSPC ? "too many holes between DATA records"
				     : "a DATA record that overlaps others";
	request->received += rc ? length : 0;
	comm_recv_count(comm, message, RECORD_HEADER_BYTES + length);
	l->counts.chunks_in++;
	l->counts.bytes_in += length;
	s->ack_bytes += length;
	while (comm->completed < posted) {
		request = comm_request(comm, comm->completed);
		if (!request->begun || request->received != request->total)
			break;
		ranges_forget(&s->ranges, comm->completed);
		comm_complete(comm, l, request->total);
		s->done_ns = comm->now_ns;
		comm->rx.messages_since_told++;
		if (!comm_is_kept(comm, request->total) || ++s->ack_kept >= COMM_KEPT_MESSAGES)
			comm_rx_due(l);
	}
	if (s->peer_closed)
		comm_rx_close(comm, &s->peer_close);
	s->ack_due |= s->ack_bytes >= ACK_BYTES;
	return NULL;
}

/* The payload of l->in has been read to its end. */
static const char *comm_rx_arrived(struct comm_lane *l, enum target target,
				   const struct where *where)
{
	struct comm_in *in = &l->in;

	comm_unuse(l);
	in->here = false;
	if (target == TARGET_NOWHERE) {
		l->counts.duplicates++;
		lane_page_chunk_duplicate(l->row);
		l->repeats = true;
		l->vain_records++;
		return NULL;
	}
	lane_page_add(l->row, HARP_LANE_payload_bytes, in->length);
	if (where->early) {
		where->early->complete = true;
		l->sees_early = true;
		return NULL;
	}
	return comm_rx_placed(l, in->message, in->offset, in->length);
}

/* ---- reading; baton held ------------------------------------------------------------------------ */

static int comm_rx_refuse(struct comm_lane *l, const struct where *where)
{
	struct record record = { .message = l->in.message, .total = l->in.total, .tag = l->in.tag };

	if (where->wrong)
		comm_fail_protocol(l->comm, l, where->wrong);
	else
		comm_fail_truncated(l->comm, l, &record, where->posted);
	return -EPROTO;
}

static int comm_rx_make_early(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_early *early = comm_early_new(&l->in);
	bool mine;

	if (!early) {
		comm_fail(comm, l, -ENOMEM, CLOSE_LOCAL, NULL, "out of memory");
		return -EPROTO;
	}
	comm_lock(comm);
	/* Another lane may bring it, too, or has taken the room since. */
	mine = !comm_early_find(comm, early->message, early->offset) &&
	       comm_early_fits(comm, early->length);
	if (mine)
		comm_early_add(comm, early);
	comm_unlock(comm);
	if (!mine)
		comm_early_free(early);
	return 0;
}

/* One piece: bytes, 0 none are there, or the error. */
static ssize_t comm_rx_piece(struct comm_lane *l, enum target target, const struct where *where)
{
	_Alignas(64) uint8_t nowhere[8192];
	size_t left = l->in.length - l->in.done;
	ssize_t n;

	if (target == TARGET_MEMORY)
		n = l->lane->ops->recv(l->lane, where->memory + l->in.done, left, 8);
	else
		n = l->lane->ops->recv(l->lane, nowhere,
				       left < sizeof(nowhere) ? left : sizeof(nowhere), 8);
	if (n == -EAGAIN)
		return 0;
	if (n > 0) {
		l->turn_bytes += (uint32_t)n;
		lane_page_add(l->row, HARP_LANE_received_bytes, (uint64_t)n);
	}
	return n ? n : -EPIPE;
}

/* What was done by the rule of one lane may still come, by this lane and by others. */
void comm_rx_close(struct comm *comm, const struct record *close)
{
	struct comm_several *s = comm->several;

	s->peer_closed = true;
	s->peer_close = *close;
	if (close->tag != CLOSE_ORDERLY || close->message <= comm->completed)
		comm_end_by_record(comm, close);
}

/* 1: the record's payload is complete, or the turn over; 0: more is to come, or the error; -EPROTO: the comm fails. */
static int comm_rx_payload(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct where where;
	enum target target;
	bool tell;

	for (;;) {
		const char *wrong = NULL;
		ssize_t n = 0;

		comm_lock(comm);
		target = comm_rx_target(l, &where);
		/* Before the payload: the sender may be waiting. */
		tell = !l->in.done && target == TARGET_MEMORY &&
		       comm_rx_tells_early(comm, atomic_load_explicit(&comm->posted,
								      memory_order_relaxed));
		comm_unlock(comm);
		if (target == TARGET_NONE)
			return 0;
		if (target == TARGET_FAULT)
			return comm_rx_refuse(l, &where);
		if (target == TARGET_NEW) {
			if (comm_rx_make_early(l))
				return -EPROTO;
			continue;
		}
		if (tell)
			comm_rx_tell_early(l, now_ns);
		if (l->in.done < l->in.length)
			n = comm_rx_piece(l, target, &where);
		if (n > 0)
			l->in.done += (uint32_t)n;
		if (n > 0 && l->in.done < l->in.length && !comm_lane_is_over(l))
			continue;
		comm_lock(comm);
		if (l->in.done == l->in.length)
			wrong = comm_rx_arrived(l, target, &where);
		else
			comm_unuse(l);
		comm_unlock(comm);
		if (wrong) {
			comm_fail_protocol(comm, l, wrong);
			return -EPROTO;
		}
		return l->in.here && n <= 0 ? (int)n : 1;
	}
}

/* Lock held: where an early chunk belongs whose receive is posted. Others may have brought its bytes, cut otherwise. */
static enum target comm_rx_early_target(struct comm_lane *l, struct comm_early *early,
					struct where *where)
{
	struct comm *comm = l->comm;
	struct comm_in in = { .message = early->message,
			      .offset = early->offset,
			      .length = early->length };
	uint64_t end = early->offset + early->length;
	int has = comm_rx_has(comm, &in, atomic_load_explicit(&comm->posted, memory_order_relaxed));

	if (has)
		return has == 1 ? TARGET_NOWHERE
				: comm_rx_fault(where, "a DATA record that overlaps others");
	if (!comm_rx_admit(comm, early->message, early->total, where))
		return TARGET_FAULT;
	if (comm_is_used(l, early->message, early->offset, end)) {
		l->blocked = l->unread = comm->several->blocked = true;
		early->moving = false;
		return TARGET_NONE;
	}
	comm_use(l, COMM_USES_REQUEST, early->message, early->offset, end);
	return TARGET_MEMORY;
}

/* To its place, unless it is here already. What is wrong with it, or NULL. */
static const char *comm_rx_place_early(struct comm_lane *l, struct comm_early *early,
				       enum target target)
{
	struct comm *comm = l->comm;
	struct iovec piece = { early->data, early->length };
	const char *wrong = NULL;

	if (target == TARGET_MEMORY && early->length)
		place_gather(comm_request(comm, early->message)->data + early->offset,
			     early->length, &piece, 1);
	comm_lock(comm);
	comm_unuse(l);
	comm_early_remove(comm, early);
	if (target == TARGET_MEMORY)
		wrong = comm_rx_placed(l, early->message, early->offset, early->length);
	comm_unlock(comm);
	comm_early_free(early);
	return wrong;
}

/* Early chunks whose receives are posted go to their places. What others have put there since, they take there, or who is woken
 * when its receive is posted. */
static int comm_rx_move_early(struct comm_lane *l)
{
	struct comm *comm = l->comm;

	while (l->sees_early) {
		struct where where = { 0 };
		enum target target = TARGET_NONE;
		struct comm_early *early;
		const char *wrong;

		comm_lock(comm);
		early = comm->several->failing ? NULL : comm_early_take(comm);
		if (early)
			target = comm_rx_early_target(l, early, &where);
		comm_unlock(comm);
		if (target == TARGET_NONE)
			return 0;
		if (target == TARGET_FAULT) {
			l->in.message = early->message; /* what is said of it */
			l->in.total = early->total;
			l->in.tag = early->tag;
			return comm_rx_refuse(l, &where);
		}
		wrong = comm_rx_place_early(l, early, target);
		if (wrong) {
			comm_fail_protocol(comm, l, wrong);
			return -EPROTO;
		}
	}
	return 0;
}

/* The next header. 1: that of a DATA record is in l->in. -EPIPE: it was a CLOSE, and more may come by other lanes. */
static int comm_rx_header(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct record record;
	uint64_t posted;
	int rc = l->heard_close ? -EPIPE : comm_read_record(l, &record);

	if (rc != 1)
		return rc;
	if (record.type == RECORD_CLOSE) {
		l->heard_close = true;
		comm_lock(comm);
		comm_rx_close(comm, &record);
		rc = comm->end_error ? 0 : -EPIPE;
		comm_unlock(comm);
		return rc;
	}
	/* Acquire: our own reading of it is not under the lock; it only grows. */
	posted = atomic_load_explicit(&comm->posted, memory_order_acquire);
	if (record.type != RECORD_DATA || record.message >= posted + COMM_EAGER_MESSAGES) {
		comm_fail_protocol(comm, l,
				   record.type != RECORD_DATA
					   ? "a record that only a receiver may send"
					   : "a DATA record out of order");
		return -EPROTO;
	}
	l->in = (struct comm_in){ .here = true,
				  .message = record.message,
				  .offset = record.offset,
				  .total = record.total,
				  .length = record.length,
				  .tag = record.tag };
	return 1;
}

static void comm_rx_by_kernel(struct comm_lane *l, uint64_t now_ns)
{
	struct comm_several *s = l->comm->several;

	atomic_store_explicit(&s->kernel_active_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&s->kernel_message, l->in.message, memory_order_relaxed);
}

static int comm_rx_read(struct comm_lane *l, uint64_t now_ns)
{
	int rc = 1;

	while (rc == 1 && !comm_lane_is_over(l)) {
		if (!l->in.here) {
			rc = comm_rx_header(l);
			if (rc == 1 && l->kind == LANE_KERNEL)
				comm_rx_by_kernel(l, now_ns);
		}
		if (rc == 1 && l->in.here)
			rc = comm_rx_payload(l, now_ns);
	}
	if (rc == 1)
		comm_lane_again(l);
	return rc == 1 ? 0 : rc;
}

void comm_rx_post(struct comm *comm)
{
	struct comm_several *s = comm->several;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);

	comm_rx_resumes(comm, posted);
	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		struct comm_lane *l = s->lanes[__builtin_ctz(left)];

		if (l->waits)
			comm_wake(comm, l->index);
	}
	if (s->early || comm_recv_credit_due(comm, posted))
		comm_wake(comm, s->control);
}

bool comm_rx_rests(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);
	bool rests = false, idle = comm->completed == posted;

	for (const struct comm_early *e = comm->several->early; e && !rests; e = e->next)
		rests = e->complete && (idle || e->message < posted);
	l->waits |= rests; /* a receive wakes it */
	if (rests && !idle)
		comm_wake(comm, l->index);
	return rests;
}

void comm_rx_advance(struct comm_lane *l, uint64_t now_ns)
{
	int rc;

	l->unread = false;
	l->turn_bytes = l->vain_records = 0;
	rc = comm_rx_move_early(l);
	if (!rc)
		rc = comm_rx_read(l, now_ns);
	if (rc != -EPROTO && comm_rx_move_early(l))
		rc = -EPROTO;
	if (rc == -EPROTO)
		return;
	if (!rc && comm_rx_puts_off(l)) {
		comm_lane_again(l);
		return;
	}
	if (!rc) {
		rc = comm_rx_tell(l, now_ns);
		if (rc < 0 && (comm_lane_is_over(l) || comm_lane_mute(l)))
			return; /* what has come by it may come by no other */
	}
	if (rc < 0)
		(void)comm_lane_die(l, rc, COMM_DEATH_ENDED);
}
