/* SPDX-License-Identifier: Apache-2.0 */
/* page.h - publishes statistics. page.c has the layouts; publish.c writes a stack's page,
 * publish_job.c a job's page. */
#ifndef HARP_STACK_PAGE_H
#define HARP_STACK_PAGE_H

#include <assert.h>

#include "harp_page.h"

#define PAGE_LINE_BYTES 64u
#define PAGE_HEADER_BYTES 256u /* with space for future parts */
#define PAGE_FLOW_STRIDE_BYTES 320u
#define PAGE_COMMS_MAX 16384u

/* Lay out the parts of a stack's or a job's page; return its size in bytes. */
uint32_t page_layout(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t flows);
uint32_t page_layout_job(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t lanes);
/* Writes the header of a zeroed page. Call last, because it makes the page valid for readers. */
void page_header_write(void *page, const struct harp_page_place places[HARP_PAGE_PARTS],
		       uint32_t bytes);

/* State of a stack that publishes. The stack never reads the page. */
struct publish {
	uint8_t *page;    /* NULL: none */
	uint64_t next_ns; /* earliest time of the next publication */
	/* earliest time of the next query of the NIC's counters */
	uint64_t nic_next_ns;
	uint64_t seen_packets, seen_conns; /* at the last publication */
	uint32_t flow_room;                /* number of records in the page */
	uint32_t flow_next;                /* next slot to check */
	uint32_t flows_left;               /* slots to check until all activity is published */
	struct harp_page_place places[HARP_PAGE_PARTS];
	struct harp_page_status status;
	struct harp_page_histogram histograms[HARP_HISTOGRAM_COUNT];
	uint64_t histogram_seen[HARP_HISTOGRAM_COUNT]; /* counts at the last publication */
};

/* Called at the end of each poll of a stack with a page, gap_ns after the previous poll. */
void publish_poll(struct harp_stack *stack, uint64_t gap_ns);
/* When the stack must be polled to publish recent activity; UINT64_MAX: no need. */
uint64_t publish_next_ns(const struct harp_stack *stack);
/* Writes the final values. No effect without a page. */
void publish_end(struct harp_stack *stack);

/* Statistics for a page, without the NIC's counters (info_query_nic()). */
void info_values(const struct harp_stack *stack, uint64_t *values, unsigned count);
void info_query_nic(const struct harp_stack *stack, struct harp_stats *stats);

#endif
