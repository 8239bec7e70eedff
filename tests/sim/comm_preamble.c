/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_preamble.c - further HARP lanes are opened as in the plugin: attempt.c and the preamble on one end, listener.c,
 * pending.c and registry.c on the other, over the stacks and wires of the simulation. In the place of acceptor.c, peers.c, keyfile.c and
 * lane_encrypted.c stand functions of this file.
 *
 * Theory of operation. A lane of comm_lanes.c is known by its port: that of each SYN while it is being opened, then its own. Its ends become
 * its comm's when the plugin attaches them, and belong until then to the attempt and to the listener.
 */
#include "comm_preamble.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "connect/attempt.h"
#include "connect/listener.h"
#include "process/forkguard.h"
#include "process/keyfile.h"
#include "lane/lane_harp.h"
#include "lane/lane_encrypted.h"
#include "connect/peers.h"
#include "connect/registry.h"

/* Doubles have the parameters of what they replace. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static struct csim *preamble_sim;

/* ---- in the place of others ------------------------------------------------------------------------ */

ssize_t getrandom(void *buf, size_t len, unsigned flags)
{
	uint8_t *out = buf;

	for (size_t i = 0; i < len; i++)
		out[i] = (uint8_t)rng_u64(&preamble_sim->rng);
	return (ssize_t)len;
}

const uint8_t *keyfile_key(void)
{
	return NULL;
}

int lane_encrypt(struct lane **lane, uint64_t sent_bytes, const uint8_t out[CRYPTO_KEY_BYTES],
		 const uint8_t in[CRYPTO_KEY_BYTES])
{
	abort(); /* without a key */
}

bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out)
{
	return false;
}

void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end)
{
}

void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
}

uint8_t rails_lanes_taken(int dev)
{
	return PREAMBLE_LANES_MAX;
}

/* No first lane is accepted. */
size_t acceptor_rails(int dev, uint8_t out[RAILS_BYTES_MAX])
{
	return 0;
}

int forkguard_accept(int fd, struct sockaddr_storage *peer)
{
	abort(); /* kernel lanes come without a preamble */
}

/* ---- listeners --------------------------------------------------------------------------------------- */

static void preamble_open(struct csim_nic *nic)
{
	if (!nic->lane_listener &&
	    stack_listener_open(&nic->lane_listener, (int)nic->rail, &nic->engine))
		(void)csim_fail(nic->sim, "host %u rail %u: no listener for lanes", nic->host,
				nic->rail);
}

void csim_preamble_begin(struct csim *sim)
{
	preamble_sim = sim;
	for (unsigned i = 0; i < sim->scenario->lane_count; i++) {
		const struct csn_lane *l = &sim->scenario->lanes[i];
		const struct csn_comm *c = &sim->scenario->comms[l->comm];

		if (c->reconnect && l->kind == CSN_HARP)
			preamble_open(sim->hosts[c->to].nics[l->rail]);
	}
}

/* What it had went with the stack. */
void csim_preamble_drop(struct csim_nic *nic)
{
	nic->engine.listener = NULL;
	free(nic->lane_listener);
	nic->lane_listener = NULL;
}

uint64_t csim_preamble_next_ns(const struct csim_nic *nic)
{
	return nic->lane_listener && nic->lane_listener->pending_set.count
		       ? nic->lane_listener->pending_set.next_ns
		       : CSIM_NEVER_NS;
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

bool csim_preamble_port(const struct csim_lane *lane, uint16_t port)
{
	if (lane->port == port)
		return true;
	if (!lane->has_preamble || !lane->attempt)
		return false;
	if (lane->attempt->lane)
		return lane->attempt->lane->local.port == port;
	for (unsigned i = 0; i < lane->attempt->search.lane_count; i++) {
		if (lane->attempt->search.lanes[i]->local.port == port)
			return true;
	}
	return false;
}

/* The lane at an end that has not joined its comm yet. */
struct lane *csim_preamble_end(const struct csim_lane *lane, enum csim_side side)
{
	struct csim_nic *nic = lane->sim->hosts[csim_lane_host(lane, side)].nics[lane->spec->rail];
	struct harp_addr from =
		csim_addr(lane->sim, csim_lane_host(lane, CSIM_SEND), (unsigned)lane->spec->rail);

	if (lane->end[side].lane || !lane->has_preamble || !lane->attempt)
		return lane->end[side].lane;
	if (side == CSIM_SEND) {
		const struct port_search *o = &lane->attempt->search;

		return lane->attempt->lane || !o->lane_count ? lane->attempt->lane
							     : o->lanes[o->lane_count - 1];
	}
	for (unsigned i = 0; nic->lane_listener && i < PENDING_MAX; i++) {
		struct lane *pending = nic->lane_listener->pending_set.pending[i].lane;

		if (pending && csim_preamble_port(lane, pending->remote.port) &&
		    memcmp(&pending->remote.addr, &from, sizeof(from)) == 0)
			return pending;
	}
	return NULL;
}

/* ---- further lanes ----------------------------------------------------------------------------------- */

void csim_preamble_proved(const struct attempt *attempt, struct csim_lane *lane)
{
	lane->port = attempt->lane->local.port;
	lane->end[CSIM_SEND].lane = attempt->lane;
	csim_lane_adopt(attempt->lane);
}

static bool preamble_is_pending(const struct csim_nic *nic, const struct lane *lane)
{
	for (unsigned i = 0; i < PENDING_MAX; i++) {
		if (nic->lane_listener->pending_set.pending[i].lane == lane)
			return true;
	}
	return false;
}

/* Of the SYNs of a lane one goes on to HELLO: that end is the lane's. It has joined when it is pending no more. */
void csim_preamble_settle(struct csim_nic *nic)
{
	struct csim *sim = nic->sim;

	for (unsigned i = 0; nic->lane_listener && i < PENDING_MAX; i++) {
		const struct pending *pending = &nic->lane_listener->pending_set.pending[i];
		struct csim_lane *l = pending->lane && pending->identified
					      ? csim_lane_from(nic, pending->lane)
					      : NULL;

		if (!l)
			continue;
		csim_lane_adopt(pending->lane);
		l->end[CSIM_RECV].lane = pending->lane;
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *l = &sim->lanes[i];
		struct csim_end *end = &l->end[CSIM_RECV];

		if (l->has_preamble && end->lane && end->lane->poller == &nic->engine.poller)
			end->joined |= !nic->lane_listener || !preamble_is_pending(nic, end->lane);
	}
}
