/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mapping.c - maps memory for devices of a fake DPDK: ranges are added and removed in random
 * order, and devices refuse some of them.
 *
 * Each page of a range must be mapped once for its device and registered once with DPDK. Each piece
 * is unmapped as it was mapped, and no mapping is left at the end.
 */
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_memory.h>
#include <unistd.h>

#include "base/rng.h"
#include "check.h"
#include "dpdk/external.h"

#define PAGES 16u
#define RANGES 12u
#define DEVICES 2u

static uint64_t devices[DEVICES]; /* only the addresses are used */
/* For each device and page, the first page of its mapping + 1; 0: none. The last device is DPDK. */
static unsigned mapping[DEVICES + 1][PAGES];
static unsigned calls_until_error; /* 0: no call fails */
static int map_error;
static uintptr_t page_bytes;
static uint8_t *memory;

static struct rte_device *device_of(unsigned i)
{
	return (struct rte_device *)(void *)&devices[i];
}

static unsigned owner_of(const struct rte_device *device)
{
	return (unsigned)((const uint64_t *)(const void *)device - devices);
}

static int map(unsigned device, const void *at, size_t bytes)
{
	unsigned first = (unsigned)(((uintptr_t)at - (uintptr_t)memory) / page_bytes);

	CHECK_EQ((uintptr_t)at % page_bytes, 0);
	CHECK(bytes > 0 && bytes % page_bytes == 0);
	if (calls_until_error && --calls_until_error == 0) {
		rte_errno = map_error;
		return -1;
	}
	for (unsigned i = first; i < first + bytes / page_bytes; i++) {
		CHECK_EQ(mapping[device][i], 0);
		mapping[device][i] = first + 1;
	}
	return 0;
}

static int unmap(unsigned device, const void *at, size_t bytes)
{
	unsigned first = (unsigned)(((uintptr_t)at - (uintptr_t)memory) / page_bytes);
	unsigned end = first + (unsigned)(bytes / page_bytes);

	for (unsigned i = first; i < end; i++) {
		CHECK_EQ(mapping[device][i], first + 1);
		mapping[device][i] = 0;
	}
	CHECK(end == PAGES || mapping[device][end] != first + 1); /* the whole piece */
	return 0;
}

/* ---- fake DPDK ------------------------------------------------------------------------------- */

int rte_dev_dma_map(struct rte_device *device, void *at, uint64_t iova, size_t bytes)
{
	CHECK_EQ(iova, (uintptr_t)at);
	return map(owner_of(device), at, bytes);
}

int rte_dev_dma_unmap(struct rte_device *device, void *at, uint64_t iova, size_t bytes)
{
	CHECK_EQ(iova, (uintptr_t)at);
	return unmap(owner_of(device), at, bytes);
}

int rte_extmem_register(void *at, size_t bytes, rte_iova_t iovas[], unsigned count, size_t page)
{
	CHECK(!iovas && count == 0 && page == page_bytes);
	return map(DEVICES, at, bytes);
}

int rte_extmem_unregister(void *at, size_t bytes)
{
	return unmap(DEVICES, at, bytes);
}

static enum rte_iova_mode mode = RTE_IOVA_VA;

enum rte_iova_mode rte_eal_iova_mode(void)
{
	return mode;
}

static void memory_open(void)
{
	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	memory = aligned_alloc(page_bytes, PAGES * page_bytes);
	CHECK(memory);
}

BEFORE_EACH(memory_open())
AFTER_EACH(free(memory))

/* ---- ranges ---------------------------------------------------------------------------------- */

static struct range {
	unsigned device;
	size_t from, bytes; /* 0 bytes: not added */
} ranges[RANGES];

static void check_ranges(void)
{
	for (unsigned i = 0; i < RANGES; i++) {
		const struct range *r = &ranges[i];
		size_t end = (r->from + r->bytes + page_bytes - 1) / page_bytes;

		for (size_t page = r->from / page_bytes; r->bytes && page < end; page++)
			CHECK(mapping[r->device][page] && mapping[DEVICES][page]);
	}
}

static bool is_empty(void)
{
	static const unsigned none[DEVICES + 1][PAGES];

	return memcmp(mapping, none, sizeof(mapping)) == 0;
}

static void toggle(struct range *range, struct rng *rng)
{
	size_t all = PAGES * page_bytes;
	int err;

	if (range->bytes) {
		mapping_remove(device_of(range->device), memory + range->from, range->bytes);
		range->bytes = 0;
		return;
	}
	range->device = rng_below(rng, DEVICES);
	range->from = rng_below(rng, (uint32_t)all - 1);
	range->bytes = 1 + rng_below(rng, (uint32_t)(all - range->from - 1));
	if (rng_below(rng, 4) == 0) {
		calls_until_error = 1 + rng_below(rng, 3);
		map_error = rng_below(rng, 2) ? EIO : 0; /* some drivers do not set rte_errno */
	}
	err = mapping_add(device_of(range->device), memory + range->from, range->bytes);
	if (err) {
		CHECK_EQ(calls_until_error, 0);
		CHECK_EQ(err, map_error ? -map_error : -ENOTSUP);
		range->bytes = 0;
	}
	calls_until_error = 0;
}

TEST(ranges_are_mapped_and_unmapped_in_any_order)
{
	struct rng rng;

	for (uint64_t seed = 1; seed <= 300; seed++) {
		rng_seed(&rng, seed);
		for (unsigned i = 0; i < 200; i++) {
			toggle(&ranges[rng_below(&rng, RANGES)], &rng);
			check_ranges();
		}
		for (unsigned i = 0; i < RANGES; i++)
			if (ranges[i].bytes)
				toggle(&ranges[i], &rng);
		CHECK(is_empty());
	}
}

/* A range of several pages is not contiguous in physical addresses. */
TEST(physical_addresses_are_not_mapped)
{
	mode = RTE_IOVA_PA;
	CHECK_EQ(mapping_add(device_of(0), memory, page_bytes), -ENOTSUP);
	CHECK(is_empty());
	mode = RTE_IOVA_VA;
}
