/* SPDX-License-Identifier: Apache-2.0 */
/* test_link.c - VLAN tags, and neighbor entries that TCP or the owner of the stack changes.
 * tests/packet covers ARP packets. */
#include <errno.h>

#include "host.h"

#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

BEFORE_EACH(host_open(1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(rig_close(&rig))

static const uint8_t broadcast_mac[6] = { 255, 255, 255, 255, 255, 255 };

/* Writes an echo request with these VLAN tags; returns the frame's length. */
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
		uint16_t vlan_id; /* of the stack */
		uint8_t tags[8];
		uint32_t len;
		bool is_accepted;
	} frames[] = {
		{ 0, { 0 }, 0, true },
		{ 0, { 0x81, 0, 0xe0, 0 }, 4, true }, /* VLAN 0, priority 7 */
		{ 0, { 0x81, 0, 0, 5 }, 4, false },
		{ 5, { 0x81, 0, 0, 5 }, 4, true },
		{ 5, { 0x81, 0, 0xb0, 5 }, 4, true }, /* priority and drop eligible */
		{ 5, { 0x81, 0, 0, 6 }, 4, false },
		{ 5, { 0x81, 0, 0xe0, 0 }, 4, false },
		{ 5, { 0 }, 0, false },
		{ 5, { 0x88, 0xa8, 0, 5 }, 4, false }, /* a service tag (802.1ad) */
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
		CHECK_EQ(host->stats.drop_vlan, !frames[i].is_accepted);
		CHECK_EQ(host->stats.icmp_echo_in, frames[i].is_accepted);
		CHECK_EQ(peer_receive(r), frames[i].is_accepted ? 42 + tag : 0);
		if (frames[i].is_accepted && tag) {
			CHECK_EQ(be16_load(r + 12), ETH_TYPE_VLAN);
			CHECK_EQ(be16_load(r + 14), frames[i].vlan_id);
		}
		if (frames[i].is_accepted)
			CHECK_EQ(be16_load(r + 12 + tag), ETH_TYPE_IPV4);
	}
}

/* ARP replies are tagged, a truncated tag is dropped as short, and a packet of MTU size fits with
 * its tag. */
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
	make_arp(plain, broadcast_mac, 1, rig_peer_mac, peer_ip, host_ip);
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
	CHECK_EQ(peer_receive(r), 1518); /* MTU, Ethernet header, tag */

	CHECK_EQ(eth_init(&eth, &host->io, &host->wheel, &host->rng, &host->stats, &opt), -EINVAL);
}

TEST(an_arp_reply_without_a_free_frame_is_counted_as_a_drop)
{
	uint8_t p[100], r[RIG_RAW_MAX];
	struct frame *frames[256];
	unsigned n = 0;

	while ((frames[n] = frame_alloc(&host->pool, 0)) != NULL)
		n++;
	make_arp(p, broadcast_mac, 1, rig_peer_mac, peer_ip, host_ip);
	peer_say(p, 42);
	CHECK_EQ(host->stats.drop_no_frame, 1);
	CHECK_EQ(peer_receive(r), 0);
	while (n > 0)
		frame_release(&host->pool, frames[--n]);
}

/* ---- neighbors ------------------------------------------------------------------------------- */

static const uint8_t evil_mac[6] = { 0x02, 0x66, 0x66, 0x66, 0x66, 0x66 };

/* Tries to send one small packet to 10.0.0.<last>. */
static int try_send(uint8_t last)
{
	struct ip_path path = { .dst = harp_addr_v4(10, 0, 0, last) };
	struct packet_out out = make_out(8);
	int err = ip_output(&host->ip, &path, 253, 0, &out);

	if (err) /* unchanged, so that the caller can retry */
		CHECK(out.head == out.frame->pub.data && out.len == 8);
	frame_release(&host->pool, out.frame);
	return err;
}

static void wait_ns(uint64_t ns)
{
	rig.now_ns += ns + WHEEL_TICK_NS;
	rig_poll(&rig);
}

/* Counts the ARP requests that the host sent; *dst is the last one's Ethernet destination. */
static unsigned count_requests(uint8_t *dst)
{
	uint8_t p[RIG_RAW_MAX];
	unsigned n = 0;

	while (peer_receive(p) > 0) {
		if (be16_load(p + 12) != ETH_TYPE_ARP || be16_load(p + 20) != 1)
			continue;
		n++;
		memcpy(dst, p, 6);
		CHECK_MEM(p + 22, rig_mac, 6);
		CHECK_MEM(p + 28, host_ip, 4);
	}
	return n;
}

static void reply(const uint8_t *mac)
{
	uint8_t p[64];

	make_arp(p, rig_mac, 2, mac, peer_ip, host_ip);
	peer_say(p, 42);
}

static struct neighbor *peer_neighbor(void)
{
	struct harp_addr addr = ipv4_mapped(peer_ip);

	return neighbor_get(&host->eth, &addr);
}

/* The entry has a wrong MAC address, so TCP gets no ACKs and reports the neighbor. */
TEST(a_suspected_entry_is_probed_and_used_meanwhile)
{
	struct harp_addr own = ipv4_mapped(host_ip);
	uint8_t dst[6];

	try_send(2);
	reply(evil_mac);
	count_requests(dst);
	neighbor_suspect(&host->eth, peer_neighbor(), &own);
	neighbor_suspect(&host->eth, peer_neighbor(), &own); /* every connection reports it */
	rig_poll(&rig);
	CHECK_EQ(count_requests(dst), 1);
	CHECK_MEM(dst, evil_mac, 6);
	CHECK_EQ(try_send(2), 0); /* the entry may be correct */
	for (int i = 0; i < 3; i++)
		wait_ns(100 * MS);
	CHECK_EQ(count_requests(dst), 3);
	CHECK_MEM(dst, broadcast_mac, 6);
	reply(rig_peer_mac);
	CHECK_EQ(peer_neighbor()->state, NEIGHBOR_REACHABLE);
	CHECK_MEM(peer_neighbor()->mac, rig_peer_mac, 6);
}

static unsigned requested_count, confirmed_count;
static void count_request(void *ctx, const struct harp_addr *next_hop)
{
	CHECK_EQ(next_hop->bytes[15], 2);
	requested_count++;
}
static void count_confirmation(void *ctx, const struct harp_addr *next_hop)
{
	confirmed_count++;
}

TEST(in_external_mode_the_owner_resolves_neighbors)
{
	struct harp_addr addr = ipv4_mapped(peer_ip), unknown = harp_addr_v4(10, 0, 0, 77);
	uint8_t dst[6];

	rig_close(&rig);
	host_open(1500, HARP_NEIGHBOR_EXTERNAL);
	host->options.hooks.neighbor_requested = count_request;
	host->options.hooks.neighbor_confirmed = count_confirmation;
	for (int i = 0; i < 10; i++)
		CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(requested_count, 1);
	wait_ns(100 * MS);
	CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(requested_count, 2);
	uint32_t generation = host->eth.resolved_generation;

	CHECK_EQ(neighbor_set(&host->eth, &addr, rig_peer_mac), 0);
	CHECK_EQ(host->eth.resolved_generation, generation + 1);
	CHECK_EQ(try_send(2), 0);
	for (int i = 0; i < 10; i++)
		neighbor_confirm(&host->eth, peer_neighbor(), rig.now_ns);
	CHECK_EQ(confirmed_count, 1);
	wait_ns(1 * SEC);
	neighbor_confirm(&host->eth, peer_neighbor(), rig.now_ns);
	CHECK_EQ(confirmed_count, 2);
	wait_ns(100 * SEC); /* no aging: the kernel ages entries */
	CHECK_EQ(try_send(2), 0);
	CHECK_EQ(neighbor_set(&host->eth, &addr, NULL), 0);
	CHECK_EQ(try_send(2), -EAGAIN);
	CHECK_EQ(requested_count, 3);
	CHECK_EQ(neighbor_set(&host->eth, &unknown, NULL), -ENOENT);
	CHECK_EQ(neighbor_set(&host->eth, &addr, broadcast_mac), -EINVAL);
	CHECK_EQ(count_requests(dst), 0);
	CHECK_EQ(host->stats.arp_out, 0);
}
