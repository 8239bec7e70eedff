/* SPDX-License-Identifier: Apache-2.0 */
/* cc_newreno.c - RFC 5681 with appropriate byte counting (RFC 3465) and an initial window of 10
 * segments (RFC 6928). */
#include "transport/cc.h"

/* priv[0]: bytes acknowledged since cwnd last grew in congestion avoidance */

uint32_t cc_reno_ssthresh_bytes(const struct cc_event *ev)
{
	uint32_t half = ev->flight_bytes / 2;

	return half > 2 * ev->mss_bytes ? half : 2 * ev->mss_bytes;
}

void cc_reno_grow(struct cc *cc, const struct cc_event *ev, uint64_t *counted_bytes)
{
	/* Simplified RFC 7661: the window must not grow while the sender does not fill it. */
	if (ev->recovering || !ev->limited || cc->cwnd_bytes >= CC_WINDOW_BYTES_MAX)
		return;
	if (cc->cwnd_bytes < cc->ssthresh_bytes) {
		/* Slow start counts bytes, because one ACK may acknowledge a whole burst. */
		cc->cwnd_bytes += ev->acked_bytes;
		if (cc->cwnd_bytes > cc->ssthresh_bytes)
			cc->cwnd_bytes = cc->ssthresh_bytes;
		return;
	}
	*counted_bytes += ev->acked_bytes;
	if (*counted_bytes >= cc->cwnd_bytes) {
		*counted_bytes -= cc->cwnd_bytes;
		cc->cwnd_bytes += ev->mss_bytes;
	}
}

static void newreno_init(struct cc *cc, const struct cc_event *ev)
{
	cc->cwnd_bytes = cc_initial_window_bytes(ev->mss_bytes);
	cc->ssthresh_bytes = HARP_SSTHRESH_NONE;
	cc->priv[0] = 0;
}

static void newreno_acked(struct cc *cc, const struct cc_event *ev)
{
	cc_reno_grow(cc, ev, &cc->priv[0]);
}

static void newreno_congestion(struct cc *cc, const struct cc_event *ev)
{
	cc->ssthresh_bytes = cc_reno_ssthresh_bytes(ev);
	cc->priv[0] = 0;
}

const struct cc_ops cc_newreno = {
	.name = "newreno",
	.init = newreno_init,
	.acked = newreno_acked,
	.congestion = newreno_congestion,
	.timeout = newreno_congestion,
};
