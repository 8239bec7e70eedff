/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - CUDA streams and events. A stream is a queue with a thread.
 *
 * An event counts how often it was recorded, and which of these records are complete. Queued
 * operations hold references to their events, so that an event may be destroyed before a stream
 * reaches it, as in CUDA.
 */
#include "emulation.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct event {
	unsigned references;
	uint64_t recorded, completed; /* tickets */
};

struct operation {
	struct operation *next;
	void (*function)(void *);
	void *arg;
	struct event *event;
	uint64_t ticket;
	bool is_record; /* records the event; otherwise waits for it */
};

struct stream {
	struct operation *first, **last;
	uint64_t submitted, done;
	bool is_closing;
};

/* Protects all streams and events. */
static pthread_mutex_t stream_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stream_changed = PTHREAD_COND_INITIALIZER;

/* ---- under stream_lock ----------------------------------------------------------------------- */

static void event_put(struct event *event)
{
	if (event && --event->references == 0)
		free(event);
}

static void stream_append(struct stream *stream, struct operation operation)
{
	struct operation *copy = emulation_alloc(sizeof(*copy));

	*copy = operation;
	copy->next = NULL;
	if (copy->event)
		copy->event->references++;
	*stream->last = copy;
	stream->last = &copy->next;
	stream->submitted++;
	pthread_cond_broadcast(&stream_changed);
}

static void stream_run(struct operation *operation)
{
	struct event *event = operation->event;

	if (operation->function) {
		pthread_mutex_unlock(&stream_lock);
		operation->function(operation->arg);
		pthread_mutex_lock(&stream_lock);
	} else if (operation->is_record) {
		if (event->completed < operation->ticket)
			event->completed = operation->ticket;
	} else {
		while (event->completed < operation->ticket)
			pthread_cond_wait(&stream_changed, &stream_lock);
	}
}

/* ---- the stream's thread --------------------------------------------------------------------- */

static void *stream_main(void *arg)
{
	struct stream *stream = arg;
	struct operation *operation;

	pthread_setname_np(pthread_self(), "emulated-gpu");
	pthread_mutex_lock(&stream_lock);
	for (;;) {
		operation = stream->first;
		if (!operation && stream->is_closing)
			break;
		if (!operation) {
			pthread_cond_wait(&stream_changed, &stream_lock);
			continue;
		}
		stream->first = operation->next;
		if (!stream->first)
			stream->last = &stream->first;
		stream_run(operation);
		event_put(operation->event);
		free(operation);
		stream->done++;
		pthread_cond_broadcast(&stream_changed);
	}
	pthread_mutex_unlock(&stream_lock);
	free(stream);
	return NULL;
}

/* ---- streams --------------------------------------------------------------------------------- */

struct stream *stream_open(void)
{
	struct stream *stream = emulation_alloc(sizeof(*stream));
	pthread_t thread;

	stream->last = &stream->first;
	if (pthread_create(&thread, NULL, stream_main, stream))
		emulation_fail("a stream's thread could not be started");
	pthread_detach(thread);
	return stream;
}

void stream_close(struct stream *stream)
{
	pthread_mutex_lock(&stream_lock);
	stream->is_closing = true;
	pthread_cond_broadcast(&stream_changed);
	pthread_mutex_unlock(&stream_lock);
}

void stream_call(struct stream *stream, void (*function)(void *), void *arg)
{
	pthread_mutex_lock(&stream_lock);
	stream_append(stream, (struct operation){ .function = function, .arg = arg });
	pthread_mutex_unlock(&stream_lock);
}

bool stream_is_idle(struct stream *stream)
{
	bool is_idle;

	pthread_mutex_lock(&stream_lock);
	is_idle = stream->done == stream->submitted;
	pthread_mutex_unlock(&stream_lock);
	return is_idle;
}

void stream_synchronize(struct stream *stream)
{
	uint64_t ticket;

	pthread_mutex_lock(&stream_lock);
	ticket = stream->submitted;
	while (stream->done < ticket)
		pthread_cond_wait(&stream_changed, &stream_lock);
	pthread_mutex_unlock(&stream_lock);
}

bool stream_wait(struct stream *stream, int timeout_ms)
{
	struct timespec deadline;
	bool is_idle;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_nsec += timeout_ms % 1000 * 1000000l;
	deadline.tv_sec += timeout_ms / 1000 + deadline.tv_nsec / 1000000000;
	deadline.tv_nsec %= 1000000000;
	pthread_mutex_lock(&stream_lock);
	while (stream->done < stream->submitted)
		if (pthread_cond_timedwait(&stream_changed, &stream_lock, &deadline))
			break;
	is_idle = stream->done == stream->submitted;
	pthread_mutex_unlock(&stream_lock);
	return is_idle;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct event *event_open(void)
{
	struct event *event = emulation_alloc(sizeof(*event));

	event->references = 1;
	return event;
}

void event_close(struct event *event)
{
	pthread_mutex_lock(&stream_lock);
	event_put(event);
	pthread_mutex_unlock(&stream_lock);
}

void event_record(struct event *event, struct stream *stream)
{
	pthread_mutex_lock(&stream_lock);
	stream_append(stream, (struct operation){ .event = event,
						  .ticket = ++event->recorded,
						  .is_record = true });
	pthread_mutex_unlock(&stream_lock);
}

void event_wait(struct event *event, struct stream *stream)
{
	pthread_mutex_lock(&stream_lock);
	if (event->completed < event->recorded)
		stream_append(stream,
			      (struct operation){ .event = event, .ticket = event->recorded });
	pthread_mutex_unlock(&stream_lock);
}

bool event_is_complete(struct event *event)
{
	bool is_complete;

	pthread_mutex_lock(&stream_lock);
	is_complete = event->completed == event->recorded;
	pthread_mutex_unlock(&stream_lock);
	return is_complete;
}

void event_synchronize(struct event *event)
{
	pthread_mutex_lock(&stream_lock);
	while (event->completed < event->recorded)
		pthread_cond_wait(&stream_changed, &stream_lock);
	pthread_mutex_unlock(&stream_lock);
}
