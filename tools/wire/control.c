/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - the kernel TCP connection over which both sides agree. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sockaddr.h"
#include "common/endpoint.h"
#include "wire.h"

#define CONTROL_PORT 7100u

static int control_address(struct sockaddr_storage *out, const char *address, socklen_t *len,
			   char *why, size_t why_len)
{
	struct harp_endpoint ep = { .port = CONTROL_PORT };

	if (endpoint_parse(address, &ep)) {
		snprintf(why, why_len, "%s is not an IP address", address);
		return -EINVAL;
	}
	*len = sockaddr_from_endpoint(out, &ep);
	return 0;
}

int control_listen(const char *address, char *why, size_t why_len)
{
	struct sockaddr_storage local;
	socklen_t len;
	const int on = 1;
	int fd, rc = control_address(&local, address, &len, why, why_len);

	if (rc)
		return rc;
	fd = socket(local.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
	    bind(fd, (struct sockaddr *)&local, len) == 0 && listen(fd, 1) == 0)
		return fd;
	rc = -errno;
	snprintf(why, why_len, "listening on %s port %u: %s", address, CONTROL_PORT, strerror(-rc));
	if (fd >= 0)
		close(fd);
	return rc;
}

static int control_names(struct control *control)
{
	struct sockaddr_storage local, remote;
	socklen_t local_len = sizeof(local), remote_len = sizeof(remote);
	const int on = 1;

	setsockopt(control->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (getsockname(control->fd, (struct sockaddr *)&local, &local_len) < 0 ||
	    getpeername(control->fd, (struct sockaddr *)&remote, &remote_len) < 0)
		return -errno;
	sockaddr_to_endpoint(&local, &control->local);
	sockaddr_to_endpoint(&remote, &control->remote);
	return 0;
}

int control_accept(struct control *control, int listener)
{
	control->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return control->fd < 0 ? -errno : control_names(control);
}

int control_connect(struct control *control, const char *address, char *why, size_t why_len)
{
	struct sockaddr_storage remote;
	socklen_t len;
	int rc = control_address(&remote, address, &len, why, why_len);

	if (rc)
		return rc;
	control->fd = socket(remote.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (control->fd >= 0 && connect(control->fd, (struct sockaddr *)&remote, len) == 0)
		return control_names(control);
	rc = -errno;
	snprintf(why, why_len, "connecting to %s port %u: %s; is `harp-wire serve` running there?",
		 address, CONTROL_PORT, strerror(-rc));
	return rc;
}

int control_send(const struct control *control, const void *data, size_t len)
{
	ssize_t rc = send(control->fd, data, len, MSG_NOSIGNAL);

	return rc == (ssize_t)len ? 0 : rc < 0 ? -errno : -EPIPE;
}

int control_recv(const struct control *control, void *data, size_t len)
{
	ssize_t rc = recv(control->fd, data, len, MSG_WAITALL);

	return rc == (ssize_t)len ? 0 : rc < 0 ? -errno : -ECONNRESET;
}

int control_ready(const struct control *control)
{
	struct pollfd fd = { .fd = control->fd, .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}
