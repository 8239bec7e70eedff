/* SPDX-License-Identifier: Apache-2.0 */
/* test_cc_dctcp.c - DCTCP.Alpha by RFC 8257 section 3.3, and what the window makes of it. */
#include "transport/cc.h"

#include "check.h"

#define MSS 1000u

static struct cc cc;
static uint32_t una;

static void begin(uint32_t cwnd_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS };

	cc = (struct cc){ .ops = &cc_dctcp };
	cc.ops->init(&cc, &ev);
	cc.cwnd_bytes = cc.ssthresh_bytes = cwnd_bytes;
	una = 0;
}

/* A window of ten ACKs of which `marked` carry ECE. */
static void window(unsigned marked)
{
	for (unsigned i = 0; i < 10; i++) {
		struct cc_event ev = { .mss_bytes = MSS,
				       .acked_bytes = MSS,
				       .delivered_bytes = MSS };

		una += MSS;
		ev.marked_bytes = i < marked ? MSS : 0;
		ev.snd_una_seq = una;
		ev.snd_nxt_seq = una + 9 * MSS;
		cc.ops->acked(&cc, &ev);
	}
}

static void reduce(enum cc_signal signal, uint32_t flight_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS, .flight_bytes = flight_bytes };

	ev.signal = (uint8_t)signal;
	cc.ops->congestion(&cc, &ev);
}

int main(void)
{
	uint32_t alpha;

	/* Section 3.3: alpha is 1 at first, so the first mark halves. */
	begin(100 * MSS);
	CHECK_EQ(cc_dctcp_alpha_ppm(&cc), 1000000);
	reduce(CC_SIGNAL_ECN, 100 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 50 * MSS);

	/* Unmarked windows: alpha * 15/16 each. */
	window(0);
	window(0);
	CHECK(cc_dctcp_alpha_ppm(&cc) >= 878906 && cc_dctcp_alpha_ppm(&cc) <= 937500);
	for (unsigned i = 0; i < 200; i++)
		window(0);
	CHECK(cc_dctcp_alpha_ppm(&cc) < 50);

	/* Three of ten marked, for long: alpha converges to 0.3 and the window gives 15 %. */
	for (unsigned i = 0; i < 200; i++)
		window(3);
	alpha = cc_dctcp_alpha_ppm(&cc);
	CHECK(alpha > 285000 && alpha < 315000);
	cc.cwnd_bytes = 100 * MSS;
	reduce(CC_SIGNAL_ECN, 100 * MSS);
	CHECK(cc.ssthresh_bytes > 84000 && cc.ssthresh_bytes < 86000);

	/* Everything marked: back to 1, and never above. */
	for (unsigned i = 0; i < 500; i++)
		window(10);
	CHECK(cc_dctcp_alpha_ppm(&cc) > 999000 && cc_dctcp_alpha_ppm(&cc) <= 1000000);

	/* Section 3.5: loss is loss, whatever alpha says. */
	for (unsigned i = 0; i < 200; i++)
		window(0);
	reduce(CC_SIGNAL_LOSS, 80 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 40 * MSS);

	/* Never below two segments. */
	begin(2 * MSS);
	reduce(CC_SIGNAL_ECN, 2 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);

	/* Of another controller there is no alpha. */
	cc.ops = &cc_newreno;
	CHECK_EQ(cc_dctcp_alpha_ppm(&cc), 0);
	return check_done();
}
