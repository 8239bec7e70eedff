/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_starve.c - receivers that the pool has no frames for, though their own budget would.
 *
 * The pool is short for a moment in many a burst, and what was refused then comes again. Where what comes again is
 * refused as well, others rest on the frames, and may for long: the peer sends into an open window, nothing is
 * acknowledged, and it would give up in the end. So the window is closed (reass_refused()), and the connection is
 * `starved': it offers nothing, whoever asks, until the pool has frames for it again, and says so then.
 */
#include "transport/tcp.h"

/* So long after the first refusal one at the same place closes the window. */
#define STARVE_AFTER_NS (20 * TCP_NS_PER_MS)

bool tcp_starve_refused(struct harp_conn *conn)
{
	uint64_t now_ns = conn->tcp->now_ns;

	if (!conn->refused.since_ns || conn->refused.seq != conn->rcv_nxt_seq) {
		conn->refused.since_ns = now_ns;
		conn->refused.seq = conn->rcv_nxt_seq;
	}
	if (now_ns - conn->refused.since_ns < STARVE_AFTER_NS)
		return false;
	if (!conn->on_starved_list)
		TAILQ_INSERT_TAIL(&conn->tcp->starved, conn, starved_link);
	conn->on_starved_list = 1;
	return true;
}

void tcp_starve_end(struct harp_conn *conn)
{
	if (!conn->on_starved_list)
		return;
	TAILQ_REMOVE(&conn->tcp->starved, conn, starved_link);
	conn->on_starved_list = 0;
	conn->refused.since_ns = 0;
	/* Another window is to be told, though nothing else has changed. */
	conn->advertised.held_frames = UINT32_MAX;
}

/* Frames are there, or it would be given those that others hold out of order. And the peer has been told of the closed window, or
 * the next one would seem to be the old one, taken back by a part. */
static bool starve_is_over(const struct harp_conn *conn)
{
	const struct tcp *tcp = conn->tcp;

	if (conn->advertised.edge_seq != conn->rcv_edge_seq)
		return false;
	return tcp->pool->free_count >= tcp_pool_floor_rx(conn) ||
	       (conn->rx_frames_held < TCP_FRAMES_BUDGET_MIN && !TAILQ_EMPTY(&tcp->reassembling));
}

static struct harp_conn *starve_first(const struct tcp *tcp)
{
	struct harp_conn *conn;

	TAILQ_FOREACH(conn, &tcp->starved, starved_link)
	{
		if (starve_is_over(conn))
			return conn;
	}
	return NULL;
}

bool tcp_starve_may_feed(const struct tcp *tcp)
{
	return starve_first(tcp) != NULL;
}

void tcp_starve_feed(struct tcp *tcp)
{
	struct harp_conn *conn = starve_first(tcp);

	if (!conn)
		return;
	tcp_starve_end(conn);
	tcp_window_reopen(conn);
}
