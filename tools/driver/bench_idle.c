/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_idle.c - harp-bench idle: the CPU time of ranks that wait with open connections.
 *
 * Asleep: no operation runs, so NCCL's threads do not call the plugin, and the main thread sleeps.
 * All CPU time is the plugin's. Waiting: rank 0 joins an all-reduce late. The progress threads of
 * the other ranks poll, as NCCL's do; the CPU time of all other threads is the plugin's.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench.h"
#include "ring.h"

#define IDLE_COUNT 1024u /* float32 elements of each all-reduce */

/* Returns early on a signal. Signals that end the run go to the main thread. */
static void idle_sleep(double seconds)
{
	struct timespec left = { .tv_sec = (time_t)seconds,
				 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

	nanosleep(&left, NULL);
}

static uint64_t idle_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Number of times that threads of the process, exited ones included, have slept. */
static uint64_t idle_wakes(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return (uint64_t)used.ru_nvcsw;
}

static int idle_allreduce(struct bench *bench, struct ring_op *ring, float *values)
{
	int ranks = bench->options.ranks, sum = ranks * (ranks + 1) / 2, rc;

	for (unsigned i = 0; i < IDLE_COUNT; i++)
		values[i] = (float)(bench->options.rank + 1);
	ring_prepare(ring, bench->play, values, values, IDLE_COUNT, 1, NULL);
	rc = play_run(bench->play, &ring->op);
	for (unsigned i = 0; !rc && i < IDLE_COUNT; i++)
		bench->wrong += values[i] != (float)sum;
	return rc;
}

static void idle_begin(struct bench_wait *wait)
{
	wait->time_ns = play_now_ns();
	wait->cpu_ns = idle_cpu_ns();
	wait->wakes = idle_wakes();
}

static void idle_end(struct bench_wait *wait)
{
	wait->wakes = idle_wakes() - wait->wakes;
	wait->cpu_ns = idle_cpu_ns() - wait->cpu_ns;
	wait->time_ns = play_now_ns() - wait->time_ns;
}

static int idle_asleep(struct bench *bench, struct bench_wait *mine)
{
	int rc = play_barrier(bench->play);

	idle_begin(mine);
	if (!rc)
		idle_sleep(bench->seconds);
	idle_end(mine);
	return rc;
}

/* Rank 0 sleeps first; the other ranks wait for it in the all-reduce. */
static int idle_waiting(struct bench *bench, struct bench_wait *mine, struct ring_op *ring,
			float *values)
{
	uint64_t polled_ns = atomic_load(&bench->play->stats.cpu_ns);
	int rc = play_barrier(bench->play);

	if (rc)
		return rc;
	idle_begin(mine);
	if (bench->options.rank == 0)
		idle_sleep(bench->seconds);
	rc = idle_allreduce(bench, ring, values);
	idle_end(mine);
	mine->polling_cpu_ns = atomic_load(&bench->play->stats.cpu_ns) - polled_ns;
	return rc;
}

int bench_idle(struct bench *bench)
{
	struct bench_idle mine, all[PLAY_RANKS_MAX];
	float *values = calloc(IDLE_COUNT, sizeof(*values));
	struct ring_op *ring = malloc(sizeof(*ring));
	int rc = values && ring ? 0 : PLAY_PEER;

	memset(&mine, 0, sizeof(mine));
	if (!rc)
		rc = idle_allreduce(bench, ring, values); /* uses every connection once */
	if (!rc)
		rc = idle_asleep(bench, &mine.asleep);
	if (!rc)
		rc = idle_waiting(bench, &mine.waiting, ring, values);
	if (!rc)
		rc = play_gather(bench->play, &mine, sizeof(mine), all);
	for (int r = 0; !rc && bench->options.rank == 0 && r < bench->options.ranks; r++)
		report_idle(bench, r, &all[r]);
	if (!bench->play->stuck) {
		free(ring);
		free(values);
	}
	return rc;
}
