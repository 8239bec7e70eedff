/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect_rig.h - reconnect.c alone, with a comm of two lanes, over stand-ins of attempts, control and all else; for one program each. */
#ifndef HARP_TESTS_UPKEEP_RIG_H
#define HARP_TESTS_UPKEEP_RIG_H

#include "check.h"
#include "stats/lane_page.h"
#include "context/plugin.h"
#include "connect/reconnect_impl.h"

#define LANE 1u

/* ---- the rest of the plugin ---------------------------------------------------------------------- */

static struct attempt attempts[2];
static struct poller control;
static struct comm comm;
static struct reconnect *reconnect;
static struct control_timer *timer;
static unsigned begun, freed, failed, failures, unreplaced;
static unsigned rails = 1, rails_said,
		warned;     /* NICs; how often one was spoken of; lines of the log */
static unsigned rails_down; /* bits of those that are */
static int
	begin_rc; /* what reconnect_attempt() says; if it fails the peer ends the lane meanwhile */
static bool swallowed, here; /* what reconnect_lost() said; the comm has a lane of that index */

int reconnect_attempt(struct attempt **out, struct reconnect *u, const struct reconnect_lane *lane,
		      uint64_t now_ns)
{
	CHECK(lane->index < 2);
	begun++;
	failures = lane->failures;
	attempts[lane->index].result = ATTEMPT_RUNNING;
	*out = begin_rc ? NULL : &attempts[lane->index];
	if (begin_rc) {
		here = false;
		swallowed = reconnect_lost(&comm, LANE, COMM_LOSS_BY_PEER);
	}
	return begin_rc;
}

int attempt_result(const struct attempt *a)
{
	return a->result;
}

void attempt_free(struct attempt *a)
{
	freed += a != NULL;
}

bool comm_has_lane(struct comm *c, unsigned index)
{
	CHECK(c == &comm);
	return index != LANE || here;
}

void reconnect_plan(struct reconnect *u)
{
	static uint8_t peer; /* another each time: what was said of one is remembered */

	peer++;
	u->rail_count = rails;
	u->lane_count = 2;
	u->lanes[1].index = LANE;
	u->lanes[1].rail = (uint8_t)(rails - 1);
	for (unsigned i = 0; i < 2; i++) {
		u->lanes[i].backoff_ns = RECONNECT_BACKOFF_NS_MIN;
		u->rails[i].dev = (int)i;
		u->rails[i].handle.has_v4 = true;
		u->rails[i].handle.v4.bytes[0] = peer;
	}
}

struct poller *control_poller(void)
{
	return &control;
}

void control_timer_set(struct control_timer *t, uint64_t at_ns)
{
	timer = t;
	t->at_ns = at_ns;
}

void control_post(struct work *work)
{
	poller_post(&control, work);
}

void control_call(struct work *work)
{
	work->run(work, clock_now_ns());
}

const char *lane_error_text(int error)
{
	return "";
}

void lane_page_count(enum harp_job_counter which, uint64_t n)
{
	CHECK_EQ(which, HARP_JOB_connects_failed);
	failed += (unsigned)n;
}

void lane_page_lane_unreplaced(struct comm_stats *stats, unsigned index)
{
	CHECK(!stats);
	CHECK_EQ(index, LANE);
	unreplaced++;
}

void lane_page_rail(int dev, bool down)
{
	rails_said++;
	rails_down = down ? rails_down | 1u << dev : rails_down & ~(1u << dev);
}

void lane_page_rail_left(int dev)
{
	rails_down &= ~(1u << dev);
}

const struct device *plugin_device(int dev)
{
	static const struct device device;

	return &device;
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	warned += level == PLUGIN_WARN;
}

void preamble_comm_key(const struct preamble *p, uint8_t out[PREAMBLE_KEY_BYTES])
{
	memset(out, 0, PREAMBLE_KEY_BYTES);
}

void background_begin(struct comm_background *tender, struct comm *c)
{
	tender->comm = c;
}

void background_end(struct comm_background *tender)
{
	tender->comm = NULL;
}

/* ---- a comm of two lanes --------------------------------------------------------------------------- */

static void control_turn(struct poller *poller, uint64_t now_ns)
{
	(void)poller_run_ready(poller, now_ns);
}

static void turn(uint64_t now_ns)
{
	CHECK(poller_run(&control, now_ns));
}

/* The dial has ended. */
static void ended(int result, uint64_t now_ns)
{
	attempts[LANE].result = result;
	poller_post(&control, &reconnect->work);
	turn(now_ns);
}

/* The second lane is being dialled, at the time that is returned. */
static uint64_t begin_dial(void)
{
	static struct attempt first;
	const struct handle handle = { .has_v4 = true };
	uint64_t now_ns = clock_now_ns();

	poller_init(&control, control_turn);
	begun = freed = failed = unreplaced = 0;
	rails_said = rails_down = warned = 0;
	begin_rc = 0;
	swallowed = false;
	reconnect = reconnect_new(0, 0, &handle);
	reconnect_made(reconnect, &comm, &first);
	reconnect_begin(reconnect);
	turn(now_ns);
	CHECK_EQ(begun, 1);
	return now_ns;
}

/* ... is up, and found slow. */
static uint64_t begin(void)
{
	uint64_t now_ns = begin_dial();

	here = true;
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS_SLOW));
	return now_ns;
}

static void end_said(unsigned said)
{
	CHECK_EQ(rails_said, said);
	reconnect_stop(reconnect);
	reconnect_free(reconnect);
	turn(clock_now_ns());
	comm.reconnect = NULL;
}

static void end(void)
{
	end_said(0);
}

#endif
