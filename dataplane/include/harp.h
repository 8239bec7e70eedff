/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp.h - the public C API of the HARP user-space TCP stack.
 *
 * A *stack* belongs to one core. It has one NIC queue pair, one pool of frames, one flow table, one
 * timer wheel, and one random generator. Only harp_stack_poll(stack, now_ns) advances it. Time is
 * an argument, so a stack can run under a virtual clock.
 *
 * Threads: a stack, its listeners, connections and frames belong to one thread at a time. Calls on
 * different stacks share no data. No call blocks; only harp_stack_create() and the NIC constructors
 * allocate memory.
 *
 * Errors: functions that can fail return 0 (or a count) on success and -errno on failure. The
 * library never prints, never exits, and never installs a signal handler.
 *
 * Units are part of the names: _ns nanoseconds, _bytes, _packets, _seq TCP sequence numbers.
 * examples/two_stacks.c is a worked example that the tests compile and run.
 */
#ifndef HARP_H
#define HARP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "harp_nic.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HARP_API
#define HARP_API __attribute__((visibility("default")))
#endif

struct harp_stack;
struct harp_listener;
struct harp_conn;

/* The library's version, such as "0.1.0". */
HARP_API const char *harp_version(void);

/* ------------------------------------------------------------------------------------------------
 * Addresses. One 16-byte type for both families; IPv4 is the mapped form ::ffff:a.b.c.d (RFC 4291
 * section 2.5.5.2). Ports are in host byte order everywhere in this API.
 */
struct harp_addr {
	uint8_t bytes[16];
};

struct harp_endpoint {
	struct harp_addr addr;
	uint16_t port;
	uint16_t reserved;
	uint32_t scope_id; /* IPv6 link-local only, else 0 */
};

#define HARP_ADDR_TEXT_MAX 48     /* longest address text with its NUL */
#define HARP_ENDPOINT_TEXT_MAX 56 /* longest "[addr]:port" text with its NUL */

HARP_API struct harp_addr harp_addr_v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d);
HARP_API bool harp_addr_is_v4(const struct harp_addr *addr);
/* fe80::/10: ambiguous without a scope. */
HARP_API bool harp_addr_is_link_local(const struct harp_addr *addr);
/* Parses "10.0.0.1" or "fd00::1". -EINVAL: neither. */
HARP_API int harp_addr_parse(const char *text, struct harp_addr *out);
/* Writes the text form to buf (HARP_ADDR_TEXT_MAX or HARP_ENDPOINT_TEXT_MAX bytes) and returns
 * buf. */
HARP_API char *harp_addr_format(const struct harp_addr *addr, char *buf);
HARP_API char *harp_endpoint_format(const struct harp_endpoint *ep, char *buf);

/* ------------------------------------------------------------------------------------------------
 * The stack.
 */
enum harp_log_level {
	HARP_LOG_ERROR = 0,
	HARP_LOG_WARN = 1,
	HARP_LOG_INFO = 2,
	HARP_LOG_DEBUG = 3,
};
typedef void (*harp_log_fn)(void *ctx, enum harp_log_level level, const char *message);

/* Resolution of next hops to MAC addresses. */
enum harp_neighbor_mode {
	/* by the stack, over ARP and neighbor discovery (dedicated NIC, wire, tests) */
	HARP_NEIGHBOR_OWN = 0,
	HARP_NEIGHBOR_EXTERNAL = 1, /* by the owner, over harp_stack_neighbor_set() (shared NIC) */
};

/*
 * Callbacks to the owner. Each may be NULL. The thread inside harp_stack_poll() or another function
 * of this API calls them, never concurrently.
 */
struct harp_stack_hooks {
	void *ctx;
	harp_log_fn log;
	/* Called once per poll, after packets and timers, before transmission. Passes the
	 * application's requests to the stack. */
	void (*requests)(void *ctx, uint64_t now_ns);
	/* HARP_NEIGHBOR_EXTERNAL: a packet waits for this next hop. Called at most every 100 ms per
	 * address while it is missing. */
	void (*neighbor_requested)(void *ctx, const struct harp_addr *next_hop);
	/* HARP_NEIGHBOR_EXTERNAL: a connection over this next hop made progress (its data or SYN
	 * was acknowledged). Called at most once a second per address; the owner confirms the
	 * kernel's entry. */
	void (*neighbor_confirmed)(void *ctx, const struct harp_addr *next_hop);
	/* A local port becomes used or free. protocol: 6 TCP, 17 UDP. acquire returns 0, or -errno;
	 * on -EADDRINUSE the stack chooses another port if it may. */
	int (*port_acquire)(void *ctx, uint8_t protocol, uint16_t port);
	void (*port_release)(void *ctx, uint8_t protocol, uint16_t port);
};

/* An ICMP error that quotes a packet from `local`. It may be forged. seq is from the quoted TCP
 * header: ignore the error unless seq is in flight (RFC 5927 section 4). */
struct harp_icmp_error {
	uint32_t kind;      /* enum icmp_error_kind, internal */
	uint8_t type, code; /* as received */
	uint8_t proto;
	struct harp_endpoint local, remote;
	uint32_t seq;       /* TCP only */
	uint32_t mtu_bytes; /* "packet too big": the path MTU, at least the protocol's minimum */
};

struct harp_stack_options {
	uint32_t size; /* sizeof(struct harp_stack_options), set by the caller */
	/* connections in all states; UDP sockets are counted separately, at most 65536. Half of
	 * them may be half-open: see harp_tcp_options.backlog. Memory is used on demand. 0: 1024.
	 * 1..1048576 */
	uint32_t max_conns;
	uint32_t max_listeners; /* 0: 64 */
	uint32_t max_neighbors; /* 0: 256 */
	uint16_t port_min;      /* automatic local ports, inclusive. 0: 61000 */
	uint16_t port_max;      /* 0: 65535 */
	uint32_t neighbor_mode; /* enum harp_neighbor_mode */
	/* 0: random numbers and secrets come from getrandom(). Otherwise all are derived from seed,
	 * for simulators and tests: an attacker that guesses it knows every secret */
	uint64_t seed;
	uint64_t now_ns; /* the clock at creation */
	struct harp_stack_hooks hooks;
	/* The interface's number: harp_endpoint.scope_id of link-local addresses. */
	uint32_t scope_id;
	/* 1..4094: all frames carry this IEEE 802.1Q tag, and others are dropped. 0: untagged. The
	 * MTU does not change: the tag's 4 bytes belong to the link layer, as in Linux. */
	uint16_t vlan_id;
	uint16_t reserved;
	/*
	 * For a stack that shares its addresses with others, each on a queue of one NIC; with
	 * hooks.ctx.
	 *
	 * HARP_NEIGHBOR_OWN: a packet that only this queue received has a neighbor's address. mac
	 * NULL: unchanged. The owner calls harp_stack_neighbor_learned() of the other stacks with
	 * the same arguments.
	 */
	void (*neighbor_learned)(void *ctx, const struct harp_addr *addr, const uint8_t *mac,
				 uint32_t flags);
	/* True if another stack holds this port, which this stack does not use. The stack then
	 * drops packets to it silently, because an answer would abort the other stack's
	 * connection. */
	bool (*port_on_other_queue)(void *ctx, uint8_t protocol, uint16_t port);
	/* An ICMP error quotes a packet from such a port (NICs may put ICMP on any queue). At most
	 * 1000 per second. The owner calls harp_stack_icmp_error() of that stack. */
	void (*icmp_error_forward)(void *ctx, const struct harp_icmp_error *error);
};

/*
 * Creates a stack on a NIC. The stack does not own the NIC: destroy the stack first, then the NIC.
 * opt may be NULL for all defaults.
 * -EINVAL bad option (the log hook names it), -ENOMEM, -ENOBUFS the NIC has too few frames.
 */
HARP_API int harp_stack_create(struct harp_stack **out, struct harp_nic *nic,
			       const struct harp_stack_options *opt);
/* Drops all connections without sending anything, and frees the stack. NULL is accepted. */
HARP_API void harp_stack_destroy(struct harp_stack *stack);

/*
 * Advances the stack: receives, runs timers, calls hooks.requests, transmits. now_ns: monotonic; a
 * smaller value counts as the last one. Returns the number of packets received and sent plus timers
 * run (0: idle).
 */
HARP_API int harp_stack_poll(struct harp_stack *stack, uint64_t now_ns);
/* Time of the next necessary poll if no packet arrives and no call is made: the earliest timer, now
 * if transmission is pending, UINT64_MAX if neither. Includes next_ns() of the NIC. A NIC without
 * it that holds sent packets is polled soon. */
HARP_API uint64_t harp_stack_next_deadline_ns(const struct harp_stack *stack);
/* The clock of the last poll. */
HARP_API uint64_t harp_stack_now_ns(const struct harp_stack *stack);

/* Own addresses. prefix_len: bits of the address's family (0..32 or 0..128); the on-link prefix
 * becomes a route. IPv6 requires an MTU of 1280 (RFC 8200 section 5). -EEXIST, -ENOENT, -ENOSPC,
 * -EINVAL. */
HARP_API int harp_stack_address_add(struct harp_stack *stack, const struct harp_addr *addr,
				    unsigned prefix_len);
HARP_API int harp_stack_address_remove(struct harp_stack *stack, const struct harp_addr *addr);
/* Routes: longest prefix match. gateway NULL: on-link. mtu_bytes 0: the NIC's; at least 68, for
 * IPv6 1280. Router advertisements are ignored, so IPv6 routes come from the owner, too. */
HARP_API int harp_stack_route_add(struct harp_stack *stack, const struct harp_addr *prefix,
				  unsigned prefix_len, const struct harp_addr *gateway,
				  uint32_t mtu_bytes);
HARP_API int harp_stack_route_remove(struct harp_stack *stack, const struct harp_addr *prefix,
				     unsigned prefix_len);
/* Next hop and source address of packets to dst. -ENETUNREACH, -EADDRNOTAVAIL. Any thread, while
 * addresses and routes do not change. */
HARP_API int harp_stack_route(const struct harp_stack *stack, const struct harp_addr *dst,
			      struct harp_addr *next_hop, struct harp_addr *source);
/* Sets (mac: 6 bytes) or removes (mac NULL) a neighbor. Packets that waited for it are sent. */
HARP_API int harp_stack_neighbor_set(struct harp_stack *stack, const struct harp_addr *addr,
				     const uint8_t *mac);
/* HARP_NEIGHBOR_OWN: applies a report of another stack's harp_stack_options.neighbor_learned, with
 * the same checks as for a received packet. */
HARP_API void harp_stack_neighbor_learned(struct harp_stack *stack, const struct harp_addr *addr,
					  const uint8_t *mac, uint32_t flags);
/* Processes a report of another stack's harp_stack_options.icmp_error_forward, with the same checks
 * as for a received packet. */
HARP_API void harp_stack_icmp_error(struct harp_stack *stack, const struct harp_icmp_error *error);

/* ------------------------------------------------------------------------------------------------
 * TCP.
 */
/* Congestion controllers. */
enum harp_congestion {
	HARP_CONGESTION_DEFAULT = 0, /* cubic */
	HARP_CONGESTION_NEWRENO,     /* RFC 5681 */
	HARP_CONGESTION_CUBIC,       /* RFC 9438, with HyStart++ (RFC 9406) */
	/* RFC 8257, for use at both ends; cubic if the peer has no ECN */
	HARP_CONGESTION_DCTCP,
	HARP_CONGESTION_DELAY, /* keeps the round-trip time near its minimum, as Swift */
	HARP_CONGESTION_FIXED, /* constant fixed_window_bytes, for tests */
};
/* "cubic" and so on; "?": an invalid value. */
HARP_API const char *harp_congestion_name(enum harp_congestion congestion);
/* The enum's value of a name such as "cubic" or "default"; -EINVAL. */
HARP_API int harp_congestion_from_name(const char *name);

/* Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them. */
enum harp_ecn {
	HARP_ECN_DEFAULT = 0, /* accepted if the peer offers it; offered with dctcp */
	HARP_ECN_OFF,
	HARP_ECN_REQUEST, /* offered */
};

/* TCP options of the handshake, as bits of harp_tcp_options.options_off and
 * harp_tcp_info.options. */
#define HARP_TCPI_TIMESTAMPS 1u /* RFC 7323 section 3 */
#define HARP_TCPI_SACK 2u       /* RFC 2018 */
#define HARP_TCPI_WSCALE 4u     /* RFC 7323 section 2 */
#define HARP_TCPI_ECN 8u        /* RFC 3168; harp_tcp_options.ecn turns it off */

/*
 * Options of a connection. harp_tcp_connect() and harp_tcp_listen() take them, accepted connections
 * inherit the listener's, and harp_conn_set_options() changes them later. 0 selects the default.
 */
struct harp_tcp_options {
	uint32_t size; /* sizeof(struct harp_tcp_options), set by the caller */
	/* Receive budget in frames, at most 65536; limits the window. 0: autotuned from 256, by the
	 * bytes that the application consumes per round trip, within the pool's limits. */
	uint32_t rx_frames;
	/* Send budget in frames, at most 65536. 0: autotuned from 256, by the congestion window. */
	uint32_t tx_frames;
	/* listeners only: half-open plus unaccepted connections. 0: 128. Beyond it the listener
	 * sends SYN cookies; it drops SYNs while that many connections wait for accept */
	uint32_t backlog;
	uint64_t connect_timeout_ns; /* SYN-SENT and SYN-RECEIVED. 0: 10 s */
	/* RFC 5482: maximum time without acknowledgment. 0: 120 s */
	uint64_t user_timeout_ns;
	uint64_t keepalive_idle_ns;     /* after the last received segment. 0: no keepalive */
	uint64_t keepalive_interval_ns; /* 0: keepalive_idle_ns */
	uint32_t keepalive_count;       /* unanswered probes before -ETIMEDOUT. 0: 8 */
	uint8_t dscp;                   /* 0..63 */
	uint8_t reserved[3];
	void *user; /* harp_conn_user() of the connection (and of accepted ones) */
	/* Limit of bytes queued and never sent, rounded down to whole segments; harp_conn_send()
	 * takes no more. Bytes copied shortly before transmission are still cached. 0: limited by
	 * tx_frames alone. */
	uint32_t unsent_bytes_max;
	uint32_t congestion;         /* enum harp_congestion */
	uint32_t fixed_window_bytes; /* of HARP_CONGESTION_FIXED: 1..2^30; else 0 */
	uint32_t ecn;                /* enum harp_ecn. OFF with DCTCP is -EINVAL */
	/* Maximum segment size as in the MSS option (RFC 6691: without IP and TCP options): sent in
	 * the SYN, and a limit for sent segments. 88..65535; values above the MTU's have no effect.
	 * 0: from the MTU. As Linux's TCP_MAXSEG, but a later change limits later segments.
	 * harp_tcp_info.snd_mss_bytes is the payload of a full segment. */
	uint32_t mss_bytes;
	/* HARP_TCPI_TIMESTAMPS, _SACK, _WSCALE: neither offered nor accepted. */
	uint32_t options_off;
	/* Maximum delay of a partial segment's ACK (RFC 5681 section 4.2): below 500 ms, and never
	 * for more than two full segments. 0: until the next poll. Useful only if the peer does not
	 * wait for these ACKs; each pure ACK costs both ends as much as a data segment. */
	uint64_t delayed_ack_ns;
	/* Retransmission timeout before the first RTT sample, 5 ms to 60 s; tripled if the
	 * handshake gave no sample (RFC 6298 (2.1), (5.7)). 0: 1 s */
	uint64_t initial_rto_ns;
};

/* Events, as a bit mask. */
#define HARP_EVENT_CONNECTED 0x01u /* connect() completed */
#define HARP_EVENT_READABLE 0x02u  /* received bytes, or end of stream, can be read */
#define HARP_EVENT_WRITABLE 0x04u  /* send budget is available again after -EAGAIN */
#define HARP_EVENT_ACKED 0x08u     /* harp_conn_acked_bytes() advanced */
#define HARP_EVENT_EOF 0x10u       /* the peer's FIN has arrived (bytes may still be unread) */
#define HARP_EVENT_CLOSED 0x20u /* terminated; harp_conn_error() has the reason. The last event */

/*
 * Listens. local->addr all zero: every own address of both families. local->port 0: chosen from the
 * range, see harp_listener_endpoint(). -EADDRINUSE, -EADDRNOTAVAIL, -ENOSPC, -EINVAL (options).
 */
HARP_API int harp_tcp_listen(struct harp_stack *stack, const struct harp_endpoint *local,
			     const struct harp_tcp_options *opt, struct harp_listener **out);
/* Takes an established connection. -EAGAIN when there is none. */
HARP_API int harp_tcp_accept(struct harp_listener *listener, struct harp_conn **out);
HARP_API void harp_listener_endpoint(const struct harp_listener *l, struct harp_endpoint *local);
/* Stops listening; resets connections that were not accepted, accepted ones continue. */
HARP_API void harp_listener_close(struct harp_listener *listener);

/*
 * Opens a connection; returns 0 at once with the connection in SYN-SENT. local NULL, or with a
 * zero address or port: chosen. Ends in HARP_EVENT_CONNECTED or HARP_EVENT_CLOSED. The 4-tuple may
 * be that of a connection in TIME-WAIT whose timestamps tell the two apart, after a second.
 * A link-local address needs the stack's scope_id. The source is chosen by RFC 6724.
 * -EADDRINUSE, -EADDRNOTAVAIL, -ENETUNREACH (no route), -ENOSPC (max_conns), -EINVAL (options).
 */
HARP_API int harp_tcp_connect(struct harp_stack *stack, const struct harp_endpoint *local,
			      const struct harp_endpoint *remote,
			      const struct harp_tcp_options *opt, struct harp_conn **out);

/*
 * Returns a connection with pending events and clears them; NULL: none. A connection is in this
 * queue at most once, so a loop over it is fair and bounded. For a listener call harp_tcp_accept()
 * directly.
 */
HARP_API struct harp_conn *harp_stack_next_event(struct harp_stack *stack, uint32_t *events);

/*
 * Sends bytes: copies them into the stack's frames (counted as tx_copied_bytes); the next poll
 * sends them. Returns the number of bytes taken, possibly fewer than requested; -EAGAIN: none.
 * -ENOTCONN before the handshake is complete, -EPIPE after shutdown, the connection's error after
 * termination.
 */
HARP_API ssize_t harp_conn_send(struct harp_conn *conn, const struct iovec *iov, int iov_count);
/* Bytes that harp_conn_send() would take now. */
HARP_API size_t harp_conn_send_space(const struct harp_conn *conn);
/* Receives: copies at most len in-order bytes (counted as rx_copied_bytes). Returns the number; 0
 * at end of stream; -EAGAIN: none; the connection's error after termination. */
HARP_API ssize_t harp_conn_recv(struct harp_conn *conn, void *buf, size_t len);
/* Bytes that harp_conn_recv() would return now: received in order and unread (Linux's SIOCINQ).
 * Valid in every state, including after termination. */
HARP_API size_t harp_conn_readable_bytes(const struct harp_conn *conn);
/*
 * Exposes received bytes in place: fills in at most iov_count pieces in stream order without
 * consuming them. Returns the number of pieces; 0 at end of stream; -EAGAIN; the error.
 * harp_conn_consume() then consumes len bytes (at most those exposed) and reopens the window.
 * Pieces stay valid until they are consumed, or until the next harp_conn_recv*() on the connection.
 * Polls do not move them, but may append to the last one.
 */
HARP_API int harp_conn_peek(struct harp_conn *conn, struct iovec *iov, int iov_count);
HARP_API void harp_conn_consume(struct harp_conn *conn, size_t len);

/* ------------------------------------------------------------------------------------------------
 * Frames: sending and receiving with the stack's own buffers, without copies.
 */
struct harp_frame {
	uint8_t *data;     /* first byte */
	uint32_t len;      /* bytes in use; the sender sets it */
	uint32_t capacity; /* bytes that fit, from data. Do not change */
};

/*
 * Allocates an empty frame to fill and send on conn; its capacity is at most one segment. -EAGAIN:
 * the send budget or the pool is used up (HARP_EVENT_WRITABLE follows); or as harp_conn_send().
 */
HARP_API int harp_frame_alloc(struct harp_conn *conn, struct harp_frame **out);
/*
 * Sends frame->data[0 .. frame->len). The frame then belongs to the stack, which reads it again for
 * a retransmission and frees it when it is acknowledged and the NIC no longer reads it. -EINVAL:
 * len is 0 or above capacity (the caller keeps the frame); else as harp_conn_send().
 */
HARP_API int harp_conn_send_frame(struct harp_conn *conn, struct harp_frame *frame);
/* Takes the next in-order received bytes as a frame. Returns 1, 0 at end of stream, -EAGAIN, or the
 * error. The caller returns it with harp_frame_release(); until then it counts against the
 * connection's receive budget. */
HARP_API int harp_conn_recv_frame(struct harp_conn *conn, struct harp_frame **out);
/* Returns a frame that was received, or allocated and not sent. */
HARP_API void harp_frame_release(struct harp_conn *conn, struct harp_frame *frame);

/* ------------------------------------------------------------------------------------------------
 * Sending from the application's memory without copies, if the NIC can read it (DPDK).
 */
/* True if the NIC can read memory other than its own frames. Constant for the stack; any thread. */
HARP_API bool harp_stack_memory_supported(const struct harp_stack *stack);
/* Adds memory that the stack's NIC may send in place. -ENOTSUP the NIC reads only its own frames,
 * -ENOMEM, -EINVAL. */
HARP_API int harp_stack_memory_add(struct harp_stack *stack, const void *base, size_t bytes);
/* Removes memory; base and bytes as they were added. -EBUSY while a connection's data or the NIC
 * refers to it: poll and retry, or evict and retry. Aborted connections release it once the NIC
 * does. -ENOENT. */
HARP_API int harp_stack_memory_remove(struct harp_stack *stack, const void *base, size_t bytes);
/*
 * Makes connections independent of that memory. Copies queued data into frames, and drops packets
 * that wait for the NIC, which are retransmitted later. Unless the memory was added more than once,
 * no more is sent from it in place. If a frame holds a whole packet (every DPDK port), the header
 * frames have the space; otherwise a connection without enough frames ends with -ENOBUFS.
 * Afterwards only the NIC may read the memory, until completion. If this is called repeatedly, a
 * NIC without progress is stopped after a while. Returns the bytes copied; -ENOENT.
 */
HARP_API ssize_t harp_stack_memory_evict(struct harp_stack *stack, const void *base, size_t bytes);
/* The same for one connection and all memory. -ENOBUFS: too few frames; the connection still refers
 * to memory. */
HARP_API ssize_t harp_conn_evict(struct harp_conn *conn);
/*
 * As harp_conn_send() of one piece, without a copy. The bytes are read in place, again for
 * retransmissions, and must not change until harp_conn_acked_bytes() counts them. -EFAULT: not
 * within one added region.
 */
HARP_API ssize_t harp_conn_send_external(struct harp_conn *conn, const void *data, size_t len);

/* ------------------------------------------------------------------------------------------------
 * Ending a connection. A handle must not be used after close or abort; frames
 * of the connection that the application still holds must be released before.
 */
/*
 * Ends one or both directions; how is SHUT_RD, SHUT_WR or SHUT_RDWR of <sys/socket.h>.
 *
 * SHUT_WR: sends FIN after the queued data; harp_conn_send() then returns -EPIPE. Reception
 * continues.
 *
 * SHUT_RD: discards unread bytes and all that arrive later; receive calls return end of stream. The
 * peer does not notice: the stack acknowledges the discarded bytes (rx_discarded_bytes), so the
 * window stays open. HARP_EVENT_READABLE follows only with the peer's FIN. Pieces of
 * harp_conn_peek() become invalid; frames of harp_conn_recv_frame() stay valid. BSD does the same.
 * Linux keeps unread and later bytes readable, and closes the window when the buffer is full.
 * Discarded bytes do not count as unread: harp_conn_close() sends no RST for them.
 *
 * Repeated calls have no effect. -EINVAL: another how; after termination -EPIPE or the connection's
 * error.
 */
HARP_API int harp_conn_shutdown(struct harp_conn *conn, int how);
/* Closes in order: FIN after the queued data; then the stack finishes without the application
 * (including TIME-WAIT). Unread received bytes cause a reset (RFC 2525 section 2.17). NULL is
 * accepted. */
HARP_API void harp_conn_close(struct harp_conn *conn);
/* Sends RST and frees the connection. NULL is accepted. */
HARP_API void harp_conn_abort(struct harp_conn *conn);

/* ------------------------------------------------------------------------------------------------
 * Querying a connection.
 */
/* 0, or the -errno that ended the connection: -ECONNREFUSED, -ECONNRESET, -ETIMEDOUT, ... */
HARP_API int harp_conn_error(const struct harp_conn *conn);
HARP_API void *harp_conn_user(const struct harp_conn *conn);
HARP_API void harp_conn_set_user(struct harp_conn *conn, void *user);
HARP_API void harp_conn_endpoints(const struct harp_conn *conn, struct harp_endpoint *local,
				  struct harp_endpoint *remote);
/* Bytes of the application acknowledged by the peer since the connection began. */
HARP_API uint64_t harp_conn_acked_bytes(const struct harp_conn *conn);
/* Ends the delay (delayed_ack_ns) of a pending ACK, because the peer waits for it: the next packet
 * carries it, or the next poll sends it. */
HARP_API void harp_conn_acknowledge(struct harp_conn *conn);
/*
 * The current options, as for harp_conn_set_options(): with defaults and limits applied. Budgets
 * are those that the pool allows, congestion is never DEFAULT, backlog is 0. Valid in every state.
 * -EINVAL: opt->size.
 */
HARP_API int harp_conn_options(const struct harp_conn *conn, struct harp_tcp_options *opt);
/*
 * Changes the options of a connection from connect or accept. As with tcgetattr() and tcsetattr():
 * fill *opt with harp_conn_options(), change fields, set it. A field with its current value has no
 * effect, so a change of one option restarts no timer or controller of another. On error nothing
 * changes.
 *
 * rx_frames, tx_frames		another value ends autotuning, 0 begins it
 * rx_frames			more opens the window at once, up to the limit of the handshake's
 *				window scale (RFC 7323 section 2.2). After the handshake it cannot
 *				shrink: an advertised window is not withdrawn (RFC 9293 section
 *				3.8.6)
 * tx_frames, unsent_bytes_max	less rejects new bytes until the queue has shrunk
 * user_timeout_ns,		count from the last progress and the last received segment: a
 * keepalive_*			timeout that has passed ends the connection at the next poll
 * congestion			the new controller starts with the window and ssthresh of the old
 *				one, as Linux's TCP_CONGESTION; from and to FIXED the window starts
 *				again
 * mss_bytes			see above; data in flight keeps its segments, unless it is lost
 * backlog			ignored
 *
 * -EISCONN: ecn and options_off belong to the SYN, which is already prepared or answered;
 * connect_timeout_ns and initial_rto_ns cannot change after the handshake, and rx_frames can only
 * grow. -EOPNOTSUPP: DCTCP on a connection without ECN. -EINVAL: opt is NULL, or a value or size is
 * out of range (the log hook names it). After termination -EPIPE or the connection's error.
 */
HARP_API int harp_conn_set_options(struct harp_conn *conn, const struct harp_tcp_options *opt);
/* Sends one keepalive probe in the next poll. A live peer answers with an ACK, the host of an
 * exited process with RST. */
HARP_API int harp_conn_probe(struct harp_conn *conn);

/* In the order of RFC 9293 section 3.3.2. */
enum harp_tcp_state {
	HARP_TCP_LISTEN = 1,
	HARP_TCP_SYN_SENT,
	HARP_TCP_SYN_RECEIVED,
	HARP_TCP_ESTABLISHED,
	HARP_TCP_FIN_WAIT_1,
	HARP_TCP_FIN_WAIT_2,
	HARP_TCP_CLOSE_WAIT,
	HARP_TCP_CLOSING,
	HARP_TCP_LAST_ACK,
	HARP_TCP_TIME_WAIT,
	HARP_TCP_CLOSED,
};
HARP_API const char *harp_tcp_state_name(enum harp_tcp_state state);

/* The sender's loss state: Linux's tcpi_ca_state, with its values. */
enum harp_ca_state {
	HARP_CA_OPEN = 0, /* no sign of loss */
	HARP_CA_DISORDER, /* duplicate ACKs or SACK blocks: a segment is missing, or late */
	/* the window is being reduced, for ECN or for a loss that a probe repaired */
	HARP_CA_CWR,
	HARP_CA_RECOVERY, /* fast recovery: lost segments are retransmitted */
	HARP_CA_LOSS,     /* after a retransmission timeout */
};
/* "open" and so on; "?": an invalid value. */
HARP_API const char *harp_ca_state_name(enum harp_ca_state state);

/* snd_ssthresh_bytes of a connection without congestion so far, in its first slow start (RFC 5681
 * section 3.1: ssthresh "SHOULD be set arbitrarily high"). */
#define HARP_SSTHRESH_NONE 0x40000000u

struct harp_tcp_info {
	uint32_t state;   /* enum harp_tcp_state */
	uint32_t options; /* HARP_TCPI_* negotiated */
	uint32_t snd_mss_bytes, rcv_mss_bytes;
	uint32_t snd_wscale, rcv_wscale;
	uint64_t srtt_ns, rttvar_ns, rtt_ns_min, rto_ns;
	uint64_t snd_cwnd_bytes, snd_ssthresh_bytes, snd_wnd_bytes, rcv_wnd_bytes;
	uint64_t bytes_in_flight, bytes_unsent;
	uint64_t bytes_sent, bytes_acked, bytes_received, bytes_retransmitted;
	uint64_t segs_out, segs_in, data_segs_out, data_segs_in;
	uint64_t retransmits, rto_count, fast_retransmits, dup_acks_in, out_of_order_in;
	uint64_t zero_window_probes, keepalive_probes;
	uint64_t tx_copied_bytes, rx_copied_bytes;
	uint32_t rx_frames_held, rx_frames_budget, tx_frames_held, tx_frames_budget;
	uint64_t last_rcv_ns;        /* clock of the last accepted segment */
	uint32_t congestion;         /* enum harp_congestion in use, never DEFAULT */
	uint32_t dctcp_alpha_ppm;    /* DCTCP: smoothed fraction of marked bytes */
	uint64_t pacing_bytes_per_s; /* 0: not paced */
	uint64_t ecn_ce_in;          /* received segments with CE marks */
	uint64_t ecn_ece_in;         /* received segments with ECE */
	uint64_t ecn_reductions;     /* window reductions caused by ECN */
	/* part of bytes_in_flight that the peer has received out of order */
	uint64_t sacked_bytes;
	uint64_t lost_segs;         /* marked lost so far, also wrongly */
	uint64_t tlp_probes;        /* tail loss probes (RFC 8985) */
	uint64_t undone_recoveries; /* spurious recoveries, including timeouts */
	uint64_t reorder_window_ns; /* reordering window; later segments count as lost */
	uint32_t ca_state;          /* enum harp_ca_state */
	uint32_t backoff; /* times rto_ns was doubled since the last progress (RFC 6298 5.5) */
	/* Segments in flight by state, as Linux's tcpi_sacked, tcpi_lost and tcpi_retrans.
	 * retransmits and lost_segs count over the connection's life. */
	uint64_t sacked_out_segs;  /* received by the peer out of order */
	uint64_t lost_out_segs;    /* lost and not retransmitted yet */
	uint64_t retrans_out_segs; /* retransmitted, and not acknowledged, SACKed or lost since */
};

/* Valid in every state. While segments are lost it walks over those in flight. */
HARP_API void harp_conn_info(const struct harp_conn *conn, struct harp_tcp_info *info);

/* ------------------------------------------------------------------------------------------------
 * UDP. A socket keeps whole datagrams: each is received once and unaltered, or not at all.
 * Nothing is fragmented: datagrams larger than the path MTU are rejected.
 * Checksums are always sent.
 */
struct harp_udp;

struct harp_udp_options {
	uint32_t size; /* sizeof(struct harp_udp_options) */
	/* Receive budget: datagrams that arrive beyond it are dropped and counted. 0: 256 */
	uint32_t rx_frames;
	/* Send budget for datagrams that the NIC has not taken; also the limit of one datagram. 0:
	 * 128 */
	uint32_t tx_frames;
	uint8_t dscp; /* 0..63 */
	uint8_t reserved[3];
};

/*
 * Opens a socket. local NULL or with a zero address: every own address. Port 0: chosen at random
 * from the range (RFC 6056), see harp_udp_endpoints(). -EADDRINUSE, -EADDRNOTAVAIL, -ENOSPC,
 * -EINVAL.
 */
HARP_API int harp_udp_open(struct harp_stack *stack, const struct harp_endpoint *local,
			   const struct harp_udp_options *opt, struct harp_udp **out);
/*
 * Connects the socket: it sends to and receives from remote only, and drops queued datagrams of
 * others. The route chooses the source address if the socket has none. remote NULL: disconnects.
 * -ENETUNREACH, -EADDRNOTAVAIL, -EINVAL (a link-local address needs the stack's scope_id).
 */
HARP_API int harp_udp_connect(struct harp_udp *sock, const struct harp_endpoint *remote);
/* Drops queued datagrams of both directions. NULL is accepted. */
HARP_API void harp_udp_close(struct harp_udp *sock);

/*
 * Takes the newest error; 0: none. It is an ICMP message about a datagram of this socket, or the
 * reason why an accepted one could not be sent. about (may be NULL): its destination. -ECONNREFUSED
 * port unreachable, -EMSGSIZE larger than the path MTU (connected: harp_udp_payload_max() has the
 * new limit), -ENETUNREACH, -EHOSTUNREACH, -EPROTO. ICMP can be forged: treat it as a hint.
 */
HARP_API int harp_udp_error(struct harp_udp *sock, struct harp_endpoint *about);

/* Payload of the largest datagram that can be sent to remote (NULL: the connected peer); -errno. */
HARP_API int harp_udp_payload_max(struct harp_udp *sock, const struct harp_endpoint *remote);
/*
 * Sends one datagram, perhaps empty: copies it into the stack's frames (tx_copied_bytes); the next
 * poll sends it. remote NULL: the connected peer. Returns its length, or takes nothing: -EAGAIN
 * (the budget is used up), -EMSGSIZE, -EDESTADDRREQ, -EISCONN (remote given on a connected
 * socket), -ENETUNREACH, -EADDRNOTAVAIL.
 */
HARP_API ssize_t harp_udp_send(struct harp_udp *sock, const struct harp_endpoint *remote,
			       const struct iovec *iov, int iov_count);
struct harp_udp_from {
	struct harp_endpoint peer, local; /* source and destination of the datagram */
	uint8_t tos;                      /* DSCP and ECN */
	uint8_t reserved[7];
};
/*
 * Receives one datagram: copies at most len bytes of it (rx_copied_bytes) and discards the rest.
 * Returns its real length, which shows whether it was truncated. from may be NULL. -EAGAIN: none; a
 * connected socket's error is returned once.
 */
HARP_API ssize_t harp_udp_recv(struct harp_udp *sock, void *buf, size_t len,
			       struct harp_udp_from *from);

/* remote has port 0 if the socket is not connected. Either may be NULL. */
HARP_API void harp_udp_endpoints(const struct harp_udp *sock, struct harp_endpoint *local,
				 struct harp_endpoint *remote);

/* ------------------------------------------------------------------------------------------------
 * Statistics. Names, kinds and help come from the one list in harp_stats.h.
 */
HARP_API unsigned harp_stats_count(void);
HARP_API const char *harp_stats_name(unsigned index);
HARP_API const char *harp_stats_help(unsigned index);
/* "counter" or "gauge"; NULL after the last. */
HARP_API const char *harp_stats_kind(unsigned index);
/* Copies min(count, harp_stats_count()) values in list order and returns their number. */
HARP_API unsigned harp_stack_stats(const struct harp_stack *stack, uint64_t *values,
				   unsigned count);
/* One statistic by name; -ENOENT. For tests and tools. */
HARP_API int harp_stack_stat(const struct harp_stack *stack, const char *name, uint64_t *value);

/* ------------------------------------------------------------------------------------------------
 * Capture: a bounded ring of the newest packets, both directions, written as pcapng
 * (draft-ietf-opsawg-pcapng). Available on every NIC.
 */
/* Starts to keep packets in a ring of ring_bytes, which it allocates; snap_len bytes of each (0:
 * all). -ENOMEM, -EALREADY. */
HARP_API int harp_stack_capture_start(struct harp_stack *stack, size_t ring_bytes,
				      uint32_t snap_len);
/* Writes the ring's packets, oldest first, as a complete pcapng file to fd. Wall-clock times are
 * now_ns + wall_offset_ns. */
HARP_API int harp_stack_capture_write(const struct harp_stack *stack, int fd,
				      int64_t wall_offset_ns);
HARP_API void harp_stack_capture_stop(struct harp_stack *stack);

#ifdef __cplusplus
}
#endif

#endif
