/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - the 128 bytes that NCCL carries from listener to connector, and how the listener
 * describes a NIC (docs/lanes.md section 2). The structs are in wire format: integers are
 * little-endian, as on this host.
 */
#ifndef HARP_PLUGIN_HANDLE_H
#define HARP_PLUGIN_HANDLE_H

#include <assert.h>

#include "base/addr.h"
#include "harp.h"

#define WIRE_VERSION 1u

#define PLUGIN_HANDLE_BYTES 128u
#define HANDLE_SECRET_BYTES 16u
#define HANDLE_HOST_ID_BYTES 16u
#define NIC_PORTS_MAX 5u

/* Indexes of addresses. */
enum nic_family { NIC_V4, NIC_V6, NIC_FAMILIES };

/* Where a NIC of the listener accepts lanes. */
struct nic_endpoints {
	struct harp_addr addr[NIC_FAMILIES]; /* zeros: none */
	uint16_t kernel_port[NIC_FAMILIES];  /* of its kernel sockets; 0: none */
	uint8_t placement;                   /* how it chooses queues: enum placement_kind */
	uint8_t reserved;
	uint16_t queues;
	/* HARP ports, each of another instance, and their queues; best first, then port 0. */
	struct {
		uint16_t port, queue;
	} harp[NIC_PORTS_MAX];
};
static_assert(sizeof(struct nic_endpoints) == 60, "the description of a NIC");

struct handle {
	char magic[4];
	uint8_t version;   /* WIRE_VERSION */
	uint8_t encrypted; /* 1: the listener requires encryption */
	uint16_t reserved;
	uint64_t listen_id;
	uint8_t host_id[HANDLE_HOST_ID_BYTES];
	uint8_t secret[HANDLE_SECRET_BYTES];
	uint32_t tuner; /* digest of the times that the listener's tuner uses; 0: it is off */
	struct nic_endpoints nic;
	uint8_t check[16];
};
static_assert(sizeof(struct handle) == PLUGIN_HANDLE_BYTES, "the handle is full");

/* Sets magic, version and check. */
void handle_encode(uint8_t out[PLUGIN_HANDLE_BYTES], struct handle *handle);
/* -EPROTONOSUPPORT, with one line in why: the handle is damaged or its version is not supported. */
int handle_decode(const uint8_t in[PLUGIN_HANDLE_BYTES], struct handle *handle, char *why,
		  size_t why_len);

/* An address of the NIC, for logs and routes. */
static inline const struct harp_addr *nic_addr(const struct nic_endpoints *nic)
{
	return &nic->addr[addr_is_zero(&nic->addr[NIC_V4]) ? NIC_V6 : NIC_V4];
}

#endif
