/* SPDX-License-Identifier: Apache-2.0 */
/* bottleneck.c - see bottleneck.h. */
#include "bottleneck.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tcp.h"

#define PORT 61000
#define POLL_NS 500u /* minimum time between two polls of a stack */

static void die(const char *what, int err)
{
	fprintf(stderr, "%s: %s\n", what, strerror(-err));
	exit(2);
}

static unsigned receiver_of(const struct bottleneck *b)
{
	return b->options.senders;
}

static unsigned narrow_port(const struct bottleneck *b)
{
	return b->options.narrow.inbound ? receiver_of(b) : 0;
}

/* Hook between receiving and transmitting: disables pacing. */
static void unpace(void *ctx, uint64_t now_ns)
{
	struct bottleneck *b = ctx;

	(void)now_ns;
	for (unsigned i = 0; i < b->options.senders; i++)
		if (b->out[i])
			b->out[i]->cc.pacing_bytes_per_s = 0;
}

static struct harp_addr addr_of(unsigned stack)
{
	return harp_addr_v4(10, 0, 0, (uint8_t)(stack + 1));
}

void bottleneck_open(struct bottleneck *b, const struct bottleneck_options *options)
{
	struct harp_wire_options wire = { .size = sizeof(wire),
					  .ports = options->senders + 1,
					  .frame_count = options->frame_count,
					  .packets_max = options->packets_max,
					  .seed = 1,
					  .impair = { .delay_ns = options->delay_ns } };
	struct harp_endpoint at = { .port = PORT };
	int err;

	*b = (struct bottleneck){ .options = *options, .now_ns = 1 };
	err = harp_wire_create(&b->wire, &wire);
	if (!err)
		err = harp_wire_set_impair(b->wire, narrow_port(b), &options->narrow);
	for (unsigned i = 0; i <= options->senders && !err; i++) {
		struct harp_stack_options stack = { .size = sizeof(stack),
						    .max_conns = 64,
						    .seed = i + 1 };
		struct harp_addr addr = addr_of(i);

		stack.hooks.ctx = b;
		stack.hooks.requests = options->unpaced ? unpace : NULL;
		b->nics[i] = harp_wire_port(b->wire, i);
		err = harp_stack_create(&b->stacks[i], b->nics[i], &stack);
		if (!err)
			err = harp_stack_address_add(b->stacks[i], &addr, 24);
	}
	if (!err)
		err = harp_tcp_listen(b->stacks[receiver_of(b)], &at, &options->listen,
				      &b->listener);
	if (err)
		die("cannot create the bottleneck", err);
}

void bottleneck_close(struct bottleneck *b)
{
	for (unsigned i = 0; i <= b->options.senders; i++)
		harp_stack_destroy(b->stacks[i]);
	harp_wire_destroy(b->wire);
}

static void sender_start(struct bottleneck *b, unsigned i)
{
	struct harp_endpoint to = { .addr = addr_of(receiver_of(b)), .port = PORT };
	int err = harp_tcp_connect(b->stacks[i], NULL, &to, &b->options.connect, &b->out[i]);

	if (err)
		die("connect", err);
}

static void sender_send(struct bottleneck *b, unsigned i)
{
	static uint8_t bytes[65536];
	struct harp_conn *conn;
	uint32_t events;

	while ((conn = harp_stack_next_event(b->stacks[i], &events)) != NULL) {
		if (events & HARP_EVENT_CLOSED)
			die("a connection closed", harp_conn_error(conn));
		if (events & (HARP_EVENT_CONNECTED | HARP_EVENT_WRITABLE))
			b->writable[i] = true;
	}
	while (b->writable[i] && b->sent[i] < b->send_bytes) {
		uint64_t left = b->send_bytes - b->sent[i];
		struct iovec iov = { bytes, left < sizeof(bytes) ? left : sizeof(bytes) };
		ssize_t got = harp_conn_send(b->out[i], &iov, 1);

		b->writable[i] = got > 0;
		b->sent[i] += got > 0 ? (uint64_t)got : 0;
	}
}

static void receiver_receive(struct bottleneck *b)
{
	struct harp_stack *stack = b->stacks[receiver_of(b)];
	struct harp_conn *conn;
	struct iovec iov[16];
	uint32_t events;
	int n;

	while (harp_tcp_accept(b->listener, &conn) == 0) {
		struct harp_endpoint remote;

		harp_conn_endpoints(conn, NULL, &remote);
		b->in[remote.addr.bytes[15] - 1] = conn;
		b->accepted++;
	}
	while (harp_stack_next_event(stack, &events))
		;
	for (unsigned i = 0; i < b->options.senders; i++) {
		while (b->in[i] && (n = harp_conn_peek(b->in[i], iov, 16)) > 0) {
			size_t bytes = 0;

			for (int part = 0; part < n; part++)
				bytes += iov[part].iov_len;
			harp_conn_consume(b->in[i], bytes);
			b->received[i] += bytes;
		}
	}
}

static uint64_t due_ns(const struct bottleneck *b, unsigned i)
{
	uint64_t at_ns = harp_stack_next_deadline_ns(b->stacks[i]);
	uint64_t nic_ns = b->nics[i]->ops->next_ns(b->nics[i]);
	uint64_t start_ns = i * b->options.stagger_ns;

	at_ns = nic_ns < at_ns ? nic_ns : at_ns;
	if (i < b->options.senders && !b->out[i])
		at_ns = start_ns < at_ns ? start_ns : at_ns;
	if (i < b->options.senders && b->writable[i] && b->sent[i] < b->send_bytes)
		at_ns = b->now_ns;
	return at_ns > b->polled_ns[i] + POLL_NS ? at_ns : b->polled_ns[i] + POLL_NS;
}

void bottleneck_step(struct bottleneck *b)
{
	uint64_t due[BOTTLENECK_SENDERS_MAX + 1], next_ns = UINT64_MAX;

	for (unsigned i = 0; i <= b->options.senders; i++) {
		due[i] = due_ns(b, i);
		next_ns = due[i] < next_ns ? due[i] : next_ns;
	}
	if (next_ns == UINT64_MAX)
		die("no stack has a deadline", 0);
	b->now_ns = next_ns;
	for (unsigned i = 0; i <= b->options.senders; i++) {
		if (due[i] > b->now_ns)
			continue;
		if (i < b->options.senders && !b->out[i] && b->now_ns >= i * b->options.stagger_ns)
			sender_start(b, i);
		harp_stack_poll(b->stacks[i], b->now_ns);
		b->polled_ns[i] = b->now_ns;
		if (i < b->options.senders)
			sender_send(b, i);
		else
			receiver_receive(b);
	}
}

uint64_t bottleneck_stat(const struct bottleneck *b, unsigned stack, const char *name)
{
	uint64_t value = 0;

	if (harp_stack_stat(b->stacks[stack], name, &value))
		die(name, -ENOENT);
	return value;
}

struct harp_wire_stats bottleneck_wire(const struct bottleneck *b)
{
	struct harp_wire_stats stats;

	harp_wire_stats(b->wire, narrow_port(b), &stats);
	return stats;
}
