/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c - one end of a connection: requests, done, failing, closing. */
#include "comm/comm_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Theory of operation
 *
 * The application's thread fills slot m % 32, raises `posted` (release) and posts the work of a lane to its
 * driver; who holds the baton sees it (acquire), moves bytes, and gives the slot back with state DONE
 * (release). Between the two the slot and the buffer belong to the lanes. Requests complete in order, so that
 * `completed` and `posted` say everything about what is outstanding.
 *
 * There are two kinds of comms, from the first record on. One lane (`only`): done is what the lane's TCP says,
 * nothing is shared, no lock. Several lanes (`several`), even while one alone is up: done is what the peer
 * acknowledges by ACK records, and what the lanes share is under a lock (comm_lanes.c).
 *
 * Ending and failing are two things. The lanes may end (peer closed, process died) while nobody wants
 * anything of them: that is noted by comm_end(), and becomes an error, with its one WARN, only when a
 * request is outstanding or one comes. A failure is sticky: `error` is set once, no buffer is
 * touched from then on, and every later call returns it.
 */

static void comm_close_run(struct work *work, uint64_t now_ns);

/* ---- making ----------------------------------------------------------------------------------- */

static void comm_free(struct comm *comm)
{
	comm_kernels_close(comm);
	free(comm->kernels);
	lane_page_comm_remove(comm->row);
	comm_several_free(comm);
	free(comm);
}

int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt)
{
	struct comm *comm = aligned_alloc(64, (sizeof(*comm) + 63) & ~(size_t)63);
	struct comm_row_options row;
	struct comm_lane *l;

	*out = NULL;
	if (!comm)
		return -ENOMEM;
	memset(comm, 0, sizeof(*comm));
	comm->side = opt->side;
	comm->ctx = opt->ctx;
	comm->comm_id = opt->comm_id;
	comm->remote = lane->remote;
	comm->no_credit = opt->no_credit && !opt->several;
	comm->eager_bytes =
		opt->eager_bytes < COMM_EAGER_BYTES_MIN ? COMM_EAGER_BYTES_MIN : opt->eager_bytes;
	comm->close_work.run = comm_close_run;
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++)
		comm->requests[i].comm = comm;
	if (opt->several && comm_several_new(comm, opt)) {
		free(comm);
		return -ENOMEM;
	}
	if ((lane->kind_bit == LANE_KERNEL ||
	     (opt->several && !plugin_path_is_harp(plugin_config()->path))) &&
	    comm_kernels_open(comm, opt->lane.dev)) {
		comm_free(comm);
		return -ENOMEM;
	}
	row.comm_id = opt->comm_id;
	row.side = opt->side == COMM_SEND ? HARP_PAGE_SIDE_SEND : HARP_PAGE_SIDE_RECEIVE;
	row.dev = opt->lane.dev;
	row.remote = lane->remote;
	comm->row = lane_page_comm_add(&row);
	l = comm_lane_new(comm, lane, &opt->lane);
	if (!l) {
		comm_free(comm);
		return -ENOMEM;
	}
	if (comm->several) {
		comm_lock(comm);
		(void)comm_lanes_join(comm, l, opt->lane.rtt_ns, driver_clock_ns()); /* the first */
		comm_unlock(comm);
	} else {
		comm->only = l;
	}
	comm_lane_poll(l); /* nobody else knows the comm's own driver yet */
	*out = comm;
	return 0;
}

void comm_describe(struct comm *comm, char *buf, size_t len)
{
	struct comm_lane *l = comm->only;
	unsigned more = 0;

	if (l) {
		l->lane->ops->describe(l->lane, buf, len);
		return;
	}
	snprintf(buf, len, "no lane");
	comm_lock(comm);
	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		if (!comm->several->lanes[i])
			continue;
		if (more++ == 0)
			comm->several->lanes[i]->lane->ops->describe(comm->several->lanes[i]->lane,
								     buf, len);
	}
	comm_unlock(comm);
	if (more > 1) {
		size_t used = strlen(buf);

		snprintf(buf + used, len - used, " and %u more", more - 1);
	}
}

bool comm_is_polled(struct comm *comm)
{
	bool polled = true;

	if (comm->only)
		return comm->only->kind == LANE_KERNEL;
	comm_lock(comm);
	for (unsigned i = 0; i < COMM_LANES_MAX; i++)
		polled &= !comm->several->lanes[i] || comm->several->lanes[i]->kind == LANE_KERNEL;
	comm_unlock(comm);
	return polled;
}

/* ---- the application's side ------------------------------------------------------------------ */

/* A turn of the driver that sees the new request, now. */
static void comm_only_drive(struct comm_lane *l, const struct request *request)
{
	struct driver *driver = l->lane->driver;

	if (l->kind == LANE_KERNEL) {
		/* A small message that has not come would be looked for in vain, and one that has is found by test(). Of a
		 * large one much may be here. */
		if (l->comm->side == COMM_RECV && request->size <= COMM_BULK_BYTES)
			return;
		if (driver_poll_at(driver, request->posted_ns)) /* each turn advances it */
			return;
	}
	driver_post(driver, &l->work);
	driver_poll_at(driver, request->posted_ns);
}

int comm_post(struct comm *comm, void *data, size_t size, int tag, const void *memory,
	      struct request **out)
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
	request->memory = memory;
	request->size = size;
	request->tag = tag;
	request->size_done = 0;
	request->posted_ns = driver_clock_ns();
	atomic_store_explicit(&request->state, REQUEST_POSTED, memory_order_relaxed);
	comm->app_posted++;
	*out = request;
	if (comm->several) {
		comm_several_post(comm, request);
		return 0;
	}
	/* Publishes the slot to whoever runs the lane. */
	atomic_store_explicit(&comm->posted, comm->app_posted, memory_order_release);
	comm_only_drive(comm->only, request);
	return 0;
}

int comm_test(struct request *request, int *done, size_t *size)
{
	int state = atomic_load_explicit(&request->state, memory_order_acquire);

	*done = 0;
	if (state == REQUEST_POSTED) {
		struct comm *comm = request->comm;
		int error = atomic_load_explicit(&comm->error, memory_order_acquire);

		if (!error) {
			if (comm->several)
				comm_several_poll(comm);
			else
				driver_poll(comm->only->lane->driver);
			error = atomic_load_explicit(&comm->error, memory_order_acquire);
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

bool comm_has_requests(const struct comm *comm)
{
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++)
		if (atomic_load_explicit(&comm->requests[i].state, memory_order_acquire) ==
		    REQUEST_POSTED)
			return true;
	return false;
}

/* ---- completing and failing ------------------------------------------------------------------- */

void comm_complete(struct comm *comm, struct comm_lane *observer, size_t size)
{
	struct request *request = comm_request(comm, comm->completed++);
	unsigned kinds = 0;

	request->size_done = size;
	if (comm->side == COMM_SEND)
		kinds = comm->several ? request->carried : observer->kind;
	lane_page_comm_done(comm->row, kinds, size);
	if (observer && observer->lane->ops->observe)
		observer->lane->ops->observe(observer->lane,
					     comm->now_ns > request->posted_ns
						     ? comm->now_ns - request->posted_ns
						     : 0);
	/* Release: the message's bytes are visible to who sees DONE. */
	atomic_store_explicit(&request->state, REQUEST_DONE, memory_order_release);
}

/* Baton, or lock. */
static bool comm_fail_begin(struct comm *comm, int error, struct record *close)
{
	struct comm_several *s = comm->several;

	close->message = comm->completed;
	if (!s)
		return !comm->error;
	if (s->failing)
		return false;
	s->failing = error;
	s->close = *close;
	return true;
}

bool comm_fail_first(struct comm *comm, int error, struct record *close)
{
	bool first;

	if (comm->several)
		comm_lock(comm);
	first = comm_fail_begin(comm, error, close);
	if (comm->several)
		comm_unlock(comm);
	return first;
}

void comm_fail_publish(struct comm *comm, int error)
{
	if (!comm->several) {
		atomic_store_explicit(&comm->error, error, memory_order_release);
		return;
	}
	comm_lock(comm);
	comm->several->said = true;
	comm_publish(comm);
	comm_wake_all(comm); /* each tells the peer */
	comm_unlock(comm);
}

/* What follows comm_fail_begin(). */
static void comm_fail_say(struct comm *comm, struct comm_lane *l, int error,
			  const struct record *close, const char *text)
{
	char peer[HARP_ENDPOINT_TEXT_MAX];

	if (l)
		(void)comm_lane_tell_failed(l, close);
	WARN("%s peer %s over %s: %s", comm->side == COMM_SEND ? "sending to" : "receiving from",
	     harp_endpoint_format(&comm->remote, peer),
	     l && !comm->several ? l->lane->ops->kind : "several lanes", text);
	lane_page_comm_failed(comm->row);
	comm_fail_publish(comm, error);
}

void comm_fail(struct comm *comm, struct comm_lane *l, int error, enum close_reason reason,
	       const struct record *detail, const char *fmt, ...)
{
	struct record close = { .type = RECORD_CLOSE, .tag = reason };
	char text[256];
	va_list args;

	if (detail) {
		close.total = detail->total;
		close.offset = detail->offset;
	}
	if (!comm_fail_first(comm, error, &close))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	comm_fail_say(comm, l, error, &close, text);
}

void comm_fail_protocol(struct comm *comm, struct comm_lane *l, const char *what)
{
	uint64_t message;

	if (comm->several)
		comm_lock(comm);
	message = comm->completed;
	if (comm->several)
		comm_unlock(comm);
	comm_fail(comm, l, -EPROTO, CLOSE_PROTOCOL, NULL,
		  "%s came (message %llu): the stream is damaged or the peer runs another version; "
		  "install the same HARP on every host",
		  what, (unsigned long long)message);
}

void comm_fail_truncated(struct comm *comm, struct comm_lane *l, const struct record *record,
			 size_t posted)
{
	struct record detail = { .total = posted, .offset = record->total };

	comm_fail(
		comm, l, -EMSGSIZE, CLOSE_TRUNCATED, &detail,
		"message truncated: %llu bytes came for a receive of %zu (message %llu, tag %#x): "
		"the ranks disagree on sizes; check that NCCL_PROTO, NCCL_ALGO and the like are equal "
		"on every rank",
		(unsigned long long)record->total, posted, (unsigned long long)record->message,
		record->tag);
}

void comm_end(struct comm *comm, int error, const char *text)
{
	if (comm->end_error)
		return;
	comm->end_error = error;
	snprintf(comm->end_text, sizeof(comm->end_text), "%s", text);
}

void comm_end_by_error(struct comm *comm, int error)
{
	char text[96];

	comm_end(comm, error == -EPIPE ? -ECONNRESET : error,
		 comm_lane_end_text(error,
				    comm->side == COMM_RECV && comm->only && comm->rx.payload_left,
				    text, sizeof(text)));
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

void comm_settle(struct comm *comm, struct comm_lane *l)
{
	struct record close = { .type = RECORD_CLOSE, .tag = CLOSE_ABORTED };
	bool first;

	if (comm->several)
		comm_lock(comm);
	/* In one hold: what waits is given up, or is done and no failure. */
	first = comm->end_error &&
		comm->completed < atomic_load_explicit(&comm->posted, memory_order_acquire) &&
		comm_fail_begin(comm, comm->end_error, &close);
	if (comm->several)
		comm_unlock(comm);
	if (first) /* the end is the first one's, and does not change */
		comm_fail_say(comm, l, comm->end_error, &close, comm->end_text);
}

/* ---- closing ---------------------------------------------------------------------------------- */

/*
 * Orderly: CLOSE and FIN. With requests in flight a HARP lane is reset; a kernel lane gets a FIN
 * without CLOSE, which says the same to the peer, because a reset would take with it what the kernel
 * has accepted, and we have called done, and not yet delivered.
 */
static void comm_end_only(struct comm *comm)
{
	struct record close = { .type = RECORD_CLOSE,
				.tag = CLOSE_ORDERLY,
				.message = comm->completed };
	struct comm_lane *l = comm->only;
	bool failed = comm->error || l->send_broken;
	bool in_flight =
		comm->abort ||
		comm->completed < atomic_load_explicit(&comm->posted, memory_order_acquire);

	if (!failed && !in_flight)
		(void)comm_lane_tell(l, &close);
	comm->only = NULL;
	comm_lane_free(l, failed || (in_flight && l->kind != LANE_KERNEL));
}

static void comm_close_run(struct work *work, uint64_t now_ns)
{
	struct comm *comm = (struct comm *)((char *)work - offsetof(struct comm, close_work));

	(void)now_ns;
	comm_end_only(comm);
}

void comm_close(struct comm *comm, bool abort)
{
	comm->abort = abort;
	/* The lane's work, if it is queued, was posted before and so runs before: both are off the list. */
	if (comm->several)
		comm_several_close(comm);
	else
		driver_call(comm->only->lane->driver, &comm->close_work);
	comm_free(comm);
}

void comm_drop(struct comm *comm)
{
	comm_kernels_close(comm); /* a worker has no baton that is held here */
	if (comm->several) {
		comm_lane_free(comm->several->all, true);
	} else {
		comm->abort = true;
		comm_end_only(comm);
	}
	comm_free(comm);
}
