/* SPDX-License-Identifier: Apache-2.0 */
/* page.c - where the parts of a statistics page lie, and the names of what is in them. */
#include "stack/page.h"

#include <errno.h>

static_assert(sizeof(struct harp_page_header) <= PAGE_LINE_BYTES * 2, "parts begin behind it");
static_assert(sizeof(struct harp_page_lock) == PAGE_LINE_BYTES, "items begin on a line");
static_assert(sizeof(struct harp_page_flow) <= PAGE_FLOW_STRIDE_BYTES, "a record and its stride");
static_assert(HARP_HISTOGRAM_FIRST_NS == 1u << 7,
	      "histogram_bucket() and harp_histogram_upper_ns()");
static_assert(HARP_PAGE_FLOWS_MAX <= HARP_PAGE_BYTES_MAX / PAGE_FLOW_STRIDE_BYTES - 64,
	      "a reader takes the largest page there is");

static uint32_t page_round(size_t bytes)
{
	return (uint32_t)((bytes + PAGE_LINE_BYTES - 1) & ~(size_t)(PAGE_LINE_BYTES - 1));
}

/* The next part begins where this one ends. */
static uint32_t page_place(struct harp_page_place *place, uint32_t offset, uint32_t stride,
			   uint32_t count)
{
	*place = (struct harp_page_place){ .offset = offset, .stride = stride, .count = count };
	return page_round(offset + sizeof(struct harp_page_lock) + (size_t)stride * count);
}

uint32_t page_layout(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t flows)
{
	uint32_t end = page_round(sizeof(struct harp_page_header));

	end = page_place(&places[HARP_PAGE_IDENTITY], end, sizeof(struct harp_page_identity), 1);
	end = page_place(&places[HARP_PAGE_STATUS], end, sizeof(struct harp_page_status), 1);
	end = page_place(&places[HARP_PAGE_COUNTERS], end, sizeof(uint64_t), harp_stats_count());
	end = page_place(&places[HARP_PAGE_HISTOGRAMS], end, sizeof(struct harp_page_histogram),
			 HARP_HISTOGRAM_COUNT);
	return page_place(&places[HARP_PAGE_FLOWS], end, PAGE_FLOW_STRIDE_BYTES, flows);
}

size_t harp_page_bytes(uint32_t flows)
{
	struct harp_page_place places[HARP_PAGE_PARTS];

	if (flows == 0)
		flows = HARP_PAGE_FLOWS_DEFAULT;
	return page_layout(places, flows < HARP_PAGE_FLOWS_MAX ? flows : HARP_PAGE_FLOWS_MAX);
}

/* ---- names ---------------------------------------------------------------------------------- */

#define PAGE_NAME(name, help) #name,
#define PAGE_HELP(name, help) help,
enum {
	PAGE_FLOW_VALUES =
		sizeof((const char *const[]){ HARP_FLOW_VALUES(PAGE_NAME) }) / sizeof(const char *)
};

const char *harp_histogram_name(unsigned index)
{
	static const char *const names[] = { HARP_HISTOGRAMS(PAGE_NAME) };

	return index < HARP_HISTOGRAM_COUNT ? names[index] : NULL;
}

const char *harp_histogram_help(unsigned index)
{
	static const char *const helps[] = { HARP_HISTOGRAMS(PAGE_HELP) };

	return index < HARP_HISTOGRAM_COUNT ? helps[index] : NULL;
}

const char *harp_flow_value_name(unsigned index)
{
	static const char *const names[] = { HARP_FLOW_VALUES(PAGE_NAME) };

	return index < PAGE_FLOW_VALUES ? names[index] : NULL;
}

const char *harp_flow_value_help(unsigned index)
{
	static const char *const helps[] = { HARP_FLOW_VALUES(PAGE_HELP) };

	return index < PAGE_FLOW_VALUES ? helps[index] : NULL;
}

uint64_t harp_histogram_upper_ns(unsigned bucket)
{
	if (bucket >= HARP_HISTOGRAM_BUCKETS - 1)
		return UINT64_MAX;
	return (uint64_t)(4 + bucket % 4) << (5 + bucket / 4);
}
