/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - message streams and ping-pong between ring neighbors.
 *
 * The progress thread works as in NCCL: receives are posted in advance, and up to 8 messages are
 * outstanding in each direction. A pass tests for the completion of one send, and waits for it only
 * if all slots are in use. The GPU's work takes no time: a slot is filled when it becomes free, and
 * consumed when it arrives. With `check`, every byte is written and verified, which takes time, so
 * timed passes do not use it.
 */
#include <stdio.h>
#include <string.h>

#include "stream.h"

/* A word that depends on offset, message, channel and sender, so that any mix-up is detected. */
static uint64_t stream_word(const struct conn *conn, uint64_t message, size_t i)
{
	uint64_t x = (message << 32) ^ ((uint64_t)conn->tag << 56) ^
		     ((uint64_t)conn->channel << 48) ^ (uint64_t)i;

	x *= 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

static void stream_write(const struct conn *conn, char *slot, uint64_t message, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = stream_word(conn, message, i);

		memcpy(slot + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

static bool stream_is_right(const struct conn *conn, const char *slot, uint64_t message,
			    size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = stream_word(conn, message, i);

		if (memcmp(slot + i, &word, bytes - i < 8 ? bytes - i : 8))
			return false;
	}
	return true;
}

static void stream_update_window(const struct stream_op *stream, struct stream_window *window,
				 uint64_t done)
{
	uint64_t channels = (uint64_t)stream->play->options.channels;

	if (stream->role > STREAM_BOTH)
		channels = 1;
	if (!window->start_ns && done >= stream->warmup * channels)
		window->start_ns = play_now_ns();
	if (stream->messages != UINT64_MAX && !window->end_ns &&
	    done == (stream->warmup + stream->messages) * channels)
		window->end_ns = play_now_ns();
}

static void stream_produce(struct stream_op *stream, struct conn *send)
{
	if (stream->check)
		stream_write(send, conn_fill_slot(send), send->filled, stream->bytes);
	conn_fill(send, stream->bytes);
}

static int stream_take(struct stream_op *stream, struct conn *recv)
{
	size_t bytes;
	const char *slot = conn_take_slot(recv, &bytes);

	if (stream->messages == UINT64_MAX && bytes == 0 && stream->bytes) {
		if (recv->limit == UINT64_MAX)
			recv->limit = recv->consumed + recv->depth;
		return conn_consume(recv, 0);
	}
	if (stream->check && bytes == stream->bytes &&
	    !stream_is_right(recv, slot, recv->consumed, bytes))
		stream->wrong++;
	return conn_consume(recv, stream->bytes);
}

static uint64_t stream_total(const struct stream_op *stream)
{
	return stream->messages == UINT64_MAX ? UINT64_MAX : stream->warmup + stream->messages;
}

/* Fills free slots. After a stop, the sender's last messages are empty. */
static void stream_fill(struct stream_op *stream, struct channel *ch)
{
	struct conn *send = &ch->send;
	uint64_t *first_empty = &stream->first_empty[send->channel];

	if (stream->stop && !*first_empty && send->filled &&
	    atomic_load_explicit(stream->stop, memory_order_relaxed))
		*first_empty = send->filled;
	while (conn_can_fill(send)) {
		if (!*first_empty && send->filled < stream_total(stream))
			stream_produce(stream, send);
		else if (*first_empty && send->filled < *first_empty + send->depth)
			conn_fill(send, 0);
		else
			break;
	}
}

/* An endless stream ends when all channels have moved their empty messages. */
static bool stream_is_stopped(const struct stream_op *stream)
{
	for (int c = 0; c < stream->play->options.channels; c++) {
		const struct channel *ch = &stream->play->channels[c];

		if ((stream->role & STREAM_SEND) &&
		    (!stream->first_empty[c] ||
		     ch->send.done < stream->first_empty[c] + ch->send.depth))
			return false;
		if ((stream->role & STREAM_RECEIVE) && ch->recv.consumed < ch->recv.limit)
			return false;
	}
	return true;
}

/* Advances both directions of one channel. */
static int stream_advance(struct stream_op *stream, struct channel *ch)
{
	int moved = 0, rc;

	if (stream->role & STREAM_RECEIVE) {
		rc = conn_recv_pass(&ch->recv);
		if (rc < 0)
			return rc;
		moved |= rc;
		while (ch->recv.consumed < ch->recv.received)
			if (stream_take(stream, &ch->recv))
				return -1;
	}
	if (stream->role & STREAM_SEND) {
		stream_fill(stream, ch);
		rc = conn_send_pass(&ch->send);
		if (rc < 0)
			return rc;
		moved |= rc;
	}
	return moved;
}

static int stream_pass(struct op *op)
{
	struct stream_op *stream = (struct stream_op *)(void *)op;
	struct play *play = stream->play;
	uint64_t sent = 0, received = 0;
	uint64_t channels = (uint64_t)play->options.channels;
	int moved = 0;

	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];
		int rc = stream_advance(stream, ch);

		if (rc < 0)
			return rc;
		moved |= rc;
		sent += ch->send.done;
		received += ch->recv.received;
	}
	if (!moved && stream->received.start_ns && stream->sent.start_ns)
		return 0;
	stream_update_window(stream, &stream->sent, sent);
	stream_update_window(stream, &stream->received, received);
	if (stream->messages == UINT64_MAX
		    ? stream_is_stopped(stream)
		    : (!(stream->role & STREAM_SEND) || sent == stream_total(stream) * channels) &&
			      (!(stream->role & STREAM_RECEIVE) ||
			       received == stream_total(stream) * channels))
		op->finished = true;
	return moved;
}

static void stream_take_pong(struct stream_op *stream, const struct conn *recv)
{
	uint64_t now_ns = play_now_ns();

	if (stream->samples_ns && recv->consumed > stream->warmup)
		stream->samples_ns[stream->sample++] = (now_ns - stream->pinged_ns) / 2;
	stream->pinged_ns = now_ns;
}

static int stream_ping_pass(struct op *op)
{
	struct stream_op *stream = (struct stream_op *)(void *)op;
	struct channel *ch = &stream->play->channels[0];
	struct conn *send = &ch->send, *recv = &ch->recv;
	bool ping = stream->role == STREAM_PING;
	int moved, rc;

	rc = conn_recv_pass(recv);
	if (rc < 0)
		return rc;
	moved = rc;
	while (recv->consumed < recv->received) {
		if (stream_take(stream, recv))
			return -1;
		if (ping)
			stream_take_pong(stream, recv);
	}
	if (ping && !stream->pinged_ns)
		stream->pinged_ns = play_now_ns();
	if (send->filled < stream_total(stream) && conn_can_fill(send) &&
	    send->filled < recv->consumed + (ping ? 1 : 0))
		stream_produce(stream, send);
	rc = conn_send_pass(send);
	if (rc < 0)
		return rc;
	moved |= rc;
	op->finished = send->done == stream_total(stream) && recv->consumed == stream_total(stream);
	return moved;
}

static void stream_describe(struct op *op, char *text, size_t len)
{
	struct stream_op *stream = (struct stream_op *)(void *)op;
	char one[256];

	snprintf(text, len, "messages of %zu bytes", stream->bytes);
	for (int c = 0; c < stream->play->options.channels; c++) {
		struct channel *ch = &stream->play->channels[c];
		size_t at;

		if (stream->role != STREAM_SEND && ch->recv.received < ch->recv.limit) {
			at = strlen(text);
			conn_describe(&ch->recv, one, sizeof(one));
			snprintf(text + at, len - at, "; %s", one);
		}
		if (stream->role != STREAM_RECEIVE && ch->send.done < stream_total(stream)) {
			at = strlen(text);
			conn_describe(&ch->send, one, sizeof(one));
			snprintf(text + at, len - at, "; %s", one);
		}
	}
}

void stream_prepare(struct stream_op *stream, struct play *play, enum stream_role role,
		    size_t bytes, uint64_t warmup, uint64_t messages, bool check,
		    uint64_t *samples_ns)
{
	memset(stream, 0, sizeof(*stream));
	stream->op.name = role == STREAM_PING || role == STREAM_PONG ? "ping-pong" : "stream";
	stream->op.pass =
		role == STREAM_PING || role == STREAM_PONG ? stream_ping_pass : stream_pass;
	stream->op.describe = stream_describe;
	stream->play = play;
	stream->role = role;
	stream->bytes = bytes;
	stream->warmup = warmup;
	stream->messages = messages;
	stream->check = check;
	stream->samples_ns = samples_ns;
	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];

		conn_shape(&ch->send, play->slot_bytes, PLAY_SLOTS);
		conn_shape(&ch->recv, play->slot_bytes, PLAY_SLOTS);
		if (role != STREAM_SEND)
			ch->recv.limit = stream_total(stream);
	}
}
