/* SPDX-License-Identifier: Apache-2.0 */
/* port_search.c - see port_search.h. */
#include "connect/port_search.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "lane/lane_harp.h"

/*
 * Theory of operation
 *
 * If each NIC delivers a connection to our queues from any port, a SYN is sent from any port. If
 * there is no answer, SYNs from other ports follow at growing intervals: the peer may be in
 * TIME-WAIT with an older connection from that port, or one of several network paths may be dead.
 *
 * Otherwise SYNs are sent in rounds, every ROUND_NS. If our NIC's hash is known, only ports are used
 * whose packets back reach our queue; after COMPUTED_ROUNDS without an answer, or if there is no
 * such port, the hash is taken to be wrong. A round has about twice as many ports as it takes on
 * average to find a right one, at most ROUND_PORTS_MAX. The first lane whose handshake completes is
 * used, and the others are aborted. A SYN on the wrong queue is dropped by the peer's host, a
 * SYN-ACK on the wrong queue by this host; neither is answered. Beyond PORT_SEARCH_LANES_MAX lanes,
 * the oldest is dropped.
 *
 * A RST is an answer: it reached the right queue, and nothing listens at the peer's port.
 */

#define ANOTHER_NS 1000000000ull /* for the answer to a SYN from any port; doubled each time */
#define ROUND_NS 50000000ull
#define ROUND_PORTS_MAX 32u
#define COMPUTED_ROUNDS 6u
#define LAST_ROUND_NS 300000000ull /* wait after the last SYNs */
/* Step from one source port to the next: a prime above the number of ports visits each port
 * once. */
#define STRIDE 65521u

void port_search_prepare(struct port_search *o, const struct candidate *candidate, int dscp)
{
	uint64_t random = 0;
	uint16_t last;

	memset(o, 0, sizeof(*o));
	o->engine = candidate->engine;
	o->dscp = dscp;
	o->local = candidate->local;
	o->remote = candidate->remote;
	o->own = engine_queue(o->engine);
	o->peer_queues = candidate->peer_queues;
	o->peer_queue = candidate->peer_queue;
	o->computes = o->own.rss->kind == HARP_RSS_TOEPLITZ;
	engine_ports(o->engine, &o->first, &last);
	o->count = last >= o->first ? (uint32_t)(last - o->first) + 1u : 0;
	(void)!getrandom(&random, sizeof(random), GRND_NONBLOCK); /* only to spread ports */
	o->start = (uint32_t)random;
}

static bool port_search_is_free(const struct port_search *o)
{
	return o->own.queues <= 1 && o->peer_queues <= 1;
}

/* The next source port that may work; 0: none is left. */
static uint16_t port_search_next(struct port_search *o)
{
	while (o->at < o->count && o->ports_tried < PORT_SEARCH_PORTS_MAX) {
		uint64_t step = o->start + (uint64_t)o->at++ * STRIDE;

		o->local.port = (uint16_t)(o->first + step % o->count);
		if (!o->computes ||
		    harp_rss_queue(o->own.rss, &o->remote, &o->local) == o->own.queue)
			return o->local.port;
	}
	return 0;
}

static void port_search_drop(struct port_search *o, unsigned index)
{
	o->lanes[index]->ops->close(o->lanes[index], true);
	o->lane_count--;
	memmove(&o->lanes[index], &o->lanes[index + 1],
		(o->lane_count - index) * sizeof(struct lane *));
}

void port_search_stop(struct port_search *o)
{
	while (o->lane_count)
		port_search_drop(o, o->lane_count - 1);
}

/* Sends one SYN. port 0: any. */
static int port_search_call(struct port_search *o, uint16_t port)
{
	struct lane *lane;
	int rc;

	o->local.port = port;
	if (o->lane_count == PORT_SEARCH_LANES_MAX)
		port_search_drop(o, 0);
	rc = lane_harp_connect(o->engine, &o->local, &o->remote, o->dscp, &lane);
	if (rc)
		return rc;
	lane->owner = o->owner;
	lane->notify = o->notify;
	o->lanes[o->lane_count++] = lane;
	o->ports_tried++;
	return 0;
}

static unsigned port_search_round_ports(const struct port_search *o)
{
	unsigned chance = !o->computes && o->own.queues ? o->own.queues : 1;

	if (o->peer_queues)
		chance *= o->peer_queues;
	if (chance > 1)
		chance *= 2;
	return chance < ROUND_PORTS_MAX ? chance : ROUND_PORTS_MAX;
}

/* Sends `wanted` SYNs. 0; 1: out of ports; or the error of a SYN if no other is in progress. */
static int port_search_calls(struct port_search *o, unsigned wanted)
{
	for (unsigned opened = 0; opened < wanted;) {
		uint16_t port = port_search_next(o);
		int rc;

		if (!port)
			return 1;
		rc = port_search_call(o, port);
		if (!rc)
			opened++;
		else if (rc == -ENOSPC && o->lane_count)
			return 0; /* the stack is busy: continue in the next round */
		else if (rc != -EADDRINUSE)
			return rc;
	}
	return 0;
}

/* Sends a SYN from any port. An error is ignored if others are in progress. */
static int port_search_any(struct port_search *o, uint64_t now_ns)
{
	int rc = port_search_call(o, 0);

	o->next_ns = now_ns + (ANOTHER_NS << o->rounds);
	return o->rounds++ ? 0 : rc;
}

static int port_search_round(struct port_search *o, uint64_t now_ns)
{
	int rc;

	if (port_search_is_free(o))
		return port_search_any(o, now_ns);
	if (o->rounds++ == COMPUTED_ROUNDS)
		o->computes = false;
	o->next_ns = now_ns + ROUND_NS;
	rc = port_search_calls(o, port_search_round_ports(o));
	if (rc > 0 && o->computes) {
		o->computes = false;
		o->at = 0;
		return 0;
	}
	if (rc <= 0)
		return rc;
	o->next_ns = UINT64_MAX;
	o->give_up_ns = now_ns + LAST_ROUND_NS;
	return o->lane_count ? 0 : -EADDRNOTAVAIL;
}

/* Returns the open lane; otherwise 0, or the error of an answer. */
static int port_search_look(struct port_search *o, struct lane **open)
{
	for (unsigned i = 0; i < o->lane_count;) {
		struct lane *lane = o->lanes[i];
		int error = lane->error;

		switch (lane->ops->state(lane)) {
		case LANE_OPEN:
			*open = lane;
			o->lane_count--;
			memmove(&o->lanes[i], &o->lanes[i + 1], (o->lane_count - i) * sizeof(lane));
			return 1;
		case LANE_DEAD:
			port_search_drop(o, i);
			if (error != -ETIMEDOUT || !o->lane_count)
				return error;
			break;
		case LANE_CONNECTING:
			i++;
			break;
		}
	}
	return 0;
}

int port_search_advance(struct port_search *o, uint64_t now_ns, struct lane **lane)
{
	int rc;

	*lane = NULL;
	if (!o->rounds)
		o->next_ns = o->give_up_ns = UINT64_MAX;
	rc = o->rounds ? port_search_look(o, lane) : port_search_round(o, now_ns);
	if (!rc && now_ns >= o->give_up_ns)
		rc = -ETIMEDOUT;
	if (!rc && now_ns >= o->next_ns)
		rc = port_search_round(o, now_ns);
	if (rc)
		port_search_stop(o);
	return rc;
}

const char *port_search_silence(const struct port_search *o, char *buf, size_t len)
{
	char way[96];

	buf[0] = '\0';
	if (port_search_is_free(o))
		return buf;
	if (o->peer_queues)
		snprintf(way, sizeof(way),
			 "between our queue %u of %u and the peer's queue %u of %u", o->own.queue,
			 o->own.queues, o->peer_queue, o->peer_queues);
	else
		snprintf(way, sizeof(way), "to our queue %u of %u", o->own.queue, o->own.queues);
	snprintf(
		buf, len,
		"no answer to %u source ports: packets %s find no way (a NIC that does not spread by "
		"ports needs HARP_INSTANCES=1)",
		o->ports_tried, way);
	return buf;
}
