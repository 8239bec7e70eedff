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
	MODE_WAIT,
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
	const char *ifname; /* NULL: not given */
	size_t first_bytes, last_bytes, factor;
	struct bench_size sizes[BENCH_SIZES_MAX]; /* the steps: of --sizes, or of the three above */
	size_t steps, step;                       /* how many; the present one */
	uint64_t iterations;                      /* 0: by size */
	uint64_t warm;                            /* UINT64_MAX: by size */
	bool datacheck, bidir, baseline, json, fork_child, abrupt;
	int progress_fd;  /* -1: none */
	double seconds;   /* idle: how long */
	uint64_t tick_ms; /* source, sink, wait: a line so often; 0: none */
	struct ncclplay *play;

	/* Progress events. */
	size_t step_bytes;
	uint64_t step_start, step_total; /* in units of play->moved */

	/* Rank 0: the JSON document's arrays, grown as results come. */
	FILE *results, *base_results;
	char *results_text, *base_text;
	size_t results_len, base_len;
	uint64_t wrong;           /* of all ranks */
	struct bench_base *bases; /* --baseline: one per step */
};

/* What one rank measured on one size; gathered to all. */
struct bench_rank {
	uint64_t wrong;
	uint64_t start_ns, end_ns;             /* receiving: window, own clock */
	uint64_t sent_cpu_ns, received_cpu_ns; /* process, over the sending / receiving window */
	uint64_t sent_ns;
	uint64_t tx_packets, rx_packets; /* of the interface, in run_ns: warm-up and window */
	uint64_t run_ns;
	uint64_t time_ns; /* all-reduce, all-to-all: mean time of an iteration */
	uint64_t packets_known;
};

/* What a wait took: of the process, and of that of the thread that polled meanwhile. */
struct bench_wait {
	uint64_t time_ns, cpu_ns, polling_cpu_ns;
	uint64_t wakes; /* how often its threads had been asleep; whoever polls, yields */
};

struct bench_idle {
	struct bench_wait asleep, waiting;
};

/* SIGUSR1: an endless stream ends. */
extern atomic_bool bench_stop;

/* Interface packet counters; false when the interface is unknown. */
bool bench_packets(const struct bench *bench, uint64_t *tx, uint64_t *rx);

/* What bare TCP did with one size. */
struct bench_base {
	struct samples_summary lat;
	struct bench_rank ranks[2];
};

/* bench_modes.c: run all sizes or the one role; enum ncclplay_result. */
/* For play_open: bare TCP with all sizes, before the plugin's init (an XDP program or a thread of
 * the plugin's would make it slower). */
int bench_baseline(void *arg, struct ncclplay *play);
int bench_lat(struct bench *bench);
int bench_bw(struct bench *bench);
int bench_alltoall(struct bench *bench);
int bench_allreduce(struct bench *bench);
int bench_role(struct bench *bench);
/* bench_idle.c */
int bench_idle(struct bench *bench);

/* baseline.c: bare kernel TCP between ranks 0 and 1, same sizes. */
struct baseline {
	int fd; /* -1: not connected */
};
int baseline_open(struct bench *bench, struct baseline *base);
int baseline_lat(struct bench *bench, struct baseline *base, size_t bytes, uint64_t warm,
		 uint64_t messages, uint64_t *samples_ns);
/* Fills sent (rank 0) and received (rank 1) windows of mine. */
int baseline_bw(struct bench *bench, struct baseline *base, size_t bytes, uint64_t warm,
		uint64_t messages, struct bench_rank *mine);
void baseline_close(struct baseline *base);

/* report.c */
void report_header(struct bench *bench);
void report_lat(struct bench *bench, size_t bytes, const struct samples_summary *s, uint64_t wrong,
		const struct samples_summary *base);
void report_bw(struct bench *bench, size_t bytes, uint64_t messages, const struct bench_rank *ranks,
	       const struct bench_rank *base, uint64_t base_messages);
void report_alltoall(struct bench *bench, size_t bytes, uint64_t iterations,
		     const struct bench_rank *ranks);
void report_allreduce(struct bench *bench, size_t bytes, uint64_t iterations,
		      const struct bench_rank *ranks, const struct samples_summary *s);
void report_idle(struct bench *bench, int rank, const struct bench_idle *idle);
int report_end(struct bench *bench, int rc);
void report_event(struct bench *bench, const char *event, uint64_t done);
/* One JSON line on stdout, for the kill tests. extra: more members, or "". */
void report_role(struct bench *bench, const char *event, const char *extra);
void json_string(FILE *f, const char *text);

#endif
