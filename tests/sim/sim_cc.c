/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_cc.c - congestion control on one bottleneck: sim_cc SCENARIO, or all of them.
 *
 * Senders, each a stack with a port of its own, and one receiver behind the narrow port of a switch. What
 * is measured after the warm-up: goodput by flow, the depth of the queue over time, drops, marks, RTOs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "nic/wire.h"
#include "transport/tcp.h"

#define SENDERS_MAX 16u
#define US 1000ull
#define MS 1000000ull
#define S 1000000000ull
#define PORT 61000

struct setup {
	unsigned senders;
	uint32_t congestion, ecn;
	uint64_t rate_bps, delay_ns; /* one way; the round trip has two */
	uint64_t queue_bytes, mark_bytes;
	uint64_t warm_ns, run_ns;   /* what is measured comes after the warm-up */
	uint64_t stagger_ns;        /* between the starts of flows */
	uint64_t rounds, per_round; /* instead: every sender sends so much, so often, all at once */
	bool unpaced;
};

struct result {
	double goodput_bps, mean_depth_bytes, jain;
	uint64_t drops, marks, rto, retransmits, fast_path, segs_in, paced, ended_ns;
};

struct net {
	const struct setup *setup;
	struct harp_wire *wire;
	struct harp_stack *stack[SENDERS_MAX + 1];
	struct harp_nic *nic[SENDERS_MAX + 1];
	struct harp_listener *listener;
	struct harp_conn *out[SENDERS_MAX], *in[SENDERS_MAX];
	uint64_t sent[SENDERS_MAX], received[SENDERS_MAX], at_warm[SENDERS_MAX];
	unsigned accepted;
	uint64_t now_ns, wanted, depth_sum, drops_at_warm, marks_at_warm;
};

static uint8_t bytes[65536];

static void die(const char *what, int err)
{
	fprintf(stderr, "sim_cc: %s: %d\n", what, err);
	exit(1);
}

static uint64_t stat_of(const struct harp_stack *stack, const char *name)
{
	uint64_t value = 0;

	if (harp_stack_stat(stack, name, &value) != 0)
		die(name, 0);
	return value;
}

/* Between what has arrived and what leaves: no connection is paced. */
static void unpace(void *ctx, uint64_t now_ns)
{
	struct net *n = ctx;

	(void)now_ns;
	for (unsigned i = 0; i < n->setup->senders; i++)
		if (n->out[i])
			n->out[i]->cc.pacing_bytes_per_s = 0;
}

static void net_open(struct net *n, const struct setup *s)
{
	struct harp_wire_options wire = { .size = sizeof(wire),
					  .ports = s->senders + 1,
					  .frame_count = 16384,
					  .packets_max = 65536,
					  .seed = 1,
					  .impair = { .delay_ns = s->delay_ns } };
	struct harp_wire_impair narrow = { .delay_ns = s->delay_ns,
					   .rate_bps = s->rate_bps,
					   .queue_bytes = s->queue_bytes,
					   .ecn_mark_bytes = (uint32_t)s->mark_bytes,
					   .inbound = 1 };
	struct harp_tcp_options tcp = { .size = sizeof(tcp),
					.rx_frames = 6000 / s->senders,
					.congestion = s->congestion,
					.ecn = s->ecn };
	struct harp_endpoint at = { .port = PORT };

	*n = (struct net){ .setup = s, .now_ns = 1000 };
	if (harp_wire_create(&n->wire, &wire) != 0 ||
	    harp_wire_set_impair(n->wire, s->senders, &narrow) != 0)
		die("harp_wire_create", 0);
	for (unsigned i = 0; i <= s->senders; i++) {
		struct harp_stack_options so = { .size = sizeof(so),
						 .max_conns = 64,
						 .seed = i + 1 };
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		so.hooks.ctx = n;
		so.hooks.requests = s->unpaced ? unpace : NULL;
		n->nic[i] = harp_wire_port(n->wire, i);
		if (harp_stack_create(&n->stack[i], n->nic[i], &so) != 0 ||
		    harp_stack_address_add(n->stack[i], &addr, 24) != 0)
			die("harp_stack_create", 0);
	}
	if (harp_tcp_listen(n->stack[s->senders], &at, &tcp, &n->listener) != 0)
		die("listen", 0);
}

static void net_close(struct net *n)
{
	for (unsigned i = 0; i <= n->setup->senders; i++)
		harp_stack_destroy(n->stack[i]);
	harp_wire_destroy(n->wire);
}

static void net_connect(struct net *n, unsigned i)
{
	struct harp_endpoint to = {
		.addr = harp_addr_v4(10, 0, 0, (uint8_t)(n->setup->senders + 1)), .port = PORT
	};
	struct harp_tcp_options tcp = { .size = sizeof(tcp),
					.tx_frames = 4000,
					.congestion = n->setup->congestion,
					.ecn = n->setup->ecn };
	int err = harp_tcp_connect(n->stack[i], NULL, &to, &tcp, &n->out[i]);

	if (err)
		die("connect", err);
}

static void net_sender(struct net *n, unsigned i)
{
	struct harp_conn *conn;
	uint32_t events;

	if (!n->out[i] && n->now_ns >= i * n->setup->stagger_ns)
		net_connect(n, i);
	harp_stack_poll(n->stack[i], n->now_ns);
	while ((conn = harp_stack_next_event(n->stack[i], &events)) != NULL)
		if (events & HARP_EVENT_CLOSED)
			die("a connection died", harp_conn_error(conn));
	while (n->out[i] && n->sent[i] < n->wanted) {
		uint64_t left = n->wanted - n->sent[i];
		struct iovec iov = { bytes, left < sizeof(bytes) ? left : sizeof(bytes) };
		ssize_t got = harp_conn_send(n->out[i], &iov, 1);

		if (got <= 0)
			break;
		n->sent[i] += (uint64_t)got;
	}
}

static void net_receiver(struct net *n)
{
	struct harp_stack *stack = n->stack[n->setup->senders];
	struct harp_conn *conn;
	uint32_t events;

	harp_stack_poll(stack, n->now_ns);
	while (harp_tcp_accept(n->listener, &conn) == 0) {
		struct harp_endpoint remote;

		harp_conn_endpoints(conn, NULL, &remote);
		n->in[remote.addr.bytes[15] - 1] = conn;
		n->accepted++;
	}
	while (harp_stack_next_event(stack, &events))
		;
	for (unsigned i = 0; i < n->setup->senders; i++) {
		ssize_t got;

		while (n->in[i] && (got = harp_conn_recv(n->in[i], bytes, sizeof(bytes))) > 0)
			n->received[i] += (uint64_t)got;
	}
}

static uint64_t net_depth_bytes(const struct net *n)
{
	uint64_t free_ns = n->wire->ports[n->setup->senders].line_free_ns;

	return free_ns > n->now_ns ? (free_ns - n->now_ns) * (n->setup->rate_bps / 8000) / 1000000
				   : 0;
}

/* To the next thing that happens, and through it. */
static void net_step(struct net *n)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i <= n->setup->senders; i++) {
		uint64_t at_ns = harp_stack_next_deadline_ns(n->stack[i]);
		uint64_t nic_ns = n->nic[i]->ops->next_ns(n->nic[i]);

		at_ns = nic_ns < at_ns ? nic_ns : at_ns;
		next_ns = at_ns < next_ns ? at_ns : next_ns;
		if (i < n->setup->senders && !n->out[i] && i * n->setup->stagger_ns < next_ns)
			next_ns = i * n->setup->stagger_ns;
	}
	if (next_ns == UINT64_MAX)
		die("asleep for ever", 0);
	if (next_ns < n->now_ns + 1000)
		next_ns = n->now_ns + 1000; /* a poll takes about that */
	if (next_ns > n->now_ns + MS)
		next_ns = n->now_ns + MS;
	n->depth_sum += net_depth_bytes(n) * (next_ns - n->now_ns);
	n->now_ns = next_ns;
	for (unsigned i = 0; i < n->setup->senders; i++)
		net_sender(n, i);
	net_receiver(n);
}

static void net_warm(struct net *n)
{
	struct harp_wire_stats wire;

	memcpy(n->at_warm, n->received, sizeof(n->at_warm));
	n->depth_sum = 0;
	harp_wire_stats(n->wire, n->setup->senders, &wire);
	n->drops_at_warm = wire.queue_dropped;
	n->marks_at_warm = wire.ce_marked;
}

static bool net_round_over(const struct net *n)
{
	for (unsigned i = 0; i < n->setup->senders; i++)
		if (n->received[i] < n->wanted)
			return false;
	return true;
}

static struct result net_result(struct net *n, uint64_t measured_ns)
{
	unsigned senders = n->setup->senders;
	struct result r = { .ended_ns = n->now_ns };
	double sum = 0, squares = 0;
	struct harp_wire_stats wire;

	for (unsigned i = 0; i < senders; i++) {
		double flow = (double)(n->received[i] - n->at_warm[i]) * 8e9 / (double)measured_ns;

		sum += flow;
		squares += flow * flow;
		r.rto += stat_of(n->stack[i], "tcp_rto");
		r.retransmits += stat_of(n->stack[i], "tcp_retransmits");
		r.paced += stat_of(n->stack[i], "tcp_paced");
	}
	harp_wire_stats(n->wire, senders, &wire);
	r.goodput_bps = sum;
	r.jain = squares > 0 ? sum * sum / (senders * squares) : 0;
	r.mean_depth_bytes = (double)n->depth_sum / (double)measured_ns;
	r.drops = wire.queue_dropped - n->drops_at_warm;
	r.marks = wire.ce_marked - n->marks_at_warm;
	r.fast_path = stat_of(n->stack[senders], "tcp_fast_path_in");
	r.segs_in = stat_of(n->stack[senders], "tcp_segs_in");
	return r;
}

static struct result run(const char *name, const struct setup *s)
{
	static struct net n;
	struct result r;
	uint64_t start_ns;

	net_open(&n, s);
	n.wanted = s->rounds ? 0 : UINT64_MAX;
	while (s->rounds ? n.accepted < s->senders : n.now_ns < s->warm_ns)
		net_step(&n);
	net_warm(&n);
	start_ns = n.now_ns;
	for (uint64_t i = 0; i < s->rounds; i++) {
		n.wanted += s->per_round;
		while (!net_round_over(&n)) {
			net_step(&n);
			if (n.now_ns > 100 * S)
				die("no end", 0);
		}
	}
	while (!s->rounds && n.now_ns < s->warm_ns + s->run_ns)
		net_step(&n);
	r = net_result(&n, n.now_ns - start_ns);
	printf("%-28s %7.1f Mbit/s, Jain %.3f, queue %6.0f bytes, %llu drops, %llu marks, %llu rto, "
	       "%llu resent, %llu waits, fast path %llu of %llu, %.3f ms\n",
	       name, r.goodput_bps / 1e6, r.jain, r.mean_depth_bytes, (unsigned long long)r.drops,
	       (unsigned long long)r.marks, (unsigned long long)r.rto,
	       (unsigned long long)r.retransmits, (unsigned long long)r.paced,
	       (unsigned long long)r.fast_path, (unsigned long long)r.segs_in,
	       (double)(n.now_ns - start_ns) / 1e6);
	net_close(&n);
	return r;
}

static bool failed;

static void check(bool good, const char *what)
{
	if (!good) {
		fprintf(stderr, "sim_cc: not true: %s\n", what);
		failed = true;
	}
}
#define CHECK(condition) check(condition, #condition)

/* RFC 8257: the queue stays near the mark, nothing is lost, the line is full. */
static void dctcp(void)
{
	struct setup s = { .senders = 2,
			   .congestion = HARP_CONGESTION_DCTCP,
			   .rate_bps = 10000000000,
			   .delay_ns = 10 * US,
			   .queue_bytes = 1000000,
			   .mark_bytes = 100000,
			   .warm_ns = 20 * MS,
			   .run_ns = 50 * MS };
	struct result r = run("dctcp, 2 flows, 10G, 20us", &s);

	CHECK(r.goodput_bps > 9e9);
	CHECK(r.mean_depth_bytes < 1.3 * 100000);
	CHECK(r.drops == 0 && r.rto == 0 && r.marks > 0);
	s.senders = 8;
	r = run("dctcp, 8 flows, 10G, 20us", &s);
	CHECK(r.goodput_bps > 9e9 && r.jain > 0.9);
	CHECK(r.mean_depth_bytes < 1.8 * 100000);
	CHECK(r.drops == 0 && r.rto == 0);
	/* The same by CUBIC, which fills what it is given. */
	s.congestion = HARP_CONGESTION_CUBIC;
	s.ecn = HARP_ECN_OFF;
	r = run("cubic, 8 flows, 10G, 20us", &s);
	CHECK(r.mean_depth_bytes > 2 * 100000);
}

/* Sixteen answers at once through a port whose buffer holds their first windows. */
static void incast(void)
{
	struct setup s = { .senders = 16,
			   .congestion = HARP_CONGESTION_DCTCP,
			   .rate_bps = 10000000000,
			   .delay_ns = 10 * US,
			   .queue_bytes = 300000,
			   .mark_bytes = 60000,
			   .rounds = 50,
			   .per_round = 64 * 1024 };
	struct result r = run("dctcp, incast of 16 x 64K", &s);

	CHECK(r.rto == 0);
	CHECK(r.goodput_bps > 7e9);
	s.rounds = 4;
	s.per_round = 2 << 20;
	r = run("dctcp, incast of 16 x 2M", &s);
	CHECK(r.rto == 0);
	CHECK(r.goodput_bps > 9e9);
}

static void fair(void)
{
	struct setup s = { .senders = 4,
			   .congestion = HARP_CONGESTION_CUBIC,
			   .rate_bps = 100000000,
			   .delay_ns = 5 * MS,
			   .queue_bytes = 125000,
			   .stagger_ns = 100 * MS,
			   .warm_ns = 5 * S,
			   .run_ns = 20 * S };
	struct result r = run("cubic, 4 flows, 100M, 10ms", &s);

	CHECK(r.jain > 0.9);
	CHECK(r.goodput_bps > 0.9e8);
	s.rate_bps = 10000000000;
	s.delay_ns = 25 * US;
	s.queue_bytes = 500000;
	s.stagger_ns = 1 * MS;
	s.warm_ns = 50 * MS;
	s.run_ns = 400 * MS;
	r = run("cubic, 4 flows, 10G, 50us", &s);
	CHECK(r.jain > 0.9);
	CHECK(r.goodput_bps > 9e9);
}

/*
 * A buffer of a tenth of the pipe. A message finds the pipe empty and the window open: spread over the round
 * trip it fits, at once it does not. A bulk transfer is spread by its ACKs already; it must not lose by it.
 */
static void paced(void)
{
	struct setup s = { .senders = 2,
			   .congestion = HARP_CONGESTION_CUBIC,
			   .rate_bps = 500000000,
			   .delay_ns = 5 * MS,
			   .queue_bytes = 60000,
			   .rounds = 200,
			   .per_round = 256 * 1024 };
	struct result with, without;

	with = run("cubic, 256K messages", &s);
	s.unpaced = true;
	without = run("the same, not paced", &s);
	CHECK(with.drops * 2 < without.drops);
	CHECK(with.goodput_bps >= without.goodput_bps);
	CHECK(with.paced > 0 && without.paced == 0);
	s.rounds = 0;
	s.warm_ns = 1 * S;
	s.run_ns = 10 * S;
	without = run("cubic, bulk, not paced", &s);
	s.unpaced = false;
	with = run("cubic, bulk", &s);
	CHECK(with.goodput_bps >= 0.99 * without.goodput_bps);
}

static void delay(void)
{
	struct setup s = { .senders = 2,
			   .congestion = HARP_CONGESTION_DELAY,
			   .rate_bps = 10000000000,
			   .delay_ns = 10 * US,
			   .queue_bytes = 1000000,
			   .warm_ns = 20 * MS,
			   .run_ns = 80 * MS };
	struct result r = run("delay, 2 flows, 10G, 20us", &s);

	CHECK(r.goodput_bps > 9e9 && r.jain > 0.8);
	CHECK(r.mean_depth_bytes < 200000); /* the target is 100 us: 125000 */
	CHECK(r.drops == 0 && r.rto == 0);
	s.rate_bps = 200000000;
	s.delay_ns = 10 * MS;
	s.warm_ns = 2 * S;
	s.run_ns = 12 * S;
	r = run("delay, 2 flows, 200M, 20ms", &s);
	CHECK(r.goodput_bps > 1.6e8);
	CHECK(r.mean_depth_bytes < 130000); /* an eighth of 20 ms: 62500 */
}

/* RFC 3168 with CUBIC: the router marks, and need not drop. */
static void marked(void)
{
	struct setup s = { .senders = 4,
			   .congestion = HARP_CONGESTION_CUBIC,
			   .ecn = HARP_ECN_REQUEST,
			   .rate_bps = 1000000000,
			   .delay_ns = 500 * US,
			   .queue_bytes = 500000,
			   .mark_bytes = 100000,
			   .warm_ns = 200 * MS,
			   .run_ns = 1 * S };
	struct result r = run("cubic, ecn, 1G, 1ms", &s);

	CHECK(r.marks > 0 && r.drops == 0 && r.rto == 0);
	CHECK(r.goodput_bps > 9e8);
	/* Nothing marked: everything stays on the fast path. */
	s.mark_bytes = 0;
	s.queue_bytes = 0;
	s.congestion = HARP_CONGESTION_DELAY;
	r = run("delay, ecn, nothing marked", &s);
	CHECK(r.fast_path + 40 > r.segs_in);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = { { "dctcp", dctcp }, { "incast", incast }, { "fair", fair },
			  { "paced", paced }, { "delay", delay },   { "marked", marked } };
	bool found = false;

	for (unsigned i = 0; i < ARRAY_SIZE(scenarios); i++) {
		if (argc > 1 && strcmp(argv[1], scenarios[i].name) != 0)
			continue;
		scenarios[i].run();
		found = true;
	}
	if (!found)
		die("usage: sim_cc [dctcp|incast|fair|paced|delay|marked]", 0);
	return failed;
}
