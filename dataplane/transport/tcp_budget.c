/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_budget.c - frames of the pool that a connection may hold, for sending and for receiving.
 *
 * Theory of operation. The application sets a budget (harp_tcp_options.rx_frames, tx_frames), or
 * the budget follows the bandwidth-delay product. Budgets are counted in frames, because the pool's
 * frames are the limited resource.
 *
 * Receive budgets follow dynamic right-sizing (Fisk and Feng 2001), as Linux's
 * tcp_rcv_space_adjust() does. Once per round trip the stack counts the bytes that arrived, in
 * order or not, because a filled hole does not mean a faster stream. The budget becomes twice that,
 * and more while the count grows, so the window never limits slow start. It does not grow while the
 * application leaves half of it unread.
 *
 * Connections with a grown budget are on tcp->grown. The sum of their budgets stays near half of
 * the shared frames: a connection gets the frames that the others leave, and at least an equal
 * share. A connection above its share returns frames at its next measurement. The advertised window
 * never shrinks (RFC 9293 section 3.8.6): rx_frames_limit still covers it, while frames.rx_budget,
 * which determines later windows, decreases at once. If a connection needs frames, one that was not
 * measured for BUDGET_IDLE_NS returns its share.
 *
 * Send budgets are twice the congestion window, as in Linux's tcp_sndbuf_expand(). No connection
 * holds more frames than are still free (dynamic thresholds: Choudhury and Hahne 1998), so n busy
 * connections hold 1/(n + 1) of the frames each.
 */
#include "transport/tcp.h"

#define BUDGET_FRAMES_BASE 256u /* initial and minimum budget when autotuned */
/* with jumbo frames this is still less than half of the sequence space */
#define BUDGET_FRAMES_MAX 65536u
#define BUDGET_FRAMES_SPARE 16u   /* for partial segments and for frames not in flight */
#define BUDGET_RESERVE_FRAMES 16u /* for ACKs, RSTs and ARP when data uses everything else */
#define BUDGET_IDLE_NS TCP_NS_PER_S
#define BUDGET_INTERVAL_NS_MIN 100000u /* between measurements, which cost instructions */
#define BUDGET_RTT_NS_UNKNOWN (10 * TCP_NS_PER_MS)
#define BUDGET_RTT_NS_MAX TCP_NS_PER_S

/* ------------------------------------------------------------------------------------------------
 * The pool.
 */
static uint32_t budget_floor(const struct tcp *tcp, uint32_t held, uint64_t other_held)
{
	const struct nicio *io = tcp->io;
	uint32_t floor = BUDGET_RESERVE_FRAMES, reserve = tcp->shared_frames / 4;

	if (io->fill_max > io->fill_held)
		floor += io->fill_max - io->fill_held;
	/* Two stacks whose pools are full of data to send would refuse each other's data forever.
	 * So a quarter is reserved for each direction. The first few frames of a connection may
	 * come from half of that; more would be used up by many connections. */
	if (held < TCP_FRAMES_BUDGET_MIN)
		reserve /= 2;
	if (other_held < reserve)
		floor += reserve - (uint32_t)other_held;
	return floor;
}

uint32_t tcp_pool_floor_tx(const struct harp_conn *conn)
{
	return budget_floor(conn->tcp, conn->frames.tx_held, conn->tcp->stats->frames_tcp_rx);
}

uint32_t tcp_pool_floor_rx(const struct harp_conn *conn)
{
	return budget_floor(conn->tcp, conn->frames.rx_held, conn->tcp->stats->frames_tcp_tx);
}

void tcp_budget_init(struct tcp *tcp)
{
	if (tcp->pool->frame_count > tcp->io->fill_max)
		tcp->shared_frames = tcp->pool->frame_count - tcp->io->fill_max;
	tcp->pool_high_frames =
		BUDGET_RESERVE_FRAMES + tcp->io->fill_max + tcp->shared_frames / 4 + 1;
	TAILQ_INIT(&tcp->grown);
}

/* Limits a budget to the range of harp_tcp_options and to half of the pool beyond the fill ring. */
static uint32_t budget_clamp(const struct tcp *tcp, uint64_t frames)
{
	if (frames > tcp->shared_frames / 2)
		frames = tcp->shared_frames / 2;
	if (frames > BUDGET_FRAMES_MAX)
		frames = BUDGET_FRAMES_MAX;
	return frames < TCP_FRAMES_BUDGET_MIN ? TCP_FRAMES_BUDGET_MIN : (uint32_t)frames;
}

/* ------------------------------------------------------------------------------------------------
 * Receiving.
 */
static void budget_unlist(struct harp_conn *conn)
{
	if (!conn->on_list.grown)
		return;
	TAILQ_REMOVE(&conn->tcp->grown, conn, link.grown);
	conn->tcp->grown_count--;
	conn->tcp->grown_frames -= conn->frames.rx_budget;
	conn->on_list.grown = 0;
}

/* Appends the connection, because the list is ordered by time of measurement. */
static void budget_list(struct harp_conn *conn)
{
	TAILQ_INSERT_TAIL(&conn->tcp->grown, conn, link.grown);
	conn->tcp->grown_count++;
	conn->tcp->grown_frames += conn->frames.rx_budget;
	conn->on_list.grown = 1;
}

/* Requires that the connection is not on the list. */
static void budget_set_rx(struct harp_conn *conn, uint32_t frames)
{
	uint32_t promised = conn->frames.rx_held;

	if (conn->frames.rx_payload_bytes > 0)
		promised += (conn_rcv_wnd_bytes(conn) + conn->frames.rx_payload_bytes - 1) /
			    conn->frames.rx_payload_bytes;
	conn->frames.rx_budget = frames;
	conn->budget.rx_frames_limit = promised > frames ? promised : frames;
}

void tcp_budget_release(struct harp_conn *conn)
{
	if (!conn->on_list.grown)
		return;
	budget_unlist(conn);
	budget_set_rx(conn, budget_clamp(conn->tcp, BUDGET_FRAMES_BASE));
}

/* Releases the share of the grown connection that was measured longest ago, if that is long
 * enough. */
static void budget_reclaim(struct tcp *tcp, const struct harp_conn *requester)
{
	struct harp_conn *conn = TAILQ_FIRST(&tcp->grown);

	if (conn && conn != requester &&
	    tcp->now_ns - conn->budget.measure_start_ns >= BUDGET_IDLE_NS)
		tcp_budget_release(conn);
}

static void budget_grant(struct harp_conn *conn, uint64_t want)
{
	struct tcp *tcp = conn->tcp;
	uint32_t base = budget_clamp(tcp, BUDGET_FRAMES_BASE), limit = tcp->shared_frames / 2;
	uint32_t before = conn->frames.rx_budget, room, share, frames;

	if (want <= before && !conn->on_list.grown)
		return;
	budget_unlist(conn);
	if (want + tcp->grown_frames > limit)
		budget_reclaim(tcp, conn);
	room = limit > tcp->grown_frames ? limit - tcp->grown_frames : 0;
	share = limit / (tcp->grown_count + 1);
	if (room < share)
		room = share;
	if (want < before)
		want = before;
	frames = budget_clamp(tcp, want < room ? want : room);
	budget_set_rx(conn, frames > base ? frames : base);
	if (frames > base)
		budget_list(conn);
	/* Senders may fill all these windows at once. */
	nicio_fill_raise(tcp->io, tcp->grown_frames);
	if (conn->frames.rx_budget != before) /* the cached window field is outdated */
		conn->advertised.held_frames = UINT32_MAX;
}

/* The round-trip time that was measured, perhaps only in the handshake. */
static uint64_t budget_srtt_ns(const struct harp_conn *conn)
{
	uint64_t rtt_ns = conn->rtt.srtt_ns ? conn->rtt.srtt_ns : BUDGET_RTT_NS_UNKNOWN;

	return rtt_ns < BUDGET_RTT_NS_MAX ? rtt_ns : BUDGET_RTT_NS_MAX;
}

/* A receiver that never sends data has measured the round-trip time in the handshake only. If the
 * round trip is longer now, timestamps show that, in milliseconds. After a pause of the peer, its
 * first segments echo an old timestamp, too. */
static uint64_t budget_rtt_ns(const struct harp_conn *conn)
{
	uint64_t rtt_ns = budget_srtt_ns(conn), echo_ns;

	if (conn->options & HARP_TCPI_TIMESTAMPS) {
		echo_ns = (conn_tsval(conn) - conn->ts.echo) * TCP_NS_PER_MS;
		if (echo_ns > TCP_NS_PER_MS && echo_ns - TCP_NS_PER_MS > rtt_ns)
			rtt_ns = echo_ns - TCP_NS_PER_MS;
	}
	return rtt_ns < BUDGET_RTT_NS_MAX ? rtt_ns : BUDGET_RTT_NS_MAX;
}

void tcp_budget_measure(struct harp_conn *conn)
{
	uint64_t out_of_order = (uint64_t)conn->frames.reass_held * conn->frames.rx_payload_bytes;
	uint64_t received = conn->acct.bytes_received + out_of_order;
	uint64_t elapsed_ns = conn->tcp->now_ns - conn->budget.measure_start_ns;
	uint64_t bytes = received - conn->budget.measure_start_bytes,
		 max = conn->budget.received_bytes_max, want;
	uint64_t rtt_ns = budget_rtt_ns(conn), interval_ns = budget_srtt_ns(conn);

	conn->budget.measure_end_ns =
		conn->tcp->now_ns +
		(interval_ns > BUDGET_INTERVAL_NS_MIN ? interval_ns : BUDGET_INTERVAL_NS_MIN);
	if (elapsed_ns < rtt_ns)
		return;
	conn->budget.measure_start_ns = conn->tcp->now_ns;
	conn->budget.measure_start_bytes = received;
	bytes = bytes * rtt_ns / elapsed_ns;
	want = 2 * bytes;
	if (bytes > max) {
		conn->budget.received_bytes_max = bytes;
		if (max > 0) /* slow start doubles the rate until the next measurement */
			want += 4 * (bytes - max);
	}
	/* An application that reads slowly needs no larger window. */
	if ((conn->frames.rx_held - conn->frames.reass_held) * 2 > conn->frames.rx_budget)
		want = 0;
	budget_grant(conn, want / conn->frames.rx_payload_bytes + BUDGET_FRAMES_SPARE);
}

/* ------------------------------------------------------------------------------------------------
 * Sending.
 */
uint32_t tcp_budget_tx_frames(const struct harp_conn *conn)
{
	const struct tcp *tcp = conn->tcp;
	uint32_t base = budget_clamp(tcp, BUDGET_FRAMES_BASE), floor = tcp_pool_floor_tx(conn);
	uint32_t frame_bytes = tcp->pool->frame_size - tcp->pool->data_at, max = 0;
	uint64_t segments = 2ull * conn->cc.cwnd_bytes / conn->snd.mss_bytes + BUDGET_FRAMES_SPARE;
	uint64_t want = segments * ((conn->snd.mss_bytes + frame_bytes - 1) / frame_bytes);

	if (!conn->budget.tx_tuned)
		return conn->frames.tx_budget;
	if (tcp->pool->free_count > floor)
		max = budget_clamp(tcp, tcp->pool->free_count - floor);
	if (want > max)
		want = max;
	if (want < base)
		want = base;
	return want > conn->frames.tx_held ? (uint32_t)want : conn->frames.tx_held;
}

void tcp_budget_tune_tx(struct harp_conn *conn)
{
	if (!conn->budget.tx_tuned)
		return;
	conn->frames.tx_budget = tcp_budget_tx_frames(conn);
	/* The peer may acknowledge every segment while this thread is not running. */
	nicio_fill_raise(conn->tcp->io, conn->frames.tx_budget);
}

void tcp_budget_begin(struct harp_conn *conn, uint32_t rx_frames, uint32_t tx_frames)
{
	const struct tcp *tcp = conn->tcp;

	conn->budget.rx_tuned = rx_frames == 0;
	conn->budget.tx_tuned = tx_frames == 0;
	conn->frames.rx_budget = budget_clamp(tcp, rx_frames ? rx_frames : BUDGET_FRAMES_BASE);
	conn->frames.tx_budget = budget_clamp(tcp, tx_frames ? tx_frames : BUDGET_FRAMES_BASE);
	conn->budget.rx_frames_limit = conn->frames.rx_budget;
	/* The window scale fits the largest possible window: RFC 7323 section 2.3. */
	conn->budget.rx_frames_max = conn->budget.rx_tuned ? budget_clamp(tcp, BUDGET_FRAMES_MAX)
							   : conn->frames.rx_budget;
}

void tcp_budget_change_rx(struct harp_conn *conn, uint32_t frames)
{
	conn->budget.rx_tuned = frames == 0;
	if (conn->budget.rx_tuned)
		return;
	budget_unlist(conn);
	budget_set_rx(conn, budget_clamp(conn->tcp, frames));
	if (conn->budget.rx_frames_max < conn->frames.rx_budget)
		conn->budget.rx_frames_max = conn->frames.rx_budget;
	conn->advertised.held_frames = UINT32_MAX;
	tcp_window_reopen(conn);
}

void tcp_budget_change_tx(struct harp_conn *conn, uint32_t frames)
{
	conn->budget.tx_tuned = frames == 0;
	if (conn->budget.tx_tuned)
		tcp_budget_tune_tx(conn);
	else
		conn->frames.tx_budget = budget_clamp(conn->tcp, frames);
}
