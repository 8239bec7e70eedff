/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_conn.h - one connection: flags, state, and its layout in cache lines.
 *
 * Included by tcp.h. The receive queue and the reassembly list are singly linked lists of frames
 * (by ->next); tcp_sndq.h describes the send queue.
 *
 * RFC variables and their names here:
 *	RCV.WND			rcv.edge_seq - rcv.nxt_seq, conn_rcv_wnd_bytes()
 *	MAX.SND.WND		snd_wnd_max_bytes (RFC 5961)
 *	Eff.snd.MSS		snd.mss_bytes
 *	Last.ACK.sent		rcv.acked_seq (RFC 7323)
 *	FlightSize, pipe	conn_flight_bytes(), tcp_loss_pipe_bytes()
 *	recover, RecoveryPoint	loss.recover_seq (RFC 6582, 6675)
 *	RACK.xmit_ts		rack.sent_ns (RFC 8985)
 *	RACK.min_RTT		rtt.min_ns
 *	RACK.reo_wnd_mult	rack.mult
 *	RACK.dsack_round	rack.dsack_seq, while rack.dsack_round
 *	TLP.end_seq		tlp.end_seq, while tlp.out
 *	TLP.is_retrans		tlp.is_retrans
 *	RecoverFS		prr.flight_bytes (RFC 9937)
 */
#ifndef HARP_TRANSPORT_TCP_CONN_H
#define HARP_TRANSPORT_TCP_CONN_H

#include <assert.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/wheel.h"
#include "network/ip.h"
#include "transport/cc.h"
#include "transport/flow.h"
#include "transport/tcp_options.h"

/* Bits of conn->flags. */
enum conn_flag {
	/* Application and origin. */
	CONN_HANDLE = 0x00000001,  /* the application or an accept queue has a handle */
	CONN_PASSIVE = 0x00000002, /* opened by a listener */
	CONN_ESTABLISHED_ONCE = 0x00000800,
	CONN_WANT_WRITE = 0x00000100, /* the application got -EAGAIN */
	CONN_ECHO_LOOSE = 0x00010000, /* the handshake's ACK did not echo our timestamp */
	/* Shutdown. */
	CONN_FIN_WANTED = 0x00000004,   /* shutdown or close was called */
	CONN_FIN_QUEUED = 0x00000008,   /* the FIN is in the send queue */
	CONN_FIN_RECEIVED = 0x00000010, /* the peer's FIN was received in order */
	CONN_FIN_OOO = 0x00001000,      /* a FIN was received out of order, at rcv_fin_seq */
	CONN_READ_SHUT = 0x00020000,    /* shutdown(SHUT_RD): received bytes are discarded */
	/* Pending output. */
	CONN_SYN_PENDING = 0x00000020,   /* SYN or SYN-ACK */
	CONN_PROBE_PENDING = 0x00000200, /* a keepalive or window probe */
	CONN_TLP_PENDING = 0x00100000,   /* a tail loss probe */
	CONN_ACK_PENDING = 0x00000040,   /* an ACK is due */
	CONN_ACK_NOW = 0x00000080,       /* it must be sent in the next transmit phase */
	CONN_ACK_HELD = 0x00008000,      /* it may wait until delack.due_ns */
	CONN_PUSH = 0x00004000,          /* the send queue ends with the end of a send call */
	/* Limits of the sender. */
	CONN_CWND_LIMITED = 0x00000400, /* limited by the congestion window, until limited_seq */
	/* the override timer has expired: send a partial segment that the peer's window allows */
	CONN_WINDOW_FORCE = 0x00002000,
	/* ECN. */
	CONN_ECN_IN = 0x01000000,      /* negotiated for receiving: CE marks are echoed */
	CONN_ECN_ECHO = 0x02000000,    /* ECE is due: see tcp_ecn.c */
	CONN_ECN_CWR = 0x04000000,     /* CWR is due, on the next new data */
	CONN_ECN_OFFERED = 0x08000000, /* one of our SYNs offered ECN */
	CONN_ECN_PLAIN = 0x10000000,   /* one of our SYNs did not offer ECN */
};

enum tcp_recovery {
	TCP_RECOVERY_NONE = 0,
	TCP_RECOVERY_FAST, /* segments were lost; until SND.UNA reaches loss.recover_seq */
	TCP_RECOVERY_RTO,  /* after a timeout; until SND.UNA reaches loss.recover_seq */
	/* the window is reduced without retransmissions: ECN, or a probe repaired the loss */
	TCP_RECOVERY_CWR,
};

enum tcp_mtu {
	MTU_IDLE = 0, /* at the largest size */
	MTU_SEARCH,   /* a probe may be sent at mtu.next_ns */
	MTU_PROBING,  /* a probe is in flight */
};

#define TCP_SKIP_ENTRIES 64u
#define TCP_SACK_RANGES 32u
#define TCP_RETRANS_ENTRIES 128u

/* The sender's scoreboard: see tcp_sack.c and tcp_rack.c. Not touched on the fast path. */
struct tcp_scoreboard {
	/* skip index: every skip_step-th segment sent, oldest at skip_first */
	struct {
		uint32_t seq, frame;
	} skip[TCP_SKIP_ENTRIES];
	struct tcp_sack_block range[TCP_SACK_RANGES]; /* sorted; all their segments are SACKed */
	struct {
		uint32_t seq, frame;
	} resent[TCP_RETRANS_ENTRIES]; /* retransmitted segments, by time of transmission */
	uint32_t skip_first, skip_count, skip_step;
	uint32_t range_count;
	uint32_t resent_first, resent_count;
	bool resent_untracked; /* the array lacks retransmissions, because it was full */
};

struct harp_conn {
	/* Cache line 0: read for every received segment, written for most. */
	struct tcp *tcp;
	struct { /* RFC 9293 section 3.3.1 */
		uint32_t una_seq, nxt_seq;
		uint32_t end_seq; /* after the last queued byte or FIN */
		uint32_t wnd_bytes, wl1_seq, wl2_seq;
		uint16_t mss_bytes;
		uint8_t wscale;
		uint8_t dup_acks;
	} snd;
	struct {
		uint32_t nxt_seq;
		uint32_t edge_seq;  /* right edge of the advertised window */
		uint32_t acked_seq; /* the last acknowledgment number sent */
		uint16_t mss_bytes;
		uint8_t wscale;
		uint8_t full_segs_unacked; /* full-sized segments since the last ACK was sent */
	} rcv;
	uint32_t flags;      /* enum conn_flag */
	uint8_t state;       /* enum harp_tcp_state; written by tcp_state_set() only */
	uint8_t recovery;    /* enum tcp_recovery */
	uint8_t options;     /* negotiated HARP_TCPI_* */
	uint8_t rtx_backoff; /* RFC 6298 (5.5): number of times the timer was doubled */
	uint8_t loss_open;   /* ACKs take the slow path: see tcp_loss.c */
	uint16_t skip_left;  /* segments until the next entry of the skip index */

	/* Cache line 1: the queues. */
	struct {                      /* the send queue: tcp_sndq.h */
		struct frame *head;   /* oldest segment not acknowledged */
		struct frame *unsent; /* first segment never sent */
		struct frame *tail;
	} sndq;
	struct { /* received in order, not yet read */
		struct frame *head, *tail;
	} rcvq;
	struct { /* frames of the pool, and their limits: tcp_budget.c */
		uint32_t tx_held, tx_budget;
		uint32_t rx_held, rx_budget;
		uint32_t reass_held; /* part of rx_held: frames of the reassembly list */
		/* payload per frame of full-sized segments; converts frames to window bytes */
		uint32_t rx_payload_bytes;
	} frames;

	/* Cache lines 2 and 3: output. */
	struct cc cc;

	/* From cache line 4 on: other state for ACKs, timers and transmission. */
	struct { /* TCP_NEVER_NS: off */
		/* The retransmission timer. Its action on expiry (retransmission, SYN, persist or
		 * override) depends on the outstanding data: timer_rto_expired(). */
		uint64_t rto_ns;
		uint64_t loss_ns;  /* the reordering timer (RFC 8985 section 6.2 step 5) */
		uint64_t probe_ns; /* the tail loss probe (section 7.2) */
		uint64_t life_ns;  /* connect timeout, FIN-WAIT-2, TIME-WAIT */
		uint64_t keep_ns;
		uint64_t pace_ns; /* pacing: new data may be sent again */
	} deadline;
	struct { /* RFC 6298 */
		uint64_t srtt_ns, rttvar_ns, min_ns;
		uint64_t rto_ns; /* without backoff */
		/* PTO with more than one segment in flight (RFC 8985 section 7.2); 0: no sample */
		uint64_t pto_ns;
	} rtt;
	uint64_t last_rcv_ns;
	uint64_t progress_ns; /* when SND.UNA last moved, or when data began to wait */

	uint16_t local_port, remote_port;
	struct { /* cache of out_window_field(): the last window field, and its inputs */
		uint32_t nxt_seq, edge_seq, held_frames;
		uint16_t field;
	} advertised;
	struct {                             /* RFC 7323 timestamps */
		uint32_t offset;             /* offset of our timestamps */
		uint32_t echo_min, echo_max; /* range that the peer may echo: see tcp_check.c */
		uint32_t sent;
		uint32_t echo;   /* TSecr of the ACK being processed */
		uint32_t recent; /* TS.Recent, set at recent_ns */
		uint64_t recent_ns;
	} ts;
	struct { /* loss detection and retransmission: tcp_loss.c */
		/* no earlier segment is SEG_LOST; if rtx_seq is before SND.UNA, sndq.head */
		struct frame *rtx_next;
		/* where RACK continues its walk over segments that were sent once */
		struct frame *rack_next;
		uint32_t rtx_seq; /* sequence number of rtx_next */
		uint32_t rack_next_seq;
		uint32_t recover_seq;
		uint32_t sacked_bytes, sacked_segs; /* marked SEG_SACKED */
		uint32_t lost_bytes;                /* marked SEG_LOST */
		/* bytes that have left the network according to duplicate ACKs without SACK */
		uint32_t dup_acked_bytes;
		uint32_t retrans_end_seq; /* end of the last retransmitted segment */
		/* segments retransmitted in the last recovery, up to 255: tcp_dupack.c */
		uint8_t resent_segs;
		uint8_t rtx_force; /* retransmit one segment regardless of the window */
	} loss;
	struct {
		int64_t credit_bytes; /* may be sent at once; computed at credit_ns */
		uint64_t credit_ns;
	} pace;
	struct {                 /* delayed ACKs: tcp_delack.c */
		uint64_t due_ns; /* CONN_ACK_HELD: deadline */
		uint32_t poll;   /* tcp->poll_count when the ACK became due */
		/* arrival of the last in-order full-sized segment, low bits */
		uint32_t full_ns;
		uint32_t full_gap_ns; /* typical interval between them */
		/* consecutive in-order full-sized segments, up to TCP_BULK_SEGMENTS */
		uint8_t bulk_segs;
		uint8_t full_pushed; /* the last full-sized segment had PSH */
		uint8_t last_pushed; /* the last data segment had PSH */
	} delack;
	struct {
		struct frame *head, *tail, *hint; /* hint: the most recently inserted frame */
	} reass;
	uint32_t snd_wnd_max_bytes;
	uint32_t limited_seq; /* SND.NXT when CONN_CWND_LIMITED was last set */
	struct {
		uint32_t reduced_seq; /* SND.NXT at the last window reduction */
		uint8_t ack_ece;      /* the ACK being processed has ECE */
	} ecn;
	uint32_t iss_seq, irs_seq;
	uint32_t rcv_fin_seq;
	uint32_t rcv_queued_bytes;
	uint32_t keepalive_probes_out; /* keepalive probes without answer */
	uint32_t events;               /* HARP_EVENT_* not yet delivered */
	uint8_t tos;
	struct { /* see tcp_timer.c */
		/* consecutive single segments that the peer acknowledged without delay */
		uint8_t single_quick;
		uint8_t single;  /* the deadline includes the delay of a single segment's ACK */
		uint8_t probe;   /* the tail loss probe replaces the timeout */
		uint8_t waiting; /* the deadline is that of data or a SYN that waits to be sent */
	} rto;
	struct {
		uint8_t tx; /* enum tcp_tx_list */
		uint8_t ack, event, pool, reass, under_pressure, grown, time_wait;
	} on_list;
	struct timer timer;
	struct harp_tcp_options opts; /* unsent_bytes_max: UINT32_MAX for none */

	/* Cache-cold: set-up, application, recovery, and accounting. */
	struct ip_path path; /* path.src: local address, path.dst: remote */
	struct {
		TAILQ_ENTRY(harp_conn) tx; /* tx_ready, tx_blocked, tx_unresolved */
		TAILQ_ENTRY(harp_conn) ack;
		TAILQ_ENTRY(harp_conn) event;
		TAILQ_ENTRY(harp_conn) pool;           /* waits for frames of the pool */
		TAILQ_ENTRY(harp_conn) reass;          /* has, or recently had, out-of-order data */
		TAILQ_ENTRY(harp_conn) under_pressure; /* no frames in the pool: window closed */
		TAILQ_ENTRY(harp_conn) grown;          /* its receive budget has grown */
		TAILQ_ENTRY(harp_conn) owner;          /* free, a listener's queues, or TIME-WAIT */
	} link;
	struct harp_listener *listener; /* until accepted */
	int error;                      /* -errno that terminated the connection */
	uint32_t index;
	struct { /* RFC 8985 section 5.3: the newest delivered segment, and the path's reordering */
		uint64_t sent_ns, rtt_ns;
		uint32_t end_seq, fack_seq, dsack_seq;
		uint8_t mult, persist, reordering, dsack_round;
	} rack;
	struct { /* the tail loss probe (RFC 8985 section 7) */
		uint32_t end_seq;
		uint8_t out; /* a probe is in flight */
		uint8_t is_retrans;
	} tlp;
	struct { /* RFC 9937 */
		uint32_t delivered_bytes, out_bytes, flight_bytes;
	} prr;
	struct {                       /* undo of a spurious recovery: tcp_loss.c */
		struct cc cc;          /* saved state (RFC 4015) */
		uint32_t seq, end_seq; /* DSACKs in this range count */
		uint32_t last_seq;     /* undo is possible until this is acknowledged */
		uint32_t resent_segs;  /* retransmitted and not yet reported as duplicate */
		uint32_t tsval;        /* TSval of the first retransmission */
		uint32_t dsack_in_segs;
		uint8_t open, tsval_set;
		uint8_t frto; /* F-RTO: an original that arrives now proves the timeout spurious */
	} undo;
	struct { /* SACK blocks to send, most recently changed first, and the duplicate to report */
		struct tcp_sack_block block[TCP_SACK_BLOCKS_MAX];
		uint32_t count;
		uint32_t dsack_start_seq, dsack_end_seq; /* equal: no duplicate */
	} sackout;
	struct { /* path MTU: tcp_mtu.c. Sizes are payload bytes, like snd.mss_bytes */
		/* largest segment acknowledged since snd.mss_bytes was reduced */
		uint16_t acked_bytes;
		uint16_t agreed_bytes; /* limit of link and peer from the handshake */
		uint16_t top_bytes;    /* minimum of agreed_bytes and opts.mss_bytes */
		uint16_t high_bytes;   /* MTU_SEARCH: larger segments do not pass */
		uint16_t probe_bytes;  /* size of the last probe */
		uint16_t icmp_bytes;   /* reported by ICMP, not yet confirmed; 0: none */
		uint32_t probe_seq, probe_end_seq, icmp_seq;
		uint8_t state;    /* enum tcp_mtu */
		uint8_t tries;    /* lost probes of this size */
		uint8_t failed;   /* the last probe was lost */
		uint64_t next_ns; /* earliest time of the next probe */
	} mtu;
	struct { /* rate limits */
		uint64_t confirm_next_ns;
		uint64_t challenge_epoch_end_ns;
		uint64_t probe_next_ns; /* no reply to a probe of the peer before this time */
		uint8_t challenge_left; /* challenge ACKs left in this epoch */
	} throttle;
	struct {                   /* data refused because the pool has no frames: tcp_window.c */
		uint64_t since_ns; /* first refusal; 0: none */
		uint32_t seq;      /* RCV.NXT at that time */
	} refused;
	struct {                         /* tcp_budget.c */
		uint64_t measure_end_ns; /* end of the current measurement of received bytes */
		uint64_t measure_start_ns;
		uint64_t measure_start_bytes; /* bytes received at its start */
		uint64_t received_bytes_max;  /* maximum per round trip so far */
		/* enforced limit; exceeds frames.rx_budget after the latter was reduced */
		uint32_t rx_frames_limit;
		uint32_t rx_frames_max;    /* upper limit of the autotuned budget */
		uint32_t tx_external_held; /* external frames in the send queue, not in tx_held */
		uint8_t rx_tuned, tx_tuned;
	} budget;
	uint64_t persist_ns;       /* time of the last window probe; 0: none */
	uint64_t bytes_queued;     /* total bytes accepted from the application */
	struct harp_tcp_info acct; /* counters; harp_conn_info() computes the other members */
	struct {                   /* the connection's record of the statistics page */
		uint64_t serial;   /* number of the connection within this stack */
		char label[HARP_FLOW_LABEL_BYTES]; /* set by the application */
		bool shown; /* the record is in use; outlives the connection */
	} page;
	struct tcp_scoreboard scoreboard;
} __attribute__((aligned(64)));
static_assert(offsetof(struct harp_conn, sndq) == 64, "line 0 has the fields for every segment");
static_assert(offsetof(struct harp_conn, cc) == 128, "line 1 has the queues");
static_assert(sizeof(struct cc) <= 128, "lines 2 and 3 are congestion control");

TAILQ_HEAD(conn_list, harp_conn);

enum tcp_tx_list { TX_LIST_NONE = 0, TX_LIST_READY, TX_LIST_BLOCKED, TX_LIST_UNRESOLVED };

static inline uint32_t conn_flight_bytes(const struct harp_conn *conn)
{
	return conn->snd.nxt_seq - conn->snd.una_seq;
}
/* Bytes queued and never sent. */
static inline uint32_t conn_unsent_bytes(const struct harp_conn *conn)
{
	return conn->sndq.unsent ? conn->snd.end_seq - conn->sndq.unsent->seq : 0;
}
/* The largest window that may have been advertised. */
static inline uint32_t conn_rcv_offered_bytes_max(const struct harp_conn *conn)
{
	return conn->budget.rx_frames_limit * conn->frames.rx_payload_bytes;
}
/* The largest window that may be advertised now. */
static inline uint32_t conn_rcv_wnd_bytes_max(const struct harp_conn *conn)
{
	return conn->frames.rx_budget * conn->frames.rx_payload_bytes;
}
static inline uint32_t conn_rcv_wnd_bytes(const struct harp_conn *conn)
{
	return conn->rcv.edge_seq - conn->rcv.nxt_seq;
}
/* True without loss marks, recovery, or a probe in flight. */
static inline bool conn_loss_is_quiet(const struct harp_conn *conn)
{
	return conn->recovery == TCP_RECOVERY_NONE && conn->loss.sacked_bytes == 0 &&
	       conn->loss.lost_bytes == 0 && conn->snd.dup_acks == 0 && !conn->tlp.out;
}
static inline struct flow_key conn_flow_key(const struct harp_conn *conn)
{
	return (struct flow_key){ .local = conn->path.src,
				  .remote = conn->path.dst,
				  .local_port = conn->local_port,
				  .remote_port = conn->remote_port };
}
/* True if the handshake is complete and the connection has not ended. */
static inline bool conn_synchronized(const struct harp_conn *conn)
{
	return conn->state >= HARP_TCP_ESTABLISHED && conn->state <= HARP_TCP_TIME_WAIT;
}

#endif
