/* SPDX-License-Identifier: Apache-2.0 */
/*
 * baseline.c - bare kernel TCP between ranks 0 and 1: what any transport is compared with.
 *
 * lat: one thread per end, TCP_NODELAY, non-blocking recv in a spin (it yields now and then, since
 * both ends may share the processors with others). bw: blocking send of whole messages, blocking
 * recv of up to 1 MiB. Same addresses, sizes and counts as the plugin's run, which comes after.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

#define BASE_SPINS 64u
#define BASE_CHUNK ((size_t)1 << 20)

static int baseline_error(struct bench *bench, const char *what)
{
	play_fail(bench->play, NCCLPLAY_PEER, "baseline socket: %s: %s", what, strerror(errno));
	return NCCLPLAY_PEER;
}

/* The interface's first address (IPv4 before IPv6), else the one that the root is reached by. */
static bool baseline_address(const struct bench *bench, struct sockaddr_storage *addr)
{
	socklen_t len = sizeof(*addr);
	struct ifaddrs *all, *i, *found = NULL;
	const char *name = bench->ifname;

	if (name && *name == '=')
		name++;
	if (name && !getifaddrs(&all)) {
		for (i = all; i; i = i->ifa_next) {
			int family = i->ifa_addr ? i->ifa_addr->sa_family : 0;

			if (strcmp(i->ifa_name, name) || (family != AF_INET && family != AF_INET6))
				continue;
			if (!found || (family == AF_INET && found->ifa_addr->sa_family != AF_INET))
				found = i;
		}
		if (found)
			memcpy(addr, found->ifa_addr,
			       found->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
								     : sizeof(struct sockaddr_in6));
		freeifaddrs(all);
		if (found)
			return true;
	}
	return !getsockname(bench->play->rdv.fds[bench->options.rank == 0 ? 1 : 0],
			    (struct sockaddr *)addr, &len);
}

static void baseline_port(struct sockaddr_storage *addr, in_port_t port)
{
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = port;
	else
		((struct sockaddr_in6 *)addr)->sin6_port = port;
}

static int baseline_timeouts(struct bench *bench, int fd)
{
	struct timeval t = { .tv_sec = (time_t)bench->play->options.timeout_s + 1 };
	int one = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		return -1;
	return 0;
}

static int baseline_accept(struct bench *bench, int lfd)
{
	struct pollfd p = { .fd = lfd, .events = POLLIN };

	if (poll(&p, 1, (int)(bench->play->options.timeout_s * 1000)) <= 0) {
		errno = ETIMEDOUT;
		return -1;
	}
	return accept4(lfd, NULL, NULL, SOCK_CLOEXEC);
}

int baseline_open(struct bench *bench, struct baseline *base)
{
	struct sockaddr_storage addr, all[NCCLPLAY_RANKS_MAX];
	socklen_t len = sizeof(addr);
	int lfd = -1, rc;

	memset(&addr, 0, sizeof(addr));
	if (bench->options.rank == 1) {
		if (!baseline_address(bench, &addr))
			return baseline_error(bench, "own address");
		baseline_port(&addr, 0);
		lfd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (lfd < 0 || bind(lfd, (struct sockaddr *)&addr, sizeof(addr)) ||
		    listen(lfd, 1) || getsockname(lfd, (struct sockaddr *)&addr, &len)) {
			if (lfd >= 0)
				close(lfd);
			return baseline_error(bench, "listen");
		}
	}
	rc = ncclplay_gather(bench->play, &addr, sizeof(addr), all);
	if (!rc && bench->options.rank == 0) {
		base->fd = socket(all[1].ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (base->fd < 0 || baseline_timeouts(bench, base->fd) ||
		    connect(base->fd, (struct sockaddr *)&all[1],
			    all[1].ss_family == AF_INET ? sizeof(struct sockaddr_in)
							: sizeof(struct sockaddr_in6)))
			rc = baseline_error(bench, "connect");
	} else if (!rc && bench->options.rank == 1) {
		base->fd = baseline_accept(bench, lfd);
		if (base->fd < 0 || baseline_timeouts(bench, base->fd))
			rc = baseline_error(bench, "accept");
	}
	if (lfd >= 0)
		close(lfd);
	return rc;
}

void baseline_close(struct baseline *base)
{
	if (base->fd >= 0)
		close(base->fd);
	base->fd = -1;
}

/* One whole message, spinning. */
static int baseline_spin(struct bench *bench, int fd, char *data, size_t bytes, bool out)
{
	uint64_t started_ns = 0;
	unsigned idle = 0;

	while (bytes) {
		ssize_t n = out ? send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
				: recv(fd, data, bytes, MSG_DONTWAIT);

		if (n > 0) {
			data += n;
			bytes -= (size_t)n;
			continue;
		}
		if (n == 0)
			errno = ECONNRESET;
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			return baseline_error(bench, out ? "send" : "recv");
		if (++idle % BASE_SPINS == 0)
			sched_yield();
		if (idle % 65536 == 0) {
			uint64_t now_ns = play_now_ns();

			if (!started_ns)
				started_ns = now_ns;
			if ((double)(now_ns - started_ns) > bench->play->options.timeout_s * 1e9) {
				errno = ETIMEDOUT;
				return baseline_error(bench, out ? "send" : "recv");
			}
		}
	}
	return 0;
}

int baseline_lat(struct bench *bench, struct baseline *base, size_t bytes, uint64_t warm,
		 uint64_t messages, uint64_t *samples_ns)
{
	char *data = calloc(1, bytes + 1);
	int rc = data ? ncclplay_barrier(bench->play) : NCCLPLAY_PEER;
	uint64_t last_ns = play_now_ns();

	for (uint64_t i = 0; !rc && i < warm + messages; i++) {
		bool first = bench->options.rank == 0;

		rc = baseline_spin(bench, base->fd, data, bytes, first);
		if (!rc)
			rc = baseline_spin(bench, base->fd, data, bytes, !first);
		if (first) {
			uint64_t now_ns = play_now_ns();

			if (i >= warm)
				samples_ns[i - warm] = (now_ns - last_ns) / 2;
			last_ns = now_ns;
		}
	}
	free(data);
	return rc;
}

static int baseline_block(struct bench *bench, int fd, char *data, size_t bytes, bool out)
{
	while (bytes) {
		ssize_t n = out ? send(fd, data, bytes, MSG_NOSIGNAL)
				: recv(fd, data, bytes < BASE_CHUNK ? bytes : BASE_CHUNK, 0);

		if (n <= 0) {
			if (n == 0)
				errno = ECONNRESET;
			else if (errno == EINTR)
				continue;
			return baseline_error(bench, out ? "send" : "recv");
		}
		data += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* One direction only: with --bidir the ratio is per direction against an idle other one. */
int baseline_bw(struct bench *bench, struct baseline *base, size_t bytes, uint64_t warm,
		uint64_t messages, struct bench_rank *mine)
{
	char *slots = calloc(PLAY_SLOTS, bytes + 1);
	bool out = bench->options.rank == 0;
	int rc = slots ? ncclplay_barrier(bench->play) : NCCLPLAY_PEER;
	uint64_t start_ns = 0, cpu_ns = 0, total = warm + messages;

	for (uint64_t i = 0; !rc && i < total; i++) {
		if (i == warm) {
			start_ns = play_now_ns();
			cpu_ns = play_process_cpu_ns();
		}
		rc = baseline_block(bench, base->fd, slots + (i % PLAY_SLOTS) * bytes, bytes, out);
	}
	cpu_ns = play_process_cpu_ns() - cpu_ns;
	if (out) {
		mine->sent_ns = play_now_ns() - start_ns;
		mine->sent_cpu_ns = cpu_ns;
	} else {
		mine->start_ns = start_ns;
		mine->end_ns = play_now_ns();
		mine->received_cpu_ns = cpu_ns;
	}
	free(slots);
	return rc;
}
