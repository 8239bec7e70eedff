/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_turns.c - turns of a driver of kernel lanes, over sockets: which lanes are looked at, and one that ends in the
 * middle of a turn, or is the only one. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

#include "double_env.h"
#include "lane/kernel_info.h"
#include "kernel_pair.h"

enum { LANES = 4, BYTES = COMM_KEPT_BYTES_MAX + 64 }; /* a message that is done with its ACK */

static atomic_int silent; /* so many questions say that nobody has answered for long */

uint64_t __wrap_kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns);

uint64_t __wrap_kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns)
{
	int left = atomic_load(&silent);

	(void)fd;
	(void)silence;
	(void)now_ns;
	while (left > 0)
		if (atomic_compare_exchange_weak(&silent, &left, left - 1))
			return UINT64_MAX;
	return 0;
}

static unsigned lanes_of(struct comm *comm)
{
	struct comm_lane_view views[COMM_LANES_MAX];

	return comm_lane_views(comm, views);
}

/* Polls of the sender until it knows that its message has arrived, which it has. */
static unsigned polls_until_acked(struct pair *pair)
{
	static uint8_t tx[BYTES], rx[BYTES];
	struct request *send, *recv;
	int sent = 0, received = 0;
	unsigned polls = 0;

	CHECK_EQ(plugin_irecv(pair->recv, rx, BYTES, 0, NULL, &recv), 0);
	CHECK_EQ(plugin_isend(pair->send, tx, BYTES, 0, NULL, &send), 0);
	while (!received && !check_failures) {
		CHECK_EQ(plugin_test(recv, &received, NULL), 0);
		if (!sent)
			CHECK_EQ(plugin_test(send, &sent, NULL), 0);
	}
	for (; !sent && !check_failures; polls++)
		CHECK_EQ(plugin_test(send, &sent, NULL), 0);
	return polls;
}

static void turns_open(struct pair *pair)
{
	env_config.kernel_lanes = LANES;
	pair_open(pair);
	/* One that did not come in shows when it is used, and is dialled again. */
	while (lanes_of(pair->send) < LANES || lanes_of(pair->recv) < LANES)
		(void)polls_until_acked(pair);
}

static void turns_close(struct pair *pair)
{
	pair_close(pair);
	env_config.kernel_lanes = 1;
}

/* At their next look its drivers take all lanes to have something to read (kernel_driver.c, LOOKS_UNTIL_ALL). */
static void turns_look_at_all(struct comm *comm)
{
	for (unsigned i = 0; i < comm->kernel_count; i++) {
		struct kernel_driver *kd = &comm->kernels[i].kd;

		while (!driver_take(&kd->driver))
			sched_yield();
		kd->looks = 4095;
		driver_give(&kd->driver);
	}
}

/* Now and then all lanes are taken to have something to read. Most of a sender's are read each millisecond only, and until then the
 * one that brings ACKs is looked at all the same. */
static void test_lanes_that_are_not_read(void)
{
	struct pair pair;
	unsigned polls = 0;

	turns_open(&pair);
	for (unsigned m = 0; m < 100; m++) {
		turns_look_at_all(pair.send);
		polls += polls_until_acked(&pair);
	}
	CHECK(polls < 100 * 16);
	turns_close(&pair);
}

/* A lane that is given up in the middle of a turn is not driven in the rest of it. */
static void test_silent_lanes(void)
{
	static uint8_t tx[8], rx[8];
	uint64_t timeout_ns = env_config.user_timeout_ns;

	env_config.user_timeout_ns = 4000; /* asked each microsecond */
	for (unsigned m = 0; m < 40 && !check_failures; m++) {
		struct request *send, *recv;
		int sent = 0, received = 0;
		struct pair pair;

		turns_open(&pair);
		(void)polls_until_acked(&pair);
		CHECK_EQ(plugin_irecv(pair.recv, rx, sizeof(rx), 0, NULL, &recv), 0);
		for (unsigned i = 0; i < 8; i++)
			CHECK_EQ(plugin_test(recv, &received, NULL), 0);
		turns_look_at_all(pair.recv);
		atomic_store(&silent, 1);
		while (atomic_load(&silent))
			CHECK_EQ(plugin_test(recv, &received, NULL), 0);
		CHECK_EQ(plugin_isend(pair.send, tx, sizeof(tx), 0, NULL, &send), 0);
		while ((!sent || !received) && !check_failures) {
			if (!received)
				CHECK_EQ(plugin_test(recv, &received, NULL), 0);
			if (!sent)
				CHECK_EQ(plugin_test(send, &sent, NULL), 0);
		}
		turns_close(&pair);
	}
	env_config.user_timeout_ns = timeout_ns;
}

/* Nobody is woken for what a turn has found, but did not say. */
static void test_the_only_lane_is_given_up_in_that_turn(void)
{
	static uint8_t rx[8];
	uint64_t timeout_ns = env_config.user_timeout_ns;
	struct request *recv;
	int received = 0, rc = 0;
	struct pair pair;

	env_config.user_timeout_ns = 4000; /* asked each microsecond */
	pair_open(&pair);
	CHECK(pair.recv->only != NULL);
	CHECK_EQ(plugin_irecv(pair.recv, rx, sizeof(rx), 0, NULL, &recv), 0);
	CHECK_EQ(plugin_test(recv, &received, NULL), 0);
	atomic_store(&silent, 1);
	while (atomic_load(&silent))
		rc = plugin_test(recv, &received, NULL);
	CHECK_EQ(rc, -ETIMEDOUT);
	CHECK_EQ(received, 0);
	pair_close(&pair);
	env_config.user_timeout_ns = timeout_ns;
}

int main(void)
{
	test_lanes_that_are_not_read();
	test_silent_lanes();
	test_the_only_lane_is_given_up_in_that_turn();
	return check_done();
}
