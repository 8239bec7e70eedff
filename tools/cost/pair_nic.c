/* SPDX-License-Identifier: Apache-2.0 */
/* pair_nic.c - two cards and two rings of packets: one producer and one consumer each. */
#include "pair_nic.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIR_HEADROOM_BYTES 64u
#define PAIR_LINK_BYTES 18u /* Ethernet, and a VLAN tag */
#define PAIR_RING_FRAMES 2048u
#define PAIR_FRAGS_MAX 8u

typedef uint64_t pair_vec __attribute__((vector_size(32), aligned(1), may_alias));

struct pair_ring {
	/* Writer: the sending card, released; reader: the receiving one. */
	_Atomic uint32_t head __attribute__((aligned(64)));
	uint32_t tail_seen; /* the sending card's */
	/* The other way round. */
	_Atomic uint32_t tail __attribute__((aligned(64)));
	uint32_t head_seen;
	uint32_t mask, slot_bytes;
	uint32_t *len;
	uint8_t *bytes;
};

struct pair_card {
	struct harp_nic nic; /* must be first */
	struct pair_ring *out, *in;
	uint32_t csum_flag;
	uint32_t fill_count, sent_count;
	uint64_t cycles;
	struct harp_nic_stats stats;
	uint64_t fill[PAIR_RING_FRAMES]; /* the newest first: what it holds is in the cache */
	uint64_t sent[PAIR_RING_FRAMES];
};

struct pair {
	struct pair_ring ring[2];
	struct pair_card card[2];
};

static inline void pair_copy(uint8_t *dst, const uint8_t *src, uint32_t len)
{
	while (len >= sizeof(pair_vec)) {
		*(pair_vec *)dst = *(const pair_vec *)src;
		dst += sizeof(pair_vec);
		src += sizeof(pair_vec);
		len -= (uint32_t)sizeof(pair_vec);
	}
	for (uint32_t i = 0; i < len; i++)
		dst[i] = src[i];
}

static unsigned pair_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
			uint64_t now_ns)
{
	struct pair_card *card = (struct pair_card *)nic;
	struct pair_ring *ring = card->out;
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	uint64_t begin = pair_clock_cycles();
	unsigned taken = 0;

	(void)now_ns;
	while (taken < count) {
		uint8_t *slot = ring->bytes + (size_t)(head & ring->mask) * ring->slot_bytes;
		uint32_t len = 0;

		if (head - ring->tail_seen > ring->mask)
			ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
		if (head - ring->tail_seen > ring->mask)
			break;
		for (bool more = true; more; taken++) {
			pair_copy(slot + len, nic->caps.frame_base + descs[taken].addr,
				  descs[taken].len);
			len += descs[taken].len;
			more = descs[taken].flags & HARP_DESC_MORE;
			card->sent[card->sent_count++] = descs[taken].addr;
		}
		ring->len[head++ & ring->mask] = len;
		card->stats.tx_packets++;
		card->stats.tx_bytes += len;
	}
	atomic_store_explicit(&ring->head, head, memory_order_release);
	card->cycles += pair_clock_cycles() - begin;
	return taken;
}

/* One packet into frames; how many, 0 when there are too few. */
static unsigned pair_rx_one(struct pair_card *card, const uint8_t *from, uint32_t len,
			    struct harp_desc *descs, unsigned max)
{
	uint32_t room = card->nic.caps.frame_size - PAIR_HEADROOM_BYTES;
	unsigned frames = (len + room - 1) / room;

	if (frames > max || frames > card->fill_count)
		return 0;
	for (unsigned i = 0; i < frames; i++) {
		uint32_t n = len < room ? len : room;
		uint64_t addr = card->fill[--card->fill_count] + PAIR_HEADROOM_BYTES;

		pair_copy(card->nic.caps.frame_base + addr, from, n);
		descs[i] = (struct harp_desc){
			.addr = addr,
			.len = n,
			.flags = card->csum_flag | (n < len ? HARP_DESC_MORE : 0),
		};
		from += n;
		len -= n;
	}
	return frames;
}

static unsigned pair_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
			uint64_t now_ns)
{
	struct pair_card *card = (struct pair_card *)nic;
	struct pair_ring *ring = card->in;
	uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint64_t begin = pair_clock_cycles();
	unsigned got = 0;

	(void)now_ns;
	if (ring->head_seen - tail < max)
		ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
	while (tail != ring->head_seen) {
		uint32_t at = tail & ring->mask, len = ring->len[at];
		unsigned n = pair_rx_one(card, ring->bytes + (size_t)at * ring->slot_bytes, len,
					 descs + got, max - got);

		if (n == 0)
			break;
		got += n;
		tail++;
		card->stats.rx_packets++;
		card->stats.rx_bytes += len;
	}
	atomic_store_explicit(&ring->tail, tail, memory_order_release);
	card->cycles += pair_clock_cycles() - begin;
	return got;
}

static unsigned pair_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max, uint64_t now_ns)
{
	struct pair_card *card = (struct pair_card *)nic;
	unsigned n = 0;

	(void)now_ns;
	while (n < max && card->sent_count > 0)
		addrs[n++] = card->sent[--card->sent_count];
	return n;
}

static unsigned pair_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned count)
{
	struct pair_card *card = (struct pair_card *)nic;
	unsigned n = 0;

	while (n < count && card->fill_count < nic->caps.rx_ring)
		card->fill[card->fill_count++] = addrs[n++];
	return n;
}

static void pair_kick(struct harp_nic *nic, uint64_t now_ns)
{
	(void)now_ns;
	((struct pair_card *)nic)->stats.kicks++;
}

static void pair_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	*out = ((struct pair_card *)nic)->stats;
}

static const struct harp_nic_ops pair_ops = {
	.size = sizeof(struct harp_nic_ops),
	.rx = pair_rx,
	.tx = pair_tx,
	.complete = pair_complete,
	.fill = pair_fill,
	.kick = pair_kick,
	.stats = pair_stats,
};

static int pair_open(struct pair *pair, unsigned side, const struct pair_options *opt)
{
	struct pair_card *card = &pair->card[side];
	struct pair_ring *ring = &pair->ring[side];

	ring->mask = opt->slots - 1;
	ring->slot_bytes = (opt->mtu_bytes + PAIR_LINK_BYTES + 63) & ~63u;
	ring->len = calloc(opt->slots, sizeof(*ring->len));
	ring->bytes = calloc(opt->slots, ring->slot_bytes);
	card->out = ring;
	card->in = &pair->ring[1 - side];
	card->csum_flag = opt->csum_good ? HARP_DESC_CSUM_GOOD : 0;
	card->nic = (struct harp_nic){
		.ops = &pair_ops,
		.caps = {
			.name = "pair",
			.mode = "pair",
			.frame_base = aligned_alloc(4096, (size_t)opt->frame_count * opt->frame_size),
			.frame_size = opt->frame_size,
			.frame_count = opt->frame_count,
			.rx_headroom = PAIR_HEADROOM_BYTES,
			.rx_ring = PAIR_RING_FRAMES,
			.tx_ring = PAIR_RING_FRAMES,
			.tx_frags_max = PAIR_FRAGS_MAX,
			.mtu_bytes = opt->mtu_bytes,
			.features = HARP_NIC_TX_MULTI,
			.mac = { 2, 0, 0, 0, 0, (uint8_t)side },
		},
	};
	if (!ring->len || !ring->bytes || !card->nic.caps.frame_base)
		return -ENOMEM;
	memset(card->nic.caps.frame_base, 0, (size_t)opt->frame_count * opt->frame_size);
	return 0;
}

int pair_create(struct pair **out, const struct pair_options *options)
{
	struct pair *pair = aligned_alloc(64, (sizeof(*pair) + 63) & ~(size_t)63);

	if (!pair)
		return -ENOMEM;
	memset(pair, 0, sizeof(*pair));
	for (unsigned side = 0; side < 2; side++) {
		if (pair_open(pair, side, options) != 0) {
			pair_destroy(pair);
			return -ENOMEM;
		}
	}
	*out = pair;
	return 0;
}

struct harp_nic *pair_nic(struct pair *pair, unsigned side)
{
	return &pair->card[side].nic;
}

uint64_t pair_cycles(const struct harp_nic *nic)
{
	return ((const struct pair_card *)nic)->cycles;
}

void pair_destroy(struct pair *pair)
{
	if (!pair)
		return;
	for (unsigned side = 0; side < 2; side++) {
		free(pair->ring[side].len);
		free(pair->ring[side].bytes);
		free(pair->card[side].nic.caps.frame_base);
	}
	free(pair);
}
