/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - struct harp_tcp_options: checks, defaults, queries and changes. */
#include "socket/socket.h"

#include <errno.h>
#include <string.h>

#define OPTIONS_BACKLOG_DEFAULT 128u
#define OPTIONS_CONNECT_TIMEOUT_NS (10 * TCP_NS_PER_S)
#define OPTIONS_USER_TIMEOUT_NS (120 * TCP_NS_PER_S)
#define OPTIONS_KEEPALIVE_COUNT 8u
#define OPTIONS_DELAYED_ACK_NS_MAX (TCP_NS_PER_S / 2) /* RFC 5681 section 4.2 */
#define OPTIONS_OFF_ALL (HARP_TCPI_TIMESTAMPS | HARP_TCPI_SACK | HARP_TCPI_WSCALE)

/* Describes the first error; NULL: none. */
static const char *options_check(const struct harp_tcp_options *opt)
{
	if (opt->dscp > 63)
		return "harp_tcp_options: dscp exceeds 63";
	if (opt->mss_bytes != 0 &&
	    (opt->mss_bytes < TCP_MSS_BYTES_MIN || opt->mss_bytes > UINT16_MAX))
		return "harp_tcp_options: mss_bytes is neither 0 nor 88 to 65535";
	if (opt->options_off & ~OPTIONS_OFF_ALL)
		return "harp_tcp_options: options_off has bits other than "
		       "HARP_TCPI_TIMESTAMPS, _SACK and _WSCALE";
	if (opt->delayed_ack_ns >= OPTIONS_DELAYED_ACK_NS_MAX)
		return "harp_tcp_options: delayed_ack_ns is not below 500 ms";
	if (opt->initial_rto_ns != 0 &&
	    (opt->initial_rto_ns < TCP_RTO_NS_MIN || opt->initial_rto_ns > TCP_RTO_NS_MAX))
		return "harp_tcp_options: initial_rto_ns is neither 0 nor 5 ms to 60 s";
	return tcp_cc_check(opt);
}

static void options_defaults(struct harp_tcp_options *opt)
{
	if (opt->backlog == 0)
		opt->backlog = OPTIONS_BACKLOG_DEFAULT;
	if (opt->connect_timeout_ns == 0)
		opt->connect_timeout_ns = OPTIONS_CONNECT_TIMEOUT_NS;
	if (opt->user_timeout_ns == 0)
		opt->user_timeout_ns = OPTIONS_USER_TIMEOUT_NS;
	if (opt->keepalive_interval_ns == 0)
		opt->keepalive_interval_ns = opt->keepalive_idle_ns;
	if (opt->keepalive_count == 0)
		opt->keepalive_count = OPTIONS_KEEPALIVE_COUNT;
	if (opt->initial_rto_ns == 0)
		opt->initial_rto_ns = TCP_RTO_NS_INITIAL;
	if (opt->congestion == HARP_CONGESTION_DEFAULT)
		opt->congestion = HARP_CONGESTION_CUBIC;
}

int socket_options(const struct tcp *tcp, const struct harp_tcp_options *in,
		   struct harp_tcp_options *out)
{
	const char *error;

	*out = in ? *in : (struct harp_tcp_options){ .size = sizeof(*out) };
	if (out->size != sizeof(*out))
		return -EINVAL;
	error = options_check(out);
	if (error) {
		if (tcp->hooks->log)
			tcp->hooks->log(tcp->hooks->ctx, HARP_LOG_ERROR, error);
		return -EINVAL;
	}
	options_defaults(out);
	return 0;
}

int harp_conn_options(const struct harp_conn *conn, struct harp_tcp_options *opt)
{
	if (opt->size != sizeof(*opt))
		return -EINVAL;
	*opt = conn->opts;
	opt->rx_frames = conn->frames.rx_budget;
	opt->tx_frames = conn->frames.tx_budget;
	opt->congestion = tcp_cc_congestion(conn);
	if (opt->unsent_bytes_max == UINT32_MAX)
		opt->unsent_bytes_max = 0;
	return 0;
}

/* Returns 0 if the options may change in this state of the connection, else -errno. */
static int options_check_state(const struct harp_conn *conn, const struct harp_tcp_options *now,
			       const struct harp_tcp_options *want)
{
	if (want->ecn != now->ecn || want->options_off != now->options_off)
		return -EISCONN;
	if (!conn_synchronized(conn))
		return 0;
	if (want->connect_timeout_ns != now->connect_timeout_ns ||
	    want->initial_rto_ns != now->initial_rto_ns)
		return -EISCONN;
	/* RFC 9293 section 3.8.6: the window's right edge never moves left. */
	if (want->rx_frames != 0 && want->rx_frames < now->rx_frames)
		return -EISCONN;
	/* Without ECN; before the handshake, tcp_cc_begin() checks this. */
	if (want->congestion == HARP_CONGESTION_DCTCP && now->congestion != want->congestion &&
	    !(conn->options & HARP_TCPI_ECN))
		return -EOPNOTSUPP;
	return 0;
}

int harp_conn_set_options(struct harp_conn *conn, const struct harp_tcp_options *opt)
{
	struct harp_tcp_options now = { .size = sizeof(now) }, want;
	int err;

	if (conn->state == HARP_TCP_CLOSED)
		return conn->error ? conn->error : -EPIPE;
	(void)harp_conn_options(conn, &now);
	err = opt ? socket_options(conn->tcp, opt, &want) : -EINVAL;
	if (!err)
		err = options_check_state(conn, &now, &want);
	if (err)
		return err;
	tcp_conn_options(conn, &want);
	/* An autotuned budget that does not change stays autotuned. */
	if (want.tx_frames != now.tx_frames)
		tcp_budget_change_tx(conn, want.tx_frames);
	if (conn->flags & CONN_WANT_WRITE)
		tcp_ack_writable(conn);
	if (want.rx_frames != now.rx_frames)
		tcp_budget_change_rx(conn, want.rx_frames);
	if (want.connect_timeout_ns != now.connect_timeout_ns)
		tcp_timer_life(conn, want.connect_timeout_ns);
	if (want.initial_rto_ns != now.initial_rto_ns) /* applies to the next SYN */
		conn->rtt.rto_ns = want.initial_rto_ns;
	if (want.user_timeout_ns != now.user_timeout_ns)
		tcp_timer_user_timeout(conn);
	if (want.keepalive_idle_ns != now.keepalive_idle_ns ||
	    want.keepalive_interval_ns != now.keepalive_interval_ns ||
	    want.keepalive_count != now.keepalive_count)
		tcp_timer_keepalive(conn);
	if (want.mss_bytes != now.mss_bytes)
		tcp_mtu_limit(conn);
	if (want.congestion != now.congestion || want.fixed_window_bytes != now.fixed_window_bytes)
		tcp_cc_change(conn, want.congestion, want.fixed_window_bytes);
	return 0;
}
