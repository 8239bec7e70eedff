/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c - simulated network: packets in memory between two or more ports, with configurable
 * impairments.
 *
 * Theory of operation
 *
 * tx() copies a packet into a slot of the wire, because its bytes must outlive the sender's frame,
 * which may be completed at once. Each port has a heap of slots in flight to it, ordered by arrival
 * time (then by number, so equal times keep their order). rx() takes the slots whose time has come,
 * copies each into frames of the port's fill ring, and frees the slot. A packet sent to several
 * ports, or duplicated, takes a slot each.
 *
 * A packet passes, in this order: the cable (down: lost), the rate limiter of its port with its
 * queue (tail drop, ECN mark above a depth), the rate limiter of the switch towards its
 * destination, loss, corruption, duplication, then delay, jitter and reordering. tx() makes all
 * decisions from one seeded generator: the same calls at the same times give the same result on any
 * machine. Time is the callers' argument. No packet arrives before it was sent. Without reordering,
 * packets between two ports stay in order.
 *
 * Strict mode detects a stack that writes to a frame between tx() and complete(), while a NIC may
 * read it: it hashes the bytes at both. External frames must also keep their address.
 *
 * One thread drives all ports of a wire.
 */
#include "nic/wire.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIRE_RX_HEADROOM 64u
#define WIRE_RING_MAX 1024u
#define WIRE_PORTS_MAX 256u
#define WIRE_TSO_BYTES 65400u /* with headers less than WIRE_PACKET_MAX */
#define WIRE_ETH_BYTES 18u    /* Ethernet and VLAN headers, above the MTU */

/* Detects accidental writes, not attacks. One multiplication per word, because strict tests hash
 * every byte twice. */
static uint64_t wire_hash(const uint8_t *p, uint32_t len)
{
	uint64_t hash = len, word;

	for (; len >= 8; p += 8, len -= 8) {
		memcpy(&word, p, 8);
		hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 32;
	}
	for (word = 0; len > 0; len--)
		word = word << 8 | *p++;
	return (hash ^ word) * 0x9e3779b97f4a7c15u;
}

/* Records a frame until complete(), which also returns an invalid frame (bytes NULL). */
static void wire_sent_add(struct wire_port *port, const struct harp_desc *desc,
			  const uint8_t *bytes, uint64_t now_ns)
{
	struct harp_wire *w = port->wire;
	uint32_t at = (port->sent_head + port->sent_count++) % port->nic.caps.tx_ring;

	port->sent[at] = (struct wire_sent){
		.addr = desc->addr,
		.bytes = bytes,
		.len = bytes ? desc->len : 0,
		.external = desc->addr / port->nic.caps.frame_size >= port->nic.caps.frame_count,
		.ready_ns = wire_later(now_ns, w->complete_delay_ns),
	};
	if (w->strict && bytes)
		port->sent[at].hash = wire_hash(bytes, desc->len);
}

/* Number of descriptors of the packet at descs; 0: its end is missing. */
static unsigned wire_packet_descs(const struct harp_desc *descs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!(descs[i].flags & HARP_DESC_MORE))
			return i + 1;
	return 0;
}

/* Argument of wire_emit(). */
struct wire_emit_context {
	struct wire_port *port;
	uint64_t now_ns;
};

static void wire_emit(void *ctx, uint8_t *packet, uint32_t len)
{
	const struct wire_emit_context *context = ctx;

	wire_path_send(context->port, packet, len, context->now_ns);
}

static unsigned wire_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
			uint64_t now_ns)
{
	struct wire_port *port = (struct wire_port *)nic;
	const struct harp_nic_caps *caps = &nic->caps;
	struct wire_emit_context context = { port, now_ns };
	uint8_t packet[WIRE_PACKET_MAX];
	unsigned taken = 0, n;

	for (; (n = wire_packet_descs(descs, count - taken)) != 0; taken += n, descs += n) {
		bool valid = n <= caps->tx_frags_max;
		uint32_t len = 0;

		if (n > caps->tx_ring - port->sent_count)
			break;
		for (unsigned i = 0; i < n; i++) {
			const uint8_t *bytes = wire_offload_bytes(port, &descs[i]);

			valid = valid && bytes && descs[i].len <= WIRE_PACKET_MAX - len;
			if (valid) {
				memcpy(packet + len, bytes, descs[i].len);
				len += descs[i].len;
			}
			wire_sent_add(port, &descs[i], bytes, now_ns);
		}
		if (!valid || !wire_offload_send(caps, packet, len, descs[0].flags,
						 port->wire->slot_bytes, wire_emit, &context))
			port->nic_stats.tx_invalid++;
	}
	return taken;
}

static bool wire_sent_valid(const struct wire_port *port, const struct wire_sent *sent)
{
	struct harp_desc desc = { .addr = sent->addr, .len = sent->len };

	return sent->len == 0 || (wire_offload_bytes(port, &desc) == sent->bytes &&
				  wire_hash(sent->bytes, sent->len) == sent->hash);
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
		if (w->strict && !wire_sent_valid(port, sent))
			port->stats.strict_violations++;
		addrs[n++] = sent->addr;
		port->sent_head = (port->sent_head + 1) % nic->caps.tx_ring;
		port->sent_count--;
	}
	return n;
}

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

		if (s->arrive_ns > now_ns || frames > max - got)
			break;
		wire_path_pop(port);
		w->free_slots[w->free_count++] = slot;
		if (frames > port->fill_count) {
			port->nic_stats.rx_fill_empty++;
			w->ports[s->src].stats.rx_no_frame++;
		} else {
			got += wire_deliver(port, slot, descs + got);
			w->ports[s->src].stats.delivered++;
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
	(void)nic; /* the wire owns it: harp_wire_destroy() */
}

static const struct harp_nic_ops wire_ops = {
	.rx = wire_rx,
	.tx = wire_tx,
	.complete = wire_complete,
	.fill = wire_fill,
	.kick = wire_kick,
	.next_ns = wire_next_ns,
	.stats = wire_nic_stats,
	.destroy = wire_nic_destroy,
	.memory_add = wire_offload_memory_add,
	.memory_remove = wire_offload_memory_remove,
};

/* creation and destruction */

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
	caps->features = (opt->tx_frags_max > 1 ? HARP_NIC_TX_MULTI : 0) | opt->offloads;
	caps->tso_bytes_max = opt->tso_bytes_max;
	caps->external_count = opt->external_count;
	memcpy(caps->mac, mac, sizeof(mac));

	/* calloc: pages that are never touched cost nothing. */
	caps->frame_base = calloc(opt->frame_count, opt->frame_size);
	port->last_ns = calloc(w->port_count, sizeof(*port->last_ns));
	port->fill = calloc(caps->rx_ring, sizeof(*port->fill));
	port->sent = calloc(caps->tx_ring, sizeof(*port->sent));
	port->heap = calloc(w->packets_max, sizeof(*port->heap));
	caps->external = calloc(opt->external_count + 1, sizeof(*caps->external));
	return caps->frame_base && port->last_ns && port->fill && port->sent && port->heap &&
			       caps->external
		       ? 0
		       : -ENOMEM;
}

static bool wire_impair_valid(const struct harp_wire_impair *im)
{
	return im->loss_ppm <= WIRE_PPM && im->duplicate_ppm <= WIRE_PPM &&
	       im->reorder_ppm <= WIRE_PPM && im->corrupt_ppm <= WIRE_PPM;
}

/* Applies defaults and validates. */
static int wire_options(struct harp_wire_options *opt, const struct harp_wire_options *from)
{
	*opt = (struct harp_wire_options){ 0 };
	if (from) {
		if (from->size != sizeof(*opt))
			return -EINVAL;
		*opt = *from;
	}
	opt->ports = opt->ports ? opt->ports : 2;
	opt->frame_size = opt->frame_size ? opt->frame_size : 2048;
	opt->frame_count = opt->frame_count ? opt->frame_count : 4096;
	opt->mtu_bytes = opt->mtu_bytes ? opt->mtu_bytes : 1500;
	opt->packets_max = opt->packets_max ? opt->packets_max : 8192;
	opt->tx_frags_max = opt->tx_frags_max ? opt->tx_frags_max : 8;
	if (opt->offloads & HARP_NIC_TX_TSO)
		opt->tso_bytes_max = opt->tso_bytes_max ? opt->tso_bytes_max : WIRE_TSO_BYTES;
	if (opt->ports < 2 || opt->ports > WIRE_PORTS_MAX || opt->frame_size < 512 ||
	    (opt->frame_size & (opt->frame_size - 1)) != 0 || opt->frame_size > 1u << 20 ||
	    opt->frame_count < 2 || opt->frame_count > 1u << 22 || opt->mtu_bytes < 68 ||
	    opt->mtu_bytes > WIRE_PACKET_MAX - WIRE_ETH_BYTES || opt->packets_max > 1u << 22 ||
	    opt->tx_frags_max > 64 || opt->external_count > 1u << 22 ||
	    (opt->offloads & ~(HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO)) != 0 ||
	    opt->tso_bytes_max > WIRE_TSO_BYTES || !wire_impair_valid(&opt->impair))
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
		free(port->nic.caps.external);
		free(port->memory);
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
	if (port >= w->port_count || !wire_impair_valid(impair))
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
