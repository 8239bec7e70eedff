/* SPDX-License-Identifier: Apache-2.0 */
/* info.c - statistics by index and by name, generated from harp_stats.h. */
#include "stack/stack.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#define INFO_NAME(name, kind, help) #name,
#define INFO_HELP(name, kind, help) help,
#define INFO_KIND(name, kind, help) #kind,
static const char *const info_names[] = { HARP_STATS(INFO_NAME) };
static const char *const info_helps[] = { HARP_STATS(INFO_HELP) };
static const char *const info_kinds[] = { HARP_STATS(INFO_KIND) };
enum { INFO_COUNT = ARRAY_SIZE(info_names) };
#undef INFO_NAME
#undef INFO_HELP
#undef INFO_KIND

static_assert(sizeof(struct harp_stats) == INFO_COUNT * sizeof(uint64_t), "an array of uint64_t");

unsigned harp_stats_count(void)
{
	return INFO_COUNT;
}

const char *harp_stats_name(unsigned index)
{
	return index < INFO_COUNT ? info_names[index] : NULL;
}

const char *harp_stats_help(unsigned index)
{
	return index < INFO_COUNT ? info_helps[index] : NULL;
}

const char *harp_stats_kind(unsigned index)
{
	return index < INFO_COUNT ? info_kinds[index] : NULL;
}

void info_query_nic(const struct harp_stack *stack, struct harp_stats *stats)
{
	struct harp_nic *nic = stack->io.nic;
	struct harp_nic_stats nic_stats = { 0 };

	if (!nic || !nic->ops->stats)
		return;
	nic->ops->stats(nic, &nic_stats);
	stats->nic_rx_dropped = nic_stats.rx_dropped;
	stats->nic_rx_ring_full = nic_stats.rx_ring_full;
	stats->nic_rx_fill_empty = nic_stats.rx_fill_empty;
	stats->nic_rx_invalid = nic_stats.rx_invalid;
	stats->nic_tx_invalid = nic_stats.tx_invalid;
	stats->nic_copied_bytes = nic_stats.copied_bytes;
	stats->nic_driver_copied_bytes = nic_stats.driver_copied_bytes;
}

/* A copy of the stack's statistics with the gauges of pool and NIC. */
static struct harp_stats info_snapshot(const struct harp_stack *stack)
{
	struct harp_stats stats = stack->stats;

	stats.frames_free = stack->pool.free_count;
	stats.frames_rx_nic = stack->io.fill_held;
	stats.frames_tx_nic = stack->io.tx_held;
	return stats;
}

void info_values(const struct harp_stack *stack, uint64_t *values, unsigned count)
{
	struct harp_stats stats = info_snapshot(stack);

	memcpy(values, &stats, (count < INFO_COUNT ? count : INFO_COUNT) * sizeof(*values));
}

unsigned harp_stack_stats(const struct harp_stack *stack, uint64_t *values, unsigned count)
{
	struct harp_stats stats = info_snapshot(stack);
	unsigned n = count < INFO_COUNT ? count : INFO_COUNT;

	info_query_nic(stack, &stats);
	memcpy(values, &stats, n * sizeof(*values));
	return n;
}

int harp_stack_stat(const struct harp_stack *stack, const char *name, uint64_t *value)
{
	struct harp_stats stats = info_snapshot(stack);

	info_query_nic(stack, &stats);
	for (unsigned i = 0; i < INFO_COUNT; i++) {
		if (strcmp(name, info_names[i]) == 0) {
			memcpy(value, (const uint64_t *)&stats + i, sizeof(*value));
			return 0;
		}
	}
	return -ENOENT;
}
