/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_cc.c - selects a connection's congestion controller, and paces new data.
 *
 * Pacing. A window that arrives in one burst overflows a short queue; spread over the round trip it
 * does not. New data is therefore paced at 1.2 windows per round trip, in slow start at 2, like in
 * Linux. These rates exceed the average rate, so the window remains the limit. After a pause, a
 * connection may send TCP_PACE_BURST_NS of its rate at once, and at least the quota of one transmit
 * phase. If the round trip is shorter than CC_PACE_RTT_NS_MIN, that is the entire window, and no
 * rate is computed.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

/* 1.2 windows per round trip and bursts of 250 us: below 300 us the burst is the whole window. */
#define CC_PACE_RTT_NS_MIN (TCP_PACE_BURST_NS * 6 / 5)
/* RFC 5681 section 4.1 reduces the window after an idle time of one RTO, which is at least a second
 * in RFC 6298. Our RTO is shorter, but the path has hardly changed within a second. */
#define CC_IDLE_NS_MIN TCP_NS_PER_S

static const struct cc_ops *const cc_controllers[] = {
	[HARP_CONGESTION_NEWRENO] = &cc_newreno, [HARP_CONGESTION_CUBIC] = &cc_cubic,
	[HARP_CONGESTION_DCTCP] = &cc_dctcp,     [HARP_CONGESTION_DELAY] = &cc_delay,
	[HARP_CONGESTION_FIXED] = &cc_fixed,
};
#define CC_CONTROLLERS ARRAY_SIZE(cc_controllers)

const char *harp_congestion_name(enum harp_congestion congestion)
{
	if (congestion == HARP_CONGESTION_DEFAULT)
		return "default";
	return (unsigned)congestion < CC_CONTROLLERS ? cc_controllers[congestion]->name : "?";
}

int harp_congestion_from_name(const char *name)
{
	for (unsigned i = 0; i < CC_CONTROLLERS; i++)
		if (strcmp(name, harp_congestion_name((enum harp_congestion)i)) == 0)
			return (int)i;
	return -EINVAL;
}

const char *tcp_cc_check(const struct harp_tcp_options *opt)
{
	if (opt->congestion >= CC_CONTROLLERS)
		return "harp_tcp_options: congestion is not in enum harp_congestion";
	if (opt->ecn > HARP_ECN_REQUEST)
		return "harp_tcp_options: ecn is not in enum harp_ecn";
	if (opt->congestion == HARP_CONGESTION_DCTCP && opt->ecn == HARP_ECN_OFF)
		return "harp_tcp_options: congestion dctcp needs ecn";
	if (opt->congestion == HARP_CONGESTION_FIXED &&
	    (opt->fixed_window_bytes == 0 || opt->fixed_window_bytes > CC_WINDOW_BYTES_MAX))
		return "harp_tcp_options: congestion fixed needs fixed_window_bytes, 1 to 2^30";
	if (opt->congestion != HARP_CONGESTION_FIXED && opt->fixed_window_bytes != 0)
		return "harp_tcp_options: fixed_window_bytes is for congestion fixed";
	return NULL;
}

static struct cc cc_select(uint32_t congestion, uint32_t fixed_window_bytes)
{
	return (struct cc){ .ops = cc_controllers[congestion], .priv = { fixed_window_bytes } };
}

void tcp_cc_select(struct harp_conn *conn, uint32_t congestion, uint32_t fixed_window_bytes)
{
	conn->cc = cc_select(congestion, fixed_window_bytes);
}

enum harp_congestion tcp_cc_congestion(const struct harp_conn *conn)
{
	unsigned i = HARP_CONGESTION_NEWRENO;

	while (i < CC_CONTROLLERS - 1 && cc_controllers[i] != conn->cc.ops)
		i++;
	return (enum harp_congestion)i;
}

/* The event for a controller's initialization. */
static struct cc_event cc_begin_event(const struct harp_conn *conn)
{
	return (struct cc_event){ .now_ns = conn->tcp->now_ns,
				  .mss_bytes = conn->snd.mss_bytes,
				  .snd_una_seq = conn->snd.una_seq,
				  .snd_nxt_seq = conn->snd.nxt_seq,
				  .srtt_ns = conn->rtt.srtt_ns,
				  .rtt_ns_min = conn->rtt.min_ns };
}

void tcp_cc_begin(struct harp_conn *conn)
{
	struct cc_event ev = cc_begin_event(conn);

	/* Without ECN, DCTCP (RFC 8257) would respond to loss only. */
	if (conn->cc.ops == &cc_dctcp && !(conn->options & HARP_TCPI_ECN))
		conn->cc.ops = &cc_cubic;
	conn->cc.ops->init(&conn->cc, &ev);
	/* RFC 6928 section 2: the initial window is one segment after "more than one SYN or SYN/ACK
	 * retransmissions". */
	if (conn->acct.rto_count > 1 && !conn->cc.ops->constant)
		conn->cc.cwnd_bytes = conn->snd.mss_bytes;
}

/* As in Linux, the new controller takes over cwnd and ssthresh, but no other state. A constant
 * window says nothing about the path, so nothing is taken over from or by it. */
static void cc_replace(struct cc *cc, const struct cc *chosen, const struct cc_event *ev)
{
	struct cc old = *cc;

	*cc = *chosen;
	cc->ops->init(cc, ev);
	if (old.ops->constant || cc->ops->constant)
		return;
	cc->cwnd_bytes = old.cwnd_bytes;
	cc->ssthresh_bytes = old.ssthresh_bytes;
}

void tcp_cc_change(struct harp_conn *conn, uint32_t congestion, uint32_t fixed_window_bytes)
{
	const struct cc chosen = cc_select(congestion, fixed_window_bytes);
	struct cc_event ev = cc_begin_event(conn);

	if (!conn_synchronized(conn)) { /* tcp_cc_begin() follows */
		conn->cc = chosen;
		return;
	}
	cc_replace(&conn->cc, &chosen, &ev);
	if (conn->undo.open) /* otherwise loss_undo() would restore the old controller */
		cc_replace(&conn->undo.cc, &chosen, &ev);
	tcp_cc_pace(conn);
	tcp_tx_ready(conn);
}

void tcp_cc_restart(struct harp_conn *conn)
{
	uint64_t idle_ns = conn->tcp->now_ns - conn->progress_ns;
	uint32_t restart;

	if (idle_ns < CC_IDLE_NS_MIN || idle_ns < conn->rtt.rto_ns || conn->cc.ops->constant)
		return;
	/* RFC 5681 section 4.1: RW = min(IW,cwnd); ssthresh does not change. */
	restart = cc_initial_window_bytes(conn->snd.mss_bytes);
	if (conn->cc.cwnd_bytes > restart)
		conn->cc.cwnd_bytes = restart;
}

/* ------------------------------------------------------------------------------------------------
 * Pacing.
 */
void tcp_cc_pace(struct harp_conn *conn)
{
	struct cc *cc = &conn->cc;

	if (conn->rtt.srtt_ns < CC_PACE_RTT_NS_MIN || cc->ops->constant) {
		cc->pacing_bytes_per_s = 0;
		return;
	}
	cc->pacing_bytes_per_s =
		cc->cwnd_bytes *
		(cc->cwnd_bytes < cc->ssthresh_bytes ? 2000000000u : 1200000000ull) /
		conn->rtt.srtt_ns;
}

bool tcp_cc_pace_admits(struct harp_conn *conn, uint32_t bytes)
{
	uint64_t rate = conn->cc.pacing_bytes_per_s, now_ns = conn->tcp->now_ns;
	int64_t burst = (int64_t)(rate * TCP_PACE_BURST_NS / TCP_NS_PER_S), credit_max, wait;
	uint64_t passed_ns = now_ns - conn->pace.credit_ns, passed_ns_max;

	if (conn->pace.credit_bytes >= bytes)
		return true;
	/* After a pause, a full quota may be sent at once. After a wait for credit, two segments,
	 * or TCP_PACE_BURST_NS of the rate if that is more. */
	credit_max = (int64_t)TCP_TX_QUOTA_SEGMENTS * conn->snd.mss_bytes;
	if (credit_max < burst)
		credit_max = burst;
	if (burst < 2 * conn->snd.mss_bytes)
		burst = 2 * conn->snd.mss_bytes;
	/* Retransmissions use credit, too, and may have made it negative. */
	if (conn->pace.credit_bytes < -credit_max)
		conn->pace.credit_bytes = -credit_max;
	passed_ns_max = (uint64_t)credit_max * 2 * TCP_NS_PER_S / (rate + 1) + 1;
	conn->pace.credit_bytes +=
		(int64_t)((passed_ns < passed_ns_max ? passed_ns : passed_ns_max) * rate /
			  TCP_NS_PER_S);
	if (conn->pace.credit_bytes > credit_max)
		conn->pace.credit_bytes = credit_max;
	conn->pace.credit_ns = now_ns;
	if (conn->pace.credit_bytes >= bytes)
		return true;
	wait = burst - conn->pace.credit_bytes;
	tcp_timer_pace(conn, (uint64_t)wait * TCP_NS_PER_S / (rate + 1) + 1);
	conn->tcp->stats->tcp_paced++;
	return false;
}
