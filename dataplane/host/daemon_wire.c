/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_wire.c - messages to harpd and back, each within a bounded time. */
#include "host/daemon_wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/trust.h"

static uint64_t wire_clock_ms(void)
{
	return clock_ns() / 1000000u;
}

void daemon_wire_drop_fds(struct daemon_wire *wire)
{
	for (unsigned i = 0; i < wire->fd_count; i++)
		close(wire->fds[i]);
	wire->fd_count = 0;
}

void daemon_wire_close(struct daemon_wire *wire)
{
	daemon_wire_drop_fds(wire);
	if (wire->fd >= 0)
		close(wire->fd);
	wire->fd = -1;
}

/* ---- one message ---------------------------------------------------------------------------- */

static int wire_wait(const struct daemon_wire *wire, short events, uint64_t until_ms)
{
	struct pollfd fd = { .fd = wire->fd, .events = events };

	for (;;) {
		uint64_t now_ms = wire_clock_ms();
		int rc = poll(&fd, 1, now_ms < until_ms ? (int)(until_ms - now_ms) : 0);

		if (rc > 0)
			return 0;
		if (rc == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

int daemon_wire_send(struct daemon_wire *wire, const void *message, size_t bytes)
{
	for (;;) {
		if (send(wire->fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EINTR)
			return errno == EPIPE ? -ECONNRESET : -errno;
	}
}

static int wire_send(struct daemon_wire *wire, const void *message, size_t bytes, uint64_t until_ms)
{
	for (;;) {
		int rc = daemon_wire_send(wire, message, bytes);

		if (rc != -EAGAIN)
			return rc;
		rc = wire_wait(wire, POLLOUT, until_ms);
		if (rc)
			return rc;
	}
}

static void wire_take_fds(struct daemon_wire *wire, struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (wire->fd_count < DAEMON_WIRE_FDS_MAX)
				wire->fds[wire->fd_count++] = fd;
			else
				close(fd);
		}
	}
}

/* harpd's last message can still be read after a reset. */
int daemon_wire_receive(struct daemon_wire *wire)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(DAEMON_WIRE_FDS_MAX * sizeof(int))];
	struct iovec piece = { .iov_base = wire->answer, .iov_len = sizeof(wire->answer) };
	struct msghdr message = {
		.msg_iov = &piece,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	unsigned resets = 0;
	ssize_t got;

	do {
		got = recvmsg(wire->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !resets++)));
	if (got < 0)
		return -errno;
	wire_take_fds(wire, &message);
	if (got == 0)
		return -ECONNRESET;
	wire->answer_bytes = (size_t)got;
	if (message.msg_flags & MSG_TRUNC)
		return -EMSGSIZE;
	if (!(message.msg_flags & MSG_CTRUNC))
		return 0;
	/* The kernel drops descriptors that exceed our buffer or descriptor table. */
	return wire->fd_count < DAEMON_WIRE_FDS_MAX ? -EMFILE : -EMSGSIZE;
}

/*
 * Waits for the answer. After a timeout, shuts down reception and checks again: either the answer
 * has arrived, or harpd can no longer send it and knows that this process did not receive it.
 */
static int wire_await(struct daemon_wire *wire, uint64_t until_ms)
{
	int rc;

	for (;;) {
		rc = wire_wait(wire, POLLIN, until_ms);
		if (rc)
			break;
		rc = daemon_wire_receive(wire);
		if (rc != -EAGAIN)
			return rc;
	}
	wire->ended = true;
	shutdown(wire->fd, SHUT_RD);
	return daemon_wire_receive(wire) ? rc : 0;
}

int daemon_wire_exchange(struct daemon_wire *wire, const void *message, size_t bytes,
			 unsigned wait_ms)
{
	uint64_t until_ms = wire_clock_ms() + wait_ms;
	int rc;

	wire->answer_bytes = 0;
	rc = wire_send(wire, message, bytes, until_ms);
	if (rc == -ECONNRESET)
		return daemon_wire_receive(wire) ? rc : 0;
	return rc ? rc : wire_await(wire, until_ms);
}

/* ---- connecting ----------------------------------------------------------------------------- */

/*
 * If the listener does not accept, connect() waits for SO_SNDTIMEO and restarts after each signal.
 * With a profiling timer it would wait forever, so each try gets the remaining time.
 */
static int wire_call(const struct daemon_wire *wire, const struct sockaddr_un *address,
		     unsigned wait_ms)
{
	uint64_t now_ms = wire_clock_ms(), until_ms = now_ms + wait_ms;

	for (; now_ms < until_ms; now_ms = wire_clock_ms()) {
		const struct timeval limit = {
			.tv_sec = (time_t)((until_ms - now_ms) / 1000),
			.tv_usec = (suseconds_t)((until_ms - now_ms) % 1000 * 1000),
		};

		setsockopt(wire->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
		if (connect(wire->fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
			return 0;
		if (errno != EINTR)
			return -errno;
	}
	return -EAGAIN;
}

/* Any user with write access to the socket's directory can listen there. harpd's settings control
 * how a job sends, so harpd must run as root or as the job's user. */
static int wire_check_user(const struct daemon_wire *wire, const struct why *why)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(wire->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return why_fail(why, -errno, "SO_PEERCRED: %s", strerror(errno));
	if (!trust_user(peer.uid))
		return why_fail(why, -EPERM,
				"its listener is user %u; harpd must run as root or as this user "
				"(%u); set HARP_SOCKET to harpd's own socket",
				(unsigned)peer.uid, (unsigned)geteuid());
	return 0;
}

int daemon_wire_connect(struct daemon_wire *wire, const char *path, unsigned wait_ms,
			const struct why *why)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int rc;

	if (!path || !path[0] || strlen(path) >= sizeof(address.sun_path))
		return why_fail(why, -EINVAL, "the path of a socket has 1 to %zu bytes",
				sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	wire->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (wire->fd < 0)
		return why_fail(why, -errno, "socket: %s", strerror(errno));
	rc = wire_call(wire, &address, wait_ms);
	switch (rc) {
	case 0:
		return wire_check_user(wire, why);
	case -ENOENT:
		return why_fail(why, rc, "no such socket; is harpd running (`harpctl start`)?");
	case -ECONNREFUSED:
		return why_fail(why, rc, "no process listens; is harpd running (`harpctl start`)?");
	case -EACCES:
		return why_fail(why, rc,
				"this user has no access; harp.toml names the group that has");
	case -EAGAIN:
		return why_fail(why, -ETIMEDOUT, "harpd accepts no connections; is it stopped?");
	case -EPROTOTYPE:
		return why_fail(why, -EPROTO, "the listener is not harpd");
	default:
		return why_fail(why, rc, "%s", strerror(-rc));
	}
}
