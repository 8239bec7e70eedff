/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_capture.c - the ring keeps the newest packets, each complete. With an argument, the program
 * writes a sample to that file; tests/python/test_capture.py reads it with other tools.
 */
#include "nic/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"

#define WALL_OFFSET_NS INT64_C(1700000000000000000)

static uint8_t file[4u << 20];

static uint32_t u32_at(size_t at)
{
	uint32_t x;

	memcpy(&x, file + at, 4);
	return x;
}

/* Writes the capture to a file and reads it into `file`. */
static size_t write_and_read(const struct capture *c)
{
	char path[] = "/tmp/harp-test-capture-XXXXXX";
	int fd = mkstemp(path);

	CHECK(fd >= 0);
	unlink(path);
	CHECK_EQ(capture_write(c, fd, "wire0", WALL_OFFSET_NS), 0);
	CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	ssize_t n = read(fd, file, sizeof(file));

	CHECK(n > 0 && n < (ssize_t)sizeof(file));
	close(fd);
	return (size_t)n;
}

/* Checks the block of packet i, whose bytes are i, i + 1, ...; returns the size of the block. */
static uint32_t check_packet(size_t at, uint32_t i, uint32_t len, uint32_t snap)
{
	uint32_t captured = len < snap ? len : snap;

	CHECK_EQ(u32_at(at), 6);
	CHECK_EQ(u32_at(at + 20), captured);
	CHECK_EQ(u32_at(at + 24), len);
	for (uint32_t k = 0; k < captured && !check_failures; k++)
		CHECK_EQ(file[at + 28 + k], (uint8_t)(i + k));
	return u32_at(at + 4);
}

static uint32_t length_of(uint32_t i)
{
	struct rng rng;

	rng_seed(&rng, i);
	return 1 + rng_below(&rng, rng_below(&rng, 2) ? 100 : 3000);
}

/* Captures packet i, which has up to three frames. */
static void capture(struct capture *c, uint32_t i)
{
	static uint8_t bytes[3000];
	uint32_t len = length_of(i), a = len / 3, b = len / 5;
	struct frame third = { .pub = { bytes + a + b, len - a - b, 0 } };
	struct frame second = { .pub = { bytes + a, b, 0 }, .frag = &third };
	/* The first half of the first piece is in the headroom. */
	struct frame first = { .pub = { bytes + a / 2, a - a / 2, 0 }, .frag = &second };
	struct frame whole = { .pub = { bytes + len / 2, len - len / 2, 0 } };
	/* In a GSO packet, the header frames of the later packets are empty. */
	struct frame empty = { .pub = { NULL, 0, 0 }, .frag = &second };
	struct frame gso = { .pub = { bytes + a / 2, a - a / 2, 0 }, .next = &empty };

	for (uint32_t k = 0; k < len; k++)
		bytes[k] = (uint8_t)(i + k);
	capture_packet(c, i % 2 ? CAPTURE_OUT : CAPTURE_IN, i * 1000u, bytes,
		       i % 3 == 0   ? &whole
		       : i % 3 == 1 ? &first
				    : &gso,
		       i % 3 == 2);
}

static void test_ring(size_t ring_bytes, uint32_t snap_len, uint32_t packets)
{
	struct capture *c;
	uint32_t snap = snap_len ? snap_len : 65535;

	CHECK_EQ(capture_create(&c, ring_bytes, snap_len), 0);
	for (uint32_t i = 0; i < packets; i++)
		capture(c, i);
	CHECK_EQ(capture_count(c) + capture_dropped(c), packets);
	size_t size = write_and_read(c), at = u32_at(4); /* after the section block */
	uint32_t i = (uint32_t)capture_dropped(c);       /* the oldest packet that was kept */

	at += u32_at(at + 4); /* and the interface block */
	if (ring_bytes < 100000)
		CHECK(i > 0);
	for (; at < size && !check_failures; i++)
		at += check_packet(at, i, length_of(i), snap);
	CHECK_EQ(at, size);
	CHECK_EQ(i, packets);
	capture_destroy(c);
}

TEST(a_failed_write_keeps_the_packets)
{
	struct capture *c = NULL;

	CHECK_EQ(capture_create(&c, 10, 0), -EINVAL);
	capture_destroy(NULL);
	CHECK_EQ(capture_create(&c, 100000, 0), 0);
	capture(c, 1);
	CHECK_EQ(capture_write(c, -1, "x", 0), -EBADF);
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC);

	if (full >= 0) {
		CHECK_EQ(capture_write(c, full, "x", 0), -ENOSPC);
		close(full);
	}
	CHECK_EQ(capture_count(c), 1); /* kept for a retry */
	capture_destroy(c);
}

static int write_sample(const char *path)
{
	struct capture *c;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), err;

	if (fd < 0 || capture_create(&c, 1u << 20, 0))
		return 1;
	for (uint32_t i = 0; i < 20; i++)
		capture(c, i);
	err = capture_write(c, fd, "wire0", WALL_OFFSET_NS);
	capture_destroy(c);
	close(fd);
	return err ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return write_sample(argv[1]);
	test_ring(1u << 17, 0, 1);
	test_ring(1u << 20, 0, 500);
	test_ring(1u << 20, 60, 1000);
	test_ring(16384, 0, 3000);
	test_ring(16001, 96, 3000);
	check_run();
	return check_done();
}
