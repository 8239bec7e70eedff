/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_stream.c - the simulated kernel lane: two byte streams through memory, under the virtual clock.
 *
 * Theory of operation. A pipe for each direction is a ring: bytes that were written lie in it until they are
 * read, so its capacity stands for both sockets' buffers. Each write leaves a mark: these bytes have arrived
 * by then (rate, then delay). While the lane is silent nothing arrives; afterwards all of it does.
 *
 * As Linux does it: what was accepted counts as done; close() with bytes unread, and bytes that come for a
 * socket that was closed, reset the connection, and with that what was under way the other way is lost.
 * After a reset what had arrived is still read, then the error comes. Payload is placed as recv() does:
 * in the order of addresses, without regard to units of eight.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel.h"

#define STREAM_MARKS_MAX 512u
#define STREAM_WORKER_NS 20000u        /* until a worker sees what has come, at most */
#define STREAM_GUARD_NS (10 * CSIM_MS) /* a guarded driver is advanced so often */

struct stream_mark {
	uint64_t end_bytes, at_ns;
};

struct stream_pipe {
	uint8_t *ring;
	uint64_t capacity, written, arrived, taken;
	uint64_t rate_bps, delay_ns, line_free_ns;
	struct stream_mark marks[STREAM_MARKS_MAX];
	unsigned mark_first, mark_count;
	bool fin;         /* behind what was written */
	bool fin_arrived; /* seen by the reader's application, for csim_stream_next_ns() */
	int error;        /* behind what arrived: the reader's */
	bool full;        /* a write was refused, or cut, since the writer last had news */
	bool news;        /* of room, or of the end, for the writer */
};

/* An end as a lane. Its pipe to write is pipes[side]. */
struct stream_lane {
	struct lane lane; /* must be first */
	struct csim_stream *stream;
	enum csim_side side;
	bool exists;
	bool news; /* the end, or an error */
};

struct csim_stream {
	struct csim *sim;
	struct csim_lane *owner;
	struct stream_pipe pipes[2]; /* by who writes */
	struct stream_lane lanes[2];
	const uint8_t *late_dst; /* of a planted bug: where the last payload was put */
	unsigned late_comm;
};

static struct csim *stream_sim; /* whose drivers are made: it is not said */

static struct stream_lane *to_stream(struct lane *lane)
{
	return (struct stream_lane *)lane;
}

static void stream_free_if_done(struct csim_stream *s)
{
	if (s->lanes[0].exists || s->lanes[1].exists)
		return;
	s->owner->stream = NULL;
	s->sim->streams--;
	free(s->pipes[0].ring);
	free(s->pipes[1].ring);
	free(s);
}

/* ---- the pipe ---------------------------------------------------------------------------------- */

static struct stream_mark *pipe_mark(struct stream_pipe *p, unsigned i)
{
	return &p->marks[(p->mark_first + i) % STREAM_MARKS_MAX];
}

static void pipe_advance(struct csim_stream *s, enum csim_side writer)
{
	struct stream_pipe *p = &s->pipes[writer];

	if (csim_lane_silent(s->owner, writer))
		return;
	while (p->mark_count && pipe_mark(p, 0)->at_ns <= s->sim->now_ns) {
		p->arrived = pipe_mark(p, 0)->end_bytes;
		p->mark_first = (p->mark_first + 1) % STREAM_MARKS_MAX;
		p->mark_count--;
	}
}

static void pipe_write(struct csim_stream *s, enum csim_side writer, const uint8_t *bytes,
		       size_t len)
{
	struct stream_pipe *p = &s->pipes[writer];
	uint64_t now_ns = s->sim->now_ns, at = p->written % p->capacity;
	size_t first = len < p->capacity - at ? len : (size_t)(p->capacity - at);

	memcpy(p->ring + at, bytes, first);
	memcpy(p->ring, bytes + first, len - first);
	p->written += len;
	p->line_free_ns = (p->line_free_ns > now_ns ? p->line_free_ns : now_ns) +
			  (p->rate_bps ? len * 8000000000u / p->rate_bps : 0);
	if (p->mark_count == STREAM_MARKS_MAX)
		p->mark_count--; /* the last one grows, and comes later */
	*pipe_mark(p, p->mark_count++) =
		(struct stream_mark){ p->written, p->line_free_ns + p->delay_ns };
}

/* The connection is gone for who reads this pipe; keep: what is under way still arrives. */
static void pipe_break(struct csim_stream *s, enum csim_side writer, int error, bool keep)
{
	struct stream_pipe *p = &s->pipes[writer];

	if (p->error)
		return;
	pipe_advance(s, writer);
	if (keep)
		p->arrived = p->written;
	p->mark_count = 0;
	p->written = p->arrived;
	if (error)
		p->error = error;
	s->lanes[!writer].news = true;
}

/* Bytes met a closed socket, or a socket was closed over bytes: RST. */
static void stream_collapse(struct csim_stream *s, enum csim_side reader)
{
	pipe_break(s, reader, -ECONNRESET, true);
	pipe_break(s, !reader, -ECONNRESET, rng_below(&s->sim->rng, 2));
}

/* ---- as a lane --------------------------------------------------------------------------------- */

static size_t stream_cut(struct csim_stream *s, size_t len)
{
	if (len < 2 || !csim_chance(&s->sim->rng, s->owner->spec->short_ppm))
		return len;
	return 1 +
	       rng_below(&s->sim->rng, len > 64 && rng_below(&s->sim->rng, 2) ? 64 : (uint32_t)len);
}

static enum lane_state stream_state(struct lane *lane)
{
	return lane->error ? LANE_DEAD : LANE_OPEN;
}

static ssize_t stream_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct stream_lane *l = to_stream(lane);
	struct csim_stream *s = l->stream;
	struct stream_pipe *p = &s->pipes[l->side];
	size_t sent = 0;

	csim_interleave(s->sim, csim_lane_host(s->owner, l->side));
	if (s->pipes[!l->side].error)
		return s->pipes[!l->side].error;
	if (p->fin)
		return -EPIPE;
	for (int i = 0; i < iov_count; i++) {
		uint64_t room = p->capacity - (p->written - p->taken);
		size_t len = iov[i].iov_len < room ? iov[i].iov_len : (size_t)room;

		len = stream_cut(s, len);
		pipe_write(s, l->side, iov[i].iov_base, len);
		sent += len;
		if (len < iov[i].iov_len) {
			p->full = true;
			break;
		}
	}
	csim_interleave(s->sim, csim_lane_host(s->owner, l->side));
	if (sent && !s->lanes[!l->side].exists)
		stream_collapse(s, !l->side);
	return sent ? (ssize_t)sent : -EAGAIN;
}

/* A bug that the simulation must find: enum csn_plant. */
static void stream_plant(struct csim_stream *s, uint8_t *dst, size_t n, size_t len)
{
	struct csim_buffer *retired = csim_buffer_retired(s->sim, (unsigned)s->owner->spec->comm);

	switch ((enum csn_plant)s->sim->scenario->world.plant) {
	case CSN_PLANT_LATE:
		if (retired && retired->total)
			retired->data[0] ^= 1;
		break;
	case CSN_PLANT_TORN:
		if (n >= 16 && n < len) /* the later half of the next unit, whatever it holds */
			dst[((n + (uintptr_t)dst) | 7) - (uintptr_t)dst] ^= 0x55;
		break;
	case CSN_PLANT_BEYOND:
		if (n == len)
			dst[n] ^= 1;
		break;
	default:
		break;
	}
}

static ssize_t stream_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct stream_lane *l = to_stream(lane);
	struct csim_stream *s = l->stream;
	struct stream_pipe *p = &s->pipes[!l->side];
	size_t n, first;
	uint64_t at;

	csim_interleave(s->sim, csim_lane_host(s->owner, l->side));
	pipe_advance(s, !l->side);
	if (p->taken == p->arrived) {
		if (p->error)
			return lane->error = p->error;
		return p->fin && p->arrived == p->written && !csim_lane_silent(s->owner, !l->side)
			       ? 0
			       : -EAGAIN;
	}
	n = p->arrived - p->taken < len ? (size_t)(p->arrived - p->taken) : len;
	n = stream_cut(s, n);
	at = p->taken % p->capacity;
	first = n < p->capacity - at ? n : (size_t)(p->capacity - at);
	memcpy(dst, p->ring + at, first);
	memcpy((uint8_t *)dst + first, p->ring, n - first);
	p->taken += n;
	if (p->full)
		p->news = true;
	p->full = false;
	if (unit > 1) {
		if (s->sim->scenario->world.plant)
			stream_plant(s, dst, n, len);
		(void)csim_placed(s->sim, dst, n);
	}
	csim_interleave(s->sim, csim_lane_host(s->owner, l->side));
	return (ssize_t)n;
}

static uint64_t stream_done_bytes(struct lane *lane)
{
	struct stream_lane *l = to_stream(lane);

	return l->stream->pipes[l->side].written;
}

static void stream_info(struct lane *lane, struct lane_info *info)
{
	struct stream_lane *l = to_stream(lane);
	struct stream_pipe *p = &l->stream->pipes[l->side];

	pipe_advance(l->stream, l->side);
	*info = (struct lane_info){
		.srtt_ns = 2 * p->delay_ns + 1000,
		.acked_bytes = p->arrived,
		.in_flight_bytes = p->written - p->arrived,
		.heard_ns = csim_lane_silent(l->stream->owner, !l->side)
				    ? l->stream->owner->silent_since_ns
				    : l->stream->sim->now_ns,
	};
}

static void stream_watch(struct lane *lane, bool on)
{
	(void)lane;
	(void)on;
}

static void stream_shutdown(struct lane *lane)
{
	struct stream_lane *l = to_stream(lane);

	l->stream->pipes[l->side].fin = true;
	l->stream->lanes[!l->side].news = true;
}

static void stream_close(struct lane *lane, bool abort)
{
	struct stream_lane *l = to_stream(lane);
	struct csim_stream *s = l->stream;
	struct csim_end *end = &s->owner->end[l->side];

	csim_note(s->sim, "lane %u: %s end %s", s->owner->number, l->side ? "receiving" : "sending",
		  abort ? "aborted" : "closed");
	pipe_advance(s, !l->side);
	if (abort || s->pipes[!l->side].arrived > s->pipes[!l->side].taken)
		stream_collapse(s, l->side);
	else
		stream_shutdown(lane);
	s->lanes[!l->side].news = true;
	csim_rouse(s->sim, csim_lane_host(s->owner, !l->side));
	l->exists = false;
	end->lane = NULL;
	end->closed = true;
	(void)csim_judge_lost_lane(s->owner, l->side);
	stream_free_if_done(s);
}

static void stream_describe(struct lane *lane, char *buf, size_t len)
{
	snprintf(buf, len, "simulated kernel lane %u", to_stream(lane)->stream->owner->number);
}

static const struct lane_ops stream_ops = {
	.kind = "kernel-tcp",
	.state = stream_state,
	.send = stream_send,
	.recv = stream_recv,
	.done_bytes = stream_done_bytes,
	.info = stream_info,
	.watch = stream_watch,
	.shutdown = stream_shutdown,
	.close = stream_close,
	.describe = stream_describe,
};

/* ---- for those who stand outside --------------------------------------------------------------- */

void csim_streams_begin(struct csim *sim)
{
	stream_sim = sim;
}

struct csim_stream *csim_stream_make(struct csim_lane *lane)
{
	struct csim_stream *s = calloc(1, sizeof(*s));
	struct csim *sim = lane->sim;

	if (!s)
		abort();
	s->sim = sim;
	s->owner = lane;
	sim->streams++;
	for (unsigned side = 0; side < 2; side++) {
		struct stream_pipe *p = &s->pipes[side];
		struct stream_lane *l = &s->lanes[side];
		unsigned host = csim_lane_host(lane, side), peer = csim_lane_host(lane, !side);

		p->capacity = lane->spec->buffer_bytes;
		p->ring = malloc(p->capacity);
		p->rate_bps = lane->spec->rate_bps;
		p->delay_ns = lane->spec->delay_ns;
		l->stream = s;
		l->side = side;
		l->exists = true;
		l->lane.ops = &stream_ops;
		l->lane.kind_bit = LANE_KERNEL;
		l->lane.driver = &sim->hosts[host].dial_driver;
		l->lane.local.addr = csim_addr(sim, host, (unsigned)lane->spec->rail);
		l->lane.remote.addr = csim_addr(sim, peer, (unsigned)lane->spec->rail);
		l->lane.local.port = (uint16_t)(40000 + 2 * lane->number + side);
		l->lane.remote.port = (uint16_t)(40000 + 2 * lane->number + !side);
		lane->end[side].lane = &l->lane;
		if (!p->ring)
			abort();
	}
	return s;
}

void csim_stream_reset(struct csim_stream *s, bool keep, bool fin)
{
	for (unsigned side = 0; side < 2; side++) {
		s->pipes[side].fin |= fin;
		pipe_break(s, side, fin ? 0 : -ECONNRESET, keep);
		s->pipes[side].news = true;
	}
}

void csim_stream_slow(struct csim_stream *s, bool slow)
{
	for (unsigned side = 0; side < 2; side++) {
		uint64_t rate_bps = s->owner->spec->rate_bps;

		if (!rate_bps)
			rate_bps = 10000000000;
		s->pipes[side].rate_bps = slow ? rate_bps / 10 : s->owner->spec->rate_bps;
	}
}

uint64_t csim_stream_next_ns(const struct csim_stream *s, enum csim_side side)
{
	const struct stream_pipe *in = &s->pipes[!side];
	const struct csim_lane *lane = s->owner;
	uint64_t silent_ns, at_ns;

	if (!s->lanes[side].exists)
		return CSIM_NEVER_NS;
	if (s->lanes[side].news || s->pipes[side].news)
		return s->sim->now_ns;
	if (!in->mark_count)
		return CSIM_NEVER_NS;
	silent_ns = csim_lane_silent_until_ns(lane, !side);
	at_ns = in->marks[in->mark_first].at_ns;
	return at_ns > silent_ns ? at_ns : silent_ns;
}

void csim_stream_seen(struct csim_stream *s, enum csim_side side)
{
	pipe_advance(s, !side);
	s->lanes[side].news = false;
	s->pipes[side].news = false;
	for (unsigned i = 0; i < s->sim->worker_count; i++) {
		struct csim_worker *w = &s->sim->workers[i];

		if (s->lanes[side].lane.driver == &w->kd->driver &&
		    (w->kd->guarded || s->sim->scenario->world.kernel_threads))
			w->due_ns = s->sim->now_ns + 1 + rng_below(&s->sim->rng, STREAM_WORKER_NS);
	}
}

/* ---- in place of kernel_driver.c, workers.c and parallel.c --------------------------------------- */

static void stream_driver_advance(struct driver *driver, uint64_t now_ns)
{
	struct kernel_driver *kd = (struct kernel_driver *)driver;

	kd->turn(kd, now_ns);
}

void kernel_driver_open(struct kernel_driver *kd, int dev,
			void (*turn)(struct kernel_driver *kd, uint64_t now_ns))
{
	struct csim *sim = stream_sim;

	(void)dev;
	memset(kd, 0, sizeof(*kd));
	driver_init(&kd->driver, stream_driver_advance);
	kd->turn = turn;
	if (sim->worker_count == CSIM_WORKERS_MAX)
		abort();
	sim->workers[sim->worker_count++] =
		(struct csim_worker){ kd, sim->opening_host, CSIM_NEVER_NS };
}

void kernel_driver_close(struct kernel_driver *kd)
{
	struct csim *sim = stream_sim;

	for (unsigned i = 0; i < sim->worker_count; i++) {
		if (sim->workers[i].kd == kd) {
			sim->workers[i] = sim->workers[--sim->worker_count];
			return;
		}
	}
	(void)csim_fail(sim, "a kernel driver that is not open was closed");
}

void kernel_driver_guard(struct kernel_driver *kd)
{
	struct csim *sim = stream_sim;

	kd->guarded = true;
	for (unsigned i = 0; i < sim->worker_count; i++) {
		if (sim->workers[i].kd == kd)
			sim->workers[i].due_ns = sim->now_ns + STREAM_GUARD_NS;
	}
}

void csim_workers_run(struct csim *sim)
{
	for (unsigned i = 0; i < sim->worker_count; i++) {
		struct csim_worker *w = &sim->workers[i];

		if (w->due_ns > sim->now_ns || csim_frozen(sim, w->host))
			continue;
		w->due_ns = w->kd->guarded ? sim->now_ns + STREAM_GUARD_NS : CSIM_NEVER_NS;
		(void)driver_turn(&w->kd->driver, sim->now_ns); /* which may be its last */
	}
}

uint64_t csim_workers_next_ns(const struct csim *sim)
{
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned i = 0; i < sim->worker_count; i++) {
		const struct csim_worker *w = &sim->workers[i];
		uint64_t thaw_ns = sim->hosts[w->host].freeze_until_ns;
		uint64_t due_ns = w->due_ns > thaw_ns ? w->due_ns : thaw_ns;

		next_ns = w->due_ns != CSIM_NEVER_NS && due_ns < next_ns ? due_ns : next_ns;
	}
	return next_ns;
}

struct parallel parallel_of(int dev)
{
	(void)dev;
	return (struct parallel){ .lanes = 1,
				  .threads = (unsigned)stream_sim->scenario->world.kernel_threads };
}

/* ---- in place of lane_kernel.c ----------------------------------------------------------------- */

void lane_kernel_join(struct lane *lane, struct kernel_driver *kd)
{
	(void)lane; /* its driver is set by the comm */
	(void)kd;
}

bool lane_kernel_is_due(struct lane *lane, bool writes)
{
	struct stream_lane *l = to_stream(lane);
	struct csim_stream *s = l->stream;
	const struct stream_pipe *in = &s->pipes[!l->side], *out = &s->pipes[l->side];

	pipe_advance(s, !l->side);
	return in->arrived > in->taken || in->error || in->fin || out->error ||
	       (writes && out->written - out->taken < out->capacity);
}

void kernel_driver_look(struct kernel_driver *kd)
{
	(void)kd; /* the lanes know by themselves */
}

/* As its keepalive, or the probes of what is not acknowledged, would tell. */
uint64_t lane_kernel_silence_ns(struct lane *lane, uint64_t now_ns)
{
	struct csim_lane *owner = to_stream(lane)->stream->owner;

	if (!csim_lane_silent(owner, CSIM_SEND) && !csim_lane_silent(owner, CSIM_RECV))
		return 0;
	return now_ns - owner->silent_since_ns;
}
