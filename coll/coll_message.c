/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_message.c - SEND and RECV: messages between two ranks, matched by rank and tag.
 *
 * Theory of operation. Each pair of ranks has a link for messages. Short messages are sent eagerly,
 * long ones by MPI's rendezvous protocol. Each message of the link starts with a call_header,
 * except the pieces of a long message:
 *
 *	CALL_MESSAGE  A short message: data of up to COLL_INLINE_BYTES follows the header. The send
 *	              is done when it is posted, because the data is copied.
 *	CALL_REQUEST  Announces a long message; its data stays at the sender.
 *	CALL_CLEAR    The receiver has matched it with a receive.
 *	CALL_DATA     Its data follows in pieces of PIECE_BYTES, directly into the receiver's
 *	              memory. Until the last one, that direction of the link carries nothing else.
 *
 *	send: SEND_NEW -> done                                                       (short)
 *	      SEND_NEW -> SEND_REQUESTED -> SEND_CLEAR -> SEND_DATA -> done          (long)
 *	recv: RECV_NEW -> done                                                       (short)
 *	      RECV_NEW -> RECV_MATCHED -> RECV_CLEARED -> RECV_DATA -> done          (long)
 *
 * A rank receives headers only while one of its operations waits for one. Headers that match no
 * receive yet are unexpected messages, which wait in order of arrival.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"

#define PIECE_BYTES (512u << 10)
#define UNEXPECTED_MAX 4096u /* per peer; further messages wait on the link */

enum message_state {
	SEND_NEW,
	SEND_REQUESTED,
	SEND_CLEAR,
	SEND_DATA,
	RECV_NEW,
	RECV_MATCHED,
	RECV_CLEARED,
	RECV_DATA,
};

struct unexpected {
	TAILQ_ENTRY(unexpected) link;
	struct call_header header;
	unsigned char data[];
};

struct message_peer {
	struct bounce *header_in;
	bool header_posted;
	uint64_t header_ticket;
	TAILQ_HEAD(, unexpected) unexpected;
	unsigned unexpected_count;
	uint64_t requests;                             /* number of long messages sent to it */
	struct harp_coll_request *sending, *receiving; /* in SEND_DATA, RECV_DATA */
	uint64_t round; /* last round of message_progress() in which a send could not be posted */
};

static size_t message_bytes(const struct harp_coll_request *op)
{
	return op->call.count * harp_coll_dtype_bytes(op->call.dtype);
}

static int message_peers(struct harp_coll *group)
{
	if (group->messages)
		return 0;
	group->messages = calloc((size_t)group->world, sizeof(*group->messages));
	if (!group->messages)
		return -ENOMEM;
	for (int r = 0; r < group->world; r++)
		TAILQ_INIT(&group->messages[r].unexpected);
	return 0;
}

static void message_done(struct harp_coll_request *op)
{
	bool is_send = op->call.op == HARP_COLL_SEND;
	struct harp_coll *group = op->group;

	TAILQ_REMOVE(is_send ? &group->sends : &group->recvs, op, link);
	group->stats.operations++;
	op_complete(op, 0, NULL);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Posts a header and up to COLL_INLINE_BYTES. 0: posted; -EAGAIN; -ENOMEM. */
static int message_post(struct harp_coll *group, int peer, const struct call_header *header,
			const void *data, size_t bytes)
{
	struct link *link = link_get(group, peer, LINK_MESSAGE);
	struct bounce *bounce;

	if (!link)
		return -ENOMEM;
	if (group->messages[peer].sending || !half_has_room(&link->out))
		return -EAGAIN;
	bounce = bounce_get();
	if (!bounce)
		return -ENOMEM;
	memcpy(bounce->data, header, sizeof(*header));
	if (bytes)
		memcpy(bounce->data + sizeof(*header), data, bytes);
	link_send(link, bounce->data, sizeof(*header) + bytes, bounce);
	return 0;
}

static int message_send_pieces(struct harp_coll_request *op)
{
	struct harp_coll *group = op->group;
	struct link *link = link_get(group, op->call.peer, LINK_MESSAGE);
	size_t bytes = message_bytes(op);
	int moved = 0;

	while (op->posted_bytes < bytes && half_has_room(&link->out)) {
		size_t piece = bytes - op->posted_bytes < PIECE_BYTES ? bytes - op->posted_bytes
								      : PIECE_BYTES;

		op->message_ticket =
			link_send(link, (char *)(uintptr_t)op->call.in + op->posted_bytes, piece,
				  NULL);
		op->posted_bytes += piece;
		moved = 1;
	}
	if (op->posted_bytes == bytes) {
		if (group->messages[op->call.peer].sending == op)
			group->messages[op->call.peer].sending = NULL;
		if (link->out.done > op->message_ticket) {
			message_done(op);
			return 1;
		}
	}
	return moved;
}

static int message_send_progress(struct harp_coll_request *op, uint64_t round)
{
	struct harp_coll *group = op->group;
	struct message_peer *peer = &group->messages[op->call.peer];
	size_t bytes = message_bytes(op);
	bool is_short = bytes <= COLL_INLINE_BYTES;
	struct call_header data;
	int rc;

	switch ((enum message_state)op->message_state) {
	case SEND_NEW:
		if (peer->round == round)
			return 0; /* keeps the order: an earlier send waits, too */
		op->header.kind = is_short ? CALL_MESSAGE : CALL_REQUEST;
		op->header.link_bytes = bytes;
		rc = message_post(group, op->call.peer, &op->header, op->call.in,
				  is_short ? bytes : 0);
		if (rc == -EAGAIN) {
			peer->round = round;
			return 0;
		}
		if (rc)
			return rc;
		if (is_short)
			message_done(op);
		else
			op->message_state = SEND_REQUESTED;
		return 1;
	case SEND_CLEAR:
		data = op->header;
		data.kind = CALL_DATA;
		rc = message_post(group, op->call.peer, &data, NULL, 0);
		if (rc)
			return rc == -EAGAIN ? 0 : rc;
		peer->sending = op;
		op->posted_bytes = 0;
		op->message_state = SEND_DATA;
		return 1;
	case SEND_DATA:
		return message_send_pieces(op);
	default:
		return 0;
	}
}

/* ---- receiving ------------------------------------------------------------------------------- */

static bool message_matches(const struct harp_coll_request *op, const struct call_header *header)
{
	return op->message_state == RECV_NEW && op->call.tag == header->tag &&
	       (op->call.peer == HARP_COLL_ANY_RANK || op->call.peer == (int)header->rank);
}

/* Assigns a message to a receive. -EPROTO: it does not fit. */
static int message_take(struct harp_coll_request *op, const struct call_header *header,
			const void *data)
{
	size_t element = harp_coll_dtype_bytes(op->call.dtype);

	if (header->dtype != op->call.dtype || header->link_bytes > message_bytes(op)) {
		char mine[192], theirs[192];

		call_describe(&op->header, mine, sizeof(mine));
		call_describe(header, theirs, sizeof(theirs));
		group_fail(
			op->group, true, -EPROTO,
			"a message does not fit: rank %d called %s, rank %u called %s with tag %d",
			op->group->rank, mine, header->rank, theirs, header->tag);
		return -EPROTO;
	}
	op->source = (int)header->rank;
	op->received = (size_t)header->link_bytes / element;
	op->message_id = header->seq;
	if (header->kind == CALL_MESSAGE) {
		if (header->link_bytes)
			memcpy(op->call.out, data, (size_t)header->link_bytes);
		message_done(op);
	} else {
		op->message_state = RECV_MATCHED;
	}
	return 1;
}

static int message_keep_unexpected(struct message_peer *peer, const struct call_header *header,
				   const void *data)
{
	size_t bytes = header->kind == CALL_MESSAGE ? (size_t)header->link_bytes : 0;
	struct unexpected *unexpected = malloc(sizeof(*unexpected) + bytes);

	if (!unexpected)
		return -ENOMEM;
	unexpected->header = *header;
	if (bytes)
		memcpy(unexpected->data, data, bytes);
	TAILQ_INSERT_TAIL(&peer->unexpected, unexpected, link);
	peer->unexpected_count++;
	return 1;
}

/* Matches a new receive with unexpected messages. */
static int message_match_new(struct harp_coll_request *op)
{
	struct harp_coll *group = op->group;

	for (int r = 0; r < group->world; r++) {
		struct message_peer *peer = &group->messages[r];
		struct unexpected *unexpected;

		if (op->call.peer != HARP_COLL_ANY_RANK && op->call.peer != r)
			continue;
		TAILQ_FOREACH(unexpected, &peer->unexpected, link)
		{
			int rc;

			if (!message_matches(op, &unexpected->header))
				continue;
			TAILQ_REMOVE(&peer->unexpected, unexpected, link);
			peer->unexpected_count--;
			rc = message_take(op, &unexpected->header, unexpected->data);
			free(unexpected);
			return rc;
		}
	}
	return 0;
}

static int message_bad(struct harp_coll *group, int rank)
{
	group_fail(group, true, -EPROTO,
		   "rank %d sent a message that is not of libharp-coll, or of another version; "
		   "install the same on all hosts",
		   rank);
	return -EPROTO;
}

static int message_arrived(struct harp_coll *group, int rank, size_t received)
{
	struct message_peer *peer = &group->messages[rank];
	const struct call_header *header = (const void *)peer->header_in->data;
	const void *data = peer->header_in->data + sizeof(*header);
	struct harp_coll_request *op;

	if (received < sizeof(*header) || header->magic != CALL_MAGIC ||
	    header->protocol != CALL_PROTOCOL || header->rank != (uint32_t)rank ||
	    (header->kind == CALL_MESSAGE && header->link_bytes != received - sizeof(*header)))
		return message_bad(group, rank);
	switch ((enum call_kind)header->kind) {
	case CALL_MESSAGE:
	case CALL_REQUEST:
		TAILQ_FOREACH(op, &group->recvs, link)
		if (message_matches(op, header))
			return message_take(op, header, data);
		return message_keep_unexpected(peer, header, data);
	case CALL_CLEAR:
		TAILQ_FOREACH(op, &group->sends, link)
		if (op->call.peer == rank && op->message_state == SEND_REQUESTED &&
		    op->header.seq == header->seq) {
			op->message_state = SEND_CLEAR;
			return 1;
		}
		return message_bad(group, rank);
	case CALL_DATA:
		TAILQ_FOREACH(op, &group->recvs, link)
		if (op->message_state == RECV_CLEARED && op->source == rank &&
		    op->message_id == header->seq) {
			op->message_state = RECV_DATA;
			op->posted_bytes = op->done_bytes = 0;
			peer->receiving = op;
			return 1;
		}
		return message_bad(group, rank);
	default:
		return message_bad(group, rank);
	}
}

static int message_recv_progress(struct harp_coll_request *op)
{
	struct harp_coll *group = op->group;
	size_t bytes = op->received * harp_coll_dtype_bytes(op->call.dtype);
	struct link *link;
	int moved = 0;

	if (op->message_state == RECV_MATCHED) {
		struct call_header clear = op->header;
		int rc;

		clear.kind = CALL_CLEAR;
		clear.seq = op->message_id;
		rc = message_post(group, op->source, &clear, NULL, 0);
		if (rc)
			return rc == -EAGAIN ? 0 : rc;
		op->message_state = RECV_CLEARED;
		return 1;
	}
	if (op->message_state != RECV_DATA)
		return 0;
	link = link_get(group, op->source, LINK_MESSAGE);
	while (op->posted_bytes < bytes && half_has_room(&link->in)) {
		size_t piece = bytes - op->posted_bytes < PIECE_BYTES ? bytes - op->posted_bytes
								      : PIECE_BYTES;

		op->message_ticket =
			link_recv(link, (char *)op->call.out + op->posted_bytes, piece);
		op->posted_bytes += piece;
		moved = 1;
	}
	if (op->posted_bytes == bytes && link->in.done > op->message_ticket) {
		group->messages[op->source].receiving = NULL;
		message_done(op);
		return 1;
	}
	return moved;
}

/* True if this rank expects a header from `rank`. */
static bool message_is_expected(const struct harp_coll *group, int rank)
{
	const struct harp_coll_request *op;

	TAILQ_FOREACH(op, &group->recvs, link)
	{
		if (op->message_state == RECV_NEW &&
		    (op->call.peer == rank || op->call.peer == HARP_COLL_ANY_RANK))
			return true;
		if (op->message_state == RECV_CLEARED && op->source == rank)
			return true;
	}
	TAILQ_FOREACH(op, &group->sends, link)
	if (op->message_state == SEND_REQUESTED && op->call.peer == rank)
		return true;
	return false;
}

static int message_headers(struct harp_coll *group, int rank)
{
	struct message_peer *peer = &group->messages[rank];
	struct link *link;
	int moved = 0;

	if (peer->header_posted) {
		link = link_get(group, rank, LINK_MESSAGE);
		if (link->in.done <= peer->header_ticket) {
			if (message_is_expected(group, rank))
				link_wake(link);
			return 0;
		}
		peer->header_posted = false;
		moved = message_arrived(group, rank,
					link->in.xfers[peer->header_ticket % COLL_XFERS].received);
		if (moved < 0)
			return moved;
	}
	if (peer->receiving || peer->unexpected_count >= UNEXPECTED_MAX ||
	    !message_is_expected(group, rank))
		return moved;
	link = link_get(group, rank, LINK_MESSAGE);
	if (!link)
		return -ENOMEM;
	if (!link_has_inbound(link)) {
		link_expect_inbound(link);
		return moved;
	}
	if (!peer->header_in)
		peer->header_in = bounce_get();
	if (!peer->header_in)
		return -ENOMEM;
	peer->header_ticket = link_recv(link, peer->header_in->data, sizeof(peer->header_in->data));
	peer->header_posted = true;
	return 1;
}

/* ---- for the group --------------------------------------------------------------------------- */

int message_start(struct harp_coll_request *op)
{
	struct harp_coll *group = op->group;
	bool is_send = op->call.op == HARP_COLL_SEND;
	int rc = message_peers(group);

	if (rc)
		return rc;
	op->state = OP_QUEUED;
	op_start_clock(op, coll_now_ns());
	op->message_state = is_send ? SEND_NEW : RECV_NEW;
	op->header.kind = CALL_MESSAGE;
	op->header.seq = is_send ? ++group->messages[op->call.peer].requests : 0;
	TAILQ_INSERT_TAIL(is_send ? &group->sends : &group->recvs, op, link);
	if (!is_send)
		message_match_new(op); /* an error fails the group, and with it this operation */
	return 0;
}

int message_progress(struct harp_coll *group)
{
	static uint64_t round;
	struct harp_coll_request *op, *next;
	int moved = 0, rc;

	round++;
	for (op = TAILQ_FIRST(&group->sends); op; op = next) {
		next = TAILQ_NEXT(op, link);
		rc = message_send_progress(op, round);
		if (rc < 0)
			goto fail;
		moved |= rc;
	}
	for (int r = 0; r < group->world; r++) {
		if (r == group->rank)
			continue;
		rc = message_headers(group, r);
		if (rc < 0)
			goto fail;
		moved |= rc;
	}
	for (op = TAILQ_FIRST(&group->recvs); op; op = next) {
		next = TAILQ_NEXT(op, link);
		rc = message_recv_progress(op);
		if (rc < 0)
			goto fail;
		moved |= rc;
	}
	return moved;
fail:
	group_fail(group, true, rc, "rank %d: a message: %s", group->rank, strerror(-rc));
	return 0;
}

bool message_is_waiting(const struct harp_coll *group)
{
	return !TAILQ_EMPTY(&group->sends) || !TAILQ_EMPTY(&group->recvs);
}

/* Requires closed links, so that the plugin does not access the buffers. */
void message_forget(struct harp_coll *group)
{
	for (int r = 0; group->messages && r < group->world; r++) {
		struct message_peer *peer = &group->messages[r];
		struct unexpected *unexpected;

		if (peer->header_in)
			bounce_put(peer->header_in);
		while ((unexpected = TAILQ_FIRST(&peer->unexpected))) {
			TAILQ_REMOVE(&peer->unexpected, unexpected, link);
			free(unexpected);
		}
	}
	free(group->messages);
	group->messages = NULL;
}
