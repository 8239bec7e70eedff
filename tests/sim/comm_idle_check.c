/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_idle_check.c - checks that a comm that has something to do was woken.
 *
 * Theory of operation. The next poll, a moment later, hides most missing wake-ups. So just before
 * time passes, a comm that was not woken gets a turn for the lanes of one of its engines, or for
 * its kernel lanes, at the time of its last turn. The turn must find nothing to send or read, no
 * request to complete and no record to send. Otherwise a wake-up is missing.
 *
 * The check skips comms that will get a turn: those that were woken, that have a full lane, or a
 * lane whose socket is known to have data. The turn takes no samples, and the check restores
 * the times that the turn sets.
 */
#include "comm_sim.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

#define IDLE_ONE_IN 8u

/* State that a turn without work does not change. */
struct idle_lane {
	bool waits, duplicate, full, close_sent, draining;
	int send_error;
	size_t in_head_bytes, header_bytes, header_sent, payload_left;
	struct comm_list in_flight;
	struct comm_in in;
};

struct idle_view {
	uint64_t completed, offset, current, granted, advertised;
	uint64_t acked_message, acked_offset, buffers_free, ack_bytes;
	int error, end_error, control;
	uint32_t live;
	struct comm_list unused, moved;
	const struct comm_unexpected *unexpected;
	bool ack_due, credit_due, peer_closed;
	struct idle_lane lanes[COMM_LANES_MAX];
};

static void idle_view_fill_lane(struct idle_lane *v, const struct comm_lane *l)
{
	v->waits = l->waits;
	v->duplicate = l->duplicate;
	v->full = l->full;
	v->send_error = l->send_error;
	v->close_sent = l->close_sent;
	v->draining = l->comm->scheduler.lane[l->index].draining;
	v->in_head_bytes = l->in_head_bytes;
	v->header_bytes = l->out.header_bytes;
	v->header_sent = l->out.header_sent;
	v->payload_left = l->out.payload_left;
	v->in_flight = l->in_flight;
	memcpy(&v->in, &l->in, sizeof(v->in));
}

static void idle_view_fill(struct idle_view *v, struct comm *comm)
{
	struct comm_lane *l;

	memset(v, 0, sizeof(*v));
	v->completed = comm->completed;
	v->error = atomic_load(&comm->error);
	v->end_error = comm->end_error;
	v->control = comm->control;
	v->live = comm->scheduler.live;
	if (comm->side == COMM_SEND) {
		v->current = comm->tx.current;
		v->offset = comm->tx.offset;
		v->granted = comm->tx.granted;
		v->acked_message = comm->tx.acked_message;
		v->acked_offset = comm->tx.acked_offset;
		v->buffers_free = comm->tx.buffers_free;
		v->unused = comm->tx.unused;
		v->moved = comm->tx.moved;
	} else {
		v->advertised = comm->rx.advertised;
		v->unexpected = comm->rx.unexpected;
		v->ack_bytes = comm->rx.ack_bytes;
		v->ack_due = comm->rx.ack_due;
		v->credit_due = comm->rx.credit_due;
		v->peer_closed = comm->rx.peer_closed;
	}
	COMM_FOR_EACH_LANE(comm, l)
	idle_view_fill_lane(&v->lanes[l->index], l);
}

/* ---- is it expected to be idle? -------------------------------------------------------------- */

static bool idle_is_woken(struct comm *comm)
{
	struct comm_lane *l;

	if (atomic_load(&comm->missed) || atomic_load(&comm->joining) ||
	    atomic_load(&comm->kernel_due) || comm->dead)
		return true;
	for (unsigned i = 0; i < COMM_LANES_MAX; i++)
		if (atomic_load(&comm->engines[i].work.queued) || comm->engines[i].dead)
			return true;
	COMM_FOR_EACH_LANE(comm, l)
	if (l->ready || (l->engine && atomic_load(&l->event)))
		return true;
	return false;
}

static bool idle_is_expected(struct comm *comm)
{
	struct comm_lane *l;

	if (idle_is_woken(comm) || !comm->now_ns || comm_has_failed(comm) || comm->end_error)
		return false;
	/* Nothing is sent to a closed peer, so a wake-up of a lane for it has no effect. */
	if (comm->side == COMM_RECV && comm->rx.peer_closed)
		return false;
	COMM_FOR_EACH_LANE(comm, l)
	{
		if (l->full || l->send_error || comm_lane_has_out(l) ||
		    comm->scheduler.lane[l->index].draining)
			return false;
		if (!l->engine && lane_kernel_is_due(l->lane))
			return false;
		/* The test() of the posted receive reads it. */
		if (!l->engine && l->waits && comm->completed < comm_posted(comm))
			return false;
	}
	return true;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

/* Both pollers are held. Runs a turn. Returns true if the comm had something to do. */
static bool idle_turn_has_work(struct comm *comm, struct comm_engine *e)
{
	uint64_t sampled_ns[COMM_LANES_MAX], read_ns[COMM_LANES_MAX];
	struct idle_view old, new;
	struct comm_lane *l;

	idle_view_fill(&old, comm);
	COMM_FOR_EACH_LANE(comm, l)
	{
		sampled_ns[l->index] = l->sampled_ns;
		read_ns[l->index] = l->read_ns;
		l->sampled_ns = comm->now_ns; /* take no sample */
		l->ready = l->engine && l->engine == e;
	}
	comm_advance(comm, e, comm->now_ns, COMM_TURN_POST);
	idle_view_fill(&new, comm);
	if (memcmp(&old, &new, sizeof(old)) || idle_is_woken(comm))
		return true;
	COMM_FOR_EACH_LANE(comm, l)
	{
		l->sampled_ns = sampled_ns[l->index];
		l->read_ns = read_ns[l->index];
	}
	return false;
}

static bool idle_check_turn(struct csim_app *app, struct comm_engine *e)
{
	struct comm *comm = app->comm;
	struct csim *sim = app->sim;
	struct poller *poller = e ? atomic_load(&e->poller) : NULL;
	bool has_work;

	if (poller && !poller_try(poller))
		return true;
	if (!poller_try(&comm->poller)) {
		if (poller)
			poller_release(poller);
		return true;
	}
	sim->depth++;
	has_work = idle_turn_has_work(comm, e);
	sim->depth--;
	poller_release(&comm->poller);
	if (poller)
		poller_release(poller);
	return !has_work ||
	       runner_fail("comm %u: the %s end has something to do (%s lanes) but was not woken",
			   app->number, app->side ? "receiving" : "sending", e ? "HARP" : "kernel");
}

/* ---- for comm_sim.c -------------------------------------------------------------------------- */

bool csim_check_idle(struct csim_app *app)
{
	struct csim *sim = app->sim;
	struct comm *comm = app->comm;

	if (!comm || app->closed || rng_below(&sim->check_rng, IDLE_ONE_IN))
		return true;
	if (!idle_is_expected(comm))
		return true;
	if (comm->control != scheduler_control(&comm->scheduler))
		return runner_fail(
			"comm %u: the %s end uses a control lane that the scheduler does not choose",
			app->number, app->side ? "receiving" : "sending");
	for (unsigned i = 0; i < COMM_LANES_MAX && atomic_load(&comm->engines[i].poller); i++)
		if (!idle_check_turn(app, &comm->engines[i]))
			return false;
	/* A sender that waits for credit reads its kernel lanes in each turn. */
	if (comm->side == COMM_SEND && comm->tx.current < comm_posted(comm))
		return true;
	return idle_check_turn(app, NULL);
}
