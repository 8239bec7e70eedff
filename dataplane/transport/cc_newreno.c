/* SPDX-License-Identifier: Apache-2.0 */
/* cc_newreno.c - RFC 5681 with appropriate byte counting (RFC 3465) and a window of 10 (RFC 6928). */
#include "transport/cc.h"

/* priv[0]: bytes acknowledged since cwnd last grew in congestion avoidance */

static uint32_t newreno_half_flight(const struct cc_event *ev)
{
	/* RFC 5681 equation (4): ssthresh = max (FlightSize / 2, 2*SMSS). */
	uint32_t half = ev->flight_bytes / 2;

	return half > 2 * ev->mss_bytes ? half : 2 * ev->mss_bytes;
}

static void newreno_init(struct cc *cc, const struct cc_event *ev)
{
	/* RFC 6928 section 2: min (10*MSS, max (2*MSS, 14600)). */
	uint32_t floor = 2 * ev->mss_bytes > 14600 ? 2 * ev->mss_bytes : 14600;

	cc->cwnd_bytes = 10 * ev->mss_bytes < floor ? 10 * ev->mss_bytes : floor;
	cc->ssthresh_bytes = CC_WINDOW_BYTES_MAX;
	cc->priv[0] = 0;
}

static void newreno_acked(struct cc *cc, const struct cc_event *ev)
{
	uint32_t acked = ev->acked_bytes;

	/* RFC 7661's concern, simply: a window that was not used says nothing about the path. */
	if (ev->recovering || !ev->limited || cc->cwnd_bytes >= CC_WINDOW_BYTES_MAX)
		return;
	if (cc->cwnd_bytes < cc->ssthresh_bytes) {
		/* Slow start: a whole burst may be acknowledged at once, so count its bytes. */
		cc->cwnd_bytes += acked;
		if (cc->cwnd_bytes > cc->ssthresh_bytes)
			cc->cwnd_bytes = cc->ssthresh_bytes;
		return;
	}
	cc->priv[0] += acked;
	if (cc->priv[0] >= cc->cwnd_bytes) {
		cc->priv[0] -= cc->cwnd_bytes;
		cc->cwnd_bytes += ev->mss_bytes;
	}
}

static void newreno_congestion(struct cc *cc, const struct cc_event *ev)
{
	cc->ssthresh_bytes = newreno_half_flight(ev);
	cc->priv[0] = 0;
}

const struct cc_ops cc_newreno = {
	.name = "newreno",
	.init = newreno_init,
	.acked = newreno_acked,
	.congestion = newreno_congestion,
	.timeout = newreno_congestion,
};
