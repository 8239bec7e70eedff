/* SPDX-License-Identifier: Apache-2.0 */
/* sock_move.c - requests of the reference plugin, and faults in them. */
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
	uint32_t header_left = r->moved < header ? header - r->moved : 0;
	uint32_t offset = r->moved < header ? 0 : r->moved - header;
	uint32_t payload_left = r->size - offset;
	struct iovec iov[2] = { { (char *)&r->header + r->moved, header_left },
				{ r->data + offset, payload_left } };
	struct msghdr msg = { .msg_iov = header_left ? iov : iov + 1,
			      .msg_iovlen = header_left ? 2 : 1 };

	if (header_left && payload_left > SOCK_INLINE)
		iov[1].iov_len = SOCK_INLINE;
	return sendmsg(comm->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t sock_move_in(struct sock_comm *comm, struct sock_request *r)
{
	uint32_t header = sizeof(r->header), offset;

	if (r->moved < header)
		return recv(comm->fd, (char *)&r->header + r->moved, header - r->moved,
			    MSG_DONTWAIT);
	offset = r->moved - header;
	return recv(comm->fd, r->data + offset, r->size - offset, MSG_DONTWAIT);
}

/* Takes the message's size from its header. */
static bool sock_set_size(struct sock_comm *comm, struct sock_request *r)
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

/* Moves data of r. Returns 1 when it is complete, 0 if it would block, -1 on failure. */
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
		    !sock_set_size(comm, r))
			return -1;
		r->moved += (uint32_t)n;
	}
	return 1;
}

enum nccl_result sock_post(struct sock_comm *comm, void *data, size_t size, void **request)
{
	struct sock_request *r = &comm->requests[comm->posted % SOCK_REQUESTS];

	if (sock_has_fault_at("norequest", comm->posted) && comm->sends)
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
	if (comm->sends && sock_has_fault_at("drop", r->number))
		r->moved = r->size + (uint32_t)sizeof(r->header);
	*request = r;
	return NCCL_SUCCESS;
}

/* Injects the faults of completed receives. */
static void sock_complete(struct sock_request *r, int *size)
{
	if (r->comm->sends)
		return;
	if (sock_has_fault_at("corrupt", r->number) && r->size)
		r->data[r->size / 2] ^= 0x10;
	if (sock_has_fault_at("size", r->number) && r->size && size)
		*size -= 1;
}

enum nccl_result sock_test(void *request, int *done, int *sizes)
{
	struct sock_request *r = request;
	struct sock_comm *comm = r->comm;
	int moved;

	*done = 0;
	while (sock_has_fault_at("stuck", r->number))
		sleep(1);
	if (sock_has_fault_at("error", r->number)) {
		SOCK_WARN("SOCK: test fails because of SOCK_FAULT");
		comm->failed = NCCL_SYSTEM_ERROR;
	}
	if (comm->failed)
		return comm->failed;
	/* Requests complete in order, up to the tested one. */
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
