/* SPDX-License-Identifier: Apache-2.0 */
/* test_link.c - VLAN tags, and how TCP and the owner of a stack affect neighbors. tests/packet
 * covers the packets of ARP. */
#include <errno.h>

#include "host.h"

#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

BEFORE_EACH(host_open(1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(rig_close(&rig))

static const uint8_t everyone[6] = { 255, 255, 255, 255, 255, 255 };

/* An echo request of len bytes with tags in front of its type; the frame's length. */
static uint32_t make_tagged(uint8_t *p, const uint8_t *tags, uint32_t tags_len)
{
	uint8_t plain[100];
	uint32_t len = make_ipv4(plain, IP_PROTO_ICMP, 8);

	memset(plain + 34, 0, 8);
	plain[34] = 8;
	be16_store(plain + 36, 0xf7ff); /* the checksum */
	memcpy(p, plain, 12);
	memcpy(p + 12, tags, tags_len);
	memcpy(p + 12 + tags_len, plain + 12, len - 12);
	return len + tags_len;
}

TEST(only_frames_of_our_vlan_are_received)
{
	static const struct {
		uint16_t vlan_id; /* ours */
		uint8_t tags[8];
		uint32_t len;
		bool good;
	} frames[] = {
		{ 0, { 0 }, 0, true },
		{ 0, { 0x81, 0, 0xe0, 0 }, 4, true }, /* priority 7 of no VLAN */
		{ 0, { 0x81, 0, 0, 5 }, 4, false },
		{ 5, { 0x81, 0, 0, 5 }, 4, true },
		{ 5, { 0x81, 0, 0xb0, 5 }, 4, true }, /* priority and drop eligible */
		{ 5, { 0x81, 0, 0, 6 }, 4, false },
		{ 5, { 0x81, 0, 0xe0, 0 }, 4, false },
		{ 5, { 0 }, 0, false },
		{ 5, { 0x88, 0xa8, 0, 5 }, 4, false }, /* a provider's */
		{ 0, { 0x88, 0xa8, 0, 0 }, 4, false },
		{ 5, { 0x88, 0xa8, 0, 1, 0x81, 0, 0, 5 }, 8, false },
		{ 5, { 0x81, 0, 0, 5, 0x81, 0, 0, 5 }, 8, false },
		{ 0, { 0x81, 0, 0, 0, 0x81, 0, 0, 0 }, 8, false },
		{ 4094, { 0x81, 0, 0x0f, 0xfe }, 4, true },
	};
	struct harp_addr peer = ipv4_mapped(peer_ip);
	uint8_t p[100], r[RIG_RAW_MAX];

	for (unsigned i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
		uint32_t tag = frames[i].vlan_id ? 4 : 0;

		rig_close(&rig);
		host_open(1500, HARP_NEIGHBOR_OWN);
		host->eth.vlan_id = frames[i].vlan_id;
		CHECK_EQ(neighbor_set(&host->eth, &peer, rig_peer_mac), 0);
		peer_say(p, make_tagged(p, frames[i].tags, frames[i].len));
		CHECK_EQ(host->stats.drop_vlan, !frames[i].good);
		CHECK_EQ(host->stats.icmp_echo_in, frames[i].good);
		CHECK_EQ(peer_receive(r), frames[i].good ? 42 + tag : 0);
		if (frames[i].good && tag) {
			CHECK_EQ(be16_load(r + 12), ETH_TYPE_VLAN);
			CHECK_EQ(be16_load(r + 14), frames[i].vlan_id);
		}
		if (frames[i].good)
			CHECK_EQ(be16_load(r + 12 + tag), ETH_TYPE_IPV4);
	}
}

/* ARP is tagged too; a tag cut off is short; a full packet and its tag fit. */
TEST(arp_and_full_packets_are_tagged)
{
	struct harp_stack_options opt = { .size = sizeof(opt), .vlan_id = 4095 };
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path path = { .dst = peer };
	uint8_t plain[100], p[100], r[RIG_RAW_MAX];
	static const uint8_t tag[4] = { 0x81, 0, 0, 9 };
	struct packet_out out;
	struct eth eth;

	host->eth.vlan_id = 9;
	make_arp(plain, everyone, 1, rig_peer_mac, peer_ip, host_ip);
	memcpy(p, plain, 12);
	memcpy(p + 12, tag, 4);
	memcpy(p + 16, plain + 12, 30);
	peer_say(p, 46);
	CHECK_EQ(peer_receive(r), 46);
	CHECK_MEM(r + 12, tag, 4);
	CHECK_EQ(be16_load(r + 16), ETH_TYPE_ARP);
	for (uint32_t len = 14; len < 18; len++)
		peer_say(p, len);
	CHECK_EQ(host->stats.drop_eth_short, 4);
	out = make_out(1480);
	CHECK_EQ(ip_output(&host->ip, &path, IP_PROTO_TCP, 0, &out), 0);
	frame_release(&host->pool, out.frame);
	rig_poll(&rig);
	CHECK_EQ(peer_receive(r), 1518); /* 1500, Ethernet, tag */

	CHECK_EQ(eth_init(&eth, &host->io, &host->wheel, &host->rng, &host->stats, &opt), -EINVAL);
}

TEST(an_arp_reply_without_a_frame_is_a_counted_drop)
{
	uint8_t p[100], r[RIG_RAW_MAX];
	struct frame *hold[256];
	unsigned n = 0;

	while ((hold[n] = frame_alloc(&host->pool, 0)) != NULL)
		n++;
	make_arp(p, everyone, 1, rig_peer_mac, peer_ip, host_ip);
	peer_say(p, 42);
	CHECK_EQ(host->stats.drop_no_frame, 1);
	CHECK_EQ(peer_receive(r), 0);
	while (n > 0)
		frame_release(&host->pool, hold[--n]);
}

/* ---- neighbors ------------------------------------------------------------------------------- */

static const uint8_t evil_mac[6] = { 0x02, 0x66, 0x66, 0x66, 0x66, 0x66 };

/* Tries to send one small packet to 10.0.0.<last>. */
static int try_send(uint8_t last)
{
	struct ip_path path = { .dst = harp_addr_v4(10, 0, 0, last) };
	struct packet_out out = make_out(8);
	int err = ip_output(&host->ip, &path, 253, 0, &out);

	if (err) /* unchanged, so that it can be retried */
		CHECK(out.head == out.frame->pub.data && out.len == 8);
	frame_release(&host->pool, out.frame);
	return err;
}

static void wait_ns(uint64_t ns)
{
	rig.now_ns += ns + WHEEL_TICK_NS;
	rig_poll(&rig);
}

/* Counts the ARP requests that the host sent; *to is the last one's Ethernet destination. */
static unsigned requests(uint8_t *to)
{
	uint8_t p[RIG_RAW_MAX];
	unsigned n = 0;

	while (peer_receive(p) > 0) {
		if (be16_load(p + 12) != ETH_TYPE_ARP || be16_load(p + 20) != 1)
			continue;
		n++;
		memcpy(to, p, 6);
		CHECK_MEM(p + 22, rig_mac, 6);
		CHECK_MEM(p + 28, host_ip, 4);
	}
	return n;
}

static void answer(const uint8_t *mac)
{
	uint8_t p[64];

	make_arp(p, rig_mac, 2, mac, peer_ip, host_ip);
	peer_say(p, 42);
}

static struct neighbor *peer_record(void)
{
	struct harp_addr addr = ipv4_mapped(peer_ip);

	return neighbor_get(&host->eth, &addr);
}

/* A wrong ARP reply: TCP gets no ACKs and reports the neighbor. */
TEST(a_suspected_entry_is_probed_and_used_meanwhile)
{
	struct harp_addr own = ipv4_mapped(host_ip);
	uint8_t to[6];

	try_send(2);
	answer(evil_mac);
	requests(to);
	neighbor_suspect(&host->eth, peer_record(), &own);
	neighbor_suspect(&host->eth, peer_record(), &own); /* every connection reports it */
	rig_poll(&rig);
	CHECK_EQ(requests(to), 1);
	CHECK_MEM(to, evil_mac, 6);
	CHECK_EQ(try_send(2), 0); /* the entry may be right */
	for (int i = 0; i < 3; i++)
		wait_ns(100 * MS);
	CHECK_EQ(requests(to), 3);
	CHECK_MEM(to, everyone, 6);
	answer(rig_peer_mac);
	CHECK_EQ(peer_record()->state, NEIGHBOR_REACHABLE);
	CHECK_MEM(peer_record()->mac, rig_peer_mac, 6);
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

	rig_close(&rig);
	host_open(1500, HARP_NEIGHBOR_EXTERNAL);
	host->options.hooks.neighbor_requested = count_wanted;
	host->options.hooks.neighbor_confirmed = count_confirmed;
	for (int i = 0; i < 10; i++)
		CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(wanted, 1);
	wait_ns(100 * MS);
	CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(wanted, 2);
	uint32_t generation = host->eth.resolved_generation;

	CHECK_EQ(neighbor_set(&host->eth, &addr, rig_peer_mac), 0);
	CHECK_EQ(host->eth.resolved_generation, generation + 1);
	CHECK_EQ(try_send(2), 0);
	for (int i = 0; i < 10; i++)
		neighbor_confirm(&host->eth, peer_record(), rig.now_ns);
	CHECK_EQ(confirmed, 1);
	wait_ns(1 * SEC);
	neighbor_confirm(&host->eth, peer_record(), rig.now_ns);
	CHECK_EQ(confirmed, 2);
	wait_ns(100 * SEC); /* no ageing: the kernel does it */
	CHECK_EQ(try_send(2), 0);
	CHECK_EQ(neighbor_set(&host->eth, &addr, NULL), 0);
	CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(wanted, 3);
	CHECK_EQ(neighbor_set(&host->eth, &unknown, NULL), -ENOENT);
	CHECK_EQ(neighbor_set(&host->eth, &addr, everyone), -EINVAL);
	CHECK_EQ(requests(to), 0);
	CHECK_EQ(host->stats.arp_out, 0);
}
