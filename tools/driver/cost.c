/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cost.c - a workload for callgrind: harp-cost messages|polls SIZE COUNT IN_FLIGHT
 *
 * Opens both ends of one connection of the plugin in NCCL_NET_PLUGIN, in one thread, so that the
 * result does not depend on scheduling. measured() sends COUNT messages of SIZE bytes, IN_FLIGHT at
 * a time, or polls a receive without data COUNT times. tools/instructions.py counts its
 * instructions.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "net.h"

#define IN_FLIGHT_MAX 16u
#define OPEN_SECONDS 20

static struct net net;
static void *send_comm, *recv_comm, *send_mr, *recv_mr;
static uint8_t *send_buffer, *recv_buffer; /* IN_FLIGHT_MAX messages each */

static void check(int rc, const char *call)
{
	if (rc) {
		fprintf(stderr, "harp-cost: %s: %s\n", call, net_result_name(rc));
		exit(1);
	}
}

static void ends_open(size_t size)
{
	uint8_t handle[NCCL_HANDLE_BYTES] = { 0 };
	time_t deadline = time(NULL) + OPEN_SECONDS;
	const char *call = "init";
	void *listen_comm = NULL;

	check(net_init(&net, 1, &call), call);
	check((int)net.table->listen(net.ctx, 0, handle, &listen_comm), "listen");
	while (!send_comm || !recv_comm) {
		if (!send_comm)
			check(net_connect(&net, 0, handle, &send_comm), "connect");
		if (!recv_comm)
			check(net_accept(&net, listen_comm, &recv_comm), "accept");
		check(time(NULL) > deadline, "no connection");
		sched_yield();
	}
	check((int)net.table->close_listen(listen_comm), "closeListen");
	send_buffer = calloc(IN_FLIGHT_MAX, size);
	recv_buffer = calloc(IN_FLIGHT_MAX, size);
	check(!send_buffer || !recv_buffer, "no memory");
	memset(send_buffer, 1, IN_FLIGHT_MAX * size);
	check((int)net.table->reg_mr(send_comm, send_buffer, IN_FLIGHT_MAX * size, NCCL_PTR_HOST,
				     &send_mr),
	      "regMr");
	check((int)net.table->reg_mr(recv_comm, recv_buffer, IN_FLIGHT_MAX * size, NCCL_PTR_HOST,
				     &recv_mr),
	      "regMr");
}

static void ends_close(void)
{
	check((int)net.table->dereg_mr(send_comm, send_mr), "deregMr");
	check((int)net.table->dereg_mr(recv_comm, recv_mr), "deregMr");
	check((int)net.table->close_send(send_comm), "closeSend");
	check((int)net.table->close_recv(recv_comm), "closeRecv");
	check(net_finalize(&net), "finalize");
	free(send_buffer);
	free(recv_buffer);
}

static void *post_recv(unsigned slot, size_t size)
{
	void *request = NULL;

	while (!request)
		check(net_irecv(&net, recv_comm, recv_buffer + slot * size, size, 0, recv_mr,
				&request),
		      "irecv");
	return request;
}

static void *post_send(unsigned slot, size_t size)
{
	void *request = NULL;

	while (!request)
		check((int)net.table->isend(send_comm, send_buffer + slot * size, size, 0, send_mr,
					    NULL, &request),
		      "isend");
	return request;
}

/* Polls both ends in turn, because the sender may wait for the receiver. */
static void finish(void *send, void *recv)
{
	int send_done = 0, recv_done = 0;

	while (!send_done || !recv_done) {
		if (!send_done)
			check((int)net.table->test(send, &send_done, NULL), "test");
		if (!recv_done)
			check((int)net.table->test(recv, &recv_done, NULL), "test");
	}
}

static void poll_receive(uint64_t count, void *request)
{
	for (uint64_t i = 0; i < count; i++) {
		int done = 0;

		check((int)net.table->test(request, &done, NULL), "test");
	}
}

static void send_messages(uint64_t count, size_t size, unsigned in_flight)
{
	void *sends[IN_FLIGHT_MAX], *recvs[IN_FLIGHT_MAX];

	for (uint64_t m = 0; m < count + in_flight; m++) {
		unsigned slot = (unsigned)(m % in_flight);

		if (m >= in_flight)
			finish(sends[slot], recvs[slot]);
		if (m < count) {
			recvs[slot] = post_recv(slot, size);
			sends[slot] = post_send(slot, size);
		}
	}
}

/* Polls the receive `request`; if NULL, sends messages. */
__attribute__((noinline)) static void measured(uint64_t count, size_t size, unsigned in_flight,
					       void *request)
{
	if (request)
		poll_receive(count, request);
	else
		send_messages(count, size, in_flight);
}

int main(int argc, char **argv)
{
	bool polls = argc == 5 && !strcmp(argv[1], "polls");
	size_t size = argc == 5 ? strtoul(argv[2], NULL, 10) : 0;
	uint64_t count = argc == 5 ? strtoull(argv[3], NULL, 10) : 0;
	unsigned in_flight = argc == 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
	char error[512];
	void *request;

	if (!size || !count || !in_flight || in_flight > IN_FLIGHT_MAX ||
	    (!polls && strcmp(argv[1], "messages"))) {
		fprintf(stderr, "usage: harp-cost messages|polls SIZE COUNT IN_FLIGHT\n");
		return 2;
	}
	if (net_open(&net, NULL, error, sizeof(error))) {
		fprintf(stderr, "harp-cost: %s\n", error);
		return 1;
	}
	ends_open(size);
	send_messages(count, size, in_flight); /* warm-up */
	request = polls ? post_recv(0, size) : NULL;
	measured(count, size, in_flight, request);
	if (request)
		finish(post_send(0, size), request);
	ends_close();
	net_close(&net);
	return 0;
}
