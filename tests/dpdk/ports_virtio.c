/* SPDX-License-Identifier: Apache-2.0 */
/* ports_virtio.c - virtio's driver leaves offloads to its back end, which is this test. */
#include <errno.h>
#include <rte_ethdev.h>
#include <rte_ip.h>
#include <rte_tcp.h>
#include <sched.h>
#include <unistd.h>

#include "ports.h"

#define PAYLOAD_MAX 9000u
#define PIECE 1400u

/* A packet that HARP sends. */
struct gso {
	bool v6;
	uint32_t flags; /* HARP_DESC_TX_* and the segment size */
	uint32_t header_bytes, payload_bytes;
};

static char folder[64], back_end[128], card[128];
static uint16_t back_id;

/* ---- back end -------------------------------------------------------------------------------- */

static bool back_open(void)
{
	const struct harp_dpdk_eal_options opt = { .size = sizeof(opt), .huge_pages = 1 };
	/* Without these offloads, net_vhost would compute checksums. */
	const struct rte_eth_conf conf = {
		.rxmode.offloads = RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM,
	};
	struct rte_mempool *pool;

	snprintf(folder, sizeof(folder), "/tmp/harp-dpdk-XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	snprintf(back_end, sizeof(back_end), "net_vhost0,iface=%s/v.sock,tso=1", folder);
	snprintf(card, sizeof(card), "net_virtio_user0,path=%s/v.sock,queue_size=1024", folder);
	CHECK_EQ(api->start(&opt, why, sizeof(why)), 0);
	CHECK_EQ(rte_dev_probe(back_end), 0);
	CHECK_EQ(rte_eth_dev_get_port_by_name("net_vhost0", &back_id), 0);
	pool = rte_pktmbuf_pool_create("back", 1023, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
				       SOCKET_ID_ANY);
	return pool && rte_eth_dev_configure(back_id, 1, 1, &conf) == 0 &&
	       rte_eth_rx_queue_setup(back_id, 0, 512, 0, NULL, pool) == 0 &&
	       rte_eth_tx_queue_setup(back_id, 0, 512, 0, NULL) == 0 &&
	       rte_eth_dev_start(back_id) == 0;
}

static void back_close(void)
{
	rte_eth_dev_stop(back_id);
	rte_eth_dev_close(back_id);
	CHECK_EQ(rmdir(folder), 0);
}

static struct rte_mbuf *back_receive(void)
{
	uint64_t until_ns = test_now_ns() + 60000000000u;
	struct rte_mbuf *packet = NULL;

	while (rte_eth_rx_burst(back_id, 0, &packet, 1) == 0 && test_now_ns() < until_ns)
		sched_yield();
	return packet;
}

/* ---- GSO packets ----------------------------------------------------------------------------- */

static uint8_t gso_byte(uint32_t offset)
{
	return (uint8_t)(offset * 7 + offset / 251);
}

static void gso_write_headers(uint8_t *packet, const struct gso *gso)
{
	const uint32_t tcp_offset = 14 + (gso->v6 ? 40 : 20);
	const uint16_t bytes = (uint16_t)(gso->header_bytes - 14 + gso->payload_bytes);
	struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(packet + tcp_offset);

	memset(packet, 0, gso->header_bytes);
	memset(packet, 2, 12);
	packet[12] = gso->v6 ? 0x86 : 0x08;
	packet[13] = gso->v6 ? 0xdd : 0x00;
	if (gso->v6) {
		*(struct rte_ipv6_hdr *)(packet + 14) = (struct rte_ipv6_hdr){
			.vtc_flow = RTE_BE32(0x60000000),
			.payload_len = rte_cpu_to_be_16((uint16_t)(bytes - 40)),
			.proto = IPPROTO_TCP,
			.hop_limits = 64,
			.src_addr[0] = 0xfd,
			.dst_addr[0] = 0xfd,
			.dst_addr[15] = 1,
		};
	} else {
		struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(packet + 14);

		*ip = (struct rte_ipv4_hdr){
			.version_ihl = 0x45,
			.total_length = rte_cpu_to_be_16(bytes),
			.time_to_live = 64,
			.next_proto_id = IPPROTO_TCP,
			.src_addr = RTE_BE32(0x0a090001),
			.dst_addr = RTE_BE32(0x0a090002),
		};
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	tcp->data_off = 0x50;
	tcp->sent_seq = RTE_BE32(0x12345678);
	tcp->tcp_flags = RTE_TCP_ACK_FLAG;
}

/* Sends the payload in frames of PIECE bytes; the first one begins with the headers. */
static void gso_send(struct end *end, struct gso *gso)
{
	struct harp_desc descs[16];
	uint32_t at = 0, n = 0;

	gso->header_bytes = 14 + (gso->v6 ? 40 : 20) + 20;
	do {
		uint64_t addr = end->free[--end->free_count] + END_DATA_AT;
		uint8_t *to = end->nic->caps.frame_base + addr;
		uint32_t left = gso->payload_bytes - at, len = left < PIECE ? left : PIECE;

		descs[n] = (struct harp_desc){ .addr = addr, .len = len, .flags = HARP_DESC_MORE };
		if (n == 0) {
			gso_write_headers(to, gso);
			descs[0].len += gso->header_bytes;
			descs[0].flags |= gso->flags;
			to += gso->header_bytes;
		}
		for (uint32_t i = 0; i < len; i++)
			to[i] = gso_byte(at + i);
		at += len;
		n++;
	} while (at < gso->payload_bytes);
	descs[n - 1].flags &= ~HARP_DESC_MORE;
	CHECK_EQ(end->nic->ops->tx(end->nic, descs, n, 1), n);
	end->sent += n;
}

/* The back end receives unchanged headers, the pseudo-header's checksum, and the segment size. */
static void gso_check(const struct rte_mbuf *packet, const struct gso *gso)
{
	const bool is_tso = gso->flags & HARP_DESC_TX_TSO;
	const uint32_t mss = gso->flags >> HARP_DESC_MSS_SHIFT;
	uint8_t copy[PAYLOAD_MAX + 100];
	const uint8_t *bytes = rte_pktmbuf_read(packet, 0, packet->pkt_len, copy);
	uint32_t errors = 0;

	CHECK_EQ(packet->pkt_len, gso->header_bytes + gso->payload_bytes);
	CHECK_EQ(packet->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK, RTE_MBUF_F_RX_L4_CKSUM_NONE);
	CHECK_EQ((packet->ol_flags & RTE_MBUF_F_RX_LRO) != 0, is_tso);
	if (is_tso)
		CHECK_EQ(packet->tso_segsz, mss);
	const struct rte_tcp_hdr *tcp =
		(const struct rte_tcp_hdr *)(bytes + gso->header_bytes - sizeof(*tcp));

	if (gso->v6) {
		const struct rte_ipv6_hdr *ip = (const struct rte_ipv6_hdr *)(bytes + 14);

		CHECK_EQ(tcp->cksum, rte_ipv6_phdr_cksum(ip, 0));
	} else {
		const struct rte_ipv4_hdr *ip = (const struct rte_ipv4_hdr *)(bytes + 14);

		CHECK_EQ(rte_raw_cksum(ip, sizeof(*ip)), 0xffff);
		CHECK_EQ(tcp->cksum, rte_ipv4_phdr_cksum(ip, 0));
	}
	CHECK_EQ(tcp->sent_seq, RTE_BE32(0x12345678));
	CHECK_EQ(tcp->data_off, 0x50);
	for (uint32_t i = 0; i < gso->payload_bytes; i++)
		errors += bytes[gso->header_bytes + i] != gso_byte(i);
	CHECK_EQ(errors, 0);
}

TEST(virtio_leaves_offloads_to_its_back_end)
{
	struct gso gso_packets[] = {
		{ .payload_bytes = 1400, .flags = HARP_DESC_TX_CSUM },
		{ .payload_bytes = 1, .flags = HARP_DESC_TX_CSUM },
		{ .payload_bytes = 9000,
		  .flags = HARP_DESC_TX_CSUM | HARP_DESC_TX_TSO | 1448u << HARP_DESC_MSS_SHIFT },
		{ .payload_bytes = 2001,
		  .flags = HARP_DESC_TX_CSUM | HARP_DESC_TX_TSO | 1000u << HARP_DESC_MSS_SHIFT },
	};
	const uint32_t features =
		HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO | HARP_NIC_TX_MULTI | HARP_NIC_TX_LAZY;
	struct harp_nic_stats stats;
	struct end end;

	CHECK(back_open());
	end_open(&end, card, 0);
	CHECK_EQ(end.nic->caps.features & features, features);
	CHECK(end_wait_up(&end, true));
	for (unsigned i = 0; i < 200; i++) {
		struct gso gso = gso_packets[i % 4];
		struct rte_mbuf *packet;

		gso.v6 = i & 4;
		end_complete(&end);
		gso_send(&end, &gso);
		packet = back_receive();
		CHECK(packet != NULL);
		if (!packet)
			break;
		gso_check(packet, &gso);
		rte_pktmbuf_free(packet);
	}
	end.nic->ops->stats(end.nic, &stats);
	CHECK_EQ(stats.tx_invalid, 0);
	end_close(&end);
	back_close();
}
