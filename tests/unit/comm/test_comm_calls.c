/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_comm_calls.c - the system calls of a comm of one kernel lane: one send and one receive for a
 * small message. The functions that transfer bytes are doubles that count.
 */
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "double_env.h"
#include "kernel_pair.h"

enum { MESSAGES = 1000, LARGE_BYTES = 1 << 20 };

static atomic_uint sends, receives;

ssize_t recv(int fd, void *data, size_t len, int flags)
{
	atomic_fetch_add(&receives, 1);
	return syscall(SYS_recvfrom, fd, data, len, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	atomic_fetch_add(&receives, 1);
	return syscall(SYS_recvmsg, fd, msg, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	atomic_fetch_add(&sends, 1);
	return syscall(SYS_sendmsg, fd, msg, flags);
}

ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
	atomic_fetch_add(&sends, 1);
	return syscall(SYS_sendto, fd, from, bytes, flags, NULL, 0);
}

static void calls_reset(void)
{
	atomic_store(&sends, 0);
	atomic_store(&receives, 0);
}

TEST(a_small_message_costs_one_send_and_one_receive)
{
	uint8_t tx[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, rx[8];
	struct pair pair;

	pair_open(&pair);
	for (unsigned m = 0; m < MESSAGES && !check_failures; m++) {
		struct request *send = NULL, *recv = NULL, *next = NULL;
		int done = 0;
		size_t size = 0;

		tx[0] = (uint8_t)m;
		calls_reset();
		CHECK_EQ(comm_post(pair.recv, rx, sizeof(rx), 0, NULL, &recv), 0);
		CHECK_EQ(comm_post(pair.recv, rx, sizeof(rx), 0, NULL, &next), 0);
		CHECK_EQ(atomic_load(&receives), 0); /* test() reads it */
		CHECK_EQ(comm_post(pair.send, tx, sizeof(tx), 0, NULL, &send), 0);
		CHECK_EQ(atomic_load(&sends), 1);
		CHECK(atomic_load(&receives) <= 1); /* the other direction is read each ms */
		CHECK_EQ(comm_test(send, &done, NULL), 0);
		CHECK(done); /* the kernel has it */
		for (done = 0; !done && !check_failures;) {
			calls_reset();
			CHECK_EQ(comm_test(recv, &done, &size), 0);
			CHECK_EQ(atomic_load(&receives), 1); /* although two receives are posted */
		}
		CHECK_EQ(size, sizeof(rx));
		CHECK_MEM(rx, tx, sizeof(rx));
		CHECK_EQ(comm_post(pair.send, tx, sizeof(tx), 0, NULL, &send), 0);
		for (done = 0; !done && !check_failures;)
			CHECK_EQ(comm_test(next, &done, NULL), 0);
		CHECK_EQ(comm_test(send, &done, NULL), 0);
	}
	pair_close(&pair);
}

TEST(a_large_message_is_read_when_its_receive_is_posted)
{
	static uint8_t tx[LARGE_BYTES], rx[LARGE_BYTES];
	struct pair pair;

	pair_open(&pair);
	for (unsigned m = 0; m < 8 && !check_failures; m++) {
		struct request *send = NULL, *recv = NULL;
		int sent = 0, received = 0;

		calls_reset();
		CHECK_EQ(comm_post(pair.recv, rx, sizeof(rx), 0, NULL, &recv), 0);
		CHECK(atomic_load(&receives) >= 1);
		CHECK_EQ(comm_post(pair.send, tx, sizeof(tx), 0, NULL, &send), 0);
		while ((!sent || !received) && !check_failures) {
			if (!sent)
				CHECK_EQ(comm_test(send, &sent, NULL), 0);
			if (!received)
				CHECK_EQ(comm_test(recv, &received, NULL), 0);
		}
	}
	pair_close(&pair);
}
