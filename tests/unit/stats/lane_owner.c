/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane_owner.c - a process with a job's statistics region: lane_owner LABEL FLOWS NIC. FLOWS:
 * HARP_PAGE_FLOWS.
 *
 * It executes commands from standard input and answers each with "ok":
 *	comm C              comm C (below 16) sends to 10.0.0.2, or 10.0.0.3 if C is odd
 *	lane C I KIND       its lane I opens; KIND: harp, dpdk, kernel. Repeated: replaces it
 *	bytes C I N         the lane sends N bytes in chunks of 512, with headers of 40 bytes
 *	message C KINDS N   a send of N bytes is done; kinds of lanes: 1 HARP, 2 kernel, 3 both
 *	tcp C I SRTT RE     TCP's values of the lane: smoothed round trip in ns, retransmits
 *	move C I J          a chunk of lane I is sent again over lane J
 *	die C I ERRNO       the lane is lost
 *	stall C I YES       1: it makes no progress; 0: it does
 *	failed C            the comm fails
 *	rail YES            1: the NIC has no working lane; 0: it has one again
 *	remove C            the comm is closed
 *	end                 the last finalize; the process continues
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double_env.h"
#include "poll/poller.h"
#include "stats/lane_page.h"

#define COMMS 16u
#define LANES 32u
#define CHUNK_BYTES 512u

static struct comm_stats *comms[COMMS];
static struct lane_stats *lanes[COMMS][LANES];

static void fail(const char *what)
{
	fprintf(stderr, "lane_owner: %s\n", what);
	exit(1);
}

static void do_comm(unsigned c)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, c & 1 ? 3 : 2),
					.port = 7000 };

	comms[c] =
		comm_stats_new(1000 + c, HARP_PAGE_SIDE_SEND, 0, HARP_PAGE_FALLBACK_none, &remote);
}

static void do_lane(unsigned c, unsigned i, const char *kind)
{
	enum harp_page_kind page_kind = !strcmp(kind, "dpdk")   ? HARP_PAGE_KIND_DPDK
					: !strcmp(kind, "harp") ? HARP_PAGE_KIND_HARP
								: HARP_PAGE_KIND_KERNEL;
	struct lane lane = {
		.local = { .addr = harp_addr_v4(10, 0, 0, 1),
			   .port = (uint16_t)(20000 + 100 * c + i) },
		.remote = { .addr = harp_addr_v4(10, 0, 0, c & 1 ? 3 : 2), .port = 7000 },
	};

	lanes[c][i] = lane_stats_new(comms[c], i);
	lane_stats_open(comms[c], i, &lane, page_kind, 0, false);
}

static void do_bytes(struct lane_stats *lane, uint64_t n)
{
	uint64_t chunks = (n + CHUNK_BYTES - 1) / CHUNK_BYTES;

	LANE_STATS_ADD(lane, payload_bytes, n);
	lane_stats_sent(lane, n + 40 * chunks, clock_now_ns());
	for (uint64_t i = 0; i < chunks; i++)
		LANE_STATS_ADD(lane, chunks_sent, 1);
}

static void do_tcp(struct lane_stats *lane, uint64_t srtt_ns, uint64_t retransmits)
{
	struct lane_info info = { .srtt_ns = srtt_ns, .retransmits = retransmits };

	lane_stats_tcp(lane, &info, clock_now_ns());
}

static void do_end(void)
{
	for (unsigned c = 0; c < COMMS; c++) {
		comm_stats_free(comms[c]);
		comms[c] = NULL;
	}
	lane_page_close();
}

static void execute(char *line)
{
	unsigned c = 0, i = 0, j = 0;
	uint64_t n = 0;
	char word[128] = "";

	line[strcspn(line, "\n")] = '\0';
	(void)!sscanf(line, "%*s %u", &c);
	(void)!sscanf(line, "%*s %*u %u %u", &i, &j);
	(void)!sscanf(line, "%*s %*u %*u %" SCNu64, &n);
	if (c >= COMMS || i >= LANES)
		c = i = 0; /* a command whose numbers are not indices */
	if (sscanf(line, "lane %*u %*u %127s", word) == 1) {
		do_lane(c, i, word);
	} else if (!strncmp(line, "comm ", 5)) {
		do_comm(c);
	} else if (!strncmp(line, "bytes ", 6)) {
		do_bytes(lanes[c][i], n);
	} else if (!strncmp(line, "message ", 8)) {
		comm_stats_done(comms[c], i, n, clock_now_ns());
	} else if (sscanf(line, "tcp %*u %*u %*u %" SCNu64, &n) == 1) {
		do_tcp(lanes[c][i], j, n);
	} else if (!strncmp(line, "move ", 5)) {
		LANE_STATS_ADD(lanes[c][i], chunks_moved_away, 1);
		LANE_STATS_ADD(lanes[c][j], chunks_moved_here, 1);
	} else if (!strncmp(line, "die ", 4)) {
		lane_stats_died(lanes[c][i], -(int)j);
	} else if (!strncmp(line, "stall ", 6)) {
		lane_stats_stalled(lanes[c][i], j != 0);
	} else if (!strncmp(line, "failed ", 7)) {
		comm_stats_failed(comms[c]);
	} else if (!strncmp(line, "rail ", 5)) {
		lane_page_rail(0, c != 0);
	} else if (!strncmp(line, "remove ", 7)) {
		comm_stats_free(comms[c]);
		comms[c] = NULL;
	} else if (!strcmp(line, "end")) {
		do_end();
	} else {
		fail(line);
	}
}

int main(int argc, char **argv)
{
	char line[256];

	if (argc != 4)
		fail("usage: lane_owner LABEL FLOWS NIC");
	snprintf(env_config.label, sizeof(env_config.label), "%s", argv[1]);
	env_config.page_flows = (uint32_t)strtoul(argv[2], NULL, 10);
	snprintf(env_device.ifname, sizeof(env_device.ifname), "%s", argv[3]);
	lane_page_open();
	do {
		printf("ok\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		execute(line);
	} while (true);
}
