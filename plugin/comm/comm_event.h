/* SPDX-License-Identifier: Apache-2.0 */
/* comm_event.h - a message's event for NCCL's profiler. Called by the application thread. */
#ifndef HARP_PLUGIN_COMM_EVENT_H
#define HARP_PLUGIN_COMM_EVENT_H

#include "harp_profiler.h"

struct request;

struct comm_event {
	void *handle; /* the profiler's, stored by the caller; NULL: the profiler does not want the
			 event */
	struct harp_profiler_event data;
};

/* Called right after comm_post() returned the request. NULL: out of memory. */
struct comm_event *plugin_event_begin(struct request *request);
/* Called right after comm_test() reported the request done, or failed with this -errno. NULL: the
 * request has no event, or its event no handle. */
struct comm_event *plugin_event_end(struct request *request, int error);

#endif
