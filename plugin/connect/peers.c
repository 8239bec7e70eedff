/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - the memory of peers' HARP ports; see peers.h. */
#include "connect/peers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "poll/engine.h"

struct peer {
	struct harp_addr addr;
	uint16_t port;
	uint64_t used;             /* peers_clock at the last question; 0: the place is free */
	struct placement_end *end; /* NULL: it has said nothing */
	uint64_t avoid_until_ns[ENGINES_MAX]; /* of each of our engines */
};

static pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer *peers; /* PEERS_MAX of them, once there is one to remember */
static uint64_t peers_clock;

static void peer_clear(struct peer *peer)
{
	free(peer->end);
	memset(peer, 0, sizeof(*peer));
}

/* peers_lock held. make: the entry that was used longest ago is replaced if the table is full. */
static struct peer *peers_find(const struct harp_endpoint *remote, bool make)
{
	struct peer *oldest = NULL;

	if (!peers && make)
		peers = calloc(PEERS_MAX, sizeof(*peers));
	for (unsigned i = 0; peers && i < PEERS_MAX; i++) {
		struct peer *peer = &peers[i];

		if (peer->used && peer->port == remote->port &&
		    !memcmp(&peer->addr, &remote->addr, sizeof(peer->addr))) {
			peer->used = ++peers_clock;
			return peer;
		}
		if (!oldest || peer->used < oldest->used)
			oldest = peer;
	}
	if (!make || !oldest)
		return NULL;
	peer_clear(oldest);
	oldest->addr = remote->addr;
	oldest->port = remote->port;
	oldest->used = ++peers_clock;
	return oldest;
}

bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out)
{
	struct peer *peer;
	bool known;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, false);
	known = peer && peer->end;
	if (known)
		*out = *peer->end;
	pthread_mutex_unlock(&peers_lock);
	return known;
}

void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end)
{
	struct peer *peer;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, true);
	if (peer && !peer->end)
		peer->end = malloc(sizeof(*peer->end));
	if (peer && peer->end)
		*peer->end = *end;
	pthread_mutex_unlock(&peers_lock);
}

void peers_forget(const struct harp_endpoint *remote)
{
	struct peer *peer;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, false);
	if (peer) {
		free(peer->end);
		peer->end = NULL;
	}
	pthread_mutex_unlock(&peers_lock);
}

void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	struct peer *peer;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, true);
	if (peer && engine < ENGINES_MAX)
		peer->avoid_until_ns[engine] = now_ns + PEERS_AVOID_NS;
	pthread_mutex_unlock(&peers_lock);
}

unsigned peers_avoided_s(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	const struct peer *peer;
	uint64_t until_ns = 0;
	unsigned seconds = 0;

	pthread_mutex_lock(&peers_lock);
	peer = peers_find(remote, false);
	if (peer && engine < ENGINES_MAX)
		until_ns = peer->avoid_until_ns[engine];
	/* Begun seconds count, so that it is never 0 while it holds. Whose clock is older than what began it is in the first. */
	if (now_ns < until_ns)
		seconds = 1u +
			  (now_ns + PEERS_AVOID_NS > until_ns
				   ? (unsigned)((now_ns + PEERS_AVOID_NS - until_ns) / 1000000000u)
				   : 0);
	pthread_mutex_unlock(&peers_lock);
	return seconds;
}

void peers_reset(void)
{
	pthread_mutex_lock(&peers_lock);
	for (unsigned i = 0; peers && i < PEERS_MAX; i++)
		peer_clear(&peers[i]);
	free(peers);
	peers = NULL;
	pthread_mutex_unlock(&peers_lock);
}
