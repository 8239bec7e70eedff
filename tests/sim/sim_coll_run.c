/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_coll_run.c - runs scenarios of collectives (coll_sim.h). Commands: runner.h.
 *
 * Every rank computes its expected results. If a rank is cut off for good, absent or mismatched,
 * the call must fail on all other ranks within the timeout. The error names an absent or mismatched
 * rank.
 */
#include "coll_sim.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp_coll.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)
#define KEYS_MAX 256u
#define TAG 7

static struct coll_scenario scenario;
static uint64_t failures; /* failed calls of all runs */

struct pending {
	struct harp_coll_request *request;
	const struct cln_call *call;
	void *in, *out;
};

struct rank {
	unsigned rank, group, call;
	struct harp_coll *coll;
	struct pending pending[CLN_CALLS_MAX];
	unsigned pending_count;
	bool has_failed, has_ended;
	char error[HARP_COLL_ERROR_BYTES];
};
static struct rank ranks[CLN_RANKS_MAX];
static bool is_cut;

/* ---- the store ------------------------------------------------------------------------------- */

static struct {
	struct {
		char key[200];
		void *value;
		size_t bytes;
	} entries[KEYS_MAX];
	unsigned count;
} store;

static int store_find(const char *key)
{
	for (unsigned i = 0; i < store.count; i++)
		if (!strcmp(store.entries[i].key, key))
			return (int)i;
	return -1;
}

static void store_delay(void)
{
	clock_sleep(1 + rng_u64(&sim_clock.rng) % (scenario.world.store_ns + 1));
}

static int store_set(void *arg, const char *key, const void *value, size_t bytes)
{
	int i;

	(void)arg;
	store_delay();
	i = store_find(key);
	if (i < 0) {
		if (store.count == KEYS_MAX)
			clock_fail("the store is full");
		i = (int)store.count++;
		snprintf(store.entries[i].key, sizeof(store.entries[i].key), "%s", key);
	}
	free(store.entries[i].value);
	store.entries[i].value = malloc(bytes);
	memcpy(store.entries[i].value, value, bytes);
	store.entries[i].bytes = bytes;
	return 0;
}

static int store_get(void *arg, const char *key, void *value, size_t *bytes)
{
	int i;

	(void)arg;
	store_delay();
	i = store_find(key);
	if (i < 0)
		return -ENOENT;
	if (store.entries[i].bytes > *bytes)
		return -ENOSPC;
	*bytes = store.entries[i].bytes;
	memcpy(value, store.entries[i].value, *bytes);
	return 0;
}

static int store_wait(void *arg, const char *key, int64_t timeout_ms)
{
	uint64_t until_ns = sim_clock.now_ns + (uint64_t)timeout_ms * MS;

	(void)arg;
	while (store_find(key) < 0) {
		if (sim_clock.now_ns >= until_ns)
			return -ETIMEDOUT;
		clock_sleep(100000);
	}
	return 0;
}

static void store_clear(void)
{
	for (unsigned i = 0; i < store.count; i++)
		free(store.entries[i].value);
	memset(&store, 0, sizeof(store));
}

/* ---- expected data --------------------------------------------------------------------------- */

static uint64_t blocks_in(const struct cln_call *call)
{
	return call->op == HARP_COLL_REDUCE_SCATTER || call->op == HARP_COLL_SCATTER ||
			       call->op == HARP_COLL_ALLTOALL
		       ? scenario.world.ranks
		       : 1;
}

static uint64_t blocks_out(const struct cln_call *call)
{
	return call->op == HARP_COLL_ALLGATHER || call->op == HARP_COLL_GATHER ||
			       call->op == HARP_COLL_ALLTOALL
		       ? scenario.world.ranks
		       : 1;
}

/* Element i of a rank's input. tests/coll compares all types and reductions with NumPy. */
static int32_t input(unsigned rank, const struct cln_call *call, uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + rank * 0xff51afd7ed558ccdull +
		     (uint64_t)(call - scenario.calls) * 0xc4ceb9fe1a85ec53ull;

	return (int32_t)((x ^ x >> 29) % 2001) - 1000;
}

static int32_t reduced(const struct cln_call *call, uint64_t i)
{
	int32_t total = 0;

	for (unsigned r = 0; r < scenario.world.ranks; r++)
		total += input(r, call, i);
	return total;
}

/* Element i of a rank's expected output. */
static int32_t expected(unsigned me, const struct cln_call *call, uint64_t i)
{
	unsigned world = (unsigned)scenario.world.ranks, root = (unsigned)call->peer;
	uint64_t block = call->count ? i / call->count : 0;

	switch ((enum harp_coll_op)call->op) {
	case HARP_COLL_ALLREDUCE:
	case HARP_COLL_REDUCE:
		return reduced(call, i);
	case HARP_COLL_BROADCAST:
		return input(root, call, i);
	case HARP_COLL_ALLGATHER:
	case HARP_COLL_GATHER:
		return input((unsigned)block, call, i - block * call->count);
	case HARP_COLL_REDUCE_SCATTER:
		return reduced(call, me * call->count + i);
	case HARP_COLL_SCATTER:
		return input(root, call, me * call->count + i);
	case HARP_COLL_ALLTOALL:
		return input((unsigned)block, call, me * call->count + i - block * call->count);
	default: /* SEND */
		return input((me + world - root) % world, call, i);
	}
}

static bool has_output(unsigned me, const struct cln_call *call)
{
	if (call->op == HARP_COLL_REDUCE || call->op == HARP_COLL_GATHER)
		return me == call->peer;
	return call->op != HARP_COLL_BARRIER;
}

static void fill_input(unsigned me, const struct cln_call *call, int32_t *in)
{
	for (uint64_t i = 0; i < blocks_in(call) * call->count; i++)
		in[i] = input(me, call, i);
}

static void check_output(const struct rank *rank, const struct cln_call *call, const int32_t *out)
{
	uint64_t count = blocks_out(call) * call->count;

	if (!has_output(rank->rank, call))
		return;
	for (uint64_t i = 0; i < count; i++) {
		if (out[i] != expected(rank->rank, call, i))
			clock_fail("rank %u, call %u (%s): element %" PRIu64 " of %" PRIu64
				   " differs",
				   rank->rank, (unsigned)(call - scenario.calls),
				   harp_coll_op_name((enum harp_coll_op)call->op), i, count);
	}
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The event that ends the group, or NULL. */
static const struct cln_event *fatal_event(void)
{
	const struct cln_event *event = scenario.events;

	if (!scenario.event_count || event->kind == CLN_LATE ||
	    (event->kind == CLN_CUT && event->duration_ns))
		return NULL;
	return event;
}

/* Checks that the fatal event explains the failure of a call. */
static void rank_check_failure(struct rank *rank, int rc)
{
	const struct cln_event *event = fatal_event();
	char name[16];

	rank->has_failed = true;
	failures++;
	runner_trace(((uint64_t)-rc) ^ sim_clock.now_ns);
	if (!event)
		clock_fail("rank %u, call %u: failed without a reason: %s", rank->rank, rank->call,
			   rank->error);
	snprintf(name, sizeof(name), "rank %u", (unsigned)event->rank);
	if (rc != -ETIMEDOUT && rc != -ECONNRESET && rc != -EPROTO)
		clock_fail("rank %u: errno %d: %s", rank->rank, -rc, rank->error);
	/* No rank can tell which end of a silent connection is cut off. */
	if (event->kind != CLN_CUT && !strstr(rank->error, name))
		clock_fail("rank %u: the error does not name rank %u: %s", rank->rank,
			   (unsigned)event->rank, rank->error);
	if (event->kind == CLN_MISMATCH && !strstr(rank->error, "different"))
		clock_fail("rank %u: the error does not name the difference: %s", rank->rank,
			   rank->error);
}

static void pending_finish(struct rank *rank, struct pending *pending)
{
	int rc = harp_coll_wait(pending->request, -1);

	runner_trace(((uint64_t)(pending->call - scenario.calls) << 8 | rank->rank) ^
		     sim_clock.now_ns);
	if (rc && !rank->has_failed) {
		snprintf(rank->error, sizeof(rank->error), "%s",
			 harp_coll_request_error(pending->request));
		rank_check_failure(rank, rc);
	}
	if (rc == 0)
		check_output(rank, pending->call, pending->out);
	harp_coll_request_free(pending->request);
	if (pending->in != pending->out)
		free(pending->in);
	free(pending->out);
}

static void rank_wait(struct rank *rank)
{
	for (unsigned i = 0; i < rank->pending_count; i++)
		pending_finish(rank, &rank->pending[i]);
	rank->pending_count = 0;
}

static void rank_start(struct rank *rank, const struct cln_call *spec, struct harp_coll_call *call,
		       void *in, void *out)
{
	struct pending *pending = &rank->pending[rank->pending_count];
	int rc;

	*pending = (struct pending){ .call = spec, .in = in, .out = out };
	rc = harp_coll_start(rank->coll, call, &pending->request, rank->error, sizeof(rank->error));
	if (rc == 0) {
		rank->pending_count++;
		return;
	}
	if (in != out)
		free(in);
	free(out);
	rank_check_failure(rank, rc);
}

static void rank_call(struct rank *rank, const struct cln_call *spec)
{
	uint64_t in_count = blocks_in(spec) * spec->count;
	uint64_t out_count = blocks_out(spec) * spec->count;
	unsigned world = (unsigned)scenario.world.ranks;
	const struct cln_event *event = fatal_event();
	struct harp_coll_call call = { .size = sizeof(call),
				       .op = (enum harp_coll_op)spec->op,
				       .dtype = HARP_COLL_INT32,
				       .reduce = HARP_COLL_SUM,
				       .peer = (int)spec->peer,
				       .count = spec->count };
	/* Large enough for a mismatched call, and allocated per call, so that ASan reports a write
	 * behind its end. */
	size_t buffer_bytes = (out_count > in_count ? out_count : in_count) * 4 + 8;
	void *out = calloc(1, buffer_bytes), *in = out;
	bool can_share = in_count == out_count && spec->op != HARP_COLL_SEND;

	if (!spec->in_place || !can_share)
		in = calloc(1, buffer_bytes);
	fill_input(rank->rank, spec, in);
	call.in = in;
	call.out = out;
	if (event && event->kind == CLN_MISMATCH && event->rank == rank->rank &&
	    event->call == (uint64_t)(spec - scenario.calls))
		call.count++;
	if (spec->op == HARP_COLL_SEND) {
		struct harp_coll_call send = call;

		call.op = HARP_COLL_RECV;
		call.in = NULL;
		call.tag = send.tag = TAG;
		call.peer = (int)((rank->rank + world - spec->peer) % world);
		send.out = NULL;
		send.peer = (int)((rank->rank + spec->peer) % world);
		/* The receive keeps both buffers until rank_wait(); the send completes here. */
		rank_start(rank, spec, &call, in, out);
		if (!rank->has_failed) {
			int rc = harp_coll_run(rank->coll, &send, rank->error, sizeof(rank->error));

			if (rc)
				rank_check_failure(rank, rc);
		}
	} else {
		rank_start(rank, spec, &call, in, out);
	}
	if (!spec->overlaps || rank->has_failed)
		rank_wait(rank);
}

/* Runs the event of the call, if any. False: the rank is absent from now on. */
static bool rank_run_event(struct rank *rank)
{
	const struct cln_event *event = scenario.events;

	if (!scenario.event_count || event->call != rank->call || event->rank != rank->rank ||
	    rank->group > 0)
		return true;
	switch ((enum cln_event_kind)event->kind) {
	case CLN_LATE:
		clock_sleep(event->duration_ns);
		return true;
	case CLN_CUT:
		network_set_cut(rank->rank, true);
		is_cut = true;
		return true;
	case CLN_ABSENT:
		return false;
	default:
		return true;
	}
}

/* Task: ends the cut after its duration. */
static void end_cut(void *arg)
{
	const struct cln_event *event = arg;

	while (!is_cut && !ranks[event->rank].has_ended)
		clock_sleep(100000);
	clock_sleep(event->duration_ns);
	network_set_cut((unsigned)event->rank, false);
}

static bool rank_open(struct rank *rank)
{
	char name[32], host[16] = "";
	struct harp_coll_options options = { .size = sizeof(options),
					     .rank = (int)rank->rank,
					     .world = (int)scenario.world.ranks,
					     .name = name,
					     .store = { .size = sizeof(options.store),
							.set = store_set,
							.get = store_get,
							.wait = store_wait },
					     .device = (int)rank->rank,
					     .timeout_ms = (int64_t)scenario.world.timeout_ms,
					     .host = host };

	snprintf(name, sizeof(name), "sim-%u", rank->group);
	if (scenario.world.hosts)
		snprintf(host, sizeof(host), "host%u", rank->rank % (unsigned)scenario.world.hosts);
	return harp_coll_open(&options, &rank->coll, rank->error, sizeof(rank->error)) == 0;
}

static bool is_last_rank(const struct rank *rank)
{
	for (unsigned r = 0; r < scenario.world.ranks; r++)
		if (&ranks[r] != rank && !ranks[r].has_ended)
			return false;
	return true;
}

static void rank_main(void *arg)
{
	struct rank *rank = arg;
	const struct cln_event *event = fatal_event();
	bool exists = true;

	clock_sleep(rng_below(&sim_clock.rng, 1000000));
	for (rank->group = 0; rank->group < scenario.world.groups; rank->group++) {
		if (!rank_open(rank))
			clock_fail("rank %u: open: %s", rank->rank, rank->error);
		for (rank->call = 0; rank->call < scenario.call_count; rank->call++) {
			exists = rank_run_event(rank);
			if (!exists || rank->has_failed)
				break;
			rank_call(rank, &scenario.calls[rank->call]);
		}
		if (exists)
			rank_wait(rank);
		/* The others must detect the error before this rank closes. */
		while (event && event->rank == rank->rank && !is_last_rank(rank))
			clock_sleep(MS);
		if (event && event->rank != rank->rank && !rank->has_failed)
			clock_fail("rank %u: no error although rank %u is missing", rank->rank,
				   (unsigned)event->rank);
		if (!event || event->rank != rank->rank)
			rank->has_ended = rank->group + 1 == scenario.world.groups;
		harp_coll_close(rank->coll);
	}
	rank->has_ended = true;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void dump_ranks(void)
{
	for (unsigned r = 0; r < scenario.world.ranks; r++)
		printf("\nrank %u: group %u, call %u of %u%s%s %s", r, ranks[r].group,
		       ranks[r].call, scenario.call_count, ranks[r].has_ended ? ", ended" : "",
		       ranks[r].has_failed ? ", failed:" : "", ranks[r].error);
	printf("\n");
}

static bool run(const void *s, bool dump, struct runner_result *result)
{
	bool good;

	if (s != &scenario)
		memcpy(&scenario, s, sizeof(scenario));
	memset(ranks, 0, sizeof(ranks));
	is_cut = false;
	clock_start(scenario.world.seed);
	network_open(&scenario);
	for (unsigned r = 0; r < scenario.world.ranks; r++) {
		ranks[r].rank = r;
		clock_add(rank_main, &ranks[r]);
	}
	if (scenario.event_count && scenario.events[0].kind == CLN_CUT &&
	    scenario.events[0].duration_ns)
		clock_add(end_cut, &scenario.events[0]);
	good = clock_run(120 * S);
	*result = (struct runner_result){ network_bytes, sim_clock.steps, sim_clock.now_ns };
	if (!good) {
		if (dump)
			dump_ranks();
		return false;
	}
	store_clear();
	return true;
}

static struct runner coll_runner;

static void make(uint64_t seed)
{
	coll_scenario_make(&scenario, seed);
	scenario.world.plant = coll_runner.plant;
}

static bool is_small(void)
{
	return scenario.call_count == 1;
}

static struct runner coll_runner = {
	.name = "sim_coll_run",
	.prefix = "coll",
	.usage = "",
	.layout = &coll_scenario_layout,
	.scenario = &scenario,
	.plants = 1,
	.make = make,
	.run = run,
	.is_small = is_small,
};

int main(int argc, char **argv)
{
	cpu_set_t processor;
	int rc;

	/* One thread runs at a time: switching between threads is faster on one processor. */
	CPU_ZERO(&processor);
	CPU_SET((size_t)sched_getcpu(), &processor);
	sched_setaffinity(0, sizeof(processor), &processor);
	runner_begin(&coll_runner);
	rc = runner_command(argc, argv);
	if (rc == 0 && strcmp(argv[1], "--seeds") == 0)
		printf("%" PRIu64 " calls failed as expected\n", failures);
	return rc;
}
