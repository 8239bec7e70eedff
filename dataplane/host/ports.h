/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ports.h - the local ports of a stack in one protocol: each is reserved in the kernel by a bound
 * socket, and entered in the XDP program's map.
 */
#ifndef HARP_HOST_PORTS_H
#define HARP_HOST_PORTS_H

#include <stdint.h>

#include "xdp/harp_xdp.h"

struct ports {
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp;
	uint32_t protocol; /* STEER_PORT_TCP or STEER_PORT_UDP */
	uint32_t rx_queue; /* the stack's, on which packets to the ports must arrive */
	unsigned count;
	uint16_t *held;    /* [count] port numbers, unordered */
	int *fds;          /* [count] their sockets, which a forked child must close */
	uint16_t *slot_of; /* [65536] 1 + position in held[]; 0: not held */
};

int ports_init(struct ports *ports, const struct harp_xdp_api *api, struct harp_xdp *xdp,
	       uint32_t protocol, uint32_t rx_queue);
void ports_destroy(struct ports *ports);
/* 0, -EADDRINUSE (the kernel or another stack has it), other -errno. */
int ports_acquire(struct ports *ports, uint16_t port);
void ports_release(struct ports *ports, uint16_t port);

#endif
