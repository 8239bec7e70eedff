/* SPDX-License-Identifier: Apache-2.0 */
/* test_cc_cubic.c - CUBIC by RFC 9438's formulas, in real numbers here; HyStart++ by RFC 9406's
 * rules. */
#include <math.h>

#include "cc_rig.h"
#include "transport/cc_hystart.h"

static void open_with(uint32_t cwnd_bytes, uint32_t ssthresh_bytes)
{
	struct cc_event ev = { .mss_bytes = MSS };

	now_ns = 10 * S;
	una = 0;
	ev.now_ns = now_ns;
	cc = (struct cc){ .ops = &cc_cubic };
	cc.ops->init(&cc, &ev);
	cc.cwnd_bytes = cwnd_bytes;
	cc.ssthresh_bytes = ssthresh_bytes;
}

/* A window of data is acknowledged, an ACK for every second segment, spread over the round trip. */
static void round_trip(uint64_t rtt_ns)
{
	uint32_t acks = cc.cwnd_bytes / (2 * MSS) + 1;

	for (uint32_t i = 0; i < acks; i++) {
		struct cc_event ev;

		now_ns += rtt_ns / acks;
		ev = event(2 * MSS, rtt_ns);
		cc.ops->acked(&cc, &ev);
	}
}

static void signal_of(enum cc_signal what)
{
	struct cc_event ev = event(0, 0);

	ev.signal = (uint8_t)what;
	cc.ops->congestion(&cc, &ev);
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
	signal_of(CC_SIGNAL_LOSS);
	CHECK_EQ(cc.ssthresh_bytes, 700 * MSS); /* beta = 0.7 */
	cc.cwnd_bytes = cc.ssthresh_bytes;
	start = (double)now_ns;
	for (unsigned i = 0; i < 200; i++) {
		double t;

		round_trip(100 * MS);
		t = ((double)now_ns - start) / 1e9;
		/* W_est has nothing to say here: it grows by 5 segments a second. */
		if (i == 30 || i == 60 || i == 85 || i == 93 || i == 150 || i == 199)
			CHECK(about(cc.cwnd_bytes / 1000.0, 0.4 * pow(t - k, 3) + w_max, 0.02));
	}
	CHECK(about(k, 9.086, 0.001)); /* what the loop above believes */
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
	signal_of(CC_SIGNAL_LOSS);
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
	signal_of(CC_SIGNAL_LOSS);
	cc.cwnd_bytes = 800 * MSS; /* on its way back */
	signal_of(CC_SIGNAL_LOSS);
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
	struct cc_event ev;
	uint64_t start_ns;
	uint32_t before;

	open_with(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	ev = event(0, 0);
	cc.ops->timeout(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, 700 * MSS);
	cc.cwnd_bytes = MSS;
	ev = event(4 * MSS, 100 * MS);
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 5 * MSS); /* standard slow start, no HyStart++ */
	cc.cwnd_bytes = 699 * MSS;
	ev = event(4 * MSS, 100 * MS);
	cc.ops->acked(&cc, &ev);
	CHECK_EQ(cc.cwnd_bytes, 700 * MSS); /* up to ssthresh */
	start_ns = now_ns;
	while (now_ns - start_ns < 10 * S)
		round_trip(100 * MS);
	CHECK(about(cc.cwnd_bytes / 1000.0, 0.4 * 1000 + 700, 0.03));
	/* The window counts, not what happened to be on its way. */
	before = cc.cwnd_bytes;
	ev.flight_bytes = MSS;
	cc.ops->timeout(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, (uint64_t)before * 70 / 100);
	/* Nothing is smaller than two segments. */
	cc.cwnd_bytes = 2 * MSS;
	cc.ops->timeout(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
}

/* Sections 4.2 and 5.8: time that the application did not use does not count. */
TEST(idle_time_does_not_open_the_window)
{
	uint32_t before;

	open_with(1000 * MSS, CC_WINDOW_BYTES_MAX / 2);
	signal_of(CC_SIGNAL_LOSS);
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

/* ---- HyStart++ ---- */

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
	struct cc_event ev;

	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	rounds(2, 20 * US);
	ev = event(16 * MSS, 20 * MS);
	cc.ops->acked(&cc, &ev);
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
	struct cc_event ev;

	open_with(20 * MSS, CC_WINDOW_BYTES_MAX);
	signal_of(CC_SIGNAL_LOSS);
	ev = event(0, 0);
	cc.ops->timeout(&cc, &ev);
	cc.cwnd_bytes = 20 * MSS;
	cc.ssthresh_bytes = CC_WINDOW_BYTES_MAX / 2;
	rounds(2, 20 * US);
	rounds(1, 200 * US);
	CHECK(rounds(1, 200 * US) >= 190);
}

/* A copy put back goes on as if nothing had been (RFC 9438 section 4.9). */
TEST(a_restored_controller_goes_on_as_before)
{
	struct cc saved;
	uint32_t before;

	open_with(1000 * MSS, 1000 * MSS);
	for (unsigned i = 0; i < 50; i++)
		round_trip(100 * MS);
	saved = cc;
	before = cc.cwnd_bytes;
	signal_of(CC_SIGNAL_LOSS);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	cc = saved;
	CHECK_EQ(cc.cwnd_bytes, before);
	round_trip(100 * MS);
	CHECK(cc.cwnd_bytes >= before);
}
