/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - the 128 bytes that NCCL carries from listener to connector (docs/lanes.md section 2).
 */
#ifndef HARP_PLUGIN_HANDLE_H
#define HARP_PLUGIN_HANDLE_H

#include "harp.h"

#define PLUGIN_HANDLE_BYTES 128u
#define HANDLE_SECRET_BYTES 16u
#define HANDLE_HOST_ID_BYTES 16u

/* Further HARP ports of the listener, each of another instance. port 0: none. */
#define HANDLE_PORTS_MAX 4u
struct handle_port {
	uint16_t port, queue;
};

struct handle {
	uint8_t wire_min, wire_max; /* wire versions that the listener supports */
	bool has_v4, has_v6;
	bool encrypted;     /* the listener requires encryption */
	uint16_t harp_port; /* of the listener's stack, both families; 0: none */
	/* How that stack's NIC chooses queues: enum placement_kind, its queues, the stack's own. */
	uint8_t harp_placement;
	uint16_t harp_queues, harp_queue;
	struct handle_port ports[HANDLE_PORTS_MAX]; /* best first, without gaps */
	uint16_t kernel_port_v4;                    /* of its kernel sockets; 0: none */
	uint16_t kernel_port_v6;
	struct harp_addr v4, v6;
	uint32_t scope_id; /* of v6, on the listener's host */
	uint32_t tuner;    /* digest of the times that the listener's tuner uses; 0: it is off */
	uint64_t listen_id;
	uint8_t host_id[HANDLE_HOST_ID_BYTES];
	uint8_t secret[HANDLE_SECRET_BYTES];
};

void handle_encode(uint8_t out[PLUGIN_HANDLE_BYTES], const struct handle *handle);
/* -EPROTONOSUPPORT, with one line in why: the handle is damaged or its version is not supported. */
int handle_decode(const uint8_t in[PLUGIN_HANDLE_BYTES], struct handle *handle, char *why,
		  size_t why_len);
#endif
