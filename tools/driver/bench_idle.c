/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_idle.c - harp-bench idle: the processor time of ranks that wait, connections open.
 *
 * Asleep: no operation; NCCL's threads call nothing, so all of it is the plugin's (and the driver's main
 * thread, which sleeps). Waiting: rank 0 comes late to an all-reduce; the progress threads of the others
 * poll, as NCCL's do, and what the rest of the process takes meanwhile is the plugin's.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define IDLE_COUNT 1024u /* float32, in each all-reduce */

/* A signal ends it at once: the main thread gets those that end the run. */
static void idle_sleep(double seconds)
{
	struct timespec left = { .tv_sec = (time_t)seconds,
				 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

	nanosleep(&left, NULL);
}

static int idle_allreduce(struct bench *bench, float *values)
{
	int ranks = bench->options.ranks, sum = ranks * (ranks + 1) / 2, rc;

	for (unsigned i = 0; i < IDLE_COUNT; i++)
		values[i] = (float)(bench->options.rank + 1);
	rc = ncclplay_allreduce_f32(bench->play, values, values, IDLE_COUNT);
	for (unsigned i = 0; !rc && i < IDLE_COUNT; i++)
		bench->wrong += values[i] != (float)sum;
	return rc;
}

static void idle_begin(struct bench_wait *wait)
{
	wait->time_ns = play_now_ns();
	wait->cpu_ns = play_process_cpu_ns();
	wait->wakes = play_process_wakes();
}

static void idle_end(struct bench_wait *wait)
{
	wait->wakes = play_process_wakes() - wait->wakes;
	wait->cpu_ns = play_process_cpu_ns() - wait->cpu_ns;
	wait->time_ns = play_now_ns() - wait->time_ns;
}

static int idle_asleep(struct bench *bench, struct bench_wait *mine)
{
	int rc = ncclplay_barrier(bench->play);

	idle_begin(mine);
	if (!rc)
		idle_sleep(bench->seconds);
	idle_end(mine);
	return rc;
}

/* Rank 0 does not wait: it is late. */
static int idle_waiting(struct bench *bench, struct bench_wait *mine, float *values)
{
	struct ncclplay_stats before, after;
	int rc = ncclplay_barrier(bench->play);

	if (rc)
		return rc;
	ncclplay_stats(bench->play, &before);
	idle_begin(mine);
	if (bench->options.rank == 0)
		idle_sleep(bench->seconds);
	rc = idle_allreduce(bench, values);
	idle_end(mine);
	ncclplay_stats(bench->play, &after);
	mine->polling_cpu_ns = after.progress_cpu_ns - before.progress_cpu_ns;
	return rc;
}

int bench_idle(struct bench *bench)
{
	struct bench_idle mine, all[NCCLPLAY_RANKS_MAX];
	float *values = calloc(IDLE_COUNT, sizeof(*values));
	int rc = values ? 0 : NCCLPLAY_PEER;

	memset(&mine, 0, sizeof(mine));
	if (!rc)
		rc = idle_allreduce(bench, values); /* every connection has been used */
	if (!rc)
		rc = idle_asleep(bench, &mine.asleep);
	if (!rc)
		rc = idle_waiting(bench, &mine.waiting, values);
	if (!rc)
		rc = ncclplay_gather(bench->play, &mine, sizeof(mine), all);
	for (int r = 0; !rc && bench->options.rank == 0 && r < bench->options.ranks; r++)
		report_idle(bench, r, &all[r]);
	if (!bench->play->stuck)
		free(values);
	return rc;
}
