/* SPDX-License-Identifier: Apache-2.0 */
/*
 * udp.h - UDP (RFC 768, RFC 1122 section 4.1): sockets by port, datagrams in and out.
 *
 * udp.c has the lifecycle of sockets, and checks and delivers received datagrams. udp_tx.c has the
 * send queue of a socket and the transmit phase.
 *
 * A datagram is a frame and its continuation frames (by ->frag); queues link datagrams by ->next.
 * Its first frame also stores its addresses: see struct udp_meta.
 */
#ifndef HARP_TRANSPORT_UDP_H
#define HARP_TRANSPORT_UDP_H

#include <assert.h>
#include <stddef.h>
#include <sys/queue.h>

#include "network/icmp.h"
#include "transport/port.h"

#define UDP_HEADER_BYTES 8u
#define UDP_SOCKETS_MAX 65536u
#define UDP_FRAMES_MIN 4u /* frames that a socket may hold per direction while the pool has any */
#define UDP_TIMER_KIND 0x756470u /* "udp": struct timer.kind of a socket's timer */
#define UDP_NEVER_NS UINT64_MAX

/* Source and destination of a datagram. In a received datagram they replace the headers (at least
 * 14 + 20 + 8 bytes) before the payload. In a datagram to be sent they are at the start of the
 * frame's chunk, which no header reaches. */
struct udp_meta {
	struct harp_addr local, remote;
	uint16_t remote_port;
	uint8_t tos; /* DSCP and ECN */
} __attribute__((packed));
static_assert(sizeof(struct udp_meta) <= ETH_HEADER_BYTES + 20 + UDP_HEADER_BYTES,
	      "not longer than the headers that it replaces");

/* Datagrams, oldest first. */
struct udp_queue {
	struct frame *head, *tail;
};

struct harp_udp {
	struct udp *udp; /* NULL: the slot is free */
	uint32_t index;
	uint32_t chain; /* 1 + index of the next socket of this port; 0: none */

	struct harp_endpoint local, remote;
	bool wild;      /* bound to every own address, even if connect() has selected one */
	bool connected; /* receives from remote only */
	uint8_t tos;

	struct udp_queue rx;
	uint32_t rx_frames_held, rx_frames_budget;

	struct udp_queue tx;   /* datagrams to send */
	struct udp_queue wait; /* datagrams for an unresolved next hop */
	uint32_t tx_frames_held, tx_frames_budget;
	bool on_ready_list, on_wait_list;
	bool path_any;      /* the route chose path.src */
	struct timer timer; /* set while `wait` is not empty */

	struct ip_path path; /* to the peer, or of the last datagram sent */
	/* of a connected socket: path MTU from ICMP (RFC 1191); 0: none */
	uint32_t pmtu_bytes;
	uint64_t pmtu_until_ns;

	int error; /* the newest ICMP error not yet delivered, and its destination */
	struct harp_endpoint error_about;
	TAILQ_ENTRY(harp_udp) ready_link;
	TAILQ_ENTRY(harp_udp) wait_link;
	TAILQ_ENTRY(harp_udp) free_link;
};

TAILQ_HEAD(udp_list, harp_udp);

struct udp {
	struct ip *ip;
	struct icmp *icmp;
	struct nicio *io;
	struct frame_pool *pool;
	struct wheel *wheel;
	struct harp_stats *stats;
	uint64_t now_ns;
	struct udp_list ready; /* have data to send */
	struct udp_list wait;  /* have data for an unresolved next hop */
	struct udp_list free_sockets;
	bool nic_full;          /* the last transmit phase ended because the NIC was full */
	uint32_t resolved_seen; /* eth->resolved_generation at the last wakeup of `wait` */
	uint32_t shared_frames; /* of the pool, without those for the fill ring */
	uint32_t tx_frags_max;
	struct port_table ports;
	uint32_t *by_port; /* per port: 1 + index of its first socket; 0: none */
	struct harp_udp *sockets;
	uint32_t max_sockets;
	uint32_t sockets_high; /* later slots were never used: untouched memory */
};

/* Result of processing a datagram. Only udp_input() counts them. */
enum udp_verdict {
	UDP_DONE = 0, /* the caller releases the packet */
	UDP_KEPT,     /* UDP has taken the frames */
	UDP_DROP_SHORT,
	UDP_DROP_CHECKSUM,
	UDP_DROP_NO_PORT,
	UDP_DROP_OTHER_QUEUE, /* another stack has the port */
	UDP_DROP_RX_BUDGET,
	UDP_VERDICTS,
};

/* ---- udp.c ---- */
int udp_init(struct udp *udp, struct icmp *icmp, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt);
void udp_destroy(struct udp *udp);
/* Returns a slot; NULL if all are in use. udp_socket_free() drops its datagrams and releases its
 * port. */
struct harp_udp *udp_socket_alloc(struct udp *udp);
void udp_socket_free(struct harp_udp *sock);
/* Binds to local->port (0: chooses one). -EADDRINUSE. */
int udp_socket_bind(struct harp_udp *sock, const struct harp_endpoint *local);
enum udp_verdict udp_input(struct udp *udp, struct packet_in *in);
/* Processes an ICMP error that quotes a datagram of ours. */
void udp_icmp_error(struct udp *udp, const struct harp_icmp_error *error);
/* True if a socket that holds `held` frames may take another one to send. */
bool udp_pool_allows_tx(const struct udp *udp, uint32_t held);
/* Releases a received datagram. */
void udp_rx_release(struct harp_udp *sock, struct frame *datagram);

static inline struct udp_meta *udp_rx_meta(const struct frame *f)
{
	return (struct udp_meta *)(f->pub.data - sizeof(struct udp_meta));
}

static inline void udp_queue_push(struct udp_queue *q, struct frame *f)
{
	f->next = NULL;
	if (q->tail)
		q->tail->next = f;
	else
		q->head = f;
	q->tail = f;
}

static inline struct frame *udp_queue_pop(struct udp_queue *q)
{
	struct frame *f = q->head;

	if (!f)
		return NULL;
	q->head = f->next;
	if (!q->head)
		q->tail = NULL;
	f->next = NULL;
	return f;
}

static inline uint32_t udp_frames(const struct frame *f)
{
	uint32_t n = 0;

	for (; f; f = f->frag)
		n++;
	return n;
}

/* ---- udp_tx.c ---- */
/* Looks up sock->path for the addresses in meta. 0, or the errors of ip_path_lookup(). */
int udp_path(struct harp_udp *sock, const struct udp_meta *meta);
/* Maximum payload of one datagram along sock->path. */
uint32_t udp_payload_max(const struct harp_udp *sock);
/* Returns an empty frame for a datagram to send; NULL: budget or pool exhausted. */
struct frame *udp_tx_alloc(struct harp_udp *sock);
/* Releases an unsent datagram. */
void udp_tx_release(struct harp_udp *sock, struct frame *datagram);
/* Queues the datagram for the next transmit phase. */
void udp_tx_queue(struct harp_udp *sock, struct frame *datagram, const struct udp_meta *meta);
/* Drops queued datagrams. */
void udp_tx_purge(struct harp_udp *sock);
/* The transmit phase; returns the number of datagrams sent. */
unsigned udp_tx_phase(struct udp *udp);
uint64_t udp_tx_next_ns(const struct udp *udp);
void udp_timer_fire(struct harp_udp *sock);

#endif
