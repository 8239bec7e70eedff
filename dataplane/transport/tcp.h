/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - TCP: internal interface of the layer's files. tcp_conn.h declares the connection,
 * tcp_sndq.h its send queue.
 *
 *	tcp.c          lifecycle: slots, state transitions, termination
 *	tcp_in.c       segment arrival: RFC 9293 section 3.10.7 in its order
 *	tcp_fast.c     fast path for in-order segments and pure ACKs (header prediction)
 *	tcp_gro.c      fast path for a burst whose headers repeat
 *	tcp_check.c    acceptability: RFC 5961, timestamps, sequence numbers; challenge ACKs
 *	tcp_listen.c   a SYN to a listener
 *	tcp_cookie.c   SYN cookies when the backlog is full
 *	tcp_ack.c      effects of an acceptable ACK: queue, RTT, window
 *	tcp_reass.c    received payload: in order to the receive queue, else the reassembly list
 *	tcp_window.c   the advertised window, and receivers under memory pressure
 *	tcp_budget.c   frames that a connection may hold; autotuning
 *	tcp_delack.c   delayed ACKs
 *	tcp_tx.c       the transmit phase: chooses connections and data
 *	tcp_out.c      one segment out: headers, options, window
 *	tcp_gso.c      several segments as one packet that the NIC segments (TSO)
 *	tcp_sndq.c     the send queue: bytes and frames become segments
 *	tcp_resegment.c segments split, trimmed, joined or copied
 *	tcp_external.c segments that refer to the application's memory (zero copy)
 *	tcp_sack.c     the sender's scoreboard from SACK blocks (RFC 2018, 2883)
 *	tcp_sackout.c  the receiver's SACK blocks
 *	tcp_rack.c     loss detection and the tail loss probe (RFC 8985)
 *	tcp_dupack.c   duplicate ACKs without SACK (RFC 6582)
 *	tcp_loss.c     loss recovery: start, end, transmissions during it, undo
 *	tcp_mtu.c      path MTU discovery (RFC 1191, 4821)
 *	tcp_timer.c    RTT and RTO (RFC 6298), probes, keepalive, TIME-WAIT
 *	tcp_ecn.c      explicit congestion notification: RFC 3168, 8257
 *	tcp_cc.c       selection of the congestion controller (cc.h), and pacing
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
#define TCP_MSS_BYTES_MIN 88u   /* a smaller MSS would make us send mostly headers */
#define TCP_DUPACK_THRESHOLD 3u /* RFC 5681 section 3.2 */
/* acknowledge after at most this many full-sized segments */
#define TCP_ACK_EVERY_SEGMENTS 16u
#define TCP_ACK_BURST_BYTES 131072u /* or after this much of one burst */
/* after this many consecutive in-order segments, ACKs may be delayed longer */
#define TCP_BULK_SEGMENTS 64u
#define TCP_ACK_HOLD_NS 10000u      /* the time of a few segments */
#define TCP_ACK_HOLD_BULK_NS 40000u /* one hundredth of the minimum RTO */
/* wait for a second segment: RFC 5681 section 4.2 allows 500 ms */
#define TCP_ACK_HOLD_SLOW_NS_MAX 5000000u
#define TCP_ACKS_HELD_MAX 64u       /* delayed ACKs of a stack; each poll visits all of them */
#define TCP_TX_QUOTA_SEGMENTS 16u   /* sent by one connection before the next one is served */
#define TCP_PACE_BURST_NS 250000ull /* burst of a paced connection, at its rate */

#define TCP_COOKIES_USED 1024u /* accepted cookies to remember, because each is valid once */

#define TCP_NS_PER_S 1000000000ull
#define TCP_NS_PER_MS 1000000ull
/*
 * RFC 6298 (2.4) rounds the RTO up to 1 second, to avoid spurious retransmissions on the Internet.
 * Like other data center stacks, HARP uses less: 5 ms is about a hundred round trips of a rack.
 */
#define TCP_RTO_NS_MIN (5 * TCP_NS_PER_MS)
#define TCP_RTO_NS_MAX (60 * TCP_NS_PER_S)    /* RFC 6298 (2.5) */
#define TCP_RTO_NS_INITIAL (1 * TCP_NS_PER_S) /* (2.1); harp_tcp_options.initial_rto_ns */
#define TCP_TIME_WAIT_NS (60 * TCP_NS_PER_S)  /* 2 MSL with an MSL of 30 s, as Linux */
/* maximum of TIME-WAIT connections that we opened: each occupies a port, which may cost the host a
 * file descriptor */
#define TCP_TIME_WAIT_PORTS_MAX 16u
/* after the application's close, if the peer is silent */
#define TCP_FIN_WAIT_2_NS (60 * TCP_NS_PER_S)
#define TCP_CHALLENGE_ACKS_PER_S 10u         /* per connection: RFC 5961 section 7 */
#define TCP_CHALLENGE_ACKS_PER_S_STACK 1000u /* for the whole stack: see tcp_check.c */

#define TCP_FRAMES_BUDGET_MIN 4u /* of a connection; these come from a larger part of the pool */
#define TCP_TIMER_KIND 0x746370u /* "tcp": struct timer.kind of a connection's timer */
#define TCP_NEVER_NS UINT64_MAX

struct harp_listener {
	struct tcp *tcp; /* NULL: the slot is free */
	struct harp_endpoint local;
	struct harp_tcp_options options;
	uint32_t embryonic_count, accept_count;
	uint64_t cookie_until_ns;      /* expiry of the last SYN cookie sent */
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
	struct conn_list tx_ready;      /* has data to send */
	struct conn_list tx_blocked;    /* waits for the NIC to complete or for a frame */
	struct conn_list tx_unresolved; /* waits for a neighbor entry */
	struct conn_list ack_list;      /* has a pure ACK to send */
	uint32_t acks_pending;          /* length of ack_list */
	struct conn_list events;
	struct conn_list pool_waiters;   /* the application waits for frames of the pool */
	struct conn_list reassembling;   /* has out-of-order data: tcp_reass.c */
	struct conn_list under_pressure; /* the window is closed because the pool has no frames */
	struct conn_list grown;          /* the receive budget has grown: tcp_budget.c */
	uint32_t grown_count, grown_frames; /* length of `grown`, and the sum of these budgets */
	/* the last transmit phase ended because the NIC was full */
	bool nic_full;
	uint32_t resolved_seen; /* eth->resolved_generation at the last wakeup of tx_unresolved */
	uint32_t tx_frags_max;  /* frames of one segment */
	bool csum_offload;      /* the NIC computes checksums */
	uint32_t shared_frames; /* of the pool, without those for the fill ring */
	uint32_t pool_high_frames; /* more than the result of any tcp_pool_floor_*() */
	/* maximum bytes of a packet that the NIC writes into one frame */
	uint32_t rx_payload_frame_bytes;
	struct flow_table flows;
	struct port_table ports;
	struct siphash_key isn_secret, challenge_secret, cookie_secret;
	/* recently accepted cookies; entries are indexed by their low bits */
	uint32_t cookies_used[TCP_COOKIES_USED];
	void *conns_memory;
	struct harp_conn *conns; /* inside conns_memory, aligned */
	uint32_t max_conns;      /* conns[max_conns] is scratch memory of tcp_cookie.c */
	uint32_t conns_high;     /* later slots were never used and are zero */
	uint64_t conn_serial;
	struct harp_page_histogram *rtt_histogram; /* NULL: not recorded */
	uint32_t embryonic_count;
	struct conn_list free_conns;
	/* TIME-WAIT connections that the application has closed; their slots may be reclaimed */
	struct conn_list time_wait;        /* opened by the peer */
	struct conn_list time_wait_opened; /* opened by us */
	uint32_t time_wait_opened_count;
	struct harp_listener *listeners;
	uint32_t max_listeners;
};

/* Result of processing a segment. Only tcp_input() counts them. */
enum tcp_verdict {
	TCP_DONE = 0, /* accepted; the caller releases the packet */
	TCP_KEPT,     /* accepted; TCP has taken the frames */
	TCP_DROP_SHORT,
	TCP_DROP_CHECKSUM,
	TCP_DROP_FLAGS,
	TCP_DROP_OPTIONS,
	TCP_DROP_NO_FLOW,
	TCP_DROP_OTHER_QUEUE, /* another stack has the port */
	TCP_DROP_BACKLOG,
	TCP_DROP_WINDOW,
	TCP_DROP_PAWS,
	TCP_DROP_ACK,
	TCP_DROP_DUPLICATE,
	TCP_DROP_RX_BUDGET,
	TCP_DROP_STATE,
	TCP_DROP_ECHO,
	TCP_VERDICTS,
	TCP_PASS = TCP_VERDICTS, /* result of one step: continue with the next */
};

/* A parsed, received segment. */
struct tcp_segment {
	struct packet_in *in;
	uint32_t seq, ack;
	uint32_t len; /* payload bytes, all fragments */
	uint32_t wnd_field;
	uint8_t flags;        /* enum tcp_flag */
	uint8_t header_bytes; /* before the payload, until tcp_reass_payload() */
	struct tcp_options opt;
};

/* Results of an ACK, collected by tcp_ack.c, tcp_sack.c and tcp_rack.c. */
struct tcp_ack {
	uint32_t ack;             /* SEG.ACK */
	uint32_t acked_bytes;     /* newly acknowledged: it moved SND.UNA by this */
	uint32_t delivered_bytes; /* newly acknowledged or SACKed */
	/* before this ACK: outstanding, without bytes that had already left the network */
	uint32_t flight_bytes;
	uint32_t fack_seq; /* before this ACK: the highest delivered sequence number */
	/* send time of the newest delivered segment that was not retransmitted; 0: none */
	uint64_t sent_ns;
	uint64_t rtt_ns; /* RTT sample from sent_ns */
	bool original;   /* delivered a segment sent before the timeout and not retransmitted */
	bool resent;     /* delivered a retransmitted segment */
	bool dup;        /* a duplicate ACK by RFC 5681 section 2 */
	bool dsack;      /* reports a duplicate (RFC 2883) */
	bool dsack_tlp;  /* reports the tail loss probe as a duplicate */
	bool undo;       /* every retransmission of the episode was reported as a duplicate */
	bool sack;       /* has SACK blocks */
	bool lost;       /* segments were marked lost */
};

/* MSS for a peer that sends no MSS option. */
static inline uint32_t tcp_mss_bytes_default(const struct harp_addr *peer)
{
	return harp_addr_is_v4(peer) ? TCP_MSS_BYTES_DEFAULT_V4 : TCP_MSS_BYTES_DEFAULT_V6;
}
/* The MSS option that the link's MTU allows, without IP and TCP options (RFC 6691 section 2). */
static inline uint32_t conn_link_mss_bytes(const struct harp_conn *conn)
{
	return conn->path.mtu_bytes - TCP_HEADER_BYTES - ip_header_bytes(&conn->path.dst);
}
/* The window field of our SYN, which is never scaled (RFC 7323 section 2.2). */
static inline uint32_t conn_syn_wnd_bytes(const struct harp_conn *conn)
{
	uint32_t wnd = conn_rcv_wnd_bytes_max(conn);

	return wnd > 65535 ? 65535 : wnd;
}
/* An acceptable segment has arrived. */
static inline void conn_note_received(struct harp_conn *conn)
{
	conn->last_rcv_ns = conn->tcp->now_ns;
	conn->keepalive_probes_out = 0;
}
/* The current TSval of this connection. */
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
/* True if a slot is free or a TIME-WAIT connection can be reclaimed. */
static inline bool tcp_has_slot(const struct tcp *tcp)
{
	return !TAILQ_EMPTY(&tcp->free_conns) || tcp->conns_high < tcp->max_conns ||
	       !TAILQ_EMPTY(&tcp->time_wait) || !TAILQ_EMPTY(&tcp->time_wait_opened);
}
/* Stores the options; does not act on changes. */
void tcp_conn_options(struct harp_conn *conn, const struct harp_tcp_options *opt);
/* Returns a CLOSED connection with these options; reclaims one in TIME-WAIT if no slot is free.
 * NULL: !tcp_has_slot(). */
struct harp_conn *tcp_conn_alloc(struct tcp *tcp, const struct harp_tcp_options *opt);
/* Resets to the initial state with these options. */
void tcp_conn_blank(struct harp_conn *conn, const struct harp_tcp_options *opt);
/* Frees the slot of a CLOSED connection that has no handle, listener or flow. */
void tcp_conn_free(struct harp_conn *conn);
/* Calls tcp_conn_begin() and enters the connection, which has acquired its port, into the flow
 * table. */
void tcp_conn_bind(struct harp_conn *conn);
/* Initializes what depends on the 4-tuple and the path. */
void tcp_conn_begin(struct harp_conn *conn);
/* Clears the negotiated options and sets the window scale of our SYN. */
void tcp_conn_offer(struct harp_conn *conn);
/* Sets the ISN (RFC 6528) and the timestamp offset (RFC 7323 section 5.4) from keyed hashes. */
void tcp_conn_secrets(struct harp_conn *conn);
/* Sets the initial sequence number, before anything is sent. */
void tcp_conn_iss(struct harp_conn *conn, uint32_t iss_seq);
/* Sets the initial sequence number of a reused TIME-WAIT 4-tuple: RFC 9293 section 3.6.1. */
void tcp_conn_iss_beyond(struct harp_conn *conn, uint32_t old_nxt_seq);
void tcp_state_set(struct harp_conn *conn, enum harp_tcp_state state);
void tcp_conn_event(struct harp_conn *conn, uint32_t events);
/* Terminates the connection: stops timers, removes the flow, frees segments. error: 0 or -errno.
 * Frees the slot if no handle exists. */
void tcp_conn_die(struct harp_conn *conn, int error);
/* As tcp_conn_die(), and sends an RST in states in which the peer may still have the connection. */
void tcp_conn_reset(struct harp_conn *conn, int error);
void tcp_enter_time_wait(struct harp_conn *conn);
/* Adds a TIME-WAIT connection that the application has closed. Above the limit, ends the oldest one
 * that we opened. */
void tcp_time_wait_add(struct harp_conn *conn);
/* The handshake is complete. */
void tcp_conn_established(struct harp_conn *conn);

/* ---- tcp_in.c ---- */
struct tcp_gro; /* tcp_gro.h */
/* Processes the packet gro->in. Starts a GRO batch if gro->head is set and the fast path takes the
 * packet. */
enum tcp_verdict tcp_input(struct tcp *tcp, struct tcp_gro *gro);
bool tcp_checksum_valid(struct tcp *tcp, const struct packet_in *in);

/* ---- tcp_fast.c ---- */
/* TCP_PASS: not eligible for the fast path; nothing has changed. */
enum tcp_verdict tcp_fast_in(struct harp_conn *conn, struct tcp_segment *seg);
/* As tcp_fast_in(), for the next segment of a batch (tcp_gro.h). False: not eligible; nothing has
 * changed. */
bool tcp_fast_next(struct harp_conn *conn, const struct tcp_segment *seg);

/* ---- tcp_check.c ---- */
/* Checks sequence number, RST, SYN and timestamps of a segment to a synchronized connection.
 * TCP_PASS, or the final verdict (the connection may have ended). Removes unacceptable payload. */
enum tcp_verdict tcp_check_segment(struct harp_conn *conn, struct tcp_segment *seg);
/* Checks SEG.ACK; sends a challenge ACK if it is not acceptable. */
enum tcp_verdict tcp_check_ack(struct harp_conn *conn, const struct tcp_segment *seg);
/* True if TSecr is a timestamp that we sent and that the peer may still echo. */
static inline bool tcp_check_echo(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	return seg->opt.tsecr - conn->ts.echo_min <= conn->ts.sent - conn->ts.echo_min;
}
/* Updates TS.Recent from an acceptable segment. */
void tcp_check_take_timestamp(struct harp_conn *conn, const struct tcp_segment *seg);
/* True if a new SYN may replace a connection in TIME-WAIT (RFC 6191 section 2, RFC 9293 section
 * 3.10.7.4). */
bool tcp_check_time_wait_reuse(const struct harp_conn *conn, const struct tcp_segment *seg);

/* ---- tcp_mtu.c: ICMP errors ---- */
/* Processes an ICMP error that quotes a segment of this flow. kind: -ECONNREFUSED, -EHOSTUNREACH,
 * or -EMSGSIZE with mtu_bytes. */
void tcp_icmp_error(struct tcp *tcp, const struct flow_key *key, uint32_t quoted_seq, int kind,
		    uint32_t mtu_bytes);

/* ---- tcp_listen.c ---- */
struct harp_listener *tcp_listener_find(struct tcp *tcp, const struct harp_addr *addr,
					uint16_t port);
/* True if the accept queue is full: SYNs are dropped. */
bool tcp_listen_is_full(const struct harp_listener *l);
/* True if half-open connections use half of the stack's slots. */
static inline bool tcp_embryonic_is_full(const struct tcp *tcp)
{
	return tcp->embryonic_count >= (tcp->max_conns + 1) / 2;
}
/* TCP_PASS: the ACK carried a valid cookie, and the new connection can process it. */
enum tcp_verdict tcp_listen_input(struct harp_listener *l, const struct tcp_segment *seg);
/* Fills in 4-tuple and path for a segment to this listener; false if no connection is possible. */
bool tcp_listen_tuple(const struct harp_listener *l, struct harp_conn *conn,
		      const struct tcp_segment *seg);
/* Creates a connection in SYN-RECEIVED that will send a SYN-ACK; NULL without a slot. */
struct harp_conn *tcp_listen_embryo(struct harp_listener *l, const struct tcp_segment *syn);
/* Applies the peer's options of a SYN or SYN-ACK. */
void tcp_syn_options(struct harp_conn *conn, const struct tcp_segment *seg);
/* Removes the connection from the listener's queues (terminated, or accepted). */
void tcp_listener_forget(struct harp_conn *conn);

/* ---- tcp_cookie.c ---- */
void tcp_cookie_answer(struct harp_listener *l, const struct tcp_segment *syn);
/* Creates the connection whose cookie the ACK carries; false if the cookie is invalid or the
 * backlog is full. */
bool tcp_cookie_accept(struct harp_listener *l, const struct tcp_segment *ack);

/* ---- tcp_ack.c ---- */
/* After the application got -EAGAIN: reports WRITABLE once a quarter of its budget is free and at
 * most half of the unsent limit is queued. */
void tcp_ack_writable(struct harp_conn *conn);
/* Processes an ACK on the fast path: moves SND.UNA to ack, which is in (SND.UNA, SND.NXT]. Requires
 * !loss_open. */
void tcp_ack_new(struct harp_conn *conn, uint32_t ack);
/* Processes any acceptable ACK. */
void tcp_ack_in(struct harp_conn *conn, const struct tcp_segment *seg);
void tcp_window_update(struct harp_conn *conn, const struct tcp_segment *seg);
/* Confirms the next hop's neighbor entry after forward progress (RFC 4861 section 7.3.1). */
void tcp_ack_progress(struct harp_conn *conn);

/* ---- tcp_reass.c ---- */
/* Processes the payload of an acceptable segment. The caller releases the frames unless the verdict
 * is TCP_KEPT. */
enum tcp_verdict tcp_reass_payload(struct harp_conn *conn, struct tcp_segment *seg);
/* Releases a frame of received data. */
static inline void tcp_rx_release(struct harp_conn *conn, struct frame *f)
{
	conn->frames.rx_held--;
	conn->tcp->stats->frames_tcp_rx--;
	frame_release(conn->tcp->pool, f);
}
void tcp_reass_purge(struct harp_conn *conn);
void tcp_rcvq_purge(struct harp_conn *conn);
/* After shutdown(SHUT_RD): discards unread bytes. */
void tcp_rcvq_discard(struct harp_conn *conn);

/* ---- tcp_window.c ---- */
/* After frames were released: requests an ACK if the window can grow enough to be worth one. */
void tcp_window_reopen(struct harp_conn *conn);
/* Returns the right edge that the budget permits, never left of the advertised one. */
uint32_t tcp_window_edge(const struct harp_conn *conn);

/* ---- tcp_budget.c ---- */
/*
 * Free frames that must remain in the pool when this connection takes another frame for
 * transmission or reception: the fill ring's shortfall, a reserve for control packets, and the
 * unused part of the other direction's quarter, or of half of it if the connection holds fewer than
 * TCP_FRAMES_BUDGET_MIN frames.
 */
uint32_t tcp_pool_floor_tx(const struct harp_conn *conn);
uint32_t tcp_pool_floor_rx(const struct harp_conn *conn);
void tcp_budget_init(struct tcp *tcp);
/* Sets the budgets that the application requested; 0: autotuned. */
void tcp_budget_begin(struct harp_conn *conn, uint32_t rx_frames, uint32_t tx_frames);
void tcp_budget_change_rx(struct harp_conn *conn, uint32_t frames);
void tcp_budget_change_tx(struct harp_conn *conn, uint32_t frames);
/* Updates the receive budget; called about once per round trip. */
void tcp_budget_measure(struct harp_conn *conn);
/* The application consumed received bytes. */
static inline void tcp_budget_consumed(struct harp_conn *conn)
{
	if (conn->budget.rx_tuned && conn->tcp->now_ns >= conn->budget.measure_end_ns)
		tcp_budget_measure(conn);
}
/* The current send budget. */
uint32_t tcp_budget_tx_frames(const struct harp_conn *conn);
void tcp_budget_tune_tx(struct harp_conn *conn);
/* Resets a grown receive budget. */
void tcp_budget_release(struct harp_conn *conn);

/* ---- tcp_window.c: memory pressure ---- */
/* In-order data was refused because the pool has no frames. True if that has lasted so long that
 * the window must be closed. */
bool tcp_pressure_refused(struct harp_conn *conn);
void tcp_pressure_end(struct harp_conn *conn);
/* True if the pressure on a connection has ended. tcp_pressure_serve() reopens the window of one
 * such connection per transmit phase, because it may take all free frames. */
bool tcp_pressure_may_serve(const struct tcp *tcp);
void tcp_pressure_serve(struct tcp *tcp);

/* ---- tcp_delack.c ---- */
/* Requests an ACK; now: it must be sent in the next transmit phase. */
void tcp_delack_request(struct harp_conn *conn, bool now);
/* Decides when to acknowledge len in-order bytes of a segment, now in the receive queue. */
void tcp_delack_received(struct harp_conn *conn, const struct tcp_segment *seg, uint32_t len);
/* Sends the ACKs that are due and returns their number. */
unsigned tcp_delack_phase(struct tcp *tcp);
/* Returns when the next pending ACK is due. */
uint64_t tcp_delack_next_ns(const struct tcp *tcp);

/* ---- tcp_out.c ---- */
/* Header state for the next segment of the same burst. If both are equally long, their headers
 * differ only in sequence number and checksum. */
struct tcp_burst {
	const uint8_t *head;   /* TCP header of the previous segment */
	uint32_t header_bytes; /* including options; 0: none */
	uint32_t bytes;        /* payload bytes */
	uint32_t sum;          /* partial checksum of the parts that do not change */
	uint32_t desc_flags;   /* HARP_DESC_TX_* */
};

/* Sends one segment, or several as one TSO packet, starting at seq. 0, -EAGAIN (next hop
 * unresolved), -ENOBUFS (NIC full), or -errno of ip_path_check(). burst (may be NULL) receives the
 * header state for tcp_out_next(). */
int tcp_out_segments(struct harp_conn *conn, const struct tcp_gso *gso, uint32_t seq, uint8_t flags,
		     struct tcp_burst *burst);
/* Sends seg, which is new and burst->bytes long, with the headers of the previous segment. 0 or
 * -ENOBUFS. */
int tcp_out_next(struct harp_conn *conn, struct tcp_burst *burst, struct frame *seg);
int tcp_out_syn(struct harp_conn *conn);   /* SYN, or SYN-ACK in SYN-RECEIVED */
int tcp_out_ack(struct harp_conn *conn);   /* a pure ACK, at once; later if the NIC is full */
int tcp_out_probe(struct harp_conn *conn); /* SEG.SEQ = SND.UNA - 1, no data */
int tcp_out_rst(struct harp_conn *conn);
/* Sends the RST in response to a segment without connection (RFC 9293 section 3.10.7.1). */
void tcp_out_rst_reply(struct tcp *tcp, const struct tcp_segment *seg);
/* Clears the pending ACK: a segment has carried it. */
void tcp_out_acked(struct harp_conn *conn);

/* ---- tcp_tx.c ---- */
void tcp_tx_ready(struct harp_conn *conn);  /* the next transmit phase serves it */
void tcp_tx_unlist(struct harp_conn *conn); /* removes the connection from every transmit list */
/* The transmit phase: data of ready connections, then ACKs. Returns the number of segments. */
unsigned tcp_tx_phase(struct tcp *tcp);
/* When the transmit phase must run next; TCP_NEVER_NS: nothing waits for it. */
uint64_t tcp_tx_next_ns(const struct tcp *tcp);

/* ---- tcp_sack.c ---- */
/* Processes the SACK blocks of an acceptable segment. */
void tcp_sack_in(struct harp_conn *conn, const struct tcp_segment *seg, struct tcp_ack *a);
/* The segment that contains seq, which is in [SND.UNA, SND.NXT). */
struct frame *tcp_sack_find(struct harp_conn *conn, uint32_t seq);
/* Adds a segment, sent for the first time, to the skip index. */
void tcp_sack_index(struct harp_conn *conn, const struct frame *seg);
/* The first n sequence numbers of a segment (all, if it is freed) are acknowledged. */
void tcp_sack_acked(struct harp_conn *conn, const struct frame *seg, uint32_t n, struct tcp_ack *a);
void tcp_sack_mark_lost(struct harp_conn *conn, struct frame *seg);
/* The segment is not lost, or was retransmitted. */
void tcp_sack_unmark_lost(struct harp_conn *conn, struct frame *seg);
/* The peer reneged (RFC 2018 section 8): clears all SACK marks. */
void tcp_sack_forget(struct harp_conn *conn);
/* Counts outstanding segments that are marked lost, and retransmitted ones that are neither lost
 * nor SACKed. Walks the queue if there may be any. */
struct tcp_marks {
	uint32_t lost_segs, retrans_segs;
};
struct tcp_marks tcp_sack_marks(const struct harp_conn *conn);
/* For assert(): true if sacked_bytes, sacked_segs and lost_bytes match the queue. */
bool tcp_sack_sums_valid(const struct harp_conn *conn);

/* ---- tcp_sackout.c ---- */
/* [start_seq, end_seq) was added to the reassembly list. */
void tcp_sackout_kept(struct harp_conn *conn, uint32_t start_seq, uint32_t end_seq);
/* RCV.NXT moved. */
void tcp_sackout_advance(struct harp_conn *conn);
/* Out-of-order data at and after seq was discarded. */
void tcp_sackout_evicted(struct harp_conn *conn, uint32_t seq);
/* [start_seq, end_seq) is duplicate data: the next ACK reports it (RFC 2883). */
void tcp_sackout_duplicate(struct harp_conn *conn, uint32_t start_seq, uint32_t end_seq);
/* Fills in SACK blocks for an ACK with room_bytes of option space; returns their number. */
uint32_t tcp_sackout_blocks(const struct harp_conn *conn, uint32_t room_bytes,
			    struct tcp_options *opt);

/* ---- tcp_rack.c ---- */
/* A segment was delivered to the peer. */
void tcp_rack_delivered(struct harp_conn *conn, const struct frame *seg, struct tcp_ack *a);
void tcp_rack_resent(struct harp_conn *conn, const struct frame *seg);
/* Adapts the reordering window after an ACK or at the end of recovery. */
void tcp_rack_adapt(struct harp_conn *conn, bool dsack, bool recovered);
/* Marks segments as lost and sets the reordering timer; true if it marked any. */
bool tcp_rack_detect(struct harp_conn *conn);
/* Restarts detection for all segments in flight. */
void tcp_rack_restart(struct harp_conn *conn);
uint64_t tcp_rack_window_ns(const struct harp_conn *conn);
/* deadline.loss_ns has expired. */
void tcp_rack_timeout(struct harp_conn *conn);
/* deadline.probe_ns has expired. */
void tcp_rack_probe_timeout(struct harp_conn *conn);
/* Returns the segment to send as probe: a new one, or the last one sent. NULL: none is needed. */
struct frame *tcp_rack_probe(struct harp_conn *conn);
void tcp_rack_probed(struct harp_conn *conn, bool is_retrans);
/* True if the probe repaired a loss (RFC 8985 section 7.4.2). */
bool tcp_rack_probe_acked(struct harp_conn *conn, const struct tcp_ack *a);

/* ---- tcp_dupack.c ---- */
/* For peers without SACK: tcp_dupack_count() processes a duplicate ACK, tcp_dupack_advance() an ACK
 * that moved SND.UNA. Both may mark segments lost. */
void tcp_dupack_count(struct harp_conn *conn, struct tcp_ack *a);
void tcp_dupack_advance(struct harp_conn *conn, struct tcp_ack *a);
/* Clears the duplicate ACK count. */
void tcp_dupack_forget(struct harp_conn *conn);

/* ---- tcp_loss.c ---- */
/* Processes an ACK that moved SND.UNA, has SACK blocks, is a duplicate, or arrives while
 * loss_open. */
void tcp_loss_ack(struct harp_conn *conn, struct tcp_ack *a);
/* RACK's reordering timer has marked segments lost. */
void tcp_loss_found(struct harp_conn *conn);
void tcp_loss_timeout(struct harp_conn *conn);
/* Two round trips after recovery: late DSACKs can no longer cause an undo. */
void tcp_loss_undo_end(struct harp_conn *conn);
/* ECE received (RFC 3168): reduces the window, once per window of data. */
void tcp_loss_ecn(struct harp_conn *conn);
/* RFC 6675's pipe: bytes estimated to be in flight. */
uint32_t tcp_loss_pipe_bytes(const struct harp_conn *conn);
/* Returns the segment to retransmit now; NULL: none. */
struct frame *tcp_loss_next(struct harp_conn *conn);
/* A segment was sent or retransmitted. */
void tcp_loss_sent(struct harp_conn *conn, struct frame *seg, bool is_retrans);

/* ---- tcp_ecn.c ---- */
/* Returns TCP_ECE and TCP_CWR for an outgoing SYN, or for a SYN-ACK (reply). */
uint8_t tcp_ecn_syn_out(struct harp_conn *conn, bool reply);
/* Negotiates ECN from the peer's SYN or SYN-ACK. */
void tcp_ecn_syn_in(struct harp_conn *conn, uint8_t flags);
/* The peer retransmitted its SYN: it may have disabled ECN (RFC 3168 section 6.1.1.1). */
void tcp_ecn_syn_again(struct harp_conn *conn, uint8_t flags);
/* With CONN_ECN_IN: adds ECE and CWR to a segment's flags; returns the ECN bits of the IP
 * header. */
uint8_t tcp_ecn_out(const struct harp_conn *conn, const struct frame *f, uint32_t payload_len,
		    uint8_t *flags);
/* Processes the ECN bits of acceptable payload before it is queued. */
void tcp_ecn_data_in(struct harp_conn *conn, const struct tcp_segment *seg);
/* Processes the ECE of an acceptable ACK, after the ACK itself. */
void tcp_ecn_echo_in(struct harp_conn *conn);
/* The window was reduced for any reason. */
void tcp_ecn_reduced(struct harp_conn *conn);

/* ---- tcp_cc.c ---- */
/* Describes the error in congestion control options; NULL: valid. */
const char *tcp_cc_check(const struct harp_tcp_options *opt);
void tcp_cc_select(struct harp_conn *conn, uint32_t congestion, uint32_t fixed_window_bytes);
enum harp_congestion tcp_cc_congestion(const struct harp_conn *conn);
/* The application selected another controller or fixed window for an open connection. */
void tcp_cc_change(struct harp_conn *conn, uint32_t congestion, uint32_t fixed_window_bytes);
void tcp_cc_begin(struct harp_conn *conn);   /* on reaching ESTABLISHED */
void tcp_cc_restart(struct harp_conn *conn); /* before sending after idle */
void tcp_cc_pace(struct harp_conn *conn);    /* the window or the RTT changed */
/* True if pacing allows `bytes` of new data now; otherwise sets the pacing timer. */
bool tcp_cc_pace_admits(struct harp_conn *conn, uint32_t bytes);

/* ---- tcp_mtu.c ---- */
/* Sets the initial snd.mss_bytes, within the limits of link, peer and application. */
void tcp_mtu_init(struct harp_conn *conn);
/* mss_limit_bytes has changed. */
void tcp_mtu_limit(struct harp_conn *conn);
/* ip_output() returned -EMSGSIZE. True if smaller segments may pass. */
bool tcp_mtu_refused(struct harp_conn *conn);
/* The retransmission timer has expired. */
void tcp_mtu_timeout(struct harp_conn *conn);
/* Returns the size of a probe to send now; 0: none. Called before new data is sent, except in
 * MTU_IDLE. */
uint32_t tcp_mtu_probe(struct harp_conn *conn);
void tcp_mtu_probed(struct harp_conn *conn, const struct frame *seg);
/* Segment seg (NULL: the probe) was lost. True if it was the probe, whose loss is no congestion
 * signal. */
bool tcp_mtu_probe_lost(struct harp_conn *conn, const struct frame *seg);
/* For peers without SACK: true if the loss of a probe causes the duplicate ACKs. */
static inline bool tcp_mtu_explains(const struct harp_conn *conn)
{
	return conn->mtu.failed && conn->snd.una_seq == conn->mtu.probe_seq;
}

/* ---- tcp_timer.c ---- */
void tcp_timer_init(struct harp_conn *conn);
void tcp_timer_fire(struct harp_conn *conn);
/* Events: each updates the deadlines that depend on it. */
void tcp_timer_sent(struct harp_conn *conn);      /* data, SYN or FIN was sent */
void tcp_timer_acked(struct harp_conn *conn);     /* SND.UNA moved */
void tcp_timer_handshake(struct harp_conn *conn); /* the SYN or SYN-ACK is acknowledged */
/* the oldest segment was retransmitted, or a probe sent: restarts the RTO */
void tcp_timer_resent(struct harp_conn *conn);
/* a closed window has opened: the RTO restarts without backoff, unless it expires earlier */
void tcp_timer_reopened(struct harp_conn *conn);
void tcp_timer_loss(struct harp_conn *conn, uint64_t deadline_ns);
void tcp_timer_blocked(struct harp_conn *conn); /* data waits with nothing in flight */
/* the same, because the window is too small to be worth a segment */
void tcp_timer_override(struct harp_conn *conn);
void tcp_timer_life(struct harp_conn *conn, uint64_t after_ns);
/* new data must wait for after_ns */
void tcp_timer_pace(struct harp_conn *conn, uint64_t after_ns);
void tcp_timer_keepalive(struct harp_conn *conn);    /* its options changed */
void tcp_timer_user_timeout(struct harp_conn *conn); /* its option changed */
void tcp_timer_rtt(struct harp_conn *conn, uint64_t rtt_ns, bool single);
void tcp_timer_stop(struct harp_conn *conn);
uint64_t tcp_timer_rto_ns(const struct harp_conn *conn);

#endif
