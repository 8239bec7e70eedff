/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_modes.c - the measurements of harp-bench.
 *
 * For every size: a barrier, a pass of warm-up and timed messages, then (unless --datacheck 0) a
 * pass that verifies every byte. Clocks of different ranks are never compared.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "ring.h"
#include "stream.h"

#define CHECK_MESSAGES 64u

static int bench_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Sorts the samples. */
static uint64_t bench_median(uint64_t *samples_ns, uint64_t count)
{
	qsort(samples_ns, (size_t)count, sizeof(*samples_ns), bench_compare);
	return count ? samples_ns[(count - 1) / 2] : 0;
}

/* Allocates memory for the samples of the largest step. */
static uint64_t *bench_samples(const struct bench *bench)
{
	uint64_t max = 0;

	for (size_t i = 0; i < bench->steps; i++)
		if (bench->sizes[i].messages > max)
			max = bench->sizes[i].messages;
	return malloc((size_t)max * sizeof(uint64_t));
}

static int bench_gather(struct bench *bench, const struct bench_rank *mine, struct bench_rank *all)
{
	int rc = play_gather(bench->play, mine, sizeof(*mine), all);

	for (int r = 0; !rc && r < bench->options.ranks; r++)
		bench->wrong += all[r].wrong;
	return rc;
}

/* Runs one stream operation after a barrier. */
static int bench_stream(struct bench *bench, struct stream_op *op, enum stream_role role,
			size_t bytes, uint64_t warmup, uint64_t messages, bool check,
			uint64_t *samples_ns)
{
	int rc;

	stream_prepare(op, bench->play, role, bytes, warmup, messages, check, samples_ns);
	rc = play_barrier(bench->play);
	return rc ? rc : play_run(bench->play, &op->op);
}

/*
 * lat: rank 0 sends and rank 1 answers. A sample is half the time from when rank 0 has a message
 * ready until it takes the answer. The buffers are neither written nor read.
 */
static int bench_lat_size(struct bench *bench, const struct bench_size *size, uint64_t *samples_ns)
{
	size_t bytes = size->bytes;
	enum stream_role role = bench->options.rank == 0 ? STREAM_PING : STREAM_PONG;
	struct bench_rank mine, all[PLAY_RANKS_MAX];
	uint64_t median_ns = 0, p99_ns = 0;
	struct stream_op op;
	int rc;

	memset(&mine, 0, sizeof(mine));
	rc = bench_stream(bench, &op, role, bytes, size->warmup, size->messages, false, samples_ns);
	if (rc)
		return rc;
	if (bench->options.rank == 0) {
		median_ns = bench_median(samples_ns, op.sample);
		p99_ns = op.sample ? samples_ns[op.sample * 99 / 100] : 0;
	}
	if (bench->datacheck) {
		rc = bench_stream(bench, &op, role, bytes, 0, CHECK_MESSAGES, true, NULL);
		mine.wrong = op.wrong;
	}
	if (!rc)
		rc = bench_gather(bench, &mine, all);
	if (!rc && bench->options.rank == 0)
		report_lat(bench, size, median_ns, p99_ns, all[0].wrong + all[1].wrong);
	return rc;
}

int bench_lat(struct bench *bench)
{
	uint64_t *samples_ns = bench_samples(bench);
	int rc = 0;

	if (!samples_ns)
		return PLAY_PEER;
	for (size_t i = 0; !rc && i < bench->steps; i++)
		rc = bench_lat_size(bench, &bench->sizes[i], samples_ns);
	if (!bench->play->stuck)
		free(samples_ns);
	return rc;
}

/*
 * bw: rank 0 streams to rank 1. The receiver measures the time from the completion of its last
 * warm-up message to the completion of its last message.
 */
static int bench_bw_size(struct bench *bench, const struct bench_size *size)
{
	uint64_t n = size->messages, channels = (uint64_t)bench->options.channels;
	size_t bytes = size->bytes;
	enum stream_role role = bench->options.rank == 0 ? STREAM_SEND : STREAM_RECEIVE;
	struct bench_rank mine, all[PLAY_RANKS_MAX];
	struct stream_op op;
	int rc;

	memset(&mine, 0, sizeof(mine));
	rc = bench_stream(bench, &op, role, bytes, size->warmup, n, false, NULL);
	if (rc)
		return rc;
	mine.start_ns = op.received.start_ns;
	mine.end_ns = op.received.end_ns;
	if (bench->datacheck) {
		rc = bench_stream(bench, &op, role, bytes, 0, CHECK_MESSAGES, true, NULL);
		mine.wrong = op.wrong;
	}
	if (!rc)
		rc = bench_gather(bench, &mine, all);
	if (!rc && bench->options.rank == 0)
		report_bw(bench, bytes, n * channels, all);
	return rc;
}

int bench_bw(struct bench *bench)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < bench->steps; i++)
		rc = bench_bw_size(bench, &bench->sizes[i]);
	return rc;
}

/*
 * alltoall: in an iteration, each rank sends one part (size / ranks bytes) to every other rank. A
 * part larger than a slot is sent as several messages. Iterations overlap, like launches on a CUDA
 * stream. The time is a rank's receive window divided by the number of iterations, averaged over
 * the ranks.
 */
static int bench_alltoall_size(struct bench *bench, const struct bench_size *size)
{
	size_t part = size->bytes / (size_t)bench->options.ranks;
	uint64_t pieces = part > bench->play->slot_bytes
				  ? (part + bench->play->slot_bytes - 1) / bench->play->slot_bytes
				  : 1;
	uint64_t n = size->messages;
	size_t bytes = part / pieces;
	struct bench_rank mine, all[PLAY_RANKS_MAX];
	struct stream_op op;
	int rc;

	memset(&mine, 0, sizeof(mine));
	rc = bench_stream(bench, &op, STREAM_BOTH, bytes, size->warmup * pieces, n * pieces, false,
			  NULL);
	if (rc)
		return rc;
	mine.time_ns = (op.received.end_ns - op.received.start_ns) / n;
	if (bench->datacheck) {
		rc = bench_stream(bench, &op, STREAM_BOTH, bytes, 0, CHECK_MESSAGES, true, NULL);
		mine.wrong = op.wrong;
	}
	if (!rc)
		rc = bench_gather(bench, &mine, all);
	if (!rc && bench->options.rank == 0)
		report_collective(bench, size, all, 0);
	return rc;
}

int bench_alltoall(struct bench *bench)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < bench->steps; i++)
		rc = bench_alltoall_size(bench, &bench->sizes[i]);
	return rc;
}

/* Integers that depend on rank and index, small enough for exact sums in float32. */
static float bench_value(int rank, size_t i, unsigned round)
{
	return (float)((i * 7 + (size_t)rank * 31 + round * 5 + i / 1021) % 1000);
}

static uint64_t bench_count_wrong(const struct bench *bench, const float *sums, size_t count,
				  unsigned round)
{
	uint64_t wrong = 0;

	for (size_t i = 0; i < count; i++) {
		float expected = 0;

		for (int r = 0; r < bench->options.ranks; r++)
			expected += bench_value(r, i, round);
		wrong += sums[i] != expected;
	}
	return wrong;
}

static void bench_fill(const struct bench *bench, float *at, size_t count, unsigned round)
{
	for (size_t i = 0; i < count; i++)
		at[i] = bench_value(bench->options.rank, i, round);
}

static int bench_ring(struct bench *bench, struct ring_op *ring, const float *src, float *dst,
		      size_t count, uint64_t iterations, uint64_t *iteration_ns)
{
	int rc;

	ring_prepare(ring, bench->play, src, dst, count, (unsigned)iterations, iteration_ns);
	rc = play_barrier(bench->play);
	return rc ? rc : play_run(bench->play, &ring->op);
}

/* Counts wrong elements: out of place into a poisoned buffer, then in place with other values. */
static int bench_allreduce_check(struct bench *bench, struct ring_op *ring, float *src, float *dst,
				 size_t count, uint64_t *wrong)
{
	int rc;

	bench_fill(bench, src, count, 0);
	memset(dst, 0xff, count * sizeof(float));
	rc = bench_ring(bench, ring, src, dst, count, 1, NULL);
	if (rc)
		return rc;
	*wrong += bench_count_wrong(bench, dst, count, 0);
	bench_fill(bench, dst, count, 1);
	rc = bench_ring(bench, ring, dst, dst, count, 1, NULL);
	if (!rc)
		*wrong += bench_count_wrong(bench, dst, count, 1);
	return rc;
}

/*
 * allreduce: out of place, iterations back to back, like launches on a CUDA stream. The time is the
 * mean per iteration, averaged over the ranks, as in nccl-tests.
 */
static int bench_allreduce_size(struct bench *bench, const struct bench_size *size,
				struct ring_op *ring, float *src, float *dst,
				uint64_t *iteration_ns)
{
	size_t count = size->bytes / sizeof(float);
	uint64_t n = size->messages, last_ns;
	struct bench_rank mine, all[PLAY_RANKS_MAX];
	int rc = 0;

	memset(&mine, 0, sizeof(mine));
	bench_fill(bench, src, count, 0);
	if (size->warmup)
		rc = bench_ring(bench, ring, src, dst, count, size->warmup, NULL);
	if (rc)
		return rc;
	rc = bench_ring(bench, ring, src, dst, count, n, iteration_ns);
	if (rc)
		return rc;
	mine.time_ns = (iteration_ns[n - 1] - ring->start_ns) / n;
	last_ns = ring->start_ns;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t at_ns = iteration_ns[i];

		iteration_ns[i] = at_ns - last_ns;
		last_ns = at_ns;
	}
	if (bench->datacheck) {
		mine.wrong = bench_count_wrong(bench, dst, count, 0);
		rc = bench_allreduce_check(bench, ring, src, dst, count, &mine.wrong);
	}
	if (!rc)
		rc = bench_gather(bench, &mine, all);
	if (!rc && bench->options.rank == 0)
		report_collective(bench, size, all, bench_median(iteration_ns, n));
	return rc;
}

int bench_allreduce(struct bench *bench)
{
	uint64_t *iteration_ns = bench_samples(bench);
	struct ring_op *ring = malloc(sizeof(*ring));
	float *src = malloc(bench->largest_bytes), *dst = malloc(bench->largest_bytes);
	int rc = iteration_ns && ring && src && dst ? 0 : PLAY_PEER;

	for (size_t i = 0; !rc && i < bench->steps; i++)
		rc = bench_allreduce_size(bench, &bench->sizes[i], ring, src, dst, iteration_ns);
	if (!bench->play->stuck) {
		free(iteration_ns);
		free(ring);
		free(src);
		free(dst);
	}
	return rc;
}

/* Forks a child that sleeps and keeps inherited descriptors, like a data loader. */
static int bench_fork(char *text, size_t len)
{
	pid_t child = fork();

	if (child == 0) {
		for (;;)
			pause();
	}
	snprintf(text, len, ",\"child\":%d", (int)child);
	return child > 0 ? 0 : PLAY_PEER;
}

/*
 * source, sink: one end of a stream, for tests that kill the other end. It is endless unless
 * --sizes has a number of messages. Prints JSON lines with CLOCK_MONOTONIC times: "ready" when the
 * operation starts, "tick" at intervals with --tick, then "done" or "error" with the number of
 * wrong messages.
 */
int bench_role(struct bench *bench)
{
	enum stream_role role = bench->mode == MODE_SOURCE ? STREAM_SEND : STREAM_RECEIVE;
	uint64_t n = bench->sizes[0].messages ? bench->sizes[0].messages : UINT64_MAX;
	char extra[64] = "";
	struct stream_op op;
	int rc = 0;

	if (bench->fork_child)
		rc = bench_fork(extra, sizeof(extra));
	if (!rc)
		rc = play_barrier(bench->play);
	if (rc)
		return rc;
	stream_prepare(&op, bench->play, role, bench->sizes[0].bytes, 0, n, bench->datacheck, NULL);
	op.stop = n == UINT64_MAX ? &bench_stop : NULL;
	report_role(bench, "ready", extra);
	rc = play_run(bench->play, &op.op);
	snprintf(extra, sizeof(extra), ",\"wrong\":%llu", (unsigned long long)op.wrong);
	report_role(bench, rc ? "error" : "done", extra);
	if (!rc)
		bench->wrong += op.wrong;
	return rc;
}
