/* SPDX-License-Identifier: Apache-2.0 */
/* instance_page.c - an instance's statistics page: creation, mapping, and owner data. */

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "harp_page.h"
#include "host/instance.h"

static uint64_t page_own_netns(void)
{
	struct stat st;

	return stat("/proc/self/ns/net", &st) < 0 ? 0 : st.st_ino;
}

int instance_publish(struct harp_instance *instance, void *page, size_t bytes, uint64_t lease_id,
		     uint64_t netns, const char *label)
{
	static atomic_uint opened; /* instances of this process so far */
	struct harp_page_identity identity = {
		.size = sizeof(identity),
		.pid = (uint32_t)getpid(),
		.queue = instance->queue,
		.instance = atomic_fetch_add_explicit(&opened, 1, memory_order_relaxed),
		.lease_id = lease_id,
		.netns = netns ? netns : page_own_netns(),
	};
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	identity.start_wall_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	snprintf(identity.ifname, sizeof(identity.ifname), "%s", instance->ifname);
	snprintf(identity.label, sizeof(identity.label), "%s",
		 label && label[0] ? label : program_invocation_short_name);
	snprintf(identity.describe, sizeof(identity.describe), "%s", instance->describe);
	return harp_stack_publish_to(instance->stack, page, bytes, &identity);
}

static int page_map(struct instance_page *page)
{
	int rc = harp_page_create_fd(0, &page->fd);

	if (rc)
		return rc;
	page->bytes = harp_page_bytes(0);
	page->map = mmap(NULL, page->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0);
	if (page->map == MAP_FAILED || madvise(page->map, page->bytes, MADV_DONTFORK) < 0) {
		rc = -errno;
		if (page->map == MAP_FAILED)
			page->map = NULL;
		instance_page_close(page);
	}
	return rc;
}

void instance_page_open(struct harp_instance *instance, const char *label)
{
	int rc = page_map(&instance->page);

	if (!rc)
		rc = instance_publish(instance, instance->page.map, instance->page.bytes, 0, 0,
				      label);
	if (rc)
		instance_log(instance, HARP_LOG_WARN,
			     "%s: no statistics page: %s; `harpctl stats` won't show this process",
			     instance->ifname, strerror(-rc));
}

void instance_page_close(struct instance_page *page)
{
	if (page->map)
		munmap(page->map, page->bytes);
	if (page->fd >= 0)
		close(page->fd);
	*page = (struct instance_page){ .fd = -1 };
}
