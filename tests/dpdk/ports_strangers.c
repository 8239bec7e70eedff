/* SPDX-License-Identifier: Apache-2.0 */
/* ports_strangers.c - callers of a memif's server that say nothing, or what would have its driver reach beyond memory. */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ports.h"

#define STRANGERS 200u /* more than the process has room for */

/* DPDK's interrupt thread ends connections when it comes to it. */
static void descriptors_come_down_to(unsigned fds)
{
	uint64_t until_ns = test_now_ns() + 60000000000u;

	while (descriptors() > fds && test_now_ns() < until_ns)
		usleep(1000);
	CHECK(descriptors() <= fds);
}

/* Reads until the server hangs up; the last message. */
static void hear_out(int fd, uint8_t last[128])
{
	ssize_t len;

	memset(last, 0, 128);
	while ((len = recv(fd, last, 128, 0)) > 0)
		CHECK_EQ(len, 128);
	CHECK_EQ(len, 0);
}

/* Two hundred callers of one server that say nothing: its own client gets through, and so does another server's. Their
 * time ends, and nothing of them is left. */
void case_memif_strangers(void)
{
	char other_server[256], other_client[256];
	struct end a[2], b[2];
	int strangers[STRANGERS];
	uint8_t last[128];
	unsigned fds;

	peers_begin();
	snprintf(other_server, sizeof(other_server),
		 "net_memif2,role=server,socket=%s/n.sock,socket-abstract=no", peers_folder);
	snprintf(other_client, sizeof(other_client),
		 "net_memif3,role=client,socket=%s/n.sock,socket-abstract=no", peers_folder);
	CHECK(end_open(&a[0], peers_server, 0) && end_open(&a[1], other_server, 0));
	strangers[0] = memif_caller(0);
	CHECK_EQ(recv(strangers[0], last, sizeof(last), 0), sizeof(last));
	close(strangers[0]);
	fds = descriptors();
	for (unsigned i = 0; i < STRANGERS; i++) {
		strangers[i] = memif_caller(0);
		CHECK(strangers[i] >= 0);
	}
	CHECK(end_open(&b[1], other_client, 0) && end_until(&a[1], &b[1], 1000, 1514, 1));
	CHECK(end_open(&b[0], peers_client, 0) && end_until(&b[0], &a[0], 1000, 1514, 1));
	for (unsigned i = 0; i < STRANGERS; i++) {
		hear_out(strangers[i], last);
		CHECK(last[0] == 0 || last[0] == 2); /* no more than a greeting */
		close(strangers[i]);
	}
	/* Who has shaken hands stays. */
	CHECK(end_until(&a[0], &b[0], 1000, 1514, 1));
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(a[i].wrong + b[i].wrong, 0);
		end_close(&b[i]);
	}
	descriptors_come_down_to(fds);
	end_close(&a[0]);
	end_close(&a[1]);
	peers_end();
}

/* Of what memif says as it is opened nothing reads like a failure. */
static void heard(void *ctx, enum harp_log_level level, const char *line)
{
	(void)ctx;
	CHECK(level == HARP_LOG_DEBUG || !strstr(line, "Failed"));
}

/* Ends of different MTUs: what is longer than the server's frames comes in several, and nothing beside them is written to. */
void case_memif_mtus(void)
{
	const struct harp_dpdk_eal_options quiet = { .size = sizeof(quiet), .log = heard };
	struct end a, b;

	peers_begin();
	CHECK_EQ(api->start(&quiet, why, sizeof(why)), 0);
	if (end_open(&a, peers_server, 1500) && end_open(&b, peers_client, 9000)) {
		CHECK(end_until(&b, &a, 1000, 9014, 1));
		a.wrong = 0; /* pieces that it did not make */
		CHECK(end_until(&b, &a, 1000, 1514, 1));
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		CHECK_EQ(a.wrong + b.wrong, 0);
		end_close(&b);
		end_close(&a);
	}
	peers_end();
}

/* ---- what reaches beyond memory ---------------------------------------------------------------- */

#define REGION_BYTES 65536u
#define RING_BYTES (128u + (16u << 10))

/* A message with a descriptor; -1: without. */
static void say(int fd, const uint8_t message[128], int file)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS } };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = 128 };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (file >= 0) {
		memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
		header.msg_control = control.bytes;
		header.msg_controllen = sizeof(control.bytes);
	}
	/* Who has been refused already is gone. */
	CHECK(sendmsg(fd, &header, MSG_NOSIGNAL) == 128 || errno == EPIPE || errno == ECONNRESET);
}

static void say_init(int fd)
{
	static const uint8_t message[128] = { 3, 0, 0, 2 }; /* version 2.0, port 0 */

	say(fd, message, -1);
}

static void say_region(int fd, uint16_t index, uint64_t bytes, int file)
{
	uint8_t message[128] = { 4 };

	memcpy(message + 2, &index, sizeof(index));
	memcpy(message + 4, &bytes, sizeof(bytes));
	say(fd, message, file);
}

struct ring {
	uint16_t flags, index, region;
	uint32_t offset;
	uint8_t log2;
};

static void say_ring(int fd, struct ring ring, int file)
{
	uint8_t message[128] = { 5 };

	memcpy(message + 2, &ring.flags, sizeof(ring.flags));
	memcpy(message + 4, &ring.index, sizeof(ring.index));
	memcpy(message + 6, &ring.region, sizeof(ring.region));
	memcpy(message + 8, &ring.offset, sizeof(ring.offset));
	message[12] = ring.log2;
	say(fd, message, file);
}

static void say_connect(int fd)
{
	static const uint8_t message[128] = { 6 };

	say(fd, message, -1);
}

static int memory, event;

/* All buffers of the ring there are like that. */
static void write_buffers(uint32_t offset, uint16_t region, uint32_t at, uint32_t length)
{
	struct {
		uint16_t flags, region;
		uint32_t length, offset, metadata;
	} desc = { .region = region, .length = length, .offset = at };

	for (unsigned i = 0; i < 1024; i++)
		CHECK_EQ(pwrite(memory, &desc, sizeof(desc),
				(off_t)(offset + 128 + i * sizeof(desc))),
			 sizeof(desc));
}

static void say_memory(int fd)
{
	say_init(fd);
	say_region(fd, 0, REGION_BYTES, memory);
}

/* With buffers that lie there. */
static void say_first_ring(int fd, uint16_t region, uint32_t at, uint32_t length)
{
	write_buffers(0, region, at, length);
	say_memory(fd);
	say_ring(fd, (struct ring){ .flags = 1, .log2 = 10 }, event);
}

/* Or the driver hangs up by itself, maybe before the relay has heard what is wrong. */
static void write_cookie(uint32_t offset)
{
	const uint32_t cookie = 0x3e31f20;

	CHECK_EQ(pwrite(memory, &cookie, sizeof(cookie), (off_t)offset), sizeof(cookie));
}

static void rings_good(int fd)
{
	write_cookie(0);
	write_cookie(RING_BYTES);
	write_buffers(RING_BYTES, 0, REGION_BYTES - 1518, 1518);
	say_first_ring(fd, 0, REGION_BYTES - 1518, 1518);
	say_ring(fd, (struct ring){ .offset = RING_BYTES, .log2 = 10 }, event);
}

static void no_init(int fd)
{
	say_region(fd, 0, REGION_BYTES, memory);
}

static void short_file(int fd)
{
	say_init(fd);
	say_region(fd, 0, REGION_BYTES + 1, memory);
}

static void no_file(int fd)
{
	say_init(fd);
	say_region(fd, 0, REGION_BYTES, event);
}

static void second_region_first(int fd)
{
	say_init(fd);
	say_region(fd, 1, REGION_BYTES, memory);
}

static void ring_nowhere(int fd)
{
	say_memory(fd);
	say_ring(fd, (struct ring){ .region = 1, .log2 = 10 }, event);
}

static void ring_at_the_end(int fd)
{
	say_memory(fd);
	say_ring(fd, (struct ring){ .offset = REGION_BYTES - RING_BYTES + 4, .log2 = 10 }, event);
}

static void ring_beyond_4_gib(int fd)
{
	say_memory(fd);
	say_ring(fd, (struct ring){ .offset = UINT32_MAX - 3, .log2 = 10 }, event);
}

static void ring_huge(int fd)
{
	say_memory(fd);
	say_ring(fd, (struct ring){ .log2 = 63 }, event);
}

static void ring_of_a_file(int fd)
{
	say_memory(fd);
	say_ring(fd, (struct ring){ .log2 = 10 }, memory);
}

static void second_ring_first(int fd)
{
	say_memory(fd);
	say_ring(fd, (struct ring){ .index = 1, .log2 = 10 }, event);
}

static void one_direction(int fd)
{
	say_first_ring(fd, 0, 0, 1518);
	say_connect(fd);
}

static void ring_again(int fd)
{
	rings_good(fd);
	say_connect(fd);
	say_ring(fd, (struct ring){ .index = 1, .log2 = 14 }, event);
}

static void buffer_at_the_end(int fd)
{
	say_first_ring(fd, 0, REGION_BYTES - 1517, 1518);
}

static void buffer_nowhere(int fd)
{
	say_first_ring(fd, 1, 0, 1518);
}

/* What the client sends may be in short ones. */
static void buffers_short(int fd)
{
	write_buffers(RING_BYTES, 0, 0, 1517);
	say_first_ring(fd, 0, 0, 1517);
	say_ring(fd, (struct ring){ .offset = RING_BYTES, .log2 = 10 }, event);
}

static void init_again(int fd)
{
	rings_good(fd);
	say_init(fd);
}

/* A client that says what the driver would believe: the server does not hear it, the client hears why, and the next one
 * gets through. */
void case_memif_beyond(void)
{
	static const struct {
		void (*say)(int fd);
		const char *hears;
	} cases[] = {
		{ no_init, "begins with INIT" },
		{ short_file, "shorter than the region" },
		{ no_file, "a file of memory" },
		{ second_region_first, "regions come in order" },
		{ ring_nowhere, "region is not there" },
		{ ring_at_the_end, "does not lie in its region" },
		{ ring_beyond_4_gib, "does not lie in its region" },
		{ ring_huge, "16384 slots" },
		{ ring_of_a_file, "is an eventfd" },
		{ buffer_at_the_end, "buffer does not lie" },
		{ buffer_nowhere, "buffer does not lie" },
		{ buffers_short, "shorter than this end's packets" },
		{ second_ring_first, "rings come in order" },
		{ one_direction, "for each direction" },
		{ ring_again, "is not changed" },
		{ init_again, "no client says that" },
	};
	struct end a, b;
	unsigned fds;

	peers_begin();
	memory = memfd_create("region", MFD_CLOEXEC);
	event = eventfd(0, EFD_CLOEXEC);
	CHECK_EQ(ftruncate(memory, REGION_BYTES), 0);
	if (!end_open(&a, peers_server, 0))
		return;
	fds = descriptors();
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = memif_caller(0);
		uint8_t last[129] = { 0 };

		cases[i].say(fd);
		hear_out(fd, last);
		CHECK_EQ(last[0], 8);
		if (!strstr((const char *)last + 6, cases[i].hears)) {
			fprintf(stderr, "case %u: %s\n", i, (const char *)last + 6);
			check_failed();
		}
		close(fd);
		descriptors_come_down_to(fds);
	}
	if (end_open(&b, peers_client, 0)) {
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		end_close(&b);
	}
	end_close(&a);
	close(memory);
	close(event);
	peers_end();
}

static int port_of_queues(struct end *end, const char *device, uint32_t queues)
{
	const struct harp_dpdk_port_options opt = {
		.size = sizeof(opt),
		.device = device,
		.queues = queues,
		.frame_count = END_FRAMES,
	};

	return api->port_open(&end->port, &opt, why, sizeof(why));
}

/* A server of two queues: who has one is told so, and does not have its second queue read the first one's ring. */
void case_memif_queues(void)
{
	struct end a = { 0 }, b = { 0 };
	uint8_t last[129] = { 0 };
	int fd;

	peers_begin();
	memory = memfd_create("region", MFD_CLOEXEC);
	event = eventfd(0, EFD_CLOEXEC);
	CHECK_EQ(ftruncate(memory, REGION_BYTES), 0);
	CHECK_EQ(port_of_queues(&a, peers_server, 2), 0);
	fd = memif_caller(0);
	rings_good(fd);
	say_connect(fd);
	hear_out(fd, last);
	CHECK_EQ(last[0], 8);
	CHECK(strstr((const char *)last + 6, "fewer queues than this end"));
	close(fd);
	CHECK_EQ(port_of_queues(&b, peers_client, 2), 0);
	CHECK(end_wait_up(&a, true) && end_wait_up(&b, true));
	api->port_close(b.port);
	api->port_close(a.port);
	close(memory);
	close(event);
	peers_end();
}
