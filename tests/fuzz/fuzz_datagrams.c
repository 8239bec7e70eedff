/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_datagrams.c - ICMP, ICMPv6 and UDP with good checksums, among them errors that quote the connection
 * which really is there, with its ports and a sequence number in flight.
 *
 * Input: a byte of choices; then datagrams: kind, length, bytes.
 */
#include "fuzz_host.h"

#include "base/endian.h"

#define IP_PROTO_ICMP6 58u

static struct fuzz_host host;

/* A quote of the connection's newest segment behind the 8 bytes of an ICMP error. */
static size_t datagram_quote(uint8_t *at, struct fuzz_input *in)
{
	uint8_t frame[FUZZ_HOST_FRAME_MAX], swap[16];
	size_t ip_bytes = fuzz_host_ip(&host, frame, IP_PROTO_TCP, 20) - 14;
	uint8_t *ip = frame + 14, *th = ip + ip_bytes;
	size_t addr_bytes = host.v6 ? 16 : 4;
	uint8_t *src = ip + (host.v6 ? 8 : 12), *dst = src + addr_bytes;

	/* It went the other way. */
	memcpy(swap, src, addr_bytes);
	memcpy(src, dst, addr_bytes);
	memcpy(dst, swap, addr_bytes);
	memset(th, 0, 20);
	be16_store(th, host.seen.port);
	be16_store(th + 2, FUZZ_PEER_PORT);
	be32_store(th + 4, host.seen.seq + 0x80 - fuzz_u8(in));
	memcpy(at, ip, ip_bytes + 20);
	return ip_bytes + 20;
}

static void datagram(struct fuzz_input *in)
{
	uint8_t frame[FUZZ_HOST_FRAME_MAX], body[1400];
	uint32_t kind = fuzz_u8(in);
	uint8_t proto = kind & 1 ? IP_PROTO_UDP : host.v6 ? IP_PROTO_ICMP6 : IP_PROTO_ICMP;
	size_t len, at;

	len = fuzz_bytes(in, body, fuzz_u16(in) % sizeof(body));
	if (kind & 2 && len >= 8)
		len = 8 + datagram_quote(body + 8, in);
	if (kind & 4 && proto == IP_PROTO_UDP && len >= 8) {
		be16_store(body + 2, FUZZ_HOST_PORT);
		be16_store(body + 4, (uint16_t)len);
	}
	at = fuzz_host_ip(&host, frame, proto, len);
	memcpy(frame + at, body, len);
	fuzz_repair(frame, at + len);
	if (fuzz_host_put(&host, frame, at + len))
		fuzz_host_poll(&host, kind & 128 ? 50 * FUZZ_NS_PER_MS : 1000);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);
	struct fuzz_host_options opt = { .own_neighbors = choices & 1, .v6 = choices & 2 };
	static uint8_t data[8000];
	struct iovec iov = { data, sizeof(data) };
	struct harp_endpoint at = { .port = FUZZ_HOST_PORT };
	struct harp_udp *sock;

	fuzz_host_open(&host, &opt);
	fuzz_host_connect(&host, true);
	FUZZ_CLAIM(harp_udp_open(host.stack, &at, NULL, &sock) == 0);
	if (host.conn)
		(void)harp_conn_send(host.conn, &iov, 1); /* so that something is in flight */
	fuzz_host_poll(&host, 1000);
	while (in.left > 0) {
		datagram(&in);
		if (choices & 4)
			while (harp_udp_recv(sock, data, sizeof(data), NULL) >= 0)
				;
	}
	harp_udp_close(sock);
	fuzz_host_close(&host);
	return 0;
}
