/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bottleneck.h - TCP connections over one bottleneck under a virtual clock: senders, each a stack
 * with its own port, and one receiver. A stack is polled when its deadline or a packet is due, so
 * the results are the same on any machine.
 */
#ifndef HARP_TESTS_BOTTLENECK_H
#define HARP_TESTS_BOTTLENECK_H

#include "harp.h"
#include "harp_nic.h"

#define BOTTLENECK_SENDERS_MAX 16u

struct bottleneck_options {
	unsigned senders;
	uint32_t frame_count, packets_max;
	uint64_t delay_ns; /* one way */
	/* Path of the receiver's port if inbound, else of the first sender's. */
	struct harp_wire_impair narrow;
	struct harp_tcp_options listen, connect;
	uint64_t stagger_ns; /* between the starts of two senders */
	bool unpaced;
};

struct bottleneck {
	struct bottleneck_options options;
	struct harp_wire *wire;
	struct harp_stack *stacks[BOTTLENECK_SENDERS_MAX + 1]; /* the last one receives */
	struct harp_nic *nics[BOTTLENECK_SENDERS_MAX + 1];
	uint64_t polled_ns[BOTTLENECK_SENDERS_MAX + 1];
	struct harp_listener *listener;
	struct harp_conn *out[BOTTLENECK_SENDERS_MAX], *in[BOTTLENECK_SENDERS_MAX];
	uint64_t sent[BOTTLENECK_SENDERS_MAX], received[BOTTLENECK_SENDERS_MAX];
	bool writable[BOTTLENECK_SENDERS_MAX];
	unsigned accepted;
	uint64_t now_ns;
	uint64_t send_bytes; /* bytes that each sender sends */
};

/* Exits if that fails. */
void bottleneck_open(struct bottleneck *b, const struct bottleneck_options *options);
void bottleneck_close(struct bottleneck *b);
/* Advances to the next time at which a stack is due, and polls the due stacks. */
void bottleneck_step(struct bottleneck *b);
uint64_t bottleneck_stat(const struct bottleneck *b, unsigned stack, const char *name);
/* The wire's counters of the narrow port. */
struct harp_wire_stats bottleneck_wire(const struct bottleneck *b);

#endif
