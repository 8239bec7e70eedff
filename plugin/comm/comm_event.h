/* SPDX-License-Identifier: Apache-2.0 */
/* comm_event.h - the event of a message for NCCL's profiler. The application, throughout. */
#ifndef HARP_PLUGIN_COMM_EVENT_H
#define HARP_PLUGIN_COMM_EVENT_H

#include "harp_profiler.h"

struct request;

struct comm_event {
	void *handle; /* the profiler's, stored by the caller; NULL: the profiler does not want the event */
	struct harp_profiler_event data;
};

/* Right after comm_post() gave the request. NULL: out of memory. */
struct comm_event *plugin_event_begin(struct request *request);
/* Right after comm_test() said that it is done, or failed with this -errno. NULL: there is none, or it has no handle. */
struct comm_event *plugin_event_end(struct request *request, int error);

#endif
