/* SPDX-License-Identifier: Apache-2.0 */
/* stream_kernel.c - the stream of a kernel socket: the other side of interoperability. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/endpoint.h"
#include "stream.h"

struct kernel_stream {
	struct stream s; /* first */
	int listener, fd;
	short events; /* what the last -EAGAIN waits for */
};

static struct kernel_stream *self(struct stream *s)
{
	return (struct kernel_stream *)s;
}

static int kernel_open(struct stream *s, const struct stream_options *opt, char *why,
		       size_t why_len)
{
	(void)why;
	(void)why_len;
	s->opt = *opt;
	self(s)->listener = self(s)->fd = -1;
	return 0;
}

static int kernel_listen(struct stream *s)
{
	struct sockaddr_storage address;
	socklen_t len = endpoint_to_sockaddr(&s->opt.local, &address);
	const int on = 1;
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	self(s)->listener = fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, 16) < 0)
		return -errno;
	return 0;
}

static int kernel_again(struct stream *s, short events)
{
	self(s)->events = events;
	return errno == EAGAIN || errno == EINPROGRESS || errno == EINTR ? -EAGAIN : -errno;
}

static void kernel_nodelay(int fd)
{
	const int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int kernel_accept(struct stream *s)
{
	int fd = accept4(self(s)->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return kernel_again(s, POLLIN);
	self(s)->fd = fd;
	kernel_nodelay(fd);
	return 0;
}

static int kernel_connect(struct stream *s)
{
	struct sockaddr_storage address;
	socklen_t len = endpoint_to_sockaddr(&s->opt.remote, &address);
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	self(s)->fd = fd;
	kernel_nodelay(fd);
	if (connect(fd, (struct sockaddr *)&address, len) == 0)
		return 0;
	return errno == EINPROGRESS ? 0 : -errno;
}

static int kernel_connected(struct stream *s)
{
	struct pollfd fd = { .fd = self(s)->fd, .events = POLLOUT };
	int error = 0;
	socklen_t len = sizeof(error);

	if (poll(&fd, 1, 0) == 0) {
		self(s)->events = POLLOUT;
		return -EAGAIN;
	}
	getsockopt(fd.fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return -error;
}

static ssize_t kernel_send(struct stream *s, const void *data, size_t len)
{
	ssize_t rc = send(self(s)->fd, data, len, MSG_NOSIGNAL);

	return rc < 0 ? kernel_again(s, POLLOUT) : rc;
}

static ssize_t kernel_recv(struct stream *s, void *data, size_t len)
{
	ssize_t rc = recv(self(s)->fd, data, len, 0);

	return rc < 0 ? kernel_again(s, POLLIN) : rc;
}

static void kernel_hangup(struct stream *s)
{
	if (self(s)->fd >= 0)
		close(self(s)->fd);
	self(s)->fd = -1;
}

static void kernel_turn(struct stream *s)
{
	struct pollfd fd = { .fd = self(s)->fd >= 0 ? self(s)->fd : self(s)->listener,
			     .events = self(s)->events };

	if (s->opt.spin)
		sched_yield();
	else
		poll(&fd, 1, 100);
}

static void kernel_describe(struct stream *s, FILE *out)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	getsockopt(self(s)->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
	fprintf(out,
		"{\"kind\": \"kernel\", \"srtt_ns\": %u, \"snd_mss_bytes\": %u, "
		"\"rcv_mss_bytes\": %u, \"retransmits\": %u}",
		info.tcpi_rtt * 1000, info.tcpi_snd_mss, info.tcpi_rcv_mss,
		info.tcpi_total_retrans);
}

static void kernel_close(struct stream *s)
{
	kernel_hangup(s);
	if (self(s)->listener >= 0)
		close(self(s)->listener);
	free(s);
}

struct stream *stream_kernel(void)
{
	static const struct stream_ops ops = {
		.open = kernel_open,
		.listen = kernel_listen,
		.accept = kernel_accept,
		.connect = kernel_connect,
		.connected = kernel_connected,
		.send = kernel_send,
		.recv = kernel_recv,
		.hangup = kernel_hangup,
		.turn = kernel_turn,
		.describe = kernel_describe,
		.close = kernel_close,
	};
	struct kernel_stream *k = calloc(1, sizeof(*k));

	if (k)
		k->s.ops = &ops;
	return k ? &k->s : NULL;
}
