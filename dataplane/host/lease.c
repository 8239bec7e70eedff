/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - requests, verifies, uses and returns the parts of an instance that harpd creates.
 *
 * A lease belongs to the process, not to the connection: this code closes the connection at once
 * and returns the lease over a new one. So a restart of harpd in between makes no difference.
 *
 * The descriptors come from another program. This code checks each with the kernel before use: a
 * wrong descriptor would cause a hang or silent failure much later.
 */
#include "host/lease.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memfd.h"
#include "harp_page.h"
#include "host/daemon.h"

/* Short, because a stopped harpd must not delay closing several instances. */
#define RELEASE_WAIT_MS 1000u

/* verification of descriptors */

static bool lease_namespace(int fd, uint64_t *cookie)
{
	socklen_t len = sizeof(*cookie);

	return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, cookie, &len) == 0;
}

bool lease_in_other_netns(const struct lease *lease)
{
	int own_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint64_t nic, own;
	bool here = lease_namespace(own_fd, &own) &&
		    lease_namespace(lease->fds[HARP_LEASE_FD_XSK], &nic) && own == nic;

	if (own_fd >= 0)
		close(own_fd);
	return !here;
}

int lease_page_map(int fd, size_t bytes, void **out, const struct why *why)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat status;
	void *page;

	*out = NULL;
	if (seals < 0 || (seals & MEMFD_SEALS) != MEMFD_SEALS || fstat(fd, &status) < 0)
		return why_fail(why, -EPROTO, "harpd's statistics page is not a sealed memfd");
	if (!bytes || bytes > HARP_PAGE_BYTES_MAX || (uint64_t)status.st_size < bytes)
		return why_fail(why, -EPROTO,
				"harpd's statistics page has %lld bytes instead of %zu",
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

/* request */

int lease_connect(struct harp_daemon **out, const struct harp_instance_options *opt,
		  char name[LEASE_DAEMON_BYTES], const struct why *why)
{
	char client[DAEMON_CLIENT_BYTES];
	int rc;

	daemon_client(client);
	rc = harp_daemon_connect(out, opt->daemon_socket, client, why->text, why->size);
	if (!rc)
		snprintf(name, LEASE_DAEMON_BYTES, "%s", harp_daemon_name(*out));
	return rc;
}

const char *lease_label(const struct harp_instance_options *opt)
{
	return opt->label && opt->label[0] ? opt->label : program_invocation_short_name;
}

static int lease_request(struct lease *lease, const struct harp_instance_options *opt,
			 struct why *why)
{
	struct harp_lease_request request = {
		.queue = opt->queue,
		.frame_count = opt->frame_count,
		.copy_mode = opt->copy_mode,
	};
	struct harp_daemon *daemon;
	int rc = lease_connect(&daemon, opt, lease->daemon, why);

	if (rc)
		return rc;
	snprintf(request.ifname, sizeof(request.ifname), "%s", opt->ifname);
	snprintf(request.label, sizeof(request.label), "%s", lease_label(opt));
	rc = daemon_lease(daemon, &request, &lease->grant, lease->fds, why);
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
	for (unsigned i = 0; i < HARP_LEASE_FDS; i++)
		lease->fds[i] = -1;
	snprintf(lease->socket, sizeof(lease->socket), "%s", opt->daemon_socket);
	rc = lease_request(lease, opt, why);
	if (rc) {
		free(lease);
		return rc;
	}
	/* The NIC that adopts the AF_XDP socket and frames verifies them. */
	rc = lease_page_map(lease->fds[HARP_LEASE_FD_PAGE], lease->grant.page_bytes, &lease->page,
			    why);
	if (rc) {
		lease_return(lease, &quiet);
		return rc;
	}
	*out = lease;
	return 0;
}

/* Moves a descriptor to the caller. */
static int lease_take_fd(struct lease *lease, enum harp_lease_fd which)
{
	int fd = lease->fds[which];

	lease->fds[which] = -1;
	return fd;
}

void lease_queue(struct lease *lease, struct harp_queue *out)
{
	const struct harp_lease_leased *grant = &lease->grant;

	*out = (struct harp_queue){
		.size = sizeof(*out),
		.xsk_fd = lease_take_fd(lease, HARP_LEASE_FD_XSK),
		.frames_fd = lease_take_fd(lease, HARP_LEASE_FD_FRAMES),
		.ifindex = grant->ifindex,
		.queue = grant->queue,
		.frame_size = grant->frame_size,
		.frame_count = grant->frame_count,
		.ring_size = grant->ring_size,
		.mtu_bytes = grant->mtu_bytes,
		.features = grant->nic_features,
		.tx_frags_max = grant->tx_frags_max,
		.zero_copy = grant->zero_copy,
	};
	memcpy(out->mac, grant->mac, sizeof(out->mac));
	memcpy(out->ifname, grant->ifname, sizeof(out->ifname));
}

bool lease_has_port(const struct lease *lease, uint16_t port)
{
	return port >= lease->grant.port_min && port <= lease->grant.port_max;
}

/* return */

int lease_release(const char *socket, uint64_t lease_id, struct why *why)
{
	struct harp_daemon *daemon;
	char client[DAEMON_CLIENT_BYTES];
	int rc;

	daemon_client(client);
	rc = daemon_open(&daemon, socket, client, RELEASE_WAIT_MS, why);
	/* No harpd runs. The next one detects that the queue is unused. */
	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return 0;
	if (rc)
		return rc;
	rc = daemon_release(daemon, lease_id, why);
	harp_daemon_close(daemon);
	return rc;
}

int lease_return(struct lease *lease, struct why *why)
{
	int rc;

	if (!lease)
		return 0;
	if (lease->page)
		munmap(lease->page, lease->grant.page_bytes);
	lease_fork_child(lease);
	rc = lease_release(lease->socket, lease->grant.lease_id, why);
	free(lease);
	return rc;
}

void lease_fork_child(const struct lease *lease)
{
	for (unsigned i = 0; i < HARP_LEASE_FDS; i++)
		if (lease->fds[i] >= 0)
			close(lease->fds[i]);
}
