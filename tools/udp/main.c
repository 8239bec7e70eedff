/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-udp - datagrams over a HARP instance: an echo server, and a client that checks every echo.
 *
 * A datagram begins with its number and is filled from it, so that an altered one can't pass. Half of
 * them take the copying calls, half the stack's own frames.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/endpoint.h"
#include "common/options.h"
#include "harp_host.h"

#define TOOL "harp-udp"
#define SIZE_MAX_BYTES 9000u
#define WINDOW 16u             /* datagrams of the client's without an answer */
#define QUIET_NS 1000000000ull /* nothing more will come */

static const char usage[] =
	"usage: harp-udp echo ADDRESS PORT --ifname IF [options]   answers until SIGTERM\n"
	"       harp-udp call ADDRESS PORT --ifname IF [options]   sends, and checks what comes back\n"
	"  --count N    datagrams (1000)\n"
	"  --size N     bytes of each, from 4 (64)\n"
	"  --lib-dir D  where libharp-xdp.so or libharp-dpdk.so lies\n"
	"IF is an interface, or dpdk:SPEC: a DPDK port\n"
	"example: harp-udp call 10.0.0.2 7000 --ifname eth1 --count 100000 --size 1400\n";

struct options {
	struct harp_instance_options instance;
	struct harp_endpoint end;
	uint32_t count, size;
	bool call;
};

struct report {
	uint64_t sent, received, wrong, refused;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fill(uint8_t *at, uint32_t number, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		at[i] = (uint8_t)(number * 131 + i * 7 + (i >> 8));
	memcpy(at, &number, sizeof(number));
}

/* Polls the stack and the netlink worker once; sleeps briefly if there was nothing to do. */
static void turn(struct harp_instance *instance)
{
	struct harp_stack *stack = harp_instance_stack(instance);

	if (harp_stack_poll(stack, now_ns()) == 0) {
		struct pollfd fds[2] = {
			{ .fd = harp_instance_fd(instance), .events = POLLIN },
			{ .fd = harp_instance_control_fd(instance), .events = POLLIN },
		};

		if (harp_stack_next_deadline_ns(stack) > now_ns() + 1000000)
			poll(fds, 2, 1);
	}
	harp_instance_control(instance, now_ns());
}

/* ---- echo ----------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;

static void stop(int number)
{
	stopped = number;
}

/* Sends the frames that came back to where they came from; they can't be reused: they are received ones. */
static void echo_frames(struct harp_udp *sock, struct report *report)
{
	struct harp_frame *in[8], *out[8];
	struct harp_endpoint from;
	int count = harp_udp_recv_frames(sock, in, 8, &from), made = 0;

	if (count < 0)
		return;
	report->received++;
	for (; made < count; made++) {
		if (harp_udp_frame_alloc(sock, &out[made]) || in[made]->len > out[made]->capacity)
			break;
		memcpy(out[made]->data, in[made]->data, in[made]->len);
		out[made]->len = in[made]->len;
	}
	for (int i = 0; i < count; i++)
		harp_udp_frame_release(sock, in[i]);
	if (made == count && harp_udp_send_frames(sock, &from, out, count) == 0) {
		report->sent++;
		return;
	}
	while (made-- > 0)
		harp_udp_frame_release(sock, out[made]);
}

static void echo_many(struct harp_udp *sock, struct report *report)
{
	static uint8_t bytes[8][SIZE_MAX_BYTES];
	struct harp_udp_message m[8];
	int count, sent;

	for (int i = 0; i < 8; i++)
		m[i] = (struct harp_udp_message){ .data = bytes[i], .size = SIZE_MAX_BYTES };
	count = harp_udp_recv_many(sock, m, 8);
	if (count <= 0)
		return;
	for (int i = 0; i < count; i++)
		m[i].size = m[i].len;
	report->received += (uint64_t)count;
	sent = harp_udp_send_many(sock, m, count);
	report->sent += sent > 0 ? (uint64_t)sent : 0;
}

static void echo(struct harp_instance *instance, struct harp_udp *sock, struct report *report)
{
	signal(SIGTERM, stop);
	printf("ready\n");
	fflush(stdout);
	while (!stopped) {
		uint32_t events;

		turn(instance);
		while (harp_udp_next_event(harp_instance_stack(instance), &events)) {
			for (uint64_t before = UINT64_MAX; before != report->received;) {
				before = report->received;
				echo_frames(sock, report);
				echo_many(sock, report);
			}
		}
	}
}

/* ---- call ----------------------------------------------------------------------------------- */

static bool call_send(struct harp_udp *sock, uint32_t number, uint32_t size)
{
	static uint8_t bytes[SIZE_MAX_BYTES];
	const struct iovec iov = { bytes, size };
	struct harp_frame *frame;

	if (number % 2) {
		fill(bytes, number, size);
		return harp_udp_send(sock, NULL, &iov, 1) >= 0;
	}
	if (harp_udp_frame_alloc(sock, &frame))
		return false;
	if (frame->capacity < size) { /* larger than a frame: by copy as well */
		harp_udp_frame_release(sock, frame);
		fill(bytes, number, size);
		return harp_udp_send(sock, NULL, &iov, 1) >= 0;
	}
	fill(frame->data, number, size);
	frame->len = size;
	if (harp_udp_send_frames(sock, NULL, &frame, 1) == 0)
		return true;
	harp_udp_frame_release(sock, frame);
	return false;
}

static void call(struct harp_instance *instance, struct harp_udp *sock, const struct options *o,
		 struct report *report)
{
	static uint8_t bytes[SIZE_MAX_BYTES], want[SIZE_MAX_BYTES];
	uint64_t last_ns = now_ns();

	while (report->received + report->refused < o->count && now_ns() < last_ns + QUIET_NS) {
		ssize_t n;

		while (report->sent < o->count && report->sent < report->received + WINDOW &&
		       call_send(sock, (uint32_t)report->sent, o->size))
			report->sent++;
		turn(instance);
		while ((n = harp_udp_recv(sock, bytes, sizeof(bytes), NULL)) != -EAGAIN) {
			uint32_t number;

			last_ns = now_ns();
			if (n < 0) {
				report->refused += n == -ECONNREFUSED;
				continue;
			}
			memcpy(&number, bytes, sizeof(number));
			fill(want, number, o->size);
			report->received++;
			report->wrong += n != (ssize_t)o->size || memcmp(bytes, want, o->size) != 0;
		}
		if (report->refused)
			break;
	}
}

/* ---- around it ------------------------------------------------------------------------------ */

static void print_report(struct harp_instance *instance, struct harp_udp *sock,
			 const struct report *report)
{
	uint64_t stats[256], counts[64];
	unsigned count = harp_stack_stats(harp_instance_stack(instance), stats, 256);
	int verdicts = harp_instance_steering(instance, counts, 64);
	struct harp_endpoint local;

	harp_udp_endpoints(sock, &local, NULL);
	printf("{\"sent\": %" PRIu64 ", \"received\": %" PRIu64 ", \"wrong\": %" PRIu64
	       ", \"refused\": %" PRIu64 ", \"port\": %u, \"stats\": {",
	       report->sent, report->received, report->wrong, report->refused, local.port);
	for (unsigned i = 0; i < count; i++)
		printf("%s\"%s\": %" PRIu64, i ? ", " : "", harp_stats_name(i), stats[i]);
	printf("}, \"steering\": {");
	for (int i = 0; i < verdicts; i++)
		printf("%s\"%s\": %" PRIu64, i ? ", " : "", harp_steering_name((unsigned)i),
		       counts[i]);
	printf("}}\n");
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "ifname", 1, 0, 'i' },  { "count", 1, 0, 'n' }, { "size", 1, 0, 'z' },
		{ "lib-dir", 1, 0, 'l' }, { "help", 0, 0, 'h' },  { 0, 0, 0, 0 },
	};
	static const char *const commands[] = { "echo", "call", NULL };
	int c;

	*o = (struct options){ .instance = { .size = sizeof(o->instance) },
			       .count = 1000,
			       .size = 64 };
	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 'i':
			o->instance.ifname = optarg;
			break;
		case 'n':
			o->count = (uint32_t)option_number(TOOL, "--count", optarg, 1, UINT32_MAX);
			break;
		case 'z':
			o->size =
				(uint32_t)option_number(TOOL, "--size", optarg, 4, SIZE_MAX_BYTES);
			break;
		case 'l':
			o->instance.lib_dir = optarg;
			break;
		case 'h':
			option_help(usage);
		default:
			option_misused(usage);
		}
	}
	if (argc - optind != 3 || !o->instance.ifname)
		option_misused(usage);
	o->call = option_choice(TOOL, "command", argv[optind], commands) == 1;
	if (endpoint_parse(argv[optind + 1], &o->end)) {
		fprintf(stderr, TOOL ": %s is not an IP address\n", argv[optind + 1]);
		exit(2);
	}
	o->end.port = (uint16_t)option_number(TOOL, "PORT", argv[optind + 2], 1, 65535);
}

int main(int argc, char **argv)
{
	struct report report = { 0 };
	struct harp_instance *instance;
	struct harp_udp *sock;
	struct options o;
	char why[256];
	int rc;

	parse(argc, argv, &o);
	option_dpdk(TOOL, &o.instance);
	if (harp_instance_open(&instance, &o.instance, why, sizeof(why))) {
		fprintf(stderr, TOOL ": %s\n", why);
		return 1;
	}
	rc = harp_udp_open(harp_instance_stack(instance), o.call ? NULL : &o.end, NULL, &sock);
	if (!rc && o.call)
		rc = harp_udp_connect(sock, &o.end);
	if (rc) {
		fprintf(stderr, TOOL ": %s\n", strerror(-rc));
		harp_instance_close(instance);
		return 1;
	}
	if (o.call)
		call(instance, sock, &o, &report);
	else
		echo(instance, sock, &report);
	print_report(instance, sock, &report);
	harp_udp_close(sock);
	harp_instance_close(instance);
	return 0;
}
