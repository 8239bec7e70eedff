/* SPDX-License-Identifier: Apache-2.0 */
/* test_interfaces.c - an acceptor that cannot be opened, while the control thread's driver is about to plan a comm's lanes. */
#include <errno.h>
#include <unistd.h>

#include "check.h"
#include "connect/ctx.h"
#include "poll/control.h"
#include "process/keyfile.h"
#include "stats/lane_page.h"
#include "comm/memory.h"
#include "connect/peers.h"
#include "connect/rails.h"
#include "connect/acceptor.h"
#include "process/log.h"
#include "process/config.h"

#define DEVICES 2
#define SECONDS_MAX 20u /* a deadlock ends the program */

struct acceptor {
	int dev;
};

struct engine_set {
	int dev;
};

pthread_mutex_t ctx_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct device devices[DEVICES] = { { .ifname = "first" }, { .ifname = "spare" } };
static const struct plugin_config config = { .path = PATH_AUTO, .rails = RAILS_ALL };
static struct engine_set sets[DEVICES] = { { 0 }, { 1 } };
static struct acceptor made[DEVICES], *opened[DEVICES];
static struct poller control;
static struct work close_work;
static struct work *posted;
static int refused;        /* the device whose acceptor cannot be opened; -1: none */
static bool forbidden;     /* no device has engines */
static unsigned plans;     /* that were made */
static int learned;        /* engines that know of registered memory */

/* ---- the rest of the plugin ------------------------------------------------------------------------- */

/* As connector_plan() does, with the poller held. */
static void control_advance(struct poller *driver, uint64_t now_ns)
{
	char why[384];

	poller_run_ready(driver, now_ns);
	for (int dev = 0; dev < DEVICES; dev++) {
		const struct engine_set *engines = interface_engines(dev, why, sizeof(why));

		CHECK(!engines || engines == &sets[dev]);
		if (forbidden)
			CHECK(!strcmp(why, "switched off"));
	}
	plans++;
}

static void close_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	(void)now_ns;
}

struct poller *control_poller(void)
{
	return &control;
}

/* By the opener thread: the test joins it. */
void control_post(struct work *work)
{
	posted = work;
}

void control_call(struct work *work)
{
	work->run(work, 0);
}

/* What was opened of it is closed by the control thread's driver. */
int acceptor_open(int dev)
{
	if (dev == refused) {
		poller_call(&control, &close_work);
		return -EMFILE;
	}
	opened[dev] = &made[dev];
	return 0;
}

struct acceptor *acceptor_of(int dev)
{
	return opened[dev];
}

int acceptor_open_harp(struct acceptor *acceptor, struct engine_set *engines)
{
	CHECK_EQ(acceptor - made, engines - sets);
	return 0;
}

void acceptors_close(void)
{
	memset(opened, 0, sizeof(opened));
}

void acceptor_admit(struct acceptor *acceptor, bool admits)
{
	CHECK(acceptor == &made[0]);
}

unsigned rails_devices(int dev, int out[RAIL_PAIRS_MAX])
{
	out[0] = dev;
	out[1] = !dev;
	return DEVICES;
}

enum harp_page_fallback engine_is_forbidden(const struct device *device, char *why, size_t why_len)
{
	CHECK(device != NULL);
	if (forbidden)
		snprintf(why, why_len, "switched off");
	return forbidden ? HARP_PAGE_FALLBACK_setting : HARP_PAGE_FALLBACK_none;
}

struct engine_set *engine_set_open(int dev, char *why, size_t why_len)
{
	(void)why;
	(void)why_len;
	return &sets[dev];
}

void engine_set_close(struct engine_set *set)
{
	(void)set;
}

unsigned engine_set_count(const struct engine_set *set)
{
	(void)set;
	return 1;
}

struct engine *engine_set_at(const struct engine_set *set, unsigned index)
{
	(void)set;
	(void)index;
	return NULL;
}

void plugin_memory_engine_open(struct engine *engine)
{
	CHECK(!engine);
	learned++;
}

void plugin_memory_engine_close(struct engine *engine)
{
	CHECK(!engine);
	learned--;
}

enum harp_instance_mode engine_set_mode(const struct engine_set *set)
{
	return set ? HARP_MODE_DPDK : HARP_MODE_NONE;
}

int engine_set_port(const struct engine_set *set, struct harp_instance_port *out)
{
	(void)set;
	(void)out;
	return -ENOTSUP;
}

const struct plugin_config *plugin_config(void)
{
	return &config;
}

const struct device *plugin_device(int dev)
{
	return &devices[dev];
}

int plugin_device_count(void)
{
	return DEVICES;
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	(void)level;
	(void)func;
	(void)line;
	(void)fmt;
}

void plugin_memory_forget(void)
{
}

void control_stop(void)
{
}

void peers_reset(void)
{
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static void begin(int device_refused, bool engines_forbidden)
{
	interfaces_close();
	CHECK_EQ(learned, 0);
	refused = device_refused;
	forbidden = engines_forbidden;
	plans = 0;
	posted = NULL;
}

/* By a thread of the application: the device's own, then one that stands in for it. */
static void test_listen(void)
{
	struct acceptor *acceptor;
	bool setup;

	begin(0, true);
	CHECK_EQ(interface_acceptor(0, &acceptor, &setup), -EMFILE);
	CHECK(!setup);
	CHECK_EQ(plans, 1);
	refused = 1;
	CHECK_EQ(interface_acceptor(0, &acceptor, &setup), 0);
	CHECK(acceptor == &made[0]);
	CHECK_EQ(plans, 2);
	CHECK(!acceptor_of(1));
	refused = -1;
	CHECK_EQ(interface_acceptor(0, &acceptor, &setup), 0);
	CHECK_EQ(plans, 2);
	CHECK(acceptor_of(1));
}

/* The opener thread opens the engines, then the control thread the rest. A connect that waits is released, unless it was
 * cancelled. */
static void test_opener(void)
{
	struct acceptor *acceptor;
	bool setup;

	begin(1, false);
	CHECK_EQ(interface_acceptor(0, &acceptor, &setup), 0);
	interfaces_finish_opening();
	CHECK(setup && posted);
	CHECK_EQ(plans, 0);
	posted->run(posted, 0);
	CHECK_EQ(plans, 1);
	CHECK(acceptor_of(0) && !acceptor_of(1));
}

int main(void)
{
	alarm(SECONDS_MAX);
	poller_init(&control, control_advance);
	close_work.run = close_run;
	test_listen();
	test_opener();
	CHECK_EQ(learned, DEVICES);
	interfaces_close();
	CHECK_EQ(learned, 0);
	return check_done();
}
