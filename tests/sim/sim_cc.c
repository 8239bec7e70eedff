/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_cc.c - congestion control on one bottleneck: sim_cc SCENARIO, or all of them.
 *
 * Senders share the narrow port of a switch. After a warm-up, each run measures the goodput of each
 * flow, the depth of the queue over time, drops, marks, and retransmission timeouts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bottleneck.h"
#include "nic/wire.h"

#define US 1000ull
#define MS 1000000ull
#define S 1000000000ull
#define M 1000000ull
#define G 1000000000ull
#define END_NS (100 * S)

struct setup {
	unsigned senders;
	uint32_t congestion, ecn;
	uint64_t rate_bps, delay_ns; /* one way */
	uint64_t queue_bytes, mark_bytes;
	uint64_t stagger_ns;
	uint64_t warm_ns, run_ns;
	uint64_t rounds, per_round; /* instead of run_ns: rounds of all senders */
	bool unpaced;
};

struct result {
	double goodput_bps, depth_bytes, jain;
	uint64_t drops, marks, rto, retransmits, fast_path, segs_in, paced;
};

/* Bounds of a result; 0: none. */
struct bounds {
	double goodput_bps, jain;
	double depth_bytes, depth_bytes_min;
	bool no_drops, no_timeouts, marks, fast_path;
};

/* ---- a run ----------------------------------------------------------------------------------- */

struct measure {
	struct bottleneck b;
	uint64_t began_ns;
	double depth_sum;                          /* byte nanoseconds */
	uint64_t received[BOTTLENECK_SENDERS_MAX]; /* before the measured time */
	struct harp_wire_stats wire;
};

static double queue_ns(uint64_t free_ns, uint64_t at_ns)
{
	return free_ns > at_ns ? (double)(free_ns - at_ns) : 0;
}

static void step(struct measure *m)
{
	struct bottleneck *b = &m->b;
	uint64_t was_ns = b->now_ns, free_ns = b->wire->ports[b->options.senders].line_free_ns;
	double before_ns = queue_ns(free_ns, was_ns), after_ns;

	bottleneck_step(b);
	after_ns = queue_ns(free_ns, b->now_ns);
	/* The integral of the depth, which falls at the rate of the line until the next packet. */
	m->depth_sum += (before_ns * before_ns - after_ns * after_ns) / 2 *
			(double)b->options.narrow.rate_bps / 8e9;
	if (b->now_ns > END_NS) {
		fprintf(stderr, "sim_cc: no end after %llu s\n", END_NS / S);
		exit(1);
	}
}

static bool is_round_over(const struct bottleneck *b)
{
	for (unsigned i = 0; i < b->options.senders; i++)
		if (b->received[i] < b->send_bytes)
			return false;
	return true;
}

static void measure_run(struct measure *m, const struct setup *s)
{
	m->b.send_bytes = s->rounds ? 0 : UINT64_MAX;
	while (s->rounds ? m->b.accepted < s->senders : m->b.now_ns < s->warm_ns)
		step(m);
	memcpy(m->received, m->b.received, sizeof(m->received));
	m->wire = bottleneck_wire(&m->b);
	m->began_ns = m->b.now_ns;
	m->depth_sum = 0;
	for (uint64_t i = 0; i < s->rounds; i++) {
		m->b.send_bytes += s->per_round;
		while (!is_round_over(&m->b))
			step(m);
	}
	while (!s->rounds && m->b.now_ns < s->warm_ns + s->run_ns)
		step(m);
}

static struct result measure_result(const struct measure *m)
{
	unsigned senders = m->b.options.senders;
	double measured_ns = (double)(m->b.now_ns - m->began_ns), squares = 0;
	struct harp_wire_stats wire = bottleneck_wire(&m->b);
	struct result r = { .drops = wire.queue_dropped - m->wire.queue_dropped,
			    .marks = wire.ce_marked - m->wire.ce_marked,
			    .depth_bytes = m->depth_sum / measured_ns,
			    .fast_path = bottleneck_stat(&m->b, senders, "tcp_fast_path_in"),
			    .segs_in = bottleneck_stat(&m->b, senders, "tcp_segs_in") };

	for (unsigned i = 0; i < senders; i++) {
		double flow = (double)(m->b.received[i] - m->received[i]) * 8e9 / measured_ns;

		r.goodput_bps += flow;
		squares += flow * flow;
		r.rto += bottleneck_stat(&m->b, i, "tcp_rto");
		r.retransmits += bottleneck_stat(&m->b, i, "tcp_retransmits");
		r.paced += bottleneck_stat(&m->b, i, "tcp_paced");
	}
	r.jain = squares > 0 ? r.goodput_bps * r.goodput_bps / (senders * squares) : 0;
	return r;
}

static struct result run(const char *name, const struct setup *s)
{
	static struct measure m;
	struct bottleneck_options options = {
		.senders = s->senders,
		.frame_count = 16384,
		.packets_max = 65536,
		.delay_ns = s->delay_ns,
		.narrow = { .delay_ns = s->delay_ns,
			    .rate_bps = s->rate_bps,
			    .queue_bytes = s->queue_bytes,
			    .ecn_mark_bytes = (uint32_t)s->mark_bytes,
			    .inbound = 1 },
		.stagger_ns = s->stagger_ns,
		.unpaced = s->unpaced,
	};
	struct harp_tcp_options tcp = { .size = sizeof(tcp),
					.congestion = s->congestion,
					.ecn = s->ecn };
	struct result r;

	options.listen = options.connect = tcp;
	options.listen.rx_frames = 6000 / s->senders;
	options.connect.tx_frames = 4000;
	bottleneck_open(&m.b, &options);
	measure_run(&m, s);
	r = measure_result(&m);
	printf("%-28s %7.1f Mbit/s, Jain %.3f, queue %6.0f bytes, %llu drops, %llu marks, %llu rto, "
	       "%llu resent, %llu waits, fast path %llu of %llu\n",
	       name, r.goodput_bps / 1e6, r.jain, r.depth_bytes, (unsigned long long)r.drops,
	       (unsigned long long)r.marks, (unsigned long long)r.rto,
	       (unsigned long long)r.retransmits, (unsigned long long)r.paced,
	       (unsigned long long)r.fast_path, (unsigned long long)r.segs_in);
	bottleneck_close(&m.b);
	return r;
}

/* ---- scenarios ------------------------------------------------------------------------------- */

static bool has_failed;

static void check(bool good, const char *name, const char *what)
{
	if (!good) {
		fprintf(stderr, "sim_cc: %s: %s\n", name, what);
		has_failed = true;
	}
}

#define DCTCP .congestion = HARP_CONGESTION_DCTCP
#define CUBIC .congestion = HARP_CONGESTION_CUBIC
#define DELAY .congestion = HARP_CONGESTION_DELAY
#define RATE_10G .rate_bps = 10 * G, .delay_ns = 10 * US
static const struct row {
	const char *scenario, *name;
	struct setup setup;
	struct bounds bounds;
} rows[] = {
	/* clang-format off */
	/* RFC 8257: the queue stays near the mark, no packet is lost, the line is full. */
	{ "dctcp", "dctcp, 2 flows, 10G, 20us",
	  { .senders = 2, DCTCP, RATE_10G, .queue_bytes = M, .mark_bytes = 100000,
	    .warm_ns = 20 * MS, .run_ns = 50 * MS },
	  { .goodput_bps = 9e9, .depth_bytes = 130000, .no_drops = true, .no_timeouts = true,
	    .marks = true } },
	{ "dctcp", "dctcp, 8 flows, 10G, 20us",
	  { .senders = 8, DCTCP, RATE_10G, .queue_bytes = M, .mark_bytes = 100000,
	    .warm_ns = 20 * MS, .run_ns = 50 * MS },
	  { .goodput_bps = 9e9, .jain = 0.9, .depth_bytes = 180000, .no_drops = true,
	    .no_timeouts = true } },
	/* CUBIC fills the queue. */
	{ "dctcp", "cubic, 8 flows, 10G, 20us",
	  { .senders = 8, CUBIC, .ecn = HARP_ECN_OFF, RATE_10G, .queue_bytes = M,
	    .mark_bytes = 100000, .warm_ns = 20 * MS, .run_ns = 50 * MS },
	  { .depth_bytes_min = 200000 } },
	/* Sixteen replies at once through a port whose buffer holds their initial windows. */
	{ "incast", "dctcp, incast of 16 x 64K",
	  { .senders = 16, DCTCP, RATE_10G, .queue_bytes = 300000, .mark_bytes = 60000,
	    .rounds = 50, .per_round = 64 << 10 },
	  { .goodput_bps = 7e9, .no_timeouts = true } },
	{ "incast", "dctcp, incast of 16 x 2M",
	  { .senders = 16, DCTCP, RATE_10G, .queue_bytes = 300000, .mark_bytes = 60000, .rounds = 4,
	    .per_round = 2 << 20 },
	  { .goodput_bps = 9e9, .no_timeouts = true } },
	{ "fair", "cubic, 4 flows, 100M, 10ms",
	  { .senders = 4, CUBIC, .rate_bps = 100 * M, .delay_ns = 5 * MS, .queue_bytes = 125000,
	    .stagger_ns = 100 * MS, .warm_ns = 5 * S, .run_ns = 20 * S },
	  { .goodput_bps = 0.9e8, .jain = 0.9 } },
	{ "fair", "cubic, 4 flows, 10G, 50us",
	  { .senders = 4, CUBIC, .rate_bps = 10 * G, .delay_ns = 25 * US, .queue_bytes = 500000,
	    .stagger_ns = 1 * MS, .warm_ns = 50 * MS, .run_ns = 400 * MS },
	  { .goodput_bps = 9e9, .jain = 0.9 } },
	/* The target is 100 us: 125000 bytes. */
	{ "delay", "delay, 2 flows, 10G, 20us",
	  { .senders = 2, DELAY, RATE_10G, .queue_bytes = M, .warm_ns = 20 * MS,
	    .run_ns = 80 * MS },
	  { .goodput_bps = 9e9, .jain = 0.8, .depth_bytes = 200000, .no_drops = true,
	    .no_timeouts = true } },
	/* An eighth of 20 ms: 62500 bytes. */
	{ "delay", "delay, 2 flows, 200M, 20ms",
	  { .senders = 2, DELAY, .rate_bps = 200 * M, .delay_ns = 10 * MS, .queue_bytes = M,
	    .warm_ns = 2 * S, .run_ns = 12 * S },
	  { .goodput_bps = 1.6e8, .depth_bytes = 130000 } },
	/* RFC 3168 with CUBIC: the router marks packets and does not drop any. */
	{ "marked", "cubic, ecn, 1G, 1ms",
	  { .senders = 4, CUBIC, .ecn = HARP_ECN_REQUEST, .rate_bps = G, .delay_ns = 500 * US,
	    .queue_bytes = 500000, .mark_bytes = 100000, .warm_ns = 200 * MS, .run_ns = 1 * S },
	  { .goodput_bps = 9e8, .no_drops = true, .no_timeouts = true, .marks = true } },
	/* Nothing is marked, so all segments take the fast path. */
	{ "marked", "delay, ecn, nothing marked",
	  { .senders = 4, DELAY, .ecn = HARP_ECN_REQUEST, .rate_bps = G, .delay_ns = 500 * US,
	    .warm_ns = 200 * MS, .run_ns = 1 * S },
	  { .fast_path = true } },
	/* clang-format on */
};

static void run_row(const struct row *row)
{
	const struct bounds *b = &row->bounds;
	struct result r = run(row->name, &row->setup);

	check(r.goodput_bps > b->goodput_bps, row->name, "goodput too low");
	check(r.jain > b->jain, row->name, "unfair");
	check(!b->depth_bytes || r.depth_bytes < b->depth_bytes, row->name,
	      "the queue is too long");
	check(r.depth_bytes >= b->depth_bytes_min, row->name, "the queue is too short");
	check(!b->no_drops || !r.drops, row->name, "packets were dropped");
	check(!b->no_timeouts || !r.rto, row->name, "retransmission timeouts");
	check(!b->marks || r.marks, row->name, "no packet was marked");
	check(!b->fast_path || r.fast_path + 40 > r.segs_in, row->name,
	      "segments left the fast path");
}

/*
 * The buffer holds a tenth of the bandwidth-delay product. Each message finds the path empty and
 * the window open. It fits if it is spread over the round trip, but not as one burst. ACKs already
 * spread a bulk transfer; pacing must not slow it.
 */
static void run_paced(void)
{
	struct setup s = { .senders = 2,
			   CUBIC,
			   .rate_bps = 500 * M,
			   .delay_ns = 5 * MS,
			   .queue_bytes = 60000,
			   .rounds = 200,
			   .per_round = 256 << 10 };
	struct result with, without;

	with = run("cubic, 256K messages", &s);
	s.unpaced = true;
	without = run("256K messages, not paced", &s);
	check(with.drops * 2 < without.drops, "paced", "pacing avoids less than half of the drops");
	check(with.goodput_bps >= without.goodput_bps, "paced", "pacing slows messages");
	check(with.paced > 0 && without.paced == 0, "paced", "the wrong run was paced");
	s.rounds = 0;
	s.warm_ns = 1 * S;
	s.run_ns = 10 * S;
	without = run("cubic, bulk, not paced", &s);
	s.unpaced = false;
	with = run("cubic, bulk", &s);
	check(with.goodput_bps >= 0.99 * without.goodput_bps, "paced", "pacing slows bulk data");
}

int main(int argc, char **argv)
{
	bool is_all = argc == 1, is_known = false;

	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		if (!is_all && strcmp(argv[1], rows[i].scenario) != 0)
			continue;
		run_row(&rows[i]);
		is_known = true;
	}
	if (is_all || strcmp(argv[1], "paced") == 0) {
		run_paced();
		is_known = true;
	}
	if (!is_known) {
		fprintf(stderr, "usage: sim_cc [dctcp|incast|fair|paced|delay|marked]\n");
		return 2;
	}
	return has_failed;
}
