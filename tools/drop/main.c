/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-drop: makes the ports of a bridge lose TCP packets for as long as it runs.
 *
 * It attaches one copy of drop.bpf.c at the tc ingress of each port named, prints "ready", and then
 * answers a line on stdin with a line on stdout; at the end of stdin it detaches and ends. So
 * harp.lab controls it by a pipe, and it ends with the lab.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "common/tc_port.h"
#include "drop.h"
#include "drop_object.h" /* generated: the program's ELF file */

#define PPM 1000000u

static const char usage[] =
	"usage: harp-drop PORT...\n"
	"\n"
	"Loses TCP packets that enter these bridge ports. Commands on stdin, answers on stdout:\n"
	"  loss PORT PPM SEED  lose PPM of a million packets from now on    -> ok\n"
	"  counts              what came and what was lost, one JSON object -> {\"PORT\": {...}, ...}\n";

static int command_loss(struct tc_port *ports, int count, const char *line)
{
	struct drop_settings settings;
	const __u32 zero = 0;
	struct tc_port *port;
	char name[IF_NAMESIZE];
	uint32_t ppm;
	int rc;

	if (sscanf(line, "loss %15s %" SCNu32 " %llu", name, &ppm, &settings.seed) != 3 ||
	    ppm > PPM)
		return -EINVAL;
	port = tc_port_find(ports, count, name);
	if (!port)
		return -ENODEV;
	settings.threshold = ((__u64)ppm << 32) / PPM;
	rc = bpf_map_update_elem(tc_port_map(port, "settings"), &zero, &settings, BPF_ANY);
	if (!rc)
		printf("ok\n");
	return rc;
}

static int command_counts(const struct tc_port *ports, int count)
{
	const __u32 zero = 0;
	struct drop_counts c;

	for (int i = 0; i < count; i++) {
		int rc = bpf_map_lookup_elem(tc_port_map(&ports[i], "counts"), &zero, &c);

		if (rc)
			return rc;
		printf("%s\"%s\": {\"packets\": %llu, \"bytes\": %llu, \"payload_bytes\": %llu, "
		       "\"dropped_packets\": %llu, \"dropped_bytes\": %llu, "
		       "\"dropped_payload_bytes\": %llu, \"super_packets\": %llu, "
		       "\"ecn_marked\": %llu}",
		       i ? ", " : "{", ports[i].name, c.packets, c.bytes, c.payload_bytes,
		       c.dropped_packets, c.dropped_bytes, c.dropped_payload_bytes, c.super_packets,
		       c.ecn_marked);
	}
	printf("}\n");
	return 0;
}

static int command(struct tc_port *ports, int count, const char *line)
{
	if (!strncmp(line, "loss ", 5))
		return command_loss(ports, count, line);
	if (!strcmp(line, "counts"))
		return command_counts(ports, count);
	return -EINVAL;
}

int main(int argc, char **argv)
{
	static const struct tc_tool tool = {
		.name = "harp-drop",
		.usage = usage,
		.point = BPF_TC_INGRESS,
		.elf = drop_object,
		.elf_bytes = sizeof(drop_object),
		.program = "harp_drop",
		.command = command,
	};

	return tc_main(&tool, argc, argv);
}
