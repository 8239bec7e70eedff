/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netwatch.h - the network of a leased NIC as harpd sees it, for a job in another network
 * namespace: link, addresses, routes and neighbors, over a connection that is re-established when
 * it is lost.
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
	int rc;            /* last answer: 0, or why there is no route */
	uint64_t fresh_ns; /* valid until then */
};

struct netwatch {
	/* Readable when a message waits. An epoll descriptor, as the connection's changes. */
	int fd;
	struct daemon_wire wire; /* wire.fd is -1 while there is no connection */
	const char *socket;      /* the caller's */
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

/* Connects to the harpd of leased, and waits a few seconds for the first NETWORK. Keeps a reference
 * to socket. On failure why has one line. */
int netwatch_open(struct netwatch **out, const char *socket, const struct harp_lease_leased *leased,
		  netwatch_fn fn, void *ctx, const struct why *why);
void netwatch_close(struct netwatch *watch);
/* In a forked child. Async-signal-safe. */
void netwatch_fork_child(const struct netwatch *watch);
/* Passes received messages to fn. 0; -ENOTCONN: no connection, a new one is tried once a second. A
 * NETWORK with a serial other than 0 is the first of a connection: harpd does not know the
 * neighbors yet. */
int netwatch_events(struct netwatch *watch, uint64_t now_ns, netwatch_fn fn, void *ctx);
/* Sends all[0..count-1]; message's header is filled in here. 0; -EAGAIN, -ENOTCONN it was not
 * sent. */
int netwatch_neighbors(struct netwatch *watch, struct harp_lease_neighbors *message);
/* As harp_instance_route(). Answers are cached: for a second, and while harpd does not answer.
 * Under the caller's lock; any thread. */
int netwatch_route(struct netwatch *watch, const struct harp_addr *dst,
		   struct harp_host_route *out);
/* Validates NETWORK or NEIGHBORS: counts, prefix lengths and values are within bounds. */
bool netwatch_message_good(const void *message, size_t bytes);

#endif
