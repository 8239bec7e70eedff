/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_port.c - a DPDK port that harpd leases: taken as it is said, or given back at once and explained in a
 * line, without a descriptor that stays behind.
 */
#include <fcntl.h>

#include "fds.h"
#include "harpd_end.h"

#define SPEC "net_memif0,role=client;name=rail0;ip=10.9.0.1/24;queues=2"

static char why[512];
static struct {
	struct harp_lease_port port;
	char text[HARP_PORT_TEXT_MAX + 64];
} answer;
static size_t bytes;
static unsigned descriptors;
static struct harp_lease_device device;

/* A harpd that leases rail0 with two queues; what it says can be changed. */
static void good(const char *spec)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	memset(&answer, 0, sizeof(answer));
	memset(&device, 0, sizeof(device));
	bytes = sizeof(answer.port) + strlen(spec);
	memcpy(answer.text, spec, strlen(spec));
	answer.port.header = header(HARP_LEASE_PORT, bytes, 2);
	answer.port.lease_id = LEASE_ID;
	answer.port.page_count = 2;
	answer.port.page_bytes = 4096;
	answer.port.spec_bytes = (uint32_t)strlen(spec);
	descriptors = 2;
	strcpy(device.ifname, "rail0");
	device.flags = HARP_LEASE_DEVICE_DPDK | HARP_LEASE_DEVICE_UP;
	device.queues = device.queues_free = 2;
}

static int connect_to(struct harp_daemon **daemon, struct why *reason)
{
	struct {
		struct harp_lease_welcome welcome;
		struct harp_lease_device device;
	} hello = { .welcome = { .header = header(HARP_LEASE_WELCOME, sizeof(hello), 1),
				 .daemon = "harpd test",
				 .device_count = 1 },
		    .device = device };

	say(&hello, sizeof(hello), 0);
	return daemon_open_on(daemon, ends[0], "test", 1000, reason);
}

static int ask(struct daemon_port *out)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	struct harp_lease_header done = header(HARP_LEASE_DONE, sizeof(done), 3);
	struct harp_daemon *daemon;
	int rc;

	CHECK_EQ(connect_to(&daemon, &reason), 0);
	say(&answer, bytes, descriptors);
	say(&done, sizeof(done), 0);
	rc = daemon_lease_port(daemon, "rail0", 2, "rank 0", out, &reason);
	harp_daemon_close(daemon);
	return rc;
}

TEST(taken)
{
	static struct daemon_port port;

	good(SPEC);
	CHECK_EQ(ask(&port), 0);
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

#define REFUSES(error, back, words)                                                                \
	do {                                                                                       \
		static struct daemon_port port;                                                    \
		unsigned before = fds_open() - 2;                                                  \
		CHECK_EQ(ask(&port), error);                                                       \
		CHECK_EQ(came_back(), back);                                                       \
		CHECK_EQ(fds_open(), before);                                                      \
		explained(why, words, __LINE__);                                                   \
	} while (0)

TEST(unusable)
{
	good(SPEC);
	descriptors = 1;
	REFUSES(-EPROTO, true, "2 queues with 1 statistics pages");
	good(SPEC);
	answer.port.page_count = 0;
	descriptors = 0;
	REFUSES(-EPROTO, true, "0 queues with 0 statistics pages");
	good(SPEC);
	answer.port.page_count = descriptors = HARP_LEASE_PORT_PAGES_MAX + 1;
	REFUSES(-EPROTO, true, "65 queues with 65 statistics pages");
	good(SPEC);
	answer.port.spec_bytes++;
	REFUSES(-EPROTO, true, "cut short or too long");
	good(SPEC);
	answer.port.spec_bytes = 0xffffffffu;
	REFUSES(-EPROTO, true, "cut short or too long");
	good(SPEC);
	answer.text[4] = '\0';
	REFUSES(-EPROTO, true, "none of ours");
	good("net_memif0;name=rail0;ip=10.9.0.1;queues=2");
	REFUSES(-EPROTO, true, "none of ours");
	good("net_memif0;name=rail1;queues=2");
	REFUSES(-EPROTO, true, "leases port rail1 with 2 queues instead");
	good("net_memif0;name=rail0");
	REFUSES(-EPROTO, true, "leases port rail0 with 1 queues instead");
	good(SPEC);
	bytes = answer.port.header.size = sizeof(answer.port) - 4;
	REFUSES(-EPROTO, true, "has 36 bytes, not 40");
}

/* The name is a NIC's: harpd leases a queue of it, which nobody asked for. */
TEST(a_queue_instead)
{
	good(SPEC);
	answer.port.header.type = HARP_LEASE_LEASED;
	REFUSES(-EPROTO, true, "a message of type 4, not 10");
}

TEST(nonsense)
{
	good(SPEC);
	answer.port.header.serial = 9;
	REFUSES(-EPROTO, false, "answers message 9");
	good(SPEC);
	answer.port.header.type = HARP_LEASE_DONE;
	REFUSES(-EPROTO, false, "a message of type 7, not 10");
}

TEST(refused)
{
	struct harp_lease_refused refused = {
		.header = header(HARP_LEASE_REFUSED, sizeof(refused), 2),
		.error = EBUSY,
		.why = "rail0 is leased to process 7",
	};

	good(SPEC);
	memcpy(&answer, &refused, sizeof(refused));
	bytes = sizeof(refused);
	descriptors = 0;
	REFUSES(-EBUSY, false, "harpd refuses: rail0 is leased to process 7");
}

TEST(a_name_that_none_has)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	static struct daemon_port port;
	struct harp_daemon *daemon;

	good(SPEC);
	CHECK_EQ(connect_to(&daemon, &reason), 0);
	CHECK_EQ(daemon_lease_port(daemon, "", 1, NULL, &port, &reason), -EINVAL);
	CHECK_EQ(daemon_lease_port(daemon, "0123456789abcdef", 1, NULL, &port, &reason), -EINVAL);
	CHECK_STR(why, "here: a port's name has 1 to 15 bytes");
	harp_daemon_close(daemon);
	close(ends[1]);
}

/* Index 0 is a port's alone, and a port has no other. */
TEST(devices)
{
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	const struct harp_lease_device *devices;
	struct harp_daemon *daemon;
	unsigned count;

	good(SPEC);
	CHECK_EQ(connect_to(&daemon, &reason), 0);
	devices = harp_daemon_devices(daemon, &count);
	CHECK_EQ(count, 1);
	CHECK(devices[0].flags & HARP_LEASE_DEVICE_DPDK);
	CHECK_EQ(devices[0].ifindex, 0);
	harp_daemon_close(daemon);
	close(ends[1]);
	good(SPEC);
	device.ifindex = 4;
	CHECK_EQ(connect_to(&daemon, &reason), -EPROTO);
	close(ends[1]);
	good(SPEC);
	device.flags = HARP_LEASE_DEVICE_UP;
	CHECK_EQ(connect_to(&daemon, &reason), -EPROTO);
	CHECK_STR(why, "here: harpd's device 0 has no name or index");
	close(ends[1]);
}
