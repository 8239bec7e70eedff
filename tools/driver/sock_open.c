/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock_open.c - connections of the reference plugin. Each is one socket. The connecting side sends
 * a byte first, which detects connections of other programs.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sock.h"

struct sock_handle {
	uint32_t magic;
	struct sockaddr_in addr;
	struct sock_comm *half_open; /* state of the connect; NCCL passes the same handle again */
};
_Static_assert(sizeof(struct sock_handle) <= NCCL_HANDLE_BYTES, "the handle is too large");

struct sock_listen {
	int fd;
	int pending_fd; /* accepted connection whose byte has not arrived; -1: none */
};

static struct sock_comm *sock_comm_new(bool sends, int fd)
{
	struct sock_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->fd = fd;
	comm->sends = sends;
	return comm;
}

static void sock_comm_free(struct sock_comm *comm)
{
	if (!comm)
		return;
	if (comm->fd >= 0)
		close(comm->fd);
	free(comm);
}

static void sock_no_delay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

enum nccl_result sock_listen(void *handle, void **listen_comm)
{
	struct sock_handle h = { .magic = SOCK_MAGIC };
	socklen_t len = sizeof(struct sockaddr_in);
	struct sock_listen *listener = calloc(1, sizeof(*listener));
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || !listener ||
	    bind(fd, (struct sockaddr *)&sock_addr, sizeof(struct sockaddr_in)) ||
	    listen(fd, 128) || getsockname(fd, (struct sockaddr *)&h.addr, &len)) {
		SOCK_WARN("SOCK: can't listen on %s: %s", sock_ifname, strerror(errno));
		if (fd >= 0)
			close(fd);
		free(listener);
		return NCCL_SYSTEM_ERROR;
	}
	listener->fd = fd;
	listener->pending_fd = -1;
	memcpy(handle, &h, sizeof(h));
	*listen_comm = listener;
	return NCCL_SUCCESS;
}

enum nccl_result sock_close_listen(void *listen_comm)
{
	struct sock_listen *listener = listen_comm;

	if (!listener)
		return NCCL_SUCCESS;
	if (listener->pending_fd >= 0)
		close(listener->pending_fd);
	close(listener->fd);
	free(listener);
	return NCCL_SUCCESS;
}

/* Returns 1 if connected, 0 if not yet, -1 with errno. */
static int sock_connect_step(struct sock_handle *h)
{
	int *fd = &h->half_open->fd;
	uint8_t byte = 0;

	if (*fd < 0)
		*fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return -1;
	if (connect(*fd, (struct sockaddr *)&h->addr, sizeof(struct sockaddr_in)) &&
	    errno != EISCONN)
		return errno == EINPROGRESS || errno == EALREADY ? 0 : -1;
	sock_no_delay(*fd);
	/* The send buffer of a new connection is empty. */
	return send(*fd, &byte, 1, MSG_NOSIGNAL) == 1 ? 1 : -1;
}

enum nccl_result sock_connect(void *handle, void **send_comm)
{
	struct sock_handle h;
	int rc;

	*send_comm = NULL;
	memcpy(&h, handle, sizeof(h));
	if (h.magic != SOCK_MAGIC) {
		SOCK_WARN("SOCK: the peer uses another plugin; all ranks must use the same");
		return NCCL_INVALID_USAGE;
	}
	if (!h.half_open)
		h.half_open = sock_comm_new(true, -1);
	if (!h.half_open)
		return NCCL_SYSTEM_ERROR;
	rc = sock_connect_step(&h);
	if (rc < 0) {
		SOCK_WARN("SOCK: can't connect to the peer: %s", strerror(errno));
		sock_comm_free(h.half_open);
		h.half_open = NULL;
	}
	memcpy(handle, &h, sizeof(h));
	if (rc < 0)
		return NCCL_REMOTE_ERROR;
	if (rc > 0)
		*send_comm = h.half_open;
	return NCCL_SUCCESS;
}

enum nccl_result sock_accept(void *listen_comm, void **recv_comm)
{
	struct sock_listen *listener = listen_comm;
	struct sock_comm *comm;
	uint8_t byte;
	ssize_t n;

	*recv_comm = NULL;
	if (listener->pending_fd < 0)
		listener->pending_fd =
			accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (listener->pending_fd < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return NCCL_SUCCESS;
		SOCK_WARN("SOCK: accept: %s", strerror(errno));
		return NCCL_SYSTEM_ERROR;
	}
	n = recv(listener->pending_fd, &byte, 1, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return NCCL_SUCCESS;
	if (n != 1 || byte != 0) { /* another program's connection */
		close(listener->pending_fd);
		listener->pending_fd = -1;
		return NCCL_SUCCESS;
	}
	comm = sock_comm_new(false, listener->pending_fd);
	if (!comm)
		return NCCL_SYSTEM_ERROR;
	listener->pending_fd = -1;
	sock_no_delay(comm->fd);
	*recv_comm = comm;
	return NCCL_SUCCESS;
}

enum nccl_result sock_close(void *comm)
{
	struct sock_comm *c = comm;
	bool fail;

	if (!c)
		return NCCL_SUCCESS;
	fail = c->sends && sock_has_fault("close");
	sock_comm_free(c);
	return fail ? NCCL_INTERNAL_ERROR : NCCL_SUCCESS;
}
