/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_sched.c - builds and runs the schedule of an operation.
 *
 * Theory of operation. An algorithm describes an operation once, as acts: send, receive, reduce,
 * copy. Acts belong to streams: one for each direction of each link that the operation uses, and
 * OP_LANES for local acts. A stream runs its acts in the order in which they were added. Both ranks
 * of a link add its messages in the same order, so sends match receives. Additions have a fixed
 * order for the same reason. Across streams, an act waits for at most two earlier acts (dep). So
 * one piece is received while another is reduced and a third one is sent.
 *
 * In each operation, the first message of a link in either direction starts with a call_header,
 * even if data flows only one way. It also contains the first piece if that has up to
 * COLL_INLINE_BYTES; both ranks know the piece's size. A receiver posts its other receives only
 * after it has compared the header, so that a message of another operation never reaches this
 * operation's memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"

struct scratch_block {
	struct scratch_block *next;
	size_t bytes;
	_Alignas(64) unsigned char data[];
};

/* The group has one arena, because it runs one collective at a time. NULL: out of memory. */
void *sched_scratch(struct harp_coll_request *op, size_t bytes)
{
	struct harp_coll *group = op->group;
	struct scratch_block *block = group->scratch;
	void *at;

	bytes = (bytes + 63) / 64 * 64;
	if (!block || block->bytes - group->scratch_used < bytes) {
		size_t room = bytes > (1u << 20) ? bytes : 1u << 20;

		block = aligned_alloc(64, sizeof(*block) + room);
		if (!block)
			return NULL;
		block->bytes = room;
		block->next = group->scratch;
		group->scratch = block;
		group->scratch_used = 0;
		group->scratch_bytes += room;
	}
	at = block->data + group->scratch_used;
	group->scratch_used += bytes;
	return at;
}

void sched_scratch_free(struct harp_coll *group)
{
	while (group->scratch) {
		struct scratch_block *block = group->scratch;

		group->scratch = block->next;
		free(block);
	}
}

/* Replaces the blocks by one that is large enough for all of this operation's allocations. */
static void sched_scratch_reset(struct harp_coll *group)
{
	struct scratch_block *block = group->scratch;
	size_t total = group->scratch_bytes;

	group->scratch_used = 0;
	if (!block || (!block->next && total <= COLL_SCRATCH_KEEP))
		return;
	while (block) {
		struct scratch_block *next = block->next;

		free(block);
		block = next;
	}
	group->scratch = NULL;
	group->scratch_bytes = 0;
	if (total > COLL_SCRATCH_KEEP)
		return;
	block = aligned_alloc(64, sizeof(*block) + total);
	if (!block)
		return;
	block->bytes = total;
	block->next = NULL;
	group->scratch = block;
	group->scratch_bytes = total;
}

static void stream_init(struct stream *stream)
{
	*stream = (struct stream){ -1, -1, -1, -1 };
}

static int sched_add(struct harp_coll_request *op, struct stream *stream, struct act act)
{
	int index = op->acts_count;

	if (index == op->acts_room) {
		int room = op->acts_room ? 2 * op->acts_room : 32;
		struct act *acts = realloc(op->acts, (size_t)room * sizeof(*acts));

		if (!acts)
			return -ENOMEM;
		op->acts = acts;
		op->acts_room = room;
	}
	act.next = -1;
	op->acts[op->acts_count++] = act;
	if (stream->last >= 0)
		op->acts[stream->last].next = index;
	else
		stream->first = index;
	stream->last = index;
	if (stream->posted < 0)
		stream->posted = index;
	if (stream->oldest < 0)
		stream->oldest = index;
	return index;
}

/* Index of the op_link to the peer, or -ENOMEM. */
static int sched_op_link(struct harp_coll_request *op, int peer)
{
	struct op_link *link;

	for (int i = op->links_count - 1; i >= 0; i--)
		if (op->links[i].link->peer == peer)
			return i;
	if (op->links_count == op->links_room) {
		int room = op->links_room ? 2 * op->links_room : 4;
		struct op_link *links = realloc(op->links, (size_t)room * sizeof(*links));

		if (!links)
			return -ENOMEM;
		op->links = links;
		op->links_room = room;
	}
	link = &op->links[op->links_count];
	memset(link, 0, sizeof(*link));
	stream_init(&link->out);
	stream_init(&link->in);
	link->link = link_get(op->group, peer, LINK_COLLECTIVE);
	link->hello_in = bounce_get();
	if (!link->link || !link->hello_in) {
		if (link->hello_in)
			bounce_put(link->hello_in);
		return -ENOMEM;
	}
	return op->links_count++;
}

int sched_send(struct harp_coll_request *op, int peer, const void *data, size_t bytes, int dep)
{
	int at = sched_op_link(op, peer);
	struct op_link *link;
	struct act act = { .kind = ACT_SEND, .dep = { dep, -1 }, .a = data, .n = bytes };

	if (at < 0)
		return at;
	link = &op->links[at];
	link->send_bytes += bytes;
	if (!link->has_hello_out) {
		link->has_hello_out = true;
		if (bytes <= COLL_INLINE_BYTES) {
			act.flags = ACT_HELLO | ACT_INLINE;
		} else {
			struct act hello = { .kind = ACT_SEND,
					     .flags = ACT_HELLO,
					     .dep = { -1, -1 } };
			int rc = sched_add(op, &link->out, hello);

			if (rc < 0)
				return rc;
		}
	}
	return sched_add(op, &link->out, act);
}

int sched_recv(struct harp_coll_request *op, int peer, void *dst, size_t bytes, int dep,
	       const void **where)
{
	int at = sched_op_link(op, peer);
	struct op_link *link;
	struct act act = { .kind = ACT_RECV, .dep = { dep, -1 }, .dst = dst, .n = bytes };

	if (at < 0)
		return at;
	link = &op->links[at];
	link->recv_bytes += bytes;
	if (where)
		*where = dst;
	if (!link->has_hello_in) {
		link->has_hello_in = true;
		if (bytes <= COLL_INLINE_BYTES) {
			act.flags = ACT_HELLO | ACT_INLINE;
			if (where) {
				act.dst = NULL;
				*where = link->hello_in->data + sizeof(struct call_header);
			}
		} else {
			struct act hello = { .kind = ACT_RECV,
					     .flags = ACT_HELLO,
					     .dep = { -1, -1 } };
			int rc = sched_add(op, &link->in, hello);

			if (rc < 0)
				return rc;
		}
	}
	return sched_add(op, &link->in, act);
}

int sched_local(struct harp_coll_request *op, unsigned lane, enum act_kind kind, void *dst,
		const void *a, const void *b, size_t n, int dep0, int dep1)
{
	struct act act = {
		.kind = (uint8_t)kind, .dep = { dep0, dep1 }, .dst = dst, .a = a, .b = b, .n = n
	};

	return sched_add(op, &op->lanes[lane], act);
}

/* Adds headers for directions without data. They depend on no act, so they are sent at once. */
int sched_finish(struct harp_coll_request *op)
{
	struct act hello = { .flags = ACT_HELLO, .dep = { -1, -1 } };
	int rc = 0;

	for (int i = 0; i < op->links_count && rc >= 0; i++) {
		struct op_link *link = &op->links[i];

		if (!link->has_hello_out) {
			hello.kind = ACT_SEND;
			link->has_hello_out = true;
			rc = sched_add(op, &link->out, hello);
		}
		if (!link->has_hello_in && rc >= 0) {
			hello.kind = ACT_RECV;
			link->has_hello_in = true;
			rc = sched_add(op, &link->in, hello);
		}
	}
	return rc < 0 ? rc : 0;
}

static bool sched_is_ready(const struct harp_coll_request *op, const struct act *act)
{
	return (act->dep[0] < 0 || op->acts[act->dep[0]].done) &&
	       (act->dep[1] < 0 || op->acts[act->dep[1]].done);
}

static void sched_mismatch(struct harp_coll_request *op, const struct link *link,
			   const struct call_header *theirs)
{
	char mine_text[192], their_text[192];

	call_describe(&op->header, mine_text, sizeof(mine_text));
	call_describe(theirs, their_text, sizeof(their_text));
	group_fail(op->group, true, -EPROTO,
		   "ranks called different operations: rank %d called %s as number %" PRIu64
		   ", rank %d called %s as number %" PRIu64
		   "; all ranks of a group must call the same operations in the same order",
		   op->group->rank, mine_text, op->header.seq, link->peer, their_text, theirs->seq);
}

/* Compares the peer's header. received: bytes of the message. */
static int sched_check_hello(struct harp_coll_request *op, struct op_link *link, size_t received,
			     const struct act *act)
{
	const struct call_header *theirs = (const void *)link->hello_in->data;
	struct harp_coll *group = op->group;

	if (received < sizeof(*theirs) || theirs->magic != CALL_MAGIC ||
	    theirs->rank != (uint32_t)link->link->peer) {
		group_fail(group, true, -EPROTO,
			   "rank %d sent %zu bytes that are not a message of libharp-coll",
			   link->link->peer, received);
		return -EPROTO;
	}
	if (theirs->protocol != CALL_PROTOCOL) {
		group_fail(group, true, -EPROTO,
			   "rank %d has another version of libharp-coll (protocol %u, here %u); "
			   "install the same on all hosts",
			   link->link->peer, theirs->protocol, CALL_PROTOCOL);
		return -EPROTO;
	}
	if (!call_matches(&op->header, theirs)) {
		sched_mismatch(op, link->link, theirs);
		return -EPROTO;
	}
	if (theirs->link_bytes != link->recv_bytes ||
	    received != sizeof(*theirs) + (act->flags & ACT_INLINE ? act->n : 0)) {
		char text[192];

		call_describe(&op->header, text, sizeof(text));
		group_fail(group, true, -EPROTO,
			   "ranks disagree on the sizes of %s, number %" PRIu64
			   ": rank %d sends %" PRIu64 " bytes to rank %d, which expects %" PRIu64,
			   text, op->header.seq, link->link->peer, theirs->link_bytes, group->rank,
			   link->recv_bytes);
		return -EPROTO;
	}
	link->checked = true;
	return 0;
}

static int sched_post_send(struct harp_coll_request *op, struct op_link *link, struct act *act)
{
	struct bounce *bounce;
	struct call_header *header;
	size_t bytes = 0;

	if (!(act->flags & ACT_HELLO)) {
		act->ticket = link_send(link->link, (void *)(uintptr_t)act->a, act->n, NULL);
		return 0;
	}
	bounce = bounce_get();
	if (!bounce)
		return -ENOMEM;
	header = (void *)bounce->data;
	*header = op->header;
	header->link_bytes = link->send_bytes;
	if (act->flags & ACT_INLINE) {
		bytes = act->n;
		if (bytes)
			memcpy(bounce->data + sizeof(*header), act->a, bytes);
	}
	act->ticket = link_send(link->link, bounce->data, sizeof(*header) + bytes, bounce);
	act->done = true; /* the bounce has a copy, so the data may change */
	return 0;
}

static int sched_out(struct harp_coll_request *op, struct op_link *link)
{
	struct stream *stream = &link->out;
	int moved = 0;

	while (stream->posted >= 0 && half_has_room(&link->link->out)) {
		struct act *act = &op->acts[stream->posted];

		if (!sched_is_ready(op, act))
			break;
		if (sched_post_send(op, link, act))
			return -ENOMEM;
		stream->posted = act->next;
		moved = 1;
	}
	while (stream->oldest != stream->posted) {
		struct act *act = &op->acts[stream->oldest];

		if (!act->done && link->link->out.done <= act->ticket)
			break;
		act->done = true;
		stream->oldest = act->next;
		moved = 1;
	}
	return moved;
}

static int sched_received(struct harp_coll_request *op, struct op_link *link, struct act *act)
{
	size_t received = link->link->in.xfers[act->ticket % COLL_XFERS].received;

	if (act->flags & ACT_HELLO) {
		int rc = sched_check_hello(op, link, received, act);

		if (rc)
			return rc;
		if ((act->flags & ACT_INLINE) && act->dst && act->n)
			memcpy(act->dst, link->hello_in->data + sizeof(struct call_header), act->n);
	} else if (received != act->n) {
		group_fail(op->group, true, -EPROTO,
			   "rank %d sent a piece of %zu bytes, but rank %d expects %zu",
			   link->link->peer, received, op->group->rank, act->n);
		return -EPROTO;
	}
	act->done = true;
	return 0;
}

static int sched_in(struct harp_coll_request *op, struct op_link *link)
{
	struct stream *stream = &link->in;
	int moved = 0;

	while (stream->oldest != stream->posted) {
		struct act *act = &op->acts[stream->oldest];
		int rc;

		if (link->link->in.done <= act->ticket)
			break;
		rc = sched_received(op, link, act);
		if (rc)
			return rc;
		stream->oldest = act->next;
		moved = 1;
	}
	while (stream->posted >= 0 && half_has_room(&link->link->in)) {
		struct act *act = &op->acts[stream->posted];

		if (!(act->flags & ACT_HELLO) && !link->checked)
			break;
		if (!sched_is_ready(op, act))
			break;
		if (act->flags & ACT_HELLO)
			act->ticket = link_recv(link->link, link->hello_in->data,
						sizeof(link->hello_in->data));
		else
			act->ticket = link_recv(link->link, act->dst, act->n);
		stream->posted = act->next;
		moved = 1;
	}
	return moved;
}

static void sched_do_local(struct harp_coll_request *op, const struct act *act)
{
	const struct harp_coll_call *call = &op->call;

	switch (act->kind) {
	case ACT_COPY:
		if (act->n && act->dst != act->a)
			memcpy(act->dst, act->a, act->n);
		break;
	case ACT_REDUCE:
		reduce_apply(call->dtype, call->reduce, act->dst, act->a, act->b, act->n);
		break;
	case ACT_DIVIDE:
		reduce_divide(call->dtype, act->dst, act->n, (unsigned)op->group->world);
		break;
	case ACT_ENCODE:
		half_encode(call->wire, act->dst, act->a, act->n);
		break;
	case ACT_DECODE:
		half_decode(call->wire, act->dst, act->a, act->n);
		break;
	case ACT_DECODE_ADD:
		half_decode_add(call->wire, act->dst, act->a, act->b, act->n);
		break;
	default:
		break;
	}
}

static int sched_lane(struct harp_coll_request *op, struct stream *stream)
{
	int moved = 0;

	while (stream->posted >= 0) {
		struct act *act = &op->acts[stream->posted];

		if (!sched_is_ready(op, act))
			break;
		sched_do_local(op, act);
		act->done = true;
		stream->posted = stream->oldest = act->next;
		moved = 1;
	}
	return moved;
}

/* Posts receives before local acts, so that the next pieces are in transit during additions. */
int sched_progress(struct harp_coll_request *op)
{
	int moved = 0;

	for (int i = 0; i < op->links_count; i++) {
		int rc = sched_in(op, &op->links[i]);

		if (rc < 0)
			return rc;
		moved |= rc;
	}
	for (unsigned i = 0; i < OP_LANES; i++)
		moved |= sched_lane(op, &op->lanes[i]);
	for (int i = 0; i < op->links_count; i++) {
		int rc = sched_out(op, &op->links[i]);

		if (rc < 0)
			return rc;
		moved |= rc;
	}
	return moved;
}

bool sched_is_done(const struct harp_coll_request *op)
{
	for (int i = 0; i < op->links_count; i++)
		if (op->links[i].out.oldest >= 0 || op->links[i].in.oldest >= 0)
			return false;
	for (unsigned i = 0; i < OP_LANES; i++)
		if (op->lanes[i].posted >= 0)
			return false;
	return true;
}

/* Requires that all acts are done, or that the links are closed. */
void sched_clear(struct harp_coll_request *op)
{
	for (int i = 0; i < op->links_count; i++)
		bounce_put(op->links[i].hello_in);
	op->links_count = 0;
	op->acts_count = 0;
	for (unsigned i = 0; i < OP_LANES; i++)
		stream_init(&op->lanes[i]);
	if (op->group)
		sched_scratch_reset(op->group);
}
