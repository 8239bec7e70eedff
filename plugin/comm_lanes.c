/* SPDX-License-Identifier: Apache-2.0 */
/* comm_lanes.c - what the lanes of a comm share: the table, being woken, joining, dying, closing. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

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
 * Death. A lane ends by its FIN or RST, by its TCP's patience, or by ours (stripe.h), or is replaced by a new one
 * of the same index. Under the lock it leaves the table, its chunks are others' and its work is posted; from there on
 * nobody else knows it, and the run of that work, under its baton, closes and frees it. A run that finds the work
 * posted again leaves that to the next. While other lanes live this is nobody's error. The last lane's death ends the
 * comm, after waiting revive_ns for another to join.
 *
 * Closing. `closing` keeps lanes from joining. Then, driver by driver, its lanes leave the table, say CLOSE and
 * are closed; when that is done nobody posts the work of any lane any more, and a second call to each driver
 * returns behind the last of it.
 */

#define LOCK_SPINS 64u
#define TICK_NS 2000000u       /* lanes are looked at while a request waits */
#define ASK_HARP_NS 2000000u   /* their info() */
#define ASK_KERNEL_NS 1000000u /* it says how much is under way, too */
#define KERNEL_LOOK_NS 20000u  /* kernel lanes, while HARP's are what is looked at */
#define KERNEL_ACTIVE_NS 200000u
#define DRAIN_READS 256u

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

void comm_wake(struct comm *comm, int index)
{
	struct comm_lane *l = index < 0 ? NULL : comm->several->lanes[index];

	if (l)
		driver_post(l->lane->driver, &l->work);
}

void comm_wake_all(struct comm *comm)
{
	for (uint32_t left = comm->several->stripe.live; left; left &= left - 1)
		comm_wake(comm, __builtin_ctz(left));
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

	l->uses = uses;
	l->use_message = message;
	l->use_begin = begin;
	l->use_end = end;
	if (uses == COMM_USES_REQUEST) {
		comm_request(comm, message)->users++;
		comm->several->users++;
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
	/* Those that die may be at it still. */
	for (struct comm_lane *o = l->comm->several->all; o; o = o->next_all) {
		if (o != l && o->uses && o->use_message == message && o->use_begin < end &&
		    begin < o->use_end)
			return true;
	}
	return false;
}

/* The control lane has changed, or may have: what the old one was told may be lost. */
static void comm_lanes_control(struct comm *comm)
{
	struct comm_several *s = comm->several;
	int control = stripe_control(&s->stripe);

	if (control == s->control)
		return;
	s->control = control;
	if (comm->side != COMM_RECV)
		return;
	s->credit_due = s->ack_due = comm->rx.told || comm->completed || s->ranges.count;
	comm_wake(comm, control);
}

/* ---- joining ----------------------------------------------------------------------------------- */

static void comm_driver_close_run(struct work *work, uint64_t now_ns);
static void comm_driver_flush_run(struct work *work, uint64_t now_ns);

static bool comm_driver_is_kernel(const struct comm *comm, const struct driver *driver)
{
	const struct comm_kernel *kernel = (const struct comm_kernel *)driver;

	return kernel >= comm->kernels && kernel < comm->kernels + comm->kernel_count;
}

static bool comm_lanes_driver(struct comm *comm, struct driver *driver)
{
	struct comm_several *s = comm->several;
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_relaxed);
	struct comm_driver *d;

	for (unsigned i = 0; i < count; i++) {
		if (s->drivers[i].driver == driver)
			return true;
	}
	if (count == COMM_LANES_MAX)
		return false;
	d = &s->drivers[count];
	d->comm = comm;
	d->driver = driver;
	d->close_work.run = comm_driver_close_run;
	d->flush_work.run = comm_driver_flush_run;
	if (!comm_driver_is_kernel(comm, driver))
		atomic_fetch_add_explicit(&s->harp_drivers, 1, memory_order_relaxed);
	/* The application polls as many as it sees. */
	atomic_store_explicit(&s->driver_count, count + 1, memory_order_release);
	return true;
}

bool comm_lanes_join(struct comm *comm, struct comm_lane *l, uint64_t rtt_ns, uint64_t now_ns)
{
	struct comm_several *s = comm->several;

	if (!comm_lanes_driver(comm, l->lane->driver))
		return false;
	s->lanes[l->index] = l;
	l->next_all = s->all;
	s->all = l;
	l->waits = true; /* something may have come with the preamble */
	stripe_add(&s->stripe, l->index, l->kind, l->backup, rtt_ns, now_ns);
	comm_choice_lanes(comm, l, rtt_ns);
	s->orphaned_ns = 0;
	comm_lanes_control(comm);
	return true;
}

/* It leaves the table. Any thread. */
static unsigned comm_lane_detach(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	unsigned moved = 0;

	l->dead = true;
	s->lanes[l->index] = NULL;
	stripe_remove(&s->stripe, l->index);
	s->watched &= ~(1u << l->index);
	comm_choice_lanes(comm, l, 0);
	if (comm->side == COMM_SEND)
		moved = comm_tx_orphan(l);
	comm_lanes_control(comm);
	if (comm->side == COMM_RECV) { /* it may have taken a CREDIT or an ACK along */
		s->credit_due = s->ack_due = true;
		comm_wake(comm, s->control);
	}
	driver_post(l->lane->driver, &l->work);
	return moved;
}

int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt)
{
	struct comm_several *s = comm->several;
	struct lane before = *lane;
	struct comm_lane *l, *old;
	int rc = 0;

	if (!s || opt->index >= COMM_LANES_MAX)
		return -EINVAL;
	l = comm_lane_new(comm, lane, opt);
	if (!l)
		return -ENOMEM;
	comm_lock(comm);
	if (s->closing || s->failing || comm->end_error) {
		rc = -ENOTCONN;
	} else {
		old = s->lanes[opt->index];
		if (old)
			(void)comm_lane_detach(old);
		if (!comm_lanes_join(comm, l, opt->rtt_ns, driver_clock_ns()))
			rc = -ENOMEM;
		comm_wake_all(comm); /* there may be work for it, or from the old one */
	}
	comm_unlock(comm);
	if (rc) {
		lane->driver = before.driver;
		lane->owner = before.owner;
		lane->notify = before.notify;
		lane_page_lane_closed(l->row, l);
		free(l);
	}
	return rc;
}

int comm_several_new(struct comm *comm, const struct comm_options *opt)
{
	struct comm_several *s = aligned_alloc(64, (sizeof(*s) + 63) & ~(size_t)63);
	size_t size = comm->side == COMM_SEND ? COMM_CHUNKS_MAX * sizeof(*s->chunks)
					      : COMM_RANGES_MAX * sizeof(*s->ranges.table);
	void *table = malloc(size);

	if (!s || !table) {
		free(s);
		free(table);
		return -ENOMEM;
	}
	memset(s, 0, sizeof(*s));
	s->control = -1;
	s->revive_ns = opt->revive_ns;
	s->lane_lost = opt->lane_lost;
	s->unused = s->moved = (struct comm_list){ -1, -1 };
	comm->several = s;
	if (comm->side == COMM_RECV) {
		s->ranges = (struct ranges){ .table = table, .max = COMM_RANGES_MAX };
		return 0;
	}
	s->chunks = table;
	for (int16_t i = 0; i < (int16_t)COMM_CHUNKS_MAX; i++)
		s->chunks[i].next = (int16_t)(i + 1 < (int16_t)COMM_CHUNKS_MAX ? i + 1 : -1);
	s->unused = (struct comm_list){ 0, (int16_t)(COMM_CHUNKS_MAX - 1) };
	if (comm_choice_new(comm, opt->lane.dev)) {
		comm_several_free(comm);
		return -ENOMEM;
	}
	return 0;
}

void comm_several_free(struct comm *comm)
{
	struct comm_several *s = comm->several;

	if (!s)
		return;
	while (s->early) {
		struct comm_early *early = s->early;

		s->early = early->next;
		comm_early_free(early);
	}
	comm_choice_free(comm);
	free(s->chunks);
	free(s->ranges.table);
	free(s);
}

/* ---- dying ------------------------------------------------------------------------------------- */

void comm_lane_die(struct comm_lane *l, int error, const char *text)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	char remote[HARP_ENDPOINT_TEXT_MAX], buf[96];
	unsigned moved, left;
	bool quiet;

	comm_lock(comm);
	if (l->dead) {
		comm_unlock(comm);
		return;
	}
	quiet = s->closing || s->failing || comm->end_error;
	moved = comm_lane_detach(l);
	left = (unsigned)__builtin_popcount(s->stripe.live);
	if (!left && s->revive_ns && !quiet) {
		s->orphaned_ns = comm->now_ns;
		s->orphan_error = error;
	} else if (!left) {
		comm_end_by_error(comm, error);
	}
	comm_wake_all(comm);
	comm_unlock(comm);
	l->lane->notify = NULL;
	if (!quiet && (left || s->revive_ns))
		INFO("lane %u to %s over %s has ended (%s): %u lane%s left, %u chunk%s moved",
		     l->index, harp_endpoint_format(&l->lane->remote, remote), l->lane->ops->kind,
		     text ? text : comm_lane_end_text(error, false, buf, sizeof(buf)), left,
		     left == 1 ? "" : "s", moved, moved == 1 ? "" : "s");
	if (quiet)
		lane_page_lane_closed(l->row, l);
	else
		lane_page_lane_died(l->row, l, error);
	if (!quiet && s->lane_lost)
		s->lane_lost(comm, l->index, false);
	if (!left)
		comm_settle(comm, l);
}

/* Baton held: the work of a dead lane runs. */
static void comm_lane_bury(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_lane **at;

	/* Who detached it posted the work then, under the lock: a run that finds it posted again was another. */
	if (atomic_load_explicit(&l->work.queued, memory_order_acquire))
		return;
	comm_lock(comm);
	for (at = &comm->several->all; *at != l; at = &(*at)->next_all)
		;
	*at = l->next_all;
	comm_unlock(comm);
	comm_lane_free(l, true);
}

/* ---- a lane's turn; baton held ------------------------------------------------------------------ */

/* Looks at how the lane does, at times. False: it has died of it. */
static bool comm_lane_sample(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	struct stripe_lane *mine = &s->stripe.lane[l->index];
	struct lane_info info;
	unsigned news;
	bool owed, stalled;

	if (now_ns - l->asked_ns < (l->kind == LANE_HARP ? ASK_HARP_NS : ASK_KERNEL_NS) ||
	    !l->lane->ops->info)
		return true;
	l->asked_ns = now_ns;
	comm_lock(comm);
	owed = !l->dead && mine->given_bytes != mine->acked_bytes;
	comm_unlock(comm);
	if (!owed)
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
			     plugin_config()->lane_timeout_ns, now_ns);
	if (news & (STRIPE_STALLED | STRIPE_MOVES))
		comm_lanes_control(comm);
	if (news & (STRIPE_STALLED | STRIPE_MOVES | STRIPE_LAGS) && comm->side == COMM_SEND)
		comm_tx_kick(comm, NULL, now_ns);
	stalled = mine->stalled;
	comm_unlock(comm);
	lane_page_lane_stalled(l->row, stalled);
	if ((news & STRIPE_SLOW) && s->lane_lost)
		s->lane_lost(comm, l->index, true);
	if (news & STRIPE_DEAD)
		comm_lane_die(l, -ETIMEDOUT, "nothing acknowledged, while other lanes get on");
	return !(news & STRIPE_DEAD);
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

void comm_lane_advance(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	struct record close;
	bool failing, ended, dead;

	comm_lock(comm);
	dead = l->dead;
	ended = comm->end_error;
	failing = s->failing;
	close = s->close;
	comm->now_ns = now_ns;
	comm_unlock(comm);
	if (dead)
		return;
	l->turned_ns = now_ns;
	comm_lane_poll(l);
	if (failing) {
		if (!l->told_close)
			comm_lane_tell(l, &close);
		return;
	}
	if (!comm_lane_sample(l, now_ns))
		return;
	if (ended)
		; /* the peer has said CLOSE: there is nothing more to move */
	else if (comm->side == COMM_SEND)
		comm_tx_advance(l, now_ns);
	else
		comm_rx_advance(l, now_ns);
	comm_lane_finish(l);
}

void comm_lane_run(struct work *work, uint64_t now_ns)
{
	struct comm_lane *l = (struct comm_lane *)((char *)work - offsetof(struct comm_lane, work));
	bool dead;

	comm_lock(l->comm);
	dead = l->dead;
	comm_unlock(l->comm);
	if (dead)
		comm_lane_bury(l);
	else
		comm_lane_advance(l, now_ns);
}

void comm_lane_notify(struct lane *lane, uint64_t now_ns)
{
	comm_lane_advance(lane->owner, now_ns);
}

/* ---- the application's part --------------------------------------------------------------------- */

/* Is it time to look at kernel lanes? Each look costs system calls; without HARP lanes it is what there is to do. */
static bool comm_kernel_is_due(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	uint64_t active_ns;

	if (!atomic_load_explicit(&s->harp_drivers, memory_order_relaxed) ||
	    now_ns - s->kernel_polled_ns >= KERNEL_LOOK_NS)
		return true;
	active_ns = atomic_load_explicit(&s->kernel_active_ns, memory_order_relaxed);
	return now_ns < active_ns + KERNEL_ACTIVE_NS ||
	       atomic_load_explicit(&s->kernel_pushing, memory_order_relaxed);
}

static void comm_several_drive(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	/* Acquire: the drivers are there. */
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_acquire);
	bool due = comm_kernel_is_due(comm, now_ns);

	if (due)
		s->kernel_polled_ns = now_ns;
	for (unsigned i = 0; i < count; i++) {
		struct driver *driver = s->drivers[i].driver;

		if (due || !comm_driver_is_kernel(comm, driver) ||
		    atomic_load_explicit(&driver->ready, memory_order_relaxed))
			driver_poll_at(driver, now_ns);
	}
}

void comm_several_post(struct comm *comm, struct request *request)
{
	bool ended, news = false;

	request->received = 0;
	request->begun = false;
	comm_lock(comm);
	/* Publishes the slot; in the lock, so that a lane which found nothing posted is woken. */
	atomic_store_explicit(&comm->posted, comm->app_posted, memory_order_release);
	if (comm->side == COMM_SEND)
		news = comm_tx_post(comm, request);
	else
		comm_rx_post(comm);
	ended = comm->end_error;
	comm_unlock(comm);
	comm_several_drive(comm, request->posted_ns);
	if (ended) /* nobody may be left to say so */
		comm_settle(comm, NULL);
	if (news)
		comm_choice_say(comm, request->posted_ns);
}

/* Requests wait, if perhaps none for long: lanes that nothing comes from are looked at too. */
static void comm_several_tick(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	bool ended = false;

	s->ticked_ns = now_ns;
	comm_lock(comm);
	comm_wake_all(comm);
	if (s->orphaned_ns && now_ns - s->orphaned_ns >= s->revive_ns && !s->stripe.live) {
		comm_end_by_error(comm, s->orphan_error);
		ended = true;
	}
	comm_unlock(comm);
	if (ended)
		comm_settle(comm, NULL);
}

void comm_tend(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_acquire);
	bool owed = false;

	comm_lock(comm);
	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		const struct stripe_lane *l = &s->stripe.lane[__builtin_ctz(left)];

		owed |= l->given_bytes != l->acked_bytes;
	}
	if (owed)
		comm_wake_all(comm);
	comm_unlock(comm);
	/* Engines have threads of their own, which that has woken. */
	for (unsigned i = 0; owed && i < count; i++)
		if (!s->drivers[i].driver->wake)
			(void)driver_turn(s->drivers[i].driver, now_ns);
}

void comm_several_poll(struct comm *comm)
{
	uint64_t now_ns = driver_clock_ns();

	if (now_ns - comm->several->ticked_ns >= TICK_NS)
		comm_several_tick(comm, now_ns);
	comm_several_drive(comm, now_ns);
}

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

/* ---- closing ------------------------------------------------------------------------------------ */

/* What the kernel still has for us would turn its close into a reset, and CLOSE be lost. */
static void comm_lane_drain(struct comm_lane *l)
{
	uint8_t bytes[16384];

	for (unsigned i = 0; i < DRAIN_READS; i++) {
		if (l->lane->ops->recv(l->lane, bytes, sizeof(bytes), 1) <= 0)
			break;
	}
}

static struct comm_lane *comm_driver_lane(struct comm_several *s, const struct driver *driver)
{
	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		struct comm_lane *l = s->lanes[__builtin_ctz(left)];

		if (l->lane->driver == driver)
			return l;
	}
	return NULL;
}

/* Baton of that driver held. */
static void comm_driver_close_run(struct work *work, uint64_t now_ns)
{
	struct comm_driver *d =
		(struct comm_driver *)((char *)work - offsetof(struct comm_driver, close_work));
	struct comm *comm = d->comm;
	struct comm_several *s = comm->several;
	struct record close = { .type = RECORD_CLOSE, .tag = CLOSE_ORDERLY };
	struct comm_lane *l;

	(void)now_ns;
	for (;;) {
		bool failed, in_flight;

		comm_lock(comm);
		l = comm_driver_lane(s, d->driver);
		if (l)
			(void)comm_lane_detach(l);
		failed = s->failing;
		in_flight =
			comm->abort ||
			comm->completed < atomic_load_explicit(&comm->posted, memory_order_acquire);
		close.message = comm->completed;
		comm_unlock(comm);
		if (!l)
			return;
		if (!failed && !in_flight) {
			if (l->kind == LANE_KERNEL)
				comm_lane_drain(l);
			comm_lane_tell(l, &close);
		}
		comm_lane_shut(l,
			       failed || l->send_broken || (in_flight && l->kind != LANE_KERNEL));
	}
}

static void comm_driver_flush_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	(void)now_ns;
}

void comm_several_close(struct comm *comm)
{
	struct comm_several *s = comm->several;
	unsigned count;

	comm_lock(comm);
	s->closing = true;
	comm_unlock(comm);
	count = atomic_load_explicit(&s->driver_count, memory_order_acquire);
	for (unsigned i = 0; i < count; i++)
		driver_call(s->drivers[i].driver, &s->drivers[i].close_work);
	for (unsigned i = 0; i < count; i++)
		driver_call(s->drivers[i].driver, &s->drivers[i].flush_work);
}
