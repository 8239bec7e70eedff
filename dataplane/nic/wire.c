/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c - packets in memory between two or more ports, with everything that can go wrong on the way.
 *
 * Theory of operation
 *
 * tx() copies a packet into one of the wire's slots: its bytes must outlive the sender's frame, which
 * may be given back at once. Each port has a heap of slots that travel towards it, ordered by arrival
 * (and by number, so that equal times keep their order). rx() takes those whose time has come, copies
 * each into frames of the port's fill ring, and frees the slot. A packet sent to several ports, or
 * duplicated, takes a slot each.
 *
 * On its way a packet meets, in this order: the cable (down: lost), the rate limiter with its queue
 * (tail drop, ECN mark above a depth), loss, corruption, duplication, then delay, jitter and reordering.
 * Everything is decided at tx() from one seeded generator: the same calls at the same times give the
 * same wire, whatever machine runs it. Time is what callers say; no packet arrives before it was
 * sent, and without reordering each pair of ports is first in, first out.
 *
 * Strict mode finds a stack that writes to a frame between tx() and complete(): a card may read it at
 * any time in between. The bytes are hashed at tx() and again when the frame is given back.
 *
 * One thread drives all ports of a wire.
 */
#include "harp_nic.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "base/rng.h"
#include "base/siphash.h"

#define WIRE_RX_HEADROOM 64u
#define WIRE_RING_MAX 1024u
#define WIRE_PORTS_MAX 256u
#define WIRE_ETH_BYTES 18u /* Ethernet and VLAN headers, above the MTU */
#define WIRE_PACKET_MAX 65535u
#define WIRE_PPM 1000000u
#define WIRE_NONE UINT32_MAX

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
	struct siphash_key hash_key;
	struct wire_slot *slots;
	uint8_t *bytes; /* packets_max times slot_bytes */
	uint32_t *free_slots;
	uint32_t free_count;
	struct wire_port *ports;
};

static inline uint64_t wire_later(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- the heap of arrivals ---------------------------------------------------------------------- */

static inline bool wire_before(const struct harp_wire *w, uint32_t a, uint32_t b)
{
	const struct wire_slot *x = &w->slots[a], *y = &w->slots[b];

	return x->arrive_ns != y->arrive_ns ? x->arrive_ns < y->arrive_ns : x->number < y->number;
}

static void wire_heap_push(struct wire_port *port, uint32_t slot)
{
	const struct harp_wire *w = port->wire;
	uint32_t i = port->heap_count++;

	while (i > 0 && wire_before(w, slot, port->heap[(i - 1) / 2])) {
		port->heap[i] = port->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	port->heap[i] = slot;
}

static void wire_heap_pop(struct wire_port *port)
{
	const struct harp_wire *w = port->wire;
	uint32_t n = --port->heap_count, last = port->heap[n], i = 0;

	for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && wire_before(w, port->heap[child + 1], port->heap[child]))
			child++;
		if (!wire_before(w, port->heap[child], last))
			break;
		port->heap[i] = port->heap[child];
	}
	port->heap[i] = last;
}

/* ---- sending ----------------------------------------------------------------------------------- */

static bool wire_chance(struct harp_wire *w, uint32_t ppm)
{
	return ppm > 0 && rng_below(&w->rng, WIRE_PPM) < ppm;
}

/* RFC 3168 section 5: an ECT packet is marked CE; others can't be. */
static bool wire_mark_ce(uint8_t *eth, uint32_t len)
{
	uint8_t *ip = eth + 14;

	if (len < 34 || be16_load(eth + 12) != 0x0800 || (ip[0] & 0x0f) < 5)
		return false;
	uint32_t header = (ip[0] & 0x0fu) * 4;

	if (len < 14 + header || (ip[1] & 3) == 0)
		return false;
	ip[1] |= 3;
	ip[10] = ip[11] = 0;
	uint16_t sum = csum_finish(csum_partial(ip, header, 0));

	memcpy(ip + 10, &sum, 2);
	return true;
}

/* Takes the packet through the rate limiter; *start_ns becomes when its last bit has left. */
static bool wire_queue(struct wire_port *port, uint8_t *bytes, uint32_t len, uint64_t *now_ns)
{
	const struct harp_wire_impair *im = &port->impair;
	const uint64_t bits_ns = UINT64_C(8000000000); /* bits of a byte, times ns of a second */

	if (im->rate_bps == 0)
		return true;
	uint64_t start_ns = port->line_free_ns > *now_ns ? port->line_free_ns : *now_ns;
	uint64_t depth_bytes =
		(uint64_t)((unsigned __int128)(start_ns - *now_ns) * im->rate_bps / bits_ns);

	if (im->queue_bytes && depth_bytes + len > im->queue_bytes)
		return false;
	if (im->ecn_mark_bytes && depth_bytes > im->ecn_mark_bytes && wire_mark_ce(bytes, len))
		port->stats.ce_marked++;
	port->line_free_ns = wire_later(start_ns, len * bits_ns / im->rate_bps);
	*now_ns = port->line_free_ns;
	return true;
}

static uint32_t wire_slot_take(struct harp_wire *w)
{
	return w->free_count ? w->free_slots[--w->free_count] : WIRE_NONE;
}

static void wire_launch(struct wire_port *port, struct wire_port *to, uint32_t slot, uint32_t len,
			uint64_t now_ns)
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
	if (wire_chance(w, im->reorder_ppm)) {
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
	wire_heap_push(to, slot);
}

static inline uint8_t *wire_slot_bytes(const struct harp_wire *w, uint32_t slot)
{
	return w->bytes + (uint64_t)slot * w->slot_bytes;
}

/* One copy of a packet to one port: what this path does to it. */
static void wire_send_to(struct wire_port *port, struct wire_port *to, const uint8_t *bytes,
			 uint32_t len, uint64_t now_ns)
{
	struct harp_wire *w = port->wire;
	const struct harp_wire_impair *im = &port->impair;
	unsigned copies = 1;
	uint32_t corrupt_bit = WIRE_NONE;

	if (wire_chance(w, im->loss_ppm)) {
		port->stats.lost++;
		return;
	}
	if (wire_chance(w, im->corrupt_ppm)) {
		corrupt_bit = rng_below(&w->rng, len * 8);
		port->stats.corrupted++;
	}
	if (wire_chance(w, im->duplicate_ppm)) {
		copies = 2;
		port->stats.duplicated++;
	}
	for (unsigned i = 0; i < copies; i++) {
		uint32_t slot = wire_slot_take(w);

		if (slot == WIRE_NONE) { /* packets_max: the wire is full */
			port->stats.queue_dropped++;
			return;
		}
		uint8_t *p = wire_slot_bytes(w, slot);

		memcpy(p, bytes, len);
		if (corrupt_bit != WIRE_NONE)
			p[corrupt_bit / 8] ^= (uint8_t)(1u << (corrupt_bit % 8));
		wire_launch(port, to, slot, len, now_ns);
	}
}

/* The port that a MAC address of ours names; NULL: broadcast, multicast or unknown. */
static struct wire_port *wire_switch(struct harp_wire *w, const uint8_t *mac)
{
	if (memcmp(mac, w->ports[0].nic.caps.mac, 5) != 0 || mac[5] >= w->port_count)
		return NULL;
	return &w->ports[mac[5]];
}

static void wire_send(struct wire_port *port, uint8_t *bytes, uint32_t len, uint64_t now_ns)
{
	struct harp_wire *w = port->wire;

	port->stats.sent++;
	port->nic_stats.tx_packets++;
	port->nic_stats.tx_bytes += len;
	if (port->impair.down) {
		port->stats.lost++;
		return;
	}
	if (!wire_queue(port, bytes, len, &now_ns)) {
		port->stats.queue_dropped++;
		return;
	}
	if (w->port_count == 2) { /* a cable */
		wire_send_to(port, &w->ports[1 - port->index], bytes, len, now_ns);
		return;
	}
	struct wire_port *to = len >= 6 ? wire_switch(w, bytes) : NULL;

	if (to == port)
		port->stats.lost++; /* a switch sends nothing back where it came from */
	else if (to)
		wire_send_to(port, to, bytes, len, now_ns);
	for (uint32_t i = 0; !to && i < w->port_count; i++)
		if (i != port->index)
			wire_send_to(port, &w->ports[i], bytes, len, now_ns);
}

static bool wire_desc_good(const struct wire_port *port, const struct harp_desc *desc)
{
	const struct harp_nic_caps *caps = &port->nic.caps;
	uint64_t region = (uint64_t)caps->frame_size * caps->frame_count;

	return desc->len > 0 && desc->addr < region &&
	       (desc->addr & (caps->frame_size - 1)) + desc->len <= caps->frame_size;
}

/* Remembers a frame until complete(); a bad one comes back too, when it is one of ours. */
static void wire_sent_add(struct wire_port *port, const struct harp_desc *desc, bool good,
			  uint64_t now_ns)
{
	struct harp_wire *w = port->wire;
	uint32_t at = (port->sent_head + port->sent_count++) % port->nic.caps.tx_ring;

	port->sent[at] = (struct wire_sent){
		.addr = desc->addr,
		.len = good ? desc->len : 0,
		.ready_ns = wire_later(now_ns, w->complete_delay_ns),
	};
	if (w->strict && good)
		port->sent[at].hash =
			siphash24(&w->hash_key, port->nic.caps.frame_base + desc->addr, desc->len);
}

/* Descriptors of the packet at descs; 0 when its end is missing. */
static unsigned wire_packet_descs(const struct harp_desc *descs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!(descs[i].flags & HARP_DESC_MORE))
			return i + 1;
	return 0;
}

static unsigned wire_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
			uint64_t now_ns)
{
	struct wire_port *port = (struct wire_port *)nic;
	const struct harp_nic_caps *caps = &nic->caps;
	uint8_t packet[WIRE_PACKET_MAX];
	unsigned taken = 0, n;

	for (; (n = wire_packet_descs(descs, count - taken)) != 0; taken += n, descs += n) {
		bool good = n <= caps->tx_frags_max;
		uint32_t len = 0;

		if (n > caps->tx_ring - port->sent_count)
			break;
		for (unsigned i = 0; i < n; i++) {
			bool desc_good = wire_desc_good(port, &descs[i]);

			good = good && desc_good && descs[i].len <= port->wire->slot_bytes - len;
			if (good) {
				memcpy(packet + len, caps->frame_base + descs[i].addr,
				       descs[i].len);
				len += descs[i].len;
			}
			wire_sent_add(port, &descs[i], desc_good, now_ns);
		}
		if (good)
			wire_send(port, packet, len, now_ns);
		else
			port->nic_stats.tx_invalid++;
	}
	return taken;
}

static unsigned wire_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max, uint64_t now_ns)
{
	struct wire_port *port = (struct wire_port *)nic;
	struct harp_wire *w = port->wire;
	unsigned n = 0;

	while (n < max && port->sent_count > 0) {
		const struct wire_sent *sent = &port->sent[port->sent_head];

		if (sent->ready_ns > now_ns)
			break;
		if (w->strict && sent->len > 0 &&
		    sent->hash !=
			    siphash24(&w->hash_key, nic->caps.frame_base + sent->addr, sent->len))
			port->stats.strict_violations++;
		addrs[n++] = sent->addr;
		port->sent_head = (port->sent_head + 1) % nic->caps.tx_ring;
		port->sent_count--;
	}
	return n;
}

/* ---- receiving --------------------------------------------------------------------------------- */

static unsigned wire_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned count)
{
	struct wire_port *port = (struct wire_port *)nic;
	unsigned n = 0;

	for (; n < count && port->fill_count < nic->caps.rx_ring; n++) {
		uint64_t frame = addrs[n] & ~(uint64_t)(nic->caps.frame_size - 1);

		if (addrs[n] >= (uint64_t)nic->caps.frame_size * nic->caps.frame_count) {
			port->nic_stats.rx_invalid++;
			continue;
		}
		port->fill[(port->fill_head + port->fill_count++) % nic->caps.rx_ring] = frame;
	}
	return n;
}

/* Copies an arrived packet into frames of the fill ring. Returns the descriptors written. */
static unsigned wire_deliver(struct wire_port *port, uint32_t slot, struct harp_desc *descs)
{
	const struct harp_nic_caps *caps = &port->nic.caps;
	const uint8_t *from = wire_slot_bytes(port->wire, slot);
	uint32_t left = port->wire->slots[slot].len, room = caps->frame_size - WIRE_RX_HEADROOM;
	unsigned n = 0;

	for (; left > 0; n++) {
		uint64_t addr = port->fill[port->fill_head] + WIRE_RX_HEADROOM;
		uint32_t len = left < room ? left : room;

		port->fill_head = (port->fill_head + 1) % caps->rx_ring;
		port->fill_count--;
		memcpy(caps->frame_base + addr, from, len); /* COPY: the wire itself */
		from += len;
		left -= len;
		descs[n] = (struct harp_desc){
			.addr = addr,
			.len = len,
			.flags = left ? HARP_DESC_MORE : 0,
		};
	}
	return n;
}

static unsigned wire_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
			uint64_t now_ns)
{
	struct wire_port *port = (struct wire_port *)nic;
	struct harp_wire *w = port->wire;
	uint32_t room = nic->caps.frame_size - WIRE_RX_HEADROOM;
	unsigned got = 0;

	while (port->heap_count > 0) {
		uint32_t slot = port->heap[0];
		struct wire_slot *s = &w->slots[slot];
		uint32_t frames = (s->len + room - 1) / room;

		if (s->arrive_ns > now_ns || (frames > max - got && got > 0))
			break;
		wire_heap_pop(port);
		w->free_slots[w->free_count++] = slot;
		if (frames > max) { /* would be in the way for ever */
			port->nic_stats.rx_dropped++;
		} else if (frames > port->fill_count) {
			port->nic_stats.rx_fill_empty++;
			w->ports[s->src].stats.rx_no_frame++;
		} else {
			got += wire_deliver(port, slot, descs + got);
			w->ports[s->src].stats.delivered++;
			port->nic_stats.rx_packets++;
			port->nic_stats.rx_bytes += s->len;
			port->nic_stats.copied_bytes += s->len;
		}
	}
	return got;
}

static void wire_kick(struct harp_nic *nic, uint64_t now_ns)
{
	(void)now_ns;
	((struct wire_port *)nic)->nic_stats.kicks++;
}

static uint64_t wire_next_ns(struct harp_nic *nic)
{
	const struct wire_port *port = (struct wire_port *)nic;
	uint64_t rx_ns = UINT64_MAX, complete_ns = UINT64_MAX;

	if (port->heap_count > 0)
		rx_ns = port->wire->slots[port->heap[0]].arrive_ns;
	if (port->sent_count > 0)
		complete_ns = port->sent[port->sent_head].ready_ns;
	return rx_ns < complete_ns ? rx_ns : complete_ns;
}

static void wire_nic_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	*out = ((struct wire_port *)nic)->nic_stats;
}

static void wire_nic_destroy(struct harp_nic *nic)
{
	(void)nic; /* the wire's: harp_wire_destroy() */
}

static const struct harp_nic_ops wire_ops = {
	.size = sizeof(struct harp_nic_ops),
	.rx = wire_rx,
	.tx = wire_tx,
	.complete = wire_complete,
	.fill = wire_fill,
	.kick = wire_kick,
	.next_ns = wire_next_ns,
	.stats = wire_nic_stats,
	.destroy = wire_nic_destroy,
};

/* ---- making and unmaking ----------------------------------------------------------------------- */

static int wire_port_init(struct harp_wire *w, uint32_t index, const struct harp_wire_options *opt)
{
	struct wire_port *port = &w->ports[index];
	struct harp_nic_caps *caps = &port->nic.caps;
	uint32_t half = opt->frame_count / 2;
	const uint8_t mac[6] = { 0x02, 0x48, 0x41, 0x52, 0x50, (uint8_t)index };

	port->nic.ops = &wire_ops;
	port->wire = w;
	port->index = index;
	port->impair = opt->impair;
	snprintf(caps->name, sizeof(caps->name), "wire%u", index);
	snprintf(caps->mode, sizeof(caps->mode), "wire%s", w->strict ? " strict" : "");
	caps->frame_size = opt->frame_size;
	caps->frame_count = opt->frame_count;
	caps->rx_headroom = WIRE_RX_HEADROOM;
	caps->rx_ring = half < WIRE_RING_MAX ? half : WIRE_RING_MAX;
	caps->tx_ring = caps->rx_ring;
	caps->tx_frags_max = opt->tx_frags_max;
	caps->mtu_bytes = opt->mtu_bytes;
	caps->features =
		(opt->tx_frags_max > 1 ? HARP_NIC_TX_MULTI : 0) | (w->strict ? HARP_NIC_STRICT : 0);
	memcpy(caps->mac, mac, sizeof(mac));

	/* calloc: pages that no test touches cost nothing. */
	caps->frame_base = calloc(opt->frame_count, opt->frame_size);
	port->last_ns = calloc(w->port_count, sizeof(*port->last_ns));
	port->fill = calloc(caps->rx_ring, sizeof(*port->fill));
	port->sent = calloc(caps->tx_ring, sizeof(*port->sent));
	port->heap = calloc(w->packets_max, sizeof(*port->heap));
	return caps->frame_base && port->last_ns && port->fill && port->sent && port->heap
		       ? 0
		       : -ENOMEM;
}

static bool wire_impair_good(const struct harp_wire_impair *im)
{
	return im->loss_ppm <= WIRE_PPM && im->duplicate_ppm <= WIRE_PPM &&
	       im->reorder_ppm <= WIRE_PPM && im->corrupt_ppm <= WIRE_PPM;
}

/* Fills in defaults and refuses what can't work. */
static int wire_options(struct harp_wire_options *opt, const struct harp_wire_options *from)
{
	if (from && from->size != sizeof(*opt))
		return -EINVAL;
	*opt = from ? *from : (struct harp_wire_options){ 0 };
	opt->ports = opt->ports ? opt->ports : 2;
	opt->frame_size = opt->frame_size ? opt->frame_size : 2048;
	opt->frame_count = opt->frame_count ? opt->frame_count : 4096;
	opt->mtu_bytes = opt->mtu_bytes ? opt->mtu_bytes : 1500;
	opt->packets_max = opt->packets_max ? opt->packets_max : 8192;
	opt->tx_frags_max = opt->tx_frags_max ? opt->tx_frags_max : 8;
	if (opt->ports < 2 || opt->ports > WIRE_PORTS_MAX || opt->frame_size < 512 ||
	    (opt->frame_size & (opt->frame_size - 1)) != 0 || opt->frame_size > 1u << 20 ||
	    opt->frame_count < 2 || opt->frame_count > 1u << 22 || opt->mtu_bytes < 68 ||
	    opt->mtu_bytes > WIRE_PACKET_MAX - WIRE_ETH_BYTES || opt->packets_max > 1u << 22 ||
	    opt->tx_frags_max > 64 || !wire_impair_good(&opt->impair))
		return -EINVAL;
	return 0;
}

int harp_wire_create(struct harp_wire **out, const struct harp_wire_options *options)
{
	struct harp_wire_options opt;
	int err = wire_options(&opt, options);

	if (err)
		return err;
	struct harp_wire *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->port_count = opt.ports;
	w->packets_max = opt.packets_max;
	w->slot_bytes = opt.mtu_bytes + WIRE_ETH_BYTES;
	w->strict = opt.strict != 0;
	w->complete_delay_ns = opt.complete_delay_ns;
	rng_seed(&w->rng, opt.seed);
	w->hash_key.k[0] = opt.seed;
	w->slots = calloc(opt.packets_max, sizeof(*w->slots));
	w->bytes = calloc(opt.packets_max, w->slot_bytes);
	w->free_slots = calloc(opt.packets_max, sizeof(*w->free_slots));
	w->ports = calloc(opt.ports, sizeof(*w->ports));
	if (!w->slots || !w->bytes || !w->free_slots || !w->ports) {
		harp_wire_destroy(w);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < opt.packets_max; i++)
		w->free_slots[i] = opt.packets_max - 1 - i;
	w->free_count = opt.packets_max;
	for (uint32_t i = 0; i < opt.ports && !err; i++)
		err = wire_port_init(w, i, &opt);
	if (err) {
		harp_wire_destroy(w);
		return err;
	}
	*out = w;
	return 0;
}

void harp_wire_destroy(struct harp_wire *w)
{
	if (!w)
		return;
	for (uint32_t i = 0; w->ports && i < w->port_count; i++) {
		struct wire_port *port = &w->ports[i];

		free(port->nic.caps.frame_base);
		free(port->last_ns);
		free(port->fill);
		free(port->sent);
		free(port->heap);
	}
	free(w->slots);
	free(w->bytes);
	free(w->free_slots);
	free(w->ports);
	free(w);
}

struct harp_nic *harp_wire_port(struct harp_wire *w, unsigned port)
{
	return port < w->port_count ? &w->ports[port].nic : NULL;
}

int harp_wire_set_impair(struct harp_wire *w, unsigned port, const struct harp_wire_impair *impair)
{
	if (port >= w->port_count || !wire_impair_good(impair))
		return -EINVAL;
	w->ports[port].impair = *impair;
	return 0;
}

int harp_wire_stats(const struct harp_wire *w, unsigned port, struct harp_wire_stats *out)
{
	if (port >= w->port_count)
		return -EINVAL;
	*out = w->ports[port].stats;
	return 0;
}

unsigned harp_wire_in_flight(const struct harp_wire *w)
{
	return w->packets_max - w->free_count;
}
