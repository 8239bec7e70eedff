/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_netwatch.c - a job of another network namespace follows harpd's reports: it never waits for
 * them, and harpd may die, restart, or send invalid messages. harpd is a socket of this process.
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

static void harpd_say(int fd, void *message, size_t bytes, uint16_t type, uint32_t serial)
{
	*(struct harp_lease_header *)message = lease_header(type, bytes, serial);
	CHECK_EQ(send(fd, message, bytes, MSG_NOSIGNAL), bytes);
}

static void harpd_network(uint32_t serial, uint32_t mtu_bytes)
{
	struct harp_lease_network network = {
		.lease_id = LEASE_ID,
		.link = HARP_LEASE_LINK_UP,
		.mtu_bytes = mtu_bytes,
		.tables = { .address_count = 1, .addresses = { harp_addr_v4(10, 0, 0, 1) } },
	};

	harpd_say(connection, &network, sizeof(network), HARP_LEASE_NETWORK, serial);
}

/* The next message of the job's; its serial. */
static uint32_t harpd_hears(uint16_t type, void *message, size_t bytes)
{
	const struct harp_lease_header *header = message;

	CHECK_EQ(recv(connection, message, bytes, 0), bytes);
	CHECK_EQ(header->type, type);
	CHECK_EQ(header->size, bytes);
	return header->serial;
}

/* HELLO and WATCH come together, and are answered one after the other. */
static void harpd_accept(void)
{
	struct harp_lease_hello hello;
	struct harp_lease_watch watch;
	struct harp_lease_welcome welcome = { 0 };
	uint32_t serial;

	connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(connection >= 0);
	serial = harpd_hears(HARP_LEASE_HELLO, &hello, sizeof(hello));
	harpd_say(connection, &welcome, sizeof(welcome), HARP_LEASE_WELCOME, serial);
	serial = harpd_hears(HARP_LEASE_WATCH, &watch, sizeof(watch));
	CHECK_EQ(watch.lease_id, LEASE_ID);
	harpd_network(serial, 1500);
}

static void *harpd_serves(void *arg)
{
	harpd_accept();
	return NULL;
}

static void *harpd_refuses(void *arg)
{
	struct harp_lease_refused refused = { .error = ENOENT, .why = "no such\nlease" };
	struct harp_lease_hello hello;
	uint32_t serial;

	connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	serial = harpd_hears(HARP_LEASE_HELLO, &hello, sizeof(hello));
	harpd_say(connection, &refused, sizeof(refused), HARP_LEASE_REFUSED, serial);
	return NULL;
}

/* ---- the job --------------------------------------------------------------------------------- */

struct received {
	unsigned networks, neighbors;
	uint32_t serial, mtu_bytes;
	struct harp_lease_neighbor last;
};

static void count_message(void *ctx, const struct harp_lease_header *header)
{
	struct received *received = ctx;
	const struct harp_lease_network *network = (const void *)header;
	const struct harp_lease_neighbors *neighbors = (const void *)header;

	received->serial = header->serial;
	if (header->type == HARP_LEASE_NETWORK) {
		received->networks++;
		received->mtu_bytes = network->mtu_bytes;
	} else if (neighbors->count) {
		received->neighbors += neighbors->count;
		received->last = neighbors->all[neighbors->count - 1];
	}
}

static struct received received;
static struct netwatch *watch;

static void watch_open(void)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	pthread_t thread;

	memset(&received, 0, sizeof(received));
	listener = lease_listen(path, SOCK_SEQPACKET);
	CHECK_EQ(pthread_create(&thread, NULL, harpd_serves, NULL), 0);
	CHECK_EQ(netwatch_open(&watch, path, &leased, count_message, &received, &reason), 0);
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

static bool readable(void)
{
	struct pollfd fd = { .fd = watch->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

TEST(network_and_neighbor_changes_are_received)
{
	struct harp_lease_neighbors message = { .count = 1 };

	CHECK_EQ(received.networks, 1);
	CHECK(received.serial != 0);
	CHECK(!readable());
	CHECK_EQ(netwatch_events(watch, 0, count_message, &received), 0);
	harpd_network(0, 9000);
	message.all[0].addr = harp_addr_v4(10, 0, 0, 2);
	message.all[0].flags = HARP_LEASE_NEIGHBOR_KNOWN;
	harpd_say(connection, &message, offsetof(struct harp_lease_neighbors, all[1]),
		  HARP_LEASE_NEIGHBORS, 0);
	CHECK(readable());
	CHECK_EQ(netwatch_events(watch, 0, count_message, &received), 0);
	CHECK_EQ(received.networks, 2);
	CHECK_EQ(received.mtu_bytes, 9000);
	CHECK_EQ(received.neighbors, 1);
	CHECK_EQ(received.last.addr.bytes[15], 2);
	CHECK(!readable());
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
	/* A harpd that reads nothing is not waited for. */
	while (netwatch_neighbors(watch, &message) == 0)
		CHECK(sent++ < 100000);
	CHECK_EQ(netwatch_neighbors(watch, &message), -EAGAIN);
}

/* It stays lost until harpd is back; it is tried once a second at most, without a wake-up. */
TEST(a_restarted_harpd_is_found_again)
{
	struct harp_lease_neighbors message = { .count = 1 };

	harpd_die();
	CHECK(readable());
	CHECK_EQ(netwatch_events(watch, 5 * SECOND, count_message, &received), -ENOTCONN);
	CHECK(strstr(watch->why, "the connection ended") != NULL);
	CHECK(!readable());
	CHECK_EQ(netwatch_neighbors(watch, &message), -ENOTCONN);
	CHECK_EQ(netwatch_events(watch, 6 * SECOND, count_message, &received), -ENOTCONN);
	CHECK(strstr(watch->why, "no such socket") != NULL);
	listener = lease_listen(path, SOCK_SEQPACKET);
	CHECK_EQ(netwatch_events(watch, 7 * SECOND - 1, count_message, &received), -ENOTCONN);
	CHECK_EQ(netwatch_events(watch, 7 * SECOND, count_message, &received), 0);
	harpd_accept();
	CHECK(readable());
	CHECK_EQ(netwatch_events(watch, 7 * SECOND, count_message, &received), 0);
	CHECK_EQ(received.networks, 2);
	CHECK(received.serial != 0);
	CHECK_EQ(netwatch_neighbors(watch, &message), 0);
}

/* ---- nonsense -------------------------------------------------------------------------------- */

static union {
	struct harp_lease_header header;
	struct harp_lease_network network;
	struct harp_lease_neighbors neighbors;
	struct harp_lease_refused refused;
} lie;

static void lie_network(void)
{
	memset(&lie, 0, sizeof(lie));
	lie.network.link = HARP_LEASE_LINK_UP;
	lie.network.tables.route_count = 1;
	lie.network.tables.routes[0].prefix = harp_addr_v4(10, 0, 0, 0);
	lie.network.tables.routes[0].prefix_len = 8;
}

/* The connection ends, the descriptors that came with the message are closed, the job goes on. */
static void refuses(size_t bytes, uint16_t type, const char *words, int line)
{
	unsigned before = fds_open();

	lie.header = lease_header(type, bytes, 0);
	CHECK_EQ(pass_fds(connection, &lie, bytes, connection, 3), bytes);
	CHECK_EQ(netwatch_events(watch, 0, count_message, &received), -ENOTCONN);
	CHECK_EQ(fds_open(), before - 1);
	CHECK_EQ(received.networks, 1);
	if (!strstr(watch->why, words)) {
		fprintf(stderr, "%d: \"%s\" instead of \"%s\"\n", line, watch->why, words);
		check_failed();
	}
	watch_close();
	watch_open();
}

/* A NETWORK that is valid but for `change`. */
#define REFUSES_NETWORK(change)                                                                    \
	do {                                                                                       \
		lie_network();                                                                     \
		change;                                                                            \
		refuses(sizeof(lie.network), HARP_LEASE_NETWORK, "type 12 is invalid", __LINE__);  \
	} while (0)

TEST(invalid_messages_end_the_connection)
{
	lie_network();
	refuses(8, HARP_LEASE_NETWORK, "is not harpd", __LINE__);
	refuses(sizeof(lie.network) - 1, HARP_LEASE_NETWORK, "type 12 is invalid", __LINE__);
	REFUSES_NETWORK(lie.network.tables.address_count = HARP_LEASE_ADDRESSES_MAX + 1);
	REFUSES_NETWORK(lie.network.tables.route_count = HARP_LEASE_ROUTES_MAX + 1);
	REFUSES_NETWORK(lie.network.tables.routes[0].prefix_len = 33);
	REFUSES_NETWORK(lie.network.tables.routes[0].has_gateway = 1); /* of IPv6 */
	REFUSES_NETWORK(lie.network.link = 3);
	memset(&lie, 0, sizeof(lie));
	lie.neighbors.count = HARP_LEASE_NEIGHBORS_MAX + 1;
	refuses(sizeof(lie.neighbors), HARP_LEASE_NEIGHBORS, "type 13 is invalid", __LINE__);
	lie.neighbors.count = 2;
	refuses(offsetof(struct harp_lease_neighbors, all[1]), HARP_LEASE_NEIGHBORS, "invalid",
		__LINE__);
	refuses(sizeof(lie.header), HARP_LEASE_LEASED, "type 4 is invalid", __LINE__);
	memset(&lie, 0, sizeof(lie));
	lie.refused.error = ENOENT;
	strcpy(lie.refused.why, "the lease is over");
	refuses(sizeof(lie.refused), HARP_LEASE_REFUSED, "harpd refuses: the lease is over",
		__LINE__);
}

/* A valid message is accepted; descriptors that came with it are closed. */
TEST(unexpected_descriptors_are_closed)
{
	unsigned before = fds_open();

	lie_network();
	lie.header = lease_header(HARP_LEASE_NETWORK, sizeof(lie.network), 0);
	CHECK_EQ(pass_fds(connection, &lie, sizeof(lie.network), connection, 5),
		 sizeof(lie.network));
	CHECK_EQ(netwatch_events(watch, 0, count_message, &received), 0);
	CHECK_EQ(fds_open(), before);
}

TEST(a_failed_open_gives_the_reason)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	unsigned before;
	pthread_t thread;

	watch_close();
	before = fds_open();
	CHECK_EQ(netwatch_open(&watch, path, &leased, count_message, &received, &reason), -ENOENT);
	CHECK(!watch);
	CHECK(strncmp(why, "here: no such socket", 20) == 0);
	listener = lease_listen(path, SOCK_SEQPACKET);
	CHECK_EQ(pthread_create(&thread, NULL, harpd_refuses, NULL), 0);
	CHECK_EQ(netwatch_open(&watch, path, &leased, count_message, &received, &reason), -ENOENT);
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

/* One conversation: HELLO, ROUTE. */
static void *harpd_routes(void *arg)
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
	harpd_say(fd, &welcome, sizeof(welcome), HARP_LEASE_WELCOME, hello.header.serial);
	CHECK_EQ(recv(fd, &query, sizeof(query), 0), sizeof(query));
	CHECK_EQ(query.header.type, HARP_LEASE_ROUTE);
	CHECK_EQ(query.lease_id, LEASE_ID);
	harpd_say(fd, &routed, sizeof(routed), HARP_LEASE_ROUTED, query.header.serial);
	close(fd);
	return NULL;
}

static int route(uint8_t last, struct route_script *script, struct harp_host_route *out)
{
	struct harp_addr dst = harp_addr_v4(10, 0, 0, last);
	pthread_t thread;
	int rc;

	if (script)
		CHECK_EQ(pthread_create(&thread, NULL, harpd_routes, script), 0);
	rc = netwatch_route(watch, &dst, out);
	if (script)
		pthread_join(thread, NULL);
	return rc;
}

/* An answer is cached for a while, and for as long as harpd does not answer. */
TEST(routes_are_cached_while_harpd_is_away)
{
	struct route_script script = { .mtu_bytes = 1400 };
	struct harp_host_route out;

	CHECK_EQ(route(1, &script, &out), 0);
	CHECK_EQ(out.mtu_bytes, 1400);
	CHECK_EQ(out.ifindex, 7);
	CHECK_STR(out.ifname, "eth1?[31m");
	CHECK_EQ(route(1, NULL, &out), 0); /* without a request */
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
	CHECK_EQ(route(0, NULL, &out), -ENOENT); /* the oldest made room */
}

int main(void)
{
	CHECK(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/harpd.sock", folder);
	check_run();
	CHECK_EQ(rmdir(folder), 0);
	return check_done();
}
