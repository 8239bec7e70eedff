/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_bench.c - the cost of a packet: sim_bench WHAT FLOWS PACKETS [page]
 *
 * Two stacks are connected by a wire without delay. The flows take turns: the client sends a
 * segment of 64 bytes in one frame, the server receives it and releases the frame, then sends an
 * ACK. WHAT selects the poll to measure; each handles exactly one packet:
 *	tx       harp_conn_send_frame() and the poll that sends the segment
 *	rx       the poll that receives the segment
 *	ack-tx   the poll that sends the ACK
 *	ack-rx   the poll that receives the ACK
 *	idle     a poll with nothing to do
 *	publish  the same, a millisecond after the previous poll
 * With "page", both stacks publish statistics.
 *
 * It prints nanoseconds, which depend on the machine's load. The number of instructions in
 * measured() is reproducible: tools/instructions.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harp_page.h"

enum what { TX, RX, ACK_TX, ACK_RX, IDLE, PUBLISH, WHATS };
static const char *const names[WHATS] = { "tx", "rx", "ack-tx", "ack-rx", "idle", "publish" };

struct bench {
	struct harp_wire *wire;
	struct harp_stack *stack[2];
	struct harp_conn **client, **server;
	void *page[2];
	uint64_t now_ns, busy_ns;
	enum what what;
};

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static void die(const char *what, int err)
{
	fprintf(stderr, "sim_bench: %s: %d\n", what, err);
	exit(1);
}

static uint64_t stat(const struct bench *b, unsigned side, const char *name)
{
	uint64_t value;

	if (harp_stack_stat(b->stack[side], name, &value) != 0)
		die(name, 0);
	return value;
}

/* The measured code, in a separate function for callgrind. */
__attribute__((noinline)) static void measured(struct bench *b, unsigned side,
					       struct harp_conn *conn, struct harp_frame *frame)
{
	if (frame && harp_conn_send_frame(conn, frame) != 0)
		die("harp_conn_send_frame", 0);
	harp_stack_poll(b->stack[side], b->now_ns);
}

/* One poll of a round. Sends frame first, unless NULL. */
static void step(struct bench *b, enum what what, unsigned side, struct harp_conn *conn,
		 struct harp_frame *frame)
{
	b->now_ns += what == PUBLISH ? HARP_PAGE_PERIOD_NS : 1000;
	if (what != b->what) {
		if (frame && harp_conn_send_frame(conn, frame) != 0)
			die("harp_conn_send_frame", 0);
		harp_stack_poll(b->stack[side], b->now_ns);
		return;
	}
	uint64_t rx = stat(b, side, "rx_packets"), tx = stat(b, side, "tx_packets");
	uint64_t fast = stat(b, side, "tcp_fast_path_in"), start_ns = clock_ns();

	measured(b, side, conn, frame);
	b->busy_ns += clock_ns() - start_ns;
	if (stat(b, side, "rx_packets") - rx != (what == RX || what == ACK_RX) ||
	    stat(b, side, "tcp_fast_path_in") - fast != (what == RX || what == ACK_RX) ||
	    stat(b, side, "tx_packets") - tx != (what == TX || what == ACK_TX))
		die("a poll handled other packets than the one to measure", (int)what);
}

static void drain_events(struct bench *b)
{
	uint32_t events;

	while (harp_stack_next_event(b->stack[0], &events) ||
	       harp_stack_next_event(b->stack[1], &events))
		;
}

static void run_round(struct bench *b, unsigned flow)
{
	struct harp_frame *frame;
	int err = harp_frame_alloc(b->client[flow], &frame);

	if (err)
		die("harp_frame_alloc", err);
	frame->len = 64;
	memset(frame->data, 0x5a, frame->len);
	step(b, TX, 0, b->client[flow], frame);
	step(b, RX, 1, NULL, NULL);
	err = harp_conn_recv_frame(b->server[flow], &frame);
	if (err != 1)
		die("harp_conn_recv_frame", err);
	harp_frame_release(b->server[flow], frame);
	step(b, ACK_TX, 1, NULL, NULL);
	step(b, ACK_RX, 0, NULL, NULL);
	step(b, IDLE, 0, NULL, NULL);
	if (b->what == PUBLISH)
		step(b, PUBLISH, 0, NULL, NULL);
	drain_events(b);
}

static void open_flows(struct bench *b, unsigned flows)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 5000 };
	struct harp_endpoint at = { .port = 5000 };
	struct harp_listener *listener;
	int err = harp_tcp_listen(b->stack[1], &at, NULL, &listener);

	if (err)
		die("listen", err);
	for (unsigned i = 0; i < flows; i++) {
		err = harp_tcp_connect(b->stack[0], NULL, &remote, NULL, &b->client[i]);
		if (err)
			die("connect", err);
		for (unsigned turn = 0; !b->server[i]; turn++) {
			b->now_ns += 1000;
			harp_stack_poll(b->stack[0], b->now_ns);
			harp_stack_poll(b->stack[1], b->now_ns);
			if (harp_tcp_accept(listener, &b->server[i]) != 0 && turn > 1000)
				die("no connection after 1000 polls", 0);
		}
	}
	drain_events(b);
}

static void publish(struct bench *b, unsigned side, unsigned flows)
{
	struct harp_page_identity identity = { .size = sizeof(identity), .queue = side };
	size_t bytes = harp_page_bytes(flows);

	b->page[side] = aligned_alloc(64, bytes);
	if (!b->page[side])
		die("aligned_alloc", 0);
	memset(b->page[side], 0, bytes);
	if (harp_stack_publish_to(b->stack[side], b->page[side], bytes, &identity) != 0)
		die("harp_stack_publish_to", 0);
}

static void set_up(struct bench *b, unsigned flows, bool page)
{
	struct harp_wire_options options = { .size = sizeof(options), .frame_count = 8192 };

	if (harp_wire_create(&b->wire, &options) != 0)
		die("harp_wire_create", 0);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack_options so = {
			.size = sizeof(so), .max_conns = flows, .port_min = 1024, .seed = i + 1
		};
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		if (harp_stack_create(&b->stack[i], harp_wire_port(b->wire, i), &so) != 0 ||
		    harp_stack_address_add(b->stack[i], &addr, 24) != 0)
			die("harp_stack_create", 0);
		if (page)
			publish(b, i, flows);
	}
	b->client = calloc(flows, sizeof(struct harp_conn *));
	b->server = calloc(flows, sizeof(struct harp_conn *));
	if (!b->client || !b->server)
		die("calloc", 0);
	open_flows(b, flows);
}

int main(int argc, char **argv)
{
	unsigned flows = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
	unsigned packets = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
	bool page = argc == 5 && strcmp(argv[4], "page") == 0;
	struct bench b = { .now_ns = 1000, .what = WHATS };

	for (unsigned i = 0; i < WHATS; i++) {
		if (argc >= 4 && strcmp(argv[1], names[i]) == 0)
			b.what = (enum what)i;
	}
	if (b.what == WHATS || flows == 0 || packets == 0 || argc > 5 || (argc == 5 && !page))
		die("usage: sim_bench tx|rx|ack-tx|ack-rx|idle|publish FLOWS PACKETS [page]", 0);
	set_up(&b, flows, page);
	enum what what = b.what;

	b.what = WHATS;
	for (unsigned i = 0; i < 200; i++) /* warm-up: slow start, RTT estimates, caches */
		run_round(&b, i % flows);
	b.what = what;
	for (unsigned i = 0; i < packets; i++)
		run_round(&b, i * 7919u % flows);
	printf("%s, %u flows: %.0f ns\n", names[what], flows, (double)b.busy_ns / packets);
	free(b.client);
	free(b.server);
	harp_stack_destroy(b.stack[0]);
	harp_stack_destroy(b.stack[1]);
	harp_wire_destroy(b.wire);
	free(b.page[0]);
	free(b.page[1]);
	return 0;
}
