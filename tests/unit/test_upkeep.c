/* SPDX-License-Identifier: Apache-2.0 */
/* test_upkeep.c - a further lane that is replaced while its peer, or its successor, ends: it is never taken for one that is up. */
#include <errno.h>

#include "check.h"
#include "lane_page.h"
#include "plugin.h"
#include "upkeep_impl.h"

#define LANE 1u

/* ---- the rest of the plugin ---------------------------------------------------------------------- */

struct attempt {
	int result;
};

static struct attempt attempt;
static struct driver keeper;
static struct comm comm;
static struct upkeep *upkeep;
static struct keeper_timer *timer;
static unsigned begun, rails_said;
static int begin_rc; /* what attempt_begin() says; if it fails the peer ends the lane meanwhile */
static bool swallowed, here; /* what upkeep_lost() said; the comm has a lane of that index */

int attempt_begin(struct attempt **out, struct upkeep *u, const struct upkeep_lane *lane,
		  uint64_t now_ns)
{
	(void)u;
	(void)now_ns;
	CHECK_EQ(lane->index, LANE);
	begun++;
	attempt.result = ATTEMPT_RUNS;
	*out = begin_rc ? NULL : &attempt;
	if (begin_rc) {
		here = false;
		swallowed = upkeep_lost(&comm, LANE, COMM_LOSS_BY_PEER);
	}
	return begin_rc;
}

int attempt_result(const struct attempt *a)
{
	return a->result;
}

const char *attempt_text(const struct attempt *a)
{
	(void)a;
	return "";
}

void attempt_advance(struct attempt *a, uint64_t now_ns)
{
	(void)a;
	(void)now_ns;
}

void attempt_forget(struct attempt *a)
{
	(void)a;
}

void attempt_end_kernel(struct attempt *a)
{
	(void)a;
}

void attempt_end_harp(struct attempt *a)
{
	(void)a;
}

bool comm_has_lane(struct comm *c, unsigned index)
{
	CHECK(c == &comm);
	return index != LANE || here;
}

void upkeep_plan(struct upkeep *u)
{
	u->rail_count = 1;
	u->lane_count = 2;
	u->lanes[1].index = LANE;
	u->lanes[1].backoff_ns = UPKEEP_BACKOFF_NS_MIN;
}

struct driver *keeper_driver(void)
{
	return &keeper;
}

void keeper_timer_set(struct keeper_timer *t, uint64_t at_ns)
{
	timer = t;
	t->at_ns = at_ns;
}

struct driver *engine_driver(struct engine *engine)
{
	(void)engine;
	return &keeper;
}

struct engine *engine_set_at(const struct engine_set *set, unsigned i)
{
	(void)set;
	(void)i;
	return NULL;
}

unsigned engine_set_count(const struct engine_set *set)
{
	(void)set;
	return 0;
}

const char *lane_error_text(int error)
{
	(void)error;
	return "";
}

void lane_page_count(enum harp_job_counter which, uint64_t n)
{
	(void)which;
	(void)n;
}

void lane_page_rail(int dev, bool down)
{
	(void)dev;
	(void)down;
	rails_said++;
}

const struct device *plugin_device(int dev)
{
	static const struct device device;

	(void)dev;
	return &device;
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	(void)level;
	(void)func;
	(void)line;
	(void)fmt;
}

void preamble_comm_key(const struct preamble *p, uint8_t out[PREAMBLE_KEY_BYTES])
{
	(void)p;
	memset(out, 0, PREAMBLE_KEY_BYTES);
}

const uint8_t *preamble_rails(const struct preamble *p, size_t *bytes)
{
	(void)p;
	*bytes = 0;
	return NULL;
}

int rails_decode(struct rails *out, const uint8_t *value, size_t bytes)
{
	(void)out;
	(void)value;
	(void)bytes;
	return 0;
}

void tender_begin(struct tender *tender, struct comm *c)
{
	tender->comm = c;
}

void tender_end(struct tender *tender)
{
	tender->comm = NULL;
}

/* ---- a comm of two lanes --------------------------------------------------------------------------- */

static void keeper_turn(struct driver *driver, uint64_t now_ns)
{
	(void)driver_run_ready(driver, now_ns);
}

static void turn(uint64_t now_ns)
{
	CHECK(driver_turn(&keeper, now_ns));
}

/* The dial has ended. */
static void ended(int result, uint64_t now_ns)
{
	attempt.result = result;
	driver_post(&keeper, &upkeep->work);
	turn(now_ns);
}

/* The second lane is up, and found slow at the time that is returned. */
static uint64_t begin(void)
{
	static struct dial first;
	const struct handle handle = { .has_v4 = true };
	uint64_t now_ns = driver_clock_ns();

	driver_init(&keeper, keeper_turn);
	begun = rails_said = 0;
	begin_rc = 0;
	swallowed = false;
	upkeep = upkeep_new(0, 0, &handle);
	upkeep_made(upkeep, &comm, &first);
	upkeep_begin(upkeep);
	turn(now_ns);
	CHECK_EQ(begun, 1);
	here = true;
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	CHECK(!upkeep_lost(&comm, LANE, COMM_LOSS_SLOW));
	return now_ns;
}

static void end(void)
{
	CHECK_EQ(rails_said, 0);
	upkeep_stop(upkeep);
	upkeep_free(upkeep);
	comm.upkeep = NULL;
}

/* It is dialled once more, now or at the time that the timer is set to. */
static void expect_dialled_again(void)
{
	unsigned before = begun;

	begin_rc = 0;
	CHECK(timer->at_ns != UINT64_MAX);
	if (timer->at_ns == UINT64_MAX)
		return;
	timer->run(timer, timer->at_ns);
	CHECK_EQ(begun, before + 1);
	here = true;
	ended(0, timer->at_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
}

/* The peer resets the old one as it lets the new one in. */
static void test_replaced(void)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK_EQ(begun, 2);
	CHECK(upkeep_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	end();
}

static void test_the_old_one_ends_and_there_is_no_new_one(void)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	here = false;
	CHECK(upkeep_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(-ETIMEDOUT, now_ns);
	expect_dialled_again();
	end();
}

/* The comm has it, and the peer ends it before the keeper has looked at how the dial went. */
static void test_the_new_one_ends_at_once(void)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	here = false;
	CHECK(upkeep_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	expect_dialled_again();
	end();
}

/* It ends while there is nobody to dial. */
static void test_the_old_one_ends_before_a_dial(void)
{
	uint64_t now_ns = begin();

	begin_rc = -ENETUNREACH;
	turn(now_ns);
	CHECK_EQ(begun, 2);
	CHECK(swallowed);
	expect_dialled_again();
	end();
}

static void test_no_such_lane(void)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK(!upkeep_lost(&comm, COMM_LANES_MAX, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	end();
}

int main(void)
{
	test_replaced();
	test_the_old_one_ends_and_there_is_no_new_one();
	test_the_new_one_ends_at_once();
	test_the_old_one_ends_before_a_dial();
	test_no_such_lane();
	return check_done();
}
