/* SPDX-License-Identifier: Apache-2.0 */
/* test_lane_owed.c - what a comm has counted when it falls idle comes to the page though nobody calls it again: of rows, and of
 * comms over kernel lanes. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"
#include "double_env.h"
#include "poll/driver.h"
#include "job_page.h"
#include "poll/keeper.h"
#include "kernel_pair.h"

#define SOON_NS 20000000000ull /* some 20 ms are meant */

/* Until the lane's record shows that payload and nothing under way. */
static void page_wait(uint32_t place, uint64_t payload_bytes)
{
	uint64_t until_ns = driver_clock_ns() + SOON_NS;
	struct harp_page_lane lane = page_lane(place);

	while ((lane.value[HARP_LANE_payload_bytes] != payload_bytes ||
		lane.value[HARP_LANE_in_flight_bytes]) &&
	       driver_clock_ns() < until_ns) {
		sched_yield();
		lane = page_lane(place);
	}
	CHECK_EQ(lane.value[HARP_LANE_payload_bytes], payload_bytes);
	CHECK_EQ(lane.value[HARP_LANE_in_flight_bytes], 0);
}

static void keeper_begin(void)
{
	CHECK_EQ(keeper_start(), 0);
}

static void keeper_end(void)
{
	lane_page_rest();
	keeper_stop();
}

/* Messages one by one, each the comm's last for all it knows: a copy a message is what there is not, and none is missed. */
static void test_the_keeper_copies_what_is_owed(void)
{
	struct comm_row *comm = comm_add(1);
	struct lane_row *lane = lane_add(comm, 0, HARP_PAGE_KIND_KERNEL);
	struct lane_info tcp = { .in_flight_bytes = 7 };
	uint64_t bytes = 0, now_ns;

	keeper_begin();
	for (unsigned round = 0; round < 3; round++) {
		now_ns = driver_clock_ns();
		while (!driver_take(keeper_driver()))
			sched_yield();
		lane_page_add(lane, HARP_LANE_payload_bytes, 1);
		lane_page_tcp(lane, &tcp, now_ns);
		lane_page_publish(comm, now_ns + LANE_PAGE_PERIOD_NS, false);
		CHECK_EQ(page_lane(0).value[HARP_LANE_payload_bytes], ++bytes);
		CHECK_EQ(page_lane(0).value[HARP_LANE_in_flight_bytes], 7);
		for (unsigned m = 0; m < 100; m++) {
			lane_page_add(lane, HARP_LANE_payload_bytes, 1);
			lane_page_publish(comm, now_ns + LANE_PAGE_PERIOD_NS, true);
		}
		CHECK_EQ(page_lane(0).value[HARP_LANE_payload_bytes], bytes);
		driver_give(keeper_driver());
		page_wait(0, bytes += 100);
		/* Nothing is owed now. It looks once more, and rests until it is roused. */
		while (round && driver_clock_ns() < now_ns + 4 * KEEPER_BEAT_NS)
			sched_yield();
	}
	/* Who goes is counted at once, whatever the keeper does. */
	while (!driver_take(keeper_driver()))
		sched_yield();
	lane_page_add(lane, HARP_LANE_payload_bytes, 10);
	lane_page_publish(comm, now_ns, true);
	lane_page_comm_remove(comm);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_KERNEL).value[HARP_RAIL_payload_bytes], bytes + 10);
	driver_give(keeper_driver());
	keeper_end();
}

/* ---- many at a time --------------------------------------------------------------------------- */

#define THREADS 4u
#define ROUNDS 20000u

struct ower {
	struct comm_row *comm;
	struct lane_row *lane;
};

static void *ower_main(void *arg)
{
	struct ower *me = arg;

	for (unsigned i = 1; i <= ROUNDS; i++) {
		lane_page_add(me->lane, HARP_LANE_payload_bytes, 3);
		lane_page_publish(me->comm, driver_clock_ns(), true);
	}
	return NULL;
}

/* Whatever the keeper is at when the last number comes, it comes to the page. */
static void test_none_is_missed(void)
{
	struct comm_row *comms[2] = { comm_add(9), comm_add(10) };
	struct ower owers[THREADS];
	pthread_t threads[THREADS];

	keeper_begin();
	for (unsigned i = 0; i < THREADS; i++) {
		owers[i].comm = comms[i % 2];
		owers[i].lane = lane_add(comms[i % 2], i, HARP_PAGE_KIND_HARP);
		CHECK_EQ(pthread_create(&threads[i], NULL, ower_main, &owers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < THREADS; i++)
		page_wait(i, 3 * ROUNDS);
	lane_page_comm_remove(comms[0]);
	lane_page_comm_remove(comms[1]);
	keeper_end();
}

/* ---- comms ------------------------------------------------------------------------------------ */

static void message(struct pair *pair)
{
	static uint8_t tx[8], rx[8];
	struct request *send = NULL, *recv = NULL;
	int sent = 0, received = 0;

	CHECK_EQ(plugin_irecv(pair->recv, rx, sizeof(rx), 0, NULL, &recv), 0);
	CHECK_EQ(plugin_isend(pair->send, tx, sizeof(tx), 0, NULL, &send), 0);
	while ((!sent || !received) && !check_failures) {
		if (!sent)
			CHECK_EQ(plugin_test(send, &sent, NULL), 0);
		if (!received)
			CHECK_EQ(plugin_test(recv, &received, NULL), 0);
	}
}

static void comm_wait(uint32_t place, uint64_t requests)
{
	uint64_t until_ns = driver_clock_ns() + SOON_NS;

	while (page_comm(place).value[HARP_COMM_requests] != requests &&
	       driver_clock_ns() < until_ns)
		sched_yield();
	CHECK_EQ(page_comm(place).value[HARP_COMM_requests], requests);
}

/* Both ends' last messages are counted before anybody calls again. */
static void comms_fall_idle(unsigned lanes)
{
	struct pair pair;
	uint64_t messages = 0;

	env_config.page_flows = 4;
	env_config.kernel_lanes = lanes;
	pair_open(&pair);
	reader = page_find();
	CHECK(reader >= 0);
	for (unsigned burst = 1; burst <= 16; burst *= 4) {
		for (unsigned m = 0; m < burst; m++, messages++)
			message(&pair);
		comm_wait(0, messages);
		comm_wait(1, messages);
	}
	pair_close(&pair);
	close(reader);
	env_config.kernel_lanes = 1;
}

int main(void)
{
	plugin_devices_load(NULL);
	page_begin();
	test_the_keeper_copies_what_is_owed();
	page_end();
	page_begin();
	test_none_is_missed();
	page_end();
	for (unsigned again = 0; again < 2; again++) {
		comms_fall_idle(1);
		comms_fall_idle(4);
	}
	return check_done();
}
