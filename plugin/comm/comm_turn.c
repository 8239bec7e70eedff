/* SPDX-License-Identifier: Apache-2.0 */
/* comm_turn.c - turns of a comm, by the application, by its lanes' engines, by the control
 * thread. */
#include <assert.h>
#include <sched.h>
#include <stddef.h>

#include "comm/comm_impl.h"
#include "base/util.h"

/*
 * Theory of operation
 *
 * Pollers. The thread that holds comm->poller advances the comm by one turn. A turn covers the
 * lanes of one engine, or all kernel lanes:
 *	- An engine's turn (engine poller held) takes a turn of the comm when a lane has an event or
 *	  the comm has posted work.
 *	- The application takes turns for the kernel lanes. The control thread does so while the
 *	  application does not poll.
 * Lock order: engine poller, then comm poller, which is only tried. Only comm_close(), which owns
 * the comm, waits for engines.
 *
 * No turn is lost. A thread that finds the comm's poller held sets its bit in `missed` and tries
 * once more. The holder releases the poller and then reads `missed`. Both sides use sequentially
 * consistent read-modify-writes, so either the thread gets the poller or the holder sees the bit
 * and takes the turn, itself or by posting the engine's work.
 *
 * A lane's `event` (set by its engine) and `ready` (set by the poller) say that it may have work.
 * A lane of another engine is woken by posting work to that engine. `kernel_due` tells the
 * application and the control thread that a kernel lane has work.
 *
 * Comms with both kinds of lanes. Polling an engine reads memory; polling kernel lanes costs a
 * system call. So idle kernel lanes are polled at intervals, which grow while messages arrive on
 * HARP lanes. The cost is latency of the next message on a kernel lane.
 */

#define COMM_MISSED_KERNEL (UINT64_C(1) << 63)
#define HOLD_SPINS 64u   /* before sched_yield() */
#define TICK_NS 2000000u /* between checks of all lanes while a request is outstanding */
#define READ_NS 1000000u /* between reads of a sender's kernel lane that brings no credits */
/* In a comm with HARP lanes, kernel lanes are polled every KERNEL_CHECK_NS, and always within
 * KERNEL_ACTIVE_NS after they brought something. Each KERNEL_CHECK_MESSAGES messages on HARP lanes
 * lengthen the interval by KERNEL_CHECK_NS, up to KERNEL_CHECK_TIMES times. */
#define KERNEL_CHECK_NS 20000u
#define KERNEL_ACTIVE_NS 200000u
#define KERNEL_CHECK_MESSAGES 16u
#define KERNEL_CHECK_TIMES 10u
#define LEFT_NS 100000000u /* without a poll by the application: the control thread takes over */

static_assert(COMM_LANES_MAX < 63, "a bit of `missed` for each engine");

/* ---- the poller ----------------------------------------------------------------------------- */

/* Takes the turns that other threads missed. The poller is held. */
static void comm_run_missed(struct comm *comm)
{
	uint64_t missed = atomic_exchange(&comm->missed, 0);

	for (uint64_t left = missed & ~COMM_MISSED_KERNEL; left; left &= left - 1) {
		struct comm_engine *e = &comm->engines[__builtin_ctzll(left)];

		poller_post(e->poller, &e->work);
	}
	if (missed & COMM_MISSED_KERNEL)
		comm_advance(comm, NULL, clock_now_ns(), COMM_TURN_POST);
}

void comm_release(struct comm *comm)
{
	for (;;) {
		(void)atomic_exchange(&comm->poller.held, false);
		if (!atomic_load(&comm->missed) || !poller_try(&comm->poller))
			return;
		comm_run_missed(comm);
	}
}

static bool comm_try(struct comm *comm, const struct comm_engine *engine)
{
	uint64_t bit = engine ? UINT64_C(1) << (engine - comm->engines) : COMM_MISSED_KERNEL;

	if (poller_try(&comm->poller))
		return true;
	(void)atomic_fetch_or(&comm->missed, bit);
	if (!poller_try(&comm->poller))
		return false;
	(void)atomic_fetch_and(&comm->missed, ~bit);
	return true;
}

void comm_acquire(struct comm *comm)
{
	unsigned spins = 0;

	while (!poller_try(&comm->poller))
		if (++spins % HOLD_SPINS == 0)
			sched_yield();
}

void comm_turn(struct comm *comm, struct comm_engine *engine, uint64_t now_ns, enum comm_turn why)
{
	if (!comm_try(comm, engine))
		return;
	comm_advance(comm, engine, now_ns, why);
	comm_release(comm);
}

void comm_engine_run(struct work *work, uint64_t now_ns)
{
	struct comm_engine *e = container_of(work, struct comm_engine, work);

	comm_turn(e->comm, e, now_ns, COMM_TURN_TEST);
}

void comm_lane_notify(struct lane *lane, uint64_t now_ns)
{
	struct comm_lane *l = lane->owner;

	atomic_store_explicit(&l->event, true, memory_order_release);
	comm_turn(l->comm, l->engine, now_ns, COMM_TURN_TEST);
}

/* ---- a turn --------------------------------------------------------------------------------- */

/* Is the kernel lane worth a system call in this turn? */
static bool comm_kernel_lane_is_due(struct comm_lane *l, enum comm_turn why)
{
	struct comm *comm = l->comm;
	bool waits = comm->completed < comm_posted(comm);

	if (l->send_error)
		return true;
	if (why == COMM_TURN_POST && !l->ready)
		return false;
	if (comm->side == COMM_RECV)
		return l->ready ||
		       (lane_kernel_is_due(l->lane) && (waits || why == COMM_TURN_BACKGROUND));
	if (comm->now_ns - l->read_ns >= READ_NS)
		return true;
	if (!lane_kernel_is_due(l->lane))
		return false;
	return l->ready ||
	       (waits &&
		(comm->multi_lane ? comm->control == l->index
				  : !comm->no_credit && comm->tx.current < comm_posted(comm)));
}

static bool comm_lane_is_due(struct comm_lane *l, enum comm_turn why)
{
	if (!l->engine)
		return comm_kernel_lane_is_due(l, why);
	return l->ready | (atomic_load_explicit(&l->event, memory_order_relaxed) &&
			   atomic_exchange_explicit(&l->event, false, memory_order_acquire));
}

static void comm_lane_read(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	int rc = comm->side == COMM_SEND ? comm_send_read(l) : comm_recv_read(l);

	if (comm_has_failed(comm) || comm->end_error)
		return;
	if (rc == 1)
		comm_wake(l); /* more data may wait, for which no event comes */
	else if (rc < 0)
		comm_lane_die(l, rc, false);
	else if (l->send_error && l->waits)
		comm_lane_drain(l); /* its data may not come on another lane */
	else if (l->send_error)
		comm_lane_die(l, l->send_error, false);
}

/* Reads the reachable lanes that may have data. Returns false if there was none. */
static bool comm_lanes_read(struct comm *comm, enum comm_turn why)
{
	struct comm_lane *l;
	bool due = false;

	COMM_FOR_EACH_LANE(comm, l)
	{
		if (!comm_lane_is_reachable(l) || !comm_lane_is_due(l, why))
			continue;
		due = true;
		l->ready = false;
		l->full = false;
		l->read_ns = comm->now_ns;
		comm_lane_read(l);
		if (comm_has_failed(comm) || comm->end_error)
			break;
	}
	return due;
}

/* Polls and reads kernel lanes, which have no events. */
static void comm_kernel_turn(struct comm *comm, enum comm_turn why)
{
	atomic_store_explicit(&comm->kernel_due, false, memory_order_relaxed);
	kernel_poll_begin(&comm->kernel_poll, comm->now_ns);
	if (why == COMM_TURN_BACKGROUND)
		comm->kernel_poll.rare = true;
	/* A single socket is polled by reading it, once in a turn: a second read after a small
	 * message would return EAGAIN. */
	if (comm->kernel_poll.count == 1)
		kernel_poll_check(&comm->kernel_poll);
	if (!comm_lanes_read(comm, why) && why != COMM_TURN_POST && !comm->end_error) {
		kernel_poll_check(&comm->kernel_poll);
		(void)comm_lanes_read(comm, why);
	}
}

static void comm_sample(struct comm *comm)
{
	struct comm_lane *l;

	COMM_FOR_EACH_LANE(comm, l)
	{
		if (!comm_lane_is_reachable(l))
			continue;
		l->turn_bytes = l->idle_records = 0;
		if (!l->engine) /* send() finds out */
			l->full = false;
		comm_lane_sample(l);
	}
}

static bool comm_has_in_flight(const struct comm *comm)
{
	bool in_flight =
		comm->multi_lane && comm->side == COMM_SEND && !TAILQ_EMPTY(&comm->tx.moved);

	for (uint32_t left = comm->scheduler.live; left; left &= left - 1) {
		const struct scheduler_lane *l = &comm->scheduler.lane[__builtin_ctz(left)];

		in_flight |= l->given_bytes != l->acked_bytes;
	}
	return in_flight;
}

/* Publishes what the turn leaves to do, and whether requests are outstanding. */
static void comm_finish(struct comm *comm)
{
	bool waits = comm->completed < comm_posted(comm) && !comm_has_failed(comm);
	struct comm_lane *l;

	/* No event tells of free space in a socket buffer. */
	COMM_FOR_EACH_LANE(comm, l)
	if (!l->engine && comm_lane_has_out(l) && !l->send_error)
		atomic_store_explicit(&comm->kernel_due, true, memory_order_relaxed);
	if (waits != atomic_load_explicit(&comm->awaited, memory_order_relaxed)) {
		atomic_store_explicit(&comm->awaited, waits, memory_order_relaxed);
		COMM_FOR_EACH_LANE(comm, l)
		if (!waits)
			lane_stats_idle(l->stats);
	}
}

/* Sends CLOSE with the reason of the failure, once. */
static void comm_lane_send_failure(struct comm_lane *l)
{
	/* A record that was begun can't be completed: its memory is the application's again. */
	if (!l->close_sent && !(l->out.payload && l->out.payload_left))
		(void)comm_lane_send_close(l, &l->comm->close);
	l->close_sent = true;
}

/* Posted data waits for credits that may be in the socket, and the application may poll another
 * comm next. */
static bool comm_waits_for_credit(const struct comm *comm, enum comm_turn why)
{
	return why == COMM_TURN_POST && comm->side == COMM_SEND && !comm->engine &&
	       comm->tx.current < comm_posted(comm) && !comm_has_failed(comm) && !comm->end_error &&
	       !comm->no_credit;
}

void comm_advance(struct comm *comm, struct comm_engine *engine, uint64_t now_ns,
		  enum comm_turn why)
{
	struct comm_lane *l;

	comm->engine = engine;
	if (now_ns > comm->now_ns)
		comm->now_ns = now_ns;
	comm_adopt(comm);
	if (!comm_has_failed(comm) && !comm->end_error) {
		comm_sample(comm);
		if (engine)
			(void)comm_lanes_read(comm, why);
		else
			comm_kernel_turn(comm, why);
	}
	if (!comm_has_failed(comm)) {
		if (comm->side == COMM_SEND)
			comm_send_run(comm);
		else
			comm_recv_run(comm);
	}
	if (comm_waits_for_credit(comm, why)) {
		comm_kernel_turn(comm, COMM_TURN_TEST);
		if (!comm_has_failed(comm))
			comm_send_run(comm);
	}
	if (comm->last_lane_died_ns &&
	    comm->now_ns >= comm->last_lane_died_ns + COMM_RECONNECT_WAIT_NS)
		comm_end_without_lanes(comm);
	comm_report_end(comm);
	if (comm_has_failed(comm))
		COMM_FOR_EACH_LANE(comm, l)
	if (comm_lane_is_reachable(l))
		comm_lane_send_failure(l);
	comm_free_dead_lanes(comm);
	comm_finish(comm);
}

/* ---- the application ------------------------------------------------------------------------ */

static struct poller *comm_engine_poller(struct comm *comm, unsigned i)
{
	return atomic_load_explicit(&comm->engines[i].poller, memory_order_acquire);
}

static bool comm_has_engines(struct comm *comm)
{
	return comm_engine_poller(comm, 0) != NULL;
}

static void comm_poll_engines(struct comm *comm, uint64_t now_ns)
{
	struct poller *poller;

	for (unsigned i = 0; i < COMM_LANES_MAX && (poller = comm_engine_poller(comm, i)); i++)
		poller_poll_at(poller, now_ns);
}

/* Is it time to poll kernel lanes? Always, in a comm without HARP lanes. */
static bool comm_kernel_is_due(struct comm *comm, uint64_t now_ns)
{
	uint64_t last = atomic_load_explicit(&comm->kernel_message, memory_order_relaxed);
	uint64_t since = comm->app_posted > last ? comm->app_posted - last : 0;
	uint64_t times = 1 + since / KERNEL_CHECK_MESSAGES;

	if (times > KERNEL_CHECK_TIMES)
		times = KERNEL_CHECK_TIMES;
	return !comm_has_engines(comm) ||
	       atomic_load_explicit(&comm->kernel_due, memory_order_relaxed) ||
	       now_ns - comm->kernel_polled_ns >= KERNEL_CHECK_NS * times ||
	       now_ns < atomic_load_explicit(&comm->kernel_active_ns, memory_order_relaxed) +
				KERNEL_ACTIVE_NS;
}

void comm_poll_posted(struct comm *comm, const struct request *request)
{
	uint64_t now_ns = request->posted_ns;

	/* A small message on a kernel lane is found by test(): polling here would mostly be in
	 * vain. */
	if (comm->side == COMM_RECV && !comm_has_engines(comm) && !comm->multi_lane &&
	    request->size <= COMM_BULK_BYTES)
		return;
	if (comm->has_kernel_lanes && comm->side == COMM_SEND && request->kinds == LANE_KERNEL)
		atomic_store_explicit(&comm->kernel_message, comm->app_posted,
				      memory_order_relaxed);
	comm_turn(comm, NULL, now_ns,
		  comm->side == COMM_RECV && !comm->multi_lane ? COMM_TURN_TEST : COMM_TURN_POST);
	comm_poll_engines(comm, now_ns);
	if (atomic_load_explicit(&comm->kernel_due, memory_order_relaxed))
		comm_turn(comm, NULL, now_ns, COMM_TURN_POST);
}

/* Checks all lanes, including silent ones, while requests are outstanding. */
static void comm_check_all(struct comm *comm, uint64_t now_ns)
{
	comm->checked_ns = now_ns;
	if (!poller_try(&comm->poller))
		return;
	comm_wake_all(comm);
	comm_release(comm);
}

void comm_poll(struct comm *comm)
{
	uint64_t now_ns = clock_now_ns();

	/* The control thread stays away from a comm that the application polls. */
	atomic_store_explicit(&comm->poller.polled_ns, now_ns, memory_order_relaxed);
	if (comm_has_engines(comm)) {
		/* A single lane needs no tick: it can't stall while siblings move. A tick would
		 * wake the control thread. */
		if (comm->multi_lane && now_ns - comm->checked_ns >= TICK_NS)
			comm_check_all(comm, now_ns);
		comm_poll_engines(comm, now_ns);
	}
	if ((comm->has_kernel_lanes || comm->multi_lane) && comm_kernel_is_due(comm, now_ns)) {
		comm->kernel_polled_ns = now_ns;
		comm_turn(comm, NULL, now_ns, COMM_TURN_TEST);
	}
}

/* ---- the control thread --------------------------------------------------------------------- */

bool comm_run_background(struct comm *comm, uint64_t now_ns)
{
	uint64_t polled_ns = atomic_load_explicit(&comm->poller.polled_ns, memory_order_relaxed);
	bool reads =
		comm->side == COMM_RECV && comm->has_kernel_lanes && now_ns >= polled_ns + LEFT_NS;
	bool in_flight, due;

	if (!poller_try(&comm->poller))
		return true;
	in_flight = comm_has_in_flight(comm);
	due = atomic_load_explicit(&comm->kernel_due, memory_order_relaxed);
	if (in_flight)
		comm_wake_all(comm);
	if (in_flight || due || reads)
		comm_advance(comm, NULL, now_ns, reads ? COMM_TURN_BACKGROUND : COMM_TURN_TEST);
	comm_release(comm);
	return in_flight || due;
}

bool comm_has_undelivered(struct comm *comm)
{
	bool undelivered;

	if (!comm->multi_lane || comm->side != COMM_SEND)
		return false;
	if (!poller_try(&comm->poller))
		return true;
	undelivered = !comm_has_failed(comm) && !comm->end_error &&
		      comm->completed == comm_posted(comm) && comm_send_has_undelivered(comm);
	comm_release(comm);
	return undelivered;
}
