/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mapping.c - memory that devices read directly, over a double of DPDK: two devices, sixteen pages,
 * ranges that are added and removed in any order, and devices that refuse.
 *
 * Each page of a range is mapped once for its device and registered once with DPDK. Exactly what was
 * mapped is unmapped, and nothing is left at the end.
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

static uint64_t devices[DEVICES]; /* their values do not matter here */
static unsigned
	made[DEVICES + 1]
	    [PAGES]; /* per device (the last: DPDK itself), the first page of the piece + 1 */
static unsigned calls_until_refused; /* 0: nothing is refused */
static int refusal;
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

static int make(unsigned device, const void *at, size_t bytes)
{
	unsigned first = (unsigned)(((uintptr_t)at - (uintptr_t)memory) / page_bytes);

	CHECK_EQ((uintptr_t)at % page_bytes, 0);
	CHECK(bytes > 0 && bytes % page_bytes == 0);
	if (calls_until_refused && --calls_until_refused == 0) {
		rte_errno = refusal;
		return -1;
	}
	for (unsigned i = first; i < first + bytes / page_bytes; i++) {
		CHECK_EQ(made[device][i], 0);
		made[device][i] = first + 1;
	}
	return 0;
}

static int unmake(unsigned device, const void *at, size_t bytes)
{
	unsigned first = (unsigned)(((uintptr_t)at - (uintptr_t)memory) / page_bytes);
	unsigned end = first + (unsigned)(bytes / page_bytes);

	for (unsigned i = first; i < end; i++) {
		CHECK_EQ(made[device][i], first + 1);
		made[device][i] = 0;
	}
	CHECK(end == PAGES || made[device][end] != first + 1); /* all of the piece */
	return 0;
}

/* ---- DPDK's ------------------------------------------------------------------------------------ */

int rte_dev_dma_map(struct rte_device *device, void *at, uint64_t iova, size_t bytes)
{
	CHECK_EQ(iova, (uintptr_t)at);
	return make(owner_of(device), at, bytes);
}

int rte_dev_dma_unmap(struct rte_device *device, void *at, uint64_t iova, size_t bytes)
{
	CHECK_EQ(iova, (uintptr_t)at);
	return unmake(owner_of(device), at, bytes);
}

int rte_extmem_register(void *at, size_t bytes, rte_iova_t iovas[], unsigned count, size_t page)
{
	CHECK(!iovas && count == 0 && page == page_bytes);
	return make(DEVICES, at, bytes);
}

int rte_extmem_unregister(void *at, size_t bytes)
{
	return unmake(DEVICES, at, bytes);
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

/* ---- ranges ------------------------------------------------------------------------------------ */

static struct range {
	unsigned device;
	size_t from, bytes; /* 0: not there */
} ranges[RANGES];

static void judge(void)
{
	for (unsigned i = 0; i < RANGES; i++) {
		const struct range *r = &ranges[i];
		size_t end = (r->from + r->bytes + page_bytes - 1) / page_bytes;

		for (size_t page = r->from / page_bytes; r->bytes && page < end; page++)
			CHECK(made[r->device][page] && made[DEVICES][page]);
	}
}

static bool nothing_is_left(void)
{
	static const unsigned none[DEVICES + 1][PAGES];

	return memcmp(made, none, sizeof(made)) == 0;
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
		calls_until_refused = 1 + rng_below(rng, 3);
		refusal = rng_below(rng, 2) ? EIO : 0; /* some drivers say nothing */
	}
	err = mapping_add(device_of(range->device), memory + range->from, range->bytes);
	if (err) {
		CHECK_EQ(calls_until_refused, 0);
		CHECK_EQ(err, refusal ? -refusal : -ENOTSUP);
		range->bytes = 0;
	}
	calls_until_refused = 0;
}

TEST(ranges_come_and_go_in_any_order)
{
	struct rng rng;

	for (uint64_t seed = 1; seed <= 300; seed++) {
		rng_seed(&rng, seed);
		for (unsigned i = 0; i < 200; i++) {
			toggle(&ranges[rng_below(&rng, RANGES)], &rng);
			judge();
		}
		for (unsigned i = 0; i < RANGES; i++)
			if (ranges[i].bytes)
				toggle(&ranges[i], &rng);
		CHECK(nothing_is_left());
	}
}

/* With physical addresses, a range of several pages is not contiguous for a device. */
TEST(physical_addresses_are_not_mapped)
{
	mode = RTE_IOVA_PA;
	CHECK_EQ(mapping_add(device_of(0), memory, page_bytes), -ENOTSUP);
	CHECK(nothing_is_left());
	mode = RTE_IOVA_VA;
}
