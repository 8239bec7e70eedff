/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_port_search.c - how many SYNs are sent, from which ports and when, and which connection is
 * used. The engine and its lanes are doubles: a lane is a source port, a state and a closed flag.
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
static unsigned fake_limit;            /* connections that the stack can have */
static uint16_t used_port;             /* another connection has it */
static uint16_t port_first, port_last; /* of the engine */
static struct placement_end own;
static struct harp_endpoint local_ep, remote_ep;
static struct port_search search;
static struct lane *winner; /* result of the search */

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
	if (fake_alive >= fake_limit)
		return -ENOSPC;
	if (local->port && local->port == used_port)
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

void engine_placement(const struct engine *engine, struct placement_end *out)
{
	(void)engine;
	*out = own;
}

void engine_ports(const struct engine *engine, uint16_t *low, uint16_t *high)
{
	(void)engine;
	*low = port_first;
	*high = port_last;
}

static void notify(struct lane *lane, uint64_t now_ns)
{
}

static struct placement_end end_of(enum placement_kind kind, uint16_t queues, uint16_t queue)
{
	struct placement_end end = { .kind = kind, .queues = queues, .queue = queue };

	if (kind != PLACEMENT_TOEPLITZ)
		return end;
	end.known = true;
	end.rss = (struct harp_rss){
		.kind = HARP_RSS_TOEPLITZ, .key_bytes = 40, .table_count = 128, .queues = queues
	};
	for (unsigned i = 0; i < 40; i++)
		end.rss.key[i] = (uint8_t)(37 * i + 11);
	for (unsigned i = 0; i < 128; i++)
		end.rss.table[i] = (uint16_t)(i % queues);
	return end;
}

static void begin(struct placement_end ours, struct placement_end theirs)
{
	fake_count = fake_alive = fake_alive_max = 0;
	fake_limit = UINT32_MAX;
	used_port = 0;
	port_first = 61000;
	port_last = 65535;
	own = ours;
	port_search_prepare(&search, NULL, &theirs, &local_ep, &remote_ep, 0);
	search.owner = &search;
	search.notify = notify;
}

static int advance(uint64_t at_ms)
{
	return port_search_advance(&search, at_ms * MS, &winner);
}

/* Advances the search each ms; it remains in progress. */
static void advance_until(uint64_t until_ms)
{
	for (uint64_t ms = 0; ms < until_ms; ms++)
		CHECK_EQ(advance(ms), 0);
}

/* Advances the search each ms until it ends, at most a minute; no SYN is answered. */
static int run_unanswered(uint64_t *ms)
{
	int rc = 0;

	for (*ms = 0; !rc && *ms < 60000; ++*ms) {
		unsigned before = fake_count;

		rc = advance(*ms);
		CHECK(fake_count - before <= 32);
		CHECK(winner == NULL);
	}
	return rc;
}

TEST(with_one_queue_on_each_side_any_port_is_used)
{
	struct placement_end one = end_of(PLACEMENT_ONE_QUEUE, 1, 0), older = { 0 };
	char text[192];

	begin(one, older);
	advance_until(1000);
	CHECK_EQ(fake_count, 1);
	CHECK_EQ(fakes[0].lane.local.port, 0);
	CHECK_STR(port_search_describe_failure(&search, text, sizeof(text)), "");
	fakes[0].state = LANE_OPEN;
	CHECK_EQ(advance(1000), 1);
	CHECK(winner == &fakes[0].lane && !fakes[0].closed);
}

/* The peer may be in TIME-WAIT with an older connection from that port, and not accept this one. */
TEST(without_an_answer_SYNs_from_other_ports_follow)
{
	struct placement_end one = end_of(PLACEMENT_ONE_QUEUE, 1, 0);
	uint64_t ms;

	begin(one, one);
	CHECK_EQ(run_unanswered(&ms), 0); /* the attempt has a deadline */
	CHECK_EQ(fake_count, 6);          /* at 0, 1, 3, 7, 15 and 31 s */
	CHECK(!fakes[0].closed);
	/* A full stack opens no more; the connections in progress continue. */
	fake_limit = 0;
	CHECK_EQ(advance(64000), 0);
	CHECK_EQ(fake_count, 6);
	fakes[2].state = LANE_OPEN;
	CHECK_EQ(advance(64001), 1);
	CHECK(winner == &fakes[2].lane && !fakes[2].closed);
	CHECK_EQ(fake_alive, 1);
	CHECK(fakes[0].closed && fakes[0].aborted);
}

TEST(a_port_is_computed_if_both_hashes_are_known)
{
	struct placement_end ours = end_of(PLACEMENT_TOEPLITZ, 8, 3);
	struct placement_end theirs = end_of(PLACEMENT_TOEPLITZ, 4, 1);

	begin(ours, theirs);
	advance_until(299);
	CHECK_EQ(fake_count, 1);
	CHECK_EQ(harp_rss_queue(&ours.rss, &remote_ep, &fakes[0].lane.local), 3);
	CHECK_EQ(harp_rss_queue(&theirs.rss, &fakes[0].lane.local, &remote_ep), 1);
	/* No answer: the peer's hash may be outdated. The first SYN may still be answered. */
	CHECK_EQ(advance(300), 0);
	CHECK(fake_count > 16);
	CHECK(!fakes[0].closed);
	fakes[0].state = LANE_OPEN;
	CHECK_EQ(advance(301), 1);
	CHECK(winner == &fakes[0].lane);
	CHECK_EQ(fake_alive, 1);
	CHECK(fakes[1].closed && fakes[1].aborted);
}

TEST(ports_are_tried_in_bounded_rounds)
{
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 8, 3);
	static uint8_t used[65536];
	char text[192];
	uint64_t ms;

	begin(unknown, unknown);
	CHECK_EQ(run_unanswered(&ms), -ETIMEDOUT);
	CHECK_EQ(fake_count, PORT_SEARCH_PORTS_MAX);
	CHECK_EQ(fake_alive_max, PORT_SEARCH_LANES_MAX);
	CHECK_EQ(fake_alive, 0);
	CHECK(ms < 2000);
	for (unsigned i = 0; i < fake_count; i++) {
		CHECK(!used[fakes[i].lane.local.port]);
		used[fakes[i].lane.local.port] = 1;
	}
	CHECK(strstr(port_search_describe_failure(&search, text, sizeof(text)),
		     "our queue 3 of 8") != NULL);
}

TEST(the_first_open_connection_wins)
{
	struct placement_end one = end_of(PLACEMENT_ONE_QUEUE, 1, 0);
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 4, 1);

	begin(one, unknown);
	CHECK_EQ(advance(0), 0);
	CHECK_EQ(fake_count, 8); /* one port in four is right: twice as many */
	CHECK_EQ(advance(49), 0);
	CHECK_EQ(fake_count, 8);
	CHECK_EQ(advance(50), 0);
	CHECK_EQ(fake_count, 16);
	fakes[5].state = fakes[9].state = LANE_OPEN;
	CHECK_EQ(advance(51), 1);
	CHECK(winner == &fakes[5].lane && !fakes[5].closed);
	CHECK(fakes[9].closed && fakes[9].aborted);
	CHECK_EQ(fake_alive, 1);
}

TEST(a_refusal_ends_the_search)
{
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 4, 1);

	begin(unknown, unknown);
	CHECK_EQ(advance(0), 0);
	/* The timeout of one port does not end the search. */
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
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 4, 1);

	begin(unknown, unknown);
	fake_limit = 3;
	advance_until(200);
	CHECK_EQ(fake_count, 3);
	fake_limit = 100;
	CHECK_EQ(advance(250), 0);
	CHECK(fake_count > 10);
	port_search_stop(&search);
	CHECK_EQ(fake_alive, 0);
	/* A search that may use any port fails at once: no SYN is in progress. */
	begin(end_of(PLACEMENT_ONE_QUEUE, 1, 0), end_of(PLACEMENT_ONE_QUEUE, 1, 0));
	fake_limit = 0;
	CHECK_EQ(advance(0), -ENOSPC);
}

TEST(a_search_ends_when_no_port_is_left)
{
	struct placement_end unknown = end_of(PLACEMENT_UNKNOWN, 8, 1);
	uint64_t ms;

	begin(unknown, unknown);
	port_last = 61009; /* the block of a lease */
	used_port = 61003;
	port_search_prepare(&search, NULL, &unknown, &local_ep, &remote_ep, 0);
	CHECK_EQ(run_unanswered(&ms), -ETIMEDOUT);
	CHECK_EQ(fake_count, 9);
	CHECK_EQ(fake_alive, 0);
	CHECK(ms < 1000);
}

/* No entry of our own table selects our queue, so it must be wrong. */
TEST(if_no_port_can_be_right_all_are_tried)
{
	struct placement_end ours = end_of(PLACEMENT_TOEPLITZ, 8, 3);

	for (unsigned i = 0; i < 128; i++)
		ours.rss.table[i] = 0;
	begin(ours, end_of(PLACEMENT_ONE_QUEUE, 1, 0));
	CHECK_EQ(advance(0), 0);
	CHECK_EQ(advance(1), 0);
	CHECK_EQ(fake_count, 16);
	port_search_stop(&search);
}

int main(void)
{
	local_ep.addr = harp_addr_v4(10, 0, 0, 1);
	remote_ep.addr = harp_addr_v4(10, 0, 0, 2);
	remote_ep.port = 61234;
	check_run();
	return check_done();
}
