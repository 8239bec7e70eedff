/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.c - lifecycle of a connection: slots, states, termination.
 *
 * tcp_init() allocates everything: connections are in an array with a free list. connect() or a
 * listener's SYN takes a slot. The slot is freed when the state is CLOSED and no handle exists
 * (CONN_HANDLE). After the application's close, the stack completes the shutdown. A connection that
 * terminates while the application has a handle stays in CLOSED until the application closes it, so
 * that the application can still read received bytes and the error.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TCP_REUSE_GAP_SEQ 65537u /* beyond an unscaled window of the previous incarnation */

#define S(state) (1u << HARP_TCP_##state)
/* RFC 9293 figure 5. CLOSED is reachable from every state (RST, abort, timeout). LISTEN is absent,
 * because a listener has its own type. check_rst_of_other_syn() returns from SYN-RECEIVED to
 * SYN-SENT. */
static const uint16_t tcp_state_successors[HARP_TCP_CLOSED + 1] = {
	[HARP_TCP_CLOSED] = S(SYN_SENT) | S(SYN_RECEIVED),
	[HARP_TCP_SYN_SENT] = S(SYN_RECEIVED) | S(ESTABLISHED) | S(CLOSED),
	[HARP_TCP_SYN_RECEIVED] =
		S(SYN_SENT) | S(ESTABLISHED) | S(FIN_WAIT_1) | S(CLOSE_WAIT) | S(CLOSED),
	[HARP_TCP_ESTABLISHED] = S(FIN_WAIT_1) | S(CLOSE_WAIT) | S(CLOSED),
	[HARP_TCP_FIN_WAIT_1] = S(FIN_WAIT_2) | S(CLOSING) | S(TIME_WAIT) | S(CLOSED),
	[HARP_TCP_FIN_WAIT_2] = S(TIME_WAIT) | S(CLOSED),
	[HARP_TCP_CLOSE_WAIT] = S(LAST_ACK) | S(CLOSED),
	[HARP_TCP_CLOSING] = S(TIME_WAIT) | S(CLOSED),
	[HARP_TCP_LAST_ACK] = S(CLOSED),
	[HARP_TCP_TIME_WAIT] = S(CLOSED),
};
#undef S

const char *harp_tcp_state_name(enum harp_tcp_state state)
{
	static const char *const names[] = {
		[HARP_TCP_LISTEN] = "LISTEN",
		[HARP_TCP_SYN_SENT] = "SYN-SENT",
		[HARP_TCP_SYN_RECEIVED] = "SYN-RECEIVED",
		[HARP_TCP_ESTABLISHED] = "ESTABLISHED",
		[HARP_TCP_FIN_WAIT_1] = "FIN-WAIT-1",
		[HARP_TCP_FIN_WAIT_2] = "FIN-WAIT-2",
		[HARP_TCP_CLOSE_WAIT] = "CLOSE-WAIT",
		[HARP_TCP_CLOSING] = "CLOSING",
		[HARP_TCP_LAST_ACK] = "LAST-ACK",
		[HARP_TCP_TIME_WAIT] = "TIME-WAIT",
		[HARP_TCP_CLOSED] = "CLOSED",
	};

	if (state < HARP_TCP_LISTEN || state > HARP_TCP_CLOSED)
		return "?";
	return names[state];
}

void tcp_state_set(struct harp_conn *conn, enum harp_tcp_state state)
{
	assert(tcp_state_successors[conn->state] & (1u << state));
	if (conn->state == HARP_TCP_CLOSED)
		conn->tcp->stats->tcp_conns++;
	else if (state == HARP_TCP_CLOSED)
		conn->tcp->stats->tcp_conns--;
	conn->state = (uint8_t)state;
}

static bool tcp_flow_match(const void *ctx, uint32_t index, const struct flow_key *key)
{
	const struct tcp *tcp = ctx;
	const struct harp_conn *conn = &tcp->conns[index];

	return conn->remote_port == key->remote_port && conn->local_port == key->local_port &&
	       addr_equal(&conn->path.dst, &key->remote) &&
	       addr_equal(&conn->path.src, &key->local);
}

static void tcp_init_limits(struct tcp *tcp, const struct harp_nic_caps *caps)
{
	uint32_t headroom = caps->rx_headroom;

	tcp_budget_init(tcp);
	tcp->tx_frags_max = 1;
	if (caps->features & HARP_NIC_TX_MULTI)
		tcp->tx_frags_max = caps->tx_frags_max > 0 ? caps->tx_frags_max : 1;
	tcp->csum_offload = (tcp->io->features & HARP_NIC_TX_CSUM) != 0;
	tcp->rx_payload_frame_bytes = caps->frame_size;
	if (headroom < caps->frame_size)
		tcp->rx_payload_frame_bytes -= headroom;
}

static void tcp_slot_init(struct tcp *tcp, uint32_t index)
{
	struct harp_conn *conn = &tcp->conns[index];

	conn->tcp = tcp;
	conn->index = index;
	conn->state = HARP_TCP_CLOSED;
}

int tcp_init(struct tcp *tcp, struct ip *ip, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt,
	     const struct harp_stack_hooks *hooks)
{
	struct siphash_key flow_secret = rng_key(rng);
	int err;

	*tcp = (struct tcp){
		.ip = ip,
		.eth = ip->eth,
		.io = ip->eth->io,
		.pool = ip->eth->io->pool,
		.wheel = wheel,
		.rng = rng,
		.stats = stats,
		.hooks = hooks,
		.isn_secret = rng_key(rng),
		.challenge_secret = rng_key(rng),
		.cookie_secret = rng_key(rng),
		.max_conns = opt->max_conns,
		.max_listeners = opt->max_listeners,
	};
	TAILQ_INIT(&tcp->tx_ready);
	TAILQ_INIT(&tcp->tx_blocked);
	TAILQ_INIT(&tcp->tx_unresolved);
	TAILQ_INIT(&tcp->ack_list);
	TAILQ_INIT(&tcp->events);
	TAILQ_INIT(&tcp->pool_waiters);
	TAILQ_INIT(&tcp->under_pressure);
	TAILQ_INIT(&tcp->reassembling);
	TAILQ_INIT(&tcp->free_conns);
	TAILQ_INIT(&tcp->time_wait);
	TAILQ_INIT(&tcp->time_wait_opened);
	tcp_init_limits(tcp, &tcp->io->nic->caps);
	tcp_clock(tcp, opt->now_ns);
	err = flow_init(&tcp->flows, opt->max_conns, &flow_secret, tcp_flow_match, tcp);
	if (err)
		return err;
	err = port_init(&tcp->ports, IP_PROTO_TCP, opt, rng);
	if (err)
		return err;
	tcp->listeners = calloc(opt->max_listeners, sizeof(*tcp->listeners));
	/* Large allocations of calloc() are untouched pages, so unused slots occupy no memory. */
	tcp->conns_memory = calloc(1, ((size_t)opt->max_conns + 2) * sizeof(*tcp->conns));
	if (!tcp->listeners || !tcp->conns_memory)
		return -ENOMEM;
	tcp->conns = (struct harp_conn *)(((uintptr_t)tcp->conns_memory + 63) & ~(uintptr_t)63);
	tcp_slot_init(tcp, opt->max_conns);
	return 0;
}

void tcp_destroy(struct tcp *tcp)
{
	port_destroy(&tcp->ports);
	flow_destroy(&tcp->flows);
	free(tcp->listeners);
	free(tcp->conns_memory);
	tcp->listeners = NULL;
	tcp->conns_memory = NULL;
	tcp->conns = NULL;
}

void tcp_clock(struct tcp *tcp, uint64_t now_ns)
{
	tcp->now_ns = now_ns;
	tcp->now_ms = (uint32_t)(now_ns / TCP_NS_PER_MS);
}

/* Payload of a received frame if all segments are full-sized; converts frames to window bytes. */
static uint32_t tcp_rcv_bytes_per_frame(const struct tcp *tcp, uint32_t mtu_bytes,
					uint32_t mss_bytes)
{
	uint32_t packet = mtu_bytes + ETH_HEADER_BYTES + ETH_VLAN_BYTES;
	uint32_t frames = (packet + tcp->rx_payload_frame_bytes - 1) / tcp->rx_payload_frame_bytes;

	return mss_bytes / (frames > 0 ? frames : 1);
}

void tcp_conn_options(struct harp_conn *conn, const struct harp_tcp_options *opt)
{
	conn->opts = *opt;
	conn->opts.backlog = 0;
	if (conn->opts.unsent_bytes_max == 0)
		conn->opts.unsent_bytes_max = UINT32_MAX;
	conn->tos = (uint8_t)(opt->dscp << 2);
}

struct harp_conn *tcp_conn_alloc(struct tcp *tcp, const struct harp_tcp_options *opt)
{
	struct harp_conn *conn;

	if (!tcp_has_slot(tcp))
		return NULL;
	if (TAILQ_EMPTY(&tcp->free_conns) && tcp->conns_high < tcp->max_conns) {
		conn = &tcp->conns[tcp->conns_high];
		tcp_slot_init(tcp, tcp->conns_high++);
		TAILQ_INSERT_HEAD(&tcp->free_conns, conn, link.owner);
	}
	if (TAILQ_EMPTY(&tcp->free_conns)) { /* reclaim the oldest TIME-WAIT */
		conn = TAILQ_FIRST(&tcp->time_wait);
		tcp_conn_die(conn ? conn : TAILQ_FIRST(&tcp->time_wait_opened), 0);
	}
	conn = TAILQ_FIRST(&tcp->free_conns);
	TAILQ_REMOVE(&tcp->free_conns, conn, link.owner);
	tcp_conn_blank(conn, opt);
	return conn;
}

void tcp_conn_blank(struct harp_conn *conn, const struct harp_tcp_options *opt)
{
	struct tcp *tcp = conn->tcp;
	uint32_t index = conn->index;
	bool page_shown = conn->page.shown;

	memset(conn, 0, sizeof(*conn));
	conn->tcp = tcp;
	conn->index = index;
	conn->page.shown = page_shown;
	conn->page.serial = ++tcp->conn_serial;
	conn->state = HARP_TCP_CLOSED;
	conn->snd.mss_bytes = TCP_MSS_BYTES_DEFAULT_V4;
	conn->last_rcv_ns = tcp->now_ns;
	tcp_conn_options(conn, opt);
	conn->rtt.rto_ns = opt->initial_rto_ns;
	tcp_budget_begin(conn, opt->rx_frames, opt->tx_frames);
	tcp_cc_select(conn, opt->congestion, opt->fixed_window_bytes);
	tcp_timer_init(conn);
}

void tcp_conn_free(struct harp_conn *conn)
{
	assert(conn->state == HARP_TCP_CLOSED && !(conn->flags & CONN_HANDLE) && !conn->listener);
	tcp_rcvq_purge(conn);
	if (conn->on_list.event)
		TAILQ_REMOVE(&conn->tcp->events, conn, link.event);
	conn->on_list.event = 0;
	TAILQ_INSERT_HEAD(&conn->tcp->free_conns, conn, link.owner);
}

void tcp_conn_bind(struct harp_conn *conn)
{
	struct flow_key key = conn_flow_key(conn);

	tcp_conn_begin(conn);
	flow_insert(&conn->tcp->flows, &key, conn->index);
}

void tcp_conn_offer(struct harp_conn *conn)
{
	conn->options = 0;
	conn->flags &= ~(uint32_t)CONN_ECN_IN;
	conn->rcv.wscale = 0;
	if (conn->opts.options_off & HARP_TCPI_WSCALE)
		return;
	while (conn->rcv.wscale < TCP_WSCALE_MAX &&
	       (65535u << conn->rcv.wscale) <
		       conn->budget.rx_frames_max * conn->frames.rx_payload_bytes)
		conn->rcv.wscale++;
}

void tcp_conn_begin(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	uint32_t mss = conn_link_mss_bytes(conn);

	if (conn->opts.mss_bytes != 0 && mss > conn->opts.mss_bytes)
		mss = conn->opts.mss_bytes;
	conn->rcv.mss_bytes = (uint16_t)mss;
	conn->frames.rx_payload_bytes = tcp_rcv_bytes_per_frame(tcp, conn->path.mtu_bytes, mss);
	tcp_conn_offer(conn);
	ip_path_label(tcp->ip, &conn->path, conn->local_port, conn->remote_port);
	tcp_conn_secrets(conn);
}

void tcp_conn_secrets(struct harp_conn *conn)
{
	struct flow_key key = conn_flow_key(conn);
	uint64_t hash = siphash24(&conn->tcp->isn_secret, &key, sizeof(key));

	/* RFC 6528 section 3: ISN = M + F(localip, localport, remoteip, remoteport, secretkey); M
	 * ticks every 4 us. */
	tcp_conn_iss(conn, (uint32_t)(conn->tcp->now_ns >> 12) + (uint32_t)hash);
	/* The offset of a 4-tuple is constant, so a later incarnation has greater timestamps (RFC
	 * 6191). */
	conn->ts.offset = (uint32_t)(hash >> 32);
}

void tcp_conn_iss(struct harp_conn *conn, uint32_t iss_seq)
{
	conn->iss_seq = iss_seq;
	conn->snd.una_seq = iss_seq;
	conn->snd.nxt_seq = iss_seq;
	conn->snd.end_seq = iss_seq + 1;
	conn->loss.recover_seq = iss_seq;
	conn->ecn.reduced_seq = iss_seq;
	conn->rack.fack_seq = iss_seq;
	conn->loss.rtx_seq = iss_seq;
	conn->loss.retrans_end_seq = iss_seq;
}

void tcp_conn_iss_beyond(struct harp_conn *conn, uint32_t old_nxt_seq)
{
	if (!seq_gt(conn->iss_seq, old_nxt_seq))
		tcp_conn_iss(conn, old_nxt_seq + TCP_REUSE_GAP_SEQ);
}

void tcp_conn_event(struct harp_conn *conn, uint32_t events)
{
	conn->events |= events;
	/* Before accept() the application does not know the connection; harp_tcp_accept() delivers
	 * its events. */
	if (conn->on_list.event || !(conn->flags & CONN_HANDLE) || conn->listener)
		return;
	TAILQ_INSERT_TAIL(&conn->tcp->events, conn, link.event);
	conn->on_list.event = 1;
}

void tcp_conn_established(struct harp_conn *conn)
{
	tcp_state_set(conn, HARP_TCP_ESTABLISHED);
	conn->flags |= CONN_ESTABLISHED_ONCE;
	conn->flags &= ~(uint32_t)CONN_SYN_PENDING;
	conn->deadline.life_ns = TCP_NEVER_NS;
	tcp_cc_begin(conn);
	tcp_timer_keepalive(conn);
	if (conn->listener) {
		struct harp_listener *l = conn->listener;

		TAILQ_REMOVE(&l->embryonic, conn, link.owner);
		l->embryonic_count--;
		l->tcp->embryonic_count--;
		TAILQ_INSERT_TAIL(&l->accept_queue, conn, link.owner);
		l->accept_count++;
		conn->flags |= CONN_HANDLE; /* held by the accept queue, later by the application */
	}
	if (conn->flags & CONN_FIN_WANTED) {
		/* Closed in SYN-RECEIVED: queue the FIN (RFC 9293 section 3.10.4). */
		tcp_tx_ready(conn);
	}
	tcp_conn_event(conn, HARP_EVENT_CONNECTED | HARP_EVENT_WRITABLE);
}

/* The limit resembles Linux's tcp_max_tw_buckets. If a connection reuses the port early, its
 * timestamps are greater, and PAWS rejects segments of the old one. */
void tcp_time_wait_add(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	struct harp_conn *oldest;

	conn->on_list.time_wait = 1;
	if (conn->flags & CONN_PASSIVE) {
		TAILQ_INSERT_TAIL(&tcp->time_wait, conn, link.owner);
		return;
	}
	TAILQ_INSERT_TAIL(&tcp->time_wait_opened, conn, link.owner);
	if (++tcp->time_wait_opened_count <= TCP_TIME_WAIT_PORTS_MAX)
		return;
	oldest = TAILQ_FIRST(&tcp->time_wait_opened);
	if (oldest->flags & CONN_ACK_PENDING) /* acknowledges the peer's FIN */
		(void)tcp_out_ack(oldest);
	tcp_conn_die(oldest, 0);
}

static void tcp_time_wait_remove(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	if (!conn->on_list.time_wait)
		return;
	conn->on_list.time_wait = 0;
	if (conn->flags & CONN_PASSIVE) {
		TAILQ_REMOVE(&tcp->time_wait, conn, link.owner);
		return;
	}
	TAILQ_REMOVE(&tcp->time_wait_opened, conn, link.owner);
	tcp->time_wait_opened_count--;
}

void tcp_enter_time_wait(struct harp_conn *conn)
{
	tcp_state_set(conn, HARP_TCP_TIME_WAIT);
	tcp_sndq_purge(conn);
	conn->deadline.rto_ns = TCP_NEVER_NS;
	conn->deadline.loss_ns = TCP_NEVER_NS;
	conn->deadline.probe_ns = TCP_NEVER_NS;
	conn->deadline.keep_ns = TCP_NEVER_NS;
	tcp_timer_life(conn, TCP_TIME_WAIT_NS);
	if (!(conn->flags & CONN_HANDLE))
		tcp_time_wait_add(conn);
	tcp_conn_event(conn, HARP_EVENT_CLOSED);
}

void tcp_conn_die(struct harp_conn *conn, int error)
{
	struct tcp *tcp = conn->tcp;
	struct flow_key key = conn_flow_key(conn);
	bool was_time_wait = conn->state == HARP_TCP_TIME_WAIT;

	if (!(conn->flags & CONN_ESTABLISHED_ONCE))
		tcp->stats->tcp_attempt_fails++;
	else if (error == -ECONNRESET)
		tcp->stats->tcp_estab_resets++;
	tcp_state_set(conn, HARP_TCP_CLOSED);
	conn->error = error;
	tcp_timer_stop(conn);
	tcp_tx_unlist(conn);
	tcp_budget_release(conn);
	tcp_sndq_purge(conn);
	tcp_reass_purge(conn);
	flow_remove(&tcp->flows, &key, conn->index);
	port_put(&tcp->ports, conn->local_port);
	tcp_time_wait_remove(conn);
	if (conn->listener) {
		/* Terminated before accept: remove it silently. */
		tcp_listener_forget(conn);
		conn->flags &= ~(uint32_t)CONN_HANDLE;
	}
	if (!(conn->flags & CONN_HANDLE)) {
		tcp_conn_free(conn);
		return;
	}
	if (!was_time_wait)
		tcp_conn_event(conn, HARP_EVENT_CLOSED | (error ? 0u : HARP_EVENT_READABLE));
}

void tcp_conn_reset(struct harp_conn *conn, int error)
{
	/* RFC 9293 section 3.10.5 sends an RST from SYN-RECEIVED, ESTABLISHED, FIN-WAIT-1/2 and
	 * CLOSE-WAIT. This code sends one from CLOSING and LAST-ACK, too, because the peer may wait
	 * for data that is now lost. */
	if (conn->state >= HARP_TCP_SYN_RECEIVED && conn->state != HARP_TCP_TIME_WAIT &&
	    conn->state != HARP_TCP_CLOSED)
		(void)tcp_out_rst(conn);
	tcp_conn_die(conn, error);
}
