/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_lease.c - leases of queues and of DPDK ports: kept if they are valid, else given back at once and explained
 * in a line, without a descriptor that stays open. harpd is the other end of a socket, which has said beforehand what it
 * will say; every descriptor that it passes is that end itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "fds.h"
#include "host/daemon.h"
#include "lease_messages.h"
#include "pass_fds.h"

#define LEASE_ID 0x1122334455667788ull

static char why[512];
static struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
static unsigned descriptors; /* that come with the lease */
static int ends[2];          /* ours, until it is handed over; harpd's */

static void say(void *bytes, size_t count, unsigned fds)
{
	CHECK(pass_fds(ends[1], bytes, count, ends[1], fds) == (ssize_t)count);
}

/* The type of the next message that harpd received; 0: none is left. */
static unsigned received(uint64_t *lease_id)
{
	union {
		struct harp_lease_header header;
		struct harp_lease_release release;
		uint8_t bytes[1024];
	} message;
	ssize_t got;

	do { /* a client that left messages unread resets the connection */
		got = recv(ends[1], &message, sizeof(message), MSG_DONTWAIT);
	} while (got < 0 && errno == ECONNRESET);
	if (got < (ssize_t)sizeof(message.header))
		return 0;
	*lease_id = message.header.type == HARP_LEASE_RELEASE ? message.release.lease_id : 0;
	return message.header.type;
}

/* Checks harpd's messages from HELLO to the end. Returns whether the lease came back. */
static bool came_back(void)
{
	uint64_t id;
	bool back;

	CHECK_EQ(received(&id), HARP_LEASE_HELLO);
	CHECK_EQ(received(&id), HARP_LEASE_LEASE);
	back = received(&id) == HARP_LEASE_RELEASE;
	if (back)
		CHECK(id == LEASE_ID);
	CHECK_EQ(received(&id), 0);
	close(ends[1]);
	return back;
}

/* The line that explains a refusal to "here" has these words. */
static void explained(const char *words, int line)
{
	if (strstr(why, words) && strncmp(why, "here: ", 6) == 0)
		return;
	fprintf(stderr, "%d: \"%s\" instead of \"%s\"\n", line, why, words);
	check_failures++;
}

/* ---- queues --------------------------------------------------------------------------------- */

static struct harp_lease_leased leased;

/* A harpd that leases well; what it says of the lease can be changed. */
static void good_lease(void)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	memset(&leased, 0, sizeof(leased));
	leased.header = lease_header(HARP_LEASE_LEASED, sizeof(leased), 2);
	leased.lease_id = LEASE_ID;
	strcpy(leased.ifname, "eth1");
	leased.ifindex = 7;
	leased.queue = 1;
	leased.queue_count = 4;
	leased.port_min = 61000;
	leased.port_max = 61255;
	descriptors = HARP_LEASE_FDS;
}

/* Descriptors beyond those that are open and `room` more cannot be had. */
static void limit(unsigned room, rlim_t *before)
{
	struct rlimit files;
	int next = dup(ends[1]);

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	*before = files.rlim_cur;
	files.rlim_cur = (rlim_t)next + room;
	close(next);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
}

static void unlimit(rlim_t before)
{
	struct rlimit files;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = before;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
}

/* Asks for a lease of eth1; room: for descriptors, ~0u: as many as come. */
static int ask_lease(uint32_t queue, unsigned room, int fds[HARP_LEASE_FDS])
{
	struct harp_lease_welcome welcome = {
		.header = lease_header(HARP_LEASE_WELCOME, sizeof(welcome), 1),
		.daemon = "harpd test",
	};
	struct harp_lease_request request = { .ifname = "eth1", .queue = queue };
	struct harp_lease_header done = lease_header(HARP_LEASE_DONE, sizeof(done), 3);
	struct harp_lease_leased out;
	struct harp_daemon *daemon;
	rlim_t before = 0;
	int rc;

	say(&welcome, sizeof(welcome), 0);
	CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), 0);
	say(&leased, sizeof(leased), descriptors);
	say(&done, sizeof(done), 0);
	if (room != ~0u)
		limit(room, &before);
	rc = daemon_lease(daemon, &request, &out, fds, &reason);
	if (room != ~0u)
		unlimit(before);
	harp_daemon_close(daemon);
	return rc;
}

#define REFUSES_LEASE(error, room, words)                                                          \
	do {                                                                                       \
		int fds[HARP_LEASE_FDS];                                                           \
		unsigned before = fds_open() - 2;                                                  \
		CHECK_EQ(ask_lease(HARP_LEASE_QUEUE_ANY, room, fds), error);                       \
		CHECK(came_back());                                                                \
		CHECK_EQ(fds_open(), before);                                                      \
		explained(words, __LINE__);                                                        \
	} while (0)

static void taken(unsigned count)
{
	int fds[HARP_LEASE_FDS];

	CHECK_EQ(ask_lease(1, ~0u, fds), 0);
	CHECK(!came_back());
	for (unsigned i = 0; i < count; i++) {
		CHECK(fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		close(fds[i]);
	}
}

TEST(a_valid_lease_is_kept)
{
	good_lease();
	taken(HARP_LEASE_FDS);
}

/* The kernel gives as many as fit, and no error. */
TEST(missing_descriptors_give_the_lease_back)
{
	for (unsigned room = 0; room < HARP_LEASE_FDS; room++) {
		good_lease();
		REFUSES_LEASE(-EMFILE, room, "raise `ulimit -n`");
	}
}

TEST(an_invalid_lease_is_given_back)
{
	good_lease();
	descriptors = 2;
	REFUSES_LEASE(-EPROTO, ~0u, "has 2 descriptors, not 3");
	good_lease();
	descriptors = HARP_LEASE_FDS + 1;
	REFUSES_LEASE(-EPROTO, ~0u, "has 4 descriptors, not 3");
	good_lease();
	leased.port_min = 0;
	REFUSES_LEASE(-EPROTO, ~0u, "leases ports 0 to 61255");
	good_lease();
	leased.queue = 4;
	REFUSES_LEASE(-EPROTO, ~0u, "leases queue 4 of 4");
	good_lease();
	strcpy(leased.ifname, "eth2");
	REFUSES_LEASE(-EPROTO, ~0u, "another interface");
	good_lease();
	leased.rss_kind = HARP_LEASE_RSS_TOEPLITZ;
	leased.rss_key_bytes = 39;
	leased.rss_table_count = 128;
	REFUSES_LEASE(-EPROTO, ~0u, "RSS of kind 2, 39 bytes of key");
	good_lease();
	leased.rss_table_count = HARP_LEASE_RSS_TABLE_MAX + 1;
	REFUSES_LEASE(-EPROTO, ~0u, "RSS of kind 0, 0 bytes of key, 513 entries");
}

/* What is no lease is not given back. */
TEST(an_invalid_message_is_no_lease)
{
	int fds[HARP_LEASE_FDS];

	good_lease();
	leased.header.serial = 9;
	CHECK_EQ(ask_lease(1, ~0u, fds), -EPROTO);
	CHECK(!came_back());
	good_lease();
	leased.header.type = HARP_LEASE_WELCOME;
	CHECK_EQ(ask_lease(1, ~0u, fds), -EPROTO);
	CHECK(!came_back());
}

/* ---- DPDK ports ----------------------------------------------------------------------------- */

#define SPEC "net_memif0,role=client;name=rail0;ip=10.9.0.1/24;queues=2"

static struct {
	struct harp_lease_port port;
	char text[HARP_PORT_TEXT_MAX + 64];
} answer;
static size_t bytes;
static struct harp_lease_device device;

/* A harpd that leases rail0 with two queues; what it says can be changed. */
static void good_port(const char *spec)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	memset(&answer, 0, sizeof(answer));
	memset(&device, 0, sizeof(device));
	bytes = sizeof(answer.port) + strlen(spec);
	memcpy(answer.text, spec, strlen(spec));
	answer.port.header = lease_header(HARP_LEASE_PORT, bytes, 2);
	answer.port.lease_id = LEASE_ID;
	answer.port.page_count = 2;
	answer.port.page_bytes = 4096;
	answer.port.spec_bytes = (uint32_t)strlen(spec);
	descriptors = 2;
	strcpy(device.ifname, "rail0");
	device.flags = HARP_LEASE_DEVICE_DPDK | HARP_LEASE_DEVICE_UP;
	device.queues = device.queues_free = 2;
}

static int connect_to(struct harp_daemon **daemon)
{
	struct {
		struct harp_lease_welcome welcome;
		struct harp_lease_device device;
	} hello = { .welcome = { .header = lease_header(HARP_LEASE_WELCOME, sizeof(hello), 1),
				 .daemon = "harpd test",
				 .device_count = 1 },
		    .device = device };

	say(&hello, sizeof(hello), 0);
	return daemon_open_on(daemon, ends[0], "test", 1000, &reason);
}

static int ask_port(struct daemon_port *out)
{
	struct harp_lease_header done = lease_header(HARP_LEASE_DONE, sizeof(done), 3);
	struct harp_daemon *daemon;
	int rc;

	CHECK_EQ(connect_to(&daemon), 0);
	say(&answer, bytes, descriptors);
	say(&done, sizeof(done), 0);
	rc = daemon_lease_port(daemon, "rail0", 2, "rank 0", out, &reason);
	harp_daemon_close(daemon);
	return rc;
}

TEST(a_valid_port_is_kept)
{
	static struct daemon_port port;

	good_port(SPEC);
	CHECK_EQ(ask_port(&port), 0);
	CHECK(!came_back());
	CHECK(port.lease_id == LEASE_ID);
	CHECK_EQ(port.page_count, 2);
	CHECK_EQ(port.page_bytes, 4096);
	CHECK_STR(port.spec, SPEC);
	CHECK_STR(port.port.device, "net_memif0,role=client");
	CHECK_STR(port.port.name, "rail0");
	for (unsigned i = 0; i < port.page_count; i++) {
		CHECK(fcntl(port.page_fds[i], F_GETFD) == FD_CLOEXEC);
		close(port.page_fds[i]);
	}
}

#define REFUSES_PORT(error, back, words)                                                           \
	do {                                                                                       \
		static struct daemon_port port;                                                    \
		unsigned before = fds_open() - 2;                                                  \
		CHECK_EQ(ask_port(&port), error);                                                  \
		CHECK_EQ(came_back(), back);                                                       \
		CHECK_EQ(fds_open(), before);                                                      \
		explained(words, __LINE__);                                                        \
	} while (0)

TEST(an_invalid_port_is_given_back)
{
	good_port(SPEC);
	descriptors = 1;
	REFUSES_PORT(-EPROTO, true, "2 queues with 1 statistics pages");
	good_port(SPEC);
	answer.port.page_count = 0;
	descriptors = 0;
	REFUSES_PORT(-EPROTO, true, "0 queues with 0 statistics pages");
	good_port(SPEC);
	answer.port.page_count = descriptors = HARP_LEASE_PORT_PAGES_MAX + 1;
	REFUSES_PORT(-EPROTO, true, "65 queues with 65 statistics pages");
	good_port(SPEC);
	answer.port.spec_bytes++;
	REFUSES_PORT(-EPROTO, true, "truncated or too long");
	good_port(SPEC);
	answer.port.spec_bytes = 0xffffffffu;
	REFUSES_PORT(-EPROTO, true, "truncated or too long");
	good_port(SPEC);
	answer.text[4] = '\0';
	REFUSES_PORT(-EPROTO, true, "text of the port is invalid");
	good_port("net_memif0;name=rail0;ip=10.9.0.1;queues=2");
	REFUSES_PORT(-EPROTO, true, "text of the port is invalid");
	good_port("net_memif0;name=rail1;queues=2");
	REFUSES_PORT(-EPROTO, true, "leases port rail1 with 2 queues instead");
	good_port("net_memif0;name=rail0");
	REFUSES_PORT(-EPROTO, true, "leases port rail0 with 1 queues instead");
	good_port(SPEC);
	bytes = answer.port.header.size = sizeof(answer.port) - 4;
	REFUSES_PORT(-EPROTO, true, "has 36 bytes, not 40");
}

/* The name is a NIC's: harpd leases a queue of it, which was not asked for. */
TEST(a_queue_instead_of_a_port_is_given_back)
{
	good_port(SPEC);
	answer.port.header.type = HARP_LEASE_LEASED;
	REFUSES_PORT(-EPROTO, true, "type 4 instead of 10");
}

TEST(an_invalid_message_is_no_port)
{
	good_port(SPEC);
	answer.port.header.serial = 9;
	REFUSES_PORT(-EPROTO, false, "answers request 9");
	good_port(SPEC);
	answer.port.header.type = HARP_LEASE_DONE;
	REFUSES_PORT(-EPROTO, false, "type 7 instead of 10");
}

TEST(a_refused_port_gives_the_reason)
{
	struct harp_lease_refused refused = {
		.header = lease_header(HARP_LEASE_REFUSED, sizeof(refused), 2),
		.error = EBUSY,
		.why = "rail0 is leased to process 7",
	};

	good_port(SPEC);
	memcpy(&answer, &refused, sizeof(refused));
	bytes = sizeof(refused);
	descriptors = 0;
	REFUSES_PORT(-EBUSY, false, "harpd refuses: rail0 is leased to process 7");
}

TEST(an_invalid_port_name_is_refused)
{
	static struct daemon_port port;
	struct harp_daemon *daemon;

	good_port(SPEC);
	CHECK_EQ(connect_to(&daemon), 0);
	CHECK_EQ(daemon_lease_port(daemon, "", 1, NULL, &port, &reason), -EINVAL);
	CHECK_EQ(daemon_lease_port(daemon, "0123456789abcdef", 1, NULL, &port, &reason), -EINVAL);
	CHECK_STR(why, "here: a port's name has 1 to 15 bytes");
	harp_daemon_close(daemon);
	close(ends[1]);
}

/* Index 0 is a port's alone, and a port has no other. */
TEST(only_a_port_has_index_0)
{
	const struct harp_lease_device *devices;
	struct harp_daemon *daemon;
	unsigned count;

	good_port(SPEC);
	CHECK_EQ(connect_to(&daemon), 0);
	devices = harp_daemon_devices(daemon, &count);
	CHECK_EQ(count, 1);
	CHECK(devices[0].flags & HARP_LEASE_DEVICE_DPDK);
	CHECK_EQ(devices[0].ifindex, 0);
	harp_daemon_close(daemon);
	close(ends[1]);
	good_port(SPEC);
	device.ifindex = 4;
	CHECK_EQ(connect_to(&daemon), -EPROTO);
	close(ends[1]);
	good_port(SPEC);
	device.flags = HARP_LEASE_DEVICE_UP;
	CHECK_EQ(connect_to(&daemon), -EPROTO);
	CHECK_STR(why, "here: harpd's device 0 has no name or index");
	close(ends[1]);
}
