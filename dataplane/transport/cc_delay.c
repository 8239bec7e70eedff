/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_delay.c - keeps the round trip a little above its minimum: Swift's rule (Kumar et al., SIGCOMM 2020),
 * for clocks and receivers without the help of a card.
 *
 * Theory of operation. Once a round trip the least round trip of that round, which held ACKs and a late
 * poll do not touch, is compared with a target. Below it the window grows by a segment a round trip, and
 * by more when it has been below for long (TIMELY's hyperactive increase, Mittal et al., SIGCOMM 2015);
 * above it the window shrinks in proportion to the excess, by half at most. Loss and ECN marks halve it:
 * a queue too short for the target, or someone else's.
 *
 * The target is the minimum plus an eighth of it, 100 us at least (two ACKs held by our own receivers; see
 * cc_hystart.c) and 5 ms at most, for a window of 64 segments; Swift's flow scaling makes it larger for
 * smaller windows and smaller for larger ones, by the root of their ratio, between half and four times. Flows
 * that share a queue see one delay, so it is this that makes their windows equal, though one of them may
 * have measured a longer minimum.
 *
 * The minimum is that of the last two spans of 512 round trips each (20 ms to 5 s), so that a longer route is
 * believed after 10 s at most, and who came late and took the queue for the route does not think so for long.
 * A span that ends with no sample near the minimum may have had a standing queue all the time, ours or
 * that of many like us, which would become the new minimum: the window is then taken down to four
 * segments for a round trip, and what is measured without us counts (BBR's ProbeRTT).
 */
#include "transport/cc.h"

#include <assert.h>

#define DELAY_SPAN_ROUNDS 512u
#define DELAY_SPAN_NS_MIN 20000000ull
#define DELAY_SPAN_NS_MAX 5000000000ull
#define DELAY_START_SAMPLES 4u /* ACKs of a round, before slow start may be left within it */
#define DELAY_TARGET_NS_MIN 100000u
#define DELAY_TARGET_NS_MAX 5000000u
#define DELAY_TARGET_DIVISOR 8u
#define DELAY_CALM_ROUNDS 5u /* below the target for so many: grow faster, by one more each round */
#define DELAY_FASTEST 16u    /* segments a round trip */
#define DELAY_PROBE_SEGMENTS 4u

enum delay_phase { DELAY_STARTING = 0, DELAY_STEERING, DELAY_DRAINING, DELAY_MEASURING };

struct __attribute__((may_alias)) delay {
	uint64_t span_end_ns;
	uint64_t rtt_ns_span[2]; /* least of this span and of the one before; UINT64_MAX: none */
	uint64_t rtt_ns_round;   /* least of this round */
	uint64_t rest;           /* growth not yet worth a byte */
	uint32_t round_end_seq;
	uint32_t resume_bytes; /* the window to go back to after a probe */
	uint32_t calm;         /* rounds below the target, in a row */
	uint8_t phase;         /* enum delay_phase */
	uint8_t grows;         /* what the last round said */
	uint8_t reduced;       /* loss has spoken in this round */
	uint8_t samples;       /* of this round, while starting */
	uint8_t scale16;       /* of the target, for this window */
};
static_assert(sizeof(struct delay) <= sizeof(((struct cc *)0)->priv), "fits");

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
	if (ev->rtt_ns_min > 0)
		delay_of(cc)->rtt_ns_span[0] =
			ev->rtt_ns_min; /* the handshake's: of an empty window */
}

/* A span is over: true when a fresh minimum must be looked for. */
static bool delay_next_span(struct delay *d, const struct cc_event *ev)
{
	uint64_t span_ns = DELAY_SPAN_ROUNDS * ev->srtt_ns;

	/* A quarter of the distance to the target: the queue was empty at times. */
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

/* The window times (1 - excess / rtt * 0.8), and not below half of it. */
static void delay_shrink(struct cc *cc, const struct cc_event *ev, uint64_t rtt_ns,
			 uint64_t target_ns)
{
	uint64_t less = (rtt_ns - target_ns) * 1024 / rtt_ns * 4 / 5;
	uint32_t cwnd;

	if (less > 512)
		less = 512;
	cwnd = cc->cwnd_bytes - (uint32_t)((uint64_t)cc->cwnd_bytes * less >> 10);
	cc->cwnd_bytes = cwnd > delay_floor_bytes(ev) ? cwnd : delay_floor_bytes(ev);
	cc->ssthresh_bytes = cc->cwnd_bytes;
}

static void delay_verdict(struct cc *cc, const struct cc_event *ev, uint64_t rtt_ns)
{
	struct delay *d = delay_of(cc);
	uint64_t target_ns;

	d->scale16 = (uint8_t)delay_scale16(cc->cwnd_bytes / ev->mss_bytes);
	target_ns = delay_target_ns(d);
	d->grows = rtt_ns <= target_ns;
	if (d->grows) {
		if (d->calm < DELAY_CALM_ROUNDS + DELAY_FASTEST)
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

static void delay_round_over(struct cc *cc, const struct cc_event *ev)
{
	struct delay *d = delay_of(cc);
	uint64_t rtt_ns = d->rtt_ns_round;

	d->round_end_seq = ev->snd_nxt_seq;
	d->rtt_ns_round = UINT64_MAX;
	d->samples = 0;
	if (ev->recovering || rtt_ns == UINT64_MAX) {
		d->grows = 0;
	} else if (d->phase == DELAY_DRAINING) {
		/* What was sent with the old window has come back: the next round is the measurement. */
		d->phase = DELAY_MEASURING;
		d->rtt_ns_span[0] = UINT64_MAX;
	} else if (d->phase == DELAY_MEASURING) {
		d->phase = DELAY_STEERING;
		cc->cwnd_bytes = cc->ssthresh_bytes = d->resume_bytes;
	} else {
		delay_verdict(cc, ev, rtt_ns);
	}
	d->reduced = 0;
	if (ev->now_ns >= d->span_end_ns && delay_next_span(d, ev) && !ev->recovering &&
	    d->phase <= DELAY_STEERING)
		delay_probe(cc, ev);
}

/* A segment a round trip; all that is acknowledged while starting. */
static uint64_t delay_growth(struct delay *d, const struct cc *cc, const struct cc_event *ev)
{
	uint64_t segments = d->calm > DELAY_CALM_ROUNDS ? d->calm - DELAY_CALM_ROUNDS : 1, more;

	if (cc->cwnd_bytes < cc->ssthresh_bytes)
		return ev->acked_bytes;
	if (segments > DELAY_FASTEST)
		segments = DELAY_FASTEST;
	d->rest += segments * ev->mss_bytes * ev->acked_bytes;
	more = d->rest / cc->cwnd_bytes;
	d->rest %= cc->cwnd_bytes;
	return more;
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
		delay_round_over(cc, ev); /* doubling can't wait for the round's end */
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
