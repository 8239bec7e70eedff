/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cost.c - what a message costs the processor: harp-cost SIZE COUNT [IN_FLIGHT]
 *
 * Both ends of one connection of the plugin that NCCL_NET_PLUGIN names, in one thread, so that nothing depends on
 * scheduling: COUNT messages of SIZE bytes, IN_FLIGHT at a time (1), then COUNT polls of a receive for which nothing
 * comes. Prints what this thread took for each, the least of five times, as far as perf_event_open() counts.
 * tools/instructions.py lanes counts instead what callgrind sees inside measured().
 */
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "net.h"

#define IN_FLIGHT_MAX 16u
#define TIMES 5u
#define OPEN_SECONDS 20
#define EVENTS 4u

static struct net net;
static void *send_comm, *recv_comm;
static void *send_mr, *recv_mr;
static uint8_t *sent, *received; /* IN_FLIGHT_MAX places */

/* ---- the processor's counters -------------------------------------------------------------------- */

static const struct {
	const char *name;
	uint64_t config;
	bool user, kernel;
} cost_events[EVENTS] = {
	{ "cycles", PERF_COUNT_HW_CPU_CYCLES, true, true },
	{ "user", PERF_COUNT_HW_CPU_CYCLES, true, false },
	{ "instructions, user", PERF_COUNT_HW_INSTRUCTIONS, true, false },
	{ "instructions, kernel", PERF_COUNT_HW_INSTRUCTIONS, false, true },
};
static int cost_fds[EVENTS];

static void cost_open(void)
{
	for (unsigned i = 0; i < EVENTS; i++) {
		struct perf_event_attr attr = {
			.type = PERF_TYPE_HARDWARE,
			.size = sizeof(attr),
			.config = cost_events[i].config,
			.exclude_user = !cost_events[i].user,
			.exclude_kernel = !cost_events[i].kernel,
			.exclude_hv = 1,
		};

		cost_fds[i] = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	}
}

static void cost_read(uint64_t counts[EVENTS])
{
	for (unsigned i = 0; i < EVENTS; i++)
		if (read(cost_fds[i], &counts[i], sizeof(counts[i])) != sizeof(counts[i]))
			counts[i] = 0;
}

/* ---- both ends ------------------------------------------------------------------------------------ */

static void check(int rc, const char *call)
{
	if (rc) {
		fprintf(stderr, "harp-cost: %s: %s\n", call, net_result_name(rc));
		exit(1);
	}
}

static void ends_open(size_t size)
{
	uint8_t handle[NET_HANDLE_BYTES] = { 0 };
	time_t until = time(NULL) + OPEN_SECONDS;
	const char *call = "init";
	void *listen_comm = NULL;

	check(net_init(&net, 1, &call), call);
	check(net_listen(&net, 0, handle, &listen_comm), "listen");
	while (!send_comm || !recv_comm) {
		if (!send_comm)
			check(net_connect(&net, 0, handle, &send_comm), "connect");
		if (!recv_comm)
			check(net_accept(&net, listen_comm, &recv_comm), "accept");
		check(time(NULL) > until, "no connection");
	}
	check(net_close_listen(&net, listen_comm), "closeListen");
	sent = calloc(IN_FLIGHT_MAX, size);
	received = calloc(IN_FLIGHT_MAX, size);
	check(!sent || !received, "no memory");
	memset(sent, 1, IN_FLIGHT_MAX * size);
	check(net_reg_mr(&net, send_comm, sent, IN_FLIGHT_MAX * size, &send_mr), "regMr");
	check(net_reg_mr(&net, recv_comm, received, IN_FLIGHT_MAX * size, &recv_mr), "regMr");
}

static void ends_close(void)
{
	check(net_dereg_mr(&net, send_comm, send_mr), "deregMr");
	check(net_dereg_mr(&net, recv_comm, recv_mr), "deregMr");
	check(net_close_send(&net, send_comm), "closeSend");
	check(net_close_recv(&net, recv_comm), "closeRecv");
	check(net_finalize(&net), "finalize");
	free(sent);
	free(received);
}

static void *post_recv(unsigned place, size_t size)
{
	void *request = NULL;

	while (!request)
		check(net_irecv(&net, recv_comm, received + place * size, size, 0, recv_mr,
				&request),
		      "irecv");
	return request;
}

static void *post_send(unsigned place, size_t size)
{
	void *request = NULL;

	while (!request)
		check(net_isend(&net, send_comm, sent + place * size, size, 0, send_mr, &request),
		      "isend");
	return request;
}

/* By turns: a sender may wait for a receiver that has to be polled. */
static void finish(void *send, void *recv)
{
	int sent_done = 0, recv_done = 0;

	while (!sent_done || !recv_done) {
		if (!sent_done)
			check(net_test(&net, send, &sent_done, NULL), "test");
		if (!recv_done)
			check(net_test(&net, recv, &recv_done, NULL), "test");
	}
}

static void *posted; /* for which nothing comes */

static void polls(uint64_t count, size_t size, unsigned in_flight)
{
	(void)size;
	(void)in_flight;
	for (uint64_t i = 0; i < count; i++) {
		int done = 0;

		check(net_test(&net, posted, &done, NULL), "test");
	}
}

static void messages(uint64_t count, size_t size, unsigned in_flight)
{
	void *sends[IN_FLIGHT_MAX], *recvs[IN_FLIGHT_MAX];

	for (uint64_t m = 0; m < count + in_flight; m++) {
		unsigned place = (unsigned)(m % in_flight);

		if (m >= in_flight)
			finish(sends[place], recvs[place]);
		if (m < count) {
			recvs[place] = post_recv(place, size);
			sends[place] = post_send(place, size);
		}
	}
}

typedef void what_fn(uint64_t count, size_t size, unsigned in_flight);

__attribute__((noinline)) static void measured(what_fn *what, uint64_t count, size_t size,
					       unsigned in_flight)
{
	what(count, size, in_flight);
}

static void report(const char *name, what_fn *what, uint64_t count, size_t size, unsigned in_flight)
{
	uint64_t least[EVENTS], before[EVENTS], after[EVENTS];

	memset(least, 0xff, sizeof(least));
	for (unsigned t = 0; t < TIMES; t++) {
		cost_read(before);
		measured(what, count, size, in_flight);
		cost_read(after);
		for (unsigned i = 0; i < EVENTS; i++)
			if (after[i] - before[i] < least[i])
				least[i] = after[i] - before[i];
	}
	printf("%-10s", name);
	for (unsigned i = 0; i < EVENTS; i++)
		if (cost_fds[i] >= 0)
			printf("  %s %.0f", cost_events[i].name, (double)least[i] / (double)count);
	printf("\n");
}

int main(int argc, char **argv)
{
	size_t size = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	unsigned in_flight = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 1;
	char error[512];

	if (!size || !count || !in_flight || in_flight > IN_FLIGHT_MAX) {
		fprintf(stderr, "usage: harp-cost SIZE COUNT [IN_FLIGHT]\n");
		return 2;
	}
	if (net_open(&net, NULL, 0, error, sizeof(error))) {
		fprintf(stderr, "harp-cost: %s\n", error);
		return 1;
	}
	ends_open(size);
	cost_open();
	messages(count, size, in_flight); /* until all is as it will be */
	report("message", messages, count, size, in_flight);
	posted = post_recv(0, size);
	report("poll", polls, count, size, in_flight);
	finish(post_send(0, size), posted);
	ends_close();
	net_close(&net);
	return 0;
}
