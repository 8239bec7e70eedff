/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_silence.c - for how long the peer of a kernel lane has not answered, and when it is given up.
 *
 * TCP_INFO is the test's: a peer is asked in steps, answers each question, and is gone at some time.
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
#define KERNEL_STEP (10 * MS) /* of its clock, HZ=100 */

/* ---- what the kernel says ------------------------------------------------------------------------- */

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
	uint64_t steps = tcp.now_ns / KERNEL_STEP - tcp.acked_ns / KERNEL_STEP;

	if (level != IPPROTO_TCP || name != TCP_INFO || *len < sizeof(info))
		return -1;
	info.tcpi_last_ack_recv = (uint32_t)(steps * KERNEL_STEP / MS);
	memcpy(value, &info, sizeof(info));
	return 0;
}

/* ---- a lane, and a comm of that one lane ---------------------------------------------------------- */

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

/* The caller's clock may be older than the kernel's. */
static uint64_t rig_silence_ms(struct rig *rig, uint64_t ms, uint64_t older_ms)
{
	tcp.now_ns = 100 * SECOND + ms * MS;
	return lane_kernel_silence_ns(rig->lane.lane, tcp.now_ns - older_ms * MS) / MS;
}

/* An answer came then, and nothing since. */
static void tcp_answers(uint64_t ms, uint32_t segments)
{
	tcp.acked_ns = 100 * SECOND + ms * MS;
	tcp.segments = segments;
}

/* ---- how long is it ------------------------------------------------------------------------------- */

/* By the clocks the answer came before the last look: the kernel's clock goes in steps, and ours is old. */
TEST(clocks_that_differ_make_no_silence)
{
	struct rig rig;

	rig_open(&rig);
	tcp.unacked = 1;
	CHECK_EQ(rig_silence_ms(&rig, 9, 0), 0);
	tcp_answers(11, 1);
	CHECK_EQ(rig_silence_ms(&rig, 509, 0), 0);
	tcp_answers(600, 2);
	CHECK_EQ(rig_silence_ms(&rig, 1509, 300), 0);
	rig_close(&rig);
}

/* Any host may send segments that look like the peer's. */
TEST(segments_that_are_no_answer_do_not_end_a_silence)
{
	struct rig rig;

	rig_open(&rig);
	tcp.unacked = 1;
	tcp_answers(0, 1);
	CHECK_EQ(rig_silence_ms(&rig, 0, 0), 0);
	for (uint64_t ms = 1000; ms <= 5000; ms += 1000) {
		tcp.segments += 100;
		(void)rig_silence_ms(&rig, ms, 0);
	}
	CHECK(rig_silence_ms(&rig, 6000, 0) >= 4000);
	rig_close(&rig);
}

/* ---- when is it given up -------------------------------------------------------------------------- */

struct world {
	uint64_t timeout_ns, step_ns; /* between two polls */
	uint64_t asked_ns, period_ns; /* the first question, and from one to the next */
	uint64_t answer_ns;           /* from a question to its answer */
	uint64_t gone_ns;             /* no question is answered from here on */
	bool data;
};

/* The first question that is not answered. */
static uint64_t world_last_ns(const struct world *w)
{
	uint64_t before = (w->gone_ns - w->asked_ns + w->period_ns - 1) / w->period_ns;

	return w->asked_ns + before * w->period_ns;
}

static void world_is(const struct world *w, uint64_t now_ns)
{
	uint64_t end_ns = world_last_ns(w), asked = 0, answered = 0;

	if (now_ns >= w->asked_ns)
		asked = (now_ns - w->asked_ns) / w->period_ns + 1;
	if (now_ns >= w->asked_ns + w->answer_ns)
		answered = (now_ns - w->asked_ns - w->answer_ns) / w->period_ns + 1;
	if (answered > (end_ns - w->asked_ns) / w->period_ns)
		answered = (end_ns - w->asked_ns) / w->period_ns;
	tcp.now_ns = now_ns;
	tcp.segments = (uint32_t)answered;
	tcp.acked_ns = answered ? w->asked_ns + (answered - 1) * w->period_ns + w->answer_ns : 0;
	tcp.unacked = w->data && asked > answered;
	tcp.probes = w->data ? 0 : (uint8_t)(asked - answered < 127 ? asked - answered : 127);
}

/* Not before the timeout is over, nor later than by a quarter of it, and by what polling takes. */
static void world_check(const struct world *w)
{
	uint64_t begun_ns = world_last_ns(w), now_ns = 0;
	struct rig rig;

	rig_open(&rig);
	env_config.user_timeout_ns = w->timeout_ns;
	while (!rig.comm.end_error && now_ns < begun_ns + 2 * w->timeout_ns) {
		now_ns += w->step_ns;
		world_is(w, now_ns);
		rig.comm.now_ns = now_ns;
		comm_lane_sample(&rig.lane);
	}
	CHECK_EQ(rig.comm.end_error, -ETIMEDOUT);
	CHECK(now_ns >= begun_ns + w->timeout_ns);
	CHECK(now_ns <= begun_ns + w->timeout_ns + w->timeout_ns / 4 + 2 * w->step_ns);
	rig_close(&rig);
}

TEST(a_silent_peer_is_given_up_after_the_timeout)
{
	static const uint64_t timeouts_ms[] = { 100, 2000, 4100, 7000 };
	const uint64_t usual_ns = env_config.user_timeout_ns;

	for (unsigned i = 0; i < 4 * 2 * 40 && !check_failures; i++) {
		uint64_t timeout_ns = timeouts_ms[i % 4] * MS, link_poll_ns = timeout_ns / 4;
		unsigned phase = i / 8;
		struct world w = { .timeout_ns = timeout_ns, .data = i / 4 % 2 };

		link_poll_ns = link_poll_ns < SECOND ? link_poll_ns : SECOND;
		w.step_ns = timeout_ns / 200 + phase * 7919;
		w.asked_ns = 100 * SECOND + link_poll_ns * phase / 40;
		w.period_ns = link_poll_ns - link_poll_ns * (phase % 5) / 37;
		w.answer_ns = link_poll_ns * (phase % 4) / 4 + MS;
		w.gone_ns = w.asked_ns + w.period_ns * (3 + phase % 3) + 1;
		world_check(&w);
	}
	env_config.user_timeout_ns = usual_ns;
}

int main(void)
{
	check_run();
	return check_done();
}
