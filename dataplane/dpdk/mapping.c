/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.c - memory for DMA: registered with DPDK, and mapped for each device.
 *
 * Ranges consist of whole pages and may overlap. The queues of a device share mappings, and all
 * devices share DPDK's registration. So there is a list of disjoint pieces, each with its number of
 * users (ranges). A range uses existing pieces and creates the missing ones between them. Pieces
 * without a device are DPDK's registrations (rte_extmem_register); others are a device's mappings.
 */
#include <errno.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_memory.h>
#include <stdlib.h>
#include <unistd.h>

#include "dpdk/external.h"

struct mapping {
	struct mapping *next;
	struct rte_device *device; /* NULL: DPDK itself */
	uintptr_t from, to;
	uint32_t users;
};

static struct mapping *mappings;
static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

static int mapping_create(const struct mapping *m)
{
	void *at = (void *)m->from;
	size_t bytes = m->to - m->from;
	int rc = m->device ? rte_dev_dma_map(m->device, at, m->from, bytes)
			   : rte_extmem_register(at, bytes, NULL, 0, (size_t)sysconf(_SC_PAGESIZE));

	if (rc == 0)
		return 0;
	/* Some drivers do not set rte_errno. */
	return rte_errno == 0 || rte_errno == EOPNOTSUPP || rte_errno == ENOTSUP ? -ENOTSUP
										 : -rte_errno;
}

static void mapping_destroy(const struct mapping *m)
{
	void *at = (void *)m->from;
	size_t bytes = m->to - m->from;

	if (m->device)
		rte_dev_dma_unmap(m->device, at, m->from, bytes);
	else
		rte_extmem_unregister(at, bytes);
}

/* Releases the pieces of [from, to) for one range. */
static void mapping_release(struct rte_device *device, uintptr_t from, uintptr_t to)
{
	for (struct mapping **at = &mappings, *m; (m = *at) != NULL;) {
		if (m->device == device && m->from < to && m->to > from && --m->users == 0) {
			*at = m->next;
			mapping_destroy(m);
			free(m);
			continue;
		}
		at = &m->next;
	}
}

/* Returns the piece that contains `from`. NULL: none; *end becomes the start of the next piece, if
 * that is lower. */
static struct mapping *mapping_at(struct rte_device *device, uintptr_t from, uintptr_t *end)
{
	for (struct mapping *m = mappings; m; m = m->next) {
		if (m->device != device || m->to <= from)
			continue;
		if (m->from <= from)
			return m;
		if (m->from < *end)
			*end = m->from;
	}
	return NULL;
}

static int mapping_hold(struct rte_device *device, uintptr_t from, uintptr_t to)
{
	uintptr_t at = from;
	int err = 0;

	while (at < to && !err) {
		uintptr_t end = to;
		struct mapping *m = mapping_at(device, at, &end);

		if (m) {
			m->users++;
			at = m->to;
			continue;
		}
		m = malloc(sizeof(*m));
		if (!m) {
			err = -ENOMEM;
			break;
		}
		*m = (struct mapping){ mappings, device, at, end, 1 };
		rte_errno = 0;
		err = mapping_create(m);
		if (err) {
			free(m);
			break;
		}
		mappings = m;
		at = end;
	}
	if (err)
		mapping_release(device, from, at);
	return err;
}

static void mapping_pages(const void *base, size_t bytes, uintptr_t *from, uintptr_t *to)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	*from = (uintptr_t)base & ~(page - 1);
	*to = ((uintptr_t)base + bytes + page - 1) & ~(page - 1);
}

int mapping_add(struct rte_device *device, const void *base, size_t bytes)
{
	uintptr_t from, to;
	int err;

	/* With physical addresses memory is contiguous only within a page. */
	if (rte_eal_iova_mode() != RTE_IOVA_VA)
		return -ENOTSUP;
	mapping_pages(base, bytes, &from, &to);
	pthread_mutex_lock(&mapping_lock);
	err = mapping_hold(NULL, from, to);
	if (!err) {
		err = mapping_hold(device, from, to);
		if (err)
			mapping_release(NULL, from, to);
	}
	pthread_mutex_unlock(&mapping_lock);
	return err;
}

void mapping_remove(struct rte_device *device, const void *base, size_t bytes)
{
	uintptr_t from, to;

	mapping_pages(base, bytes, &from, &to);
	pthread_mutex_lock(&mapping_lock);
	mapping_release(device, from, to);
	mapping_release(NULL, from, to);
	pthread_mutex_unlock(&mapping_lock);
}
