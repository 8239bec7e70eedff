/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_cookie.c - SYN cookies (RFC 4987 section 3.6): SYN-ACKs without state.
 *
 * Theory of operation. While the backlog is not full, a SYN takes a slot, which stores all of the
 * peer's options and can retransmit the SYN-ACK. When half-open connections have used up the
 * backlog, or half of the stack's slots, the SYN-ACK is sent without a slot. It carries the state
 * to the peer, whose ACK returns it:
 *
 *	ISN	5 bits of the period's number (of 2^36 ns, 69 s), 3 bits of the MSS index, 24 bits
 *		of SipHash over 4-tuple, peer's ISN, period and MSS, with a key private to this
 *		stack
 *	TSval	its low 6 bits: window scale, SACK, ECN (only for peers with timestamps; without
 *		them, the connection has none of these). The value never exceeds the clock, so that
 *		timestamps stay monotonic
 *
 * An ACK that belongs to no connection is checked while cookies may be outstanding. The period is
 * part of the hash, so the effective secret changes with it. The current and the previous period
 * are valid, so a cookie lives 69 to 137 s. A guess succeeds for 2 periods x 8 MSS of 2^32 values
 * (2^-28). With timestamps it must also echo a TSval of the last 137 s at the 4-tuple's secret
 * offset: 2^-28 x 2^-15. The ACK then creates the connection that its SYN would have created, and
 * is processed. The table cookies_used has the most recently accepted cookies. Otherwise a
 * duplicate of the ACK would open the connection again after its end, and deliver its bytes again.
 *
 * There is no limit per source: the sources of a SYN flood are forged, and a limit would lock out
 * the real owners of these addresses.
 */
#include "transport/tcp.h"

#include <string.h>

#define COOKIE_PERIOD_SHIFT 36
#define COOKIE_PERIODS 2u /* periods during which a cookie is valid */
#define COOKIE_MAC_BITS 24
#define COOKIE_TS_BITS 6
#define COOKIE_WSCALE_NONE 15u
#define COOKIE_SACK 0x10u
#define COOKIE_ECN 0x20u

/* The peer's MSS is rounded down to one of these: 576, IPv6's 1280, tunnels, 1500, 3498, 9000. */
static const uint16_t cookie_mss[8] = {
	TCP_MSS_BYTES_MIN, 536, 1220, 1360, 1440, 1460, 3438, 8940
};

struct cookie_input {
	struct flow_key key;
	uint32_t peer_iss_seq, period, mss_index;
};
static_assert(sizeof(struct cookie_input) == sizeof(struct flow_key) + 12, "hashed: no padding");

static uint32_t cookie_period(const struct tcp *tcp)
{
	return (uint32_t)(tcp->now_ns >> COOKIE_PERIOD_SHIFT);
}

static uint32_t cookie_make(const struct tcp *tcp, const struct cookie_input *in)
{
	uint32_t mac = (uint32_t)siphash24(&tcp->cookie_secret, in, sizeof(*in));

	return in->period << 27 | in->mss_index << COOKIE_MAC_BITS |
	       (mac & ((1u << COOKIE_MAC_BITS) - 1));
}

static uint32_t cookie_mss_index(uint32_t mss_bytes)
{
	uint32_t i = 7;

	while (i > 0 && cookie_mss[i] > mss_bytes)
		i--;
	return i;
}

/* The largest TSval that carries the negotiated options and does not exceed the clock. */
static uint32_t cookie_tsval(const struct harp_conn *conn)
{
	uint32_t low = (conn->options & HARP_TCPI_WSCALE) ? conn->snd.wscale : COOKIE_WSCALE_NONE;
	uint32_t now = conn_tsval(conn), tsval;

	if (conn->options & HARP_TCPI_SACK)
		low |= COOKIE_SACK;
	if (conn->options & HARP_TCPI_ECN)
		low |= COOKIE_ECN;
	tsval = (now >> COOKIE_TS_BITS << COOKIE_TS_BITS) | low;
	return seq_gt(tsval, now) ? tsval - (1u << COOKIE_TS_BITS) : tsval;
}

void tcp_cookie_answer(struct harp_listener *l, const struct tcp_segment *syn)
{
	struct tcp *tcp = l->tcp;
	struct tcp_segment accepted = *syn; /* without the options that the cookie cannot carry */
	struct harp_conn *conn = &tcp->conns[tcp->max_conns]; /* scratch memory */
	struct cookie_input in = { .peer_iss_seq = syn->seq, .period = cookie_period(tcp) };
	uint32_t mss = syn->opt.seen & TCP_OPT_MSS ? syn->opt.mss_bytes
						   : tcp_mss_bytes_default(&syn->in->src);

	if (!(syn->opt.seen & TCP_OPT_TIMESTAMP) ||
	    (l->options.options_off & HARP_TCPI_TIMESTAMPS)) {
		accepted.opt.seen &= TCP_OPT_MSS;
		accepted.flags = TCP_SYN;
	}
	tcp_conn_blank(conn, &l->options);
	if (!tcp_listen_tuple(l, conn, syn))
		return;
	tcp_conn_begin(conn);
	tcp_syn_options(conn, &accepted);
	in.key = conn_flow_key(conn);
	in.mss_index = cookie_mss_index(mss);
	tcp_conn_iss(conn, cookie_make(tcp, &in));
	if (conn->options & HARP_TCPI_TIMESTAMPS)
		conn->ts.offset -= conn_tsval(conn) - cookie_tsval(conn);
	conn->state = HARP_TCP_SYN_RECEIVED; /* temporarily, for tcp_out_syn() */
	if (tcp_out_syn(conn) == 0) {
		tcp->stats->tcp_cookies_sent++;
		l->cookie_until_ns =
			tcp->now_ns + ((uint64_t)COOKIE_PERIODS << COOKIE_PERIOD_SHIFT);
	}
	tcp_timer_stop(conn);
	conn->state = HARP_TCP_CLOSED;
}

/* Reconstructs the SYN from this ACK. False: the cookie is not valid. */
static bool cookie_check(const struct harp_conn *conn, const struct tcp_segment *ack,
			 struct tcp_segment *syn)
{
	const struct tcp *tcp = conn->tcp;
	uint32_t cookie = ack->ack - 1, low, age_ms_max;
	struct cookie_input in = { .key = conn_flow_key(conn),
				   .peer_iss_seq = ack->seq - 1,
				   .mss_index = cookie >> COOKIE_MAC_BITS & 7 };
	bool valid = false;

	for (uint32_t i = 0; i < COOKIE_PERIODS && !valid; i++) {
		in.period = cookie_period(tcp) - i;
		valid = cookie == cookie_make(tcp, &in);
	}
	if (!valid)
		return false;
	*syn = (struct tcp_segment){ .in = ack->in, .seq = ack->seq - 1, .flags = TCP_SYN };
	syn->wnd_field = ack->wnd_field;
	syn->opt.seen = TCP_OPT_MSS;
	syn->opt.mss_bytes = cookie_mss[in.mss_index];
	if (!(ack->opt.seen & TCP_OPT_TIMESTAMP) || (conn->opts.options_off & HARP_TCPI_TIMESTAMPS))
		return true;
	age_ms_max = (uint32_t)(((uint64_t)COOKIE_PERIODS << COOKIE_PERIOD_SHIFT) / TCP_NS_PER_MS);
	if (conn_tsval(conn) - ack->opt.tsecr > age_ms_max)
		return false;
	low = ack->opt.tsecr & ((1u << COOKIE_TS_BITS) - 1);
	syn->opt.seen |= TCP_OPT_TIMESTAMP;
	syn->opt.tsval = ack->opt.tsval;
	if ((low & 15u) != COOKIE_WSCALE_NONE) {
		syn->opt.seen |= TCP_OPT_WSCALE;
		syn->opt.wscale = low & 15u;
	}
	if (low & COOKIE_SACK)
		syn->opt.seen |= TCP_OPT_SACK_PERMITTED;
	if (low & COOKIE_ECN)
		syn->flags |= TCP_ECE | TCP_CWR;
	return true;
}

bool tcp_cookie_accept(struct harp_listener *l, const struct tcp_segment *ack)
{
	struct tcp *tcp = l->tcp;
	struct harp_conn *conn = &tcp->conns[tcp->max_conns];
	uint32_t *used = &tcp->cookies_used[ack->ack % TCP_COOKIES_USED];
	struct tcp_segment syn;

	tcp_conn_blank(conn, &l->options);
	if (!tcp_listen_tuple(l, conn, ack))
		return false;
	tcp_conn_begin(conn);
	if (*used == ack->ack || !cookie_check(conn, ack, &syn)) {
		tcp->stats->tcp_cookies_refused++;
		return false;
	}
	if (tcp_listen_is_full(l)) { /* the peer retransmits its data */
		tcp->stats->drop_tcp_backlog++;
		return false;
	}
	conn = tcp_listen_embryo(l, &syn);
	if (!conn)
		return false;
	*used = ack->ack;
	tcp_conn_iss(conn, ack->ack - 1);
	conn->snd.nxt_seq = ack->ack;
	conn->flags &= ~(uint32_t)CONN_SYN_PENDING;
	conn->rcv.edge_seq = conn->rcv.nxt_seq + conn_syn_wnd_bytes(conn);
	conn->ts.echo_min = conn->ts.echo_max = conn->ts.sent =
		syn.opt.seen & TCP_OPT_TIMESTAMP ? ack->opt.tsecr : 0;
	conn->rtx_backoff = 1; /* the SYN-ACK's send time is unknown: no RTT sample */
	tcp->stats->tcp_cookies_accepted++;
	return true;
}
