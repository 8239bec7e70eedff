/* SPDX-License-Identifier: Apache-2.0 */
/* conn.c - the application's interface to connections: opens, sends, closes, reports. */
#include "socket/socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

/* the longest tick of a timestamp clock: RFC 7323 section 5.4 */
#define CONN_REOPEN_NS TCP_NS_PER_S

/* ------------------------------------------------------------------------------------------------
 * Opening.
 */
/*
 * True if the connection, which is new, may replace the old one in TIME-WAIT (RFC 6191 for the
 * active opener, like Linux's tcp_tw_reuse). If the new connection's timestamps are greater, PAWS
 * rejects old segments. This is not certain for an accepted connection, whose timestamps may come
 * from a SYN cookie.
 */
static bool conn_may_replace(const struct harp_conn *conn, const struct harp_conn *old)
{
	return old->on_list.time_wait && !(old->flags & CONN_PASSIVE) &&
	       (old->options & ~conn->opts.options_off & HARP_TCPI_TIMESTAMPS) &&
	       old->tcp->now_ns - old->ts.recent_ns >= CONN_REOPEN_NS;
}

static bool conn_is_tuple_free(void *ctx, uint16_t port)
{
	struct harp_conn *conn = ctx;
	struct flow_key key = conn_flow_key(conn);
	uint32_t index;

	if (tcp_listener_find(conn->tcp, &conn->path.src, port))
		return false;
	key.local_port = port;
	index = flow_find(&conn->tcp->flows, &key);
	return index == FLOW_NONE || conn_may_replace(conn, &conn->tcp->conns[index]);
}

/* Acquires local_port; 0: chooses one. */
static int conn_acquire_port(struct harp_conn *conn, uint16_t local_port)
{
	struct tcp *tcp = conn->tcp;
	struct flow_key peer;
	int port;

	if (local_port != 0) {
		if (!conn_is_tuple_free(conn, local_port))
			return -EADDRINUSE;
		conn->local_port = local_port;
		return port_get(&tcp->ports, local_port);
	}
	peer = conn_flow_key(conn);
	port = port_choose(&tcp->ports, &peer, conn_is_tuple_free, conn);
	conn->local_port = (uint16_t)port;
	return port < 0 ? port : 0;
}

/* Replaces a connection in TIME-WAIT with the same 4-tuple, if any. */
static void conn_bind(struct harp_conn *conn)
{
	struct flow_key key = conn_flow_key(conn);
	uint32_t index = flow_find(&conn->tcp->flows, &key), old_nxt_seq;

	if (index == FLOW_NONE) {
		tcp_conn_bind(conn);
		return;
	}
	old_nxt_seq = conn->tcp->conns[index].snd.nxt_seq;
	tcp_conn_die(&conn->tcp->conns[index], 0);
	tcp_conn_bind(conn);
	tcp_conn_iss_beyond(conn, old_nxt_seq);
}

int conn_connect(struct tcp *tcp, const struct harp_endpoint *local,
		 const struct harp_endpoint *remote, const struct harp_tcp_options *opt,
		 struct harp_conn **out)
{
	struct harp_tcp_options options;
	struct harp_conn *conn;
	int err = socket_options(tcp, opt, &options);

	if (err)
		return err;
	/* Not to an own address, because the stack has no loopback. */
	if (remote->port == 0 || addr_is_any(&remote->addr) || ip_is_own(tcp->ip, &remote->addr) ||
	    !ip_scope_valid(tcp->ip, &remote->addr, remote->scope_id))
		return -EINVAL;
	if (local && !ip_scope_valid(tcp->ip, &local->addr, local->scope_id))
		return -EADDRNOTAVAIL;
	conn = tcp_conn_alloc(tcp, &options);
	if (!conn)
		return -ENOSPC;
	conn->path.dst = remote->addr;
	if (local && !addr_is_any(&local->addr))
		conn->path.src = local->addr;
	conn->remote_port = remote->port;
	err = ip_path_lookup(tcp->ip, &conn->path);
	if (!err)
		err = conn_acquire_port(conn, local ? local->port : 0);
	if (err) {
		TAILQ_INSERT_HEAD(&tcp->free_conns, conn, link.owner);
		return err;
	}
	conn_bind(conn);
	conn->flags |= CONN_HANDLE | CONN_SYN_PENDING;
	tcp_state_set(conn, HARP_TCP_SYN_SENT);
	tcp->stats->tcp_active_opens++;
	tcp_timer_life(conn, options.connect_timeout_ns);
	tcp_tx_ready(conn);
	*out = conn;
	return 0;
}

struct harp_conn *conn_next_event(struct tcp *tcp, uint32_t *events)
{
	struct harp_conn *conn = TAILQ_FIRST(&tcp->events);

	if (!conn)
		return NULL;
	TAILQ_REMOVE(&tcp->events, conn, link.event);
	conn->on_list.event = 0;
	*events = conn->events;
	conn->events = 0;
	return conn;
}

/* ------------------------------------------------------------------------------------------------
 * Sending.
 */
int socket_send_state(const struct harp_conn *conn)
{
	if (conn->flags & CONN_FIN_WANTED)
		return conn->error ? conn->error : -EPIPE;
	switch (conn->state) {
	case HARP_TCP_SYN_SENT:
	case HARP_TCP_SYN_RECEIVED:
		return -ENOTCONN;
	case HARP_TCP_ESTABLISHED:
	case HARP_TCP_CLOSE_WAIT:
		return 0;
	default:
		return conn->error ? conn->error : -EPIPE;
	}
}

void socket_want_write(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	conn->flags |= CONN_WANT_WRITE;
	/* With free budget, the connection waits for frames that others return to the pool. */
	if (conn->frames.tx_held < conn->frames.tx_budget && !conn->on_list.pool) {
		TAILQ_INSERT_TAIL(&tcp->pool_waiters, conn, link.pool);
		conn->on_list.pool = 1;
	}
}

/* If more than the limit is to be sent, the limit is rounded down to full-sized segments, so that
 * the last segment is not sent short. */
size_t socket_unsent_room(const struct harp_conn *conn, size_t bytes)
{
	uint32_t unsent = conn_unsent_bytes(conn), limit = conn->opts.unsent_bytes_max;

	if (unsent + bytes > limit && limit >= conn->snd.mss_bytes)
		limit -= limit % conn->snd.mss_bytes;
	return limit > unsent ? limit - unsent : 0;
}

ssize_t harp_conn_send(struct harp_conn *conn, const struct iovec *iov, int iov_count)
{
	size_t done = 0, bytes = 0, room;
	int err = socket_send_state(conn);

	if (err)
		return err;
	if (iov_count < 0)
		return -EINVAL;
	for (int i = 0; i < iov_count; i++)
		bytes += iov[i].iov_len;
	room = socket_unsent_room(conn, bytes);
	for (int i = 0; i < iov_count; i++) {
		size_t len = iov[i].iov_len < room ? iov[i].iov_len : room;
		size_t n = tcp_sndq_copy(conn, iov[i].iov_base, len);

		done += n;
		room -= n;
		if (n < len) {
			socket_want_write(conn);
			break;
		}
		if (len < iov[i].iov_len) {
			/* tcp_tx_phase() reports when there is space */
			conn->flags |= CONN_WANT_WRITE;
			break;
		}
	}
	if (done == 0)
		return (conn->flags & CONN_WANT_WRITE) ? -EAGAIN : 0;
	tcp_sndq_note_send(conn, done == bytes);
	tcp_tx_ready(conn);
	return (ssize_t)done;
}

size_t harp_conn_send_space(const struct harp_conn *conn)
{
	size_t room, unsent_room;

	if (socket_send_state(conn) != 0)
		return 0;
	room = tcp_sndq_space(conn);
	unsent_room = socket_unsent_room(conn, 0);
	return room < unsent_room ? room : unsent_room;
}

/* ------------------------------------------------------------------------------------------------
 * Ending.
 */
int harp_conn_shutdown(struct harp_conn *conn, int how)
{
	if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
		return -EINVAL;
	if (conn->state == HARP_TCP_CLOSED)
		return conn->error ? conn->error : -EPIPE;
	if (how != SHUT_WR) {
		conn->flags |= CONN_READ_SHUT;
		tcp_rcvq_discard(conn);
	}
	if (how != SHUT_RD) {
		conn->flags |= CONN_FIN_WANTED;
		tcp_tx_ready(conn);
	}
	return 0;
}

static void conn_drop_handle(struct harp_conn *conn)
{
	conn->flags &= ~(uint32_t)(CONN_HANDLE | CONN_WANT_WRITE);
	if (conn->on_list.event) {
		TAILQ_REMOVE(&conn->tcp->events, conn, link.event);
		conn->on_list.event = 0;
	}
}

void harp_conn_close(struct harp_conn *conn)
{
	bool unread;

	if (!conn)
		return;
	unread = conn->rcvq.head != NULL;
	conn_drop_handle(conn);
	switch (conn->state) {
	case HARP_TCP_CLOSED:
		tcp_conn_free(conn);
		return;
	case HARP_TCP_SYN_SENT:
	case HARP_TCP_SYN_RECEIVED:
		tcp_conn_reset(conn, -ECONNABORTED);
		return;
	case HARP_TCP_TIME_WAIT:
		tcp_rcvq_purge(conn);
		tcp_time_wait_add(conn);
		return;
	default:
		break;
	}
	if (unread) {
		/* RFC 2525 section 2.17: sends an RST, because received data is discarded. */
		tcp_conn_reset(conn, -ECONNRESET);
		return;
	}
	tcp_reass_purge(conn);
	conn->flags |= CONN_FIN_WANTED;
	if (conn->state == HARP_TCP_FIN_WAIT_2)
		tcp_timer_life(conn, TCP_FIN_WAIT_2_NS);
	tcp_tx_ready(conn);
}

void harp_conn_abort(struct harp_conn *conn)
{
	if (!conn)
		return;
	conn_drop_handle(conn);
	if (conn->state == HARP_TCP_CLOSED)
		tcp_conn_free(conn);
	else
		tcp_conn_reset(conn, -ECONNABORTED);
}

int harp_conn_error(const struct harp_conn *conn)
{
	return conn->error;
}

void *harp_conn_user(const struct harp_conn *conn)
{
	return conn->opts.user;
}

void harp_conn_set_user(struct harp_conn *conn, void *user)
{
	conn->opts.user = user;
}

void harp_conn_endpoints(const struct harp_conn *conn, struct harp_endpoint *local,
			 struct harp_endpoint *remote)
{
	const struct ip *ip = conn->tcp->ip;

	if (local)
		*local = (struct harp_endpoint){ .addr = conn->path.src,
						 .port = conn->local_port,
						 .scope_id = ip_scope_id(ip, &conn->path.src) };
	if (remote)
		*remote = (struct harp_endpoint){ .addr = conn->path.dst,
						  .port = conn->remote_port,
						  .scope_id = ip_scope_id(ip, &conn->path.dst) };
}

uint64_t harp_conn_acked_bytes(const struct harp_conn *conn)
{
	return conn->acct.bytes_acked;
}

void harp_conn_acknowledge(struct harp_conn *conn)
{
	if (conn->flags & CONN_ACK_PENDING)
		tcp_delack_request(conn, false);
}

int harp_conn_probe(struct harp_conn *conn)
{
	if (conn->state == HARP_TCP_CLOSED)
		return conn->error ? conn->error : -EPIPE;
	if (!conn_synchronized(conn) || conn->state == HARP_TCP_TIME_WAIT)
		return -ENOTCONN;
	conn->flags |= CONN_PROBE_PENDING;
	conn->tcp->stats->tcp_keepalive_probes++;
	conn->acct.keepalive_probes++;
	tcp_tx_ready(conn);
	return 0;
}

const char *harp_ca_state_name(enum harp_ca_state state)
{
	static const char *const names[] = {
		[HARP_CA_OPEN] = "open", [HARP_CA_DISORDER] = "disorder",
		[HARP_CA_CWR] = "cwr",   [HARP_CA_RECOVERY] = "recovery",
		[HARP_CA_LOSS] = "loss",
	};

	return (unsigned)state < ARRAY_SIZE(names) ? names[state] : "?";
}

static enum harp_ca_state conn_ca_state(const struct harp_conn *conn)
{
	switch ((enum tcp_recovery)conn->recovery) {
	case TCP_RECOVERY_FAST:
		return HARP_CA_RECOVERY;
	case TCP_RECOVERY_RTO:
		return HARP_CA_LOSS;
	case TCP_RECOVERY_CWR:
		return HARP_CA_CWR;
	case TCP_RECOVERY_NONE:
		break;
	}
	return conn->loss.sacked_bytes || conn->loss.lost_bytes || conn->snd.dup_acks
		       ? HARP_CA_DISORDER
		       : HARP_CA_OPEN;
}

void harp_conn_info(const struct harp_conn *conn, struct harp_tcp_info *info)
{
	const struct tcp_marks marks = tcp_sack_marks(conn);

	*info = conn->acct;
	info->state = conn->state;
	info->options = conn->options;
	info->snd_mss_bytes = conn->snd.mss_bytes;
	info->rcv_mss_bytes = conn->rcv.mss_bytes;
	info->snd_wscale = conn->snd.wscale;
	info->rcv_wscale = conn->rcv.wscale;
	info->srtt_ns = conn->rtt.srtt_ns;
	info->rttvar_ns = conn->rtt.rttvar_ns;
	info->rtt_ns_min = conn->rtt.min_ns;
	info->rto_ns = tcp_timer_rto_ns(conn);
	info->snd_cwnd_bytes = conn->cc.cwnd_bytes;
	info->snd_ssthresh_bytes = conn->cc.ssthresh_bytes;
	info->snd_wnd_bytes = conn->snd.wnd_bytes;
	info->rcv_wnd_bytes = conn_rcv_wnd_bytes(conn);
	info->bytes_in_flight = conn_flight_bytes(conn);
	if (conn_synchronized(conn))
		info->bytes_unsent = conn->snd.end_seq - conn->snd.nxt_seq;
	info->rx_frames_held = conn->frames.rx_held;
	info->rx_frames_budget = conn->frames.rx_budget;
	info->tx_frames_held = conn->frames.tx_held;
	info->tx_frames_budget = conn->frames.tx_budget;
	info->last_rcv_ns = conn->last_rcv_ns;
	info->congestion = tcp_cc_congestion(conn);
	info->dctcp_alpha_ppm = cc_dctcp_alpha_ppm(&conn->cc);
	info->pacing_bytes_per_s = conn->cc.pacing_bytes_per_s;
	info->sacked_bytes = conn->loss.sacked_bytes;
	info->reorder_window_ns = tcp_rack_window_ns(conn);
	info->ca_state = conn_ca_state(conn);
	info->backoff = conn->rtx_backoff;
	info->sacked_out_segs = conn->loss.sacked_segs;
	info->lost_out_segs = marks.lost_segs;
	info->retrans_out_segs = marks.retrans_segs;
}

void harp_conn_set_label(struct harp_conn *conn, const char *label)
{
	snprintf(conn->page.label, sizeof(conn->page.label), "%s", label);
}
