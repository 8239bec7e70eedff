/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c - what both ends of a connection share: requests, records out and in, failing, closing. */
#include "comm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Theory of operation
 *
 * The application's thread fills slot m % 32, raises `posted` (release) and posts comm->work to the
 * driver; who holds the baton sees it (acquire) in comm_advance(), moves bytes, and gives the
 * slot back with state DONE (release). Between the two the slot and the buffer belong to the baton.
 * Requests complete in order, so that `completed` and `posted` say everything about what is
 * outstanding.
 *
 * Ending and failing are two things. A lane may end (peer closed, process died) while nobody wants
 * anything of it: that is noted by comm_end(), and becomes an error, with its one WARN, only when a
 * request is outstanding or one comes. A failure is sticky: `error` is set once, no buffer is
 * touched from then on, and every later call returns it.
 */

#define SILENCE_ASK_NS 1000000000ull
#define SILENCE_WARN_NS 5000000000ull

static void comm_set_watch(struct comm *comm)
{
	bool wanted = comm->completed < atomic_load_explicit(&comm->posted, memory_order_relaxed) &&
		      !comm->error;

	if (wanted == comm->watching)
		return;
	comm->watching = wanted;
	comm->lane->ops->watch(comm->lane, wanted);
}

static void comm_advance(struct comm *comm, uint64_t now_ns)
{
	if (!comm->lane || comm->error)
		return;
	comm->now_ns = now_ns;
	if (comm->side == COMM_SEND)
		comm_send_advance(comm, now_ns);
	else
		comm_recv_advance(comm, now_ns);
	if (comm->end_error && !comm->error &&
	    comm->completed < atomic_load_explicit(&comm->posted, memory_order_acquire))
		comm_fail(comm, comm->end_error, CLOSE_ABORTED, NULL, "%s", comm->end_text);
	comm_set_watch(comm);
}

static void comm_run(struct work *work, uint64_t now_ns)
{
	comm_advance((struct comm *)((char *)work - offsetof(struct comm, work)), now_ns);
}

static void comm_notify(struct lane *lane, uint64_t now_ns)
{
	comm_advance(lane->owner, now_ns);
}

void comm_end_by_error(struct comm *comm, int error)
{
	char text[96];

	if (error == -ENETDOWN) /* here, not there */
		snprintf(text, sizeof(text), "this host's network interface is gone or down");
	else
		snprintf(text, sizeof(text),
			 "%s: the peer's process or host died, or the path is cut",
			 lane_error_text(error));
	comm_end(comm, error, text);
}

/* Kernel lane: each second while a request is outstanding. HARP lanes do it by themselves. */
static void comm_ask_silence(struct comm *comm, uint64_t now_ns)
{
	uint64_t timeout_ns = plugin_config()->user_timeout_ns, silence_ns;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	bool silent;

	if (now_ns - comm->silence_asked_ns < SILENCE_ASK_NS &&
	    now_ns - comm->silence_asked_ns < timeout_ns / 4)
		return;
	comm->silence_asked_ns = now_ns;
	silence_ns = lane_kernel_silence_ns(comm->lane, now_ns);
	if (silence_ns >= timeout_ns) {
		comm_end_by_error(comm, -ETIMEDOUT);
		return;
	}
	silent = silence_ns >= SILENCE_WARN_NS;
	if (silent && !comm->silence_warned)
		WARN("peer %s silent for %llu s on a kernel lane: still waiting (gives up after "
		     "%llu s; is the host or the path down?)",
		     harp_endpoint_format(&comm->lane->remote, peer),
		     (unsigned long long)(SILENCE_WARN_NS / 1000000000u),
		     (unsigned long long)(plugin_config()->user_timeout_ns / 1000000000u));
	comm->silence_warned = silent;
}

/* A turn of a kernel lane's own driver: there is no event, so look each time. */
static void comm_turn(struct driver *driver, uint64_t now_ns)
{
	struct comm *comm = (struct comm *)((char *)driver - offsetof(struct comm, own_driver));

	if (driver_run_ready(driver, now_ns))
		return; /* and the comm may be gone */
	comm_advance(comm, now_ns);
	if (comm->watching)
		comm_ask_silence(comm, now_ns);
}

static void comm_close_run(struct work *work, uint64_t now_ns);

int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt)
{
	struct comm *comm = aligned_alloc(64, (sizeof(*comm) + 63) & ~(size_t)63);

	*out = NULL;
	if (!comm)
		return -ENOMEM;
	memset(comm, 0, sizeof(*comm));
	comm->side = opt->side;
	comm->ctx = opt->ctx;
	comm->sent_bytes = opt->lane.sent_bytes;
	comm->no_credit = opt->no_credit;
	comm->lane_polled = lane->kind_bit == LANE_KERNEL;
	comm->eager_bytes =
		opt->eager_bytes < COMM_EAGER_BYTES_MIN ? COMM_EAGER_BYTES_MIN : opt->eager_bytes;
	comm->work.run = comm_run;
	comm->close_work.run = comm_close_run;
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++)
		comm->requests[i].comm = comm;
	comm->lane = lane;
	lane->owner = comm;
	if (comm->lane_polled) {
		driver_init(&comm->own_driver, comm_turn);
		lane->driver = &comm->own_driver;
	} else {
		lane->notify = comm_notify;
	}
	comm->driver = lane->driver;
	if (lane->ops->label)
		lane->ops->label(lane, comm->side == COMM_SEND ? "NCCL send" : "NCCL receive");
	*out = comm;
	return 0;
}

int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt)
{
	(void)comm;
	(void)lane;
	(void)opt;
	return -EINVAL;
}

void comm_describe(struct comm *comm, char *buf, size_t len)
{
	comm->lane->ops->describe(comm->lane, buf, len);
}

bool comm_is_polled(struct comm *comm)
{
	return comm->lane_polled;
}

/* ---- the application's side ------------------------------------------------------------------ */

int comm_post(struct comm *comm, void *data, size_t size, int tag, struct request **out)
{
	struct request *request = comm_request(comm, comm->app_posted);
	int error = atomic_load_explicit(&comm->error, memory_order_acquire);

	*out = NULL;
	if (error)
		return error;
	/* Relaxed: whether DONE or POSTED, it is not free. */
	if (atomic_load_explicit(&request->state, memory_order_relaxed) != REQUEST_FREE)
		return 0;
	request->data = data;
	request->size = size;
	request->tag = tag;
	request->size_done = 0;
	request->posted_ns = driver_clock_ns();
	atomic_store_explicit(&request->state, REQUEST_POSTED, memory_order_relaxed);
	comm->app_posted++;
	/* Publishes the slot to whoever runs comm_advance(). */
	atomic_store_explicit(&comm->posted, comm->app_posted, memory_order_release);
	*out = request;
	driver_post(comm->driver, &comm->work);
	driver_poll_at(comm->driver, request->posted_ns);
	return 0;
}

int comm_test(struct request *request, int *done, size_t *size)
{
	int state = atomic_load_explicit(&request->state, memory_order_acquire);

	*done = 0;
	if (state == REQUEST_POSTED) {
		int error = atomic_load_explicit(&request->comm->error, memory_order_acquire);

		if (!error) {
			driver_poll(request->comm->driver);
			error = atomic_load_explicit(&request->comm->error, memory_order_acquire);
		}
		/* Behind the error: what was done before it counts as done. */
		state = atomic_load_explicit(&request->state, memory_order_acquire);
		if (state == REQUEST_POSTED)
			return error;
	}
	if (state != REQUEST_DONE)
		return -EINVAL;
	if (size)
		*size = request->size_done;
	*done = 1;
	atomic_store_explicit(&request->state, REQUEST_FREE, memory_order_relaxed);
	return 0;
}

/* ---- completing and failing; baton held ------------------------------------------------------ */

void comm_complete(struct comm *comm, size_t size)
{
	struct request *request = comm_request(comm, comm->completed++);

	request->size_done = size;
	if (comm->lane->ops->observe)
		comm->lane->ops->observe(comm->lane, comm->now_ns > request->posted_ns
							     ? comm->now_ns - request->posted_ns
							     : 0);
	/* Release: the message's bytes are visible to who sees DONE. */
	atomic_store_explicit(&request->state, REQUEST_DONE, memory_order_release);
}

static void comm_tell(struct comm *comm, enum close_reason reason, const struct record *detail)
{
	struct record record = { .type = RECORD_CLOSE, .tag = reason, .message = comm->completed };

	if (detail) {
		record.total = detail->total;
		record.offset = detail->offset;
	}
	if (comm->send_broken || comm_out_push(comm) != 1)
		return; /* in the middle of a record: the RST must do */
	comm_out_begin(comm, &record);
	(void)comm_out_push(comm);
}

void comm_fail(struct comm *comm, int error, enum close_reason reason, const struct record *detail,
	       const char *fmt, ...)
{
	char peer[HARP_ENDPOINT_TEXT_MAX], text[256];
	va_list args;

	if (comm->error)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	comm_tell(comm, reason, detail);
	WARN("%s peer %s over %s: %s", comm->side == COMM_SEND ? "sending to" : "receiving from",
	     harp_endpoint_format(&comm->lane->remote, peer), comm->lane->ops->kind, text);
	/* Behind the words: who sees the error finds them said (ncclGetLastError()). */
	atomic_store_explicit(&comm->error, error, memory_order_release);
}

void comm_fail_protocol(struct comm *comm, const char *what)
{
	comm_fail(comm, -EPROTO, CLOSE_PROTOCOL, NULL,
		  "%s came (message %llu): the stream is damaged or the peer runs another version; "
		  "install the same HARP on every host",
		  what, (unsigned long long)comm->completed);
}

void comm_end(struct comm *comm, int error, const char *text)
{
	if (comm->end_error)
		return;
	comm->end_error = error;
	snprintf(comm->end_text, sizeof(comm->end_text), "%s", text);
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

/* ---- records out ------------------------------------------------------------------------------ */

void comm_out_begin(struct comm *comm, const struct record *record)
{
	struct comm_out *out = &comm->out;

	record_encode(out->header, record);
	out->header_bytes = RECORD_HEADER_BYTES;
	out->header_sent = 0;
	out->payload = NULL;
	out->payload_left = 0;
}

int comm_out_push(struct comm *comm)
{
	struct comm_out *out = &comm->out;

	while (out->header_sent < out->header_bytes || out->payload_left) {
		struct iovec iov[2];
		int count = 0;
		size_t head = out->header_bytes - out->header_sent;
		ssize_t n;

		if (head)
			iov[count++] = (struct iovec){ out->header + out->header_sent, head };
		if (out->payload_left)
			iov[count++] = (struct iovec){ (void *)(uintptr_t)out->payload,
						       out->payload_left };
		n = comm->lane->ops->send(comm->lane, iov, count);
		if (n == -EAGAIN)
			return 0;
		if (n < 0) {
			comm->send_broken = true;
			return (int)n;
		}
		if ((size_t)n < head) {
			out->header_sent += (size_t)n;
			continue;
		}
		out->header_sent += head;
		if (out->payload_left == 0)
			continue;
		out->payload += (size_t)n - head;
		out->payload_left -= (size_t)n - head;
	}
	return 1;
}

/* ---- records in ------------------------------------------------------------------------------- */

/* Reads control bytes until in_head holds `want`. */
static int comm_read_head(struct comm *comm, size_t want)
{
	while (comm->in_head_bytes < want) {
		ssize_t n = comm->lane->ops->recv(comm->lane, comm->in_head + comm->in_head_bytes,
						  want - comm->in_head_bytes, 1);

		if (n == -EAGAIN)
			return 0;
		if (!n) {
			comm_end(comm, -ECONNRESET,
				 "connection closed without notice: the peer's process died "
				 "(see its log)");
			return -ECONNRESET;
		}
		if (n < 0) {
			comm_end_by_error(comm, (int)n);
			return (int)n;
		}
		comm->in_head_bytes += (size_t)n;
	}
	return 1;
}

int comm_read_record(struct comm *comm, struct record *record)
{
	const char *what;
	int rc = comm_read_head(comm, RECORD_HEADER_BYTES);

	if (rc != 1)
		return rc;
	rc = record_decode(comm->in_head, record, &what);
	if (rc) {
		comm_fail_protocol(comm, what);
		return rc;
	}
	if (record->type == RECORD_CREDIT) {
		rc = comm_read_head(comm, RECORD_HEADER_BYTES + record->length);
		if (rc != 1)
			return rc;
	}
	comm->in_head_bytes = 0;
	return 1;
}

/* ---- closing ---------------------------------------------------------------------------------- */

/*
 * Orderly: CLOSE and FIN. With requests in flight a HARP lane is reset; a kernel lane gets a FIN
 * without CLOSE, which says the same to the peer, because a reset would take with it what the kernel
 * has accepted, and we have called done, and not yet delivered.
 */
static void comm_end_lane(struct comm *comm)
{
	struct lane *lane = comm->lane;
	bool failed = comm->error || comm->send_broken;
	bool in_flight =
		comm->abort ||
		comm->completed < atomic_load_explicit(&comm->posted, memory_order_acquire);

	if (!lane)
		return;
	if (!failed && !in_flight)
		comm_tell(comm, CLOSE_ORDERLY, NULL);
	comm->lane = NULL;
	lane->ops->close(lane, failed || (in_flight && !comm->lane_polled));
}

static void comm_close_run(struct work *work, uint64_t now_ns)
{
	struct comm *comm = (struct comm *)((char *)work - offsetof(struct comm, close_work));

	(void)now_ns;
	comm_end_lane(comm);
}

void comm_close(struct comm *comm, bool abort)
{
	comm->abort = abort;
	/* comm->work, if it is queued, was posted before and so runs before: both are off the list. */
	driver_call(comm->driver, &comm->close_work);
	free(comm);
}

void comm_drop(struct comm *comm)
{
	comm->abort = true;
	comm_end_lane(comm);
	free(comm);
}
