/* SPDX-License-Identifier: Apache-2.0 */
/* tc_port.c - a BPF program at clsact of each port named, for as long as the tool runs. */
#include "tc_port.h"

#include <errno.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* libbpf explains an existing qdisc on stderr; what matters comes back as -errno. */
static int __attribute__((format(printf, 2, 0)))
quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	(void)level;
	(void)format;
	(void)args;
	return 0;
}

static int port_complain(const struct tc_tool *tool, const struct tc_port *port, const char *what,
			 int rc)
{
	fprintf(stderr, "%s: %s: %s: %s%s\n", tool->name, port->name, what, strerror(-rc),
		rc == -EPERM ? "; run as root" : "");
	return rc;
}

static int port_load(const struct tc_tool *tool, struct tc_port *port)
{
	struct bpf_program *program;
	int rc;

	port->object = bpf_object__open_mem(tool->elf, tool->elf_bytes, NULL);
	if (!port->object)
		return port_complain(tool, port, "opening the program", -errno);
	rc = bpf_object__load(port->object);
	if (rc)
		return port_complain(tool, port, "the kernel refuses the program", rc);
	program = bpf_object__find_program_by_name(port->object, tool->program);
	port->filter.prog_fd = program ? bpf_program__fd(program) : -ENOENT;
	if (port->filter.prog_fd < 0)
		return port_complain(tool, port, tool->program, port->filter.prog_fd);
	return 0;
}

static int port_attach(const struct tc_tool *tool, struct tc_port *port, const char *name)
{
	int rc;

	*port = (struct tc_port){ .name = name };
	port->hook = (struct bpf_tc_hook){ .sz = sizeof(port->hook),
					   .ifindex = (int)if_nametoindex(name),
					   .attach_point = tool->point };
	port->filter =
		(struct bpf_tc_opts){ .sz = sizeof(port->filter), .handle = 1, .priority = 1 };
	if (!port->hook.ifindex)
		return port_complain(tool, port, "no such interface", -ENODEV);
	rc = port_load(tool, port);
	if (rc)
		return rc;
	rc = bpf_tc_hook_create(&port->hook);
	if (rc && rc != -EEXIST)
		return port_complain(tool, port, "making clsact", rc);
	port->hooked = !rc;
	rc = bpf_tc_attach(&port->hook, &port->filter);
	return rc ? port_complain(tool, port, "attaching", rc) : 0;
}

static void port_detach(struct tc_port *port)
{
	struct bpf_tc_opts filter = { .sz = sizeof(filter), .handle = 1, .priority = 1 };

	if (port->filter.prog_id)
		bpf_tc_detach(&port->hook, &filter);
	if (port->hooked) {
		/* Both directions: libbpf then deletes the qdisc, not the filters alone. */
		port->hook.attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS;
		bpf_tc_hook_destroy(&port->hook);
	}
	bpf_object__close(port->object);
}

struct tc_port *tc_port_find(struct tc_port *ports, int count, const char *name)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(ports[i].name, name))
			return &ports[i];
	return NULL;
}

int tc_port_map(const struct tc_port *port, const char *name)
{
	return bpf_object__find_map_fd_by_name(port->object, name);
}

static int serve(const struct tc_tool *tool, struct tc_port *ports, int count)
{
	static char line[TC_LINE_MAX];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int rc;

		line[strcspn(line, "\n")] = '\0';
		rc = tool->command(ports, count, line);
		if (rc) {
			fprintf(stderr, "%s: %s: %s\n", tool->name, line, strerror(-rc));
			return 1;
		}
		fflush(stdout);
	}
	return 0;
}

static void on_signal(int number)
{
	(void)number;
	close(STDIN_FILENO); /* the read that waits ends, and all is detached in order */
}

int tc_main(const struct tc_tool *tool, int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal }; /* no SA_RESTART */
	struct tc_port ports[TC_PORTS_MAX];
	int count = 0, rc = 0;

	if (argc < 2 || argc - 1 > TC_PORTS_MAX || argv[1][0] == '-') {
		fputs(tool->usage, argc == 2 && !strcmp(argv[1], "--help") ? stdout : stderr);
		return argc == 2 && !strcmp(argv[1], "--help") ? 0 : 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	libbpf_set_print(quiet);
	for (int i = 1; i < argc && !rc; i++)
		rc = port_attach(tool, &ports[count++], argv[i]);
	rc = rc ? 1 : serve(tool, ports, count);
	while (count)
		port_detach(&ports[--count]);
	return rc;
}
