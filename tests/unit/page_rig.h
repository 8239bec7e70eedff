/* SPDX-License-Identifier: Apache-2.0 */
/* page_rig.h - a statistics page for a stack of tcp_rig.h, and its parts as a reader gets them. */
#ifndef HARP_TESTS_PAGE_RIG_H
#define HARP_TESTS_PAGE_RIG_H

#include <sys/mman.h>
#include <unistd.h>

#include "harp_page.h"
#include "tcp_rig.h"

struct page_rig {
	int fd;
	uint8_t *bytes;
	size_t size;
};

static inline struct harp_page_identity page_rig_identity(void)
{
	return (struct harp_page_identity){
		.size = sizeof(struct harp_page_identity),
		.pid = 4242,
		.queue = 3,
		.instance = 1,
		.ifname = "eth7",
		.label = "train.py rank 3",
		.describe = "a rig",
	};
}

static inline void page_rig_make(struct page_rig *page, uint32_t flows)
{
	CHECK_EQ(harp_page_create_fd(flows, &page->fd), 0);
	page->size = harp_page_bytes(flows);
	page->bytes = mmap(NULL, page->size, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0);
	CHECK(page->bytes != MAP_FAILED);
}

static inline void page_rig_attach(struct page_rig *page, struct rig *rig)
{
	struct harp_page_identity identity = page_rig_identity();

	CHECK_EQ(harp_stack_publish_to(rig->stack, page->bytes, page->size, &identity), 0);
}

static inline void page_rig_free(struct page_rig *page)
{
	munmap(page->bytes, page->size);
	close(page->fd);
	page->bytes = NULL;
}

/* A publication is due, and made. */
static inline void page_rig_publish(struct rig *rig)
{
	rig->now_ns += HARP_PAGE_PERIOD_NS;
	rig_poll(rig);
}

static inline struct harp_page_status page_rig_status(const struct page_rig *page)
{
	struct harp_page_status status = { 0 };

	CHECK_EQ(harp_page_read(page->fd, HARP_PAGE_STATUS, 0, &status, sizeof(status), 1), 1);
	return status;
}

static inline struct harp_page_histogram page_rig_histogram(const struct page_rig *page,
							    enum harp_histogram index)
{
	struct harp_page_histogram histogram = { 0 };

	CHECK_EQ(harp_page_read(page->fd, HARP_PAGE_HISTOGRAMS, index, &histogram,
				sizeof(histogram), 1),
		 1);
	return histogram;
}

static inline struct harp_page_flow page_rig_flow(const struct page_rig *page, uint32_t index)
{
	struct harp_page_flow flow = { 0 };

	CHECK_EQ(harp_page_read(page->fd, HARP_PAGE_FLOWS, index, &flow, sizeof(flow), 1), 1);
	return flow;
}

#endif
