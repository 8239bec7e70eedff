/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_ledger.c - checks reconnect.c: when each planned lane must be connected, and what the statistics must say.
 *
 * Theory of operation. For each planned lane the ledger records connect attempts, their results and the lane's losses, as
 * seen from outside the plugin. From these it computes when the next attempt is due: at once at first, after a life of at
 * least one second, and for a slow lane that was not replaced within 5 s; otherwise after a pause of 100 ms, which doubles
 * with each failure and each short life, up to 5 s. An attempt that starts earlier is a failure, and so is one that has not
 * started shortly after it was due. The control thread reads its clock a moment after the ledger does, so some decisions
 * have two valid results; any time between the two is accepted.
 *
 * The ledger is compared with the statistics: lanes opened, replaced and lost, failed attempts, rails that are down.
 */
#include "comm_upkeep.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "page_find.h"
#include "stats/lane_page.h"
#include "connect/connector.h"

#define LEDGER_PAUSE_NS (100 * CSIM_MS)
#define LEDGER_PAUSE_NS_MAX (5 * CSIM_S)
#define LEDGER_LONG_LIFE_NS CSIM_S
#define LEDGER_REPLACE_NS (5 * CSIM_S)
#define LEDGER_OPEN_NS (3 * CSIM_S)
#define LEDGER_ATTEMPT_NS (5 * CSIM_S)
#define LEDGER_PREAMBLE_BYTES (64u + 32u + 8u) /* HELLO, PROOF, CONFIRM */
#define LEDGER_LOG_NS (5 * CSIM_S)
#define LEDGER_CLOCKS_NS                                                                           \
	(200 * CSIM_US) /* the control thread reads its clock so much later, at most */
#define LEDGER_LATE_NS (5 * CSIM_MS)
#define LEDGER_ADVANCE_NS (30 * CSIM_MS) /* between two checks of an attempt's deadline, about */

static struct csim *ledger_sim;
static struct {
	char text[256];
	uint64_t at_ns;
} ledger_logged[16];
static unsigned ledger_logged_next;
static int ledger_page_fd = -1; /* the job's statistics region */
static pid_t ledger_page_owner;

/* Makes a new region. A forked child does not inherit its parent's. */
static void ledger_open_page(void)
{
	if (ledger_page_owner != getpid())
		lane_page_fork_child();
	else
		lane_page_close();
	ledger_page_owner = getpid();
	if (ledger_page_fd >= 0)
		close(ledger_page_fd);
	lane_page_open();
	ledger_page_fd = page_find();
}

void csim_ledger_begin(struct csim *sim)
{
	ledger_sim = sim;
	ledger_open_page();
	memset(ledger_logged, 0, sizeof(ledger_logged));
	ledger_logged_next = 0;
}

static unsigned ledger_number(const struct csim_comm *k)
{
	return (unsigned)(k - ledger_sim->comms);
}

static const struct csim_host *ledger_host(const struct csim_comm *k)
{
	return &ledger_sim->hosts[k->app[CSIM_SEND].host];
}

/* ---- when a lane is due ---------------------------------------------------------------------------- */

static void due_never(struct csim_ledger *e)
{
	e->soonest.at_ns = e->latest.at_ns = CSIM_NEVER_NS;
}

static void due_after_pause(struct csim_due *due, uint64_t now_ns)
{
	due->at_ns = now_ns + due->pause_ns;
	due->pause_ns *= 2;
	if (due->pause_ns > LEDGER_PAUSE_NS_MAX)
		due->pause_ns = LEDGER_PAUSE_NS_MAX;
}

static void due_at_once(struct csim_due *due, uint64_t now_ns)
{
	due->at_ns = now_ns;
	due->pause_ns = LEDGER_PAUSE_NS;
}

void csim_ledger_go(struct csim_comm *k)
{
	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		struct csim_ledger *e = &k->ledger[i];

		*e = (struct csim_ledger){ .since_ns = ledger_sim->now_ns };
		due_never(e);
		e->soonest.pause_ns = e->latest.pause_ns = LEDGER_PAUSE_NS;
		if (i > 0 && i < k->lanes)
			e->soonest.at_ns = e->latest.at_ns = ledger_sim->now_ns;
	}
	k->ledger[0].up = true;
	k->ledger[0].up_ns = ledger_sim->now_ns;
	k->ledger[0].opened = 1;
}

/* ---- connect attempts ----------------------------------------------------------------------------------------- */

void csim_ledger_begins(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_ledger *e = &k->ledger[index];
	const char *wrong = NULL;

	if (e->dialled)
		wrong = "has two attempts at a time";
	else if (e->up && e->rerolled_ns && now_ns < e->rerolled_ns + LEDGER_REPLACE_NS)
		wrong = "is replaced too often";
	else if (e->soonest.at_ns == CSIM_NEVER_NS)
		wrong = "is connected for no reason";
	else if (now_ns < e->soonest.at_ns)
		wrong = "is connected too soon";
	if (wrong)
		(void)csim_fail(ledger_sim, "comm %u: lane %u %s: %.1f ms after %s, %u failures",
				ledger_number(k), index, wrong,
				(double)(now_ns - e->since_ns) / 1e6,
				e->up ? "it opened" : "it closed", e->failures);
	if (e->up) {
		ledger_sim->rerolls++;
		e->rerolled_ns = now_ns;
	}
	e->dialled = true;
	e->begun_ns = now_ns;
	ledger_sim->dialled++;
}

static void ledger_is_lost(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_ledger *e = &k->ledger[index];
	uint64_t lived_ns = now_ns - e->up_ns;
	/* The control thread of a frozen host is late. */
	bool frozen = ledger_host(k)->freeze_until_ns > e->up_ns;

	if (!e->up)
		return;
	e->up = false;
	e->since_ns = now_ns;
	if (frozen || lived_ns + LEDGER_CLOCKS_NS >= LEDGER_LONG_LIFE_NS)
		due_at_once(&e->soonest, now_ns);
	else
		due_after_pause(&e->soonest, now_ns);
	if (!frozen && lived_ns >= LEDGER_LONG_LIFE_NS + LEDGER_CLOCKS_NS)
		due_at_once(&e->latest, now_ns);
	else
		due_after_pause(&e->latest, now_ns);
}

static void ledger_failed(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_ledger *e = &k->ledger[index];

	ledger_sim->connects_failed++;
	ledger_sim->dials_forgotten += k->app[CSIM_SEND].closed;
	e->failures++;
	e->since_ns = now_ns;
	if (e->up) { /* the old lane stays */
		due_never(e);
		return;
	}
	due_after_pause(&e->soonest, now_ns);
	due_after_pause(&e->latest, now_ns);
}

void csim_ledger_ended(struct csim_comm *k, unsigned index, int error, uint16_t port,
		       uint64_t now_ns)
{
	struct csim_ledger *e = &k->ledger[index];
	bool rerolls = e->up;

	e->dialled = false;
	if (error) {
		ledger_failed(k, index, now_ns);
		return;
	}
	if (rerolls && port && port == e->port)
		(void)csim_fail(ledger_sim, "comm %u: lane %u is replaced from the same port",
				ledger_number(k), index);
	e->rerolled += rerolls;
	k->lanes_replaced += !rerolls && e->opened;
	e->opened++;
	e->port = port;
	e->failures = 0;
	e->up = true;
	e->up_ns = e->since_ns = now_ns;
	due_never(e);
}

/* Each failure moves on to the next candidate address. */
void csim_ledger_chooses(const struct csim_comm *k, unsigned index, unsigned candidate)
{
	if (k->ledger[index].failures % CSIM_CANDIDATES != candidate)
		(void)csim_fail(ledger_sim,
				"comm %u: lane %u: candidate %u is tried after %u failures",
				ledger_number(k), index, candidate, k->ledger[index].failures);
}

/* The comm has the lane with the place that the plan gave it. */
void csim_ledger_joined(const struct csim_lane *lane)
{
	const struct csim_app *app = &ledger_sim->comms[lane->spec->comm].app[CSIM_SEND];
	const struct comm_lane *l = lane->end[CSIM_SEND].lane->owner;
	const struct connector_rail *rail =
		&app->connector->rails[app->connector->lanes[lane->index].rail];

	if (l->index != lane->index || l->dev != rail->dev || l->backup != rail->backup ||
	    !l->rtt_ns || l->sent_bytes != (lane->words ? LEDGER_PREAMBLE_BYTES : 0))
		(void)csim_fail(
			ledger_sim,
			"lane %u is %u of NIC %d%s to its comm, after %llu bytes and %llu ns",
			lane->number, l->index, l->dev, l->backup ? " (backup)" : "",
			(unsigned long long)l->sent_bytes, (unsigned long long)l->rtt_ns);
}

/* An attempt that nothing disturbs, to a peer that exists, must not fail. */
void csim_ledger_in_vain(const struct csim_lane *lane, int error)
{
	const struct csim_comm *k = &ledger_sim->comms[lane->spec->comm];

	if (lane->disturbed || lane->broken || error == -EMFILE || error == -ENOSPC ||
	    ledger_sim->scenario->world.no_epoll_ppm || k->excused)
		return;
	for (unsigned side = 0; side < 2; side++) {
		const struct csim_app *app = &k->app[side];

		if (app->closed || app->error || !app->comm || app->comm->error ||
		    app->comm->end_error || app->comm->closing ||
		    (side == CSIM_RECV && app->comm->rx.peer_closed))
			return;
	}
	(void)csim_fail(ledger_sim, "comm %u: an undisturbed attempt for lane %u fails: %d",
			ledger_number(k), lane->index, error);
}

/* ---- lanes that are lost or slow ------------------------------------------------------------------- */

static void ledger_is_slow(struct csim_ledger *e, uint64_t now_ns)
{
	if (!e->up || e->dialled)
		return;
	e->since_ns = e->soonest.at_ns = now_ns;
	if (!e->rerolled_ns || now_ns >= e->rerolled_ns + LEDGER_REPLACE_NS)
		e->latest.at_ns = now_ns;
}

void csim_ledger_lost(struct csim_comm *k, unsigned index, enum comm_loss loss)
{
	struct csim_ledger *e = &k->ledger[index];
	uint64_t now_ns = ledger_sim->now_ns;

	if (loss == COMM_LOSS_SLOW) {
		ledger_is_slow(e, now_ns);
		return;
	}
	ledger_sim->deaths++;
	k->lanes_died++;
	ledger_is_lost(k, index, now_ns);
}

/* ---- judged ---------------------------------------------------------------------------------------- */

/* at_ns, later by the time that the host was frozen since since_ns. */
static uint64_t ledger_awake_ns(const struct csim_comm *k, uint64_t since_ns, uint64_t at_ns)
{
	const struct csim_host *host = ledger_host(k);
	uint64_t frozen_until_ns = host->freeze_until_ns;

	return frozen_until_ns > since_ns ? frozen_until_ns + (at_ns - since_ns) : at_ns;
}

static bool judge_due(const struct csim_comm *k, unsigned index, const struct csim_ledger *e)
{
	const struct csim_lane *lane = csim_dialled(ledger_sim, ledger_number(k), index);
	uint64_t now_ns = ledger_sim->now_ns;
	const char *wrong = NULL;

	if (!e->dialled && e->latest.at_ns != CSIM_NEVER_NS &&
	    now_ns > ledger_awake_ns(k, e->since_ns, e->latest.at_ns) + LEDGER_LATE_NS)
		wrong = e->up ? "is slow, and is not replaced" : "is down, and is not connected";
	else if (e->dialled &&
		 now_ns > ledger_awake_ns(k, e->begun_ns, e->begun_ns + LEDGER_ATTEMPT_NS) +
				  LEDGER_ADVANCE_NS)
		wrong = "has an attempt that does not end";
	else if (lane && !lane->dial->opened &&
		 now_ns > ledger_awake_ns(k, e->begun_ns, e->begun_ns + LEDGER_OPEN_NS) +
				  LEDGER_ADVANCE_NS)
		wrong = "has an attempt that does not open";
	return !wrong ||
	       csim_fail(ledger_sim, "comm %u: lane %u %s since %.1f ms", ledger_number(k), index,
			 wrong, (double)(now_ns - e->since_ns) / 1e6);
}

/* The statistics agree with the ledger. */
static bool judge_statistics(const struct csim_comm *k)
{
	const struct comm *comm = k->app[CSIM_SEND].comm;
	const struct harp_page_comm *record = comm_stats_record(comm->stats);
	const char *wrong = NULL;

	if (stats_get(&record->value[HARP_COMM_lanes_died]) != k->lanes_died)
		wrong = "lanes lost";
	else if (stats_get(&record->value[HARP_COMM_lanes_replaced]) != k->lanes_replaced)
		wrong = "lanes replaced";
	for (unsigned i = 0; i < k->lanes && !wrong; i++) {
		const struct lane_stats *lane = comm_stats_lane(comm->stats, i);
		const uint64_t *value = lane ? lane->record->value : NULL;

		if (k->ledger[i].opened != (value ? stats_get(&value[HARP_LANE_lanes]) : 0))
			wrong = "lanes opened";
		else if (value && k->ledger[i].rerolled != stats_get(&value[HARP_LANE_rerolls]))
			wrong = "replaced lanes";
	}
	return !wrong || csim_fail(ledger_sim, "comm %u: the statistics have other %s",
				   ledger_number(k), wrong);
}

/* A NIC that had lanes and has none is reported down if another one has some. */
static bool judge_rails(const struct csim_comm *k, const struct connector *u)
{
	unsigned up[RAIL_PAIRS_MAX] = { 0 }, had[RAIL_PAIRS_MAX] = { 0 }, all = 0;

	for (unsigned i = 0; i < u->lane_count; i++) {
		up[u->lanes[i].rail] += k->ledger[i].up;
		had[u->lanes[i].rail] += k->ledger[i].opened > 0;
		all += k->ledger[i].up;
	}
	for (unsigned i = 0; i < u->rail_count; i++) {
		bool down = had[i] && !up[i];

		if (u->rails[i].up != up[i])
			return csim_fail(ledger_sim, "comm %u: rail %u counts %u lanes of %u",
					 ledger_number(k), i, u->rails[i].up, up[i]);
		if (all && u->rails[i].down_logged != down)
			return csim_fail(ledger_sim, "comm %u: rail %u is %s, which is not logged",
					 ledger_number(k), i, down ? "down" : "up");
	}
	return true;
}

bool csim_ledger_judge(struct csim_app *app)
{
	const struct csim_comm *k = &ledger_sim->comms[app->number];

	for (unsigned i = 0; i < app->connector->lane_count; i++)
		if (!judge_due(k, i, &k->ledger[i]))
			return false;
	return judge_statistics(k) && judge_rails(k, app->connector);
}

/* ---- log lines and totals ---------------------------------------------------------------------------------- */

bool csim_ledger_log(const char *text)
{
	uint64_t now_ns = ledger_sim->now_ns;

	for (unsigned i = 0; i < sizeof(ledger_logged) / sizeof(ledger_logged[0]); i++) {
		if (strncmp(ledger_logged[i].text, text, sizeof(ledger_logged[0].text) - 1) == 0 &&
		    now_ns < ledger_logged[i].at_ns + LEDGER_LOG_NS)
			return csim_fail(ledger_sim, "logged too often: %s", text);
	}
	ledger_logged_next = (ledger_logged_next + 1) % 16;
	snprintf(ledger_logged[ledger_logged_next].text, sizeof(ledger_logged[0].text), "%s", text);
	ledger_logged[ledger_logged_next].at_ns = now_ns;
	return true;
}

/* The control thread may count such an attempt before it stops, or not. */
void csim_ledger_closes(const struct connector *u)
{
	for (unsigned i = 0; u && i < u->lane_count; i++) {
		const struct attempt *a = u->lanes[i].attempt;

		if (a && attempt_result(a) != ATTEMPT_RUNNING && attempt_result(a) != 0)
			ledger_sim->dials_forgotten++;
	}
}

bool csim_ledger_judge_end(struct csim *sim)
{
	uint64_t failed = 0;

	if (harp_page_read(ledger_page_fd, HARP_PAGE_JOB, HARP_JOB_connects_failed, &failed,
			   sizeof(failed), 1) != 1)
		return csim_fail(sim, "the job's statistics cannot be read");
	return (failed <= sim->connects_failed &&
		sim->connects_failed <= failed + sim->dials_forgotten) ||
	       csim_fail(sim, "%llu attempts failed, the statistics have %llu",
			 (unsigned long long)sim->connects_failed, (unsigned long long)failed);
}
