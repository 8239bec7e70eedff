// SPDX-License-Identifier: Apache-2.0
/* side.c - see side.h. */
#include "xdp/side.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/net_namespace.h>
#include <linux/sockios.h>
#include <linux/veth.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/thread.h"
#include "host/netlink.h"

void side_init(struct side *side)
{
	*side = (struct side){ .route.fd = -1, .away.fd = -1, .netns_fd = -1 };
}

void side_name(char name[IFNAMSIZ], uint32_t ifindex)
{
	snprintf(name, IFNAMSIZ, "harp%u", ifindex);
}

/* The other end's name in its namespace, until side_keep(). */
#define SIDE_AWAY "away"

/* ---- the namespace of the other end ---------------------------------------------------------- */

struct away {
	struct netlink *nl;
	int netns_fd; /* -1: a new one */
	int rc;
};

/* In a thread that ends: a namespace is a thread's own. */
static void *away_run(void *arg)
{
	struct away *away = arg;
	int rc = away->netns_fd < 0 ? unshare(CLONE_NEWNET) : setns(away->netns_fd, CLONE_NEWNET);

	away->rc = rc ? -errno : netlink_open(away->nl, 0);
	return NULL;
}

/* A socket in that network namespace, or in a new one, which lives as long as the socket. */
static int away_open(struct netlink *nl, int netns_fd)
{
	struct away away = { .nl = nl, .netns_fd = netns_fd };
	pthread_t thread;
	int rc = thread_start(&thread, away_run, &away, "harp-away");

	if (rc)
		return rc;
	pthread_join(thread, NULL);
	return away.rc;
}

static int away_netns(struct side *side)
{
	side->netns_fd = ioctl(side->away.fd, SIOCGSKNS);
	return side->netns_fd < 0 ? -errno : 0;
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

/* Of both ends: locally administered, "HARP". It tells a device of HARP's from another one of the same name. */
static const uint8_t side_mac[6] = { 0x02, 'H', 'A', 'R', 'P', 0 };

static int side_create(struct netlink *nl, const char *name, uint32_t queues, int netns_fd)
{
	const struct ifinfomsg none = { 0 };
	struct rtattr *info, *data, *peer;
	struct netlink_message message;

	/* NLM_F_EXCL is a bit of NLM_F_DUMP, too, which netlink_call() wants no ACK for. */
	netlink_begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, sizeof(none));
	netlink_put(&message, IFLA_IFNAME, name, strlen(name) + 1);
	netlink_put(&message, IFLA_ADDRESS, side_mac, sizeof(side_mac));
	netlink_put(&message, IFLA_NUM_RX_QUEUES, &queues, sizeof(queues));
	netlink_put(&message, IFLA_NUM_TX_QUEUES, &queues, sizeof(queues));
	info = nest_begin(&message, IFLA_LINKINFO, "", 0);
	netlink_put(&message, IFLA_INFO_KIND, "veth", 5);
	data = nest_begin(&message, IFLA_INFO_DATA, "", 0);
	peer = nest_begin(&message, VETH_INFO_PEER, &none, sizeof(none));
	netlink_put(&message, IFLA_IFNAME, SIDE_AWAY, sizeof(SIDE_AWAY));
	netlink_put(&message, IFLA_ADDRESS, side_mac, sizeof(side_mac));
	netlink_put(&message, IFLA_NUM_RX_QUEUES, &queues, sizeof(queues));
	netlink_put(&message, IFLA_NUM_TX_QUEUES, &queues, sizeof(queues));
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

struct side_found {
	uint32_t ifindex;
	bool ours;
};

static int side_answer(void *ctx, const struct nlmsghdr *message)
{
	const struct ifinfomsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[IFLA_ADDRESS + 1];
	struct side_found *found = ctx;

	if (message->nlmsg_type != RTM_NEWLINK)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, IFLA_ADDRESS);
	found->ifindex = (uint32_t)body->ifi_index;
	found->ours = attributes[IFLA_ADDRESS] &&
		      RTA_PAYLOAD(attributes[IFLA_ADDRESS]) == sizeof(side_mac) &&
		      !memcmp(RTA_DATA(attributes[IFLA_ADDRESS]), side_mac, sizeof(side_mac));
	return 0;
}

/* By the socket's namespace, which need not be this thread's. */
static int side_find(struct netlink *nl, const char *name, struct side_found *found)
{
	struct netlink_message message;

	*found = (struct side_found){ 0 };
	netlink_begin(&message, RTM_GETLINK, 0, sizeof(struct ifinfomsg));
	netlink_put(&message, IFLA_IFNAME, name, strlen(name) + 1);
	return netlink_call(nl, &message, side_answer, found);
}

static int side_find_index(struct netlink *nl, const char *name, uint32_t *ifindex)
{
	struct side_found found;
	int rc = side_find(nl, name, &found);

	*ifindex = found.ifindex;
	return rc;
}

static int side_pair(struct side *side, uint32_t queues)
{
	int rc = away_netns(side);

	if (rc)
		return rc;
	rc = side_create(&side->route, side->name, queues, side->netns_fd);
	if (rc == -EEXIST)
		return -EAGAIN; /* whose it is the next look tells */
	if (!rc)
		rc = side_find_index(&side->route, side->name, &side->ifindex);
	if (!rc)
		rc = side_find_index(&side->away, SIDE_AWAY, &side->away_ifindex);
	return rc ? rc : side_up(&side->away, side->away_ifindex);
}

int side_make(struct side *side, const struct why *why, uint32_t ifindex, uint32_t queues)
{
	const char *what = "a network namespace", *remedy = "";
	struct side_found there;
	int rc;

	side_init(side);
	side_name(side->name, ifindex);
	strcpy(side->away_name, SIDE_AWAY);
	rc = netlink_open(&side->route, 0);
	if (!rc && !side_find(&side->route, side->name, &there))
		rc = there.ours ? -EAGAIN : -EEXIST;
	if (!rc)
		rc = away_open(&side->away, -1);
	if (!rc || rc == -EEXIST || rc == -EAGAIN)
		what = side->name;
	if (!rc)
		rc = side_pair(side, queues);
	if (!rc)
		return 0;
	if (rc == -EPERM)
		remedy = "; it takes CAP_SYS_ADMIN and CAP_NET_ADMIN";
	else if (rc == -EEXIST)
		remedy = ", and is none of HARP's; rename or remove that";
	why_fail(why, rc, "making %s: %s%s", what, strerror(rc == -EAGAIN ? EEXIST : -rc), remedy);
	side_drop(side);
	return rc;
}

struct inside {
	int netns_fd, rc;
	int (*fn)(void *ctx);
	void *ctx;
};

static void *inside_run(void *arg)
{
	struct inside *inside = arg;

	inside->rc = setns(inside->netns_fd, CLONE_NEWNET) ? -errno : inside->fn(inside->ctx);
	return NULL;
}

int side_inside(const struct side *side, int (*fn)(void *), void *ctx)
{
	struct inside inside = { .netns_fd = side->netns_fd, .fn = fn, .ctx = ctx };
	pthread_t thread;
	int rc = thread_start(&thread, inside_run, &inside, "harp-away");

	if (rc)
		return rc;
	pthread_join(thread, NULL);
	return inside.rc;
}

bool side_is_gone(struct side *side)
{
	struct netlink_message message;
	struct side_found found = { .ours = true }; /* until we hear something else */
	struct ifinfomsg *body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));

	body->ifi_index = (int)side->ifindex;
	/* The number may be another device's, where ours went. */
	return netlink_call(&side->route, &message, side_answer, &found) == -ENODEV || !found.ours;
}

/* By the end that nobody can have moved; both go. */
static int away_remove(struct netlink *away, const char *name)
{
	struct netlink_message message;

	netlink_begin(&message, RTM_DELLINK, 0, sizeof(struct ifinfomsg));
	netlink_put(&message, IFLA_IFNAME, name, strlen(name) + 1);
	return netlink_call(away, &message, NULL, NULL);
}

void side_remove(struct side *side)
{
	away_remove(&side->away, side->away_name);
}

void side_move_fd(int *fd, int *fresh)
{
	if (*fd >= 0 && *fresh >= 0) {
		dup3(*fresh, *fd, O_CLOEXEC);
		close(*fresh);
	} else if (*fresh >= 0) {
		*fd = *fresh;
	}
	*fresh = -1;
}

void side_take_over(struct side *side, struct side *fresh)
{
	side_move_fd(&side->route.fd, &fresh->route.fd);
	side_move_fd(&side->away.fd, &fresh->away.fd);
	side_move_fd(&side->netns_fd, &fresh->netns_fd);
	side->ifindex = fresh->ifindex;
	side->away_ifindex = fresh->away_ifindex;
	strcpy(side->away_name, fresh->away_name);
}

void side_drop(struct side *side)
{
	/* At once; the kernel would do it a moment after the namespace has no one any more. */
	if (side->ifindex)
		side_remove(side);
	side_close(side);
}

void side_close(struct side *side)
{
	side->ifindex = 0;
	if (side->netns_fd >= 0)
		close(side->netns_fd);
	side->netns_fd = -1;
	netlink_close(&side->away);
	netlink_close(&side->route);
}

/* ---- a namespace that outlives its maker ------------------------------------------------------ */

/* The network namespace that is mounted on the file; -ESTALE: none is, or this thread's own. */
static int kept_open(const char *file)
{
	struct stat there, own;
	struct statfs fs;
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0)
		return errno == ELOOP ? -ESTALE : -errno;
	if (!fstatfs(fd, &fs) && fs.f_type == NSFS_MAGIC && !fstat(fd, &there) &&
	    !stat("/proc/thread-self/ns/net", &own) && there.st_ino != own.st_ino)
		return fd;
	close(fd);
	return -ESTALE;
}

/* The kernel sets a device down that it moves. */
static int side_move(struct side *side, struct netlink *kept, int netns_fd, const char *name)
{
	struct netlink_message message;
	struct ifinfomsg *body = netlink_begin(&message, RTM_NEWLINK, 0, sizeof(*body));
	uint32_t ifindex;
	int rc;

	body->ifi_index = (int)side->away_ifindex;
	netlink_put(&message, IFLA_NET_NS_FD, &netns_fd, sizeof(netns_fd));
	netlink_put(&message, IFLA_IFNAME, name, strlen(name) + 1);
	rc = netlink_call(&side->away, &message, NULL, NULL);
	if (rc)
		return rc;
	rc = side_find_index(kept, name, &ifindex);
	if (!rc)
		rc = side_up(kept, ifindex);
	if (rc) {
		away_remove(kept, name);
		return rc;
	}
	side->away_ifindex = ifindex;
	strcpy(side->away_name, name);
	return 0;
}

int side_keep(struct side *side, const char *file, const char *name)
{
	struct netlink kept = { .fd = -1 };
	int fd, rc;

	if (strlen(name) >= sizeof(side->away_name))
		return -ENAMETOOLONG;
	fd = kept_open(file);
	if (fd < 0)
		return fd;
	rc = away_open(&kept, fd);
	close(fd); /* it would keep the mount busy */
	fd = rc ? -1 : ioctl(kept.fd, SIOCGSKNS);
	if (!rc)
		rc = fd < 0 ? -errno : side_move(side, &kept, fd, name);
	if (!rc) {
		side_move_fd(&side->away.fd, &kept.fd);
		side_move_fd(&side->netns_fd, &fd);
		return 0;
	}
	if (fd >= 0)
		close(fd);
	netlink_close(&kept);
	return rc;
}

struct side_other {
	uint32_t ifindex, peer_ifindex;
	int32_t peer_netns; /* its number there; -1: none */
};

static int other_answer(void *ctx, const struct nlmsghdr *message)
{
	const struct rtattr *attributes[IFLA_LINK_NETNSID + 1];
	const struct ifinfomsg *body = NLMSG_DATA(message);
	struct side_other *other = ctx;

	if (message->nlmsg_type != RTM_NEWLINK)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, IFLA_LINK_NETNSID);
	other->ifindex = (uint32_t)body->ifi_index;
	/* Not there: a number that is the same on both sides. */
	other->peer_ifindex = netlink_u32(attributes[IFLA_LINK], other->ifindex);
	other->peer_netns = (int32_t)netlink_u32(attributes[IFLA_LINK_NETNSID], UINT32_MAX);
	return 0;
}

static int netns_answer(void *ctx, const struct nlmsghdr *message)
{
	const struct rtattr *attributes[NETNSA_NSID + 1];

	if (message->nlmsg_type != RTM_NEWNSID)
		return 0;
	netlink_attributes(message, sizeof(struct rtgenmsg), attributes, NETNSA_NSID);
	*(int32_t *)ctx = (int32_t)netlink_u32(attributes[NETNSA_NSID], UINT32_MAX);
	return 0;
}

/* The number that this thread's network namespace has there; -1: none. */
static int32_t away_number(struct netlink *away)
{
	int own = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	struct netlink_message message;
	int32_t number = -1;

	if (own < 0)
		return -1;
	netlink_begin(&message, RTM_GETNSID, 0, sizeof(struct rtgenmsg));
	netlink_put(&message, NETNSA_FD, &own, sizeof(own));
	netlink_call(away, &message, netns_answer, &number);
	close(own);
	return number;
}

/* The end of that name in the kept namespace, if its other end is in this thread's. */
static int side_take_pair(struct side *side)
{
	struct side_other other = { .peer_netns = -1 };
	struct netlink_message message;
	int rc;

	netlink_begin(&message, RTM_GETLINK, 0, sizeof(struct ifinfomsg));
	netlink_put(&message, IFLA_IFNAME, side->away_name, strlen(side->away_name) + 1);
	rc = netlink_call(&side->away, &message, other_answer, &other);
	if (rc)
		return rc == -ENODEV ? -ESTALE : rc;
	if (other.peer_netns < 0 || other.peer_netns != away_number(&side->away))
		return -ESTALE;
	side->away_ifindex = other.ifindex;
	side->ifindex = other.peer_ifindex;
	return side_is_gone(side) ? -ESTALE : 0;
}

int side_take_up(struct side *side, const struct why *why, const char *file, const char *name,
		 uint32_t ifindex)
{
	int fd = kept_open(file), rc = fd < 0 ? fd : 0;

	side_init(side);
	side_name(side->name, ifindex);
	snprintf(side->away_name, sizeof(side->away_name), "%s", name);
	if (!rc) {
		rc = away_open(&side->away, fd);
		close(fd); /* it would keep the mount busy */
	}
	if (!rc)
		rc = away_netns(side);
	if (!rc)
		rc = netlink_open(&side->route, 0);
	if (!rc)
		rc = side_take_pair(side);
	if (!rc)
		return 0;
	side_close(side);
	return why_fail(why, rc, "%s: %s", file,
			rc == -ESTALE ? "the device beside the interface is not in it"
				      : strerror(-rc));
}

int side_forget(const char *file, const char *name)
{
	struct netlink away = { .fd = -1 };
	int fd = kept_open(file), rc;
	struct side_found there;

	if (fd < 0)
		return fd;
	rc = away_open(&away, fd);
	if (!rc)
		rc = side_find(&away, name, &there);
	if (!rc)
		rc = there.ours ? away_remove(&away, name) : -ENOENT;
	netlink_close(&away);
	close(fd);
	return rc == -ENODEV ? -ENOENT : rc;
}
