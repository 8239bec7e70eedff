/* SPDX-License-Identifier: Apache-2.0 */
/*
 * two_stacks.c - worked example of harp.h: two TCP stacks in one process, connected by a wire.
 *
 * A client connects to a server and sends a megabyte: the first half from plain buffers with
 * harp_conn_send(), which copies once; the second half in the stack's own frames with
 * harp_frame_alloc() and harp_conn_send_frame(), which copy nothing. The server reads the bytes in
 * place and answers with their sum. Time is a variable: the program jumps from event to event, so
 * the 50 us delay of the lossy wire costs no waiting.
 *
 * Build it against an installed HARP with: cc two_stacks.c -lharp
 * With a real NIC, only the first and last lines of main() differ: harp_instance_open() of
 * harp_host.h returns a stack on an AF_XDP queue, and now_ns is that of CLOCK_MONOTONIC.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp.h"

#define PORT 61000
#define TOTAL_BYTES (1u << 20)

static void die(const char *what, int err)
{
	fprintf(stderr, "two_stacks: %s: %s\n", what, strerror(-err));
	exit(1);
}

/* ------------------------------------------------------------------------------------------------
 * The server: accepts one connection, sums the bytes, and answers at the end of the stream.
 */
struct server {
	struct harp_stack *stack;
	struct harp_listener *listener;
	struct harp_conn *conn;
	uint64_t sum, bytes;
};

/* Reads received bytes in place; consuming them reopens the window. */
static void server_readable(struct server *s)
{
	struct iovec pieces[16];
	int n;

	while ((n = harp_conn_peek(s->conn, pieces, 16)) > 0) {
		size_t len = 0;

		for (int i = 0; i < n; i++) {
			const uint8_t *bytes = pieces[i].iov_base;

			for (size_t k = 0; k < pieces[i].iov_len; k++)
				s->sum += bytes[k];
			len += pieces[i].iov_len;
		}
		s->bytes += len;
		harp_conn_consume(s->conn, len);
	}
	if (n == 0) { /* end of stream: the client called shutdown */
		struct iovec answer = { .iov_base = &s->sum, .iov_len = sizeof(s->sum) };

		if (harp_conn_send(s->conn, &answer, 1) != (ssize_t)sizeof(s->sum))
			die("answer", -EAGAIN); /* eight bytes always fit an empty queue */
		harp_conn_close(s->conn);       /* the stack sends a FIN after the answer */
		s->conn = NULL;
	} else if (n != -EAGAIN) {
		die("server", n);
	}
}

static void server_turn(struct server *s)
{
	uint32_t events;
	struct harp_conn *conn;

	/* A listener has no events: poll it. */
	while (harp_tcp_accept(s->listener, &conn) == 0)
		s->conn = conn;
	/* Each connection with events is returned once, with all its events. */
	while ((conn = harp_stack_next_event(s->stack, &events)) != NULL) {
		if (events & HARP_EVENT_READABLE)
			server_readable(s);
	}
}

/* ------------------------------------------------------------------------------------------------
 * The client.
 */
struct client {
	struct harp_stack *stack;
	struct harp_conn *conn;
	uint64_t sum; /* of the bytes sent */
	uint32_t sent_bytes;
	uint64_t answer;
	size_t answer_bytes;
	bool finished;
};

static uint8_t client_pattern(struct client *c)
{
	uint8_t byte = (uint8_t)(c->sent_bytes * 31u >> 3);

	c->sum += byte;
	c->sent_bytes++;
	return byte;
}

/* Sends the first half from plain buffers. The stack may accept only a part of a buffer. */
static int client_send_copy(struct client *c)
{
	static uint8_t buffer[4096];
	static size_t filled, sent; /* bytes of the buffer */

	while (c->sent_bytes < TOTAL_BYTES / 2 || sent < filled) {
		struct iovec iov;
		ssize_t n;

		if (sent == filled) {
			sent = 0;
			for (filled = 0; filled < sizeof(buffer); filled++)
				buffer[filled] = client_pattern(c);
		}
		iov = (struct iovec){ .iov_base = buffer + sent, .iov_len = filled - sent };
		n = harp_conn_send(c->conn, &iov, 1);
		if (n < 0)
			return (int)n; /* -EAGAIN: HARP_EVENT_WRITABLE will follow */
		sent += (size_t)n;
	}
	return 0;
}

/* Sends the second half in frames, which the NIC reads in place. */
static int client_send_frames(struct client *c)
{
	while (c->sent_bytes < TOTAL_BYTES) {
		struct harp_frame *frame;
		int err = harp_frame_alloc(c->conn, &frame);

		if (err)
			return err;
		frame->len = 0;
		while (frame->len < frame->capacity && c->sent_bytes < TOTAL_BYTES)
			frame->data[frame->len++] = client_pattern(c);
		err = harp_conn_send_frame(c->conn, frame);
		if (err)
			return err;
	}
	return 0;
}

static void client_writable(struct client *c)
{
	int err = client_send_copy(c);

	if (!err)
		err = client_send_frames(c);
	if (!err)
		err = harp_conn_shutdown(c->conn, SHUT_WR); /* ends only the sending direction */
	if (err && err != -EAGAIN && err != -EPIPE)
		die("client", err);
}

static void client_turn(struct client *c)
{
	uint32_t events;
	struct harp_conn *conn;

	while ((conn = harp_stack_next_event(c->stack, &events)) != NULL) {
		if (events & (HARP_EVENT_CONNECTED | HARP_EVENT_WRITABLE))
			client_writable(c);
		if (events & HARP_EVENT_READABLE) {
			ssize_t n = harp_conn_recv(conn, (uint8_t *)&c->answer + c->answer_bytes,
						   sizeof(c->answer) - c->answer_bytes);

			if (n > 0)
				c->answer_bytes += (size_t)n;
		}
		if (events & HARP_EVENT_CLOSED) {
			if (harp_conn_error(conn))
				die("connection", harp_conn_error(conn));
			c->finished = true;
			return; /* main() still reads the connection's info */
		}
	}
}

/* ------------------------------------------------------------------------------------------------
 * Time: the next deadline of the stacks and of the packets in flight.
 */
static uint64_t next_event_ns(struct harp_nic *nic[2], struct harp_stack *stack[2])
{
	uint64_t next_ns = UINT64_MAX;

	for (int i = 0; i < 2; i++) {
		uint64_t stack_ns = harp_stack_next_deadline_ns(stack[i]);
		uint64_t nic_ns = nic[i]->ops->next_ns(nic[i]);

		next_ns = stack_ns < next_ns ? stack_ns : next_ns;
		next_ns = nic_ns < next_ns ? nic_ns : next_ns;
	}
	return next_ns;
}

int main(void)
{
	struct harp_wire_options wire_options = {
		.size = sizeof(wire_options),
		.seed = 1,
		.impair = { .delay_ns = 50000, .loss_ppm = 10000, .rate_bps = 10000000000ull },
	};
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = PORT };
	struct harp_endpoint any = { .port = PORT };
	struct harp_stack *stack[2];
	struct harp_nic *nic[2];
	struct harp_tcp_info info;
	struct harp_wire *wire;
	struct server server = { 0 };
	struct client client = { 0 };
	uint64_t now_ns = 0;
	int err;

	/* A wire with two ports, each with a stack and an address. */
	err = harp_wire_create(&wire, &wire_options);
	if (err)
		die("harp_wire_create", err);
	for (unsigned i = 0; i < 2; i++) {
		/* The seed makes the run reproducible. On a network, keep it 0: the stack then
		 * gets its secrets from the kernel. */
		struct harp_stack_options options = { .size = sizeof(options), .seed = i + 1 };
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		nic[i] = harp_wire_port(wire, i);
		err = harp_stack_create(&stack[i], nic[i], &options);
		if (!err)
			err = harp_stack_address_add(stack[i], &addr, 24);
		if (err)
			die("harp_stack_create", err);
	}

	client.stack = stack[0];
	server.stack = stack[1];
	err = harp_tcp_listen(server.stack, &any, NULL, &server.listener);
	if (err)
		die("harp_tcp_listen", err);
	err = harp_tcp_connect(client.stack, NULL, &remote, NULL, &client.conn);
	if (err)
		die("harp_tcp_connect", err);

	/* The main loop. With a real NIC: poll the stack, handle its events, repeat. */
	while (!client.finished) {
		harp_stack_poll(stack[0], now_ns);
		client_turn(&client);
		harp_stack_poll(stack[1], now_ns);
		server_turn(&server);
		uint64_t next_ns = next_event_ns(nic, stack);
		now_ns = next_ns > now_ns ? next_ns : now_ns;
	}

	harp_conn_info(client.conn, &info);
	printf("%u bytes in %.3f ms: %llu segments, %llu retransmitted, smoothed RTT %.1f us, "
	       "%llu bytes copied\n",
	       TOTAL_BYTES, (double)now_ns / 1e6, (unsigned long long)info.data_segs_out,
	       (unsigned long long)info.retransmits, (double)info.srtt_ns / 1e3,
	       (unsigned long long)info.tx_copied_bytes);
	harp_conn_close(client.conn);
	harp_listener_close(server.listener);
	harp_stack_destroy(stack[0]);
	harp_stack_destroy(stack[1]);
	harp_wire_destroy(wire);
	if (server.bytes != TOTAL_BYTES || client.answer_bytes != sizeof(client.answer) ||
	    client.answer != client.sum || server.sum != client.sum) {
		fprintf(stderr, "two_stacks: the sums differ\n");
		return 1;
	}
	printf("the server's sum agrees\n");
	return 0;
}
