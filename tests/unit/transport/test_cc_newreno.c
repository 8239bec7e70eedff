/* SPDX-License-Identifier: Apache-2.0 */
/* test_cc_newreno.c - the window by RFC 5681's and 6928's numbers. */
#include "transport/cc.h"

#include "check.h"

#define MSS 1000u

static struct cc_event acked(uint32_t bytes, bool limited)
{
	return (struct cc_event){ .mss_bytes = MSS, .acked_bytes = bytes, .limited = limited };
}

int main(void)
{
	struct cc cc = { .ops = &cc_newreno };
	struct cc_event ev = { .mss_bytes = MSS };

	cc.ops->init(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 10 * MSS);
	ev.mss_bytes = 9000;
	cc.ops->init(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 18000); /* max (2*MSS, 14600) */
	ev.mss_bytes = MSS;
	cc.ops->init(&cc, &ev);

	/* Slow start grows by what is acknowledged, only when the window was the limit. */
	ev = acked(3 * MSS, true);
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 13 * MSS);
	ev = acked(3 * MSS, false);
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 13 * MSS);

	/* Loss: half of what was in flight, not of the window. */
	ev = (struct cc_event){ .mss_bytes = MSS, .flight_bytes = 8 * MSS };
	cc.ops->congestion(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, 4 * MSS);

	/* Congestion avoidance: one segment a window. */
	cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 3; i++) {
		ev = acked(MSS, true);
		cc.ops->acked(&cc, &ev);
		CHECK_EQ(cc.cwnd_bytes, 4 * MSS);
	}
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 5 * MSS);

	/* Timeout: one segment, then slow start up to ssthresh and no further. */
	ev = (struct cc_event){ .mss_bytes = MSS, .flight_bytes = 3 * MSS };
	cc.ops->timeout(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS); /* never less */
	cc.cwnd_bytes = MSS;
	ev = acked(5 * MSS, true);
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 2 * MSS);
	return check_done();
}
