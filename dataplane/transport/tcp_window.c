/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_window.c - the advertised window: RFC 9293 section 3.8.6.2.2, RFC 7323 section 2.
 *
 * The window is the number of unused frames of the connection's budget, times the payload per frame
 * of full-sized segments. The connection stores its right edge, RCV.NXT + RCV.WND (rcv.edge_seq),
 * which must not move left. There are two exceptions, if small segments or other connections have
 * used up the frames: reass_refused() and memory pressure, below. tcp_out.c writes the window
 * field; tcp_window_update() (tcp_ack.c) processes the peer's window.
 */
#include "transport/tcp.h"

uint32_t tcp_window_edge(const struct harp_conn *conn)
{
	uint32_t free_frames = conn->frames.rx_budget > conn->frames.rx_held
				       ? conn->frames.rx_budget - conn->frames.rx_held
				       : 0;
	uint32_t room = free_frames * conn->frames.rx_payload_bytes;
	uint32_t full = conn_rcv_wnd_bytes_max(conn);
	uint32_t step = full / 4 < conn->rcv.mss_bytes ? full / 4 : conn->rcv.mss_bytes;
	uint32_t wnd_max = 65535u << conn->rcv.wscale, edge;

	if (room > wnd_max)
		room = wnd_max;
	/* Rounds down to the unit of the window field. */
	room &= ~((1u << conn->rcv.wscale) - 1);
	edge = conn->rcv.nxt_seq + room;
	/* RFC 9293 section 3.8.6.2.2: does not shrink, and grows by at least min (Fr * RCV.BUFF,
	 * MSS), here with Fr = 1/4. */
	if (seq_lt(edge, conn->rcv.edge_seq + step) || conn->on_list.under_pressure)
		return conn->rcv.edge_seq;
	return edge;
}

void tcp_window_reopen(struct harp_conn *conn)
{
	uint32_t edge, gain, full = conn_rcv_wnd_bytes_max(conn);

	if (!conn_synchronized(conn) || (conn->flags & CONN_FIN_RECEIVED))
		return;
	/* The window could grow by less than a quarter. */
	if (conn_rcv_wnd_bytes(conn) > full - full / 4 &&
	    conn_rcv_wnd_bytes(conn) >= 2u * conn->rcv.mss_bytes)
		return;
	edge = tcp_window_edge(conn);
	gain = edge - conn->rcv.edge_seq;
	if (gain >= full / 4 || (gain > 0 && conn_rcv_wnd_bytes(conn) < 2u * conn->rcv.mss_bytes))
		tcp_delack_request(conn, true);
}

/*
 * Memory pressure: receivers for which the pool has no frames, although their budget permits some.
 *
 * The pool is often short for a moment; the peer then retransmits the refused data. If the
 * retransmission is refused as well, other connections hold the frames, perhaps for long. The peer
 * would send into an open window without ACKs and give up. So reass_refused() closes the window,
 * and the connection is `under_pressure`: it advertises a zero window until the pool has frames for
 * it, and then sends a window update.
 */

/* A refusal at the same sequence number this long after the first closes the window. */
#define PRESSURE_AFTER_NS (20 * TCP_NS_PER_MS)

bool tcp_pressure_refused(struct harp_conn *conn)
{
	uint64_t now_ns = conn->tcp->now_ns;

	if (!conn->refused.since_ns || conn->refused.seq != conn->rcv.nxt_seq) {
		conn->refused.since_ns = now_ns;
		conn->refused.seq = conn->rcv.nxt_seq;
	}
	if (now_ns - conn->refused.since_ns < PRESSURE_AFTER_NS)
		return false;
	if (!conn->on_list.under_pressure)
		TAILQ_INSERT_TAIL(&conn->tcp->under_pressure, conn, link.under_pressure);
	conn->on_list.under_pressure = 1;
	return true;
}

void tcp_pressure_end(struct harp_conn *conn)
{
	if (!conn->on_list.under_pressure)
		return;
	TAILQ_REMOVE(&conn->tcp->under_pressure, conn, link.under_pressure);
	conn->on_list.under_pressure = 0;
	conn->refused.since_ns = 0;
	/* The cached window field is outdated. */
	conn->advertised.held_frames = UINT32_MAX;
}

/* True if frames are free, or can be evicted from reassembly lists. A segment must also have
 * advertised the zero window; otherwise the peer would see the new window as a partial shrink of
 * the old one. */
static bool pressure_is_over(const struct harp_conn *conn)
{
	const struct tcp *tcp = conn->tcp;

	if (conn->advertised.edge_seq != conn->rcv.edge_seq)
		return false;
	return tcp->pool->free_count >= tcp_pool_floor_rx(conn) ||
	       (conn->frames.rx_held < TCP_FRAMES_BUDGET_MIN && !TAILQ_EMPTY(&tcp->reassembling));
}

static struct harp_conn *pressure_first(const struct tcp *tcp)
{
	struct harp_conn *conn;

	TAILQ_FOREACH(conn, &tcp->under_pressure, link.under_pressure)
	{
		if (pressure_is_over(conn))
			return conn;
	}
	return NULL;
}

bool tcp_pressure_may_serve(const struct tcp *tcp)
{
	return pressure_first(tcp) != NULL;
}

void tcp_pressure_serve(struct tcp *tcp)
{
	struct harp_conn *conn = pressure_first(tcp);

	if (!conn)
		return;
	tcp_pressure_end(conn);
	tcp_window_reopen(conn);
}
