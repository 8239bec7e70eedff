/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_frames.c - arbitrary frames to a stack with a listener, a UDP socket and a connection:
 * Ethernet, ARP, neighbor discovery, IP, ICMP, UDP, TCP, and ICMP errors that quote the
 * connection's newest segment.
 *
 * Input: a byte of options (1: the stack resolves neighbors itself, 2: IPv6, 4: it has a
 * connection, 8: the application reads its datagrams), then frames, each after a 16-bit length.
 * Upper bits of the length: 0x8000: the checksums are corrected. 0x4000: time passes. 0x2000: the
 * bytes are the body of an ICMP message; with 0x1000, of a datagram to the UDP socket; with 0x0800,
 * of an ICMP error, whose quote replaces all but the first 8 bytes.
 */
#include "fuzz_rig.h"

/* Writes the connection's newest segment, as an ICMP error quotes it. Returns its length. */
static size_t quote_segment(uint8_t *at, uint8_t seq_offset)
{
	uint8_t frame[FUZZ_FRAME_MAX], swap[16];
	size_t ip_bytes = fuzz_write_headers(frame, IP_PROTO_TCP, 20) - 14;
	uint8_t *ip = frame + 14, *th = ip + ip_bytes;
	size_t addr_bytes = fuzz_is_v6() ? 16 : 4;
	uint8_t *src = ip + (fuzz_is_v6() ? 8 : 12), *dst = src + addr_bytes;

	/* The stack sent the segment, so swap the addresses. */
	memcpy(swap, src, addr_bytes);
	memcpy(src, dst, addr_bytes);
	memcpy(dst, swap, addr_bytes);
	memset(th, 0, 20);
	be16_store(th, fuzz_last_sent.port);
	be16_store(th + 2, RIG_PEER_PORT);
	be32_store(th + 4, fuzz_last_sent.seq + 0x80 - seq_offset);
	memcpy(at, ip, ip_bytes + 20);
	return ip_bytes + 20;
}

/* Wraps the body in the frame in headers. Returns the length of the frame. */
static size_t wrap_body(uint8_t frame[FUZZ_FRAME_MAX], size_t len, uint32_t word)
{
	uint8_t body[FUZZ_FRAME_MAX];
	uint8_t proto = word & 0x1000  ? IP_PROTO_UDP
			: fuzz_is_v6() ? IP_PROTO_ICMP6
				       : IP_PROTO_ICMP;
	size_t at;

	len = len < 1400 ? len : 1400;
	memcpy(body, frame, len);
	if (word & 0x0800 && len >= 8)
		len = 8 + quote_segment(body + 8, body[len - 1]);
	if (proto == IP_PROTO_UDP && len >= 8) {
		be16_store(body + 2, RIG_PORT);
		be16_store(body + 4, (uint16_t)len);
	}
	at = fuzz_write_headers(frame, proto, len);
	memcpy(frame + at, body, len);
	return at + len;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);
	static uint8_t data[8000];
	struct iovec iov = { data, sizeof(data) };
	struct harp_endpoint at = { .port = RIG_PORT };
	struct harp_udp *sock;

	fuzz_open(choices & 2, FUZZ_FRAMES,
		  choices & 1 ? HARP_NEIGHBOR_OWN : HARP_NEIGHBOR_EXTERNAL);
	rig_listen_options(&rig, RIG_OPTIONS(.rx_frames = 16, .tx_frames = 16, .backlog = 3));
	CHECK(harp_udp_open(rig.stack, &at, NULL, &sock) == 0);
	if (choices & 4)
		fuzz_connect(true);
	if (rig.conn) /* data in flight, which an ICMP error can quote */
		(void)harp_conn_send(rig.conn, &iov, 1);
	fuzz_poll(1000);
	while (in.left > 0) {
		uint8_t frame[FUZZ_FRAME_MAX];
		uint32_t word = fuzz_u16(&in);
		size_t frame_len = fuzz_bytes(&in, frame, (word & 0x7ff) % (FUZZ_FRAME_MAX + 1));

		if (word & 0x2000)
			frame_len = wrap_body(frame, frame_len, word);
		if (word & 0xa000)
			fuzz_fix_checksums(frame, frame_len);
		if (frame_len > 0) {
			fuzz_inject(frame, frame_len);
			fuzz_poll(word & 0x4000 ? 50 * RIG_MS : 1000);
		}
		while (choices & 8 && harp_udp_recv(sock, data, sizeof(data), NULL) >= 0)
			;
	}
	harp_udp_close(sock);
	fuzz_close();
	return 0;
}
