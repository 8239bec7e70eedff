/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_calm.c - whoever has something to do was woken.
 *
 * Theory of operation. Most wakes that are missing are made good by the next look, a moment later; who waits for a comm that
 * stands still finds few. So time is stopped where it is about to pass, and a lane that nobody has woken has a turn, at
 * the time of its comm's last one. It must find nothing to do: nothing to send or to read, nobody to wake, no request
 * to complete, nothing to tell. If it does, its wake is missing.
 *
 * Left alone are comms of which a lane is woken still, is full, or has what its socket is known to have: it will have a turn, and see to
 * the others. Nothing is sampled, and what such a turn notes for itself is taken back.
 *
 * Of sockets: what has come to one, or room in it, is known to its lane, or epoll has it still to tell.
 */
#include "comm_stream.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

#define CALM_ONE_IN 16u

static bool calm_for_nothing; /* a lane has such a turn */

/* What a turn that finds nothing to do leaves as it was. */
struct calm_view {
	uint64_t completed, offset, current, granted, told;
	uint64_t acked_message, acked_offset, kept_free, ack_bytes;
	int error, end_error, failing, control;
	uint32_t live, watched;
	struct comm_list unused, moved, under_way;
	const struct comm_early *early;
	bool ack_due, credit_due, peer_closed, said;
	bool dead, waits, blocked, repeats, full, watching, told_close, send_broken;
	enum comm_uses uses;
	struct comm_lane_counts counts;
	size_t in_head_bytes, header_bytes, header_sent, payload_left;
	struct comm_in in;
};

static void calm_see_several(struct calm_view *v, const struct comm *comm,
			     const struct comm_lane *l)
{
	const struct comm_several *s = comm->several;

	v->acked_message = s->acked_message;
	v->acked_offset = s->acked_offset;
	v->kept_free = s->kept_free;
	v->ack_bytes = s->ack_bytes;
	v->failing = s->failing;
	v->control = s->control;
	v->live = s->stripe.live;
	v->watched = s->watched;
	v->unused = s->unused;
	v->moved = s->moved;
	v->under_way = l->under_way;
	v->early = s->early;
	v->ack_due = s->ack_due;
	v->credit_due = s->credit_due;
	v->peer_closed = s->peer_closed;
	v->said = s->said;
}

static void calm_see(struct calm_view *v, struct comm *comm, const struct comm_lane *l)
{
	memset(v, 0, sizeof(*v));
	v->completed = comm->completed;
	v->error = atomic_load(&comm->error);
	v->end_error = comm->end_error;
	if (comm->side == COMM_SEND) {
		v->current = comm->tx.current;
		v->offset = comm->tx.offset;
		v->granted = comm->tx.granted;
	} else {
		v->told = comm->rx.told;
		v->current = comm->rx.current;
		v->offset = comm->rx.offset;
	}
	if (comm->several)
		calm_see_several(v, comm, l);
	v->dead = l->dead;
	v->waits = l->waits;
	v->blocked = l->blocked;
	v->repeats = l->repeats;
	v->full = l->full;
	v->watching = l->watching;
	v->told_close = l->told_close;
	v->send_broken = l->send_broken;
	v->uses = l->uses;
	v->counts = l->counts;
	v->in_head_bytes = l->in_head_bytes;
	v->header_bytes = l->out.header_bytes;
	v->header_sent = l->out.header_sent;
	v->payload_left = l->out.payload_left;
	memcpy(&v->in, &l->in, sizeof(v->in));
}

/* ---- is it calm? ------------------------------------------------------------------------------- */

static bool calm_waits(struct comm *comm)
{
	return comm->completed < atomic_load(&comm->posted);
}

/* It has a turn soon. */
static bool calm_is_due(const struct comm_lane *l)
{
	bool writes = l->out.header_sent < l->out.header_bytes || l->out.payload_left;

	if (!l->lane || atomic_load(&l->work.queued) || l->dead || l->full || writes)
		return true;
	return l->kind == LANE_KERNEL && (lane_kernel_is_due(l->lane, false) || !l->pprev_polled);
}

static bool calm_is_calm(struct comm *comm)
{
	if (comm->only)
		return !calm_is_due(comm->only);
	/* The peer hears no more of ours, and who is woken to tell it has nothing to do. */
	if (comm->several->peer_closed)
		return false;
	/* Nor is anything told by such a lane. */
	for (const struct comm_lane *l = comm->several->all; l; l = l->next_all) {
		if (l->send_broken || comm->several->stripe.lane[l->index].mute)
			return false;
	}
	for (const struct comm_lane *l = comm->several->all; l; l = l->next_all) {
		if (calm_is_due(l))
			return false;
	}
	return true;
}

static bool calm_is_woken(const struct comm *comm)
{
	if (comm->only)
		return atomic_load(&comm->only->work.queued);
	for (const struct comm_lane *l = comm->several->all; l; l = l->next_all) {
		if (atomic_load(&l->work.queued))
			return true;
	}
	return false;
}

/* ---- a turn ------------------------------------------------------------------------------------ */

static const char *calm_changed(const struct calm_view *was, const struct calm_view *is)
{
	if (memcmp(&was->counts, &is->counts, sizeof(was->counts)) || was->current != is->current ||
	    was->header_bytes != is->header_bytes || was->payload_left != is->payload_left)
		return "had something to send";
	if (memcmp(&was->in, &is->in, sizeof(was->in)) || was->in_head_bytes != is->in_head_bytes)
		return "had something to read";
	if (was->completed != is->completed)
		return "had a request to complete";
	if (was->error != is->error || was->end_error != is->end_error || was->dead != is->dead ||
	    was->failing != is->failing || was->told_close != is->told_close)
		return "had an end to tell of";
	if (was->told != is->told || was->ack_due != is->ack_due ||
	    was->credit_due != is->credit_due || was->repeats != is->repeats)
		return "had an ACK or a CREDIT to tell";
	return memcmp(was, is, sizeof(*was)) ? "had something to note" : NULL;
}

/* What a turn notes of itself. */
struct calm_notes {
	uint64_t turned_ns, asked_ns, looked_ns, done_bytes, told_ns;
	bool unrated, looked;
	int told;
	struct comm_habit habit;
};

static struct kernel_driver *calm_kernel(const struct comm_lane *l)
{
	return l->kind == LANE_KERNEL ? (struct kernel_driver *)l->lane->driver : NULL;
}

static void calm_note(struct calm_notes *n, const struct comm *comm, const struct comm_lane *l)
{
	n->turned_ns = l->turned_ns;
	n->asked_ns = l->asked_ns;
	n->looked_ns = l->looked_ns;
	n->done_bytes = l->done_bytes;
	n->unrated = l->unrated;
	n->looked = calm_kernel(l) && calm_kernel(l)->looked;
	if (!comm->several)
		return;
	n->told_ns = comm->several->told_ns;
	n->told = comm->several->told;
	n->habit = comm->several->habit;
}

static void calm_take_back(const struct calm_notes *n, struct comm *comm, struct comm_lane *l)
{
	l->turned_ns = n->turned_ns;
	l->asked_ns = n->asked_ns;
	l->looked_ns = n->looked_ns;
	l->done_bytes = n->done_bytes;
	l->unrated = n->unrated;
	if (calm_kernel(l))
		calm_kernel(l)->looked = n->looked;
	if (!comm->several)
		return;
	comm->several->told_ns = n->told_ns;
	comm->several->told = n->told;
	comm->several->habit = n->habit;
}

/* With another estimate another lane may be the best for what is under way already: that is no wake that is missing. */
void __real_stripe_acked(struct stripe *stripe, unsigned index, uint64_t acked_bytes,
			 uint64_t now_ns);
void __wrap_stripe_acked(struct stripe *stripe, unsigned index, uint64_t acked_bytes,
			 uint64_t now_ns);
void __wrap_stripe_acked(struct stripe *stripe, unsigned index, uint64_t acked_bytes,
			 uint64_t now_ns)
{
	if (!calm_for_nothing)
		__real_stripe_acked(stripe, index, acked_bytes, now_ns);
}

/* The lane's turn, for nothing. Baton held. What it had to do, or NULL. */
static const char *calm_turn(struct comm *comm, struct comm_lane *l)
{
	struct calm_view was, is;
	struct calm_notes notes = { 0 };
	const char *did;

	calm_see(&was, comm, l);
	calm_note(&notes, comm, l);
	l->asked_ns = comm->now_ns; /* nothing is sampled */
	if (calm_kernel(l))
		calm_kernel(l)->looked = true;
	calm_for_nothing = true;
	l->work.run(&l->work, comm->now_ns);
	calm_for_nothing = false;
	calm_see(&is, comm, l);
	did = calm_changed(&was, &is);
	if (!did && calm_is_woken(comm))
		did = "had others to wake";
	if (!did)
		calm_take_back(&notes, comm, l);
	return did;
}

static bool calm_lane(struct csim_app *app, struct comm_lane *l)
{
	struct comm *comm = app->comm;
	struct csim *sim = app->sim;
	struct driver *driver = l->lane->driver;
	bool watches = calm_waits(comm) && !(comm->several && comm->several->failing);
	const char *did;

	if (!comm->now_ns || (comm->only && comm->error))
		return true;
	/* Who is to be watched from now on is told at the next look. */
	if (watches && !l->watching)
		return true;
	if (!driver_take(driver))
		return true;
	sim->depth++;
	did = calm_turn(comm, l);
	sim->depth--;
	driver_give(driver);
	return !did || csim_fail(sim, "comm %u: lane %u of the %s end %s, and nobody had woken it",
				 app->number, l->index, app->side ? "receiving" : "sending", did);
}

/* ---- sockets ------------------------------------------------------------------------------------- */

static bool calm_sockets(struct csim_app *app)
{
	const struct comm *comm = app->comm;

	for (unsigned i = 0; i < comm->kernel_count; i++) {
		const struct kernel_driver *kd = &comm->kernels[i].kd;

		for (const struct kernel_member *m = kd->members; m && kd->epoll_fd >= 0;
		     m = m->next) {
			const char *what = csim_stream_unheard(m->fd, m->readable, m->writable);

			if (what)
				return csim_fail(
					app->sim,
					"comm %u: a socket of the %s end has %s, and nobody knows",
					app->number, app->side ? "receiving" : "sending", what);
		}
	}
	return true;
}

/* ---- for comm_sim.c ------------------------------------------------------------------------------ */

bool csim_calm_look(struct csim_app *app)
{
	struct csim *sim = app->sim;
	struct comm *comm = app->comm;

	if (!comm || app->closed || rng_below(&sim->check_rng, CALM_ONE_IN))
		return true;
	if (!calm_sockets(app))
		return false;
	if (!calm_is_calm(comm))
		return true;
	if (comm->only)
		return calm_lane(app, comm->only);
	if (comm->several->control != stripe_control(&comm->several->stripe))
		return csim_fail(sim, "comm %u: the %s end keeps to a control lane that is not it",
				 app->number, app->side ? "receiving" : "sending");
	for (uint32_t left = comm->several->stripe.live; left; left &= left - 1) {
		if (!calm_lane(app, comm->several->lanes[__builtin_ctz(left)]))
			return false;
	}
	return true;
}
