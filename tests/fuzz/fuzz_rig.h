/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_rig.h - the unit tests' rig (rig.h), with the fuzz input as the peer of the stack. Each
 * packet that the stack sends is checked.
 *
 * The stack has 10.0.0.1 and fd00::1, its peer 10.0.0.2 and fd00::2. Each input gets a new stack
 * with few frames, so that inputs can exhaust them.
 */
#ifndef HARP_TESTS_FUZZ_RIG_H
#define HARP_TESTS_FUZZ_RIG_H

#include "fuzz.h"
#include "rig.h"

#define FUZZ_FRAME_MAX 1518u
#define FUZZ_FRAMES 192u
#define FUZZ_EMPTY_POLLS 64u
#define IP_PROTO_ICMP6 58u

static struct rig rig;

/* The stack's last segment to the peer's port. */
static struct {
	uint32_t seq, end_seq, tsval;
	uint16_t port; /* of the stack */
	uint8_t flags;
	bool is_valid;
} fuzz_last_sent;

static inline bool fuzz_is_v6(void)
{
	return !harp_addr_is_v4(&rig.own);
}

static inline struct harp_addr fuzz_addr(bool v6, uint8_t last)
{
	struct harp_addr v6_addr = { .bytes = { 0xfd, [15] = last } };

	return v6 ? v6_addr : harp_addr_v4(10, 0, 0, last);
}

static inline void fuzz_open(bool v6, uint32_t frames, uint32_t neighbor_mode)
{
	rig_open_bare(&rig, (struct rig_setup){ .max_conns = 8,
						.max_neighbors = 8,
						.frame_count = frames,
						.neighbor_mode = neighbor_mode,
						.raw = true });
	memset(&fuzz_last_sent, 0, sizeof(fuzz_last_sent));
	for (unsigned i = 0; i < 2; i++) {
		rig.own = fuzz_addr(i == v6, 1); /* the input's family last, so that it stays set */
		rig.peer = fuzz_addr(i == v6, 2);
		CHECK_EQ(harp_stack_address_add(rig.stack, &rig.own, fuzz_is_v6() ? 64 : 24), 0);
		CHECK_EQ(harp_stack_neighbor_set(rig.stack, &rig.peer, rig_peer_mac), 0);
	}
}

/* ---- packets that the stack sends ------------------------------------------------------------ */

static inline void fuzz_check_tcp(const uint8_t *th, uint32_t len, uint32_t pseudo_sum)
{
	uint32_t header;

	CHECK(len >= 20);
	header = th[12] / 16 * 4u;
	CHECK(header >= 20 && header <= len);
	CHECK_EQ(csum_finish(csum_partial(th, len, pseudo_sum)), 0);
	if (be16_load(th + 2) != RIG_PEER_PORT)
		return; /* a reply to another flow of the input */
	fuzz_last_sent.is_valid = true;
	fuzz_last_sent.port = be16_load(th);
	fuzz_last_sent.seq = be32_load(th + 4);
	fuzz_last_sent.end_seq =
		fuzz_last_sent.seq + len - header + !!(th[13] & (TCP_SYN | TCP_FIN));
	fuzz_last_sent.flags = th[13];
	if (header >= 32 && th[20] == 1 && th[21] == 1 && th[22] == 8)
		fuzz_last_sent.tsval = be32_load(th + 24);
}

/* Any input must leave each sent packet well formed. */
static inline void fuzz_check_packet(const struct rig_packet *p)
{
	const uint8_t *ip = p->bytes + 14;
	struct harp_addr src, dst;
	uint32_t header, total;

	CHECK(p->len >= 14 && p->len <= FUZZ_FRAME_MAX);
	CHECK_MEM(p->bytes + 6, rig_mac, 6);
	if (be16_load(p->bytes + 12) == ETH_TYPE_IPV4) {
		CHECK(p->len >= 34 && ip[0] == 0x45);
		CHECK_EQ(csum_finish(csum_partial(ip, 20, 0)), 0);
		header = 20;
		total = be16_load(ip + 2);
		src = harp_addr_v4(ip[12], ip[13], ip[14], ip[15]);
		dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
	} else if (be16_load(p->bytes + 12) == ETH_TYPE_IPV6) {
		CHECK(p->len >= 54 && ip[0] >> 4 == 6);
		header = 40;
		total = header + be16_load(ip + 4);
		memcpy(src.bytes, ip + 8, 16);
		memcpy(dst.bytes, ip + 24, 16);
	} else {
		return;
	}
	CHECK(total >= header && total + 14 <= p->len);
	if (ip[header == 20 ? 9 : 6] == IP_PROTO_TCP)
		fuzz_check_tcp(ip + header, total - header,
			       ip_pseudo_sum(&src, &dst, IP_PROTO_TCP, total - header));
}

static inline void fuzz_poll(uint64_t later_ns)
{
	rig.now_ns += later_ns;
	rig_poll(&rig);
	for (; rig.out_head != rig.out_tail; rig.out_head++)
		fuzz_check_packet(&rig.sent[rig.out_head % RIG_QUEUE]);
}

/* Closes everything; the stack must account for each packet and get back each frame. */
static inline void fuzz_close(void)
{
	if (rig.conn)
		harp_conn_abort(rig.conn);
	rig.conn = NULL;
	for (unsigned i = 0; i < FUZZ_EMPTY_POLLS && rig.in_head != rig.in_tail; i++)
		fuzz_poll(RIG_MS);
	CHECK_EQ(packets_counted(&rig.stack->stats), rig.stack->stats.rx_packets);
	rig_close(&rig);
}

/* ---- packets that the stack receives --------------------------------------------------------- */

/* Queues a frame, which arrives with the next poll. */
static inline void fuzz_inject(const uint8_t *frame, size_t len)
{
	struct rig_packet *p = &rig.in[rig.in_tail++ % RIG_QUEUE];

	p->len = (uint32_t)len;
	memcpy(p->bytes, frame, len);
}

/* Writes Ethernet and IP headers for a payload of len bytes. Returns the length of the headers. */
static inline size_t fuzz_write_headers(uint8_t *frame, uint8_t proto, size_t len)
{
	size_t at = packet_headers(frame, rig_mac, rig_peer_mac, &rig.peer, &rig.own, proto,
				   (uint32_t)len);

	if (fuzz_is_v6())
		frame[21] = 255; /* hop limit that neighbor discovery requires */
	return at;
}

/* Corrects the checksums of a frame whose headers are consistent. */
static inline void fuzz_fix_checksums(uint8_t *frame, size_t len)
{
	uint8_t *ip = frame + 14, proto;
	bool v4 = len >= 34 && ip[0] >> 4 == 4;
	struct harp_addr src, dst;
	uint32_t header, total, at;
	uint16_t sum;

	if (!v4 && !(len >= 54 && ip[0] >> 4 == 6))
		return;
	header = v4 ? (ip[0] & 15u) * 4u : 40;
	total = v4 ? be16_load(ip + 2) : 40u + be16_load(ip + 4);
	if (header < 20 || total < header || total + 14 > len)
		return;
	proto = ip[v4 ? 9 : 6];
	if (v4) {
		packet_ipv4_seal(ip);
		src = harp_addr_v4(ip[12], ip[13], ip[14], ip[15]);
		dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
	} else {
		memcpy(src.bytes, ip + 8, 16);
		memcpy(dst.bytes, ip + 24, 16);
	}
	at = proto == IP_PROTO_TCP ? 16 : proto == IP_PROTO_UDP ? 6 : 2;
	total -= header;
	if (total < at + 2)
		return;
	if (proto == IP_PROTO_TCP || proto == IP_PROTO_UDP || (proto == IP_PROTO_ICMP6 && !v4)) {
		packet_seal(ip + header, at, total, &src, &dst, proto);
	} else if (proto == IP_PROTO_ICMP && v4) {
		memset(ip + header + at, 0, 2);
		sum = csum_finish(csum_partial(ip + header, total, 0));
		memcpy(ip + header + at, &sum, 2);
	}
}

/* Connects rig.conn to the peer, unless another connection sent the last segment. */
static inline void fuzz_connect(bool timestamps)
{
	if (rig_connect(&rig, RIG_OPTIONS(.rx_frames = 32, .tx_frames = 32), &rig.conn) != 0) {
		rig.conn = NULL;
		return;
	}
	fuzz_poll(RIG_MS);
	if (!fuzz_last_sent.is_valid || !(fuzz_last_sent.flags & TCP_SYN))
		return;
	rig.port = fuzz_last_sent.port;
	rig.seq = RIG_PEER_ISS;
	rig.ack = fuzz_last_sent.end_seq;
	rig.tsecr = fuzz_last_sent.tsval;
	rig.timestamps = timestamps;
	rig.sack = true;
	rig_put(&rig, rig_syn(&rig, TCP_SYN | TCP_ACK));
	fuzz_poll(RIG_MS);
}

#endif
