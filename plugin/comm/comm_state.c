/* SPDX-License-Identifier: Apache-2.0 */
/* comm_state.c - shared by a comm's files: completion, failure, waking a lane, records out and
 * in. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "comm/comm_impl.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * End and failure. When the lanes end (the peer closes or dies), comm_end() records the reason.
 * comm_report_end() turns it into a failure, with one WARN, when a request is outstanding. A
 * failure is sticky: `error` is set once, no buffer is touched afterwards, and every later call
 * returns it.
 *
 * Records. An outgoing record stays in l->out until the lane has taken its last byte. Only
 * comm_lane_push() reads the payload from the request's memory. If the request completes between
 * two calls, the rest of its record is sent as zeros; the receiver has the bytes from another lane
 * and drops them.
 */

static const uint8_t comm_zeros[4096];

void comm_wake(struct comm_lane *l)
{
	l->ready = true;
	if (l->comm->closing) /* the comm is freed soon: post no work */
		return;
	if (!l->engine)
		atomic_store_explicit(&l->comm->kernel_due, true, memory_order_relaxed);
	else
		poller_post(l->engine->poller, &l->engine->work);
}

void comm_wake_all(struct comm *comm)
{
	struct comm_lane *l;

	COMM_FOR_EACH_LANE(comm, l)
	comm_wake(l);
}

/* ---- completion and failure ----------------------------------------------------------------- */

void comm_complete(struct comm *comm, struct comm_lane *observer, size_t size)
{
	struct request *request = comm_request(comm, comm->completed++);
	uint64_t now_ns = comm->now_ns;

	request->size_done = size;
	comm_stats_done(comm->stats, comm->side == COMM_SEND ? request->used_kinds : 0, size,
			now_ns);
	if (observer && observer->kind == LANE_HARP && comm_lane_is_reachable(observer))
		lane_harp_observe(observer->lane,
				  now_ns > request->posted_ns ? now_ns - request->posted_ns : 0);
	/* Release: a thread that sees DONE also sees the message's bytes. */
	atomic_store_explicit(&request->state, REQUEST_DONE, memory_order_release);
}

static void comm_fail_text(struct comm *comm, struct comm_lane *l, int error,
			   const struct record *close, const char *text)
{
	char peer[HARP_ENDPOINT_TEXT_MAX];

	comm->close = *close;
	comm->close.type = RECORD_CLOSE;
	comm->close.message = comm->completed;
	/* All comms with a dead host time out: one WARN for each host. */
	WARN_IF(error != -ETIMEDOUT ||
			lane_notice_due(LANE_NOTICE_GIVEN_UP, &comm->remote.addr, comm->now_ns),
		"%s peer %s over %s: %s", comm->side == COMM_SEND ? "sending to" : "receiving from",
		harp_endpoint_format(&comm->remote, peer),
		l && !comm->multi_lane ? lane_kind_text(l->lane) : "several lanes", text);
	comm_stats_failed(comm->stats);
	atomic_store_explicit(&comm->ended, true, memory_order_relaxed);
	/* After the WARN: a thread that sees the error finds its text in ncclGetLastError(). */
	atomic_store_explicit(&comm->error, error, memory_order_release);
	comm_wake_all(comm); /* each lane's next turn sends CLOSE */
}

void comm_fail(struct comm *comm, struct comm_lane *l, int error, enum close_reason reason,
	       const struct record *detail, const char *fmt, ...)
{
	struct record close = { .tag = reason };
	char text[256];
	va_list args;

	if (comm_has_failed(comm))
		return;
	if (detail) {
		close.total = detail->total;
		close.offset = detail->offset;
	}
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	comm_fail_text(comm, l, error, &close, text);
}

void comm_fail_protocol(struct comm *comm, struct comm_lane *l, const char *what)
{
	comm_fail(comm, l, -EPROTO, CLOSE_PROTOCOL, NULL,
		  "%s came (message %llu): the stream is damaged or the peer runs another version; "
		  "install the same HARP on every host",
		  what, (unsigned long long)comm->completed);
}

static void comm_end(struct comm *comm, int error, const char *text)
{
	if (comm->end_error)
		return;
	comm->end_error = error;
	atomic_store_explicit(&comm->ended, true, memory_order_relaxed);
	snprintf(comm->end_text, sizeof(comm->end_text), "%s", text);
}

const char *comm_lane_end_text(int error, bool in_message, char *buf, size_t len)
{
	if (error == -ENETDOWN) /* of this host, not the peer's */
		return "this host's network interface is gone or down";
	if (error == -EBADMSG) /* the peer is alive */
		return lane_error_text(error);
	if (error == -EPIPE)
		return in_message
			       ? "connection closed in the middle of a message: the peer aborted, or "
				 "its process died (see its log)"
			       : "connection closed without notice: the peer aborted, or its process "
				 "died (see its log)";
	snprintf(buf, len, "%s: %s process or host died, or the path is cut",
		 lane_error_text(error),
		 error == -ECONNRESET ? "the peer aborted, its" : "the peer's");
	return buf;
}

void comm_end_by_error(struct comm *comm, struct comm_lane *l, int error)
{
	char text[COMM_END_TEXT_MAX];

	comm_end(comm, error == -EPIPE ? -ECONNRESET : error,
		 comm_lane_end_text(error, l && !comm->multi_lane && l->in.active, text,
				    sizeof(text)));
}

void comm_end_by_record(struct comm *comm, const struct record *close)
{
	int error = -ECONNRESET;

	if (close->tag == CLOSE_TRUNCATED)
		error = -EMSGSIZE;
	else if (close->tag == CLOSE_PROTOCOL)
		error = -EPROTO;
	comm_end(comm, error, record_close_reason_text(close->tag));
}

void comm_report_end(struct comm *comm)
{
	struct record close = { .tag = CLOSE_ABORTED };
	struct comm_lane *l;

	if (!comm->end_error || comm_has_failed(comm) || comm->completed == comm_posted(comm))
		return;
	/* comm_fail_text() names the kind of a single lane. */
	l = comm->lanes[0];
	comm_fail_text(comm, l, comm->end_error, &close, comm->end_text);
}

/* ---- records out and in --------------------------------------------------------------------- */

void comm_out_begin(struct comm_lane *l, const struct record *record)
{
	record_encode(l->out.header, record);
	l->out.header_bytes = RECORD_HEADER_BYTES;
	l->out.header_sent = 0;
	l->out.payload = NULL;
	l->out.payload_left = 0;
}

static int comm_out_push(struct comm_lane *l)
{
	struct comm_out *out = &l->out;

	while (comm_lane_has_out(l)) {
		size_t head = out->header_bytes - out->header_sent;
		struct iovec iov[2];
		int count = 0;
		ssize_t n;

		if (head)
			iov[count++] = (struct iovec){ out->header + out->header_sent, head };
		if (out->payload_left && out->payload)
			iov[count++] = (struct iovec){ (void *)(uintptr_t)out->payload,
						       out->payload_left };
		else if (out->payload_left)
			iov[count++] = (struct iovec){ (void *)(uintptr_t)comm_zeros,
						       out->payload_left < sizeof(comm_zeros)
							       ? out->payload_left
							       : sizeof(comm_zeros) };
		n = l->lane->ops->send(l->lane, iov, count);
		if (n == -EAGAIN)
			return 0;
		if (n < 0)
			return (int)n;
		lane_stats_sent(l->stats, (uint64_t)n, l->comm->now_ns);
		if ((size_t)n < head) {
			out->header_sent += (size_t)n;
			continue;
		}
		out->header_sent += head;
		if (out->payload)
			out->payload += (size_t)n - head;
		out->payload_left -= (size_t)n - head;
	}
	out->header_bytes = out->header_sent = 0;
	return 1;
}

int comm_lane_push(struct comm_lane *l)
{
	int rc;

	if (l->send_error)
		return l->send_error;
	rc = comm_out_push(l);
	l->full = rc == 0;
	if (rc < 0) {
		l->send_error = rc;
		comm_wake(l); /* received data may explain the error */
	}
	return rc;
}

/* Sends CLOSE unless a partly sent record is in the way; the peer sees a RST then. Returns true if
 * the lane has taken CLOSE and everything before it. */
bool comm_lane_send_close(struct comm_lane *l, const struct record *close)
{
	l->close_sent = true;
	if (l->send_error || comm_lane_push(l) != 1)
		return false;
	comm_out_begin(l, close);
	return comm_lane_push(l) == 1;
}

/* Reads control bytes until in_head holds `want`. */
static int comm_read_head(struct comm_lane *l, size_t want)
{
	while (l->in_head_bytes < want) {
		ssize_t n = l->lane->ops->recv(l->lane, l->in_head + l->in_head_bytes,
					       want - l->in_head_bytes, 1);

		if (n == -EAGAIN)
			return 0;
		if (n <= 0)
			return n ? (int)n : -EPIPE;
		lane_stats_received(l->stats, (uint64_t)n, l->comm->now_ns);
		l->in_head_bytes += (size_t)n;
	}
	return 1;
}

int comm_read_record(struct comm_lane *l, struct record *record)
{
	const char *what;
	int rc = comm_read_head(l, RECORD_HEADER_BYTES);

	if (rc != 1)
		return rc;
	rc = record_decode(l->in_head, record, &what);
	if (rc) {
		comm_fail_protocol(l->comm, l, what);
		return rc;
	}
	if (record->type == RECORD_CREDIT) {
		rc = comm_read_head(l, RECORD_HEADER_BYTES + record->length);
		if (rc != 1)
			return rc;
	}
	l->in_head_bytes = 0;
	return 1;
}
