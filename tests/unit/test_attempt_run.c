/* SPDX-License-Identifier: Apache-2.0 */
/* test_attempt_run.c - an attempt for a further lane: its candidate, its local address, its poller, and that nothing is left of it. */
#include <stddef.h>
#include <sys/epoll.h>

#include "connect/peers.h"
#include "fake_routes.h"
#include "connect/reconnect_impl.h"

#define NOW_NS UINT64_C(7000000000)
#define MS UINT64_C(1000000)
#define FD 42

/* ---- the rest of the plugin ------------------------------------------------------------------------- */

struct engine {
	struct poller poller; /* first */
	unsigned index;
};

static struct engine engines[2];
static struct engine_set *const set = (struct engine_set *)engines;
static struct poller control;
static struct reconnect u;
static struct reconnect_lane lane_spec;
static struct attempt *a;
static struct comm comm;

static struct world {
	unsigned ways, started, advanced, stopped, attached, watched, rewatched, unwatched;
	unsigned told;
	bool avoided[CANDIDATES_MAX], no_lane, ends_at_once;
	uint32_t events;
	int watch_rc, attach_rc;
	uint64_t now_ns;
	struct control_source *source;
	struct attempt *dial;
	struct comm_lane_options options;
} world;

static struct lane lane;
static struct harp_addr way_v6; /* instead of what the first would be */

static void host_ways(struct candidates *out, const struct engine_set *from,
		      const struct handle *handle)
{
	CHECK_EQ(handle->listen_id, 99);
	out->count = world.ways;
	for (unsigned i = 0; i < world.ways; i++) {
		out->list[i].harp = from != NULL;
		out->list[i].engine = from ? &engines[i % 2] : NULL;
		out->list[i].remote.addr = peer_v4(1, 100 + i);
		out->list[i].remote.port = (uint16_t)(6000 + i);
	}
	if (way_v6.bytes[0])
		out->list[0].remote.addr = way_v6;
}

struct poller *engine_poller(struct engine *engine)
{
	return &engine->poller;
}

unsigned engine_index(const struct engine *engine)
{
	return engine->index;
}

unsigned peers_avoided_s(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	unsigned way = remote->port - 6000u;

	CHECK_EQ(now_ns, NOW_NS);
	CHECK_EQ(engine, engines[way % 2].index);
	return world.avoided[way];
}

struct poller *control_poller(void)
{
	return &control;
}

void control_post(struct work *work)
{
	poller_post(&control, work);
}

int control_watch(struct control_source *source, int fd, uint32_t events)
{
	CHECK_EQ(fd, FD);
	world.watched++;
	world.events = events;
	world.source = source;
	source->watched = !world.watch_rc;
	return world.watch_rc;
}

void control_rewatch(struct control_source *source, uint32_t events)
{
	CHECK(source == world.source && source->watched);
	world.rewatched++;
	world.events = events;
}

void control_unwatch(struct control_source *source)
{
	world.unwatched += source->watched;
	source->watched = false;
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	timer->at_ns = at_ns;
}

const char *lane_error_text(int error)
{
	return error == -ENOMEM ? "out of memory" : "";
}

int lane_kernel_fd(struct lane *l)
{
	CHECK(l == &lane);
	return FD;
}

/* Whose baton is held is whose turn it is. */
static bool held(const struct attempt *dial)
{
	return !dial->candidate.harp || atomic_load(&dial->poller->held);
}

void attempt_start(struct attempt *dial, uint64_t now_ns)
{
	CHECK(held(dial));
	world.started++;
	world.now_ns = now_ns;
	world.dial = dial;
	if (world.ends_at_once)
		dial->ended(dial, -ENETUNREACH, "no way", now_ns);
	else if (!world.no_lane)
		dial->lane = &lane;
}

void attempt_advance(struct attempt *dial, uint64_t now_ns)
{
	CHECK(dial == world.dial && held(dial));
	world.advanced++;
	world.now_ns = now_ns;
	if (world.ends_at_once)
		dial->ended(dial, -ECONNREFUSED, "refused", now_ns);
}

void attempt_stop(struct attempt *dial)
{
	CHECK(held(dial));
	world.stopped += dial->lane != NULL; /* it closes that */
	dial->lane = NULL;
}

int comm_attach(struct comm *c, struct lane *l, const struct comm_lane_options *opt)
{
	CHECK(c == &comm && l == &lane);
	world.attached++;
	world.options = *opt;
	return world.attach_rc;
}

static void told(struct work *work, uint64_t now_ns)
{
	world.told++;
}

static void turn(struct poller *poller, uint64_t now_ns)
{
	(void)poller_run_ready(poller, now_ns);
}

/* ---- an attempt over NIC 1 ---------------------------------------------------------------------------- */

static void prepare(bool harp)
{
	host_init();
	memset(&world, 0, sizeof(world));
	memset(&u, 0, sizeof(u));
	memset(&lane, 0, sizeof(lane));
	memset(&way_v6, 0, sizeof(way_v6));
	poller_init(&control, turn);
	for (unsigned i = 0; i < 2; i++) {
		poller_init(&engines[i].poller, turn);
		engines[i].index = 5 + i;
	}
	world.ways = 3;
	u.comm = &comm;
	u.dscp = 46;
	u.comm_id = 1234;
	u.planned = 9;
	u.work.run = told;
	memset(u.key, 0xa5, sizeof(u.key));
	u.rail_count = 2;
	u.rails[0].dev = 3;
	u.rails[1] =
		(struct reconnect_rail){ .dev = 1, .engines = set, .backup = true, .bound = true };
	u.rails[0].handle.listen_id = u.rails[1].handle.listen_id = 99;
	u.lanes[6].rail = 1;
	lane_spec = (struct reconnect_lane){ .index = 6, .rail = 1, .harp = harp };
}

static int begin(void)
{
	return reconnect_attempt(&a, &u, &lane_spec, NOW_NS);
}

/* What it held was given back. */
static void expect_gone(void)
{
	CHECK_EQ(asked.listed, 1);
	CHECK_EQ(asked.forgotten, 1);
}

static void begin_ok(void)
{
	CHECK_EQ(begin(), 0);
	CHECK(a != NULL);
	CHECK_EQ(attempt_result(a), ATTEMPT_RUNNING);
}

static void engine_turns(unsigned i, uint64_t now_ns)
{
	CHECK(poller_run(&engines[i].poller, now_ns));
}

static void control_turns(void)
{
	CHECK(poller_run(&control, NOW_NS));
}

/* The dial has a proved lane. */
static void dial_ends_well(void)
{
	struct attempt *dial = world.dial;

	dial->lane = &lane;
	dial->rtt_ns = 777;
	dial->preamble.sent_bytes = 321;
	memset(dial->preamble.key, 0xa5, sizeof(dial->preamble.key));
	dial->ended(dial, 0, "", NOW_NS);
	CHECK(!dial->lane); /* whoever has it now */
}

/* ---- whom ----------------------------------------------------------------------------------------------- */

static unsigned way_of_failures(unsigned failures)
{
	unsigned way;

	lane_spec.failures = failures;
	begin_ok();
	way = world.dial->candidate.remote.port - 6000u;
	attempt_free(a);
	return way;
}

/* One after the other. */
TEST(each_in_turn)
{
	prepare(false);
	for (unsigned i = 0; i < 7; i++)
		CHECK_EQ(way_of_failures(i), i % 3);
	CHECK_EQ(asked.dev, 1);
	CHECK(!asked.engines); /* kernel lanes */
}

/* What could not be reached a moment ago is passed over, as long as there is another. */
TEST(who_is_avoided)
{
	static const struct {
		unsigned failures, avoided, way;
	} cases[] = { { 0, 1u << 0, 1 }, { 1, 1u << 1, 2 }, { 2, 1u << 2, 0 }, { 2, 5, 1 } };

	for (unsigned i = 0; i < 4; i++) {
		prepare(true);
		lane_spec.failures = cases[i].failures;
		for (unsigned way = 0; way < 3; way++)
			world.avoided[way] = cases[i].avoided >> way & 1;
		begin_ok();
		CHECK(asked.engines == set);
		engine_turns(cases[i].way % 2, NOW_NS);
		CHECK_EQ(world.dial->candidate.remote.port, 6000 + cases[i].way);
		attempt_free(a);
		expect_gone();
	}
	prepare(true);
	world.avoided[0] = world.avoided[1] = world.avoided[2] = true;
	CHECK_EQ(begin(), -EHOSTUNREACH);
	CHECK(!a);
	expect_gone();
	prepare(false); /* the kernel's are not remembered so */
	world.avoided[0] = true;
	CHECK_EQ(way_of_failures(0), 0);
	prepare(false);
	world.ways = 0;
	CHECK_EQ(begin(), -EHOSTUNREACH);
	CHECK(!a);
	CHECK_EQ(world.started, 0);
	expect_gone();
}

/* ---- from where ----------------------------------------------------------------------------------------- */

static struct harp_endpoint local_of(void)
{
	struct harp_endpoint local;

	begin_ok();
	local = world.dial->candidate.local;
	attempt_free(a);
	return local;
}

TEST(by_its_nic)
{
	struct harp_endpoint local;

	prepare(false);
	local = local_of();
	CHECK_MEM(&local.addr, &nics[1].addr_v4, sizeof(local.addr));
	CHECK_EQ(local.scope_id, 0);
	prepare(false);
	u.rails[1].dev = 2;
	CHECK_EQ(begin(), -ENETUNREACH); /* the peer is behind NIC 1 */
	CHECK(!a);
	CHECK_EQ(world.started, 0);
	expect_gone();
	prepare(false);
	route.rc = -EHOSTDOWN;
	CHECK_EQ(begin(), -EHOSTDOWN);
	CHECK(!a);
	expect_gone();
	prepare(false);
	way_v6 = peer_v6(1, 7, false);
	local = local_of();
	CHECK_MEM(&local.addr, &nics[1].addr_v6, sizeof(local.addr));
	CHECK_EQ(local.scope_id, 0);
	prepare(false); /* a link-local one says which link */
	nics[1].addr_v6 = peer_v6(1, 1, true);
	way_v6 = peer_v6(1, 7, true);
	CHECK_EQ(local_of().scope_id, nics[1].ifindex);
	prepare(false); /* one that is not bound goes where the host would */
	u.rails[1].bound = false;
	u.rails[1].dev = 2;
	local = local_of();
	CHECK_MEM(&local, &(struct harp_endpoint){ 0 }, sizeof(local));
	CHECK_EQ(route.asked, 0);
	prepare(true); /* a stack knows its own */
	begin_ok();
	CHECK_EQ(route.asked, 0);
	attempt_free(a);
}

/* ---- what the dial is told ------------------------------------------------------------------------------ */

static void expect_told(const struct attempt *dial, struct poller *poller)
{
	CHECK_EQ(dial->dev, 1);
	CHECK(dial->poller == poller);
	CHECK_EQ(dial->dscp, 46);
	CHECK_EQ(dial->comm_id, 1234);
	CHECK_MEM(dial->key, u.key, sizeof(u.key));
	CHECK_EQ(dial->own.lanes, 9);
	CHECK_EQ(dial->own.index, 6);
	CHECK(dial->own.join);
	CHECK_EQ(dial->open_deadline_ns, NOW_NS + 3000 * MS);
	CHECK_EQ(dial->deadline_ns, NOW_NS + 5000 * MS);
	CHECK_EQ(dial->listen_id, 0); /* the comm's id says all */
}

TEST(what_it_is_told)
{
	prepare(false);
	begin_ok();
	CHECK_EQ(world.started, 1); /* at once */
	CHECK_EQ(world.now_ns, NOW_NS);
	expect_told(world.dial, &control);
	attempt_free(a);
	prepare(true);
	lane_spec.failures = 1;
	begin_ok();
	CHECK_EQ(world.started, 0); /* by its engine */
	engine_turns(0, NOW_NS);
	CHECK_EQ(world.started, 0);
	engine_turns(1, NOW_NS + 1);
	CHECK_EQ(world.started, 1);
	CHECK_EQ(world.now_ns, NOW_NS + 1);
	CHECK_EQ(world.watched, 0);
	expect_told(world.dial, &engines[1].poller);
	attempt_free(a);
}

/* ---- how it ends ----------------------------------------------------------------------------------------- */

static void expect_attached(void)
{
	CHECK_EQ(world.attached, 1);
	CHECK_EQ(world.options.index, 6);
	CHECK_EQ(world.options.dev, 1);
	CHECK(world.options.backup);
	CHECK_EQ(world.options.sent_bytes, 321);
	CHECK_EQ(world.options.rtt_ns, 777);
}

TEST(it_is_attached)
{
	for (int harp = 0; harp < 2; harp++) {
		prepare(harp);
		begin_ok();
		if (harp)
			engine_turns(0, NOW_NS);
		dial_ends_well();
		expect_attached();
		CHECK_EQ(attempt_result(a), 0);
		CHECK_EQ(world.stopped, 0);
		CHECK_EQ(world.unwatched, !harp);
		CHECK_EQ(world.told, 0);
		control_turns();
		CHECK_EQ(world.told, 1);
		attempt_free(a);
		expect_gone();
	}
	prepare(false);
	u.rails[1].backup = false;
	begin_ok();
	dial_ends_well();
	CHECK(!world.options.backup);
	attempt_free(a);
}

/* It is closed, and says why. */
TEST(the_comm_does_not_take_it)
{
	prepare(false);
	world.attach_rc = -ENOTCONN;
	begin_ok();
	dial_ends_well();
	CHECK_EQ(attempt_result(a), -ENOTCONN);
	CHECK_STR(a->text, "the comm does not take it");
	CHECK_EQ(world.stopped, 1);
	control_turns();
	CHECK_EQ(world.told, 1);
	attempt_free(a);
	expect_gone();
}

TEST(it_fails)
{
	prepare(false);
	begin_ok();
	world.ends_at_once = world.dial->opened = true;
	world.source->ready(world.source, NOW_NS + 1);
	CHECK_EQ(world.now_ns, NOW_NS + 1);
	CHECK_EQ(attempt_result(a), -ECONNREFUSED);
	CHECK_STR(a->text, "refused");
	CHECK_EQ(world.attached, 0);
	CHECK_EQ(world.unwatched, 1);
	CHECK_EQ(world.rewatched, 0);
	control_turns();
	CHECK_EQ(world.told, 1);
	attempt_free(a);
	expect_gone();
	prepare(false); /* before there is a lane */
	world.ends_at_once = true;
	CHECK_EQ(begin(), 0);
	CHECK_EQ(attempt_result(a), -ENETUNREACH);
	CHECK_STR(a->text, "no way");
	CHECK_EQ(world.watched, 0);
	attempt_free(a);
	expect_gone();
}

/* ---- while it runs ---------------------------------------------------------------------------------------- */

/* Room is waited for until it is open, and then what the peer says. */
TEST(what_is_waited_for)
{
	prepare(false);
	begin_ok();
	CHECK_EQ(world.watched, 1);
	CHECK_EQ(world.events, EPOLLIN | EPOLLOUT);
	world.source->ready(world.source, NOW_NS);
	CHECK_EQ(world.advanced, 1);
	CHECK_EQ(world.rewatched, 0);
	world.dial->opened = true;
	for (unsigned i = 0; i < 3; i++)
		world.source->ready(world.source, NOW_NS);
	CHECK_EQ(world.advanced, 4);
	CHECK_EQ(world.rewatched, 1);
	CHECK_EQ(world.events, EPOLLIN);
	attempt_free(a);
	CHECK_EQ(world.unwatched, 1);
	CHECK_EQ(world.stopped, 1);
	expect_gone();
}

static void look(uint64_t now_ns)
{
	CHECK_EQ(a->timer.at_ns, now_ns);
	a->timer.run(&a->timer, now_ns);
}

/* A kernel lane's deadlines are looked at by the control thread, a HARP lane's by its engine. */
TEST(it_is_advanced)
{
	prepare(false);
	begin_ok();
	look(NOW_NS + 100 * MS);
	CHECK_EQ(world.advanced, 1);
	look(NOW_NS + 200 * MS);
	CHECK_EQ(world.advanced, 2);
	attempt_free(a);
	prepare(true);
	begin_ok();
	engine_turns(0, NOW_NS);
	look(NOW_NS + 10 * MS);
	CHECK_EQ(world.advanced, 0);
	engine_turns(0, NOW_NS + 11 * MS);
	CHECK_EQ(world.advanced, 1);
	CHECK_EQ(world.now_ns, NOW_NS + 11 * MS);
	attempt_free(a);
	CHECK_EQ(world.stopped, 1);
	expect_gone();
}

/* Nobody would be told of it: it is over at once. */
TEST(it_can_not_be_watched)
{
	prepare(false);
	world.watch_rc = -ENOSPC;
	begin_ok();
	CHECK_EQ(world.dial->open_deadline_ns, NOW_NS);
	CHECK_EQ(world.dial->deadline_ns, NOW_NS);
	look(NOW_NS);
	CHECK_EQ(world.advanced, 1);
	attempt_free(a);
	expect_gone();
}
