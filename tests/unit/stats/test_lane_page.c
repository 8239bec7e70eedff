/* SPDX-License-Identifier: Apache-2.0 */
/* test_lane_page.c - the job's statistics region. tests/stats/test_jobs.py tests the records of
 * comms and lanes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "double_env.h"
#include "poll/poller.h"
#include "page_find.h"
#include "stats/lane_page.h"

/* ---- the region, written by the test and read as another process reads it -------------------- */

static int reader = -1; /* result of page_find() */

static struct harp_page_status page_status(void)
{
	struct harp_page_status status = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_STATUS, 0, &status, sizeof(status), 1), 1);
	return status;
}

static struct harp_page_comm page_comm(uint32_t index)
{
	struct harp_page_comm comm = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_COMMS, index, &comm, sizeof(comm), 1), 1);
	return comm;
}

static struct harp_page_lane page_lane(uint32_t index)
{
	struct harp_page_lane lane = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_LANES, index, &lane, sizeof(lane), 1), 1);
	return lane;
}

static struct harp_page_rail page_rail(enum harp_page_kind kind)
{
	struct harp_page_rail rail = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_RAILS, kind == HARP_PAGE_KIND_KERNEL, &rail,
				sizeof(rail), 1),
		 1);
	return rail;
}

static uint64_t page_counter(enum harp_job_counter counter)
{
	uint64_t value = 0;

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_JOB, counter, &value, 8, 1), 1);
	return value;
}

static void page_begin(void)
{
	env_config.page_flows = 4;
	lane_page_open();
	reader = page_find();
	CHECK(reader >= 0);
}

static void page_end(void)
{
	struct harp_page_status status = { 0 };

	lane_page_close();
	CHECK_EQ(harp_page_read(reader, HARP_PAGE_STATUS, 0, &status, sizeof(status), 1), 1);
	CHECK_EQ(status.ended, 1);
	CHECK_EQ(status.comms_open, 0);
	CHECK_EQ(status.flows_open, 0);
	close(reader);
	CHECK_EQ(page_find(), -1);
}

static struct comm_stats *comm_add(uint64_t comm_id)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 4711 };
	struct comm_stats *stats =
		comm_stats_new(comm_id, HARP_PAGE_SIDE_SEND, 0, HARP_PAGE_FALLBACK_none, &remote);

	CHECK(stats);
	return stats;
}

static struct lane_stats *lane_add(struct comm_stats *comm, unsigned index,
				   enum harp_page_kind kind)
{
	struct lane lane = {
		.local = { .addr = harp_addr_v4(10, 0, 0, 1), .port = (uint16_t)(5000 + index) },
		.remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 4711 },
	};
	struct lane_stats *stats = lane_stats_new(comm, index);

	CHECK(stats);
	lane_stats_open(comm, index, &lane, kind, 0, false);
	return stats;
}

/* ---- records --------------------------------------------------------------------------------- */

TEST(TCP_statistics_of_a_lane_are_published_and_continued_by_its_replacement)
{
	struct comm_stats *comm = comm_add(77);
	struct lane_stats *lane = lane_add(comm, 0, HARP_PAGE_KIND_HARP);
	struct lane_info tcp = { .srtt_ns = 30000, .in_flight_bytes = 512, .retransmits = 3 };
	uint64_t now_ns = clock_now_ns() + 1000000000u;

	LANE_STATS_ADD(lane, payload_bytes, 1000);
	CHECK(lane_stats_want_tcp(lane, now_ns));
	lane_stats_tcp(lane, &tcp, now_ns);
	CHECK(!lane_stats_want_tcp(lane, now_ns + 1000000));
	CHECK_EQ(page_lane(0).value[HARP_LANE_in_flight_bytes], 512);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).srtt.count, 1);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).srtt.sum_ns, 30000);
	comm_stats_done(comm, 3, 4024, now_ns);
	lane_stats_idle(lane);
	CHECK_EQ(page_comm(0).value[HARP_COMM_updated_ns], now_ns);
	CHECK_EQ(page_comm(0).value[HARP_COMM_messages_mixed], 1);
	CHECK_EQ(page_counter(HARP_JOB_messages_mixed), 1);
	CHECK_EQ(page_lane(0).value[HARP_LANE_in_flight_bytes], 0);

	lane_stats_died(lane, -ECONNRESET);
	lane_stats_stalled(lane, true); /* ignored: the lane is dead */
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], HARP_PAGE_LANE_DEAD);
	CHECK(lane_add(comm, 0, HARP_PAGE_KIND_HARP) == lane);
	tcp.retransmits = 2; /* of the new connection */
	lane_stats_tcp(lane, &tcp, now_ns);
	CHECK_EQ(page_lane(0).value[HARP_LANE_retransmits], 5);
	lane_stats_closed(lane);
	CHECK_EQ(page_lane(0).value[HARP_LANE_end],
		 HARP_PAGE_LANE_END_reset); /* of the newest lost connection */
	comm_stats_free(comm);
	CHECK_EQ(page_lane(0).value[HARP_LANE_state], 0);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_retransmits], 5);
}

TEST(every_reason_for_a_lost_lane_has_its_counter)
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
	struct comm_stats *comm = comm_add(1);
	char name[64];

	for (unsigned i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		unsigned counter =
			HARP_JOB_lanes_died_reset + ends[i].end - HARP_PAGE_LANE_END_reset;
		uint64_t before = page_counter((enum harp_job_counter)counter);

		lane_stats_died(lane_add(comm, i, HARP_PAGE_KIND_HARP), ends[i].error);
		CHECK_EQ(page_counter((enum harp_job_counter)counter), before + 1);
		CHECK_EQ(page_lane(i).value[HARP_LANE_end], ends[i].end);
		snprintf(name, sizeof(name), "lanes_died_%s", harp_lane_end_name(ends[i].end));
		CHECK_STR(harp_job_counter_name(counter), name);
	}
	CHECK(!harp_lane_end_name(HARP_PAGE_LANE_END_none));
	CHECK(!harp_lane_end_name(99));
	comm_stats_free(comm);
}

/* ---- many threads ---------------------------------------------------------------------------- */

BEFORE_EACH(page_begin())
AFTER_EACH(page_end())

#define THREADS 4u
#define ROUNDS 20000u

struct crowd {
	struct comm_stats *comm;
	struct lane_stats *lane[THREADS];
	atomic_bool stop;
};

struct crowd_member {
	struct crowd *crowd;
	unsigned number;
};

static void *crowd_add(void *arg)
{
	struct crowd_member *me = arg;
	struct lane_stats *mine = me->crowd->lane[me->number];

	for (unsigned i = 1; i <= ROUNDS; i++) {
		LANE_STATS_ADD(mine, payload_bytes, 3);
		LANE_STATS_ADD(mine, chunks_sent, 1);
		lane_page_count(HARP_JOB_connects_failed, 1);
	}
	return NULL;
}

/* Opens and closes other comms. */
static void *crowd_churn(void *arg)
{
	struct crowd *crowd = arg;

	while (!atomic_load(&crowd->stop)) {
		struct comm_stats *comm = comm_add(5);
		struct lane_stats *lane = lane_add(comm, 7, HARP_PAGE_KIND_HARP);

		LANE_STATS_ADD(lane, payload_bytes, 1);
		lane_page_rail(0, true);
		lane_page_rail(0, false);
		comm_stats_free(comm);
	}
	return NULL;
}

/* Checks that each record is consistent. */
static void *crowd_read(void *arg)
{
	struct crowd *crowd = arg;

	while (!atomic_load(&crowd->stop)) {
		struct harp_page_lane lane = page_lane(1);

		CHECK(lane.value[HARP_LANE_state] == 0 || lane.local_port == 5001);
		CHECK_EQ(lane.value[HARP_LANE_payload_bytes] % 3, 0);
	}
	return NULL;
}

TEST(many_threads_count_and_readers_see_no_torn_record)
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
	atomic_store(&crowd.stop, true);
	pthread_join(churn, NULL);
	pthread_join(reading, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(page_lane(i).value[HARP_LANE_payload_bytes], 3 * ROUNDS);
	CHECK_EQ(page_lane(0).value[HARP_LANE_chunks_sent], ROUNDS);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_HARP).value[HARP_RAIL_chunks_sent], THREADS * ROUNDS);
	CHECK_EQ(page_counter(HARP_JOB_connects_failed), THREADS * ROUNDS);
	CHECK_EQ(page_counter(HARP_JOB_rails_down), page_counter(HARP_JOB_rails_up));
	comm_stats_free(crowd.comm);
}

TEST(a_NIC_is_down_as_long_as_one_comm_reports_so)
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
	lane_page_rail(0, true); /* by a comm that ends while it is down */
	lane_page_rail_left(0);
	CHECK_EQ(page_rail(HARP_PAGE_KIND_KERNEL).value[HARP_RAIL_down], 0);
	CHECK_EQ(page_counter(HARP_JOB_rails_down), down + 2);
	CHECK_EQ(page_counter(HARP_JOB_rails_up), up + 1);
}

TEST(a_forked_child_does_not_keep_the_region)
{
	int status = 1;
	pid_t pid;

	CHECK_EQ(pthread_atfork(NULL, NULL, lane_page_fork_child), 0);
	pid = fork();
	if (pid == 0) {
		close(reader);
		lane_page_count(HARP_JOB_connects_failed, 1);
		_exit(page_find() == -1 ? 0 : 1);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(page_status().ended, 0);
}

TEST(a_file_size_limit_disables_the_region_and_does_not_end_the_process)
{
	struct rlimit before, none = { 0, 0 };

	page_end();
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
	none.rlim_max = before.rlim_max;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
	lane_page_open();
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
	CHECK_EQ(page_find(), -1);
	lane_page_close();
	page_begin();
}

int main(void)
{
	plugin_devices_load(NULL);
	check_run();
	return check_done();
}
