/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netwatch.c - see netwatch.h.
 *
 * Theory of operation
 *
 * After connecting, this code sends HELLO and WATCH together. harpd answers WATCH with NETWORK, and
 * sends NETWORK and NEIGHBORS as they change; this code skips other answers (WELCOME, DONE). An
 * unexpected message or a restart of harpd ends the connection. So does harpd, if the job does not
 * read for too long. A second later this code reconnects; until then the caller keeps its state.
 *
 * Route requests use separate connections, because any thread may call harp_instance_route(), which
 * blocks.
 */
#include "host/netwatch.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/clock.h"
#include "host/daemon.h"

#define NETWATCH_OPEN_MS 3000u
#define NETWATCH_CALL_MS 1u /* to connect: if harpd's accept queue is full, retry later */
#define NETWATCH_RETRY_NS UINT64_C(1000000000)
#define NETWATCH_ROUTE_NS UINT64_C(1000000000)
#define NETWATCH_ROUTE_WAIT_MS 1000u
#define NETWATCH_MESSAGES 64u /* per call; if more are pending, the descriptor stays readable */

/* ---- the connection ------------------------------------------------------------------------- */

static void netwatch_drop(struct netwatch *watch, uint64_t now_ns)
{
	if (watch->wire.fd >= 0)
		epoll_ctl(watch->fd, EPOLL_CTL_DEL, watch->wire.fd, NULL);
	daemon_wire_close(&watch->wire);
	watch->retry_ns = now_ns + NETWATCH_RETRY_NS;
}

static struct harp_lease_header netwatch_header(struct netwatch *watch, uint16_t type, size_t bytes)
{
	if (!++watch->serial) /* 0 is reserved for harpd */
		++watch->serial;
	return (struct harp_lease_header){
		.magic = HARP_LEASE_MAGIC,
		.version = HARP_LEASE_VERSION,
		.type = type,
		.size = (uint32_t)bytes,
		.serial = watch->serial,
	};
}

static int netwatch_connect(struct netwatch *watch, unsigned wait_ms, const struct why *why)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct harp_lease_hello hello = {
		.header = netwatch_header(watch, HARP_LEASE_HELLO, sizeof(hello)),
	};
	struct harp_lease_watch request = {
		.header = netwatch_header(watch, HARP_LEASE_WATCH, sizeof(request)),
		.lease_id = watch->lease_id,
	};
	int rc = daemon_wire_connect(&watch->wire, watch->socket, wait_ms, why);

	if (rc)
		return rc;
	daemon_client(hello.client);
	if (epoll_ctl(watch->fd, EPOLL_CTL_ADD, watch->wire.fd, &event))
		return why_fail(why, -errno, "epoll_ctl: %s", strerror(errno));
	rc = daemon_wire_send(&watch->wire, &hello, sizeof(hello));
	if (!rc)
		rc = daemon_wire_send(&watch->wire, &request, sizeof(request));
	return rc ? why_fail(why, rc, "request to harpd: %s", strerror(-rc)) : 0;
}

/* ---- messages ------------------------------------------------------------------------------- */

static bool netwatch_tables_valid(const struct harp_lease_tables *tables)
{
	if (tables->address_count > HARP_LEASE_ADDRESSES_MAX ||
	    tables->route_count > HARP_LEASE_ROUTES_MAX)
		return false;
	for (unsigned i = 0; i < tables->route_count; i++) {
		const struct harp_lease_route *route = &tables->routes[i];
		bool v4 = harp_addr_is_v4(&route->prefix);

		if (route->prefix_len > (v4 ? 32 : 128) || route->has_gateway > 1 ||
		    (route->has_gateway && harp_addr_is_v4(&route->gateway) != v4))
			return false;
	}
	return true;
}

bool netwatch_message_valid(const void *message, size_t bytes)
{
	const struct harp_lease_header *header = message;
	const struct harp_lease_network *network = message;
	const struct harp_lease_neighbors *neighbors = message;
	const size_t head_bytes = offsetof(struct harp_lease_neighbors, all);

	switch (header->type) {
	case HARP_LEASE_NETWORK:
		return bytes >= sizeof(*network) && network->link <= HARP_LEASE_LINK_UP &&
		       netwatch_tables_valid(&network->tables);
	case HARP_LEASE_NEIGHBORS:
		return bytes >= head_bytes && neighbors->count <= HARP_LEASE_NEIGHBORS_MAX &&
		       bytes - head_bytes >= neighbors->count * sizeof(neighbors->all[0]);
	default:
		return false;
	}
}

/* Processes one message, in wire.answer. */
static int netwatch_take(struct netwatch *watch, netwatch_fn fn, void *ctx, const struct why *why)
{
	const struct harp_lease_header *header = (const void *)watch->wire.answer;
	size_t bytes = watch->wire.answer_bytes;

	daemon_wire_drop_fds(&watch->wire);
	if (bytes < sizeof(*header) || header->magic != HARP_LEASE_MAGIC || header->size != bytes)
		return why_fail(why, -EPROTO, "the listener is not harpd");
	switch (header->type) {
	case HARP_LEASE_WELCOME:
	case HARP_LEASE_DONE:
		return 0;
	case HARP_LEASE_REFUSED:
		return daemon_refused(header, bytes, why);
	default:
		if (!netwatch_message_valid(header, bytes))
			return why_fail(why, -EPROTO, "harpd's message of type %u is invalid",
					header->type);
		fn(ctx, header);
		return 0;
	}
}

static int netwatch_read(struct netwatch *watch, netwatch_fn fn, void *ctx, const struct why *why)
{
	for (unsigned i = 0; i < NETWATCH_MESSAGES; i++) {
		int rc = daemon_wire_receive(&watch->wire);

		if (rc == -EAGAIN)
			return 0;
		if (rc)
			return why_fail(why, rc, "the connection ended: %s", strerror(-rc));
		rc = netwatch_take(watch, fn, ctx, why);
		if (rc)
			return rc;
	}
	return 0;
}

int netwatch_events(struct netwatch *watch, uint64_t now_ns, netwatch_fn fn, void *ctx)
{
	struct why why = { .text = watch->why, .size = sizeof(watch->why), .subject = "harpd" };
	int rc = 0;

	if (watch->wire.fd < 0) {
		if (now_ns < watch->retry_ns)
			return -ENOTCONN;
		rc = netwatch_connect(watch, NETWATCH_CALL_MS, &why);
	}
	if (!rc)
		rc = netwatch_read(watch, fn, ctx, &why);
	if (!rc)
		return 0;
	netwatch_drop(watch, now_ns);
	return -ENOTCONN;
}

int netwatch_neighbors(struct netwatch *watch, struct harp_lease_neighbors *message)
{
	size_t bytes = offsetof(struct harp_lease_neighbors, all) +
		       message->count * sizeof(message->all[0]);

	if (watch->wire.fd < 0)
		return -ENOTCONN;
	message->header = netwatch_header(watch, HARP_LEASE_NEIGHBORS, bytes);
	return daemon_wire_send(&watch->wire, message, bytes);
}

/* ---- opening -------------------------------------------------------------------------------- */

struct netwatch_first {
	bool has_network;
	netwatch_fn fn;
	void *ctx;
};

static void netwatch_first(void *ctx, const struct harp_lease_header *message)
{
	struct netwatch_first *first = ctx;

	first->has_network |= message->type == HARP_LEASE_NETWORK;
	first->fn(first->ctx, message);
}

static int netwatch_await(struct netwatch *watch, netwatch_fn fn, void *ctx, const struct why *why)
{
	struct netwatch_first first = { .fn = fn, .ctx = ctx };
	uint64_t now_ns = clock_ns();
	const uint64_t until_ns = now_ns + NETWATCH_OPEN_MS * UINT64_C(1000000);
	int rc = netwatch_connect(watch, NETWATCH_OPEN_MS, why);

	while (!rc && !first.has_network) {
		struct pollfd fd = { .fd = watch->fd, .events = POLLIN };

		now_ns = clock_ns();
		if (now_ns >= until_ns)
			return why_fail(why, -ETIMEDOUT,
					"harpd does not answer within %u s; is it stopped?",
					NETWATCH_OPEN_MS / 1000);
		poll(&fd, 1, (int)((until_ns - now_ns) / 1000000 + 1));
		rc = netwatch_read(watch, netwatch_first, &first, why);
	}
	return rc;
}

int netwatch_open(struct netwatch **out, const char *socket, const struct harp_lease_leased *leased,
		  netwatch_fn fn, void *ctx, const struct why *why)
{
	struct netwatch *watch = calloc(1, sizeof(*watch));
	int rc;

	*out = NULL;
	if (!watch)
		return why_fail(why, -ENOMEM, "out of memory");
	watch->wire.fd = -1;
	watch->socket = socket;
	watch->lease_id = leased->lease_id;
	watch->fd = epoll_create1(EPOLL_CLOEXEC);
	rc = watch->fd < 0 ? why_fail(why, -errno, "epoll_create1: %s", strerror(errno))
			   : netwatch_await(watch, fn, ctx, why);
	if (rc)
		netwatch_close(watch);
	else
		*out = watch;
	return rc;
}

void netwatch_close(struct netwatch *watch)
{
	if (!watch)
		return;
	netwatch_drop(watch, 0);
	if (watch->fd >= 0)
		close(watch->fd);
	free(watch);
}

void netwatch_fork_child(const struct netwatch *watch)
{
	close(watch->fd);
	if (watch->wire.fd >= 0)
		close(watch->wire.fd);
}

/* ---- routes --------------------------------------------------------------------------------- */

static struct netwatch_route *netwatch_find(struct netwatch *watch, const struct harp_addr *dst)
{
	for (unsigned i = 0; i < watch->route_count; i++)
		if (addr_equal(&watch->routes[i].dst, dst))
			return &watch->routes[i];
	return NULL;
}

/* Returns an entry for dst, replacing the oldest if all are used. */
static struct netwatch_route *netwatch_add(struct netwatch *watch, const struct harp_addr *dst)
{
	struct netwatch_route *record = &watch->routes[watch->route_next];

	watch->route_next = (watch->route_next + 1) % NETWATCH_ROUTES_MAX;
	if (watch->route_count < NETWATCH_ROUTES_MAX)
		watch->route_count++;
	*record = (struct netwatch_route){ .dst = *dst };
	return record;
}

/* 0: *rc is the kernel's answer. Otherwise the reason why harpd did not answer. */
static int netwatch_query(const struct netwatch *watch, const struct harp_addr *dst,
			  struct harp_host_route *route, int *rc)
{
	struct why quiet = { 0 };
	struct harp_daemon *daemon;
	char client[DAEMON_CLIENT_BYTES];
	int error;

	daemon_client(client);
	error = daemon_open(&daemon, watch->socket, client, NETWATCH_ROUTE_WAIT_MS, &quiet);
	if (error)
		return error;
	*rc = daemon_route(daemon, watch->lease_id, dst, route, &quiet);
	harp_daemon_close(daemon);
	/* After these errors harpd has not queried the kernel. Others are the kernel's answer. */
	switch (*rc) {
	case -ETIMEDOUT:
	case -ECONNRESET:
	case -EPROTO:
	case -ENOENT:
		return *rc;
	default:
		return 0;
	}
}

int netwatch_route(struct netwatch *watch, const struct harp_addr *dst, struct harp_host_route *out)
{
	struct netwatch_route *record = netwatch_find(watch, dst);
	struct harp_host_route route;
	int rc = 0, error;

	memset(out, 0, sizeof(*out));
	if (!record || clock_ns() >= record->fresh_ns) {
		error = netwatch_query(watch, dst, &route, &rc);
		if (error && !record)
			return error;
		if (!record)
			record = netwatch_add(watch, dst);
		if (!error) {
			record->rc = rc;
			if (!rc)
				record->route = route;
		}
		/* Also after a failure, so that a silent harpd delays only one caller per
		 * second. */
		record->fresh_ns = clock_ns() + NETWATCH_ROUTE_NS;
	}
	if (!record->rc)
		*out = record->route;
	return record->rc;
}
