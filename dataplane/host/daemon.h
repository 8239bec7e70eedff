/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - asking harpd for a lease and giving it back; harp_host.h has the rest of a connection. */
#ifndef HARP_HOST_DAEMON_H
#define HARP_HOST_DAEMON_H

#include "base/why.h"
#include "harp_host.h"

/* harp_daemon_connect() with a limit of its own for each answer, in whole seconds; a lease may take longer. */
int daemon_open(struct harp_daemon **out, const char *socket, const char *client, unsigned wait_ms,
		struct why *why);
/* The same with whoever is at the other end of a connected socket, which is taken, on failure too. */
int daemon_open_on(struct harp_daemon **out, int fd, const char *client, unsigned wait_ms,
		   const struct why *why);
/*
 * Asks for a lease; request's header is filled in here. On success fds are the caller's, and numbers of
 * *out have been checked as far as they concern this code alone (no text without an end, no index past
 * an array). -EPROTO, -ETIMEDOUT, -ECONNRESET, -EMFILE, or the errno of harpd's refusal. A lease that came
 * and cannot be used is given back.
 */
int daemon_lease(struct harp_daemon *daemon, struct harp_lease_request *request,
		 struct harp_lease_leased *out, int fds[HARP_LEASE_FDS], struct why *why);

/* A DPDK port that this process has for itself, until it gives it back or ends. */
struct daemon_port {
	uint64_t lease_id;
	uint32_t page_count; /* 1..HARP_LEASE_PORT_PAGES_MAX: queues to open it with */
	uint32_t page_bytes; /* of each page */
	uint32_t core;       /* for its first dedicated thread; 0xffffffff: none is suggested */
	int page_fds
		[HARP_LEASE_PORT_PAGES_MAX]; /* the caller's; sealed memfds, not looked at yet */
	char spec[HARP_PORT_TEXT_MAX];
	struct harp_port_spec port; /* what spec says */
};
/*
 * Asks for the port that harp.toml calls name, with so many queues (0: 1); label: for people. As daemon_lease():
 * what came and cannot be used is given back. -EBUSY: another process has it.
 */
int daemon_lease_port(struct harp_daemon *daemon, const char *name, uint32_t queues,
		      const char *label, struct daemon_port *out, struct why *why);
/* Gives a lease of this process back. As above. */
int daemon_release(struct harp_daemon *daemon, uint64_t lease_id, struct why *why);
/* The kernel's way from the NIC of a lease to dst, as harp_instance_route(). As above, or the errno of the kernel's
 * answer. */
int daemon_route(struct harp_daemon *daemon, uint64_t lease_id, const struct harp_addr *dst,
		 struct harp_host_route *out, struct why *why);
/* The errno of a REFUSED as -errno, and its line in why; -EPROTO it is none. */
int daemon_refused(const void *message, size_t bytes, const struct why *why);

#endif
