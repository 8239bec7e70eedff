/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_events.c - events between the stacks of a DPDK port: a ring under a lock, because events are
 * rare. */
#include "host/dpdk_events.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util.h"

#define EVENTS_MAX 256u

struct dpdk_events {
	pthread_mutex_t lock;
	struct dpdk_reader *readers;
	uint64_t published; /* number of events so far; the ring has the last EVENTS_MAX */
	struct dpdk_event ring[EVENTS_MAX];
};

struct dpdk_events *dpdk_events_create(void)
{
	struct dpdk_events *events = calloc(1, sizeof(*events));

	if (events)
		pthread_mutex_init(&events->lock, NULL);
	return events;
}

void dpdk_events_destroy(struct dpdk_events *events)
{
	if (!events)
		return;
	pthread_mutex_destroy(&events->lock);
	free(events);
}

void dpdk_events_join(struct dpdk_events *events, struct dpdk_reader *reader)
{
	pthread_mutex_lock(&events->lock);
	reader->seen = events->published;
	atomic_init(&reader->pending, false);
	reader->next = events->readers;
	events->readers = reader;
	pthread_mutex_unlock(&events->lock);
}

void dpdk_events_leave(struct dpdk_events *events, struct dpdk_reader *reader)
{
	pthread_mutex_lock(&events->lock);
	LIST_UNLINK(events->readers, reader, next);
	pthread_mutex_unlock(&events->lock);
}

void dpdk_events_publish(struct dpdk_events *events, const struct dpdk_event *event)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&events->lock);
	events->ring[events->published++ % EVENTS_MAX] = *event;
	for (struct dpdk_reader *r = events->readers; r; r = r->next)
		if (r != event->from && !atomic_exchange(&r->pending, true) && r->fd >= 0 &&
		    write(r->fd, &one, sizeof(one)) < 0)
			continue; /* a reader that polls `pending` reads the event later */
	pthread_mutex_unlock(&events->lock);
}

bool dpdk_events_next(struct dpdk_events *events, struct dpdk_reader *reader,
		      struct dpdk_event *out)
{
	bool has_event = false;
	uint64_t drained;

	if (!atomic_load_explicit(&reader->pending, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&events->lock);
	if (events->published - reader->seen > EVENTS_MAX)
		reader->seen = events->published - EVENTS_MAX;
	while (!has_event && reader->seen < events->published) {
		*out = events->ring[reader->seen++ % EVENTS_MAX];
		has_event = out->from != reader;
	}
	if (!has_event) {
		atomic_store(&reader->pending, false);
		if (reader->fd >= 0 && read(reader->fd, &drained, sizeof(drained)) < 0)
			drained = 0; /* not readable yet; the next call drains it */
	}
	pthread_mutex_unlock(&events->lock);
	return has_event;
}
