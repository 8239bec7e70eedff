/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay_strangers.c - callers of our servers that have not shaken hands yet.
 *
 * Whoever may open a server's socket may call, as often as it likes, and say nothing. A *stranger* has RELAY_GREET_NS to shake
 * hands. There are RELAY_STRANGERS_MAX of them; one more, and the server with the most loses the one it has had longest: so
 * those of one server leave the others theirs. One of the newcomer's own server has a moment before that happens to it, in which
 * a peer that means it has shaken hands, whoever else calls meanwhile.
 *
 * Under the hub's lock.
 */
#include "dpdk/relay_hub.h"

/* A caller that is there, and has not shaken hands. */
static bool pair_is_stranger(const struct pair *pair)
{
	return pair->listener->serves && !pair->known && pair->peer >= 0;
}

/* Of a server, or of all (NULL); and the oldest. Those that came last are first in the list. */
static unsigned strangers_of(const struct listener *listener, struct pair **oldest)
{
	unsigned count = 0;

	for (struct pair *pair = hub.pairs; pair; pair = pair->next)
		if ((!listener || pair->listener == listener) && pair_is_stranger(pair)) {
			*oldest = pair;
			count++;
		}
	return count;
}

/* Connections that came from there, and have an end yet. */
static unsigned listener_pairs(const struct listener *listener)
{
	unsigned count = 0;

	for (const struct pair *pair = hub.pairs; pair; pair = pair->next)
		count += pair->listener == listener;
	return count;
}

bool strangers_room(const struct listener *listener, uint64_t now_ns)
{
	struct pair *victim = NULL;
	unsigned most = 0;

	/* Those that were sent away are there until the driver has heard of it. */
	if (hub.pair_count >= RELAY_PAIRS_MAX || listener_pairs(listener) >= RELAY_PAIRS_MAX / 2)
		return false;
	if (!listener->serves || strangers_of(NULL, &victim) < RELAY_STRANGERS_MAX)
		return true;
	for (struct listener *at = hub.listeners; at; at = at->next) {
		struct pair *oldest = NULL;
		unsigned count = strangers_of(at, &oldest);

		if (count > most) {
			most = count;
			victim = oldest;
		}
	}
	if (victim->listener == listener && now_ns - victim->since_ns < RELAY_MOMENT_NS)
		return false;
	pair_hang_up(victim);
	return true;
}

uint64_t strangers_late(uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;

	for (struct pair *pair = hub.pairs; pair; pair = pair->next) {
		uint64_t until_ns = pair->since_ns + RELAY_GREET_NS;

		if (!pair_is_stranger(pair))
			continue;
		if (now_ns >= until_ns)
			pair_hang_up(pair);
		else if (until_ns - now_ns < next_ns)
			next_ns = until_ns - now_ns;
	}
	return next_ns;
}
