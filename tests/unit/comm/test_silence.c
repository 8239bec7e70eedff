/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_silence.c - how long the peer of a kernel lane has been silent, and when it is given up.
 *
 * TCP_INFO is a double: TCP sends a probe at intervals, and the peer answers each until it dies.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "comm/comm_impl.h"
#include "double_env.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define KERNEL_TICK (10 * MS) /* HZ=100 */

/* ---- TCP_INFO -------------------------------------------------------------------------------- */

static struct {
	uint64_t now_ns, acked_ns;
	uint8_t probes;
	uint32_t unacked, segments;
} tcp;

int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct tcp_info info = { .tcpi_probes = tcp.probes,
				 .tcpi_unacked = tcp.unacked,
				 .tcpi_segs_in = tcp.segments };
	uint64_t ticks = tcp.now_ns / KERNEL_TICK - tcp.acked_ns / KERNEL_TICK;

	if (level != IPPROTO_TCP || name != TCP_INFO || *len < sizeof(info))
		return -1;
	info.tcpi_last_ack_recv = (uint32_t)(ticks * KERNEL_TICK / MS);
	memcpy(value, &info, sizeof(info));
	return 0;
}

/* ---- a comm of one lane ---------------------------------------------------------------------- */

struct rig {
	struct poller poller;
	struct comm comm;
	struct comm_lane lane;
	int peer;
};

static void rig_open(struct rig *rig)
{
	static const struct harp_endpoint none;
	int fds[2];

	memset(rig, 0, sizeof(*rig));
	memset(&tcp, 0, sizeof(tcp));
	poller_init(&rig->poller, NULL);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	rig->peer = fds[1];
	CHECK_EQ(lane_kernel_adopt(&rig->poller, fds[0], &none, &none, &rig->lane.lane), 0);
	rig->lane.comm = &rig->comm;
	rig->lane.kind = LANE_KERNEL;
	rig->comm.lanes[0] = &rig->lane;
	atomic_init(&rig->comm.posted, 1);
}

static void rig_close(struct rig *rig)
{
	rig->lane.lane->ops->close(rig->lane.lane, false);
	close(rig->peer);
}

/* older_ms: how far the caller's clock lags behind the kernel's. */
static uint64_t rig_silence_ms(struct rig *rig, uint64_t ms, uint64_t older_ms)
{
	tcp.now_ns = 100 * SECOND + ms * MS;
	return lane_kernel_silence_ns(rig->lane.lane, tcp.now_ns - older_ms * MS) / MS;
}

/* Sets the time of the last answer. */
static void set_last_answer(uint64_t ms, uint32_t segments)
{
	tcp.acked_ns = 100 * SECOND + ms * MS;
	tcp.segments = segments;
}

/* ---- duration of a silence ------------------------------------------------------------------- */

/* By these clocks the answer seems to precede the last sample: the kernel counts ticks, and the
 * caller's clock lags. */
TEST(different_clocks_cause_no_silence)
{
	struct rig rig;

	rig_open(&rig);
	tcp.unacked = 1;
	CHECK_EQ(rig_silence_ms(&rig, 9, 0), 0);
	set_last_answer(11, 1);
	CHECK_EQ(rig_silence_ms(&rig, 509, 0), 0);
	set_last_answer(600, 2);
	CHECK_EQ(rig_silence_ms(&rig, 1509, 300), 0);
	rig_close(&rig);
}

/* Any host may send segments that look like the peer's. */
TEST(segments_without_an_acknowledgment_do_not_end_a_silence)
{
	struct rig rig;

	rig_open(&rig);
	tcp.unacked = 1;
	set_last_answer(0, 1);
	CHECK_EQ(rig_silence_ms(&rig, 0, 0), 0);
	for (uint64_t ms = 1000; ms <= 5000; ms += 1000) {
		tcp.segments += 100;
		(void)rig_silence_ms(&rig, ms, 0);
	}
	CHECK(rig_silence_ms(&rig, 6000, 0) >= 4000);
	rig_close(&rig);
}

/* ---- timeout --------------------------------------------------------------------------------- */

struct world {
	uint64_t timeout_ns, step_ns; /* step: between two polls */
	uint64_t probe_ns, period_ns; /* of the first probe, and between probes */
	uint64_t answer_ns;           /* from a probe to its answer */
	uint64_t death_ns;            /* no probe is answered from then on */
	bool data;                    /* the probes are data */
};

/* The time of the first unanswered probe. */
static uint64_t world_silent_ns(const struct world *w)
{
	uint64_t before = (w->death_ns - w->probe_ns + w->period_ns - 1) / w->period_ns;

	return w->probe_ns + before * w->period_ns;
}

static void world_set_tcp(const struct world *w, uint64_t now_ns)
{
	uint64_t silent_ns = world_silent_ns(w), probes = 0, answers = 0;

	if (now_ns >= w->probe_ns)
		probes = (now_ns - w->probe_ns) / w->period_ns + 1;
	if (now_ns >= w->probe_ns + w->answer_ns)
		answers = (now_ns - w->probe_ns - w->answer_ns) / w->period_ns + 1;
	if (answers > (silent_ns - w->probe_ns) / w->period_ns)
		answers = (silent_ns - w->probe_ns) / w->period_ns;
	tcp.now_ns = now_ns;
	tcp.segments = (uint32_t)answers;
	tcp.acked_ns = answers ? w->probe_ns + (answers - 1) * w->period_ns + w->answer_ns : 0;
	tcp.unacked = w->data && probes > answers;
	tcp.probes = w->data ? 0 : (uint8_t)(probes - answers < 127 ? probes - answers : 127);
}

/* The peer is given up after the timeout, at most a quarter of it and two polls later. */
static void world_check(const struct world *w)
{
	uint64_t silent_ns = world_silent_ns(w), now_ns = 0;
	struct rig rig;

	rig_open(&rig);
	env_config.user_timeout_ns = w->timeout_ns;
	while (!rig.comm.end_error && now_ns < silent_ns + 2 * w->timeout_ns) {
		now_ns += w->step_ns;
		world_set_tcp(w, now_ns);
		rig.comm.now_ns = now_ns;
		comm_lane_sample(&rig.lane);
	}
	CHECK_EQ(rig.comm.end_error, -ETIMEDOUT);
	CHECK(now_ns >= silent_ns + w->timeout_ns);
	CHECK(now_ns <= silent_ns + w->timeout_ns + w->timeout_ns / 4 + 2 * w->step_ns);
	rig_close(&rig);
}

TEST(a_silent_peer_is_given_up_after_the_timeout)
{
	static const uint64_t timeouts_ms[] = { 100, 2000, 4100, 7000 };
	const uint64_t saved_ns = env_config.user_timeout_ns;

	for (unsigned i = 0; i < 4 * 2 * 40 && !check_failures; i++) {
		uint64_t timeout_ns = timeouts_ms[i % 4] * MS, check_ns = timeout_ns / 4;
		unsigned phase = i / 8;
		struct world w = { .timeout_ns = timeout_ns, .data = i / 4 % 2 };

		check_ns = check_ns < SECOND ? check_ns : SECOND;
		w.step_ns = timeout_ns / 200 + phase * 7919;
		w.probe_ns = 100 * SECOND + check_ns * phase / 40;
		w.period_ns = check_ns - check_ns * (phase % 5) / 37;
		w.answer_ns = check_ns * (phase % 4) / 4 + MS;
		w.death_ns = w.probe_ns + w.period_ns * (3 + phase % 3) + 1;
		world_check(&w);
	}
	env_config.user_timeout_ns = saved_ns;
}

int main(void)
{
	check_run();
	return check_done();
}
