/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_rig.h - two comms over joined fake lanes, for rules one by one: opened with the lanes that a test wishes, turned
 * until requests are done. rig_open_fed() has only a receiver, whose lanes the test feeds by hand.
 */
#ifndef HARP_TESTS_COMM_RIG_H
#define HARP_TESTS_COMM_RIG_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "double_env.h"
#include "talk.h"

#define WAIT_NS 20000000000ull /* of the rig's time: whatever is waited for comes sooner */

static inline void rig_open(struct talk *t, unsigned lanes, uint32_t eager_bytes, size_t capacity)
{
	struct comm_options opt = { .multi_lane = true, .eager_bytes = eager_bytes };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	fake_pair_init(&t->pairs[0], 77, capacity);
	t->lanes = 1;
	talk_comms(t, &opt);
	for (unsigned i = 1; i < lanes; i++)
		talk_attach(t, i, LANE_HARP, capacity);
}

/* Only a receiver, to be fed by hand. */
static inline void rig_open_fed(struct talk *t, unsigned lanes, uint32_t eager_bytes)
{
	struct comm_options opt = { .side = COMM_RECV,
				    .multi_lane = true,
				    .eager_bytes = eager_bytes };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	for (t->lanes = 0; t->lanes < lanes; t->lanes++) {
		struct lane *lane = &t->pairs[t->lanes].lanes[1].lane;

		fake_pair_init(&t->pairs[t->lanes], 78, 100000);
		opt.lane.index = (uint8_t)t->lanes;
		if (t->lanes)
			CHECK_EQ(comm_attach(t->recv, lane, &opt.lane), 0);
		else
			CHECK_EQ(comm_create(&t->recv, lane, &opt), 0);
	}
}

static inline void rig_open_kept(struct talk *t, unsigned lanes)
{
	struct comm_options opt = { .multi_lane = true, .buffered = true, .eager_bytes = 1048576 };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	for (unsigned i = 0; i < lanes; i++) {
		if (i) {
			talk_attach(t, i, LANE_HARP, 100000);
			continue;
		}
		fake_pair_init(&t->pairs[0], 79, 100000);
		t->lanes = 1;
		talk_comms(t, &opt);
	}
}

static inline void rig_free(struct talk *t)
{
	if (t->send)
		comm_close(t->send, false);
	if (t->recv)
		comm_close(t->recv, false);
	for (unsigned i = 0; i < t->lanes; i++)
		fake_pair_free(&t->pairs[i]);
}

/* Turns until the request is done, or the error. */
static inline int rig_wait(struct talk *t, struct request *request, size_t *size)
{
	uint64_t until_ns = clock_now_ns() + WAIT_NS;
	int done = 0, rc = 0;

	while (!rc && !done && clock_now_ns() < until_ns) {
		(void)talk_turn(t);
		rc = comm_test(request, &done, size);
	}
	if (!rc && !done)
		return -ETIME;
	return rc;
}

/* Both: a sender's lanes are looked at as long as its application asks. */
static inline void rig_both(struct talk *t, struct request *send, struct request *recv)
{
	uint64_t until_ns = clock_now_ns() + WAIT_NS;
	int sent = 0, received = 0;

	while ((!sent || !received) && clock_now_ns() < until_ns && !check_failures) {
		(void)talk_turn(t);
		if (!sent)
			CHECK_EQ(comm_test(send, &sent, NULL), 0);
		if (!received)
			CHECK_EQ(comm_test(recv, &received, NULL), 0);
	}
	CHECK(sent && received);
}

static inline struct request *rig_post(struct comm *comm, void *data, size_t size)
{
	struct request *request = NULL;

	CHECK_EQ(comm_post(comm, data, size, 0, NULL, &request), 0);
	CHECK(request != NULL);
	return request;
}

static inline void rig_turns(struct talk *t, unsigned turns)
{
	for (unsigned i = 0; i < turns; i++)
		(void)talk_turn(t);
}

/* A DATA record comes by a lane, its bytes numbered from the seed. */
static inline void rig_feed(struct fake_lane *lane, uint64_t message, uint64_t total,
			    uint64_t offset, uint32_t length, int seed)
{
	struct record record = { .type = RECORD_DATA,
				 .message = message,
				 .total = total,
				 .offset = offset,
				 .length = length };
	uint8_t header[RECORD_HEADER_BYTES];
	uint8_t *bytes = malloc(length + 1);

	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)((uint64_t)seed + offset + i);
	record_encode(header, &record);
	CHECK_EQ(fake_inject(lane, header, sizeof(header)), sizeof(header));
	CHECK_EQ(fake_inject(lane, bytes, length), length);
	free(bytes);
}

static inline bool rig_fed(const uint8_t *bytes, size_t length, int seed)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (uint8_t)((uint64_t)seed + i))
			return false;
	return true;
}

#endif
