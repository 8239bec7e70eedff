/* SPDX-License-Identifier: Apache-2.0 */
/* talk.c - see talk.h. */
#include "talk.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "double_env.h"

#define TURNS_IDLE_MAX 64         /* idle turns after which a resting side continues */
#define IDLE_NS_MAX 5000000000ull /* without progress: a deadlock */

#define TALK_START_NS 1000000000000ull

uint64_t talk_seed;
uint64_t talk_look_ns = 1000;
static _Atomic uint64_t talk_now_ns = TALK_START_NS; /* read by threads, too */

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	uint64_t now_ns;

	if (!talk_look_ns)
		return (int)syscall(SYS_clock_gettime, clock, ts);
	now_ns = atomic_fetch_add_explicit(&talk_now_ns, talk_look_ns, memory_order_relaxed);
	ts->tv_sec = (time_t)(now_ns / 1000000000u);
	ts->tv_nsec = (long)(now_ns % 1000000000u);
	return 0;
}

uint8_t talk_pattern(uint64_t message, size_t i)
{
	return (uint8_t)(talk_seed + message * 131 + i * 7 + (i >> 8) * 3);
}

void talk_comms(struct talk *t, const struct comm_options *opt)
{
	struct comm_options one = *opt;

	one.side = COMM_SEND;
	CHECK_EQ(comm_create(&t->send, &t->pairs[0].lanes[0].lane, &one), 0);
	one.side = COMM_RECV;
	CHECK_EQ(comm_create(&t->recv, &t->pairs[0].lanes[1].lane, &one), 0);
}

void talk_attach(struct talk *t, unsigned index, enum lane_kind kind, size_t capacity)
{
	struct comm_lane_options opt = { .index = (uint8_t)index };

	fake_pair_init(&t->pairs[index], talk_seed * 31 + index, capacity);
	for (int i = 0; i < 2; i++) {
		t->pairs[index].lanes[i].lane.kind_bit = kind;
		CHECK_EQ(comm_attach(i ? t->recv : t->send, &t->pairs[index].lanes[i].lane, &opt),
			 0);
	}
	if (index >= t->lanes)
		t->lanes = index + 1;
}

static size_t size_any(struct rng *rng)
{
	switch (rng_below(rng, 8)) {
	case 0:
		return 0;
	case 1:
	case 2:
		return 1 + rng_below(rng, 64);
	case 3:
	case 4:
		return rng_below(rng, 5000);
	case 5:
		return 32760 + rng_below(rng, 16);
	case 6:
		return rng_below(rng, 100000);
	default:
		return rng_below(rng, 16) ? 8 : rng_below(rng, 700000);
	}
}

void talk_open(struct talk *t, uint64_t count, unsigned lanes)
{
	static const uint32_t eager[] = { 4096, 5000, 16384, 262144 };
	static const uint64_t harp_bytes_max[] = { 0, 512, 4096, UINT64_MAX };
	struct rng *rng = &t->pairs[0].rng;
	size_t largest = 0;
	size_t capacity;
	struct comm_options opt = { .multi_lane = lanes > 1 };
	bool small;

	memset(t, 0, sizeof(*t));
	/* A unit of 8 bytes must fit, or nothing could ever be placed. */
	rng_seed(rng, talk_seed);
	capacity = rng_below(rng, 3) ? 2000 + rng_below(rng, 200000) : 8 + rng_below(rng, 300);
	small = capacity < 308;
	fake_pair_init(&t->pairs[0], talk_seed * 7919 + 1, capacity);
	t->lanes = 1;
	t->count = count;
	t->sizes = calloc(count, sizeof(*t->sizes));
	for (uint64_t m = 0; m < count; m++) {
		t->sizes[m] = size_any(rng);
		if (small)
			t->sizes[m] %= 6000;
		if (t->sizes[m] > largest)
			largest = t->sizes[m];
	}
	t->send_depth = 1 + rng_below(rng, DEPTH_MAX);
	t->recv_depth = 1 + rng_below(rng, DEPTH_MAX);
	for (unsigned i = 0; i < DEPTH_MAX; i++) {
		t->tx[i] = malloc(largest + 1);
		t->rx[i] = malloc(largest + 16);
	}
	opt.eager_bytes = eager[rng_below(rng, 4)];
	opt.no_credit = rng_below(rng, 4) == 0;
	opt.buffered = rng_below(rng, 4) != 0;
	opt.harp_bytes_max = harp_bytes_max[rng_below(rng, 4)];
	talk_comms(t, &opt);
	for (unsigned i = 1; i < lanes; i++)
		talk_attach(t, i, rng_below(rng, 3) ? LANE_HARP : LANE_KERNEL, capacity);
}

void talk_free(struct talk *t)
{
	for (unsigned i = 0; i < DEPTH_MAX; i++) {
		free(t->tx[i]);
		free(t->rx[i]);
	}
	free(t->sizes);
	for (unsigned i = 0; i < t->lanes; i++)
		fake_pair_free(&t->pairs[i]);
}

void talk_send(struct talk *t)
{
	struct request *request;
	uint8_t *data = t->tx[t->sent % DEPTH_MAX];
	size_t size;

	if (t->sent == t->count || t->sent - t->send_done == t->send_depth)
		return;
	size = t->sizes[t->sent];
	for (size_t i = 0; i < size; i++)
		data[i] = talk_pattern(t->sent, i);
	CHECK_EQ(comm_post(t->send, size ? data : NULL, size, 7, NULL, &request), 0);
	CHECK(request != NULL);
	t->sends[t->sent++ % DEPTH_MAX] = request;
}

void talk_post(struct talk *t)
{
	struct request *request;
	size_t size;

	if (t->posted == t->count || t->posted - t->received == t->recv_depth)
		return;
	/* Often larger than the message, as NCCL's. */
	size = t->sizes[t->posted] + (rng_below(&t->pairs[0].rng, 2) ? 15 : 0);
	memset(t->rx[t->posted % DEPTH_MAX], 0xee, size);
	CHECK_EQ(comm_post(t->recv, t->rx[t->posted % DEPTH_MAX], size, 7, NULL, &request), 0);
	CHECK(request != NULL);
	t->recvs[t->posted++ % DEPTH_MAX] = request;
}

bool talk_test_send(struct talk *t)
{
	int done = 2;

	if (t->send_done == t->sent)
		return false;
	CHECK_EQ(comm_test(t->sends[t->send_done % DEPTH_MAX], &done, NULL), 0);
	if (done != 1)
		return false;
	/* Done means that the memory is the application's again. */
	memset(t->tx[t->send_done % DEPTH_MAX], 0xdd, t->sizes[t->send_done]);
	t->send_done++;
	return true;
}

void *talk_sender(void *talk)
{
	struct talk *t = talk;

	while (t->send_done < t->count && !check_failures) {
		talk_send(t);
		if (!talk_test_send(t))
			sched_yield();
	}
	return NULL;
}

bool talk_test_recv(struct talk *t)
{
	const uint8_t *data = t->rx[t->received % DEPTH_MAX];
	size_t size = 99, wrong = 0;
	int done = 2;

	if (t->received == t->posted)
		return false;
	CHECK_EQ(comm_test(t->recvs[t->received % DEPTH_MAX], &done, &size), 0);
	if (done != 1)
		return false;
	CHECK_EQ(size, t->sizes[t->received]);
	for (size_t i = 0; i < size; i++)
		wrong += data[i] != talk_pattern(t->received, i);
	CHECK_EQ(wrong, 0);
	t->received++;
	return true;
}

bool talk_turn(struct talk *t)
{
	bool owed = false;

	for (unsigned i = 0; i < t->lanes; i++) {
		const struct fake_lane *end = &t->pairs[i].lanes[1];

		owed |= fake_pair_turn(&t->pairs[i]);
		/* A receiver that has all its messages polls no more; the control thread reads its kernel lanes. */
		if (t->recv && !end->closed && end->lane.poller != &t->pairs[i].poller)
			(void)comm_run_background(t->recv, clock_now_ns());
	}
	return owed;
}

/* In a random order of steps, until all is done on both sides. */
void talk_run(struct talk *t)
{
	struct rng *rng = &t->pairs[0].rng;
	unsigned idle = 0;
	uint64_t busy_ns = clock_now_ns();
	/* Phases in which one side sleeps, so that queues run full and empty. */
	unsigned bias = 0;

	while ((t->received < t->count || t->send_done < t->count) && !check_failures) {
		uint64_t before = t->sent + t->send_done + t->posted + t->received;
		bool moved;

		if (!rng_below(rng, 200))
			bias = rng_below(rng, 3);
		if (bias != 1 && rng_below(rng, 2))
			talk_send(t);
		if (bias != 2 && rng_below(rng, 2))
			talk_post(t);
		if (bias != 1)
			talk_test_send(t);
		if (bias != 2)
			talk_test_recv(t);
		if (t->happens)
			t->happens(t);
		moved = talk_turn(t);
		moved |= before != t->sent + t->send_done + t->posted + t->received;
		if (moved) {
			idle = 0;
			busy_ns = clock_now_ns();
		} else if (++idle > TURNS_IDLE_MAX && bias) {
			bias = idle = 0;
		}
		if (idle > TURNS_IDLE_MAX && clock_now_ns() - busy_ns > IDLE_NS_MAX) {
			fprintf(stderr,
				"seed %" PRIu64 ": deadlock: sent %" PRIu64 "/%" PRIu64
				" posted %" PRIu64 "/%" PRIu64 " of %" PRIu64 "\n",
				talk_seed, t->send_done, t->sent, t->received, t->posted, t->count);
			check_failed();
		}
	}
}

void talk_close(struct talk *t)
{
	comm_close(t->send, false);
	comm_close(t->recv, false);
}
