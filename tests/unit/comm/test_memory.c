/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.c - registered memory, over doubles of stacks that send from it, refuse it or do not
 * release it, and engines that open and close meanwhile.
 *
 * A stack always has one registration of a piece for each registration by an open sending comm.
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
#define REGISTRATIONS 200u /* more than the table's initial size */
#define FOR_EVER UINT64_MAX

struct fake {
	struct engine engine;    /* its stack is this fake */
	bool reads;              /* sends from the application's memory */
	bool refuses;            /* its NIC accepts no registration */
	unsigned pieces[PIECES]; /* registrations of each */
	uint64_t busy;           /* how often a removal fails because the NIC still reads */
	bool evicts;             /* an eviction ends that */
	unsigned evictions;
	atomic_bool closed;
};

static struct fake engines[ENGINES];
static uint8_t memory[PIECES * 100];
static uint64_t now_ns; /* each call of clock_now_ns() adds a second */
static struct {
	unsigned count;
	const struct comm *comm;
	const void *handle, *base;
	size_t bytes;
} cancels; /* calls of comm_cancel_memory(), and the last one's arguments */

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

/* ---- doubles --------------------------------------------------------------------------------- */

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
	engine->pieces[piece_of(base, bytes)]++;
	return 0;
}

int harp_stack_memory_remove(struct harp_stack *stack, const void *base, size_t bytes)
{
	struct fake *engine = engine_of(stack);
	unsigned i = piece_of(base, bytes);

	CHECK(engine->reads && !engine->closed);
	if (engine->pieces[i] == 0)
		return -ENOENT;
	if (engine->busy > 0) {
		engine->busy -= engine->busy != FOR_EVER;
		return -EBUSY;
	}
	engine->pieces[i]--;
	return 0;
}

ssize_t harp_stack_memory_evict(struct harp_stack *stack, const void *base, size_t bytes)
{
	struct fake *engine = engine_of(stack);

	CHECK(engine->pieces[piece_of(base, bytes)] > 0);
	engine->evictions++;
	if (engine->evicts)
		engine->busy = 0;
	return 0;
}

void comm_cancel_memory(struct comm *comm, const void *handle, const void *base, size_t bytes)
{
	cancels.count++;
	cancels.comm = comm;
	cancels.handle = handle;
	cancels.base = base;
	cancels.bytes = bytes;
}

/* ---- the tests ------------------------------------------------------------------------------- */

AFTER_EACH(plugin_memory_forget())

static struct comm *comm_new(enum comm_side side)
{
	struct comm *comm = calloc(1, sizeof(*comm));

	CHECK(comm);
	comm->side = side;
	return comm;
}

static void close_comm(struct comm *comm)
{
	plugin_memory_comm_closes(comm);
	CHECK_EQ(comm->registered, 0);
	free(comm);
}

static void engine_init(struct fake *engine, bool reads)
{
	memset(engine, 0, sizeof(*engine));
	engine->engine.stack = (struct harp_stack *)(void *)engine;
	engine->reads = reads;
}

static void engines_init(bool second_reads)
{
	for (unsigned i = 0; i < ENGINES; i++)
		engine_init(&engines[i], i != 1 || second_reads);
}

static void close_engine(struct fake *engine)
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
	void *send_handle, *recv_handle, *empty_handle;

	engines_init(false);
	plugin_memory_engine_open(&engines[0].engine);
	send_handle = add(sender, 0);
	recv_handle = add(receiver, 1);
	CHECK_EQ(plugin_memory_add(sender, memory, 0, &empty_handle), 0);
	CHECK_EQ(engines[0].pieces[1], 0); /* the CPU writes there, no NIC reads */
	CHECK_EQ(plugin_memory_remove(send_handle), 0);
	CHECK(cancels.count == 1 && cancels.comm == sender && cancels.handle == send_handle &&
	      cancels.base == memory && cancels.bytes == 1);
	CHECK_EQ(plugin_memory_remove(send_handle), -ENOENT); /* already removed */
	CHECK_EQ(plugin_memory_remove(memory), -ENOENT);      /* not a handle */
	CHECK_EQ(plugin_memory_remove(recv_handle), 0);
	CHECK(cancels.count == 2 && cancels.comm == receiver);
	CHECK_EQ(plugin_memory_remove(empty_handle), 0);
	CHECK_EQ(sender->registered, 0);
	close_engine(&engines[0]);
	close_comm(sender);
	close_comm(receiver);
}

TEST(memory_that_one_NIC_refuses_is_registered_with_the_others)
{
	struct comm *comm = comm_new(COMM_SEND);
	void *handle;

	engines_init(true);
	engines[1].refuses = true;
	for (unsigned i = 0; i < ENGINES; i++)
		plugin_memory_engine_open(&engines[i].engine);
	handle = add(comm, 2);
	CHECK_EQ(engines[0].pieces[2], 1);
	CHECK_EQ(engines[1].pieces[2], 0);
	CHECK_EQ(engines[2].pieces[2], 1);
	CHECK_EQ(plugin_memory_remove(handle), 0);
	for (unsigned i = 0; i < ENGINES; i++) {
		CHECK_EQ(engines[i].pieces[2], 0);
		close_engine(&engines[i]);
	}
	CHECK_EQ(env_warns, 0);
	close_comm(comm);
}

TEST(removal_waits_for_NICs_that_still_read_and_reports_one_that_never_stops)
{
	struct comm *comm = comm_new(COMM_SEND);
	void *handle;

	engines_init(true);
	for (unsigned i = 0; i < ENGINES; i++)
		plugin_memory_engine_open(&engines[i].engine);
	handle = add(comm, 3);
	engines[0].busy = FOR_EVER;
	engines[0].evicts = true;
	engines[2].busy = 5;
	CHECK_EQ(plugin_memory_remove(handle), 0);
	CHECK_EQ(engines[0].evictions, 1);
	CHECK_EQ(engines[1].evictions, 0);
	CHECK_EQ(engines[2].evictions, 3); /* two removals per eviction */
	CHECK_EQ(env_warns, 0);
	handle = add(comm, 3);
	engines[0].busy = FOR_EVER;
	engines[0].evicts = false;
	CHECK_EQ(plugin_memory_remove(handle), -EBUSY);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "an engine: deregMr: the device still reads 4 bytes"));
	CHECK_EQ(engines[0].pieces[3], 1);
	CHECK_EQ(engines[1].pieces[3], 0); /* removed from the others nevertheless */
	CHECK_EQ(engines[2].pieces[3], 0);
	env_warns = 0;
	for (unsigned i = 0; i < ENGINES; i++)
		close_engine(&engines[i]);
	close_comm(comm);
}

TEST(comms_registrations_and_engines_are_created_and_removed_in_any_order)
{
	static struct {
		void *handle;
		struct comm *comm; /* NULL: closed */
		unsigned piece;
	} registrations[REGISTRATIONS];
	struct comm *comms[COMMS] = { NULL };
	bool is_open[ENGINES] = { false };
	struct rng rng;

	engines_init(true);
	rng_seed(&rng, 1);
	for (unsigned turn = 0; turn < 5000; turn++) {
		unsigned i = rng_below(&rng, REGISTRATIONS), c = rng_below(&rng, COMMS),
			 e = rng_below(&rng, ENGINES);

		if (rng_below(&rng, 50) == 0 && comms[c]) {
			close_comm(comms[c]);
			for (unsigned r = 0; r < REGISTRATIONS; r++)
				if (registrations[r].comm == comms[c])
					registrations[r].comm = NULL;
			comms[c] = NULL;
		} else if (rng_below(&rng, 50) == 0 && is_open[e]) {
			close_engine(&engines[e]);
			is_open[e] = false;
		} else if (rng_below(&rng, 20) == 0 && !is_open[e]) {
			is_open[e] = true;
			engine_init(&engines[e], true);
			plugin_memory_engine_open(&engines[e].engine);
		} else if (registrations[i].handle) {
			CHECK_EQ(plugin_memory_remove(registrations[i].handle), 0);
			registrations[i].handle = NULL;
		} else {
			if (!comms[c])
				comms[c] = comm_new(c & 1 ? COMM_RECV : COMM_SEND);
			registrations[i].piece = rng_below(&rng, PIECES);
			registrations[i].comm = comms[c];
			registrations[i].handle = add(comms[c], registrations[i].piece);
		}
		for (unsigned p = 0; p < PIECES; p++) {
			unsigned expected = 0;

			for (unsigned r = 0; r < REGISTRATIONS; r++)
				expected += registrations[r].handle && registrations[r].comm &&
					    registrations[r].piece == p &&
					    registrations[r].comm->side == COMM_SEND;
			for (e = 0; e < ENGINES; e++)
				CHECK(!is_open[e] || engines[e].pieces[p] == expected);
		}
	}
	for (unsigned c = 0; c < COMMS; c++)
		if (comms[c])
			close_comm(comms[c]);
	for (unsigned e = 0; e < ENGINES; e++)
		if (is_open[e])
			close_engine(&engines[e]);
}

static void *close_engine_thread(void *arg)
{
	close_engine(arg);
	return NULL;
}

TEST(closing_an_engine_waits_until_its_NIC_stops_reading)
{
	for (unsigned round = 0; round < 50; round++) {
		struct comm *comm = comm_new(COMM_SEND);
		pthread_t thread;
		void *handle;

		engines_init(true);
		plugin_memory_engine_open(&engines[0].engine);
		plugin_memory_engine_open(&engines[2].engine);
		handle = add(comm, 4);
		engines[0].busy = 8;
		CHECK_EQ(pthread_create(&thread, NULL, close_engine_thread, &engines[0]), 0);
		CHECK_EQ(plugin_memory_remove(handle), 0);
		CHECK_EQ(engines[2].pieces[4], 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		close_engine(&engines[2]);
		close_comm(comm);
	}
}
