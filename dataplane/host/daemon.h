/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - requests and returns leases of harpd; harp_host.h has the rest of a connection. */
#ifndef HARP_HOST_DAEMON_H
#define HARP_HOST_DAEMON_H

#include "base/why.h"
#include "harp_host.h"

#define DAEMON_CLIENT_BYTES sizeof(((struct harp_lease_hello *)0)->client)

/* Writes this library's name for harpd's log. */
void daemon_client(char client[DAEMON_CLIENT_BYTES]);
/* harp_daemon_connect() with a timeout for each answer, in whole seconds; a lease may take
 * longer. */
int daemon_open(struct harp_daemon **out, const char *socket, const char *client, unsigned wait_ms,
		struct why *why);
/* The same over a connected socket. The call owns fd, even on failure. */
int daemon_open_on(struct harp_daemon **out, int fd, const char *client, unsigned wait_ms,
		   const struct why *why);
/*
 * Requests a lease and fills in the request's header. On success the caller owns fds, and *out is
 * checked as far as this code needs (terminated text, valid indices). -EPROTO, -ETIMEDOUT,
 * -ECONNRESET, -EMFILE, or the errno of harpd's refusal. An unusable lease is returned to harpd.
 */
int daemon_lease(struct harp_daemon *daemon, struct harp_lease_request *request,
		 struct harp_lease_leased *out, int fds[HARP_LEASE_FDS], struct why *why);

/* A DPDK port leased by this process until it is returned or the process exits. */
struct daemon_port {
	uint64_t lease_id;
	uint32_t page_count; /* 1..HARP_LEASE_PORT_PAGES_MAX: number of queues to open */
	uint32_t page_bytes; /* of each page */
	int page_fds[HARP_LEASE_PORT_PAGES_MAX]; /* owned by the caller; unverified memfds */
	char spec[HARP_PORT_TEXT_MAX];
	struct harp_port_spec port; /* parsed from spec */
};
/*
 * Requests the port called name in harp.toml, with this number of queues (0: 1); label: for
 * display. Errors as daemon_lease(). -EBUSY: another process has the port.
 */
int daemon_lease_port(struct harp_daemon *daemon, const char *name, uint32_t queues,
		      const char *label, struct daemon_port *out, struct why *why);
/* Returns a lease of this process. Errors as above. */
int daemon_release(struct harp_daemon *daemon, uint64_t lease_id, struct why *why);
/* The kernel's route from a lease's NIC to dst, as harp_instance_route(). Errors as above, or the
 * kernel's. */
int daemon_route(struct harp_daemon *daemon, uint64_t lease_id, const struct harp_addr *dst,
		 struct harp_host_route *out, struct why *why);
/* Returns the -errno of a REFUSED message and its text in why; -EPROTO: not valid. */
int daemon_refused(const void *message, size_t bytes, const struct why *why);

#endif
