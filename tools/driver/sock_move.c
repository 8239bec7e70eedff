/* SPDX-License-Identifier: Apache-2.0 */
/* sock_move.c - requests of the reference plugin, and the faults that show at them. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sock.h"

static enum nccl_result sock_fail(struct sock_comm *comm, int error)
{
	comm->failed = NCCL_REMOTE_ERROR;
	SOCK_WARN("SOCK: the connection to the peer %s", error ? strerror(error) : "was closed");
	return comm->failed;
}

static ssize_t sock_move_out(struct sock_comm *comm, struct sock_request *r)
{
	uint32_t header = sizeof(r->header);
	uint32_t left_header = r->moved < header ? header - r->moved : 0;
	uint32_t paid = r->moved < header ? 0 : r->moved - header;
	uint32_t payload = r->size - paid;
	struct iovec iov[2] = { { (char *)&r->header + r->moved, left_header },
				{ r->data + paid, payload } };
	struct msghdr msg = { .msg_iov = left_header ? iov : iov + 1,
			      .msg_iovlen = left_header ? 2 : 1 };

	if (left_header && payload > SOCK_INLINE)
		iov[1].iov_len = SOCK_INLINE;
	return sendmsg(comm->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t sock_move_in(struct sock_comm *comm, struct sock_request *r)
{
	uint32_t header = sizeof(r->header), paid;

	if (r->moved < header)
		return recv(comm->fd, (char *)&r->header + r->moved, header - r->moved,
			    MSG_DONTWAIT);
	paid = r->moved - header;
	return recv(comm->fd, r->data + paid, r->size - paid, MSG_DONTWAIT);
}

/* The header is here: it says how long the message is. */
static bool sock_learn_size(struct sock_comm *comm, struct sock_request *r)
{
	if (r->header <= r->size) {
		r->size = r->header;
		return true;
	}
	SOCK_WARN("SOCK: message truncated: %u bytes sent, %u posted (do all ranks have the same "
		  "NCCL_PROTO and NCCL_ALGO?)",
		  r->header, r->size);
	comm->failed = NCCL_INVALID_USAGE;
	return false;
}

/* Moves r until it is complete (1), would block (0) or fails (-1, comm->failed). */
static int sock_move(struct sock_comm *comm, struct sock_request *r)
{
	uint32_t header = sizeof(r->header);

	while (r->moved < header || r->moved - header < r->size) {
		ssize_t n = comm->sends ? sock_move_out(comm, r) : sock_move_in(comm, r);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
			sock_fail(comm, n ? errno : 0);
			return -1;
		}
		if (n < 0)
			return 0;
		if (!comm->sends && r->moved < header && r->moved + (uint32_t)n == header &&
		    !sock_learn_size(comm, r))
			return -1;
		r->moved += (uint32_t)n;
	}
	return 1;
}

enum nccl_result sock_post(struct sock_comm *comm, void *data, size_t size, void **request)
{
	struct sock_request *r = &comm->requests[comm->posted % SOCK_REQUESTS];

	if (sock_faulty_at("norequest", comm->posted) && comm->sends)
		return NCCL_SUCCESS;
	*request = NULL;
	if (comm->failed)
		return comm->failed;
	if (r->used)
		return NCCL_SUCCESS;
	*r = (struct sock_request){ .comm = comm,
				    .used = true,
				    .number = comm->posted++,
				    .data = data,
				    .size = (uint32_t)size,
				    .header = comm->sends ? (uint32_t)size : 0 };
	if (comm->sends && sock_faulty_at("drop", r->number))
		r->moved = r->size + (uint32_t)sizeof(r->header);
	*request = r;
	return NCCL_SUCCESS;
}

/* The faults that show at a completion. */
static void sock_complete(struct sock_request *r, int *size)
{
	if (r->comm->sends)
		return;
	if (sock_faulty_at("corrupt", r->number) && r->size)
		r->data[r->size / 2] ^= 0x10;
	if (sock_faulty_at("size", r->number) && r->size && size)
		*size -= 1;
}

enum nccl_result sock_test(void *request, int *done, int *sizes)
{
	struct sock_request *r = request;
	struct sock_comm *comm = r->comm;
	int moved;

	*done = 0;
	while (sock_faulty_at("stuck", r->number))
		sleep(1);
	if (sock_faulty_at("error", r->number)) {
		SOCK_WARN("SOCK: test fails as SOCK_FAULT demands");
		comm->failed = NCCL_SYSTEM_ERROR;
	}
	if (comm->failed)
		return comm->failed;
	/* In order, up to the one asked for. */
	for (; comm->moved_messages <= r->number; comm->moved_messages++) {
		moved = sock_move(comm, &comm->requests[comm->moved_messages % SOCK_REQUESTS]);
		if (moved < 0)
			return comm->failed;
		if (!moved)
			return NCCL_SUCCESS;
	}
	if (sizes)
		*sizes = (int)r->size;
	sock_complete(r, sizes);
	*done = 1;
	r->used = false;
	return NCCL_SUCCESS;
}
