/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_netwatch.c - a job in another network namespace receives network changes from harpd. It
 * never blocks on them, and it survives a harpd that dies, restarts, or sends invalid messages.
 * harpd is a socket of this process.
 */
#include "host/netwatch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "fds.h"
#include "host/daemon.h"
#include "lease_messages.h"

#define LEASE_ID 77u
#define SECOND UINT64_C(1000000000)

static char folder[] = "/tmp/harp-test-netwatch-XXXXXX", path[sizeof(folder) + 16];
static char why[512];
static int listener = -1, connection = -1;
static const struct harp_lease_leased leased = { .lease_id = LEASE_ID };

/* ---- harpd ----------------------------------------------------------------------------------- */

static void harpd_die(void)
{
	close(listener);
	close(connection);
	unlink(path);
	listener = connection = -1;
}

static void harpd_send(int fd, void *message, size_t bytes, uint16_t type, uint32_t serial)
{
	*(struct harp_lease_header *)message = lease_header(type, bytes, serial);
	CHECK_EQ(send(fd, message, bytes, MSG_NOSIGNAL), bytes);
}

static void harpd_send_network(uint32_t serial, uint32_t mtu_bytes)
{
	struct harp_lease_network network = {
		.lease_id = LEASE_ID,
		.link = HARP_LEASE_LINK_UP,
		.mtu_bytes = mtu_bytes,
		.tables = { .address_count = 1, .addresses = { harp_addr_v4(10, 0, 0, 1) } },
	};

	harpd_send(connection, &network, sizeof(network), HARP_LEASE_NETWORK, serial);
}

/* Receives the job's next message; returns its serial. */
static uint32_t harpd_receive(uint16_t type, void *message, size_t bytes)
{
	const struct harp_lease_header *header = message;

	CHECK_EQ(recv(connection, message, bytes, 0), bytes);
	CHECK_EQ(header->type, type);
	CHECK_EQ(header->size, bytes);
	return header->serial;
}

/* The job sends HELLO and WATCH together; harpd answers them one after the other. */
static void harpd_accept(void)
{
	struct harp_lease_hello hello;
	struct harp_lease_watch watch;
	struct harp_lease_welcome welcome = { 0 };
	uint32_t serial;

	connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(connection >= 0);
	serial = harpd_receive(HARP_LEASE_HELLO, &hello, sizeof(hello));
	harpd_send(connection, &welcome, sizeof(welcome), HARP_LEASE_WELCOME, serial);
	serial = harpd_receive(HARP_LEASE_WATCH, &watch, sizeof(watch));
	CHECK_EQ(watch.lease_id, LEASE_ID);
	harpd_send_network(serial, 1500);
}

static void *serve_watch(void *arg)
{
	harpd_accept();
	return NULL;
}

static void *refuse_watch(void *arg)
{
	struct harp_lease_refused refused = { .error = ENOENT, .why = "no such\nlease" };
	struct harp_lease_hello hello;
	uint32_t serial;

	connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	serial = harpd_receive(HARP_LEASE_HELLO, &hello, sizeof(hello));
	harpd_send(connection, &refused, sizeof(refused), HARP_LEASE_REFUSED, serial);
	return NULL;
}

/* ---- the job --------------------------------------------------------------------------------- */

struct event_counts {
	unsigned networks, neighbors;
	uint32_t serial, mtu_bytes;
	struct harp_lease_neighbor last;
};

static void count_message(void *ctx, const struct harp_lease_header *header)
{
	struct event_counts *counts = ctx;
	const struct harp_lease_network *network = (const void *)header;
	const struct harp_lease_neighbors *neighbors = (const void *)header;

	counts->serial = header->serial;
	if (header->type == HARP_LEASE_NETWORK) {
		counts->networks++;
		counts->mtu_bytes = network->mtu_bytes;
	} else if (neighbors->count) {
		counts->neighbors += neighbors->count;
		counts->last = neighbors->all[neighbors->count - 1];
	}
}

static struct event_counts events;
static struct netwatch *watch;

static void watch_open(void)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	pthread_t thread;

	memset(&events, 0, sizeof(events));
	listener = lease_listen(path, SOCK_SEQPACKET);
	CHECK_EQ(pthread_create(&thread, NULL, serve_watch, NULL), 0);
	CHECK_EQ(netwatch_open(&watch, path, &leased, count_message, &events, &reason), 0);
	pthread_join(thread, NULL);
}

static void watch_close(void)
{
	netwatch_close(watch);
	watch = NULL;
	harpd_die();
}

BEFORE_EACH(watch_open())
AFTER_EACH(watch_close())

static bool is_readable(void)
{
	struct pollfd fd = { .fd = watch->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

TEST(network_and_neighbor_changes_are_received)
{
	struct harp_lease_neighbors message = { .count = 1 };

	CHECK_EQ(events.networks, 1);
	CHECK(events.serial != 0);
	CHECK(!is_readable());
	CHECK_EQ(netwatch_events(watch, 0, count_message, &events), 0);
	harpd_send_network(0, 9000);
	message.all[0].addr = harp_addr_v4(10, 0, 0, 2);
	message.all[0].flags = HARP_LEASE_NEIGHBOR_KNOWN;
	harpd_send(connection, &message, offsetof(struct harp_lease_neighbors, all[1]),
		   HARP_LEASE_NEIGHBORS, 0);
	CHECK(is_readable());
	CHECK_EQ(netwatch_events(watch, 0, count_message, &events), 0);
	CHECK_EQ(events.networks, 2);
	CHECK_EQ(events.mtu_bytes, 9000);
	CHECK_EQ(events.neighbors, 1);
	CHECK_EQ(events.last.addr.bytes[15], 2);
	CHECK(!is_readable());
}

TEST(neighbor_requests_never_wait)
{
	struct harp_lease_neighbors message = { .count = 2 }, got;
	const size_t bytes = offsetof(struct harp_lease_neighbors, all[2]);
	unsigned sent = 0;

	message.all[1].flags = HARP_LEASE_NEIGHBOR_WANTED;
	CHECK_EQ(netwatch_neighbors(watch, &message), 0);
	CHECK_EQ(recv(connection, &got, sizeof(got), 0), bytes);
	CHECK_EQ(got.header.type, HARP_LEASE_NEIGHBORS);
	CHECK_EQ(got.count, 2);
	CHECK_EQ(got.all[1].flags, HARP_LEASE_NEIGHBOR_WANTED);
	/* harpd reads nothing; the job does not wait for it. */
	while (netwatch_neighbors(watch, &message) == 0)
		CHECK(sent++ < 100000);
	CHECK_EQ(netwatch_neighbors(watch, &message), -EAGAIN);
}

/* The job tries to reconnect at most once a second. The descriptor does not wake it for that. */
TEST(the_job_reconnects_to_a_restarted_harpd)
{
	struct harp_lease_neighbors message = { .count = 1 };

	harpd_die();
	CHECK(is_readable());
	CHECK_EQ(netwatch_events(watch, 5 * SECOND, count_message, &events), -ENOTCONN);
	CHECK(strstr(watch->why, "the connection ended") != NULL);
	CHECK(!is_readable());
	CHECK_EQ(netwatch_neighbors(watch, &message), -ENOTCONN);
	CHECK_EQ(netwatch_events(watch, 6 * SECOND, count_message, &events), -ENOTCONN);
	CHECK(strstr(watch->why, "no such socket") != NULL);
	listener = lease_listen(path, SOCK_SEQPACKET);
	CHECK_EQ(netwatch_events(watch, 7 * SECOND - 1, count_message, &events), -ENOTCONN);
	CHECK_EQ(netwatch_events(watch, 7 * SECOND, count_message, &events), 0);
	harpd_accept();
	CHECK(is_readable());
	CHECK_EQ(netwatch_events(watch, 7 * SECOND, count_message, &events), 0);
	CHECK_EQ(events.networks, 2);
	CHECK(events.serial != 0);
	CHECK_EQ(netwatch_neighbors(watch, &message), 0);
}

/* ---- invalid messages ------------------------------------------------------------------------ */

static union {
	struct harp_lease_header header;
	struct harp_lease_network network;
	struct harp_lease_neighbors neighbors;
	struct harp_lease_refused refused;
} message;

static void make_network(void)
{
	memset(&message, 0, sizeof(message));
	message.network.link = HARP_LEASE_LINK_UP;
	message.network.tables.route_count = 1;
	message.network.tables.routes[0].prefix = harp_addr_v4(10, 0, 0, 0);
	message.network.tables.routes[0].prefix_len = 8;
}

/* harpd sends `message` with descriptors: the connection and the descriptors are closed. */
static void check_refused(size_t bytes, uint16_t type, const char *text, int line)
{
	unsigned before = fds_open();

	message.header = lease_header(type, bytes, 0);
	CHECK_EQ(pass_fds(connection, &message, bytes, connection, 3), bytes);
	CHECK_EQ(netwatch_events(watch, 0, count_message, &events), -ENOTCONN);
	CHECK_EQ(fds_open(), before - 1);
	CHECK_EQ(events.networks, 1);
	if (!strstr(watch->why, text)) {
		fprintf(stderr, "%d: \"%s\" does not contain \"%s\"\n", line, watch->why, text);
		check_failed();
	}
	watch_close();
	watch_open();
}

/* A NETWORK message that is valid except for `change`. */
#define INVALID_NETWORK(change)                                                                    \
	do {                                                                                       \
		make_network();                                                                    \
		change;                                                                            \
		check_refused(sizeof(message.network), HARP_LEASE_NETWORK, "type 12 is invalid",   \
			      __LINE__);                                                           \
	} while (0)

TEST(invalid_messages_end_the_connection)
{
	make_network();
	check_refused(8, HARP_LEASE_NETWORK, "is not harpd", __LINE__);
	check_refused(sizeof(message.network) - 1, HARP_LEASE_NETWORK, "type 12 is invalid",
		      __LINE__);
	INVALID_NETWORK(message.network.tables.address_count = HARP_LEASE_ADDRESSES_MAX + 1);
	INVALID_NETWORK(message.network.tables.route_count = HARP_LEASE_ROUTES_MAX + 1);
	INVALID_NETWORK(message.network.tables.routes[0].prefix_len = 33);
	/* The gateway is an IPv6 address. */
	INVALID_NETWORK(message.network.tables.routes[0].has_gateway = 1);
	INVALID_NETWORK(message.network.link = 3);
	memset(&message, 0, sizeof(message));
	message.neighbors.count = HARP_LEASE_NEIGHBORS_MAX + 1;
	check_refused(sizeof(message.neighbors), HARP_LEASE_NEIGHBORS, "type 13 is invalid",
		      __LINE__);
	message.neighbors.count = 2;
	check_refused(offsetof(struct harp_lease_neighbors, all[1]), HARP_LEASE_NEIGHBORS,
		      "invalid", __LINE__);
	check_refused(sizeof(message.header), HARP_LEASE_LEASED, "type 4 is invalid", __LINE__);
	memset(&message, 0, sizeof(message));
	message.refused.error = ENOENT;
	strcpy(message.refused.why, "the lease is over");
	check_refused(sizeof(message.refused), HARP_LEASE_REFUSED,
		      "harpd refuses: the lease is over", __LINE__);
}

/* A valid message is accepted, and its descriptors are closed. */
TEST(unexpected_descriptors_are_closed)
{
	unsigned before = fds_open();

	make_network();
	message.header = lease_header(HARP_LEASE_NETWORK, sizeof(message.network), 0);
	CHECK_EQ(pass_fds(connection, &message, sizeof(message.network), connection, 5),
		 sizeof(message.network));
	CHECK_EQ(netwatch_events(watch, 0, count_message, &events), 0);
	CHECK_EQ(fds_open(), before);
}

TEST(a_failed_open_gives_the_reason)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	unsigned before;
	pthread_t thread;

	watch_close();
	before = fds_open();
	CHECK_EQ(netwatch_open(&watch, path, &leased, count_message, &events, &reason), -ENOENT);
	CHECK(!watch);
	CHECK(strncmp(why, "here: no such socket", 20) == 0);
	listener = lease_listen(path, SOCK_SEQPACKET);
	CHECK_EQ(pthread_create(&thread, NULL, refuse_watch, NULL), 0);
	CHECK_EQ(netwatch_open(&watch, path, &leased, count_message, &events, &reason), -ENOENT);
	pthread_join(thread, NULL);
	CHECK(!watch);
	CHECK_STR(why, "here: harpd refuses: no such?lease");
	harpd_die();
	CHECK_EQ(fds_open(), before);
}

/* ---- routes ---------------------------------------------------------------------------------- */

struct route_script {
	int error;
	uint32_t mtu_bytes;
};

/* Serves one connection: HELLO, ROUTE. */
static void *serve_route(void *arg)
{
	const struct route_script *script = arg;
	struct harp_lease_hello hello;
	struct harp_lease_route_query query;
	struct harp_lease_welcome welcome = { .daemon = "harpd test" };
	struct harp_lease_routed routed = {
		.error = script->error,
		.route = { .ifindex = 7, .mtu_bytes = script->mtu_bytes, .ifname = "eth1\x1b[31m" },
	};
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	CHECK_EQ(recv(fd, &hello, sizeof(hello), 0), sizeof(hello));
	harpd_send(fd, &welcome, sizeof(welcome), HARP_LEASE_WELCOME, hello.header.serial);
	CHECK_EQ(recv(fd, &query, sizeof(query), 0), sizeof(query));
	CHECK_EQ(query.header.type, HARP_LEASE_ROUTE);
	CHECK_EQ(query.lease_id, LEASE_ID);
	harpd_send(fd, &routed, sizeof(routed), HARP_LEASE_ROUTED, query.header.serial);
	close(fd);
	return NULL;
}

static int route(uint8_t last, struct route_script *script, struct harp_host_route *out)
{
	struct harp_addr dst = harp_addr_v4(10, 0, 0, last);
	pthread_t thread;
	int rc;

	if (script)
		CHECK_EQ(pthread_create(&thread, NULL, serve_route, script), 0);
	rc = netwatch_route(watch, &dst, out);
	if (script)
		pthread_join(thread, NULL);
	return rc;
}

/* A route is cached for a while. While harpd does not answer, the job uses an expired one. */
TEST(routes_are_cached_while_harpd_is_away)
{
	struct route_script script = { .mtu_bytes = 1400 };
	struct harp_host_route out;

	CHECK_EQ(route(1, &script, &out), 0);
	CHECK_EQ(out.mtu_bytes, 1400);
	CHECK_EQ(out.ifindex, 7);
	CHECK_STR(out.ifname, "eth1?[31m");
	CHECK_EQ(route(1, NULL, &out), 0); /* from the cache */
	watch->routes[0].fresh_ns = 0;
	script.error = ENETUNREACH;
	CHECK_EQ(route(1, &script, &out), -ENETUNREACH);
	CHECK_EQ(out.mtu_bytes, 0);
	script = (struct route_script){ .mtu_bytes = 1300 };
	watch->routes[0].fresh_ns = 0;
	CHECK_EQ(route(1, &script, &out), 0);
	harpd_die();
	watch->routes[0].fresh_ns = 0;
	CHECK_EQ(route(1, NULL, &out), 0);
	CHECK_EQ(out.mtu_bytes, 1300);
	CHECK_EQ(route(2, NULL, &out), -ENOENT);
	CHECK_EQ(watch->route_count, 1);
}

TEST(the_oldest_route_is_replaced)
{
	struct route_script script = { .mtu_bytes = 1400 };
	struct harp_host_route out;

	for (unsigned i = 0; i < NETWATCH_ROUTES_MAX + 3; i++)
		CHECK_EQ(route((uint8_t)i, &script, &out), 0);
	CHECK_EQ(watch->route_count, NETWATCH_ROUTES_MAX);
	CHECK_EQ(route(NETWATCH_ROUTES_MAX + 2, NULL, &out), 0);
	CHECK_EQ(route(3, NULL, &out), 0);
	harpd_die();
	CHECK_EQ(route(0, NULL, &out), -ENOENT); /* the oldest was replaced */
}

int main(void)
{
	CHECK(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/harpd.sock", folder);
	check_run();
	CHECK_EQ(rmdir(folder), 0);
	return check_done();
}
