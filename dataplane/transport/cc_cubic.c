/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_cubic.c - CUBIC (RFC 9438), with HyStart++ (RFC 9406) for the first slow start.
 *
 * Theory of operation. After a reduction from W_max the window follows W_cubic(t) = C*(t-K)^3 +
 * W_max: steep towards W_max, flat around it, then steep again. t counts only time in congestion
 * avoidance during which the window was the limit (section 4.2 excludes idle and
 * application-limited periods). Each ACK adds the time since the previous one, at most one round
 * trip, so idle periods never count. When Reno's window W_est is larger, W_est applies (section
 * 4.3). With the round-trip times of a data center this is nearly always the case, and CUBIC's
 * benefit there is its smaller reductions.
 *
 * Windows are in bytes, times in units of 2^-16 s. All arithmetic is on integers; the cube root is
 * computed once per reduction.
 */
#include "transport/cc.h"

#include <assert.h>

#include "transport/cc_hystart.h"

#define CUBIC_TIME_SHIFT 16u        /* t and K: 2^16 units a second, 15 us */
#define CUBIC_TIME_MAX (1u << 24)   /* 256 s: the curve ends here */
#define CUBIC_NS_MAX (1ull << 46)   /* 19 hours: shifted by 16 it fits into 64 bits */
#define CUBIC_BETA_PERCENT 70u      /* section 4.6 */
#define CUBIC_FAST_CONV_PERCENT 85u /* section 4.7: (1 + beta) / 2 */
#define CUBIC_ALPHA_NUM 9u          /* section 4.3: 3 * (1 - beta) / (1 + beta) = 9 / 17 */
#define CUBIC_ALPHA_DEN 17u

struct __attribute__((may_alias)) cubic {
	uint64_t t_ns;           /* time in this epoch of congestion avoidance */
	uint64_t last_ns;        /* time of the last ACK */
	uint64_t grow_remainder; /* (target - cwnd) * acked, remainder below one byte */
	uint64_t est_remainder;  /* the same for W_est */
	uint32_t k;              /* 2^-16 s */
	uint32_t w_max_bytes;    /* after fast convergence; 0: none */
	uint32_t origin_bytes;   /* plateau of the curve: W_max, or the window at its start */
	uint32_t w_est_bytes;
	uint32_t prior_bytes; /* cwnd at the last reduction */
	uint32_t has_epoch;   /* an epoch of congestion avoidance has started */
	struct hystart hystart;
};
static_assert(sizeof(struct cubic) <= sizeof(((struct cc *)0)->priv), "cc.priv is large enough");

static struct cubic *cubic_of(struct cc *cc)
{
	return (struct cubic *)cc->priv;
}

static uint32_t cubic_root(uint64_t x)
{
	uint64_t root = 0;

	/* Computes one bit of the root per iteration; 21 bits, because x is below 2^63. */
	for (uint64_t bit = 1u << 20; bit > 0; bit >>= 1) {
		uint64_t try = root | bit;

		if (try * try * try <= x)
			root = try;
	}
	return (uint32_t)root;
}

/* Figure 2: K = cubic_root((W_max - cwnd_epoch) / C), in segments and seconds, C = 2/5. */
static uint32_t cubic_k(uint32_t below_bytes, uint32_t mss_bytes)
{
	/* A factor of 2^36 under the root is 2^12 outside. */
	uint64_t cube = (((uint64_t)below_bytes * 5 << 18) / (2 * mss_bytes)) << 18;

	return cubic_root(cube) << (CUBIC_TIME_SHIFT - 12u);
}

/* Figure 1: C * (t - K)^3 + W_max. */
static uint32_t cubic_window(const struct cubic *c, uint64_t t_ns, uint32_t mss_bytes)
{
	uint64_t t =
		((t_ns < CUBIC_NS_MAX ? t_ns : CUBIC_NS_MAX) << CUBIC_TIME_SHIFT) / 1000000000u;
	uint64_t d = t > c->k ? t - c->k : c->k - t, offset;

	if (d > CUBIC_TIME_MAX)
		d = CUBIC_TIME_MAX;
	offset = (((d * d >> CUBIC_TIME_SHIFT) * d >> CUBIC_TIME_SHIFT) * mss_bytes * 2 / 5) >>
		 CUBIC_TIME_SHIFT;
	if (t < c->k)
		return offset < c->origin_bytes ? c->origin_bytes - (uint32_t)offset : 0;
	offset += c->origin_bytes;
	return offset < CC_WINDOW_BYTES_MAX ? (uint32_t)offset : CC_WINDOW_BYTES_MAX;
}

static void cubic_init(struct cc *cc, const struct cc_event *ev)
{
	struct cubic *c = cubic_of(cc);

	cc->cwnd_bytes = cc_initial_window_bytes(ev->mss_bytes);
	cc->ssthresh_bytes = HARP_SSTHRESH_NONE;
	*c = (struct cubic){ .last_ns = ev->now_ns };
	hystart_begin(&c->hystart, ev);
}

/* Sections 4.2, 4.8 and 4.10: starts an epoch of congestion avoidance. */
static void cubic_begin(struct cubic *c, uint32_t cwnd_bytes, uint32_t mss_bytes)
{
	c->has_epoch = 1;
	c->t_ns = 0;
	c->grow_remainder = c->est_remainder = 0;
	c->w_est_bytes = cwnd_bytes;
	c->k = 0;
	c->origin_bytes = cwnd_bytes;
	if (c->w_max_bytes > cwnd_bytes) {
		c->origin_bytes = c->w_max_bytes;
		c->k = cubic_k(c->w_max_bytes - cwnd_bytes, mss_bytes);
	} else {
		/* After a timeout, after HyStart++, or beyond the former W_max. */
		c->w_max_bytes = cwnd_bytes;
	}
}

/* Section 4.3: the window that Reno would have reached with CUBIC's beta. */
static void cubic_estimate(struct cubic *c, const struct cc_event *ev, uint32_t cwnd_bytes)
{
	uint32_t alpha = c->w_est_bytes >= c->prior_bytes ? CUBIC_ALPHA_DEN : CUBIC_ALPHA_NUM;
	uint64_t divisor = (uint64_t)CUBIC_ALPHA_DEN * cwnd_bytes;

	c->est_remainder += (uint64_t)alpha * ev->mss_bytes * ev->acked_bytes;
	if (c->est_remainder >= divisor) {
		c->w_est_bytes += (uint32_t)(c->est_remainder / divisor);
		c->est_remainder %= divisor;
	}
}

/* Sections 4.4 and 4.5. */
static void cubic_avoid(struct cc *cc, const struct cc_event *ev)
{
	struct cubic *c = cubic_of(cc);
	uint32_t cwnd = cc->cwnd_bytes, target;

	cubic_estimate(c, ev, cwnd);
	if (cubic_window(c, c->t_ns, ev->mss_bytes) < c->w_est_bytes) {
		if (c->w_est_bytes > cwnd)
			cc->cwnd_bytes = c->w_est_bytes;
		return;
	}
	target = cubic_window(c, c->t_ns + ev->srtt_ns, ev->mss_bytes);
	if (target <= cwnd)
		return;
	if (target > cwnd + cwnd / 2)
		target = cwnd + cwnd / 2;
	c->grow_remainder += (uint64_t)(target - cwnd) * ev->acked_bytes;
	if (c->grow_remainder >= cwnd) {
		uint64_t growth = c->grow_remainder / cwnd;

		c->grow_remainder %= cwnd;
		cc->cwnd_bytes += growth < target - cwnd ? (uint32_t)growth : target - cwnd;
	}
}

static void cubic_slow_start(struct cc *cc, const struct cc_event *ev)
{
	struct cubic *c = cubic_of(cc);
	uint32_t grow = ev->acked_bytes;
	bool leave = false;

	if (!c->hystart.off)
		grow = hystart_acked(&c->hystart, ev, &leave);
	if (grow > cc->ssthresh_bytes - cc->cwnd_bytes)
		grow = cc->ssthresh_bytes - cc->cwnd_bytes;
	cc->cwnd_bytes += grow;
	if (leave)
		cc->ssthresh_bytes = cc->cwnd_bytes;
}

static void cubic_acked(struct cc *cc, const struct cc_event *ev)
{
	struct cubic *c = cubic_of(cc);
	uint64_t passed_ns = ev->now_ns - c->last_ns;

	c->last_ns = ev->now_ns;
	/* Section 5.8: the window must not grow while the application does not fill it. */
	if (ev->recovering || !ev->limited || cc->cwnd_bytes >= CC_WINDOW_BYTES_MAX)
		return;
	if (cc->cwnd_bytes < cc->ssthresh_bytes) {
		cubic_slow_start(cc, ev);
		return;
	}
	if (!c->has_epoch)
		cubic_begin(c, cc->cwnd_bytes, ev->mss_bytes);
	else
		c->t_ns += passed_ns < ev->srtt_ns ? passed_ns : ev->srtt_ns;
	cubic_avoid(cc, ev);
	if (cc->cwnd_bytes > CC_WINDOW_BYTES_MAX)
		cc->cwnd_bytes = CC_WINDOW_BYTES_MAX;
}

static void cubic_reduce(struct cc *cc, const struct cc_event *ev)
{
	struct cubic *c = cubic_of(cc);
	/* Section 4.6 permits cwnd instead of FlightSize if cwnd grows only while it is the limit,
	 * which cubic_acked() ensures. FlightSize would underestimate the path: with round trips of
	 * microseconds it is only the data sent before the processor detected the loss. */
	uint32_t ssthresh = (uint32_t)((uint64_t)cc->cwnd_bytes * CUBIC_BETA_PERCENT / 100);

	cc->ssthresh_bytes = ssthresh > 2 * ev->mss_bytes ? ssthresh : 2 * ev->mss_bytes;
	c->prior_bytes = cc->cwnd_bytes;
	c->has_epoch = 0;
	c->hystart.off = 1;
}

static void cubic_congestion(struct cc *cc, const struct cc_event *ev)
{
	struct cubic *c = cubic_of(cc);
	uint32_t cwnd = cc->cwnd_bytes;

	/* Section 4.7: a loss below the last W_max suggests a new flow, to which this flow leaves
	 * more bandwidth. */
	if (cwnd < c->w_max_bytes)
		c->w_max_bytes = (uint32_t)((uint64_t)cwnd * CUBIC_FAST_CONV_PERCENT / 100);
	else
		c->w_max_bytes = cwnd;
	cubic_reduce(cc, ev);
}

static void cubic_timeout(struct cc *cc, const struct cc_event *ev)
{
	/* Section 4.8: in the next epoch, K is 0 and W_max is the window at its start. */
	cubic_of(cc)->w_max_bytes = 0;
	cubic_reduce(cc, ev);
}

const struct cc_ops cc_cubic = {
	.name = "cubic",
	.init = cubic_init,
	.acked = cubic_acked,
	.congestion = cubic_congestion,
	.timeout = cubic_timeout,
};
