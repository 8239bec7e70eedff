/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_attempt.c - a connect attempt: the round trip that it measures, its deadlines, and the queue
 * placement for its port search. The lane is in memory, its peer runs the acceptor's preamble; port
 * search and control thread are doubles. The simulator proves that each attempt ends
 * (tests/sim/comm_connect.c, comm_reconnect.c), tests/hostile/test_lanes_gone.py with real sockets.
 */
#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "connect/attempt.h"
#include "connect/handshake.h"
#include "connect/peers.h"
#include "fake_lane.h"

#define LISTEN_ID 7u
#define MS UINT64_C(1000000)
#define BEGIN_NS (5000000 * MS) /* a clock since boot: far from 0 */
#define FD 42

static const uint8_t secret[PREAMBLE_KEY_BYTES] = { 1, 2, 3 };

static uint64_t seed;
static struct poller control;
static struct engine engine;
static struct attempt *attempt;
static struct work result_work;
static struct fake_pair pair;
static struct preamble peer;
static struct lane_ops lane_ops; /* of the attempt's lane: the fake lane's, partly replaced */
static const struct lane_ops *fake_ops;

static struct {
	bool recalls, searches;
	unsigned authenticated, results;
	struct placement_end peer_end;
} world;

/* ---- doubles --------------------------------------------------------------------------------- */

struct poller *control_poller(void)
{
	return &control;
}

void control_post(struct work *work)
{
	CHECK(work == &result_work);
	world.results++;
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	timer->at_ns = at_ns;
}

int control_watch(struct control_source *source, int fd, uint32_t events)
{
	CHECK_EQ(fd, FD);
	source->watched = true;
	return 0;
}

void control_rewatch(struct control_source *source, uint32_t events)
{
}

void control_unwatch(struct control_source *source)
{
	source->watched = false;
}

int lane_kernel_connect(struct poller *poller, const struct harp_endpoint *local,
			const struct harp_endpoint *remote, int dscp, struct lane **out)
{
	CHECK(poller == &control);
	*out = &pair.lanes[0].lane;
	return 0;
}

int lane_kernel_fd(struct lane *lane)
{
	return FD;
}

void lane_kernel_ack_promptly(struct lane *lane)
{
}

void port_search_prepare(struct port_search *o, struct engine *e, const struct placement_end *end,
			 const struct harp_endpoint *local, const struct harp_endpoint *remote,
			 int dscp)
{
	world.peer_end = *end;
}

int port_search_advance(struct port_search *o, uint64_t now_ns, struct lane **out)
{
	if (!world.searches)
		*out = &pair.lanes[0].lane;
	return !world.searches;
}

void port_search_stop(struct port_search *o)
{
}

const char *port_search_describe_failure(const struct port_search *o, char *buf, size_t len)
{
	buf[0] = '\0';
	return buf;
}

bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out)
{
	if (world.recalls)
		out->queues = 7;
	return world.recalls;
}

void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end)
{
}

void peers_avoid(const struct harp_endpoint *remote, unsigned e, uint64_t now_ns)
{
}

/* ---- an attempt and its peer ----------------------------------------------------------------- */

static bool lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	memcpy(key, secret, PREAMBLE_KEY_BYTES);
	return p->listen_id == LISTEN_ID;
}

static int authenticated(struct attempt *a)
{
	world.authenticated++;
	return 0;
}

static void run_engine(struct poller *poller, uint64_t now_ns)
{
	(void)poller_run_ready(poller, now_ns);
}

/* While a forked child has a copy of the socket, closing it would not remove it from epoll. */
static void close_unwatched(struct lane *lane, bool abort)
{
	CHECK(!attempt->source.watched);
	fake_ops->close(lane, abort);
}

static void prepare(bool harp)
{
	struct preamble_terms terms = { .eager_bytes = 262144 };
	struct lane *lane = &pair.lanes[0].lane;

	memset(&world, 0, sizeof(world));
	poller_init(&engine.poller, run_engine);
	fake_pair_init(&pair, seed, 4096);
	fake_ops = lane->ops;
	lane_ops = *fake_ops;
	lane_ops.close = close_unwatched;
	lane->ops = &lane_ops;
	lane->kind_bit = harp ? LANE_HARP : LANE_KERNEL;
	preamble_accept(&peer, &terms, lookup, NULL);
	attempt = attempt_new(&attempt_ops);
	attempt->candidate.harp = harp;
	attempt->candidate.engine = &engine;
	attempt->listen_id = LISTEN_ID;
	memcpy(attempt->key, secret, sizeof(secret));
	attempt->open_deadline_ns = BEGIN_NS + 3000 * MS;
	attempt->deadline_ns = BEGIN_NS + 5000 * MS;
	attempt->authenticated = authenticated;
	attempt->result_work = &result_work;
}

static void begin(bool harp)
{
	prepare(harp);
	attempt_begin(attempt, BEGIN_NS);
	if (harp)
		CHECK(poller_run(&engine.poller, BEGIN_NS));
}

static void advance(uint64_t now_ns)
{
	attempt_ops.advance(attempt, now_ns);
}

static void peer_turn(void)
{
	(void)handshake_advance(&peer, &pair.lanes[1].lane);
}

/* Begins an attempt and sends HELLO; the peer does not answer yet. */
static void begin_and_send_hello(bool harp)
{
	begin(harp);
	while (attempt->preamble.step != PREAMBLE_READ_CHALLENGE || !attempt->opened)
		advance(BEGIN_NS); /* each send transfers a part */
}

/* Checks the result, that the lane was closed or handed over, and that nothing follows. */
static void finish(int result, const char *text)
{
	CHECK_EQ(attempt_result(attempt), result);
	CHECK_EQ(world.results, 1);
	CHECK(!attempt->lane);
	CHECK_EQ(world.authenticated, !result);
	if (text)
		CHECK_STR(attempt->text, text);
	advance(BEGIN_NS + 60000 * MS);
	CHECK_EQ(world.results, 1);
	CHECK_EQ(pair.lanes[0].closed, result != 0);
	attempt_free(attempt);
	fake_pair_free(&pair);
}

static void run_to_end(uint64_t now_ns)
{
	for (unsigned i = 0; i < 10000 && attempt_result(attempt) == ATTEMPT_RUNNING; i++) {
		peer_turn();
		advance(now_ns);
	}
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(the_round_trip_is_measured_from_HELLO_to_CHALLENGE)
{
	for (unsigned harp = 0; harp < 2; harp++) {
		begin_and_send_hello(harp);
		CHECK_EQ(attempt->own.features, harp ? FEATURE_ACK_PROMPTLY : FEATURE_NO_CREDIT);
		CHECK_EQ(attempt->rtt_ns, 0);
		for (unsigned i = 1; i < 1000 && !attempt->rtt_ns; i++) {
			peer_turn();
			advance(BEGIN_NS + 3 * MS);
		}
		CHECK_EQ(attempt->rtt_ns, 3 * MS);
		run_to_end(BEGIN_NS + 4 * MS);
		finish(0, NULL);
	}
}

/* The peer has answered when send() returns. */
static ssize_t send_and_get_answer(struct lane *lane, const struct iovec *iov, int iov_count)
{
	ssize_t n = fake_ops->send(lane, iov, iov_count);

	peer_turn();
	return n;
}

TEST(an_answer_within_the_turn_of_HELLO_gives_no_round_trip)
{
	begin(false);
	lane_ops.send = send_and_get_answer;
	advance(BEGIN_NS);
	CHECK_EQ(attempt->rtt_ns, 0);
	run_to_end(BEGIN_NS);
	finish(0, NULL);
}

TEST(each_step_has_its_deadline)
{
	static const struct {
		enum preamble_step step;
		uint64_t deadline_ns, due_ns;
	} cases[] = {
		{ PREAMBLE_READ_CHALLENGE, 5000 * MS, 5000 * MS },
		{ PREAMBLE_READ_CHALLENGE, 30000 * MS, 6000 * MS },
		{ PREAMBLE_READ_READY, 5000 * MS, 5000 * MS },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		prepare(false);
		attempt->deadline_ns = BEGIN_NS + cases[i].deadline_ns;
		attempt_begin(attempt, BEGIN_NS);
		while (attempt->preamble.step != cases[i].step || !attempt->opened) {
			advance(BEGIN_NS);
			if (cases[i].step == PREAMBLE_READ_READY &&
			    peer.step != PREAMBLE_READ_PROOF)
				peer_turn();
		}
		advance(BEGIN_NS + cases[i].due_ns - 1);
		CHECK_EQ(attempt_result(attempt), ATTEMPT_RUNNING);
		advance(BEGIN_NS + cases[i].due_ns);
		finish(-ETIMEDOUT, "the peer does not accept; is its rank alive?");
	}
}

TEST(a_port_search_uses_the_peers_queue_placement)
{
	static const struct {
		bool recalls;
		uint8_t placement;
		uint16_t candidate_queues, queues;
		enum placement_kind kind;
	} cases[] = {
		{ true, PLACEMENT_ONE_QUEUE, 8, 7, PLACEMENT_NONE },
		{ false, PLACEMENT_ONE_QUEUE, 8, 8, PLACEMENT_NONE },
		{ false, PLACEMENT_TOEPLITZ, 8, 8, PLACEMENT_UNKNOWN },
		{ false, 77, 8, 8, PLACEMENT_UNKNOWN },
		{ false, PLACEMENT_NONE, 8, 8, PLACEMENT_NONE },
		{ false, PLACEMENT_TOEPLITZ, 1, 1, PLACEMENT_NONE },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		prepare(true);
		world.searches = true;
		world.recalls = cases[i].recalls;
		attempt->candidate.placement = cases[i].placement;
		attempt->candidate.queues = cases[i].candidate_queues;
		attempt->ports_max = 12;
		attempt_begin(attempt, BEGIN_NS);
		CHECK(poller_run(&engine.poller, BEGIN_NS));
		CHECK_EQ(attempt->search.ports_max, 12);
		CHECK_EQ(world.peer_end.queues, cases[i].queues);
		CHECK_EQ(world.peer_end.kind, cases[i].kind);
		attempt_free(attempt);
		fake_pair_free(&pair);
	}
}

int main(void)
{
	for (seed = 0; seed < 20; seed++)
		check_run();
	return check_done();
}
