/* SPDX-License-Identifier: Apache-2.0 */
/* cc_fixed.c - a constant window, for tests and for dedicated paths. priv[0] is the window. */
#include "transport/cc.h"

static void fixed_set(struct cc *cc, const struct cc_event *ev)
{
	uint64_t window = cc->priv[0] > ev->mss_bytes ? cc->priv[0] : ev->mss_bytes;

	cc->ssthresh_bytes = window < CC_WINDOW_BYTES_MAX ? (uint32_t)window : CC_WINDOW_BYTES_MAX;
}

static void fixed_init(struct cc *cc, const struct cc_event *ev)
{
	fixed_set(cc, ev);
	cc->cwnd_bytes = cc->ssthresh_bytes;
}

static void fixed_acked(struct cc *cc, const struct cc_event *ev)
{
	fixed_set(cc, ev);
	if (!ev->recovering)
		cc->cwnd_bytes = cc->ssthresh_bytes;
}

const struct cc_ops cc_fixed = {
	.name = "fixed",
	.constant = true,
	.init = fixed_init,
	.acked = fixed_acked,
	.congestion = fixed_set,
	.timeout = fixed_set,
};
