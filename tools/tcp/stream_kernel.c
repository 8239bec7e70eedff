/* SPDX-License-Identifier: Apache-2.0 */
/* stream_kernel.c - streams of kernel sockets. */
#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h> /* the kernel's struct tcp_info, which is longer than libc's */
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sockaddr.h"
#include "stream.h"

#define CHUNK_BYTES 65536u
#define SLEEP_MS_MAX 100

struct kernel_stream {
	struct stream s; /* first member */
	struct kernel_stream *next;
	int fd;
	short events; /* poll events that calls since the last turn wait for */
};

struct kernel_streams {
	struct stream_host host; /* first member */
	struct kernel_stream *all;
	unsigned count;
	int listener;
	bool waits_for_accept; /* accept() returned -EAGAIN since the last turn */
};

static struct kernel_stream *self(struct stream *s)
{
	return (struct kernel_stream *)s;
}

static struct kernel_streams *streams(struct stream_host *host)
{
	return (struct kernel_streams *)host;
}

/* Creates a socket with the options that must be set before the handshake. */
static int kernel_socket(const struct stream_options *opt, int family)
{
	const int on = 1, rcvbuf = (int)opt->rcvbuf_bytes;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc = 0;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (opt->cc &&
	    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, opt->cc, (socklen_t)strlen(opt->cc)) < 0)
		rc = -errno;
	if (rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)) < 0)
		rc = -errno;
	if (rc) {
		close(fd);
		return rc;
	}
	return fd;
}

static int kernel_open(struct stream_host *host, char *why, size_t why_len)
{
	int fd = kernel_socket(&host->opt, AF_INET);

	streams(host)->listener = -1;
	if (fd < 0)
		snprintf(why, why_len, "kernel socket%s%s: %s", host->opt.cc ? " with " : "",
			 host->opt.cc ? host->opt.cc : "",
			 fd == -ENOENT ? "no such congestion control" : strerror(-fd));
	else
		close(fd);
	return fd < 0 ? fd : 0;
}

static int kernel_listen(struct stream_host *host)
{
	struct sockaddr_storage address;
	socklen_t len = sockaddr_from_endpoint(&address, &host->opt.local);
	int fd = kernel_socket(&host->opt, address.ss_family);

	if (fd < 0)
		return fd;
	streams(host)->listener = fd;
	if (bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, STREAMS_MAX) < 0)
		return -errno;
	return 0;
}

static int kernel_stream_new(struct stream_host *host, int fd, struct stream **out)
{
	struct kernel_stream *k = streams(host)->count < STREAMS_MAX ? calloc(1, sizeof(*k)) : NULL;
	const int on = 1;

	if (!k) {
		close(fd);
		return -ENOMEM;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	k->s.host = host;
	k->fd = fd;
	k->next = streams(host)->all;
	streams(host)->all = k;
	streams(host)->count++;
	*out = &k->s;
	return 0;
}

static bool kernel_would_block(void)
{
	return errno == EAGAIN || errno == EINPROGRESS || errno == EINTR;
}

static int kernel_accept(struct stream_host *host, struct stream **out)
{
	int fd = accept4(streams(host)->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	streams(host)->waits_for_accept = fd < 0;
	if (fd < 0)
		return kernel_would_block() ? -EAGAIN : -errno;
	return kernel_stream_new(host, fd, out);
}

static int kernel_connect(struct stream_host *host, struct stream **out)
{
	struct sockaddr_storage address;
	socklen_t len = sockaddr_from_endpoint(&address, &host->opt.remote);
	int fd = kernel_socket(&host->opt, address.ss_family);
	int rc = 0;

	if (fd < 0)
		return fd;
	if (connect(fd, (struct sockaddr *)&address, len) < 0 && errno != EINPROGRESS)
		rc = -errno;
	if (rc) {
		close(fd);
		return rc;
	}
	return kernel_stream_new(host, fd, out);
}

static int kernel_connected(struct stream *s)
{
	struct pollfd fd = { .fd = self(s)->fd, .events = POLLOUT };
	int error = 0;
	socklen_t len = sizeof(error);

	if (poll(&fd, 1, 0) == 0) {
		self(s)->events |= POLLOUT;
		return -EAGAIN;
	}
	getsockopt(fd.fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return -error;
}

static int kernel_error(struct stream *s, short events)
{
	self(s)->events = (short)(self(s)->events | events);
	return kernel_would_block() ? -EAGAIN : -errno;
}

static ssize_t kernel_send(struct stream *s, const void *data, size_t len)
{
	ssize_t rc = send(self(s)->fd, data, len, MSG_NOSIGNAL);

	return rc < 0 ? kernel_error(s, POLLOUT) : rc;
}

static ssize_t kernel_recv(struct stream *s, void *data, size_t len)
{
	ssize_t rc = recv(self(s)->fd, data, len, 0);

	return rc < 0 ? kernel_error(s, POLLIN) : rc;
}

static ssize_t kernel_recv_in_place(struct stream *s, stream_take_fn take, void *ctx)
{
	static uint8_t chunk[CHUNK_BYTES];
	ssize_t len = kernel_recv(s, chunk, sizeof(chunk));
	int rc = len > 0 ? take(ctx, chunk, (size_t)len) : 0;

	return rc ? rc : len;
}

static int kernel_memory(struct stream_host *host, const void *base, size_t bytes)
{
	(void)host;
	(void)base;
	(void)bytes;
	return -ENOTSUP;
}

static int kernel_shutdown(struct stream *s)
{
	return shutdown(self(s)->fd, SHUT_WR) < 0 ? -errno : 0;
}

static void kernel_hangup(struct stream *s)
{
	struct kernel_streams *k = streams(s->host);
	struct kernel_stream **at = &k->all;

	while (*at != self(s))
		at = &(*at)->next;
	*at = self(s)->next;
	k->count--;
	close(self(s)->fd);
	free(s);
}

/* Sleeps until a call that returned -EAGAIN may succeed. Streams without one wake it on any
 * event. */
static void kernel_turn(struct stream_host *host)
{
	struct pollfd fds[STREAMS_MAX + 1];
	nfds_t count = 0;

	if (host->opt.spin) {
		sched_yield();
		return;
	}
	if (streams(host)->waits_for_accept)
		fds[count++] = (struct pollfd){ .fd = streams(host)->listener, .events = POLLIN };
	for (struct kernel_stream *k = streams(host)->all; k; k = k->next) {
		fds[count++] = (struct pollfd){
			.fd = k->fd, .events = (short)(k->events ? k->events : POLLIN | POLLOUT)
		};
		k->events = 0;
	}
	poll(fds, count, SLEEP_MS_MAX);
}

static void kernel_describe(struct stream_host *host, struct stream *s, FILE *out)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	char cc[16] = "";
	socklen_t cc_len = sizeof(cc) - 1;

	(void)host;
	fprintf(out, "{\"kind\": \"kernel\"");
	if (s) {
		getsockopt(self(s)->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
		getsockopt(self(s)->fd, IPPROTO_TCP, TCP_CONGESTION, cc, &cc_len);
		fprintf(out,
			", \"cc\": \"%s\", \"srtt_ns\": %" PRIu64
			", \"snd_mss_bytes\": %u, \"rcv_mss_bytes\": %u, \"options\": %u"
			", \"retransmits\": %u, \"bytes_acked\": %" PRIu64
			", \"bytes_received\": %" PRIu64 ", \"bytes_retransmitted\": %" PRIu64,
			cc, (uint64_t)info.tcpi_rtt * 1000, info.tcpi_snd_mss, info.tcpi_rcv_mss,
			info.tcpi_options, info.tcpi_total_retrans, (uint64_t)info.tcpi_bytes_acked,
			(uint64_t)info.tcpi_bytes_received, (uint64_t)info.tcpi_bytes_retrans);
	}
	fprintf(out, "}");
}

static void kernel_close(struct stream_host *host)
{
	while (streams(host)->all)
		kernel_hangup(&streams(host)->all->s);
	if (streams(host)->listener >= 0)
		close(streams(host)->listener);
	free(host);
}

struct stream_host *stream_kernel(void)
{
	static const struct stream_ops ops = {
		.open = kernel_open,
		.listen = kernel_listen,
		.accept = kernel_accept,
		.connect = kernel_connect,
		.connected = kernel_connected,
		.send = kernel_send,
		.recv = kernel_recv,
		.recv_in_place = kernel_recv_in_place,
		.memory_add = kernel_memory,
		.memory_remove = kernel_memory,
		.send_in_place = kernel_send,
		.shutdown = kernel_shutdown,
		.hangup = kernel_hangup,
		.turn = kernel_turn,
		.describe = kernel_describe,
		.close = kernel_close,
	};
	struct kernel_streams *k = calloc(1, sizeof(*k));

	if (k)
		k->host.ops = &ops;
	return k ? &k->host : NULL;
}
