/* SPDX-License-Identifier: Apache-2.0 */
/* test_eth.c - what Ethernet lets in, what it counts, and ARP as others see it. */
#include "host.h"

static const uint8_t everyone[6] = { 255, 255, 255, 255, 255, 255 };

static void test_drops(void)
{
	struct host h;
	uint8_t p[100] = { 0 };
	const uint8_t other[6] = { 0x02, 0x48, 0x41, 0x52, 0x50, 0x07 };
	const uint8_t multicast[6] = { 1, 0, 0x5e, 0, 0, 1 };

	host_init(&h, 1500, HARP_NEIGHBOUR_OWN);
	peer_say(&h, p, 13);
	CHECK_EQ(h.stats.drop_eth_short, 1);
	make_eth(p, other, ETH_TYPE_IPV4);
	peer_say(&h, p, 60);
	make_eth(p, multicast, ETH_TYPE_IPV4);
	peer_say(&h, p, 60);
	CHECK_EQ(h.stats.drop_eth_not_ours, 2);
	make_eth(p, everyone, ETH_TYPE_IPV4); /* RFC 1122 3.3.6 */
	peer_say(&h, p, 60);
	CHECK_EQ(h.stats.drop_eth_not_ours, 3);
	make_eth(p, host_mac, ETH_TYPE_VLAN);
	peer_say(&h, p, 60);
	make_eth(p, host_mac, ETH_TYPE_IPV6);
	peer_say(&h, p, 60);
	make_eth(p, host_mac, 60); /* 802.3 length */
	peer_say(&h, p, 60);
	CHECK_EQ(h.stats.drop_eth_type, 3);
	CHECK_EQ(h.eth_verdict, ETH_DROPPED);
	make_eth(p, host_mac, ETH_TYPE_IPV4);
	peer_say(&h, p, 14); /* header only: IP's to refuse */
	CHECK_EQ(h.eth_verdict, ETH_IPV4);
	CHECK_EQ(h.stats.drop_ip_short, 1);
	host_done(&h);
}

static void test_arp_request(void)
{
	struct host h;
	uint8_t p[100], r[HOST_PACKET_MAX];

	host_init(&h, 1500, HARP_NEIGHBOUR_OWN);
	make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
	memset(p + 42, 0xaa, 18); /* link padding */
	peer_say(&h, p, 60);
	CHECK_EQ(peer_receive(&h, r), 42);
	make_arp(p, peer_mac, 2, host_mac, host_ip, peer_ip);
	memcpy(p + 6, host_mac, 6);
	memcpy(p + 32, peer_mac, 6);
	CHECK_MEM(r, p, 42);
	CHECK_EQ(h.stats.arp_in, 1);
	CHECK_EQ(h.stats.arp_out, 1);

	/* Not for us: silence. A probe without an address (RFC 5227): an answer, nothing learned. */
	const uint8_t third[4] = { 10, 0, 0, 3 }, nobody[4] = { 0 };
	uint32_t known = h.eth.neighbour_count;

	make_arp(p, everyone, 1, peer_mac, peer_ip, third);
	peer_say(&h, p, 42);
	CHECK_EQ(peer_receive(&h, r), 0);
	make_arp(p, everyone, 1, peer_mac, nobody, host_ip);
	peer_say(&h, p, 42);
	CHECK_EQ(peer_receive(&h, r), 42);
	CHECK_EQ(h.eth.neighbour_count, known);
	host_done(&h);
}

static void test_arp_malformed(void)
{
	static const struct {
		unsigned at;
		uint8_t value;
		const char *what;
	} bad[] = {
		{ 15, 6, "hardware type" },     { 16, 0x86, "protocol type" },
		{ 18, 8, "hardware length" },   { 19, 16, "protocol length" },
		{ 21, 0, "operation 0" },       { 21, 3, "operation 3" },
		{ 22, 0x03, "group sender" },   { 28, 224, "multicast sender" },
		{ 28, 127, "loopback sender" }, { 28, 255, "broadcast sender" },
	};
	struct host h;
	uint8_t p[100];
	uint64_t drops = 0;

	host_init(&h, 1500, HARP_NEIGHBOUR_OWN);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
		p[bad[i].at] = bad[i].value;
		peer_say(&h, p, 42);
		if (h.stats.drop_arp_bad != ++drops) {
			fprintf(stderr, "not refused: %s\n", bad[i].what);
			CHECK_EQ(h.stats.drop_arp_bad, drops);
		}
	}
	make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
	memset(p + 22, 0, 6); /* no sender at all */
	peer_say(&h, p, 42);
	for (uint32_t len = 14; len < 42; len++) {
		make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
		peer_say(&h, p, len);
	}
	CHECK_EQ(h.stats.drop_arp_bad, drops + 1 + 28);
	CHECK_EQ(h.stats.arp_in, 0);
	CHECK_EQ(h.eth.neighbour_count, 0);
	host_done(&h);
}

static unsigned logged;
static void count_log(void *ctx, enum harp_log_level level, const char *message)
{
	(void)ctx;
	CHECK_EQ(level, HARP_LOG_WARN);
	CHECK(strstr(message, "address") != NULL);
	logged++;
}

static void test_conflict(void)
{
	struct host h;
	uint8_t p[100], r[HOST_PACKET_MAX];

	host_init(&h, 1500, HARP_NEIGHBOUR_OWN);
	h.options.hooks.log = count_log;
	for (int i = 0; i < 5; i++) {
		make_arp(p, everyone, 1, peer_mac, host_ip, host_ip); /* "I am you" */
		peer_say(&h, p, 42);
	}
	CHECK_EQ(h.stats.arp_conflicts, 5);
	CHECK_EQ(logged, 1); /* said once, not per packet */
	CHECK_EQ(peer_receive(&h, r), 0);
	CHECK_EQ(h.eth.neighbour_count, 0);
	host_done(&h);
}

static void test_external_mode_is_silent(void)
{
	struct host h;
	uint8_t p[100], r[HOST_PACKET_MAX];

	host_init(&h, 1500, HARP_NEIGHBOUR_EXTERNAL);
	make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
	peer_say(&h, p, 42);
	CHECK_EQ(h.eth_verdict, ETH_CONSUMED);
	CHECK_EQ(peer_receive(&h, r), 0); /* the kernel answers */
	CHECK_EQ(h.eth.neighbour_count, 0);
	host_done(&h);
}

static void test_no_frame(void)
{
	struct host h;
	uint8_t p[100], r[HOST_PACKET_MAX];
	struct frame *hold[256];
	unsigned n = 0;

	host_init(&h, 1500, HARP_NEIGHBOUR_OWN);
	while ((hold[n] = frame_alloc(&h.pool, 0)) != NULL)
		n++;
	make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
	peer_say(&h, p, 42);
	CHECK_EQ(h.stats.drop_no_frame, 1);
	CHECK_EQ(peer_receive(&h, r), 0);
	while (n > 0)
		frame_release(&h.pool, hold[--n]);
	host_done(&h);
}

int main(void)
{
	test_drops();
	test_arp_request();
	test_arp_malformed();
	test_conflict();
	test_external_mode_is_silent();
	test_no_frame();
	return check_done();
}
