/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_timer.c - round-trip times and timers: RFC 6298, persist, keepalive, user timeout, TIME-WAIT.
 *
 * Theory of operation. A connection has six deadlines and one timer in the wheel, set to the
 * earliest deadline (timer_arm()). If a deadline moves later, as with every ACK, the timer is not
 * changed: it fires early, and tcp_timer_fire() sets it again. So the common case costs a store
 * instead of a wheel operation. The functions declared in tcp.h are events; each updates the
 * deadlines that depend on it:
 *
 *	rto	retransmission timer. Its action depends on the outstanding data when it fires
 *		(timer_rto_expired()):
 *			no handshake yet	retransmits SYN or SYN-ACK
 *			data in flight		a retransmission timeout: tcp_loss_timeout()
 *			only unsent data	a window probe if the window is closed (persist);
 *						otherwise sends the data that fits
 *						(override: RFC 9293 section
 *						3.8.6.2.1)
 *			nothing			no action
 *		Set by transmissions while it is off (_sent()), and by data that waits with nothing
 *		in flight (_blocked(), _override()), whose transmission sets it again (rto.waiting);
 *		moved by ACKs of new data (_acked()) and retransmissions (_resent()); off when
 *		nothing is in flight. Each unanswered expiry doubles the next interval
 *		(rtx_backoff), until an ACK of new data or an opened window.
 *	loss	RACK's reordering timer, for peers with SACK (_loss())
 *	probe	the tail loss probe, PTO, for peers with SACK. New data and ACKs of new data restart
 *		it (timer_restart_pto()). It sends nothing while segments are marked: RACK repairs
 *		those.
 *	life	terminates: connect timeout, FIN-WAIT-2 without an application, TIME-WAIT
 *	keep	the next keepalive probe
 *	pace	new data may be sent again
 *
 * The user timeout has no deadline of its own: timer_rto_expired() checks it, and limits the next
 * rto to it. It counts from progress_ns: the last move of SND.UNA, or the time when data began to
 * wait.
 *
 * A single segment in flight is special. Its receiver may delay the ACK by TIMER_ACK_DELAY_NS to
 * wait for a second segment, so RTO and PTO are extended by that (rto.single), unless this peer has
 * often acknowledged at once (rto.single_quick). On a long path with little variance, the RTO would
 * expire before the PTO. Then the probe replaces the timeout once, and the RTO restarts after it
 * (rto.probe).
 */
#include "base/histogram.h"
#include "transport/tcp.h"

#include <errno.h>

/* Maximum delay of a single segment's ACK: Linux delays 40 ms plus a tick. */
#define TIMER_ACK_DELAY_NS (45 * TCP_NS_PER_MS)
/* After this many consecutive single segments that were acknowledged at once, no delay is
 * expected. */
#define TIMER_QUICK_SAMPLES 64u
/* RFC 8985 section 7.2: PTO = 2 * SRTT. The minimum allows for the scheduler of the peer. */
#define TIMER_PTO_NS_MIN 500000u
#define TIMER_BACKOFF_MAX 16u
/* RFC 9293 section 3.8.6.2.1: "the override timeout should be in the range 0.1 - 1.0 seconds". */
#define TIMER_OVERRIDE_NS (100 * TCP_NS_PER_MS)
#define TIMER_SUSPECT_BACKOFF 3u /* consecutive timeouts after which the next hop is suspected */

/* Saturates, because an application's timeout may exceed the range of the clock. */
static uint64_t timer_sum(uint64_t from_ns, uint64_t after_ns)
{
	return after_ns < TCP_NEVER_NS - from_ns ? from_ns + after_ns : TCP_NEVER_NS;
}

static void timer_arm(struct harp_conn *conn)
{
	uint64_t earliest_ns = conn->deadline.rto_ns;

	if (conn->deadline.loss_ns < earliest_ns)
		earliest_ns = conn->deadline.loss_ns;
	if (conn->deadline.probe_ns < earliest_ns)
		earliest_ns = conn->deadline.probe_ns;
	if (conn->deadline.life_ns < earliest_ns)
		earliest_ns = conn->deadline.life_ns;
	if (conn->deadline.keep_ns < earliest_ns)
		earliest_ns = conn->deadline.keep_ns;
	if (conn->deadline.pace_ns < earliest_ns)
		earliest_ns = conn->deadline.pace_ns;
	if (earliest_ns == TCP_NEVER_NS)
		return;
	if (!timer_is_set(&conn->timer) || earliest_ns < conn->timer.deadline_ns)
		wheel_set(conn->tcp->wheel, &conn->timer, earliest_ns);
}

void tcp_timer_init(struct harp_conn *conn)
{
	conn->timer.kind = TCP_TIMER_KIND;
	conn->deadline.rto_ns = TCP_NEVER_NS;
	conn->deadline.loss_ns = TCP_NEVER_NS;
	conn->deadline.probe_ns = TCP_NEVER_NS;
	conn->deadline.life_ns = TCP_NEVER_NS;
	conn->deadline.keep_ns = TCP_NEVER_NS;
	conn->deadline.pace_ns = TCP_NEVER_NS;
}

void tcp_timer_stop(struct harp_conn *conn)
{
	tcp_timer_init(conn);
	if (timer_is_set(&conn->timer))
		wheel_cancel(conn->tcp->wheel, &conn->timer);
}

/* True if a single segment is outstanding whose ACK may be delayed. */
static bool timer_may_be_delayed(const struct harp_conn *conn)
{
	return tcp_sndq_is_single(conn) && conn->rto.single_quick < TIMER_QUICK_SAMPLES;
}

/* The RTO for the outstanding data, including backoff. */
uint64_t tcp_timer_rto_ns(const struct harp_conn *conn)
{
	uint64_t rto_ns = conn->rtt.rto_ns;

	if (timer_may_be_delayed(conn) && rto_ns < TCP_RTO_NS_MIN + TIMER_ACK_DELAY_NS)
		rto_ns = TCP_RTO_NS_MIN + TIMER_ACK_DELAY_NS;
	rto_ns <<= conn->rtx_backoff;
	return rto_ns < TCP_RTO_NS_MAX ? rto_ns : TCP_RTO_NS_MAX;
}

void tcp_timer_rtt(struct harp_conn *conn, uint64_t rtt_ns, bool single)
{
	uint64_t delta_ns, rto_ns;

	if (conn->tcp->rtt_histogram)
		histogram_count(conn->tcp->rtt_histogram, rtt_ns);
	if (conn->rtt.srtt_ns == 0) {
		/* RFC 6298 (2.2) */
		conn->rtt.srtt_ns = rtt_ns;
		conn->rtt.rttvar_ns = rtt_ns / 2;
		conn->rtt.min_ns = rtt_ns;
	} else {
		/* (2.3): alpha = 1/8, beta = 1/4 */
		delta_ns = rtt_ns > conn->rtt.srtt_ns ? rtt_ns - conn->rtt.srtt_ns
						      : conn->rtt.srtt_ns - rtt_ns;
		conn->rtt.rttvar_ns = conn->rtt.rttvar_ns - conn->rtt.rttvar_ns / 4 + delta_ns / 4;
		conn->rtt.srtt_ns = conn->rtt.srtt_ns - conn->rtt.srtt_ns / 8 + rtt_ns / 8;
		if (rtt_ns < conn->rtt.min_ns)
			conn->rtt.min_ns = rtt_ns;
	}
	/* (2.3): "RTO <- SRTT + max (G, K*RTTVAR)", with the minimum RTO as G, because a path whose
	 * round-trip time was constant may vary. */
	rto_ns = 4 * conn->rtt.rttvar_ns;
	if (rto_ns < TCP_RTO_NS_MIN)
		rto_ns = TCP_RTO_NS_MIN;
	rto_ns += conn->rtt.srtt_ns;
	if (conn->options & HARP_TCPI_SACK)
		conn->rtt.pto_ns = conn->rtt.srtt_ns * 2 > TIMER_PTO_NS_MIN ? conn->rtt.srtt_ns * 2
									    : TIMER_PTO_NS_MIN;
	conn->rtt.rto_ns = rto_ns < TCP_RTO_NS_MAX ? rto_ns : TCP_RTO_NS_MAX;
	if (single && rtt_ns >= TCP_RTO_NS_MIN)
		conn->rto.single_quick = 0;
	else if (single && conn->rto.single_quick < TIMER_QUICK_SAMPLES)
		conn->rto.single_quick++;
}

/* ------------------------------------------------------------------------------------------------
 * Events.
 */
/* RFC 8985 section 7.2: no probe in recovery or while segments are SACKed. Data sent after a probe
 * gets another probe, which does not postpone the timeout, because the timeout must repair losses
 * that the first probe has not repaired. */
static void timer_restart_pto(struct harp_conn *conn)
{
	if (conn->rtt.pto_ns == 0 || conn->recovery != TCP_RECOVERY_NONE ||
	    conn->loss.sacked_bytes > 0 || conn->loss.lost_bytes > 0) {
		conn->deadline.probe_ns = TCP_NEVER_NS;
		return;
	}
	if (conn->rto.probe && conn->deadline.probe_ns != TCP_NEVER_NS)
		return; /* new data moves neither the timeout nor the probe that replaces it */
	conn->deadline.probe_ns = conn->tcp->now_ns + conn->rtt.pto_ns;
	if (timer_may_be_delayed(conn))
		conn->deadline.probe_ns += TIMER_ACK_DELAY_NS;
	if (conn->deadline.probe_ns < conn->deadline.rto_ns)
		return;
	/* The RTO would expire first: the probe replaces it, and the RTO restarts, once. */
	conn->deadline.probe_ns = conn->deadline.rto_ns;
	if (!conn->rto.probe && !conn->tlp.out)
		conn->deadline.rto_ns += tcp_timer_rto_ns(conn);
	conn->rto.probe = 1;
}

static void timer_restart_rto(struct harp_conn *conn)
{
	conn->rto.single = tcp_sndq_is_single(conn);
	conn->rto.probe = 0;
	conn->deadline.rto_ns = conn->tcp->now_ns + tcp_timer_rto_ns(conn);
	timer_restart_pto(conn);
	timer_arm(conn);
}

void tcp_timer_resent(struct harp_conn *conn)
{
	conn->deadline.rto_ns = conn->tcp->now_ns + tcp_timer_rto_ns(conn);
	timer_arm(conn);
}

void tcp_timer_reopened(struct harp_conn *conn)
{
	uint64_t deadline_ns;

	conn->rtx_backoff = 0;
	deadline_ns = conn->tcp->now_ns + tcp_timer_rto_ns(conn);
	if (deadline_ns < conn->deadline.rto_ns)
		conn->deadline.rto_ns = deadline_ns;
	timer_arm(conn);
}

void tcp_timer_loss(struct harp_conn *conn, uint64_t deadline_ns)
{
	conn->deadline.loss_ns = deadline_ns;
	if (deadline_ns != TCP_NEVER_NS)
		timer_arm(conn);
}

void tcp_timer_sent(struct harp_conn *conn)
{
	if (conn->deadline.rto_ns == TCP_NEVER_NS || conn->rto.waiting) {
		conn->progress_ns = conn->tcp->now_ns;
		conn->rto.waiting = 0;
		conn->rtx_backoff = 0;
		timer_restart_rto(conn); /* RFC 6298 (5.1) */
	} else if (conn->rto.single && conn->rtx_backoff == 0 && !tcp_sndq_is_single(conn)) {
		timer_restart_rto(conn); /* a second segment: its ACK is not delayed */
	} else {
		timer_restart_pto(conn);
		if (!timer_is_set(&conn->timer) ||
		    conn->deadline.probe_ns < conn->timer.deadline_ns)
			timer_arm(conn);
	}
}

void tcp_timer_acked(struct harp_conn *conn)
{
	conn->rtx_backoff = 0;
	conn->progress_ns = conn->tcp->now_ns;
	if (conn_flight_bytes(conn) == 0) {
		conn->deadline.rto_ns = TCP_NEVER_NS; /* RFC 6298 (5.2) */
		conn->deadline.loss_ns = TCP_NEVER_NS;
		conn->deadline.probe_ns = TCP_NEVER_NS;
		return;
	}
	timer_restart_rto(conn); /* (5.3) */
}

void tcp_timer_handshake(struct harp_conn *conn)
{
	if (conn->rtx_backoff == 0) {
		tcp_timer_rtt(conn, conn->tcp->now_ns - conn->progress_ns + 1, false);
	} else {
		/* RFC 6298 (5.7): 3 s instead of 1 s, because the SYN may have been retransmitted
		 * too early. The same after a SYN cookie, whose send time is unknown. */
		conn->rtt.rto_ns = conn->rtt.rto_ns * 3 < TCP_RTO_NS_MAX ? conn->rtt.rto_ns * 3
									 : TCP_RTO_NS_MAX;
	}
	tcp_timer_acked(conn);
}

void tcp_timer_blocked(struct harp_conn *conn)
{
	if (conn->deadline.rto_ns == TCP_NEVER_NS) {
		/* With an older progress_ns, the round-trip time of a SYN would be wrong, and the
		 * user timeout would expire at once. */
		conn->progress_ns = conn->tcp->now_ns;
		conn->rto.waiting = 1;
		timer_restart_rto(conn);
	}
}

void tcp_timer_override(struct harp_conn *conn)
{
	uint64_t after_ns = tcp_timer_rto_ns(conn);

	if (conn->deadline.rto_ns != TCP_NEVER_NS)
		return;
	conn->progress_ns = conn->tcp->now_ns;
	conn->rto.waiting = 1;
	conn->deadline.rto_ns =
		conn->tcp->now_ns + (after_ns > TIMER_OVERRIDE_NS ? after_ns : TIMER_OVERRIDE_NS);
	timer_arm(conn);
}

void tcp_timer_life(struct harp_conn *conn, uint64_t after_ns)
{
	conn->deadline.life_ns = timer_sum(conn->tcp->now_ns, after_ns);
	timer_arm(conn);
}

void tcp_timer_pace(struct harp_conn *conn, uint64_t after_ns)
{
	conn->deadline.pace_ns = conn->tcp->now_ns + after_ns;
	timer_arm(conn);
}

void tcp_timer_keepalive(struct harp_conn *conn)
{
	conn->keepalive_probes_out = 0;
	conn->deadline.keep_ns = TCP_NEVER_NS;
	if (conn->opts.keepalive_idle_ns == 0 || !conn_synchronized(conn) ||
	    conn->state == HARP_TCP_TIME_WAIT)
		return;
	conn->deadline.keep_ns = timer_sum(conn->last_rcv_ns, conn->opts.keepalive_idle_ns);
	timer_arm(conn);
}

void tcp_timer_user_timeout(struct harp_conn *conn)
{
	uint64_t limit_ns = timer_sum(conn->progress_ns, conn->opts.user_timeout_ns);

	/* Without backoff, the next RTO expires soon and checks the timeout. */
	if (conn->deadline.rto_ns == TCP_NEVER_NS || conn->rtx_backoff == 0)
		return;
	if (limit_ns < conn->tcp->now_ns)
		limit_ns = conn->tcp->now_ns;
	if (limit_ns >= conn->deadline.rto_ns)
		return;
	conn->deadline.rto_ns = limit_ns;
	timer_arm(conn);
}

/* ------------------------------------------------------------------------------------------------
 * Expired deadlines. The functions return false if they have terminated the connection.
 */
static bool timer_life_expired(struct harp_conn *conn)
{
	conn->deadline.life_ns = TCP_NEVER_NS;
	tcp_conn_die(conn, conn_synchronized(conn) ? 0 : -ETIMEDOUT);
	return false;
}

/* With a closed window: true if the peer has replied since the probe at probed_ns, or within the
 * user timeout. RFC 9293 MUST-37: the connection then stays open. After the application's close it
 * does not, because peers could otherwise hold slots and frames without limit (RFC 6429). */
static bool timer_is_peer_alive(const struct harp_conn *conn, uint64_t probed_ns)
{
	return (conn->flags & CONN_HANDLE) &&
	       (conn->last_rcv_ns >= probed_ns ||
		conn->tcp->now_ns - conn->last_rcv_ns < conn->opts.user_timeout_ns);
}

static bool timer_retransmit(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	/* RFC 9293 MUST-34: a retransmission beyond a shrunk window is a probe. */
	if (tcp->now_ns - conn->progress_ns >= conn->opts.user_timeout_ns &&
	    !(conn->snd.wnd_bytes == 0 && timer_is_peer_alive(conn, conn->sndq.head->sent_ns))) {
		tcp_conn_reset(conn, -ETIMEDOUT);
		return false;
	}
	if (tcp_sndq_is_single(conn))
		conn->rto.single_quick = 0;
	tcp->stats->tcp_rto++;
	conn->acct.rto_count++;
	conn->deadline.loss_ns = TCP_NEVER_NS;
	conn->deadline.probe_ns = TCP_NEVER_NS;
	tcp_mtu_timeout(conn);
	tcp_loss_timeout(conn);
	return true;
}

static bool timer_persist(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	if (tcp->now_ns - conn->progress_ns >= conn->opts.user_timeout_ns &&
	    !timer_is_peer_alive(conn, conn->persist_ns)) {
		tcp_conn_reset(conn, -ETIMEDOUT);
		return false;
	}
	if (conn->snd.wnd_bytes > 0) {
		conn->flags |= CONN_WINDOW_FORCE;
	} else {
		conn->flags |= CONN_PROBE_PENDING;
		tcp->stats->tcp_zero_window_probes++;
		conn->acct.zero_window_probes++;
	}
	conn->persist_ns = tcp->now_ns;
	return true;
}

static bool timer_rto_expired(struct harp_conn *conn)
{
	uint64_t limit_ns;

	/* The user timeout must not count the time since the deadline, in which no thread polled
	 * the stack. */
	conn->progress_ns += conn->tcp->now_ns - conn->deadline.rto_ns;
	if (conn->progress_ns > conn->tcp->now_ns)
		conn->progress_ns = conn->tcp->now_ns; /* the window has opened in this poll */
	conn->deadline.rto_ns = TCP_NEVER_NS;
	if (!conn_synchronized(conn)) {
		conn->flags |= CONN_SYN_PENDING;
		if (conn->snd.nxt_seq != conn->iss_seq) {
			/* else the SYN was not sent, because the next hop is unresolved */
			conn->tcp->stats->tcp_rto++;
			conn->acct.rto_count++;
		}
	} else if (conn_flight_bytes(conn) > 0) {
		if (!timer_retransmit(conn))
			return false;
	} else if (conn->sndq.unsent) {
		if (!timer_persist(conn))
			return false;
	} else {
		return true;
	}
	if (conn->rtx_backoff >= TIMER_SUSPECT_BACKOFF && ip_path_neighbor(&conn->path))
		neighbor_suspect(conn->tcp->eth, conn->path.neighbor, &conn->path.src);
	if (conn->rtx_backoff < TIMER_BACKOFF_MAX)
		conn->rtx_backoff++; /* RFC 6298 (5.5) */
	conn->deadline.rto_ns = conn->tcp->now_ns + tcp_timer_rto_ns(conn);
	limit_ns = timer_sum(conn->progress_ns, conn->opts.user_timeout_ns);
	if (limit_ns > conn->tcp->now_ns && limit_ns < conn->deadline.rto_ns)
		conn->deadline.rto_ns = limit_ns;
	tcp_tx_ready(conn);
	return true;
}

static bool timer_keep_expired(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	uint64_t due_ns = timer_sum(conn->last_rcv_ns, conn->opts.keepalive_idle_ns);

	if (conn->keepalive_probes_out == 0 && due_ns > tcp->now_ns) {
		conn->deadline.keep_ns = due_ns; /* segments have arrived since */
		return true;
	}
	if (conn->keepalive_probes_out >= conn->opts.keepalive_count) {
		tcp_conn_reset(conn, -ETIMEDOUT);
		return false;
	}
	conn->deadline.keep_ns = timer_sum(tcp->now_ns, conn->opts.keepalive_interval_ns);
	/* RFC 9293 section 3.8.4: "only when no sent data is outstanding", because retransmissions
	 * probe the peer, too. */
	if (conn_flight_bytes(conn) > 0)
		return true;
	conn->keepalive_probes_out++;
	conn->flags |= CONN_PROBE_PENDING;
	tcp->stats->tcp_keepalive_probes++;
	conn->acct.keepalive_probes++;
	tcp_tx_ready(conn);
	return true;
}

void tcp_timer_fire(struct harp_conn *conn)
{
	uint64_t now_ns = conn->tcp->now_ns;

	if (now_ns >= conn->deadline.life_ns && !timer_life_expired(conn))
		return;
	if (now_ns >= conn->deadline.rto_ns && !timer_rto_expired(conn))
		return;
	if (now_ns >= conn->deadline.loss_ns) {
		conn->deadline.loss_ns = TCP_NEVER_NS;
		tcp_rack_timeout(conn);
	}
	if (now_ns >= conn->deadline.probe_ns) {
		conn->deadline.probe_ns = TCP_NEVER_NS;
		tcp_rack_probe_timeout(conn);
	}
	if (now_ns >= conn->deadline.keep_ns && !timer_keep_expired(conn))
		return;
	if (now_ns >= conn->deadline.pace_ns) {
		conn->deadline.pace_ns = TCP_NEVER_NS;
		tcp_tx_ready(conn);
	}
	timer_arm(conn);
}
