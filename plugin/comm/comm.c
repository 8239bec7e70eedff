/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c - one end of a connection: its requests, its creation and its close. */
#include "comm/comm_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "poll/engine.h"
#include "process/log.h"
#include "process/config.h"

/*
 * Theory of operation
 *
 * A comm carries messages in one direction over 1 to 32 lanes: TCP connections of engines (HARP
 * lanes) and kernel sockets (kernel lanes). The application fills slot m % 32 with request m and
 * increments `posted` (release). The poller sees it (acquire), moves the bytes, and returns the
 * slot by setting its state to DONE (release). In between, slot and buffer belong to the poller.
 * Requests complete in order, so messages `completed` to `posted` - 1 are outstanding.
 *
 * One thread at a time advances a comm: the one that holds comm->poller, a try-lock. There is no
 * other lock. A HARP lane is read and written only in a turn of its engine, so a turn of a comm
 * covers the lanes of one engine, or the kernel lanes (comm_turn.c). comm_wake() leaves work for
 * other lanes to their engines.
 *
 * In a multi-lane comm, a message is cut into chunks, and each chunk is sent on the lane that will
 * deliver it first (scheduler.c). The sender keeps a chunk until an ACK record covers it, and
 * resends it when its lane dies; the receiver drops duplicates. A request is done when it is
 * acknowledged. In a single-lane comm there are no chunks and no ACK records: the lane's TCP
 * reports delivery. A small message is done when its lane has copied it.
 */

/* ---- making --------------------------------------------------------------------------------- */

static void comm_free(struct comm *comm)
{
	comm_stats_free(comm->stats);
	free(comm->events);
	if (comm->side == COMM_SEND)
		comm_send_free(comm);
	else
		comm_recv_free(comm);
	free(comm);
}

static struct comm *comm_new(const struct lane *lane, const struct comm_options *opt)
{
	enum harp_page_fallback fallback = HARP_PAGE_FALLBACK_none;
	struct comm *comm = aligned_alloc(64, (sizeof(*comm) + 63) & ~(size_t)63);
	int rc;

	if (lane->kind_bit == LANE_KERNEL) {
		fallback = engine_fallback(opt->lane.dev);
		if (!fallback)
			fallback = HARP_PAGE_FALLBACK_peer;
	}
	if (!comm)
		return NULL;
	memset(comm, 0, sizeof(*comm));
	poller_init(&comm->poller, NULL);
	comm->side = opt->side;
	comm->multi_lane = opt->multi_lane;
	comm->no_credit = opt->no_credit && !opt->multi_lane;
	comm->has_kernel_lanes = lane->kind_bit == LANE_KERNEL ||
				 (opt->multi_lane && !plugin_path_is_harp(plugin_config()->path));
	comm->eager_bytes =
		opt->eager_bytes < COMM_EAGER_BYTES_MIN ? COMM_EAGER_BYTES_MIN : opt->eager_bytes;
	/* At most a quarter of the eager limit, so that one chunk always fits (docs/lanes.md
	 * section 5.3). */
	comm->buffer_bytes = opt->multi_lane ? COMM_BUFFER_BYTES_MAX : LANE_COPIED_BYTES_MAX;
	if (comm->buffer_bytes > comm->eager_bytes / 4)
		comm->buffer_bytes = comm->eager_bytes / 4;
	comm->ctx = opt->ctx;
	comm->comm_id = opt->comm_id;
	comm->remote = lane->remote;
	comm->lane_lost = opt->lane_lost;
	comm->control = -1;
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++)
		comm->requests[i].comm = comm;
	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		comm->engines[i].comm = comm;
		comm->engines[i].work.run = comm_engine_run;
	}
	comm->stats = comm_stats_new(opt->comm_id,
				     opt->side == COMM_SEND ? HARP_PAGE_SIDE_SEND
							    : HARP_PAGE_SIDE_RECEIVE,
				     opt->lane.dev, fallback, &lane->remote);
	rc = opt->side == COMM_SEND ? comm_send_init(comm, opt) : comm_recv_init(comm);
	if (rc || !comm->stats) {
		comm_free(comm);
		return NULL;
	}
	return comm;
}

int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt)
{
	struct comm *comm = comm_new(lane, opt);
	struct comm_lane *l = comm ? comm_lane_new(comm, lane, &opt->lane) : NULL;

	*out = NULL;
	if (!l) {
		if (comm)
			comm_free(comm);
		return -ENOMEM;
	}
	atomic_store_explicit(&comm->joining, l, memory_order_relaxed);
	comm->now_ns = clock_now_ns();
	comm_adopt(comm); /* no other thread knows the comm */
	*out = comm;
	return 0;
}

int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt)
{
	struct comm_lane *l, *head;

	if (!comm->multi_lane || opt->index >= COMM_LANES_MAX)
		return -EINVAL;
	if (atomic_load_explicit(&comm->ended, memory_order_relaxed) || comm_has_failed(comm))
		return -ENOTCONN;
	l = comm_lane_new(comm, lane, opt);
	if (!l)
		return -ENOMEM;
	atomic_fetch_or_explicit(&comm->present, 1u << l->index, memory_order_relaxed);
	head = atomic_load_explicit(&comm->joining, memory_order_relaxed);
	do {
		l->next = head;
	} while (!atomic_compare_exchange_weak_explicit(&comm->joining, &head, l,
							memory_order_release,
							memory_order_relaxed));
	comm_turn(comm, NULL, clock_now_ns(), COMM_TURN_POST);
	return 0;
}

bool comm_has_lane(struct comm *comm, unsigned index)
{
	return atomic_load_explicit(&comm->present, memory_order_relaxed) >> index & 1;
}

bool comm_describe(struct comm *comm, char *buf, size_t len)
{
	struct comm_lane *l;
	unsigned count = 0;
	bool is_kernel = true;
	size_t used;

	snprintf(buf, len, "no lane");
	comm_acquire(comm);
	COMM_FOR_EACH_LANE(comm, l)
	{
		if (count++ == 0)
			l->lane->ops->describe(l->lane, buf, len);
		is_kernel &= l->kind == LANE_KERNEL;
	}
	comm_release(comm);
	used = strlen(buf);
	if (count > 1)
		snprintf(buf + used, len - used, " and %u more", count - 1);
	return is_kernel;
}

/* ---- the application's side ----------------------------------------------------------------- */

int comm_post(struct comm *comm, void *data, size_t size, int tag, const void *memory,
	      struct request **out)
{
	struct request *request = comm_request(comm, comm->app_posted);
	int error = atomic_load_explicit(&comm->error, memory_order_acquire);

	*out = NULL;
	if (error)
		return error;
	/* Relaxed: any state but FREE means that the slot is in use. */
	if (atomic_load_explicit(&request->state, memory_order_relaxed) != REQUEST_FREE)
		return 0;
	request->data = data;
	request->memory = memory;
	request->size = size;
	request->tag = tag;
	request->size_done = 0;
	request->posted_ns = clock_now_ns();
	request->event = NULL;
	request->begun_ns = 0;
	request->received = 0;
	request->begun = false;
	request->used_kinds = 0;
	request->chunk = NULL;
	request->kinds = LANE_HARP | LANE_KERNEL;
	if (comm->multi_lane && comm->side == COMM_SEND)
		request->kinds = size <= comm->tx.harp_bytes_max ? LANE_HARP : LANE_KERNEL;
	atomic_store_explicit(&request->state, REQUEST_POSTED, memory_order_relaxed);
	*out = request;
	/* Publishes the slot. */
	atomic_store_explicit(&comm->posted, ++comm->app_posted, memory_order_release);
	comm_poll_posted(comm, request);
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
			comm_poll(comm);
			error = atomic_load_explicit(&comm->error, memory_order_acquire);
		}
		/* Read after the error: a request that completed before the failure is done. */
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

/* ---- deregistered memory -------------------------------------------------------------------- */

/* Requests posted without a registration are matched by address. */
static bool comm_request_is_in(const struct request *request, const void *memory, uintptr_t begin,
			       uintptr_t end)
{
	uintptr_t at = (uintptr_t)request->data;

	if (request->size == 0)
		return false;
	if (request->memory)
		return request->memory == memory;
	return at < end && begin < at + request->size;
}

void comm_cancel_memory(struct comm *comm, const void *memory, const void *base, size_t bytes)
{
	uintptr_t begin = (uintptr_t)base;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	uint64_t posted;

	if (bytes == 0)
		return;
	comm_acquire(comm);
	posted = comm_posted(comm);
	for (uint64_t m = comm->completed; m < posted && !comm_has_failed(comm); m++) {
		if (!comm_request_is_in(comm_request(comm, m), memory, begin, begin + bytes))
			continue;
		/* No WARN: the application aborts, and has logged its reason. */
		INFO("%s peer %s: deregMr of memory that requests in flight lie in: they are given up",
		     comm->side == COMM_SEND ? "sending to" : "receiving from",
		     harp_endpoint_format(&comm->remote, peer));
		comm->close = (struct record){ .type = RECORD_CLOSE,
					       .tag = CLOSE_ABORTED,
					       .message = comm->completed };
		atomic_store_explicit(&comm->ended, true, memory_order_relaxed);
		atomic_store_explicit(&comm->error, -ECANCELED, memory_order_release);
		comm_wake_all(comm);
	}
	comm_release(comm);
}

/* ---- closing -------------------------------------------------------------------------------- */

/*
 * The closing thread takes the comm's poller and never releases it, so no other thread advances the
 * comm. It waits for up to two turns of each engine: the first checks all lanes, if buffered sends
 * may have to be resent; the second sends CLOSE on each lane and closes it. Chunks of a lane that
 * died meanwhile go to the lanes that are closed after it.
 */
static void comm_close_run(void *arg)
{
	struct comm_engine *e = arg;
	struct comm *comm = e->comm;
	struct comm_lane *l;

	if (!comm->closing) {
		COMM_FOR_EACH_LANE(comm, l)
		l->ready |= l->engine == e;
		comm_advance(comm, e, clock_now_ns(), COMM_TURN_TEST);
		return;
	}
	comm->engine = e;
	comm_close_lanes(comm);
}

static void comm_close_turns(struct comm *comm)
{
	struct poller *poller;

	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		poller = atomic_load_explicit(&comm->engines[i].poller, memory_order_acquire);
		if (poller)
			poller_call(poller, comm_close_run, &comm->engines[i]);
	}
}

void comm_close(struct comm *comm, bool abort)
{
	struct comm_lane *l;

	comm_acquire(comm);
	comm->abort = abort;
	atomic_store_explicit(&comm->ended, true, memory_order_relaxed);
	comm_adopt(comm);
	if (!abort && !comm_has_failed(comm) && comm->completed == comm_posted(comm) &&
	    comm_send_has_buffered(comm)) {
		COMM_FOR_EACH_LANE(comm, l)
		l->ready = true;
		comm_close_turns(comm);
		comm_advance(comm, NULL, clock_now_ns(), COMM_TURN_BACKGROUND);
	}
	comm->closing = true;
	comm_close_turns(comm);
	comm->engine = NULL;
	comm_close_lanes(comm);
	comm_free(comm);
}

/* ---- events for NCCL's profiler (harp_profiler.h); application thread ----------------------- */

static_assert((int)HARP_PROFILER_LANE_HARP == LANE_HARP &&
		      (int)HARP_PROFILER_LANE_KERNEL == LANE_KERNEL,
	      "kinds of lanes are published");
static_assert((int)HARP_PROFILER_SEND == COMM_SEND && (int)HARP_PROFILER_RECEIVE == COMM_RECV,
	      "sides are published");

struct comm_event *plugin_event_begin(struct request *request)
{
	struct comm *comm = request->comm;
	struct comm_event *event;
	uint64_t srtt_ns;

	if (!comm->events)
		comm->events = calloc(PLUGIN_REQUESTS_MAX, sizeof(*comm->events));
	if (!comm->events)
		return NULL;
	event = &comm->events[request - comm->requests];
	*event = (struct comm_event){
		.data = {
			.size = sizeof(event->data),
			.direction = (uint8_t)comm->side,
			.comm = comm->comm_id,
			.message = comm->app_posted - 1,
			.bytes = request->size,
			.remote_port = comm->remote.port,
			.posted_ns = request->posted_ns,
		},
	};
	memcpy(event->data.remote_addr, comm->remote.addr.bytes, sizeof(event->data.remote_addr));
	comm_stats_tcp(comm->stats, &event->data.retransmits, &srtt_ns);
	request->event = event;
	return event;
}

struct comm_event *plugin_event_end(struct request *request, int error)
{
	struct comm_event *event = request->event;
	struct harp_profiler_event *data;
	uint64_t retransmits, end_ns;

	if (!event || !event->handle)
		return NULL;
	request->event = NULL;
	data = &event->data;
	data->done_ns = clock_now_ns();
	data->error = error;
	/* The poller may still own a request that failed. */
	end_ns = error || !request->begun_ns ? data->done_ns : request->begun_ns;
	data->wait_ns = end_ns > data->posted_ns ? end_ns - data->posted_ns : 0;
	if (!error) {
		data->bytes = request->size_done;
		data->lane_kinds = request->used_kinds;
	}
	comm_stats_tcp(request->comm->stats, &retransmits, &data->rtt_ns);
	data->retransmits = retransmits - data->retransmits;
	return event;
}
