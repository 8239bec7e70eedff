/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pending.c - admission limits and deadlines of pending connections, and the comms and lanes
 * that they become. Lanes are in memory, and the test sets the clock.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connect/handshake.h"
#include "check.h"
#include "connect/ctx.h"
#include "double_env.h"
#include "fake_lane.h"
#include "connect/pending.h"
#include "context/plugin.h"
#include "connect/registry.h"

#define SECOND_NS 1000000000ull
#define CONNECTIONS_MAX 2000u
#define LISTEN_ID 0x1122334455667788ull

static struct pending_set *pending_set;
static struct fake_pair *pairs;
static unsigned conn_count;
static struct listen_comm comm_listener = { .id = LISTEN_ID };

static char warning[512];

/* ---- peers ----------------------------------------------------------------------------------- */

static void listener_open(void)
{
	static const struct placement_end one_queue = { .kind = PLACEMENT_ONE_QUEUE, .queues = 1 };

	pending_set = calloc(1, sizeof(*pending_set));
	pairs = calloc(CONNECTIONS_MAX, sizeof(*pairs));
	conn_count = 0;
	pending_set_init(pending_set, 0, &one_queue);
}

static void listener_close(void)
{
	pending_set_close(pending_set);
	CHECK_EQ(pending_set->count, 0);
	for (unsigned i = 0; i < conn_count; i++)
		fake_pair_free(&pairs[i]);
	free(pairs);
	free(pending_set);
}

BEFORE_EACH(listener_open())
AFTER_EACH(listener_close())

/* A connection from 10.0.x.y that sends nothing. Returns its number. */
static unsigned add_silent(unsigned address, uint64_t now_ns)
{
	struct fake_pair *pair = &pairs[conn_count];

	fake_pair_init(pair, conn_count, 512);
	pair->lanes[0].lane.remote.addr =
		harp_addr_v4(10, 0, (uint8_t)(address >> 8), (uint8_t)address);
	pending_set_add(pending_set, &pair->lanes[0].lane, -1, now_ns);
	return conn_count++;
}

/* HELLO of a peer that has a handle. */
static void send_hello(unsigned conn, uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .eager_bytes = 65536 };
	struct fake_lane *lane = &pairs[conn].lanes[0];
	struct preamble p;

	preamble_connect(&p, LISTEN_ID, conn, secret, &own);
	CHECK_EQ(fake_inject(lane, p.transcript, PREAMBLE_HELLO_BYTES), PREAMBLE_HELLO_BYTES);
	for (unsigned i = 0; i < 1000 && !lane->closed; i++) /* read in pieces */
		lane->lane.notify(&lane->lane, now_ns);
}

static bool is_open(unsigned conn)
{
	return !pairs[conn].lanes[0].closed;
}

/* The rest of the engine's turn, in which a refused comm ends. */
static void end_turn(unsigned conn, uint64_t now_ns)
{
	(void)poller_run_ready(&pairs[conn].poller, now_ns);
}

static bool is_pending(unsigned conn)
{
	for (unsigned i = 0; i < PENDING_MAX; i++)
		if (pending_set->pending[i].lane == &pairs[conn].lanes[0].lane)
			return true;
	return false;
}

static ssize_t send_nothing(struct lane *lane, const struct iovec *iov, int iov_count)
{
	return -EAGAIN;
}

/* Runs the connector's preamble to its end (returns 1), or up to READY (0); or returns -errno. */
static int run_preamble(unsigned conn, struct preamble *p, bool confirms, uint64_t now_ns)
{
	struct fake_lane *lane = &pairs[conn].lanes[0], *own = &pairs[conn].lanes[1];
	int rc = 0;

	for (unsigned i = 0; i < 10000 && !rc && p->step != PREAMBLE_SEND_CONFIRM; i++) {
		const struct lane_ops *ops = own->lane.ops;
		struct lane_ops mute_ops = *ops;

		mute_ops.send = send_nothing;
		if (p->step == PREAMBLE_READ_READY && !confirms)
			own->lane.ops = &mute_ops;
		rc = handshake_advance(p, &own->lane);
		own->lane.ops = ops;
		for (unsigned n = 0; n < 200 && !lane->closed && is_pending(conn); n++)
			lane->lane.notify(&lane->lane, now_ns);
	}
	return rc;
}

static unsigned connect_as(uint64_t features, unsigned address, uint64_t comm_id, bool confirms,
			   uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .features = features, .eager_bytes = 65536 };
	unsigned conn = add_silent(address, now_ns);
	struct preamble p;

	preamble_connect(&p, LISTEN_ID, comm_id, secret, &own);
	CHECK_EQ(run_preamble(conn, &p, confirms, now_ns), confirms);
	return conn;
}

/* Runs a whole preamble: the connection becomes a comm. */
static unsigned connect_comm(unsigned address, uint64_t comm_id, uint64_t now_ns)
{
	return connect_as(FEATURE_MULTI_LANE, address, comm_id, true, now_ns);
}

/* A peer that received READY and sends nothing more. */
static unsigned connect_to_ready(unsigned address, uint64_t comm_id, uint64_t now_ns)
{
	return connect_as(FEATURE_MULTI_LANE, address, comm_id, false, now_ns);
}

/* Fills the limit of identified connections. */
static void connect_all_to_ready(unsigned peers[PENDING_IDENTIFIED_MAX], uint64_t now_ns)
{
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		peers[i] = connect_as(FEATURE_MULTI_LANE, 1, 5000 + i, false, now_ns);
}

/* A peer that is reset before READY. */
static void connect_refused(unsigned address, uint64_t comm_id, uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .features = FEATURE_MULTI_LANE, .eager_bytes = 65536 };
	unsigned conn = add_silent(address, now_ns);
	struct preamble p;

	preamble_connect(&p, LISTEN_ID, comm_id, secret, &own);
	CHECK_EQ(run_preamble(conn, &p, true, now_ns), -ECONNRESET);
	CHECK_EQ(p.step, PREAMBLE_READ_READY);
	CHECK(!is_open(conn));
}

static void close_comm(struct comm *comm)
{
	registry_remove(comm);
	comm_close(comm, true);
}

static struct comm *accept_comm(void)
{
	struct comm *comm;

	CHECK_EQ(acceptor_accept(&comm_listener, &comm), 0);
	return comm;
}

/* Accepts and closes all waiting comms; the first has that id. Returns how many there were. */
static unsigned accept_all(uint64_t first_id)
{
	struct comm *comm;
	unsigned count = 0;

	while ((comm = accept_comm())) {
		if (!count++)
			CHECK_EQ(comm->comm_id, first_id);
		close_comm(comm);
	}
	return count;
}

/* ---- admission limits ------------------------------------------------------------------------ */

TEST(an_address_with_many_connections_loses_its_oldest)
{
	unsigned others[3], total = 0;

	for (unsigned i = 0; i < 3; i++)
		others[i] = add_silent(2 + i, SECOND_NS + i);
	for (unsigned i = 0; i < 200; i++)
		(void)add_silent(1, SECOND_NS + 10 + i);
	for (unsigned i = 0; i < 3; i++)
		CHECK(is_open(others[i]));
	for (unsigned i = 0; i < conn_count; i++)
		total += is_open(i);
	CHECK_EQ(total, PENDING_UNAUTHENTICATED_MAX);
	CHECK_EQ(pending_set->count, PENDING_UNAUTHENTICATED_MAX);
	CHECK(!is_open(3) && is_open(conn_count - 1));
	others[0] = add_silent(9, 2 * SECOND_NS);
	for (unsigned i = 0; i < 64; i++)
		(void)add_silent(1, 2 * SECOND_NS + i);
	CHECK(is_open(others[0]));
}

TEST(among_equal_addresses_the_oldest_connection_is_dropped)
{
	for (unsigned i = 0; i < 100; i++)
		(void)add_silent(i, SECOND_NS + i);
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(is_open(i), i >= 100 - PENDING_UNAUTHENTICATED_MAX);
}

TEST(a_silent_connection_is_dropped_after_5_seconds)
{
	unsigned first = add_silent(1, SECOND_NS), second = add_silent(1, 3 * SECOND_NS);

	CHECK_EQ(pending_set->next_ns, 6 * SECOND_NS);
	pending_set_expire(pending_set, 6 * SECOND_NS - 1);
	CHECK(is_open(first) && is_open(second));
	pending_set_expire(pending_set, 6 * SECOND_NS);
	CHECK(!is_open(first) && is_open(second));
	CHECK_EQ(pending_set->next_ns, 8 * SECOND_NS);
	pending_set_expire(pending_set, 8 * SECOND_NS);
	CHECK(!is_open(second));
	CHECK_EQ(pending_set->count, 0);
}

TEST(a_connection_that_sends_garbage_is_dropped_at_once)
{
	uint8_t garbage[64] = "GET / HTTP/1.1";
	unsigned silent = add_silent(1, SECOND_NS), sender = add_silent(1, SECOND_NS);
	struct fake_lane *lane = &pairs[sender].lanes[0];

	CHECK_EQ(fake_inject(lane, garbage, sizeof(garbage)), sizeof(garbage));
	for (unsigned i = 0; i < 1000 && is_open(sender); i++) /* read in pieces */
		lane->lane.notify(&lane->lane, SECOND_NS);
	CHECK(is_open(silent) && !is_open(sender));
}

/* 513 peers of three addresses that send HELLO and wait. */
TEST(unauthenticated_peers_do_not_displace_identified_connections)
{
	unsigned peers[513], total = 0;

	for (unsigned i = 0; i < 513; i++) {
		peers[i] = add_silent(1 + i % 3, SECOND_NS + i);
		send_hello(peers[i], SECOND_NS + i);
	}
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	CHECK_EQ(pending_set->count, PENDING_IDENTIFIED_MAX);
	for (unsigned i = 0; i < 500; i++)
		(void)add_silent(i, 2 * SECOND_NS + i);
	CHECK_EQ(pending_set->count, PENDING_MAX);
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++) /* the first ones */
		CHECK(is_open(peers[i]));
	/* The only peer of an address is admitted, and stays. */
	peers[0] = add_silent(9, 3 * SECOND_NS);
	send_hello(peers[0], 3 * SECOND_NS);
	for (unsigned i = 1; i < 100; i++)
		send_hello(add_silent(1, 3 * SECOND_NS + i), 3 * SECOND_NS + i);
	CHECK(is_open(peers[0]));
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	pending_set_expire(pending_set, 6 * SECOND_NS + 513);
	for (unsigned i = 0; i < conn_count; i++)
		total += is_open(i);
	CHECK_EQ(total, pending_set->count);
	CHECK(is_open(peers[0]));
	pending_set_expire(pending_set, 9 * SECOND_NS);
	CHECK_EQ(pending_set->count, 0);
	CHECK_EQ(pending_set->identified, 0);
}

/* ---- comms ----------------------------------------------------------------------------------- */

TEST(a_first_lane_becomes_a_comm_at_CONFIRM)
{
	for (unsigned multi = 0; multi < 2; multi++) {
		uint64_t features = multi ? FEATURE_MULTI_LANE : 0;
		unsigned peer = connect_as(features, 1, 77, false, SECOND_NS);

		CHECK_EQ(accept_all(77), 0);
		fake_reset(&pairs[peer].lanes[0]);
		pairs[peer].lanes[0].lane.notify(&pairs[peer].lanes[0].lane, 2 * SECOND_NS);
		CHECK(!is_open(peer));
		CHECK_EQ(pending_set->identified, 0);
		/* The connector retries with its comm id. */
		(void)connect_as(features, 1, 77, true, 3 * SECOND_NS);
		CHECK_EQ(pending_set->count, 0);
		CHECK_EQ(accept_all(77), 1);
	}
}

TEST(a_second_comm_with_the_same_id_is_refused)
{
	unsigned second;

	(void)connect_comm(1, 80, SECOND_NS);
	second = connect_comm(1, 80, 2 * SECOND_NS);
	end_turn(second, 2 * SECOND_NS); /* runs the work that the comm posted */
	CHECK(!is_open(second));
	CHECK_EQ(accept_all(80), 1);
}

TEST(after_READY_a_connection_has_the_connect_timeout)
{
	uint64_t end_ns = SECOND_NS + plugin_config()->connect_timeout_ns;
	unsigned peer = connect_to_ready(1, 79, SECOND_NS);

	/* In the first second it is not dropped at the admission limit. */
	for (unsigned i = 0; i < 300; i++)
		send_hello(add_silent(1, 2 * SECOND_NS - 1), 2 * SECOND_NS - 1);
	CHECK(is_open(peer));
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	pending_set_expire(pending_set, end_ns - 1);
	CHECK(is_open(peer));
	pending_set_expire(pending_set, end_ns);
	CHECK(!is_open(peer));
	CHECK_EQ(accept_all(79), 0);
}

TEST(a_connection_without_CONFIRM_for_a_second_can_be_dropped)
{
	unsigned silent[PENDING_IDENTIFIED_MAX], other;

	connect_all_to_ready(silent, SECOND_NS);
	other = add_silent(2, 2 * SECOND_NS - 1);
	send_hello(other, 2 * SECOND_NS - 1);
	CHECK(!is_open(other));
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		CHECK(is_open(silent[i]));
	/* The newest one is dropped. */
	(void)connect_comm(2, 6000, 2 * SECOND_NS);
	CHECK(!is_open(silent[PENDING_IDENTIFIED_MAX - 1]));
	CHECK_EQ(accept_all(6000), 1);
}

TEST(a_turn_with_an_older_clock_drops_no_connection)
{
	unsigned peers[PENDING_IDENTIFIED_MAX];

	connect_all_to_ready(peers, SECOND_NS);
	send_hello(add_silent(2, SECOND_NS - 1), SECOND_NS - 1);
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		CHECK(is_open(peers[i]));
}

TEST(while_64_comms_wait_for_accept_further_peers_are_refused)
{
	warning[0] = '\0';
	for (unsigned i = 0; i < LISTEN_WAITING_MAX; i++)
		(void)connect_comm(1, 3000 + i, SECOND_NS + i);
	CHECK_EQ(pending_set->count, 0);
	connect_refused(2, 202, SECOND_NS + 100);
	CHECK(strstr(warning, "refused 10.0.0.2") != NULL);
	close_comm(accept_comm());
	(void)connect_comm(2, 202, SECOND_NS + 200);
	CHECK_EQ(accept_all(3001), LISTEN_WAITING_MAX);
}

TEST(a_connection_without_CONFIRM_is_not_one_of_the_64)
{
	for (unsigned i = 0; i < LISTEN_WAITING_MAX; i++)
		(void)connect_to_ready(1, 4000 + i, SECOND_NS);
	for (unsigned i = 0; i < LISTEN_WAITING_MAX; i++)
		(void)connect_comm(2, 203 + i, SECOND_NS);
	CHECK_EQ(accept_all(203), LISTEN_WAITING_MAX);
}

TEST(a_further_lane_joins_its_comm)
{
	struct preamble_terms own = { .features = FEATURE_JOIN, .eager_bytes = 65536, .index = 1 };
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct preamble p;
	struct comm *comm;

	(void)connect_comm(1, 91, SECOND_NS);
	CHECK(registry_key(91, true, key));
	preamble_connect(&p, 0, 91, key, &own);
	CHECK_EQ(run_preamble(add_silent(1, SECOND_NS), &p, true, SECOND_NS), 1);
	CHECK_EQ(pending_set->count, 0);
	comm = accept_comm();
	CHECK(comm && comm_has_lane(comm, 1));
	close_comm(comm);
	CHECK(!registry_key(91, true, key));
}

static void keep_warning(enum plugin_log_level level, const char *text)
{
	if (level == PLUGIN_WARN)
		snprintf(warning, sizeof(warning), "%s", text);
}

int main(void)
{
	struct plugin_ctx *ctx;

	env_log = keep_warning;
	CHECK_EQ(plugin_init(&ctx, -1), 0);
	CHECK_EQ(interface_listen(0), 0);
	comm_listener.ctx = ctx;
	acceptor_add(&comm_listener);
	check_run();
	registry_unlisten(&comm_listener);
	plugin_finalize(ctx);
	return check_done();
}
