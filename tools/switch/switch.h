/* SPDX-License-Identifier: Apache-2.0 */
/* switch.h - harp-switch: BPF programs at the clsact qdisc of bridge ports while the tool runs. */
#ifndef HARP_TOOLS_SWITCH_H
#define HARP_TOOLS_SWITCH_H

#include <bpf/libbpf.h>
#include <stdbool.h>
#include <stddef.h>

struct tc_port {
	const char *name;
	struct bpf_object *object;
	struct bpf_tc_hook hook;
	struct bpf_tc_opts filter;
	bool owns_qdisc; /* created the clsact qdisc */
};

/* A subcommand: the program to attach to each port, and its commands. */
struct tc_tool {
	const char *name;
	enum bpf_tc_attach_point point;
	const void *elf;
	size_t elf_bytes;
	const char *program;
	/* Configures a port and prints "ok". An error (-errno) ends the tool. */
	int (*set)(const struct tc_port *port, const char *args);
	/* Prints the counts of a port. */
	int (*counts)(const struct tc_port *port);
};
extern const struct tc_tool switch_rss, switch_drop;

int tc_port_map(const struct tc_port *port, const char *name); /* the map's fd, or -errno */

#endif
