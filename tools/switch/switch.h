/* SPDX-License-Identifier: Apache-2.0 */
/* switch.h - harp-switch: a BPF program at the clsact of bridge ports, for as long as the tool runs. */
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
	bool hooked; /* the clsact qdisc is ours */
};

/* What is attached to each port, and what is served. */
struct tc_tool {
	const char *name;
	enum bpf_tc_attach_point point;
	const void *elf;
	size_t elf_bytes;
	const char *program;
	/* Sets a port: prints "ok", or returns -errno, which ends the tool. */
	int (*set)(const struct tc_port *port, const char *words);
	/* Prints the counts of a port. */
	int (*counts)(const struct tc_port *port);
};
extern const struct tc_tool switch_rss, switch_drop;

int tc_port_map(const struct tc_port *port, const char *name); /* its fd, or -errno */

#endif
