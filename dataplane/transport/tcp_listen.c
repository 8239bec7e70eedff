/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_listen.c - segments to a listener: RFC 9293 section 3.10.7.2.
 *
 * The backlog limits the sum of a listener's embryonic and unaccepted connections. All listeners
 * together may use half of the stack's slots for embryonic ones. Beyond that, a SYN gets a SYN
 * cookie (tcp_cookie.c), so a SYN flood does not lock out peers that complete the handshake. SYNs
 * are dropped while the accept queue is full.
 */
#include "transport/tcp.h"

#include <string.h>

struct harp_listener *tcp_listener_find(struct tcp *tcp, const struct harp_addr *addr,
					uint16_t port)
{
	struct harp_listener *wildcard = NULL;

	for (uint32_t i = 0; i < tcp->max_listeners; i++) {
		struct harp_listener *l = &tcp->listeners[i];

		if (!l->tcp || l->local.port != port)
			continue;
		if (addr_equal(&l->local.addr, addr))
			return l;
		if (addr_is_zero(&l->local.addr))
			wildcard = l;
	}
	return wildcard;
}

void tcp_listener_forget(struct harp_conn *conn)
{
	struct harp_listener *l = conn->listener;

	if (conn->flags & CONN_ESTABLISHED_ONCE) {
		TAILQ_REMOVE(&l->accept_queue, conn, link.owner);
		l->accept_count--;
	} else {
		TAILQ_REMOVE(&l->embryonic, conn, link.owner);
		l->embryonic_count--;
		l->tcp->embryonic_count--;
	}
	conn->listener = NULL;
}

/* The options of a SYN that the application has not disabled. */
static uint8_t syn_options_seen(const struct harp_conn *conn, const struct tcp_options *opt)
{
	uint8_t off = 0;

	if (conn->opts.options_off & HARP_TCPI_TIMESTAMPS)
		off |= TCP_OPT_TIMESTAMP;
	if (conn->opts.options_off & HARP_TCPI_SACK)
		off |= TCP_OPT_SACK_PERMITTED;
	if (conn->opts.options_off & HARP_TCPI_WSCALE)
		off |= TCP_OPT_WSCALE;
	return opt->seen & (uint8_t)~off;
}

void tcp_syn_options(struct harp_conn *conn, const struct tcp_segment *seg)
{
	const struct tcp_options *opt = &seg->opt;
	uint8_t seen = syn_options_seen(conn, opt);
	uint32_t mss =
		opt->seen & TCP_OPT_MSS ? opt->mss_bytes : tcp_mss_bytes_default(&conn->path.dst);
	uint32_t segment_bytes_max;

	conn->irs_seq = seg->seq;
	conn->rcv.nxt_seq = seg->seq + 1;
	conn->rcv.acked_seq = conn->rcv.nxt_seq;
	tcp_ecn_syn_in(conn, seg->flags);
	conn->rcv.edge_seq = conn->rcv.nxt_seq;
	if (seen & TCP_OPT_TIMESTAMP) {
		conn->options |= HARP_TCPI_TIMESTAMPS;
		conn->ts.recent = opt->tsval;
		conn->ts.recent_ns = conn->tcp->now_ns;
	}
	if (seen & TCP_OPT_SACK_PERMITTED)
		conn->options |= HARP_TCPI_SACK;
	if (seen & TCP_OPT_WSCALE) {
		conn->options |= HARP_TCPI_WSCALE;
		conn->snd.wscale = opt->wscale;
	} else {
		/* RFC 7323 section 2.2: both ends scale their windows, or neither. */
		conn->snd.wscale = 0;
		conn->rcv.wscale = 0;
	}
	/* RFC 9293 section 3.7.1: Eff.snd.MSS = min (SendMSS+20, MMS_S) - TCPhdrsize -
	 * IPoptionsize. */
	if (mss < TCP_MSS_BYTES_MIN)
		mss = TCP_MSS_BYTES_MIN;
	if (mss > conn_link_mss_bytes(conn))
		mss = conn_link_mss_bytes(conn);
	if (conn->options & HARP_TCPI_TIMESTAMPS)
		mss -= TCP_OPTIONS_TIMESTAMP_BYTES;
	segment_bytes_max = tcp_sndq_segment_bytes_max(conn->tcp);
	conn->snd.mss_bytes = (uint16_t)(mss < segment_bytes_max ? mss : segment_bytes_max);
	tcp_mtu_init(conn);
	/* RFC 7323 section 2.2: the window of a SYN is never scaled. */
	conn->snd.wnd_bytes = seg->wnd_field;
	conn->snd_wnd_max_bytes = seg->wnd_field;
	conn->snd.wl1_seq = seg->seq;
	conn->snd.wl2_seq = seg->flags & TCP_ACK ? seg->ack : conn->iss_seq;
}

bool tcp_listen_tuple(const struct harp_listener *l, struct harp_conn *conn,
		      const struct tcp_segment *seg)
{
	const uint8_t *th = seg->in->frame->pub.data;

	conn->path.src = seg->in->dst;
	conn->path.dst = seg->in->src;
	conn->local_port = l->local.port;
	conn->remote_port = (uint16_t)(th[0] << 8 | th[1]);
	return conn->remote_port != 0 && ip_path_lookup(conn->tcp->ip, &conn->path) == 0;
}

struct harp_conn *tcp_listen_embryo(struct harp_listener *l, const struct tcp_segment *syn)
{
	struct tcp *tcp = l->tcp;
	struct harp_conn *conn = tcp_conn_alloc(tcp, &l->options);

	if (!conn)
		return NULL;
	if (!tcp_listen_tuple(l, conn, syn) || port_get(&tcp->ports, l->local.port) != 0) {
		TAILQ_INSERT_HEAD(&tcp->free_conns, conn, link.owner);
		return NULL;
	}
	tcp_conn_bind(conn);
	tcp_syn_options(conn, syn);
	conn->flags |= CONN_PASSIVE | CONN_SYN_PENDING;
	conn->listener = l;
	TAILQ_INSERT_TAIL(&l->embryonic, conn, link.owner);
	l->embryonic_count++;
	tcp->embryonic_count++;
	tcp_state_set(conn, HARP_TCP_SYN_RECEIVED);
	tcp->stats->tcp_passive_opens++;
	tcp_timer_life(conn, l->options.connect_timeout_ns);
	return conn;
}

/* True if half-open connections have reached the limit of this listener or of the stack. */
static bool listen_under_pressure(const struct harp_listener *l)
{
	const struct tcp *tcp = l->tcp;

	return l->embryonic_count + l->accept_count >= l->options.backlog ||
	       tcp_embryonic_is_full(tcp) || !tcp_has_slot(tcp);
}

bool tcp_listen_is_full(const struct harp_listener *l)
{
	return l->accept_count >= l->options.backlog;
}

enum tcp_verdict tcp_listen_input(struct harp_listener *l, const struct tcp_segment *seg)
{
	struct tcp *tcp = l->tcp;
	struct harp_conn *conn;

	/* "First, check for a RST: An incoming RST segment should be ignored." */
	if (seg->flags & TCP_RST)
		return TCP_DROP_STATE;
	/* "Second, check for an ACK: Any acknowledgment is bad if it arrives on a connection still
	 * in the LISTEN state. An acceptable reset segment should be formed." While cookies are
	 * outstanding, no reset: the ACK may belong to a peer whose handshake ACK was lost or did
	 * not fit into the backlog, and which retransmits. */
	if (seg->flags & TCP_ACK) {
		if (tcp->now_ns < l->cookie_until_ns && !(seg->flags & TCP_SYN))
			return tcp_cookie_accept(l, seg) ? TCP_PASS : TCP_DROP_ACK;
		tcp_out_rst_reply(tcp, seg);
		return TCP_DROP_NO_FLOW;
	}
	/* "Third, check for a SYN"; "Fourth, other data or control: ... drop the segment". */
	if (!(seg->flags & TCP_SYN))
		return TCP_DROP_STATE;
	if (tcp_listen_is_full(l)) {
		tcp->stats->drop_tcp_backlog++;
		return TCP_DROP_BACKLOG;
	}
	if (listen_under_pressure(l)) {
		tcp_cookie_answer(l, seg);
		return TCP_DONE;
	}
	conn = tcp_listen_embryo(l, seg);
	if (!conn)
		return TCP_DROP_STATE;
	tcp_tx_ready(conn);
	return TCP_DONE;
}
