/* SPDX-License-Identifier: Apache-2.0 */
/* page.h - publishing statistics: page.c has the layouts, publish.c a stack's writing, publish_xstats.c a
 * card's, publish_job.c a job's. */
#ifndef HARP_STACK_PAGE_H
#define HARP_STACK_PAGE_H

#include <assert.h>

#include "harp_page.h"

#define PAGE_LINE_BYTES 64u
#define PAGE_HEADER_BYTES 256u /* with room for parts to come */
#define PAGE_FLOW_STRIDE_BYTES 320u
#define PAGE_COMMS_MAX 16384u

/* Place the parts of a stack's or a job's page; return the bytes they take. */
uint32_t page_layout(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t flows);
uint32_t page_layout_job(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t lanes);
/* Makes a page of zeros one that has readers: written last. */
void page_header_write(void *page, const struct harp_page_place places[HARP_PAGE_PARTS],
		       uint32_t bytes);

/* What a stack knows of its page. It never reads what lies there. */
struct publish {
	uint8_t *page;                     /* NULL: none */
	uint64_t next_ns;                  /* no publication before */
	uint64_t nic_next_ns;              /* the NIC is not asked for its counters before */
	uint64_t seen_packets, seen_conns; /* as of the last publication */
	uint32_t flow_room;                /* records of the page */
	uint32_t flow_next;                /* slot to look at next */
	uint32_t flows_left;               /* slots not looked at since something happened */
	struct harp_page_place places[HARP_PAGE_PARTS];
	struct harp_page_status status;
	struct harp_page_histogram histograms[HARP_HISTOGRAM_COUNT];
	uint64_t histogram_seen[HARP_HISTOGRAM_COUNT]; /* values, as of the last publication */
};

/* At the end of a poll of a stack that has a page; gap_ns since the one before. */
void publish_poll(struct harp_stack *stack, uint64_t gap_ns);
/* When what has happened must be published, though nothing else is to be done; UINT64_MAX: never. */
uint64_t publish_next_ns(const struct harp_stack *stack);
/* The last words. Nothing without a page. */
void publish_end(struct harp_stack *stack);

/* Statistics for a page: without what only the NIC knows, which info_ask_nic() brings. */
void info_values(const struct harp_stack *stack, uint64_t *values, unsigned count);
void info_ask_nic(const struct harp_stack *stack, struct harp_stats *stats);

#endif
