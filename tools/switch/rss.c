/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rss.c - harp-switch rss: simulates NICs with receive side scaling behind bridge ports.
 *
 * Test hosts have veth pairs, where the sender's kernel chooses the receive queue. Instead,
 * rss.bpf.c at the tc egress of each port chooses it.
 */
#include "rss.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harp_host.h"
#include "rss_object.h" /* generated: the program's ELF file */
#include "switch.h"

_Static_assert(RSS_KEY_MAX == HARP_RSS_KEY_MAX, "keys fit");
_Static_assert(RSS_TABLE_MAX == HARP_RSS_TABLE_MAX, "tables fit");

static int parse_rule(const char *rule, struct rss_settings *out)
{
	struct harp_rss parsed;
	int rc, end = 0;

	if (!strcmp(rule, "keep") || !strcmp(rule, "zero")) {
		out->mode = *rule == 'k' ? RSS_KEEP : RSS_ZERO;
		return 0;
	}
	if (sscanf(rule, "hash:%llu%n", &out->secret, &end) == 1 && !rule[end]) {
		out->mode = RSS_HASH;
		out->table_count = 1;
		return 0;
	}
	rc = harp_rss_parse(rule, out->queues, &parsed);
	if (rc)
		return rc;
	if (parsed.kind != HARP_RSS_TOEPLITZ) {
		out->mode = RSS_ZERO; /* one queue */
		return out->queues == 1 ? 0 : -EINVAL;
	}
	out->mode = RSS_TOEPLITZ;
	out->table_count = parsed.table_count;
	memcpy(out->key, parsed.key, sizeof(out->key));
	memcpy(out->table, parsed.table, sizeof(out->table));
	return 0;
}

static int rss_set(const struct tc_port *port, const char *args)
{
	struct rss_settings settings = { 0 };
	const __u32 zero = 0;
	int rule = 0, rc;

	if (sscanf(args, "%" SCNu32 " %n", &settings.queues, &rule) != 1 || !rule ||
	    !settings.queues || settings.queues > RSS_QUEUES_MAX)
		return -EINVAL;
	rc = parse_rule(args + rule, &settings);
	if (!rc)
		rc = bpf_map_update_elem(tc_port_map(port, "settings"), &zero, &settings, BPF_ANY);
	if (!rc)
		printf("ok\n");
	return rc;
}

/* Prints the number of packets sent to each queue. */
static int rss_counts(const struct tc_port *port)
{
	__u64 packets;
	int rc = 0;

	for (__u32 queue = 0; queue < RSS_QUEUES_MAX && !rc; queue++) {
		rc = bpf_map_lookup_elem(tc_port_map(port, "counts"), &queue, &packets);
		printf("%s%llu", queue ? ", " : "[", packets);
	}
	printf("]");
	return rc;
}

const struct tc_tool switch_rss = {
	.name = "rss",
	.point = BPF_TC_EGRESS,
	.elf = rss_object,
	.elf_bytes = sizeof(rss_object),
	.program = "harp_rss",
	.set = rss_set,
	.counts = rss_counts,
};
