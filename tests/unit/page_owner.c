/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_owner.c - two stacks that publish statistics pages: page_owner IFNAME LABEL CONNECTIONS.
 *
 * The stacks share a wire and publish as queues 0 and 1 of IFNAME. The program executes commands
 * from standard input and answers each with "ok":
 * 	run N       N rounds: each connection transfers 1000 bytes from queue 0 to queue 1
 * 	lose PPM    the wire drops PPM of a million packets
 * 	twice PPM   the wire duplicates PPM of a million packets
 * 	note TEXT   queue 0's stack publishes a note
 * 	latency NS  queue 0's stack records a message latency
 * 	xstat NAME  adds a driver counter of value 7 to queue 0
 * 	xstats N    adds N driver counters with generated names
 * 	tear        queue 0's page looks as if its owner had died during a write
 * 	end         destroys both stacks; the pages stay until the input ends
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "harp_page.h"

#define CONNS_MAX 64u
#define ROUND_NS 50000u

struct owner {
	struct harp_wire *wire;
	struct harp_stack *stack[2];
	uint8_t *page[2];
	struct harp_conn *from[CONNS_MAX], *to[CONNS_MAX];
	unsigned conns;
	uint64_t now_ns;
};

static void check(int rc, const char *what)
{
	if (rc < 0) {
		fprintf(stderr, "page_owner: %s: %s\n", what, strerror(-rc));
		exit(1);
	}
}

static uint64_t clock_ns(clockid_t which)
{
	struct timespec ts;

	clock_gettime(which, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void poll_both(struct owner *o)
{
	o->now_ns += ROUND_NS;
	harp_stack_poll(o->stack[0], o->now_ns);
	harp_stack_poll(o->stack[1], o->now_ns);
}

static void run_round(struct owner *o)
{
	static uint8_t bytes[1000];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	uint8_t buffer[4096];

	for (unsigned i = 0; i < o->conns; i++)
		(void)!harp_conn_send(o->from[i], &iov, 1);
	poll_both(o);
	poll_both(o);
	for (unsigned i = 0; i < o->conns; i++)
		while (harp_conn_recv(o->to[i], buffer, sizeof(buffer)) > 0)
			;
	poll_both(o);
}

static void open_stack(struct owner *o, unsigned i, const char *ifname, const char *label)
{
	struct harp_stack_options so = { .size = sizeof(so), .now_ns = o->now_ns, .seed = i + 1 };
	struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));
	struct harp_page_identity identity = {
		.size = sizeof(identity),
		.pid = (uint32_t)getpid(),
		.queue = i,
		.instance = i,
		.start_wall_ns = clock_ns(CLOCK_REALTIME),
	};
	size_t bytes = harp_page_bytes(CONNS_MAX);
	int fd;

	check(harp_stack_create(&o->stack[i], harp_wire_port(o->wire, i), &so), "stack");
	check(harp_stack_address_add(o->stack[i], &addr, 24), "address");
	check(harp_page_create_fd(CONNS_MAX, &fd), "page");
	o->page[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (o->page[i] == MAP_FAILED)
		check(-12, "mmap");
	snprintf(identity.ifname, sizeof(identity.ifname), "%s", ifname);
	snprintf(identity.label, sizeof(identity.label), "%s", label);
	snprintf(identity.describe, sizeof(identity.describe), "a wire in memory");
	check(harp_stack_publish_to(o->stack[i], o->page[i], bytes, &identity), "publish");
}

static void connect_all(struct owner *o)
{
	struct harp_endpoint local = { .port = 61000 };
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 61000 };
	struct harp_listener *listener;
	char label[64];

	check(harp_tcp_listen(o->stack[1], &local, NULL, &listener), "listen");
	for (unsigned i = 0; i < o->conns; i++) {
		check(harp_tcp_connect(o->stack[0], NULL, &remote, NULL, &o->from[i]), "connect");
		snprintf(label, sizeof(label), "send comm %u", i);
		harp_conn_set_label(o->from[i], label);
		for (unsigned turns = 0; harp_tcp_accept(listener, &o->to[i]) != 0; turns++) {
			poll_both(o);
			if (turns > 1000)
				check(-110, "accept");
		}
	}
}

static void count_xstat(struct owner *o, const char *name)
{
	static struct harp_page_xstat all[2 * HARP_PAGE_XSTATS_MAX];
	static unsigned count;

	if (count == sizeof(all) / sizeof(*all))
		check(-28, "xstats");
	snprintf(all[count].name, sizeof(all->name), "%.63s", name);
	all[count++].value = 7;
	harp_stack_publish_xstats(o->stack[0], all, count, o->now_ns);
}

static void execute(struct owner *o, char *line)
{
	struct harp_wire_impair impair = { 0 };
	char name[64];

	line[strcspn(line, "\n")] = '\0';
	if (!strncmp(line, "run ", 4)) {
		for (long i = strtol(line + 4, NULL, 10); i > 0; i--)
			run_round(o);
	} else if (!strncmp(line, "lose ", 5)) {
		impair.loss_ppm = (uint32_t)strtoul(line + 5, NULL, 10);
		check(harp_wire_set_impair(o->wire, 0, &impair), "impair");
	} else if (!strncmp(line, "twice ", 6)) {
		impair.duplicate_ppm = (uint32_t)strtoul(line + 6, NULL, 10);
		check(harp_wire_set_impair(o->wire, 0, &impair), "impair");
	} else if (!strncmp(line, "note ", 5)) {
		harp_stack_publish_note(o->stack[0], line + 5);
	} else if (!strncmp(line, "latency ", 8)) {
		harp_stack_observe(o->stack[0], HARP_HISTOGRAM_message_latency,
				   strtoull(line + 8, NULL, 10));
	} else if (!strncmp(line, "xstat ", 6)) {
		count_xstat(o, line + 6);
	} else if (!strncmp(line, "xstats ", 7)) {
		for (long i = 0; i < strtol(line + 7, NULL, 10); i++) {
			snprintf(name, sizeof(name), "rx_q%ld_packets", i);
			count_xstat(o, name);
		}
	} else if (!strcmp(line, "tear")) {
		o->page[0][((struct harp_page_header *)o->page[0])
				   ->parts[HARP_PAGE_COUNTERS]
				   .offset] |= 1;
	} else if (!strcmp(line, "end")) {
		harp_stack_destroy(o->stack[0]);
		harp_stack_destroy(o->stack[1]);
	} else {
		check(-22, line);
	}
}

int main(int argc, char **argv)
{
	struct harp_wire_options options = { .size = sizeof(options), .seed = 7 };
	struct owner o = { .now_ns = clock_ns(CLOCK_MONOTONIC) };
	char line[256];

	o.conns = argc == 4 ? (unsigned)atoi(argv[3]) : CONNS_MAX + 1;
	if (o.conns > CONNS_MAX)
		check(-22, "usage: page_owner IFNAME LABEL CONNECTIONS");
	check(harp_wire_create(&o.wire, &options), "wire");
	for (unsigned i = 0; i < 2; i++)
		open_stack(&o, i, argv[1], argv[2]);
	connect_all(&o);
	do {
		printf("ok\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		execute(&o, line);
	} while (true);
}
