/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_share.c - what a slow lane costs the others: three lanes, one of which has a tenth of their
 * rate, compared with two lanes at full rate.
 *
 * Each lane has 1 Gbit/s; HARP lanes have one rail each. The slow lane is slow from the start, or
 * becomes slow during a message. The virtual time runs from the first post to the last receive. The
 * run fails below SHARE_PERCENT_MIN of the throughput of two lanes, even if the table agrees. In
 * the last rows, the transfer of a chunk on the slow lane takes longer than Linux delays an ACK.
 */
#include <stdio.h>
#include <string.h>

#include "comm_sim.h"
#include "table.h"

#define SHARE_MBPS 1000u
#define SHARE_MBPS_SLOW 60u
#define SHARE_LATER_MBIT 5u /* carried by the line of a lane before it slows down */
#define SHARE_BYTES (64u << 20)
#define SHARE_PERCENT_MIN 90u

#define H CSN_HARP
#define K CSN_KERNEL
static const struct share_row {
	const char *name;
	uint8_t kinds[3];      /* the last one is slow */
	uint32_t buffer_bytes; /* of a kernel lane: both sockets together */
	unsigned mbps;
} share_lanes[] = {
	{ "HARP, HARP, HARP", { H, H, H }, 262144, SHARE_MBPS },
	{ "kernel, kernel, kernel; 128 KiB", { K, K, K }, 131072, SHARE_MBPS },
	{ "kernel, kernel, kernel; 1 MiB", { K, K, K }, 1u << 20, SHARE_MBPS },
	{ "kernel, kernel, kernel; 4 MiB", { K, K, K }, 4u << 20, SHARE_MBPS },
	{ "kernel, kernel, kernel; 4 MiB; 60 Mbit/s", { K, K, K }, 4u << 20, SHARE_MBPS_SLOW },
	{ "HARP, HARP, HARP; 60 Mbit/s", { H, H, H }, 262144, SHARE_MBPS_SLOW },
};
#undef H
#undef K
static const uint64_t share_sizes[] = { 64u << 10, 512u << 10, 4u << 20 };

enum share_fault { SHARE_TWO, SHARE_THREE, SHARE_TENTH, SHARE_TENTH_LATER, SHARE_FAULTS };

static void share_make(struct comm_scenario *s, const struct share_row *row, uint64_t size,
		       enum share_fault fault)
{
	uint64_t rate_bps = row->mbps * UINT64_C(1000000), tenth_bps = rate_bps / 10;

	comm_scenario_make_small(s, 0);
	s->world.rails = 3;
	s->world.background = 1;
	s->nic_count = 6;
	s->lane_count = fault == SHARE_TWO ? 2 : 3;
	for (unsigned i = 0; i < s->nic_count; i++)
		s->nics[i] = (struct scn_impair){ .delay_ns = 10000,
						  .rate_bps = rate_bps,
						  .queue_bytes = 250000 };
	for (unsigned i = 0; i < s->lane_count; i++)
		s->lanes[i] = (struct csn_lane){ .kind = row->kinds[i],
						 .rail = i,
						 .delay_ns = 10000,
						 .rate_bps = rate_bps,
						 .buffer_bytes = row->buffer_bytes };
	if (fault == SHARE_TENTH)
		s->nics[2].rate_bps = s->lanes[2].rate_bps = tenth_bps;
	if (fault == SHARE_TENTH_LATER)
		s->events[s->event_count++] = (struct csn_event){
			.kind = row->kinds[2] == CSN_HARP ? CSN_IMPAIR : CSN_SLOW,
			.lane = 2,
			.rail = 2,
			.start_ns = SHARE_LATER_MBIT * CSIM_S / row->mbps,
			.duration_ns = 100 * CSIM_S,
			.path = { .delay_ns = 10000, .rate_bps = tenth_bps, .queue_bytes = 250000 }
		};
	s->comms[0] = (struct csn_comm){ .stream = row->kinds[0] == CSN_HARP ? CSIM_STREAM_HARP
									     : CSIM_STREAM_KERNEL,
					 .to = 1,
					 .multi_lane = 1,
					 .backoff_ns = 100 * CSIM_MS,
					 .eager_bytes = 262144,
					 .messages = SHARE_BYTES / size + 4,
					 .sizes = CSN_SIZES_ALL,
					 .size_max = size,
					 .s_burst = 8,
					 .r_burst = 8,
					 .s_poll_ns = 2000,
					 .r_poll_ns = 2000 };
}

/* Returns Mbit/s, or 0 on failure. */
static uint64_t share_run(const struct share_row *row, uint64_t size, enum share_fault fault)
{
	static struct comm_scenario scenario;
	static struct csim sim;

	share_make(&scenario, row, size, fault);
	sim.unchecked = true; /* the seeds check each step */
	runner_reset();
	if (!csim_run(&sim, &scenario, true)) {
		printf("FAILED: %s\n", runner_reason());
		return 0;
	}
	return sim.bytes * 8000 / (sim.comms[0].app[CSIM_RECV].progress_ns - sim.zero_ns);
}

int comm_share(const char *path, bool update)
{
	static char text[TABLE_MAX];
	size_t len = 0;
	bool is_too_slow = false;

#define SHARE_PRINT(...) (len += (size_t)snprintf(text + len, sizeof(text) - len, __VA_ARGS__))
	SHARE_PRINT(
		"Mbit/s of a comm by tests/sim/comm_share.c; `make tables` writes this file, `make test` "
		"compares.\nEach lane has 1 Gbit/s unless noted. The last one has a tenth of it from the start, or after "
		"5 Mbit per lane.\nThe plugin replaces slow lanes: a new kernel lane has the full rate.\n");
	for (unsigned l = 0; l < sizeof(share_lanes) / sizeof(share_lanes[0]); l++) {
		SHARE_PRINT(
			"\n== %s\n  message KiB |  two lanes  three | tenth  %% of two | later  %% of two\n",
			share_lanes[l].name);
		for (unsigned i = 0; i < sizeof(share_sizes) / sizeof(share_sizes[0]); i++) {
			uint64_t mbps[SHARE_FAULTS];

			for (unsigned f = 0; f < SHARE_FAULTS; f++) {
				mbps[f] = share_run(&share_lanes[l], share_sizes[i], f);
				if (!mbps[f])
					return 1;
			}
			SHARE_PRINT("  %11llu | %10llu %6llu | %5llu %9llu | %5llu %9llu\n",
				    (unsigned long long)share_sizes[i] >> 10,
				    (unsigned long long)mbps[SHARE_TWO],
				    (unsigned long long)mbps[SHARE_THREE],
				    (unsigned long long)mbps[SHARE_TENTH],
				    (unsigned long long)(mbps[SHARE_TENTH] * 100 / mbps[SHARE_TWO]),
				    (unsigned long long)mbps[SHARE_TENTH_LATER],
				    (unsigned long long)(mbps[SHARE_TENTH_LATER] * 100 /
							 mbps[SHARE_TWO]));
			for (unsigned f = SHARE_TENTH; f < SHARE_FAULTS; f++)
				is_too_slow |= mbps[f] * 100 < mbps[SHARE_TWO] * SHARE_PERCENT_MIN;
		}
	}
#undef SHARE_PRINT
	if (is_too_slow) {
		printf("%s\na slow lane leaves less than the required share of two lanes\n", text);
		return 1;
	}
	return update ? table_update(path, text) : table_check(path, text);
}
