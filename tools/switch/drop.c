/* SPDX-License-Identifier: Apache-2.0 */
/* drop.c - harp-switch drop: drops TCP packets with drop.bpf.c at the tc ingress of ports. */
#include "drop.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "drop_object.h" /* generated: the program's ELF file */
#include "switch.h"

#define PPM 1000000u

static int drop_set(const struct tc_port *port, const char *args)
{
	struct drop_settings settings;
	const __u32 zero = 0;
	uint32_t ppm;
	int rc;

	if (sscanf(args, "%" SCNu32 " %llu", &ppm, &settings.seed) != 2 || ppm > PPM)
		return -EINVAL;
	settings.threshold = ((__u64)ppm << 32) / PPM;
	rc = bpf_map_update_elem(tc_port_map(port, "settings"), &zero, &settings, BPF_ANY);
	if (!rc)
		printf("ok\n");
	return rc;
}

static int drop_counts(const struct tc_port *port)
{
	struct drop_counts c;
	const __u32 zero = 0;
	int rc = bpf_map_lookup_elem(tc_port_map(port, "counts"), &zero, &c);

	if (!rc)
		printf("{\"packets\": %llu, \"dropped_payload_bytes\": %llu, "
		       "\"super_packets\": %llu}",
		       c.packets, c.dropped_payload_bytes, c.super_packets);
	return rc;
}

const struct tc_tool switch_drop = {
	.name = "drop",
	.point = BPF_TC_INGRESS,
	.elf = drop_object,
	.elf_bytes = sizeof(drop_object),
	.program = "harp_drop",
	.set = drop_set,
	.counts = drop_counts,
};
