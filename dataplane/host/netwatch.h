/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netwatch.h - the network of a leased NIC as harpd sees it, for a job of another network namespace: link, addresses,
 * routes and neighbors, over a connection that is made again when it is lost.
 *
 * By the thread that polls, and never waits, but for netwatch_open() and netwatch_route().
 */
#ifndef HARP_HOST_NETWATCH_H
#define HARP_HOST_NETWATCH_H

#include "harp_host.h"
#include "host/daemon_wire.h"

#define NETWATCH_ROUTES_MAX 64u

struct netwatch_route {
	struct harp_addr dst;
	struct harp_host_route route;
	int rc;            /* of the last answer: 0, or why there is no route */
	uint64_t fresh_ns; /* until then it is not asked for again */
};

struct netwatch {
	/* Readable when a message waits. An epoll descriptor, as the connection's changes. */
	int fd;
	struct daemon_wire wire; /* wire.fd is -1 while there is no connection */
	const char *socket;      /* the caller's */
	uint64_t lease_id;
	uint32_t serial;
	uint64_t retry_ns; /* without a connection: when the next one is tried */
	char why[256];     /* without a connection: the reason */
	/* Routes that were asked for, under the caller's lock. */
	unsigned route_count, route_next;
	struct netwatch_route routes[NETWATCH_ROUTES_MAX];
};

/* Handles NETWORK or NEIGHBORS, whose counts are within their arrays. */
typedef void (*netwatch_fn)(void *ctx, const struct harp_lease_header *message);

/* Connects to the harpd of leased, and waits for the first NETWORK: a few seconds at most. socket: kept. On failure
 * nothing is left, and why has one line. */
int netwatch_open(struct netwatch **out, const char *socket, const struct harp_lease_leased *leased,
		  netwatch_fn fn, void *ctx, const struct why *why);
void netwatch_close(struct netwatch *watch);
/* In a forked child. Async-signal-safe. */
void netwatch_fork_child(const struct netwatch *watch);
/* Passes the received messages to fn. 0; -ENOTCONN there is no connection, and a new one is tried once a second. A NETWORK with a
 * serial other than 0 is the first of a connection: harpd knows nothing of the neighbors before. */
int netwatch_events(struct netwatch *watch, uint64_t now_ns, netwatch_fn fn, void *ctx);
/* Sends all[0..count-1]; message's header is filled in here. 0; -EAGAIN, -ENOTCONN it was not sent. */
int netwatch_neighbors(struct netwatch *watch, struct harp_lease_neighbors *message);
/* As harp_instance_route(). The answer is kept: for a second, and for as long as harpd does not answer. Under the
 * caller's lock; any thread. */
int netwatch_route(struct netwatch *watch, const struct harp_addr *dst,
		   struct harp_host_route *out);
/* NETWORK or NEIGHBORS, and whole: counts, lengths of prefixes and values are within their bounds. */
bool netwatch_message_good(const void *message, size_t bytes);

#endif
