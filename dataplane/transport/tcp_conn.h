/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_conn.h - one connection: its conditions, what it remembers, and where in the cache that lies.
 *
 * tcp.h includes it; the files there say what each field is for in more than a line. The receive queue and the
 * reassembly list are flat lists of frames (by ->next); of the send queue, tcp_sndq.h.
 *
 * What the RFCs call otherwise:
 *	RCV.WND			rcv_edge_seq - rcv_nxt_seq, conn_rcv_wnd_bytes()
 *	MAX.SND.WND		snd_wnd_max_bytes (RFC 5961)
 *	Eff.snd.MSS		snd_mss_bytes
 *	Last.ACK.sent		rcv_acked_seq (RFC 7323)
 *	FlightSize, pipe	conn_flight_bytes(), tcp_loss_pipe_bytes()
 *	recover, RecoveryPoint	loss.recover_seq (RFC 6582, 6675)
 *	RACK.xmit_ts		rack.sent_ns (RFC 8985)
 *	RACK.min_RTT		rtt.min_ns
 *	RACK.reo_wnd_mult	rack.mult
 *	RACK.dsack_round	rack.dsack_seq, while rack.dsack_round
 *	TLP.end_seq		tlp.end_seq, while tlp.out
 *	TLP.is_retrans		tlp.again
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

/* Conditions, as bits of conn->flags. */
enum conn_flag {
	/* The application, and how it came about. */
	CONN_HANDLE = 0x00000001,  /* the application (or an accept queue) holds it */
	CONN_PASSIVE = 0x00000002, /* opened by a listener */
	CONN_ESTABLISHED_ONCE = 0x00000800,
	CONN_WANT_WRITE = 0x00000100, /* the application saw -EAGAIN */
	CONN_ECHO_LOOSE = 0x00010000, /* its handshake did not echo our timestamp */
	/* The ends. */
	CONN_FIN_WANTED = 0x00000004,   /* shutdown or close was called */
	CONN_FIN_QUEUED = 0x00000008,   /* the FIN is in the send queue */
	CONN_FIN_RECEIVED = 0x00000010, /* the peer's FIN is in order */
	CONN_FIN_OOO = 0x00001000,      /* a FIN was seen out of order, at rcv_fin_seq */
	CONN_READ_SHUT = 0x00020000,    /* shutdown(SHUT_RD): received bytes are discarded */
	/* To be sent. */
	CONN_SYN_PENDING = 0x00000020,   /* SYN or SYN-ACK */
	CONN_PROBE_PENDING = 0x00000200, /* a keepalive or window probe */
	CONN_TLP_PENDING = 0x00100000,   /* a tail loss probe */
	CONN_ACK_PENDING = 0x00000040,   /* an ACK is owed, */
	CONN_ACK_NOW = 0x00000080,       /* and may not wait for the next poll; */
	CONN_ACK_HELD = 0x00008000,      /* or may wait until delack.due_ns */
	CONN_PUSH = 0x00004000,          /* what is queued ends what the application handed over */
	/* What holds data back. */
	CONN_CWND_LIMITED = 0x00000400, /* the congestion window did: until limited_seq */
	CONN_WINDOW_FORCE =
		0x00002000, /* the peer's, with nothing in flight: cut a segment to fit */
	/* ECN. */
	CONN_ECN_IN = 0x01000000,    /* the peer may send ECT: its marks are told of */
	CONN_ECN_ECHO = 0x02000000,  /* ECE is due: see tcp_ecn.c */
	CONN_ECN_CWR = 0x04000000,   /* CWR is due, on the next new data */
	CONN_ECN_ASKED = 0x08000000, /* a SYN of ours asked for ECN */
	CONN_ECN_PLAIN = 0x10000000, /* a SYN of ours did not */
};

enum tcp_recovery {
	TCP_RECOVERY_NONE = 0,
	TCP_RECOVERY_FAST, /* segments were lost: until snd_una passes loss.recover_seq */
	TCP_RECOVERY_RTO,  /* after a timeout: likewise */
	TCP_RECOVERY_CWR, /* nothing was lost, the window goes down: ECN, or a probe filled the hole */
};

enum tcp_mtu {
	MTU_IDLE = 0, /* as large as can be */
	MTU_SEARCH,   /* a probe may be sent at mtu_next_ns */
	MTU_PROBING,  /* one is on its way */
};

#define TCP_FINGERS 64u
#define TCP_SACK_RANGES 32u
#define TCP_RESENT 128u

/* The sender's memory of segments sent: see tcp_sack.c and tcp_rack.c. Not touched on the fast path. */
struct tcp_board {
	struct {
		uint32_t seq, frame;
	} finger[TCP_FINGERS]; /* every finger_step-th segment sent, oldest at finger_first */
	struct tcp_sack_block range[TCP_SACK_RANGES]; /* sorted; every segment in them is marked */
	struct {
		uint32_t seq, frame;
	} resent[TCP_RESENT]; /* segments sent again, in the order of time */
	uint32_t finger_first, finger_count, finger_step;
	uint32_t range_count;
	uint32_t resent_first, resent_count;
	bool resent_untracked; /* some found no room in it */
};

struct harp_conn {
	/* Line 0: read for every segment in, written for most. */
	struct tcp *tcp;
	uint32_t snd_una_seq, snd_nxt_seq;
	uint32_t rcv_nxt_seq, rcv_edge_seq; /* right edge of the advertised window */
	uint32_t snd_wnd_bytes, snd_wl1_seq, snd_wl2_seq;
	uint32_t ts_recent;
	uint32_t rcv_acked_seq; /* the last acknowledgment number sent */
	uint32_t flags;         /* enum conn_flag */
	uint32_t reass_frames;
	uint8_t state;    /* enum harp_tcp_state; written by tcp_state_set() only */
	uint8_t recovery; /* enum tcp_recovery */
	uint8_t snd_wscale, rcv_wscale;
	uint8_t options; /* HARP_TCPI_* agreed on */
	uint8_t dup_acks;
	uint8_t rtx_backoff;       /* RFC 6298 (5.5): how often the timer was doubled */
	uint8_t full_segs_unacked; /* full-sized segments received since the last ACK was sent */
	uint8_t loss_open;         /* marks, a repair or a probe: ACKs take the slow path */
	uint16_t finger_left;      /* segments to be sent until the next one has a finger */

	/* Line 1: the queues. */
	struct frame *snd_head;   /* oldest segment not acknowledged */
	struct frame *snd_unsent; /* first segment never sent */
	struct frame *snd_tail;
	struct frame *rcv_head, *rcv_tail;
	uint32_t snd_end_seq; /* sequence number after the last byte queued */
	uint32_t tx_frames_held, tx_frames_budget;
	uint32_t rx_frames_held, rx_frames_budget;
	uint32_t rcv_bytes_per_frame; /* typical; turns frames into a window */

	/* Lines 2 and 3: output. */
	struct cc cc;

	/* From line 4 on: what an ACK, a timer or a segment out needs besides. */
	struct { /* TCP_NEVER_NS: off */
		/* The one timer of RFC 9293 that asks again. What it means when it fires, retransmission, SYN,
		 * persist or override, follows from what is outstanding then: timer_rto_expired(). */
		uint64_t rto_ns;
		uint64_t loss_ns;  /* the reordering timer (RFC 8985 section 6.2 step 5) */
		uint64_t probe_ns; /* the tail loss probe (section 7.2) */
		uint64_t life_ns;  /* connect timeout, FIN-WAIT-2, TIME-WAIT */
		uint64_t keep_ns;
		uint64_t pace_ns; /* new data may leave again */
	} deadline;
	struct { /* RFC 6298 */
		uint64_t srtt_ns, rttvar_ns, min_ns;
		uint64_t rto_ns; /* without backoff */
		uint64_t
			pto_ns; /* RFC 8985 section 7.2, of more than one segment; 0: no sample yet */
	} rtt;
	uint64_t last_rcv_ns;
	uint64_t progress_ns; /* snd_una last moved, or data became outstanding */

	uint16_t snd_mss_bytes, rcv_mss_bytes;
	uint16_t local_port, remote_port;
	struct { /* the window field sent last, and what it follows from: out_window_field() */
		uint32_t nxt_seq, edge_seq, held_frames;
		uint16_t field;
	} advertised;
	struct {                             /* RFC 7323 timestamps */
		uint32_t offset;             /* of ours */
		uint32_t echo_min, echo_max; /* what the peer may echo: see tcp_check.c */
		uint32_t sent;
		uint32_t echo; /* TSecr of the ACK being processed */
		uint64_t recent_ns;
	} ts;
	struct { /* what is lost and sent again: tcp_loss.c */
		/* Nothing before it is SEG_LOST; older than snd_una: snd_head. */
		struct frame *rtx_next;
		/* What was sent once before it has been judged. */
		struct frame *rack_next;
		uint32_t rtx_seq; /* of rtx_next */
		uint32_t rack_next_seq;
		uint32_t recover_seq;
		uint32_t sacked_bytes, sacked_segs; /* marked SEG_SACKED */
		uint32_t lost_bytes;                /* marked SEG_LOST */
		uint32_t dup_acked_bytes; /* left the network, by duplicate ACKs without SACK */
		uint32_t retrans_end_seq; /* behind the last segment that was sent again */
		uint8_t resent_segs;      /* by the last repair, up to 255: tcp_dupack.c */
		uint8_t rtx_force;        /* one segment is sent again whatever the window says */
	} loss;
	struct {
		int64_t credit_bytes; /* may leave at once; as of credit_ns */
		uint64_t credit_ns;
	} pace;
	struct {                      /* delayed ACKs: tcp_delack.c */
		uint64_t due_ns;      /* CONN_ACK_HELD: no later than that */
		uint32_t poll;        /* tcp->poll_count when the ACK became due */
		uint32_t full_ns;     /* when the last full-sized segment in order came, low bits */
		uint32_t full_gap_ns; /* and how far apart they usually come */
		uint8_t bulk_segs; /* full-sized ones in order in a row, up to TCP_BULK_SEGMENTS */
		uint8_t full_pushed; /* the last full-sized segment had PSH */
		uint8_t last_pushed; /* the last one that brought data */
	} delack;
	struct {
		struct frame *head, *tail, *hint; /* hint: inserted last */
	} reass;
	uint32_t snd_wnd_max_bytes;
	uint32_t limited_seq; /* CONN_CWND_LIMITED: SND.NXT when the window last held back */
	uint32_t ecn_seq;     /* SND.NXT when the window was last reduced */
	uint32_t iss_seq, irs_seq;
	uint32_t rcv_fin_seq;
	uint32_t rcv_queued_bytes;
	uint32_t keep_unanswered; /* keepalive probes */
	uint32_t events;          /* HARP_EVENT_* not yet taken */
	uint8_t tos;
	uint8_t ack_ece;    /* the ACK being processed has ECE */
	uint8_t tx_queued;  /* enum: on which of tcp's transmit lists */
	uint8_t lone_quick; /* single segments in a row that were acknowledged at once */
	uint8_t rto_lone;   /* the deadline allows for a delayed ACK of a single segment */
	uint8_t rto_probe;  /* the loss probe has taken the timeout's place */
	uint8_t on_ack_list, on_event_list, on_pool_list, on_reass_list, on_starved_list;
	uint8_t on_grown_list;
	struct { /* as in struct harp_tcp_options */
		uint64_t initial_rto_ns, connect_timeout_ns, user_timeout_ns;
		uint64_t keepalive_idle_ns, keepalive_interval_ns;
		uint32_t keepalive_count;
		uint32_t unsent_bytes_max; /* UINT32_MAX: none */
		uint32_t delayed_ack_ns;
		uint16_t mss_limit_bytes; /* mss_bytes */
		uint8_t options_off;
		uint8_t ecn; /* enum harp_ecn */
	} opts;
	struct timer timer;

	/* The rest: set-up, the application, repairs, and accounts. */
	struct ip_path path;            /* path.src: local address, path.dst: remote */
	TAILQ_ENTRY(harp_conn) tx_link; /* tx_ready, tx_blocked, tx_unresolved */
	TAILQ_ENTRY(harp_conn) ack_link;
	TAILQ_ENTRY(harp_conn) event_link;
	TAILQ_ENTRY(harp_conn) pool_link;    /* waits for frames of the pool */
	TAILQ_ENTRY(harp_conn) reass_link;   /* has data out of order, or had */
	TAILQ_ENTRY(harp_conn) starved_link; /* its window is closed: the pool has no frames */
	TAILQ_ENTRY(harp_conn) grown_link;   /* its receive budget has grown */
	TAILQ_ENTRY(harp_conn) owner_link;   /* free list, a listener's queues, or TIME-WAIT */
	struct harp_listener *listener;      /* until accepted */
	void *user;
	int error; /* -errno that ended it */
	uint32_t index;
	struct
	{ /* RFC 8985 section 5.3: the newest segment that arrived, and the path's reordering */
		uint64_t sent_ns, rtt_ns;
		uint32_t end_seq, fack_seq, dsack_seq;
		uint8_t mult, persist, reordering, dsack_round;
	} rack;
	struct { /* the tail loss probe in flight (RFC 8985 section 7) */
		uint32_t end_seq;
		uint8_t out, again; /* there is one; it carried nothing new */
	} tlp;
	struct { /* RFC 9937 */
		uint32_t delivered_bytes, out_bytes, flight_bytes;
	} prr;
	struct { /* what to restore when the retransmissions turn out to be spurious (RFC 4015) */
		struct cc cc;
		uint32_t seq, end_seq; /* DSACKs for what lies between count */
		uint32_t last_seq;     /* after the episode: until this is acknowledged */
		uint32_t resent_segs;  /* sent again and not reported as a duplicate */
		uint32_t tsval;        /* of the first segment sent again */
		uint32_t dsack_in_segs;
		uint8_t open, tsval_set;
		uint8_t frto; /* the timeout is fresh: an original that arrives proves it wrong */
	} undo;
	struct { /* our own SACK blocks, the most recent first, and the duplicate to report */
		struct tcp_sack_block block[TCP_SACK_BLOCKS_MAX];
		uint32_t count;
		uint32_t dsack_start_seq, dsack_end_seq; /* equal: none */
	} sackout;
	struct {                       /* the path's MTU: tcp_mtu.c. Segments, as snd_mss_bytes */
		uint16_t acked_bytes;  /* the largest acknowledged since snd_mss_bytes went down */
		uint16_t agreed_bytes; /* what link and peer allowed in the handshake */
		uint16_t top_bytes;    /* the same within opts.mss_limit_bytes */
		uint16_t high_bytes;   /* MTU_SEARCH: nothing larger passes */
		uint16_t probe_bytes;  /* the last one sent */
		uint16_t icmp_bytes;   /* reported by ICMP, not believed yet; 0: nothing */
		uint32_t probe_seq, probe_end_seq, icmp_seq;
		uint8_t state;    /* enum tcp_mtu */
		uint8_t tries;    /* of this size, lost */
		uint8_t failed;   /* the last probe was lost */
		uint64_t next_ns; /* no probe before */
	} mtu;
	struct { /* rate limits */
		uint64_t confirm_next_ns;
		uint64_t challenge_epoch_end_ns;
		uint64_t probe_next_ns; /* no probe of the peer's is answered before */
		uint8_t challenge_left; /* in this epoch */
	} throttle;
	struct {                   /* data that the pool has no frames for: tcp_starve.c */
		uint64_t since_ns; /* when it was first refused; 0: never */
		uint32_t seq;      /* RCV.NXT then */
	} refused;
	struct {                         /* tcp_budget.c */
		uint64_t measure_end_ns; /* of the current measurement of received bytes */
		uint64_t measure_start_ns;
		uint64_t measure_start_bytes; /* received until then */
		uint64_t received_bytes_max;  /* the most in a round trip so far */
		uint32_t
			rx_frames_limit; /* accepted; above rx_frames_budget after that went down */
		uint32_t rx_frames_max;  /* that the budget may grow to */
		uint8_t rx_tuned, tx_tuned;
	} budget;
	uint64_t persist_ns; /* of the last window probe; 0: none */
	uint32_t on_time_wait_list;
	uint32_t tx_external_held; /* external frames in the send queue, beside tx_frames_held */
	uint64_t bytes_queued;     /* taken from the application */
	struct {
		uint64_t bytes_sent, bytes_acked, bytes_received, bytes_retransmitted;
		uint64_t segs_out, segs_in, data_segs_out, data_segs_in;
		uint64_t retransmits, rto_count, fast_retransmits, dup_acks_in, out_of_order_in;
		uint64_t zero_window_probes, keepalive_probes;
		uint64_t ecn_ce_in, ecn_ece_in, ecn_reductions;
		uint64_t tx_copied_bytes, rx_copied_bytes;
		uint64_t lost_segs, tlp_probes, undos;
	} acct;
	/* For who looks at it: the statistics page. */
	uint64_t serial;                   /* of this stack's connections */
	char label[HARP_FLOW_LABEL_BYTES]; /* the application's */
	bool page_shown; /* the page's record is not empty; outlives the connection */
	struct tcp_board board;
} __attribute__((aligned(64)));
static_assert(offsetof(struct harp_conn, snd_head) == 64, "line 0 is what every segment needs");
static_assert(offsetof(struct harp_conn, cc) == 128, "line 1 is the queues");
static_assert(sizeof(struct cc) <= 128, "lines 2 and 3 are congestion control");

TAILQ_HEAD(conn_list, harp_conn);

enum tcp_tx_list { TX_LIST_NONE = 0, TX_LIST_READY, TX_LIST_BLOCKED, TX_LIST_UNRESOLVED };

static inline uint32_t conn_flight_bytes(const struct harp_conn *conn)
{
	return conn->snd_nxt_seq - conn->snd_una_seq;
}
/* Queued and never sent. */
static inline uint32_t conn_unsent_bytes(const struct harp_conn *conn)
{
	return conn->snd_unsent ? conn->snd_end_seq - conn->snd_unsent->seq : 0;
}
/* The largest window that may have been advertised, */
static inline uint32_t conn_rcv_offered_bytes_max(const struct harp_conn *conn)
{
	return conn->budget.rx_frames_limit * conn->rcv_bytes_per_frame;
}
/* and that may be now. */
static inline uint32_t conn_rcv_wnd_bytes_max(const struct harp_conn *conn)
{
	return conn->rx_frames_budget * conn->rcv_bytes_per_frame;
}
static inline uint32_t conn_rcv_wnd_bytes(const struct harp_conn *conn)
{
	return conn->rcv_edge_seq - conn->rcv_nxt_seq;
}
/* No mark, no repair, no probe on its way. */
static inline bool conn_loss_is_quiet(const struct harp_conn *conn)
{
	return conn->recovery == TCP_RECOVERY_NONE && conn->loss.sacked_bytes == 0 &&
	       conn->loss.lost_bytes == 0 && conn->dup_acks == 0 && !conn->tlp.out;
}
static inline struct flow_key conn_flow_key(const struct harp_conn *conn)
{
	return (struct flow_key){ .local = conn->path.src,
				  .remote = conn->path.dst,
				  .local_port = conn->local_port,
				  .remote_port = conn->remote_port };
}
/* Handshake done, not yet dead. */
static inline bool conn_synchronized(const struct harp_conn *conn)
{
	return conn->state >= HARP_TCP_ESTABLISHED && conn->state <= HARP_TCP_TIME_WAIT;
}

#endif
