/* SPDX-License-Identifier: Apache-2.0 */
/* comm_several.c - a comm of several lanes as the application and the keeper drive it. */
#include "comm/comm_impl.h"

#define TICK_NS 2000000u       /* lanes are looked at while a request waits */
#define FIRST_BYTES_MAX 65536u /* a longer message by a kernel lane waits for the engine's ACKs */
#define KERNEL_LOOK_NS 20000u  /* kernel lanes, while HARP's are what is looked at */
#define KERNEL_ACTIVE_NS 200000u
#define LEFT_NS 100000000u /* nobody has polled for so long */
/* The look is so many messages later as long again, to at most so many times, while nothing goes by kernel lanes. */
#define KERNEL_LOOK_MESSAGES 16u
#define KERNEL_LOOK_TIMES 10u

/*
 * Theory of operation
 *
 * NCCL's thread polls all its comms in turn, each thousands of times between two messages. To look at an engine
 * is to read memory; each look at kernel lanes costs a system call. So kernel lanes that nothing comes by are looked at
 * now and then, and more seldom while messages go by HARP's: with tens of comms it would be what most of the time is
 * spent on. What such a wait costs is the first message of those that come by the kernel's again.
 */

static uint64_t comm_kernel_look_ns(const struct comm *comm)
{
	uint64_t last = atomic_load_explicit(&comm->several->kernel_message, memory_order_relaxed);
	/* What comes early is ahead of us. */
	uint64_t since = comm->app_posted > last ? comm->app_posted - last : 0;
	uint64_t times = 1 + since / KERNEL_LOOK_MESSAGES;

	return KERNEL_LOOK_NS * (times < KERNEL_LOOK_TIMES ? times : KERNEL_LOOK_TIMES);
}

/* Is it time to look at kernel lanes? Without HARP lanes it is what there is to do. */
static bool comm_kernel_is_due(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	uint64_t active_ns;

	if (!atomic_load_explicit(&s->harp_drivers, memory_order_relaxed) ||
	    now_ns - s->kernel_polled_ns >= comm_kernel_look_ns(comm))
		return true;
	active_ns = atomic_load_explicit(&s->kernel_active_ns, memory_order_relaxed);
	return now_ns < active_ns + KERNEL_ACTIVE_NS ||
	       atomic_load_explicit(&s->kernel_pushing, memory_order_relaxed);
}

/* Work of a kernel lane's, which nobody is told of. Engines have threads of their own. */
static bool comm_driver_waits(const struct driver *driver)
{
	return !driver->wake && atomic_load_explicit(&driver->ready, memory_order_relaxed);
}

/* What is ready: an ACK by another lane than that which brought what it is for. Nobody may poll any more; engines have threads to
 * tell. */
static void comm_kernel_run(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_acquire);

	for (unsigned i = 0; i < count; i++)
		if (comm_driver_waits(s->drivers[i].driver))
			kernel_driver_run((struct kernel_driver *)s->drivers[i].driver, now_ns);
}

/* An engine has the ACKs to send of what has come, and of what is done. */
static void comm_engines_run(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_acquire);

	for (unsigned i = 0; i < count; i++)
		if (s->drivers[i].driver->wake)
			driver_poll_at(s->drivers[i].driver, now_ns);
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

		if (due || driver->wake || /* an engine */
		    atomic_load_explicit(&driver->ready, memory_order_relaxed))
			driver_poll_at(driver, now_ns);
	}
	comm_kernel_run(comm, now_ns);
}

/* As above, of who posts a request. He will ask whether it is done, or is told so at once: then is the time to ask kernel
 * lanes what has come, which a stream of small messages would pay more for than for sending them. By a kernel lane it goes before
 * the engine's ACKs, as the peer waits for it rather than for those; a long one would hold them up. Who posts a receive answers nothing,
 * and an engine has nothing to send for it. */
static void comm_several_begin(struct comm *comm, const struct request *request)
{
	uint64_t now_ns = request->posted_ns;

	if (comm->side == COMM_RECV) {
		comm_kernel_run(comm, now_ns);
		return;
	}
	if (request->size <= FIRST_BYTES_MAX)
		comm_kernel_run(comm, now_ns);
	comm_engines_run(comm, now_ns);
	comm_kernel_run(comm, now_ns);
	comm_kernel_run(comm, now_ns); /* what that has left to another */
}

void comm_several_post(struct comm *comm, struct request *request)
{
	bool ended;

	request->received = 0;
	request->begun = false;
	request->kept = 0;
	comm_lock(comm);
	/* Publishes the slot; in the lock, so that a lane which found nothing posted is woken. */
	atomic_store_explicit(&comm->posted, comm->app_posted, memory_order_release);
	if (comm->side == COMM_SEND) {
		comm_tx_post(comm, request);
		if (request->kinds & LANE_KERNEL)
			atomic_store_explicit(&comm->several->kernel_message, comm->app_posted,
					      memory_order_relaxed);
	} else {
		comm_rx_post(comm);
	}
	ended = comm->end_error;
	comm_unlock(comm);
	comm_several_begin(comm, request);
	if (ended) /* nobody may be left to say so */
		comm_settle(comm, NULL);
}

/* Requests wait, if perhaps none for long: lanes that nothing comes from are looked at too. */
static void comm_several_tick(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	bool ended = false;

	s->ticked_ns = now_ns;
	comm_lock(comm);
	comm_look_all(comm);
	/* Who saw the last lane die may have had a newer clock. */
	if (s->orphaned_ns && now_ns >= s->orphaned_ns + s->revive_ns && !s->stripe.live) {
		comm_end_by_lanes(comm, s->orphan_error);
		ended = true;
	}
	comm_unlock(comm);
	if (ended)
		comm_settle(comm, NULL);
}

/* Lock held. Has a lane been given something that its TCP has not delivered, or is there something to give? */
static bool comm_is_under_way(const struct comm *comm)
{
	const struct comm_several *s = comm->several;
	bool under_way = comm->side == COMM_SEND && s->moved.head >= 0;

	for (uint32_t left = s->stripe.live; left; left &= left - 1) {
		const struct stripe_lane *l = &s->stripe.lane[__builtin_ctz(left)];

		under_way |= l->given_bytes != l->acked_bytes;
	}
	return under_way;
}

/* A receiver that has everything it asked for stops polling, yet the peer may still need something of it: an
 * acknowledgement that was lost with its lane. What comes twice is answered. */
bool comm_is_read(const struct comm *comm)
{
	return comm->side == COMM_RECV && comm->kernel_count;
}

static bool comm_driver_is_left(const struct driver *driver, uint64_t now_ns)
{
	return now_ns >= atomic_load_explicit(&driver->polled_ns, memory_order_relaxed) + LEFT_NS;
}

bool comm_tend(struct comm *comm, uint64_t now_ns, bool reads)
{
	struct comm_several *s = comm->several;
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_acquire);
	bool under_way, busy;

	reads &= comm_is_read(comm);
	comm_lock(comm);
	under_way = busy = comm_is_under_way(comm);
	if (under_way)
		comm_look_all(comm);
	comm_unlock(comm);
	for (unsigned i = 0; i < count; i++) {
		struct driver *driver = s->drivers[i].driver;
		bool waits;

		if (driver->wake) /* an engine has a thread of its own */
			continue;
		waits = under_way || comm_driver_waits(driver);
		busy |= waits;
		if (waits || (reads && comm_driver_is_left(driver, now_ns)))
			(void)driver_turn(driver, now_ns);
	}
	return busy;
}

bool comm_rest(struct comm *comm, struct driver *driver, struct work *work)
{
	struct comm_several *s = comm->several;
	bool rests;

	/* Lanes' work is posted under the lock: it is seen here, or finds the word. */
	comm_lock(comm);
	rests = !s->restless && !comm_is_under_way(comm);
	for (unsigned i = 0; i < atomic_load_explicit(&s->driver_count, memory_order_relaxed); i++)
		rests &= !comm_driver_waits(s->drivers[i].driver);
	if (rests) {
		s->rouse_driver = driver;
		s->rouse = work;
	}
	comm_unlock(comm);
	return rests;
}

void comm_rest_never(struct comm *comm)
{
	comm_lock(comm);
	comm->several->restless = true;
	comm->several->rouse = NULL;
	comm_unlock(comm);
}

bool comm_owes(struct comm *comm)
{
	struct comm_several *s = comm->several;
	bool owes;

	if (!s || comm->side != COMM_SEND)
		return false;
	comm_lock(comm);
	owes = !s->failing && !comm->end_error &&
	       comm->completed == atomic_load_explicit(&comm->posted, memory_order_acquire) &&
	       comm_kept_owes(comm);
	comm_unlock(comm);
	return owes;
}

void comm_several_poll(struct comm *comm)
{
	uint64_t now_ns = driver_clock_ns();

	if (now_ns - comm->several->ticked_ns >= TICK_NS)
		comm_several_tick(comm, now_ns);
	comm_several_drive(comm, now_ns);
}
