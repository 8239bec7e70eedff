/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pending.c - the admission limits and deadlines of pending connections, by a clock that the test turns, over lanes in
 * memory.
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
#define COMERS 2000u
#define LISTEN_ID 0x1122334455667788ull

static struct pending_set *pending_set;
static struct fake_pair *pairs; /* COMERS: who came, and from where */
static unsigned comers;
static struct listen_comm comm_listener = { .id = LISTEN_ID };
static struct acceptor *acceptor;

/* ---- what runs short of memory -------------------------------------------------------------------- */

/* Sanitizers have allocators of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHORTAGES false
#else
#define SHORTAGES true

static unsigned shortage; /* this allocation from now on fails; 0: none */

static void *allocate(size_t align, size_t bytes)
{
	void *memory;

	if (shortage && --shortage == 0)
		return NULL;
	return posix_memalign(&memory, align, bytes) ? NULL : memory;
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return allocate(align, bytes);
}

void *calloc(size_t count, size_t bytes)
{
	void *memory = allocate(16, count * bytes);

	return memory ? memset(memory, 0, count * bytes) : NULL;
}
#endif
static char warning[512];

/* ---- doors ---------------------------------------------------------------------------------------- */

static void listener_open(void)
{
	static const struct placement_end one_queue = { .kind = PLACEMENT_ONE_QUEUE, .queues = 1 };

	pending_set = calloc(1, sizeof(*pending_set));
	pairs = calloc(COMERS, sizeof(*pairs));
	comers = 0;
	pending_set_init(pending_set, acceptor, &one_queue);
}

static void listener_close(void)
{
	pending_set_turn_away(pending_set);
	CHECK_EQ(pending_set->count, 0);
	for (unsigned i = 0; i < comers; i++)
		fake_pair_free(&pairs[i]);
	free(pairs);
	free(pending_set);
}

BEFORE_EACH(listener_open())
AFTER_EACH(listener_close())

static void listener_reopen(void)
{
	listener_close();
	listener_open();
}

/* Somebody comes from 10.0.x.y and says nothing; the number to ask for him by. */
static unsigned come(unsigned address, uint64_t now_ns)
{
	struct fake_pair *pair = &pairs[comers];

	fake_pair_init(pair, comers, 512);
	pair->lanes[0].lane.remote.addr =
		harp_addr_v4(10, 0, (uint8_t)(address >> 8), (uint8_t)address);
	pending_set_add(pending_set, &pair->lanes[0].lane, -1, now_ns);
	return comers++;
}

/* What a peer says first, who has a handle. */
static void say_hello(unsigned comer, uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .lanes = 1, .eager_bytes = 65536 };
	struct fake_lane *lane = &pairs[comer].lanes[0];
	struct preamble p;

	preamble_connect(&p, LISTEN_ID, comer, secret, &own);
	CHECK_EQ(fake_inject(lane, p.transcript, PREAMBLE_HELLO_BYTES), PREAMBLE_HELLO_BYTES);
	for (unsigned i = 0; i < 1000 && !lane->closed; i++) /* read in pieces */
		lane->lane.notify(&lane->lane, now_ns);
}

static bool is_here(unsigned comer)
{
	return !pairs[comer].lanes[0].closed;
}

/* One host opens as many connections as it likes: it pushes out its own. */
TEST(one_attacker)
{
	unsigned honest[3], others = 0;

	for (unsigned i = 0; i < 3; i++)
		honest[i] = come(2 + i, SECOND_NS + i);
	for (unsigned i = 0; i < 200; i++)
		(void)come(1, SECOND_NS + 10 + i);
	for (unsigned i = 0; i < 3; i++)
		CHECK(is_here(honest[i]));
	for (unsigned i = 0; i < comers; i++)
		others += is_here(i);
	CHECK_EQ(others, PENDING_UNAUTHENTICATED_MAX);
	CHECK_EQ(pending_set->count, PENDING_UNAUTHENTICATED_MAX);
	CHECK_EQ(pending_set->dropped, 203 - PENDING_UNAUTHENTICATED_MAX);
	/* Its oldest went first. */
	CHECK(!is_here(3));
	CHECK(is_here(comers - 1));
	/* Who comes now finds room, too, and stays. */
	honest[0] = come(9, 2 * SECOND_NS);
	for (unsigned i = 0; i < 64; i++)
		(void)come(1, 2 * SECOND_NS + i);
	CHECK(is_here(honest[0]));
}

/* Nobody has more than another: the oldest goes. */
TEST(many_attackers)
{
	for (unsigned i = 0; i < 100; i++)
		(void)come(i, SECOND_NS + i);
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(is_here(i), i >= 100 - PENDING_UNAUTHENTICATED_MAX);
	CHECK_EQ(pending_set->dropped, 100 - PENDING_UNAUTHENTICATED_MAX);
}

/* As many hosts as there are pending_set, and hosts whose pending_set have gone make room for others. */
TEST(many_hosts)
{
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		say_hello(come(1000 + i, SECOND_NS + i), SECOND_NS + i);
	for (unsigned i = 0; i < 1000; i++) {
		unsigned last = come(2000 + i, 2 * SECOND_NS + i);

		CHECK(is_here(last));
		CHECK(pending_set->host_count <= PENDING_MAX);
	}
	CHECK_EQ(pending_set->count, PENDING_MAX);
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		CHECK(is_here(i));
	/* The same that were here before. */
	for (unsigned i = 0; i < 200; i++)
		(void)come(2000, 3 * SECOND_NS + i);
	CHECK_EQ(pending_set->count, PENDING_MAX);
	CHECK(is_here(comers - 1));
}

TEST(time)
{
	unsigned first, late;

	first = come(1, SECOND_NS);
	late = come(1, 3 * SECOND_NS);
	pending_set_look(pending_set, 6 * SECOND_NS - 1);
	CHECK(is_here(first) && is_here(late));
	pending_set_look(pending_set, 6 * SECOND_NS);
	CHECK(!is_here(first) && is_here(late));
	pending_set_look(pending_set, 8 * SECOND_NS);
	CHECK(!is_here(late));
	CHECK_EQ(pending_set->count, 0);
}

/* What is not a preamble costs its sender the place at once. */
TEST(babble)
{
	uint8_t babble[64] = "GET / HTTP/1.1";
	unsigned silent, babbling;

	silent = come(1, SECOND_NS);
	babbling = come(1, SECOND_NS);
	CHECK_EQ(fake_inject(&pairs[babbling].lanes[0], babble, sizeof(babble)), sizeof(babble));
	for (unsigned i = 0; i < 1000 && is_here(babbling); i++) /* read in pieces */
		pairs[babbling].lanes[0].lane.notify(&pairs[babbling].lanes[0].lane, SECOND_NS);
	CHECK(is_here(silent) && !is_here(babbling));
	CHECK_EQ(pending_set->turned_away, 1);
}

/*
 * 513 peers of three addresses that are slow to go on. Strangers, whatever they do, push out none of those who have said HELLO;
 * of these the first stay when there are too many, and each has its full time though there is a crowd.
 */
TEST(known)
{
	unsigned peers[513], here = 0;

	for (unsigned i = 0; i < 513; i++) {
		peers[i] = come(1 + i % 3, SECOND_NS + i);
		say_hello(peers[i], SECOND_NS + i);
	}
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	CHECK_EQ(pending_set->count, PENDING_IDENTIFIED_MAX);
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		CHECK(is_here(peers[i]));
	/* Strangers of the same addresses and of others. */
	for (unsigned i = 0; i < 500; i++)
		(void)come(i, 2 * SECOND_NS + i);
	pending_set_look(pending_set, 3 * SECOND_NS + 500);
	CHECK_EQ(pending_set->count, PENDING_MAX);
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		CHECK(is_here(peers[i]));
	/* A peer that is alone at its address finds room among them, and stays. */
	peers[0] = come(9, 3 * SECOND_NS);
	say_hello(peers[0], 3 * SECOND_NS);
	for (unsigned i = 1; i < 100; i++)
		say_hello(come(1, 3 * SECOND_NS + i), 3 * SECOND_NS + i);
	CHECK(is_here(peers[0]));
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	/* Their time ends, too. */
	pending_set_look(pending_set, 6 * SECOND_NS + 513);
	for (unsigned i = 0; i < comers; i++)
		here += is_here(i);
	CHECK_EQ(here, pending_set->count);
	CHECK(is_here(peers[0]));
	pending_set_look(pending_set, 9 * SECOND_NS);
	CHECK_EQ(pending_set->count, 0);
	CHECK_EQ(pending_set->identified, 0);
}

/*
 * The same peers, each slower with its proof than all others are with coming. Who is turned away comes again: each round lets
 * as many through as there is room for. (Being through is a reset here.)
 */
TEST(known_all_get_through)
{
	static const unsigned want = 513;
	unsigned through = 0, rounds = 0, waiting[513], left = want;
	uint64_t now_ns = SECOND_NS;

	while (left && rounds < 4) {
		unsigned again = 0;

		for (unsigned i = 0; i < left; i++) {
			waiting[i] = come(1 + i % 3, now_ns + i);
			say_hello(waiting[i], now_ns + i);
		}
		now_ns += SECOND_NS;
		for (unsigned i = 0; i < left; i++) {
			if (!is_here(waiting[i])) {
				again++;
				continue;
			}
			through++;
			fake_reset(&pairs[waiting[i]].lanes[0]);
			pairs[waiting[i]].lanes[0].lane.notify(&pairs[waiting[i]].lanes[0].lane,
							       now_ns);
		}
		left = again;
		rounds++;
	}
	CHECK_EQ(through, want);
	CHECK_EQ(rounds, 3);
}

/* ---- READY -------------------------------------------------------------------------------------- */

/* As much of a preamble as is heard: 1, all of it. */
static int say_what_is_heard(struct preamble *p, unsigned comer, uint64_t now_ns)
{
	struct fake_lane *lane = &pairs[comer].lanes[0];
	int rc = 0;

	for (unsigned i = 0; i < 10000 && !rc; i++) {
		rc = handshake_advance(p, &pairs[comer].lanes[1].lane);
		if (!lane->closed && lane->lane.notify)
			lane->lane.notify(&lane->lane, now_ns);
	}
	return rc;
}

/* A whole preamble. */
static unsigned say(struct preamble *p, unsigned address, uint64_t now_ns)
{
	unsigned comer = come(address, now_ns);

	CHECK_EQ(say_what_is_heard(p, comer, now_ns), 1);
	return comer;
}

/* That of a peer with this comm id, whose READY is not acknowledged. */
static unsigned say_all_to(uint64_t listen_id, unsigned address, uint64_t comm_id, unsigned lanes,
			   uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .lanes = (uint8_t)lanes, .eager_bytes = 65536 };
	struct preamble p;

	preamble_connect(&p, listen_id, comm_id, secret, &own);
	return say(&p, address, now_ns);
}

static unsigned say_all(unsigned address, uint64_t comm_id, unsigned lanes, uint64_t now_ns)
{
	return say_all_to(LISTEN_ID, address, comm_id, lanes, now_ns);
}

/* That of a peer for whom there is no room: it has no READY, and may come again. */
static void say_in_vain(unsigned address, uint64_t comm_id, uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .lanes = 2, .eager_bytes = 65536 };
	unsigned comer = come(address, now_ns);
	struct preamble p;

	preamble_connect(&p, LISTEN_ID, comm_id, secret, &own);
	CHECK_EQ(say_what_is_heard(&p, comer, now_ns), -ECONNRESET);
	CHECK_EQ(p.step, PREAMBLE_READ_READY);
	CHECK(!is_here(comer));
}

/* That of lane 1 of the comm that is expected, or there. */
static unsigned say_further(unsigned address, uint64_t comm_id, uint64_t now_ns)
{
	struct preamble_terms own = { .lanes = 2, .eager_bytes = 65536, .join = true, .index = 1 };
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct preamble p;

	CHECK(registry_key(comm_id, key));
	preamble_connect(&p, LISTEN_ID, comm_id, key, &own);
	return say(&p, address, now_ns);
}

static void acknowledge(unsigned comer)
{
	pairs[comer].lanes[0].acked = pairs[comer].lanes[0].out->written;
}

static void notify(unsigned comer, uint64_t now_ns)
{
	struct lane *lane = &pairs[comer].lanes[0].lane;

	if (lane->notify)
		lane->notify(lane, now_ns);
}

static struct comm *accepted(void)
{
	struct comm *comm;

	CHECK_EQ(acceptor_accept(acceptor, &comm_listener, &comm), 0);
	return comm;
}

/* The comms that wait to be accepted, all dropped. */
static unsigned accept_all(uint64_t last_id)
{
	struct comm *comm;
	unsigned count = 0;

	while ((comm = accepted())) {
		if (!count++)
			CHECK_EQ(comm->comm_id, last_id);
		registry_remove(comm);
		comm_close(comm, true);
	}
	return count;
}

/* A first lane is a comm when READY has arrived, and not before. */
TEST(ready_must_arrive)
{
	for (unsigned lanes = 1; lanes <= 2; lanes++) {
		unsigned first, again;

		listener_reopen();
		first = say_all(1, 77, lanes, SECOND_NS);
		pending_set_look(pending_set, 2 * SECOND_NS);
		CHECK_EQ(accept_all(77), 0);
		/* It breaks. The connector tries again, with its comm id. */
		fake_reset(&pairs[first].lanes[0]);
		notify(first, 2 * SECOND_NS);
		CHECK(!is_here(first));
		CHECK_EQ(pending_set->identified, 0);
		again = say_all(1, 77, lanes, 3 * SECOND_NS);
		CHECK_EQ(accept_all(77), 0);
		pairs[again].lanes[0].acked = pairs[again].lanes[0].out->written - 1;
		notify(again, 3 * SECOND_NS);
		CHECK_EQ(accept_all(77), 0);
		acknowledge(again);
		notify(again, 3 * SECOND_NS);
		CHECK_EQ(pending_set->count, 0);
		CHECK_EQ(accept_all(77), 1);
	}
}

/* It arrived, and then the lane ended: somebody has that comm, and is told what became of it. */
TEST(ready_arrives_last)
{
	unsigned peer;

	peer = say_all(1, 78, 1, SECOND_NS);
	acknowledge(peer);
	fake_reset(&pairs[peer].lanes[0]);
	notify(peer, SECOND_NS);
	CHECK_EQ(accept_all(78), 1);
}

/* Nothing tells, for as long as a connector tries. Meanwhile a crowd pushes it out only if it is silent for a second. */
TEST(ready_stays_unknown)
{
	uint64_t end_ns = SECOND_NS + plugin_config()->connect_timeout_ns;
	unsigned peer;

	listener_reopen();
	peer = say_all(1, 79, 1, SECOND_NS);
	for (unsigned i = 0; i < 300; i++)
		say_hello(come(1, 2 * SECOND_NS - 1), 2 * SECOND_NS - 1);
	for (unsigned i = 0; i < 200; i++)
		(void)come(1, 2 * SECOND_NS + i);
	CHECK(is_here(peer));
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	pending_set_look(pending_set, end_ns - 1);
	CHECK(is_here(peer));
	pending_set_look(pending_set, end_ns);
	CHECK(!is_here(peer));
	CHECK_EQ(accept_all(79), 0);
	/* Peers of another address drop their own. */
	listener_reopen();
	peer = say_all(1, 79, 1, SECOND_NS);
	for (unsigned i = 0; i < 300; i++)
		say_hello(come(2, 2 * SECOND_NS + i), 2 * SECOND_NS + i);
	CHECK(is_here(peer));
	CHECK_EQ(accept_all(79), 0);
}

/* Each time the door has nothing to read the peer goes on, as one does whose door's thread stands still in between. */
static struct {
	const struct lane_ops *ops;
	struct preamble preamble;
	struct lane *lane; /* the peer's end */
	int rc;
} prompt;

static ssize_t prompt_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	ssize_t n = prompt.ops->recv(lane, dst, len, unit);

	for (unsigned i = 0; i < 100 && n == -EAGAIN && !prompt.rc; i++) {
		prompt.rc = handshake_advance(&prompt.preamble, prompt.lane);
		n = prompt.ops->recv(lane, dst, len, unit);
	}
	return n;
}

/* A peer that says all of its preamble in one turn of the door. */
static unsigned come_promptly(unsigned address, uint64_t comm_id, uint64_t now_ns)
{
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	static struct lane_ops ops;
	struct preamble_terms own = { .lanes = 2, .eager_bytes = 65536 };
	unsigned comer = come(address, now_ns);
	struct lane *lane = &pairs[comer].lanes[0].lane;

	prompt.ops = lane->ops;
	prompt.lane = &pairs[comer].lanes[1].lane;
	prompt.rc = 0;
	ops = *lane->ops;
	ops.recv = prompt_recv;
	lane->ops = &ops;
	preamble_connect(&prompt.preamble, LISTEN_ID, comm_id, secret, &own);
	for (unsigned i = 0; i < 1000 && is_here(comer) && !prompt.rc; i++) {
		lane->notify(lane, now_ns);
		if (!prompt.rc)
			prompt.rc = handshake_advance(&prompt.preamble, prompt.lane);
	}
	lane->ops = prompt.ops;
	return comer;
}

/* The door is full, and who comes has to go: before CHALLENGE, not behind READY. */
TEST(nobody_goes_behind_ready)
{
	unsigned peer;

	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		say_hello(come(1, SECOND_NS + i), SECOND_NS + i);
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	peer = come_promptly(1, 94, 2 * SECOND_NS);
	CHECK(!is_here(peer));
	CHECK(prompt.preamble.step <= PREAMBLE_READ_CHALLENGE);
	/* One who may stay does. */
	peer = come_promptly(2, 95, 2 * SECOND_NS);
	CHECK(is_here(peer));
	CHECK_EQ(prompt.preamble.step, PREAMBLE_DONE);
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		say_hello(come(2, 2 * SECOND_NS + i), 2 * SECOND_NS + i);
	CHECK(is_here(peer));
	acknowledge(peer);
	notify(peer, 2 * SECOND_NS + 300);
	CHECK_EQ(accept_all(95), 1);
}

/* Peers that know a handle and keep silent behind READY make room for a peer at another address, after a second. */
TEST(silent_behind_ready)
{
	unsigned silent[PENDING_IDENTIFIED_MAX], honest;

	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		silent[i] = say_all(1, 5000 + i, 2, SECOND_NS);
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	honest = come(2, 2 * SECOND_NS - 1);
	say_hello(honest, 2 * SECOND_NS - 1);
	CHECK(!is_here(honest));
	for (unsigned i = 0; i < PENDING_IDENTIFIED_MAX; i++)
		CHECK(is_here(silent[i]));
	honest = say_all(2, 6000, 2, 2 * SECOND_NS);
	CHECK(is_here(honest));
	CHECK_EQ(pending_set->identified, PENDING_IDENTIFIED_MAX);
	acknowledge(honest);
	notify(honest, 2 * SECOND_NS + 300);
	CHECK_EQ(accept_all(6000), 1);
}

/* A turn whose clock was read before that of the last one: nobody has been silent for a second by it. */
TEST(an_older_clock)
{
	unsigned peers[LISTEN_PEERS_MAX];

	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++)
		peers[i] = say_all(1, 1000 + i, 2, SECOND_NS);
	(void)say_all(2, 205, 2, SECOND_NS - 1);
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++)
		CHECK(is_here(peers[i]));
	/* Nor is its READY looked for at the end only. */
	notify(peers[0], SECOND_NS - 1);
	acknowledge(peers[0]);
	pending_set_look(pending_set, 2 * SECOND_NS);
	CHECK_EQ(accept_all(1000), 1);
	comm_listener.full_logged = false;
}

/* Nor does who acknowledges it: so many comms wait to be accepted, and more may come when one was. */
TEST(nobody_accepts)
{
	struct comm *comm;
	unsigned peer;

	warning[0] = '\0';
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++) {
		peer = say_all(1, 3000 + i, 2, SECOND_NS + i);
		acknowledge(peer);
		notify(peer, SECOND_NS + i);
	}
	CHECK_EQ(pending_set->count, 0);
	say_in_vain(2, 202, SECOND_NS + 100);
	CHECK(strstr(warning, "turned away 10.0.0.2") != NULL);
	comm = accepted();
	CHECK(comm && comm->comm_id == 3000);
	registry_remove(comm);
	comm_close(comm, true);
	peer = say_all(2, 202, 2, SECOND_NS + 200);
	acknowledge(peer);
	notify(peer, SECOND_NS + 200);
	CHECK_EQ(accept_all(3001), LISTEN_PEERS_MAX);
	CHECK_EQ(comm_listener.count, 0);
	/* Nor who comes with one comm id again and again. */
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++) {
		peer = say_all(1, 204, 2, 2 * SECOND_NS + i);
		acknowledge(peer);
		notify(peer, 2 * SECOND_NS + i);
	}
	say_in_vain(1, 204, 2 * SECOND_NS + 100);
	CHECK_EQ(accept_all(204), 1);
	CHECK_EQ(comm_listener.count, 0);
	comm_listener.full_logged = false;
}

/* The first attempt is a comm that nobody has been given yet, and its connector comes again: there is one comm. */
TEST(a_second_attempt)
{
	for (unsigned lanes = 1; lanes <= 2; lanes++) {
		unsigned first, again;

		listener_reopen();
		first = say_all(1, 80, lanes, SECOND_NS);
		acknowledge(first);
		notify(first, SECOND_NS);
		again = say_all(1, 80, lanes, 2 * SECOND_NS);
		acknowledge(again);
		notify(again, 2 * SECOND_NS);
		CHECK_EQ(accept_all(80), 1);
		CHECK(!is_here(first) && !is_here(again));
	}
}

/* The first attempt broke, and nobody told us: its connector is here again, and has the comm. So have its further lanes. */
TEST(a_first_attempt_lingers)
{
	for (unsigned lanes = 1; lanes <= 2; lanes++) {
		uint8_t keys[2][PREAMBLE_KEY_BYTES];
		unsigned first, again;
		struct comm *comm;

		listener_reopen();
		first = say_all(1, 81, lanes, SECOND_NS);
		CHECK_EQ(registry_key(81, keys[0]), lanes > 1);
		again = say_all(1, 81, lanes, 2 * SECOND_NS);
		CHECK_EQ(registry_key(81, keys[1]), lanes > 1);
		if (lanes > 1) /* those of the last, by whose key they prove themselves */
			CHECK(memcmp(keys[0], keys[1], sizeof(keys[0])));
		acknowledge(again);
		notify(again, 2 * SECOND_NS);
		comm = accepted();
		CHECK(comm != NULL);
		CHECK(is_here(first));
		fake_reset(&pairs[first].lanes[0]);
		notify(first, 3 * SECOND_NS);
		CHECK(!is_here(first));
		CHECK_EQ(registry_key(81, keys[0]), lanes > 1);
		if (lanes > 1)
			CHECK(!memcmp(keys[0], keys[1], sizeof(keys[0])));
		if (comm) {
			registry_remove(comm);
			comm_close(comm, true);
		}
		CHECK(!registry_key(81, keys[0]));
	}
}

/* A further lane is quicker than the acknowledgement of its comm's READY. */
TEST(a_further_lane_waits)
{
	struct comm *comm;
	unsigned first;

	first = say_all(1, 91, 2, SECOND_NS);
	(void)say_further(1, 91, SECOND_NS);
	CHECK_EQ(pending_set->count, 2);
	CHECK(pending_set->next_ns < SECOND_NS + 1000000); /* it is looked at again soon */
	pending_set_look(pending_set, pending_set->next_ns);
	CHECK_EQ(pending_set->count, 2);
	acknowledge(first);
	pending_set_look(pending_set, 2 * SECOND_NS); /* the first lane first, as it came */
	CHECK_EQ(pending_set->count, 0);
	comm = accepted();
	CHECK(comm != NULL);
	CHECK_EQ(comm->comm_id, 91);
	CHECK_EQ(comm->scheduler.live, 3);
	registry_remove(comm);
	comm_close(comm, true);
}

/* There will be no comm: the first lane breaks. Who comes in its place has another key. */
TEST(a_further_lane_of_none)
{
	uint8_t key[PREAMBLE_KEY_BYTES];
	unsigned first, further, again;

	first = say_all(1, 92, 2, SECOND_NS);
	further = say_further(1, 92, SECOND_NS);
	again = say_all(1, 92, 2, SECOND_NS + 1); /* before we heard of that */
	fake_reset(&pairs[first].lanes[0]);
	notify(first, SECOND_NS + 2);
	CHECK(!is_here(first));
	acknowledge(again);
	notify(again, SECOND_NS + 3);
	CHECK(is_here(further));
	pending_set_look(pending_set, pending_set->next_ns);
	CHECK(!is_here(further)); /* it proved that it belongs to the other */
	CHECK_EQ(accept_all(92), 1);
	CHECK(!registry_key(92, key));
	/* Nobody comes in its place. */
	first = say_all(1, 93, 2, SECOND_NS);
	further = say_further(1, 93, SECOND_NS);
	fake_reset(&pairs[first].lanes[0]);
	notify(first, SECOND_NS + 1);
	CHECK(is_here(further));
	pending_set_look(pending_set, pending_set->next_ns);
	CHECK(!is_here(further));
	CHECK_EQ(pending_set->count, 0);
	CHECK_EQ(accept_all(93), 0);
}

/*
 * A peer has READY, and then there is no memory for its comm: it will not come again, so accept says it, once, and goes on
 * to accept others.
 */
TEST(no_memory_behind_ready)
{
#if SHORTAGES
	struct comm *comm;
	unsigned failures;

	for (failures = 0; failures < 100; failures++) {
		unsigned before, unlucky, after;
		bool is_short;

		listener_reopen();
		before = say_all(1, 101, 2, SECOND_NS);
		unlucky = say_all(2, 102, 2, SECOND_NS);
		acknowledge(before);
		notify(before, SECOND_NS);
		warning[0] = '\0';
		shortage = 1 + failures;
		acknowledge(unlucky);
		notify(unlucky, SECOND_NS);
		is_short = !shortage;
		shortage = 0;
		if (!is_short) { /* all of its allocations have failed once */
			CHECK_EQ(accept_all(101), 2);
			break;
		}
		CHECK(!is_here(unlucky));
		CHECK(strstr(warning, "cannot accept 10.0.0.2") != NULL);
		CHECK(strstr(warning, "out of memory") != NULL);
		after = say_all(3, 103, 2, SECOND_NS);
		/* What is there comes first. */
		comm = accepted();
		CHECK(comm && comm->comm_id == 101);
		registry_remove(comm);
		comm_close(comm, true);
		CHECK_EQ(acceptor_accept(acceptor, &comm_listener, &comm), -ENOMEM);
		CHECK(!comm);
		CHECK_EQ(accept_all(0), 0);
		acknowledge(after);
		notify(after, SECOND_NS);
		CHECK_EQ(accept_all(103), 1);
	}
	CHECK(failures >= 3);
#endif
}

static void keep_warning(enum plugin_log_level level, const char *text)
{
	if (level == PLUGIN_WARN)
		snprintf(warning, sizeof(warning), "%s", text);
}

int main(void)
{
	struct plugin_ctx *ctx;
	bool setup;

	env_log = keep_warning;
	CHECK_EQ(plugin_init(&ctx, 1, -1), 0);
	CHECK_EQ(interface_acceptor(0, &acceptor, &setup), 0);
	CHECK(!setup);
	comm_listener.ctx = ctx;
	acceptor_add(acceptor, &comm_listener);
	check_run();
	acceptor_remove(acceptor, &comm_listener);
	CHECK_EQ(plugin_finalize(ctx), 0);
	return check_done();
}
