/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_events.c - events between the stacks of a DPDK port: a ring under a lock, since they are
 * rare. */
#include "host/dpdk_events.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define NEWS_WORDS 256u

struct dpdk_events {
	pthread_mutex_t lock;
	struct dpdk_reader *readers;
	uint64_t told; /* number of events so far; the last NEWS_WORDS are kept */
	struct dpdk_event words[NEWS_WORDS];
};

struct dpdk_events *dpdk_events_create(void)
{
	struct dpdk_events *news = calloc(1, sizeof(*news));

	if (news)
		pthread_mutex_init(&news->lock, NULL);
	return news;
}

void dpdk_events_destroy(struct dpdk_events *news)
{
	if (!news)
		return;
	pthread_mutex_destroy(&news->lock);
	free(news);
}

void dpdk_events_join(struct dpdk_events *news, struct dpdk_reader *reader)
{
	pthread_mutex_lock(&news->lock);
	reader->seen = news->told;
	atomic_init(&reader->pending, false);
	reader->next = news->readers;
	news->readers = reader;
	pthread_mutex_unlock(&news->lock);
}

void dpdk_events_leave(struct dpdk_events *news, struct dpdk_reader *reader)
{
	struct dpdk_reader **at = &news->readers;

	pthread_mutex_lock(&news->lock);
	while (*at && *at != reader)
		at = &(*at)->next;
	if (*at)
		*at = reader->next;
	pthread_mutex_unlock(&news->lock);
}

void dpdk_events_publish(struct dpdk_events *news, const struct dpdk_event *word)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&news->lock);
	news->words[news->told++ % NEWS_WORDS] = *word;
	for (struct dpdk_reader *r = news->readers; r; r = r->next)
		if (r != word->from && !atomic_exchange(&r->pending, true) && r->fd >= 0 &&
		    write(r->fd, &one, sizeof(one)) < 0)
			continue; /* a reader that checks pending sees it a little later */
	pthread_mutex_unlock(&news->lock);
}

bool dpdk_events_next(struct dpdk_events *news, struct dpdk_reader *reader, struct dpdk_event *out)
{
	bool found = false;
	uint64_t drained;

	if (!atomic_load_explicit(&reader->pending, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&news->lock);
	if (news->told - reader->seen > NEWS_WORDS)
		reader->seen = news->told - NEWS_WORDS;
	while (!found && reader->seen < news->told) {
		*out = news->words[reader->seen++ % NEWS_WORDS];
		found = out->from != reader;
	}
	if (!found) {
		atomic_store(&reader->pending, false);
		if (reader->fd >= 0 && read(reader->fd, &drained, sizeof(drained)) < 0)
			drained = 0; /* nothing was written, or it will be seen again */
	}
	pthread_mutex_unlock(&news->lock);
	return found;
}
