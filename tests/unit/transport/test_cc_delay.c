/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cc_delay.c - the delay-based controller against a path of its own: a round trip, a rate, a
 * queue, whose round trip is the larger of what propagation and what the window make it.
 */
#include "cc_rig.h"

static uint64_t base_ns, bytes_per_ms; /* the path */

static uint64_t path_rtt_ns(void)
{
	uint64_t drain_ns = cc.cwnd_bytes * MS / bytes_per_ms;

	return drain_ns > base_ns ? drain_ns : base_ns;
}

static void begin(uint64_t rtt_ns, uint64_t rate)
{
	struct cc_event ev = { .mss_bytes = MSS, .now_ns = now_ns };

	base_ns = rtt_ns;
	bytes_per_ms = rate;
	cc = (struct cc){ .ops = &cc_delay };
	cc.ops->init(&cc, &ev);
	una = 0;
}

static void run_rounds(unsigned count)
{
	while (count-- > 0) {
		uint64_t rtt_ns = path_rtt_ns();

		for (uint32_t end = una + cc.cwnd_bytes; (int32_t)(una - end) < 0;) {
			struct cc_event ev = event(2 * MSS, rtt_ns);

			cc.ops->acked(&cc, &ev);
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

/* The queue is there and short: the pipe is full, and the round trip stays near the target. */
static void converges(uint64_t rtt_ns, uint64_t rate, uint64_t target_ns)
{
	uint64_t pipe_bytes = rate * rtt_ns / MS, most = 0;
	unsigned low = 0;

	begin(rtt_ns, rate);
	run_rounds(400);
	for (unsigned i = 0; i < 200; i++) {
		run_rounds(1);
		low += cc.cwnd_bytes < pipe_bytes * 85 / 100;
		most = path_rtt_ns() > most ? path_rtt_ns() : most;
	}
	CHECK(low <= 10); /* the rounds in which it looks for the minimum */
	CHECK(most <= rtt_ns + 3 * target_ns);
	CHECK(cc.cwnd_bytes >= pipe_bytes);
}

TEST(the_window_follows_a_route_change)
{
	begin(1 * MS, 1000000); /* 8 Gbit/s */
	run_for(1 * S);
	/* The new route is twice as long: its minimum is believed within two spans. */
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
	struct cc_event ev;
	uint32_t before, least = UINT32_MAX;

	begin(1 * MS, 1000000);
	run_for(1 * S);
	before = cc.cwnd_bytes;
	ev = event(0, 0);
	ev.signal = CC_SIGNAL_LOSS;
	cc.ops->congestion(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, before / 2);
	cc.cwnd_bytes = cc.ssthresh_bytes;
	run_for(1 * S);
	/* A span without the minimum: it is looked for, and everything goes on. */
	for (unsigned i = 0; i < 20000; i++) {
		run_rounds(1);
		least = cc.cwnd_bytes < least ? cc.cwnd_bytes : least;
	}
	CHECK_EQ(least, 4 * MSS);
	CHECK(cc.cwnd_bytes > 1000 * MSS); /* and came back from there */
	ev = event(0, 0);
	ev.flight_bytes = MSS;
	cc.ops->timeout(&cc, &ev);
	CHECK_EQ(cc.ssthresh_bytes, 2 * MSS);
}

int main(void)
{
	converges(20 * US, 3000000, 100 * US); /* 24 Gbit/s in a rack */
	converges(100 * US, 1250000, 100 * US);
	converges(10 * MS, 125000, 1250 * US);
	converges(200 * MS, 12500, 5 * MS);
	check_run();
	return check_done();
}
