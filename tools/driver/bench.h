/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what the files of harp-bench share. */
#ifndef HARP_DRIVER_BENCH_H
#define HARP_DRIVER_BENCH_H

#include <stdio.h>

#include "play.h"

enum bench_mode {
	MODE_LAT,
	MODE_BW,
	MODE_IDLE,
	MODE_ALLTOALL,
	MODE_ALLREDUCE, /* the last that measures */
	MODE_SOURCE,
	MODE_SINK,
};

#define BENCH_SIZES_MAX 64u

/* One step of a run. */
struct bench_size {
	size_t bytes;
	uint64_t messages; /* or iterations; source, sink: 0 is endless */
	uint64_t warm;     /* before those */
};

struct bench {
	enum bench_mode mode;
	struct play_options options;
	struct bench_size sizes[BENCH_SIZES_MAX];
	size_t steps;         /* how many; idle: 0 */
	size_t largest_bytes; /* of the sizes */
	bool datacheck, fork_child;
	double seconds;   /* idle: how long */
	uint64_t tick_ms; /* source, sink: interval of progress lines; 0: none */
	struct play *play;

	/* Rank 0: the results of the JSON document. */
	FILE *results;
	char *results_text;
	size_t results_len;
	uint64_t wrong; /* of all ranks */
};

/* What one rank measured on one size; gathered to all. */
struct bench_rank {
	uint64_t wrong;
	uint64_t start_ns, end_ns; /* receiving: window, own clock */
	uint64_t time_ns;          /* all-reduce, all-to-all: mean time of an iteration */
};

/* Processor time of a wait: of the process, and of its thread that polled. */
struct bench_wait {
	uint64_t time_ns, cpu_ns, polling_cpu_ns;
	uint64_t wakes; /* voluntary context switches of its threads; a thread that polls yields */
};

struct bench_idle {
	struct bench_wait asleep, waiting;
};

extern const char *const bench_modes[]; /* names; NULL ends them */
/* SIGUSR1: an endless stream ends. */
extern atomic_bool bench_stop;

/* bench_modes.c: run all sizes or the one role; enum play_result. */
int bench_lat(struct bench *bench);
int bench_bw(struct bench *bench);
int bench_alltoall(struct bench *bench);
int bench_allreduce(struct bench *bench);
int bench_role(struct bench *bench);
/* bench_idle.c */
int bench_idle(struct bench *bench);

/* report.c; median_ns: of one half round trip, of one iteration */
void report_lat(struct bench *bench, const struct bench_size *size, uint64_t median_ns,
		uint64_t p99_ns, uint64_t wrong);
void report_bw(struct bench *bench, size_t bytes, uint64_t messages,
	       const struct bench_rank *ranks);
void report_collective(struct bench *bench, const struct bench_size *size,
		       const struct bench_rank *ranks, uint64_t median_ns);
void report_idle(struct bench *bench, int rank, const struct bench_idle *idle);
int report_end(struct bench *bench, int rc);
/* One JSON line on stdout of source or sink. extra: more members, or "". */
void report_role(struct bench *bench, const char *event, const char *extra);

#endif
