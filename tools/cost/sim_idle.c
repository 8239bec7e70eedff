/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_idle.c - what an idle stack costs: sim_idle SECONDS CONNECTIONS [page], by the real clock.
 *
 * A stack with idle connections is driven as an engine's guardian does it: poll, sleep until its next deadline, at
 * most 100 ms, poll. Its peer is another process's in life; here it is polled only while connections are
 * opened. Prints processor time (getrusage) and how often it woke; tools/idle.py compares.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "harp_page.h"

#define SLEEP_NS_MAX 100000000u
#define CONNS_MAX 512u

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void must(int rc, const char *what)
{
	if (rc < 0) {
		fprintf(stderr, "sim_idle: %s: %s\n", what, strerror(-rc));
		exit(1);
	}
}

static double cpu_s(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void open_stacks(struct harp_stack *stack[2], struct harp_wire *wire, unsigned conns)
{
	struct harp_endpoint at = { .port = 61000 };
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 61000 };
	struct harp_listener *listener;
	struct harp_conn *conn;

	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack_options so = {
			.size = sizeof(so), .now_ns = clock_ns(), .port_min = 1024, .seed = i + 1
		};
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		must(harp_stack_create(&stack[i], harp_wire_port(wire, i), &so), "stack");
		must(harp_stack_address_add(stack[i], &addr, 24), "address");
	}
	must(harp_tcp_listen(stack[1], &at, NULL, &listener), "listen");
	for (unsigned i = 0; i < conns; i++) {
		must(harp_tcp_connect(stack[0], NULL, &remote, NULL, &conn), "connect");
		for (unsigned turns = 0; harp_tcp_accept(listener, &conn) != 0; turns++) {
			harp_stack_poll(stack[0], clock_ns());
			harp_stack_poll(stack[1], clock_ns());
			if (turns > 1000000)
				must(-110, "accept");
		}
	}
}

/* Returns the page, which must outlive the stack. */
static void *publish(struct harp_stack *stack)
{
	struct harp_page_identity identity = { .size = sizeof(identity) };
	void *page = aligned_alloc(64, harp_page_bytes(0));

	if (!page)
		must(-12, "page");
	memset(page, 0, harp_page_bytes(0));
	must(harp_stack_publish_to(stack, page, harp_page_bytes(0), &identity), "publish");
	return page;
}

/* Returns how often it woke. */
static unsigned idle(struct harp_stack *stack, uint64_t until_ns)
{
	unsigned wakes = 0;

	for (uint64_t now_ns = clock_ns(); now_ns < until_ns; now_ns = clock_ns()) {
		uint64_t deadline_ns, wake_ns = now_ns + SLEEP_NS_MAX;
		struct timespec ts;

		harp_stack_poll(stack, now_ns);
		wakes++;
		deadline_ns = harp_stack_next_deadline_ns(stack);
		if (deadline_ns < wake_ns)
			wake_ns = deadline_ns;
		ts = (struct timespec){ .tv_sec = (time_t)(wake_ns / 1000000000u),
					.tv_nsec = (long)(wake_ns % 1000000000u) };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
	}
	return wakes;
}

int main(int argc, char **argv)
{
	struct harp_wire_options options = { .size = sizeof(options), .frame_count = 8192 };
	double seconds = argc >= 3 ? atof(argv[1]) : 0, before_s;
	unsigned conns = argc >= 3 ? (unsigned)atoi(argv[2]) : 0, wakes;
	struct harp_stack *stack[2];
	struct harp_wire *wire;
	void *page = NULL;

	if (seconds <= 0 || conns > CONNS_MAX || (argc == 4 && strcmp(argv[3], "page")))
		must(-22, "usage: sim_idle SECONDS CONNECTIONS [page]");
	must(harp_wire_create(&wire, &options), "wire");
	open_stacks(stack, wire, conns);
	if (argc == 4)
		page = publish(stack[0]);
	idle(stack[0], clock_ns() + 500000000u); /* what opening left to be done and said */
	before_s = cpu_s();
	wakes = idle(stack[0], clock_ns() + (uint64_t)(seconds * 1e9));
	printf("%.6f s of processor time in %.0f s, %u wakes\n", cpu_s() - before_s, seconds,
	       wakes);
	harp_stack_destroy(stack[0]);
	harp_stack_destroy(stack[1]);
	harp_wire_destroy(wire);
	free(page);
	return 0;
}
