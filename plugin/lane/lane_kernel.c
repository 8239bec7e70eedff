/* SPDX-License-Identifier: Apache-2.0 */
/* lane_kernel.c - a lane over a kernel TCP socket. */
#include "lane/lane.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/addr.h"
#include "base/sockaddr.h"
#include "process/forkguard.h"
#include "lane/kernel_info.h"
#include "lane/kernel_poll.h"
#include "lane/place.h"
#include "process/config.h"
#include "wire/record.h"

/*
 * Theory of operation
 *
 * Each call makes at most one non-blocking system call, directly from and to the caller's memory.
 * Small records would cost two receives each, for header and payload. So reads of control bytes
 * (unit 1) read ahead into `ahead`. While payloads are large, control reads do not read ahead;
 * instead, the receive of a payload also receives the next record's header. So a large payload
 * costs one receive and is not copied again.
 *
 * In a comm, kernel_poll.h avoids useless calls: a short receive or send has emptied or filled the
 * socket, and the next call waits for the poll.
 *
 * Delivery. place_gather() copies bytes from `ahead` in whole units. The kernel copies to user
 * memory in address order, as NCCL's own socket transport requires; bytes are never held back
 * there.
 *
 * Acknowledgments. The kernel may delay the ACK of a message's last bytes by 40 ms. If the peer's
 * large sends complete on the ACK, acknowledge() sets TCP_QUICKACK, which sends it at once and is
 * not permanent.
 */

#define AHEAD_BYTES 16384u
#define AHEAD_BULK_BYTES RECORD_HEADER_BYTES /* after a large payload */
#define SMALL_PAYLOAD_BYTES 32768u           /* larger ones turn reading ahead off */

struct lane_kernel {
	struct lane lane;
	struct kernel_member member;
	int fd;
	bool connected;
	bool ack_promptly;
	bool between;   /* the last recv() was for control bytes: the next may begin a payload */
	bool bulk;      /* the last payload was large */
	int send_error; /* of a failed send(): the kernel reports it once */
	uint64_t sent_bytes;
	struct kernel_silence silence;
	size_t ahead_begin, ahead_end;
	uint8_t ahead[AHEAD_BYTES];
};

static struct lane_kernel *to_kernel(struct lane *lane)
{
	return (struct lane_kernel *)lane;
}

static int lane_kernel_fail(struct lane_kernel *k, int error)
{
	if (!k->lane.error)
		k->lane.error = error;
	return k->lane.error;
}

static void lane_kernel_option(int fd, int level, int name, int value)
{
	/* The lane works without the option, so an error is ignored. */
	(void)setsockopt(fd, level, name, &value, sizeof(value));
}

static void lane_kernel_names(struct lane_kernel *k)
{
	struct sockaddr_storage sa = { 0 };
	socklen_t len = sizeof(sa);

	if (!getsockname(k->fd, (struct sockaddr *)&sa, &len))
		sockaddr_to_endpoint(&sa, &k->lane.local);
	len = sizeof(sa);
	if (!getpeername(k->fd, (struct sockaddr *)&sa, &len))
		sockaddr_to_endpoint(&sa, &k->lane.remote);
}

static enum lane_state lane_kernel_state(struct lane *lane)
{
	struct lane_kernel *k = to_kernel(lane);
	struct tcp_info info;
	socklen_t len = sizeof(info);
	int error = 0;
	socklen_t error_len = sizeof(error);

	if (lane->error)
		return LANE_DEAD;
	if (k->connected)
		return LANE_OPEN;
	if (getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &error, &error_len))
		error = errno;
	if (error) {
		lane_kernel_fail(k, lane_errno(error));
		return LANE_DEAD;
	}
	memset(&info, 0, sizeof(info));
	if (getsockopt(k->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return LANE_CONNECTING;
	if (info.tcpi_state == TCP_SYN_SENT || info.tcpi_state == TCP_SYN_RECV)
		return LANE_CONNECTING;
	if (info.tcpi_state == TCP_CLOSE) {
		lane_kernel_fail(k, -ECONNREFUSED);
		return LANE_DEAD;
	}
	k->connected = true;
	lane_kernel_names(k);
	return LANE_OPEN;
}

static ssize_t lane_kernel_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct lane_kernel *k = to_kernel(lane);
	struct msghdr msg = { .msg_iov = (struct iovec *)(uintptr_t)iov,
			      .msg_iovlen = (size_t)iov_count };
	size_t wanted = 0;
	ssize_t n;

	if (!kernel_member_may(&k->member, &k->member.writable))
		return -EAGAIN;
	for (int i = 0; i < iov_count; i++)
		wanted += iov[i].iov_len;
	do {
		if (iov_count == 1) /* send() is cheaper */
			n = send(k->fd, iov->iov_base, wanted, MSG_NOSIGNAL | MSG_DONTWAIT);
		else
			n = sendmsg(k->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n >= 0) {
		k->sent_bytes += (uint64_t)n;
		k->member.writable = (size_t)n == wanted;
		return n;
	}
	/* ENOBUFS is temporary, without an event at its end. */
	k->member.writable = errno != EAGAIN;
	if (errno == EAGAIN || errno == ENOBUFS)
		return -EAGAIN;
	/* The next recv() returns the data that arrived before, even if no check has found it. */
	k->member.readable = true;
	if (!k->send_error && errno != EPIPE)
		k->send_error = lane_errno(errno);
	return lane_errno(errno);
}

/* One receive: to dst, and what follows to `ahead`, which is empty. Returns bytes received to
 * dst. */
static ssize_t lane_kernel_read(struct lane_kernel *k, void *dst, size_t len, size_t ahead)
{
	struct iovec iov[2] = { { dst, len }, { k->ahead, ahead } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;

	if (!kernel_member_may(&k->member, &k->member.readable))
		return -EAGAIN;
	do {
		if (len && ahead)
			n = recvmsg(k->fd, &msg, MSG_DONTWAIT);
		else /* recv() is cheaper, and most calls return EAGAIN */
			n = recv(k->fd, len ? dst : k->ahead, len + ahead, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n > 0) {
		k->member.readable = (size_t)n == len + ahead;
		if (k->member.set)
			k->member.set->hot = &k->member;
		k->ahead_begin = 0;
		k->ahead_end = (size_t)n > len ? (size_t)n - len : 0;
		return n - (ssize_t)k->ahead_end;
	}
	if (n == 0)
		return k->send_error ? lane_kernel_fail(k, k->send_error) : 0;
	k->member.readable = false;
	return errno == EAGAIN ? -EAGAIN : lane_kernel_fail(k, lane_errno(errno));
}

static size_t lane_kernel_take_ahead(struct lane_kernel *k, void *dst, size_t len, unsigned unit)
{
	size_t n = k->ahead_end - k->ahead_begin;
	struct iovec piece = { k->ahead + k->ahead_begin, n };

	if (n > len)
		n = len;
	if (unit > 1)
		place_gather(dst, n, &piece, 1); /* COPY */
	else
		memcpy(dst, piece.iov_base, n);
	k->ahead_begin += n;
	return n;
}

static ssize_t lane_kernel_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct lane_kernel *k = to_kernel(lane);
	size_t taken = 0;
	ssize_t n;

	if (unit > 1 && k->between)
		k->bulk = len > SMALL_PAYLOAD_BYTES;
	k->between = unit == 1;
	if (k->ahead_begin < k->ahead_end) {
		taken = lane_kernel_take_ahead(k, dst, len, unit);
		if (taken == len || unit == 1)
			return (ssize_t)taken;
	}
	if (lane->error)
		return taken ? (ssize_t)taken : lane->error;
	if (unit > 1) {
		n = lane_kernel_read(k, (uint8_t *)dst + taken, len - taken,
				     k->bulk ? AHEAD_BULK_BYTES : AHEAD_BYTES);
		if (n <= 0)
			return taken ? (ssize_t)taken : n;
		return n + (ssize_t)taken;
	}
	if (k->bulk || len >= AHEAD_BYTES)
		return lane_kernel_read(k, dst, len, 0);
	n = lane_kernel_read(k, k->ahead, 0, AHEAD_BYTES);
	return k->ahead_begin < k->ahead_end ? (ssize_t)lane_kernel_take_ahead(k, dst, len, unit)
					     : n;
}

static uint64_t lane_kernel_done_bytes(struct lane *lane)
{
	return to_kernel(lane)->sent_bytes;
}

static void lane_kernel_acknowledge(struct lane *lane)
{
	struct lane_kernel *k = to_kernel(lane);

	if (k->ack_promptly)
		lane_kernel_option(k->fd, IPPROTO_TCP, TCP_QUICKACK, 1);
}

static void lane_kernel_info(struct lane *lane, struct lane_info *info)
{
	struct lane_kernel *k = to_kernel(lane);

	kernel_info(k->fd, k->sent_bytes, info);
}

static void lane_kernel_close(struct lane *lane, bool abort)
{
	struct lane_kernel *k = to_kernel(lane);
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };

	if (abort) /* close() sends RST */
		(void)setsockopt(k->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	kernel_poll_remove(&k->member);
	forkguard_close(k->fd);
	free(k);
}

static void lane_kernel_describe(struct lane *lane, char *buf, size_t len)
{
	char local[HARP_ENDPOINT_TEXT_MAX], remote[HARP_ENDPOINT_TEXT_MAX];

	snprintf(buf, len, "kernel TCP %s -> %s", harp_endpoint_format(&lane->local, local),
		 harp_endpoint_format(&lane->remote, remote));
}

static const struct lane_ops lane_kernel_ops = {
	.state = lane_kernel_state,
	.send = lane_kernel_send,
	.recv = lane_kernel_recv,
	.copied_bytes = lane_kernel_done_bytes,
	.done_bytes = lane_kernel_done_bytes,
	.acknowledge = lane_kernel_acknowledge,
	.info = lane_kernel_info,
	.close = lane_kernel_close,
	.describe = lane_kernel_describe,
};

void lane_kernel_options(int fd)
{
	uint64_t user_timeout_s = plugin_config()->user_timeout_ns / 1000000000u;

	lane_kernel_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	/* Probes each second while idle find a dead process on a live host. The comm times out a
	 * silent host, so the kernel must not be faster. */
	lane_kernel_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	lane_kernel_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	lane_kernel_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1 + (int)(user_timeout_s / 127u));
	lane_kernel_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 127);
}

/* Takes ownership of the descriptor, even on failure. */
static struct lane_kernel *lane_kernel_new(struct poller *poller, int fd)
{
	struct lane_kernel *k = malloc(sizeof(*k));

	if (!k) {
		forkguard_close(fd);
		return NULL;
	}
	memset(k, 0, offsetof(struct lane_kernel, ahead));
	k->lane.ops = &lane_kernel_ops;
	k->lane.poller = poller;
	k->lane.kind_bit = LANE_KERNEL;
	k->fd = fd;
	k->member.fd = fd;
	return k;
}

int lane_kernel_fd(struct lane *lane)
{
	return to_kernel(lane->beneath ? lane->beneath : lane)->fd;
}

/* Binds to the address; connect() chooses the port, so that ports can be shared between peers. */
static int lane_kernel_bind(int fd, const struct harp_endpoint *local)
{
	struct harp_endpoint any_port = *local;
	struct sockaddr_storage sa;
	socklen_t len;

	if (addr_is_zero(&local->addr))
		return 0;
	any_port.port = 0;
	len = sockaddr_from_endpoint(&sa, &any_port);
	lane_kernel_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	return bind(fd, (struct sockaddr *)&sa, len) ? -errno : 0;
}

int lane_kernel_connect(struct poller *poller, const struct harp_endpoint *local,
			const struct harp_endpoint *remote, int dscp, struct lane **out)
{
	struct sockaddr_storage sa;
	socklen_t len = sockaddr_from_endpoint(&sa, remote);
	int fd = forkguard_socket(sa.ss_family);
	struct lane_kernel *k;
	int rc;

	*out = NULL;
	if (fd < 0)
		return fd;
	k = lane_kernel_new(poller, fd);
	if (!k)
		return -ENOMEM;
	lane_kernel_options(fd);
	k->lane.remote = *remote;
	if (dscp > 0) {
		if (sa.ss_family == AF_INET)
			lane_kernel_option(fd, IPPROTO_IP, IP_TOS, (dscp & 63) << 2);
		else
			lane_kernel_option(fd, IPPROTO_IPV6, IPV6_TCLASS, (dscp & 63) << 2);
	}
	rc = lane_kernel_bind(fd, local);
	if (!rc && connect(fd, (struct sockaddr *)&sa, len) && errno != EINPROGRESS)
		rc = lane_errno(errno);
	if (rc) {
		lane_kernel_close(&k->lane, true);
		return rc;
	}
	*out = &k->lane;
	return 0;
}

int lane_kernel_adopt(struct poller *poller, int fd, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, struct lane **out)
{
	struct lane_kernel *k = lane_kernel_new(poller, fd);

	*out = NULL;
	if (!k)
		return -ENOMEM;
	k->connected = true;
	k->lane.local = *local;
	k->lane.remote = *remote;
	*out = &k->lane;
	return 0;
}

/* NULL: another kind of lane. */
static struct lane_kernel *lane_kernel_of(struct lane *lane)
{
	lane = lane->beneath ? lane->beneath : lane;
	return lane->ops == &lane_kernel_ops ? to_kernel(lane) : NULL;
}

uint64_t lane_kernel_silence_ns(struct lane *lane, uint64_t now_ns)
{
	struct lane_kernel *k = lane_kernel_of(lane);

	return k ? kernel_silence_ns(k->fd, &k->silence, now_ns) : 0;
}

void lane_kernel_ack_promptly(struct lane *lane)
{
	struct lane_kernel *k = lane_kernel_of(lane);

	if (k)
		k->ack_promptly = true;
}

bool lane_kernel_is_due(struct lane *lane)
{
	const struct lane_kernel *k = to_kernel(lane);

	/* An encrypted lane may have buffered bytes. */
	return lane->ops != &lane_kernel_ops || k->member.readable || k->ahead_begin < k->ahead_end;
}

void lane_kernel_join(struct lane *lane, struct poller *poller, struct kernel_poll *poll)
{
	for (; lane; lane = lane->beneath) {
		lane->poller = poller;
		if (lane->ops == &lane_kernel_ops)
			kernel_poll_add(poll, &to_kernel(lane)->member);
	}
}
