/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the lists of harp_config.h as one table. */
#include "harp_config.h"

#include <stddef.h>

#include "base/util.h"

/* The lists use the short names of readers. */
enum { JOB = HARP_CONFIG_JOB, DAEMON = HARP_CONFIG_DAEMON, TOOL = HARP_CONFIG_TOOL };

#define CONFIG_ROW(name, type, table, key, field, unit, min, max, preset, readers, help)           \
	{ #name, table, key, unit, preset, help, min, max, HARP_CONFIG_##type, readers },

static const struct harp_config_key config_table[] = {
	/* clang-format off */
	HARP_CONFIG_JOB_KEYS(CONFIG_ROW)
	HARP_CONFIG_DAEMON_KEYS(CONFIG_ROW)
	HARP_CONFIG_NIC_KEYS(CONFIG_ROW)
	HARP_CONFIG_DPDK_KEYS(CONFIG_ROW)
	HARP_CONFIG_TOOL_KEYS(CONFIG_ROW)
	/* clang-format on */
};
#define CONFIG_COUNT ARRAY_SIZE(config_table)

unsigned harp_config_count(void)
{
	return CONFIG_COUNT;
}

const struct harp_config_key *harp_config_key(unsigned index)
{
	return index < CONFIG_COUNT ? &config_table[index] : NULL;
}
