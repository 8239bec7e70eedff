/* SPDX-License-Identifier: Apache-2.0 */
/*
 * talk.h - a conversation over two comms whose lanes are joined in memory: messages of all sizes, posted, sent and
 * tested in a random order of steps, until everything has arrived unaltered. One driver for each lane.
 *
 * Time is the rig's own: clock_gettime() is wrapped by the linker, and each look at the clock takes talk_look_ns. So
 * a seed runs the same way however busy the machine is.
 */
#ifndef HARP_TESTS_TALK_H
#define HARP_TESTS_TALK_H

#include "comm/comm.h"
#include "fake_lane.h"

#define DEPTH_MAX PLUGIN_REQUESTS_MAX

extern uint64_t talk_seed;    /* of the present conversation, for messages */
extern uint64_t talk_look_ns; /* 0: the machine's clock, for real threads */

struct talk {
	struct fake_pair pairs[COMM_LANES_MAX]; /* lane i of both comms */
	unsigned lanes;
	struct comm *send, *recv;
	uint64_t count;
	size_t *sizes; /* of each message */
	unsigned send_depth, recv_depth;
	struct request *sends[DEPTH_MAX], *recvs[DEPTH_MAX];
	uint8_t *tx[DEPTH_MAX], *rx[DEPTH_MAX];
	uint64_t sent, send_done, posted, received;
	/* Called at each step; may do things to lanes. NULL: nothing happens to them. */
	void (*happens)(struct talk *t);
	void *ctx;
};

uint8_t talk_pattern(uint64_t message, size_t i);
/* Two comms over pairs[0], of which the caller has made the pair. */
void talk_comms(struct talk *t, const struct comm_options *opt);
/* One more lane; kind for both ends. */
void talk_attach(struct talk *t, unsigned index, enum lane_kind kind, size_t capacity);
/* count messages of any sizes. several: lanes of them, else one. */
void talk_open(struct talk *t, uint64_t count, unsigned lanes);
void talk_free(struct talk *t);
void talk_send(struct talk *t);
void talk_post(struct talk *t);
bool talk_test_send(struct talk *t);
/* A thread: sends all of the struct talk. */
void *talk_sender(void *talk);
bool talk_test_recv(struct talk *t);
/* One turn of every lane. True: something happened. */
bool talk_turn(struct talk *t);
void talk_run(struct talk *t);
void talk_close(struct talk *t);

#endif
