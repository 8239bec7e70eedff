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
 * If each NIC has one queue, a SYN is sent from any port. If there is no answer, SYNs from other
 * ports follow at growing intervals: the peer may be in TIME-WAIT with an older connection from
 * that port, or one of several network paths may be dead.
 *
 * If both NICs' hashes are known (queue_placement.h), one SYN is sent from a computed port; more
 * follow only if it gets no answer for CERTAIN_NS.
 *
 * Otherwise SYNs are sent in rounds, every ROUND_NS, from about twice as many ports as it takes on
 * average to find a right one, at most ROUND_PORTS_MAX. The first lane whose handshake completes is
 * used, and the others are aborted. A SYN on the wrong queue is dropped by the peer's host, a
 * SYN-ACK on the wrong queue by this host; neither is answered. Beyond PORT_SEARCH_LANES_MAX lanes,
 * the oldest is dropped.
 *
 * A RST is an answer: it reached the right queue, and nothing listens at the peer's port.
 */

#define ANOTHER_NS 1000000000ull /* for the answer to a SYN from any port; doubled each time */
#define CERTAIN_NS 300000000ull
#define ROUND_NS 50000000ull
#define ROUND_PORTS_MAX 32u
#define LAST_ROUND_NS 300000000ull /* wait after the last SYNs */

void port_search_prepare(struct port_search *o, struct engine *engine,
			 const struct placement_end *peer, const struct harp_endpoint *local,
			 const struct harp_endpoint *remote, int dscp)
{
	uint16_t first, last;
	uint64_t random = 0;

	memset(o, 0, sizeof(*o));
	o->engine = engine;
	o->dscp = dscp;
	o->ports_max = PORT_SEARCH_PORTS_MAX;
	o->peer = *peer;
	engine_placement(engine, &o->own);
	engine_ports(engine, &first, &last);
	(void)!getrandom(&random, sizeof(random), GRND_NONBLOCK); /* only to spread ports */
	placement_begin(&o->ports, &o->own, &o->peer, local, remote, first, last, random);
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
static int port_search_send_syn(struct port_search *o, uint16_t port)
{
	struct harp_endpoint local = o->ports.local;
	struct lane *lane;
	int rc;

	local.port = port;
	if (o->lane_count == PORT_SEARCH_LANES_MAX)
		port_search_drop(o, 0);
	rc = lane_harp_connect(o->engine, &local, &o->ports.remote, o->dscp, &lane);
	if (rc)
		return rc;
	lane->owner = o->owner;
	lane->notify = o->notify;
	o->lanes[o->lane_count++] = lane;
	o->ports_tried++;
	return 0;
}

/* Twice the average number of tries to find a right port. */
static unsigned port_search_round_ports(const struct port_search *o)
{
	unsigned chance = 2;

	if (placement_is_computed(&o->ports))
		return 1;
	if ((!o->own.known || o->ports.try_all) && o->own.queues)
		chance *= o->own.queues;
	if ((!o->peer.known || o->ports.try_all) && o->peer.queues)
		chance *= o->peer.queues;
	return chance < ROUND_PORTS_MAX ? chance : ROUND_PORTS_MAX;
}

/* Sends `wanted` SYNs. 0; 1: out of ports; or the error of a SYN if no other is in progress. */
static int port_search_send_syns(struct port_search *o, unsigned wanted)
{
	for (unsigned opened = 0; opened < wanted;) {
		uint16_t port = o->ports_tried < o->ports_max ? placement_next(&o->ports) : 0;
		int rc;

		if (!port)
			return 1;
		rc = port_search_send_syn(o, port);
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
static int port_search_round_any_port(struct port_search *o, uint64_t now_ns)
{
	int rc = port_search_send_syn(o, 0);

	o->next_ns = now_ns + (ANOTHER_NS << o->rounds);
	return o->rounds++ ? 0 : rc;
}

static int port_search_round(struct port_search *o, uint64_t now_ns)
{
	unsigned wanted;
	int rc;

	if (placement_takes_any_port(&o->ports))
		return port_search_round_any_port(o, now_ns);
	if (o->rounds++ && placement_is_computed(&o->ports))
		o->ports.try_all = true;
	wanted = port_search_round_ports(o);
	o->next_ns = now_ns + (placement_is_computed(&o->ports) ? CERTAIN_NS : ROUND_NS);
	rc = port_search_send_syns(o, wanted);
	if (rc <= 0)
		return rc;
	if (!o->ports_tried && !o->ports.try_all) {
		/* No port should work, so the known placement must be wrong. */
		o->ports.try_all = true;
		o->ports.at = 0;
		o->next_ns = now_ns;
		return 0;
	}
	o->next_ns = UINT64_MAX;
	o->give_up_ns = now_ns + LAST_ROUND_NS;
	return o->lane_count ? 0 : -EADDRNOTAVAIL;
}

/* Returns the open lane; otherwise 0, or the error of an answer. */
static int port_search_check_lanes(struct port_search *o, struct lane **open)
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
	rc = o->rounds ? port_search_check_lanes(o, lane) : port_search_round(o, now_ns);
	if (!rc && now_ns >= o->give_up_ns)
		rc = -ETIMEDOUT;
	if (!rc && now_ns >= o->next_ns)
		rc = port_search_round(o, now_ns);
	if (rc)
		port_search_stop(o);
	return rc;
}

const char *port_search_describe_failure(const struct port_search *o, char *buf, size_t len)
{
	buf[0] = '\0';
	if (placement_takes_any_port(&o->ports))
		return buf;
	if (o->peer.queues)
		snprintf(buf, len,
			 "no answer to %u source ports: packets between our queue %u of %u and the "
			 "peer's queue %u of %u do not arrive",
			 o->ports_tried, o->own.queue, o->own.queues, o->peer.queue,
			 o->peer.queues);
	else
		snprintf(
			buf, len,
			"no answer to %u source ports: packets to our queue %u of %u do not arrive",
			o->ports_tried, o->own.queue, o->own.queues);
	return buf;
}
