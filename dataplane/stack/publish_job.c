/* SPDX-License-Identifier: Apache-2.0 */
/* publish_job.c - functions for all page owners, and the header of a job's page. */
#include "stack/page.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

void harp_page_write_begin(uint64_t *sequence)
{
	_Atomic uint64_t *lock = (_Atomic uint64_t *)sequence;
	uint64_t now = atomic_load_explicit(lock, memory_order_relaxed);

	atomic_store_explicit(lock, now | 1, memory_order_relaxed);
	/* Pairs with the reader's fence: a reader that copies newer data sees the new number. */
	atomic_thread_fence(memory_order_release);
}

void harp_page_write_end(uint64_t *sequence)
{
	_Atomic uint64_t *lock = (_Atomic uint64_t *)sequence;
	uint64_t now = atomic_load_explicit(lock, memory_order_relaxed);

	/* Pairs with the reader's load-acquire. */
	atomic_store_explicit(lock, (now | 1) + 1, memory_order_release);
}

void page_header_write(void *page, const struct harp_page_place places[HARP_PAGE_PARTS],
		       uint32_t bytes)
{
	struct harp_page_header *header = page;

	header->version = HARP_PAGE_VERSION;
	header->part_count = HARP_PAGE_PARTS;
	header->page_bytes = bytes;
	memcpy(header->parts, places, sizeof(header->parts));
	/* Pairs with the acquire fence after a reader's load of the header. */
	atomic_store_explicit((_Atomic uint64_t *)&header->magic, HARP_PAGE_MAGIC,
			      memory_order_release);
}

/* The lock of a part; its items follow. */
static struct harp_page_lock *job_part(uint8_t *page, const struct harp_page_place *places,
				       enum harp_page_part part)
{
	return (struct harp_page_lock *)(page + places[part].offset);
}

int harp_page_job_begin(void *page, uint32_t lanes, const struct harp_page_identity *identity,
			struct harp_page_job *out)
{
	struct harp_page_place places[HARP_PAGE_PARTS];
	struct harp_page_identity *item;
	uint32_t bytes;

	if (lanes > HARP_PAGE_FLOWS_MAX || (uintptr_t)page % PAGE_LINE_BYTES ||
	    identity->size != sizeof(*identity))
		return -EINVAL;
	bytes = page_layout_job(places, lanes);
	item = (struct harp_page_identity *)(job_part(page, places, HARP_PAGE_IDENTITY) + 1);
	memcpy(item, identity, sizeof(*item));
	snprintf(item->library, sizeof(item->library), "%s", harp_version());
	*out = (struct harp_page_job){
		.status = (void *)(job_part(page, places, HARP_PAGE_STATUS) + 1),
		.counters = (void *)(job_part(page, places, HARP_PAGE_JOB) + 1),
		.rails = (void *)(job_part(page, places, HARP_PAGE_RAILS) + 1),
		.comms = (void *)(job_part(page, places, HARP_PAGE_COMMS) + 1),
		.lanes = (void *)(job_part(page, places, HARP_PAGE_LANES) + 1),
		.comm_room = places[HARP_PAGE_COMMS].count,
		.lane_room = places[HARP_PAGE_LANES].count,
		.status_sequence = &job_part(page, places, HARP_PAGE_STATUS)->sequence,
	};
	page_header_write(page, places, bytes);
	return 0;
}
