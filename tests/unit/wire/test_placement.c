/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_placement.c - source ports: right ones if queues can be computed, each at most once, finally
 * all; queue tables of peers, intact and damaged; and the cache of peers.
 */
#include "wire/queue_placement.h"

#include <errno.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/util.h"
#include "check.h"
#include "poll/engine.h"
#include "connect/peers.h"

#define FIRST 61000u
#define LAST 65535u

static struct harp_endpoint local_ep, remote_ep;

static void init_toeplitz(struct harp_rss *rss, uint64_t seed, uint32_t queues, uint32_t entries)
{
	struct rng rng;

	rng_seed(&rng, seed);
	memset(rss, 0, sizeof(*rss));
	rss->kind = HARP_RSS_TOEPLITZ;
	rss->queues = queues;
	rss->key_bytes = 40 + (uint32_t)seed % 25;
	rss->table_count = entries;
	for (uint32_t i = 0; i < rss->key_bytes; i++)
		rss->key[i] = (uint8_t)rng_below(&rng, 256);
	for (uint32_t i = 0; i < entries; i++)
		rss->table[i] = (uint16_t)(i % queues);
}

static struct placement_end end_of(enum placement_kind kind, uint16_t queues, uint16_t queue)
{
	return (struct placement_end){ .kind = kind, .queues = queues, .queue = queue };
}

static void computed_ports_reach_the_right_queues(void)
{
	for (uint64_t seed = 0; seed < 40; seed++) {
		struct placement_end own, peer;
		struct harp_rss ours, theirs;
		struct placement p;
		uint16_t port;
		unsigned count = 0;

		init_toeplitz(&ours, seed, 8, 128);
		init_toeplitz(&theirs, seed + 1000, 4, 512);
		placement_own(&own, &ours, (uint32_t)seed % 8);
		placement_own(&peer, &theirs, (uint32_t)seed % 4);
		placement_begin(&p, &own, &peer, &local_ep, &remote_ep, FIRST, LAST,
				seed * 0x9e3779b97f4a7c15ull);
		CHECK(!placement_takes_any_port(&p));
		CHECK(placement_is_computed(&p));
		while ((port = placement_next(&p)) != 0) {
			struct harp_endpoint local = local_ep;

			local.port = port;
			CHECK(port >= FIRST);
			CHECK_EQ(harp_rss_queue(&ours, &remote_ep, &local), seed % 8);
			CHECK_EQ(harp_rss_queue(&theirs, &local, &remote_ep), seed % 4);
			count++;
		}
		/* One port in 32 is right on average. */
		CHECK(count > (LAST - FIRST) / 32 / 2 && count < (LAST - FIRST) / 32 * 2);
	}
}

TEST(every_port_is_returned_once)
{
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 8, 3);

	for (uint64_t seed = 1; seed < 50; seed++) {
		uint16_t last = (uint16_t)(FIRST + seed * 7 % 300), port;
		uint8_t used[65536] = { 0 };
		unsigned count = 0;
		struct placement p;

		placement_begin(&p, &unknown, &unknown, &local_ep, &remote_ep, FIRST, last,
				seed * 0xd1b54a32d192ed03ull);
		CHECK(!placement_is_computed(&p) && !placement_takes_any_port(&p));
		while ((port = placement_next(&p)) != 0) {
			CHECK(port >= FIRST && port <= last && !used[port]);
			used[port] = 1;
			count++;
		}
		CHECK_EQ(count, last - FIRST + 1);
	}
}

TEST(both_placements_decide_if_any_port_is_right_or_ports_are_computed_or_tried)
{
	struct placement_end one = end_of(PLACEMENT_ONE_QUEUE, 1, 0), older = { 0 };
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 4, 1), known, *ends[2];
	struct harp_rss rss;
	struct placement p;

	placement_begin(&p, &one, &older, &local_ep, &remote_ep, FIRST, LAST, 1);
	CHECK(placement_takes_any_port(&p) && placement_is_computed(&p));
	placement_begin(&p, &one, &unknown, &local_ep, &remote_ep, FIRST, LAST, 1);
	CHECK(!placement_takes_any_port(&p) && !placement_is_computed(&p));
	init_toeplitz(&rss, 7, 4, 128);
	placement_own(&known, &rss, 2);
	ends[0] = &one;
	ends[1] = &older;
	for (int i = 0; i < 2; i++) {
		placement_begin(&p, &known, ends[i], &local_ep, &remote_ep, FIRST, LAST, 1);
		CHECK(!placement_takes_any_port(&p) && placement_is_computed(&p));
		CHECK(placement_next(&p) != 0);
		/* If the peer's table was wrong, any port may be right. */
		p.try_all = true;
		CHECK(!placement_is_computed(&p));
	}
	/* No entry of the table selects this queue. */
	known.queue = 9;
	placement_begin(&p, &known, &one, &local_ep, &remote_ep, FIRST, LAST, 1);
	CHECK_EQ(placement_next(&p), 0);
	placement_begin(&p, &one, &one, &local_ep, &remote_ep, LAST, FIRST, 1);
	CHECK_EQ(placement_next(&p), 0);
	memset(&rss, 0, sizeof(rss));
	rss.queues = 1;
	placement_own(&known, &rss, 0);
	CHECK_EQ(known.kind, PLACEMENT_ONE_QUEUE);
	rss.kind = HARP_RSS_UNKNOWN;
	rss.queues = 8;
	placement_own(&known, &rss, 5);
	CHECK_EQ(known.kind, PLACEMENT_UNKNOWN);
	CHECK_EQ(known.queues, 8);
	CHECK_EQ(known.queue, 5);
}

/* ---- encoding -------------------------------------------------------------------------------- */

TEST(an_encoded_queue_table_selects_the_same_ports)
{
	for (uint64_t seed = 0; seed < 60; seed++) {
		uint8_t bytes[PLACEMENT_BYTES_MAX];
		struct placement_end own, decoded;
		struct harp_endpoint from = remote_ep;
		struct harp_rss rss;
		size_t len;

		init_toeplitz(&rss, seed, 1 + (uint32_t)seed % 9, 1 + (uint32_t)(seed * 37) % 512);
		placement_own(&own, &rss, (uint32_t)seed % rss.queues);
		len = placement_encode(&own, bytes);
		CHECK_EQ(len, 8 + rss.key_bytes + (rss.table_count + 7) / 8);
		CHECK_EQ(placement_decode(&decoded, bytes, len), 0);
		CHECK(decoded.known && decoded.kind == PLACEMENT_TOEPLITZ);
		CHECK_EQ(decoded.queue, own.queue);
		/* Both agree for every port whether it reaches the listener's queue. */
		for (unsigned port = FIRST; port <= LAST; port += 13) {
			from.port = (uint16_t)port;
			CHECK_EQ(harp_rss_queue(&decoded.rss, &from, &local_ep) == decoded.queue,
				 harp_rss_queue(&rss, &from, &local_ep) == own.queue);
		}
	}
}

TEST(a_nic_without_a_known_hash_is_not_encoded)
{
	uint8_t bytes[PLACEMENT_BYTES_MAX];
	struct placement_end end = end_of(PLACEMENT_ONE_QUEUE, 1, 0);

	CHECK_EQ(placement_encode(&end, bytes), 0);
	end = end_of(PLACEMENT_UNKNOWN, 8, 1);
	CHECK_EQ(placement_encode(&end, bytes), 0);
	end = end_of(PLACEMENT_TOEPLITZ, 8, 1); /* from a handle: without key and table */
	CHECK_EQ(placement_encode(&end, bytes), 0);
}

TEST(a_damaged_queue_table_is_refused_or_usable)
{
	static const struct {
		size_t at;
		uint8_t value;
	} changes[] = {
		{ 0, 0 }, { 0, 2 }, { 0, 255 }, { 1, 0 },   { 1, 39 }, { 1, 41 },  { 1, 65 },
		{ 2, 0 }, { 2, 9 }, { 3, 2 },   { 3, 255 }, { 4, 8 },  { 5, 255 }, { 6, 0 },
	};
	uint8_t good[PLACEMENT_BYTES_MAX + 8], bytes[sizeof(good)];
	struct placement_end own, end;
	struct harp_rss rss;
	struct rng rng;
	size_t len;

	init_toeplitz(&rss, 25, 8, 128); /* 40 bytes of key */
	placement_own(&own, &rss, 5);
	memset(good, 0, sizeof(good));
	len = placement_encode(&own, good);
	CHECK_EQ(len, 8 + 40 + 16);
	for (size_t cut = 0; cut < sizeof(good); cut++)
		CHECK_EQ(placement_decode(&end, good, cut), cut == len ? 0 : -EPROTO);
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		memcpy(bytes, good, sizeof(good));
		bytes[changes[i].at] = changes[i].value;
		CHECK_EQ(placement_decode(&end, bytes, len), -EPROTO);
		CHECK(!end.known);
	}
	rng_seed(&rng, 5);
	for (int i = 0; i < 20000; i++) {
		struct placement p;

		memcpy(bytes, good, sizeof(good));
		for (int flips = 0; flips < 3; flips++)
			bytes[rng_below(&rng, (uint32_t)len)] ^=
				(uint8_t)(1u << rng_below(&rng, 8));
		if (placement_decode(&end, bytes, len))
			continue;
		placement_begin(&p, &end, &end, &local_ep, &remote_ep, FIRST, FIRST + 50,
				(uint64_t)i);
		while (placement_next(&p))
			;
	}
}

/* ---- the cache of peers ---------------------------------------------------------------------- */

TEST(a_peer_is_cached_until_it_is_unreachable)
{
	struct placement_end end = end_of(PLACEMENT_TOEPLITZ, 8, 2), out;
	struct harp_endpoint peer = remote_ep, other = remote_ep;
	const uint64_t now_ns = 1000000000ull;

	other.port++;
	CHECK(!peers_recall(&peer, &out));
	peers_learn(&peer, &end);
	CHECK(peers_recall(&peer, &out));
	CHECK_EQ(out.queue, 2);
	CHECK(!peers_recall(&other, &out));
	CHECK(!peers_is_avoided(&peer, 1, now_ns));
	peers_avoid(&peer, 1, now_ns);
	CHECK(!peers_recall(&peer, &out));
	CHECK(peers_is_avoided(&peer, 1, now_ns - 1)); /* the caller's clock may be older */
	CHECK(peers_is_avoided(&peer, 1, now_ns + PEERS_AVOID_NS - 1));
	CHECK(!peers_is_avoided(&peer, 0, now_ns)); /* another engine may try */
	CHECK(!peers_is_avoided(&other, 1, now_ns));
	CHECK(!peers_is_avoided(&peer, 1, now_ns + PEERS_AVOID_NS));
}

TEST(a_full_cache_drops_the_least_recently_used_peer)
{
	struct placement_end end = end_of(PLACEMENT_TOEPLITZ, 8, 2), out;
	struct harp_endpoint peer = remote_ep, other = remote_ep;

	for (unsigned i = 0; i < 3 * PEERS_MAX; i++) {
		other.port = (uint16_t)(2000 + i);
		peers_learn(&other, &end);
		peers_learn(&peer, &end);
	}
	CHECK(peers_recall(&peer, &out));
	CHECK(peers_recall(&other, &out));
	other.port = 2000;
	CHECK(!peers_recall(&other, &out));
	peers_reset();
	CHECK(!peers_recall(&peer, &out));
}

int main(void)
{
	local_ep.addr = harp_addr_v4(10, 77, 0, 1);
	remote_ep.addr = harp_addr_v4(10, 77, 0, 2);
	remote_ep.port = 61234;
	computed_ports_reach_the_right_queues();
	CHECK_EQ(harp_addr_parse("fd00::1", &local_ep.addr), 0);
	CHECK_EQ(harp_addr_parse("fd00::2", &remote_ep.addr), 0);
	computed_ports_reach_the_right_queues();
	check_run();
	return check_done();
}
