/* SPDX-License-Identifier: Apache-2.0 */
/* rss.h - maps that harp-switch shares with rss.bpf.c. Each port has its own object and maps. */
#ifndef HARP_TOOLS_RSS_H
#define HARP_TOOLS_RSS_H

#include <linux/types.h>

#define RSS_QUEUES_MAX 64
#define RSS_KEY_MAX 64
#define RSS_TABLE_MAX 512

enum rss_mode {
	RSS_KEEP = 0,     /* the kernel's choice */
	RSS_TOEPLITZ = 1, /* by key and table */
	RSS_HASH = 2,     /* by a hash that HARP does not know */
	RSS_ZERO = 3,     /* all packets to queue 0 */
};

/* Written by harp-switch, read by the program. */
struct rss_settings {
	__u32 mode;
	__u32 queues;
	__u64 secret;      /* key of RSS_HASH */
	__u32 table_count; /* at least 1 */
	__u8 key[RSS_KEY_MAX];
	__u16 table[RSS_TABLE_MAX];
};

#endif
