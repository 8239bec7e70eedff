/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_window.c - the window that we offer: RFC 9293 section 3.8.6.2.2, RFC 7323 section 2.
 *
 * What a peer may send follows from the frames that the connection's budget has left, each as much as a frame of a full segment
 * carries. It is kept as its right edge, RCV.NXT + RCV.WND (rcv_edge_seq): that is what must not move left. Who does move it,
 * because small segments or others have used up the frames before: reass_refused() and tcp_starve.c. What a segment says of it is
 * tcp_out.c's, as the peer's window is tcp_window_update()'s (tcp_ack.c).
 */
#include "transport/tcp.h"

uint32_t tcp_window_edge(const struct harp_conn *conn)
{
	uint32_t free_frames = conn->rx_frames_budget > conn->rx_frames_held
				       ? conn->rx_frames_budget - conn->rx_frames_held
				       : 0;
	uint32_t room = free_frames * conn->rcv_bytes_per_frame;
	uint32_t full = conn_rcv_wnd_bytes_max(conn);
	uint32_t step = full / 4 < conn->rcv_mss_bytes ? full / 4 : conn->rcv_mss_bytes;
	uint32_t most = 65535u << conn->rcv_wscale, edge;

	if (room > most)
		room = most;
	/* The field is cut to multiples of the scale: offer only what it can say. */
	room &= ~((1u << conn->rcv_wscale) - 1);
	edge = conn->rcv_nxt_seq + room;
	/* RFC 9293 3.8.6.2.2: no shrinking, and no steps smaller than min (Fr * RCV.BUFF, MSS). */
	if (seq_lt(edge, conn->rcv_edge_seq + step) || conn->on_starved_list)
		return conn->rcv_edge_seq;
	return edge;
}

void tcp_window_reopen(struct harp_conn *conn)
{
	uint32_t edge, gain, full = conn_rcv_wnd_bytes_max(conn);

	if (!conn_synchronized(conn) || (conn->flags & CONN_FIN_RECEIVED))
		return;
	/* What is open leaves less than a quarter to gain. */
	if (conn_rcv_wnd_bytes(conn) > full - full / 4 &&
	    conn_rcv_wnd_bytes(conn) >= 2u * conn->rcv_mss_bytes)
		return;
	edge = tcp_window_edge(conn);
	gain = edge - conn->rcv_edge_seq;
	if (gain >= full / 4 || (gain > 0 && conn_rcv_wnd_bytes(conn) < 2u * conn->rcv_mss_bytes))
		tcp_delack_want(conn, true);
}
