/* SPDX-License-Identifier: Apache-2.0 */
/* udp.c - the application's interface to UDP sockets. */
#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "socket/socket.h"

#define UDP_RX_FRAMES_DEFAULT 256u
#define UDP_TX_FRAMES_DEFAULT 128u

/* ------------------------------------------------------------------------------------------------
 * Opening, connecting, closing.
 */
static uint32_t udp_budget(const struct udp *udp, uint32_t frames, uint32_t frames_default)
{
	if (frames == 0)
		frames = frames_default;
	if (frames > udp->shared_frames / 2)
		frames = udp->shared_frames / 2;
	return frames < UDP_FRAMES_MIN ? UDP_FRAMES_MIN : frames;
}

static int udp_options(const struct harp_udp_options *in, struct harp_udp_options *out)
{
	*out = (struct harp_udp_options){ 0 };
	if (in) {
		if (in->size != sizeof(*out))
			return -EINVAL;
		*out = *in;
	}
	return out->dscp > 63 ? -EINVAL : 0;
}

int udp_open(struct udp *udp, const struct harp_endpoint *local, const struct harp_udp_options *opt,
	     struct harp_udp **out)
{
	struct harp_endpoint endpoint = local ? *local : (struct harp_endpoint){ .port = 0 };
	struct harp_udp_options options;
	struct harp_udp *sock;
	bool wild = addr_is_any(&endpoint.addr);
	int err = udp_options(opt, &options);

	if (err)
		return err;
	if (wild)
		endpoint.addr = (struct harp_addr){ { 0 } };
	else if (!ip_is_own(udp->ip, &endpoint.addr) ||
		 !ip_scope_valid(udp->ip, &endpoint.addr, endpoint.scope_id))
		return -EADDRNOTAVAIL;
	sock = udp_socket_alloc(udp);
	if (!sock)
		return -ENOSPC;
	sock->wild = wild;
	sock->tos = (uint8_t)(options.dscp << 2);
	sock->rx_frames_budget = udp_budget(udp, options.rx_frames, UDP_RX_FRAMES_DEFAULT);
	sock->tx_frames_budget = udp_budget(udp, options.tx_frames, UDP_TX_FRAMES_DEFAULT);
	err = udp_socket_bind(sock, &endpoint);
	if (err) {
		udp_socket_free(sock);
		return err;
	}
	*out = sock;
	return 0;
}

/* True if datagrams can be sent to this address: not to an own one, because the stack has no
 * loopback. */
static bool udp_remote_valid(const struct harp_udp *sock, const struct harp_endpoint *remote)
{
	const struct ip *ip = sock->udp->ip;

	return remote->port != 0 && !addr_is_any(&remote->addr) && !ip_is_own(ip, &remote->addr) &&
	       ip_scope_valid(ip, &remote->addr, remote->scope_id);
}

/* After connect(): drops queued datagrams from others than the peer, or to another address. */
static void udp_drop_others(struct harp_udp *sock)
{
	struct udp_queue remaining = { 0 };
	struct frame *f;

	while ((f = udp_queue_pop(&sock->rx)) != NULL) {
		const struct udp_meta *meta = udp_rx_meta(f);

		if (meta->remote_port == sock->remote.port &&
		    addr_equal(&meta->remote, &sock->remote.addr) &&
		    addr_equal(&meta->local, &sock->local.addr))
			udp_queue_push(&remaining, f);
		else
			udp_rx_release(sock, f);
	}
	sock->rx = remaining;
}

int harp_udp_connect(struct harp_udp *sock, const struct harp_endpoint *remote)
{
	struct udp_meta meta = { .local = sock->local.addr };
	int err;

	if (sock->wild)
		meta.local = (struct harp_addr){ { 0 } };
	if (remote) {
		if (!udp_remote_valid(sock, remote))
			return -EINVAL;
		meta.remote = remote->addr;
		meta.remote_port = remote->port;
		err = udp_path(sock, &meta);
		if (err)
			return err;
	}
	sock->connected = remote != NULL;
	sock->remote = remote ? *remote : (struct harp_endpoint){ .port = 0 };
	sock->local.addr = remote ? sock->path.src : meta.local;
	sock->pmtu_bytes = 0;
	sock->error = 0;
	if (remote)
		udp_drop_others(sock);
	return 0;
}

void harp_udp_close(struct harp_udp *sock)
{
	if (sock)
		udp_socket_free(sock);
}

int harp_udp_error(struct harp_udp *sock, struct harp_endpoint *about)
{
	int error = sock->error;

	if (about)
		*about = error ? sock->error_about : (struct harp_endpoint){ .port = 0 };
	sock->error = 0;
	return error;
}

/* ------------------------------------------------------------------------------------------------
 * Sending.
 */
/* Determines the destination (remote NULL: the peer) and the source of a datagram, and looks up
 * sock->path. */
static int udp_resolve(struct harp_udp *sock, const struct harp_endpoint *remote,
		       struct udp_meta *meta)
{
	int err;

	if (!remote && !sock->connected)
		return -EDESTADDRREQ;
	if (remote && sock->connected)
		return -EISCONN;
	if (!remote)
		remote = &sock->remote;
	if (!udp_remote_valid(sock, remote))
		return -EINVAL;
	*meta = (struct udp_meta){ .remote = remote->addr,
				   .local = sock->local.addr,
				   .remote_port = remote->port,
				   .tos = sock->tos };
	err = udp_path(sock, meta);
	if (!err)
		meta->local = sock->path.src;
	return err;
}

int harp_udp_payload_max(struct harp_udp *sock, const struct harp_endpoint *remote)
{
	struct udp_meta meta;
	int err = udp_resolve(sock, remote, &meta);

	return err ? err : (int)udp_payload_max(sock);
}

/* Allocates frames for len bytes; NULL: budget or pool exhausted. */
static struct frame *udp_tx_frames(struct harp_udp *sock, size_t len)
{
	struct frame *first = udp_tx_alloc(sock), *last = first;

	if (!first)
		return NULL;
	for (size_t room = first->pub.capacity; room < len; room += last->pub.capacity) {
		last->frag = udp_tx_alloc(sock);
		last = last->frag;
		if (!last) {
			udp_tx_release(sock, first);
			return NULL;
		}
	}
	return first;
}

/* COPY: the application's bytes into our frames; computes the checksums. */
static void udp_fill(struct frame *f, const struct iovec *iov, int iov_count)
{
	for (struct frame *frag = f; frag; frag = frag->frag)
		frag->flags |= FRAME_CSUM;
	for (int i = 0; i < iov_count; i++) {
		const uint8_t *src = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left > 0) {
			uint32_t n = f->pub.capacity - f->pub.len, sum;

			if (n == 0) {
				f = f->frag;
				assert(f); /* the allocated frames suffice */
				continue;
			}
			n = left < n ? (uint32_t)left : n;
			sum = csum_copy(f->pub.data + f->pub.len, src, n, 0);
			f->csum = csum_append(f->csum, sum, f->pub.len);
			f->pub.len += n;
			src += n;
			left -= n;
		}
	}
}

ssize_t harp_udp_send(struct harp_udp *sock, const struct harp_endpoint *remote,
		      const struct iovec *iov, int iov_count)
{
	struct udp_meta meta;
	size_t len = 0, len_max;
	struct frame *f;
	int err = udp_resolve(sock, remote, &meta);

	if (err)
		return err;
	if (iov_count < 0)
		return -EINVAL;
	len_max = udp_payload_max(sock);
	for (int i = 0; i < iov_count; i++) {
		if (iov[i].iov_len > len_max - len)
			return -EMSGSIZE;
		len += iov[i].iov_len;
	}
	f = udp_tx_frames(sock, len);
	if (!f)
		return -EAGAIN;
	udp_fill(f, iov, iov_count);
	sock->udp->stats->tx_copied_bytes += len;
	udp_tx_queue(sock, f, &meta);
	return (ssize_t)len;
}

/* ------------------------------------------------------------------------------------------------
 * Receiving.
 */
/* COPY: to the application's buffer, at most `size` bytes. Returns the datagram's length. */
static size_t udp_copy_out(struct harp_udp *sock, const struct frame *f, uint8_t *dst, size_t size)
{
	size_t len = 0, done = 0;

	for (; f; f = f->frag) {
		size_t n = size - done < f->pub.len ? size - done : f->pub.len;

		if (n > 0)
			memcpy(dst + done, f->pub.data, n);
		done += n;
		len += f->pub.len;
	}
	sock->udp->stats->rx_copied_bytes += done;
	return len;
}

static struct harp_endpoint udp_endpoint(const struct harp_udp *sock, const struct harp_addr *addr,
					 uint16_t port)
{
	return (struct harp_endpoint){ .addr = *addr,
				       .port = port,
				       .scope_id = ip_scope_id(sock->udp->ip, addr) };
}

ssize_t harp_udp_recv(struct harp_udp *sock, void *buf, size_t len, struct harp_udp_from *from)
{
	struct frame *f = udp_queue_pop(&sock->rx);
	struct udp_meta meta;
	size_t datagram_len;

	if (!f)
		return sock->connected && sock->error ? harp_udp_error(sock, NULL) : -EAGAIN;
	meta = *udp_rx_meta(f);
	if (from)
		*from = (struct harp_udp_from){
			.peer = udp_endpoint(sock, &meta.remote, meta.remote_port),
			.local = udp_endpoint(sock, &meta.local, sock->local.port),
			.tos = meta.tos,
		};
	datagram_len = udp_copy_out(sock, f, buf, len);
	udp_rx_release(sock, f);
	return (ssize_t)datagram_len;
}

void harp_udp_endpoints(const struct harp_udp *sock, struct harp_endpoint *local,
			struct harp_endpoint *remote)
{
	if (local)
		*local = udp_endpoint(sock, &sock->local.addr, sock->local.port);
	if (remote)
		*remote = sock->remote;
}
