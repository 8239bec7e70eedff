/* SPDX-License-Identifier: Apache-2.0 */
/* lane_encrypted.c - a lane that encrypts another lane, in both directions. */
#include "lane/lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lane/place.h"
#include "process/log.h"
#include "wire/record.h"

/*
 * Theory of operation
 *
 * The stream is divided into segments: length, ciphertext, tag. Each direction has a key and a
 * segment counter, which is the nonce and is not sent. A segment that was modified, replayed,
 * dropped or reordered fails authentication and ends the lane. After KEY_SEGMENTS segments, a key
 * is replaced by its hash.
 *
 * Sending. send() encrypts the caller's bytes into `out`, up to OUT_SEGMENTS segments at once, and
 * gives them to the lane beneath, which may accept a part. The next call or event sends the rest
 * first; until then, no new bytes are accepted. A plaintext byte is done when its whole segment is:
 * `marks` holds the ends of segments in both byte counts. When it is full, the newest mark is
 * moved, so bytes are reported done later, never too early.
 *
 * Receiving. recv() fills `in` and decrypts segment by segment in place; no byte is delivered
 * before its segment is authenticated. Only whole 8-byte units are delivered (NCCL contract
 * section 4.3). If a unit is split between two segments, the rest of the first segment, at most 7
 * bytes, is moved in front of the second one's plaintext, over its length and the preceding tag:
 *
 *	| decrypted, delivered | tag | length | ciphertext ... | tag | length | ciph
 *	                          `rest' <- plain_begin      ^ plain_end    ^ in_begin   in_end
 *
 * A FIN between segments is the end of the stream; a FIN inside a segment is an error.
 */

#define SEGMENT_BYTES_MAX (SEGMENT_PLAIN_BYTES_MAX + SEGMENT_EXTRA_BYTES)
#define OUT_SEGMENTS 4u
#define OUT_BYTES (OUT_SEGMENTS * SEGMENT_BYTES_MAX)
#define UNIT_BYTES 8u
#define IN_FRONT_BYTES 16u /* space for a partial unit; keeps alignment */
#define IN_BYTES (IN_FRONT_BYTES + 4u * SEGMENT_BYTES_MAX)
#define MARKS 64u
#define PIECES_MAX 8

/* Ends of a segment. */
struct segment_mark {
	uint64_t beneath_bytes; /* in the count of the lane beneath */
	uint64_t plain_bytes;
};

struct lane_encrypted {
	struct lane lane; /* first */
	struct segment_flow send, recv;
	size_t out_begin, out_end;
	uint64_t beneath_bytes; /* encrypted so far, in the count of the lane beneath */
	uint64_t plain_bytes;   /* accepted so far, preamble included */
	uint64_t done_bytes;
	uint64_t acked_bytes; /* as last returned by info(); never decreases */
	unsigned mark_first, mark_count;
	struct segment_mark marks[MARKS];
	size_t plain_begin, plain_end; /* decrypted, not delivered */
	size_t in_begin, in_end;       /* after it: received, not decrypted */
	_Alignas(64) uint8_t out[OUT_BYTES];
	_Alignas(64) uint8_t in[IN_BYTES];
};

static struct lane_encrypted *to_encrypted(struct lane *lane)
{
	return (struct lane_encrypted *)lane;
}

static int encrypted_fail(struct lane_encrypted *s, int error)
{
	if (!s->lane.error)
		s->lane.error = error;
	return s->lane.error;
}

/* ---- one segment ---------------------------------------------------------------------------- */

/* Encrypts len bytes of the pieces and appends the segment to `out`. */
static int encrypted_close_segment(struct lane_encrypted *s, const struct iovec *pieces,
				   int piece_count, size_t len)
{
	struct segment_mark *mark;
	int rc = segment_encrypt(&s->send, pieces, piece_count, len, s->out + s->out_end);

	if (rc)
		return rc;
	s->out_end += len + SEGMENT_EXTRA_BYTES;
	s->beneath_bytes += len + SEGMENT_EXTRA_BYTES;
	s->plain_bytes += len;
	if (s->mark_count < MARKS)
		s->mark_count++;
	mark = &s->marks[(s->mark_first + s->mark_count - 1) % MARKS];
	mark->beneath_bytes = s->beneath_bytes;
	mark->plain_bytes = s->plain_bytes;
	return 0;
}

static int encrypted_fail_forged(struct lane_encrypted *s)
{
	char peer[HARP_ENDPOINT_TEXT_MAX];

	WARN("peer %s over %s: segment %llu failed authentication: it was modified, replayed or dropped on "
	     "the way, possibly by an attacker in the network. The lane is closed",
	     harp_endpoint_format(&s->lane.remote, peer), lane_kind_text(&s->lane),
	     (unsigned long long)s->recv.segment);
	return encrypted_fail(s, -EBADMSG);
}

/* Decrypts the complete segment at in_begin, and joins the rest of the last one to it. */
static int encrypted_open_segment(struct lane_encrypted *s, size_t len)
{
	uint8_t *head = s->in + s->in_begin;
	size_t rest = s->plain_end - s->plain_begin;
	int rc = segment_decrypt(&s->recv, head, len);

	if (rc)
		return rc == -EBADMSG ? encrypted_fail_forged(s) : encrypted_fail(s, rc);
	memmove(head + SEGMENT_HEAD_BYTES - rest, s->in + s->plain_begin, rest);
	s->plain_begin = s->in_begin + SEGMENT_HEAD_BYTES - rest;
	s->plain_end = s->in_begin + SEGMENT_HEAD_BYTES + len;
	s->in_begin = s->plain_end + CRYPTO_TAG_BYTES;
	return 1;
}

/* ---- out ------------------------------------------------------------------------------------ */

/* Gives encrypted bytes to the lane beneath. 1: all of them, 0: it is full, or its error. */
static int encrypted_push(struct lane_encrypted *s)
{
	struct lane *beneath = s->lane.beneath;

	while (s->out_begin < s->out_end) {
		struct iovec rest = { s->out + s->out_begin, s->out_end - s->out_begin };
		ssize_t n = beneath->ops->send(beneath, &rest, 1);

		if (n == -EAGAIN)
			return 0;
		if (n < 0)
			return (int)n;
		s->out_begin += (size_t)n;
	}
	s->out_begin = s->out_end = 0;
	return 1;
}

/* Fills `out`, which is empty. Returns how many bytes were encrypted, or the error. */
static ssize_t encrypted_fill(struct lane_encrypted *s, struct iov_cursor *c)
{
	size_t taken = 0;

	while (s->out_end + SEGMENT_BYTES_MAX <= OUT_BYTES) {
		struct iovec pieces[PIECES_MAX];
		const uint8_t *from;
		size_t len = 0, n;
		int count = 0, rc;

		while (count < PIECES_MAX && len < SEGMENT_PLAIN_BYTES_MAX &&
		       (from = iov_cursor_at(c, &n))) {
			if (n > SEGMENT_PLAIN_BYTES_MAX - len)
				n = SEGMENT_PLAIN_BYTES_MAX - len;
			pieces[count++] = (struct iovec){ (void *)(uintptr_t)from, n };
			c->used += n;
			len += n;
		}
		if (!len)
			break;
		rc = encrypted_close_segment(s, pieces, count, len);
		if (rc)
			return encrypted_fail(s, rc);
		taken += len;
	}
	return (ssize_t)taken;
}

static ssize_t encrypted_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct lane_encrypted *s = to_encrypted(lane);
	struct iov_cursor c = { iov, iov + iov_count, 0 };
	size_t taken = 0;
	int rc;

	if (lane->error)
		return lane->error;
	while ((rc = encrypted_push(s)) == 1) {
		ssize_t n = encrypted_fill(s, &c);

		if (n <= 0) {
			rc = (int)n;
			break;
		}
		taken += (size_t)n;
	}
	if (taken)
		return (ssize_t)taken;
	if (rc < 0)
		return rc;
	return s->out_begin < s->out_end ? -EAGAIN : 0;
}

static uint64_t encrypted_done_bytes(struct lane *lane)
{
	struct lane_encrypted *s = to_encrypted(lane);
	uint64_t beneath_done;

	(void)encrypted_push(s);
	if (!s->mark_count)
		return s->done_bytes;
	beneath_done = lane->beneath->ops->done_bytes(lane->beneath);
	while (s->mark_count && s->marks[s->mark_first].beneath_bytes <= beneath_done) {
		s->done_bytes = s->marks[s->mark_first].plain_bytes;
		s->mark_first = (s->mark_first + 1) % MARKS;
		s->mark_count--;
	}
	return s->done_bytes;
}

/* All, or those done. */
static uint64_t encrypted_copied_bytes(struct lane *lane)
{
	struct lane_encrypted *s = to_encrypted(lane);
	struct lane *beneath = lane->beneath;

	if (s->out_begin == s->out_end && beneath->ops->copied_bytes(beneath) >= s->beneath_bytes)
		return s->plain_bytes;
	return encrypted_done_bytes(lane);
}

/*
 * Converts acknowledged bytes to plaintext bytes by subtracting the unacknowledged ones: exact if
 * there are none, else slightly too few.
 */
static void encrypted_info(struct lane *lane, struct lane_info *info)
{
	struct lane_encrypted *s = to_encrypted(lane);
	uint64_t missing;

	lane->beneath->ops->info(lane->beneath, info);
	info->unsent_bytes += s->out_end - s->out_begin;
	missing = s->beneath_bytes > info->acked_bytes ? s->beneath_bytes - info->acked_bytes : 0;
	if (s->plain_bytes > missing && s->plain_bytes - missing > s->acked_bytes)
		s->acked_bytes = s->plain_bytes - missing;
	info->acked_bytes = s->acked_bytes;
}

/* ---- in ------------------------------------------------------------------------------------- */

/* Makes space in `in` for a segment of `want` bytes: moves undelivered bytes to the front. */
static void encrypted_make_room(struct lane_encrypted *s, size_t want)
{
	size_t rest = s->plain_end - s->plain_begin, unopened = s->in_end - s->in_begin;

	if (unopened && s->in_begin + want <= IN_BYTES)
		return;
	memmove(s->in, s->in + s->plain_begin, rest);
	memmove(s->in + IN_FRONT_BYTES, s->in + s->in_begin, unopened);
	s->plain_begin = 0;
	s->plain_end = rest;
	s->in_begin = IN_FRONT_BYTES;
	s->in_end = IN_FRONT_BYTES + unopened;
}

/* Decrypts the next segment; less than a unit is left of the last one. 1, 0 at the end of the
 * stream, -EAGAIN, or the error. */
static int encrypted_next(struct lane_encrypted *s)
{
	struct lane *beneath = s->lane.beneath;

	for (;;) {
		size_t unopened = s->in_end - s->in_begin, want = SEGMENT_HEAD_BYTES;
		ssize_t n;

		if (unopened >= SEGMENT_HEAD_BYTES) {
			uint32_t len = wire_get32(s->in + s->in_begin);

			if (len - 1u >= SEGMENT_PLAIN_BYTES_MAX)
				return encrypted_fail_forged(s);
			want = len + SEGMENT_EXTRA_BYTES;
			if (unopened >= want)
				return encrypted_open_segment(s, len);
		}
		encrypted_make_room(s, want);
		n = beneath->ops->recv(beneath, s->in + s->in_end, IN_BYTES - s->in_end, 1);
		if (n < 0)
			return n == -EAGAIN ? -EAGAIN : encrypted_fail(s, (int)n);
		if (!n)
			return unopened ? encrypted_fail(s, -ECONNRESET) : 0;
		s->in_end += (size_t)n;
	}
}

static ssize_t encrypted_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct lane_encrypted *s = to_encrypted(lane);
	size_t placed = 0;

	(void)encrypted_push(s);
	while (placed < len) {
		uint8_t *to = (uint8_t *)dst + placed;
		struct iovec plain = { s->in + s->plain_begin, s->plain_end - s->plain_begin };
		size_t commit = plain.iov_len < len - placed ? plain.iov_len : len - placed;

		if (unit > 1)
			commit = place_commit_bytes(to, len - placed, plain.iov_len);
		if (!commit) {
			int rc = lane->error ? lane->error : encrypted_next(s);

			if (rc == 1)
				continue;
			return placed ? (ssize_t)placed : rc;
		}
		if (unit > 1)
			place_gather(to, commit, &plain, 1); /* COPY */
		else
			memcpy(to, plain.iov_base, commit);
		s->plain_begin += commit;
		placed += commit;
	}
	return (ssize_t)placed;
}

/* ---- forwarded calls ------------------------------------------------------------------------ */

static enum lane_state encrypted_state(struct lane *lane)
{
	if (lane->error)
		return LANE_DEAD;
	(void)encrypted_push(to_encrypted(lane));
	return lane->beneath->ops->state(lane->beneath);
}

static void encrypted_acknowledge(struct lane *lane)
{
	lane->beneath->ops->acknowledge(lane->beneath);
}

static void encrypted_describe(struct lane *lane, char *buf, size_t len)
{
	int used = snprintf(buf, len, "encrypted ");

	if (used >= 0 && (size_t)used < len)
		lane->beneath->ops->describe(lane->beneath, buf + used, len - (size_t)used);
}

/* An event of the lane beneath. recv() reports its error, after the data that arrived before it. */
static void encrypted_notify(struct lane *beneath, uint64_t now_ns)
{
	struct lane_encrypted *s = beneath->owner;

	(void)encrypted_push(s);
	if (s->lane.notify)
		s->lane.notify(&s->lane, now_ns);
}

static void encrypted_close(struct lane *lane, bool abort)
{
	struct lane_encrypted *s = to_encrypted(lane);
	struct lane *beneath = lane->beneath;

	if (!abort && !lane->error)
		(void)encrypted_push(s);
	beneath->owner = NULL;
	beneath->notify = NULL;
	beneath->awaited = NULL;
	beneath->ops->close(beneath, abort || lane->error == -EBADMSG);
	segment_flow_end(&s->send);
	segment_flow_end(&s->recv);
	free(s);
}

static const struct lane_ops encrypted_ops = {
	.state = encrypted_state,
	.send = encrypted_send,
	.recv = encrypted_recv,
	.copied_bytes = encrypted_copied_bytes,
	.done_bytes = encrypted_done_bytes,
	.acknowledge = encrypted_acknowledge,
	.info = encrypted_info,
	.close = encrypted_close,
	.describe = encrypted_describe,
};

int lane_encrypt(struct lane **lane, uint64_t sent_bytes, const uint8_t send_key[CRYPTO_KEY_BYTES],
		 const uint8_t recv_key[CRYPTO_KEY_BYTES])
{
	struct lane *beneath = *lane;
	struct lane_encrypted *s = aligned_alloc(64, (sizeof(*s) + 63) & ~(size_t)63);

	if (!s)
		return -ENOMEM;
	memset(s, 0, offsetof(struct lane_encrypted, out));
	if (segment_flow_begin(&s->send, send_key, true) ||
	    segment_flow_begin(&s->recv, recv_key, false)) {
		segment_flow_end(&s->send);
		segment_flow_end(&s->recv);
		free(s);
		return -ENOMEM;
	}
	s->lane = *beneath;
	s->lane.ops = &encrypted_ops;
	s->lane.beneath = beneath;
	s->plain_bytes = s->beneath_bytes = s->done_bytes = sent_bytes;
	s->in_begin = s->in_end = IN_FRONT_BYTES;
	beneath->owner = s;
	beneath->notify = encrypted_notify;
	*lane = &s->lane;
	return 0;
}

void lane_encrypted_renumber(struct lane *lane, uint64_t send_segment, uint64_t recv_segment)
{
	struct lane_encrypted *s = to_encrypted(lane);

	s->send.segment = send_segment;
	s->recv.segment = recv_segment;
}
