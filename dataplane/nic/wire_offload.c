/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_offload.c - NIC offloads of a wire port: external memory, checksums, segmentation (TSO). It
 * refuses packets that violate harp_nic.h.
 *
 * It writes segments as NICs do: identification and sequence number incremented, lengths, FIN and
 * PSH on the last only, CWR on the first only, checksums.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "nic/wire.h"

#define OFFLOAD_TCP 6u
#define OFFLOAD_UDP 17u
#define OFFLOAD_FIN_PSH 0x09u
#define OFFLOAD_CWR 0x80u

static bool offload_memory_holds(const struct wire_port *port, const uint8_t *bytes, uint32_t len)
{
	for (uint32_t i = 0; i < port->memory_count; i++) {
		const struct wire_memory *m = &port->memory[i];

		if (bytes >= m->base && (size_t)(bytes - m->base) <= m->bytes &&
		    len <= m->bytes - (size_t)(bytes - m->base))
			return true;
	}
	return false;
}

const uint8_t *wire_offload_bytes(const struct wire_port *port, const struct harp_desc *desc)
{
	const struct harp_nic_caps *caps = &port->nic.caps;
	uint64_t index = desc->addr / caps->frame_size, at = desc->addr % caps->frame_size;
	const uint8_t *bytes;

	if (desc->len == 0)
		return NULL;
	if (index < caps->frame_count)
		return at + desc->len <= caps->frame_size ? caps->frame_base + desc->addr : NULL;
	if (at != 0 || index - caps->frame_count >= caps->external_count)
		return NULL;
	bytes = caps->external[index - caps->frame_count];
	return offload_memory_holds(port, bytes, desc->len) ? bytes : NULL;
}

int wire_offload_memory_add(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct wire_port *port = (struct wire_port *)nic;
	struct wire_memory *more;

	if (nic->caps.external_count == 0)
		return -ENOTSUP;
	if (!base || bytes == 0)
		return -EINVAL;
	more = realloc(port->memory, (port->memory_count + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	port->memory = more;
	port->memory[port->memory_count++] = (struct wire_memory){ base, bytes };
	return 0;
}

/* True if an uncompleted descriptor refers to memory that is no longer registered. */
static bool offload_memory_is_needed(const struct wire_port *port)
{
	for (uint32_t i = 0; i < port->sent_count; i++) {
		uint32_t at = (port->sent_head + i) % port->nic.caps.tx_ring;
		const struct wire_sent *sent = &port->sent[at];

		if (sent->external && sent->len > 0 &&
		    !offload_memory_holds(port, sent->bytes, sent->len))
			return true;
	}
	return false;
}

int wire_offload_memory_remove(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct wire_port *port = (struct wire_port *)nic;
	struct wire_memory *last, removed;
	uint32_t i = 0;

	while (i < port->memory_count &&
	       (port->memory[i].base != base || port->memory[i].bytes != bytes))
		i++;
	if (i == port->memory_count)
		return -ENOENT;
	last = &port->memory[port->memory_count - 1];
	removed = port->memory[i];
	port->memory[i] = *last;
	*last = removed;
	port->memory_count--;
	if (!offload_memory_is_needed(port))
		return 0;
	port->memory_count++;
	return -EBUSY;
}

/* checksums and segmentation */

/* A packet and the offsets of its headers. */
struct offload_packet {
	uint8_t *bytes;
	uint32_t len;
	uint32_t ip, l4, payload; /* offsets */
	bool v4, tcp;
};

static bool offload_parse(struct offload_packet *p)
{
	uint32_t type = p->len >= 18 ? be16_load(p->bytes + 12) : 0, proto;

	p->ip = 14;
	if (type == 0x8100) {
		type = be16_load(p->bytes + 16);
		p->ip = 18;
	}
	p->v4 = type == 0x0800;
	if ((!p->v4 && type != 0x86dd) || p->len < p->ip + (p->v4 ? 20u : 40u))
		return false;
	p->l4 = p->ip + (p->v4 ? (p->bytes[p->ip] & 15u) * 4u : 40u);
	proto = p->bytes[p->ip + (p->v4 ? 9u : 6u)];
	p->tcp = proto == OFFLOAD_TCP;
	if ((!p->tcp && proto != OFFLOAD_UDP) || p->len < p->l4 + (p->tcp ? 20u : 8u))
		return false;
	p->payload = p->l4 + (p->tcp ? (p->bytes[p->l4 + 12] >> 4) * 4u : 8u);
	return p->payload <= p->len;
}

static uint8_t *offload_csum_field(const struct offload_packet *p)
{
	return p->bytes + p->l4 + (p->tcp ? 16 : 6);
}

/* True if the checksum field has the value that harp_nic.h requires: the pseudo-header's sum with
 * l4_len. */
static bool offload_pseudo_valid(const struct offload_packet *p, uint32_t l4_len)
{
	uint32_t sum = csum_add(htobe32(p->tcp ? OFFLOAD_TCP : OFFLOAD_UDP), htobe32(l4_len));
	uint16_t expected, actual;

	sum = csum_partial(p->bytes + p->ip + (p->v4 ? 12 : 8), p->v4 ? 8 : 32, sum);
	expected = (uint16_t)~csum_finish(sum);
	memcpy(&actual, offload_csum_field(p), sizeof(actual));
	return actual == expected;
}

/* Completes the checksum; the field holds the pseudo-header's sum without `add`. */
static void offload_csum_fill(const struct offload_packet *p, uint32_t add)
{
	uint16_t csum = csum_finish(csum_partial(p->bytes + p->l4, p->len - p->l4, htobe32(add)));

	if (csum == 0 && !p->tcp)
		csum = 0xffff;
	memcpy(offload_csum_field(p), &csum, sizeof(csum));
}

/* Writes the segment that begins at payload byte `at`, with headers derived from the first. */
static void offload_segment(struct offload_packet *s, uint32_t number, uint32_t at, bool last)
{
	uint8_t *ip = s->bytes + s->ip, *th = s->bytes + s->l4;
	uint16_t csum;

	if (s->v4) {
		be16_store(ip + 2, (uint16_t)(s->len - s->ip));
		be16_store(ip + 4, (uint16_t)(be16_load(ip + 4) + number));
		ip[10] = ip[11] = 0;
		csum = csum_finish(csum_partial(ip, s->l4 - s->ip, 0));
		memcpy(ip + 10, &csum, sizeof(csum));
	} else {
		be16_store(ip + 4, (uint16_t)(s->len - s->l4));
	}
	be32_store(th + 4, be32_load(th + 4) + at);
	if (!last)
		th[13] &= (uint8_t)~OFFLOAD_FIN_PSH;
	if (number > 0)
		th[13] &= (uint8_t)~OFFLOAD_CWR;
	offload_csum_fill(s, s->len - s->l4);
}

static bool offload_cut(const struct offload_packet *p, uint32_t mss, uint32_t packet_max,
			wire_offload_emit emit, void *ctx)
{
	uint8_t bytes[WIRE_PACKET_MAX];
	uint32_t total = p->len - p->payload, number = 0;

	if (!p->tcp || mss == 0 || mss >= total || p->payload + mss > packet_max ||
	    !offload_pseudo_valid(p, 0))
		return false;
	for (uint32_t at = 0; at < total; at += mss, number++) {
		struct offload_packet s = *p;
		uint32_t n = total - at < mss ? total - at : mss;

		s.bytes = bytes;
		s.len = p->payload + n;
		memcpy(bytes, p->bytes, p->payload);
		memcpy(bytes + p->payload, p->bytes + p->payload + at, n);
		offload_segment(&s, number, at, at + n == total);
		emit(ctx, bytes, s.len);
	}
	return true;
}

bool wire_offload_send(const struct harp_nic_caps *caps, uint8_t *packet, uint32_t len,
		       uint32_t flags, uint32_t packet_max, wire_offload_emit emit, void *ctx)
{
	struct offload_packet p = { .bytes = packet, .len = len };

	if (!(flags & (HARP_DESC_TX_CSUM | HARP_DESC_TX_TSO))) {
		if (len <= packet_max)
			emit(ctx, packet, len);
		return len <= packet_max;
	}
	if (!(caps->features & HARP_NIC_TX_CSUM) || !(flags & HARP_DESC_TX_CSUM) ||
	    !offload_parse(&p))
		return false;
	if (flags & HARP_DESC_TX_TSO)
		return (caps->features & HARP_NIC_TX_TSO) &&
		       len - p.payload <= caps->tso_bytes_max &&
		       offload_cut(&p, flags >> HARP_DESC_MSS_SHIFT, packet_max, emit, ctx);
	if (len > packet_max || !offload_pseudo_valid(&p, len - p.l4))
		return false;
	offload_csum_fill(&p, 0);
	emit(ctx, packet, len);
	return true;
}
