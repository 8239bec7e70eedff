/* SPDX-License-Identifier: Apache-2.0 */
/* test_netlink.c - the rtnetlink client accepts messages of the kernel only. */
#include "host/netlink.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "host/netlink_get.h"

static int forger = -1;

static int count_messages(void *ctx, const struct nlmsghdr *message)
{
	(void)message;
	++*(unsigned *)ctx;
	return 0;
}

/* A message without a body, from a process. False: it may not. */
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

static int test_events(void)
{
	struct netlink monitor;
	unsigned count = 0;

	CHECK_EQ(netlink_open(&monitor, RTMGRP_LINK), 0);
	if (!forge(&monitor, RTM_NEWLINK, 0)) {
		netlink_close(&monitor);
		return check_skip("to send as the kernel does needs root");
	}
	CHECK(forge(&monitor, NLMSG_ERROR, 0));
	CHECK_EQ(netlink_events(&monitor, count_messages, &count), 0);
	CHECK_EQ(count, 0);
	netlink_close(&monitor);
	return 0;
}

/* Answers that come before the question was asked. */
static void test_call(void)
{
	struct netlink_get_link link;
	struct netlink nl;

	CHECK_EQ(netlink_open(&nl, 0), 0);
	CHECK(forge(&nl, RTM_NEWLINK, nl.sequence + 1));
	CHECK(forge(&nl, NLMSG_DONE, nl.sequence + 1));
	CHECK_EQ(netlink_get_link(&nl, 1, &link), 0);
	CHECK_STR(link.ifname, "lo");
	CHECK_EQ(netlink_get_link(&nl, 0x7fffffff, &link), -ENODEV);
	netlink_close(&nl);
}

int main(void)
{
	int skip;

	forger = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	CHECK(forger >= 0);
	skip = test_events();
	if (!skip)
		test_call();
	close(forger);
	return skip ? skip : check_done();
}
