/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_lease.c - messages of harpd to a job: accepted, or rejected with one line of text, without a
 * leaked descriptor.
 *
 * Input: a byte of options (1: the header of WELCOME is made valid, 2: the header of the reply, 4:
 * the job requests a DPDK port instead of a queue), the number of descriptors with the reply, the
 * length of WELCOME, WELCOME, and the reply.
 */
#include "fuzz.h"
#include "host/daemon.h"
#include "fds.h"

#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX 8192u

/* Sends at least one byte: without any, the reader blocks. */
static void send_message(int fd, struct fuzz_input *in, size_t len, uint16_t type, uint32_t serial,
			 unsigned fds)
{
	_Alignas(8) uint8_t bytes[ANSWER_BYTES_MAX] = { 0 };
	struct harp_lease_header header = {
		.magic = HARP_LEASE_MAGIC,
		.version = HARP_LEASE_VERSION,
		.type = type,
		.serial = serial,
	};

	len = fuzz_bytes(in, bytes, len < sizeof(bytes) ? len : sizeof(bytes));
	if (!len)
		len = 1;
	header.size = (uint32_t)len;
	if (type && len >= sizeof(header))
		memcpy(bytes, &header, sizeof(header));
	CHECK(pass_fds(fd, bytes, len, fd, fds) == (ssize_t)len);
}

/* Checks that the text is one terminated line. */
static void check_line(const char *text, size_t size)
{
	size_t len = strnlen(text, size);

	CHECK(len > 0 && len < size);
	for (size_t i = 0; i < len; i++)
		CHECK((unsigned char)text[i] >= ' ' && text[i] != 0x7f);
}

static void check_welcome(const struct harp_daemon *daemon)
{
	const struct harp_lease_device *devices;
	unsigned count;

	devices = harp_daemon_devices(daemon, &count);
	CHECK(count <= HARP_LEASE_DEVICES_MAX);
	for (unsigned i = 0; i < count; i++) {
		check_line(devices[i].ifname, sizeof(devices[i].ifname));
		CHECK(!strchr(devices[i].ifname, '/'));
		CHECK(!devices[i].ifindex == !!(devices[i].flags & HARP_LEASE_DEVICE_DPDK));
		CHECK(memchr(devices[i].pci_path, '\0', sizeof(devices[i].pci_path)));
	}
	CHECK(strlen(harp_daemon_name(daemon)) < 32);
	CHECK(strlen(harp_daemon_settings(daemon)) < ANSWER_BYTES_MAX);
}

static void check_leased(const struct harp_lease_leased *leased)
{
	CHECK(!strcmp(leased->ifname, "eth1") && leased->ifindex);
	CHECK(leased->queue < leased->queue_count);
	CHECK(leased->port_min && leased->port_min <= leased->port_max);
	CHECK(leased->rss.kind <= HARP_RSS_TOEPLITZ);
	CHECK(leased->rss.key_bytes <= HARP_RSS_KEY_MAX);
	CHECK(leased->rss.table_count <= HARP_RSS_TABLE_MAX);
}

static void request_queue(struct harp_daemon *daemon, struct why *why)
{
	struct harp_lease_request request = { .ifname = "eth1", .queue = HARP_LEASE_QUEUE_ANY };
	struct harp_lease_leased leased;
	int fds[HARP_LEASE_FDS];
	int rc;

	why->text[0] = '\0';
	rc = daemon_lease(daemon, &request, &leased, fds, why);
	CHECK(rc <= 0);
	if (rc) {
		check_line(why->text, why->size);
		return;
	}
	check_leased(&leased);
	for (unsigned i = 0; i < HARP_LEASE_FDS; i++)
		CHECK(close(fds[i]) == 0);
}

static void request_port(struct harp_daemon *daemon, struct why *why)
{
	static struct daemon_port port;
	int rc;

	why->text[0] = '\0';
	rc = daemon_lease_port(daemon, "rail0", 2, "fuzz", &port, why);
	CHECK(rc <= 0);
	if (rc) {
		check_line(why->text, why->size);
		return;
	}
	CHECK(port.page_count && port.page_count <= HARP_LEASE_PORT_PAGES_MAX);
	CHECK(!strcmp(port.port.name, "rail0") && port.port.queues == port.page_count);
	check_line(port.spec, sizeof(port.spec));
	for (unsigned i = 0; i < port.page_count; i++)
		CHECK(close(port.page_fds[i]) == 0);
}

static int lowest_free_fd(void)
{
	int fd = dup(STDERR_FILENO);

	CHECK(fd >= 0);
	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in), fd_count = fuzz_u8(&in);
	uint16_t type = choices & 4 ? HARP_LEASE_PORT : HARP_LEASE_LEASED;
	unsigned fds = fd_count < PASS_FDS_MAX ? fd_count : PASS_FDS_MAX;
	struct harp_daemon *daemon;
	char text[512] = "";
	struct why why = { .text = text, .size = sizeof(text), .subject = "here" };
	int ends[2], free_fd = lowest_free_fd(), rc;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
	send_message(ends[1], &in, fuzz_u16(&in), choices & 1 ? HARP_LEASE_WELCOME : 0, 1, 0);
	rc = daemon_open_on(&daemon, ends[0], "fuzz", 0, &why);
	CHECK(rc <= 0 && (rc == 0) == (daemon != NULL));
	if (rc) {
		check_line(text, sizeof(text));
	} else {
		check_welcome(daemon);
		send_message(ends[1], &in, in.left, choices & 2 ? type : 0, 2, fds);
		if (choices & 4)
			request_port(daemon, &why);
		else
			request_queue(daemon, &why);
	}
	harp_daemon_close(daemon);
	close(ends[1]);
	CHECK(lowest_free_fd() == free_fd);
	return 0;
}
