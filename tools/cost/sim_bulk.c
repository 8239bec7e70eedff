/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_bulk.c - what a packet of a stream costs, the sender and the receiver apart: sim_bulk [KEY=VALUE]...
 *
 *	mtu=1500 conns=1     packets=1000000   data segments, after slow start
 *	mode=frames          the stack's own frames; copy: harp_conn_send() and harp_conn_recv()
 *	burst=64             segments that the sender offers before each poll, of all connections
 *	csum=1               the cards verify checksums (memif's do not)
 *	threads=1            the two sides on two cores, on the real clock: what they move together
 *	budget=1024          frames of a connection, each way
 *	slots=1024           packets that a card holds for the other one
 *
 * Two stacks on the two cards of pair_nic.h. Bulk one way; each byte is made by the sending application
 * and verified by the receiving one, which is not measured: the calls of the API and the polls are, less
 * what the cards' functions take. Without threads the sides take turns under a virtual clock, so that
 * the same packets meet in the same polls at each run. tools/instructions.py bulk counts
 * instructions, which repeat.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bulk.h"

#define CONNS_MAX 1024u
#define PORT 5000u
#define WARM_PACKETS 20000u
#define SLICE_PACKETS 10000u

struct option {
	const char *name;
	unsigned value;
};

static const struct option defaults[OPTIONS] = {
	[MTU] = { "mtu", 1500 },
	[CONNS] = { "conns", 1 },
	[PACKETS] = { "packets", 1000000 },
	[COPY] = { "copy", 0 },
	[BURST] = { "burst", 64 },
	[CSUM] = { "csum", 0 },
	[THREADS] = { "threads", 0 },
	[BUDGET] = { "budget", 1024 },
	[SLOTS] = { "slots", 1024 },
};

static uint64_t stat(const struct side *side, const char *name)
{
	uint64_t value;

	if (harp_stack_stat(side->stack, name, &value) != 0)
		bulk_die(name, 0);
	return value;
}

/* ------------------------------------------------------------------------------------------------
 * How long, and by whom.
 */
static void slice_begin(struct side *side)
{
	side->slice_bytes = side->bytes;
	side->slice_cycles = side->cycles;
	side->slice_nic_cycles = pair_cycles(side->nic);
}

static void slice_end(struct side *side)
{
	double bytes = (double)(side->bytes - side->slice_bytes);
	double nic = (double)(pair_cycles(side->nic) - side->slice_nic_cycles);
	double stack = (double)(side->cycles - side->slice_cycles) - nic;

	if (side->best == 0 || stack / bytes < side->best)
		side->best = stack / bytes;
	if (side->best_nic == 0 || nic / bytes < side->best_nic)
		side->best_nic = nic / bytes;
}

/* Of this side: slow start is over, or enough has been seen. */
static bool watch(struct bench *b, struct side *side)
{
	uint64_t packets = side->bytes / b->mss_bytes;

	if (!side->measuring && packets >= WARM_PACKETS) {
		side->measuring = true;
		side->cycles = side->polls = 0;
		side->nic_cycles_before = pair_cycles(side->nic);
		side->bytes_before = side->bytes;
		side->began_ns = bulk_clock_ns();
		slice_begin(side);
	}
	if (side->bytes - side->slice_bytes >= (uint64_t)SLICE_PACKETS * b->mss_bytes) {
		slice_end(side);
		slice_begin(side);
	}
	if (packets < WARM_PACKETS + b->option[PACKETS])
		return false;
	side->ended_ns = bulk_clock_ns();
	return true;
}

static void *receive_all(void *ctx)
{
	struct bench *b = ctx;

	while (!watch(b, &b->rx))
		bulk_turn_rx(b);
	atomic_store(&b->stop, true);
	return NULL;
}

static void run_threads(struct bench *b)
{
	pthread_t thread;
	cpu_set_t set;

	if (pthread_create(&thread, NULL, receive_all, b) != 0)
		bulk_die("pthread_create", 0);
	for (unsigned core = 0; core < 2; core++) {
		CPU_ZERO(&set);
		CPU_SET(core, &set);
		pthread_setaffinity_np(core ? thread : pthread_self(), sizeof(set), &set);
	}
	while (!atomic_load_explicit(&b->stop, memory_order_relaxed)) {
		bulk_turn_tx(b);
		watch(b, &b->tx);
	}
	pthread_join(thread, NULL);
	b->tx.ended_ns = b->rx.ended_ns;
}

static void run_turns(struct bench *b)
{
	bool over = false;

	while (!over) {
		bulk_turn_tx(b);
		watch(b, &b->tx);
		do {
			bulk_turn_rx(b);
		} while (b->rx.bytes + (uint64_t)4 * b->option[BURST] * b->mss_bytes <
				 b->tx.bytes &&
			 b->rx.polls < 2 * b->tx.polls);
		over = watch(b, &b->rx);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Before and after.
 */
static void make_side(struct bench *b, struct side *side, unsigned number)
{
	struct harp_stack_options so = {
		.size = sizeof(so),
		.max_conns = b->option[CONNS],
		.port_min = 1024,
		.seed = number + 1,
		.now_ns = b->option[THREADS] ? bulk_clock_ns() : 1,
	};
	struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(number + 1));

	side->nic = pair_nic(b->pair, number);
	side->now_ns = so.now_ns;
	side->flows = calloc(b->option[CONNS], sizeof(struct flow));
	if (!side->flows || harp_stack_create(&side->stack, side->nic, &so) != 0 ||
	    harp_stack_address_add(side->stack, &addr, 24) != 0)
		bulk_die("harp_stack_create", 0);
}

static void open_flows(struct bench *b)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = PORT };
	struct harp_endpoint at = { .port = PORT };
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.rx_frames = b->option[BUDGET],
					.tx_frames = b->option[BUDGET] };
	struct harp_tcp_info info;
	struct harp_listener *listener;

	if (harp_tcp_listen(b->rx.stack, &at, &opt, &listener) != 0)
		bulk_die("harp_tcp_listen", 0);
	for (unsigned i = 0; i < b->option[CONNS]; i++) {
		struct flow *client = &b->tx.flows[i], *server = &b->rx.flows[i];

		if (harp_tcp_connect(b->tx.stack, NULL, &remote, &opt, &client->conn) != 0)
			bulk_die("harp_tcp_connect", i);
		for (unsigned turn = 0; !server->conn; turn++) {
			bulk_tick(b, &b->tx);
			bulk_tick(b, &b->rx);
			bulk_poll_tx(b);
			bulk_poll_rx(b);
			if (harp_tcp_accept(listener, &server->conn) != 0 && turn > 1000)
				bulk_die("no connection after 1000 polls", i);
		}
		harp_conn_set_user(server->conn, server);
	}
	bulk_forget_events(&b->tx);
	bulk_forget_events(&b->rx);
	harp_conn_info(b->tx.flows[0].conn, &info, sizeof(info));
	b->mss_bytes = info.snd_mss_bytes;
}

static void make(struct bench *b)
{
	uint32_t frame_size = 2048;

	while (frame_size < b->option[MTU] + 512)
		frame_size *= 2;
	struct pair_options po = { .mtu_bytes = b->option[MTU],
				   .frame_size = frame_size,
				   .frame_count = 8192,
				   .slots = b->option[SLOTS],
				   .csum_good = b->option[CSUM] };

	if (pair_create(&b->pair, &po) != 0)
		bulk_die("pair_create", 0);
	for (unsigned i = 0; i < sizeof(b->pattern); i++)
		b->pattern[i] = (uint8_t)(i % PATTERN_BYTES * 2654435761u >> 13);
	make_side(b, &b->tx, 0);
	make_side(b, &b->rx, 1);
	open_flows(b);
}

static void report_side(const struct bench *b, const struct side *side, const char *name,
			double cycles_per_ns)
{
	double packets = (double)(side->bytes - side->bytes_before) / b->mss_bytes;
	double nic = (double)(pair_cycles(side->nic) - side->nic_cycles_before);

	printf("%-12s %12.1f %12.1f %12.1f %12.1f %14.1f\n", name,
	       ((double)side->cycles - nic) / cycles_per_ns / packets,
	       side->best * b->mss_bytes / cycles_per_ns, nic / cycles_per_ns / packets,
	       side->best_nic * b->mss_bytes / cycles_per_ns, packets / (double)side->polls);
}

static void report(const struct bench *b, double cycles_per_ns)
{
	const struct side *rx = &b->rx;
	double seconds = (double)(rx->ended_ns - rx->began_ns) / 1e9;
	double bytes = (double)(rx->bytes - rx->bytes_before);

	printf("mtu %u, %u connections, %s, %u bytes a segment; ACKs a segment: %.3f\n",
	       b->option[MTU], b->option[CONNS], b->option[COPY] ? "copied" : "frames",
	       b->mss_bytes,
	       (double)stat(&b->tx, "rx_packets") / (double)stat(&b->tx, "tcp_data_segs_out"));
	printf("%-12s %12s %12s %12s %12s %14s\n", "ns a segment", "stack", "stack, best", "card",
	       "card, best", "segments/poll");
	report_side(b, &b->tx, "sender", cycles_per_ns);
	report_side(b, rx, "receiver", cycles_per_ns);
	if (b->option[THREADS])
		printf("together: %.2f Gbit/s, %.2f Mpps\n", bytes * 8 / seconds / 1e9,
		       bytes / b->mss_bytes / seconds / 1e6);
	if (stat(&b->tx, "tcp_retransmits") != 0)
		printf("sent again: %llu\n", (unsigned long long)stat(&b->tx, "tcp_retransmits"));
}

static void options(struct bench *b, int argc, char **argv)
{
	for (unsigned i = 0; i < OPTIONS; i++)
		b->option[i] = defaults[i].value;
	for (int a = 1; a < argc; a++) {
		bool known = false;

		for (unsigned i = 0; i < OPTIONS; i++) {
			size_t len = strlen(defaults[i].name);

			if (strncmp(argv[a], defaults[i].name, len) != 0 || argv[a][len] != '=')
				continue;
			b->option[i] = (unsigned)strtoul(argv[a] + len + 1, NULL, 0);
			known = true;
		}
		if (!known) {
			fprintf(stderr,
				"sim_bulk: %s: not an option; there are mtu, conns, packets, "
				"copy, burst, csum, threads, budget\n",
				argv[a]);
			exit(2);
		}
	}
	if (b->option[MTU] < 576 || b->option[MTU] > 16000 || b->option[CONNS] < 1 ||
	    b->option[CONNS] > CONNS_MAX || b->option[BURST] < 1 || b->option[BURST] > BURST_MAX)
		bulk_die("mtu is 576 to 16000, conns 1 to 1024, burst 1 to 256; not", -EINVAL);
}

int main(int argc, char **argv)
{
	struct bench *b = aligned_alloc(64, (sizeof(*b) + 63) & ~(size_t)63);
	uint64_t begin_ns, begin_cycles;
	double cycles_per_ns;

	if (!b)
		bulk_die("aligned_alloc", 0);
	memset(b, 0, sizeof(*b));
	options(b, argc, argv);
	make(b);
	begin_ns = bulk_clock_ns();
	begin_cycles = pair_clock_cycles();
	if (b->option[THREADS])
		run_threads(b);
	else
		run_turns(b);
	cycles_per_ns =
		(double)(pair_clock_cycles() - begin_cycles) / (double)(bulk_clock_ns() - begin_ns);
	report(b, cycles_per_ns);
	harp_stack_destroy(b->tx.stack);
	harp_stack_destroy(b->rx.stack);
	pair_destroy(b->pair);
	free(b->tx.flows);
	free(b->rx.flows);
	free(b);
	return 0;
}
