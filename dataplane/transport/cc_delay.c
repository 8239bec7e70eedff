/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_delay.c - keeps the round-trip time slightly above its minimum: Swift's algorithm (Kumar et
 * al., SIGCOMM 2020), without NIC timestamps.
 *
 * Theory of operation. Once per round trip, the minimum RTT sample of that round is compared with a
 * target; the minimum ignores delayed ACKs and late polls. Below the target the window grows by one
 * segment per round trip, and faster after several rounds below it (TIMELY's hyperactive increase,
 * Mittal et al., SIGCOMM 2015). Above the target the window shrinks in proportion to the excess, at
 * most by half. Loss and ECN marks halve it: the queue is too short for the target, or is shared
 * with other traffic.
 *
 * The target is the minimum RTT plus one eighth, at least 100 us (two delayed ACKs of HARP
 * receivers; see cc_hystart.c) and at most 5 ms, for a window of 64 segments. Swift's flow scaling
 * raises it for smaller windows and lowers it for larger ones, by the square root of the ratio,
 * within a factor of 1/2 to 4. Flows that share a queue see the same delay, so flow scaling
 * equalizes their windows even if one has measured a larger minimum.
 *
 * The minimum covers the last two spans of 512 round trips each (20 ms to 5 s). After a change to a
 * longer route, or a start with a full queue, the minimum is therefore correct within 10 s. If a
 * span has no sample near the minimum, a standing queue may hide it. The window then shrinks to
 * four segments for one round trip, which measures the RTT without our own queue (BBR's ProbeRTT).
 */
#include "transport/cc.h"

#include <assert.h>

#define DELAY_SPAN_ROUNDS 512u
#define DELAY_SPAN_NS_MIN 20000000ull
#define DELAY_SPAN_NS_MAX 5000000000ull
#define DELAY_START_SAMPLES 4u /* of a round, before slow start may end in the middle of it */
#define DELAY_TARGET_NS_MIN 100000u
#define DELAY_TARGET_NS_MAX 5000000u
#define DELAY_TARGET_DIVISOR 8u
/* rounds below the target before growth accelerates by one segment per round */
#define DELAY_CALM_ROUNDS 5u
#define DELAY_GROWTH_MAX 16u /* segments per round trip */
#define DELAY_PROBE_SEGMENTS 4u

enum delay_phase { DELAY_STARTING = 0, DELAY_STEERING, DELAY_DRAINING, DELAY_MEASURING };

struct __attribute__((may_alias)) delay {
	uint64_t span_end_ns;
	/* minimum of this span and of the previous one; UINT64_MAX: none */
	uint64_t rtt_ns_span[2];
	uint64_t rtt_ns_round; /* minimum of this round */
	uint64_t remainder;    /* of the growth, below one byte */
	uint32_t round_end_seq;
	uint32_t resume_bytes; /* window to restore after a probe */
	uint32_t calm;         /* consecutive rounds below the target */
	uint8_t phase;         /* enum delay_phase */
	uint8_t grows;         /* the window grows, as decided at the end of the last round */
	uint8_t reduced;       /* reduced by loss in this round */
	uint8_t samples;       /* samples of this round, during slow start */
	uint8_t scale16;       /* scale of the target for this window, in sixteenths */
};
static_assert(sizeof(struct delay) <= sizeof(((struct cc *)0)->priv), "cc.priv is large enough");

static struct delay *delay_of(struct cc *cc)
{
	return (struct delay *)cc->priv;
}

static uint64_t delay_base_ns(const struct delay *d)
{
	return d->rtt_ns_span[0] < d->rtt_ns_span[1] ? d->rtt_ns_span[0] : d->rtt_ns_span[1];
}

/* 16 times the root of 64 / segments, between 8 and 64. */
static uint32_t delay_scale16(uint64_t segments)
{
	uint32_t scale = 8;

	while (scale < 64 && (scale + 1) * (scale + 1) * segments <= 64 * 256)
		scale++;
	return scale;
}

static uint64_t delay_target_ns(const struct delay *d)
{
	uint64_t base_ns = delay_base_ns(d), above_ns = base_ns / DELAY_TARGET_DIVISOR;

	if (above_ns < DELAY_TARGET_NS_MIN)
		above_ns = DELAY_TARGET_NS_MIN;
	if (above_ns > DELAY_TARGET_NS_MAX)
		above_ns = DELAY_TARGET_NS_MAX;
	return base_ns + above_ns * d->scale16 / 16;
}

static void delay_init(struct cc *cc, const struct cc_event *ev)
{
	cc->cwnd_bytes = cc_initial_window_bytes(ev->mss_bytes);
	cc->ssthresh_bytes = HARP_SSTHRESH_NONE;
	*delay_of(cc) = (struct delay){ .scale16 = 16,
					.span_end_ns = ev->now_ns + DELAY_SPAN_NS_MIN,
					.rtt_ns_span = { UINT64_MAX, UINT64_MAX },
					.rtt_ns_round = UINT64_MAX,
					.round_end_seq = ev->snd_nxt_seq };
	if (ev->rtt_ns_min > 0) /* of the handshake, without a queue of our own */
		delay_of(cc)->rtt_ns_span[0] = ev->rtt_ns_min;
}

/* Starts the next span. True if the minimum must be probed. */
static bool delay_next_span(struct delay *d, const struct cc_event *ev)
{
	uint64_t span_ns = DELAY_SPAN_ROUNDS * ev->srtt_ns;

	/* Within a quarter of the distance to the target: the queue was empty at times. */
	bool fresh =
		d->rtt_ns_span[1] == UINT64_MAX ||
		d->rtt_ns_span[0] <= delay_base_ns(d) + (delay_target_ns(d) - delay_base_ns(d)) / 4;

	d->rtt_ns_span[1] = d->rtt_ns_span[0];
	d->rtt_ns_span[0] = UINT64_MAX;
	if (span_ns < DELAY_SPAN_NS_MIN)
		span_ns = DELAY_SPAN_NS_MIN;
	d->span_end_ns = ev->now_ns + (span_ns < DELAY_SPAN_NS_MAX ? span_ns : DELAY_SPAN_NS_MAX);
	return !fresh;
}

static uint32_t delay_floor_bytes(const struct cc_event *ev)
{
	return 2 * ev->mss_bytes;
}

/* cwnd * (1 - excess / rtt * 0.8), at least half of it. */
static void delay_shrink(struct cc *cc, const struct cc_event *ev, uint64_t rtt_ns,
			 uint64_t target_ns)
{
	uint64_t reduction = (rtt_ns - target_ns) * 1024 / rtt_ns * 4 / 5; /* 1/1024 of cwnd */
	uint32_t cwnd;

	if (reduction > 512)
		reduction = 512;
	cwnd = cc->cwnd_bytes - (uint32_t)((uint64_t)cc->cwnd_bytes * reduction >> 10);
	cc->cwnd_bytes = cwnd > delay_floor_bytes(ev) ? cwnd : delay_floor_bytes(ev);
	cc->ssthresh_bytes = cc->cwnd_bytes;
}

/* Compares the minimum RTT of a round with the target. */
static void delay_adjust(struct cc *cc, const struct cc_event *ev, uint64_t rtt_ns)
{
	struct delay *d = delay_of(cc);
	uint64_t target_ns;

	d->scale16 = (uint8_t)delay_scale16(cc->cwnd_bytes / ev->mss_bytes);
	target_ns = delay_target_ns(d);
	d->grows = rtt_ns <= target_ns;
	if (d->grows) {
		if (d->calm < DELAY_CALM_ROUNDS + DELAY_GROWTH_MAX)
			d->calm++;
		return;
	}
	d->calm = 0;
	d->phase = DELAY_STEERING;
	if (!d->reduced)
		delay_shrink(cc, ev, rtt_ns, target_ns);
}

static void delay_probe(struct cc *cc, const struct cc_event *ev)
{
	struct delay *d = delay_of(cc);
	uint32_t probe = DELAY_PROBE_SEGMENTS * ev->mss_bytes;

	d->resume_bytes = cc->cwnd_bytes;
	d->phase = DELAY_DRAINING;
	d->grows = 0;
	if (cc->cwnd_bytes > probe)
		cc->cwnd_bytes = probe;
}

static void delay_end_round(struct cc *cc, const struct cc_event *ev)
{
	struct delay *d = delay_of(cc);
	uint64_t rtt_ns = d->rtt_ns_round;

	d->round_end_seq = ev->snd_nxt_seq;
	d->rtt_ns_round = UINT64_MAX;
	d->samples = 0;
	if (ev->recovering || rtt_ns == UINT64_MAX) {
		d->grows = 0;
	} else if (d->phase == DELAY_DRAINING) {
		/* All data of the old window is acknowledged: the next round is the measurement. */
		d->phase = DELAY_MEASURING;
		d->rtt_ns_span[0] = UINT64_MAX;
	} else if (d->phase == DELAY_MEASURING) {
		d->phase = DELAY_STEERING;
		cc->cwnd_bytes = cc->ssthresh_bytes = d->resume_bytes;
	} else {
		delay_adjust(cc, ev, rtt_ns);
	}
	d->reduced = 0;
	if (ev->now_ns >= d->span_end_ns && delay_next_span(d, ev) && !ev->recovering &&
	    d->phase <= DELAY_STEERING)
		delay_probe(cc, ev);
}

/* Growth in bytes: during slow start, all acknowledged bytes. */
static uint64_t delay_growth(struct delay *d, const struct cc *cc, const struct cc_event *ev)
{
	uint64_t segments = d->calm > DELAY_CALM_ROUNDS ? d->calm - DELAY_CALM_ROUNDS : 1, growth;

	if (cc->cwnd_bytes < cc->ssthresh_bytes)
		return ev->acked_bytes;
	if (segments > DELAY_GROWTH_MAX)
		segments = DELAY_GROWTH_MAX;
	d->remainder += segments * ev->mss_bytes * ev->acked_bytes;
	growth = d->remainder / cc->cwnd_bytes;
	d->remainder %= cc->cwnd_bytes;
	return growth;
}

static void delay_acked(struct cc *cc, const struct cc_event *ev)
{
	struct delay *d = delay_of(cc);
	uint64_t cwnd;

	if (ev->rtt_ns > 0 && ev->rtt_ns < d->rtt_ns_round)
		d->rtt_ns_round = ev->rtt_ns;
	if (ev->rtt_ns > 0 && ev->rtt_ns < d->rtt_ns_span[0])
		d->rtt_ns_span[0] = ev->rtt_ns;
	if (d->phase == DELAY_STARTING && d->samples < DELAY_START_SAMPLES)
		d->samples++;
	if ((int32_t)(ev->snd_una_seq - d->round_end_seq) >= 0 ||
	    (d->samples == DELAY_START_SAMPLES && d->rtt_ns_round > delay_target_ns(d)))
		delay_end_round(cc, ev); /* slow start must stop doubling before the round ends */
	if (ev->recovering || !ev->limited || d->phase > DELAY_STEERING ||
	    (d->phase == DELAY_STEERING && !d->grows))
		return;
	cwnd = cc->cwnd_bytes + delay_growth(d, cc, ev);
	cc->cwnd_bytes = cwnd < CC_WINDOW_BYTES_MAX ? (uint32_t)cwnd : CC_WINDOW_BYTES_MAX;
}

static void delay_congestion(struct cc *cc, const struct cc_event *ev)
{
	struct delay *d = delay_of(cc);

	cc->ssthresh_bytes = cc_reno_ssthresh_bytes(ev);
	d->phase = DELAY_STEERING;
	d->grows = 0;
	d->reduced = 1;
	d->calm = 0;
}

const struct cc_ops cc_delay = {
	.name = "delay",
	.init = delay_init,
	.acked = delay_acked,
	.congestion = delay_congestion,
	.timeout = delay_congestion,
};
