/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_words.c - further HARP lanes are dialled and proved as in the plugin: attempt.c and the preamble on one end, listener.c,
 * pending.c and registry.c on the other, over the stacks and wires of the simulation. In the place of acceptor.c, peers.c, keyfile.c and
 * lane_encrypted.c stand functions of this file.
 *
 * Theory of operation. A lane of comm_lanes.c is known by its port: that of each SYN while it is being opened, then its own. Its ends become
 * its comm's when the plugin attaches them, and are until then what dial and door have of it.
 */
#include "comm_words.h"

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

static struct csim *words_sim;

/* ---- in the place of others ------------------------------------------------------------------------ */

ssize_t getrandom(void *buf, size_t len, unsigned flags)
{
	uint8_t *out = buf;

	for (size_t i = 0; i < len; i++)
		out[i] = (uint8_t)rng_u64(&words_sim->rng);
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

/* A NIC stands for its rendezvous. Nobody listens for first lanes there. */
int acceptor_dev(const struct acceptor *acceptor)
{
	return (int)((const struct csim_nic *)(const void *)acceptor)->rail;
}

size_t acceptor_rails(const struct acceptor *acceptor, uint8_t out[RAILS_BYTES_MAX])
{
	return 0;
}

int forkguard_accept(int fd, struct sockaddr_storage *peer)
{
	abort(); /* kernel lanes come without words */
}

/* ---- doors ------------------------------------------------------------------------------------------- */

static void words_open(struct csim_nic *nic)
{
	if (!nic->door &&
	    stack_listener_open(&nic->door, (struct acceptor *)(void *)nic, &nic->engine))
		(void)csim_fail(nic->sim, "host %u rail %u: no door", nic->host, nic->rail);
}

void csim_words_begin(struct csim *sim)
{
	words_sim = sim;
	for (unsigned i = 0; i < sim->scenario->lane_count; i++) {
		const struct csn_lane *l = &sim->scenario->lanes[i];
		const struct csn_comm *c = &sim->scenario->comms[l->comm];

		if (c->reconnect && l->kind == CSN_HARP)
			words_open(sim->hosts[c->to].nics[l->rail]);
	}
}

/* What it had went with the stack. */
void csim_words_drop(struct csim_nic *nic)
{
	nic->engine.listener = NULL;
	free(nic->door);
	nic->door = NULL;
}

uint64_t csim_words_next_ns(const struct csim_nic *nic)
{
	return nic->door && nic->door->pending_set.count ? nic->door->pending_set.next_ns
							 : CSIM_NEVER_NS;
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

bool csim_words_port(const struct csim_lane *lane, uint16_t port)
{
	if (lane->port == port)
		return true;
	if (!lane->words || !lane->dial)
		return false;
	if (lane->dial->lane)
		return lane->dial->lane->local.port == port;
	for (unsigned i = 0; i < lane->dial->search.lane_count; i++) {
		if (lane->dial->search.lanes[i]->local.port == port)
			return true;
	}
	return false;
}

/* What is there of an end that is nobody's yet. */
struct lane *csim_words_end(const struct csim_lane *lane, enum csim_side side)
{
	struct csim_nic *nic = lane->sim->hosts[csim_lane_host(lane, side)].nics[lane->spec->rail];
	struct harp_addr from =
		csim_addr(lane->sim, csim_lane_host(lane, CSIM_SEND), (unsigned)lane->spec->rail);

	if (lane->end[side].lane || !lane->words || !lane->dial)
		return lane->end[side].lane;
	if (side == CSIM_SEND) {
		const struct port_search *o = &lane->dial->search;

		return lane->dial->lane || !o->lane_count ? lane->dial->lane
							  : o->lanes[o->lane_count - 1];
	}
	for (unsigned i = 0; nic->door && i < PENDING_MAX; i++) {
		struct lane *pending = nic->door->pending_set.pending[i].lane;

		if (pending && csim_words_port(lane, pending->remote.port) &&
		    memcmp(&pending->remote.addr, &from, sizeof(from)) == 0)
			return pending;
	}
	return NULL;
}

/* ---- further lanes ----------------------------------------------------------------------------------- */

void csim_words_proved(const struct attempt *dial, struct csim_lane *lane)
{
	lane->port = dial->lane->local.port;
	lane->end[CSIM_SEND].lane = dial->lane;
	csim_lane_adopt(dial->lane);
}

static bool words_is_pending(const struct csim_nic *nic, const struct lane *lane)
{
	for (unsigned i = 0; i < PENDING_MAX; i++) {
		if (nic->door->pending_set.pending[i].lane == lane)
			return true;
	}
	return false;
}

/* Of the SYNs of a lane one goes on to HELLO: that end is the lane's. It has joined when it is pending no more. */
void csim_words_settle(struct csim_nic *nic)
{
	struct csim *sim = nic->sim;

	for (unsigned i = 0; nic->door && i < PENDING_MAX; i++) {
		const struct pending *pending = &nic->door->pending_set.pending[i];
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

		if (l->words && end->lane && end->lane->poller == &nic->engine.poller)
			end->joined |= !nic->door || !words_is_pending(nic, end->lane);
	}
}
