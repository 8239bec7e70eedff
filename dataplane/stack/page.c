/* SPDX-License-Identifier: Apache-2.0 */
/* page.c - layout of statistics pages, and names of their values. */
#include "stack/page.h"

#include <errno.h>

#include "base/histogram.h"
#include "base/util.h"

static_assert(sizeof(struct harp_page_header) <= PAGE_HEADER_BYTES, "parts begin after it");
static_assert(sizeof(struct harp_page_lock) == PAGE_LINE_BYTES, "items begin on a cache line");
static_assert(sizeof(struct harp_page_flow) <= PAGE_FLOW_STRIDE_BYTES, "records do not overlap");
static_assert(HARP_HISTOGRAM_FIRST_NS == 1u << 7,
	      "histogram_bucket() and harp_histogram_upper_ns() require it");
static_assert(HARP_PAGE_FLOWS_MAX <= HARP_PAGE_BYTES_MAX / PAGE_FLOW_STRIDE_BYTES - 64,
	      "the largest page of a stack is not too large for readers");
static_assert(sizeof(struct harp_page_lane) * HARP_PAGE_FLOWS_MAX +
			      sizeof(struct harp_page_comm) * PAGE_COMMS_MAX + (1u << 20) <
		      HARP_PAGE_BYTES_MAX,
	      "nor is that of a job");

static uint32_t page_round(size_t bytes)
{
	return (uint32_t)((bytes + PAGE_LINE_BYTES - 1) & ~(size_t)(PAGE_LINE_BYTES - 1));
}

/* Fills in the place of a part at offset; returns the offset of the next part. */
static uint32_t page_place(struct harp_page_place *place, uint32_t offset, uint32_t stride,
			   uint32_t count)
{
	*place = (struct harp_page_place){ .offset = offset, .stride = stride, .count = count };
	return page_round(offset + sizeof(struct harp_page_lock) + (size_t)stride * count);
}

/* Lays out the parts that every page begins with; returns their end. */
static uint32_t page_layout_owner(struct harp_page_place *places)
{
	uint32_t end = PAGE_HEADER_BYTES;

	end = page_place(&places[HARP_PAGE_IDENTITY], end, sizeof(struct harp_page_identity), 1);
	return page_place(&places[HARP_PAGE_STATUS], end, sizeof(struct harp_page_status), 1);
}

/* Lays out the parts of a job with these counts. */
static uint32_t page_layout_lanes(struct harp_page_place *places, uint32_t end, uint32_t counters,
				  uint32_t rails, uint32_t comms, uint32_t lanes)
{
	end = page_place(&places[HARP_PAGE_JOB], end, sizeof(uint64_t), counters);
	end = page_place(&places[HARP_PAGE_RAILS], end, sizeof(struct harp_page_rail), rails);
	end = page_place(&places[HARP_PAGE_COMMS], end, sizeof(struct harp_page_comm), comms);
	return page_place(&places[HARP_PAGE_LANES], end, sizeof(struct harp_page_lane), lanes);
}

uint32_t page_layout(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t flows)
{
	uint32_t end = page_layout_owner(places);

	end = page_place(&places[HARP_PAGE_COUNTERS], end, sizeof(uint64_t), harp_stats_count());
	end = page_place(&places[HARP_PAGE_HISTOGRAMS], end, sizeof(struct harp_page_histogram),
			 HARP_HISTOGRAM_COUNT);
	end = page_layout_lanes(places, end, 0, 0, 0, 0);
	end = page_place(&places[HARP_PAGE_XSTATS], end, sizeof(struct harp_page_xstat),
			 HARP_PAGE_XSTATS_MAX);
	return page_place(&places[HARP_PAGE_FLOWS], end, PAGE_FLOW_STRIDE_BYTES, flows);
}

uint32_t page_layout_job(struct harp_page_place places[HARP_PAGE_PARTS], uint32_t lanes)
{
	uint32_t end = page_layout_owner(places);
	uint32_t comms = lanes < PAGE_COMMS_MAX ? lanes : PAGE_COMMS_MAX;

	end = page_place(&places[HARP_PAGE_COUNTERS], end, sizeof(uint64_t), 0);
	end = page_place(&places[HARP_PAGE_HISTOGRAMS], end, sizeof(struct harp_page_histogram), 0);
	end = page_place(&places[HARP_PAGE_FLOWS], end, PAGE_FLOW_STRIDE_BYTES, 0);
	end = page_place(&places[HARP_PAGE_XSTATS], end, sizeof(struct harp_page_xstat), 0);
	return page_layout_lanes(places, end, HARP_JOB_COUNT, HARP_PAGE_RAILS_MAX, comms, lanes);
}

size_t harp_page_bytes(uint32_t flows)
{
	struct harp_page_place places[HARP_PAGE_PARTS];

	if (flows == 0)
		flows = HARP_PAGE_FLOWS_DEFAULT;
	return page_layout(places, flows < HARP_PAGE_FLOWS_MAX ? flows : HARP_PAGE_FLOWS_MAX);
}

size_t harp_page_job_bytes(uint32_t lanes)
{
	struct harp_page_place places[HARP_PAGE_PARTS];

	return page_layout_job(places, lanes < HARP_PAGE_FLOWS_MAX ? lanes : HARP_PAGE_FLOWS_MAX);
}

/* ---- names ---------------------------------------------------------------------------------- */

#define PAGE_NAME(name, help) #name,
#define PAGE_HELP(name, help) help,
#define PAGE_END(name) #name,

static const char *page_text(const char *const texts[], unsigned count, unsigned index)
{
	return index < count ? texts[index] : NULL;
}

/* Defines list_name(index) and list_help(index). */
#define PAGE_LIST(LIST, list)                                                                      \
	const char *list##_name(unsigned index)                                                    \
	{                                                                                          \
		static const char *const names[] = { LIST(PAGE_NAME) };                            \
                                                                                                   \
		return page_text(names, ARRAY_SIZE(names), index);                                 \
	}                                                                                          \
	const char *list##_help(unsigned index)                                                    \
	{                                                                                          \
		static const char *const helps[] = { LIST(PAGE_HELP) };                            \
                                                                                                   \
		return page_text(helps, ARRAY_SIZE(helps), index);                                 \
	}

PAGE_LIST(HARP_HISTOGRAMS, harp_histogram)
PAGE_LIST(HARP_FLOW_VALUES, harp_flow_value)
PAGE_LIST(HARP_JOB_COUNTERS, harp_job_counter)
PAGE_LIST(HARP_RAIL_VALUES, harp_rail_value)
PAGE_LIST(HARP_COMM_VALUES, harp_comm_value)
PAGE_LIST(HARP_LANE_VALUES, harp_lane_value)

const char *harp_lane_end_name(unsigned end)
{
	static const char *const names[] = { HARP_LANE_ENDS(PAGE_END) };

	return end == 0 ? NULL : page_text(names, ARRAY_SIZE(names), end - 1);
}

const char *harp_fallback_name(unsigned fallback)
{
	static const char *const names[] = { HARP_FALLBACKS(PAGE_NAME) };

	return fallback == 0 ? NULL : page_text(names, ARRAY_SIZE(names), fallback - 1);
}

const char *harp_fallback_help(unsigned fallback)
{
	static const char *const helps[] = { HARP_FALLBACKS(PAGE_HELP) };

	return fallback == 0 ? NULL : page_text(helps, ARRAY_SIZE(helps), fallback - 1);
}

uint64_t harp_histogram_upper_ns(unsigned bucket)
{
	if (bucket >= HARP_HISTOGRAM_BUCKETS - 1)
		return UINT64_MAX;
	return (uint64_t)(4 + bucket % 4) << (5 + bucket / 4);
}

unsigned harp_histogram_bucket(uint64_t value_ns)
{
	return histogram_bucket(value_ns);
}
