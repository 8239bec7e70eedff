/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netwatch.h - the network of a leased NIC as harpd sees it, for a job in another network
 * namespace: link, addresses, routes and neighbors. A lost connection is re-established.
 *
 * Called by the poller and never blocks, except netwatch_open() and netwatch_route().
 */
#ifndef HARP_HOST_NETWATCH_H
#define HARP_HOST_NETWATCH_H

#include "harp_host.h"
#include "host/daemon_wire.h"

#define NETWATCH_ROUTES_MAX 64u

struct netwatch_route {
	struct harp_addr dst;
	struct harp_host_route route;
	int rc;            /* last answer: 0, or -errno */
	uint64_t fresh_ns; /* valid until then */
};

struct netwatch {
	/* Readable if a message is pending. An epoll descriptor, which stays the same across
	 * connections. */
	int fd;
	struct daemon_wire wire; /* wire.fd is -1 while there is no connection */
	const char *socket;      /* owned by the caller */
	uint64_t lease_id;
	uint32_t serial;
	uint64_t retry_ns; /* without a connection: time of the next attempt */
	char why[256];     /* without a connection: the reason */
	/* Cache of routes, under the caller's lock. */
	unsigned route_count, route_next;
	struct netwatch_route routes[NETWATCH_ROUTES_MAX];
};

/* Processes NETWORK or NEIGHBORS, whose counts are within their arrays. */
typedef void (*netwatch_fn)(void *ctx, const struct harp_lease_header *message);

/* Connects to the harpd of `leased`, and waits a few seconds for the first NETWORK. Keeps a
 * reference to socket. On failure why has one line. */
int netwatch_open(struct netwatch **out, const char *socket, const struct harp_lease_leased *leased,
		  netwatch_fn fn, void *ctx, const struct why *why);
void netwatch_close(struct netwatch *watch);
/* In a forked child. Async-signal-safe. */
void netwatch_fork_child(const struct netwatch *watch);
/* Passes received messages to fn. 0; -ENOTCONN: no connection, retried once a second. A NETWORK
 * with a nonzero serial is the first of a connection: harpd does not know the neighbors yet. */
int netwatch_events(struct netwatch *watch, uint64_t now_ns, netwatch_fn fn, void *ctx);
/* Sends all[0..count-1] and fills in message's header. 0; -EAGAIN, -ENOTCONN: not sent. */
int netwatch_neighbors(struct netwatch *watch, struct harp_lease_neighbors *message);
/* As harp_instance_route(). Caches answers for a second, also while harpd does not answer. Requires
 * the caller's lock; any thread. */
int netwatch_route(struct netwatch *watch, const struct harp_addr *dst,
		   struct harp_host_route *out);
/* Validates NETWORK or NEIGHBORS: counts, prefix lengths and values are within bounds. */
bool netwatch_message_valid(const void *message, size_t bytes);

#endif
