/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_dctcp.c - DCTCP (RFC 8257): the reduction is proportional to the fraction of marked bytes.
 *
 * Growth and the response to loss follow RFC 5681 (RFC 8257 sections 3.4 and 3.5). The receiver's
 * half, which reports marks per segment, is in tcp_ecn.c. Without ECN the connection uses CUBIC.
 */
#include "transport/cc.h"

#include <assert.h>

#define DCTCP_ONE (1u << 20) /* the unit of alpha and M */
#define DCTCP_G_SHIFT 4u     /* section 4.2: g = 1/16 */

struct __attribute__((may_alias)) dctcp {
	uint64_t counted_bytes; /* for cc_reno_grow() */
	uint64_t acked_bytes, marked_bytes;
	uint32_t alpha; /* in units of 1 / DCTCP_ONE */
	uint32_t window_end_seq;
};
static_assert(sizeof(struct dctcp) <= sizeof(((struct cc *)0)->priv), "cc.priv is large enough");

static struct dctcp *dctcp_of(struct cc *cc)
{
	return (struct dctcp *)cc->priv;
}

uint32_t cc_dctcp_alpha_ppm(const struct cc *cc)
{
	const struct dctcp *d = (const struct dctcp *)cc->priv;

	return cc->ops == &cc_dctcp ? (uint32_t)((uint64_t)d->alpha * 1000000u >> 20) : 0;
}

static void dctcp_init(struct cc *cc, const struct cc_event *ev)
{
	cc->cwnd_bytes = cc_initial_window_bytes(ev->mss_bytes);
	cc->ssthresh_bytes = HARP_SSTHRESH_NONE;
	/* Section 3.3: alpha is initially 1, so that the first mark halves the window. */
	*dctcp_of(cc) = (struct dctcp){ .alpha = DCTCP_ONE, .window_end_seq = ev->snd_nxt_seq };
}

static void dctcp_acked(struct cc *cc, const struct cc_event *ev)
{
	struct dctcp *d = dctcp_of(cc);
	uint32_t fraction;

	/* Section 3.3, steps 2 to 8. */
	d->acked_bytes += ev->delivered_bytes;
	d->marked_bytes += ev->marked_bytes;
	if ((int32_t)(ev->snd_una_seq - d->window_end_seq) > 0 && d->acked_bytes > 0) {
		fraction = (uint32_t)(d->marked_bytes * DCTCP_ONE / d->acked_bytes);
		d->alpha = d->alpha - (d->alpha >> DCTCP_G_SHIFT) + (fraction >> DCTCP_G_SHIFT);
		if (d->alpha > DCTCP_ONE)
			d->alpha = DCTCP_ONE;
		d->window_end_seq = ev->snd_nxt_seq;
		d->acked_bytes = d->marked_bytes = 0;
	}
	/* An ACK with ECE does not grow the window. */
	if (ev->marked_bytes == 0)
		cc_reno_grow(cc, ev, &d->counted_bytes);
}

static void dctcp_congestion(struct cc *cc, const struct cc_event *ev)
{
	struct dctcp *d = dctcp_of(cc);
	uint32_t reduction;

	d->counted_bytes = 0;
	if (ev->signal != CC_SIGNAL_ECN) {
		cc->ssthresh_bytes = cc_reno_ssthresh_bytes(ev);
		return;
	}
	/* Section 3.3 step 9: cwnd = cwnd * (1 - DCTCP.Alpha / 2). */
	reduction = (uint32_t)((uint64_t)cc->cwnd_bytes * d->alpha >> 21);
	cc->ssthresh_bytes = cc->cwnd_bytes - reduction > 2 * ev->mss_bytes
				     ? cc->cwnd_bytes - reduction
				     : 2 * ev->mss_bytes;
}

const struct cc_ops cc_dctcp = {
	.name = "dctcp",
	.init = dctcp_init,
	.acked = dctcp_acked,
	.congestion = dctcp_congestion,
	.timeout = dctcp_congestion,
};
