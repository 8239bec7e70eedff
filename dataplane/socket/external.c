/* SPDX-License-Identifier: Apache-2.0 */
/* external.c - sends from the application's memory without a copy. */
#include "memory/external.h"

#include <errno.h>

#include "socket/socket.h"

ssize_t harp_conn_send_external(struct harp_conn *conn, const void *data, size_t len)
{
	struct frame_memory *memory;
	size_t room, done;
	bool exhausted;
	int err = socket_send_state(conn);

	if (err)
		return err;
	if (len == 0)
		return 0;
	memory = external_find(conn->tcp->pool, data, len);
	if (!memory)
		return -EFAULT;
	room = socket_unsent_room(conn, len);
	done = tcp_external_queue(conn, memory, data, len < room ? len : room, &exhausted);
	/* Without frames of the pool, the ACK or the transmission of queued data suffices. */
	if (done < len && (exhausted || done == room) && conn->frames.tx_held > 0)
		conn->flags |= CONN_WANT_WRITE;
	else if (done < len)
		socket_want_write(conn);
	if (done == 0)
		return -EAGAIN;
	tcp_sndq_note_send(conn, done == len);
	tcp_tx_ready(conn);
	return (ssize_t)done;
}

ssize_t harp_conn_evict(struct harp_conn *conn)
{
	return tcp_external_evict(conn, NULL);
}

ssize_t external_evict(struct tcp *tcp, const void *base, size_t bytes)
{
	struct frame_memory *memory = external_find_exact(tcp->pool, base, bytes);
	ssize_t total = 0;

	if (!memory)
		return -ENOENT;
	memory->leaving = memory->adds == 1;
	for (uint32_t i = 0; memory->users > 0 && i < tcp->conns_high; i++) {
		struct harp_conn *conn = &tcp->conns[i];
		ssize_t n = 0;

		if (conn->budget.tx_external_held > 0)
			n = tcp_external_evict(conn, memory);
		if (n < 0)
			tcp_conn_reset(conn, (int)n);
		else
			total += n;
	}
	return total;
}
