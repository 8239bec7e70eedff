/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_kernel.c - plugin_*() end to end over kernel lanes on the loopback interface. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "comm/comm_impl.h"
#include "double_env.h"
#include "poll/poller.h"
#include "kernel_pair.h"

static int open_files(void)
{
	int count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

TEST(a_forked_child_has_no_descriptor_of_the_plugin)
{
	int before = open_files(), status = -1;
	struct pair pair;
	pid_t pid;

	pair_open(&pair);
	pid = fork();
	if (pid == 0)
		_exit(open_files() != before);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(WEXITSTATUS(status), 0);
	pair_close(&pair);
}

/* ---- a close with requests in flight --------------------------------------------------------- */

/* Posts until the comm fails, and checks its warning. */
static void check_fails_with(struct comm *comm, const char *text)
{
	static uint8_t data[65536];
	struct request *request;
	int done = 0, rc = 0;

	env_warns = 0;
	for (int i = 0; i < TURNS_MAX && !rc; i++) {
		rc = comm_post(comm, data, sizeof(data), 0, NULL, &request);
		for (done = 0; request && !rc && !done;)
			rc = comm_test(request, &done, NULL);
	}
	CHECK_EQ(rc, -ECONNRESET);
	CHECK_EQ(env_warns, 1);
	if (!strstr(env_warn, text)) {
		fprintf(stderr, "\"%s\" does not contain \"%s\"\n", env_warn, text);
		check_failed();
	}
}

TEST(a_receiver_that_closes_with_a_receive_in_flight_aborts)
{
	static uint8_t rx[64];
	struct request *request;
	struct pair pair;

	pair_open(&pair);
	CHECK_EQ(comm_post(pair.recv, rx, sizeof(rx), 0, NULL, &request), 0);
	plugin_close(pair.recv);
	check_fails_with(pair.send, "over kernel-tcp: the peer aborted");
	plugin_close(pair.send);
	plugin_finalize(pair.ctx);
}

TEST(a_close_in_the_middle_of_a_message_is_reported_as_abort_or_death)
{
	enum { BYTES = 64 << 20 };
	static uint8_t tx[BYTES], rx[BYTES];
	struct request *send, *recv;
	struct pair pair;
	int done;

	pair_open(&pair);
	CHECK_EQ(comm_post(pair.send, tx, BYTES, 0, NULL, &send), 0);
	CHECK_EQ(comm_post(pair.recv, rx, BYTES, 0, NULL, &recv), 0);
	CHECK_EQ(comm_test(recv, &done, NULL), 0);
	CHECK(!done);
	plugin_close(pair.send);
	check_fails_with(pair.recv,
			 "in the middle of a message: the peer aborted, or its process died");
	plugin_close(pair.recv);
	plugin_finalize(pair.ctx);
}

/* ---- several lanes --------------------------------------------------------------------------- */

static unsigned count_lanes(struct comm *comm)
{
	unsigned count;

	comm_acquire(comm);
	comm_adopt(comm);
	count = (unsigned)__builtin_popcount(comm->scheduler.live);
	comm_release(comm);
	return count;
}

/* The application may not poll again. */
TEST(a_message_is_acknowledged_on_another_lane_in_the_poll_that_completes_it)
{
	enum { LANES = 4, COUNT = 40, BYTES = 65536 };
	static uint8_t tx[BYTES], rx[BYTES];
	uint64_t other_bytes = 0;
	struct pair pair;

	env_config.kernel_lanes = LANES;
	pair_open(&pair);
	while (count_lanes(pair.recv) < LANES || count_lanes(pair.send) < LANES)
		sched_yield();
	/* Lane 0 carries the ACKs and no messages, however fast it is. */
	comm_acquire(pair.send);
	pair.send->scheduler.lane[0].backup = true;
	comm_release(pair.send);
	for (unsigned m = 0; m < COUNT; m++) {
		struct request *send, *recv;
		int sent = 0, received = 0;

		CHECK_EQ(comm_post(pair.recv, rx, BYTES, 0, NULL, &recv), 0);
		CHECK_EQ(comm_post(pair.send, tx, BYTES, 0, NULL, &send), 0);
		while (!received)
			CHECK_EQ(comm_test(recv, &received, NULL), 0);
		comm_acquire(pair.recv);
		CHECK(!pair.recv->rx.ack_due);
		comm_release(pair.recv);
		while (!sent)
			CHECK_EQ(comm_test(send, &sent, NULL), 0);
	}
	for (unsigned i = 1; i < LANES; i++)
		other_bytes += stats_get(&comm_stats_lane(pair.recv->stats, i)
						  ->record->value[HARP_LANE_payload_bytes]);
	CHECK(other_bytes > 0);
	pair_close(&pair);
	env_config.kernel_lanes = 1;
}
