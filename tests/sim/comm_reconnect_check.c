/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_reconnect_check.c - checks connector.c: when each planned lane must be connected, and what the statistics must have.
 *
 * Theory of operation. For each planned lane this file records connect attempts, their results and the lane's losses, as
 * seen from outside the plugin. From these it computes when the next attempt is due: at once at first, after a life of at
 * least one second, and for a slow lane that was not replaced within 5 s; otherwise after a pause of 100 ms, which doubles
 * with each failure and each short life, up to 5 s. An attempt that starts earlier is a failure, and so is one that has not
 * started shortly after it was due. The control thread reads its clock a moment later, so some decisions
 * have two valid results; any time between the two is accepted.
 *
 * The statistics must agree: lanes opened, replaced and lost, failed attempts, rails that are down.
 */
#include "comm_reconnect.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "page_find.h"
#include "stats/lane_page.h"
#include "connect/connector.h"

#define EXPECT_PAUSE_NS (100 * CSIM_MS)
#define EXPECT_PAUSE_NS_MAX (5 * CSIM_S)
#define EXPECT_LONG_LIFE_NS CSIM_S
#define EXPECT_REPLACE_NS (5 * CSIM_S)
#define EXPECT_OPEN_NS (3 * CSIM_S)
#define EXPECT_ATTEMPT_NS (5 * CSIM_S)
#define EXPECT_PREAMBLE_BYTES (64u + 32u + 8u) /* HELLO, PROOF, CONFIRM */
#define EXPECT_LOG_NS (5 * CSIM_S)
#define EXPECT_CLOCKS_NS                                                                           \
	(200 * CSIM_US) /* the control thread reads its clock so much later, at most */
#define EXPECT_LATE_NS (5 * CSIM_MS)
#define EXPECT_ADVANCE_NS (30 * CSIM_MS) /* between two checks of an attempt's deadline, about */

static struct csim *expect_sim;
static struct {
	char text[256];
	uint64_t at_ns;
} expect_logged[16];
static unsigned expect_logged_next;
static int expect_page_fd = -1; /* the job's statistics region */
static pid_t expect_page_owner;

/* Makes a new region. A forked child does not inherit its parent's. */
static void expect_open_page(void)
{
	if (expect_page_owner != getpid())
		lane_page_fork_child();
	else
		lane_page_close();
	expect_page_owner = getpid();
	if (expect_page_fd >= 0)
		close(expect_page_fd);
	lane_page_open();
	expect_page_fd = page_find();
}

void csim_expect_begin(struct csim *sim)
{
	expect_sim = sim;
	expect_open_page();
	memset(expect_logged, 0, sizeof(expect_logged));
	expect_logged_next = 0;
}

static unsigned expect_number(const struct csim_comm *k)
{
	return (unsigned)(k - expect_sim->comms);
}

static const struct csim_host *expect_host(const struct csim_comm *k)
{
	return &expect_sim->hosts[k->app[CSIM_SEND].host];
}

/* ---- when a lane is due ---------------------------------------------------------------------------- */

static void due_never(struct csim_expected *e)
{
	e->soonest.at_ns = e->latest.at_ns = CSIM_NEVER_NS;
}

static void due_after_pause(struct csim_due *due, uint64_t now_ns)
{
	due->at_ns = now_ns + due->pause_ns;
	due->pause_ns *= 2;
	if (due->pause_ns > EXPECT_PAUSE_NS_MAX)
		due->pause_ns = EXPECT_PAUSE_NS_MAX;
}

static void due_at_once(struct csim_due *due, uint64_t now_ns)
{
	due->at_ns = now_ns;
	due->pause_ns = EXPECT_PAUSE_NS;
}

void csim_expect_go(struct csim_comm *k)
{
	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		struct csim_expected *e = &k->expected[i];

		*e = (struct csim_expected){ .since_ns = expect_sim->now_ns };
		due_never(e);
		e->soonest.pause_ns = e->latest.pause_ns = EXPECT_PAUSE_NS;
		if (i > 0 && i < k->lanes)
			e->soonest.at_ns = e->latest.at_ns = expect_sim->now_ns;
	}
	k->expected[0].up = true;
	k->expected[0].up_ns = expect_sim->now_ns;
	k->expected[0].opened = 1;
}

/* ---- connect attempts ----------------------------------------------------------------------------------------- */

void csim_expect_attempt(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_expected *e = &k->expected[index];
	const char *wrong = NULL;

	if (e->attempting)
		wrong = "has two attempts at a time";
	else if (e->up && e->rerolled_ns && now_ns < e->rerolled_ns + EXPECT_REPLACE_NS)
		wrong = "is replaced too often";
	else if (e->soonest.at_ns == CSIM_NEVER_NS)
		wrong = "is connected for no reason";
	else if (now_ns < e->soonest.at_ns)
		wrong = "is connected too soon";
	if (wrong)
		(void)csim_fail(expect_sim, "comm %u: lane %u %s: %.1f ms after %s, %u failures",
				expect_number(k), index, wrong,
				(double)(now_ns - e->since_ns) / 1e6,
				e->up ? "it opened" : "it closed", e->failures);
	if (e->up) {
		expect_sim->rerolls++;
		e->rerolled_ns = now_ns;
	}
	e->attempting = true;
	e->begun_ns = now_ns;
	expect_sim->attempts++;
}

static void expect_is_lost(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_expected *e = &k->expected[index];
	uint64_t lived_ns = now_ns - e->up_ns;
	/* The control thread of a frozen host is late. */
	bool frozen = expect_host(k)->freeze_until_ns > e->up_ns;

	if (!e->up)
		return;
	e->up = false;
	e->since_ns = now_ns;
	if (frozen || lived_ns + EXPECT_CLOCKS_NS >= EXPECT_LONG_LIFE_NS)
		due_at_once(&e->soonest, now_ns);
	else
		due_after_pause(&e->soonest, now_ns);
	if (!frozen && lived_ns >= EXPECT_LONG_LIFE_NS + EXPECT_CLOCKS_NS)
		due_at_once(&e->latest, now_ns);
	else
		due_after_pause(&e->latest, now_ns);
}

static void expect_failed(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_expected *e = &k->expected[index];

	expect_sim->connects_failed++;
	expect_sim->attempts_forgotten += k->app[CSIM_SEND].closed;
	e->failures++;
	e->since_ns = now_ns;
	if (e->up) { /* the old lane stays */
		due_never(e);
		return;
	}
	due_after_pause(&e->soonest, now_ns);
	due_after_pause(&e->latest, now_ns);
}

void csim_expect_ended(struct csim_comm *k, unsigned index, int error, uint16_t port,
		       uint64_t now_ns)
{
	struct csim_expected *e = &k->expected[index];
	bool rerolls = e->up;

	e->attempting = false;
	if (error) {
		expect_failed(k, index, now_ns);
		return;
	}
	if (rerolls && port && port == e->port)
		(void)csim_fail(expect_sim, "comm %u: lane %u is replaced from the same port",
				expect_number(k), index);
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
void csim_expect_candidate(const struct csim_comm *k, unsigned index, unsigned candidate)
{
	if (k->expected[index].failures % CSIM_CANDIDATES != candidate)
		(void)csim_fail(expect_sim,
				"comm %u: lane %u: candidate %u is tried after %u failures",
				expect_number(k), index, candidate, k->expected[index].failures);
}

/* The comm has the lane with the place that the plan gave it. */
void csim_expect_joined(const struct csim_lane *lane)
{
	const struct csim_app *app = &expect_sim->comms[lane->spec->comm].app[CSIM_SEND];
	const struct comm_lane *l = lane->end[CSIM_SEND].lane->owner;
	const struct connector_rail *rail =
		&app->connector->rails[app->connector->lanes[lane->index].rail];

	if (l->index != lane->index || l->dev != rail->dev || l->backup != rail->backup ||
	    !l->rtt_ns || l->sent_bytes != (lane->has_preamble ? EXPECT_PREAMBLE_BYTES : 0))
		(void)csim_fail(
			expect_sim,
			"lane %u is %u of NIC %d%s to its comm, after %llu bytes and %llu ns",
			lane->number, l->index, l->dev, l->backup ? " (backup)" : "",
			(unsigned long long)l->sent_bytes, (unsigned long long)l->rtt_ns);
}

/* An attempt that nothing disturbs, to a peer that exists, must not fail. */
void csim_expect_no_failure(const struct csim_lane *lane, int error)
{
	const struct csim_comm *k = &expect_sim->comms[lane->spec->comm];

	if (lane->disturbed || lane->broken || error == -EMFILE || error == -ENOSPC ||
	    expect_sim->scenario->world.no_epoll_ppm || k->excused)
		return;
	for (unsigned side = 0; side < 2; side++) {
		const struct csim_app *app = &k->app[side];

		if (app->closed || app->error || !app->comm || app->comm->error ||
		    app->comm->end_error || app->comm->closing ||
		    (side == CSIM_RECV && app->comm->rx.peer_closed))
			return;
	}
	(void)csim_fail(expect_sim, "comm %u: an undisturbed attempt for lane %u fails: %d",
			expect_number(k), lane->index, error);
}

/* ---- lanes that are lost or slow ------------------------------------------------------------------- */

static void expect_is_slow(struct csim_expected *e, uint64_t now_ns)
{
	if (!e->up || e->attempting)
		return;
	e->since_ns = e->soonest.at_ns = now_ns;
	if (!e->rerolled_ns || now_ns >= e->rerolled_ns + EXPECT_REPLACE_NS)
		e->latest.at_ns = now_ns;
}

void csim_expect_lost(struct csim_comm *k, unsigned index, enum comm_loss loss)
{
	struct csim_expected *e = &k->expected[index];
	uint64_t now_ns = expect_sim->now_ns;

	if (loss == COMM_LOSS_SLOW) {
		expect_is_slow(e, now_ns);
		return;
	}
	expect_sim->deaths++;
	k->lanes_died++;
	expect_is_lost(k, index, now_ns);
}

/* ---- checks ---------------------------------------------------------------------------------------- */

/* at_ns, later by the time that the host was frozen since since_ns. */
static uint64_t expect_awake_ns(const struct csim_comm *k, uint64_t since_ns, uint64_t at_ns)
{
	const struct csim_host *host = expect_host(k);
	uint64_t frozen_until_ns = host->freeze_until_ns;

	return frozen_until_ns > since_ns ? frozen_until_ns + (at_ns - since_ns) : at_ns;
}

static bool check_due(const struct csim_comm *k, unsigned index, const struct csim_expected *e)
{
	const struct csim_lane *lane = csim_attempted(expect_sim, expect_number(k), index);
	uint64_t now_ns = expect_sim->now_ns;
	const char *wrong = NULL;

	if (!e->attempting && e->latest.at_ns != CSIM_NEVER_NS &&
	    now_ns > expect_awake_ns(k, e->since_ns, e->latest.at_ns) + EXPECT_LATE_NS)
		wrong = e->up ? "is slow, and is not replaced" : "is down, and is not connected";
	else if (e->attempting &&
		 now_ns > expect_awake_ns(k, e->begun_ns, e->begun_ns + EXPECT_ATTEMPT_NS) +
				  EXPECT_ADVANCE_NS)
		wrong = "has an attempt that does not end";
	else if (lane && !lane->attempt->opened &&
		 now_ns > expect_awake_ns(k, e->begun_ns, e->begun_ns + EXPECT_OPEN_NS) +
				  EXPECT_ADVANCE_NS)
		wrong = "has an attempt that does not open";
	return !wrong ||
	       csim_fail(expect_sim, "comm %u: lane %u %s since %.1f ms", expect_number(k), index,
			 wrong, (double)(now_ns - e->since_ns) / 1e6);
}

/* The statistics agree with what happened. */
static bool check_statistics(const struct csim_comm *k)
{
	const struct comm *comm = k->app[CSIM_SEND].comm;
	const struct harp_page_comm *record = comm_stats_record(comm->stats);
	const char *wrong = NULL;

	if (atomic_load(&comm->joining)) /* these lanes are counted when they join */
		return true;
	if (stats_get(&record->value[HARP_COMM_lanes_died]) != k->lanes_died)
		wrong = "lanes lost";
	else if (stats_get(&record->value[HARP_COMM_lanes_replaced]) != k->lanes_replaced)
		wrong = "lanes replaced";
	for (unsigned i = 0; i < k->lanes && !wrong; i++) {
		const struct lane_stats *lane = comm_stats_lane(comm->stats, i);
		const uint64_t *value = lane ? lane->record->value : NULL;

		if (k->expected[i].opened != (value ? stats_get(&value[HARP_LANE_lanes]) : 0))
			wrong = "lanes opened";
		else if (value && k->expected[i].rerolled != stats_get(&value[HARP_LANE_rerolls]))
			wrong = "replaced lanes";
	}
	return !wrong || csim_fail(expect_sim, "comm %u: the statistics have other %s",
				   expect_number(k), wrong);
}

/* A NIC that had lanes and has none is reported down if another one has some. */
static bool check_rails(const struct csim_comm *k, const struct connector *u)
{
	unsigned up[RAIL_PAIRS_MAX] = { 0 }, had[RAIL_PAIRS_MAX] = { 0 }, all = 0;

	for (unsigned i = 0; i < u->lane_count; i++) {
		up[u->lanes[i].rail] += k->expected[i].up;
		had[u->lanes[i].rail] += k->expected[i].opened > 0;
		all += k->expected[i].up;
	}
	for (unsigned i = 0; i < u->rail_count; i++) {
		bool down = had[i] && !up[i];

		if (u->rails[i].up != up[i])
			return csim_fail(expect_sim, "comm %u: rail %u counts %u lanes of %u",
					 expect_number(k), i, u->rails[i].up, up[i]);
		if (all && u->rails[i].down_logged != down)
			return csim_fail(expect_sim, "comm %u: rail %u is %s, which is not logged",
					 expect_number(k), i, down ? "down" : "up");
	}
	return true;
}

bool csim_expect_check(struct csim_app *app)
{
	const struct csim_comm *k = &expect_sim->comms[app->number];

	for (unsigned i = 0; i < app->connector->lane_count; i++)
		if (!check_due(k, i, &k->expected[i]))
			return false;
	return check_statistics(k) && check_rails(k, app->connector);
}

/* ---- log lines and totals ---------------------------------------------------------------------------------- */

bool csim_expect_log(const char *text)
{
	uint64_t now_ns = expect_sim->now_ns;

	for (unsigned i = 0; i < sizeof(expect_logged) / sizeof(expect_logged[0]); i++) {
		if (strncmp(expect_logged[i].text, text, sizeof(expect_logged[0].text) - 1) == 0 &&
		    now_ns < expect_logged[i].at_ns + EXPECT_LOG_NS)
			return csim_fail(expect_sim, "logged too often: %s", text);
	}
	expect_logged_next = (expect_logged_next + 1) % 16;
	snprintf(expect_logged[expect_logged_next].text, sizeof(expect_logged[0].text), "%s", text);
	expect_logged[expect_logged_next].at_ns = now_ns;
	return true;
}

/* The control thread may count such an attempt before it stops, or not. */
void csim_expect_closes(const struct connector *u)
{
	for (unsigned i = 0; u && i < u->lane_count; i++) {
		const struct attempt *a = u->lanes[i].attempt;

		if (a && attempt_result(a) != ATTEMPT_RUNNING && attempt_result(a) != 0)
			expect_sim->attempts_forgotten++;
	}
}

bool csim_expect_check_end(struct csim *sim)
{
	uint64_t failed = 0;

	if (harp_page_read(expect_page_fd, HARP_PAGE_JOB, HARP_JOB_connects_failed, &failed,
			   sizeof(failed), 1) != 1)
		return csim_fail(sim, "the job's statistics cannot be read");
	return (failed <= sim->connects_failed &&
		sim->connects_failed <= failed + sim->attempts_forgotten) ||
	       csim_fail(sim, "%llu attempts failed, the statistics have %llu",
			 (unsigned long long)sim->connects_failed, (unsigned long long)failed);
}
