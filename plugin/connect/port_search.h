/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_search.h - one HARP lane to one endpoint, from a source port whose packets reach both queues.
 *
 * The poller of the engine is held throughout, but for port_search_prepare().
 */
#ifndef HARP_PLUGIN_PORT_SEARCH_H
#define HARP_PLUGIN_PORT_SEARCH_H

#include "poll/engine.h"
#include "lane/lane.h"
#include "wire/queue_placement.h"

#define PORT_SEARCH_LANES_MAX 64u  /* SYNs under way at a time */
#define PORT_SEARCH_PORTS_MAX 512u /* tried in all */

struct port_search {
	struct engine *engine;
	int dscp;
	struct placement_end own, peer;
	struct placement ports;
	struct lane *lanes[PORT_SEARCH_LANES_MAX]; /* oldest first */
	unsigned lane_count, ports_tried, rounds;
	unsigned ports_max;  /* how many are tried; port_search_prepare(): PORT_SEARCH_PORTS_MAX */
	uint64_t next_ns;    /* of the next round */
	uint64_t give_up_ns; /* all ports were tried, and then it was waited for them */
	bool several;        /* more than one port was needed */
	/* Of the lanes: the caller's. */
	void *owner;
	void (*notify)(struct lane *lane, uint64_t now_ns);
};

/* no poller needed. local: its port is not looked at. */
void port_search_prepare(struct port_search *o, struct engine *engine,
			 const struct placement_end *peer, const struct harp_endpoint *local,
			 const struct harp_endpoint *remote, int dscp);
/* Goes on: 1, *lane is open and the caller's, all others are gone; 0, later; or the error of the only, or
 * the last, lane (-ETIMEDOUT: nothing came of any port): all are gone. Begins by itself. */
int port_search_advance(struct port_search *o, uint64_t now_ns, struct lane **lane);
/* Ends what is under way; for errors and timeouts of the caller's. */
void port_search_stop(struct port_search *o);
/* Did it end in silence, with several ports or the one that should have done? One line, else "". */
const char *port_search_silence(const struct port_search *o, char *buf, size_t len);

#endif
