/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_lanes.c - first lanes, which have no preamble, and the state of all lanes.
 *
 * At each end, a comm begins when its first lane is open. An accepted connection is assigned to its
 * lane by its port. The plugin opens and reopens all other lanes (comm_connect.c).
 *
 * Both ends of a HARP lane have operations of this file, which let other threads run in between.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lane/lane_harp.h"

#define LANES_PORT 7000u

static const struct lane_ops *harp_ops; /* operations of lane_harp.c */
static struct lane_ops own_ops;
static struct csim *lanes_sim; /* for callbacks */

static struct csim_lane *lane_of(const struct lane *lane, enum csim_side *side)
{
	for (unsigned i = 0; i < lanes_sim->lane_count; i++) {
		for (unsigned e = 0; e < 2; e++) {
			if (lanes_sim->lanes[i].end[e].lane == lane) {
				*side = e;
				return &lanes_sim->lanes[i];
			}
		}
	}
	return NULL;
}

/* ---- operations of HARP lanes ---------------------------------------------------------------- */

static void own_interleave(struct lane *lane)
{
	csim_interleave(lanes_sim, ((struct csim_nic *)lane->poller)->host);
}

static ssize_t own_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	ssize_t n;

	own_interleave(lane);
	n = harp_ops->send(lane, iov, iov_count);
	own_interleave(lane);
	return n;
}

static ssize_t own_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	ssize_t n;

	own_interleave(lane);
	n = harp_ops->recv(lane, dst, len, unit);
	if (n > 0 && unit > 1)
		(void)csim_check_delivered(lanes_sim, dst, (size_t)n);
	own_interleave(lane);
	return n;
}

static void own_close(struct lane *lane, bool abort)
{
	enum csim_side side;
	struct csim_lane *l = lane_of(lane, &side);

	if (l) {
		csim_note(lanes_sim, "lane %u: %s end %s", l->number,
			  side ? "receiving" : "sending", abort ? "aborted" : "closed");
		l->end[side].lane = NULL;
		l->end[side].closed = true;
		(void)csim_check_lost_lane(l, side);
	}
	lane->ops = harp_ops;
	harp_ops->close(lane, abort);
}

void csim_lane_adopt(struct lane *lane)
{
	if (!harp_ops) {
		harp_ops = lane->ops;
		own_ops = *harp_ops;
		own_ops.send = own_send;
		own_ops.recv = own_recv;
		own_ops.close = own_close;
	}
	lane->ops = &own_ops;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Is one of its NICs or hosts cut off, or its path impaired? */
static bool connect_is_disturbed(const struct csim *sim, const struct csn_lane *spec)
{
	const struct csn_comm *c = &sim->scenario->comms[spec->comm];
	const struct scn_impair *nics = sim->scenario->nics + spec->rail;
	const struct scn_impair *from = &nics[c->from * sim->scenario->world.rails];
	const struct scn_impair *to = &nics[c->to * sim->scenario->world.rails];

	if (spec->kind == CSN_HARP && (from->loss_ppm || from->corrupt_ppm || from->queue_bytes ||
				       to->loss_ppm || to->corrupt_ppm || to->queue_bytes))
		return true;
	if (sim->hosts[c->from].nics[spec->rail]->gone || sim->hosts[c->to].nics[spec->rail]->gone)
		return true;
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct csn_event *e = &sim->scenario->events[i];

		if (sim->event_state[i] == 1 && e->kind >= CSN_IMPAIR && e->kind != CSN_STALL &&
		    (e->host == c->from || e->host == c->to) &&
		    (e->kind == CSN_FREEZE || e->rail == spec->rail))
			return true;
	}
	return false;
}

struct csim_lane *csim_lane_new(struct csim *sim, const struct csn_lane *spec, unsigned index)
{
	struct csim_lane *lane = &sim->lanes[sim->lane_count++];

	*lane = (struct csim_lane){ .sim = sim,
				    .spec = spec,
				    .number = sim->lane_count - 1,
				    .index = index,
				    .silent_since_ns = sim->now_ns,
				    .disturbed = connect_is_disturbed(sim, spec) };
	csim_note(sim, "lane %u: comm %llu's %u connects", lane->number,
		  (unsigned long long)spec->comm, index);
	return lane;
}

/* Connects a first lane, before the scenario begins. */
static void lane_connect(struct csim *sim, const struct csn_lane *spec)
{
	const struct csn_comm *c = &sim->scenario->comms[spec->comm];
	struct csim_nic *nic = sim->hosts[c->from].nics[spec->rail];
	struct csim_lane *lane = csim_lane_new(sim, spec, 0);
	struct harp_endpoint local = { 0 }, remote = { .port = LANES_PORT };

	if (spec->kind == CSN_KERNEL) {
		csim_stream_make(lane);
		return;
	}
	local.addr = csim_addr(sim, (unsigned)c->from, nic->rail);
	remote.addr = csim_addr(sim, (unsigned)c->to, nic->rail);
	if (lane_harp_connect(&nic->engine, &local, &remote, 0, &lane->end[CSIM_SEND].lane)) {
		(void)runner_fail("comm %llu: its first lane cannot connect",
				  (unsigned long long)spec->comm);
		return;
	}
	csim_lane_adopt(lane->end[CSIM_SEND].lane);
	lane->port = lane->end[CSIM_SEND].lane->local.port;
	nic->due_ns = sim->now_ns;
}

/* ---- joining --------------------------------------------------------------------------------- */

const struct csn_lane *csim_lane_spec(const struct csim *sim, unsigned comm, unsigned index)
{
	for (unsigned l = 0; l < sim->scenario->lane_count; l++) {
		if (sim->scenario->lanes[l].comm == comm && index-- == 0)
			return &sim->scenario->lanes[l];
	}
	abort();
}

/* Callback of comms. A poller is held, so this only records the loss. */
static void lanes_record_loss(struct comm *comm, unsigned index, enum comm_loss loss)
{
	struct csim *sim = lanes_sim;

	for (unsigned c = 0; c < sim->scenario->comm_count; c++) {
		struct csim_comm *k = &sim->comms[c];

		if (k->app[CSIM_SEND].comm != comm)
			continue;
		csim_note(sim, "comm %u: lane index %u %s", c, index,
			  loss == COMM_LOSS_SLOW ? "is slow" : "is lost");
		if (k->spec->multi_lane)
			csim_reconnect_record_loss(k, index, loss);
	}
}

static int lane_begin_comm(struct csim_lane *lane, enum csim_side side)
{
	struct csim_comm *k = &lane->sim->comms[lane->spec->comm];
	struct comm_options opt = {
		.side = side == CSIM_SEND ? COMM_SEND : COMM_RECV,
		.eager_bytes = (uint32_t)k->spec->eager_bytes,
		.no_credit = k->spec->no_credit,
		.multi_lane = k->spec->multi_lane,
		.harp_bytes_max = csim_harp_bytes_max(k),
		.comm_id = (uint64_t)lane->spec->comm,
		.lane_lost = lanes_record_loss,
		.lane = { .index = (uint8_t)lane->index,
			  .dev = (int)lane->spec->rail,
			  .backup = lane->spec->backup,
			  .rtt_ns = 10000 },
	};
	int rc;

	if (k->spec->multi_lane && side == CSIM_RECV)
		return csim_reconnect_accept(lane, &opt);
	rc = comm_create(&k->app[side].comm, lane->end[side].lane, &opt);
	if (!rc && k->spec->multi_lane)
		csim_reconnect_create(lane);
	return rc;
}

/* A first lane joins when it is open: nothing disturbs it before the scenario begins. */
static void lane_settle(struct csim_lane *lane, enum csim_side side)
{
	struct csim_app *app = &lane->sim->comms[lane->spec->comm].app[side];
	struct csim_end *end = &lane->end[side];
	struct poller *poller;
	int rc;

	if (!end->lane || end->joined || lane->by_plugin ||
	    end->lane->ops->state(end->lane) != LANE_OPEN)
		return;
	poller = end->lane->poller;
	if (!poller_try(poller))
		return; /* retried later */
	rc = lane_begin_comm(lane, side);
	if (rc)
		(void)runner_fail("comm %u rejected lane %u: %d", app->number, lane->number, rc);
	end->joined = true;
	csim_note(lane->sim, "lane %u joined comm %u's %s end", lane->number, app->number,
		  side ? "receiving" : "sending");
	poller_release(poller);
	app->wake_ns = lane->sim->now_ns;
}

struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane)
{
	struct csim *sim = nic->sim;

	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *l = &sim->lanes[i];
		struct harp_addr from = csim_addr(sim, csim_lane_host(l, CSIM_SEND), nic->rail);

		if (l->spec->kind == CSN_HARP && l->spec->rail == nic->rail &&
		    csim_lane_has_port(l, lane->remote.port) && !l->end[CSIM_RECV].lane &&
		    !l->end[CSIM_RECV].closed && csim_lane_host(l, CSIM_RECV) == nic->host &&
		    memcmp(&from, &lane->remote.addr, sizeof(from)) == 0)
			return l;
	}
	return NULL;
}

static void nic_accept(struct csim_nic *nic)
{
	struct lane *lane;

	if (!nic->listener || !poller_try(&nic->engine.poller))
		return;
	while (lane_harp_accept(&nic->engine, nic->listener, &lane) == 0) {
		struct csim_lane *match = csim_lane_from(nic, lane);

		if (!match)
			abort();
		csim_lane_adopt(lane);
		match->end[CSIM_RECV].lane = lane;
	}
	poller_release(&nic->engine.poller);
}

void csim_lanes_settle(struct csim *sim, unsigned host)
{
	for (unsigned rail = 0; rail < sim->scenario->world.rails; rail++) {
		nic_accept(sim->hosts[host].nics[rail]);
		csim_listener_settle(sim->hosts[host].nics[rail]);
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			if (csim_lane_host(&sim->lanes[i], side) == host)
				lane_settle(&sim->lanes[i], side);
		}
	}
}

/* ---- the state of a lane --------------------------------------------------------------------- */

uint64_t csim_lane_silent_until_ns(const struct csim_lane *lane, enum csim_side sender)
{
	const struct csim *sim = lane->sim;
	const struct csim_nic *from =
		sim->hosts[csim_lane_host(lane, sender)].nics[lane->spec->rail];
	const struct csim_nic *to =
		sim->hosts[csim_lane_host(lane, !sender)].nics[lane->spec->rail];
	uint64_t until_ns = lane->silent_until_ns[sender];

	if (lane->spec->kind == CSN_HARP)
		return until_ns; /* the NICs drop the other packets */
	if (from->gone || to->gone)
		return CSIM_NEVER_NS;
	if (from->cut_out_until_ns > until_ns)
		until_ns = from->cut_out_until_ns;
	return to->cut_until_ns > until_ns ? to->cut_until_ns : until_ns;
}

bool csim_lane_is_silent(const struct csim_lane *lane, enum csim_side sender)
{
	return csim_lane_silent_until_ns(lane, sender) > lane->sim->now_ns;
}

bool csim_lane_is_usable(const struct csim_lane *lane)
{
	const struct csim *sim = lane->sim;

	if (lane->broken)
		return false;
	for (unsigned side = 0; side < 2; side++) {
		unsigned host = csim_lane_host(lane, side);
		const struct csim_nic *nic = sim->hosts[host].nics[lane->spec->rail];

		if (!lane->end[side].joined || !lane->end[side].lane || csim_is_frozen(sim, host) ||
		    nic->gone || nic->cut_until_ns > sim->now_ns ||
		    nic->cut_out_until_ns > sim->now_ns ||
		    lane->silent_until_ns[side] > sim->now_ns)
			return false;
	}
	return true;
}

/* ---- setup ----------------------------------------------------------------------------------- */

bool csim_lanes_start(struct csim *sim)
{
	lanes_sim = sim;
	csim_listeners_open(sim);
	for (unsigned l = 0; l < sim->scenario->lane_count; l++) {
		const struct csn_lane *spec = &sim->scenario->lanes[l];
		struct csim_comm *k = &sim->comms[spec->comm];

		if (k->lanes++ == 0)
			lane_connect(sim, spec);
	}
	for (unsigned host = 0; host < sim->scenario->world.hosts; host++)
		csim_lanes_settle(sim, host);
	return !runner_has_failed();
}
