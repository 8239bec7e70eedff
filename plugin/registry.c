/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - the acceptor's comms of several lanes, by id; see registry.h. */
#include "registry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tender.h"

/* Ids are drawn at random by connectors that have proved themselves: their low bits will do. */
#define BUCKETS 1024u

struct registry_entry {
	struct registry_entry *next;
	uint64_t id;
	struct comm *comm; /* NULL: it is expected */
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct tender tender;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registry_entry *registry_buckets[BUCKETS]; /* under registry_lock */

/* registry_lock held: where the entry hangs, or would. */
static struct registry_entry **registry_find(uint64_t id)
{
	struct registry_entry **at = &registry_buckets[id % BUCKETS];

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	return at;
}

int registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct registry_entry *entry = calloc(1, sizeof(*entry)), **at;
	int rc = 0;

	if (!entry)
		return -ENOMEM;
	entry->id = comm_id;
	entry->comm = comm;
	memcpy(entry->key, key, PREAMBLE_KEY_BYTES);
	pthread_mutex_lock(&registry_lock);
	at = registry_find(comm_id);
	if (*at) {
		rc = -EEXIST;
	} else {
		*at = entry;
		comm->entry = entry;
	}
	pthread_mutex_unlock(&registry_lock);
	if (rc)
		free(entry);
	else
		tender_begin(&entry->tender, comm);
	return rc;
}

struct registry_entry *registry_expect(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct registry_entry *entry = calloc(1, sizeof(*entry)), **at;
	bool known;

	if (!entry)
		return NULL;
	entry->id = comm_id;
	memcpy(entry->key, key, PREAMBLE_KEY_BYTES);
	pthread_mutex_lock(&registry_lock);
	at = registry_find(comm_id);
	known = *at != NULL;
	if (!known)
		*at = entry;
	pthread_mutex_unlock(&registry_lock);
	if (!known)
		return entry;
	free(entry);
	return NULL;
}

void registry_forget(struct registry_entry *expected)
{
	struct registry_entry **at;

	pthread_mutex_lock(&registry_lock);
	at = registry_find(expected->id);
	*at = expected->next;
	pthread_mutex_unlock(&registry_lock);
	explicit_bzero(expected->key, sizeof(expected->key));
	free(expected);
}

void registry_hide(struct comm *comm)
{
	struct registry_entry *entry = comm->entry, **at;

	if (!entry)
		return;
	pthread_mutex_lock(&registry_lock);
	at = registry_find(entry->id);
	if (*at == entry) /* not hidden before: another may have the id by now */
		*at = entry->next;
	pthread_mutex_unlock(&registry_lock);
}

void registry_remove(struct comm *comm)
{
	struct registry_entry *entry = comm->entry;

	if (!entry)
		return;
	registry_hide(comm);
	comm->entry = NULL;
	tender_end(&entry->tender);
	explicit_bzero(entry->key, sizeof(entry->key));
	free(entry);
}

bool registry_key(uint64_t comm_id, uint8_t key[PREAMBLE_KEY_BYTES])
{
	const struct registry_entry *entry;

	pthread_mutex_lock(&registry_lock);
	entry = *registry_find(comm_id);
	if (entry)
		memcpy(key, entry->key, PREAMBLE_KEY_BYTES);
	pthread_mutex_unlock(&registry_lock);
	return entry != NULL;
}

int registry_join(uint64_t comm_id, struct lane *lane, const struct comm_lane_options *opt)
{
	const struct registry_entry *entry;
	int rc = -ENOENT;

	pthread_mutex_lock(&registry_lock);
	entry = *registry_find(comm_id);
	if (entry && entry->comm)
		rc = comm_attach(entry->comm, lane, opt);
	pthread_mutex_unlock(&registry_lock);
	return rc;
}
