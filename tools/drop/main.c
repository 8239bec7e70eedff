/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-drop: makes the ports of a bridge lose TCP packets for as long as it runs.
 *
 * It attaches one copy of drop.bpf.c at the tc ingress of each port named, prints "ready", and then
 * answers a line on stdin with a line on stdout; at the end of stdin it detaches and ends. So a
 * laboratory holds it by a pipe, and a laboratory that is killed takes it along.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drop.h"
#include "drop_object.h" /* generated: the program's ELF file */

#define PORTS_MAX 16
#define PPM 1000000u

static const char usage[] =
	"usage: harp-drop PORT...\n"
	"\n"
	"Loses TCP packets that enter these bridge ports. Commands on stdin, answers on stdout:\n"
	"  loss PORT PPM SEED  lose PPM of a million packets from now on    -> ok\n"
	"  counts              what came and what was lost, one JSON object -> {\"PORT\": {...}, ...}\n";

struct port {
	const char *name;
	struct bpf_object *object;
	struct bpf_tc_hook hook;
	struct bpf_tc_opts filter;
	bool hooked; /* the clsact qdisc is ours */
	int settings_fd, counts_fd;
};

/* libbpf explains an existing qdisc on stderr; what matters comes back as -errno. */
static int __attribute__((format(printf, 2, 0)))
quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	(void)level;
	(void)format;
	(void)args;
	return 0;
}

static int port_complain(const struct port *port, const char *what, int rc)
{
	fprintf(stderr, "harp-drop: %s: %s: %s%s\n", port->name, what, strerror(-rc),
		rc == -EPERM ? "; run as root" : "");
	return rc;
}

static int port_load(struct port *port)
{
	struct bpf_program *program;
	int rc;

	port->object = bpf_object__open_mem(drop_object, sizeof(drop_object), NULL);
	if (!port->object)
		return port_complain(port, "opening the program", -errno);
	rc = bpf_object__load(port->object);
	if (rc)
		return port_complain(port, "the kernel refuses the program", rc);
	program = bpf_object__find_program_by_name(port->object, "harp_drop");
	port->filter.prog_fd = program ? bpf_program__fd(program) : -ENOENT;
	port->settings_fd = bpf_object__find_map_fd_by_name(port->object, "settings");
	port->counts_fd = bpf_object__find_map_fd_by_name(port->object, "counts");
	if (port->filter.prog_fd < 0 || port->settings_fd < 0 || port->counts_fd < 0)
		return port_complain(port, "program or map", -ENOENT);
	return 0;
}

static int port_attach(struct port *port, const char *name)
{
	int rc;

	*port = (struct port){ .name = name };
	port->hook = (struct bpf_tc_hook){ .sz = sizeof(port->hook),
					   .ifindex = (int)if_nametoindex(name),
					   .attach_point = BPF_TC_INGRESS };
	port->filter =
		(struct bpf_tc_opts){ .sz = sizeof(port->filter), .handle = 1, .priority = 1 };
	if (!port->hook.ifindex)
		return port_complain(port, "no such interface", -ENODEV);
	rc = port_load(port);
	if (rc)
		return rc;
	rc = bpf_tc_hook_create(&port->hook);
	if (rc && rc != -EEXIST)
		return port_complain(port, "making clsact", rc);
	port->hooked = !rc;
	rc = bpf_tc_attach(&port->hook, &port->filter);
	return rc ? port_complain(port, "attaching", rc) : 0;
}

static void port_detach(struct port *port)
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

/* ---- commands ------------------------------------------------------------------------------- */

static struct port *port_find(struct port *ports, int count, const char *name)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(ports[i].name, name))
			return &ports[i];
	return NULL;
}

static int command_loss(struct port *ports, int count, const char *line)
{
	struct drop_settings settings;
	const __u32 zero = 0;
	struct port *port;
	char name[IF_NAMESIZE];
	uint32_t ppm;

	if (sscanf(line, "loss %15s %" SCNu32 " %llu", name, &ppm, &settings.seed) != 3 ||
	    ppm > PPM)
		return -EINVAL;
	port = port_find(ports, count, name);
	if (!port)
		return -ENODEV;
	settings.threshold = ((__u64)ppm << 32) / PPM;
	return bpf_map_update_elem(port->settings_fd, &zero, &settings, BPF_ANY) ? -errno : 0;
}

static int command_counts(const struct port *ports, int count)
{
	const __u32 zero = 0;
	struct drop_counts c;

	for (int i = 0; i < count; i++) {
		if (bpf_map_lookup_elem(ports[i].counts_fd, &zero, &c))
			return -errno;
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

static int serve(struct port *ports, int count)
{
	char line[128];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int rc = -EINVAL;

		if (!strncmp(line, "loss ", 5)) {
			rc = command_loss(ports, count, line);
			if (!rc)
				printf("ok\n");
		} else if (!strcmp(line, "counts\n")) {
			rc = command_counts(ports, count);
		}
		if (rc) {
			line[strcspn(line, "\n")] = '\0';
			fprintf(stderr, "harp-drop: %s: %s\n", line, strerror(-rc));
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

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal }; /* no SA_RESTART */
	struct port ports[PORTS_MAX];
	int count = 0, rc = 0;

	if (argc < 2 || argc - 1 > PORTS_MAX || argv[1][0] == '-') {
		fputs(usage, argc == 2 && !strcmp(argv[1], "--help") ? stdout : stderr);
		return argc == 2 && !strcmp(argv[1], "--help") ? 0 : 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	libbpf_set_print(quiet);
	for (int i = 1; i < argc && !rc; i++)
		rc = port_attach(&ports[count++], argv[i]);
	rc = rc ? 1 : serve(ports, count);
	while (count)
		port_detach(&ports[--count]);
	return rc;
}
