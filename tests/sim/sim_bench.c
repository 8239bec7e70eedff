/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_bench.c - what a segment costs: sim_bench FLOWS SEGMENTS [BYTES], two stacks, no wire to speak of.
 *
 * One flow at a time sends a segment in a frame of its own, the other side takes the frame and gives it
 * back. Prints nanoseconds a segment for both stacks together and for a poll with nothing to do. The
 * machine may be busy, so what repeats is the count of instructions:
 *	valgrind --tool=callgrind --toggle-collect=harp_stack_poll sim_bench 100 20000
 *	callgrind_annotate --inclusive=yes callgrind.out.*
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "harp.h"

#define BENCH_IDLE_POLLS 1000000u

struct bench {
	struct harp_wire *wire;
	struct harp_stack *stack[2];
	struct harp_conn **client, **server;
	uint64_t now_ns;
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

static void poll_both(struct bench *b)
{
	b->now_ns += 1000;
	harp_stack_poll(b->stack[0], b->now_ns);
	harp_stack_poll(b->stack[1], b->now_ns);
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
			poll_both(b);
			if (harp_tcp_accept(listener, &b->server[i]) != 0 && turn > 1000)
				die("no connection after 1000 polls", 0);
		}
	}
}

static void send_one(struct bench *b, unsigned flow, uint32_t bytes)
{
	struct harp_frame *frame;
	uint32_t events;
	int err = harp_frame_alloc(b->client[flow], &frame);

	if (err)
		die("harp_frame_alloc", err);
	frame->len = bytes < frame->capacity ? bytes : frame->capacity;
	err = harp_conn_send_frame(b->client[flow], frame);
	if (err)
		die("harp_conn_send_frame", err);
	poll_both(b);
	err = harp_conn_recv_frame(b->server[flow], &frame);
	for (unsigned turn = 0; err == -11 && turn < 100; turn++) {
		poll_both(b);
		err = harp_conn_recv_frame(b->server[flow], &frame);
	}
	if (err != 1)
		die("harp_conn_recv_frame", err);
	harp_frame_release(b->server[flow], frame);
	poll_both(b); /* the ACK */
	while (harp_stack_next_event(b->stack[0], &events) ||
	       harp_stack_next_event(b->stack[1], &events))
		;
}

int main(int argc, char **argv)
{
	unsigned flows = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
	unsigned segments = argc > 2 ? (unsigned)atoi(argv[2]) : 100000;
	uint32_t bytes = argc > 3 ? (uint32_t)atoi(argv[3]) : 64;
	struct harp_wire_options options = { .size = sizeof(options), .frame_count = 8192 };
	struct bench b = { .now_ns = 1000 };
	uint64_t start_ns, busy_ns;

	if (flows == 0 || segments == 0 || harp_wire_create(&b.wire, &options) != 0)
		die("usage: sim_bench FLOWS SEGMENTS [BYTES]", 0);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack_options so = {
			.size = sizeof(so), .max_conns = flows, .port_min = 1024, .seed = i + 1
		};
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		if (harp_stack_create(&b.stack[i], harp_wire_port(b.wire, i), &so) != 0 ||
		    harp_stack_address_add(b.stack[i], &addr, 24) != 0)
			die("harp_stack_create", 0);
	}
	b.client = calloc(flows, sizeof(struct harp_conn *));
	b.server = calloc(flows, sizeof(struct harp_conn *));
	if (!b.client || !b.server)
		die("calloc", 0);
	open_flows(&b, flows);
	start_ns = clock_ns();
	for (unsigned i = 0; i < segments; i++)
		send_one(&b, i % flows, bytes);
	busy_ns = clock_ns() - start_ns;
	start_ns = clock_ns();
	for (unsigned i = 0; i < BENCH_IDLE_POLLS && segments > 1000; i++)
		harp_stack_poll(b.stack[0], b.now_ns);
	printf("%u flows: %.0f ns a segment and its ACK (both stacks and the wire), %.1f ns an idle poll\n",
	       flows, (double)busy_ns / segments,
	       (double)(clock_ns() - start_ns) / BENCH_IDLE_POLLS);
	free(b.client);
	free(b.server);
	harp_stack_destroy(b.stack[0]);
	harp_stack_destroy(b.stack[1]);
	harp_wire_destroy(b.wire);
	return 0;
}
