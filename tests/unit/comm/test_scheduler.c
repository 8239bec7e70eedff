/* SPDX-License-Identifier: Apache-2.0 */
/* test_scheduler.c - which lane gets the next chunk; the test sets rates and round trips.
 * tests/sim/comm_share.c measures the cost of a slow lane. */
#include "comm/scheduler.h"

#include "check.h"
#include "lane/lane.h"

#define MS UINT64_C(1000000)
#define CHUNK UINT64_C(65536)
#define TIMEOUT_NS (500 * MS)
#define ACK_DELAY_MS_MAX 512u

/* Lanes of given rates, which together have at most a window of bytes in flight. */
struct world {
	struct scheduler scheduler;
	unsigned lanes;
	uint64_t rate[SCHEDULER_LANES_MAX];
	uint64_t srtt_ns[SCHEDULER_LANES_MAX];      /* reported by its TCP */
	unsigned ack_delay_ms[SCHEDULER_LANES_MAX]; /* delay of an acknowledgment */
	uint64_t delivered[SCHEDULER_LANES_MAX];    /* bytes */
	uint64_t delivered_at[ACK_DELAY_MS_MAX][SCHEDULER_LANES_MAX]; /* in the last ms */
	uint64_t run_bytes[SCHEDULER_LANES_MAX];                      /* in the last run */
	uint64_t now_ns;
	unsigned events; /* of all samples */
};
static struct world w;
static struct scheduler s; /* of a test without a world */
BEFORE_EACH(memset(&s, 0, sizeof(s)))

static void world_open(unsigned lanes, uint64_t rate)
{
	w = (struct world){ .lanes = lanes, .now_ns = 1000 * MS };
	for (unsigned i = 0; i < lanes; i++) {
		w.rate[i] = rate;
		w.srtt_ns[i] = MS / 10;
		scheduler_add(&w.scheduler, i, LANE_KERNEL, false, MS / 10, w.now_ns);
	}
}

static uint64_t in_flight(unsigned i)
{
	return w.scheduler.lane[i].given_bytes - w.delivered[i];
}

/* Bytes whose acknowledgment has arrived. */
static uint64_t acked_bytes(unsigned i)
{
	uint64_t ms = w.now_ns / MS;

	w.delivered_at[ms % ACK_DELAY_MS_MAX][i] = w.delivered[i];
	return w.delivered_at[(ms - w.ack_delay_ms[i]) % ACK_DELAY_MS_MAX][i];
}

/* A millisecond: every lane delivers and is sampled, and gets chunks while the window has space. */
static void world_step(uint64_t window)
{
	uint64_t all = 0;

	w.now_ns += MS;
	for (unsigned i = 0; i < w.lanes; i++) {
		const struct scheduler_lane *l = &w.scheduler.lane[i];
		bool unacked = l->given_bytes > l->acked_bytes;
		uint64_t acked;

		w.delivered[i] += w.rate[i] < in_flight(i) ? w.rate[i] : in_flight(i);
		acked = acked_bytes(i);
		if (unacked) {
			scheduler_acked(&w.scheduler, i, acked, w.now_ns);
			w.events |= scheduler_sample(&w.scheduler, i, l->given_bytes > acked,
						     w.srtt_ns[i], TIMEOUT_NS, w.now_ns);
		}
		all += l->given_bytes - l->acked_bytes;
	}
	for (; all + CHUNK <= window; all += CHUNK) {
		int best = scheduler_best(&w.scheduler, LANE_KERNEL, CHUNK, w.now_ns);

		if (best < 0)
			break;
		scheduler_give(&w.scheduler, (unsigned)best, CHUNK, w.now_ns);
	}
}

/* Fills w.run_bytes. */
static void world_run(unsigned ms, uint64_t window)
{
	uint64_t before[SCHEDULER_LANES_MAX];

	memcpy(before, w.delivered, sizeof(before));
	for (unsigned t = 0; t < ms; t++)
		world_step(window);
	for (unsigned i = 0; i < w.lanes; i++)
		w.run_bytes[i] = w.delivered[i] - before[i];
}

static void check_both_deliver(void)
{
	CHECK(w.run_bytes[0] > 9000000);
	CHECK(w.run_bytes[1] > 9000000);
}

TEST(a_lane_with_a_tenth_of_the_rate_is_slow)
{
	world_open(3, 10000);
	world_run(500, 16 * CHUNK);
	CHECK_EQ(w.events, 0);
	w.rate[1] = 1000;
	world_run(1000, 16 * CHUNK);
	CHECK(w.events & SCHEDULER_SLOW);
}

TEST(a_lane_that_was_idle_for_long_is_not_slow)
{
	world_open(1, 10000);
	w.now_ns += 5000 * MS;
	scheduler_give(&w.scheduler, 0, 10000, w.now_ns);
	world_step(0);
	w.now_ns += 5000 * MS;
	scheduler_add(&w.scheduler, 1, LANE_KERNEL, false, MS / 10, w.now_ns);
	w.rate[1] = 10000;
	w.srtt_ns[1] = MS / 10;
	w.lanes = 2;
	world_run(1000, 16 * CHUNK);
	check_both_deliver();
}

TEST(a_lane_that_nearly_stopped_regains_its_share)
{
	world_open(2, 10000);
	world_run(200, 8 * CHUNK);
	w.rate[0] = 2;
	world_run(300, 8 * CHUNK);
	w.rate[0] = 10000;
	world_run(5000, 8 * CHUNK);
	world_run(1000, 8 * CHUNK);
	check_both_deliver();
}

/* A preamble may wait for a busy peer or for a retransmission. */
TEST(a_long_preamble_does_not_reduce_a_lanes_share)
{
	static const uint64_t preamble_ns[] = { 0, 200 * MS, 3000 * MS, 36000000 * MS };

	for (unsigned i = 0; i < sizeof(preamble_ns) / sizeof(preamble_ns[0]); i++) {
		world_open(2, 10000);
		scheduler_remove(&w.scheduler, 0);
		world_run(100, 8 * CHUNK);
		scheduler_add(&w.scheduler, 0, LANE_KERNEL, false, preamble_ns[i], w.now_ns);
		world_run(1000, 8 * CHUNK);
		check_both_deliver();
	}
}

TEST(a_lane_with_long_round_trips_is_tried_again_at_intervals)
{
	world_open(2, 10000);
	world_run(200, 8 * CHUNK);
	w.ack_delay_ms[0] = 400;
	w.srtt_ns[0] = 400 * MS;
	world_run(600, 8 * CHUNK);
	world_run(5000, 8 * CHUNK);
	CHECK_EQ(w.run_bytes[0], 0);
	CHECK(w.run_bytes[1] > 9000000);
	world_run(6400, 8 * CHUNK);
	CHECK_EQ(w.run_bytes[0], CHUNK); /* one chunk every 6.4 s */
	w.ack_delay_ms[0] = 0;
	w.srtt_ns[0] = MS / 10;
	world_run(6400, 8 * CHUNK);
	world_run(1000, 8 * CHUNK);
	check_both_deliver();
}

/* After a stop of the peer the smoothed round trip is seconds; a sample lowers it by an eighth. */
TEST(the_round_trips_of_a_stopped_peer_are_forgotten)
{
	world_open(2, 10000);
	world_run(200, 8 * CHUNK);
	w.srtt_ns[0] = 5000 * MS;
	for (unsigned ms = 0; ms < 11000; ms++) {
		uint64_t before = w.delivered[0];

		world_step(8 * CHUNK);
		if (ms > 100 && w.delivered[0] != before)
			w.srtt_ns[0] = (w.srtt_ns[0] * 7 + MS / 10) / 8;
	}
	world_run(1000, 8 * CHUNK);
	check_both_deliver();
}

TEST(a_silent_lane_is_dead_only_while_another_one_makes_progress)
{
	world_open(2, 10000);
	world_run(200, 8 * CHUNK);
	w.rate[0] = w.rate[1] = 0;
	world_run(3000, 8 * CHUNK);
	CHECK(!(w.events & SCHEDULER_DEAD));
	w.rate[1] = 10000;
	world_run(600, 8 * CHUNK);
	CHECK(w.events & SCHEDULER_DEAD);
}

TEST(a_lane_that_delivers_in_bursts_has_its_mean_rate)
{
	uint64_t delivered = 0, now_ns = 1000 * MS;

	scheduler_add(&s, 0, LANE_KERNEL, false, MS / 10, now_ns);
	for (unsigned burst = 0; burst < 40; burst++) {
		scheduler_give(&s, 0, CHUNK, now_ns);
		for (unsigned ms = 1; ms <= 8; ms++) {
			now_ns += MS;
			delivered += ms == 8 ? CHUNK : 0; /* 8192 a ms */
			scheduler_acked(&s, 0, delivered, now_ns);
			(void)scheduler_sample(&s, 0, ms < 8, MS / 10, TIMEOUT_NS, now_ns);
		}
		CHECK(s.lane[0].rate >= 8000);
		CHECK(s.lane[0].rate <= 10000);
		now_ns += burst % 3 * 20 * MS; /* idle in between */
	}
}

TEST(bytes_acknowledged_within_one_turn_give_no_rate)
{
	uint64_t now_ns = 1000 * MS;

	scheduler_add(&s, 0, LANE_HARP, false, 0, now_ns);
	scheduler_give(&s, 0, 2 * CHUNK, now_ns);
	scheduler_acked(&s, 0, CHUNK, now_ns - MS);
	scheduler_acked(&s, 0, 2 * CHUNK, now_ns);
	CHECK_EQ(s.lane[0].rate, 0);
	scheduler_give(&s, 0, 2 * CHUNK, now_ns + MS);
	scheduler_acked(&s, 0, 4 * CHUNK, now_ns + 2 * MS);
	CHECK(s.lane[0].rate <= 4 * CHUNK);
}

/* Its socket would accept megabytes. */
TEST(a_lane_of_unknown_rate_gets_two_chunks)
{
	uint64_t now_ns = 1000 * MS;
	int best;

	scheduler_add(&s, 0, LANE_KERNEL, false, MS / 10, now_ns);
	scheduler_add(&s, 1, LANE_KERNEL, false, MS / 10, now_ns);
	while ((best = scheduler_best(&s, LANE_KERNEL, CHUNK, now_ns)) >= 0) {
		scheduler_give(&s, (unsigned)best, CHUNK, now_ns);
		if (s.lane[best].given_bytes > 8 * CHUNK)
			break;
	}
	CHECK_EQ(best, -1);
	CHECK_EQ(s.lane[0].given_bytes, 4 * CHUNK);
	CHECK_EQ(s.lane[1].given_bytes, 4 * CHUNK);
	now_ns += 2 * MS;
	scheduler_acked(&s, 1, 2 * CHUNK, now_ns);
	CHECK_EQ(scheduler_best(&s, LANE_KERNEL, CHUNK, now_ns), 1);
	/* The only lane has no such limit. */
	scheduler_remove(&s, 1);
	CHECK_EQ(scheduler_best(&s, LANE_KERNEL, CHUNK, now_ns), 0);
}

TEST(only_the_chunks_in_flight_on_a_slow_lane_are_late)
{
	world_open(2, 10000);
	for (unsigned t = 0; t < 500; t++) {
		world_step(16 * CHUNK);
		CHECK(!scheduler_late(&w.scheduler, 0, 0, 1, CHUNK, w.now_ns));
		CHECK(!scheduler_late(&w.scheduler, 1, 0, 0, CHUNK, w.now_ns));
	}
	CHECK(!scheduler_lags(&w.scheduler, 0, w.now_ns));
	scheduler_give(&w.scheduler, 0, 32 * CHUNK, w.now_ns);
	w.rate[0] = 1000;
	world_run(50, 0);
	CHECK(scheduler_lags(&w.scheduler, 0, w.now_ns));
	CHECK(scheduler_late(&w.scheduler, 0, 0, 1, CHUNK, w.now_ns));
	/* Its first bytes are acknowledged in time. */
	CHECK(!scheduler_late(&w.scheduler, 0, in_flight(0) - 1000, 1, CHUNK, w.now_ns));
	CHECK(!scheduler_late(&w.scheduler, 0, in_flight(0), 1, CHUNK, w.now_ns));
}

/* The delay lowers neither a known rate nor the first one. */
TEST(a_delayed_ACK_does_not_lower_the_rate)
{
	uint64_t now_ns = 1000 * MS;

	scheduler_add(&s, 0, LANE_KERNEL, false, MS / 10, now_ns);
	s.lane[0].rate = 500000;
	for (unsigned i = 0; i < 16; i++)
		scheduler_give(&s, 0, 4096, now_ns + i * MS / 100);
	scheduler_acked(&s, 0, 15 * 4096, now_ns + 30 * MS);
	CHECK_EQ(s.lane[0].rate, 500000);
	scheduler_give(&s, 0, CHUNK, now_ns + 35 * MS);
	scheduler_acked(&s, 0, 16 * 4096 + CHUNK, now_ns + 36 * MS);
	CHECK_EQ(s.lane[0].rate, 500000);
	memset(&s, 0, sizeof(s));
	scheduler_add(&s, 0, LANE_KERNEL, false, MS / 10, now_ns);
	scheduler_give(&s, 0, 4096, now_ns);
	scheduler_give(&s, 0, 4 * CHUNK, now_ns + 30 * MS);
	scheduler_acked(&s, 0, 4096 + 2 * CHUNK, now_ns + 32 * MS);
	CHECK_EQ(s.lane[0].rate, CHUNK);
}

/* Two segments in the millisecond before a sample are no rate. */
TEST(the_end_of_a_chunk_that_is_delivered_in_bursts_does_not_raise_the_rate)
{
	const uint64_t base_ns = 1000 * MS, burst = 2896, rate = burst / 4;

	scheduler_add(&s, 0, LANE_KERNEL, false, MS / 10, base_ns);
	s.lane[0].rate = rate;
	scheduler_give(&s, 0, 65536, base_ns);
	for (uint64_t ms = 1; s.lane[0].acked_bytes != s.lane[0].given_bytes; ms++)
		scheduler_acked(&s, 0, ms / 4 * burst, base_ns + ms * MS);
	CHECK(s.lane[0].rate <= rate);
	CHECK(s.lane[0].rate > rate - rate / 8);
}

/* A kernel lane and one of the given kind, both with a known rate. */
static void add_two(unsigned kind, uint64_t now_ns)
{
	scheduler_add(&s, 0, LANE_KERNEL, false, MS / 10, now_ns);
	scheduler_add(&s, 1, kind, false, MS / 10, now_ns);
	s.lane[0].rate = s.lane[1].rate = 500000;
}

/* A thread may read its clock long before another thread sees the lane become idle. */
TEST(a_chunk_given_with_an_old_clock_changes_nothing)
{
	const uint64_t base_ns = 1000 * MS, idle_ns = base_ns + 100 * MS;

	add_two(LANE_HARP, base_ns);
	scheduler_give(&s, 1, CHUNK, base_ns);
	scheduler_acked(&s, 1, CHUNK, base_ns + MS);
	scheduler_give(&s, 0, 8 * CHUNK, base_ns);
	scheduler_acked(&s, 0, 8 * CHUNK, base_ns + MS);
	scheduler_give(&s, 0, CHUNK, base_ns + 99 * MS);
	scheduler_acked(&s, 0, 9 * CHUNK, idle_ns);
	for (unsigned i = 1; i <= 8; i++) {
		scheduler_give(&s, 0, 8 * CHUNK, base_ns);
		CHECK_EQ(scheduler_sample(&s, 0, true, MS / 10, TIMEOUT_NS, idle_ns + i * MS), 0);
		scheduler_acked(&s, 0, (9 + i * 8) * CHUNK, idle_ns + i * MS);
	}
	CHECK(s.lane[0].rate >= 500000);
}

/* A thread was preempted in its turn, and another one has sampled the lane meanwhile. */
TEST(a_sample_taken_with_an_old_clock_changes_nothing)
{
	const uint64_t base_ns = 1000 * MS, received_ns = base_ns + 30 * MS;

	add_two(LANE_KERNEL, base_ns);
	scheduler_give(&s, 0, CHUNK, base_ns);
	scheduler_acked(&s, 0, CHUNK, received_ns);
	scheduler_acked(&s, 0, CHUNK, base_ns);
	/* Nothing was in flight until now, so it does not stall. */
	scheduler_give(&s, 0, 4 * CHUNK, base_ns);
	CHECK_EQ(scheduler_sample(&s, 0, true, MS / 10, TIMEOUT_NS, base_ns), 0);
	CHECK_EQ(scheduler_sample(&s, 0, true, MS / 10, TIMEOUT_NS, received_ns + MS), 0);
	/* Nor has it delivered much of the bytes that it was given just now. */
	scheduler_acked(&s, 0, 2 * CHUNK, received_ns + 10 * MS);
	scheduler_acked(&s, 0, 2 * CHUNK, received_ns + 2 * MS);
	scheduler_give(&s, 0, 20 * CHUNK, received_ns + 10 * MS);
	scheduler_give(&s, 1, 12 * CHUNK, received_ns + 10 * MS);
	s.lane[0].rate = s.lane[1].rate = 500000;
	CHECK_EQ(scheduler_best(&s, LANE_KERNEL, CHUNK, received_ns + 10 * MS), 1);
}

TEST(lanes_are_ranked_by_stall_backup_and_kind)
{
	CHECK_EQ(scheduler_best(&s, LANE_HARP, 1, 0), -1);
	CHECK_EQ(scheduler_control(&s), -1);
	scheduler_add(&s, 1, LANE_KERNEL, false, 0, 0);
	scheduler_add(&s, 4, LANE_HARP, false, 0, 0);
	scheduler_add(&s, 5, LANE_HARP, true, 0, 0);
	CHECK_EQ(scheduler_best(&s, LANE_HARP, 100, 0), 4);
	CHECK_EQ(scheduler_best(&s, LANE_KERNEL, 100, 0), 1);
	CHECK_EQ(scheduler_choices(&s, LANE_HARP | LANE_KERNEL), 2);
	CHECK_EQ(scheduler_choices(&s, LANE_HARP), 1);
	CHECK_EQ(scheduler_control(&s), 4);
	scheduler_remove(&s, 4); /* another kind before a backup */
	CHECK_EQ(scheduler_best(&s, LANE_HARP, 100, 0), 1);
	scheduler_remove(&s, 1);
	CHECK_EQ(scheduler_best(&s, LANE_KERNEL, 100, 0), 5);
	CHECK_EQ(scheduler_control(&s), 5);
}

TEST(a_lane_with_overdue_acknowledgments_stalls_and_dies)
{
	unsigned events = 0;

	scheduler_add(&s, 0, LANE_HARP, false, 0, 0);
	scheduler_add(&s, 1, LANE_HARP, false, 0, 0);
	/* After an idle time, the acknowledgment is due from now on. */
	scheduler_give(&s, 0, CHUNK, 900 * MS);
	scheduler_give(&s, 1, CHUNK, 900 * MS);
	CHECK_EQ(scheduler_sample(&s, 0, true, 100000, 500 * MS, 910 * MS), 0);
	CHECK_EQ(scheduler_sample(&s, 0, true, 100000, 500 * MS, 921 * MS), SCHEDULER_STALLED);
	CHECK_EQ(scheduler_best(&s, LANE_HARP, 1, 921 * MS), 1);
	/* While both are silent, neither is dead. */
	CHECK_EQ(scheduler_sample(&s, 1, true, 100000, 500 * MS, 921 * MS), SCHEDULER_STALLED);
	CHECK_EQ(scheduler_sample(&s, 0, true, 100000, 500 * MS, 99000 * MS), 0);
	/* One makes progress. */
	scheduler_acked(&s, 1, CHUNK, 99001 * MS);
	CHECK_EQ(scheduler_sample(&s, 1, false, 100000, 500 * MS, 99001 * MS), SCHEDULER_MOVES);
	CHECK_EQ(scheduler_sample(&s, 0, true, 100000, 500 * MS, 99002 * MS), SCHEDULER_DEAD);
	/* Bytes that a closed window holds back do not count. */
	CHECK_EQ(scheduler_sample(&s, 0, false, 100000, 500 * MS, 99003 * MS), SCHEDULER_MOVES);
	/* A lane with a long round trip has more time. */
	memset(&s, 0, sizeof(s));
	scheduler_add(&s, 0, LANE_HARP, false, 200 * MS, 0);
	scheduler_give(&s, 0, CHUNK, 0);
	for (uint64_t ms = 2; ms < 790; ms += 2)
		events |= scheduler_sample(&s, 0, true, 200 * MS, 500 * MS, ms * MS);
	CHECK_EQ(events, 0);
}

/* Linux delays only the ACK of little data, and HARP's stack delays none of these. */
TEST(a_delayed_ACK_is_no_stall)
{
	static const struct {
		unsigned kind;
		uint64_t bytes;
		bool stalls_early;
	} cases[] = { { LANE_KERNEL, 4096, false },
		      { LANE_KERNEL, CHUNK, true },
		      { LANE_HARP, 4096, true } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memset(&s, 0, sizeof(s));
		scheduler_add(&s, 0, cases[i].kind, false, 0, 0);
		scheduler_give(&s, 0, cases[i].bytes, 900 * MS);
		CHECK_EQ(scheduler_sample(&s, 0, true, 100000, TIMEOUT_NS, 950 * MS),
			 cases[i].stalls_early ? SCHEDULER_STALLED : 0);
		CHECK_EQ(scheduler_sample(&s, 0, true, 100000, TIMEOUT_NS, 961 * MS),
			 cases[i].stalls_early ? 0 : SCHEDULER_STALLED);
	}
}
