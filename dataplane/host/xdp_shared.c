/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_shared.c - the XDP programs of this process, by network namespace and interface. */
#include "host/xdp_shared.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harp_host.h"
#include "host/library.h"
#include "host/registry.h"

struct xdp_shared {
	struct xdp_shared *next;
	uint64_t netns; /* the namespace's cookie */
	uint32_t ifindex;
	unsigned users;
	pid_t pid; /* the process that attached it */
	void *library;
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp;
	bool closed; /* in a forked child */
	unsigned fd_count;
	int fds[HARP_XDP_FDS_MAX];
};

static struct registry registry; /* of struct xdp_shared */

/* Identifies the network namespace, because interface numbers are per namespace. 0: the kernel does
 * not report the cookie (before Linux 5.14). */
static uint64_t netns_cookie(void)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) < 0)
		cookie = 0;
	close(fd);
	return cookie;
}

static struct xdp_shared *shared_find(uint64_t netns, uint32_t ifindex)
{
	struct xdp_shared *shared = registry.first;

	while (shared && (shared->netns != netns || shared->ifindex != ifindex))
		shared = shared->next;
	return shared;
}

static void shared_free(struct xdp_shared *shared)
{
	if (shared->xdp)
		shared->api->detach(shared->xdp);
	if (shared->library)
		dlclose(shared->library);
	free(shared);
}

static int shared_make(struct xdp_shared **out, const struct xdp_request *request, uint64_t netns,
		       char *why, size_t why_len)
{
	struct xdp_shared *shared = calloc(1, sizeof(*shared));
	int rc;

	if (!shared) {
		if (why)
			snprintf(why, why_len, "%s: out of memory", request->ifname);
		return -ENOMEM;
	}
	shared->netns = netns;
	shared->ifindex = request->ifindex;
	shared->pid = getpid();
	rc = library_open_xdp(request->lib_dir, &shared->library, &shared->api, why, why_len);
	if (!rc)
		rc = shared->api->attach(&shared->xdp, request->ifname, request->mode, why,
					 why_len);
	if (rc) {
		shared_free(shared);
		return rc;
	}
	shared->fd_count = shared->api->fds(shared->xdp, shared->fds, HARP_XDP_FDS_MAX);
	shared->next = registry.first;
	registry.first = shared;
	*out = shared;
	return 0;
}

/* 0 if the attached program satisfies the request; -EBUSY. */
static int shared_check_mode(const struct xdp_shared *shared, const struct xdp_request *request,
			     char *why, size_t why_len)
{
	bool native = shared->api->native(shared->xdp);

	/* An attached program costs the kernel nothing more. */
	if (request->mode == HARP_XDP_AUTO || request->mode == HARP_XDP_NATIVE_OR_NONE ||
	    (request->mode == HARP_XDP_NATIVE) == native)
		return 0;
	if (why)
		snprintf(why, why_len,
			 "%s: this process has attached its XDP program in %s mode; request that "
			 "mode or automatic choice",
			 request->ifname, native ? "native" : "generic");
	return -EBUSY;
}

int xdp_shared_get(struct xdp_shared **out, const struct xdp_request *request, char *why,
		   size_t why_len)
{
	uint64_t netns = netns_cookie();
	struct xdp_shared *shared;
	int rc = 0;

	*out = NULL;
	if (why && why_len)
		why[0] = '\0';
	registry_enter(&registry);
	shared = shared_find(netns, request->ifindex);
	if (shared)
		rc = shared_check_mode(shared, request, why, why_len);
	else
		rc = shared_make(&shared, request, netns, why, why_len);
	if (!rc) {
		shared->users++;
		*out = shared;
	}
	registry_leave(&registry);
	return rc;
}

void xdp_shared_put(struct xdp_shared *shared)
{
	/* In a forked child, the parent's program stays open and attached. */
	if (!shared || shared->pid != getpid())
		return;
	registry_enter(&registry);
	if (!--shared->users) {
		REGISTRY_UNLINK(&registry, shared);
		/* Under the lock: the next attach must find the interface free. */
		shared_free(shared);
	}
	registry_leave(&registry);
}

const struct harp_xdp_api *xdp_shared_api(const struct xdp_shared *shared)
{
	return shared->api;
}

struct harp_xdp *xdp_shared_program(const struct xdp_shared *shared)
{
	return shared->xdp;
}

int xdp_shared_check(struct xdp_shared *shared, char *why, size_t why_len)
{
	int rc;

	registry_enter(&registry);
	rc = shared->api->check(shared->xdp, why, why_len);
	registry_leave(&registry);
	return rc;
}

unsigned xdp_shared_users(const struct xdp_shared *shared)
{
	unsigned users;

	registry_enter(&registry);
	users = shared->users;
	registry_leave(&registry);
	return users;
}

void xdp_shared_fork_child(struct xdp_shared *shared)
{
	if (!shared || shared->closed)
		return;
	shared->closed = true;
	for (unsigned i = 0; i < shared->fd_count; i++)
		close(shared->fds[i]);
}
