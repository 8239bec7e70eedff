/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cc.c - congestion controllers by their RFCs: NewReno, DCTCP, the delay-based one against a
 * path of its own, CUBIC by RFC 9438's formulas in real numbers, HyStart++ by RFC 9406's rules.
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

/* An ACK of a full window's flight. */
static struct cc_event event(uint32_t acked, uint64_t rtt_ns)
{
	una += acked;
	return (struct cc_event){ .now_ns = now_ns,
				  .mss_bytes = MSS,
				  .flight_bytes = cc.cwnd_bytes,
				  .acked_bytes = acked,
				  .rtt_ns = rtt_ns,
				  .srtt_ns = rtt_ns,
				  .snd_una_seq = una,
				  .snd_nxt_seq = una + cc.cwnd_bytes,
				  .limited = 1 };
}

static void acked(uint32_t bytes, uint64_t rtt_ns)
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

/* A congestion signal or a timeout with so much in flight. */
static void signal_of(enum cc_signal what, uint32_t flight_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS,
			       .now_ns = now_ns,
			       .flight_bytes = flight_bytes,
			       .signal = (uint8_t)what };

	cc.ops->congestion(&cc, &ev);
}

static void timeout_of(uint32_t flight_bytes)
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

	/* Slow start grows by what is acknowledged, only when the window was the limit. */
	acked(3 * MSS, 0);
	CHECK_EQ(cc.cwnd_bytes, 13 * MSS);
	ev.limited = 0;
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 13 * MSS);

	/* Loss: half of the bytes in flight, not of the window. */
	signal_of(CC_SIGNAL_LOSS, 8 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 4 * MSS);

	/* Congestion avoidance: one segment a window. */
	cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 4; i++) {
		ev = event(MSS, 0);
		CHECK_EQ(cc.cwnd_bytes, 4 * MSS);
		cc.ops->acked(&cc, &ev);
	}
	CHECK_EQ(cc.cwnd_bytes, 5 * MSS);

	/* Timeout: one segment, then slow start up to ssthresh and no further. */
	timeout_of(3 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS); /* never less */
	cc.cwnd_bytes = MSS;
	acked(5 * MSS, 0);
	CHECK_EQ(cc.cwnd_bytes, 2 * MSS);
}

/* ---- DCTCP ----------------------------------------------------------------------------------- */

/* A window of ten ACKs of which `marked` carry ECE. */
static void window(unsigned marked)
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

static void windows(unsigned count, unsigned marked)
{
	while (count-- > 0)
		window(marked);
}

/* DCTCP.Alpha of RFC 8257 section 3.3, and its effect on the window. */
TEST(dctcp_alpha_follows_the_share_of_marks)
{
	/* Alpha is 1 at first, so the first mark halves. */
	open_controller(&cc_dctcp, 100 * MSS, 100 * MSS);
	CHECK_EQ(cc_dctcp_alpha_ppm(&cc), 1000000);
	signal_of(CC_SIGNAL_ECN, 100 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 50 * MSS);

	/* Unmarked windows: alpha * 15/16 each. */
	windows(2, 0);
	CHECK(cc_dctcp_alpha_ppm(&cc) >= 878906 && cc_dctcp_alpha_ppm(&cc) <= 937500);
	windows(200, 0);
	CHECK(cc_dctcp_alpha_ppm(&cc) < 50);

	/* Three of ten marked, for long: alpha converges to 0.3 and the window gives 15 %. */
	windows(200, 3);
	CHECK(cc_dctcp_alpha_ppm(&cc) > 285000 && cc_dctcp_alpha_ppm(&cc) < 315000);
	cc.cwnd_bytes = 100 * MSS;
	signal_of(CC_SIGNAL_ECN, 100 * MSS);
	CHECK(cc.ssthresh_bytes > 84000 && cc.ssthresh_bytes < 86000);

	/* Everything marked: back to 1, and never above. */
	windows(500, 10);
	CHECK(cc_dctcp_alpha_ppm(&cc) > 999000 && cc_dctcp_alpha_ppm(&cc) <= 1000000);

	/* Section 3.5: a loss halves the window, whatever alpha is. */
	windows(200, 0);
	signal_of(CC_SIGNAL_LOSS, 80 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 40 * MSS);

	/* Never below two segments. */
	open_controller(&cc_dctcp, 2 * MSS, 2 * MSS);
	signal_of(CC_SIGNAL_ECN, 2 * MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
	cc.ops = &cc_newreno;
	CHECK_EQ(cc_dctcp_alpha_ppm(&cc), 0);
}

/* ---- delay-based ----------------------------------------------------------------------------- */

/* A path with a propagation delay, a rate and a queue: its round trip is the larger of the delay
 * and the time to drain the window. */
static uint64_t base_ns, bytes_per_ms; /* the path */

static uint64_t path_rtt_ns(void)
{
	uint64_t drain_ns = cc.cwnd_bytes * MS / bytes_per_ms;

	return drain_ns > base_ns ? drain_ns : base_ns;
}

static void begin(uint64_t rtt_ns, uint64_t rate)
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
			acked(2 * MSS, rtt_ns);
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
	begin(1 * MS, 1000000); /* 8 Gbit/s */
	run_for(1 * S);
	/* The new route is twice as long: its minimum is accepted within two spans. */
	base_ns = 2 * MS;
	run_for(12 * S);
	CHECK(cc.cwnd_bytes >= 1900000);
	CHECK(path_rtt_ns() <= 3 * MS);
	/* And a shorter one, which our own queue hides until we look for it. */
	base_ns = MS / 2;
	run_for(12 * S);
	CHECK(path_rtt_ns() <= MS);
}

TEST(a_loss_halves_and_the_minimum_is_probed_for)
{
	uint32_t before, least = UINT32_MAX;

	begin(1 * MS, 1000000);
	run_for(1 * S);
	before = cc.cwnd_bytes;
	signal_of(CC_SIGNAL_LOSS, before);
	CHECK_EQ(cc.ssthresh_bytes, before / 2);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	run_for(1 * S);
	/* After a span without the minimum the controller probes for it. */
	for (unsigned i = 0; i < 20000; i++) {
		run_rounds(1);
		least = cc.cwnd_bytes < least ? cc.cwnd_bytes : least;
	}
	CHECK_EQ(least, 4 * MSS);
	CHECK(cc.cwnd_bytes > 1000 * MSS); /* and came back from there */
	timeout_of(MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
}

/* ---- CUBIC ----------------------------------------------------------------------------------- */

static void open_with(uint32_t cwnd_bytes, uint32_t ssthresh_bytes)
{
	open_controller(&cc_cubic, cwnd_bytes, ssthresh_bytes);
}

/* A window of data is acknowledged, an ACK for every second segment, spread over the round trip. */
static void round_trip(uint64_t rtt_ns)
{
	uint32_t acks = cc.cwnd_bytes / (2 * MSS) + 1;

	for (uint32_t i = 0; i < acks; i++) {
		now_ns += rtt_ns / acks;
		acked(2 * MSS, rtt_ns);
	}
}

static bool about(double got, double want, double part)
{
	if (fabs(got - want) <= fabs(want) * part)
		return true;
	fprintf(stderr, "%f is not about %f\n", got, want);
	return false;
}

/* Figures 1 and 2: at a round trip of 100 ms the curve is followed, and W_max reached again at
 * K. */
TEST(the_window_follows_the_cubic_curve)
{
	double w_max = 1000, k = cbrt(w_max * 0.3 / 0.4), start;

	open_with(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_of(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	CHECK_EQ(cc.ssthresh_bytes, 700 * MSS); /* beta = 0.7 */
	cc.cwnd_bytes = cc.ssthresh_bytes;
	start = (double)now_ns;
	for (unsigned i = 0; i < 200; i++) {
		double t;

		round_trip(100 * MS);
		t = ((double)now_ns - start) / 1e9;
		/* W_est does not matter here: it grows by 5 segments a second. */
		if (i == 30 || i == 60 || i == 85 || i == 93 || i == 150 || i == 199)
			CHECK(about(cc.cwnd_bytes / 1000.0, 0.4 * pow(t - k, 3) + w_max, 0.02));
	}
	CHECK(about(k, 9.086, 0.001)); /* as the loop above assumes */
}

/* Section 4.2: target is at most 1.5 times the window, however late we look. */
TEST(the_target_is_at_most_one_and_a_half_windows)
{
	struct cc_event ev;
	uint32_t before;

	open_with(100 * MSS, 100 * MSS);
	for (unsigned i = 0; i < 300; i++)
		round_trip(100 * MS);
	before = cc.cwnd_bytes;
	for (unsigned i = 0; i < 2; i++) {
		ev = event(cc.cwnd_bytes, 100 * S); /* an absurd round trip */
		now_ns = ev.now_ns += 100 * S;
		cc.ops->acked(&cc, &ev);
	}
	CHECK(cc.cwnd_bytes <= before * 9ull / 4);
}

/* Section 4.3: with a short round trip the window is W_est, 9/17 of a segment each, then 1. */
TEST(a_short_round_trip_is_in_the_reno_friendly_region)
{
	uint32_t at;

	open_with(100 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_of(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	at = cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 20; i++)
		round_trip(50 * US);
	CHECK(about(cc.cwnd_bytes - at, 20 * 9.0 / 17 * MSS, 0.1));
	while (cc.cwnd_bytes < 100 * MSS)
		round_trip(50 * US);
	at = cc.cwnd_bytes; /* cwnd_prior: alpha is 1 from here */
	for (unsigned i = 0; i < 20; i++)
		round_trip(50 * US);
	CHECK(about(cc.cwnd_bytes - at, 20 * MSS, 0.1));
}

/* Section 4.7: W_max is (1 + beta) / 2 of the window when it was below the last one. */
TEST(fast_convergence_lowers_the_plateau)
{
	double k;
	uint64_t start_ns;

	open_with(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_of(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	cc.cwnd_bytes = 800 * MSS; /* on its way back */
	signal_of(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	CHECK_EQ(cc.ssthresh_bytes, 560 * MSS);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	/* The plateau is at 680, and K = cbrt(120 / 0.4). */
	k = cbrt((680 - 560) / 0.4);
	start_ns = now_ns;
	while ((double)(now_ns - start_ns) < k * 1e9)
		round_trip(100 * MS);
	CHECK(about(cc.cwnd_bytes, 680 * MSS, 0.01));
}

/* Section 4.8: after a timeout the curve begins at the window, with K = 0. */
TEST(after_a_timeout_the_curve_begins_at_the_window)
{
	uint64_t start_ns;
	uint32_t before;

	open_with(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	timeout_of(cc.cwnd_bytes);
	CHECK_EQ(cc.ssthresh_bytes, 700 * MSS);
	cc.cwnd_bytes = MSS;
	acked(4 * MSS, 100 * MS);
	CHECK_EQ(cc.cwnd_bytes, 5 * MSS); /* standard slow start, no HyStart++ */
	cc.cwnd_bytes = 699 * MSS;
	acked(4 * MSS, 100 * MS);
	CHECK_EQ(cc.cwnd_bytes, 700 * MSS); /* up to ssthresh */
	start_ns = now_ns;
	while (now_ns - start_ns < 10 * S)
		round_trip(100 * MS);
	CHECK(about(cc.cwnd_bytes / 1000.0, 0.4 * 1000 + 700, 0.03));
	/* The window counts, not the bytes in flight. */
	before = cc.cwnd_bytes;
	timeout_of(MSS);
	CHECK_EQ(cc.ssthresh_bytes, (uint64_t)before * 70 / 100);
	/* Nothing is smaller than two segments. */
	cc.cwnd_bytes = 2 * MSS;
	timeout_of(MSS);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
}

/* Sections 4.2 and 5.8: time that the application did not use does not count. */
TEST(idle_time_does_not_open_the_window)
{
	uint32_t before;

	open_with(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_of(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	for (unsigned i = 0; i < 90; i++)
		round_trip(100 * MS); /* the plateau */
	before = cc.cwnd_bytes;
	now_ns += 1000 * S; /* idle, and then as before */
	round_trip(100 * MS);
	CHECK(about(cc.cwnd_bytes, before, 0.01));
	for (unsigned i = 0; i < 1000; i++) {
		struct cc_event ev = event(2 * MSS, 100 * MS);

		ev.limited = 0;
		now_ns = ev.now_ns += 50 * MS;
		before = cc.cwnd_bytes;
		cc.ops->acked(&cc, &ev);
		CHECK_EQ(cc.cwnd_bytes, before);
	}
	round_trip(100 * MS);
	CHECK(about(cc.cwnd_bytes, before, 0.01));
	/* While loss recovery moves the window the controller does not. */
	{
		struct cc_event ev = event(2 * MSS, 100 * MS);

		ev.recovering = 1;
		before = cc.cwnd_bytes;
		cc.ops->acked(&cc, &ev);
		CHECK_EQ(cc.cwnd_bytes, before);
	}
}

/* ---- HyStart++ ------------------------------------------------------------------------------- */

/* Rounds in which the round trip is this; how much the window grew by, as a factor times 100. */
static uint32_t rounds(unsigned count, uint64_t rtt_ns)
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
	/* Just below the threshold: nothing. */
	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	CHECK(rounds(2, rtt_ns) >= 390);
	CHECK(rounds(1, rtt_ns + threshold_ns - 1000) >= 190);
	/* At the threshold: conservative slow start after eight samples, a quarter as fast. */
	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	rounds(2, rtt_ns);
	rounds(1, rtt_ns + threshold_ns);
	CHECK(rounds(1, rtt_ns + threshold_ns) <= 126);
	CHECK_EQ(cc.ssthresh_bytes, CC_WINDOW_BYTES_MAX);
	/* Five rounds of that, the partial one included: congestion avoidance. */
	rounds(2, rtt_ns + threshold_ns);
	CHECK_EQ(cc.ssthresh_bytes, CC_WINDOW_BYTES_MAX);
	rounds(2, rtt_ns + threshold_ns);
	CHECK(cc.ssthresh_bytes <= cc.cwnd_bytes);
	/* The exit was spurious when the round trip falls again: full speed. */
	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	rounds(2, rtt_ns);
	rounds(2, rtt_ns + threshold_ns);
	rounds(1, rtt_ns);
	CHECK(rounds(1, rtt_ns) >= 190);
	CHECK_EQ(cc.ssthresh_bytes, CC_WINDOW_BYTES_MAX);
}

TEST(hystart_leaves_slow_start_when_the_round_trip_grows)
{
	hystart_case(20 * US, 100 * US);  /* a rack: our floor */
	hystart_case(500 * US, 100 * US); /* still the floor */
	hystart_case(8 * MS, 1 * MS);     /* an eighth */
	hystart_case(30 * MS, 3750 * US); /* an eighth: near RFC 9406's 4 ms */
	hystart_case(200 * MS, 16 * MS);  /* MAX_RTT_THRESH */
}

/* One late ACK that covers sixteen segments must not decide. */
TEST(hystart_needs_eight_samples)
{
	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	rounds(2, 20 * US);
	acked(16 * MSS, 20 * MS);
	CHECK(rounds(1, 20 * US) >= 190);
}

/* While the window is not the limit rounds are not looked at: one is over, 2.25 GiB later as
 * well. */
TEST(hystart_after_idling_for_half_the_sequence_space)
{
	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	rounds(2, 20 * US);
	una += 0x90000000u;
	rounds(2, 20 * US);
	rounds(1, 200 * US);
	CHECK(rounds(1, 200 * US) <= 126);
}

/* Loss ends HyStart++ for good: slow start after a timeout is the standard one. */
TEST(hystart_is_for_the_first_slow_start)
{
	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	signal_of(CC_SIGNAL_LOSS, cc.cwnd_bytes);
	timeout_of(cc.cwnd_bytes);
	cc.cwnd_bytes = 20 * MSS;
	cc.ssthresh_bytes = CC_WINDOW_BYTES_MAX / 2;
	rounds(2, 20 * US);
	rounds(1, 200 * US);
	CHECK(rounds(1, 200 * US) >= 190);
}
