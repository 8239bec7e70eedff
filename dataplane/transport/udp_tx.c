/* SPDX-License-Identifier: Apache-2.0 */
/*
 * udp_tx.c - the send queue of a UDP socket, and the transmit phase.
 *
 * The next transmit phase sends a datagram that was accepted (route, size, budget). A datagram
 * whose next hop is unresolved moves to `wait`, so that an unreachable host blocks no other
 * destination. It is retried when a neighbor becomes usable and every UDP_WAIT_RETRY_NS, and
 * dropped after UDP_WAIT_NS. Datagrams that the NIC has accepted count as sent.
 */
#include "transport/udp.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"

#define UDP_TX_QUOTA 64u       /* datagrams of one socket before the next one is served */
#define UDP_TX_PHASE_MAX 1024u /* of all sockets in one phase */
#define UDP_WAIT_RETRY_NS 100000000ull
#define UDP_WAIT_NS 3000000000ull /* the time of three unanswered ARP requests */

static struct udp_meta *tx_meta(const struct udp *udp, const struct frame *f)
{
	static_assert(sizeof(struct udp_meta) + 128 <= FRAME_HEADROOM_BYTES,
		      "no header overwrites it");
	return (struct udp_meta *)frame_chunk(udp->pool, f);
}

int udp_path(struct harp_udp *sock, const struct udp_meta *meta)
{
	struct ip_path *path = &sock->path;
	struct ip *ip = sock->udp->ip;
	bool any = addr_is_zero(&meta->local);
	int err;

	if (path->generation == ip->generation && addr_equal(&path->dst, &meta->remote) &&
	    (any ? sock->path_any : addr_equal(&path->src, &meta->local)))
		return 0;
	*path = (struct ip_path){ .src = meta->local, .dst = meta->remote };
	sock->path_any = any;
	err = ip_path_lookup(ip, path);
	if (!err)
		ip_path_label(ip, path, sock->local.port, meta->remote_port);
	return err;
}

uint32_t udp_payload_max(const struct harp_udp *sock)
{
	const struct udp *udp = sock->udp;
	uint32_t headers = ip_header_bytes(&sock->path.dst) + UDP_HEADER_BYTES;
	uint32_t mtu_bytes = sock->path.mtu_bytes, frames = udp->tx_frags_max, room;

	if (sock->pmtu_bytes && sock->pmtu_bytes < mtu_bytes && udp->now_ns < sock->pmtu_until_ns)
		mtu_bytes = sock->pmtu_bytes;
	if (frames > sock->tx_frames_budget)
		frames = sock->tx_frames_budget;
	room = (udp->pool->frame_size - udp->pool->data_at) * frames;
	return mtu_bytes - headers < room ? mtu_bytes - headers : room;
}

/* ------------------------------------------------------------------------------------------------
 * The queue.
 */
static void tx_list_ready(struct harp_udp *sock)
{
	if (sock->on_ready_list)
		return;
	TAILQ_INSERT_TAIL(&sock->udp->ready, sock, ready_link);
	sock->on_ready_list = true;
}

static void tx_unlist_wait(struct harp_udp *sock)
{
	if (!sock->on_wait_list)
		return;
	TAILQ_REMOVE(&sock->udp->wait, sock, wait_link);
	sock->on_wait_list = false;
	wheel_cancel(sock->udp->wheel, &sock->timer);
}

struct frame *udp_tx_alloc(struct harp_udp *sock)
{
	struct udp *udp = sock->udp;
	struct frame *f = NULL;

	if (sock->tx_frames_held < sock->tx_frames_budget &&
	    udp_pool_allows_tx(udp, sock->tx_frames_held))
		f = frame_alloc(udp->pool, 0);
	if (f) {
		sock->tx_frames_held++;
		udp->stats->frames_udp_tx++;
	}
	return f;
}

void udp_tx_release(struct harp_udp *sock, struct frame *datagram)
{
	uint32_t frames = udp_frames(datagram);

	sock->tx_frames_held -= frames;
	sock->udp->stats->frames_udp_tx -= frames;
	frame_release_packet(sock->udp->pool, datagram);
}

void udp_tx_queue(struct harp_udp *sock, struct frame *datagram, const struct udp_meta *meta)
{
	*tx_meta(sock->udp, datagram) = *meta;
	datagram->sent_ns = sock->udp->now_ns; /* for UDP_WAIT_NS */
	udp_queue_push(&sock->tx, datagram);
	tx_list_ready(sock);
}

void udp_tx_purge(struct harp_udp *sock)
{
	struct udp *udp = sock->udp;
	struct frame *f;

	while ((f = udp_queue_pop(&sock->tx)) != NULL || (f = udp_queue_pop(&sock->wait)) != NULL)
		udp_tx_release(sock, f);
	tx_unlist_wait(sock);
	if (sock->on_ready_list)
		TAILQ_REMOVE(&udp->ready, sock, ready_link);
	sock->on_ready_list = false;
}

/* Reports a datagram that cannot be sent, as an ICMP error would. */
static void tx_drop(struct harp_udp *sock, struct frame *datagram, int error)
{
	const struct udp_meta *meta = tx_meta(sock->udp, datagram);

	sock->error = error;
	sock->error_about =
		(struct harp_endpoint){ .addr = meta->remote, .port = meta->remote_port };
	sock->udp->stats->drop_udp_unsent++;
	udp_tx_release(sock, datagram);
}

/* Waiting datagrams are sent before newer ones. */
static void tx_retry(struct harp_udp *sock)
{
	tx_unlist_wait(sock);
	if (!sock->wait.head)
		return;
	sock->wait.tail->next = sock->tx.head;
	if (!sock->tx.head)
		sock->tx.tail = sock->wait.tail;
	sock->tx.head = sock->wait.head;
	sock->wait = (struct udp_queue){ 0 };
	tx_list_ready(sock);
}

void udp_timer_fire(struct harp_udp *sock)
{
	uint64_t now_ns = sock->udp->now_ns;

	while (sock->wait.head && now_ns - sock->wait.head->sent_ns >= UDP_WAIT_NS)
		tx_drop(sock, udp_queue_pop(&sock->wait), -EHOSTUNREACH);
	tx_retry(sock);
}

/* ------------------------------------------------------------------------------------------------
 * One datagram.
 */
static uint32_t tx_payload_bytes(const struct frame *f)
{
	uint32_t len = 0;

	for (; f; f = f->frag)
		len += f->pub.len;
	return len;
}

/* 0; -ENOBUFS: the NIC is full; -EAGAIN: the next hop is unresolved; else: it cannot be sent. */
static int tx_datagram(struct harp_udp *sock, struct frame *f)
{
	struct udp *udp = sock->udp;
	const struct udp_meta *meta = tx_meta(udp, f);
	struct packet_out out = { .frame = f };
	uint32_t len, sum;
	uint16_t csum;
	int err;

	if (!nicio_tx_ready(udp->io, udp_frames(f)))
		return -ENOBUFS;
	err = udp_path(sock, meta);
	if (err)
		return err;
	out.frags = udp_frames(f);
	if (udp->io->features & HARP_NIC_TX_CSUM) {
		len = tx_payload_bytes(f);
		sum = 0;
	} else {
		sum = frame_packet_sum(f, &len);
	}
	out.head = f->pub.data - UDP_HEADER_BYTES;
	out.len = UDP_HEADER_BYTES + len;
	be16_store(out.head, sock->local.port);
	be16_store(out.head + 2, meta->remote_port);
	be16_store(out.head + 4, (uint16_t)out.len);
	memset(out.head + 6, 0, sizeof(csum));
	sum = csum_add(sum, ip_pseudo_sum(&sock->path.src, &sock->path.dst, IP_PROTO_UDP, out.len));
	if (udp->io->features & HARP_NIC_TX_CSUM) {
		out.flags = HARP_DESC_TX_CSUM;
		csum = (uint16_t)~csum_finish(sum);
	} else {
		csum = csum_finish(csum_words(out.head, UDP_HEADER_BYTES, sum));
		/* RFC 768: "If the computed checksum is zero, it is transmitted as all ones". */
		if (csum == 0)
			csum = 0xffff;
	}
	memcpy(out.head + 6, &csum, sizeof(csum));
	err = ip_output(udp->ip, &sock->path, IP_PROTO_UDP, meta->tos, &out);
	if (err)
		return err;
	udp->stats->udp_out++;
	return 0;
}

/* Serves one socket. False: the NIC is full, the phase ends. */
static bool tx_socket(struct harp_udp *sock, unsigned *sent)
{
	struct udp *udp = sock->udp;

	for (unsigned quota = UDP_TX_QUOTA; sock->tx.head && quota > 0; quota--) {
		struct frame *f = sock->tx.head;
		int err = tx_datagram(sock, f);

		if (err == -ENOBUFS)
			return false;
		udp_queue_pop(&sock->tx);
		if (!err) {
			udp_tx_release(sock, f); /* the NIC has its own reference */
			++*sent;
		} else if (err == -EAGAIN) {
			udp_queue_push(&sock->wait, f);
		} else {
			tx_drop(sock, f, err);
		}
	}
	if (sock->wait.head && !sock->on_wait_list) {
		TAILQ_INSERT_TAIL(&udp->wait, sock, wait_link);
		sock->on_wait_list = true;
		wheel_set(udp->wheel, &sock->timer, udp->now_ns + UDP_WAIT_RETRY_NS);
	}
	TAILQ_REMOVE(&udp->ready, sock, ready_link);
	sock->on_ready_list = false;
	if (sock->tx.head)
		tx_list_ready(sock); /* at the end of the list */
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * The phase.
 */
unsigned udp_tx_phase(struct udp *udp)
{
	struct harp_udp *sock;
	unsigned sent = 0;

	udp->nic_full = false;
	if (udp->resolved_seen != udp->ip->eth->resolved_generation) {
		udp->resolved_seen = udp->ip->eth->resolved_generation;
		while ((sock = TAILQ_FIRST(&udp->wait)) != NULL)
			tx_retry(sock);
	}
	while ((sock = TAILQ_FIRST(&udp->ready)) != NULL && sent < UDP_TX_PHASE_MAX) {
		if (!tx_socket(sock, &sent)) {
			udp->nic_full = true;
			break;
		}
	}
	return sent;
}

uint64_t udp_tx_next_ns(const struct udp *udp)
{
	if (udp->nic_full)
		return UDP_NEVER_NS;
	if (!TAILQ_EMPTY(&udp->ready) ||
	    (!TAILQ_EMPTY(&udp->wait) && udp->resolved_seen != udp->ip->eth->resolved_generation))
		return udp->now_ns;
	return UDP_NEVER_NS;
}
