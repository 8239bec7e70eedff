/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_dials.c - a control thread on each host, and connect attempts, as connector.c finds them. The plugin itself opens
 * HARP lanes (comm_words.c), functions of this file open kernel lanes: csim_attempt_ops.
 *
 * Theory of operation. A control thread has turns as the real one has them (posted work, sources, timers), a little late.
 * A kernel lane opens without a preamble. When it is open the receiving end lets it in, and drops one that it had of that
 * index. READY takes a while to the connecting end, which may learn of the old lane's end before. Packets of a host that
 * is cut off are lost, until the attempt's deadlines.
 */
#include "comm_upkeep.h"
#include "comm_words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/attempt.h"
#include "poll/control.h"
#include "lane/lane.h"

#define DIALS_WAKE_NS 20000u   /* until a control thread that was woken has its turn, at most */
#define DIALS_READY_NS 100000u /* READY's way beside the path's delay, at most; at times: */
#define DIALS_READY_NS_LONG (20 * CSIM_MS)

static struct csim *dials_sim;
static struct csim_host *dials_host;
static struct control_source *dials_sources[CSIM_DIALS_MAX];
static unsigned dials_source_count; /* NULL among them: gone */

void csim_controls_begin(struct csim *sim)
{
	dials_sim = sim;
	dials_source_count = 0;
}

void csim_control_at(struct csim *sim, unsigned host)
{
	dials_host = &sim->hosts[host];
}

struct csim_host *csim_control_host(void)
{
	return dials_host;
}

/* ---- the control thread ---------------------------------------------------------------------------------- */

struct poller *control_poller(void)
{
	return &dials_host->control;
}

void control_post(struct work *work)
{
	poller_post(&dials_host->control, work);
}

void control_call(struct work *work)
{
	work->run(work, dials_sim->now_ns);
}

static void csim_control_woken(struct poller *poller)
{
	struct csim_host *host = container_of(poller, struct csim_host, control);
	uint64_t due_ns = dials_sim->now_ns + rng_below(&dials_sim->rng, DIALS_WAKE_NS);

	if (due_ns < host->control_ns)
		host->control_ns = due_ns;
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	control_timer_unlink(timer);
	if (at_ns == UINT64_MAX)
		return;
	timer->at_ns = at_ns;
	LIST_INSERT_HEAD(&dials_host->timers, timer, link);
}

int control_watch(struct control_source *source, int fd, uint32_t events)
{
	(void)events;
	/* Sometimes the kernel has no room for it. */
	if (csim_chance(&dials_sim->rng, dials_sim->scenario->world.no_epoll_ppm))
		return -ENOSPC;
	source->fd = fd;
	source->watched = true;
	if (dials_source_count == CSIM_DIALS_MAX)
		abort();
	dials_sources[dials_source_count++] = source;
	return 0;
}

void control_rewatch(struct control_source *source, uint32_t events)
{
	(void)source;
	(void)events;
}

void control_unwatch(struct control_source *source)
{
	for (unsigned i = 0; source->watched && i < dials_source_count; i++) {
		if (dials_sources[i] == source)
			dials_sources[i] = NULL;
	}
	source->watched = false;
	while (dials_source_count && !dials_sources[dials_source_count - 1])
		dials_source_count--;
}

/* ---- dials --------------------------------------------------------------------------------------- */

struct csim_lane *csim_dialled(struct csim *sim, unsigned comm, unsigned index)
{
	for (unsigned i = 0; i < sim->lane_count; i++) {
		if (sim->lanes[i].dial && sim->lanes[i].spec->comm == comm &&
		    sim->lanes[i].index == index)
			return &sim->lanes[i];
	}
	return NULL;
}

struct csim_lane *csim_dial_lane(const struct attempt *dial)
{
	for (unsigned i = 0; i < dials_sim->lane_count; i++) {
		if (dials_sim->lanes[i].dial == dial)
			return &dials_sim->lanes[i];
	}
	return NULL;
}

void csim_dial_report(struct attempt *dial, struct csim_lane *lane, int error, const char *text,
		      uint64_t now_ns)
{
	struct csim_comm *k = &dials_sim->comms[dial->comm_id];
	unsigned index = dial->own.index;
	struct csim_ledger before = k->ledger[index];

	if (error && lane)
		csim_ledger_in_vain(lane, error);
	csim_control_at(dials_sim, k->app[CSIM_SEND].host);
	if (lane) {
		lane->end[CSIM_SEND].joined = !error;
		lane->dial = NULL;
		lane->broken |= error != 0;
		lane->disturbed |= error != 0;
	}
	csim_ledger_ended(k, index, error, lane ? lane->port : 0, now_ns);
	attempt_ops.ended(dial, error, text, now_ns);
	if (lane && !error && lane->end[CSIM_SEND].lane)
		csim_ledger_joined(lane);
	if (lane && !lane->end[CSIM_SEND].lane) { /* the comm did not take it */
		lane->end[CSIM_SEND].joined = false;
		if (!error) {
			k->ledger[index] = before;
			csim_ledger_ended(k, index, -ENOTCONN, 0, now_ns);
		}
	}
	if (lane)
		csim_note(dials_sim, "lane %u: the dial has ended: %d", lane->number, error);
}

static void dial_stop(struct attempt *dial)
{
	struct csim_lane *lane = csim_dial_lane(dial);

	if (lane) {
		lane->broken = lane->disturbed = true;
		lane->dial = NULL;
	}
	if (dial->candidate.harp) {
		attempt_ops.stop(dial);
		return;
	}
	if (dial->lane)
		dial->lane->ops->close(dial->lane, true);
	dial->lane = NULL;
}

static void dial_ended(struct attempt *dial, int error, uint64_t now_ns)
{
	struct csim_lane *lane = csim_dial_lane(dial);

	if (error)
		dial_stop(dial);
	dial->rtt_ns = 10000;
	csim_dial_report(dial, lane, error, lane_error_text(error), now_ns);
}

static void dial_start(struct attempt *dial, uint64_t now_ns)
{
	struct csim *sim = dials_sim;
	struct csim_comm *k = &sim->comms[dial->comm_id];
	const struct csn_lane *spec = csim_lane_spec(sim, (unsigned)dial->comm_id, dial->own.index);
	struct csim_lane *lane;

	if (dial->refused) {
		attempt_ops.start(dial, now_ns);
		return;
	}
	csim_ledger_chooses(k, dial->own.index, dial->candidate.peer_placement);
	lane = sim->lane_count < CSIM_DIALS_MAX ? csim_lane_new(sim, spec, dial->own.index) : NULL;
	if (!lane || (spec->kind == CSN_KERNEL &&
		      (sim->hosts[k->app[CSIM_RECV].host].dead || k->app[CSIM_RECV].closed))) {
		if (lane)
			lane->broken = true;
		dial_ended(dial, lane ? -ECONNREFUSED : -EMFILE, now_ns);
		return;
	}
	dial->under_way = true;
	lane->dial = dial;
	if (spec->kind == CSN_HARP) {
		lane->words = true;
		attempt_ops.start(dial, now_ns);
		return;
	}
	lane->open_ns = now_ns + 3 * spec->delay_ns + rng_below(&sim->rng, DIALS_READY_NS);
	if (csim_lane_connect(lane))
		dial_ended(dial, -ENOSPC, now_ns);
	else
		dial->lane = lane->end[CSIM_SEND].lane;
}

static bool dial_path_is_open(const struct csim_lane *lane)
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

bool csim_dial_lets_in(struct csim_lane *lane)
{
	struct csim *sim = lane->sim;

	if (!lane->dial)
		return true;
	if (sim->now_ns < lane->open_ns || !dial_path_is_open(lane))
		return false;
	lane->ready_ns = sim->now_ns + lane->spec->delay_ns +
			 rng_below(&sim->rng,
				   rng_below(&sim->rng, 4) ? DIALS_READY_NS : DIALS_READY_NS_LONG);
	return true;
}

/* 1: READY is here, 0: not yet, or -errno. */
static int dial_result(const struct csim_lane *lane)
{
	const struct csim_end *there = &lane->end[CSIM_RECV];

	if (there->closed || lane->broken ||
	    lane->dial->lane->ops->state(lane->dial->lane) == LANE_DEAD)
		return -ECONNRESET;
	return there->joined && lane->sim->now_ns >= lane->ready_ns && dial_path_is_open(lane);
}

static void dial_advance(struct attempt *dial, uint64_t now_ns)
{
	struct csim_lane *lane = csim_dial_lane(dial);
	int result;

	if (dial->candidate.harp)
		attempt_ops.advance(dial, now_ns);
	if (!lane || lane->words)
		return;
	dial->opened = lane->end[CSIM_RECV].joined;
	result = dial_result(lane);
	if (!result &&
	    (now_ns >= dial->deadline_ns || (!dial->opened && now_ns >= dial->open_deadline_ns)))
		result = -ETIMEDOUT;
	if (result)
		dial_ended(dial, result < 0 ? result : 0, now_ns);
}

/* What the plugin's own attempt comes to: of a HARP lane, or of one that has no candidate. */
static void dial_ended_by_plugin(struct attempt *dial, int error, const char *text, uint64_t now_ns)
{
	struct csim_lane *lane = csim_dial_lane(dial);

	if (lane && !error)
		csim_words_proved(dial, lane);
	csim_dial_report(dial, lane, error, text, now_ns);
}

const struct attempt_ops csim_attempt_ops = {
	.start = dial_start,
	.advance = dial_advance,
	.stop = dial_stop,
	.ended = dial_ended_by_plugin,
};

/* ---- turns of control threads ------------------------------------------------------------------------------ */

/* When the source's dial gets on, or has. */
static uint64_t source_ns(const struct control_source *source, const struct csim_host *host)
{
	struct csim *sim = dials_sim;

	for (unsigned i = 0; i < sim->lane_count; i++) {
		const struct csim_lane *lane = &sim->lanes[i];

		if (!lane->dial || !lane->stream || lane_kernel_fd(lane->dial->lane) != source->fd)
			continue;
		if (&sim->hosts[csim_lane_host(lane, CSIM_SEND)] != host)
			return CSIM_NEVER_NS;
		if (dial_result(lane))
			return sim->now_ns;
		return lane->end[CSIM_RECV].joined && dial_path_is_open(lane) ? lane->ready_ns
									      : CSIM_NEVER_NS;
	}
	return CSIM_NEVER_NS;
}

static void csim_control_turn(struct poller *poller, uint64_t now_ns)
{
	struct csim_host *host = container_of(poller, struct csim_host, control);
	struct control_timer *timer;

	dials_host = host;
	(void)poller_run_ready(poller, now_ns);
	for (unsigned i = 0; i < dials_source_count; i++) {
		if (dials_sources[i] && source_ns(dials_sources[i], host) <= now_ns)
			dials_sources[i]->ready(dials_sources[i], now_ns);
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
		for (unsigned i = 0; i < dials_source_count; i++) {
			uint64_t at_ns = dials_sources[i] ? source_ns(dials_sources[i], host)
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

		if (lane->dial && !lane->end[CSIM_RECV].joined && lane->open_ns > sim->now_ns &&
		    lane->open_ns < next_ns)
			next_ns = lane->open_ns;
		if (lane->dial && lane->end[CSIM_RECV].joined && lane->ready_ns > sim->now_ns &&
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
