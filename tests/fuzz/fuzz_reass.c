/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_reass.c - reassembly against a model: segments anywhere in the window, overlapping at will, and
 * an application that reads when it likes. The stack may drop what it has no frames for; it may never
 * deliver what was not sent, nor out of order, nor twice.
 *
 * Input: a byte of choices; then steps: offset (two bytes), length (one byte, in units), or a read.
 */
#include "fuzz_host.h"

#define SPAN_BYTES 65536u /* of the stream; offsets lie in it */

static struct fuzz_host host;
static uint8_t said[SPAN_BYTES + 2048]; /* by the peer, at least once */
static uint32_t base_seq, read_bytes;

static void reass_read(size_t len)
{
	static uint8_t bytes[65536];
	ssize_t n = harp_conn_recv(host.conn, bytes, len);

	for (ssize_t i = 0; i < n; i++) {
		FUZZ_CLAIM(read_bytes < sizeof(said) && said[read_bytes]);
		FUZZ_CLAIM(bytes[i] == fuzz_byte(base_seq + read_bytes));
		read_bytes++;
	}
}

static void reass_say(struct fuzz_input *in, uint32_t unit)
{
	uint32_t offset = fuzz_u16(in);
	struct fuzz_segment seg = { .seq = base_seq + offset,
				    .ack = host.seen.end_seq,
				    .wnd = 60000,
				    .src_port = FUZZ_PEER_PORT,
				    .dst_port = host.seen.port,
				    .flags = TCP_ACK };

	seg.len = fuzz_u8(in) * unit;
	if (seg.len > 1400)
		seg.len = 1400;
	tcp_options_write_timestamp(seg.options, (uint32_t)(host.now_ns / FUZZ_NS_PER_MS),
				    host.seen.tsval);
	seg.options_len = TCP_OPTIONS_TIMESTAMP_BYTES;
	memset(said + offset, 1, seg.len);
	fuzz_host_segment(&host, &seg);
	fuzz_host_poll(&host, 1000);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in), unit = 1u << (choices >> 5);
	struct fuzz_host_options opt = { .v6 = choices & 2, .frames = choices & 4 ? 64 : 0 };
	struct harp_tcp_info info = { 0 };

	memset(said, 0, sizeof(said));
	read_bytes = 0;
	base_seq = FUZZ_PEER_ISS + 1;
	fuzz_host_open(&host, &opt);
	fuzz_host_connect(&host, true);
	while (in.left > 0) {
		reass_say(&in, unit);
		if (choices & 8 && fuzz_u8(&in) & 1)
			reass_read(fuzz_u16(&in));
		FUZZ_CLAIM(harp_conn_info(host.conn, &info, sizeof(info)) == 0);
		FUZZ_CLAIM(info.rx_frames_held <= info.rx_frames_budget);
	}
	reass_read(SPAN_BYTES);
	fuzz_host_poll(&host, FUZZ_NS_PER_MS); /* a held ACK leaves */
	fuzz_host_poll(&host, FUZZ_NS_PER_MS);
	/* What was acknowledged is what can be read. */
	FUZZ_CLAIM(read_bytes == host.seen.ack - base_seq || host.conn->error);
	fuzz_host_close(&host);
	return 0;
}
