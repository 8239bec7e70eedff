/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_search.h - opens a HARP lane to an endpoint from a source port whose packets reach both
 * queues.
 *
 * The poller of the engine is held, except in port_search_prepare().
 */
#ifndef HARP_PLUGIN_PORT_SEARCH_H
#define HARP_PLUGIN_PORT_SEARCH_H

#include "poll/engine.h"
#include "lane/lane.h"
#include "wire/queue_placement.h"

#define PORT_SEARCH_LANES_MAX 64u  /* concurrent SYNs */
#define PORT_SEARCH_PORTS_MAX 512u /* ports tried in total */

struct port_search {
	struct engine *engine;
	int dscp;
	struct placement_end own, peer;
	struct placement ports;
	struct lane *lanes[PORT_SEARCH_LANES_MAX]; /* oldest first */
	unsigned lane_count, ports_tried, rounds;
	unsigned
		ports_max; /* ports to try; set to PORT_SEARCH_PORTS_MAX by port_search_prepare() */
	uint64_t next_ns;  /* of the next round */
	uint64_t give_up_ns; /* all ports were tried, and the wait for answers is over */
	/* For the lanes; the caller's. */
	void *owner;
	void (*notify)(struct lane *lane, uint64_t now_ns);
};

/* local: its port is ignored. */
void port_search_prepare(struct port_search *o, struct engine *engine,
			 const struct placement_end *peer, const struct harp_endpoint *local,
			 const struct harp_endpoint *remote, int dscp);
/* Starts or continues the search. 1: *lane is open and owned by the caller; 0: in progress; or the
 * error of the last lane (-ETIMEDOUT: no answer on any port). All other lanes are closed. */
int port_search_advance(struct port_search *o, uint64_t now_ns, struct lane **lane);
/* Cancels the search. */
void port_search_stop(struct port_search *o);
/* If it ended without an answer, from several ports or from a computed one: one line of text, else
 * "". */
const char *port_search_describe_failure(const struct port_search *o, char *buf, size_t len);

#endif
