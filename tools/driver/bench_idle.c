/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_idle.c - harp-bench idle: the processor time of ranks that wait, connections open.
 *
 * Asleep: no operation; NCCL's threads call nothing, so all of it is the plugin's (and the driver's main
 * thread, which sleeps). Waiting: rank 0 comes late to an all-reduce; the progress threads of the others
 * poll, as NCCL's do, and what the rest of the process takes meanwhile is the plugin's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define IDLE_COUNT 1024u /* float32, in each all-reduce */

/* Rank 0 does not wait: it is late. */
struct idle_rank {
	uint64_t asleep_ns, asleep_cpu_ns;
	uint64_t waiting_ns, waiting_cpu_ns, polling_cpu_ns;
};

static void idle_sleep(double seconds)
{
	struct timespec left = { .tv_sec = (time_t)seconds,
				 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
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

static int idle_asleep(struct bench *bench, struct idle_rank *mine)
{
	int rc = ncclplay_barrier(bench->play);

	mine->asleep_ns = play_now_ns();
	mine->asleep_cpu_ns = play_process_cpu_ns();
	if (!rc)
		idle_sleep(bench->seconds);
	mine->asleep_cpu_ns = play_process_cpu_ns() - mine->asleep_cpu_ns;
	mine->asleep_ns = play_now_ns() - mine->asleep_ns;
	return rc;
}

static int idle_waiting(struct bench *bench, struct idle_rank *mine, float *values)
{
	struct ncclplay_stats before, after;
	int rc = ncclplay_barrier(bench->play);

	if (rc)
		return rc;
	ncclplay_stats(bench->play, &before);
	mine->waiting_ns = play_now_ns();
	if (bench->options.rank == 0)
		idle_sleep(bench->seconds);
	rc = idle_allreduce(bench, values);
	mine->waiting_ns = play_now_ns() - mine->waiting_ns;
	ncclplay_stats(bench->play, &after);
	mine->polling_cpu_ns = after.progress_cpu_ns - before.progress_cpu_ns;
	mine->waiting_cpu_ns = after.process_cpu_ns - before.process_cpu_ns - mine->polling_cpu_ns;
	return rc;
}

int bench_idle(struct bench *bench)
{
	struct idle_rank mine, all[NCCLPLAY_RANKS_MAX];
	float *values = calloc(IDLE_COUNT, sizeof(*values));
	int rc = values ? 0 : NCCLPLAY_PEER;

	memset(&mine, 0, sizeof(mine));
	if (!rc)
		rc = idle_allreduce(bench, values); /* every connection has been used */
	if (!rc)
		rc = idle_asleep(bench, &mine);
	if (!rc)
		rc = idle_waiting(bench, &mine, values);
	if (!rc)
		rc = ncclplay_gather(bench->play, &mine, sizeof(mine), all);
	for (int r = 0; !rc && bench->options.rank == 0 && r < bench->options.ranks; r++)
		report_idle(bench, r, 1e2 * (double)all[r].asleep_cpu_ns / (double)all[r].asleep_ns,
			    1e2 * (double)all[r].waiting_cpu_ns / (double)all[r].waiting_ns,
			    1e2 * (double)all[r].polling_cpu_ns / (double)all[r].waiting_ns);
	if (!bench->play->stuck)
		free(values);
	return rc;
}
