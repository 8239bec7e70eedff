/* SPDX-License-Identifier: Apache-2.0 */
/* test_lane_page.c - the job's page: rows and their records, many threads, no room, no page, a fork. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "double_env.h"
#include "poll/driver.h"
#include "process/forkguard.h"
#include "job_page.h"
#include "stats/lane_page.h"

/* A message of two lanes, one of which dies: what is shown, and what stays when it is all over. */
static void test_the_life_of_a_comm(void)
{
	struct comm_row *comm = comm_add(77);
	struct lane_row *harp = lane_add(comm, 0, HARP_PAGE_KIND_HARP);
	struct lane_row *kernel = lane_add(comm, 1, HARP_PAGE_KIND_KERNEL);
	struct lane_info tcp = { .srtt_ns = 30000, .in_flight_bytes = 512, .retransmits = 3 };
	uint64_t now_ns = driver_clock_ns() + 1000000000u;

	CHECK_EQ(page_comm(0).value[HARP_COMM_state], HARP_PAGE_COMM_OPEN);
	CHECK_EQ(page_comm(0).value[HARP_COMM_comm_id], 77);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_open], 2);
	CHECK_STR(page_comm(0).ifname, "lo");
	CHECK_EQ(page_lane(0).local_port, 5000);
	CHECK_EQ(page_lane(1).value[HARP_LANE_kind], HARP_PAGE_KIND_KERNEL);
	CHECK_EQ(page_lane(1).value[HARP_LANE_comm], page_comm(0).value[HARP_COMM_serial]);
	CHECK_EQ(page_status().flows_open, 2);
	CHECK_EQ(page_counter(HARP_JOB_lanes_opened), 2);

	lane_page_add(harp, HARP_LANE_payload_bytes, 1000);
	lane_page_add(harp, HARP_LANE_sent_bytes, 1040);
	lane_page_add(harp, HARP_LANE_chunks_sent, 2);
	lane_page_add(kernel, HARP_LANE_payload_bytes, 3000);
	lane_page_add(kernel, HARP_LANE_sent_bytes, 3040);
	CHECK(lane_page_wants_tcp(harp, now_ns));
	lane_page_tcp(harp, &tcp, now_ns);
	CHECK(!lane_page_wants_tcp(harp, now_ns + 1000000));
	lane_page_publish(comm, now_ns += LANE_PAGE_PERIOD_NS, false);
	CHECK_EQ(page_lane(0).value[HARP_LANE_payload_bytes], 1000);
	CHECK_EQ(page_lane(0).value[HARP_LANE_in_flight_bytes], 512);
	CHECK_EQ(page_lane(0).value[HARP_LANE_updated_ns], now_ns);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).srtt.count, 1);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).srtt.sum_ns, 30000);

	/* Before the next copy's time nothing is written, unless the comm falls idle and there is no keeper. */
	lane_page_add(harp, HARP_LANE_payload_bytes, 24);
	lane_page_publish(comm, now_ns + LANE_PAGE_PERIOD_NS - 1, false);
	CHECK_EQ(page_lane(0).value[HARP_LANE_payload_bytes], 1000);
	lane_page_comm_done(comm, 3, 4024);
	lane_page_publish(comm, now_ns + 1, true);
	CHECK_EQ(page_lane(0).value[HARP_LANE_payload_bytes], 1024);
	CHECK_EQ(page_lane(0).value[HARP_LANE_in_flight_bytes], 0);
	CHECK_EQ(page_comm(0).value[HARP_COMM_bytes], 4024);
	CHECK_EQ(page_comm(0).value[HARP_COMM_bytes_mixed], 4024);
	CHECK_EQ(page_counter(HARP_JOB_messages_mixed), 1);

	/* One dies; its chunk goes over the other; a new lane takes its place, and its numbers go on. */
	lane_page_add(harp, HARP_LANE_chunks_moved_away, 1);
	lane_page_chunk_moved_here(kernel);
	lane_page_lane_stalled(harp, true);
	lane_page_lane_stalled(harp, true);
	lane_page_lane_died(harp, WHO(0), -ECONNRESET);
	lane_page_lane_stalled(harp, false); /* too late */
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], HARP_PAGE_LANE_DEAD);
	CHECK_EQ(page_lane(0).value[HARP_LANE_end], HARP_PAGE_LANE_END_reset);
	CHECK_EQ(page_lane(0).value[HARP_LANE_chunks_moved_away], 1);
	CHECK_EQ(page_lane(1).value[HARP_LANE_chunks_moved_here], 1);
	CHECK_EQ(page_counter(HARP_JOB_lanes_died_reset), 1);
	CHECK_EQ(page_counter(HARP_JOB_chunks_moved), 1);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_open], 1);
	CHECK(lane_add(comm, 0, HARP_PAGE_KIND_HARP) == harp);
	lane_page_add(harp, HARP_LANE_payload_bytes, 6);
	tcp.retransmits = 2; /* of the new one's TCP */
	lane_page_tcp(harp, &tcp, now_ns);
	lane_page_publish(comm, now_ns, true);
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], HARP_PAGE_LANE_OPEN);
	CHECK_EQ(page_lane(0).value[HARP_LANE_payload_bytes], 1030);
	CHECK_EQ(page_lane(0).value[HARP_LANE_retransmits], 5);
	CHECK_EQ(page_lane(0).value[HARP_LANE_lanes], 2);
	CHECK_EQ(page_counter(HARP_JOB_lanes_replaced), 1);
	CHECK_EQ(page_counter(HARP_JOB_lanes_stalled), 1);
	CHECK_EQ(page_counter(HARP_JOB_lanes_rerolled), 0);
	/* One that is open still gives its place away. What is told of it afterwards is not told of the new one. */
	CHECK(lane_add_who(comm, 0, HARP_PAGE_KIND_HARP, comm) == harp);
	lane_page_lane_closed(harp, WHO(0));
	CHECK_EQ(page_counter(HARP_JOB_lanes_rerolled), 1);
	CHECK_EQ(page_lane(0).value[HARP_LANE_rerolls], 1);
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], HARP_PAGE_LANE_OPEN);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_open], 2);
	lane_page_lane_closed(harp, comm);
	lane_page_publish(comm, now_ns, true);
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], HARP_PAGE_LANE_DEAD);
	CHECK_EQ(page_lane(0).value[HARP_LANE_end],
		 HARP_PAGE_LANE_END_reset); /* the last that was lost */
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_open], 1);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_died], 1);

	/* The comm goes: its records are empty, the NICs' numbers and the counters stay. */
	lane_page_add(kernel, HARP_LANE_payload_bytes, 5);
	lane_page_comm_remove(comm);
	CHECK_EQ(page_comm(0).value[HARP_COMM_state], 0);
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], 0);
	CHECK_EQ(page_lane(1).local_port, 0);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_payload_bytes], 1030);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_retransmits], 5);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_lanes_open], 0);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_lanes_died], 1);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_KERNEL).value[HARP_RAIL_payload_bytes], 3005);
	CHECK_EQ(page_counter(HARP_JOB_chunks_sent), 2);
	CHECK_EQ(page_status().comms_open, 0);
}

static void test_every_end_has_its_counter(void)
{
	static const struct {
		int error;
		enum harp_page_lane_end end;
	} ends[] = {
		{ -ECONNRESET, HARP_PAGE_LANE_END_reset },
		{ -ETIMEDOUT, HARP_PAGE_LANE_END_timeout },
		{ 0, HARP_PAGE_LANE_END_closed },
		{ -EPIPE, HARP_PAGE_LANE_END_closed },
		{ -EHOSTUNREACH, HARP_PAGE_LANE_END_unreachable },
		{ -ENETDOWN, HARP_PAGE_LANE_END_interface },
		{ -EPROTO, HARP_PAGE_LANE_END_protocol },
		{ -EIO, HARP_PAGE_LANE_END_other },
	};
	struct comm_row *comm = comm_add(1);
	char name[64];

	for (unsigned i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		unsigned counter =
			HARP_JOB_lanes_died_reset + ends[i].end - HARP_PAGE_LANE_END_reset;
		uint64_t before = page_counter((enum harp_job_counter)counter);

		lane_page_lane_died(lane_add(comm, i, HARP_PAGE_KIND_HARP), WHO(i), ends[i].error);
		CHECK_EQ(page_counter((enum harp_job_counter)counter), before + 1);
		CHECK_EQ(page_lane(i).value[HARP_LANE_end], ends[i].end);
		snprintf(name, sizeof(name), "lanes_died_%s", harp_lane_end_name(ends[i].end));
		CHECK_STR(harp_job_counter_name(counter), name);
	}
	CHECK(!harp_lane_end_name(HARP_PAGE_LANE_END_none));
	CHECK(!harp_lane_end_name(99));
	lane_page_comm_remove(comm);
}

/* The peer ended it for another, which did not come. */
static void test_a_lane_that_is_not_replaced(void)
{
	uint64_t before = page_counter(HARP_JOB_lanes_died_reset);
	struct comm_row *comm = comm_add(7);

	(void)lane_add(comm, 0, HARP_PAGE_KIND_HARP);
	(void)lane_add(comm, 1, HARP_PAGE_KIND_HARP);
	lane_page_lane_unreplaced(comm, 1);
	CHECK_EQ(page_counter(HARP_JOB_lanes_died_reset), before + 1);
	CHECK_EQ(page_lane(1).value[HARP_LANE_state], HARP_PAGE_LANE_DEAD);
	CHECK_EQ(page_lane(1).value[HARP_LANE_end], HARP_PAGE_LANE_END_reset);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_open], 1);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_died], 1);
	/* Another came after all, and was told of: one death, one count. */
	lane_page_lane_unreplaced(comm, 1);
	CHECK_EQ(page_counter(HARP_JOB_lanes_died_reset), before + 1);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_died], 1);
	/* The next has the place of a dead one. */
	(void)lane_add(comm, 1, HARP_PAGE_KIND_HARP);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_replaced], 1);
	lane_page_lane_unreplaced(comm, 2);
	lane_page_lane_unreplaced(comm, 1000);
	lane_page_lane_unreplaced(NULL, 0);
	CHECK_EQ(page_comm(0).value[HARP_COMM_lanes_died], 1);
	lane_page_comm_remove(comm);
}

/* A row for everybody, a record for those that there is room for. */
static void test_a_full_page(void)
{
	struct comm_row *comms[ROWS / 4 + 2];
	struct lane_row *last = NULL;

	for (unsigned i = 0; i < ROWS / 4 + 2; i++) {
		comms[i] = comm_add(i);
		for (unsigned index = 0; index < 4; index++)
			last = lane_add(comms[i], index, HARP_PAGE_KIND_KERNEL);
	}
	CHECK_EQ(page_status().flows_open, ROWS + 8);
	CHECK_EQ(page_status().flows_hidden, 8);
	lane_page_add(last, HARP_LANE_payload_bytes, 9); /* counted, though not shown */
	lane_page_publish(comms[ROWS / 4 + 1], 1, true);
	/* Who goes makes room; the last one in takes it. */
	lane_page_comm_remove(comms[2]);
	comms[2] = comm_add(1000);
	last = lane_add(comms[2], 3, HARP_PAGE_KIND_KERNEL);
	lane_page_add(last, HARP_LANE_payload_bytes, 11);
	lane_page_publish(comms[2], 1, true);
	CHECK_EQ(page_comm(2).value[HARP_COMM_comm_id], 1000);
	CHECK_EQ(page_lane(11).value[HARP_LANE_payload_bytes], 11);
	CHECK_EQ(page_lane(11).value[HARP_LANE_index], 3);
	for (unsigned i = 0; i < ROWS / 4 + 2; i++)
		lane_page_comm_remove(comms[i]);
	CHECK_EQ(page_status().flows_hidden, 0);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_KERNEL).value[HARP_RAIL_lanes_open], 0);
	/* An index that no comm has. */
	comms[0] = comm_add(1);
	CHECK(!lane_page_lane_add(comms[0], &(struct lane_row_options){ .index = 32 }));
	lane_page_comm_remove(comms[0]);
}

/* ---- many threads ---------------------------------------------------------------------------- */

#define THREADS 4u
#define ROUNDS 20000u

struct crowd {
	struct comm_row *comm;
	struct lane_row *lane[THREADS];
	atomic_bool over;
};

struct crowd_member {
	struct crowd *crowd;
	unsigned number;
};

static void *crowd_add(void *arg)
{
	struct crowd_member *me = arg;
	struct lane_row *mine = me->crowd->lane[me->number];

	for (unsigned i = 1; i <= ROUNDS; i++) {
		lane_page_add(mine, HARP_LANE_payload_bytes, 3);
		lane_page_add(me->crowd->lane[0], HARP_LANE_chunks_sent, 1);
		lane_page_count(HARP_JOB_dials_failed, 1);
		lane_page_publish(me->crowd->comm, i * LANE_PAGE_PERIOD_NS, i % 16 == 0);
	}
	lane_page_publish(me->crowd->comm, 1, true);
	return NULL;
}

/* Others come and go meanwhile. */
static void *crowd_churn(void *arg)
{
	struct crowd *crowd = arg;

	while (!atomic_load(&crowd->over)) {
		struct comm_row *comm = comm_add(5);

		lane_page_add(lane_add(comm, 7, HARP_PAGE_KIND_HARP), HARP_LANE_payload_bytes, 1);
		lane_page_rail(0, true);
		lane_page_rail(0, false);
		lane_page_comm_remove(comm);
	}
	return NULL;
}

/* What a reader sees is never torn: a record is of one lane. */
static void *crowd_read(void *arg)
{
	struct crowd *crowd = arg;

	while (!atomic_load(&crowd->over)) {
		struct harp_page_lane lane = page_lane(1);

		CHECK(lane.value[HARP_LANE_state] == 0 || lane.local_port == 5001);
		CHECK_EQ(lane.value[HARP_LANE_payload_bytes] % 3, 0);
	}
	return NULL;
}

static void test_many_threads(void)
{
	struct crowd crowd = { .comm = comm_add(9) };
	struct crowd_member members[THREADS];
	pthread_t threads[THREADS], churn, reading;

	for (unsigned i = 0; i < THREADS; i++)
		crowd.lane[i] = lane_add(crowd.comm, i, HARP_PAGE_KIND_HARP);
	CHECK_EQ(pthread_create(&churn, NULL, crowd_churn, &crowd), 0);
	CHECK_EQ(pthread_create(&reading, NULL, crowd_read, &crowd), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		members[i] = (struct crowd_member){ &crowd, i };
		CHECK_EQ(pthread_create(&threads[i], NULL, crowd_add, &members[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&crowd.over, true);
	pthread_join(churn, NULL);
	pthread_join(reading, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(page_lane(i).value[HARP_LANE_payload_bytes], 3 * ROUNDS);
	CHECK_EQ(page_lane(0).value[HARP_LANE_chunks_sent], THREADS * ROUNDS);
	CHECK_EQ(page_counter(HARP_JOB_dials_failed), THREADS * ROUNDS);
	CHECK_EQ(page_counter(HARP_JOB_rails_down), page_counter(HARP_JOB_rails_up));
	lane_page_comm_remove(crowd.comm);
}

static void test_a_nic_goes_down_once(void)
{
	uint64_t down = page_counter(HARP_JOB_rails_down), up = page_counter(HARP_JOB_rails_up);

	lane_page_rail(0, true); /* by two comms */
	lane_page_rail(0, true);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_down], 1);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_KERNEL).value[HARP_RAIL_down], 1);
	lane_page_rail(0, false);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_down], 1);
	lane_page_rail(0, false);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_down], 0);
	CHECK_EQ(page_counter(HARP_JOB_rails_down), down + 1);
	CHECK_EQ(page_counter(HARP_JOB_rails_up), up + 1);
	lane_page_rail(0, true); /* by one that ends so: nobody knows of the NIC */
	lane_page_rail_left(0);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_KERNEL).value[HARP_RAIL_down], 0);
	lane_page_rail_left(0); /* from before the page was there */
	lane_page_rail(0, false);
	lane_page_rail(-1, true); /* no device at all */
	lane_page_rail((int)PLUGIN_DEVICES_MAX, true);
	lane_page_rail_left(-1);
	lane_page_rail_left((int)PLUGIN_DEVICES_MAX);
	CHECK_EQ(page_counter(HARP_JOB_rails_down), down + 2);
	CHECK_EQ(page_counter(HARP_JOB_rails_up), up + 1);
}

/* Rows that could not be had are not missed. */
static void test_nobody_s_rows(void)
{
	struct lane_info tcp = { .srtt_ns = 1 };

	lane_page_comm_done(NULL, 1, 1);
	lane_page_comm_remove(NULL);
	CHECK(!lane_page_lane_add(NULL, &(struct lane_row_options){ .index = 0 }));
	lane_page_add(NULL, HARP_LANE_sent_bytes, 1);
	lane_page_lane_stalled(NULL, true);
	lane_page_lane_died(NULL, NULL, -EPIPE);
	lane_page_lane_closed(NULL, NULL);
	lane_page_chunk_moved_here(NULL);
	lane_page_chunk_duplicate(NULL);
	CHECK(!lane_page_wants_tcp(NULL, 1));
	lane_page_tcp(NULL, &tcp, 1);
	lane_page_publish(NULL, 1, true);
}

/* A forked child has no page of its parent's: who outlives the parent does not keep it alive. */
static void test_a_forked_child_lets_go(void)
{
	int status = 1;
	pid_t pid;

	CHECK_EQ(forkguard_init(), 0);
	pid = fork();
	if (pid == 0) {
		close(reader);
		lane_page_count(HARP_JOB_dials_failed, 1);
		_exit(page_find() == -1 ? 0 : 1);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(page_status().ended, 0);
}

/* No descriptors: said once, and everything works unseen. */
static void test_no_page(void)
{
	struct rlimit before, none = { 0, 0 };
	struct comm_row *comm;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	none.rlim_max = before.rlim_max;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	lane_page_open();
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	CHECK_EQ(page_find(), -1);
	comm = comm_add(3);
	lane_page_add(lane_add(comm, 0, HARP_PAGE_KIND_HARP), HARP_LANE_sent_bytes, 1);
	lane_page_publish(comm, 1, true);
	lane_page_count(HARP_JOB_dials_failed, 1);
	lane_page_rail(0, true);
	lane_page_comm_remove(comm);
	lane_page_close();
}

int main(void)
{
	static void (*const tests[])(void) = {
		test_the_life_of_a_comm,
		test_every_end_has_its_counter,
		test_a_full_page,
		test_a_lane_that_is_not_replaced,
		test_many_threads,
		test_a_nic_goes_down_once,
		test_nobody_s_rows,

		test_a_forked_child_lets_go,
	};

	plugin_devices_load(NULL);
	test_no_page();
	for (unsigned i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		page_begin();
		tests[i]();
		page_end();
	}
	return check_done();
}
