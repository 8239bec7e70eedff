/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_window.c - the advertised window: RFC 9293 section 3.8.6.2.2, RFC 7323 section 2.
 *
 * The window follows from the unused frames of the connection's budget, each counted as the payload
 * that a frame of a full segment carries. It is kept as its right edge, RCV.NXT + RCV.WND
 * (rcv.edge_seq), which must not move left. Exceptions, when small segments or other connections
 * have used up the frames: reass_refused() and tcp_starve.c. tcp_out.c writes the window field;
 * tcp_window_update() (tcp_ack.c) processes the peer's window.
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
	uint32_t most = 65535u << conn->rcv.wscale, edge;

	if (room > most)
		room = most;
	/* The field has units of the window scale: round down. */
	room &= ~((1u << conn->rcv.wscale) - 1);
	edge = conn->rcv.nxt_seq + room;
	/* RFC 9293 3.8.6.2.2: no shrinking, and no steps smaller than min (Fr * RCV.BUFF, MSS). */
	if (seq_lt(edge, conn->rcv.edge_seq + step) || conn->on_list.starved)
		return conn->rcv.edge_seq;
	return edge;
}

void tcp_window_reopen(struct harp_conn *conn)
{
	uint32_t edge, gain, full = conn_rcv_wnd_bytes_max(conn);

	if (!conn_synchronized(conn) || (conn->flags & CONN_FIN_RECEIVED))
		return;
	/* The open part is so large that less than a quarter could be gained. */
	if (conn_rcv_wnd_bytes(conn) > full - full / 4 &&
	    conn_rcv_wnd_bytes(conn) >= 2u * conn->rcv.mss_bytes)
		return;
	edge = tcp_window_edge(conn);
	gain = edge - conn->rcv.edge_seq;
	if (gain >= full / 4 || (gain > 0 && conn_rcv_wnd_bytes(conn) < 2u * conn->rcv.mss_bytes))
		tcp_delack_request(conn, true);
}
