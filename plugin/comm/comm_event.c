/* SPDX-License-Identifier: Apache-2.0 */
/* comm_event.c - what NCCL's profiler gets to know of a message (harp_profiler.h). The application, throughout. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

static_assert((int)HARP_PROFILER_LANE_HARP == LANE_HARP &&
		      (int)HARP_PROFILER_LANE_KERNEL == LANE_KERNEL,
	      "kinds of lanes are published");
static_assert((int)HARP_PROFILER_SEND == COMM_SEND && (int)HARP_PROFILER_RECEIVE == COMM_RECV,
	      "sides are published");

struct comm_event *comm_event_begin(struct request *request)
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

struct comm_event *comm_event_end(struct request *request, int error)
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
	/* A request that failed may be the poller's still. */
	end_ns = error || !request->begun_ns ? data->done_ns : request->begun_ns;
	data->wait_ns = end_ns > data->posted_ns ? end_ns - data->posted_ns : 0;
	if (!error) {
		data->bytes = request->size_done;
		data->lane_kinds =
			request->comm->side == COMM_SEND ? request->carried : request->brought;
	}
	comm_stats_tcp(request->comm->stats, &retransmits, &data->rtt_ns);
	data->retransmits = retransmits - data->retransmits;
	return event;
}
