/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-switch: drops packets at bridge ports, or spreads them over receive queues.
 *
 * It attaches a BPF program to each given port, prints "ready", and then answers each line on stdin
 * with a line on stdout. At the end of stdin, or on a signal, it detaches the programs and exits.
 * harp.lab controls it through a pipe, so it exits with the lab.
 */
#include "switch.h"

#include <errno.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TC_PORTS_MAX 16
#define TC_LINE_MAX 4096

static const char usage[] =
	"usage: harp-switch drop|rss PORT...\n"
	"\n"
	"drop: drops TCP packets that enter these bridge ports. rss: chooses the receive queue of each\n"
	"packet, for the hosts behind these ports. Commands on stdin, answers on stdout:\n"
	"  set PORT PPM SEED     drop: drop PPM of a million packets from now on -> ok\n"
	"  set PORT QUEUES RULE  rss: apply RULE from now on                     -> ok\n"
	"     toeplitz:KEY[:TABLE]  as in HARP_RSS\n"
	"     hash:SECRET           another hash, with a number as its key\n"
	"     zero                  all packets to queue 0\n"
	"     keep                  the kernel's choice (initial rule)\n"
	"  counts                counts of each port since the start -> {\"PORT\": ..., ...}\n";

/* Suppresses libbpf's warnings, for example about an existing qdisc. It also returns errors. */
static int __attribute__((format(printf, 2, 0)))
quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	(void)level;
	(void)format;
	(void)args;
	return 0;
}

static int port_error(const struct tc_tool *tool, const struct tc_port *port, const char *what,
		      int rc)
{
	fprintf(stderr, "harp-switch %s: %s: %s: %s%s\n", tool->name, port->name, what,
		strerror(-rc), rc == -EPERM ? "; run as root" : "");
	return rc;
}

static int port_load(const struct tc_tool *tool, struct tc_port *port)
{
	struct bpf_program *program;
	int rc;

	port->object = bpf_object__open_mem(tool->elf, tool->elf_bytes, NULL);
	if (!port->object)
		return port_error(tool, port, "opening the program", -errno);
	rc = bpf_object__load(port->object);
	if (rc)
		return port_error(tool, port, "loading the program", rc);
	program = bpf_object__find_program_by_name(port->object, tool->program);
	port->filter.prog_fd = program ? bpf_program__fd(program) : -ENOENT;
	if (port->filter.prog_fd < 0)
		return port_error(tool, port, tool->program, port->filter.prog_fd);
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
		return port_error(tool, port, "no such interface", -ENODEV);
	rc = port_load(tool, port);
	if (rc)
		return rc;
	rc = bpf_tc_hook_create(&port->hook);
	if (rc && rc != -EEXIST)
		return port_error(tool, port, "creating clsact", rc);
	port->owns_qdisc = !rc;
	rc = bpf_tc_attach(&port->hook, &port->filter);
	return rc ? port_error(tool, port, "attaching", rc) : 0;
}

static void port_detach(struct tc_port *port)
{
	struct bpf_tc_opts filter = { .sz = sizeof(filter), .handle = 1, .priority = 1 };

	if (port->filter.prog_id)
		bpf_tc_detach(&port->hook, &filter);
	if (port->owns_qdisc) {
		/* With both directions, libbpf deletes the qdisc, not only its filters. */
		port->hook.attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS;
		bpf_tc_hook_destroy(&port->hook);
	}
	bpf_object__close(port->object);
}

int tc_port_map(const struct tc_port *port, const char *name)
{
	return bpf_object__find_map_fd_by_name(port->object, name);
}

static int command_set(const struct tc_tool *tool, const struct tc_port *ports, int count,
		       const char *args)
{
	size_t length = strcspn(args, " ");

	for (int i = 0; i < count; i++)
		if (!strncmp(ports[i].name, args, length) && !ports[i].name[length])
			return tool->set(&ports[i], args + length);
	return -ENODEV;
}

static int command_counts(const struct tc_tool *tool, const struct tc_port *ports, int count)
{
	int rc = 0;

	for (int i = 0; i < count && !rc; i++) {
		printf("%s\"%s\": ", i ? ", " : "{", ports[i].name);
		rc = tool->counts(&ports[i]);
	}
	printf("}\n");
	return rc;
}

static int serve(const struct tc_tool *tool, const struct tc_port *ports, int count)
{
	static char line[TC_LINE_MAX];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int rc = -EINVAL;

		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "set ", 4))
			rc = command_set(tool, ports, count, line + 4);
		else if (!strcmp(line, "counts"))
			rc = command_counts(tool, ports, count);
		if (rc) {
			fprintf(stderr, "harp-switch %s: %s: %s\n", tool->name, line,
				strerror(-rc));
			return 1;
		}
		fflush(stdout);
	}
	return 0;
}

static void on_signal(int number)
{
	(void)number;
	close(STDIN_FILENO); /* ends the read, so that main() detaches the programs */
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal }; /* no SA_RESTART */
	const struct tc_tool *tool =
		argc > 1 && !strcmp(argv[1], "rss") ? &switch_rss : &switch_drop;
	struct tc_port ports[TC_PORTS_MAX];
	int count = 0, rc = 0;

	if (argc == 2 && !strcmp(argv[1], "--help")) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc < 3 || argc - 2 > TC_PORTS_MAX || strcmp(argv[1], tool->name)) {
		fputs(usage, stderr);
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	libbpf_set_print(quiet);
	for (int i = 2; i < argc && !rc; i++)
		rc = port_attach(tool, &ports[count++], argv[i]);
	rc = rc ? 1 : serve(tool, ports, count);
	while (count)
		port_detach(&ports[--count]);
	return rc;
}
