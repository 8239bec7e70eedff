/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what the files of harp-bench share. */
#ifndef HARP_DRIVER_BENCH_H
#define HARP_DRIVER_BENCH_H

#include <stdio.h>

#include "play.h"
#include "samples.h"

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
	uint64_t messages; /* or iterations; 0: by size */
	uint64_t warm;     /* UINT64_MAX: by size */
};

struct bench {
	enum bench_mode mode;
	struct ncclplay_options options;
	size_t first_bytes, last_bytes, factor;
	struct bench_size sizes[BENCH_SIZES_MAX]; /* the steps: of --sizes, or of the three above */
	size_t steps, step;                       /* how many; the present one */
	uint64_t iterations;                      /* 0: by size */
	uint64_t warm;                            /* UINT64_MAX: by size */
	bool datacheck, fork_child, abrupt;
	int progress_fd;  /* -1: none */
	double seconds;   /* idle: how long */
	uint64_t tick_ms; /* source, sink: interval of progress lines; 0: none */
	struct ncclplay *play;

	/* Progress events. */
	size_t step_bytes;
	uint64_t step_start, step_total; /* in units of play->moved */

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

/* SIGUSR1: an endless stream ends. */
extern atomic_bool bench_stop;

/* bench_modes.c: run all sizes or the one role; enum ncclplay_result. */
int bench_lat(struct bench *bench);
int bench_bw(struct bench *bench);
int bench_alltoall(struct bench *bench);
int bench_allreduce(struct bench *bench);
int bench_role(struct bench *bench);
/* bench_idle.c */
int bench_idle(struct bench *bench);

/* report.c */
void report_lat(struct bench *bench, size_t bytes, const struct samples_summary *s, uint64_t wrong);
void report_bw(struct bench *bench, size_t bytes, uint64_t messages,
	       const struct bench_rank *ranks);
void report_alltoall(struct bench *bench, size_t bytes, uint64_t iterations,
		     const struct bench_rank *ranks);
void report_allreduce(struct bench *bench, size_t bytes, uint64_t iterations,
		      const struct bench_rank *ranks, const struct samples_summary *s);
void report_idle(struct bench *bench, int rank, const struct bench_idle *idle);
int report_end(struct bench *bench, int rc);
void report_event(struct bench *bench, const char *event, uint64_t done);
/* One JSON line on stdout of source or sink. extra: more members, or "". */
void report_role(struct bench *bench, const char *event, const char *extra);

#endif
