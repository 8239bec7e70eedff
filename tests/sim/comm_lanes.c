/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_lanes.c - lanes open, join their comms, die, and are opened again.
 *
 * What the preamble and the control thread do in the plugin is done here without a preamble: an accepted connection finds
 * its lane by its port. A comm begins with its first lane, at each end when it is open there;
 * others join when they are open, at each end at its own time. When a sending comm reports that it has lost a lane,
 * or that one is much slower than the others, a new one of its index is opened after reopen_ns; or connector.c opens all but
 * the first (comm_reconnect.c).
 *
 * Both ends of a HARP lane go through operations of ours, which count, and let others run in between.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm_preamble.h"
#include "lane/lane_harp.h"

#define LANES_PORT 7000u
#define LANES_CONNECT_RETRY_NS (100 * CSIM_MS)

static const struct lane_ops *harp_ops; /* lane_harp.c's */
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

/* ---- operations of HARP lanes ------------------------------------------------------------------ */

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
		(void)csim_placed(lanes_sim, dst, (size_t)n);
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

/* ---- connecting -------------------------------------------------------------------------------- */

void csim_connect_at(struct csim *sim, uint64_t at_ns, const struct csn_lane *spec, unsigned index)
{
	if (sim->connect_count == CSIM_LANES_MAX)
		return;
	sim->connects[sim->connect_count].at_ns = at_ns;
	sim->connects[sim->connect_count].spec = spec;
	sim->connects[sim->connect_count++].index = index;
}

uint64_t csim_connects_next_ns(const struct csim *sim)
{
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned i = 0; i < sim->connect_count; i++)
		next_ns = sim->connects[i].at_ns < next_ns ? sim->connects[i].at_ns : next_ns;
	return next_ns;
}

/* Is one of its NICs or hosts cut off, or what it sends harmed? */
static bool connect_meets_trouble(const struct csim *sim, const struct csn_lane *spec)
{
	const struct csn_comm *c = &sim->scenario->comms[spec->comm];
	const struct csn_nic *nics = sim->scenario->nics + spec->rail;
	const struct csn_nic *from = &nics[c->from * sim->scenario->world.rails];
	const struct csn_nic *to = &nics[c->to * sim->scenario->world.rails];

	if (spec->kind == CSN_HARP && (from->loss_ppm || from->corrupt_ppm || from->queue_bytes ||
				       to->loss_ppm || to->corrupt_ppm || to->queue_bytes))
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
				    .disturbed = connect_meets_trouble(sim, spec) };
	csim_note(sim, "lane %u: comm %llu's %u connects", lane->number,
		  (unsigned long long)spec->comm, index);
	return lane;
}

int csim_lane_connect(struct csim_lane *lane)
{
	struct csim *sim = lane->sim;
	const struct csn_lane *spec = lane->spec;
	const struct csn_comm *c = &sim->scenario->comms[spec->comm];
	struct csim_nic *nic = sim->hosts[c->from].nics[spec->rail];
	struct harp_endpoint local = { 0 }, remote = { .port = LANES_PORT };
	int rc;

	if (spec->kind == CSN_KERNEL) {
		csim_stream_make(lane);
		return 0;
	}
	local.addr = csim_addr(sim, (unsigned)c->from, nic->rail);
	remote.addr = csim_addr(sim, (unsigned)c->to, nic->rail);
	rc = lane_harp_connect(&nic->engine, &local, &remote, 0, &lane->end[CSIM_SEND].lane);
	if (rc) {
		csim_note(sim, "lane %u: connect: %d", lane->number, rc);
		return rc;
	}
	csim_lane_adopt(lane->end[CSIM_SEND].lane);
	lane->port = lane->end[CSIM_SEND].lane->local.port;
	nic->due_ns = sim->now_ns;
	return 0;
}

static void lane_connect(struct csim *sim, const struct csn_lane *spec, unsigned index)
{
	const struct csn_comm *c = &sim->scenario->comms[spec->comm];
	struct csim_nic *nic = sim->hosts[c->from].nics[spec->rail];
	struct csim_lane *lane;

	if (sim->lane_count == CSIM_LANES_MAX || sim->comms[spec->comm].app[CSIM_SEND].closed ||
	    sim->comms[spec->comm].app[CSIM_RECV].closed || sim->hosts[c->from].dead ||
	    sim->hosts[c->to].dead)
		return;
	if (nic->gone || sim->hosts[c->to].nics[spec->rail]->gone)
		return; /* nothing would come of it */
	if (spec->kind == CSN_KERNEL && connect_meets_trouble(sim, spec)) {
		csim_connect_at(sim, sim->now_ns + LANES_CONNECT_RETRY_NS, spec, index);
		return;
	}
	lane = csim_lane_new(sim, spec, index);
	if (csim_lane_connect(lane)) {
		lane->broken = true;
		csim_connect_at(sim, sim->now_ns + LANES_CONNECT_RETRY_NS, spec, index);
	}
}

void csim_connects_run(struct csim *sim)
{
	for (unsigned i = 0; i < sim->connect_count;) {
		const struct csn_lane *spec = sim->connects[i].spec;
		unsigned index = sim->connects[i].index;

		if (sim->connects[i].at_ns > sim->now_ns) {
			i++;
			continue;
		}
		sim->connects[i] = sim->connects[--sim->connect_count];
		lane_connect(sim, spec, index);
	}
}

/* ---- joining ----------------------------------------------------------------------------------- */

const struct csn_lane *csim_lane_spec(const struct csim *sim, unsigned comm, unsigned index)
{
	for (unsigned l = 0; l < sim->scenario->lane_count; l++) {
		if (sim->scenario->lanes[l].comm == comm && index-- == 0)
			return &sim->scenario->lanes[l];
	}
	abort();
}

/* A poller is held, so nothing may be called: noted for later. */
static void lanes_lost(struct comm *comm, unsigned index, enum comm_loss loss)
{
	struct csim *sim = lanes_sim;

	for (unsigned c = 0; c < sim->scenario->comm_count; c++) {
		struct csim_comm *k = &sim->comms[c];

		if (k->app[CSIM_SEND].comm != comm)
			continue;
		csim_note(sim, "comm %u: lane index %u %s", c, index,
			  loss == COMM_LOSS_SLOW ? "is slow" : "is lost");
		if (k->spec->reconnect)
			csim_reconnect_lost(k, index, loss);
		else if (k->spec->reopen_ns)
			csim_connect_at(sim, sim->now_ns + k->spec->reopen_ns,
					csim_lane_spec(sim, c, index), index);
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
		.buffered = csim_is_buffered(k),
		.harp_bytes_max = csim_harp_bytes_max(k),
		.comm_id = k->spec->stream,
		.lane_lost = lanes_lost,
		.reconnect_wait_ns = k->spec->reconnect ? COMM_RECONNECT_WAIT_NS : 0,
		.lane = { .index = (uint8_t)lane->index,
			  .dev = (int)lane->spec->rail,
			  .backup = lane->spec->backup,
			  .rtt_ns = 10000 },
	};

	int rc = comm_create(&k->app[side].comm, lane->end[side].lane, &opt);

	if (!rc && k->spec->reconnect)
		csim_reconnect_made(lane, side);
	return rc;
}

static int lane_join_comm(struct csim_lane *lane, enum csim_side side)
{
	struct csim_comm *k = &lane->sim->comms[lane->spec->comm];
	struct comm_lane_options opt = { .index = (uint8_t)lane->index,
					 .dev = (int)lane->spec->rail,
					 .backup = lane->spec->backup,
					 .rtt_ns = 10000 };

	return comm_attach(k->app[side].comm, lane->end[side].lane, &opt);
}

/* An end that is open and not yet part of its comm. */
static void lane_join(struct csim_lane *lane, enum csim_side side)
{
	struct csim_app *app = &lane->sim->comms[lane->spec->comm].app[side];
	struct csim_end *end = &lane->end[side];
	struct poller *poller = end->lane->poller;
	bool first = !app->comm && !app->closed && lane->index == 0;
	int rc;

	if (!app->comm && !first && !app->closed)
		return; /* its first lane is still to come */
	if (!poller_try(poller))
		return; /* later */
	if (app->closed)
		rc = -ENOTCONN;
	else if (first)
		rc = lane_begin_comm(lane, side);
	else
		rc = lane_join_comm(lane, side);
	if (rc) {
		csim_note(lane->sim, "lane %u: can't join: %d", lane->number, rc);
		if (rc != -ENOTCONN)
			(void)csim_fail(lane->sim, "comm %u refused lane %u: %d", app->number,
					lane->number, rc);
		lane->disturbed = true;
		end->lane->ops->close(end->lane, true);
	} else {
		end->joined = true;
		csim_note(lane->sim, "lane %u joined comm %u's %s end", lane->number, app->number,
			  side ? "receiving" : "sending");
	}
	poller_release(poller);
	app->wake_ns = lane->sim->now_ns;
}

static void lane_settle(struct csim_lane *lane, enum csim_side side)
{
	struct csim_end *end = &lane->end[side];

	if (!end->lane || end->joined)
		return;
	if (lane->has_preamble || (lane->attempt && side == CSIM_SEND))
		return; /* comm_preamble.c's, comm_connect.c's */
	switch (end->lane->ops->state(end->lane)) {
	case LANE_CONNECTING:
		return;
	case LANE_DEAD:
		lane->broken = lane->disturbed = true;
		if (poller_try(end->lane->poller)) {
			struct poller *poller = end->lane->poller;

			end->lane->ops->close(end->lane, true);
			poller_release(poller);
		}
		return;
	default:
		end->opened = true;
		if (!csim_attempt_may_join(lane))
			return;
		lane_join(lane, side);
	}
}

struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane)
{
	struct csim *sim = nic->sim;

	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *l = &sim->lanes[i];
		struct harp_addr from = csim_addr(sim, csim_lane_host(l, CSIM_SEND), nic->rail);

		if (l->spec->kind == CSN_HARP && l->spec->rail == nic->rail &&
		    csim_preamble_port(l, lane->remote.port) && !l->end[CSIM_RECV].lane &&
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
		struct csim_lane *found = csim_lane_from(nic, lane);

		if (!found || found->end[CSIM_SEND].closed) {
			lane->ops->close(lane, true);
			continue;
		}
		csim_lane_adopt(lane);
		found->end[CSIM_RECV].lane = lane;
	}
	poller_release(&nic->engine.poller);
}

void csim_lanes_settle(struct csim *sim, unsigned host)
{
	for (unsigned rail = 0; rail < sim->scenario->world.rails; rail++) {
		nic_accept(sim->hosts[host].nics[rail]);
		csim_preamble_settle(sim->hosts[host].nics[rail]);
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			if (csim_lane_host(&sim->lanes[i], side) == host)
				lane_settle(&sim->lanes[i], side);
		}
	}
}

/* ---- what is known of a lane ------------------------------------------------------------------- */

uint64_t csim_lane_silent_until_ns(const struct csim_lane *lane, enum csim_side sender)
{
	const struct csim *sim = lane->sim;
	const struct csim_nic *from =
		sim->hosts[csim_lane_host(lane, sender)].nics[lane->spec->rail];
	const struct csim_nic *to =
		sim->hosts[csim_lane_host(lane, !sender)].nics[lane->spec->rail];
	uint64_t until_ns = lane->silent_until_ns[sender];

	if (lane->spec->kind == CSN_HARP)
		return until_ns; /* the NICs do the rest */
	if (from->gone || to->gone)
		return CSIM_NEVER_NS;
	if (from->cut_out_until_ns > until_ns)
		until_ns = from->cut_out_until_ns;
	return to->cut_until_ns > until_ns ? to->cut_until_ns : until_ns;
}

bool csim_lane_silent(const struct csim_lane *lane, enum csim_side sender)
{
	return csim_lane_silent_until_ns(lane, sender) > lane->sim->now_ns;
}

bool csim_lane_works(const struct csim_lane *lane)
{
	const struct csim *sim = lane->sim;

	if (lane->broken)
		return false;
	for (unsigned side = 0; side < 2; side++) {
		unsigned host = csim_lane_host(lane, side);
		const struct csim_nic *nic = sim->hosts[host].nics[lane->spec->rail];

		if (!lane->end[side].joined || !lane->end[side].lane || csim_frozen(sim, host) ||
		    nic->gone || nic->cut_until_ns > sim->now_ns ||
		    nic->cut_out_until_ns > sim->now_ns ||
		    lane->silent_until_ns[side] > sim->now_ns)
			return false;
	}
	return true;
}

/* ---- making ------------------------------------------------------------------------------------ */

bool csim_lanes_start(struct csim *sim)
{
	lanes_sim = sim;
	csim_preamble_begin(sim);
	for (unsigned l = 0; l < sim->scenario->lane_count; l++) {
		const struct csn_lane *spec = &sim->scenario->lanes[l];
		struct csim_comm *k = &sim->comms[spec->comm];

		if (k->lanes++ == 0)
			lane_connect(sim, spec, 0);
	}
	for (unsigned host = 0; host < sim->scenario->world.hosts; host++)
		csim_lanes_settle(sim, host);
	return !sim->failed;
}

/* Ends that never joined. */
void csim_lanes_destroy(struct csim *sim)
{
	for (unsigned i = 0; i < sim->lane_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			struct csim_end *end = &sim->lanes[i].end[side];

			if (end->lane && !end->joined && !sim->lanes[i].has_preamble)
				end->lane->ops->close(end->lane, true);
		}
	}
}
