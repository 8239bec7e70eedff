/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - listen comms and the acceptor's multi-lane comms, by id; see registry.h. */
#include "connect/registry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "comm/comm.h"
#include "device/device.h"
#include "process/log.h"

/* Authenticated connectors draw ids at random, so their low bits serve as the hash. */
#define BUCKETS 1024u

struct registry_entry {
	struct registry_entry *next;
	uint64_t id;
	struct comm *comm;
	uint8_t key[PREAMBLE_KEY_BYTES];
	/* Readers attach lanes; they begin under registry_lock. The writer has unlinked the entry,
	 * so no reader ever waits for it. */
	pthread_rwlock_t attaching;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
/* Under registry_lock. */
static struct registry_entry *registry_buckets[BUCKETS];
static struct listen_comm *registry_listens;

/* ---- multi-lane comms ----------------------------------------------------------------------- */

/* registry_lock held. */
static struct registry_entry *registry_find(uint64_t id)
{
	struct registry_entry *entry = registry_buckets[id % BUCKETS];

	while (entry && entry->id != id)
		entry = entry->next;
	return entry;
}

static struct registry_entry *registry_entry_new(uint64_t id, const uint8_t *key)
{
	struct registry_entry *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return NULL;
	entry->id = id;
	memcpy(entry->key, key, PREAMBLE_KEY_BYTES);
	pthread_rwlock_init(&entry->attaching, NULL);
	return entry;
}

static void registry_entry_free(struct registry_entry *entry)
{
	if (!entry)
		return;
	pthread_rwlock_destroy(&entry->attaching);
	explicit_bzero(entry->key, sizeof(entry->key));
	free(entry);
}

void registry_hide(struct comm *comm)
{
	struct registry_entry *entry = comm->entry;

	if (!entry)
		return;
	pthread_mutex_lock(&registry_lock);
	LIST_UNLINK(registry_buckets[entry->id % BUCKETS], entry, next);
	pthread_mutex_unlock(&registry_lock);
	pthread_rwlock_wrlock(&entry->attaching);
	pthread_rwlock_unlock(&entry->attaching);
}

void registry_remove(struct comm *comm)
{
	struct registry_entry *entry = comm->entry;

	if (!entry)
		return;
	registry_hide(comm);
	comm->entry = NULL;
	background_end(comm);
	registry_entry_free(entry);
}

int registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
		  const struct comm_lane_options *opt)
{
	struct registry_entry *entry;
	int rc;

	pthread_mutex_lock(&registry_lock);
	entry = registry_find(comm_id);
	if (entry && memcmp(entry->key, key, PREAMBLE_KEY_BYTES) != 0)
		entry = NULL;
	if (entry)
		pthread_rwlock_rdlock(&entry->attaching);
	pthread_mutex_unlock(&registry_lock);
	if (!entry)
		return -ENOENT;
	rc = comm_attach(entry->comm, lane, opt);
	pthread_rwlock_unlock(&entry->attaching);
	return rc;
}

/* ---- listen comms --------------------------------------------------------------------------- */

/* registry_lock held. */
static struct listen_comm *listen_find(uint64_t id)
{
	struct listen_comm *listen = registry_listens;

	while (listen && listen->id != id)
		listen = listen->next;
	return listen;
}

void registry_listen(struct listen_comm *listen)
{
	pthread_mutex_lock(&registry_lock);
	listen->next = registry_listens;
	registry_listens = listen;
	pthread_mutex_unlock(&registry_lock);
}

void registry_unlisten(struct listen_comm *listen)
{
	struct comm *comm, *next;

	pthread_mutex_lock(&registry_lock);
	LIST_UNLINK(registry_listens, listen, next);
	pthread_mutex_unlock(&registry_lock);
	for (comm = listen->waiting; comm; comm = next) {
		next = comm->next;
		registry_remove(comm);
		comm_close(comm, true);
	}
	listen->waiting = NULL;
}

int registry_accept(struct listen_comm *listen, struct comm **out)
{
	int error = 0;

	pthread_mutex_lock(&registry_lock);
	*out = listen->waiting;
	if (*out) {
		listen->waiting = (*out)->next;
		listen->waiting_count--;
	} else {
		error = listen->error;
		listen->error = 0;
	}
	pthread_mutex_unlock(&registry_lock);
	return error;
}

bool registry_key(uint64_t id, bool joins, uint8_t key[PREAMBLE_KEY_BYTES])
{
	const struct registry_entry *entry;
	const struct listen_comm *listen;
	const uint8_t *source;

	pthread_mutex_lock(&registry_lock);
	entry = joins ? registry_find(id) : NULL;
	listen = joins ? NULL : listen_find(id);
	source = entry ? entry->key : listen ? listen->secret : NULL;
	if (source)
		memcpy(key, source, PREAMBLE_KEY_BYTES);
	pthread_mutex_unlock(&registry_lock);
	return source != NULL;
}

bool registry_admits(uint64_t listen_id, const struct harp_endpoint *peer)
{
	char text[HARP_ENDPOINT_TEXT_MAX];
	struct listen_comm *listen;
	bool admits = false, logs = false;
	int dev = 0;

	pthread_mutex_lock(&registry_lock);
	listen = listen_find(listen_id);
	if (listen) {
		admits = listen->waiting_count < LISTEN_WAITING_MAX;
		logs = !admits && !listen->full_logged;
		listen->full_logged |= logs;
		dev = listen->dev;
	}
	pthread_mutex_unlock(&registry_lock);
	if (logs)
		WARN("%s: refused %s, which connects again: %u comms wait for accept; does this rank "
		     "still call it, and which other program has its handles?",
		     plugin_device(dev)->ifname, harp_endpoint_format(peer, text),
		     LISTEN_WAITING_MAX);
	return admits;
}

void registry_fail(uint64_t listen_id, const struct harp_endpoint *peer, int error)
{
	char text[HARP_ENDPOINT_TEXT_MAX];
	struct listen_comm *listen;
	int dev = -1;

	pthread_mutex_lock(&registry_lock);
	listen = listen_find(listen_id);
	if (listen) {
		listen->error = error;
		dev = listen->dev;
	}
	pthread_mutex_unlock(&registry_lock);
	if (dev < 0) /* closed: no accept waits for the comm */
		return;
	WARN("%s: cannot accept %s: %s%s; its connection was reset, connect again when that has passed",
	     plugin_device(dev)->ifname, harp_endpoint_format(peer, text), lane_error_text(error),
	     lane_error_remedy(error, ""));
}

/* registry_lock held. entry: of a multi-lane comm, else NULL. */
static void registry_insert(struct listen_comm *listen, struct comm *comm,
			    struct registry_entry *entry)
{
	struct comm **tail = &listen->waiting;

	while (*tail)
		tail = &(*tail)->next;
	comm->next = NULL;
	*tail = comm;
	listen->waiting_count++;
	if (!entry)
		return;
	entry->comm = comm;
	entry->next = registry_buckets[entry->id % BUCKETS];
	registry_buckets[entry->id % BUCKETS] = entry;
	comm->entry = entry;
	background_begin(comm);
}

int registry_add(uint64_t listen_id, struct lane *lane, struct comm_options *opt,
		 const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct registry_entry *entry =
		opt->multi_lane ? registry_entry_new(opt->comm_id, key) : NULL;
	struct listen_comm *listen;
	struct comm *comm;
	int rc = 0;

	if (opt->multi_lane && !entry)
		return -ENOMEM;
	pthread_mutex_lock(&registry_lock);
	listen = listen_find(listen_id);
	if (!listen)
		rc = -ENOENT;
	else if (entry && registry_find(entry->id))
		rc = -EEXIST;
	else
		opt->ctx = listen->ctx;
	if (!rc)
		rc = comm_create(&comm, lane, opt);
	if (!rc)
		registry_insert(listen, comm, entry);
	pthread_mutex_unlock(&registry_lock);
	if (rc)
		registry_entry_free(entry);
	return rc;
}
