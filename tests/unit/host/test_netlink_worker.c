/* SPDX-License-Identifier: Apache-2.0 */
/* test_netlink_worker.c - requests never block the caller, and answers are reported. */
#include "host/netlink_worker.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define ROUNDS 3u

static struct netlink_worker worker; /* too large for a stack */
static struct netlink queries;
static pthread_mutex_t queries_lock = PTHREAD_MUTEX_INITIALIZER;

/* A kernel that is busy: a socket whose buffer is full keeps a sender in send(). */
static int stuff(int fd)
{
	static const char byte[1024];
	int count = 0;

	while (send(fd, byte, sizeof(byte), MSG_DONTWAIT) > 0)
		count++;
	CHECK(count > 0);
	return count;
}

static uint32_t next_sequence(int fd)
{
	struct netlink_message message;
	ssize_t got;

	do {
		got = recv(fd, &message, sizeof(message), 0);
		CHECK(got > 0);
	} while (got > (ssize_t)sizeof(message.head)); /* stuffing */
	return message.head.nlmsg_seq;
}

static void post(uint32_t number)
{
	struct netlink_message message;

	memset(&message, 0, sizeof(message));
	message.head.nlmsg_len = sizeof(message.head);
	message.head.nlmsg_seq = number;
	netlink_worker_post(&worker, &message);
}

static void wait_for_answer(void)
{
	while (!netlink_worker_answered(&worker))
		sched_yield();
	netlink_worker_clear(&worker);
}

/* More than fit, while the kernel does nothing at all: were one posted by waiting, this would hang. */
TEST(posting_never_waits_for_the_kernel)
{
	uint32_t last = 0, seq;
	int fd[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
	stuff(fd[0]);
	CHECK_EQ(netlink_worker_start(&worker, fd[0], 1, &queries, &queries_lock), 0);
	for (uint32_t i = 1; i <= ROUNDS * NETLINK_WORKER_MESSAGES_MAX; i++)
		post(i);
	CHECK(!netlink_worker_answered(&worker));
	/* The first, in their order: one may have been with the kernel while the ring was filled. */
	for (unsigned i = 0; i < NETLINK_WORKER_MESSAGES_MAX; i++) {
		seq = next_sequence(fd[1]);
		CHECK_EQ(seq, last + 1);
		last = seq;
	}
	wait_for_answer();
	netlink_worker_stop(&worker);
	netlink_worker_stop(&worker);
	netlink_worker_clear(&worker);
	CHECK(!netlink_worker_answered(&worker));
	close(fd[0]);
	close(fd[1]);
}

/* The tables while another thread uses the socket for requests; the loopback interface has an address. When they are there a
 * question goes out whose answer wakes a thread that sleeps on the socket. */
TEST(tables_are_read_in_the_background)
{
	struct netlink_message request;
	struct harp_lease_tables tables;
	int rc = 0, fd[2];

	memset(&worker, 0, sizeof(worker));
	CHECK_EQ(netlink_open(&queries, 0), 0);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
	CHECK_EQ(netlink_worker_start(&worker, fd[0], 1, &queries, &queries_lock), 0);
	CHECK(!netlink_worker_tables(&worker, &tables, &rc));
	pthread_mutex_lock(&queries_lock);
	netlink_worker_request_tables(&worker);
	netlink_worker_request_tables(&worker);
	CHECK(!netlink_worker_tables(&worker, &tables, &rc));
	pthread_mutex_unlock(&queries_lock);
	CHECK(recv(fd[1], &request, sizeof(request), 0) > 0);
	CHECK_EQ(request.head.nlmsg_type, RTM_GETLINK);
	CHECK(netlink_worker_tables(&worker, &tables, &rc));
	CHECK_EQ(rc, 0);
	CHECK(tables.address_count <= HARP_LEASE_ADDRESSES_MAX);
	netlink_worker_stop(&worker);
	close(fd[0]);
	close(fd[1]);
	netlink_close(&queries);
}

static atomic_uint looks;

static bool task(void *ctx)
{
	atomic_fetch_add((atomic_uint *)ctx, 1);
	return true;
}

/* The task has found something: a request goes out whose answer wakes a thread that sleeps on the socket. */
TEST(the_task_runs_by_itself_and_on_request)
{
	struct netlink_message request;
	int fd[2];

	memset(&worker, 0, sizeof(worker));
	worker.task = task;
	worker.task_ctx = &looks;
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
	CHECK_EQ(netlink_worker_start(&worker, fd[0], 1, &queries, &queries_lock), 0);
	/* Once by itself, within a second or so, and once more when asked to. */
	CHECK(recv(fd[1], &request, sizeof(request), 0) > 0);
	CHECK(atomic_load(&looks) >= 1);
	netlink_worker_run_task(&worker);
	CHECK(recv(fd[1], &request, sizeof(request), 0) > 0);
	CHECK(atomic_load(&looks) >= 2);
	netlink_worker_stop(&worker);
	close(fd[0]);
	close(fd[1]);
}
