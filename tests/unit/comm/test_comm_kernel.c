/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_kernel.c - plugin_*() end to end over kernel lanes on the loopback interface. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "comm/comm_impl.h"
#include "double_env.h"
#include "poll/poller.h"
#include "kernel_pair.h"

/* ---- two threads ------------------------------------------------------------------------------ */

enum { THREAD_MESSAGES = 3000, THREAD_BYTES = 20000 };

static size_t thread_size(uint64_t message)
{
	return (size_t)(message * 7919 % THREAD_BYTES);
}

static void *thread_send(void *arg)
{
	static uint8_t data[THREAD_BYTES];
	struct pair *pair = arg;

	for (uint64_t m = 0; m < THREAD_MESSAGES && !check_failures; m++) {
		struct request *request = NULL;
		int done = 0;

		memset(data, (int)(m & 255), thread_size(m));
		while (!request && !check_failures)
			CHECK_EQ(comm_post(pair->send, data, thread_size(m), 0, NULL, &request), 0);
		while (!done && !check_failures) {
			CHECK_EQ(comm_test(request, &done, NULL), 0);
			if (!done)
				sched_yield();
		}
	}
	return NULL;
}

static void *thread_recv(void *arg)
{
	static uint8_t data[2][THREAD_BYTES];
	struct request *requests[2] = { NULL, NULL };
	struct pair *pair = arg;

	for (uint64_t m = 0; m <= THREAD_MESSAGES && !check_failures; m++) {
		struct request *request = requests[(m + 1) % 2];
		size_t size = 0;
		int done = 0;

		if (m < THREAD_MESSAGES) /* one ahead */
			CHECK_EQ(comm_post(pair->recv, data[m % 2], THREAD_BYTES, 0, NULL,
					   &requests[m % 2]),
				 0);
		while (request && !done && !check_failures) {
			CHECK_EQ(comm_test(request, &done, &size), 0);
			if (!done)
				sched_yield();
		}
		if (!request)
			continue;
		CHECK_EQ(size, thread_size(m - 1));
		for (size_t i = 0; i < size && !check_failures; i++)
			CHECK_EQ(data[(m + 1) % 2][i], (m - 1) & 255);
	}
	return NULL;
}

/* For TSan. */
TEST(comms_are_used_by_threads_while_others_open_and_close)
{
	struct pair pair, more;
	pthread_t sender, receiver;

	pair_open(&pair);
	pthread_create(&sender, NULL, thread_send, &pair);
	pthread_create(&receiver, NULL, thread_recv, &pair);
	for (int i = 0; i < 20; i++) {
		pair_open(&more);
		pair_close(&more);
	}
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	pair_close(&pair);
}

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

/* ---- several lanes ---------------------------------------------------------------------------- */

static unsigned lanes_of(struct comm *comm)
{
	unsigned count;

	comm_hold(comm);
	comm_adopt(comm);
	count = (unsigned)__builtin_popcount(comm->scheduler.live);
	comm_leave(comm);
	return count;
}

/* There may be no other poll. */
TEST(a_message_is_acknowledged_on_another_lane_in_the_poll_that_completes_it)
{
	enum { LANES = 4, COUNT = 40, BYTES = 65536 };
	static uint8_t tx[BYTES], rx[BYTES];
	uint64_t by_others = 0;
	struct pair pair;

	env_config.kernel_lanes = LANES;
	pair_open(&pair);
	while (lanes_of(pair.recv) < LANES || lanes_of(pair.send) < LANES)
		sched_yield();
	/* ACKs go by lane 0, messages by the others, however quick that one is. */
	comm_hold(pair.send);
	pair.send->scheduler.lane[0].backup = true;
	comm_leave(pair.send);
	for (unsigned m = 0; m < COUNT; m++) {
		struct request *send, *recv;
		int sent = 0, received = 0;

		CHECK_EQ(comm_post(pair.recv, rx, BYTES, 0, NULL, &recv), 0);
		CHECK_EQ(comm_post(pair.send, tx, BYTES, 0, NULL, &send), 0);
		while (!received)
			CHECK_EQ(comm_test(recv, &received, NULL), 0);
		comm_hold(pair.recv);
		CHECK(!pair.recv->rx.ack_due);
		comm_leave(pair.recv);
		while (!sent)
			CHECK_EQ(comm_test(send, &sent, NULL), 0);
	}
	for (unsigned i = 1; i < LANES; i++)
		by_others += stats_get(&comm_stats_lane(pair.recv->stats, i)
						->record->value[HARP_LANE_payload_bytes]);
	CHECK(by_others > 0);
	pair_close(&pair);
	env_config.kernel_lanes = 1;
}
