/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - the acceptor's comms of several lanes, by id; see registry.h. */
#include "connect/registry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "comm/background.h"

/* Ids are drawn at random by connectors that have proved themselves: their low bits will do. */
#define BUCKETS 1024u

struct registry_entry {
	struct registry_entry *next;
	uint64_t id;
	struct comm *comm;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct comm_background background;
	struct work free_work;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registry_entry *registry_buckets[BUCKETS]; /* under registry_lock */

/* registry_lock held. */
static struct registry_entry *registry_find(uint64_t id)
{
	struct registry_entry *entry = registry_buckets[id % BUCKETS];

	while (entry && entry->id != id)
		entry = entry->next;
	return entry;
}

static void registry_free(struct registry_entry *entry)
{
	explicit_bzero(entry->key, sizeof(entry->key));
	free(entry);
}

static void registry_free_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	registry_free(container_of(work, struct registry_entry, free_work));
}

int registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct registry_entry **bucket = &registry_buckets[comm_id % BUCKETS];
	struct registry_entry *entry = calloc(1, sizeof(*entry));
	bool exists;

	if (!entry)
		return -ENOMEM;
	entry->id = comm_id;
	entry->comm = comm;
	entry->free_work.run = registry_free_run;
	memcpy(entry->key, key, PREAMBLE_KEY_BYTES);
	pthread_mutex_lock(&registry_lock);
	exists = registry_find(comm_id) != NULL;
	if (!exists) {
		entry->next = *bucket;
		*bucket = entry;
		comm->entry = entry;
	}
	pthread_mutex_unlock(&registry_lock);
	if (exists) {
		registry_free(entry);
		return -EEXIST;
	}
	background_begin(&entry->background, comm);
	return 0;
}

void registry_hide(struct comm *comm)
{
	const struct registry_entry *entry = comm->entry;

	if (!entry)
		return;
	pthread_mutex_lock(&registry_lock);
	LIST_UNLINK(registry_buckets[entry->id % BUCKETS], entry, next);
	pthread_mutex_unlock(&registry_lock);
}

void registry_remove(struct comm *comm)
{
	struct registry_entry *entry = comm->entry;

	if (!entry)
		return;
	registry_hide(comm);
	comm->entry = NULL;
	background_end(&entry->background);
	/* Behind what the comm may have posted to wake the control thread. */
	control_post(&entry->free_work);
}

bool registry_key(uint64_t comm_id, uint8_t key[PREAMBLE_KEY_BYTES])
{
	const struct registry_entry *entry;

	pthread_mutex_lock(&registry_lock);
	entry = registry_find(comm_id);
	if (entry)
		memcpy(key, entry->key, PREAMBLE_KEY_BYTES);
	pthread_mutex_unlock(&registry_lock);
	return entry != NULL;
}

int registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
		  const struct comm_lane_options *opt)
{
	const struct registry_entry *entry;
	int rc = -ENOENT;

	pthread_mutex_lock(&registry_lock);
	entry = registry_find(comm_id);
	if (entry && !memcmp(entry->key, key, PREAMBLE_KEY_BYTES))
		rc = comm_attach(entry->comm, lane, opt);
	pthread_mutex_unlock(&registry_lock);
	return rc;
}
