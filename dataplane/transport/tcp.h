/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - TCP: the connection, the layer, and what its files ask of one another.
 *
 *	tcp.c          lifecycle: slots, the one function that writes the state, death
 *	tcp_in.c       a segment in: RFC 9293 section 3.10.7 in its order
 *	tcp_fast.c     and one that is as usual in every respect
 *	tcp_check.c    may it be believed? RFC 5961, timestamps, sequence numbers; challenge ACKs
 *	tcp_icmp.c     ICMP errors
 *	tcp_listen.c   a SYN to a listener
 *	tcp_cookie.c   and when too many came: SYN cookies
 *	tcp_ack.c      what an acceptable ACK does: queue, RTT, window
 *	tcp_reass.c    payload in: in order to the receive queue, else the reassembly list
 *	tcp_tx.c       the transmit phase: who sends what, when
 *	tcp_out.c      one segment out: headers, options, window
 *	tcp_train.c    segments that the card gets as one packet and cuts itself (TSO)
 *	tcp_sndq.c     the send queue: bytes and frames become segments
 *	tcp_external.c the same of the application's memory, in place
 *	tcp_sack.c     the sender's scoreboard: what the peer has, by its SACK blocks (RFC 2018, 2883)
 *	tcp_sackout.c  the receiver's SACK blocks
 *	tcp_rack.c     when a segment counts as lost, and the tail loss probe (RFC 8985)
 *	tcp_loss.c     the repair: when it begins and ends, what leaves meanwhile, when it was in vain
 *	tcp_mtu.c      how large a segment the path carries (RFC 1191, 4821)
 *	tcp_timer.c    RTT and RTO (RFC 6298), probes, keepalive, TIME-WAIT
 *	tcp_ecn.c      explicit congestion notification: RFC 3168, 8257
 *	tcp_cc.c       which congestion control (cc.h), and pacing
 *
 * The send queue is a list of segments (by ->next); a segment is a frame and its continuation frames
 * (by ->frag) and is never re-cut once sent, save for what its receiver acknowledged or asked for
 * smaller. The receive queue is a flat list of frames (by ->next).
 */
#ifndef HARP_TRANSPORT_TCP_H
#define HARP_TRANSPORT_TCP_H

#include <assert.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/siphash.h"
#include "harp_page.h"
#include "network/ip.h"
#include "transport/cc.h"
#include "transport/flow.h"
#include "transport/port.h"
#include "transport/seq.h"
#include "transport/tcp_options.h"

enum tcp_flag {
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_PSH = 0x08,
	TCP_ACK = 0x10,
	TCP_URG = 0x20,
	TCP_ECE = 0x40,
	TCP_CWR = 0x80,
};

#define TCP_HEADER_BYTES 20u
#define TCP_MSS_BYTES_DEFAULT_V4 536u /* RFC 9293 section 3.7.1 MUST-15 */
#define TCP_MSS_BYTES_DEFAULT_V6 1220u
#define TCP_MSS_BYTES_MIN 88u       /* below it headers are all that a peer wants to see us send */
#define TCP_DUPACK_THRESHOLD 3u     /* RFC 5681 section 3.2 */
#define TCP_ACK_EVERY_SEGMENTS 16u  /* full-sized segments, */
#define TCP_ACK_BURST_BYTES 131072u /* and so much of one burst, whose end is near */
#define TCP_BULK_SEGMENTS 64u       /* in order in a row: a stream, whose ACKs may be held longer */
#define TCP_ACK_HOLD_NS 10000u      /* a few segments' time */
#define TCP_ACK_HOLD_BULK_NS 40000u /* a hundredth of the smallest RTO */
#define TCP_ACK_HOLD_SLOW_NS_MAX 5000000u /* for the second of two: RFC 5681 4.2 allows 500 ms */
#define TCP_ACKS_HELD_MAX 64u       /* at once for so long, of a stack: each poll looks at them */
#define TCP_TX_QUOTA_SEGMENTS 16u   /* of one connection before the next one has its turn */
#define TCP_PACE_BURST_NS 250000ull /* what a paced connection may send at once, at its rate */

#define TCP_COOKIES_USED 1024u /* remembered, so that none is good twice */

#define TCP_NS_PER_S 1000000000ull
#define TCP_NS_PER_MS 1000000ull
#define TCP_TIME_WAIT_NS (60 * TCP_NS_PER_S)  /* 2 MSL with an MSL of 30 s, as Linux */
#define TCP_FIN_WAIT_2_NS (60 * TCP_NS_PER_S) /* closed by the application, peer silent */
#define TCP_CHALLENGE_ACKS_PER_S 10u          /* per connection, at most: RFC 5961 section 7 */
#define TCP_CHALLENGE_ACKS_PER_S_STACK 1000u  /* of all together: see tcp_check.c */

#define TCP_FRAMES_BUDGET_MIN                                                                      \
	4u /* and so many every connection may have, as long as the pool has any */
#define TCP_TIMER_KIND 0x746370u /* "tcp": struct timer.kind of a connection's timer */
#define TCP_NEVER_NS UINT64_MAX

/* Conditions, as bits of conn->flags. */
enum conn_flag {
	CONN_HANDLE = 0x0001,        /* the application (or an accept queue) holds it */
	CONN_PASSIVE = 0x0002,       /* opened by a listener */
	CONN_FIN_WANTED = 0x0004,    /* shutdown or close was called */
	CONN_FIN_QUEUED = 0x0008,    /* the FIN is in the send queue */
	CONN_FIN_RECEIVED = 0x0010,  /* the peer's FIN is in order */
	CONN_SYN_PENDING = 0x0020,   /* SYN or SYN-ACK is to be sent */
	CONN_ACK_PENDING = 0x0040,   /* an ACK is owed */
	CONN_ACK_NOW = 0x0080,       /* and may not wait for the next poll */
	CONN_WANT_WRITE = 0x0100,    /* the application saw -EAGAIN */
	CONN_PROBE_PENDING = 0x0200, /* a keepalive or window probe is to be sent */
	CONN_CWND_LIMITED = 0x0400,  /* the congestion window held back data: until limited_seq */
	CONN_ESTABLISHED_ONCE = 0x0800,
	CONN_TLP_PENDING = 0x100000, /* a tail loss probe is to be sent */
	CONN_ECHO_LOOSE = 0x10000,   /* its handshake did not echo our timestamp */
	CONN_FIN_OOO = 0x1000,       /* a FIN was seen out of order, at rcv_fin_seq */
	CONN_ACK_HELD = 0x8000,      /* the ACK that is owed may wait until ack_due_ns */
	CONN_WINDOW_FORCE =
		0x2000,           /* window-limited with nothing in flight: cut a segment to fit */
	CONN_ECN_IN = 0x01000000, /* the peer may send ECT: its marks are told of */
	CONN_ECN_ECHO = 0x02000000,  /* ECE is due: see tcp_ecn.c */
	CONN_ECN_CWR = 0x04000000,   /* CWR is due, on the next new data */
	CONN_ECN_ASKED = 0x08000000, /* a SYN of ours asked for ECN */
	CONN_ECN_PLAIN = 0x10000000, /* a SYN of ours did not */
};

enum tcp_recovery {
	TCP_RECOVERY_NONE = 0,
	TCP_RECOVERY_FAST, /* segments were lost: until snd_una passes recover_seq */
	TCP_RECOVERY_RTO,  /* after a timeout: likewise */
	TCP_RECOVERY_CWR, /* nothing was lost, the window goes down: ECN, or a probe filled the hole */
};

enum tcp_mtu {
	MTU_IDLE = 0, /* as large as can be */
	MTU_SEARCH,   /* a probe may be sent at mtu_next_ns */
	MTU_PROBING,  /* one is on its way */
};

/* Of a sent segment: frame.tcp_flags. Neither: on its way, as far as we know. */
enum seg_flag {
	SEG_SACKED = 0x01, /* the peer has it, and not all before it */
	SEG_LOST = 0x02,   /* it doesn't, and it is to be sent again */
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

	/* Clocks. */
	uint64_t rto_deadline_ns; /* retransmission or persist timer; TCP_NEVER_NS: off */
	uint64_t
		loss_deadline_ns; /* reordering timer while something is marked, else the probe's */
	uint64_t pto_ns; /* RFC 8985 section 7.2, of more than one segment; 0: no sample yet */
	uint64_t life_deadline_ns; /* connect timeout, FIN-WAIT-2, TIME-WAIT */
	uint64_t keep_deadline_ns;
	uint64_t pace_deadline_ns; /* new data may leave again */
	uint64_t last_rcv_ns;
	uint64_t progress_ns; /* snd_una last moved, or data became outstanding */
	uint64_t rto_ns;      /* without backoff */
	uint64_t srtt_ns, rttvar_ns;

	/* Output of a segment. */
	uint16_t snd_mss_bytes, rcv_mss_bytes;
	uint16_t local_port, remote_port;
	uint16_t
		mtu_acked_bytes; /* the largest segment acknowledged since snd_mss_bytes went down */
	uint8_t mtu_state;       /* enum tcp_mtu */
	/* The window field said last, and what it follows from: see out_window_field(). */
	uint16_t told_field;
	uint32_t told_nxt_seq, told_edge_seq, told_frames;
	uint32_t ts_offset;
	uint32_t ts_echo_min, ts_echo_max, ts_sent; /* what the peer may echo: see tcp_check.c */
	uint32_t ack_poll;                          /* tcp->poll_count when the ACK became due */
	uint32_t snd_unsent_bytes_max;              /* the application's; UINT32_MAX: none */
	uint32_t recover_seq;
	uint32_t sacked_bytes, sacked_segs; /* marked SEG_SACKED */
	uint32_t lost_bytes;                /* marked SEG_LOST */
	uint32_t dup_acked_bytes; /* left the network, as duplicate ACKs tell; without SACK */
	uint32_t rtx_seq;         /* of rtx_next */
	struct frame *rtx_next;   /* nothing before it is SEG_LOST; older than snd_una: snd_head */
	struct frame *rack_next;  /* likewise: what was sent once before it has been judged */
	uint32_t rack_next_seq;
	uint32_t snd_wnd_max_bytes;
	uint32_t limited_seq;      /* CONN_CWND_LIMITED: SND.NXT when the window last held back */
	uint32_t ecn_seq;          /* SND.NXT when the window was last reduced */
	int64_t pace_credit_bytes; /* may leave at once; as of pace_ns */
	uint64_t pace_ns;
	uint32_t iss_seq, irs_seq;
	uint32_t rcv_fin_seq;
	uint8_t tos;
	uint8_t ecn;       /* enum harp_ecn, as asked for */
	uint8_t ack_ece;   /* the ACK being looked at has ECE */
	uint8_t tx_queued; /* enum: on which of tcp's transmit lists */
	uint8_t keep_unanswered;
	uint8_t lone_quick;     /* single segments in a row that were acknowledged at once */
	uint8_t rto_lone;       /* the deadline allows for a delayed ACK of a single segment */
	uint8_t rto_probe;      /* the loss probe has taken the timeout's place */
	uint8_t challenge_left; /* in this epoch */
	uint8_t on_ack_list, on_event_list, on_pool_list, on_reass_list;
	uint8_t bulk_segs;   /* full-sized segments in order in a row, up to TCP_BULK_SEGMENTS */
	uint8_t full_pushed; /* the last full-sized segment had PSH */
	uint8_t recovered_from_rto; /* how recovery last ended: see loss_may_recover() */
	uint8_t rtx_force;          /* one segment is sent again whatever the window says */
	struct frame *reass_head, *reass_tail, *reass_hint; /* hint: inserted last */
	uint32_t rcv_queued_bytes;
	uint32_t full_ns;     /* when the last full-sized segment in order came, low bits */
	uint32_t full_gap_ns; /* and how far apart they usually come */
	uint64_t ack_due_ns;  /* CONN_ACK_HELD: no later than that */
	uint32_t events;      /* HARP_EVENT_* not yet taken */
	struct timer timer;

	/* The rest: set-up, the application, and accounts. */
	struct ip_path path;            /* path.src: local address, path.dst: remote */
	TAILQ_ENTRY(harp_conn) tx_link; /* tx_ready, tx_blocked, tx_unresolved */
	TAILQ_ENTRY(harp_conn) ack_link;
	TAILQ_ENTRY(harp_conn) event_link;
	TAILQ_ENTRY(harp_conn) pool_link;  /* waits for frames of the pool */
	TAILQ_ENTRY(harp_conn) reass_link; /* has data out of order, or had */
	TAILQ_ENTRY(harp_conn) owner_link; /* free list, a listener's queues, or TIME-WAIT */
	struct harp_listener *listener;    /* until accepted */
	void *user;
	int error; /* -errno that ended it */
	uint32_t index;
	/* RACK (RFC 8985 section 5.3): the newest segment that arrived, and how reordered the path is. */
	uint64_t rack_sent_ns, rack_rtt_ns;
	uint32_t rack_end_seq, rack_fack_seq, rack_dsack_seq;
	uint8_t rack_mult, rack_persist, rack_reordering, rack_dsack_round;
	/* The tail loss probe on its way (section 7). */
	uint32_t tlp_end_seq;
	uint8_t tlp_out, tlp_again; /* one is; it carried nothing new */
	/* RFC 6937. */
	uint32_t prr_delivered_bytes, prr_out_bytes, prr_flight_bytes;
	/* What to restore when all that was sent again turns out to have been in vain (RFC 4015). */
	struct cc undo_cc;
	uint32_t undo_seq, undo_end_seq; /* DSACKs for what lies between count */
	uint32_t undo_last_seq;          /* after the episode: until this is acknowledged */
	uint32_t undo_resent_segs;       /* sent again and not reported as a duplicate */
	uint32_t undo_tsval;             /* of the first segment sent again */
	uint32_t dsack_in_segs;
	uint8_t undo_open, undo_tsval_set;
	uint8_t undo_frto; /* the timeout is fresh: an original that arrives proves it wrong */
	uint32_t ts_echo;  /* TSecr of the ACK being looked at */
	/* Our own SACK blocks, the most recent first, and the duplicate to report. */
	uint32_t sack_count;
	struct tcp_sack_block sack[TCP_SACK_BLOCKS_MAX];
	uint32_t dsack_start_seq, dsack_end_seq; /* equal: none */
	uint64_t persist_ns;                     /* of the last window probe; 0: none */
	/* The path's MTU: tcp_mtu.c. Segments, as snd_mss_bytes. */
	uint16_t mtu_top_bytes;   /* what link and peer allow */
	uint16_t mtu_high_bytes;  /* MTU_SEARCH: nothing larger passes */
	uint16_t mtu_probe_bytes; /* the last one sent */
	uint16_t mtu_told_bytes;  /* ICMP, not believed yet; 0: nothing */
	uint32_t mtu_probe_seq, mtu_probe_end_seq, mtu_told_seq;
	uint8_t mtu_tries;    /* of this size, lost */
	uint8_t mtu_failed;   /* the last probe was lost */
	uint64_t mtu_next_ns; /* no probe before */
	uint64_t confirm_next_ns;
	uint64_t challenge_epoch_end_ns;
	uint64_t ts_recent_ns;
	uint64_t rtt_ns_min;
	uint64_t user_timeout_ns, keepalive_idle_ns, keepalive_interval_ns;
	uint32_t keepalive_count;
	uint32_t on_time_wait_list;
	uint64_t bytes_queued;     /* taken from the application */
	uint32_t tx_external_held; /* external frames in the send queue, beside tx_frames_held */
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

struct harp_listener {
	struct tcp *tcp; /* NULL: the slot is free */
	struct harp_endpoint local;
	struct harp_tcp_options options;
	uint32_t backlog;
	uint32_t embryonic_count, accept_count;
	uint64_t cookie_until_ns;      /* answers to our SYN cookies may come */
	struct conn_list embryonic;    /* SYN-RECEIVED, oldest first */
	struct conn_list accept_queue; /* established, not yet accepted */
};

enum tcp_tx_list { TX_LIST_NONE = 0, TX_LIST_READY, TX_LIST_BLOCKED, TX_LIST_UNRESOLVED };

/* The TCP layer of one stack. */
struct tcp {
	struct ip *ip;
	struct eth *eth;
	struct nicio *io;
	struct frame_pool *pool;
	struct wheel *wheel;
	struct rng *rng;
	struct harp_stats *stats;
	const struct harp_stack_hooks *hooks;
	uint64_t now_ns;
	uint32_t now_ms; /* the timestamp clock, before each connection's offset */
	uint32_t poll_count;
	struct conn_list tx_ready;      /* has something to send */
	struct conn_list tx_blocked;    /* waits for the NIC to complete or for a frame */
	struct conn_list tx_unresolved; /* waits for a neighbour */
	struct conn_list ack_list;      /* owes a pure ACK */
	uint32_t acks_owed;             /* how many are on it */
	struct conn_list events;
	struct conn_list pool_waiters; /* their application waits for frames of the pool */
	struct conn_list reassembling; /* those with data out of order: tcp_reass.c */
	bool nic_full;                 /* the last transmit phase ended for want of room */
	uint32_t resolved_seen; /* eth->resolved_generation when tx_unresolved was last woken */
	uint32_t tx_frags_max;  /* frames of one segment */
	bool csum_offload;      /* the card fills in checksums */
	uint32_t shared_frames; /* of the pool, beside the fill ring */
	uint32_t pool_plenty_frames;     /* free: more than any tcp_pool_floor_*() */
	uint32_t rx_payload_frame_bytes; /* what the NIC puts in one received frame */
	struct flow_table flows;
	struct port_table ports;
	struct siphash_key isn_secret, challenge_secret, cookie_secret;
	uint32_t cookies_used[TCP_COOKIES_USED]; /* lately; by their low bits */
	struct harp_conn *conns;
	uint32_t max_conns;  /* conns has one more, which is nobody's: see tcp_cookie.c */
	uint32_t conns_high; /* slots from here on were never used */
	uint64_t conn_serial;
	struct harp_page_histogram *rtt_histogram; /* NULL: nobody wants to know */
	uint32_t embryonic_count;
	struct conn_list free_conns;
	struct conn_list time_wait; /* closed by the application too: may be taken back */
	struct harp_listener *listeners;
	uint32_t max_listeners;
};

/* What became of a segment. Counted by tcp_input(), the one place that does. */
enum tcp_verdict {
	TCP_DONE = 0, /* accepted; the packet is the caller's to release */
	TCP_KEPT,     /* accepted; its frames are TCP's now */
	TCP_DROP_SHORT,
	TCP_DROP_CHECKSUM,
	TCP_DROP_FLAGS,
	TCP_DROP_OPTIONS,
	TCP_DROP_NO_FLOW,
	TCP_DROP_ELSEWHERE, /* another stack has the port */
	TCP_DROP_BACKLOG,
	TCP_DROP_WINDOW,
	TCP_DROP_PAWS,
	TCP_DROP_ACK,
	TCP_DROP_DUPLICATE,
	TCP_DROP_RX_BUDGET,
	TCP_DROP_STATE,
	TCP_DROP_ECHO,
	TCP_VERDICTS,
	TCP_PASS = TCP_VERDICTS, /* of a step: the segment goes on */
};

/* A parsed segment on its way in. */
struct tcp_segment {
	struct packet_in *in;
	uint32_t seq, ack;
	uint32_t len; /* payload bytes, all fragments */
	uint32_t wnd_field;
	uint8_t flags;        /* enum tcp_flag */
	uint8_t header_bytes; /* still in front of the payload until tcp_reass_payload() */
	struct tcp_options opt;
};

/* What an ACK brought, gathered on its way through tcp_ack.c, tcp_sack.c and tcp_rack.c. */
struct tcp_ack {
	uint32_t ack;             /* SEG.ACK */
	uint32_t acked_bytes;     /* snd_una moved by that */
	uint32_t delivered_bytes; /* cumulatively or by SACK, for the first time */
	uint32_t flight_bytes;    /* before: outstanding less what had left the network */
	uint32_t fack_seq;        /* before: the highest that had arrived */
	uint64_t sent_ns;         /* of the newest delivered that was sent once; 0: none */
	uint64_t rtt_ns;          /* from that */
	bool original;  /* something arrived that was sent before the timeout, and not again */
	bool dup;       /* a duplicate ACK by RFC 5681 */
	bool dsack;     /* it reports a duplicate (RFC 2883), */
	bool dsack_tlp; /* the probe's */
	bool undo;      /* and the last one that was missing */
	bool sack;      /* it has SACK blocks */
	bool lost;      /* segments were marked lost */
};

/* Segments of the send queue, one after the other, that leave as one packet. */
struct tcp_train {
	struct frame *first, *last;
	uint32_t segments; /* of these frames */
	uint32_t frags;    /* descriptors */
	uint32_t bytes;    /* payload of them all */
};

/* Segments in the send queue keep their length and fragment count in frame.owner. */
static inline uint32_t seg_bytes(const struct frame *seg)
{
	return (uint32_t)(seg->owner & 0xffffffffu);
}
static inline uint32_t seg_frags(const struct frame *seg)
{
	return (uint32_t)(seg->owner >> 32);
}
static inline void seg_set(struct frame *seg, uint32_t bytes, uint32_t frags)
{
	seg->owner = (uint64_t)frags << 32 | bytes;
}
/* Sequence space it takes: a FIN counts as one. */
static inline uint32_t seg_space(const struct frame *seg)
{
	return seg_bytes(seg) + ((seg->flags & FRAME_FIN) ? 1u : 0u);
}

static inline uint32_t conn_flight_bytes(const struct harp_conn *conn)
{
	return conn->snd_nxt_seq - conn->snd_una_seq;
}
/* Queued and never sent. */
static inline uint32_t conn_unsent_bytes(const struct harp_conn *conn)
{
	return conn->snd_unsent ? conn->snd_end_seq - conn->snd_unsent->seq : 0;
}
static inline uint32_t conn_rcv_wnd_bytes(const struct harp_conn *conn)
{
	return conn->rcv_edge_seq - conn->rcv_nxt_seq;
}
/* What a peer that says nothing may be sent. */
static inline uint32_t tcp_mss_bytes_default(const struct harp_addr *peer)
{
	return harp_addr_is_v4(peer) ? TCP_MSS_BYTES_DEFAULT_V4 : TCP_MSS_BYTES_DEFAULT_V6;
}
/* The window that a SYN of ours offers: never scaled (RFC 7323 section 2.2). */
static inline uint32_t conn_syn_wnd_bytes(const struct harp_conn *conn)
{
	uint32_t wnd = conn->rx_frames_budget * conn->rcv_bytes_per_frame;

	return wnd > 65535 ? 65535 : wnd;
}
/* No mark, no repair, no probe on its way. */
static inline bool conn_loss_is_quiet(const struct harp_conn *conn)
{
	return conn->recovery == TCP_RECOVERY_NONE && conn->sacked_bytes == 0 &&
	       conn->lost_bytes == 0 && conn->dup_acks == 0 && !conn->tlp_out;
}
/* A segment that may be believed has come. */
static inline void conn_heard(struct harp_conn *conn)
{
	conn->last_rcv_ns = conn->tcp->now_ns;
	conn->keep_unanswered = 0;
}
/* Our timestamp clock, as this connection shows it. */
static inline uint32_t conn_tsval(const struct harp_conn *conn)
{
	return conn->tcp->now_ms + conn->ts_offset;
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

/* ---- tcp.c ---- */
int tcp_init(struct tcp *tcp, struct ip *ip, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt,
	     const struct harp_stack_hooks *hooks);
void tcp_destroy(struct tcp *tcp);
void tcp_clock(struct tcp *tcp, uint64_t now_ns);
/* A closed slot with options applied; takes back a TIME-WAIT one when none is free. */
struct harp_conn *tcp_conn_alloc(struct tcp *tcp, const struct harp_tcp_options *opt);
/* As new, with options applied. */
void tcp_conn_blank(struct harp_conn *conn, const struct harp_tcp_options *opt);
/* Puts the slot back. It is CLOSED, without handle, listener or flow. */
void tcp_conn_free(struct harp_conn *conn);
/* The connection has its 4-tuple and its port: segments find it from here. */
void tcp_conn_bind(struct harp_conn *conn);
/* The same without being found. */
void tcp_conn_begin(struct harp_conn *conn);
/* RFC 6528: a clock plus a keyed hash of the 4-tuple; and the timestamp offset (RFC 7323 5.4). */
void tcp_conn_secrets(struct harp_conn *conn);
/* Where its sequence numbers begin; nothing was sent yet. */
void tcp_conn_iss(struct harp_conn *conn, uint32_t iss_seq);
void tcp_state_set(struct harp_conn *conn, enum harp_tcp_state state);
void tcp_conn_event(struct harp_conn *conn, uint32_t events);
/* Dead: timers off, flow gone, segments freed; error 0 or -errno. The slot goes too when nobody
 * holds the handle. */
void tcp_conn_die(struct harp_conn *conn, int error);
/* The same with an RST on its way out where the peer could still be listening. */
void tcp_conn_reset(struct harp_conn *conn, int error);
void tcp_enter_time_wait(struct harp_conn *conn);
/* The handshake is complete. */
void tcp_conn_established(struct harp_conn *conn);
/*
 * Frames of the pool that must stay when this connection takes another one to send from, or to keep
 * received bytes in: what the fill ring misses, a reserve for control packets, and, unless the
 * connection has next to nothing, what is left of the other direction's quarter.
 */
uint32_t tcp_pool_floor_tx(const struct harp_conn *conn);
uint32_t tcp_pool_floor_rx(const struct harp_conn *conn);

/* ---- tcp_in.c ---- */
struct tcp_run; /* tcp_run.h */
/* The packet run->in; when run->head is set and the fast path keeps it, a run begins. */
enum tcp_verdict tcp_input(struct tcp *tcp, struct tcp_run *run);
bool tcp_checksum_good(struct tcp *tcp, const struct packet_in *in);

/* ---- tcp_fast.c ---- */
/* TCP_PASS: it is not as usual, and untouched. */
enum tcp_verdict tcp_fast_in(struct harp_conn *conn, struct tcp_segment *seg);
/* The same of the next segment of a run (tcp_run.h). False: it is not as usual, and untouched. */
bool tcp_fast_again(struct harp_conn *conn, const struct tcp_segment *seg);

/* ---- tcp_check.c ---- */
/* Sequence number, RST, SYN and timestamps of a segment to a synchronized connection: TCP_PASS, or what
 * became of it (the connection may be dead). A payload that may not come in is taken off. */
enum tcp_verdict tcp_check_segment(struct harp_conn *conn, struct tcp_segment *seg);
/* SEG.ACK is one that the peer may send, or it is challenged. */
enum tcp_verdict tcp_check_ack(struct harp_conn *conn, const struct tcp_segment *seg);
/* Does it echo a timestamp that we sent and that it may still echo? */
static inline bool tcp_check_echo(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	return seg->opt.tsecr - conn->ts_echo_min <= conn->ts_sent - conn->ts_echo_min;
}
/* TS.Recent moves, of a segment that passed. */
void tcp_check_take_timestamp(struct harp_conn *conn, const struct tcp_segment *seg);
/* RFC 6191 section 2, RFC 9293 3.10.7.4: may a new SYN take over a connection in TIME-WAIT? */
bool tcp_check_time_wait_reuse(const struct harp_conn *conn, const struct tcp_segment *seg);
/* A challenge ACK, if the connection's budget has one left. */
void tcp_challenge(struct harp_conn *conn);

/* ---- tcp_icmp.c ---- */
/* An ICMP error quoted a segment of this flow (RFC 5927: quoted_seq is checked).
 * kind: -ECONNREFUSED, -EHOSTUNREACH..., or -EMSGSIZE with mtu_bytes. */
void tcp_icmp_error(struct tcp *tcp, const struct flow_key *key, uint32_t quoted_seq, int kind,
		    uint32_t mtu_bytes);

/* ---- tcp_listen.c ---- */
struct harp_listener *tcp_listener_find(struct tcp *tcp, const struct harp_addr *addr,
					uint16_t port);
/* TCP_PASS: an ACK brought a cookie back, and the connection is there to take it. */
enum tcp_verdict tcp_listen_input(struct harp_listener *l, const struct tcp_segment *seg);
/* The 4-tuple and path of a segment to this listener; false when there can be none. */
bool tcp_listen_tuple(const struct harp_listener *l, struct harp_conn *conn,
		      const struct tcp_segment *seg);
/* A connection in SYN-RECEIVED whose SYN-ACK is to be sent; NULL without a slot. */
struct harp_conn *tcp_listen_embryo(struct harp_listener *l, const struct tcp_segment *syn);
/* The peer's options of a SYN or SYN-ACK are taken over. */
void tcp_syn_options(struct harp_conn *conn, const struct tcp_segment *seg);
/* Leaves the listener's queues (it died, or was accepted). */
void tcp_listener_forget(struct harp_conn *conn);

/* ---- tcp_cookie.c ---- */
void tcp_cookie_answer(struct harp_listener *l, const struct tcp_segment *syn);
/* Makes the connection whose cookie the ACK brings; false when it brings none, or there is no room. */
bool tcp_cookie_accept(struct harp_listener *l, const struct tcp_segment *ack);

/* ---- tcp_ack.c ---- */
/* The application saw -EAGAIN: wakes it when a quarter of its budget is free and half of what may wait
 * unsent has left, not at every frame. */
void tcp_ack_writable(struct harp_conn *conn);
/* An acceptable ACK on the fast path: snd_una moves to ack, which is in (snd_una, snd_nxt], and nothing
 * is marked or being repaired. */
void tcp_ack_new(struct harp_conn *conn, uint32_t ack);
/* Any acceptable ACK. */
void tcp_ack_in(struct harp_conn *conn, const struct tcp_segment *seg);
void tcp_window_update(struct harp_conn *conn, const struct tcp_segment *seg);

/* ---- tcp_reass.c ---- */
/* Payload of an acceptable segment; takes the frames unless it says DONE or DROP. */
enum tcp_verdict tcp_reass_payload(struct harp_conn *conn, struct tcp_segment *seg);
/* len bytes of a segment, in order, are in the receive queue: when they are acknowledged, who is told. */
void tcp_reass_took(struct harp_conn *conn, const struct tcp_segment *seg, uint32_t len);
void tcp_reass_purge(struct harp_conn *conn);
void tcp_rcvq_purge(struct harp_conn *conn);
/* Frames went back: advertise more when it is worth a segment. */
void tcp_window_reopen(struct harp_conn *conn);
/* The right edge that the budget allows now; never left of the one advertised. */
uint32_t tcp_window_edge(const struct harp_conn *conn);

/* ---- tcp_out.c ---- */
/* What the segment that left last has in common with the next one, should that be as long and leave in the same turn.
 * Sequence number and checksum apart their headers are equal. */
struct tcp_burst {
	const uint8_t *head;   /* the TCP header of the one before */
	uint32_t header_bytes; /* options included; 0: there is none */
	uint32_t bytes;        /* payload */
	uint32_t sum;          /* of all but what differs */
	uint32_t desc_flags;   /* HARP_DESC_TX_* */
};

/* Sends one segment, or a train as one packet, whose first sequence number is seq: 0, -EAGAIN (next hop
 * unresolved), -ENOBUFS (NIC full), other -errno of ip_path_check(). burst (may be NULL): is told what the next
 * may have in common with it. */
int tcp_out_train(struct harp_conn *conn, const struct tcp_train *train, uint32_t seq,
		  uint8_t flags, struct tcp_burst *burst);
/* Sends seg, never sent and as long as burst says, behind the one that burst is about: 0 or -ENOBUFS. */
int tcp_out_next(struct harp_conn *conn, struct tcp_burst *burst, struct frame *seg);
int tcp_out_syn(struct harp_conn *conn);   /* SYN or SYN-ACK, by the state */
int tcp_out_ack(struct harp_conn *conn);   /* a pure ACK, at once */
int tcp_out_probe(struct harp_conn *conn); /* SEG.SEQ = SND.UNA - 1, no data */
int tcp_out_rst(struct harp_conn *conn);
/* RFC 9293 3.10.7.1: the RST that answers a segment of no connection. */
void tcp_out_rst_reply(struct tcp *tcp, const struct tcp_segment *seg);
/* No ACK is owed any more. */
void tcp_out_acked(struct harp_conn *conn);

/* ---- tcp_tx.c ---- */
void tcp_tx_ready(struct harp_conn *conn);              /* something to send: at the next phase */
void tcp_tx_want_ack(struct harp_conn *conn, bool now); /* an ACK is owed */
/* An ACK is owed, and more data is coming: it may wait for that. */
void tcp_tx_hold_ack(struct harp_conn *conn, uint64_t hold_ns);
void tcp_tx_unlist(struct harp_conn *conn); /* leaves every transmit list */
/* The transmit phase: data of ready connections, then ACKs. Returns segments sent. */
unsigned tcp_tx_phase(struct tcp *tcp);
/* When it must run next: now, when the earliest held ACK is due, or TCP_NEVER_NS. */
uint64_t tcp_tx_next_ns(const struct tcp *tcp);

/* ---- tcp_train.c ---- */
/* The segment alone. */
static inline struct tcp_train tcp_train_one(struct frame *seg)
{
	return (struct tcp_train){ .first = seg,
				   .last = seg,
				   .segments = 1,
				   .frags = seg_frags(seg),
				   .bytes = seg_bytes(seg) };
}
/* seg, never sent, may leave: and what follows it and may leave with it, where the card can cut it. */
struct tcp_train tcp_train_make(const struct harp_conn *conn, struct frame *seg);
/* The card may still read a continuation frame of seg. */
bool tcp_train_is_read(const struct frame *seg);
/* seg is about to be sent again: its application may have broken its word and changed the bytes. A segment whose checksum
 * is that of others would never arrive. */
void tcp_train_forget_sums(const struct harp_conn *conn, struct frame *seg);
/* The card has frames of seg, and is given none twice: headers would be written under it, and it may know a frame by
 * what it reads there. Cards that complete each descriptor by itself keep the end of a packet for longer. */
static inline bool tcp_train_is_busy(const struct frame *seg)
{
	return seg->nic_refs > 0 || (seg->frag && tcp_train_is_read(seg));
}

/* Frames of nobody's with the bytes of seg, which may be sent as it; NULL: there are too few. */
struct frame *tcp_train_copy(struct harp_conn *conn, const struct frame *seg, uint32_t *frags);

/* ---- tcp_external.c ---- */
/* Queues bytes of the application's memory; how many were taken. *records: it were external frames that
 * ran out. */
size_t tcp_external_queue(struct harp_conn *conn, struct frame_memory *memory, const uint8_t *src,
			  size_t len, bool *records);
/* A record for what of an external frame lies behind keep bytes, which are all that f keeps; NULL: none. */
struct frame *tcp_external_cut(struct harp_conn *conn, struct frame *f, uint32_t keep);

/* Copies what the send queue refers to of this memory (NULL: of any) into frames. The bytes; -ENOBUFS. */
ssize_t tcp_external_evict(struct harp_conn *conn, const struct frame_memory *memory);

/* ---- tcp_sndq.c ---- */
/* Puts a segment's payload into frames of the pool, with none but the first of those it has. Bytes copied;
 * -ENOBUFS, and nothing has changed. */
ssize_t tcp_sndq_repack(struct harp_conn *conn, struct frame *seg);
/* The newest segment when it may grow by another frame, else a new one without any bytes; NULL: budget or
 * pool are used up. */
struct frame *tcp_sndq_growing(struct harp_conn *conn);
struct frame *tcp_sndq_last_frag(struct frame *seg);
/* Copies bytes in; how many were taken. */
size_t tcp_sndq_copy(struct harp_conn *conn, const uint8_t *src, size_t len);
size_t tcp_sndq_room(const struct harp_conn *conn);
struct frame *tcp_sndq_alloc(struct harp_conn *conn);
void tcp_sndq_frame(struct harp_conn *conn, struct frame *f);
/* The FIN takes its place; false when no frame could be had. */
bool tcp_sndq_fin(struct harp_conn *conn);
/* Cuts a segment after `bytes`; the rest becomes the next one. False without a frame. */
bool tcp_sndq_split(struct harp_conn *conn, struct frame *seg, uint32_t bytes);
/* Makes the first unsent segment, which is smaller, `bytes` long with what follows it: more than that is
 * queued. False when it can't; it may have grown all the same. */
bool tcp_sndq_gather(struct harp_conn *conn, uint32_t bytes);
/* Everything before ack is gone; a learns what that delivers. */
void tcp_sndq_acked(struct harp_conn *conn, uint32_t ack, struct tcp_ack *a);
void tcp_sndq_purge(struct harp_conn *conn);
/* Payload bytes that one of our segments can carry on this NIC. */
uint32_t tcp_sndq_segment_bytes_max(const struct tcp *tcp);

/* ---- tcp_sack.c ---- */
/* The SACK blocks of an acceptable segment. */
void tcp_sack_in(struct harp_conn *conn, const struct tcp_segment *seg, struct tcp_ack *a);
/* The segment that holds seq, which is in [snd_una, snd_nxt). */
struct frame *tcp_sack_find(struct harp_conn *conn, uint32_t seq);
/* A segment was sent for the first time and its turn for a finger has come. */
void tcp_sack_finger(struct harp_conn *conn, const struct frame *seg);
/* The first n (all, when it goes) of a segment's sequence space are acknowledged. */
void tcp_sack_acked(struct harp_conn *conn, const struct frame *seg, uint32_t n, struct tcp_ack *a);
void tcp_sack_mark_lost(struct harp_conn *conn, struct frame *seg);
/* It isn't, or it was sent again. */
void tcp_sack_unmark_lost(struct harp_conn *conn, struct frame *seg);
/* The peer went back on its word (RFC 2018 section 8): what was SACKed isn't. */
void tcp_sack_forget(struct harp_conn *conn);
/* The sums are those of the queue: for assert(). */
bool tcp_sack_sums_good(const struct harp_conn *conn);

/* ---- tcp_sackout.c ---- */
/* [start, end) was kept out of order. */
void tcp_sackout_kept(struct harp_conn *conn, uint32_t start_seq, uint32_t end_seq);
/* rcv_nxt moved. */
void tcp_sackout_advance(struct harp_conn *conn);
/* What lies at and behind seq was given up. */
void tcp_sackout_evicted(struct harp_conn *conn, uint32_t seq);
/* [start, end) came again: the next ACK says so (RFC 2883). */
void tcp_sackout_duplicate(struct harp_conn *conn, uint32_t start_seq, uint32_t end_seq);
/* Fills the blocks of an ACK with room for room_bytes of options; how many. */
uint32_t tcp_sackout_blocks(const struct harp_conn *conn, uint32_t room_bytes,
			    struct tcp_options *opt);

/* ---- tcp_rack.c ---- */
/* A segment arrived at the peer. */
void tcp_rack_delivered(struct harp_conn *conn, const struct frame *seg, struct tcp_ack *a);
void tcp_rack_resent(struct harp_conn *conn, const struct frame *seg);
/* The reordering window's adaptation, after an ACK or at the end of a recovery. */
void tcp_rack_adapt(struct harp_conn *conn, bool dsack, bool recovered);
/* Marks what is lost by now and sets the reordering timer; true when something was. */
bool tcp_rack_detect(struct harp_conn *conn);
/* Everything is judged anew. */
void tcp_rack_restart(struct harp_conn *conn);
uint64_t tcp_rack_window_ns(const struct harp_conn *conn);
/* loss_deadline_ns has come. */
void tcp_rack_timeout(struct harp_conn *conn);
/* The probe to send: a segment never sent, or the last one again; NULL: none any more. */
struct frame *tcp_rack_probe(struct harp_conn *conn);
void tcp_rack_probed(struct harp_conn *conn, bool again);
/* RFC 8985 section 7.4.2. True: the probe repaired a loss. */
bool tcp_rack_probe_acked(struct harp_conn *conn, const struct tcp_ack *a);

/* ---- tcp_loss.c ---- */
/* An ACK that moved snd_una, or while loss_open, or with SACK blocks, or a duplicate one. */
void tcp_loss_ack(struct harp_conn *conn, struct tcp_ack *a);
/* RACK's timer found segments lost. */
void tcp_loss_found(struct harp_conn *conn);
void tcp_loss_timeout(struct harp_conn *conn);
/* ECE came (RFC 3168): the window goes down, once per window of data. */
void tcp_loss_ecn(struct harp_conn *conn);
/* Bytes believed to be on the way. */
uint32_t tcp_loss_pipe_bytes(const struct harp_conn *conn);
/* The segment to send again now; NULL: none. */
struct frame *tcp_loss_next(struct harp_conn *conn);
/* A segment left, again or for the first time. */
void tcp_loss_sent(struct harp_conn *conn, struct frame *seg, bool again);

/* ---- tcp_ecn.c ---- */
/* TCP_ECE and TCP_CWR for a SYN, or SYN-ACK (reply), that is about to leave. */
uint8_t tcp_ecn_syn_out(struct harp_conn *conn, bool reply);
/* The peer's SYN or SYN-ACK: what is agreed on. */
void tcp_ecn_syn_in(struct harp_conn *conn, uint8_t flags);
/* Its SYN once more: it may have fallen back (RFC 3168 section 6.1.1.1). */
void tcp_ecn_syn_again(struct harp_conn *conn, uint8_t flags);
/* With CONN_ECN_IN: adds ECE and CWR to a segment's flags; its ECN bits of the IP header. */
uint8_t tcp_ecn_out(const struct harp_conn *conn, const struct frame *f, uint32_t payload_len,
		    uint8_t *flags);
/* Payload in the window, before it is taken. */
void tcp_ecn_data_in(struct harp_conn *conn, const struct tcp_segment *seg);
/* ECE on an acceptable ACK, after what it acknowledges has been dealt with. */
void tcp_ecn_echo_in(struct harp_conn *conn);
/* The window was reduced, for whatever reason. */
void tcp_ecn_reduced(struct harp_conn *conn);

/* ---- tcp_cc.c ---- */
/* What is wrong with the options that concern congestion control; NULL: nothing. */
const char *tcp_cc_check(const struct harp_tcp_options *opt);
void tcp_cc_select(struct harp_conn *conn, uint32_t congestion, uint32_t fixed_window_bytes);
enum harp_congestion tcp_cc_congestion(const struct harp_conn *conn);
void tcp_cc_begin(struct harp_conn *conn);   /* established */
void tcp_cc_restart(struct harp_conn *conn); /* about to send after idling */
void tcp_cc_pace(struct harp_conn *conn);    /* the window or the round trip moved */
/* Of a paced connection: may so many bytes of new data leave now? If not, its timer is set. */
bool tcp_cc_pace_admits(struct harp_conn *conn, uint32_t bytes);

/* ---- tcp_mtu.c ---- */
/* snd_mss_bytes is what link and peer allow. */
void tcp_mtu_init(struct harp_conn *conn);
/* A router says that the segment at quoted_seq, which is outstanding, does not fit. */
void tcp_mtu_told(struct harp_conn *conn, uint32_t quoted_seq, uint32_t mtu_bytes);
/* The retransmission timer has expired. */
void tcp_mtu_timeout(struct harp_conn *conn);
/* While not MTU_IDLE, before new data is sent: bytes of a probe to be sent now; 0: none. */
uint32_t tcp_mtu_probe(struct harp_conn *conn);
void tcp_mtu_probed(struct harp_conn *conn, const struct frame *seg);
/* This segment (NULL: anything) was lost: true when it was the probe, whose loss says nothing else. */
bool tcp_mtu_probe_lost(struct harp_conn *conn, const struct frame *seg);
/* Without SACK: the duplicate ACKs are for a probe that is known to be lost. */
static inline bool tcp_mtu_explains(const struct harp_conn *conn)
{
	return conn->mtu_failed && conn->snd_una_seq == conn->mtu_probe_seq;
}

/* ---- tcp_timer.c ---- */
void tcp_timer_init(struct harp_conn *conn);
void tcp_timer_fire(struct harp_conn *conn);
/* Events, after WireGuard's manner. */
void tcp_timer_sent(struct harp_conn *conn);   /* data, SYN or FIN left */
void tcp_timer_acked(struct harp_conn *conn);  /* snd_una moved */
void tcp_timer_resent(struct harp_conn *conn); /* the oldest, or a probe: the RTO begins anew */
void tcp_timer_probe(struct harp_conn *conn);  /* nothing is marked any more */
void tcp_timer_loss(struct harp_conn *conn, uint64_t deadline_ns);
void tcp_timer_blocked(struct harp_conn *conn); /* nothing is in flight, yet something waits */
void tcp_timer_sliver(
	struct harp_conn *conn); /* nor is, as the window is too small to be worth it */
void tcp_timer_life(struct harp_conn *conn, uint64_t after_ns);
void tcp_timer_pace(struct harp_conn *conn, uint64_t after_ns); /* it has to wait so long */
void tcp_timer_keepalive(struct harp_conn *conn);               /* its settings changed */
void tcp_timer_rtt(struct harp_conn *conn, uint64_t rtt_ns, bool lone);
void tcp_timer_stop(struct harp_conn *conn);
uint64_t tcp_timer_rto_ns(const struct harp_conn *conn);

#endif
