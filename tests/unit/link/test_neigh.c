/* SPDX-License-Identifier: Apache-2.0 */
/* test_neigh.c - what TCP and the owner say of neighbors. tests/packet/test_neighbors.py has what packets say. */
#include "host.h"

static struct host h;
BEFORE_EACH(host_init(&h, 1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(host_done(&h))

#include <errno.h>

#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

static const uint8_t everyone[6] = { 255, 255, 255, 255, 255, 255 };
static const uint8_t evil_mac[6] = { 0x02, 0x66, 0x66, 0x66, 0x66, 0x66 };

/* Tries to send one small packet to 10.0.0.<last>. */
static int try_send(uint8_t last)
{
	struct ip_path path = { .dst = harp_addr_v4(10, 0, 0, last) };
	struct frame *f = frame_alloc(&h.pool, 0);
	int err;

	f->pub.len = 8;
	memset(f->pub.data, 0, 8);
	struct packet_out out = { .frame = f, .head = f->pub.data, .len = 8 };
	const struct packet_out before = out;

	err = ip_output(&h.ip, &path, 253, 0, &out);
	if (err) /* as it was: to be tried again */
		CHECK(out.head == before.head && out.len == before.len);
	frame_release(&h.pool, f);
	return err;
}

static void wait_ns(uint64_t ns)
{
	h.now_ns += ns + WHEEL_TICK_NS;
	host_poll(&h);
}

/* ARP requests among what the host sent; *to is the last one's Ethernet destination. */
static unsigned requests(uint8_t *to)
{
	uint8_t p[HOST_PACKET_MAX];
	unsigned n = 0;

	while (peer_receive(&h, p) > 0) {
		if (be16_load(p + 12) != ETH_TYPE_ARP || be16_load(p + 20) != 1)
			continue;
		n++;
		memcpy(to, p, 6);
		CHECK_MEM(p + 22, host_mac, 6);
		CHECK_MEM(p + 28, host_ip, 4);
	}
	return n;
}

static void answer(const uint8_t *mac)
{
	uint8_t p[64];

	make_arp(p, host_mac, 2, mac, peer_ip, host_ip);
	peer_say(&h, p, 42);
}

static struct neighbor *peer_record(void)
{
	struct harp_addr addr = ipv4_mapped(peer_ip);

	return neighbor_get(&h.eth, &addr);
}

/* A damaged ARP answer taught a wrong address; TCP hears nothing. */
TEST(a_suspected_entry_is_probed_and_used_meanwhile)
{
	struct harp_addr own = ipv4_mapped(host_ip);
	uint8_t to[6];

	try_send(2);
	answer(evil_mac);
	requests(to);
	neighbor_suspect(&h.eth, peer_record(), &own);
	neighbor_suspect(&h.eth, peer_record(), &own); /* every connection says so */
	host_poll(&h);
	CHECK_EQ(requests(to), 1);
	CHECK_MEM(to, evil_mac, 6);
	CHECK_EQ(try_send(2), 0); /* it may be right after all */
	for (int i = 0; i < 3; i++)
		wait_ns(100 * MS);
	CHECK_EQ(requests(to), 3);
	CHECK_MEM(to, everyone, 6);
	answer(peer_mac);
	CHECK_EQ(peer_record()->state, NEIGHBOR_REACHABLE);
	CHECK_MEM(peer_record()->mac, peer_mac, 6);
}

static unsigned wanted, confirmed;
static void count_wanted(void *ctx, const struct harp_addr *next_hop)
{
	CHECK_EQ(next_hop->bytes[15], 2);
	wanted++;
}
static void count_confirmed(void *ctx, const struct harp_addr *next_hop)
{
	confirmed++;
}

TEST(in_external_mode_the_owner_resolves)
{
	struct harp_addr addr = ipv4_mapped(peer_ip), unknown = harp_addr_v4(10, 0, 0, 77);
	uint8_t to[6];

	host_done(&h);
	host_init(&h, 1500, HARP_NEIGHBOR_EXTERNAL);
	h.options.hooks.neighbor_requested = count_wanted;
	h.options.hooks.neighbor_confirmed = count_confirmed;
	for (int i = 0; i < 10; i++)
		CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(wanted, 1);
	wait_ns(100 * MS);
	CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(wanted, 2);
	uint32_t generation = h.eth.resolved_generation;

	CHECK_EQ(neighbor_set(&h.eth, &addr, peer_mac), 0);
	CHECK_EQ(h.eth.resolved_generation, generation + 1);
	CHECK_EQ(try_send(2), 0);
	for (int i = 0; i < 10; i++)
		neighbor_confirm(&h.eth, peer_record(), h.now_ns);
	CHECK_EQ(confirmed, 1);
	wait_ns(1 * SEC);
	neighbor_confirm(&h.eth, peer_record(), h.now_ns);
	CHECK_EQ(confirmed, 2);
	wait_ns(100 * SEC); /* no ageing: the kernel knows */
	CHECK_EQ(try_send(2), 0);
	CHECK_EQ(neighbor_set(&h.eth, &addr, NULL), 0);
	CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(wanted, 3);
	CHECK_EQ(neighbor_set(&h.eth, &unknown, NULL), -ENOENT);
	CHECK_EQ(neighbor_set(&h.eth, &addr, everyone), -EINVAL);
	CHECK_EQ(requests(to), 0);
	CHECK_EQ(h.stats.arp_out, 0);
}
