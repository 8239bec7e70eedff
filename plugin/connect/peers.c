/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - see peers.h. */
#include "connect/peers.h"

#include <pthread.h>
#include <string.h>

#include "base/addr.h"
#include "poll/engine.h"

struct peer {
	struct harp_addr addr;
	uint16_t port;
	uint64_t used; /* peers_clock at the last use; 0: the entry is free */
	bool has_end;
	struct placement_end end;
	uint64_t avoid_until_ns[ENGINES_MAX]; /* by engine index */
};

static pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer peers[PEERS_MAX];
static uint64_t peers_clock;

/* create: replaces the least recently used entry if there is none. peers_lock held. */
static struct peer *peers_find(const struct harp_endpoint *remote, bool create)
{
	struct peer *oldest = &peers[0];

	for (unsigned i = 0; i < PEERS_MAX; i++) {
		struct peer *peer = &peers[i];

		if (peer->used && peer->port == remote->port &&
		    addr_equal(&peer->addr, &remote->addr)) {
			peer->used = ++peers_clock;
			return peer;
		}
		if (peer->used < oldest->used)
			oldest = peer;
	}
	if (!create)
		return NULL;
	memset(oldest, 0, sizeof(*oldest));
	oldest->addr = remote->addr;
	oldest->port = remote->port;
	oldest->used = ++peers_clock;
	return oldest;
}

bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out)
{
	const struct peer *peer;
	bool known;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, false);
	known = peer && peer->has_end;
	if (known)
		*out = peer->end;
	pthread_mutex_unlock(&peers_lock);
	return known;
}

void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end)
{
	struct peer *peer;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, true);
	peer->has_end = true;
	peer->end = *end;
	pthread_mutex_unlock(&peers_lock);
}

void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	struct peer *peer;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, true);
	peer->has_end = false;
	peer->avoid_until_ns[engine] = now_ns + PEERS_AVOID_NS;
	pthread_mutex_unlock(&peers_lock);
}

bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	const struct peer *peer;
	bool avoided;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, false);
	avoided = peer && now_ns < peer->avoid_until_ns[engine];
	pthread_mutex_unlock(&peers_lock);
	return avoided;
}

void peers_reset(void)
{
	pthread_mutex_lock(&peers_lock);
	for (unsigned i = 0; i < PEERS_MAX; i++)
		if (peers[i].used)
			memset(&peers[i], 0, sizeof(peers[i]));
	pthread_mutex_unlock(&peers_lock);
}
