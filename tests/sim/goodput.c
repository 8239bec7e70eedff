/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.c - tables of goodput over loss, round trip and buffer, compared with a snapshot.
 *
 *	goodput --check PATH    computes the tables and compares: a regression is a diff
 *	goodput --update PATH   writes them (make tables)
 *
 * One connection sends through one bottleneck for a fixed virtual time, data one way. Loss is
 * random and affects only data packets. The buffer is the bottleneck's tail-drop queue, in
 * bandwidth-delay products. The clock is virtual and the seed fixed, so the same code gives the
 * same table on any machine.
 *
 * The expected goodput is the larger of RFC 5681's and RFC 9438's response functions, at most the
 * rate: for Reno sqrt(3/2/p) segments in flight (Mathis et al. 1997), for CUBIC (section 5.1) 1.054
 * (RTT/p)^(3/4). An exclamation mark marks a cell below 60 % of it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bottleneck.h"
#include "table.h"

#define MSS_BYTES 1448u /* MTU 1500, IPv4, timestamps */
#define PACKET_BYTES 1514u
#define MS UINT64_C(1000000)
#define TUNED_GOODPUT_MIN 900u /* per mille */

struct path {
	uint64_t rtt_ns, rate_bps, run_ns;
	const char *name;
};
static const struct path paths[] = {
	{ 20000, 10000000000, 100 * MS, "20 us at 10 Gbit/s" },
	{ 200000, 10000000000, 300 * MS, "200 us at 10 Gbit/s" },
	{ 2000000, 2500000000, 2000 * MS, "2 ms at 2.5 Gbit/s" },
	{ 20000000, 1000000000, 10000 * MS, "20 ms at 1 Gbit/s" },
};
/* The stacks tune their budgets, so the window has to grow to these sizes. */
static const struct path tuned_paths[] = {
	{ 100000, 25000000000, 60 * MS, "100 us at 25 Gbit/s" },
	{ 1000000, 25000000000, 150 * MS, "1 ms at 25 Gbit/s" },
	{ 10000000, 25000000000, 600 * MS, "10 ms at 25 Gbit/s" },
};
static const uint32_t losses_ppm[] = { 0, 100, 1000, 10000, 30000 };
static const uint32_t buffers_percent[] = { 25, 100, 400 };

struct cell { /* parameters and results */
	const struct path *path;
	uint32_t loss_ppm, buffer_percent, congestion;
	bool tuned; /* the stacks tune the budgets */
	uint64_t delivered, lost, resent, timeouts;
	struct harp_tcp_info info;
};

static uint64_t cell_bdp_bytes(const struct cell *cell)
{
	return cell->path->rate_bps / 8 * cell->path->rtt_ns / UINT64_C(1000000000);
}

/* Results of tuned paths do not include slow start, which is a large part of the run. */
static uint64_t cell_warmup_end_ns(const struct cell *cell)
{
	return cell->tuned ? cell->path->run_ns / 3 : 0;
}

static uint64_t cell_buffer_bytes(const struct cell *cell)
{
	return cell_bdp_bytes(cell) * cell->buffer_percent / 100;
}

/* ---- one run --------------------------------------------------------------------------------- */

static void cell_open(struct bottleneck *b, const struct cell *cell)
{
	/* Twice the capacity of path and queue. */
	uint32_t frames =
		(uint32_t)(2 * (cell_bdp_bytes(cell) + cell_buffer_bytes(cell)) / MSS_BYTES) + 256;
	struct harp_tcp_options tcp = { .size = sizeof(tcp),
					.rx_frames = cell->tuned ? 0 : frames,
					.tx_frames = cell->tuned ? 0 : frames,
					.congestion = cell->congestion };
	struct bottleneck_options options = {
		.senders = 1,
		/* Tuned budgets are at most half of the pool. */
		.frame_count = (cell->tuned ? 4 : 2) * frames + 4096,
		.packets_max = frames + 4096,
		.delay_ns = cell->path->rtt_ns / 2,
		.narrow = { .delay_ns = cell->path->rtt_ns / 2,
			    .rate_bps = cell->path->rate_bps,
			    .queue_bytes = cell_buffer_bytes(cell),
			    .loss_ppm = cell->loss_ppm },
		.listen = tcp,
		.connect = tcp,
	};

	if (options.narrow.queue_bytes < 2 * PACKET_BYTES)
		options.narrow.queue_bytes = 2 * PACKET_BYTES;
	if (cell->congestion == HARP_CONGESTION_DCTCP) /* RFC 8257 section 3.1: K of 1/7 BDP */
		options.narrow.ecn_mark_bytes =
			(uint32_t)(cell_bdp_bytes(cell) / 7) + 2 * PACKET_BYTES;
	bottleneck_open(b, &options);
	b->send_bytes = UINT64_MAX;
}

static void cell_run(struct cell *cell)
{
	static struct bottleneck b;
	struct harp_wire_stats wire;
	uint64_t warmup_bytes = 0;

	cell_open(&b, cell);
	while (b.now_ns < cell->path->run_ns) {
		uint64_t received = b.received[0];

		bottleneck_step(&b);
		if (b.now_ns < cell_warmup_end_ns(cell))
			warmup_bytes = received;
	}
	wire = bottleneck_wire(&b);
	harp_conn_info(b.out[0], &cell->info);
	cell->delivered = b.received[0] - warmup_bytes;
	cell->lost = wire.lost + wire.queue_dropped;
	cell->resent = cell->info.retransmits;
	cell->timeouts = cell->info.rto_count;
	bottleneck_close(&b);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Payload bytes that the bottleneck could carry in the measured time. */
static double cell_rate_bytes(const struct cell *cell)
{
	double measured_s = (double)(cell->path->run_ns - cell_warmup_end_ns(cell)) / 1e9;

	return (double)cell->path->rate_bps / 8 * measured_s * MSS_BYTES / PACKET_BYTES;
}

/* Per mille of the bottleneck's rate. */
static unsigned cell_goodput(const struct cell *cell)
{
	return (unsigned)(1000 * (double)cell->delivered / cell_rate_bytes(cell) + 0.5);
}

static unsigned cell_expected(const struct cell *cell)
{
	double p = (double)cell->loss_ppm / 1e6, rtt_s = (double)cell->path->rtt_ns / 1e9;
	double reno, cubic, segments = (double)cell_bdp_bytes(cell) / PACKET_BYTES, best;

	if (cell->loss_ppm == 0)
		return 1000;
	reno = sqrt(1.5 / p);
	cubic = 1.054 * pow(rtt_s / p, 0.75);
	best = reno > cubic ? reno : cubic;
	return best > segments ? 1000 : (unsigned)(1000 * best / segments + 0.5);
}

static size_t table_cell(char *out, size_t out_bytes, struct cell *cell)
{
	unsigned goodput, expected;

	cell_run(cell);
	goodput = cell_goodput(cell);
	expected = cell_expected(cell);
	return (size_t)snprintf(out, out_bytes, " | %3u.%u%c %4llu %3llu", goodput / 10,
				goodput % 10, goodput * 10 < expected * 6 ? '!' : ' ',
				(unsigned long long)(cell->lost ? cell->resent * 100 / cell->lost
								: cell->resent * 100),
				(unsigned long long)cell->timeouts);
}

static size_t table_rows(char *out, size_t out_bytes, const struct path *path, uint32_t congestion,
			 const uint32_t *losses, unsigned loss_count)
{
	size_t len = (size_t)
		snprintf(out, out_bytes,
			 "\n%s\n  loss %%  expected |     buffer 1/4    |      buffer 1     |"
			 "      buffer 4\n",
			 path->name);

	for (unsigned i = 0; i < loss_count; i++) {
		struct cell cell = { .path = path, .loss_ppm = losses[i] };

		len += (size_t)snprintf(out + len, out_bytes - len, "  %6.2f  %6.1f  ",
					(double)losses[i] / 1e4, (double)cell_expected(&cell) / 10);
		for (unsigned b = 0; b < 3; b++) {
			cell = (struct cell){ .path = path,
					      .loss_ppm = losses[i],
					      .buffer_percent = buffers_percent[b],
					      .congestion = congestion };
			len += table_cell(out + len, out_bytes - len, &cell);
		}
		len += (size_t)snprintf(out + len, out_bytes - len, "\n");
	}
	return len;
}

static size_t table_tuned(char *out, size_t out_bytes)
{
	size_t len = (size_t)snprintf(
		out, out_bytes,
		"\n== cubic, budgets tuned by the stacks, no loss, buffer 1, after a third of the time\n"
		"                        %%  at the end:   window  send budget, frames\n");

	for (unsigned i = 0; i < ARRAY_SIZE(tuned_paths); i++) {
		struct cell cell = { .path = &tuned_paths[i],
				     .buffer_percent = 100,
				     .tuned = true };

		cell_run(&cell);
		len += (size_t)snprintf(out + len, out_bytes - len, "%-20s %5.1f  %20llu  %12u\n",
					cell.path->name, (double)cell_goodput(&cell) / 10,
					(unsigned long long)cell.info.snd_wnd_bytes,
					cell.info.tx_frames_budget);
		if (cell_goodput(&cell) < TUNED_GOODPUT_MIN) {
			fprintf(stderr, "goodput: %s: tuned budgets carry less than 90 %%\n",
				cell.path->name);
			exit(1);
		}
	}
	return len;
}

/* Writes all tables, at most TABLE_MAX bytes. */
static void tables_make(char *out)
{
	static const uint32_t other_controls[] = { HARP_CONGESTION_NEWRENO, HARP_CONGESTION_DCTCP,
						   HARP_CONGESTION_DELAY };
	static const uint32_t few_losses_ppm[] = { 0, 1000, 10000 };
	size_t len = (size_t)snprintf(
		out, TABLE_MAX,
		"Goodput by tests/sim/goodput.c; `make tables` writes this file, `make test` compares.\n"
		"Each cell: goodput in %% of the bottleneck's rate (payload; ! marks less than 60 %% of what\n"
		"is expected), segments retransmitted per 100 lost, retransmission timeouts.\n"
		"Buffers in bandwidth-delay products.\n"
		"\n== %s, the default\n",
		harp_congestion_name(HARP_CONGESTION_CUBIC));

	for (unsigned i = 0; i < ARRAY_SIZE(paths); i++)
		len += table_rows(out + len, TABLE_MAX - len, &paths[i], HARP_CONGESTION_DEFAULT,
				  losses_ppm, 5);
	len += table_tuned(out + len, TABLE_MAX - len);
	for (unsigned c = 0; c < ARRAY_SIZE(other_controls); c++) {
		len += (size_t)snprintf(out + len, TABLE_MAX - len, "\n== %s\n",
					harp_congestion_name(
						(enum harp_congestion)other_controls[c]));
		for (unsigned i = 1; i < 3; i++)
			len += table_rows(out + len, TABLE_MAX - len, &paths[i], other_controls[c],
					  few_losses_ppm, 3);
	}
}

int main(int argc, char **argv)
{
	static char text[TABLE_MAX];
	bool is_check = argc == 3 && strcmp(argv[1], "--check") == 0;

	if (!is_check && !(argc == 3 && strcmp(argv[1], "--update") == 0)) {
		fprintf(stderr, "usage: goodput --check PATH | --update PATH\n");
		return 2;
	}
	tables_make(text);
	return is_check ? table_check(argv[2], text) : table_update(argv[2], text);
}
