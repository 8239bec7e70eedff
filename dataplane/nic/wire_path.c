/* SPDX-License-Identifier: Apache-2.0 */
/* wire_path.c - the path between two ports of the wire: all impairments. */
#include "nic/wire.h"

#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"

#define WIRE_NONE UINT32_MAX

static inline bool wire_path_before(const struct harp_wire *w, uint32_t a, uint32_t b)
{
	const struct wire_slot *x = &w->slots[a], *y = &w->slots[b];

	return x->arrive_ns != y->arrive_ns ? x->arrive_ns < y->arrive_ns : x->number < y->number;
}

static void wire_path_push(struct wire_port *port, uint32_t slot)
{
	const struct harp_wire *w = port->wire;
	uint32_t i = port->heap_count++;

	while (i > 0 && wire_path_before(w, slot, port->heap[(i - 1) / 2])) {
		port->heap[i] = port->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	port->heap[i] = slot;
}

void wire_path_pop(struct wire_port *port)
{
	const struct harp_wire *w = port->wire;
	uint32_t n = --port->heap_count, last = port->heap[n], i = 0;

	for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && wire_path_before(w, port->heap[child + 1], port->heap[child]))
			child++;
		if (!wire_path_before(w, port->heap[child], last))
			break;
		port->heap[i] = port->heap[child];
	}
	port->heap[i] = last;
}

/* impairments */

static bool wire_path_chance(struct harp_wire *w, uint32_t ppm)
{
	return ppm > 0 && rng_below(&w->rng, WIRE_PPM) < ppm;
}

/* RFC 3168 section 5: an ECT packet is marked CE; others cannot be marked. */
static bool wire_path_mark_ce(uint8_t *eth, uint32_t len)
{
	uint32_t at = len >= 18 && be16_load(eth + 12) == 0x8100 ? 18 : 14; /* after a VLAN tag */
	uint8_t *ip = eth + at;

	if (len >= at + 40 && be16_load(ip - 2) == 0x86dd) {
		if ((ip[1] & 0x30) == 0)
			return false;
		ip[1] |= 0x30; /* the traffic class spans two bytes */
		return true;
	}
	if (len < at + 20 || be16_load(ip - 2) != 0x0800 || (ip[0] & 0x0f) < 5)
		return false;
	uint32_t header = (ip[0] & 0x0fu) * 4;

	if (len < at + header || (ip[1] & 3) == 0)
		return false;
	ip[1] |= 3;
	ip[10] = ip[11] = 0;
	uint16_t sum = csum_finish(csum_partial(ip, header, 0));

	memcpy(ip + 10, &sum, 2);
	return true;
}

/* Passes the port's rate limiter. *now_ns becomes the time at which the last bit has been sent. */
static bool wire_path_queue(struct wire_port *port, uint8_t *bytes, uint32_t len, uint64_t *now_ns)
{
	const struct harp_wire_impair *im = &port->impair;
	const uint64_t bits_ns = UINT64_C(8000000000); /* bits of a byte times ns of a second */

	if (im->rate_bps == 0)
		return true;
	uint64_t start_ns = port->line_free_ns > *now_ns ? port->line_free_ns : *now_ns;
	uint64_t depth_bytes =
		(uint64_t)((unsigned __int128)(start_ns - *now_ns) * im->rate_bps / bits_ns);

	if (im->queue_bytes && depth_bytes + len > im->queue_bytes)
		return false;
	if (im->ecn_mark_bytes && depth_bytes > im->ecn_mark_bytes && wire_path_mark_ce(bytes, len))
		port->stats.ce_marked++;
	port->line_free_ns = wire_later(start_ns, len * bits_ns / im->rate_bps);
	*now_ns = port->line_free_ns;
	return true;
}

static uint32_t wire_path_slot_take(struct harp_wire *w)
{
	return w->free_count ? w->free_slots[--w->free_count] : WIRE_NONE;
}

static void wire_path_launch(struct wire_port *port, struct wire_port *to, uint32_t slot,
			     uint32_t len, uint64_t now_ns)
{
	struct harp_wire *w = port->wire;
	const struct harp_wire_impair *im = &port->impair;
	uint64_t at_ns = wire_later(now_ns, im->delay_ns);

	if (im->jitter_ns) {
		uint64_t r = rng_u64(&w->rng);

		at_ns = wire_later(at_ns, (uint64_t)((unsigned __int128)r * im->jitter_ns >> 64));
	}
	if (at_ns < port->last_ns[to->index])
		at_ns = port->last_ns[to->index];
	if (wire_path_chance(w, im->reorder_ppm)) {
		at_ns = wire_later(at_ns, im->reorder_ns);
		port->stats.reordered++;
	} else {
		port->last_ns[to->index] = at_ns;
	}
	w->slots[slot] = (struct wire_slot){
		.arrive_ns = at_ns,
		.number = w->number++,
		.len = len,
		.src = port->index,
	};
	wire_path_push(to, slot);
}

/* Sends one copy of a packet to one port. */
static void wire_path_send_to(struct wire_port *port, struct wire_port *to, uint8_t *bytes,
			      uint32_t len, uint64_t now_ns)
{
	struct harp_wire *w = port->wire;
	const struct harp_wire_impair *im = &port->impair;
	unsigned copies = 1;
	uint32_t corrupt_bit = WIRE_NONE;

	if (to->impair.inbound && !wire_path_queue(to, bytes, len, &now_ns)) {
		to->stats.queue_dropped++;
		return;
	}
	if (wire_path_chance(w, im->loss_ppm)) {
		port->stats.lost++;
		return;
	}
	if (wire_path_chance(w, im->corrupt_ppm)) {
		corrupt_bit = rng_below(&w->rng, len * 8);
		port->stats.corrupted++;
	}
	if (wire_path_chance(w, im->duplicate_ppm)) {
		copies = 2;
		port->stats.duplicated++;
	}
	for (unsigned i = 0; i < copies; i++) {
		uint32_t slot = wire_path_slot_take(w);

		if (slot == WIRE_NONE) { /* packets_max slots are in use */
			port->stats.queue_dropped++;
			return;
		}
		uint8_t *p = wire_slot_bytes(w, slot);

		memcpy(p, bytes, len);
		if (corrupt_bit != WIRE_NONE)
			p[corrupt_bit / 8] ^= (uint8_t)(1u << (corrupt_bit % 8));
		wire_path_launch(port, to, slot, len, now_ns);
	}
}

/* The port with this MAC address; NULL: broadcast, multicast or unknown. */
static struct wire_port *wire_path_switch(struct harp_wire *w, const uint8_t *mac)
{
	if (memcmp(mac, w->ports[0].nic.caps.mac, 5) != 0 || mac[5] >= w->port_count)
		return NULL;
	return &w->ports[mac[5]];
}

void wire_path_send(struct wire_port *port, uint8_t *bytes, uint32_t len, uint64_t now_ns)
{
	struct harp_wire *w = port->wire;

	port->stats.sent++;
	if (port->impair.down) {
		port->stats.lost++;
		return;
	}
	if (!port->impair.inbound && !wire_path_queue(port, bytes, len, &now_ns)) {
		port->stats.queue_dropped++;
		return;
	}
	if (w->port_count == 2) { /* a cable */
		wire_path_send_to(port, &w->ports[1 - port->index], bytes, len, now_ns);
		return;
	}
	struct wire_port *to = len >= 6 ? wire_path_switch(w, bytes) : NULL;

	if (to == port)
		port->stats.lost++; /* a switch does not return a packet to its source port */
	else if (to)
		wire_path_send_to(port, to, bytes, len, now_ns);
	for (uint32_t i = 0; !to && i < w->port_count; i++)
		if (i != port->index)
			wire_path_send_to(port, &w->ports[i], bytes, len, now_ns);
}
