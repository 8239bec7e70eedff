/* SPDX-License-Identifier: Apache-2.0 */
/* fake_lane.c - see fake_lane.h. */
#include "fake_lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lane/place.h"

static struct fake_lane *to_fake(struct lane *lane)
{
	return (struct fake_lane *)lane;
}

/* How many of len bytes to transfer: usually all, else a random part. */
static size_t choose_part(struct fake_lane *f, size_t len)
{
	struct rng *rng = &f->pair->rng;

	if (len < 2 || rng_below(rng, 4))
		return len;
	if (rng_below(rng, 2) && len > 16)
		return 1 + rng_below(rng, 16);
	return 1 + rng_below(rng, (uint32_t)len);
}

static void fake_write(struct fake_pipe *p, const uint8_t *bytes, size_t len)
{
	size_t at = (p->begin + p->count) % p->capacity;
	size_t first = len < p->capacity - at ? len : p->capacity - at;

	memcpy(p->bytes + at, bytes, first);
	memcpy(p->bytes, bytes + first, len - first);
	if (p->flip_at >= p->written && p->flip_at - p->written < len)
		p->bytes[(at + (size_t)(p->flip_at - p->written)) % p->capacity] ^= p->flip;
	p->count += len;
	p->written += len;
}

static enum lane_state fake_state(struct lane *lane)
{
	return lane->error ? LANE_DEAD : LANE_OPEN;
}

static ssize_t fake_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct fake_lane *f = to_fake(lane);
	struct fake_pipe *p = f->out;
	size_t sent = 0;

	if (lane->error)
		return lane->error;
	for (int i = 0; i < iov_count; i++) {
		size_t space = p->capacity - p->count;
		size_t len = iov[i].iov_len < space ? iov[i].iov_len : space;

		if (len)
			len = choose_part(f, len);
		fake_write(p, iov[i].iov_base, len);
		sent += len;
		if (len < iov[i].iov_len)
			break;
	}
	if (!sent) {
		p->writer_waits = true;
		return -EAGAIN;
	}
	f->peer->event = true;
	return (ssize_t)sent;
}

static void fake_consume(struct fake_lane *f, size_t len)
{
	struct fake_pipe *p = f->in;

	p->begin = (p->begin + len) % p->capacity;
	p->count -= len;
	if (p->writer_waits) {
		p->writer_waits = false;
		f->peer->event = true;
	}
}

static ssize_t fake_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct fake_lane *f = to_fake(lane);
	struct fake_pipe *p = f->in;
	size_t avail = p->count, first, commit;
	struct iovec pieces[2];

	if (!avail) {
		if (lane->error)
			return lane->error;
		return p->closed ? 0 : -EAGAIN;
	}
	/* Both parts of the ring: no event would announce the second one. */
	first = avail < p->capacity - p->begin ? avail : p->capacity - p->begin;
	pieces[0] = (struct iovec){ p->bytes + p->begin, first };
	pieces[1] = (struct iovec){ p->bytes, avail - first };
	commit = avail < len ? avail : len;
	if (unit > 1)
		commit = place_commit_bytes(dst, len, avail);
	else
		commit = choose_part(f, commit);
	if (!commit)
		return -EAGAIN;
	place_gather(dst, commit, pieces, 2);
	fake_consume(f, commit);
	return (ssize_t)commit;
}

static uint64_t fake_done_bytes(struct lane *lane)
{
	return to_fake(lane)->acked;
}

static uint64_t fake_copied_bytes(struct lane *lane)
{
	return to_fake(lane)->in_place ? to_fake(lane)->acked : to_fake(lane)->out->written;
}

static void fake_acknowledge(struct lane *lane)
{
	to_fake(lane)->acknowledged++;
}

static void fake_info(struct lane *lane, struct lane_info *info)
{
	struct fake_lane *f = to_fake(lane);

	memset(info, 0, sizeof(*info));
	info->acked_bytes = f->acked;
	info->in_flight_bytes = f->out->written - f->acked;
}

static void fake_shutdown(struct lane *lane)
{
	struct fake_lane *f = to_fake(lane);

	f->out->closed = true;
	f->peer->event = true;
}

static void fake_close(struct lane *lane, bool abort)
{
	struct fake_lane *f = to_fake(lane);

	f->closed = true;
	f->aborted = abort;
	lane->owner = NULL;
	lane->notify = NULL;
	f->event = false;
	if (abort)
		fake_reset(f->peer);
	else
		fake_shutdown(lane);
}

static void fake_describe(struct lane *lane, char *buf, size_t len)
{
	(void)lane;
	snprintf(buf, len, "fake");
}

static const struct lane_ops fake_ops = {
	.state = fake_state,
	.send = fake_send,
	.recv = fake_recv,
	.copied_bytes = fake_copied_bytes,
	.done_bytes = fake_done_bytes,
	.acknowledge = fake_acknowledge,
	.info = fake_info,
	.close = fake_close,
	.describe = fake_describe,
};

static void fake_turn(struct poller *poller, uint64_t now_ns)
{
	struct fake_pair *pair = (struct fake_pair *)poller;

	for (int i = 0; i < 2; i++) {
		struct fake_lane *f = &pair->lanes[i];

		if (!f->unanswered && f->acked < f->out->written && rng_below(&pair->rng, 2)) {
			f->acked += choose_part(f, (size_t)(f->out->written - f->acked));
			f->event = true;
		}
		if (f->event && f->lane.notify && rng_below(&pair->rng, 4)) {
			f->event = false;
			f->lane.notify(&f->lane, now_ns);
		}
	}
	poller_run_ready(poller, now_ns);
}

static void fake_wake(struct poller *poller)
{
	(void)poller;
}

void fake_pair_init(struct fake_pair *pair, uint64_t seed, size_t capacity)
{
	memset(pair, 0, sizeof(*pair));
	poller_init(&pair->poller, fake_turn);
	pair->poller.wake = fake_wake; /* an engine's poller has one; no thread sleeps here */
	rng_seed(&pair->rng, seed);
	for (int i = 0; i < 2; i++) {
		pair->pipes[i].bytes = malloc(capacity);
		pair->pipes[i].capacity = capacity;
		pair->lanes[i].lane.ops = &fake_ops;
		pair->lanes[i].lane.kind_bit = LANE_HARP;
		pair->lanes[i].lane.poller = &pair->poller;
		pair->lanes[i].pair = pair;
		pair->lanes[i].out = &pair->pipes[i];
		pair->lanes[i].in = &pair->pipes[1 - i];
		pair->lanes[i].peer = &pair->lanes[1 - i];
	}
}

void fake_pair_free(struct fake_pair *pair)
{
	free(pair->pipes[0].bytes);
	free(pair->pipes[1].bytes);
}

void fake_pair_turn(struct fake_pair *pair)
{
	poller_run(&pair->poller, clock_now_ns());
}

size_t fake_inject(struct fake_lane *lane, const void *bytes, size_t len)
{
	size_t space = lane->in->capacity - lane->in->count;

	if (len > space)
		len = space;
	fake_write(lane->in, bytes, len);
	lane->event = true;
	return len;
}

void fake_reset(struct fake_lane *lane)
{
	lane->lane.error = -ECONNRESET;
	lane->event = true;
}

void fake_break(struct fake_pair *pair)
{
	for (int i = 0; i < 2; i++) {
		pair->pipes[i].count = 0;
		fake_reset(&pair->lanes[i]);
	}
}
