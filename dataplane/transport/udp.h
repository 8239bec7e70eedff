/* SPDX-License-Identifier: Apache-2.0 */
/*
 * udp.h - UDP (RFC 768, RFC 1122 section 4.1): sockets by port, datagrams in and out.
 *
 * udp.c has the lifecycle, the choice of the socket for a datagram, and the checks of datagrams.
 * udp_tx.c has the queue of a socket and the transmit phase.
 *
 * A datagram is a frame and its continuation frames (by ->frag); queues link datagrams by ->next.
 * Its source or destination is stored in its first frame: see struct udp_where.
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
#define UDP_TIMER_KIND 0x756470u /* "udp": struct timer.kind of a socket's timer */
#define UDP_NEVER_NS UINT64_MAX

/* Source and destination of a datagram: 35 bytes, less than the headers before the payload of a
 * received one (14 + 20 + 8), which they replace. A datagram to be sent has them at the start of
 * its chunk, which no header reaches. */
struct udp_where {
	struct harp_addr local, remote;
	uint16_t remote_port;
	uint8_t tos; /* DSCP and ECN */
} __attribute__((packed));
static_assert(sizeof(struct udp_where) <= ETH_HEADER_BYTES + 20 + UDP_HEADER_BYTES,
	      "fits where the headers were");

/* Datagrams, oldest first. */
struct udp_queue {
	struct frame *head, *tail;
};

struct harp_udp {
	struct udp *udp; /* NULL: the slot is free */
	uint32_t index;
	uint32_t chain; /* the next socket of its port, 1 + index; 0: none */

	struct harp_endpoint local, remote;
	bool wild;      /* bound to every own address, though connect() chose one */
	bool connected; /* receives from remote only */
	uint8_t tos;

	struct udp_queue rx;
	uint32_t rx_frames_held, rx_frames_budget;

	struct udp_queue tx;   /* to be sent */
	struct udp_queue wait; /* datagrams for an unresolved next hop */
	uint32_t tx_frames_held, tx_frames_budget;
	bool on_ready_list, on_wait_list;
	bool path_any;      /* the route chose path.src */
	struct timer timer; /* set while `wait` is not empty */

	struct ip_path path; /* to the peer, or of the last datagram sent */
	/* Connected: path MTU from ICMP (RFC 1191), until it expires. 0: none. */
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
	uint32_t shared_frames; /* of the pool, beyond the fill ring */
	uint32_t tx_frags_max;
	struct port_table ports;
	uint32_t *by_port; /* [65536]: 1 + index of the first socket on it; 0: none */
	struct harp_udp *sockets;
	uint32_t max_sockets;
	uint32_t made; /* number of slots ever used: the others are untouched memory */
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
/* An ICMP error quoted a datagram that went from local to remote. */
void udp_icmp_error(struct udp *udp, const struct harp_icmp_error *error);
/* True if a socket that holds `held` frames of the pool may take another one to send from. */
bool udp_pool_allows_tx(const struct udp *udp, uint32_t held);
/* Releases a received datagram. */
void udp_rx_release(struct harp_udp *sock, struct frame *datagram);

static inline struct udp_where *udp_where_received(const struct frame *f)
{
	return (struct udp_where *)(f->pub.data - sizeof(struct udp_where));
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
/* Resolves sock->path to where. 0, or the errors of ip_path_lookup(). */
int udp_path(struct harp_udp *sock, const struct udp_where *where);
/* Maximum payload of one datagram along sock->path. */
uint32_t udp_payload_max(const struct harp_udp *sock);
/* Returns an empty frame to send from; NULL: budget or pool exhausted, and WRITABLE follows. */
struct frame *udp_tx_alloc(struct harp_udp *sock);
/* Frees unsent frames of the budget. */
void udp_tx_release(struct harp_udp *sock, struct frame *datagram);
/* Queues the datagram for the next transmit phase. */
void udp_tx_queue(struct harp_udp *sock, struct frame *datagram, const struct udp_where *where);
/* Drops queued datagrams. */
void udp_tx_purge(struct harp_udp *sock);
/* The transmit phase; returns the number of datagrams sent. */
unsigned udp_tx_phase(struct udp *udp);
uint64_t udp_tx_next_ns(const struct udp *udp);
void udp_timer_fire(struct harp_udp *sock);

#endif
