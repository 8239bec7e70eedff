/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_host.c - see fuzz_host.h. */
#include "fuzz_host.h"

#include "base/checksum.h"
#include "base/endian.h"
#include "packet.h"

#define HOST_ETHER 14u
#define HOST_IPV4 20u
#define HOST_IPV6 40u
#define HOST_FRAMES 192u
#define IP_PROTO_ICMP6 58u
#define HOST_EMPTY_POLLS 64u
#define HOST_LATE_POLLS 32u

static const uint8_t host_mac[6] = { 2, 0, 0, 0, 0, 1 }, host_peer_mac[6] = { 2, 0, 0, 0, 0, 2 };

static struct harp_addr host_addr(bool v6, uint8_t last)
{
	struct harp_addr v6_addr = { .bytes = { 0xfd, [15] = last } };

	return v6 ? v6_addr : harp_addr_v4(10, 0, 0, last);
}

uint8_t fuzz_byte(uint32_t seq)
{
	return (uint8_t)(seq * 7 + (seq >> 8));
}

/* ------------------------------------------------------------------------------------------------
 * The card.
 */
static size_t host_receive(void *ctx, void *buf, size_t cap)
{
	struct fuzz_host *host = ctx;
	size_t len;

	if (host->head == host->tail)
		return 0;
	len = host->queue[host->head % FUZZ_HOST_QUEUE].len;
	len = len < cap ? len : cap;
	memcpy(buf, host->queue[host->head % FUZZ_HOST_QUEUE].bytes, len);
	host->head++;
	return len;
}

/* What leaves must be well formed, whatever came in. */
static void host_look_at_tcp(struct fuzz_host *host, const uint8_t *th, size_t len,
			     uint32_t pseudo_sum)
{
	struct fuzz_seen *seen = &host->seen;
	uint32_t header, space;

	FUZZ_CLAIM(len >= 20);
	header = th[12] / 16 * 4u;
	FUZZ_CLAIM(header >= 20 && header <= len);
	FUZZ_CLAIM(csum_finish(csum_partial(th, len, pseudo_sum)) == 0);
	if (be16_load(th + 2) != FUZZ_PEER_PORT)
		return; /* an answer to some other flow of the input */
	space = (uint32_t)len - header + ((th[13] & (TCP_SYN | TCP_FIN)) ? 1u : 0u);
	seen->any = true;
	seen->port = be16_load(th);
	seen->seq = be32_load(th + 4);
	seen->end_seq = seen->seq + space;
	seen->ack = be32_load(th + 8);
	seen->flags = th[13];
	if (header >= 32 && th[20] == 1 && th[21] == 1 && th[22] == 8)
		seen->tsval = be32_load(th + 24);
}

static int host_send(void *ctx, const void *frame, size_t len)
{
	struct fuzz_host *host = ctx;
	const uint8_t *p = (const uint8_t *)frame, *ip = p + HOST_ETHER;
	struct harp_addr src, dst;
	size_t total;

	host->sent_frames++;
	host->sent_bytes += len;
	FUZZ_CLAIM(len >= HOST_ETHER && len <= FUZZ_HOST_FRAME_MAX);
	FUZZ_CLAIM(memcmp(p + 6, host_mac, 6) == 0);
	if (be16_load(p + 12) == ETH_TYPE_IPV4) {
		FUZZ_CLAIM(len >= HOST_ETHER + HOST_IPV4 && ip[0] == 0x45);
		FUZZ_CLAIM(csum_finish(csum_partial(ip, HOST_IPV4, 0)) == 0);
		total = be16_load(ip + 2);
		FUZZ_CLAIM(total >= HOST_IPV4 && total + HOST_ETHER <= len);
		src = harp_addr_v4(ip[12], ip[13], ip[14], ip[15]);
		dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
		if (ip[9] == IP_PROTO_TCP)
			host_look_at_tcp(host, ip + HOST_IPV4, total - HOST_IPV4,
					 ip_pseudo_sum(&src, &dst, IP_PROTO_TCP,
						       (uint32_t)total - HOST_IPV4));
	} else if (be16_load(p + 12) == ETH_TYPE_IPV6) {
		FUZZ_CLAIM(len >= HOST_ETHER + HOST_IPV6 && ip[0] >> 4 == 6);
		total = be16_load(ip + 4);
		FUZZ_CLAIM(total + HOST_IPV6 + HOST_ETHER <= len);
		memcpy(src.bytes, ip + 8, 16);
		memcpy(dst.bytes, ip + 24, 16);
		if (ip[6] == IP_PROTO_TCP)
			host_look_at_tcp(host, ip + HOST_IPV6, total,
					 ip_pseudo_sum(&src, &dst, IP_PROTO_TCP, (uint32_t)total));
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * The stack.
 */
void fuzz_host_open(struct fuzz_host *host, const struct fuzz_host_options *opt)
{
	struct harp_nic_callbacks nic = { .size = sizeof(nic),
					  .ctx = host,
					  .receive = host_receive,
					  .send = host_send,
					  .frame_count = opt->frames ? opt->frames : HOST_FRAMES };
	struct harp_stack_options options = {
		.size = sizeof(options),
		.max_conns = 8,
		.max_listeners = 2,
		.max_neighbors = 8,
		.seed = 1,
		.neighbor_mode = opt->own_neighbors ? HARP_NEIGHBOR_OWN : HARP_NEIGHBOR_EXTERNAL,
	};

	memset(host, 0, offsetof(struct fuzz_host, queue));
	memcpy(nic.mac, host_mac, 6);
	host->v6 = opt->v6;
	host->now_ns = options.now_ns = 10000 * FUZZ_NS_PER_MS;
	FUZZ_CLAIM(harp_nic_callback_create(&host->nic, &nic) == 0);
	FUZZ_CLAIM(harp_stack_create(&host->stack, host->nic, &options) == 0);
	for (int v6 = 0; v6 < 2; v6++) {
		struct harp_addr own = host_addr(v6, 1), peer = host_addr(v6, 2);

		FUZZ_CLAIM(harp_stack_address_add(host->stack, &own, v6 ? 64 : 24) == 0);
		FUZZ_CLAIM(harp_stack_neighbor_set(host->stack, &peer, host_peer_mac) == 0);
	}
}

void fuzz_host_poll(struct fuzz_host *host, uint64_t later_ns)
{
	host->now_ns += later_ns;
	harp_stack_poll(host->stack, host->now_ns);
}

static uint64_t host_stat(const struct fuzz_host *host, const char *name)
{
	uint64_t value = 0;

	FUZZ_CLAIM(harp_stack_stat(host->stack, name, &value) == 0);
	return value;
}

void fuzz_host_close(struct fuzz_host *host)
{
	const struct harp_stack *s = host->stack;

	if (host->conn)
		harp_conn_abort(host->conn);
	if (host->listener)
		harp_listener_close(host->listener);
	for (unsigned i = 0; i < HOST_EMPTY_POLLS && host->head != host->tail; i++)
		fuzz_host_poll(host, FUZZ_NS_PER_MS);
	/* TIME-WAIT, and what the listener had taken before it was closed, end in their own time. */
	fuzz_host_poll(host, 200000 * FUZZ_NS_PER_MS);
	/* Who was away as long counts no silence of the peer's that he did not ask: once for each retransmission. */
	for (unsigned i = 0; i < HOST_LATE_POLLS && (i == 0 || host_stat(host, "tcp_conns") > 0);
	     i++)
		fuzz_host_poll(host, 200000 * FUZZ_NS_PER_MS);
	FUZZ_CLAIM(host_stat(host, "tcp_conns") == 0);
	FUZZ_CLAIM(host_stat(host, "frames_tcp_tx") == 0);
	FUZZ_CLAIM(host_stat(host, "frames_tcp_rx") == 0);
	FUZZ_CLAIM(packets_counted(&s->stats) == s->stats.rx_packets);
	FUZZ_CLAIM(s->pool.free_count + s->io.fill_held + s->io.tx_held == s->pool.frame_count);
	harp_stack_destroy(host->stack);
	harp_nic_destroy(host->nic);
}

bool fuzz_host_put(struct fuzz_host *host, const uint8_t *frame, size_t len)
{
	if (host->tail - host->head == FUZZ_HOST_QUEUE || len == 0 || len > FUZZ_HOST_FRAME_MAX)
		return false;
	host->queue[host->tail % FUZZ_HOST_QUEUE].len = (uint32_t)len;
	memcpy(host->queue[host->tail % FUZZ_HOST_QUEUE].bytes, frame, len);
	host->tail++;
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * What the peer says.
 */
size_t fuzz_host_ip(const struct fuzz_host *host, uint8_t *frame, uint8_t proto, size_t len)
{
	struct harp_addr src = host_addr(host->v6, 2), dst = host_addr(host->v6, 1);
	size_t at =
		packet_headers(frame, host_mac, host_peer_mac, &src, &dst, proto, (uint32_t)len);

	if (host->v6)
		frame[HOST_ETHER + 7] = 255; /* hop limit: neighbor discovery wants it */
	return at;
}

/* The transport checksum of len bytes at th, as IPv4 and IPv6 have them. */
static void repair_transport(uint8_t *th, size_t len, uint8_t proto, uint32_t pseudo_sum, bool v6)
{
	size_t at = proto == IP_PROTO_TCP ? 16 : proto == IP_PROTO_UDP ? 6 : 2;
	uint16_t sum;

	if (proto == IP_PROTO_ICMP)
		pseudo_sum = 0;
	else if (proto != IP_PROTO_TCP && proto != IP_PROTO_UDP && proto != IP_PROTO_ICMP6)
		return;
	if (len < at + 2 || (proto == IP_PROTO_ICMP6 && !v6) || (proto == IP_PROTO_ICMP && v6))
		return;
	memset(th + at, 0, 2);
	sum = csum_finish(csum_partial(th, len, pseudo_sum));
	memcpy(th + at, &sum, 2);
}

void fuzz_repair(uint8_t *frame, size_t len)
{
	uint8_t *ip = frame + HOST_ETHER;
	struct harp_addr src, dst;
	size_t header, total;

	if (len >= HOST_ETHER + HOST_IPV4 && ip[0] >> 4 == 4) {
		header = (ip[0] & 15u) * 4u;
		total = be16_load(ip + 2);
		if (header < HOST_IPV4 || total < header || total + HOST_ETHER > len)
			return;
		packet_ipv4_seal(ip);
		src = harp_addr_v4(ip[12], ip[13], ip[14], ip[15]);
		dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
		total -= header;
		repair_transport(ip + header, total, ip[9],
				 ip_pseudo_sum(&src, &dst, ip[9], (uint32_t)total), false);
	} else if (len >= HOST_ETHER + HOST_IPV6 && ip[0] >> 4 == 6) {
		total = be16_load(ip + 4);
		if (total + HOST_IPV6 + HOST_ETHER > len)
			return;
		memcpy(src.bytes, ip + 8, 16);
		memcpy(dst.bytes, ip + 24, 16);
		repair_transport(ip + HOST_IPV6, total, ip[6],
				 ip_pseudo_sum(&src, &dst, ip[6], (uint32_t)total), true);
	}
}

void fuzz_host_segment(struct fuzz_host *host, const struct fuzz_segment *seg)
{
	uint8_t frame[FUZZ_HOST_FRAME_MAX], *th;
	uint32_t header = TCP_HEADER_BYTES + seg->options_len, len = seg->len;
	size_t at;

	if (len > FUZZ_HOST_FRAME_MAX - HOST_ETHER - HOST_IPV6 - header)
		len = FUZZ_HOST_FRAME_MAX - HOST_ETHER - HOST_IPV6 - header;
	at = fuzz_host_ip(host, frame, IP_PROTO_TCP, header + len);
	if (host->v6)
		frame[HOST_ETHER + 1] = (uint8_t)(seg->tos << 4),
				   frame[HOST_ETHER] |= seg->tos >> 4;
	else
		frame[HOST_ETHER + 1] = seg->tos;
	th = frame + at;
	be16_store(th, seg->src_port);
	be16_store(th + 2, seg->dst_port);
	be32_store(th + 4, seg->seq);
	be32_store(th + 8, seg->ack);
	th[12] = (uint8_t)(header / 4 << 4);
	th[13] = seg->flags;
	be16_store(th + 14, seg->wnd);
	memset(th + 16, 0, 4);
	memcpy(th + 20, seg->options, seg->options_len);
	for (uint32_t i = 0; i < len; i++)
		th[header + i] = fuzz_byte(seg->seq + i);
	fuzz_repair(frame, at + header + len);
	fuzz_host_put(host, frame, at + header + len);
}

/* ------------------------------------------------------------------------------------------------
 * Handshakes.
 */
static uint32_t host_syn_options(uint8_t *at, bool timestamps, uint32_t tsecr)
{
	struct tcp_options opt = { .seen = TCP_OPT_MSS | TCP_OPT_WSCALE | TCP_OPT_SACK_PERMITTED,
				   .mss_bytes = 1440,
				   .wscale = 2,
				   .tsval = 1000,
				   .tsecr = tsecr };

	if (timestamps)
		opt.seen |= TCP_OPT_TIMESTAMP;
	return tcp_options_write_syn(at, &opt);
}

void fuzz_host_connect(struct fuzz_host *host, bool timestamps)
{
	struct harp_endpoint remote = { .addr = host_addr(host->v6, 2), .port = FUZZ_PEER_PORT };
	struct fuzz_segment seg = { .seq = FUZZ_PEER_ISS,
				    .wnd = 60000,
				    .src_port = FUZZ_PEER_PORT,
				    .flags = TCP_SYN | TCP_ACK };
	struct harp_tcp_options opt = { .size = sizeof(opt), .rx_frames = 32, .tx_frames = 32 };

	if (harp_tcp_connect(host->stack, NULL, &remote, &opt, &host->conn) != 0) {
		host->conn = NULL;
		return;
	}
	fuzz_host_poll(host, FUZZ_NS_PER_MS);
	if (!host->seen.any || !(host->seen.flags & TCP_SYN))
		return; /* another connection had the last word */
	seg.ack = host->seen.end_seq;
	seg.dst_port = host->seen.port;
	seg.options_len = host_syn_options(seg.options, timestamps, host->seen.tsval);
	fuzz_host_segment(host, &seg);
	fuzz_host_poll(host, FUZZ_NS_PER_MS);
}

void fuzz_host_listen(struct fuzz_host *host)
{
	struct harp_endpoint at = { .port = FUZZ_HOST_PORT };
	struct harp_tcp_options opt = {
		.size = sizeof(opt), .rx_frames = 16, .tx_frames = 16, .backlog = 3
	};

	FUZZ_CLAIM(harp_tcp_listen(host->stack, &at, &opt, &host->listener) == 0);
}
