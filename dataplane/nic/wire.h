/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h - what the two halves of the wire share: ports (wire.c), and the way between (wire_path.c). */
#ifndef HARP_NIC_WIRE_H
#define HARP_NIC_WIRE_H

#include <stdbool.h>

#include "base/rng.h"
#include "harp_nic.h"

#define WIRE_PPM 1000000u

struct wire_slot {
	uint64_t arrive_ns, number;
	uint32_t len, src;
};

struct wire_sent { /* a descriptor between tx() and complete() */
	uint64_t addr, hash, ready_ns;
	uint32_t len;
};

struct wire_port {
	struct harp_nic nic; /* must be first */
	struct harp_wire *wire;
	uint32_t index;
	struct harp_wire_impair impair;
	struct harp_wire_stats stats;
	struct harp_nic_stats nic_stats;
	uint64_t line_free_ns; /* the rate limiter has sent everything by then */
	uint64_t *last_ns;     /* per destination: arrival of the last packet not reordered */
	uint64_t *fill;        /* ring of empty frames */
	uint32_t fill_head, fill_count;
	struct wire_sent *sent; /* ring of frames not given back */
	uint32_t sent_head, sent_count;
	uint32_t *heap; /* slots travelling to this port */
	uint32_t heap_count;
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

/* wire_path.c: sends a packet from port on its way. It may be written to (ECN marks). */
void wire_path_send(struct wire_port *port, uint8_t *bytes, uint32_t len, uint64_t now_ns);
/* Takes the first slot of those that travel to this port off its heap, to be freed by the caller. */
void wire_path_pop(struct wire_port *port);

#endif
