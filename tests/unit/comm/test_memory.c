/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.c - registered memory, over doubles of engines: stacks that read memory, or refuse it, or don't give it
 * back, and engines that come and go meanwhile.
 *
 * Whatever happened, a stack knows a piece as often as comms that are open and send from it have registered it.
 */
#include "comm/memory.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "base/rng.h"
#include "check.h"
#include "double_env.h"

#define ENGINES 3u
#define PIECES 5u
#define COMMS 4u
#define REGISTRATIONS 200u /* more than the table's first size */
#define FOR_EVER UINT64_MAX

struct fake {
	struct engine engine; /* its stack is this fake */
	bool reads;           /* the application's memory */
	bool refuses;         /* its NIC takes no registration */
	unsigned known[PIECES];
	uint64_t busy; /* so often it says that the NIC still reads */
	bool evicts;   /* and then it does not, once it was asked to evict */
	unsigned evictions;
	atomic_bool closed;
};

static struct fake engines[ENGINES];
static uint8_t memory[PIECES * 100];
static uint64_t now_ns; /* each look takes a second */
static struct {
	unsigned count;
	const struct comm *comm;
	const void *handle, *base;
	size_t bytes;
} withdrawn;

static unsigned piece_of(const void *base, size_t bytes)
{
	size_t at = (size_t)((const uint8_t *)base - memory);

	CHECK(at < sizeof(memory) && at % 100 == 0 && bytes == 1 + at / 100);
	return (unsigned)(at / 100);
}

static uint8_t *piece(unsigned i)
{
	return memory + (size_t)i * 100;
}

static size_t piece_bytes(unsigned i)
{
	return 1 + i;
}

/* ---- what memory.c asks ------------------------------------------------------------------------ */

uint64_t clock_now_ns(void)
{
	now_ns += 1000000000u;
	return now_ns;
}

void poller_call(struct poller *poller, void (*run)(void *arg), void *arg)
{
	run(arg);
}

const char *harp_instance_describe(const struct harp_instance *instance)
{
	return "an engine";
}

static struct fake *engine_of(const struct harp_stack *stack)
{
	return (struct fake *)(uintptr_t)stack;
}

bool harp_stack_memory_supported(const struct harp_stack *stack)
{
	return engine_of(stack)->reads;
}

int harp_stack_memory_add(struct harp_stack *stack, const void *base, size_t bytes)
{
	struct fake *engine = engine_of(stack);

	CHECK(engine->reads && !engine->closed);
	if (engine->refuses)
		return -ENOMEM;
	engine->known[piece_of(base, bytes)]++;
	return 0;
}

int harp_stack_memory_remove(struct harp_stack *stack, const void *base, size_t bytes)
{
	struct fake *engine = engine_of(stack);
	unsigned i = piece_of(base, bytes);

	CHECK(engine->reads && !engine->closed);
	if (engine->known[i] == 0)
		return -ENOENT;
	if (engine->busy > 0) {
		engine->busy -= engine->busy != FOR_EVER;
		return -EBUSY;
	}
	engine->known[i]--;
	return 0;
}

ssize_t harp_stack_memory_evict(struct harp_stack *stack, const void *base, size_t bytes)
{
	struct fake *engine = engine_of(stack);

	CHECK(engine->known[piece_of(base, bytes)] > 0);
	engine->evictions++;
	if (engine->evicts)
		engine->busy = 0;
	return 0;
}

void comm_cancel_memory(struct comm *comm, const void *handle, const void *base, size_t bytes)
{
	withdrawn.count++;
	withdrawn.comm = comm;
	withdrawn.handle = handle;
	withdrawn.base = base;
	withdrawn.bytes = bytes;
}

/* ---- the tests --------------------------------------------------------------------------------- */

AFTER_EACH(plugin_memory_forget())
static struct comm *comm_new(enum comm_side side)
{
	struct comm *comm = calloc(1, sizeof(*comm));

	CHECK(comm);
	comm->side = side;
	return comm;
}

static void comm_closes(struct comm *comm)
{
	plugin_memory_comm_closes(comm);
	CHECK_EQ(comm->registered, 0);
	free(comm);
}

static void engine_begin(struct fake *engine, bool reads)
{
	memset(engine, 0, sizeof(*engine));
	engine->engine.stack = (struct harp_stack *)(void *)engine;
	engine->reads = reads;
}

static void engines_begin(bool second_reads)
{
	for (unsigned i = 0; i < ENGINES; i++)
		engine_begin(&engines[i], i != 1 || second_reads);
}

static void engine_leaves(struct fake *engine)
{
	plugin_memory_engine_close(&engine->engine);
	engine->closed = true;
}

static void *add(struct comm *comm, unsigned i)
{
	void *handle = NULL;

	CHECK_EQ(plugin_memory_add(comm, piece(i), piece_bytes(i), &handle), 0);
	CHECK(handle);
	return handle;
}

TEST(the_requests_of_removed_memory_are_canceled)
{
	struct comm *sender = comm_new(COMM_SEND), *receiver = comm_new(COMM_RECV);
	void *of_sender, *of_receiver, *nothing;

	engines_begin(false);
	plugin_memory_engine_open(&engines[0].engine);
	of_sender = add(sender, 0);
	of_receiver = add(receiver, 1);
	CHECK_EQ(plugin_memory_add(sender, memory, 0, &nothing), 0);
	CHECK_EQ(engines[0].known[1], 0); /* the processor writes there, no NIC */
	CHECK_EQ(plugin_memory_remove(of_sender), 0);
	CHECK(withdrawn.count == 1 && withdrawn.comm == sender && withdrawn.handle == of_sender &&
	      withdrawn.base == memory && withdrawn.bytes == 1);
	CHECK_EQ(plugin_memory_remove(of_sender), -ENOENT); /* twice */
	CHECK_EQ(plugin_memory_remove(memory), -ENOENT);    /* never given */
	CHECK_EQ(plugin_memory_remove(of_receiver), 0);
	CHECK(withdrawn.count == 2 && withdrawn.comm == receiver);
	CHECK_EQ(plugin_memory_remove(nothing), 0);
	CHECK_EQ(sender->registered, 0);
	engine_leaves(&engines[0]);
	comm_closes(sender);
	comm_closes(receiver);
}

TEST(memory_that_a_nic_refuses_is_copied_and_can_be_taken_back)
{
	struct comm *comm = comm_new(COMM_SEND);
	void *handle;

	engines_begin(true);
	engines[1].refuses = true;
	for (unsigned i = 0; i < ENGINES; i++)
		plugin_memory_engine_open(&engines[i].engine);
	handle = add(comm, 2);
	CHECK_EQ(engines[0].known[2], 1);
	CHECK_EQ(engines[1].known[2], 0);
	CHECK_EQ(engines[2].known[2], 1);
	CHECK_EQ(plugin_memory_remove(handle), 0);
	for (unsigned i = 0; i < ENGINES; i++) {
		CHECK_EQ(engines[i].known[2], 0);
		engine_leaves(&engines[i]);
	}
	CHECK_EQ(env_warns, 0);
	comm_closes(comm);
}

TEST(a_nic_that_still_reads_memory_is_waited_for_and_reported)
{
	struct comm *comm = comm_new(COMM_SEND);
	void *handle;

	engines_begin(true);
	for (unsigned i = 0; i < ENGINES; i++)
		plugin_memory_engine_open(&engines[i].engine);
	handle = add(comm, 3);
	engines[0].busy = FOR_EVER;
	engines[0].evicts = true;
	engines[2].busy = 5;
	CHECK_EQ(plugin_memory_remove(handle), 0);
	CHECK_EQ(engines[0].evictions, 1);
	CHECK_EQ(engines[1].evictions, 0);
	CHECK_EQ(engines[2].evictions, 3); /* two questions a try */
	CHECK_EQ(env_warns, 0);
	handle = add(comm, 3);
	engines[0].busy = FOR_EVER;
	engines[0].evicts = false;
	CHECK_EQ(plugin_memory_remove(handle), -EBUSY);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "an engine: deregMr: the device still reads 4 bytes"));
	CHECK_EQ(engines[0].known[3], 1);
	CHECK_EQ(engines[1].known[3], 0); /* the others were asked none the less */
	CHECK_EQ(engines[2].known[3], 0);
	env_warns = 0;
	for (unsigned i = 0; i < ENGINES; i++)
		engine_leaves(&engines[i]);
	comm_closes(comm);
}

TEST(comms_registrations_and_engines_come_and_go_in_any_order)
{
	static struct {
		void *handle;
		struct comm *comm; /* NULL: closed */
		unsigned piece;
	} buffered[REGISTRATIONS];
	struct comm *comms[COMMS] = { NULL };
	bool there[ENGINES] = { false };
	struct rng rng;

	engines_begin(true);
	rng_seed(&rng, 1);
	for (unsigned turn = 0; turn < 5000; turn++) {
		unsigned i = rng_below(&rng, REGISTRATIONS), c = rng_below(&rng, COMMS),
			 e = rng_below(&rng, ENGINES);

		if (rng_below(&rng, 50) == 0 && comms[c]) {
			comm_closes(comms[c]);
			for (unsigned r = 0; r < REGISTRATIONS; r++)
				if (buffered[r].comm == comms[c])
					buffered[r].comm = NULL;
			comms[c] = NULL;
		} else if (rng_below(&rng, 50) == 0 && there[e]) {
			engine_leaves(&engines[e]);
			there[e] = false;
		} else if (rng_below(&rng, 20) == 0 && !there[e]) {
			there[e] = true;
			engine_begin(&engines[e], true);
			plugin_memory_engine_open(&engines[e].engine);
		} else if (buffered[i].handle) {
			CHECK_EQ(plugin_memory_remove(buffered[i].handle), 0);
			buffered[i].handle = NULL;
		} else {
			if (!comms[c])
				comms[c] = comm_new(c & 1 ? COMM_RECV : COMM_SEND);
			buffered[i].piece = rng_below(&rng, PIECES);
			buffered[i].comm = comms[c];
			buffered[i].handle = add(comms[c], buffered[i].piece);
		}
		for (unsigned p = 0; p < PIECES; p++) {
			unsigned wanted = 0;

			for (unsigned r = 0; r < REGISTRATIONS; r++)
				wanted += buffered[r].handle && buffered[r].comm &&
					  buffered[r].piece == p &&
					  buffered[r].comm->side == COMM_SEND;
			for (e = 0; e < ENGINES; e++)
				CHECK(!there[e] || engines[e].known[p] == wanted);
		}
	}
	for (unsigned c = 0; c < COMMS; c++)
		if (comms[c])
			comm_closes(comms[c]);
	for (unsigned e = 0; e < ENGINES; e++)
		if (there[e])
			engine_leaves(&engines[e]);
}

static void *leaving(void *arg)
{
	engine_leaves(arg);
	return NULL;
}

TEST(an_engine_that_closes_is_asked_until_it_has_let_go)
{
	for (unsigned round = 0; round < 50; round++) {
		struct comm *comm = comm_new(COMM_SEND);
		pthread_t thread;
		void *handle;

		engines_begin(true);
		plugin_memory_engine_open(&engines[0].engine);
		plugin_memory_engine_open(&engines[2].engine);
		handle = add(comm, 4);
		engines[0].busy = 8;
		CHECK_EQ(pthread_create(&thread, NULL, leaving, &engines[0]), 0);
		CHECK_EQ(plugin_memory_remove(handle), 0);
		CHECK_EQ(engines[2].known[4], 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		engine_leaves(&engines[2]);
		comm_closes(comm);
	}
}
