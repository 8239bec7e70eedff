/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_out.c - writes and sends one segment: data, ACK, probe, SYN or reset. tcp_tx.c decides when.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"

/* ------------------------------------------------------------------------------------------------
 * Headers.
 */
struct out_header {
	const struct ip_path *path;
	uint32_t seq, ack, wnd_field;
	uint16_t local_port, remote_port;
	uint8_t flags;
	uint8_t options_len;
	/* OUT_CSUM: the NIC writes the checksum; OUT_TSO: it also segments the packet */
	uint8_t offload;
	uint32_t payload_len;
	uint32_t options_sum, payload_sum; /* unused with OUT_CSUM */
};
#define OUT_CSUM 1u
#define OUT_TSO 2u

/* Writes the fixed header and the checksum. The options already follow it. */
static void out_write_header(uint8_t *at, const struct out_header *h)
{
	uint32_t len = TCP_HEADER_BYTES + h->options_len, sum;
	uint32_t ports = htobe32((uint32_t)h->local_port << 16 | h->remote_port);
	uint32_t seq = htobe32(h->seq), ack = htobe32(h->ack);
	uint32_t fields = htobe32(len / 4 << 28 | (uint32_t)h->flags << 16 | h->wnd_field);
	uint16_t csum;

	memcpy(at, &ports, 4);
	memcpy(at + 4, &seq, 4);
	memcpy(at + 8, &ack, 4);
	memcpy(at + 12, &fields, 4);
	memset(at + 16, 0, 4); /* checksum, urgent pointer */
	sum = ip_pseudo_add(h->path->pseudo_sum, IP_PROTO_TCP,
			    h->offload & OUT_TSO ? 0 : len + h->payload_len);
	if (h->offload) {
		csum = (uint16_t)~csum_finish(sum);
	} else {
		/* Sums registers: wider loads of the header just stored would stall. */
		csum = csum_finish(csum_fold64((uint64_t)sum + ports + seq + ack + fields +
					       h->options_sum + h->payload_sum));
	}
	memcpy(at + 16, &csum, sizeof(csum));
}

/* Updates the advertised window; returns the window field. */
static uint32_t out_window_field(struct harp_conn *conn)
{
	uint32_t wnd;

	/* A connection that only sends repeats the same window. */
	if (conn->advertised.nxt_seq == conn->rcv.nxt_seq &&
	    conn->advertised.held_frames == conn->frames.rx_held &&
	    conn->advertised.edge_seq == conn->rcv.edge_seq)
		return conn->advertised.field;
	/* During the peer's recovery, duplicate ACKs must have equal windows to count as
	 * duplicates. */
	if (!conn->reass.head || conn_rcv_wnd_bytes(conn) < 2u * conn->rcv.mss_bytes)
		conn->rcv.edge_seq = tcp_window_edge(conn);
	wnd = conn_rcv_wnd_bytes(conn) >> conn->rcv.wscale;
	conn->advertised.nxt_seq = conn->rcv.nxt_seq;
	conn->advertised.edge_seq = conn->rcv.edge_seq;
	conn->advertised.held_frames = conn->frames.rx_held;
	conn->advertised.field = (uint16_t)(wnd > 65535 ? 65535 : wnd);
	return conn->advertised.field;
}

void tcp_out_acked(struct harp_conn *conn)
{
	if (conn->rcv.acked_seq != conn->rcv.nxt_seq) /* the peer sends, so our ACKs arrive */
		tcp_ack_progress(conn);
	conn->rcv.acked_seq = conn->rcv.nxt_seq;
	conn->rcv.full_segs_unacked = 0;
	conn->flags &= ~(uint32_t)(CONN_ACK_PENDING | CONN_ACK_NOW | CONN_ACK_HELD);
	if (conn->on_list.ack) {
		TAILQ_REMOVE(&conn->tcp->ack_list, conn, link.ack);
		conn->tcp->acks_pending--;
		conn->on_list.ack = 0;
	}
}

/* Writes as many SACK blocks as fit before `end`. */
static void out_sack(struct harp_conn *conn, uint8_t *end, struct out_header *h,
		     uint32_t payload_len)
{
	uint32_t room = conn->snd.mss_bytes > payload_len ? conn->snd.mss_bytes - payload_len : 0;
	uint32_t option_space = TCP_OPTIONS_BYTES_MAX, len;
	struct tcp_options opt;

	if (conn->options & HARP_TCPI_TIMESTAMPS)
		option_space -= TCP_OPTIONS_TIMESTAMP_BYTES;
	if (tcp_sackout_blocks(conn, room < option_space ? room : option_space, &opt) == 0)
		return;
	len = 4 + 8 * opt.sack_count;
	tcp_options_write_sack(end - len, &opt);
	/* RFC 2883 section 4: each duplicate is reported once. */
	conn->tcp->stats->tcp_dsack_out +=
		conn->sackout.dsack_start_seq != conn->sackout.dsack_end_seq;
	conn->sackout.dsack_start_seq = conn->sackout.dsack_end_seq;
	h->options_len = (uint8_t)len;
	h->options_sum = csum_words(end - len, len, 0);
}

/* Sets the flags for checksum offload and TSO; without offload, sums the payload. */
static void out_offload(const struct harp_conn *conn, const struct tcp_gso *gso,
			struct out_header *h, struct packet_out *out)
{
	h->payload_len = gso->bytes;
	if (!conn->tcp->csum_offload) {
		h->payload_sum = gso->bytes ? frame_packet_sum(gso->first, NULL) : 0;
		return;
	}
	h->offload = OUT_CSUM;
	out->flags = HARP_DESC_TX_CSUM;
	if (gso->segments > 1) {
		h->offload |= OUT_TSO;
		out->flags |= HARP_DESC_TX_TSO | (uint32_t)conn->snd.mss_bytes
							 << HARP_DESC_MSS_SHIFT;
		out->segments = gso->segments;
		out->cut_bytes = gso->bytes - conn->snd.mss_bytes;
	}
}

/* The same for a single frame without payload. */
static void out_bare(const struct tcp *tcp, struct out_header *h, struct packet_out *out)
{
	out->frags = 1;
	if (tcp->csum_offload) {
		h->offload = OUT_CSUM;
		out->flags = HARP_DESC_TX_CSUM;
	}
}

/* Stores the header of a data segment in *burst if the next segment may reuse it. */
static void out_begin_burst(const struct harp_conn *conn, const struct out_header *h,
			    const struct packet_out *out, uint8_t tos, struct tcp_burst *burst)
{
	uint32_t options_len =
		(conn->options & HARP_TCPI_TIMESTAMPS) ? TCP_OPTIONS_TIMESTAMP_BYTES : 0;
	uint32_t words[TCP_HEADER_BYTES / 4];
	uint8_t *head = out->frame->pub.data - TCP_HEADER_BYTES - options_len;

	*burst = (struct tcp_burst){ .bytes = h->payload_len };
	if (h->flags != TCP_ACK || h->payload_len == 0 || h->options_len != options_len ||
	    (h->offload & OUT_TSO) ||
	    !ip_output_repeats(conn->tcp->ip, &conn->path, IP_PROTO_TCP, tos))
		return;
	memcpy(words, head, sizeof(words));
	burst->head = head;
	burst->header_bytes = TCP_HEADER_BYTES + options_len;
	burst->desc_flags = out->flags;
	burst->sum = csum_fold64((uint64_t)ip_pseudo_add(h->path->pseudo_sum, IP_PROTO_TCP,
							 burst->header_bytes + burst->bytes) +
				 words[0] + words[2] + words[3] + h->options_sum);
}

int tcp_out_next(struct harp_conn *conn, struct tcp_burst *burst, struct frame *seg)
{
	struct tcp *tcp = conn->tcp;
	uint8_t *head = seg->pub.data - burst->header_bytes;
	struct packet_out out = { .frame = seg,
				  .head = head,
				  .len = burst->header_bytes + burst->bytes,
				  .flags = burst->desc_flags,
				  .frags = seg_frags(seg) };
	uint32_t seq = htobe32(seg->seq);
	uint16_t csum;

	if (!nicio_tx_ready(tcp->io, out.frags))
		return -ENOBUFS;
	if (burst->header_bytes == TCP_HEADER_BYTES + TCP_OPTIONS_TIMESTAMP_BYTES)
		memcpy(head, burst->head, TCP_HEADER_BYTES + TCP_OPTIONS_TIMESTAMP_BYTES);
	else
		memcpy(head, burst->head, TCP_HEADER_BYTES);
	memcpy(head + 4, &seq, sizeof(seq));
	if (!tcp->csum_offload) { /* else the copied pseudo-header sum is right */
		csum = csum_finish(csum_fold64((uint64_t)burst->sum + seq + frame_sum(seg)));
		memcpy(head + 16, &csum, sizeof(csum));
	}
	ip_output_next(tcp->ip, &conn->path, &out);
	burst->head = head;
	tcp->stats->tcp_segs_out++;
	conn->acct.segs_out++;
	return 0;
}

int tcp_out_segments(struct harp_conn *conn, const struct tcp_gso *gso, uint32_t seq, uint8_t flags,
		     struct tcp_burst *burst)
{
	struct tcp *tcp = conn->tcp;
	struct frame *f = gso->first;
	uint32_t payload_len = gso->bytes;
	struct out_header h = { .path = &conn->path,
				.seq = seq,
				.flags = flags,
				.local_port = conn->local_port,
				.remote_port = conn->remote_port };
	struct packet_out out = { .frame = f, .frags = gso->frags };
	uint32_t tsval = 0;
	uint8_t tos = conn->tos;
	int err;

	if (!nicio_tx_ready(tcp->io, gso->frags))
		return -ENOBUFS;
	err = ip_path_check(tcp->ip, &conn->path);
	if (err)
		return err;
	if (flags & TCP_ACK) {
		h.ack = conn->rcv.nxt_seq;
		h.wnd_field = out_window_field(conn);
	}
	if ((conn->sackout.count | (conn->sackout.dsack_start_seq ^ conn->sackout.dsack_end_seq)) &&
	    (flags & (TCP_ACK | TCP_RST)) == TCP_ACK)
		out_sack(conn, f->pub.data, &h, payload_len);
	if (conn->options & HARP_TCPI_TIMESTAMPS) {
		h.options_len += TCP_OPTIONS_TIMESTAMP_BYTES;
		tsval = conn_tsval(conn);
		h.options_sum = csum_add(h.options_sum,
					 tcp_options_write_timestamp(f->pub.data - h.options_len,
								     tsval, conn->ts.recent));
	}
	if (conn->flags & CONN_ECN_IN)
		tos |= tcp_ecn_out(conn, f, payload_len, &h.flags);
	out.head = f->pub.data - TCP_HEADER_BYTES - h.options_len;
	out.len = TCP_HEADER_BYTES + h.options_len + payload_len;
	out_offload(conn, gso, &h, &out);
	out_write_header(out.head, &h);
	err = ip_output(tcp->ip, &conn->path, IP_PROTO_TCP, tos, &out);
	if (err)
		return err;
	conn->ts.sent = tsval;
	tcp->stats->tcp_segs_out += gso->segments;
	conn->acct.segs_out += gso->segments;
	if (gso->segments > 1) {
		tcp->stats->tcp_tso_packets_out++;
		tcp->stats->tcp_tso_segs_out += gso->segments;
	}
	if (h.flags & TCP_CWR)
		conn->flags &= ~(uint32_t)CONN_ECN_CWR;
	if (flags & TCP_ACK)
		tcp_out_acked(conn);
	if (burst)
		out_begin_burst(conn, &h, &out, tos, burst);
	return 0;
}

/* Allocates a frame for a segment without payload. */
static struct frame *out_control_frame(struct tcp *tcp)
{
	struct frame *f = frame_alloc(tcp->pool, 0);

	if (!f) {
		tcp->stats->drop_no_frame++;
		return NULL;
	}
	f->next = NULL;
	f->frag = NULL;
	f->pub.len = 0;
	f->flags = 0;
	return f;
}

static int out_control(struct harp_conn *conn, uint32_t seq, uint8_t flags)
{
	struct frame *f = out_control_frame(conn->tcp);
	struct tcp_gso gso;
	int err;

	if (!f)
		return -ENOMEM;
	gso = (struct tcp_gso){ .first = f, .last = f, .segments = 1, .frags = 1 };
	err = tcp_out_segments(conn, &gso, seq, flags, NULL);
	frame_release(conn->tcp->pool, f);
	return err;
}

/* SEG.SEQ of a segment without data: SND.NXT, or the edge of a window that the peer has shrunk
 * below it (RFC 9293 MUST-34). Beyond the edge the segment would be unacceptable, and with it its
 * ACK. A difference below one unit of the window scale is rounding (RFC 7323 section 2.4). */
static uint32_t out_acceptable_seq(const struct harp_conn *conn)
{
	uint32_t edge = conn->snd.una_seq + conn->snd.wnd_bytes;

	if (!conn_synchronized(conn) || seq_lt(conn->snd.nxt_seq, edge + (1u << conn->snd.wscale)))
		return conn->snd.nxt_seq;
	return edge;
}

int tcp_out_ack(struct harp_conn *conn)
{
	int err = out_control(conn, out_acceptable_seq(conn), TCP_ACK);

	if (err == -ENOBUFS)
		tcp_delack_request(conn, true);
	return err;
}

int tcp_out_probe(struct harp_conn *conn)
{
	/* RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1, to which any receiver must reply. With data
	 * in flight, only SND.UNA-1 is certainly below the receiver's window. */
	return out_control(conn, conn->snd.una_seq - 1, TCP_ACK);
}

int tcp_out_rst(struct harp_conn *conn)
{
	int err = out_control(conn, out_acceptable_seq(conn), TCP_RST | TCP_ACK);

	if (!err)
		conn->tcp->stats->tcp_rst_out++;
	return err;
}

void tcp_out_rst_reply(struct tcp *tcp, const struct tcp_segment *seg)
{
	const struct packet_in *in = seg->in;
	struct ip_path path = { .src = in->dst, .dst = in->src };
	const uint8_t *th = in->frame->pub.data;
	struct out_header h = { .path = &path, .flags = TCP_RST };
	struct frame *f;
	struct packet_out out;

	h.local_port = (uint16_t)(th[2] << 8 | th[3]);
	h.remote_port = (uint16_t)(th[0] << 8 | th[1]);
	/* RFC 9293 section 3.10.7.1: "If the ACK bit is off, sequence number zero is used, <SEQ=0>
	 * <ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>. If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>." */
	if (seg->flags & TCP_ACK) {
		h.seq = seg->ack;
	} else {
		h.flags |= TCP_ACK;
		h.ack = seg->seq + seg->len + ((seg->flags & TCP_SYN) ? 1u : 0u) +
			((seg->flags & TCP_FIN) ? 1u : 0u);
	}
	if (ip_path_lookup(tcp->ip, &path) != 0 || !nicio_tx_ready(tcp->io, 1))
		return;
	ip_path_label(tcp->ip, &path, h.local_port, h.remote_port);
	f = out_control_frame(tcp);
	if (!f)
		return;
	out = (struct packet_out){ .frame = f,
				   .head = f->pub.data - TCP_HEADER_BYTES,
				   .len = TCP_HEADER_BYTES };
	out_bare(tcp, &h, &out);
	out_write_header(out.head, &h);
	if (ip_output(tcp->ip, &path, IP_PROTO_TCP, 0, &out) == 0) {
		tcp->stats->tcp_rst_out++;
		tcp->stats->tcp_segs_out++;
	}
	frame_release(tcp->pool, f);
}

/* ------------------------------------------------------------------------------------------------
 * The handshake.
 */
int tcp_out_syn(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	bool reply = conn->state == HARP_TCP_SYN_RECEIVED;
	uint8_t offered = reply ? conn->options : (uint8_t)~conn->opts.options_off;
	struct tcp_options opt = { .mss_bytes = conn->rcv.mss_bytes,
				   .wscale = conn->rcv.wscale,
				   .tsval = conn_tsval(conn),
				   .tsecr = reply ? conn->ts.recent : 0 };
	struct out_header h = { .path = &conn->path,
				.seq = conn->iss_seq,
				.flags = TCP_SYN,
				.local_port = conn->local_port,
				.remote_port = conn->remote_port };
	uint8_t bytes[TCP_OPTIONS_BYTES_MAX];
	struct packet_out out;
	struct frame *f;
	int err;

	if (!nicio_tx_ready(tcp->io, 1))
		return -ENOBUFS;
	err = ip_path_check(tcp->ip, &conn->path);
	if (err)
		return err;
	f = out_control_frame(tcp);
	if (!f)
		return -ENOMEM;
	opt.seen = TCP_OPT_MSS;
	if (offered & HARP_TCPI_SACK)
		opt.seen |= TCP_OPT_SACK_PERMITTED;
	if (offered & HARP_TCPI_TIMESTAMPS)
		opt.seen |= TCP_OPT_TIMESTAMP;
	if (offered & HARP_TCPI_WSCALE)
		opt.seen |= TCP_OPT_WSCALE;
	if (reply) {
		h.flags |= TCP_ACK;
		h.ack = conn->rcv.nxt_seq;
	}
	h.flags |= tcp_ecn_syn_out(conn, reply);
	h.wnd_field = conn_syn_wnd_bytes(conn);
	/* In a simultaneous open, an earlier ACK may have advertised a larger window, which remains
	 * valid. */
	if (!reply || seq_gt(conn->rcv.nxt_seq + h.wnd_field, conn->rcv.edge_seq))
		conn->rcv.edge_seq = conn->rcv.nxt_seq + h.wnd_field;
	h.options_len = (uint8_t)tcp_options_write_syn(bytes, &opt);
	h.options_sum = csum_words(bytes, h.options_len, 0);
	memcpy(f->pub.data - h.options_len, bytes, h.options_len);
	out = (struct packet_out){ .frame = f,
				   .head = f->pub.data - TCP_HEADER_BYTES - h.options_len,
				   .len = TCP_HEADER_BYTES + h.options_len };
	out_bare(tcp, &h, &out);
	out_write_header(out.head, &h);
	err = ip_output(tcp->ip, &conn->path, IP_PROTO_TCP, conn->tos, &out);
	frame_release(tcp->pool, f);
	if (err)
		return err;
	conn->flags &= ~(uint32_t)CONN_SYN_PENDING;
	if (conn->snd.nxt_seq == conn->iss_seq) /* the peer may echo this one or a later one */
		conn->ts.echo_min = conn->ts.echo_max = opt.tsval;
	conn->ts.sent = opt.tsval;
	tcp->stats->tcp_segs_out++;
	conn->acct.segs_out++;
	conn->snd.nxt_seq = conn->iss_seq + 1;
	if (reply)
		tcp_out_acked(conn);
	tcp_timer_sent(conn);
	return 0;
}
