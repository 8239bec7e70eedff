/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-rss: gives the hosts behind bridge ports NICs with receive side scaling, for as long as it
 * runs.
 *
 * The NICs of test hosts are veth pairs, whose queues the sender's kernel chooses.
 * Here one copy of rss.bpf.c at the tc egress of each port chooses, as commanded on stdin.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "common/tc_port.h"
#include "harp_host.h"
#include "rss.h"
#include "rss_object.h" /* generated: the program's ELF file */

_Static_assert(RSS_KEY_MAX == HARP_RSS_KEY_MAX, "keys fit");
_Static_assert(RSS_TABLE_MAX == HARP_RSS_TABLE_MAX, "tables fit");

static const char usage[] =
	"usage: harp-rss PORT...\n"
	"\n"
	"Chooses the receive queue of the host behind these bridge ports for each packet. Commands on\n"
	"stdin, answers on stdout:\n"
	"  rss PORT QUEUES RULE  from now on                              -> ok\n"
	"     toeplitz:KEY[:TABLE]  as HARP_RSS has it\n"
	"     hash:SECRET           a hash of another kind, by a number\n"
	"     zero                  all to queue 0\n"
	"     keep                  as the kernel likes (what it begins with)\n"
	"  counts                packets for each queue since the start   -> {\"PORT\": [n, ...], ...}\n";

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

static int command_rss(struct tc_port *ports, int count, const char *line)
{
	struct rss_settings settings = { 0 };
	const __u32 zero = 0;
	struct tc_port *port;
	char name[IF_NAMESIZE];
	int rule = 0, rc;

	if (sscanf(line, "rss %15s %" SCNu32 " %n", name, &settings.queues, &rule) != 2 || !rule ||
	    !settings.queues || settings.queues > RSS_QUEUES_MAX)
		return -EINVAL;
	port = tc_port_find(ports, count, name);
	if (!port)
		return -ENODEV;
	rc = parse_rule(line + rule, &settings);
	if (!rc)
		rc = bpf_map_update_elem(tc_port_map(port, "settings"), &zero, &settings, BPF_ANY);
	if (!rc)
		printf("ok\n");
	return rc;
}

static int command_counts(const struct tc_port *ports, int count)
{
	for (int i = 0; i < count; i++) {
		printf("%s\"%s\": [", i ? ", " : "{", ports[i].name);
		for (__u32 queue = 0; queue < RSS_QUEUES_MAX; queue++) {
			__u64 packets;
			int rc = bpf_map_lookup_elem(tc_port_map(&ports[i], "counts"), &queue,
						     &packets);

			if (rc)
				return rc;
			printf("%s%llu", queue ? ", " : "", packets);
		}
		printf("]");
	}
	printf("}\n");
	return 0;
}

static int command(struct tc_port *ports, int count, const char *line)
{
	if (!strncmp(line, "rss ", 4))
		return command_rss(ports, count, line);
	if (!strcmp(line, "counts"))
		return command_counts(ports, count);
	return -EINVAL;
}

int main(int argc, char **argv)
{
	static const struct tc_tool tool = {
		.name = "harp-rss",
		.usage = usage,
		.point = BPF_TC_EGRESS,
		.elf = rss_object,
		.elf_bytes = sizeof(rss_object),
		.program = "harp_rss",
		.command = command,
	};

	return tc_main(&tool, argc, argv);
}
