/* SPDX-License-Identifier: Apache-2.0 */
/* test_nicio.c - bursts; invalid descriptors of a NIC are counted and not used. */
#include "nic/nicio.h"

#include <errno.h>
#include <stdlib.h>

#include "check.h"

#define COUNT 64u
#define FRAME 2048u

/* A NIC whose descriptors the test sets. */
struct card {
	struct harp_nic nic;
	struct harp_desc rx[NICIO_BURST];
	unsigned rx_count;
	struct harp_desc tx[NICIO_BURST];
	unsigned tx_count, tx_room;
	uint64_t done[NICIO_BURST];
	unsigned done_count;
	uint64_t fill[COUNT];
	unsigned fill_count, fill_room;
	unsigned kicks;
};

static unsigned card_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max, uint64_t now)
{
	struct card *c = (struct card *)nic;
	unsigned n = c->rx_count < max ? c->rx_count : max;

	memcpy(descs, c->rx, n * sizeof(*descs));
	c->rx_count = 0;
	return n;
}
static unsigned card_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned n,
			uint64_t now)
{
	struct card *c = (struct card *)nic;

	n = n < c->tx_room ? n : c->tx_room;
	memcpy(c->tx + c->tx_count, descs, n * sizeof(*descs));
	c->tx_count += n;
	c->tx_room -= n;
	return n;
}
static unsigned card_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max, uint64_t now)
{
	struct card *c = (struct card *)nic;
	unsigned n = c->done_count < max ? c->done_count : max;

	memcpy(addrs, c->done, n * sizeof(*addrs));
	c->done_count = 0;
	return n;
}
static unsigned card_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned n)
{
	struct card *c = (struct card *)nic;

	n = n < c->fill_room ? n : c->fill_room;
	memcpy(c->fill + c->fill_count, addrs, n * sizeof(*addrs));
	c->fill_count += n;
	c->fill_room -= n;
	return n;
}
static void card_kick(struct harp_nic *nic, uint64_t now)
{
	(void)now;
	((struct card *)nic)->kicks++;
}
static void card_destroy(struct harp_nic *nic)
{
}
static const struct harp_nic_ops card_ops = {
	.rx = card_rx,
	.tx = card_tx,
	.complete = card_complete,
	.fill = card_fill,
	.kick = card_kick,
	.destroy = card_destroy,
};

static struct fixture {
	struct card card;
	struct frame_pool pool;
	struct nicio io;
	struct harp_stats stats;
} b;

static void fixture_open(void)
{
	memset(&b, 0, sizeof(b));
	b.card.nic.ops = &card_ops;
	b.card.nic.caps = (struct harp_nic_caps){
		.frame_base = calloc(COUNT, FRAME),
		.frame_size = FRAME,
		.frame_count = COUNT,
		.rx_ring = 16,
		.tx_ring = 8,
		.tx_frags_max = 4,
	};
	b.card.fill_room = COUNT;
	b.card.tx_room = NICIO_BURST;
	CHECK_EQ(frame_pool_init(&b.pool, &b.card.nic.caps), 0);
	CHECK_EQ(nicio_init(&b.io, &b.card.nic, &b.pool, &b.stats), 0);
	nicio_fill(&b.io);
	CHECK_EQ(b.io.fill_held, 16);
	CHECK_EQ(b.card.fill_count, 16);
}

static void fixture_close(void)
{
	CHECK_EQ(b.pool.free_count + b.io.fill_held + b.io.tx_held, COUNT);
	frame_pool_destroy(&b.pool);
	free(b.card.nic.caps.frame_base);
}

static void card_report(uint64_t addr, uint32_t len, uint32_t flags)
{
	b.card.rx[b.card.rx_count++] = (struct harp_desc){ addr, len, flags };
}

BEFORE_EACH(fixture_open())
AFTER_EACH(fixture_close())

TEST(bursts_become_frames)
{
	struct frame *packets[NICIO_BURST];

	card_report(b.card.fill[0] + 256, 60, HARP_DESC_RX_CSUM_VALID);
	card_report(b.card.fill[1] + 256, 1700, HARP_DESC_MORE);
	card_report(b.card.fill[2] + 256, 1700, HARP_DESC_MORE);
	card_report(b.card.fill[3] + 256, 1, 0);
	CHECK_EQ(nicio_rx(&b.io, packets), 2);
	CHECK_EQ(packets[0]->pub.len, 60);
	CHECK_EQ(packets[0]->pub.capacity, FRAME - 256);
	CHECK_EQ(packets[0]->flags, FRAME_RX_CSUM_VALID);
	CHECK(packets[0]->frag == NULL);
	CHECK_EQ(packets[1]->flags, 0);
	CHECK_EQ(packets[1]->frag->frag->pub.len, 1);
	CHECK(packets[1]->frag->frag->frag == NULL);
	CHECK_EQ(b.stats.rx_packets, 2);
	CHECK_EQ(b.stats.rx_bytes, 60 + 3401);
	CHECK_EQ(b.io.fill_held, 12);
	frame_release_packet(&b.pool, packets[0]);
	frame_release_packet(&b.pool, packets[1]);
	nicio_fill(&b.io);
	CHECK_EQ(b.io.fill_held, 16);
	CHECK_EQ(b.stats.drop_nic_desc, 0);
}

TEST(invalid_descriptors_are_dropped)
{
	struct frame *packets[NICIO_BURST], *ours;
	uint64_t drops = 0;

	ours = frame_alloc(&b.pool, 0);
	const struct {
		uint64_t addr;
		uint32_t len, flags;
	} invalid[] = {
		{ b.card.fill[0] + 256, 0, 0 },           /* empty */
		{ b.card.fill[1] + 256, FRAME - 255, 0 }, /* past the frame's end */
		{ b.card.fill[2] + 256, UINT32_MAX, 0 },
		{ (uint64_t)COUNT * FRAME, 60, 0 }, /* outside the region */
		{ UINT64_MAX, 60, 0 },
		{ frame_offset(&b.pool, ours->pub.data), 60, 0 }, /* the NIC does not hold it */
		{ b.card.fill[0] + 256, 60, 0 },                  /* already returned */
		{ b.card.fill[3] + 256, 60, HARP_DESC_MORE },     /* the last frame is missing */
	};
	for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
		card_report(invalid[i].addr, invalid[i].len, invalid[i].flags);
		CHECK_EQ(nicio_rx(&b.io, packets), 0);
		CHECK_EQ(b.stats.drop_nic_desc, ++drops);
	}
	CHECK_EQ(ours->stack_refs, 1);
	/* An invalid descriptor drops its packet and no other. */
	card_report(b.card.fill[4] + 256, 100, HARP_DESC_MORE);
	card_report(UINT64_MAX, 100, HARP_DESC_MORE);
	card_report(b.card.fill[5] + 256, 100, 0);
	card_report(b.card.fill[6] + 256, 100, 0);
	CHECK_EQ(nicio_rx(&b.io, packets), 1);
	CHECK_EQ(b.stats.drop_nic_desc, drops + 1);
	CHECK(packets[0]->pub.data == b.pool.base + b.card.fill[6] + 256);
	frame_release(&b.pool, packets[0]);
	CHECK_EQ(b.io.fill_held, 16 - 7);
	frame_release(&b.pool, ours);
}

TEST(an_endless_chain_is_dropped)
{
	struct frame *packets[NICIO_BURST];

	b.io.fill_target = 50;
	nicio_fill(&b.io);
	for (unsigned i = 0; i < 45; i++)
		card_report(b.card.fill[i] + 256, 10, i < 44 ? HARP_DESC_MORE : 0);
	CHECK_EQ(nicio_rx(&b.io, packets), 0);
	CHECK_EQ(b.stats.drop_gso_oversize, 1);
	CHECK_EQ(b.stats.drop_nic_desc, 0);
	for (unsigned i = 45; i < 50; i++)
		card_report(b.card.fill[i] + 256, 10, i < 49 ? HARP_DESC_MORE : 0);
	CHECK_EQ(nicio_rx(&b.io, packets), 1);
	frame_release_packet(&b.pool, packets[0]);
}

/* Sends a packet of `frags` frames with 100 bytes each. */
static void send_packet(unsigned frags)
{
	struct frame *first = NULL, **at = &first;

	for (unsigned i = 0; i < frags; i++, at = &(*at)->frag) {
		*at = frame_alloc(&b.pool, 0);
		(*at)->pub.len = 100;
	}
	struct packet_out out = { .frame = first,
				  .head = first->pub.data - 54,
				  .len = 100 * frags + 54 };

	nicio_tx(&b.io, &out);
	frame_release_packet(&b.pool, first); /* the NIC holds references */
}

TEST(packets_wait_for_the_ring)
{
	CHECK(!nicio_tx_ready(&b.io, 5)); /* more fragments than the NIC allows */
	CHECK(nicio_tx_ready(&b.io, 4));
	send_packet(4);
	CHECK_EQ(b.card.tx_count, 0); /* queued, not yet passed to the NIC */
	CHECK(nicio_tx_ready(&b.io, 4));
	send_packet(4);
	CHECK(!nicio_tx_ready(&b.io, 1)); /* ring of 8 */
	CHECK_EQ(b.stats.tx_ring_full, 1);
	b.card.tx_room = 4;
	nicio_flush(&b.io);
	CHECK_EQ(b.card.tx_count, 4);
	CHECK_EQ(b.card.tx[0].len, 154);
	CHECK_EQ(b.card.tx[0].flags, HARP_DESC_MORE);
	CHECK_EQ(b.card.tx[3].flags, 0);
	CHECK_EQ(b.io.tx_count, 4);
	CHECK(b.card.kicks > 0);
	b.card.tx_room = 4; /* refused descriptors are sent next, in order */
	nicio_flush(&b.io);
	CHECK_EQ(b.card.tx_count, 8);
	CHECK_EQ(b.card.tx[4].len, 154);
	for (unsigned i = 0; i < 8; i++)
		b.card.done[b.card.done_count++] = b.card.tx[i].addr & ~(uint64_t)(FRAME - 1);
	uint32_t free_before = b.pool.free_count;

	CHECK(nicio_tx_ready(&b.io, 4)); /* makes room by processing completions */
	CHECK_EQ(b.pool.free_count, free_before + 8);
	CHECK_EQ(b.io.tx_held, 0);
	CHECK_EQ(b.stats.tx_packets, 2);
	CHECK_EQ(b.stats.tx_bytes, 2 * 454);
}

TEST(invalid_completions_are_counted)
{
	CHECK(nicio_tx_ready(&b.io, 1));
	send_packet(1);
	nicio_flush(&b.io);
	uint64_t good = b.card.tx[0].addr;
	uint64_t completions[] = { UINT64_MAX, (uint64_t)COUNT * FRAME, b.card.fill[0], good,
				   good };

	memcpy(b.card.done, completions, sizeof(completions));
	b.card.done_count = 5;
	nicio_complete(&b.io);
	CHECK_EQ(b.stats.nic_completion_bad, 4); /* the second `good` is a duplicate */
	CHECK_EQ(b.io.tx_held, 0);
}

TEST(a_partial_fill_is_continued)
{
	struct frame *held[COUNT];
	unsigned n = 0;

	b.io.fill_target = 40;
	b.card.fill_room = 5; /* the NIC accepts fewer than offered */
	nicio_fill(&b.io);
	CHECK_EQ(b.io.fill_held, 21);
	b.card.fill_room = COUNT;
	while ((held[n] = frame_alloc(&b.pool, 2)) != NULL)
		n++;
	nicio_fill(&b.io); /* the pool has fewer than needed */
	CHECK_EQ(b.io.fill_held, 23);
	CHECK_EQ(b.pool.free_count, 0);
	while (n > 0)
		frame_release(&b.pool, held[--n]);
}

TEST(invalid_nics_are_refused)
{
	struct nicio io;

	b.card.nic.caps.tx_frags_max = 0;
	CHECK_EQ(nicio_init(&io, &b.card.nic, &b.pool, &b.stats), -EINVAL);
	b.card.nic.caps.tx_frags_max = 9; /* above its ring */
	CHECK_EQ(nicio_init(&io, &b.card.nic, &b.pool, &b.stats), -EINVAL);
	b.card.nic.caps.tx_frags_max = 4;
	harp_nic_destroy(NULL);
}
