/* SPDX-License-Identifier: Apache-2.0 */
/* tc_port.h - a BPF program at clsact of an interface, and the loop of a tool that harp.lab controls by a
 * pipe: commands on stdin, answers on stdout, everything detached at the end of stdin or a signal. */
#ifndef HARP_TOOLS_TC_PORT_H
#define HARP_TOOLS_TC_PORT_H

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
	const char *name, *usage;
	enum bpf_tc_attach_point point;
	const void *elf;
	size_t elf_bytes;
	const char *program;
	/* One command: prints its answer, or returns -errno, which ends the tool. */
	int (*command)(struct tc_port *ports, int count, const char *line);
};
#define TC_PORTS_MAX 16
#define TC_LINE_MAX 4096

/* The whole main() of such a tool: `TOOL PORT...`. */
int tc_main(const struct tc_tool *tool, int argc, char **argv);
struct tc_port *tc_port_find(struct tc_port *ports, int count, const char *name);
int tc_port_map(const struct tc_port *port, const char *name); /* its fd, or -errno */

#endif
