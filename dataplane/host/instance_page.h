/* SPDX-License-Identifier: Apache-2.0 */
/* instance_page.h - an instance's statistics page: whose memory it is, and what is said of the owner. */
#ifndef HARP_HOST_INSTANCE_PAGE_H
#define HARP_HOST_INSTANCE_PAGE_H

#include <stddef.h>
#include <stdint.h>

struct harp_instance;

/* Of an instance that stands alone. */
struct instance_page {
	void *map; /* NULL: none */
	size_t bytes;
	int fd; /* kept open: readers find it in /proc/PID/fd */
};

/* The stack publishes to this page (a lease's) from now on, with who we are. netns: of the NIC; 0: ours.
 * label NULL: the program's name. 0, or harp_stack_publish_to()'s. */
int instance_publish(struct harp_instance *instance, void *page, size_t bytes, uint64_t lease_id,
		     uint64_t netns, const char *label);
/* Makes a page of our own and publishes to it. Who has none works as well: a failure is logged. */
void instance_page_open(struct harp_instance *instance, const char *label);
/* After the stack, which writes it to its end. */
void instance_page_close(struct instance_page *page);

#endif
