// SPDX-License-Identifier: Apache-2.0
/* side.c - see side.h. */
#include "xdp/side.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/veth.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/thread.h"
#include "host/netlink.h"

void side_init(struct side *side)
{
	*side = (struct side){ .route.fd = -1, .away.fd = -1 };
}

void side_name(char name[IFNAMSIZ], uint32_t ifindex)
{
	snprintf(name, IFNAMSIZ, "harp%u", ifindex);
}

/* ---- the namespace of the other end ---------------------------------------------------------- */

struct away {
	struct netlink *nl;
	int rc;
};

/* In a thread that ends: a namespace is a thread's own. */
static void *away_run(void *arg)
{
	struct away *away = arg;

	away->rc = unshare(CLONE_NEWNET) ? -errno : netlink_open(away->nl, 0);
	return NULL;
}

/* A socket in a new network namespace, which lives as long as the socket. */
static int away_open(struct netlink *nl)
{
	struct away away = { .nl = nl };
	pthread_t thread;
	int rc = thread_start(&thread, away_run, &away, "harp-away");

	if (rc)
		return rc;
	pthread_join(thread, NULL);
	return away.rc;
}

/* ---- the pair -------------------------------------------------------------------------------- */

static struct rtattr *nest_begin(struct netlink_message *message, uint16_t type, const void *data,
				 size_t len)
{
	size_t at = NLMSG_ALIGN(message->head.nlmsg_len);

	netlink_put(message, type, data, len);
	return (struct rtattr *)((uint8_t *)message + at);
}

static void nest_end(const struct netlink_message *message, struct rtattr *nest)
{
	nest->rta_len = (uint16_t)((const uint8_t *)message + message->head.nlmsg_len -
				   (const uint8_t *)nest);
}

static int side_create(struct netlink *nl, const char *name, uint32_t queues, int netns_fd)
{
	const struct ifinfomsg none = { 0 };
	struct rtattr *info, *data, *peer;
	struct netlink_message message;

	/* NLM_F_EXCL is a bit of NLM_F_DUMP, too, which netlink_call() wants no ACK for. */
	netlink_begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, sizeof(none));
	netlink_put(&message, IFLA_IFNAME, name, strlen(name) + 1);
	netlink_put(&message, IFLA_NUM_RX_QUEUES, &queues, sizeof(queues));
	netlink_put(&message, IFLA_NUM_TX_QUEUES, &queues, sizeof(queues));
	info = nest_begin(&message, IFLA_LINKINFO, "", 0);
	netlink_put(&message, IFLA_INFO_KIND, "veth", 5);
	data = nest_begin(&message, IFLA_INFO_DATA, "", 0);
	peer = nest_begin(&message, VETH_INFO_PEER, &none, sizeof(none));
	netlink_put(&message, IFLA_IFNAME, "away", 5);
	netlink_put(&message, IFLA_NET_NS_FD, &netns_fd, sizeof(netns_fd));
	nest_end(&message, peer);
	nest_end(&message, data);
	nest_end(&message, info);
	return netlink_call(nl, &message, NULL, NULL);
}

/* The other end stays down, so neither has a carrier, and IPv6 has nothing to say on it. */
static int side_up(struct netlink *nl, uint32_t ifindex)
{
	struct netlink_message message;
	struct ifinfomsg *body = netlink_begin(&message, RTM_NEWLINK, 0, sizeof(*body));

	body->ifi_index = (int)ifindex;
	body->ifi_flags = body->ifi_change = IFF_UP;
	return netlink_call(nl, &message, NULL, NULL);
}

static int side_index(void *ctx, const struct nlmsghdr *message)
{
	const struct ifinfomsg *body = NLMSG_DATA(message);

	if (message->nlmsg_type == RTM_NEWLINK)
		*(uint32_t *)ctx = (uint32_t)body->ifi_index;
	return 0;
}

/* By the socket's namespace, which need not be this thread's. */
static int side_find(struct netlink *nl, const char *name, uint32_t *ifindex)
{
	struct netlink_message message;

	*ifindex = 0;
	netlink_begin(&message, RTM_GETLINK, 0, sizeof(struct ifinfomsg));
	netlink_put(&message, IFLA_IFNAME, name, strlen(name) + 1);
	return netlink_call(nl, &message, side_index, ifindex);
}

static int side_pair(struct side *side, uint32_t queues)
{
	int netns_fd = ioctl(side->away.fd, SIOCGSKNS), rc;

	if (netns_fd < 0)
		return -errno;
	rc = side_create(&side->route, side->name, queues, netns_fd);
	close(netns_fd);
	if (!rc)
		rc = side_find(&side->route, side->name, &side->ifindex);
	return rc ? rc : side_up(&side->route, side->ifindex);
}

int side_make(struct side *side, const struct why *why, uint32_t ifindex, uint32_t queues)
{
	const char *what = "a network namespace";
	uint32_t there;
	int rc;

	side_init(side);
	side_name(side->name, ifindex);
	rc = netlink_open(&side->route, 0);
	if (!rc && !side_find(&side->route, side->name, &there))
		rc = -EEXIST;
	if (!rc)
		rc = away_open(&side->away);
	if (!rc || rc == -EEXIST)
		what = side->name;
	if (!rc)
		rc = side_pair(side, queues);
	if (!rc)
		return 0;
	why_fail(why, rc, "making %s: %s%s", what, strerror(-rc),
		 rc == -EPERM ? "; it takes CAP_SYS_ADMIN and CAP_NET_ADMIN" : "");
	side_drop(side);
	return rc;
}

void side_drop(struct side *side)
{
	struct netlink_message message;
	struct ifinfomsg *body;

	/* At once; the kernel would do it a moment after the namespace has no one any more. */
	if (side->ifindex) {
		body = netlink_begin(&message, RTM_DELLINK, 0, sizeof(*body));
		body->ifi_index = (int)side->ifindex;
		netlink_call(&side->route, &message, NULL, NULL);
	}
	side->ifindex = 0;
	netlink_close(&side->away);
	netlink_close(&side->route);
}
