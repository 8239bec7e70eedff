/* SPDX-License-Identifier: Apache-2.0 */
/* test_nd.c - neighbor discovery. tests/packet/test_malformed.py has the malformed messages. */
#include <errno.h>

#include "host.h"

static struct host h;
BEFORE_EACH(host6_init(&h, 1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(host_done(&h))

#define AT HOST6_PAYLOAD
#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

#define NS 135
#define NA 136
#define ROUTER 0x80
#define SOLICITED 0x40
#define OVERRIDE 0x20

static const uint8_t evil_mac[6] = { 0x02, 0x66, 0x66, 0x66, 0x66, 0x66 };
static const uint8_t all_nodes_mac[6] = { 0x33, 0x33, 0, 0, 0, 1 };
static const uint8_t our_group_mac[6] = { 0x33, 0x33, 0xff, 0, 0, 1 };
static const uint8_t peer_group_mac[6] = { 0x33, 0x33, 0xff, 0, 0, 2 };
static const struct harp_addr unspecified;

/* A message about target; option 0: none. Sealed. */
static uint32_t make_nd(uint8_t *p, uint8_t type, uint8_t flags, const struct harp_addr *target,
			uint8_t option, const uint8_t *mac)
{
	uint32_t len = option ? 32 : 24;

	make_ipv6(p, IP_PROTO_ICMP6, len);
	header6(p)->hop_limit = 255;
	memset(p + AT, 0, 32);
	p[AT] = type;
	p[AT + 4] = flags;
	memcpy(p + AT + 8, target, 16);
	if (option) {
		p[AT + 24] = option;
		p[AT + 25] = 1;
		memcpy(p + AT + 26, mac, 6);
	}
	icmp6_seal(p, AT, len);
	return AT + len;
}

static void says_from(const struct harp_addr *src, uint8_t type, uint8_t flags,
		      const struct harp_addr *target, const uint8_t *mac)
{
	uint8_t p[100];
	uint32_t len = make_nd(p, type, flags, target, mac ? (type == NS ? 1 : 2) : 0, mac);

	header6(p)->src = *src;
	icmp6_seal(p, AT, len - AT);
	peer_say(&h, p, len);
}

static void says(uint8_t type, uint8_t flags, const struct harp_addr *target, const uint8_t *mac)
{
	says_from(&peer_ip6, type, flags, target, mac);
}

static void wait_ns(uint64_t ns)
{
	h.now_ns += ns + WHEEL_TICK_NS;
	host_poll(&h);
}

static int try_send(void)
{
	struct ip_path path = { .dst = peer_ip6 };
	struct frame *f = frame_alloc(&h.pool, 0);
	int err;

	f->pub.len = 8;
	memset(f->pub.data, 0, 8);
	struct packet_out out = { .frame = f, .head = f->pub.data, .len = 8 };

	err = ip_output(&h.ip, &path, 253, 0, &out);
	frame_release(&h.pool, f);
	return err;
}

static struct neighbor *peer_record(void)
{
	return neighbor_get(&h.eth, &peer_ip6);
}

/* The next message that the host sent; 0 when it sent nothing of the kind. */
static bool sent(uint8_t *r, uint8_t type)
{
	uint32_t len;

	while ((len = peer_receive(&h, r)) > 0) {
		if (be16_load(r + 12) != ETH_TYPE_IPV6 || header6(r)->next != IP_PROTO_ICMP6 ||
		    r[AT] != type)
			continue;
		CHECK_EQ(len, AT + 32);
		CHECK_EQ(header6(r)->hop_limit, 255);
		CHECK(icmp6_good(r, 32));
		CHECK_MEM(r + 6, host_mac, 6);
		CHECK_EQ(r[AT + 1], 0);
		CHECK_EQ(r[AT + 24], type == NS ? 1 : 2);
		CHECK_EQ(r[AT + 25], 1);
		CHECK_MEM(r + AT + 26, host_mac, 6);
		return true;
	}
	return false;
}

TEST(one_solicitation_resolves_a_neighbor)
{
	struct harp_addr group = host_addr("ff02::1:ff00:2");
	uint8_t r[HOST_PACKET_MAX];

	for (int i = 0; i < 10; i++) /* many packets, one question */
		CHECK_EQ(try_send(), -EAGAIN);
	host_poll(&h);
	CHECK(sent(r, NS));
	CHECK_MEM(r, peer_group_mac, 6);
	CHECK_MEM(&header6(r)->src, &host_ip6, 16);
	CHECK_MEM(&header6(r)->dst, &group, 16);
	CHECK_MEM(r + AT + 8, &peer_ip6, 16);
	CHECK(!sent(r, NS));
	says(NA, SOLICITED | OVERRIDE, &peer_ip6, NULL); /* without an address it says nothing */
	CHECK_EQ(peer_record()->state, NEIGHBOR_INCOMPLETE);
	says(NA, SOLICITED | OVERRIDE, &peer_ip6, peer_mac);
	CHECK_EQ(peer_record()->state, NEIGHBOR_REACHABLE);
	CHECK_EQ(try_send(), 0);
	host_poll(&h);
	CHECK_EQ(peer_receive(&h, r), AT + 8);
	CHECK_MEM(r, peer_mac, 6);
	CHECK_EQ(h.stats.nd_in, 2);
	CHECK_EQ(h.stats.nd_out, 1);
}

TEST(three_unanswered_solicitations_fail)
{
	uint8_t r[HOST_PACKET_MAX];
	unsigned n = 0;

	CHECK_EQ(try_send(), -EAGAIN);
	for (int i = 0; i < 6; i++)
		wait_ns(100 * MS);
	while (sent(r, NS))
		n++;
	CHECK_EQ(n, 3);
	CHECK_EQ(peer_record()->state, NEIGHBOR_FAILED);
}

static void check_advertisement(const uint8_t *r, const uint8_t *mac, const struct harp_addr *dst,
				uint8_t flags)
{
	const struct ipv6_header *ip = (const struct ipv6_header *)(r + 14);

	CHECK_MEM(r, mac, 6);
	CHECK_MEM(&ip->src, &host_ip6, 16);
	CHECK_MEM(&ip->dst, dst, 16);
	CHECK_EQ(r[AT + 4], flags);
	CHECK_MEM(r + AT + 8, &host_ip6, 16);
}

TEST(solicitations_for_us_are_answered)
{
	uint8_t p[100], r[HOST_PACKET_MAX];
	struct harp_addr third = host_addr("fd00::3"), all_nodes = host_addr("ff02::1");
	uint32_t known, len;

	make_nd(p, NS, 0, &host_ip6, 1, peer_mac); /* as the first question comes: to the group */
	memcpy(p, our_group_mac, 6);
	header6(p)->dst = host_addr("ff02::1:ff00:1");
	icmp6_seal(p, AT, 32);
	memset(p + AT + 32, 0xaa, 10); /* link padding */
	peer_say(&h, p, AT + 42);
	CHECK(sent(r, NA));
	check_advertisement(r, peer_mac, &peer_ip6, SOLICITED | OVERRIDE);
	CHECK_EQ(peer_record()->state, NEIGHBOR_STALE); /* a peer about to send */
	CHECK_MEM(peer_record()->mac, peer_mac, 6);

	says(NS, 0, &host_ip6, NULL); /* a probe without its address: we know it */
	CHECK(sent(r, NA));
	check_advertisement(r, peer_mac, &peer_ip6, SOLICITED | OVERRIDE);

	known = h.eth.neighbor_count;
	says(NS, 0, &third, peer_mac);               /* not for us */
	len = make_nd(p, NS, 0, &host_ip6, 0, NULL); /* RFC 4862 5.4.3: about to take our address */
	memcpy(p, our_group_mac, 6);
	header6(p)->src = unspecified;
	header6(p)->dst = host_addr("ff02::1:ff00:1");
	icmp6_seal(p, AT, 24);
	CHECK(!sent(r, NA));
	peer_say(&h, p, len);
	CHECK(sent(r, NA));
	check_advertisement(r, all_nodes_mac, &all_nodes, OVERRIDE);
	CHECK_EQ(h.eth.neighbor_count, known);
	CHECK_EQ(h.stats.drop_nd_bad, 0);
}

/* The rules of neigh.c, as advertisements see them. */
TEST(an_advertisement_does_not_replace_a_reachable_neighbor)
{
	uint8_t r[HOST_PACKET_MAX];

	says(NA, OVERRIDE, &peer_ip6, evil_mac); /* unsolicited: ignored */
	CHECK_EQ(h.eth.neighbor_count, 0);
	CHECK_EQ(try_send(), -EAGAIN);
	says(NA, SOLICITED | OVERRIDE, &peer_ip6, peer_mac);
	CHECK_EQ(peer_record()->state, NEIGHBOR_REACHABLE);
	while (peer_receive(&h, r) > 0)
		;
	says(NA, OVERRIDE, &peer_ip6, evil_mac); /* the old owner is asked, by unicast */
	CHECK_EQ(h.stats.drop_arp_claim, 1);
	CHECK_MEM(peer_record()->mac, peer_mac, 6);
	CHECK(sent(r, NS));
	CHECK_MEM(r, peer_mac, 6);
	CHECK_MEM(&header6(r)->dst, &peer_ip6, 16);
	says(NA, SOLICITED | OVERRIDE, &peer_ip6, evil_mac); /* loud as well as false */
	CHECK_MEM(peer_record()->mac, peer_mac, 6);
	says(NA, SOLICITED, &peer_ip6, NULL); /* the owner, and it need not say where */
	CHECK_EQ(peer_record()->state, NEIGHBOR_REACHABLE);
	CHECK_MEM(peer_record()->mac, peer_mac, 6);

	h.now_ns += 40 * SEC;
	CHECK_EQ(host_poll(&h), 0);
	CHECK_EQ(try_send(), 0);
	CHECK_EQ(peer_record()->state, NEIGHBOR_STALE);
	says(NA, 0, &peer_ip6, evil_mac); /* a proxy's: may not override */
	CHECK_MEM(peer_record()->mac, peer_mac, 6);
	says(NA, OVERRIDE, &peer_ip6, evil_mac); /* a move to another NIC */
	CHECK_MEM(peer_record()->mac, evil_mac, 6);
	CHECK_EQ(peer_record()->state, NEIGHBOR_STALE);
}

/* A stale neighbor in use is probed by unicast, then looked for by its group. */
TEST(a_stale_neighbor_is_probed_by_unicast_then_multicast)
{
	uint8_t r[HOST_PACKET_MAX];
	unsigned unicast = 0, group = 0;

	CHECK_EQ(neighbor_set(&h.eth, &peer_ip6, peer_mac), 0);
	h.now_ns += 31 * SEC;
	host_poll(&h);
	CHECK_EQ(try_send(), 0);
	wait_ns(5 * SEC);
	for (int i = 0; i < 8; i++)
		wait_ns(100 * MS);
	while (sent(r, NS)) {
		unicast += memcmp(r, peer_mac, 6) == 0;
		group += memcmp(r, peer_group_mac, 6) == 0;
	}
	CHECK_EQ(unicast, 3);
	CHECK_EQ(group, 3);
	CHECK_EQ(peer_record()->state, NEIGHBOR_FAILED);
}

TEST(address_conflicts_are_counted)
{
	uint8_t r[HOST_PACKET_MAX];

	says(NA, OVERRIDE, &host_ip6, evil_mac);
	CHECK_EQ(h.stats.arp_conflicts, 1);
	/* RFC 4861 section 7.2.4: its source is the very address, as an owner's is. */
	says_from(&host_ip6, NA, OVERRIDE, &host_ip6, evil_mac);
	says_from(&host_ip6, NA, SOLICITED, &host_ip6, NULL);
	says_from(&host_ip6, NS, 0, &host_ip6, evil_mac);
	CHECK_EQ(h.stats.arp_conflicts, 4);
	/* Our own, come back by a loop. */
	says_from(&host_ip6, NA, OVERRIDE, &host_ip6, host_mac);
	says_from(&host_ip6, NS, 0, &peer_ip6, host_mac);
	CHECK_EQ(h.stats.arp_conflicts, 4);
	CHECK_EQ(h.eth.neighbor_count, 0);
	CHECK_EQ(peer_receive(&h, r), 0);
}

/* RFC 6583: packets from made-up neighbors cause solicitations; a real neighbor is still found. */
TEST(made_up_neighbors_do_not_exhaust_the_table)
{
	uint8_t p[100], r[HOST_PACKET_MAX];

	for (unsigned i = 0; i < 2000; i++) {
		uint32_t len = make_ipv6(p, IP_PROTO_ICMP6, 8);

		memset(p + AT, 0, 8);
		p[AT] = 128;
		be16_store(header6(p)->src.bytes + 12, (uint16_t)(i + 1));
		icmp6_seal(p, AT, 8);
		h.now_ns += 100000;
		peer_say(&h, p, len);
		while (peer_receive(&h, r) > 0)
			;
		if (i == 1000)
			CHECK_EQ(try_send(), -EAGAIN);
		if (i == 1005) /* half a millisecond later */
			says(NA, SOLICITED | OVERRIDE, &peer_ip6, peer_mac);
	}
	CHECK_EQ(h.stats.neighbor_full, 0);
	CHECK_EQ(h.eth.neighbor_count, h.eth.neighbor_max);
	CHECK_EQ(try_send(), 0);
	CHECK_EQ(peer_record()->state, NEIGHBOR_REACHABLE);
}

/* Routers, redirects: the owner's business. And in external mode everything is the kernel's. */
TEST(router_messages_and_redirects_are_ignored)
{
	static const uint8_t types[] = { 133, 134, 137 };
	uint8_t r[HOST_PACKET_MAX];
	unsigned routes;

	routes = h.ip.route_count;
	for (unsigned i = 0; i < sizeof(types); i++)
		says(types[i], ROUTER, &peer_ip6, evil_mac);
	CHECK_EQ(h.stats.nd_ignored, 3);
	CHECK_EQ(h.eth.neighbor_count, 0);
	CHECK_EQ(h.ip.route_count, routes);
	host_done(&h);

	host6_init(&h, 1500, HARP_NEIGHBOR_EXTERNAL);
	says(NS, 0, &host_ip6, peer_mac);
	says(NA, SOLICITED | OVERRIDE, &peer_ip6, peer_mac);
	CHECK_EQ(h.stats.nd_in, 2);
	CHECK_EQ(h.stats.nd_out, 0);
	CHECK_EQ(h.eth.neighbor_count, 0);
	CHECK_EQ(peer_receive(&h, r), 0);
}
