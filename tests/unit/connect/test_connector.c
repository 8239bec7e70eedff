/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_connector.c - when further lanes are connected, to which candidate, and which rails are
 * reported down: a connector with a comm of two lanes. The test ends attempts; control thread,
 * candidates, routes and comm are doubles. tests/sim/comm_reconnect.c loses lanes during attempts.
 */
#include <errno.h>

#include "connect/peers.h"
#include "connect_rig.h"
#include "stats/lane_page.h"

#define MS UINT64_C(1000000)
#define LANE 1u
#define CANDIDATES 3u
#define FIRST_PORT 6000u

static struct connector *connector;
static struct comm comm;
static struct attempt *attempt; /* the newest one, of lane 1 */
static bool has_lane[2];        /* results of comm_has_lane() */
static int attach_rc, route_rc;
static unsigned route_ifindex, candidates, rails;
static bool rail_bound;
static unsigned attempts, failures, rail_events, rails_down;
static struct comm_lane_options attach_options;

/* ---- doubles --------------------------------------------------------------------------------- */

static void attempt_end(struct attempt *a, int result)
{
	if (!result)
		result = a->authenticated(a);
	atomic_store(&a->result, result);
	control_post(a->result_work);
}

void attempt_begin(struct attempt *a, uint64_t now_ns)
{
	attempts++;
	attempt = a;
}

void attempt_free(struct attempt *a)
{
	free(a);
}

void connector_plan(struct connector *c)
{
	static uint8_t peer; /* a new one each time, since warnings of a peer are limited */

	peer++;
	c->rail_count = rails;
	c->lane_count = 2;
	c->lanes[1].index = LANE;
	c->lanes[1].rail = (uint8_t)(rails - 1);
	for (unsigned i = 0; i < 2; i++) {
		c->lanes[i].backoff_ns = CONNECTOR_BACKOFF_NS_MIN;
		c->rails[i].dev = (int)i;
		c->rails[i].bound = rail_bound;
		c->rails[i].backup = i == 1;
		c->nics[i].addr[NIC_V4].bytes[0] = peer;
		c->rails[i].nic = &c->nics[i];
	}
}

void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES])
{
	CHECK(!engines);
	out->count = candidates;
	for (unsigned i = 0; i < candidates; i++)
		out->list[i] = (struct candidate){
			.remote = { .addr = harp_addr_v4(10, 0, 0, 9),
				    .port = (uint16_t)(FIRST_PORT + i) },
		};
}

bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	return false;
}

int harp_host_route(const struct harp_addr *dst, struct harp_host_route *out)
{
	*out = (struct harp_host_route){ .ifindex = route_ifindex };
	return route_rc;
}

bool comm_has_lane(struct comm *c, unsigned index)
{
	return has_lane[index];
}

int comm_attach(struct comm *c, struct lane *lane, const struct comm_lane_options *opt)
{
	attach_options = *opt;
	has_lane[opt->index] |= !attach_rc;
	return attach_rc;
}

void lane_page_count(enum harp_job_counter which, uint64_t n)
{
	CHECK_EQ(which, HARP_JOB_connects_failed);
	failures += (unsigned)n;
}

void lane_page_rail(int dev, bool down)
{
	rail_events++;
	rails_down = down ? rails_down | 1u << dev : rails_down & ~(1u << dev);
}

void lane_page_rail_left(int dev)
{
	rails_down &= ~(1u << dev);
}

/* ---- a connector ----------------------------------------------------------------------------- */

static void turn(uint64_t now_ns)
{
	CHECK(poller_run(&control, now_ns));
}

static uint64_t next_ns(void)
{
	return connector->timer.at_ns;
}

/* Ends the attempt with this result, and runs the control thread. */
static void end(int result, uint64_t now_ns)
{
	attempt_end(attempt, result);
	turn(now_ns);
}

/* Runs the timer of the next attempt. Returns its time. */
static uint64_t run_timer(void)
{
	uint64_t now_ns = next_ns();

	connector->timer.run(&connector->timer, now_ns);
	return now_ns;
}

/* The comm reports a loss. */
static void lose(unsigned index, enum comm_loss loss, uint64_t now_ns)
{
	has_lane[index] &= loss == COMM_LOSS_SLOW;
	connector_lane_lost(&comm, index, loss);
	turn(now_ns);
}

static void finish(void)
{
	if (!connector)
		return;
	connector_stop(connector);
	connector_free(connector);
	turn(0);
	connector = NULL;
	comm.connector = NULL;
	CHECK_EQ(rails_down, 0); /* a closed comm no longer counts */
}

AFTER_EACH(finish())

/* Begins to connect lane 1. Returns the time, as the next functions do. */
static uint64_t prepare_rails(unsigned count)
{
	static struct attempt first;
	const struct handle handle = { 0 };

	finish();
	poller_init(&control, control_turn);
	attempts = failures = rail_events = rails_down = env_warns = 0;
	rails = count;
	connector = connector_new(0, 46, &handle, &attempt_ops);
	connector_set_comm(connector, &comm, &first);
	has_lane[0] = true;
	has_lane[LANE] = false;
	connector_start(connector);
	turn(1000 * MS);
	CHECK_EQ(attempts + failures, 1);
	return 1000 * MS;
}

static uint64_t prepare(void)
{
	attach_rc = route_rc = 0;
	env_device_count = 2;
	CHECK_EQ(plugin_devices_load(NULL), 0); /* sets the address of the devices */
	route_ifindex = plugin_device(0)->ifindex;
	candidates = CANDIDATES;
	rail_bound = false;
	return prepare_rails(1);
}

/* Lane 1 is up. */
static uint64_t prepare_up(void)
{
	uint64_t now_ns = prepare();

	end(0, now_ns);
	CHECK_EQ(next_ns(), UINT64_MAX);
	return now_ns;
}

/* Lane 1 is up and slow; its replacement is being connected. */
static uint64_t prepare_replacement(void)
{
	uint64_t now_ns = prepare_up();

	lose(LANE, COMM_LOSS_SLOW, now_ns);
	CHECK_EQ(attempts, 2);
	return now_ns;
}

/* ---- times ----------------------------------------------------------------------------------- */

TEST(the_pause_doubles_from_100_ms_to_5_s)
{
	uint64_t now_ns = prepare(), pause_ns = 100 * MS;

	for (unsigned i = 1; i < 10; i++) {
		end(-ECONNREFUSED, now_ns);
		CHECK_EQ(next_ns(), now_ns + pause_ns);
		connector->timer.run(&connector->timer, now_ns + pause_ns - 1);
		CHECK_EQ(attempts, i);
		now_ns = run_timer();
		CHECK_EQ(attempts, i + 1);
		CHECK_EQ(failures, i);
		CHECK_EQ(attempt->candidate.remote.port, FIRST_PORT + i % CANDIDATES);
		pause_ns = 2 * pause_ns < 5000 * MS ? 2 * pause_ns : 5000 * MS;
	}
	end(0, now_ns);
	CHECK_EQ(next_ns(), UINT64_MAX);
}

TEST(a_lost_lane_that_was_up_for_a_second_is_reconnected_at_once)
{
	uint64_t now_ns = prepare_up();

	lose(LANE, COMM_LOSS, now_ns + 1000 * MS - 1);
	CHECK_EQ(next_ns(), now_ns + 1100 * MS - 1);
	now_ns = run_timer();
	end(0, now_ns);
	lose(LANE, COMM_LOSS, now_ns + 1000 * MS);
	CHECK_EQ(attempts, 3);
	end(-ECONNREFUSED, now_ns + 1000 * MS); /* the pause starts again at 100 ms */
	CHECK_EQ(next_ns(), now_ns + 1100 * MS);
}

TEST(a_slow_lane_is_replaced_at_most_every_5_s)
{
	uint64_t now_ns = prepare_replacement();

	end(0, now_ns);
	for (unsigned i = 0; i < 5; i++)
		lose(LANE, COMM_LOSS_SLOW, now_ns + i * 1000 * MS + 999 * MS);
	CHECK_EQ(attempts, 2);
	lose(LANE, COMM_LOSS_SLOW, now_ns + 5000 * MS);
	CHECK_EQ(attempts, 3);
	/* The slow lane stays if its replacement fails. */
	end(-ECONNREFUSED, now_ns + 5000 * MS);
	CHECK_EQ(next_ns(), UINT64_MAX);
	CHECK_EQ(failures, 1);
}

/* ---- candidates and source addresses --------------------------------------------------------- */

TEST(an_attempt_and_its_lane_have_the_parameters_of_the_plan)
{
	uint64_t now_ns = prepare();

	CHECK_EQ(attempt->dscp, 46);
	CHECK_EQ(attempt->own.index, LANE);
	CHECK_EQ(attempt->own.features, FEATURE_JOIN);
	CHECK_EQ(attempt->open_deadline_ns, now_ns + 3000 * MS);
	CHECK_EQ(attempt->deadline_ns, now_ns + 5000 * MS);
	attempt->rtt_ns = 777;
	attempt->preamble.sent_bytes = 321;
	end(0, now_ns);
	CHECK_EQ(attach_options.index, LANE);
	CHECK_EQ(attach_options.rtt_ns, 777);
	CHECK_EQ(attach_options.sent_bytes, 321);
	now_ns = prepare_rails(2);
	end(0, now_ns);
	CHECK(attach_options.dev == 1 && attach_options.backup);
}

TEST(a_lane_without_candidate_or_route_fails)
{
	static const struct {
		unsigned candidates, other_nic;
		int route_rc;
		bool fails;
	} cases[] = {
		{ 0, 0, 0, true },
		{ 1, 1, 0, true }, /* the route uses another NIC */
		{ 1, 0, -EHOSTDOWN, true },
		{ 1, 0, 0, false },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		(void)prepare();
		rail_bound = true;
		candidates = cases[i].candidates;
		route_ifindex = plugin_device(0)->ifindex + cases[i].other_nic;
		route_rc = cases[i].route_rc;
		(void)prepare_rails(1);
		CHECK_EQ(failures, cases[i].fails);
		if (!cases[i].fails)
			CHECK_MEM(&attempt->candidate.local.addr, &plugin_device(0)->addr_v4,
				  sizeof(struct harp_addr));
	}
}

TEST(the_kernel_chooses_the_source_address_of_an_unbound_lane)
{
	(void)prepare();
	CHECK_EQ(attempt->candidate.local.addr.bytes[15], 0);
}

TEST(a_lane_that_the_comm_refuses_counts_as_a_failure)
{
	uint64_t now_ns = prepare();

	attach_rc = -ENOTCONN;
	end(0, now_ns);
	CHECK_EQ(failures, 1);
	CHECK_EQ(next_ns(), now_ns + 100 * MS);
}

/* ---- rails ----------------------------------------------------------------------------------- */

TEST(a_rail_without_lanes_is_reported)
{
	uint64_t now_ns;

	(void)prepare();
	now_ns = prepare_rails(2);
	end(0, now_ns);
	CHECK_EQ(rail_events, 0); /* it was never down */
	lose(LANE, COMM_LOSS, now_ns);
	CHECK_EQ(rails_down, 1u << 1);
	now_ns = run_timer();
	end(0, now_ns);
	CHECK_EQ(rails_down, 0);
	CHECK_EQ(rail_events, 2);
}

TEST(a_flapping_rail_is_logged_every_5_s)
{
	uint64_t now_ns;

	(void)prepare();
	now_ns = prepare_rails(2);
	for (unsigned i = 0; i < 4; i++) {
		end(0, now_ns);
		lose(LANE, COMM_LOSS, now_ns + i / 3 * 5000 * MS);
		CHECK_EQ(rails_down, 1u << 1);
		CHECK_EQ(env_warns, 1 + i / 3);
		now_ns = run_timer();
	}
}

TEST(the_last_rail_of_a_comm_is_not_reported_down)
{
	uint64_t now_ns;

	(void)prepare();
	now_ns = prepare_rails(2);
	end(0, now_ns);
	lose(0, COMM_LOSS, now_ns + 2000 * MS);
	CHECK_EQ(rails_down, 1u << 0);
	lose(LANE, COMM_LOSS, now_ns + 2000 * MS);
	CHECK_EQ(rails_down, 1u << 0);
	end(0, now_ns + 2000 * MS); /* lane 1 is up again */
	CHECK_EQ(rails_down, 1u << 0);
}
