/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_connect.c - a control thread on each host, and connect attempts, as connector.c finds them. The plugin itself opens
 * HARP lanes (comm_preamble.c), functions of this file open kernel lanes: csim_attempt_ops.
 *
 * Theory of operation. A control thread has turns as the real one has them (posted work, sources, timers), a little late.
 * A kernel lane opens without a preamble. When it is open the receiving end attaches it, and drops one that it had of that
 * index. READY takes a while to the connecting end, which may learn of the old lane's end before. Packets of a host that
 * is cut off are lost, until the attempt's deadlines.
 */
#include "comm_reconnect.h"
#include "comm_preamble.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/attempt.h"
#include "poll/control.h"
#include "lane/lane.h"

#define CONTROL_WAKE_NS 20000u /* until a control thread that was woken has its turn, at most */
#define READY_NS 100000u /* READY's latency in addition to the path's delay, at most; at times: */
#define READY_NS_LONG (20 * CSIM_MS)

static struct csim *connect_sim;
static struct csim_host *control_host;
static struct control_source *control_sources[CSIM_LANES_MAX];
static unsigned control_source_count; /* NULL among them: gone */

void csim_controls_begin(struct csim *sim)
{
	connect_sim = sim;
	control_source_count = 0;
}

void csim_control_at(struct csim *sim, unsigned host)
{
	control_host = &sim->hosts[host];
}

struct csim_host *csim_control_host(void)
{
	return control_host;
}

/* ---- the control thread ---------------------------------------------------------------------------------- */

struct poller *control_poller(void)
{
	return &control_host->control;
}

void control_post(struct work *work)
{
	poller_post(&control_host->control, work);
}

void control_call(struct work *work)
{
	/* What was posted before runs first. */
	(void)poller_run_ready(&control_host->control, connect_sim->now_ns);
	work->run(work, connect_sim->now_ns);
}

static void csim_control_woken(struct poller *poller)
{
	struct csim_host *host = container_of(poller, struct csim_host, control);
	uint64_t due_ns = connect_sim->now_ns + rng_below(&connect_sim->rng, CONTROL_WAKE_NS);

	if (due_ns < host->control_ns)
		host->control_ns = due_ns;
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	control_timer_unlink(timer);
	if (at_ns == UINT64_MAX)
		return;
	timer->at_ns = at_ns;
	LIST_INSERT_HEAD(&control_host->timers, timer, link);
}

int control_watch(struct control_source *source, int fd, uint32_t events)
{
	(void)events;
	/* Sometimes the kernel has no room for it. */
	if (csim_chance(&connect_sim->rng, connect_sim->scenario->world.no_epoll_ppm))
		return -ENOSPC;
	source->fd = fd;
	source->watched = true;
	if (control_source_count == CSIM_LANES_MAX)
		abort();
	control_sources[control_source_count++] = source;
	return 0;
}

void control_rewatch(struct control_source *source, uint32_t events)
{
	(void)source;
	(void)events;
}

void control_unwatch(struct control_source *source)
{
	for (unsigned i = 0; source->watched && i < control_source_count; i++) {
		if (control_sources[i] == source)
			control_sources[i] = NULL;
	}
	source->watched = false;
	while (control_source_count && !control_sources[control_source_count - 1])
		control_source_count--;
}

/* ---- connect attempts ----------------------------------------------------------------------------- */

struct csim_lane *csim_attempted(struct csim *sim, unsigned comm, unsigned index)
{
	for (unsigned i = 0; i < sim->lane_count; i++) {
		if (sim->lanes[i].attempt && sim->lanes[i].spec->comm == comm &&
		    sim->lanes[i].index == index)
			return &sim->lanes[i];
	}
	return NULL;
}

struct csim_lane *csim_attempt_lane(const struct attempt *attempt)
{
	for (unsigned i = 0; i < connect_sim->lane_count; i++) {
		if (connect_sim->lanes[i].attempt == attempt)
			return &connect_sim->lanes[i];
	}
	return NULL;
}

void csim_attempt_report(struct attempt *attempt, struct csim_lane *lane, int error,
			 const char *text, uint64_t now_ns)
{
	struct csim_comm *k = &connect_sim->comms[attempt->comm_id];
	unsigned index = attempt->own.index;
	struct csim_expected before = k->expected[index];

	if (error && lane)
		csim_expect_no_failure(lane, error);
	csim_control_at(connect_sim, k->app[CSIM_SEND].host);
	if (lane) {
		lane->end[CSIM_SEND].joined = !error;
		lane->attempt = NULL;
		lane->broken |= error != 0;
		lane->disturbed |= error != 0;
	}
	csim_expect_ended(k, index, error, lane ? lane->port : 0, now_ns);
	attempt_ops.ended(attempt, error, text, now_ns);
	if (lane && !error && lane->end[CSIM_SEND].lane)
		csim_expect_joined(lane);
	if (lane && !lane->end[CSIM_SEND].lane) { /* the comm did not take it */
		lane->end[CSIM_SEND].joined = false;
		if (!error) {
			k->expected[index] = before;
			csim_expect_ended(k, index, -ENOTCONN, 0, now_ns);
		}
	}
	if (lane)
		csim_note(connect_sim, "lane %u: the attempt has ended: %d", lane->number, error);
}

static void connect_stop(struct attempt *attempt)
{
	struct csim_lane *lane = csim_attempt_lane(attempt);

	if (lane) {
		lane->broken = lane->disturbed = true;
		lane->attempt = NULL;
	}
	if (attempt->candidate.harp) {
		attempt_ops.stop(attempt);
		return;
	}
	if (attempt->lane)
		attempt->lane->ops->close(attempt->lane, true);
	attempt->lane = NULL;
}

static void connect_ended(struct attempt *attempt, int error, uint64_t now_ns)
{
	struct csim_lane *lane = csim_attempt_lane(attempt);

	if (error)
		connect_stop(attempt);
	attempt->rtt_ns = 10000;
	csim_attempt_report(attempt, lane, error, lane_error_text(error), now_ns);
}

static void connect_start(struct attempt *attempt, uint64_t now_ns)
{
	struct csim *sim = connect_sim;
	struct csim_comm *k = &sim->comms[attempt->comm_id];
	const struct csn_lane *spec =
		csim_lane_spec(sim, (unsigned)attempt->comm_id, attempt->own.index);
	struct csim_lane *lane;

	if (attempt->refused) {
		attempt_ops.start(attempt, now_ns);
		return;
	}
	csim_expect_candidate(k, attempt->own.index, attempt->candidate.peer_placement);
	lane = sim->lane_count < CSIM_LANES_MAX ? csim_lane_new(sim, spec, attempt->own.index)
						: NULL;
	if (!lane || (spec->kind == CSN_KERNEL &&
		      (sim->hosts[k->app[CSIM_RECV].host].dead || k->app[CSIM_RECV].closed))) {
		if (lane)
			lane->broken = true;
		connect_ended(attempt, lane ? -ECONNREFUSED : -EMFILE, now_ns);
		return;
	}
	attempt->under_way = true;
	lane->attempt = attempt;
	if (spec->kind == CSN_HARP) {
		lane->has_preamble = true;
		attempt_ops.start(attempt, now_ns);
		return;
	}
	lane->open_ns = now_ns + 3 * spec->delay_ns + rng_below(&sim->rng, READY_NS);
	if (csim_lane_connect(lane))
		connect_ended(attempt, -ENOSPC, now_ns);
	else
		attempt->lane = lane->end[CSIM_SEND].lane;
}

static bool path_is_open(const struct csim_lane *lane)
{
	const struct csim *sim = lane->sim;

	for (unsigned side = 0; side < 2; side++) {
		unsigned host = csim_lane_host(lane, side);
		const struct csim_nic *nic = sim->hosts[host].nics[lane->spec->rail];

		if (csim_frozen(sim, host) || nic->gone || nic->cut_until_ns > sim->now_ns ||
		    nic->cut_out_until_ns > sim->now_ns || csim_lane_silent(lane, side))
			return false;
	}
	return true;
}

bool csim_attempt_may_join(struct csim_lane *lane)
{
	struct csim *sim = lane->sim;

	if (!lane->attempt)
		return true;
	if (sim->now_ns < lane->open_ns || !path_is_open(lane))
		return false;
	lane->ready_ns = sim->now_ns + lane->spec->delay_ns +
			 rng_below(&sim->rng, rng_below(&sim->rng, 4) ? READY_NS : READY_NS_LONG);
	return true;
}

/* 1: READY is here, 0: not yet, or -errno. */
static int connect_result(const struct csim_lane *lane)
{
	const struct csim_end *there = &lane->end[CSIM_RECV];

	if (there->closed || lane->broken ||
	    lane->attempt->lane->ops->state(lane->attempt->lane) == LANE_DEAD)
		return -ECONNRESET;
	return there->joined && lane->sim->now_ns >= lane->ready_ns && path_is_open(lane);
}

static void connect_advance(struct attempt *attempt, uint64_t now_ns)
{
	struct csim_lane *lane = csim_attempt_lane(attempt);
	int result;

	if (attempt->candidate.harp)
		attempt_ops.advance(attempt, now_ns);
	if (!lane || lane->has_preamble)
		return;
	attempt->opened = lane->end[CSIM_RECV].joined;
	result = connect_result(lane);
	if (!result && (now_ns >= attempt->deadline_ns ||
			(!attempt->opened && now_ns >= attempt->open_deadline_ns)))
		result = -ETIMEDOUT;
	if (result)
		connect_ended(attempt, result < 0 ? result : 0, now_ns);
}

/* What the plugin's own attempt comes to: of a HARP lane, or of one that has no candidate. */
static void connect_ended_by_plugin(struct attempt *attempt, int error, const char *text,
				    uint64_t now_ns)
{
	struct csim_lane *lane = csim_attempt_lane(attempt);

	if (lane && !error)
		csim_preamble_proved(attempt, lane);
	csim_attempt_report(attempt, lane, error, text, now_ns);
}

const struct attempt_ops csim_attempt_ops = {
	.start = connect_start,
	.advance = connect_advance,
	.stop = connect_stop,
	.ended = connect_ended_by_plugin,
};

/* ---- turns of control threads ------------------------------------------------------------------------------ */

/* When the source's attempt can go on. */
static uint64_t source_ns(const struct control_source *source, const struct csim_host *host)
{
	struct csim *sim = connect_sim;

	for (unsigned i = 0; i < sim->lane_count; i++) {
		const struct csim_lane *lane = &sim->lanes[i];

		if (!lane->attempt || !lane->stream ||
		    lane_kernel_fd(lane->attempt->lane) != source->fd)
			continue;
		if (&sim->hosts[csim_lane_host(lane, CSIM_SEND)] != host)
			return CSIM_NEVER_NS;
		if (connect_result(lane))
			return sim->now_ns;
		return lane->end[CSIM_RECV].joined && path_is_open(lane) ? lane->ready_ns
									 : CSIM_NEVER_NS;
	}
	return CSIM_NEVER_NS;
}

static void csim_control_turn(struct poller *poller, uint64_t now_ns)
{
	struct csim_host *host = container_of(poller, struct csim_host, control);
	struct control_timer *timer;

	control_host = host;
	(void)poller_run_ready(poller, now_ns);
	for (unsigned i = 0; i < control_source_count; i++) {
		if (control_sources[i] && source_ns(control_sources[i], host) <= now_ns)
			control_sources[i]->ready(control_sources[i], now_ns);
	}
	for (;;) {
		LIST_FOREACH(timer, &host->timers, link)
		if (timer->at_ns <= now_ns)
			break;
		if (!timer)
			return;
		control_timer_unlink(timer);
		timer->run(timer, now_ns);
	}
}

void csim_control_make(struct csim_host *host)
{
	poller_init(&host->control, csim_control_turn);
	host->control.wake = csim_control_woken;
	host->control_ns = CSIM_NEVER_NS;
}

uint64_t csim_controls_next_ns(struct csim *sim)
{
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned h = 0; h < sim->scenario->world.hosts; h++) {
		struct csim_host *host = &sim->hosts[h];
		uint64_t due_ns = host->control_ns;

		if (host->dead)
			continue;

		const struct control_timer *t;

		LIST_FOREACH(t, &host->timers, link)
		due_ns = t->at_ns < due_ns ? t->at_ns : due_ns;
		for (unsigned i = 0; i < control_source_count; i++) {
			uint64_t at_ns = control_sources[i] ? source_ns(control_sources[i], host)
							    : CSIM_NEVER_NS;

			due_ns = at_ns < due_ns ? at_ns : due_ns;
		}
		host->control_due_ns = due_ns;
		if (due_ns != CSIM_NEVER_NS && due_ns < host->freeze_until_ns)
			due_ns = host->freeze_until_ns;
		next_ns = due_ns < next_ns ? due_ns : next_ns;
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		const struct csim_lane *lane = &sim->lanes[i];

		if (lane->attempt && !lane->end[CSIM_RECV].joined && lane->open_ns > sim->now_ns &&
		    lane->open_ns < next_ns)
			next_ns = lane->open_ns;
		if (lane->attempt && lane->end[CSIM_RECV].joined && lane->ready_ns > sim->now_ns &&
		    lane->ready_ns < next_ns)
			next_ns = lane->ready_ns;
	}
	return next_ns;
}

void csim_controls_run(struct csim *sim)
{
	for (unsigned h = 0; h < sim->scenario->world.hosts; h++) {
		struct csim_host *host = &sim->hosts[h];

		if (host->control_due_ns > sim->now_ns || csim_frozen(sim, h))
			continue;
		host->control_ns = CSIM_NEVER_NS;
		(void)poller_run(&host->control, sim->now_ns);
	}
}

/* As control_stop(): what is posted still runs. */
void csim_controls_end(struct csim *sim)
{
	for (unsigned h = 0; h < sim->scenario->world.hosts; h++) {
		csim_control_at(sim, h);
		while (poller_run_ready(&sim->hosts[h].control, sim->now_ns))
			;
	}
}
