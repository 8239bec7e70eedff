/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xsk_facts.c - what we rely on of AF_XDP on a veth device, asked of the kernel that runs the tests:
 *   1. chunks of 2048 and 4096 bytes are taken, 8192 is refused: hence multi-buffer for jumbo frames
 *   2. zero-copy on veth is EOPNOTSUPP, and the same socket can then be bound in copy mode
 *   3. the transmit budget is accepted only once there is a transmit ring
 *   4. a second socket gets EBUSY, and the queue within a bounded time after the first has gone
 * usage: xsk_facts IFNAME, as root. Exit 0, or 1 and the fact that does not hold.
 */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nic/af_xdp_abi.h"

#define REGION_BYTES (1u << 20)
#define RING 256u

static void fact(int holds, const char *text)
{
	if (holds)
		return;
	fprintf(stderr, "does not hold: %s (errno: %s)\n", text, strerror(errno));
	exit(1);
}

static int region_register(int fd, uint32_t chunk)
{
	void *region =
		mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct xdp_umem_reg reg = {
		.addr = (uintptr_t)region,
		.len = REGION_BYTES,
		.chunk_size = chunk,
	};

	fact(region != MAP_FAILED, "memory for frames");
	return setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg));
}

/* A socket with region and rings, ready to bind. */
static int socket_ready(void)
{
	static const int options[] = { XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING,
				       XDP_TX_RING };
	const uint32_t ring = RING;
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	fact(fd >= 0 && region_register(fd, 2048) == 0, "2048-byte chunks are taken");
	for (unsigned i = 0; i < 4; i++)
		fact(setsockopt(fd, SOL_XDP, options[i], &ring, sizeof(ring)) == 0, "rings");
	return fd;
}

static int bind_with(int fd, unsigned ifindex, unsigned flags)
{
	struct sockaddr_xdp address = {
		.sxdp_family = AF_XDP,
		.sxdp_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | flags),
		.sxdp_ifindex = ifindex,
	};

	return bind(fd, (struct sockaddr *)&address, sizeof(address));
}

static void facts_of_chunks(void)
{
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	fact(fd >= 0, "AF_XDP sockets");
	fact(region_register(fd, 8192) < 0 && errno == EINVAL, "8192-byte chunks are refused");
	fact(region_register(fd, 4096) == 0, "4096-byte chunks are taken");
	close(fd);
}

static void facts_of_binding(unsigned ifindex)
{
	const struct timespec pause = { .tv_nsec = 2000000 };
	int first = socket_ready(), second = socket_ready(), tries = 100;

	fact(bind_with(first, ifindex, XDP_ZEROCOPY | XDP_USE_SG) < 0 && errno == EOPNOTSUPP,
	     "zero-copy on veth is EOPNOTSUPP");
	fact(bind_with(first, ifindex, XDP_COPY | XDP_USE_SG) == 0,
	     "the same socket then binds in copy mode, multi-buffer");
	fact(bind_with(second, ifindex, XDP_COPY | XDP_USE_SG) < 0 && errno == EBUSY,
	     "a second socket on the queue is EBUSY");
	close(first);
	while (bind_with(second, ifindex, XDP_COPY | XDP_USE_SG) < 0 && --tries)
		nanosleep(&pause, NULL);
	fact(tries, "the queue is free 200 ms after its socket was closed");
	close(second);
}

static void facts_of_the_budget(void)
{
	const uint32_t budget = 128, ring = RING;
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	fact(fd >= 0 && region_register(fd, 2048) == 0, "a socket");
	if (setsockopt(fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget)) < 0 &&
	    errno == ENOPROTOOPT) {
		close(fd); /* before Linux 6.17: we do without */
		return;
	}
	fact(errno == EACCES, "the budget is refused before there is a transmit ring");
	fact(setsockopt(fd, SOL_XDP, XDP_TX_RING, &ring, sizeof(ring)) == 0, "a transmit ring");
	fact(setsockopt(fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget)) == 0,
	     "the budget is taken then");
	close(fd);
}

int main(int argc, char **argv)
{
	unsigned ifindex = argc == 2 ? if_nametoindex(argv[1]) : 0;

	if (!ifindex) {
		fprintf(stderr, "usage: xsk_facts IFNAME (a veth device)\n");
		return 2;
	}
	facts_of_chunks();
	facts_of_binding(ifindex);
	facts_of_the_budget();
	return 0;
}
