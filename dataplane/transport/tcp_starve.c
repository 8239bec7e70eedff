/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_starve.c - receivers for which the pool has no frames, although their budget permits some.
 *
 * The pool is often short for a moment, and refused data is retransmitted. If the retransmission is
 * refused as well, other connections hold the frames, perhaps for long. The peer would send into an
 * open window without ACKs and give up. So the window is closed (reass_refused()), and the
 * connection is `starved`: it advertises a zero window until the pool has frames for it again, and
 * then announces that.
 */
#include "transport/tcp.h"

/* A refusal at the same sequence number this long after the first closes the window. */
#define STARVE_AFTER_NS (20 * TCP_NS_PER_MS)

bool tcp_starve_refused(struct harp_conn *conn)
{
	uint64_t now_ns = conn->tcp->now_ns;

	if (!conn->refused.since_ns || conn->refused.seq != conn->rcv.nxt_seq) {
		conn->refused.since_ns = now_ns;
		conn->refused.seq = conn->rcv.nxt_seq;
	}
	if (now_ns - conn->refused.since_ns < STARVE_AFTER_NS)
		return false;
	if (!conn->on_list.starved)
		TAILQ_INSERT_TAIL(&conn->tcp->starved, conn, link.starved);
	conn->on_list.starved = 1;
	return true;
}

void tcp_starve_end(struct harp_conn *conn)
{
	if (!conn->on_list.starved)
		return;
	TAILQ_REMOVE(&conn->tcp->starved, conn, link.starved);
	conn->on_list.starved = 0;
	conn->refused.since_ns = 0;
	/* Forces a new window computation without other changes. */
	conn->advertised.held_frames = UINT32_MAX;
}

/* Ends when frames are free, or can be evicted from reassembly lists. The peer must also have
 * received the zero window; otherwise the new window would look like the old one, shrunk in
 * part. */
static bool starve_is_over(const struct harp_conn *conn)
{
	const struct tcp *tcp = conn->tcp;

	if (conn->advertised.edge_seq != conn->rcv.edge_seq)
		return false;
	return tcp->pool->free_count >= tcp_pool_floor_rx(conn) ||
	       (conn->frames.rx_held < TCP_FRAMES_BUDGET_MIN && !TAILQ_EMPTY(&tcp->reassembling));
}

static struct harp_conn *starve_first(const struct tcp *tcp)
{
	struct harp_conn *conn;

	TAILQ_FOREACH(conn, &tcp->starved, link.starved)
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
