/* SPDX-License-Identifier: Apache-2.0 */
/* instance_page.h - an instance's statistics page and its owner data. */
#ifndef HARP_HOST_INSTANCE_PAGE_H
#define HARP_HOST_INSTANCE_PAGE_H

#include <stddef.h>
#include <stdint.h>

struct harp_instance;

/* For a stand-alone instance. */
struct instance_page {
	void *map; /* NULL: none */
	size_t bytes;
	int fd; /* kept open: readers find it in /proc/PID/fd */
};

/* Publishes to this page (a lease's) from now on, with the data of this process as owner. netns:
 * of the NIC; 0: this one. label NULL: the program's name. 0, or the error of
 * harp_stack_publish_to(). */
int instance_publish(struct harp_instance *instance, void *page, size_t bytes, uint64_t lease_id,
		     uint64_t netns, const char *label);
/* Creates a page and publishes to it. A failure is only logged. */
void instance_page_open(struct harp_instance *instance, const char *label);
/* Call after the stack, which writes final values, is destroyed. */
void instance_page_close(struct instance_page *page);

#endif
