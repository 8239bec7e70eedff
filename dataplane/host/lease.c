/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - an instance's parts that harpd made: asked for, checked, used, given back.
 *
 * A lease is the process's, not the connection's: the connection that asked for it is closed at once, and
 * giving back takes a new one. So it makes no difference whether harpd was restarted in between.
 *
 * The descriptors come from another program. Before one is used the kernel says what it is: a wrong one
 * would be a hang or silence later, far from its cause.
 */
#include "host/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harp_page.h"
#include "host/daemon.h"

/* Linux 5.14; not in Debian 12's headers of the C library. */
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

/* A harpd that is stopped must not hold up who closes several instances. */
#define RELEASE_WAIT_MS 1000u
#define LEASE_CLIENT_BYTES 32u
#define PAGE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* ---- what the descriptors are --------------------------------------------------------------- */

static const char *const lease_fd_names[HARP_LEASE_FDS_MAX] = {
	[HARP_LEASE_FD_XSK] = "AF_XDP socket",
	[HARP_LEASE_FD_FRAMES] = "memory",
	[HARP_LEASE_FD_PAGE] = "statistics page",
	[HARP_LEASE_FD_MONITOR] = "netlink monitor",
	[HARP_LEASE_FD_QUESTIONS] = "netlink socket",
	[HARP_LEASE_FD_PROBE_V4] = "IPv4 probe socket",
	[HARP_LEASE_FD_PROBE_V6] = "IPv6 probe socket",
	[HARP_LEASE_FD_XSK_TX] = "AF_XDP socket to send by",
};

static int lease_option(int fd, int option)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0 ? -1 : value;
}

/* A host without IPv6 has nothing but IPv4 to probe with. */
static bool lease_family_good(unsigned which, int domain)
{
	switch (which) {
	case HARP_LEASE_FD_PROBE_V4:
		return domain == AF_INET;
	case HARP_LEASE_FD_PROBE_V6:
		return domain == AF_INET6 || domain == AF_INET;
	default:
		return domain == AF_NETLINK;
	}
}

static bool lease_socket_good(const struct lease *lease, unsigned which)
{
	int fd = lease->fds[which];
	int type = lease_option(fd, SO_TYPE), protocol = lease_option(fd, SO_PROTOCOL);

	if (!lease_family_good(which, lease_option(fd, SO_DOMAIN)))
		return false;
	if (which == HARP_LEASE_FD_MONITOR || which == HARP_LEASE_FD_QUESTIONS)
		return protocol == NETLINK_ROUTE;
	return type == SOCK_DGRAM && (protocol == IPPROTO_UDP || protocol == 0);
}

/* Does the monitor hear all that harp_instance_control() must hear? */
static bool lease_monitor_listens(int fd)
{
	static const unsigned groups[] = { RTNLGRP_LINK,        RTNLGRP_NEIGH,
					   RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE,
					   RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE };
	uint32_t member[8] = { 0 };
	socklen_t len = sizeof(member);

	if (getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, member, &len) < 0)
		return false;
	for (unsigned i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
		if (!(member[(groups[i] - 1) / 32] >> (groups[i] - 1) % 32 & 1))
			return false;
	return true;
}

/* All sockets must be of one network namespace: the NIC's. Kernels before 5.14 do not tell. */
static int lease_one_namespace(const struct lease *lease, const struct why *why)
{
	uint64_t first = 0, cookie;

	for (unsigned i = 0; i < HARP_LEASE_FDS_MAX; i++) {
		socklen_t len = sizeof(cookie);

		if (i == HARP_LEASE_FD_FRAMES || i == HARP_LEASE_FD_PAGE || lease->fds[i] < 0)
			continue;
		/* It receives where only HARP's packets are. */
		if (i == HARP_LEASE_FD_XSK && lease->told.side_ifindex)
			continue;
		if (getsockopt(lease->fds[i], SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) < 0)
			continue;
		if (first && cookie != first)
			return why_fail(why, -EPROTO,
					"harpd's %s is of another network namespace than its %s",
					lease_fd_names[i], lease_fd_names[HARP_LEASE_FD_XSK]);
		first = cookie;
	}
	return 0;
}

int lease_page_map(int fd, size_t bytes, void **out, const struct why *why)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat status;
	void *page;

	*out = NULL;
	if (seals < 0 || (seals & PAGE_SEALS) != PAGE_SEALS || fstat(fd, &status) < 0)
		return why_fail(why, -EPROTO, "harpd's statistics page is no sealed memfd");
	if (!bytes || bytes > HARP_PAGE_BYTES_MAX || (uint64_t)status.st_size < bytes)
		return why_fail(why, -EPROTO,
				"harpd's statistics page has %lld bytes and should have %zu",
				(long long)status.st_size, bytes);
	page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return why_fail(why, -errno, "mapping the statistics page: %s", strerror(errno));
	if (madvise(page, bytes, MADV_DONTFORK) < 0) {
		int error = errno;

		munmap(page, bytes);
		return why_fail(why, -error, "madvise(MADV_DONTFORK): %s", strerror(error));
	}
	*out = page;
	return 0;
}

/* The AF_XDP sockets and frames are judged by the NIC that adopts them. */
static int lease_judge(struct lease *lease, const struct why *why)
{
	for (unsigned i = HARP_LEASE_FD_MONITOR; i < HARP_LEASE_FDS; i++)
		if (!lease_socket_good(lease, i))
			return why_fail(why, -EPROTO, "harpd's %s is something else",
					lease_fd_names[i]);
	if (!lease_monitor_listens(lease->fds[HARP_LEASE_FD_MONITOR]))
		return why_fail(why, -EPROTO,
				"harpd's %s is not in the groups of links, neighbours, addresses "
				"and routes",
				lease_fd_names[HARP_LEASE_FD_MONITOR]);
	return lease_one_namespace(lease, why);
}

/* ---- taking --------------------------------------------------------------------------------- */

static void lease_client(char client[LEASE_CLIENT_BYTES])
{
	snprintf(client, LEASE_CLIENT_BYTES, "libharp %s", harp_version());
}

int lease_connect(struct harp_daemon **out, const struct harp_instance_options *opt,
		  char name[LEASE_DAEMON_BYTES], const struct why *why)
{
	char client[LEASE_CLIENT_BYTES];
	int rc;

	lease_client(client);
	rc = harp_daemon_connect(out, opt->daemon_socket, client, why->text, why->size);
	if (!rc)
		snprintf(name, LEASE_DAEMON_BYTES, "%s", harp_daemon_name(*out));
	return rc;
}

const char *lease_label(const struct harp_instance_options *opt)
{
	return opt->label && opt->label[0] ? opt->label : program_invocation_short_name;
}

static int lease_ask(struct lease *lease, const struct harp_instance_options *opt, struct why *why)
{
	struct harp_lease_request request = {
		.queue = opt->queue,
		.frame_count = opt->frame_count,
		.copy_mode = opt->copy_mode,
		.accepts = HARP_LEASE_ACCEPTS_BESIDE,
	};
	struct harp_daemon *daemon;
	int rc = lease_connect(&daemon, opt, lease->daemon, why);

	if (rc)
		return rc;
	snprintf(request.ifname, sizeof(request.ifname), "%s", opt->ifname);
	snprintf(request.label, sizeof(request.label), "%s", lease_label(opt));
	rc = daemon_lease(daemon, &request, &lease->told, lease->fds, why);
	harp_daemon_close(daemon);
	return rc;
}

int lease_take(struct lease **out, const struct harp_instance_options *opt, struct why *why)
{
	struct lease *lease = calloc(1, sizeof(*lease));
	struct why quiet = { 0 };
	int rc;

	*out = NULL;
	if (!lease)
		return why_fail(why, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < HARP_LEASE_FDS_MAX; i++)
		lease->fds[i] = -1;
	snprintf(lease->socket, sizeof(lease->socket), "%s", opt->daemon_socket);
	rc = lease_ask(lease, opt, why);
	if (rc) {
		free(lease);
		return rc;
	}
	rc = lease_judge(lease, why);
	if (!rc)
		rc = lease_page_map(lease->fds[HARP_LEASE_FD_PAGE], lease->told.page_bytes,
				    &lease->page, why);
	if (rc) {
		lease_give_back(lease, &quiet);
		return rc;
	}
	*out = lease;
	return 0;
}

int lease_hand_on(struct lease *lease, enum harp_lease_fd which)
{
	int fd = lease->fds[which];

	lease->fds[which] = -1;
	return fd;
}

void lease_queue(struct lease *lease, struct harp_queue *out)
{
	const struct harp_lease_leased *told = &lease->told;

	*out = (struct harp_queue){
		.size = sizeof(*out),
		.xsk_fd = lease_hand_on(lease, HARP_LEASE_FD_XSK),
		.tx_fd = lease_hand_on(lease, HARP_LEASE_FD_XSK_TX),
		.frames_fd = lease_hand_on(lease, HARP_LEASE_FD_FRAMES),
		.ifindex = told->ifindex,
		.queue = told->queue,
		.frame_size = told->frame_size,
		.frame_count = told->frame_count,
		.ring_size = told->ring_size,
		.mtu_bytes = told->mtu_bytes,
		.features = told->nic_features,
		.tx_frags_max = told->tx_frags_max,
		.zero_copy = told->zero_copy,
	};
	memcpy(out->mac, told->mac, sizeof(out->mac));
	memcpy(out->ifname, told->ifname, sizeof(out->ifname));
}

bool lease_has_port(const struct lease *lease, uint16_t port)
{
	return port >= lease->told.port_min && port <= lease->told.port_max;
}

/* ---- giving back ---------------------------------------------------------------------------- */

int lease_release(const char *socket, uint64_t lease_id, struct why *why)
{
	struct harp_daemon *daemon;
	char client[LEASE_CLIENT_BYTES];
	int rc;

	lease_client(client);
	rc = daemon_open(&daemon, socket, client, RELEASE_WAIT_MS, why);
	/* The next harpd sees by itself that the queue is nobody's. */
	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return 0;
	if (rc)
		return rc;
	rc = daemon_release(daemon, lease_id, why);
	harp_daemon_close(daemon);
	return rc;
}

int lease_give_back(struct lease *lease, struct why *why)
{
	int rc;

	if (!lease)
		return 0;
	if (lease->page)
		munmap(lease->page, lease->told.page_bytes);
	lease_fork_child(lease);
	rc = lease_release(lease->socket, lease->told.lease_id, why);
	free(lease);
	return rc;
}

void lease_fork_child(const struct lease *lease)
{
	for (unsigned i = 0; i < HARP_LEASE_FDS_MAX; i++)
		if (lease->fds[i] >= 0)
			close(lease->fds[i]);
}
