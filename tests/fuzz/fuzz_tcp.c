/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tcp.c - a peer that knows the connection and violates the protocol, and an application that
 * makes arbitrary calls. The peer sends any flags and options, sequence numbers near the edges of
 * the window, and acknowledgments near the data in flight. The application must read the peer's
 * bytes in order, each once.
 *
 * Input: a byte of options; then steps, each an operation byte and its arguments.
 */
#include "fuzz_rig.h"

enum step {
	STEP_SEGMENT, /* flags, offsets of seq and ack, length, window, options */
	STEP_DATA,    /* the next bytes in order, acknowledging everything */
	STEP_TIME,
	STEP_SEND,
	STEP_RECV,
	STEP_SHUTDOWN,
	STEP_CLOSE,
	STEP_ABORT,
	STEP_CONNECT,
	STEP_SACK, /* blocks near the data in flight */
	STEPS,
	/* Operation bytes from STEP_RARE_MIN on, so that older corpus files keep their meaning. */
	STEP_OPTIONS = STEPS, /* arbitrary bytes of struct harp_tcp_options */
	STEP_SHUT_READ,
	STEP_RARE_MIN = 240,
};

#define FUZZ_TIMEOUT_NS_MAX (120 * RIG_S + 1)

static uint32_t peer_seq;  /* the peer's SND.NXT */
static uint32_t read_seq;  /* next byte that the application reads */
static uint32_t sent_edge; /* the peer sent no byte at or behind it */
static bool is_comparing;  /* all bytes of this connection are known */

/* Records that the peer sent bytes up to end_seq, unless they are far from the window. */
static void record_sent(uint32_t end_seq)
{
	if (end_seq - read_seq < 1u << 24 && (int32_t)(end_seq - sent_edge) > 0)
		sent_edge = end_seq;
}

static void segment_add_timestamp(struct rig_say *seg, uint32_t age)
{
	tcp_options_write_timestamp(seg->options, (uint32_t)(rig.now_ns / RIG_MS),
				    fuzz_last_sent.tsval - age);
	seg->options_len = TCP_OPTIONS_TIMESTAMP_BYTES;
}

static struct rig_say segment_default(uint8_t flags, uint32_t len)
{
	return (struct rig_say){ .seq = peer_seq,
				 .ack = fuzz_last_sent.end_seq,
				 .wnd = RIG_PEER_WND,
				 .peer_port = RIG_PEER_PORT,
				 .flags = flags,
				 .raw_options = true,
				 .len = len };
}

/* Delivers the segment to the port, cut to the size of a packet. */
static void segment_deliver(struct rig_say seg, uint16_t port)
{
	uint32_t len_max = FUZZ_FRAME_MAX - 14 - 40 - 20 - seg.options_len;

	seg.len = seg.len < len_max ? seg.len : len_max;
	rig.port = port;
	rig_put(&rig, seg);
	fuzz_poll(1000);
}

/* A small offset, in either direction. */
static uint32_t fuzz_offset(struct fuzz_input *in)
{
	return fuzz_u16(in) - 0x8000u;
}

static void step_segment(struct fuzz_input *in)
{
	struct rig_say seg = segment_default((uint8_t)fuzz_u8(in), 0);
	uint32_t bits = fuzz_u8(in);

	/* Offsets are small and signed, or arbitrary. */
	seg.seq += bits & 1 ? fuzz_u32(in) : fuzz_offset(in);
	seg.ack += bits & 2 ? fuzz_u32(in) : fuzz_offset(in);
	seg.len = fuzz_u16(in) % 1441;
	seg.wnd = (uint16_t)fuzz_u16(in);
	seg.tos = (uint8_t)(bits >> 6);
	if (bits & 4) {
		seg.options_len = fuzz_u8(in) % 11 * 4;
		fuzz_bytes(in, seg.options, seg.options_len);
	} else if (bits & 8) {
		segment_add_timestamp(&seg, fuzz_u8(in));
	}
	record_sent(seg.seq + seg.len);
	segment_deliver(seg, bits & 16 ? RIG_PORT : fuzz_last_sent.port);
}

static void step_data(struct fuzz_input *in)
{
	struct rig_say seg = segment_default(TCP_ACK, 1 + fuzz_u16(in) % 1400);

	segment_add_timestamp(&seg, 0);
	peer_seq += seg.len;
	record_sent(peer_seq);
	segment_deliver(seg, fuzz_last_sent.port);
}

static void step_sack(struct fuzz_input *in)
{
	struct rig_say seg = segment_default(TCP_ACK, 0);
	uint32_t blocks = 1 + fuzz_u8(in) % 3;

	segment_add_timestamp(&seg, 0);
	seg.ack -= fuzz_u16(in);
	seg.options[12] = seg.options[13] = 1;
	seg.options[14] = 5;
	seg.options[15] = (uint8_t)(2 + 8 * blocks);
	for (uint32_t i = 0; i < blocks; i++) {
		uint32_t start = fuzz_last_sent.end_seq - fuzz_u16(in), end = start + fuzz_u16(in);

		be32_store(seg.options + 16 + 8 * i, start);
		be32_store(seg.options + 20 + 8 * i, end);
	}
	seg.options_len = 16 + 8 * blocks;
	segment_deliver(seg, fuzz_last_sent.port);
}

static void step_send(struct fuzz_input *in)
{
	static uint8_t bytes[65536];
	struct iovec iov = { bytes, fuzz_u16(in) };
	ssize_t n;

	if (!rig.conn)
		return;
	n = harp_conn_send(rig.conn, &iov, 1);
	CHECK(n <= (ssize_t)iov.iov_len);
	fuzz_poll(1000);
}

static void step_recv(struct fuzz_input *in)
{
	static uint8_t bytes[65536];
	struct harp_tcp_info info;
	ssize_t n;

	if (!rig.conn)
		return;
	harp_conn_info(rig.conn, &info);
	CHECK(info.rx_frames_held <= info.rx_frames_budget);
	n = harp_conn_recv(rig.conn, bytes, fuzz_u16(in));
	for (ssize_t i = 0; is_comparing && i < n; i++)
		CHECK(bytes[i] == rig_byte(read_seq + (uint32_t)i));
	if (n > 0)
		read_seq += (uint32_t)n;
	if (is_comparing)
		CHECK((int32_t)(sent_edge - read_seq) >= 0);
	fuzz_poll(1000);
}

static void step_options(struct fuzz_input *in)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) }, old;
	unsigned changes = fuzz_u8(in) % 8;

	if (!rig.conn)
		return;
	CHECK(harp_conn_options(rig.conn, &opt) == 0);
	old = opt;
	while (changes-- > 0) {
		size_t at = sizeof(opt.size) + fuzz_u8(in) % (sizeof(opt) - sizeof(opt.size));

		((uint8_t *)&opt)[at] = (uint8_t)fuzz_u8(in);
	}
	/* Without a limit, a connection that the application closed outlives the test. */
	opt.connect_timeout_ns %= FUZZ_TIMEOUT_NS_MAX;
	opt.user_timeout_ns %= FUZZ_TIMEOUT_NS_MAX;
	if (harp_conn_set_options(rig.conn, &opt) != 0) {
		CHECK(harp_conn_options(rig.conn, &opt) == 0);
		CHECK(opt.user_timeout_ns == old.user_timeout_ns &&
		      opt.rx_frames == old.rx_frames && opt.mss_bytes == old.mss_bytes);
	}
	fuzz_poll(1000);
}

static void step_shut_read(void)
{
	if (!rig.conn || harp_conn_shutdown(rig.conn, SHUT_RD) != 0)
		return;
	is_comparing = false; /* bytes are missing from here on */
	CHECK(harp_conn_readable_bytes(rig.conn) == 0);
}

static void conn_begin(bool timestamps)
{
	peer_seq = RIG_PEER_ISS + 1;
	read_seq = sent_edge = peer_seq;
	is_comparing = true;
	fuzz_connect(timestamps);
}

static void step_run(struct fuzz_input *in)
{
	unsigned step = fuzz_u8(in);

	switch (step >= STEP_RARE_MIN ? STEP_OPTIONS + step % 2 : step % STEPS) {
	case STEP_SEGMENT:
		step_segment(in);
		break;
	case STEP_DATA:
		step_data(in);
		break;
	case STEP_TIME:
		fuzz_poll(fuzz_u16(in) * (RIG_MS / 4));
		break;
	case STEP_SEND:
		step_send(in);
		break;
	case STEP_RECV:
		step_recv(in);
		break;
	case STEP_SHUTDOWN:
		if (rig.conn)
			(void)harp_conn_shutdown(rig.conn, SHUT_WR);
		break;
	case STEP_CLOSE:
		harp_conn_close(rig.conn);
		rig.conn = NULL;
		break;
	case STEP_ABORT:
		harp_conn_abort(rig.conn);
		rig.conn = NULL;
		break;
	case STEP_CONNECT:
		if (!rig.conn) {
			/* Segments of the last connection may still be queued: do not compare. */
			conn_begin(false);
			is_comparing = false;
		}
		break;
	case STEP_SACK:
		step_sack(in);
		break;
	case STEP_OPTIONS:
		step_options(in);
		break;
	case STEP_SHUT_READ:
		step_shut_read();
		break;
	default:
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);

	fuzz_open(choices & 2, choices & 8 ? 64 : FUZZ_FRAMES, HARP_NEIGHBOR_EXTERNAL);
	rig_listen_options(&rig, RIG_OPTIONS(.rx_frames = 16, .tx_frames = 16, .backlog = 3));
	conn_begin(choices & 1);
	while (in.left > 0) {
		struct harp_conn *accepted;

		step_run(&in);
		while (harp_tcp_accept(rig.listener, &accepted) == 0)
			harp_conn_abort(accepted);
	}
	fuzz_close();
	return 0;
}
