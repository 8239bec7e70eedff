/* SPDX-License-Identifier: Apache-2.0 */
/* publish_xstats.c - writes a driver's counters to a stack's page, from the thread that queries the
 * driver. */
#include "stack/stack.h"

#include <string.h>

void harp_stack_publish_xstats(struct harp_stack *stack, const struct harp_page_xstat *xstats,
			       unsigned count, uint64_t now_ns)
{
	const struct publish *p = &stack->publish;
	struct harp_page_lock *lock;
	struct harp_page_xstat *items;

	if (!p->page)
		return;
	lock = (struct harp_page_lock *)(p->page + p->places[HARP_PAGE_XSTATS].offset);
	items = (struct harp_page_xstat *)(lock + 1);
	if (count > HARP_PAGE_XSTATS_MAX)
		count = HARP_PAGE_XSTATS_MAX;
	harp_page_write_begin(&lock->sequence);
	lock->written_ns = now_ns;
	memcpy(items, xstats, count * sizeof(*items));
	/* Does not read past the last one. */
	if (count < HARP_PAGE_XSTATS_MAX)
		items[count] = (struct harp_page_xstat){ 0 };
	harp_page_write_end(&lock->sequence);
}
