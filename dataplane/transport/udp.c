/* SPDX-License-Identifier: Apache-2.0 */
/*
 * udp.c - lifecycle of a UDP socket, and received datagrams (RFC 768, RFC 1122 section 4.1).
 *
 * An array, indexed by port, has chains of sockets. Without a hash, a sender cannot make a chain
 * long: its length is at most the number of own addresses. A socket bound to an address has its
 * (address, port) exclusively; a wildcard socket has the port exclusively.
 */
#include "transport/udp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"

#define UDP_PORTS 65536u
#define UDP_POOL_RESERVE_FRAMES 16u /* as for TCP: for ACKs, RSTs, ARP */
/* how long a path MTU from ICMP is valid (RFC 1191 section 6.3) */
#define UDP_PMTU_NS (600ull * 1000000000ull)

int udp_init(struct udp *udp, struct icmp *icmp, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt)
{
	struct nicio *io = icmp->ip->eth->io;
	const struct harp_nic_caps *caps = &io->nic->caps;

	*udp = (struct udp){
		.ip = icmp->ip,
		.icmp = icmp,
		.io = io,
		.pool = io->pool,
		.wheel = wheel,
		.stats = stats,
		.now_ns = opt->now_ns,
		.tx_frags_max = 1,
		.max_sockets = opt->max_conns < UDP_SOCKETS_MAX ? opt->max_conns : UDP_SOCKETS_MAX,
	};
	TAILQ_INIT(&udp->ready);
	TAILQ_INIT(&udp->wait);
	TAILQ_INIT(&udp->free_sockets);
	if (udp->pool->frame_count > io->fill_max)
		udp->shared_frames = udp->pool->frame_count - io->fill_max;
	if ((caps->features & HARP_NIC_TX_MULTI) && caps->tx_frags_max > 1)
		udp->tx_frags_max = caps->tx_frags_max;
	udp->by_port = calloc(UDP_PORTS, sizeof(*udp->by_port));
	udp->sockets = calloc(udp->max_sockets, sizeof(*udp->sockets));
	if (!udp->by_port || !udp->sockets)
		return -ENOMEM;
	return port_init(&udp->ports, IP_PROTO_UDP, opt, rng);
}

void udp_destroy(struct udp *udp)
{
	port_destroy(&udp->ports);
	free(udp->by_port);
	free(udp->sockets);
	udp->by_port = NULL;
	udp->sockets = NULL;
}

/* ------------------------------------------------------------------------------------------------
 * Sockets.
 */
struct harp_udp *udp_socket_alloc(struct udp *udp)
{
	struct harp_udp *sock = TAILQ_FIRST(&udp->free_sockets);
	uint32_t index;

	if (sock) {
		TAILQ_REMOVE(&udp->free_sockets, sock, free_link);
		index = sock->index;
	} else if (udp->sockets_high < udp->max_sockets) {
		index = udp->sockets_high++;
		sock = &udp->sockets[index];
	} else {
		return NULL;
	}
	*sock = (struct harp_udp){ .udp = udp, .index = index };
	sock->timer.kind = UDP_TIMER_KIND;
	udp->stats->udp_sockets++;
	return sock;
}

/* True if another socket has this (address, port), or one of the two is a wildcard. */
static bool udp_conflicts(const struct udp *udp, const struct harp_endpoint *local, bool wild)
{
	for (uint32_t i = udp->by_port[local->port]; i; i = udp->sockets[i - 1].chain) {
		const struct harp_udp *sock = &udp->sockets[i - 1];

		if (wild || sock->wild || addr_equal(&sock->local.addr, &local->addr))
			return true;
	}
	return false;
}

int udp_socket_bind(struct harp_udp *sock, const struct harp_endpoint *local)
{
	struct udp *udp = sock->udp;
	uint16_t port = local->port;
	int err = 0;

	if (port != 0) {
		if (udp_conflicts(udp, local, sock->wild))
			return -EADDRINUSE;
		err = port_get(&udp->ports, port);
	} else {
		err = port_choose(&udp->ports, NULL, NULL, NULL);
		port = (uint16_t)err;
	}
	if (err < 0)
		return err;
	sock->local = *local;
	sock->local.port = port;
	sock->chain = udp->by_port[port];
	udp->by_port[port] = sock->index + 1;
	return 0;
}

static void udp_unchain(struct harp_udp *sock)
{
	struct udp *udp = sock->udp;
	uint32_t *link = &udp->by_port[sock->local.port];

	while (*link != sock->index + 1)
		link = &udp->sockets[*link - 1].chain;
	*link = sock->chain;
	port_put(&udp->ports, sock->local.port);
}

void udp_socket_free(struct harp_udp *sock)
{
	struct udp *udp = sock->udp;
	struct frame *f;

	while ((f = udp_queue_pop(&sock->rx)) != NULL)
		udp_rx_release(sock, f);
	udp_tx_purge(sock);
	if (sock->local.port)
		udp_unchain(sock);
	assert(sock->rx_frames_held == 0 && sock->tx_frames_held == 0);
	sock->udp = NULL;
	udp->stats->udp_sockets--;
	TAILQ_INSERT_HEAD(&udp->free_sockets, sock, free_link);
}

/* True if a socket that holds `held` frames may take another one. reserve: free frames to leave. */
static bool udp_pool_allows(const struct udp *udp, uint32_t held, uint32_t reserve)
{
	const struct nicio *io = udp->io;
	uint32_t floor = UDP_POOL_RESERVE_FRAMES;

	if (io->fill_max > io->fill_held)
		floor += io->fill_max - io->fill_held;
	if (held >= UDP_FRAMES_MIN)
		floor += reserve;
	return udp->pool->free_count > floor;
}

/* Reserves a quarter of the pool for TCP. */
static bool udp_pool_allows_rx(const struct udp *udp, uint32_t held)
{
	return udp_pool_allows(udp, held, udp->shared_frames / 4);
}

/* Reserves another quarter for reception, because a busy sender must still receive replies. Frames
 * that the NIC has not completed count as held; otherwise the socket's budget would limit
 * nothing. */
bool udp_pool_allows_tx(const struct udp *udp, uint32_t held)
{
	return udp_pool_allows(udp, held + udp->io->tx_held, udp->shared_frames / 2);
}

void udp_rx_release(struct harp_udp *sock, struct frame *datagram)
{
	uint32_t frames = udp_frames(datagram);

	sock->rx_frames_held -= frames;
	sock->udp->stats->frames_udp_rx -= frames;
	frame_release_packet(sock->udp->pool, datagram);
}

/* The socket that receives datagrams for this address and port; NULL: none. */
static struct harp_udp *udp_find(const struct udp *udp, const struct harp_addr *addr, uint16_t port)
{
	for (uint32_t i = udp->by_port[port]; i; i = udp->sockets[i - 1].chain) {
		struct harp_udp *sock = &udp->sockets[i - 1];

		if ((sock->wild && !sock->connected) || addr_equal(&sock->local.addr, addr))
			return sock;
	}
	return NULL;
}

/* True unless the socket is connected to another peer. */
static bool udp_accepts(const struct harp_udp *sock, const struct harp_addr *remote, uint16_t port)
{
	return !sock->connected ||
	       (sock->remote.port == port && addr_equal(&sock->remote.addr, remote));
}

struct udp_header {
	be16_t src, dst, len;
	uint16_t csum; /* memory order */
};
static_assert(sizeof(struct udp_header) == UDP_HEADER_BYTES, "RFC 768");

static bool udp_checksum_valid(struct udp *udp, const struct packet_in *in,
			       const struct udp_header *h)
{
	uint32_t sum = in->l4_csum_pseudo;

	/* "An all zero transmitted checksum value means that the transmitter generated no checksum"
	 * (RFC 768); IPv6 forbids it (RFC 8200 section 8.1). */
	if (h->csum == 0)
		return harp_addr_is_v4(&in->dst);
	if (in->csum_valid)
		return true;
	/* The pseudo-header has UDP's length, which may be less than the packet's. */
	if (be16_get(h->len) != in->len)
		sum = ip_pseudo_sum(&in->src, &in->dst, IP_PROTO_UDP, be16_get(h->len));
	return ip_l4_csum_holds(in->frame, sum, h->csum,
				udp->io->nic->caps.features & HARP_NIC_RX_CSUM_PARTIAL,
				&udp->stats->csum_partial_accepted);
}

/* Queues a valid datagram; the source is stored in the space of the headers. */
static enum udp_verdict udp_deliver(struct harp_udp *sock, const struct packet_in *in,
				    uint16_t src_port)
{
	struct udp *udp = sock->udp;
	struct frame *f = in->frame;
	uint32_t frames = udp_frames(f);
	struct udp_meta meta = {
		.local = in->dst, .remote = in->src, .remote_port = src_port, .tos = in->tos
	};

	/* The datagram's own frames have already left the pool. */
	if (sock->rx_frames_held + frames > sock->rx_frames_budget ||
	    !udp_pool_allows_rx(udp, sock->rx_frames_held))
		return UDP_DROP_RX_BUDGET;
	f->pub.data += UDP_HEADER_BYTES;
	f->pub.len -= UDP_HEADER_BYTES;
	f->pub.capacity -= UDP_HEADER_BYTES;
	memcpy(udp_rx_meta(f), &meta, sizeof(meta));
	udp_queue_push(&sock->rx, f);
	sock->rx_frames_held += frames;
	udp->stats->frames_udp_rx += frames;
	udp->stats->udp_in++;
	return UDP_KEPT;
}

static enum udp_verdict udp_receive(struct udp *udp, struct packet_in *in)
{
	const struct udp_header *h = (const struct udp_header *)in->frame->pub.data;
	struct harp_udp *sock;
	uint32_t len;

	if (in->len < UDP_HEADER_BYTES || in->frame->pub.len < UDP_HEADER_BYTES)
		return UDP_DROP_SHORT;
	/* "Length is the length in octets of this user datagram including this header": at least a
	 * header, at most the received bytes. A length of 0 is for jumbograms (RFC 2675), which we
	 * do not support. Bytes beyond it are not part of the datagram. */
	len = be16_get(h->len);
	if (len < UDP_HEADER_BYTES || len > in->len)
		return UDP_DROP_SHORT;
	if (len < in->len)
		ip_trim(udp->ip, in->frame, len);
	if (!udp_checksum_valid(udp, in, h))
		return UDP_DROP_CHECKSUM;
	sock = udp_find(udp, &in->dst, be16_get(h->dst));
	if (!sock || !udp_accepts(sock, &in->src, be16_get(h->src))) {
		if (port_on_other_queue(&udp->ports, be16_get(h->dst)))
			return UDP_DROP_OTHER_QUEUE;
		/* RFC 1122 section 4.1.3.1: "UDP SHOULD send an ICMP Port Unreachable message." */
		icmp_unreachable_port(udp->icmp, in);
		return UDP_DROP_NO_PORT;
	}
	return udp_deliver(sock, in, be16_get(h->src));
}

enum udp_verdict udp_input(struct udp *udp, struct packet_in *in)
{
	static const uint16_t counters[UDP_VERDICTS] = {
		[UDP_DROP_SHORT] = offsetof(struct harp_stats, drop_udp_short),
		[UDP_DROP_CHECKSUM] = offsetof(struct harp_stats, drop_udp_checksum),
		[UDP_DROP_NO_PORT] = offsetof(struct harp_stats, drop_udp_no_port),
		[UDP_DROP_OTHER_QUEUE] = offsetof(struct harp_stats, drop_port_elsewhere),
		[UDP_DROP_RX_BUDGET] = offsetof(struct harp_stats, drop_udp_rx_budget),
	};
	enum udp_verdict verdict = udp_receive(udp, in);

	if (counters[verdict])
		++*(uint64_t *)((char *)udp->stats + counters[verdict]);
	return verdict;
}

/* ------------------------------------------------------------------------------------------------
 * ICMP errors: RFC 1122 section 4.1.3.3, "UDP MUST pass to the application layer all ICMP error
 * messages that it receives from the IP layer".
 */
static int udp_icmp_errno(const struct harp_icmp_error *error)
{
	switch (error->kind) {
	case ICMP_ERROR_TOO_BIG:
		return -EMSGSIZE;
	case ICMP_ERROR_UNREACHABLE_PORT:
		return -ECONNREFUSED;
	case ICMP_ERROR_UNREACHABLE_NET:
		return -ENETUNREACH;
	case ICMP_ERROR_PARAMETER:
		return -EPROTO;
	default:
		return -EHOSTUNREACH;
	}
}

/* Lowers the path MTU. The ICMP layer guarantees the minimum of mtu_bytes. */
static void udp_too_big(struct harp_udp *sock, uint32_t mtu_bytes)
{
	bool has_pmtu = sock->pmtu_bytes && sock->udp->now_ns < sock->pmtu_until_ns;

	if (mtu_bytes >= (has_pmtu ? sock->pmtu_bytes : sock->path.mtu_bytes))
		return;
	sock->pmtu_bytes = mtu_bytes;
	sock->pmtu_until_ns = sock->udp->now_ns + UDP_PMTU_NS;
}

void udp_icmp_error(struct udp *udp, const struct harp_icmp_error *error)
{
	struct harp_udp *sock = udp_find(udp, &error->local.addr, error->local.port);

	if (!sock || !udp_accepts(sock, &error->remote.addr, error->remote.port))
		return;
	if (error->kind == ICMP_ERROR_TOO_BIG && sock->connected)
		udp_too_big(sock, error->mtu_bytes);
	sock->error = udp_icmp_errno(error);
	sock->error_about = error->remote;
}
