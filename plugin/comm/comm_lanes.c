/* SPDX-License-Identifier: Apache-2.0 */
/* comm_lanes.c - what the lanes of a comm share, and a lane's turn. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * Each lane has its driver, so several threads may advance lanes of one comm at a time. What concerns the stream
 * of one lane (the record going out, the header coming in) is its baton's; what they share (claims, credits, what
 * has arrived, completion, the table of lanes) is under s->lock, which is held for some hundred instructions:
 * never while bytes are moved or the system is called, but for driver_post(). The order is: a baton, then the
 * lock. Nobody takes a second baton.
 *
 * Bytes are moved without the lock. A lane says first, under it, of which message and bytes (comm_use()), and
 * afterwards that it is done. As long as it does: the request is not completed, no failure is published, no
 * other lane writes to the same bytes. The last one out does what was waited for.
 *
 * Waking. A lane that has nothing to do is not looked at, unless it is the kernel's. Whoever changes what another
 * lane could act on posts that lane's work, under the same lock under which the other looked last: so it either
 * saw the change or is woken. `waits` and `blocked` are a receiver's notes that it has left something unread.
 *
 * Taking turns. What is new is bounded: by receives, credits and chunks under way. What is not (a chunk that is here,
 * an ACK that says nothing) a peer could send as fast as it is read, and hold the baton, and with it its thread, for
 * ever. So a turn of a lane ends behind a bounded amount of that, and its work is posted: the driver's events tell of what comes,
 * not of what was left.
 */

#define LOCK_SPINS 64u
#define ASK_HARP_NS 2000000u   /* info() */
#define ASK_KERNEL_NS 1000000u /* it says how much is under way, too */
#define ASK_UNRATED_NS 20000u
#define RTOS 2u /* of its TCP a lane has before it may be called dead */

void comm_lock_wait(struct comm_several *s);

void comm_lock_wait(struct comm_several *s)
{
	unsigned spins = 0;

	do {
		/* Look before taking: a failed exchange would steal the holder's cache line. */
		while (atomic_load_explicit(&s->lock, memory_order_relaxed))
			if (++spins % LOCK_SPINS == 0)
				sched_yield();
	} while (atomic_exchange_explicit(&s->lock, true, memory_order_acquire));
}

/* ---- being woken; lock held -------------------------------------------------------------------- */

void comm_rouse(struct comm *comm)
{
	struct comm_several *s = comm->several;
	struct work *rouse = s->rouse;

	s->rouse = NULL;
	if (rouse)
		driver_post(s->rouse_driver, rouse);
}

void comm_wake(struct comm *comm, int index)
{
	struct comm_lane *l = index < 0 ? NULL : comm->several->lanes[index];

	if (!l)
		return;
	driver_post(l->lane->driver, &l->work);
	if (!l->lane->driver->wake) /* an engine has a thread to tell */
		comm_rouse(comm);
}

void comm_lane_again(struct comm_lane *l)
{
	comm_lock(l->comm);
	if (!l->dead) /* else it is posted, and the index may be another's */
		comm_wake(l->comm, l->index);
	comm_unlock(l->comm);
}

void comm_wake_all(struct comm *comm)
{
	for (uint32_t left = comm->several->stripe.live; left; left &= left - 1)
		comm_wake(comm, __builtin_ctz(left));
}

void comm_look_all(struct comm *comm)
{
	struct comm_several *s = comm->several;

	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		struct comm_lane *l = s->lanes[__builtin_ctz(left)];

		driver_post(l->lane->driver, &l->work);
	}
}

void comm_publish(struct comm *comm)
{
	struct comm_several *s = comm->several;

	if (s->failing && s->said && !s->users)
		atomic_store_explicit(&comm->error, s->failing, memory_order_release);
}

void comm_use(struct comm_lane *l, int uses, uint64_t message, uint64_t begin, uint64_t end)
{
	struct comm *comm = l->comm;

	l->uses = (enum comm_uses)uses;
	l->use_message = message;
	l->use_begin = begin;
	l->use_end = end;
	if (uses == COMM_USES_REQUEST) {
		comm_request(comm, message)->users++;
		comm->several->users++;
	} else if (uses == COMM_USES_KEPT) {
		comm->several->kept[l->out_kept].users++;
	}
}

void comm_unuse(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;

	if (l->uses == COMM_USES_REQUEST) {
		comm_request(comm, l->use_message)->users--;
		s->users--;
		comm_publish(comm);
	} else if (l->uses == COMM_USES_KEPT) {
		if (!--s->kept[l->out_kept].users && l->use_message < s->acked_message)
			comm_kept_shed(comm);
	}
	l->uses = COMM_USES_NONE;
	if (!s->blocked)
		return;
	s->blocked = false;
	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		struct comm_lane *other = s->lanes[__builtin_ctz(left)];

		if (other->blocked)
			comm_wake(comm, other->index);
		other->blocked = false;
	}
}

bool comm_is_used(struct comm_lane *l, uint64_t message, uint64_t begin, uint64_t end)
{
	/* Those that die may be at it still. The one chunk of an empty message is nobody else's either. */
	for (struct comm_lane *o = l->comm->several->all; o; o = o->next_all) {
		if (o != l && o->uses && o->use_message == message &&
		    (begin == end || (o->use_begin < end && begin < o->use_end)))
			return true;
	}
	return false;
}

/* The control lane has changed, or may have: what the old one was told may be lost. */
void comm_lanes_control(struct comm *comm)
{
	struct comm_several *s = comm->several;
	int control = stripe_control(&s->stripe);

	if (control == s->control)
		return;
	s->control = control;
	if (comm->side != COMM_RECV)
		return;
	s->credit_due = s->ack_due = comm->rx.told || comm->completed || s->ranges.count;
	if (s->credit_due) /* a new comm's lane has no work: comm_drop() */
		comm_wake(comm, control);
}

/* ---- a lane's turn; baton held ------------------------------------------------------------------ */

/* No lane is dead before its TCP has sent again, which Linux does after 200 ms at the soonest, and been heard. */
static uint64_t comm_lane_patience_ns(const struct lane_info *info)
{
	uint64_t timeout_ns = plugin_config()->lane_timeout_ns;

	return timeout_ns > RTOS * info->rto_ns ? timeout_ns : RTOS * info->rto_ns;
}

/* A kernel lane is given little before its rate is known, and looks are what tells it: until then often, or its
 * beginning would be measured by the looks. What carries small messages alone never shows a rate. */
uint64_t comm_lane_ask_ns(const struct comm_lane *l)
{
	if (l->kind == LANE_HARP)
		return ASK_HARP_NS;
	return l->unrated ? ASK_UNRATED_NS : ASK_KERNEL_NS;
}

/* Looks at how the lane does, at times. False: it has died of it. */
static bool comm_lane_sample(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	struct stripe_lane *mine = &s->stripe.lane[l->index];
	struct lane_info info;
	unsigned news;
	bool used, stalled;

	if (now_ns - l->asked_ns < comm_lane_ask_ns(l) || !l->lane->ops->info)
		return true;
	comm_lock(comm);
	/* What was given and acknowledged between two looks has a round trip to tell of, too. And a stalled lane, which is
	 * given nothing, may have been acknowledged since: nobody else takes the word back. */
	used = !l->dead && (mine->given_bytes != mine->acked_bytes ||
			    mine->given_ns > l->asked_ns || mine->stalled);
	comm_unlock(comm);
	l->asked_ns = now_ns;
	if (!used)
		return true;
	l->lane->ops->info(l->lane, &info);
	lane_page_tcp(l->row, &info, now_ns);
	comm_lock(comm);
	if (l->dead) { /* and its place may be another's */
		comm_unlock(comm);
		return false;
	}
	stripe_acked(&s->stripe, l->index,
		     info.acked_bytes > l->sent_bytes ? info.acked_bytes - l->sent_bytes : 0,
		     now_ns);
	news = stripe_sample(&s->stripe, l->index, info.in_flight_bytes > 0, info.srtt_ns,
			     comm_lane_patience_ns(&info), now_ns);
	if (news & (STRIPE_STALLED | STRIPE_MOVES))
		comm_lanes_control(comm);
	if (news & (STRIPE_STALLED | STRIPE_MOVES | STRIPE_LAGS) && comm->side == COMM_SEND)
		comm_tx_kick(comm, NULL, now_ns);
	stalled = mine->stalled;
	l->unrated = stripe_is_unrated(mine);
	comm_unlock(comm);
	lane_page_lane_stalled(l->row, stalled);
	if ((news & STRIPE_SLOW) && s->lane_lost)
		(void)s->lane_lost(comm, l->index, COMM_LOSS_SLOW);
	return !(news & STRIPE_DEAD) || !comm_lane_die(l, -ETIMEDOUT, COMM_DEATH_STALLED);
}

/* Watching: this lane while a request waits; when none does, all the others that still do. */
static void comm_lane_finish(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	uint32_t bit = 1u << l->index;
	bool wanted, ended, dead, idle;

	comm_lock(comm);
	dead = l->dead;
	/* It has been read as far as anything has come. One that is muted rests. */
	l->waits &= l->in.here || s->stripe.lane[l->index].mute;
	wanted = comm->completed < atomic_load_explicit(&comm->posted, memory_order_relaxed) &&
		 !s->failing;
	ended = comm->end_error && wanted;
	idle = comm->completed == atomic_load_explicit(&comm->posted, memory_order_relaxed);
	if (wanted && !dead) {
		s->watched |= bit;
	} else if (!dead) {
		s->watched &= ~bit;
		for (uint32_t left = wanted ? 0 : s->watched; left; left &= left - 1)
			comm_wake(comm, __builtin_ctz(left));
	}
	comm_unlock(comm);
	lane_page_publish(comm->row, l->turned_ns, idle);
	if (dead)
		return;
	if (ended)
		comm_settle(comm, l);
	comm_lane_watch(l, wanted);
}

/* False: the lane is dead, and the work that was posted then sees to it. */
static bool comm_lane_advance(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	uint64_t turned_ns = now_ns; /* as comm_kernel_turn() knows it */
	bool failing, ended, dead;

	comm_lock(comm);
	dead = l->dead;
	ended = comm->end_error;
	failing = s->failing;
	l->sees_early = s->early != NULL;
	/* The clock was read before the baton was taken: another thread may have been here since. */
	if (now_ns < comm->now_ns)
		now_ns = comm->now_ns;
	comm->now_ns = now_ns;
	comm_unlock(comm);
	if (dead)
		return false;
	l->turned_ns = turned_ns;
	comm_lane_poll(l);
	if (failing) {
		if (!l->told_close)
			(void)comm_lane_tell_failed(l, &s->close); /* it stays */
		return true;
	}
	if (!comm_lane_sample(l, now_ns))
		return true;
	if (ended)
		; /* the peer has said CLOSE: there is nothing more to move */
	else if (comm->side == COMM_SEND)
		comm_tx_advance(l, now_ns);
	else
		comm_rx_advance(l, now_ns);
	comm_lane_finish(l);
	return true;
}

void comm_lane_run(struct work *work, uint64_t now_ns)
{
	struct comm_lane *l = (struct comm_lane *)((char *)work - offsetof(struct comm_lane, work));

	if (!comm_lane_advance(l, now_ns))
		comm_lane_bury(l);
}

void comm_lane_notify(struct lane *lane, uint64_t now_ns)
{
	(void)comm_lane_advance(lane->owner, now_ns);
}

/* ---- for people ---------------------------------------------------------------------------------- */

unsigned comm_lane_views(struct comm *comm, struct comm_lane_view views[COMM_LANES_MAX])
{
	struct comm_several *s = comm->several;
	unsigned count = 0;

	if (!s)
		return 0;
	comm_lock(comm);
	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		struct comm_lane *l = s->lanes[__builtin_ctz(left)];
		const struct stripe_lane *mine = &s->stripe.lane[l->index];

		views[count++] = (struct comm_lane_view){
			.index = l->index,
			.dev = l->dev,
			.kind = l->kind,
			.backup = l->backup,
			.stalled = mine->stalled,
			.slow = mine->slow,
			.control = s->control == l->index,
			.local = l->lane->local,
			.remote = l->lane->remote,
			.srtt_ns = mine->srtt_ns,
			.rate_bytes_per_s = mine->rate * 1000u,
			.under_way_bytes = mine->given_bytes - mine->acked_bytes,
			.counts = l->counts,
		};
	}
	comm_unlock(comm);
	return count;
}
