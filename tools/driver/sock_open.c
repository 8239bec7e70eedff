/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock_open.c - connections of the reference plugin: the data sockets and the control socket, opened one after
 * the other as NCCL does; each begins with a byte that says which one it is.
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
	uint8_t sockets, threads;
	struct sockaddr_in addr;
	struct sock_comm *half_open; /* the connector's stage, as NCCL keeps it in the handle */
	int opened;
};
_Static_assert(sizeof(struct sock_handle) <= NCCL_HANDLE_BYTES, "fits");

struct sock_listen {
	int fd;
	unsigned sockets, threads;
	struct sock_comm *half_open;
	unsigned accepted;
	int unnamed; /* accepted, its byte has not come; -1: none */
};

static struct sock_comm *sock_comm_new(bool sends, unsigned sockets, unsigned threads)
{
	struct sock_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->control = -1;
	for (unsigned i = 0; i < SOCK_SOCKETS_MAX; i++)
		comm->fds[i] = -1;
	comm->sends = sends;
	comm->sockets = sockets;
	comm->threads = threads;
	if (threads) /* every request may have a task on every socket */
		comm->queue_len = SOCK_REQUESTS * (sockets / threads);
	return comm;
}

static void sock_comm_free(struct sock_comm *comm)
{
	if (!comm)
		return;
	sock_tasks_stop(comm);
	for (unsigned i = 0; i < comm->sockets; i++)
		if (comm->fds[i] >= 0)
			close(comm->fds[i]);
	if (comm->control >= 0)
		close(comm->control);
	free(comm);
}

/* Number `index` of a connection; behind the data sockets the control socket. */
static int *sock_comm_fd(struct sock_comm *comm, unsigned index)
{
	return index < comm->sockets ? &comm->fds[index] : &comm->control;
}

static void sock_no_delay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

enum nccl_result sock_listen(void *handle, void **listen_comm)
{
	struct sock_handle h = { .magic = SOCK_MAGIC,
				 .sockets = (uint8_t)sock_sockets,
				 .threads = (uint8_t)sock_threads };
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
	listener->sockets = sock_sockets;
	listener->threads = sock_threads;
	listener->unnamed = -1;
	memcpy(handle, &h, sizeof(h));
	*listen_comm = listener;
	return NCCL_SUCCESS;
}

enum nccl_result sock_close_listen(void *listen_comm)
{
	struct sock_listen *listener = listen_comm;

	if (!listener)
		return NCCL_SUCCESS;
	sock_comm_free(listener->half_open);
	if (listener->unnamed >= 0)
		close(listener->unnamed);
	close(listener->fd);
	free(listener);
	return NCCL_SUCCESS;
}

/* The next socket of h->half_open. 1: it is open, 0: not yet, -1: errno says why. */
static int sock_connect_next(struct sock_handle *h)
{
	struct sock_comm *comm = h->half_open;
	int *fd = sock_comm_fd(comm, (unsigned)h->opened);
	uint8_t index = (uint8_t)h->opened;

	if (*fd < 0)
		*fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return -1;
	if (connect(*fd, (struct sockaddr *)&h->addr, sizeof(struct sockaddr_in)) &&
	    errno != EISCONN)
		return errno == EINPROGRESS || errno == EALREADY ? 0 : -1;
	sock_no_delay(*fd);
	/* Its first byte: there is room. */
	return send(*fd, &index, 1, MSG_NOSIGNAL) == 1 ? 1 : -1;
}

enum nccl_result sock_connect(void *handle, void **send_comm)
{
	struct sock_handle h;
	int rc = 1;

	*send_comm = NULL;
	if (sock_faulty("noconnect"))
		return NCCL_SUCCESS;
	memcpy(&h, handle, sizeof(h));
	if (h.magic != SOCK_MAGIC || h.sockets > SOCK_SOCKETS_MAX || h.threads > SOCK_THREADS_MAX ||
	    (h.sockets && (!h.threads || h.sockets % h.threads))) {
		SOCK_WARN("SOCK: the peer's handle is not one of this plugin's: is it the same on "
			  "all ranks?");
		return NCCL_INVALID_USAGE;
	}
	if (!h.half_open)
		h.half_open = sock_comm_new(true, h.sockets, h.threads);
	if (!h.half_open)
		return NCCL_SYSTEM_ERROR;
	while (h.opened <= h.sockets && (rc = sock_connect_next(&h)) > 0)
		h.opened++;
	if (rc < 0) {
		SOCK_WARN("SOCK: can't connect to the peer: %s", strerror(errno));
		sock_comm_free(h.half_open);
		h.half_open = NULL;
		h.opened = 0;
	}
	memcpy(handle, &h, sizeof(h));
	if (rc < 0)
		return NCCL_REMOTE_ERROR;
	if (rc > 0)
		*send_comm = h.half_open;
	return NCCL_SUCCESS;
}

/* The next connection and its byte. 1: one more is in its place, 0: not yet, -1: errno says why. */
static int sock_accept_next(struct sock_listen *listener)
{
	uint8_t index;
	ssize_t n;
	int *place;

	if (listener->unnamed < 0)
		listener->unnamed = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (listener->unnamed < 0)
		return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : -1;
	n = recv(listener->unnamed, &index, 1, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	place = sock_comm_fd(listener->half_open, n == 1 ? index : 0);
	if (n != 1 || index > listener->sockets || *place >= 0) { /* a stranger */
		close(listener->unnamed);
		listener->unnamed = -1;
		return 0;
	}
	*place = listener->unnamed;
	listener->unnamed = -1;
	sock_no_delay(*place);
	listener->accepted++;
	return 1;
}

enum nccl_result sock_accept(void *listen_comm, void **recv_comm)
{
	struct sock_listen *listener = listen_comm;
	int rc = 1;

	*recv_comm = NULL;
	if (!listener->half_open)
		listener->half_open = sock_comm_new(false, listener->sockets, listener->threads);
	if (!listener->half_open)
		return NCCL_SYSTEM_ERROR;
	while (listener->accepted <= listener->sockets && rc > 0)
		rc = sock_accept_next(listener);
	if (rc < 0) {
		SOCK_WARN("SOCK: accept: %s", strerror(errno));
		return NCCL_SYSTEM_ERROR;
	}
	if (listener->accepted <= listener->sockets)
		return NCCL_SUCCESS;
	*recv_comm = listener->half_open;
	listener->half_open = NULL;
	listener->accepted = 0;
	return NCCL_SUCCESS;
}

enum nccl_result sock_close(void *comm)
{
	struct sock_comm *c = comm;
	bool fail;

	if (!c)
		return NCCL_SUCCESS;
	fail = c->sends && sock_faulty("close");
	sock_comm_free(c);
	return fail ? NCCL_INTERNAL_ERROR : NCCL_SUCCESS;
}
