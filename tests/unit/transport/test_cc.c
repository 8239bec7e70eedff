/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cc.c - congestion controllers: NewReno (RFC 5681), DCTCP (RFC 8257), CUBIC (RFC 9438)
 * against its formulas in floating point, HyStart++ (RFC 9406), and the delay-based one on a
 * simulated path.
 */
#include <math.h>

#include "check.h"
#include "transport/cc.h"
#include "transport/cc_hystart.h"

#define MSS 1000u
#define US 1000ull
#define MS 1000000ull
#define S 1000000000ull

static struct cc cc;
static uint64_t now_ns;
static uint32_t una;

/* An ACK while a full window is in flight. */
static struct cc_event event(uint32_t acked_bytes, uint64_t rtt_ns)
{
	una += acked_bytes;
	return (struct cc_event){ .now_ns = now_ns,
				  .mss_bytes = MSS,
				  .flight_bytes = cc.cwnd_bytes,
				  .acked_bytes = acked_bytes,
				  .rtt_ns = rtt_ns,
				  .srtt_ns = rtt_ns,
				  .snd_una_seq = una,
				  .snd_nxt_seq = una + cc.cwnd_bytes,
				  .limited = 1 };
}

static void ack(uint32_t bytes, uint64_t rtt_ns)
{
	struct cc_event ev = event(bytes, rtt_ns);

	cc.ops->acked(&cc, &ev);
}

static void open_controller(const struct cc_ops *ops, uint32_t cwnd_bytes, uint32_t ssthresh_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS, .now_ns = now_ns = 10 * S };

	una = 0;
	cc = (struct cc){ .ops = ops };
	cc.ops->init(&cc, &ev);
	cc.cwnd_bytes = cwnd_bytes ? cwnd_bytes : cc.cwnd_bytes;
	cc.ssthresh_bytes = ssthresh_bytes ? ssthresh_bytes : cc.ssthresh_bytes;
}

/* Reports a congestion signal while this many bytes are in flight. */
static void signal_congestion(enum cc_signal signal, uint32_t flight_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS,
			       .now_ns = now_ns,
			       .flight_bytes = flight_bytes,
			       .signal = (uint8_t)signal };

	cc.ops->congestion(&cc, &ev);
}

static void signal_timeout(uint32_t flight_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS, .now_ns = now_ns, .flight_bytes = flight_bytes };

	cc.ops->timeout(&cc, &ev);
}

/* ---- NewReno --------------------------------------------------------------------------------- */

/* RFC 5681 and RFC 6928. */
TEST(newreno_follows_rfc_5681)
{
	struct cc_event ev = { .mss_bytes = 9000 };

	open_controller(&cc_newreno, 0, 0);
	CHECK_EQ(cc.cwnd_bytes, 10 * MSS);
	cc.ops->init(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 18000); /* max (2*MSS, 14600) */
	open_controller(&cc_newreno, 0, 0);

	/* Slow start grows by the bytes acknowledged, and only when the window was the limit. */
	ack(3 * MSS, 0);
	CHECK_EQ(cc.cwnd_bytes, 13 * MSS);
	ev.limited = 0;
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 13 * MSS);

	/* Loss: half of the bytes in flight, not of the window. */
	signal_congestion(CC_SIGNAL_LOSS, 8 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 4 * MSS);

	/* Congestion avoidance: one segment per window. */
	cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 4; i++) {
		ev = event(MSS, 0);
		CHECK_EQ(cc.cwnd_bytes, 4 * MSS);
		cc.ops->acked(&cc, &ev);
	}
	CHECK_EQ(cc.cwnd_bytes, 5 * MSS);

	/* Timeout: one segment, then slow start up to ssthresh and no further. */
	signal_timeout(3 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS); /* the minimum */
	cc.cwnd_bytes = MSS;
	ack(5 * MSS, 0);
	CHECK_EQ(cc.cwnd_bytes, 2 * MSS);
}

/* ---- DCTCP ----------------------------------------------------------------------------------- */

/* Acknowledges a window by ten ACKs, of which `marked` carry ECE. */
static void ack_window(unsigned marked)
{
	for (unsigned i = 0; i < 10; i++) {
		struct cc_event ev = { .mss_bytes = MSS,
				       .acked_bytes = MSS,
				       .delivered_bytes = MSS,
				       .marked_bytes = i < marked ? MSS : 0,
				       .snd_una_seq = una + MSS,
				       .snd_nxt_seq = una + 10 * MSS };

		una += MSS;
		cc.ops->acked(&cc, &ev);
	}
}

static void ack_windows(unsigned count, unsigned marked)
{
	while (count-- > 0)
		ack_window(marked);
}

/* DCTCP.Alpha of RFC 8257 section 3.3, and its effect on the window. */
TEST(dctcp_alpha_follows_the_share_of_marks)
{
	/* Alpha is 1 initially, so the first mark halves the window. */
	open_controller(&cc_dctcp, 100 * MSS, 100 * MSS);
	CHECK_EQ(cc_dctcp_alpha_ppm(&cc), 1000000);
	signal_congestion(CC_SIGNAL_ECN, 100 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 50 * MSS);

	/* Each unmarked window multiplies alpha by 15/16. */
	ack_windows(2, 0);
	CHECK(cc_dctcp_alpha_ppm(&cc) >= 878906 && cc_dctcp_alpha_ppm(&cc) <= 937500);
	ack_windows(200, 0);
	CHECK(cc_dctcp_alpha_ppm(&cc) < 50);

	/* Three of ten segments are marked: alpha converges to 0.3, and a mark reduces the window
	 * by 15 %. */
	ack_windows(200, 3);
	CHECK(cc_dctcp_alpha_ppm(&cc) > 285000 && cc_dctcp_alpha_ppm(&cc) < 315000);
	cc.cwnd_bytes = 100 * MSS;
	signal_congestion(CC_SIGNAL_ECN, 100 * MSS);
	CHECK(cc.ssthresh_bytes > 84000 && cc.ssthresh_bytes < 86000);

	/* All segments are marked: alpha returns to 1 and does not exceed it. */
	ack_windows(500, 10);
	CHECK(cc_dctcp_alpha_ppm(&cc) > 999000 && cc_dctcp_alpha_ppm(&cc) <= 1000000);

	/* Section 3.5: a loss halves the window for any alpha. */
	ack_windows(200, 0);
	signal_congestion(CC_SIGNAL_LOSS, 80 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 40 * MSS);

	/* The minimum is two segments. */
	open_controller(&cc_dctcp, 2 * MSS, 2 * MSS);
	signal_congestion(CC_SIGNAL_ECN, 2 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
	cc.ops = &cc_newreno;
	CHECK_EQ(cc_dctcp_alpha_ppm(&cc), 0);
}

/* ---- delay-based ----------------------------------------------------------------------------- */

/* A path with a propagation delay, a rate and a queue. Its RTT is the larger of the delay and the
 * time to drain the window. */
static uint64_t base_ns, bytes_per_ms; /* the path */

static uint64_t path_rtt_ns(void)
{
	uint64_t drain_ns = cc.cwnd_bytes * MS / bytes_per_ms;

	return drain_ns > base_ns ? drain_ns : base_ns;
}

static void begin_path(uint64_t rtt_ns, uint64_t rate)
{
	base_ns = rtt_ns;
	bytes_per_ms = rate;
	open_controller(&cc_delay, 0, 0);
}

static void run_rounds(unsigned count)
{
	while (count-- > 0) {
		uint64_t rtt_ns = path_rtt_ns();

		for (uint32_t end = una + cc.cwnd_bytes; (int32_t)(una - end) < 0;) {
			ack(2 * MSS, rtt_ns);
		}
		now_ns += rtt_ns;
	}
}

static void run_for(uint64_t ns)
{
	uint64_t end_ns = now_ns + ns;

	while (now_ns < end_ns)
		run_rounds(1);
}

TEST(the_window_follows_a_route_change)
{
	begin_path(1 * MS, 1000000); /* 8 Gbit/s */
	run_for(1 * S);
	/* The new route has twice the delay; its minimum is accepted within two spans. */
	base_ns = 2 * MS;
	run_for(12 * S);
	CHECK(cc.cwnd_bytes >= 1900000);
	CHECK(path_rtt_ns() <= 3 * MS);
	/* The connection's own queue hides a shorter route until the controller probes for the
	 * minimum. */
	base_ns = MS / 2;
	run_for(12 * S);
	CHECK(path_rtt_ns() <= MS);
}

TEST(a_loss_halves_the_window_and_the_minimum_is_probed_for)
{
	uint32_t before, min_bytes = UINT32_MAX;

	begin_path(1 * MS, 1000000);
	run_for(1 * S);
	before = cc.cwnd_bytes;
	signal_congestion(CC_SIGNAL_LOSS, before);
	CHECK_EQ(cc.ssthresh_bytes, before / 2);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	run_for(1 * S);
	/* After a span without the minimum the controller probes for it. */
	for (unsigned i = 0; i < 20000; i++) {
		run_rounds(1);
		min_bytes = cc.cwnd_bytes < min_bytes ? cc.cwnd_bytes : min_bytes;
	}
	CHECK_EQ(min_bytes, 4 * MSS);
	CHECK(cc.cwnd_bytes > 1000 * MSS); /* the window grew again after the probe */
	signal_timeout(MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
}

/* ---- CUBIC ----------------------------------------------------------------------------------- */

static void open_cubic(uint32_t cwnd_bytes, uint32_t ssthresh_bytes)
{
	open_controller(&cc_cubic, cwnd_bytes, ssthresh_bytes);
}

/* Acknowledges a window, with an ACK per two segments, spread over the round trip. */
static void run_round_trip(uint64_t rtt_ns)
{
	uint32_t acks = cc.cwnd_bytes / (2 * MSS) + 1;

	for (uint32_t i = 0; i < acks; i++) {
		now_ns += rtt_ns / acks;
		ack(2 * MSS, rtt_ns);
	}
}

static bool is_close(double got, double want, double tolerance)
{
	if (fabs(got - want) <= fabs(want) * tolerance)
		return true;
	fprintf(stderr, "%f is not close to %f\n", got, want);
	return false;
}

/* RFC 9438 figures 1 and 2: at an RTT of 100 ms the window follows the curve and reaches W_max at
 * time K. */
TEST(the_window_follows_the_cubic_curve)
{
	double w_max = 1000, k = cbrt(w_max * 0.3 / 0.4), start;

	open_cubic(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_congestion(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	CHECK_EQ(cc.ssthresh_bytes, 700 * MSS); /* beta = 0.7 */
	cc.cwnd_bytes = cc.ssthresh_bytes;
	start = (double)now_ns;
	for (unsigned i = 0; i < 200; i++) {
		double t;

		run_round_trip(100 * MS);
		t = ((double)now_ns - start) / 1e9;
		/* W_est does not matter here: it grows by 5 segments a second. */
		if (i == 30 || i == 60 || i == 85 || i == 93 || i == 150 || i == 199)
			CHECK(is_close(cc.cwnd_bytes / 1000.0, 0.4 * pow(t - k, 3) + w_max, 0.02));
	}
	CHECK(is_close(k, 9.086, 0.001)); /* as the loop above assumes */
}

/* Section 4.2: the target is at most 1.5 times the window, even if ACKs arrive late. */
TEST(the_target_is_at_most_one_and_a_half_windows)
{
	struct cc_event ev;
	uint32_t before;

	open_cubic(100 * MSS, 100 * MSS);
	for (unsigned i = 0; i < 300; i++)
		run_round_trip(100 * MS);
	before = cc.cwnd_bytes;
	for (unsigned i = 0; i < 2; i++) {
		ev = event(cc.cwnd_bytes, 100 * S); /* an absurd RTT */
		now_ns = ev.now_ns += 100 * S;
		cc.ops->acked(&cc, &ev);
	}
	CHECK(cc.cwnd_bytes <= before * 9ull / 4);
}

/* Section 4.3: at a short RTT the window is W_est, which grows by 9/17 of a segment per RTT, then
 * by 1. */
TEST(a_short_round_trip_is_in_the_reno_friendly_region)
{
	uint32_t before;

	open_cubic(100 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_congestion(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	before = cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 20; i++)
		run_round_trip(50 * US);
	CHECK(is_close(cc.cwnd_bytes - before, 20 * 9.0 / 17 * MSS, 0.1));
	while (cc.cwnd_bytes < 100 * MSS)
		run_round_trip(50 * US);
	before = cc.cwnd_bytes; /* cwnd_prior: alpha is 1 from here */
	for (unsigned i = 0; i < 20; i++)
		run_round_trip(50 * US);
	CHECK(is_close(cc.cwnd_bytes - before, 20 * MSS, 0.1));
}

/* Section 4.7: a loss below the last W_max sets W_max to (1 + beta) / 2 of the window. */
TEST(fast_convergence_lowers_the_plateau)
{
	double k;
	uint64_t start_ns;

	open_cubic(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_congestion(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	cc.cwnd_bytes = 800 * MSS; /* before it reaches W_max again */
	signal_congestion(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	CHECK_EQ(cc.ssthresh_bytes, 560 * MSS);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	/* The plateau is at 680, and K = cbrt(120 / 0.4). */
	k = cbrt((680 - 560) / 0.4);
	start_ns = now_ns;
	while ((double)(now_ns - start_ns) < k * 1e9)
		run_round_trip(100 * MS);
	CHECK(is_close(cc.cwnd_bytes, 680 * MSS, 0.01));
}

/* Section 4.8: after a timeout the curve begins at the window, with K = 0. */
TEST(after_a_timeout_the_curve_begins_at_the_window)
{
	uint64_t start_ns;
	uint32_t before;

	open_cubic(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_timeout(cc.cwnd_bytes);
	CHECK_EQ(cc.ssthresh_bytes, 700 * MSS);
	cc.cwnd_bytes = MSS;
	ack(4 * MSS, 100 * MS);
	CHECK_EQ(cc.cwnd_bytes, 5 * MSS); /* standard slow start, no HyStart++ */
	cc.cwnd_bytes = 699 * MSS;
	ack(4 * MSS, 100 * MS);
	CHECK_EQ(cc.cwnd_bytes, 700 * MSS); /* up to ssthresh */
	start_ns = now_ns;
	while (now_ns - start_ns < 10 * S)
		run_round_trip(100 * MS);
	CHECK(is_close(cc.cwnd_bytes / 1000.0, 0.4 * 1000 + 700, 0.03));
	/* ssthresh follows from the window, not from the bytes in flight. */
	before = cc.cwnd_bytes;
	signal_timeout(MSS);
	CHECK_EQ(cc.ssthresh_bytes, (uint64_t)before * 70 / 100);
	/* The minimum is two segments. */
	cc.cwnd_bytes = 2 * MSS;
	signal_timeout(MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
}

/* Sections 4.2 and 5.8: time in which the application sends nothing does not count. */
TEST(idle_time_does_not_open_the_window)
{
	uint32_t before;

	open_cubic(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_congestion(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 90; i++)
		run_round_trip(100 * MS); /* the plateau */
	before = cc.cwnd_bytes;
	now_ns += 1000 * S; /* idle */
	run_round_trip(100 * MS);
	CHECK(is_close(cc.cwnd_bytes, before, 0.01));
	for (unsigned i = 0; i < 1000; i++) {
		struct cc_event ev = event(2 * MSS, 100 * MS);

		ev.limited = 0;
		now_ns = ev.now_ns += 50 * MS;
		before = cc.cwnd_bytes;
		cc.ops->acked(&cc, &ev);
		CHECK_EQ(cc.cwnd_bytes, before);
	}
	run_round_trip(100 * MS);
	CHECK(is_close(cc.cwnd_bytes, before, 0.01));
	/* While loss recovery owns the window, the controller does not change it. */
	{
		struct cc_event ev = event(2 * MSS, 100 * MS);

		ev.recovering = 1;
		before = cc.cwnd_bytes;
		cc.ops->acked(&cc, &ev);
		CHECK_EQ(cc.cwnd_bytes, before);
	}
}

/* ---- HyStart++ ------------------------------------------------------------------------------- */

/* Runs rounds with this RTT; returns the growth of the window, as a factor times 100. */
static uint32_t hystart_rounds(unsigned count, uint64_t rtt_ns)
{
	uint32_t before = cc.cwnd_bytes;

	while (count-- > 0) {
		uint32_t end = una + cc.cwnd_bytes;

		while ((int32_t)(una - end) < 0) {
			struct cc_event ev = event(2 * MSS, rtt_ns);

			ev.snd_nxt_seq = una + cc.cwnd_bytes;
			cc.ops->acked(&cc, &ev);
		}
		now_ns += rtt_ns;
	}
	return (uint32_t)(cc.cwnd_bytes * 100ull / before);
}

static void hystart_case(uint64_t rtt_ns, uint64_t threshold_ns)
{
	/* Just below the threshold: slow start continues. */
	open_cubic(20 * MSS, CC_WINDOW_BYTES_MAX);
	CHECK(hystart_rounds(2, rtt_ns) >= 390);
	CHECK(hystart_rounds(1, rtt_ns + threshold_ns - 1000) >= 190);
	/* At the threshold: conservative slow start after eight samples, a quarter as fast. */
	open_cubic(20 * MSS, CC_WINDOW_BYTES_MAX);
	hystart_rounds(2, rtt_ns);
	hystart_rounds(1, rtt_ns + threshold_ns);
	CHECK(hystart_rounds(1, rtt_ns + threshold_ns) <= 126);
	CHECK_EQ(cc.ssthresh_bytes, CC_WINDOW_BYTES_MAX);
	/* After five such rounds, the partial one included: congestion avoidance. */
	hystart_rounds(2, rtt_ns + threshold_ns);
	CHECK_EQ(cc.ssthresh_bytes, CC_WINDOW_BYTES_MAX);
	hystart_rounds(2, rtt_ns + threshold_ns);
	CHECK(cc.ssthresh_bytes <= cc.cwnd_bytes);
	/* The exit was spurious if the RTT falls again: slow start continues at full speed. */
	open_cubic(20 * MSS, CC_WINDOW_BYTES_MAX);
	hystart_rounds(2, rtt_ns);
	hystart_rounds(2, rtt_ns + threshold_ns);
	hystart_rounds(1, rtt_ns);
	CHECK(hystart_rounds(1, rtt_ns) >= 190);
	CHECK_EQ(cc.ssthresh_bytes, CC_WINDOW_BYTES_MAX);
}

TEST(hystart_leaves_slow_start_when_the_round_trip_grows)
{
	hystart_case(20 * US, 100 * US);  /* a rack: the minimum threshold */
	hystart_case(500 * US, 100 * US); /* still the minimum */
	hystart_case(8 * MS, 1 * MS);     /* an eighth */
	hystart_case(30 * MS, 3750 * US); /* an eighth: near RFC 9406's 4 ms */
	hystart_case(200 * MS, 16 * MS);  /* MAX_RTT_THRESH */
}

/* One late ACK of sixteen segments is one sample and must not end slow start. */
TEST(hystart_needs_eight_samples)
{
	open_cubic(20 * MSS, CC_WINDOW_BYTES_MAX);
	hystart_rounds(2, 20 * US);
	ack(16 * MSS, 20 * MS);
	CHECK(hystart_rounds(1, 20 * US) >= 190);
}

/* HyStart++ tracks no rounds while the window is not the limit. After 2.25 GiB, more than half of
 * the sequence space, the old round is still over. */
TEST(hystart_works_after_half_the_sequence_space_without_rounds)
{
	open_cubic(20 * MSS, CC_WINDOW_BYTES_MAX);
	hystart_rounds(2, 20 * US);
	una += 0x90000000u;
	hystart_rounds(2, 20 * US);
	hystart_rounds(1, 200 * US);
	CHECK(hystart_rounds(1, 200 * US) <= 126);
}

/* A loss ends HyStart++ for good: slow start after a timeout is the standard one. */
TEST(hystart_applies_only_to_the_first_slow_start)
{
	open_cubic(20 * MSS, CC_WINDOW_BYTES_MAX);
	signal_congestion(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	signal_timeout(cc.cwnd_bytes);
	cc.cwnd_bytes = 20 * MSS;
	cc.ssthresh_bytes = CC_WINDOW_BYTES_MAX / 2;
	hystart_rounds(2, 20 * US);
	hystart_rounds(1, 200 * US);
	CHECK(hystart_rounds(1, 200 * US) >= 190);
}
