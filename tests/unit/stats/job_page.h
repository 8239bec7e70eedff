/* SPDX-License-Identifier: Apache-2.0 */
/* job_page.h - a job's statistics region, written by the test and read as another process reads it. */
#ifndef HARP_TESTS_JOB_PAGE_H
#define HARP_TESTS_JOB_PAGE_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "double_env.h"
#include "page_find.h"
#include "stats/lane_page.h"

static int reader = -1; /* what page_find() found */

static inline struct harp_page_status page_status(void)
{
	struct harp_page_status status = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_STATUS, 0, &status, sizeof(status), 1), 1);
	return status;
}

static inline struct harp_page_comm page_comm(uint32_t place)
{
	struct harp_page_comm comm = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_COMMS, place, &comm, sizeof(comm), 1), 1);
	return comm;
}

static inline struct harp_page_lane page_lane(uint32_t place)
{
	struct harp_page_lane lane = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_LANES, place, &lane, sizeof(lane), 1), 1);
	return lane;
}

static inline struct harp_page_rail page_rail(enum harp_page_kind kind)
{
	struct harp_page_rail rail = { 0 };

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_RAILS, kind == HARP_PAGE_KIND_KERNEL, &rail,
				sizeof(rail), 1),
		 1);
	return rail;
}

static inline uint64_t page_counter(enum harp_job_counter counter)
{
	uint64_t value = 0;

	CHECK_EQ(harp_page_read(reader, HARP_PAGE_JOB, counter, &value, 8, 1), 1);
	return value;
}

#define ROWS 64u /* HARP_PAGE_FLOWS 4, 16 lanes each */

static inline void page_begin(void)
{
	env_config.page_flows = 4;
	lane_page_open();
	reader = page_find();
	CHECK(reader >= 0);
}

static inline void page_end(void)
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

static inline struct comm_stats *comm_add(uint64_t comm_id)
{
	struct comm_stats_options opt = {
		.comm_id = comm_id,
		.side = HARP_PAGE_SIDE_SEND,
		.remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 4711 },
	};
	struct comm_stats *stats = comm_stats_new(&opt);

	CHECK(stats);
	return stats;
}

static inline struct lane_stats *lane_add(struct comm_stats *comm, unsigned index,
					  enum harp_page_kind kind)
{
	struct lane_stats_options opt = {
		.index = index,
		.kind = kind,
		.local = { .addr = harp_addr_v4(10, 0, 0, 1), .port = (uint16_t)(5000 + index) },
		.remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 4711 },
	};
	struct lane_stats *stats = lane_stats_new(comm, index);

	CHECK(stats);
	lane_stats_open(comm, &opt);
	return stats;
}

#endif
