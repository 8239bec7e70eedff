/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.c - several instances of one process on one interface: a thread and an echo server for each.
 *
 * queues IFNAME LIB_DIR PORT COUNT: instance i is on queue i and serves port PORT + i. All are opened at
 * once, each by its thread. Commands on stdin, one answer each, until the end of it:
 *   close I   closes that instance          -> ok
 *   counts    verdicts of the program       -> {"redirect_tcp": n, ...}
 *   native    tries one more instance, on the next queue and in native mode -> what it was told
 *   fork      a child that lets go, tries to open queue 0 itself, and waits -> PID and what it was told
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harp_host.h"

#define QUEUES_MAX 16u
#define SLEEP_MS 5

struct server {
	pthread_t thread;
	struct harp_instance_options opt;
	uint16_t port;
	struct harp_instance *instance;
	atomic_bool stop;
	pthread_barrier_t *opened;
	char why[320];
};

static void say(void *ctx, enum harp_log_level level, const char *message)
{
	(void)ctx;
	if (level <= HARP_LOG_INFO)
		fprintf(stderr, "%s\n", message);
}

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sends back what came, as far as it goes: the rest waits where it lies. */
static void echo(struct harp_conn *conn)
{
	struct iovec piece;
	int pieces;

	while ((pieces = harp_conn_peek(conn, &piece, 1)) == 1) {
		ssize_t sent = harp_conn_send(conn, &piece, 1);

		if (sent == -EAGAIN)
			return; /* HARP_EVENT_WRITABLE follows */
		if (sent < 0) {
			harp_conn_abort(conn);
			return;
		}
		harp_conn_consume(conn, (size_t)sent);
	}
	if (pieces == 0)
		harp_conn_close(conn);
	else if (pieces != -EAGAIN)
		harp_conn_abort(conn);
}

static void turn(struct harp_stack *stack, struct harp_listener *listener)
{
	struct harp_conn *conn;
	uint32_t events;

	harp_stack_poll(stack, clock_ns());
	while (harp_tcp_accept(listener, &conn) == 0)
		echo(conn);
	while ((conn = harp_stack_next_event(stack, &events))) {
		if (events & HARP_EVENT_CLOSED)
			harp_conn_close(conn);
		else
			echo(conn);
	}
}

static void serve(struct server *server, struct harp_listener *listener)
{
	struct harp_stack *stack = harp_instance_stack(server->instance);
	struct pollfd fds[] = {
		{ .fd = harp_instance_fd(server->instance), .events = POLLIN },
		{ .fd = harp_instance_control_fd(server->instance), .events = POLLIN },
	};

	while (!atomic_load(&server->stop)) {
		turn(stack, listener);
		harp_instance_control(server->instance, clock_ns());
		if (harp_stack_next_deadline_ns(stack) > clock_ns() + SLEEP_MS * 1000000u)
			poll(fds, 2, SLEEP_MS);
	}
}

static void *server_main(void *ctx)
{
	struct server *server = ctx;
	const struct harp_endpoint local = { .port = server->port };
	struct harp_listener *listener = NULL;
	int rc = harp_instance_open(&server->instance, &server->opt, server->why,
				    sizeof(server->why));

	if (!rc) {
		rc = harp_tcp_listen(harp_instance_stack(server->instance), &local, NULL,
				     &listener);
		if (rc)
			snprintf(server->why, sizeof(server->why), "listening: %s", strerror(-rc));
	}
	pthread_barrier_wait(server->opened);
	if (!rc)
		serve(server, listener);
	harp_instance_close(server->instance);
	server->instance = NULL;
	return NULL;
}

/* ---- commands ------------------------------------------------------------------------------- */

static void command_close(struct server *servers, unsigned count, unsigned index)
{
	if (index >= count || atomic_exchange(&servers[index].stop, true)) {
		printf("no such instance\n");
		return;
	}
	pthread_join(servers[index].thread, NULL);
	printf("ok\n");
}

static void command_counts(const struct server *servers, unsigned count)
{
	uint64_t counts[64] = { 0 };
	int verdicts = -ENODEV;

	for (unsigned i = 0; i < count && verdicts < 0; i++)
		if (servers[i].instance)
			verdicts = harp_instance_steering(servers[i].instance, counts, 64);
	for (int i = 0; i < verdicts; i++)
		printf("%s\"%s\": %" PRIu64, i ? ", " : "{", harp_steering_name((unsigned)i),
		       counts[i]);
	printf("}\n");
}

static void command_native(const struct server *servers, unsigned count)
{
	struct harp_instance_options opt = servers[0].opt;
	struct harp_instance *another = NULL;
	char why[320] = "opened";

	opt.queue = count;
	opt.xdp_mode = HARP_XDP_NATIVE;
	harp_instance_open(&another, &opt, why, sizeof(why));
	harp_instance_close(another);
	printf("%s\n", why);
}

static void command_fork(struct server *servers, unsigned count)
{
	struct harp_instance *own;
	char why[320] = "opened";
	pid_t child = fork();

	if (child)
		return;
	for (unsigned i = 0; i < count; i++)
		harp_instance_fork_child(servers[i].instance);
	harp_instance_open(&own, &servers[0].opt, why, sizeof(why));
	printf("%d %s\n", (int)getpid(), why);
	fflush(stdout);
	for (;;)
		pause();
}

static void commands(struct server *servers, unsigned count)
{
	char line[64];
	unsigned index;

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "close %u", &index) == 1)
			command_close(servers, count, index);
		else if (!strcmp(line, "counts\n"))
			command_counts(servers, count);
		else if (!strcmp(line, "native\n"))
			command_native(servers, count);
		else if (!strcmp(line, "fork\n"))
			command_fork(servers, count);
		else
			printf("no such command\n");
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	static struct server servers[QUEUES_MAX];
	unsigned count = argc == 5 ? (unsigned)atoi(argv[4]) : 0;
	pthread_barrier_t opened;
	int status = 0;

	if (!count || count > QUEUES_MAX) {
		fprintf(stderr, "usage: queues IFNAME LIB_DIR PORT COUNT\n");
		return 2;
	}
	pthread_barrier_init(&opened, NULL, count + 1);
	for (unsigned i = 0; i < count; i++) {
		servers[i].opt = (struct harp_instance_options){
			.size = sizeof(servers[i].opt),
			.ifname = argv[1],
			.queue = i,
			.lib_dir = argv[2],
			.frame_count = 2048,
			.log = say,
		};
		servers[i].port = (uint16_t)(atoi(argv[3]) + (int)i);
		servers[i].opened = &opened;
		pthread_create(&servers[i].thread, NULL, server_main, &servers[i]);
	}
	pthread_barrier_wait(&opened);
	for (unsigned i = 0; i < count; i++)
		if (servers[i].why[0]) {
			fprintf(stderr, "%s\n", servers[i].why);
			status = 1;
		}
	if (!status)
		commands(servers, count);
	for (unsigned i = 0; i < count; i++)
		if (!atomic_exchange(&servers[i].stop, true))
			pthread_join(servers[i].thread, NULL);
	return status;
}
