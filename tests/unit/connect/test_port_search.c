/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_port_search.c - how many SYNs leave from which ports, when, and which of them wins. The engine and its lanes are
 * stand-ins: a lane is a source port, a state, and whether it was closed.
 */
#include "connect/port_search.h"

#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "lane/lane_harp.h"

#define MS 1000000ull

struct fake {
	struct lane lane;
	enum lane_state state;
	bool closed, aborted;
};

static struct fake fakes[1024];
static unsigned fake_count, fake_alive, fake_alive_max;
static unsigned room;        /* connections that the stack has room for */
static uint16_t taken;       /* a port that is in use */
static uint16_t first, last; /* the engine's */
static struct engine_queue own;
static struct harp_endpoint here, there;
static struct port_search search;
static struct lane *opened; /* by the search */

static enum lane_state fake_state(struct lane *lane)
{
	return ((struct fake *)lane)->state;
}

static void fake_close(struct lane *lane, bool abort)
{
	struct fake *fake = (struct fake *)lane;

	CHECK(!fake->closed);
	fake->closed = true;
	fake->aborted = abort;
	fake_alive--;
}

static const struct lane_ops fake_ops = { .state = fake_state, .close = fake_close };

int lane_harp_connect(struct engine *engine, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, int dscp, struct lane **out)
{
	struct fake *fake = &fakes[fake_count];

	(void)dscp;
	*out = NULL;
	if (fake_alive >= room)
		return -ENOSPC;
	if (local->port && local->port == taken)
		return -EADDRINUSE;
	CHECK(fake_count < sizeof(fakes) / sizeof(fakes[0]));
	*fake = (struct fake){ .lane = { .ops = &fake_ops, .local = *local, .remote = *remote },
			       .state = LANE_CONNECTING };
	fake_count++;
	if (++fake_alive > fake_alive_max)
		fake_alive_max = fake_alive;
	*out = &fake->lane;
	return 0;
}

struct engine_queue engine_queue(const struct engine *engine)
{
	(void)engine;
	return own;
}

void engine_ports(const struct engine *engine, uint16_t *low, uint16_t *high)
{
	(void)engine;
	*low = first;
	*high = last;
}

static void notify(struct lane *lane, uint64_t now_ns)
{
}

static const struct harp_rss unknown = { .kind = HARP_RSS_UNKNOWN };

static struct harp_rss toeplitz(unsigned queues)
{
	struct harp_rss rss = {
		.kind = HARP_RSS_TOEPLITZ, .key_bytes = 40, .table_count = 128, .queues = queues
	};

	for (unsigned i = 0; i < 40; i++)
		rss.key[i] = (uint8_t)(37 * i + 11);
	for (unsigned i = 0; i < 128; i++)
		rss.table[i] = (uint16_t)(i % queues);
	return rss;
}

/* From our queue 3 to one of the peer's queues. */
static void prepare(const struct harp_rss *rss, uint16_t queues, uint16_t peer_queues)
{
	struct candidate candidate = {
		.local = here, .remote = there, .peer_queues = peer_queues, .peer_queue = 1
	};

	own = (struct engine_queue){ .queue = 3, .queues = queues, .rss = rss };
	port_search_prepare(&search, &candidate, 0);
	search.owner = &search;
	search.notify = notify;
}

static void begin(const struct harp_rss *rss, uint16_t queues, uint16_t peer_queues)
{
	fake_count = fake_alive = fake_alive_max = 0;
	room = UINT32_MAX;
	taken = 0;
	first = 61000;
	last = 65535;
	prepare(rss, queues, peer_queues);
}

static int advance(uint64_t at_ms)
{
	return port_search_advance(&search, at_ms * MS, &opened);
}

/* The search goes on at each ms. */
static void goes_on(uint64_t until_ms)
{
	for (uint64_t ms = 0; ms < until_ms; ms++)
		CHECK_EQ(advance(ms), 0);
}

/* Until it ends, a minute at most; nothing is answered. */
static int silence(uint64_t *ms)
{
	int rc = 0;

	for (*ms = 0; !rc && *ms < 60000; ++*ms) {
		unsigned before = fake_count;

		rc = advance(*ms);
		CHECK(fake_count - before <= 32);
		CHECK(opened == NULL);
	}
	return rc;
}

TEST(with_one_queue_each_any_port_will_do)
{
	char text[192];

	begin(&unknown, 1, 0);
	goes_on(1000);
	CHECK_EQ(fake_count, 1);
	CHECK_EQ(fakes[0].lane.local.port, 0);
	CHECK_STR(port_search_silence(&search, text, sizeof(text)), "");
	fakes[0].state = LANE_OPEN;
	CHECK_EQ(advance(1000), 1);
	CHECK(opened == &fakes[0].lane && !fakes[0].closed);
}

/* The peer may have the end of an older connection from that very port, and then never agrees to a new one. */
TEST(without_an_answer_other_ports_follow)
{
	uint64_t ms;

	begin(&unknown, 1, 1);
	CHECK_EQ(silence(&ms), 0); /* the attempt has a deadline */
	CHECK_EQ(fake_count, 6);   /* at 0, 1, 3, 7, 15 and 31 s */
	CHECK(!fakes[0].closed);
	/* No room for one more: what is under way goes on. */
	room = 0;
	CHECK_EQ(advance(64000), 0);
	CHECK_EQ(fake_count, 6);
	fakes[2].state = LANE_OPEN;
	CHECK_EQ(advance(64001), 1);
	CHECK(opened == &fakes[2].lane && !fakes[2].closed);
	CHECK_EQ(fake_alive, 1);
	CHECK(fakes[0].closed && fakes[0].aborted);
}

TEST(a_port_is_computed_where_our_hash_is_known)
{
	struct harp_rss rss = toeplitz(8);

	/* IPv4, then IPv6; a peer of one queue, then of four: of these one in four is right. */
	for (unsigned i = 0; i < 4; i++) {
		unsigned a_round = i % 2 ? 8 : 1;
		struct fake *computed;

		CHECK_EQ(harp_addr_parse(i < 2 ? "10.0.0.1" : "fd00::1", &here.addr), 0);
		CHECK_EQ(harp_addr_parse(i < 2 ? "10.0.0.2" : "fd00::2", &there.addr), 0);
		begin(&rss, 8, i % 2 ? 4 : 1);
		goes_on(300);
		CHECK_EQ(fake_count, 6 * a_round);
		for (unsigned f = 0; f < fake_count; f++)
			CHECK_EQ(harp_rss_queue(&rss, &there, &fakes[f].lane.local), 3);
		/* No answer: it may be out of date. A computed one may still come through. */
		CHECK_EQ(advance(300), 0);
		CHECK(fake_count >= 6 * a_round + 16);
		computed = &fakes[6 * a_round - 1];
		CHECK(!computed->closed);
		computed->state = LANE_OPEN;
		CHECK_EQ(advance(301), 1);
		CHECK(opened == &computed->lane);
		CHECK_EQ(fake_alive, 1);
		CHECK(fakes[0].closed && fakes[0].aborted);
	}
}

TEST(ports_are_tried_in_bounded_rounds)
{
	uint8_t seen[65536] = { 0 };
	char text[192];
	uint64_t ms;

	begin(&unknown, 8, 8);
	CHECK_EQ(silence(&ms), -ETIMEDOUT);
	CHECK_EQ(fake_count, PORT_SEARCH_PORTS_MAX);
	CHECK_EQ(fake_alive_max, PORT_SEARCH_LANES_MAX);
	CHECK_EQ(fake_alive, 0);
	CHECK(ms < 2000);
	for (unsigned i = 0; i < fake_count; i++) {
		CHECK(fakes[i].lane.local.port >= first);
		CHECK(!seen[fakes[i].lane.local.port]);
		seen[fakes[i].lane.local.port] = 1;
	}
	CHECK(strstr(port_search_silence(&search, text, sizeof(text)),
		     "our queue 3 of 8 and the peer's queue 1 of 8") != NULL);
}

TEST(the_first_open_connection_wins)
{
	begin(&unknown, 1, 4);
	CHECK_EQ(advance(0), 0);
	CHECK_EQ(fake_count, 8); /* one in four is right: twice that */
	CHECK_EQ(advance(49), 0);
	CHECK_EQ(fake_count, 8);
	CHECK_EQ(advance(50), 0);
	CHECK_EQ(fake_count, 16);
	fakes[5].state = fakes[9].state = LANE_OPEN;
	CHECK_EQ(advance(51), 1);
	CHECK(opened == &fakes[5].lane && !fakes[5].closed);
	CHECK(fakes[9].closed && fakes[9].aborted);
	CHECK_EQ(fake_alive, 1);
}

TEST(a_refusal_ends_the_search)
{
	begin(&unknown, 4, 4);
	CHECK_EQ(advance(0), 0);
	/* One port's own timeout says nothing of the others. */
	fakes[2].state = LANE_DEAD;
	fakes[2].lane.error = -ETIMEDOUT;
	CHECK_EQ(advance(1), 0);
	CHECK(fakes[2].closed);
	fakes[4].state = LANE_DEAD;
	fakes[4].lane.error = -ECONNREFUSED;
	CHECK_EQ(advance(2), -ECONNREFUSED);
	CHECK_EQ(fake_alive, 0);
}

TEST(a_full_stack_delays_the_next_round)
{
	begin(&unknown, 4, 4);
	room = 3;
	goes_on(200);
	CHECK_EQ(fake_count, 3);
	room = 100;
	CHECK_EQ(advance(250), 0);
	CHECK(fake_count > 10);
	port_search_stop(&search);
	CHECK_EQ(fake_alive, 0);
	/* Without a lane under way it is an error. */
	for (uint16_t queues = 1; queues < 5; queues += 3) {
		begin(&unknown, queues, queues);
		room = 0;
		CHECK_EQ(advance(0), -ENOSPC);
	}
}

TEST(a_search_ends_when_no_port_is_left)
{
	uint64_t ms;

	begin(&unknown, 8, 8);
	last = 61009; /* a lease has a block of them */
	taken = 61003;
	prepare(&unknown, 8, 8);
	CHECK_EQ(silence(&ms), -ETIMEDOUT);
	CHECK_EQ(fake_count, 9);
	CHECK_EQ(fake_alive, 0);
	CHECK(ms < 1000);
	last = 60999; /* none at all */
	prepare(&unknown, 8, 8);
	CHECK_EQ(advance(0), -EADDRNOTAVAIL);
}

/* A table that leads nowhere near our queue: that cannot be true, and ports are tried. */
TEST(if_no_port_should_do_all_are_tried)
{
	struct harp_rss rss = toeplitz(8);

	memset(rss.table, 0, sizeof(rss.table));
	begin(&rss, 8, 1);
	CHECK_EQ(advance(0), 0);
	CHECK_EQ(advance(50), 0);
	CHECK_EQ(fake_count, 16);
	port_search_stop(&search);
}

int main(void)
{
	here.addr = harp_addr_v4(10, 0, 0, 1);
	there.addr = harp_addr_v4(10, 0, 0, 2);
	there.port = 61234;
	check_run();
	return check_done();
}
