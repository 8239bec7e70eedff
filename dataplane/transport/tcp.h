/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - TCP: the layer, and what its files ask of one another. The connection is tcp_conn.h, its send queue tcp_sndq.h.
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
 *	tcp_window.c   the window that we offer
 *	tcp_budget.c   how many frames a connection may hold; autotuning
 *	tcp_starve.c   receivers that the pool has no frames for
 *	tcp_delack.c   when it is acknowledged
 *	tcp_tx.c       the transmit phase: who sends what, when
 *	tcp_out.c      one segment out: headers, options, window
 *	tcp_train.c    segments that the card gets as one packet and cuts itself (TSO)
 *	tcp_sndq.c     the send queue: bytes and frames become segments
 *	tcp_recut.c    segments cut anew
 *	tcp_external.c the send queue of the application's memory, in place
 *	tcp_sack.c     the sender's scoreboard: what the peer has, by its SACK blocks (RFC 2018, 2883)
 *	tcp_sackout.c  the receiver's SACK blocks
 *	tcp_rack.c     when a segment counts as lost, and the tail loss probe (RFC 8985)
 *	tcp_dupack.c   what duplicate ACKs tell without SACK (RFC 6582)
 *	tcp_loss.c     the repair: when it begins and ends, what leaves meanwhile, when it was in vain
 *	tcp_mtu.c      how large a segment the path carries (RFC 1191, 4821)
 *	tcp_timer.c    RTT and RTO (RFC 6298), probes, keepalive, TIME-WAIT
 *	tcp_ecn.c      explicit congestion notification: RFC 3168, 8257
 *	tcp_cc.c       which congestion control (cc.h), and pacing
 */
#ifndef HARP_TRANSPORT_TCP_H
#define HARP_TRANSPORT_TCP_H

#include "base/siphash.h"
#include "harp_page.h"
#include "network/ip.h"
#include "transport/cc.h"
#include "transport/flow.h"
#include "transport/port.h"
#include "transport/seq.h"
#include "transport/tcp_conn.h"
#include "transport/tcp_options.h"
#include "transport/tcp_sndq.h"

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
/*
 * RFC 6298 (2.4) says "RTO SHOULD be rounded up to 1 second" for want of better clocks and knowledge; like every stack
 * for data centers we know both. 5 ms is some hundred round trips of a rack.
 */
#define TCP_RTO_NS_MIN (5 * TCP_NS_PER_MS)
#define TCP_RTO_NS_MAX (60 * TCP_NS_PER_S)    /* RFC 6298 (2.5) */
#define TCP_RTO_NS_INITIAL (1 * TCP_NS_PER_S) /* (2.1); harp_tcp_options.initial_rto_ns */
#define TCP_TIME_WAIT_NS (60 * TCP_NS_PER_S)  /* 2 MSL with an MSL of 30 s, as Linux */
/* Connections in TIME-WAIT that we opened: each has a port to itself, which may cost a
 * descriptor of the host's. */
#define TCP_TIME_WAIT_PORTS_MAX 16u
#define TCP_FIN_WAIT_2_NS (60 * TCP_NS_PER_S) /* closed by the application, peer silent */
#define TCP_CHALLENGE_ACKS_PER_S 10u          /* per connection, at most: RFC 5961 section 7 */
#define TCP_CHALLENGE_ACKS_PER_S_STACK 1000u  /* of all together: see tcp_check.c */

#define TCP_FRAMES_BUDGET_MIN                                                                      \
	4u /* and so many every connection may have, as long as the pool has any */
#define TCP_TIMER_KIND 0x746370u /* "tcp": struct timer.kind of a connection's timer */
#define TCP_NEVER_NS UINT64_MAX

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
	struct conn_list starved; /* those whose window is closed for want of frames of the pool */
	struct conn_list grown;   /* those whose receive budget has grown: tcp_budget.c */
	uint32_t grown_count, grown_frames; /* how many they are, and the sum of their budgets */
	bool nic_full;                      /* the last transmit phase ended for want of room */
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
	void *conns_memory;
	struct harp_conn *conns; /* in it, aligned */
	uint32_t max_conns;      /* conns has one more, which is nobody's: see tcp_cookie.c */
	uint32_t conns_high;     /* slots from here on were never used: zeros */
	uint64_t conn_serial;
	struct harp_page_histogram *rtt_histogram; /* NULL: nobody wants to know */
	uint32_t embryonic_count;
	struct conn_list free_conns;
	/* Closed by the application too: may be taken back. */
	struct conn_list time_wait;        /* accepted */
	struct conn_list time_wait_opened; /* by us */
	uint32_t time_wait_opened_count;
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

/* What a peer that says nothing may be sent. */
static inline uint32_t tcp_mss_bytes_default(const struct harp_addr *peer)
{
	return harp_addr_is_v4(peer) ? TCP_MSS_BYTES_DEFAULT_V4 : TCP_MSS_BYTES_DEFAULT_V6;
}
/* The MSS option that the link's MTU allows: RFC 6691 counts no IP or TCP options. */
static inline uint32_t conn_link_mss_bytes(const struct harp_conn *conn)
{
	return conn->path.mtu_bytes - TCP_HEADER_BYTES - ip_header_bytes(&conn->path.dst);
}
/* The window that a SYN of ours offers: never scaled (RFC 7323 section 2.2). */
static inline uint32_t conn_syn_wnd_bytes(const struct harp_conn *conn)
{
	uint32_t wnd = conn_rcv_wnd_bytes_max(conn);

	return wnd > 65535 ? 65535 : wnd;
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
	return conn->tcp->now_ms + conn->ts.offset;
}
/* ---- tcp.c ---- */
int tcp_init(struct tcp *tcp, struct ip *ip, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt,
	     const struct harp_stack_hooks *hooks);
void tcp_destroy(struct tcp *tcp);
void tcp_clock(struct tcp *tcp, uint64_t now_ns);
/* Is there a slot, or one in TIME-WAIT to be taken back? */
static inline bool tcp_has_slot(const struct tcp *tcp)
{
	return !TAILQ_EMPTY(&tcp->free_conns) || tcp->conns_high < tcp->max_conns ||
	       !TAILQ_EMPTY(&tcp->time_wait) || !TAILQ_EMPTY(&tcp->time_wait_opened);
}
/* A closed slot with options applied; takes back a TIME-WAIT one when none is free. NULL: !tcp_has_slot(). */
struct harp_conn *tcp_conn_alloc(struct tcp *tcp, const struct harp_tcp_options *opt);
/* As new, with options applied. */
void tcp_conn_blank(struct harp_conn *conn, const struct harp_tcp_options *opt);
/* Puts the slot back. It is CLOSED, without handle, listener or flow. */
void tcp_conn_free(struct harp_conn *conn);
/* The connection has its 4-tuple and its port: segments find it from here. */
void tcp_conn_bind(struct harp_conn *conn);
/* The same without being found. */
void tcp_conn_begin(struct harp_conn *conn);
/* Nothing is agreed on with a peer: the window scale is that of our SYN. */
void tcp_conn_offer(struct harp_conn *conn);
/* RFC 6528: a clock plus a keyed hash of the 4-tuple; and the timestamp offset (RFC 7323 5.4). */
void tcp_conn_secrets(struct harp_conn *conn);
/* Where its sequence numbers begin; nothing was sent yet. */
void tcp_conn_iss(struct harp_conn *conn, uint32_t iss_seq);
/* In the place of one in TIME-WAIT: RFC 9293 section 3.6.1. */
void tcp_conn_iss_beyond(struct harp_conn *conn, uint32_t old_nxt_seq);
void tcp_state_set(struct harp_conn *conn, enum harp_tcp_state state);
void tcp_conn_event(struct harp_conn *conn, uint32_t events);
/* Dead: timers off, flow gone, segments freed; error 0 or -errno. The slot goes too when nobody
 * holds the handle. */
void tcp_conn_die(struct harp_conn *conn, int error);
/* The same with an RST on its way out where the peer could still be listening. */
void tcp_conn_reset(struct harp_conn *conn, int error);
void tcp_enter_time_wait(struct harp_conn *conn);
/* In TIME-WAIT, and closed by the application. The oldest one that we opened ends when there are
 * too many. */
void tcp_time_wait_add(struct harp_conn *conn);
/* The handshake is complete. */
void tcp_conn_established(struct harp_conn *conn);

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
	return seg->opt.tsecr - conn->ts.echo_min <= conn->ts.sent - conn->ts.echo_min;
}
/* TS.Recent moves, of a segment that passed. */
void tcp_check_take_timestamp(struct harp_conn *conn, const struct tcp_segment *seg);
/* RFC 6191 section 2, RFC 9293 3.10.7.4: may a new SYN take over a connection in TIME-WAIT? */
bool tcp_check_time_wait_reuse(const struct harp_conn *conn, const struct tcp_segment *seg);

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
/* The peer hears us, as what it acknowledges or sends is new: the next hop is where we think (RFC 4861 section 7.3.1). */
void tcp_ack_progress(struct harp_conn *conn);

/* ---- tcp_reass.c ---- */
/* Payload of an acceptable segment; takes the frames unless it says DONE or DROP. */
enum tcp_verdict tcp_reass_payload(struct harp_conn *conn, struct tcp_segment *seg);
void tcp_reass_purge(struct harp_conn *conn);
void tcp_rcvq_purge(struct harp_conn *conn);
/* The application shut down reading: received bytes that wait are discarded. */
void tcp_rcvq_discard(struct harp_conn *conn);

/* ---- tcp_window.c ---- */
/* Frames went back: advertise more when it is worth a segment. */
void tcp_window_reopen(struct harp_conn *conn);
/* The right edge that the budget allows now; never left of the one advertised. */
uint32_t tcp_window_edge(const struct harp_conn *conn);

/* ---- tcp_budget.c ---- */
/*
 * Frames of the pool that must stay when this connection takes another one to send from, or to keep
 * received bytes in: what the fill ring misses, a reserve for control packets, and, unless the
 * connection has next to nothing, what is left of the other direction's quarter.
 */
uint32_t tcp_pool_floor_tx(const struct harp_conn *conn);
uint32_t tcp_pool_floor_rx(const struct harp_conn *conn);
void tcp_budget_init(struct tcp *tcp);
/* The budgets that the application asked for; 0: tuned. */
void tcp_budget_begin(struct harp_conn *conn, uint32_t rx_frames, uint32_t tx_frames);
void tcp_budget_change_rx(struct harp_conn *conn, uint32_t frames);
void tcp_budget_change_tx(struct harp_conn *conn, uint32_t frames);
/* A round trip has passed since the last measurement, or may have: sets the receive budget. */
void tcp_budget_measure(struct harp_conn *conn);
/* The application consumed received bytes. */
static inline void tcp_budget_consumed(struct harp_conn *conn)
{
	if (conn->budget.rx_tuned && conn->tcp->now_ns >= conn->budget.measure_end_ns)
		tcp_budget_measure(conn);
}
/* The send budget as of now. */
uint32_t tcp_budget_tx_frames(const struct harp_conn *conn);
void tcp_budget_tune_tx(struct harp_conn *conn);
/* The receive budget that has grown goes back. */
void tcp_budget_release(struct harp_conn *conn);

/* ---- tcp_starve.c ---- */
/* Data in order was refused, as the pool is short. True: for a while, and the window is to be closed. */
bool tcp_starve_refused(struct harp_conn *conn);
void tcp_starve_end(struct harp_conn *conn);
/* One at a time, in a transmit phase: it may take all the frames there are. */
bool tcp_starve_may_feed(const struct tcp *tcp);
void tcp_starve_feed(struct tcp *tcp);

/* ---- tcp_delack.c ---- */
/* An ACK is owed; now: it may not wait for the next poll. */
void tcp_delack_want(struct harp_conn *conn, bool now);
/* len bytes of a segment, in order, are in the receive queue: when they are acknowledged, who is told. */
void tcp_delack_took(struct harp_conn *conn, const struct tcp_segment *seg, uint32_t len);
/* Sends the ACKs that are due: of an earlier poll, of two full-sized segments, held long enough, or wanted now.
 * Returns how many. */
unsigned tcp_delack_phase(struct tcp *tcp);
/* When the next of those that are owed is due: now, or when the earliest that is held is. */
uint64_t tcp_delack_next_ns(const struct tcp *tcp);

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
void tcp_tx_ready(struct harp_conn *conn);  /* something to send: at the next phase */
void tcp_tx_unlist(struct harp_conn *conn); /* leaves every transmit list */
/* The transmit phase: data of ready connections, then ACKs. Returns segments sent. */
unsigned tcp_tx_phase(struct tcp *tcp);
/* When it must run next: now, when the earliest held ACK is due, or TCP_NEVER_NS. */
uint64_t tcp_tx_next_ns(const struct tcp *tcp);

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
/* Counts the segments in flight that are marked lost, and those sent again and neither lost nor SACKed. Walks
 * over the queue when there are any. */
struct tcp_marks {
	uint32_t lost_segs, retrans_segs;
};
struct tcp_marks tcp_sack_marks(const struct harp_conn *conn);
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
/* deadline.loss_ns has passed. */
void tcp_rack_timeout(struct harp_conn *conn);
/* deadline.probe_ns has passed. */
void tcp_rack_probe_timeout(struct harp_conn *conn);
/* The probe to send: a segment never sent, or the last one again; NULL: none any more. */
struct frame *tcp_rack_probe(struct harp_conn *conn);
void tcp_rack_probed(struct harp_conn *conn, bool again);
/* RFC 8985 section 7.4.2. True: the probe repaired a loss. */
bool tcp_rack_probe_acked(struct harp_conn *conn, const struct tcp_ack *a);

/* ---- tcp_dupack.c ---- */
/* Without SACK: one that duplicates, or one that moved snd_una, which may mark what is lost. */
void tcp_dupack_count(struct harp_conn *conn, struct tcp_ack *a);
void tcp_dupack_advance(struct harp_conn *conn, struct tcp_ack *a);
/* What they told is over. */
void tcp_dupack_forget(struct harp_conn *conn);

/* ---- tcp_loss.c ---- */
/* An ACK that moved snd_una, or while loss_open, or with SACK blocks, or a duplicate one. */
void tcp_loss_ack(struct harp_conn *conn, struct tcp_ack *a);
/* RACK's timer found segments lost. */
void tcp_loss_found(struct harp_conn *conn);
void tcp_loss_timeout(struct harp_conn *conn);
/* Two quiet round trips after a repair: DSACKs that could undo it would have arrived. */
void tcp_loss_settle(struct harp_conn *conn);
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
/* The application chose another controller, or another fixed window, for an open connection. */
void tcp_cc_change(struct harp_conn *conn, uint32_t congestion, uint32_t fixed_window_bytes);
void tcp_cc_begin(struct harp_conn *conn);   /* established */
void tcp_cc_restart(struct harp_conn *conn); /* about to send after idling */
void tcp_cc_pace(struct harp_conn *conn);    /* the window or the round trip moved */
/* Of a paced connection: may so many bytes of new data leave now? If not, its timer is set. */
bool tcp_cc_pace_admits(struct harp_conn *conn, uint32_t bytes);

/* ---- tcp_mtu.c ---- */
/* snd_mss_bytes is what link and peer allow; the application's limit is applied here. */
void tcp_mtu_init(struct harp_conn *conn);
/* mss_limit_bytes has changed. */
void tcp_mtu_limit(struct harp_conn *conn);
/* A segment was too large for our own route. False: though it was no larger than that allows. */
bool tcp_mtu_refused(struct harp_conn *conn);
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
	return conn->mtu.failed && conn->snd_una_seq == conn->mtu.probe_seq;
}

/* ---- tcp_timer.c ---- */
void tcp_timer_init(struct harp_conn *conn);
void tcp_timer_fire(struct harp_conn *conn);
/* Events, after WireGuard's manner. */
void tcp_timer_sent(struct harp_conn *conn);      /* data, SYN or FIN left */
void tcp_timer_acked(struct harp_conn *conn);     /* snd_una moved */
void tcp_timer_handshake(struct harp_conn *conn); /* the SYN or SYN-ACK is acknowledged */
void tcp_timer_resent(struct harp_conn *conn); /* the oldest segment or a probe: restarts the RTO */
/* A closed window has opened: the RTO without backoff, unless the timer expires sooner. */
void tcp_timer_reopened(struct harp_conn *conn);
void tcp_timer_loss(struct harp_conn *conn, uint64_t deadline_ns);
void tcp_timer_blocked(struct harp_conn *conn); /* nothing is in flight, yet something waits */
void tcp_timer_sliver(
	struct harp_conn *conn); /* nor is, as the window is too small to be worth it */
void tcp_timer_life(struct harp_conn *conn, uint64_t after_ns);
void tcp_timer_pace(struct harp_conn *conn, uint64_t after_ns); /* it has to wait so long */
void tcp_timer_keepalive(struct harp_conn *conn);               /* its settings changed */
void tcp_timer_user_timeout(struct harp_conn *conn);            /* it changed */
void tcp_timer_rtt(struct harp_conn *conn, uint64_t rtt_ns, bool lone);
void tcp_timer_stop(struct harp_conn *conn);
uint64_t tcp_timer_rto_ns(const struct harp_conn *conn);

#endif
