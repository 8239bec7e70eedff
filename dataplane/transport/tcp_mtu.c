/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_mtu.c - path MTU discovery, by ICMP and by probing (RFC 1191, 8201, 4821, 8899).
 *
 * Theory of operation. A connection starts with the largest segment that its link and the peer's
 * MSS option allow, mtu.top_bytes. snd.mss_bytes decreases for three reasons:
 *	- the MTU of our own route decreased (tcp_mtu_refused()): segments in flight may arrive,
 *	  the others are split
 *	- a router reports a smaller MTU (mtu_icmp()). The message can be forged, so it must quote
 *	  an outstanding segment larger than the reported size. If larger segments than that have
 *	  been acknowledged, the report takes effect only after a retransmission timeout of the
 *	  quoted segment (RFC 5927 section 7.2)
 *	- large segments time out repeatedly (a black hole, RFC 4821 section 7.7). The size becomes
 *	  that of MTU_BASE_BYTES, which nearly every path carries. If that fails, too, it becomes
 *	  that of MTU_LEAST_BYTES (IPv4). A path that is down for a while looks the same, but the
 *	  search is cheap
 * Outstanding segments that are too large count as lost, are split (tcp_resegmented) and
 * retransmitted: in slow start after a timeout, otherwise within the same window, because their
 * loss is no congestion signal (RFC 1191 section 6.4).
 *
 * Probes increase the size (MTU_SEARCH). A probe is a larger segment with the next bytes of the
 * queue, followed by enough data to detect its loss without a timeout. If it is acknowledged, its
 * size is the new one. If only the probe is lost, that is no congestion signal (RFC 4821 section
 * 7.5): it is split and retransmitted, and after MTU_TRIES losses the size counts as too large. The
 * first candidate is the top, which succeeds if the path was only down for a while. Binary search
 * follows, until the bounds differ by less than MTU_CLOSE_BYTES. The search starts at once after a
 * black hole, and every MTU_RAISE_NS while the size is below the top: that is how long a router's
 * report is valid (RFC 1191 section 6.3), and the search's result (RFC 8899's PMTU_RAISE_TIMER).
 */
#include "transport/tcp.h"

#include <errno.h>

#define MTU_BASE_BYTES_V4 1024u /* RFC 4821 section 7.2 */
#define MTU_LEAST_BYTES_V4 552u /* Linux's min_pmtu; icmp.c has the same limit */
#define MTU_BASE_BYTES_V6 1280u /* RFC 8200 section 5 */
#define MTU_RAISE_NS (600 * TCP_NS_PER_S)
#define MTU_BLACK_HOLE_TIMEOUTS 2u /* consecutive timeouts that make a black hole */
#define MTU_BLACK_HOLE_NS (400 * TCP_NS_PER_MS)
#define MTU_TRIES 3u /* RFC 8899 section 5.1.2, MAX_PROBES */
#define MTU_CLOSE_BYTES 16u
/* Segments after a probe, for loss detection: RACK needs one, duplicate ACKs three, plus one. */
#define MTU_BEHIND_SEGMENTS_SACK 1u
#define MTU_BEHIND_SEGMENTS 4u

/* Header bytes of a packet with a full-sized segment. */
static uint32_t mtu_header_bytes(const struct harp_conn *conn)
{
	return ip_header_bytes(&conn->path.dst) + TCP_HEADER_BYTES +
	       (conn->options & HARP_TCPI_TIMESTAMPS ? TCP_OPTIONS_TIMESTAMP_BYTES : 0);
}

/* Maximum payload of a segment for this MTU. */
static uint32_t mtu_segment_bytes(const struct harp_conn *conn, uint32_t mtu_bytes)
{
	uint32_t headers = mtu_header_bytes(conn);

	return mtu_bytes > headers + TCP_MSS_BYTES_MIN ? mtu_bytes - headers : TCP_MSS_BYTES_MIN;
}

/* Maximum payload of a segment within the limits of link, peer and application. */
static uint16_t mtu_limit(const struct harp_conn *conn)
{
	uint32_t limit = conn->opts.mss_bytes;

	if (limit == 0)
		return conn->mtu.agreed_bytes;
	if (conn->options & HARP_TCPI_TIMESTAMPS)
		limit -= TCP_OPTIONS_TIMESTAMP_BYTES;
	return limit < conn->mtu.agreed_bytes ? (uint16_t)limit : conn->mtu.agreed_bytes;
}

void tcp_mtu_init(struct harp_conn *conn)
{
	conn->mtu.agreed_bytes = conn->snd.mss_bytes;
	conn->mtu.top_bytes = conn->snd.mss_bytes = mtu_limit(conn);
	conn->mtu.state = MTU_IDLE;
}

/* mtu.top_bytes within the MTU of the route, which may have changed. */
static uint32_t mtu_top(const struct harp_conn *conn)
{
	uint32_t local = mtu_segment_bytes(conn, conn->path.mtu_bytes);

	return local < conn->mtu.top_bytes ? local : conn->mtu.top_bytes;
}

/* Marks outstanding segments that are too large as lost, so that they are split and
 * retransmitted. */
static void mtu_mark_large(struct harp_conn *conn)
{
	for (struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
	     seg = seg->next) {
		if (seg_bytes(seg) > conn->snd.mss_bytes && !(seg->tcp_flags & SEG_MARKS))
			tcp_sack_mark_lost(conn, seg);
	}
	if (conn->loss.lost_bytes > 0)
		tcp_tx_ready(conn);
}

static void mtu_lower(struct harp_conn *conn, uint32_t mss_bytes, uint64_t raise_after_ns)
{
	/* Not if the size has decreased further since the segment was sent. */
	if (mss_bytes < conn->snd.mss_bytes)
		conn->snd.mss_bytes = (uint16_t)mss_bytes;
	conn->mtu.acked_bytes = 0;
	conn->mtu.icmp_bytes = 0;
	conn->mtu.state = MTU_SEARCH;
	conn->mtu.high_bytes = conn->mtu.top_bytes;
	conn->mtu.tries = 0;
	conn->mtu.next_ns = conn->tcp->now_ns + raise_after_ns;
}

/* A router reports that the outstanding segment at quoted_seq exceeds mtu_bytes. */
static void mtu_icmp(struct harp_conn *conn, uint32_t quoted_seq, uint32_t mtu_bytes)
{
	uint32_t mss = mtu_segment_bytes(conn, mtu_bytes);
	const struct frame *seg = tcp_sack_find(conn, quoted_seq);

	if (mss >= conn->snd.mss_bytes || !seg || seg->seq != quoted_seq || seg_bytes(seg) <= mss) {
		conn->tcp->stats->tcp_mtu_icmp_ignored++;
		return;
	}
	if (conn->mtu.state == MTU_PROBING && quoted_seq == conn->mtu.probe_seq) {
		/* The probe was too large, whatever the MTU is. */
		tcp_mtu_probe_lost(conn, seg);
		mtu_mark_large(conn);
		return;
	}
	if (conn->mtu.acked_bytes > mss) {
		conn->mtu.icmp_bytes = (uint16_t)mss;
		conn->mtu.icmp_seq = quoted_seq;
		return;
	}
	conn->tcp->stats->tcp_mtu_icmp++;
	mtu_lower(conn, mss, MTU_RAISE_NS);
	mtu_mark_large(conn);
}

void tcp_mtu_timeout(struct harp_conn *conn)
{
	const struct frame *seg = conn->sndq.head;
	bool v4 = harp_addr_is_v4(&conn->path.dst);
	uint32_t base = mtu_segment_bytes(conn, v4 ? MTU_BASE_BYTES_V4 : MTU_BASE_BYTES_V6);
	uint32_t least = v4 ? mtu_segment_bytes(conn, MTU_LEAST_BYTES_V4) : base;

	/* RFC 4821 section 7.6.4: a timeout is no evidence about the size of the probe. */
	if (conn->mtu.state == MTU_PROBING)
		tcp_mtu_probe_lost(conn, NULL);
	if (conn->snd.wnd_bytes == 0)
		return; /* the window is the cause, not the path */
	if (conn->mtu.icmp_bytes && conn->mtu.icmp_bytes < conn->snd.mss_bytes &&
	    seg->seq == conn->mtu.icmp_seq) {
		conn->tcp->stats->tcp_mtu_icmp++;
		mtu_lower(conn, conn->mtu.icmp_bytes, MTU_RAISE_NS);
		return;
	}
	if (conn->rtx_backoff < MTU_BLACK_HOLE_TIMEOUTS ||
	    conn->tcp->now_ns - conn->progress_ns < MTU_BLACK_HOLE_NS)
		return;
	if (seg_bytes(seg) > base)
		mtu_lower(conn, base, 0);
	else if (seg_bytes(seg) > least && conn->rtx_backoff >= 2 * MTU_BLACK_HOLE_TIMEOUTS)
		mtu_lower(conn, least, 0);
	else
		return; /* small segments do not arrive, either */
	conn->tcp->stats->tcp_mtu_black_holes++;
}

/* Ends the search. It starts again after MTU_RAISE_NS if the size is below the top. */
static void mtu_search_end(struct harp_conn *conn)
{
	conn->mtu.tries = 0;
	conn->mtu.high_bytes = conn->mtu.top_bytes;
	conn->mtu.next_ns = conn->tcp->now_ns + MTU_RAISE_NS;
	conn->mtu.state = conn->snd.mss_bytes < conn->mtu.top_bytes ? MTU_SEARCH : MTU_IDLE;
}

void tcp_mtu_limit(struct harp_conn *conn)
{
	bool searching = conn->mtu.state != MTU_IDLE;

	if (!conn_synchronized(conn))
		return; /* tcp_mtu_init() applies the limit */
	conn->mtu.top_bytes = mtu_limit(conn);
	/* Without a search, nothing indicates that the path carries less than the new top. */
	if (!searching || conn->snd.mss_bytes > conn->mtu.top_bytes)
		conn->snd.mss_bytes = (uint16_t)mtu_top(conn);
	mtu_search_end(conn);
	if (searching)
		conn->mtu.next_ns = conn->tcp->now_ns;
}

bool tcp_mtu_refused(struct harp_conn *conn)
{
	uint32_t mss = mtu_segment_bytes(conn, conn->path.mtu_bytes);

	if (mss < conn->snd.mss_bytes) {
		mtu_lower(conn, mss, MTU_RAISE_NS);
		return true;
	}
	if (conn->mtu.state != MTU_SEARCH || conn->tcp->now_ns < conn->mtu.next_ns)
		return false;
	mtu_search_end(conn); /* the segment was a probe for the former MTU of the route */
	return true;
}

bool tcp_mtu_probe_lost(struct harp_conn *conn, const struct frame *seg)
{
	if (conn->mtu.state != MTU_PROBING || (seg && seg->seq != conn->mtu.probe_seq))
		return false;
	conn->tcp->stats->tcp_mtu_probes_lost++;
	conn->mtu.state = MTU_SEARCH;
	conn->mtu.failed = 1;
	conn->mtu.next_ns = conn->tcp->now_ns + 4 * conn->rtt.srtt_ns;
	if (++conn->mtu.tries < MTU_TRIES)
		return true;
	conn->mtu.tries = 0;
	conn->mtu.high_bytes = (uint16_t)(conn->mtu.probe_bytes - 1);
	if (conn->mtu.high_bytes < conn->snd.mss_bytes + MTU_CLOSE_BYTES)
		mtu_search_end(conn);
	return true;
}

static void mtu_probe_passed(struct harp_conn *conn)
{
	conn->tcp->stats->tcp_mtu_raised++;
	conn->snd.mss_bytes = conn->mtu.probe_bytes;
	conn->mtu.state = MTU_SEARCH;
	conn->mtu.tries = 0;
	if (conn->mtu.high_bytes < conn->snd.mss_bytes + MTU_CLOSE_BYTES)
		mtu_search_end(conn);
}

/* The next candidate size. */
static uint32_t mtu_candidate(const struct harp_conn *conn)
{
	uint32_t top = mtu_top(conn), high = conn->mtu.high_bytes;

	if (high >= top)
		return top;
	return (conn->snd.mss_bytes + high + 1u) / 2;
}

uint32_t tcp_mtu_probe(struct harp_conn *conn)
{
	uint32_t bytes, behind;

	if (conn->mtu.state == MTU_PROBING) {
		if (seq_geq(conn->snd.una_seq, conn->mtu.probe_end_seq))
			mtu_probe_passed(conn);
		return 0;
	}
	if (conn->tcp->now_ns < conn->mtu.next_ns || conn->recovery != TCP_RECOVERY_NONE ||
	    conn->loss_open)
		return 0;
	bytes = mtu_candidate(conn);
	if (bytes <= conn->snd.mss_bytes) { /* the route's MTU decreased */
		mtu_search_end(conn);
		return 0;
	}
	behind = conn->options & HARP_TCPI_SACK ? MTU_BEHIND_SEGMENTS_SACK : MTU_BEHIND_SEGMENTS;
	behind *= conn->snd.mss_bytes;
	if (conn_unsent_bytes(conn) <= bytes + behind ||
	    conn_flight_bytes(conn) + bytes + behind > conn->cc.cwnd_bytes ||
	    conn_flight_bytes(conn) + bytes + behind > conn->snd.wnd_bytes)
		return 0;
	return bytes;
}

void tcp_mtu_probed(struct harp_conn *conn, const struct frame *seg)
{
	conn->mtu.state = MTU_PROBING;
	conn->mtu.failed = 0;
	conn->mtu.probe_seq = seg->seq;
	conn->mtu.probe_end_seq = seg->seq + seg_bytes(seg);
	conn->mtu.probe_bytes = (uint16_t)seg_bytes(seg);
	conn->tcp->stats->tcp_mtu_probes++;
}

/* RFC 5927 section 4.1: an error must quote outstanding data. */
void tcp_icmp_error(struct tcp *tcp, const struct flow_key *key, uint32_t quoted_seq, int kind,
		    uint32_t mtu_bytes)
{
	uint32_t index = flow_find(&tcp->flows, key);
	struct harp_conn *conn;

	if (index == FLOW_NONE)
		return;
	conn = &tcp->conns[index];
	if (seq_lt(quoted_seq, conn->snd.una_seq) || seq_geq(quoted_seq, conn->snd.nxt_seq))
		return;
	if (kind == -EMSGSIZE) {
		if (conn_synchronized(conn)) /* a SYN fits every path */
			mtu_icmp(conn, quoted_seq, mtu_bytes);
		return;
	}
	/* RFC 5927 section 5.2: in synchronized states, hard errors count as soft ones. */
	if (conn->state == HARP_TCP_SYN_SENT)
		tcp_conn_die(conn, kind);
}
