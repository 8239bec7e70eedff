/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - declarations shared by the files of harp-bench. */
#ifndef HARP_DRIVER_BENCH_H
#define HARP_DRIVER_BENCH_H

#include <stdio.h>

#include "play.h"

enum bench_mode {
	MODE_LAT,
	MODE_BW,
	MODE_IDLE,
	MODE_ALLTOALL,
	MODE_ALLREDUCE, /* last measuring mode */
	MODE_SOURCE,
	MODE_SINK,
};

#define BENCH_SIZES_MAX 64u

/* One step of a run. */
struct bench_size {
	size_t bytes;
	uint64_t messages; /* or iterations; source, sink: 0 is endless */
	uint64_t warmup;   /* messages before those */
};

struct bench {
	enum bench_mode mode;
	struct play_options options;
	struct bench_size sizes[BENCH_SIZES_MAX];
	size_t steps;         /* number of sizes; idle: 0 */
	size_t largest_bytes; /* largest of the sizes */
	bool datacheck, fork_child;
	double seconds;   /* idle: length of each wait */
	uint64_t tick_ms; /* source, sink: interval of progress lines; 0: none */
	struct play *play;

	/* Rank 0: the results of the JSON document. */
	FILE *results;
	char *results_text;
	size_t results_len;
	uint64_t wrong; /* wrong messages or elements of all ranks */
};

/* Measurements of one rank for one size, gathered to all ranks. */
struct bench_rank {
	uint64_t wrong;
	uint64_t start_ns, end_ns; /* receive window, by the rank's clock */
	uint64_t time_ns;          /* all-reduce, all-to-all: mean time of an iteration */
};

/* CPU time of the process, and of its progress thread, during a wait. */
struct bench_wait {
	uint64_t time_ns, cpu_ns, polling_cpu_ns;
	uint64_t wakes; /* voluntary context switches, without the yields of polling threads */
};

struct bench_idle {
	struct bench_wait asleep, waiting;
};

extern const char *const bench_modes[]; /* names, NULL-terminated */
/* Set by SIGUSR1: ends an endless stream. */
extern atomic_bool bench_stop;

/* bench_modes.c: run a mode with all sizes. Return enum play_result. */
int bench_lat(struct bench *bench);
int bench_bw(struct bench *bench);
int bench_alltoall(struct bench *bench);
int bench_allreduce(struct bench *bench);
int bench_role(struct bench *bench);
/* bench_idle.c */
int bench_idle(struct bench *bench);

/* report.c. median_ns: median of the half round trips or of the iterations. */
void report_lat(struct bench *bench, const struct bench_size *size, uint64_t median_ns,
		uint64_t p99_ns, uint64_t wrong);
void report_bw(struct bench *bench, size_t bytes, uint64_t messages,
	       const struct bench_rank *ranks);
void report_collective(struct bench *bench, const struct bench_size *size,
		       const struct bench_rank *ranks, uint64_t median_ns);
void report_idle(struct bench *bench, int rank, const struct bench_idle *idle);
int report_end(struct bench *bench, int rc);
/* Prints a JSON line of source or sink. extra: more members, or "". */
void report_role(struct bench *bench, const char *event, const char *extra);

#endif
