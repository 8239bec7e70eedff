/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_guest.c - strangers and peers at a door: who has to go when it is full, and when everybody's time is up. By count and
 * by a clock that the test turns, over lanes in memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device/ctx.h"
#include "double_env.h"
#include "fake_lane.h"
#include "connect/guest.h"
#include "plugin.h"
#include "connect/registry.h"

#define SECOND_NS 1000000000ull
#define COMERS 2000u
#define LISTEN_ID 0x1122334455667788ull

static struct guests *guests;
static struct fake_pair *pairs; /* COMERS: who came, and from where */
static unsigned comers;

/* ---- what runs short of memory -------------------------------------------------------------------- */

enum shortage { SHORT_OF_NOTHING, SHORT_IN_SEAL, SHORT_IN_CREATE, SHORT_IN_ADD };
static enum shortage shortage; /* the next call, once */
static char warning[512];

static bool is_short(enum shortage of)
{
	if (shortage != of)
		return false;
	shortage = SHORT_OF_NOTHING;
	return true;
}

int __real_preamble_seal(const struct preamble *p, struct lane **lane);
int __wrap_preamble_seal(const struct preamble *p, struct lane **lane);
int __wrap_preamble_seal(const struct preamble *p, struct lane **lane)
{
	return is_short(SHORT_IN_SEAL) ? -ENOMEM : __real_preamble_seal(p, lane);
}

int __real_comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt);
int __wrap_comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt);
int __wrap_comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt)
{
	return is_short(SHORT_IN_CREATE) ? -ENOMEM : __real_comm_create(out, lane, opt);
}

int __real_registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES]);
int __wrap_registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES]);
int __wrap_registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES])
{
	return is_short(SHORT_IN_ADD) ? -ENOMEM : __real_registry_add(comm, comm_id, key);
}

/* ---- doors ---------------------------------------------------------------------------------------- */

static void door_open(struct rendezvous *rdv)
{
	static const struct placement_end one_queue = { .kind = PLACEMENT_ONE_QUEUE, .queues = 1 };

	guests = calloc(1, sizeof(*guests));
	pairs = calloc(COMERS, sizeof(*pairs));
	comers = 0;
	guests_init(guests, rdv, &one_queue);
}

static void door_close(void)
{
	guests_turn_away(guests);
	CHECK_EQ(guests->count, 0);
	for (unsigned i = 0; i < comers; i++)
		fake_pair_free(&pairs[i]);
	free(pairs);
	free(guests);
}

/* Somebody comes from 10.0.x.y and says nothing; the number to ask for him by. */
static unsigned come(unsigned address, uint64_t now_ns)
{
	struct fake_pair *pair = &pairs[comers];

	fake_pair_init(pair, comers, 512);
	pair->lanes[0].lane.remote.addr =
		harp_addr_v4(10, 0, (uint8_t)(address >> 8), (uint8_t)address);
	guests_come(guests, &pair->lanes[0].lane, -1, now_ns);
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
static void test_one_attacker(struct rendezvous *rdv)
{
	unsigned honest[3], others = 0;

	door_open(rdv);
	for (unsigned i = 0; i < 3; i++)
		honest[i] = come(2 + i, SECOND_NS + i);
	for (unsigned i = 0; i < 200; i++)
		(void)come(1, SECOND_NS + 10 + i);
	for (unsigned i = 0; i < 3; i++)
		CHECK(is_here(honest[i]));
	for (unsigned i = 0; i < comers; i++)
		others += is_here(i);
	CHECK_EQ(others, GUESTS_STRANGERS_MAX);
	CHECK_EQ(guests->count, GUESTS_STRANGERS_MAX);
	CHECK_EQ(guests->pushed_out, 203 - GUESTS_STRANGERS_MAX);
	/* Its oldest went first. */
	CHECK(!is_here(3));
	CHECK(is_here(comers - 1));
	/* Who comes now finds room, too, and stays. */
	honest[0] = come(9, 2 * SECOND_NS);
	for (unsigned i = 0; i < 64; i++)
		(void)come(1, 2 * SECOND_NS + i);
	CHECK(is_here(honest[0]));
	door_close();
}

/* Nobody has more than another: the oldest goes. */
static void test_many_attackers(struct rendezvous *rdv)
{
	door_open(rdv);
	for (unsigned i = 0; i < 100; i++)
		(void)come(i, SECOND_NS + i);
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(is_here(i), i >= 100 - GUESTS_STRANGERS_MAX);
	CHECK_EQ(guests->pushed_out, 100 - GUESTS_STRANGERS_MAX);
	door_close();
}

/* As many hosts as there are guests, and hosts whose guests have gone make room for others. */
static void test_many_hosts(struct rendezvous *rdv)
{
	door_open(rdv);
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		say_hello(come(1000 + i, SECOND_NS + i), SECOND_NS + i);
	for (unsigned i = 0; i < 1000; i++) {
		unsigned last = come(2000 + i, 2 * SECOND_NS + i);

		CHECK(is_here(last));
		CHECK(guests->host_count <= GUESTS_MAX);
	}
	CHECK_EQ(guests->count, GUESTS_MAX);
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		CHECK(is_here(i));
	/* The same that were here before. */
	for (unsigned i = 0; i < 200; i++)
		(void)come(2000, 3 * SECOND_NS + i);
	CHECK_EQ(guests->count, GUESTS_MAX);
	CHECK(is_here(comers - 1));
	door_close();
}

static void test_time(struct rendezvous *rdv)
{
	unsigned first, late;

	door_open(rdv);
	first = come(1, SECOND_NS);
	late = come(1, 3 * SECOND_NS);
	guests_look(guests, 6 * SECOND_NS - 1);
	CHECK(is_here(first) && is_here(late));
	guests_look(guests, 6 * SECOND_NS);
	CHECK(!is_here(first) && is_here(late));
	guests_look(guests, 8 * SECOND_NS);
	CHECK(!is_here(late));
	CHECK_EQ(guests->count, 0);
	/* A crowd has less of it. */
	for (unsigned i = 0; i < GUESTS_STRANGERS_MANY; i++)
		(void)come(1, 10 * SECOND_NS);
	guests_look(guests, 11 * SECOND_NS);
	CHECK_EQ(guests->count, GUESTS_STRANGERS_MANY);
	late = come(2, 11 * SECOND_NS);
	CHECK_EQ(guests->count, 1); /* it was one too many for those who had had their second */
	CHECK(is_here(late));
	CHECK_EQ(guests->pushed_out, 0);
	door_close();
}

/* What is not a preamble costs its sender the place at once. */
static void test_babble(struct rendezvous *rdv)
{
	uint8_t babble[64] = "GET / HTTP/1.1";
	unsigned silent, babbling;

	door_open(rdv);
	silent = come(1, SECOND_NS);
	babbling = come(1, SECOND_NS);
	CHECK_EQ(fake_inject(&pairs[babbling].lanes[0], babble, sizeof(babble)), sizeof(babble));
	for (unsigned i = 0; i < 1000 && is_here(babbling); i++) /* read in pieces */
		pairs[babbling].lanes[0].lane.notify(&pairs[babbling].lanes[0].lane, SECOND_NS);
	CHECK(is_here(silent) && !is_here(babbling));
	CHECK_EQ(guests->turned_away, 1);
	door_close();
}

/*
 * 513 peers of three addresses that are slow to go on. Strangers, whatever they do, push out none of those who have said HELLO;
 * of these the first stay when there are too many, and each has its full time though there is a crowd.
 */
static void test_known(struct rendezvous *rdv)
{
	unsigned peers[513], here = 0;

	door_open(rdv);
	for (unsigned i = 0; i < 513; i++) {
		peers[i] = come(1 + i % 3, SECOND_NS + i);
		say_hello(peers[i], SECOND_NS + i);
	}
	CHECK_EQ(guests->known, GUESTS_KNOWN_MAX);
	CHECK_EQ(guests->count, GUESTS_KNOWN_MAX);
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		CHECK(is_here(peers[i]));
	/* Strangers of the same addresses and of others. */
	for (unsigned i = 0; i < 500; i++)
		(void)come(i, 2 * SECOND_NS + i);
	guests_look(guests, 3 * SECOND_NS + 500);
	CHECK_EQ(guests->count, GUESTS_KNOWN_MAX);
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		CHECK(is_here(peers[i]));
	/* A peer that is alone at its address finds room among them, and stays. */
	peers[0] = come(9, 3 * SECOND_NS);
	say_hello(peers[0], 3 * SECOND_NS);
	for (unsigned i = 1; i < 100; i++)
		say_hello(come(1, 3 * SECOND_NS + i), 3 * SECOND_NS + i);
	CHECK(is_here(peers[0]));
	CHECK_EQ(guests->known, GUESTS_KNOWN_MAX);
	/* Their time ends, too. */
	guests_look(guests, 6 * SECOND_NS + 513);
	for (unsigned i = 0; i < comers; i++)
		here += is_here(i);
	CHECK_EQ(here, guests->count);
	CHECK(is_here(peers[0]));
	guests_look(guests, 9 * SECOND_NS);
	CHECK_EQ(guests->count, 0);
	CHECK_EQ(guests->known, 0);
	door_close();
}

/*
 * The same peers, each slower with its proof than all others are with coming. Who is turned away comes again: each round lets
 * as many through as there is room for. (Being through is a reset here.)
 */
static void test_known_all_get_through(struct rendezvous *rdv)
{
	static const unsigned want = 513;
	unsigned through = 0, rounds = 0, waiting[513], left = want;
	uint64_t now_ns = SECOND_NS;

	door_open(rdv);
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
	door_close();
}

/* ---- READY -------------------------------------------------------------------------------------- */

/* As much of a preamble as is heard: 1, all of it. */
static int say_what_is_heard(struct preamble *p, unsigned comer, uint64_t now_ns)
{
	struct fake_lane *lane = &pairs[comer].lanes[0];
	int rc = 0;

	for (unsigned i = 0; i < 10000 && !rc; i++) {
		rc = preamble_advance(p, &pairs[comer].lanes[1].lane);
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

static struct comm *accepted(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct comm *comm;

	CHECK_EQ(rendezvous_accept(rdv, listen, &comm), 0);
	return comm;
}

/* The comms that wait to be accepted, all dropped. */
static unsigned accept_all(struct rendezvous *rdv, struct listen_comm *listen, uint64_t last_id)
{
	struct comm *comm;
	unsigned count = 0;

	while ((comm = accepted(rdv, listen))) {
		if (!count++)
			CHECK_EQ(comm->comm_id, last_id);
		registry_remove(comm);
		comm_close(comm, true);
	}
	return count;
}

/* A first lane is a comm when READY has arrived, and not before. */
static void test_ready_must_arrive(struct rendezvous *rdv, struct listen_comm *listen)
{
	for (unsigned lanes = 1; lanes <= 2; lanes++) {
		unsigned first, again;

		door_open(rdv);
		first = say_all(1, 77, lanes, SECOND_NS);
		guests_look(guests, 2 * SECOND_NS);
		CHECK_EQ(accept_all(rdv, listen, 77), 0);
		/* It breaks. The connector tries again, with its comm id. */
		fake_reset(&pairs[first].lanes[0]);
		notify(first, 2 * SECOND_NS);
		CHECK(!is_here(first));
		CHECK_EQ(guests->known, 0);
		again = say_all(1, 77, lanes, 3 * SECOND_NS);
		CHECK_EQ(accept_all(rdv, listen, 77), 0);
		pairs[again].lanes[0].acked = pairs[again].lanes[0].out->written - 1;
		notify(again, 3 * SECOND_NS);
		CHECK_EQ(accept_all(rdv, listen, 77), 0);
		acknowledge(again);
		notify(again, 3 * SECOND_NS);
		CHECK_EQ(guests->count, 0);
		CHECK_EQ(accept_all(rdv, listen, 77), 1);
		door_close();
	}
}

/* It arrived, and then the lane ended: somebody has that comm, and is told what became of it. */
static void test_ready_arrives_last(struct rendezvous *rdv, struct listen_comm *listen)
{
	unsigned peer;

	door_open(rdv);
	peer = say_all(1, 78, 1, SECOND_NS);
	acknowledge(peer);
	fake_reset(&pairs[peer].lanes[0]);
	notify(peer, SECOND_NS);
	CHECK_EQ(accept_all(rdv, listen, 78), 1);
	door_close();
}

/* Nothing tells, for as long as a connector tries. Meanwhile a crowd pushes it out only if it is silent for a second. */
static void test_ready_stays_unknown(struct rendezvous *rdv, struct listen_comm *listen)
{
	uint64_t end_ns = SECOND_NS + plugin_config()->connect_timeout_ns;
	unsigned peer;

	door_open(rdv);
	peer = say_all(1, 79, 1, SECOND_NS);
	for (unsigned i = 0; i < 300; i++)
		say_hello(come(1, 2 * SECOND_NS - 1), 2 * SECOND_NS - 1);
	for (unsigned i = 0; i < 200; i++)
		(void)come(1, 2 * SECOND_NS + i);
	CHECK(is_here(peer));
	CHECK_EQ(guests->known, GUESTS_KNOWN_MAX);
	guests_look(guests, end_ns - 1);
	CHECK(is_here(peer));
	guests_look(guests, end_ns);
	CHECK(!is_here(peer));
	CHECK_EQ(accept_all(rdv, listen, 79), 0);
	door_close();
	/* A crowd from elsewhere pushes out its own, one from its address the silent one first. */
	door_open(rdv);
	peer = say_all(1, 79, 1, SECOND_NS);
	for (unsigned i = 0; i < 300; i++)
		say_hello(come(2, 2 * SECOND_NS + i), 2 * SECOND_NS + i);
	CHECK(is_here(peer));
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		say_hello(come(1, 2 * SECOND_NS + i), 2 * SECOND_NS + i);
	CHECK(!is_here(peer));
	CHECK_EQ(accept_all(rdv, listen, 79), 0);
	door_close();
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
		prompt.rc = preamble_advance(&prompt.preamble, prompt.lane);
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
			prompt.rc = preamble_advance(&prompt.preamble, prompt.lane);
	}
	lane->ops = prompt.ops;
	return comer;
}

/* The door is full, and who comes has to go: before CHALLENGE, not behind READY. */
static void test_nobody_goes_behind_ready(struct rendezvous *rdv, struct listen_comm *listen)
{
	unsigned peer;

	door_open(rdv);
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		say_hello(come(1, SECOND_NS + i), SECOND_NS + i);
	CHECK_EQ(guests->known, GUESTS_KNOWN_MAX);
	peer = come_promptly(1, 94, 2 * SECOND_NS);
	CHECK(!is_here(peer));
	CHECK(prompt.preamble.step <= PREAMBLE_READ_CHALLENGE);
	/* One who may stay does. */
	peer = come_promptly(2, 95, 2 * SECOND_NS);
	CHECK(is_here(peer));
	CHECK_EQ(prompt.preamble.step, PREAMBLE_DONE);
	for (unsigned i = 0; i < GUESTS_KNOWN_MAX; i++)
		say_hello(come(2, 2 * SECOND_NS + i), 2 * SECOND_NS + i);
	CHECK(is_here(peer));
	acknowledge(peer);
	notify(peer, 2 * SECOND_NS + 300);
	CHECK_EQ(accept_all(rdv, listen, 95), 1);
	door_close();
}

/* Who knows a handle and never acknowledges READY fills neither its listen comm nor the door. */
static void test_ready_and_silent(struct rendezvous *rdv, struct listen_comm *listen)
{
	unsigned silent[LISTEN_PEERS_MAX], honest;

	door_open(rdv);
	warning[0] = '\0';
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++)
		silent[i] = say_all(1, 1000 + i, 2, SECOND_NS + i);
	CHECK_EQ(warning[0], '\0');
	say_in_vain(2, 200, SECOND_NS + 100);
	CHECK(strstr(warning, "turned away 10.0.0.2") != NULL);
	warning[0] = '\0';
	say_in_vain(1, 201, SECOND_NS + 100);
	CHECK_EQ(warning[0], '\0'); /* it was said */
	CHECK_EQ(guests->known, LISTEN_PEERS_MAX);
	/* It comes again when the first of them have been silent for a second. */
	honest = say_all(2, 200, 2, 2 * SECOND_NS + 1);
	CHECK(!is_here(silent[0]) && is_here(silent[1]));
	CHECK_EQ(guests->known, LISTEN_PEERS_MAX);
	/* And isn't pushed out by those that come now, who push out each other. */
	for (unsigned i = 0; i < LISTEN_PEERS_MAX - 1; i++)
		(void)say_all(1, 2000 + i, 2, 2 * SECOND_NS + 100 + i);
	say_in_vain(1, 2999, 2 * SECOND_NS + 200);
	CHECK(is_here(honest));
	acknowledge(honest);
	notify(honest, 2 * SECOND_NS + 300);
	CHECK_EQ(accept_all(rdv, listen, 200), 1);
	door_close();
	listen->full_said = false;
}

/* A turn whose clock was read before that of the last one: nobody has been silent for a second by it. */
static void test_an_older_clock(struct rendezvous *rdv, struct listen_comm *listen)
{
	unsigned peers[LISTEN_PEERS_MAX];

	door_open(rdv);
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++)
		peers[i] = say_all(1, 1000 + i, 2, SECOND_NS);
	say_in_vain(2, 205, SECOND_NS - 1);
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++)
		CHECK(is_here(peers[i]));
	/* Nor is its READY looked for at the end only. */
	notify(peers[0], SECOND_NS - 1);
	acknowledge(peers[0]);
	guests_look(guests, 2 * SECOND_NS);
	CHECK_EQ(accept_all(rdv, listen, 1000), 1);
	door_close();
	listen->full_said = false;
}

/* So many listen comms that nobody closes, to be silent at. */
static void listen_at(struct rendezvous *rdv, struct listen_comm others[], unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		others[i] = (struct listen_comm){ .id = 500 + i };
		rendezvous_add(rdv, &others[i]);
	}
}

/* Who knows several handles leaves room for who knows another: the more have it, the less is a further one's. */
static void test_ready_and_silent_by_several(struct rendezvous *rdv, struct listen_comm *listen)
{
	static const unsigned share[] = { 64, 64, 32, 16, 8, 4, 2, 1, 1 };
	enum { HANDLES = sizeof(share) / sizeof(share[0]) };
	struct listen_comm others[HANDLES];
	unsigned first = 0, peer, crowd, came = 0;
	uint64_t now_ns = SECOND_NS;

	door_open(rdv);
	listen_at(rdv, others, HANDLES);
	for (unsigned h = 0; h < HANDLES; h++) {
		for (unsigned i = 0; i < share[h]; i++) {
			peer = say_all_to(others[h].id, 1000 + came, 4000 + came, 2, now_ns++);
			first = came++ ? first : peer;
		}
		if (h == HANDLES - 1)
			break;
		/* Three, and the rest of the door is others who are about to say it. */
		crowd = comers;
		for (unsigned i = 0; h == 2 && i < GUESTS_KNOWN_MAX; i++)
			say_hello(come(1 + i % 5, now_ns), now_ns);
		CHECK_EQ(guests->known, h == 2 ? GUESTS_KNOWN_MAX : came);
		/* Who knows another handle is in at once, the moment that he comes. */
		peer = say_all(9, 203 + h, 2, now_ns);
		CHECK(is_here(peer));
		acknowledge(peer);
		notify(peer, now_ns);
		CHECK_EQ(accept_all(rdv, listen, 203 + h), 1);
		for (; crowd < comers; crowd++) {
			if (!is_here(crowd))
				continue;
			fake_reset(&pairs[crowd].lanes[0]);
			notify(crowd, now_ns);
		}
	}
	/* All of the door, by nine handles: for a second, not longer. */
	CHECK_EQ(came, GUESTS_KNOWN_MAX);
	peer = come(9, 2 * SECOND_NS - 1);
	say_hello(peer, 2 * SECOND_NS - 1);
	CHECK(!is_here(peer) && is_here(first));
	peer = say_all(9, 303, 2, 2 * SECOND_NS);
	CHECK(is_here(peer) && !is_here(first));
	CHECK_EQ(guests->known, GUESTS_KNOWN_MAX);
	door_close();
	for (unsigned i = 0; i < HANDLES; i++)
		rendezvous_remove(rdv, &others[i]);
}

/* Nor does who acknowledges it: so many comms wait to be accepted, and more may come when one was. */
static void test_nobody_accepts(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct comm *comm;
	unsigned peer;

	door_open(rdv);
	warning[0] = '\0';
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++) {
		peer = say_all(1, 3000 + i, 2, SECOND_NS + i);
		acknowledge(peer);
		notify(peer, SECOND_NS + i);
	}
	CHECK_EQ(guests->count, 0);
	say_in_vain(2, 202, SECOND_NS + 100);
	CHECK(strstr(warning, "turned away 10.0.0.2") != NULL);
	comm = accepted(rdv, listen);
	CHECK(comm && comm->comm_id == 3000);
	registry_remove(comm);
	comm_close(comm, true);
	peer = say_all(2, 202, 2, SECOND_NS + 200);
	acknowledge(peer);
	notify(peer, SECOND_NS + 200);
	CHECK_EQ(accept_all(rdv, listen, 3001), LISTEN_PEERS_MAX);
	CHECK_EQ(listen->count, 0);
	/* Nor who comes with one comm id again and again. */
	for (unsigned i = 0; i < LISTEN_PEERS_MAX; i++) {
		peer = say_all(1, 204, 2, 2 * SECOND_NS + i);
		acknowledge(peer);
		notify(peer, 2 * SECOND_NS + i);
	}
	say_in_vain(1, 204, 2 * SECOND_NS + 100);
	CHECK_EQ(accept_all(rdv, listen, 204), 1);
	CHECK_EQ(listen->count, 0);
	door_close();
	listen->full_said = false;
}

/* The first attempt is a comm that nobody has been given yet, and its connector comes again: there is one comm. */
static void test_a_second_attempt(struct rendezvous *rdv, struct listen_comm *listen)
{
	for (unsigned lanes = 1; lanes <= 2; lanes++) {
		unsigned first, again;

		door_open(rdv);
		first = say_all(1, 80, lanes, SECOND_NS);
		acknowledge(first);
		notify(first, SECOND_NS);
		again = say_all(1, 80, lanes, 2 * SECOND_NS);
		acknowledge(again);
		notify(again, 2 * SECOND_NS);
		CHECK_EQ(accept_all(rdv, listen, 80), 1);
		CHECK(!is_here(first) && !is_here(again));
		door_close();
	}
}

/* The first attempt broke, and nobody told us: its connector is here again, and has the comm. So have its further lanes. */
static void test_a_first_attempt_lingers(struct rendezvous *rdv, struct listen_comm *listen)
{
	for (unsigned lanes = 1; lanes <= 2; lanes++) {
		uint8_t keys[2][PREAMBLE_KEY_BYTES];
		unsigned first, again;
		struct comm *comm;

		door_open(rdv);
		first = say_all(1, 81, lanes, SECOND_NS);
		CHECK_EQ(registry_key(81, keys[0]), lanes > 1);
		again = say_all(1, 81, lanes, 2 * SECOND_NS);
		CHECK_EQ(registry_key(81, keys[1]), lanes > 1);
		if (lanes > 1) /* those of the last, by whose key they prove themselves */
			CHECK(memcmp(keys[0], keys[1], sizeof(keys[0])));
		acknowledge(again);
		notify(again, 2 * SECOND_NS);
		comm = accepted(rdv, listen);
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
		door_close();
	}
}

/* A further lane is quicker than the acknowledgement of its comm's READY. */
static void test_a_further_lane_waits(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct comm *comm;
	unsigned first;

	door_open(rdv);
	first = say_all(1, 91, 2, SECOND_NS);
	(void)say_further(1, 91, SECOND_NS);
	CHECK_EQ(guests->count, 2);
	CHECK(guests->next_ns < SECOND_NS + 1000000); /* it is looked at again soon */
	guests_look(guests, guests->next_ns);
	CHECK_EQ(guests->count, 2);
	acknowledge(first);
	guests_look(guests, 2 * SECOND_NS); /* the first lane first, as it came */
	CHECK_EQ(guests->count, 0);
	comm = accepted(rdv, listen);
	CHECK(comm != NULL);
	CHECK_EQ(comm->comm_id, 91);
	CHECK_EQ(comm->scheduler.live, 3);
	registry_remove(comm);
	comm_close(comm, true);
	door_close();
}

/* There will be no comm: the first lane breaks. Who comes in its place has another key. */
static void test_a_further_lane_of_none(struct rendezvous *rdv, struct listen_comm *listen)
{
	uint8_t key[PREAMBLE_KEY_BYTES];
	unsigned first, further, again;

	door_open(rdv);
	first = say_all(1, 92, 2, SECOND_NS);
	further = say_further(1, 92, SECOND_NS);
	again = say_all(1, 92, 2, SECOND_NS + 1); /* before we heard of that */
	fake_reset(&pairs[first].lanes[0]);
	notify(first, SECOND_NS + 2);
	CHECK(!is_here(first));
	acknowledge(again);
	notify(again, SECOND_NS + 3);
	CHECK(is_here(further));
	guests_look(guests, guests->next_ns);
	CHECK(!is_here(further)); /* it proved that it belongs to the other */
	CHECK_EQ(accept_all(rdv, listen, 92), 1);
	CHECK(!registry_key(92, key));
	/* Nobody comes in its place. */
	first = say_all(1, 93, 2, SECOND_NS);
	further = say_further(1, 93, SECOND_NS);
	fake_reset(&pairs[first].lanes[0]);
	notify(first, SECOND_NS + 1);
	CHECK(is_here(further));
	guests_look(guests, guests->next_ns);
	CHECK(!is_here(further));
	CHECK_EQ(guests->count, 0);
	CHECK_EQ(accept_all(rdv, listen, 93), 0);
	door_close();
}

/*
 * A peer has READY, and then there is no memory for its comm: it will not come again, so accept says it, once, and goes on
 * to accept others.
 */
static void test_no_memory_behind_ready(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct comm *comm;

	for (enum shortage of = SHORT_IN_SEAL; of <= SHORT_IN_ADD; of++) {
		unsigned before, unlucky, after;

		door_open(rdv);
		before = say_all(1, 101, 2, SECOND_NS);
		unlucky = say_all(2, 102, 2, SECOND_NS);
		acknowledge(before);
		notify(before, SECOND_NS);
		warning[0] = '\0';
		shortage = of;
		acknowledge(unlucky);
		notify(unlucky, SECOND_NS);
		CHECK_EQ(shortage, SHORT_OF_NOTHING);
		CHECK(!is_here(unlucky));
		CHECK(strstr(warning, "cannot accept 10.0.0.2") != NULL);
		CHECK(strstr(warning, "out of memory") != NULL);
		after = say_all(3, 103, 2, SECOND_NS);
		/* What is there comes first. */
		comm = accepted(rdv, listen);
		CHECK(comm && comm->comm_id == 101);
		registry_remove(comm);
		comm_close(comm, true);
		CHECK_EQ(rendezvous_accept(rdv, listen, &comm), -ENOMEM);
		CHECK(!comm);
		CHECK_EQ(accept_all(rdv, listen, 0), 0);
		acknowledge(after);
		notify(after, SECOND_NS);
		CHECK_EQ(accept_all(rdv, listen, 103), 1);
		door_close();
	}
}

static void keep_warning(enum plugin_log_level level, const char *text)
{
	if (level == PLUGIN_WARN)
		snprintf(warning, sizeof(warning), "%s", text);
}

int main(void)
{
	struct listen_comm listen = { .id = LISTEN_ID };
	struct rendezvous *rdv;
	struct plugin_ctx *ctx;
	bool opening;

	env_log = keep_warning;
	CHECK_EQ(plugin_init(&ctx, 1, -1), 0);
	CHECK_EQ(ctx_rendezvous(0, &rdv, &opening), 0);
	CHECK(!opening);
	listen.ctx = ctx;
	rendezvous_add(rdv, &listen);
	test_one_attacker(rdv);
	test_many_attackers(rdv);
	test_many_hosts(rdv);
	test_time(rdv);
	test_babble(rdv);
	test_known(rdv);
	test_known_all_get_through(rdv);
	test_ready_must_arrive(rdv, &listen);
	test_ready_arrives_last(rdv, &listen);
	test_ready_stays_unknown(rdv, &listen);
	test_nobody_goes_behind_ready(rdv, &listen);
	test_ready_and_silent(rdv, &listen);
	test_an_older_clock(rdv, &listen);
	test_ready_and_silent_by_several(rdv, &listen);
	test_nobody_accepts(rdv, &listen);
	test_a_second_attempt(rdv, &listen);
	test_a_first_attempt_lingers(rdv, &listen);
	test_a_further_lane_waits(rdv, &listen);
	test_a_further_lane_of_none(rdv, &listen);
	test_no_memory_behind_ready(rdv, &listen);
	rendezvous_remove(rdv, &listen);
	CHECK_EQ(plugin_finalize(ctx), 0);
	return check_done();
}
