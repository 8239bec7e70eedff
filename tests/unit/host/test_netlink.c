/* SPDX-License-Identifier: Apache-2.0 */
/* test_netlink.c - the rtnetlink client accepts only messages from the kernel; its worker thread
 * never blocks the caller. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "host/netlink.h"
#include "host/netlink_get.h"
#include "host/netlink_worker.h"

static int forger = -1;

static int count_messages(void *ctx, const struct nlmsghdr *message)
{
	(void)message;
	++*(unsigned *)ctx;
	return 0;
}

/* Sends a message without a body to the client's socket. False: not permitted. */
static bool forge(const struct netlink *to, uint16_t type, uint32_t sequence)
{
	struct sockaddr_nl address = { 0 };
	socklen_t len = sizeof(address);
	struct nlmsghdr message = {
		.nlmsg_len = sizeof(message),
		.nlmsg_type = type,
		.nlmsg_seq = sequence,
	};
	ssize_t sent;

	CHECK_EQ(getsockname(to->fd, (struct sockaddr *)&address, &len), 0);
	sent = sendto(forger, &message, sizeof(message), 0, (struct sockaddr *)&address, len);
	CHECK(sent == (ssize_t)sizeof(message) || errno == EPERM);
	return sent == (ssize_t)sizeof(message);
}

TEST(forged_events_are_ignored)
{
	struct netlink monitor;
	unsigned count = 0;

	CHECK_EQ(netlink_open(&monitor, RTMGRP_LINK), 0);
	if (!forge(&monitor, RTM_NEWLINK, 0)) {
		netlink_close(&monitor);
		return; /* only root may send to a multicast listener */
	}
	CHECK(forge(&monitor, NLMSG_ERROR, 0));
	CHECK_EQ(netlink_events(&monitor, count_messages, &count), 0);
	CHECK_EQ(count, 0);
	netlink_close(&monitor);
}

/* The forged answers are queued before the request is sent. */
TEST(forged_answers_are_ignored)
{
	struct netlink_get_link link;
	struct netlink nl;

	CHECK_EQ(netlink_open(&nl, 0), 0);
	forge(&nl, RTM_NEWLINK, nl.sequence + 1);
	forge(&nl, NLMSG_DONE, nl.sequence + 1);
	CHECK_EQ(netlink_get_link(&nl, 1, &link), 0);
	CHECK_STR(link.ifname, "lo");
	CHECK_EQ(netlink_get_link(&nl, 0x7fffffff, &link), -ENODEV);
	netlink_close(&nl);
}

/* ---- the worker ------------------------------------------------------------------------------ */

#define ROUNDS 3u

static struct netlink_worker worker; /* too large for the stack */
static struct netlink queries;
static pthread_mutex_t queries_lock = PTHREAD_MUTEX_INITIALIZER;

/* Fills the socket's buffer, so that the worker's next send blocks, as with a busy kernel. */
static void fill_buffer(int fd)
{
	static const char byte[1024];
	int count = 0;

	while (send(fd, byte, sizeof(byte), MSG_DONTWAIT) > 0)
		count++;
	CHECK(count > 0);
}

static uint32_t next_sequence(int fd)
{
	struct netlink_message message;
	ssize_t got;

	do {
		got = recv(fd, &message, sizeof(message), 0);
		CHECK(got > 0);
	} while (got > (ssize_t)sizeof(message.head)); /* from fill_buffer() */
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

/* Posts more requests than the ring holds while the kernel reads none: a post that waits would
 * hang. */
TEST(posting_never_waits_for_the_kernel)
{
	uint32_t last = 0, seq;
	int fd[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
	fill_buffer(fd[0]);
	CHECK_EQ(netlink_worker_start(&worker, fd[0], 1, &queries, &queries_lock), 0);
	for (uint32_t i = 1; i <= ROUNDS * NETLINK_WORKER_MESSAGES_MAX; i++)
		post(i);
	CHECK(!netlink_worker_answered(&worker));
	/* The first ones arrive in order. */
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

/* The read waits while another thread uses the socket. Afterwards, the worker sends a request whose
 * answer wakes the thread that waits on the socket. */
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

static atomic_uint task_runs;

static bool task(void *ctx)
{
	atomic_fetch_add((atomic_uint *)ctx, 1);
	return true;
}

/* When the task reports a change, the worker sends a request whose answer wakes the waiter. */
TEST(the_task_runs_periodically_and_on_request)
{
	struct netlink_message request;
	int fd[2];

	memset(&worker, 0, sizeof(worker));
	worker.task = task;
	worker.task_ctx = &task_runs;
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
	CHECK_EQ(netlink_worker_start(&worker, fd[0], 1, &queries, &queries_lock), 0);
	/* First within about a second without a request, then on request. */
	CHECK(recv(fd[1], &request, sizeof(request), 0) > 0);
	CHECK(atomic_load(&task_runs) >= 1);
	netlink_worker_run_task(&worker);
	CHECK(recv(fd[1], &request, sizeof(request), 0) > 0);
	CHECK(atomic_load(&task_runs) >= 2);
	netlink_worker_stop(&worker);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	forger = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	CHECK(forger >= 0);
	check_run();
	close(forger);
	return check_done();
}
