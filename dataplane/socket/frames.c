/* SPDX-License-Identifier: Apache-2.0 */
/* frames.c - receives by copy, in place, or as frames; sends frames. */
#include "socket/socket.h"

#include <errno.h>
#include <string.h>

/* Result of a receive call with an empty receive queue: 0 at the end of the stream, else the
 * connection's error or -EAGAIN. */
static int frames_empty_result(const struct harp_conn *conn)
{
	if (conn->error)
		return conn->error;
	if ((conn->flags & (CONN_FIN_RECEIVED | CONN_READ_SHUT)) || conn->state == HARP_TCP_CLOSED)
		return 0;
	return -EAGAIN;
}

/* Consumes n bytes, at most those of the first frame. */
static void frames_take(struct harp_conn *conn, uint32_t n)
{
	struct frame *f = conn->rcvq.head;

	conn->rcv_queued_bytes -= n;
	if (n < f->pub.len) {
		f->pub.data += n;
		f->pub.len -= n;
		return;
	}
	conn->rcvq.head = f->next;
	if (!conn->rcvq.head)
		conn->rcvq.tail = NULL;
	f->next = NULL;
	tcp_rx_release(conn, f);
}

ssize_t harp_conn_recv(struct harp_conn *conn, void *buf, size_t len)
{
	uint8_t *dst = buf;
	size_t done = 0;

	if (!conn->rcvq.head)
		return frames_empty_result(conn);
	while (done < len && conn->rcvq.head) {
		struct frame *f = conn->rcvq.head;
		uint32_t n = len - done < f->pub.len ? (uint32_t)(len - done) : f->pub.len;

		/* COPY: to the application's buffer. */
		memcpy(dst + done, f->pub.data, n);
		done += n;
		frames_take(conn, n);
	}
	conn->acct.rx_copied_bytes += done;
	conn->tcp->stats->rx_copied_bytes += done;
	tcp_budget_consumed(conn);
	tcp_window_reopen(conn);
	return (ssize_t)done;
}

size_t harp_conn_readable_bytes(const struct harp_conn *conn)
{
	return conn->rcv_queued_bytes;
}

int harp_conn_peek(struct harp_conn *conn, struct iovec *iov, int iov_count)
{
	int n = 0;

	if (!conn->rcvq.head)
		return frames_empty_result(conn);
	if (iov_count <= 0)
		return -EINVAL;
	for (struct frame *f = conn->rcvq.head; f && n < iov_count; f = f->next)
		iov[n++] = (struct iovec){ .iov_base = f->pub.data, .iov_len = f->pub.len };
	return n;
}

void harp_conn_consume(struct harp_conn *conn, size_t len)
{
	while (len > 0 && conn->rcvq.head) {
		uint32_t n =
			len < conn->rcvq.head->pub.len ? (uint32_t)len : conn->rcvq.head->pub.len;

		frames_take(conn, n);
		len -= n;
	}
	tcp_budget_consumed(conn);
	tcp_window_reopen(conn);
}

int harp_conn_recv_frame(struct harp_conn *conn, struct harp_frame **out)
{
	struct frame *f = conn->rcvq.head;

	if (!f)
		return frames_empty_result(conn);
	conn->rcvq.head = f->next;
	if (!conn->rcvq.head)
		conn->rcvq.tail = NULL;
	f->next = NULL;
	f->flags |= FRAME_LENT | FRAME_LENT_RX;
	conn->rcv_queued_bytes -= f->pub.len;
	f->pub.capacity = f->pub.len;
	*out = &f->pub;
	return 1;
}

int harp_frame_alloc(struct harp_conn *conn, struct harp_frame **out)
{
	int err = socket_send_state(conn);
	struct frame *f;

	if (err)
		return err;
	f = tcp_sndq_alloc(conn);
	if (!f) {
		socket_want_write(conn);
		return -EAGAIN;
	}
	*out = &f->pub;
	return 0;
}

int harp_conn_send_frame(struct harp_conn *conn, struct harp_frame *frame)
{
	struct frame *f = (struct frame *)frame;
	int err = socket_send_state(conn);

	if (err)
		return err;
	if (!(f->flags & FRAME_LENT) || (f->flags & FRAME_LENT_RX) || frame->len == 0 ||
	    frame->len > frame->capacity)
		return -EINVAL;
	tcp_sndq_frame(conn, f);
	tcp_sndq_note_send(conn, true);
	tcp_tx_ready(conn);
	return 0;
}

void harp_frame_release(struct harp_conn *conn, struct harp_frame *frame)
{
	struct frame *f = (struct frame *)frame;

	assert(f->flags & FRAME_LENT);
	if (f->flags & FRAME_LENT_RX) {
		tcp_rx_release(conn, f);
		tcp_budget_consumed(conn);
		tcp_window_reopen(conn);
		return;
	}
	conn->frames.tx_held--;
	conn->tcp->stats->frames_tcp_tx--;
	frame_release(conn->tcp->pool, f);
	if (conn->flags & CONN_WANT_WRITE) {
		conn->flags &= ~(uint32_t)CONN_WANT_WRITE;
		tcp_conn_event(conn, HARP_EVENT_WRITABLE);
	}
}
