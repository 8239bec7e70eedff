/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h - shared by the wire's ports (wire.c), their offloads (wire_offload.c), and the path
 * between ports (wire_path.c). */
#ifndef HARP_NIC_WIRE_H
#define HARP_NIC_WIRE_H

#include <stdbool.h>

#include "base/rng.h"
#include "harp_nic.h"

#define WIRE_PPM 1000000u
#define WIRE_PACKET_MAX 65535u

struct wire_slot {
	uint64_t arrive_ns, number;
	uint32_t len, src;
};

struct wire_sent { /* a descriptor between tx() and complete() */
	uint64_t addr, hash, ready_ns;
	const uint8_t *bytes;
	uint32_t len; /* 0: invalid */
	bool external;
};

struct wire_memory {
	const uint8_t *base;
	size_t bytes;
};

struct wire_port {
	struct harp_nic nic; /* must be first */
	struct harp_wire *wire;
	uint32_t index;
	struct harp_wire_impair impair;
	struct harp_wire_stats stats;
	struct harp_nic_stats nic_stats;
	uint64_t line_free_ns; /* when the rate limiter becomes idle */
	uint64_t *last_ns;     /* per destination: arrival of the last packet sent in order */
	uint64_t *fill;        /* ring of empty frames */
	uint32_t fill_head, fill_count;
	struct wire_sent *sent; /* ring of frames not completed */
	uint32_t sent_head, sent_count;
	uint32_t *heap; /* slots in flight to this port */
	uint32_t heap_count;
	struct wire_memory *memory; /* regions for external frames, one entry per add */
	uint32_t memory_count;
};

struct harp_wire {
	uint32_t port_count, packets_max, slot_bytes;
	bool strict;
	uint64_t complete_delay_ns, number;
	struct rng rng;
	struct wire_slot *slots;
	uint8_t *bytes; /* packets_max times slot_bytes */
	uint32_t *free_slots;
	uint32_t free_count;
	struct wire_port *ports;
};

static inline uint8_t *wire_slot_bytes(const struct harp_wire *w, uint32_t slot)
{
	return w->bytes + (uint64_t)slot * w->slot_bytes;
}
static inline uint64_t wire_later(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* wire_offload.c: the bytes of a descriptor; NULL: the NIC may not read them. */
const uint8_t *wire_offload_bytes(const struct wire_port *port, const struct harp_desc *desc);
int wire_offload_memory_add(struct harp_nic *nic, const void *base, size_t bytes);
int wire_offload_memory_remove(struct harp_nic *nic, const void *base, size_t bytes);
typedef void (*wire_offload_emit)(void *ctx, uint8_t *packet, uint32_t len);
/* Transmits a packet with these capabilities and descriptor flags: as one packet, or as the
 * segments of a GSO packet, each at most packet_max. False: it violates harp_nic.h and is not sent.
 * Modifies the packet. */
bool wire_offload_send(const struct harp_nic_caps *caps, uint8_t *packet, uint32_t len,
		       uint32_t flags, uint32_t packet_max, wire_offload_emit emit, void *ctx);
/* wire_path.c: sends a packet from port. May modify it (ECN marks). */
void wire_path_send(struct wire_port *port, uint8_t *bytes, uint32_t len, uint64_t now_ns);
/* Removes the first slot from the heap of this port; the caller frees it. */
void wire_path_pop(struct wire_port *port);

#endif
