/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - harp-wire: one end of raw frames or round trips between two hosts, without a stack. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/options.h"
#include "wire.h"

#define TOOL "harp-wire"
#define PING_SAMPLES_MAX (4u << 20)

static const char usage[] =
	"usage: harp-wire send|receive|ping|pong IFNAME ADDRESS PEER-ADDRESS [options]\n"
	"\n"
	"Raw frames between two AF_XDP queues, with the NIC code, XDP program and MTU of the HARP stack,\n"
	"but without the stack. `receive` and `pong` print \"ready\" and run until SIGTERM, `send` and\n"
	"`ping` run for --seconds. Each prints a JSON document at the end.\n"
	"\n"
	"  --seconds N        duration (3; at most 60)\n"
	"  --size BYTES       frame size with Ethernet header (send: MTU; ping, pong: 64, IPv6 82)\n"
	"  --xdp MODE         auto, generic, native or native-or-none (auto)\n"
	"  --lib-dir DIR      directory of libharp-xdp.so\n";

enum role { ROLE_SEND, ROLE_RECEIVE, ROLE_PING, ROLE_PONG };
static const char *const roles[] = { "send", "receive", "ping", "pong", NULL };

static volatile sig_atomic_t stop;

static void stop_signal(int signal)
{
	(void)signal;
	stop = 1;
}

static int print_error(const char *line)
{
	fprintf(stderr, "harp-wire: %s\n", line);
	return 1;
}

static struct harp_addr parse_address(const char *text)
{
	struct harp_endpoint end = { 0 };

	if (option_endpoint(text, &end)) {
		fprintf(stderr, "harp-wire: %s is not an IP address\n", text);
		exit(2);
	}
	return end.addr;
}

static enum role parse(int argc, char **argv, struct wire_run *run, struct card_options *card)
{
	static const struct option longs[] = {
		{ "seconds", 1, 0, 's' }, { "size", 1, 0, 'z' }, { "xdp", 1, 0, 'x' },
		{ "lib-dir", 1, 0, 'l' }, { "help", 0, 0, 'h' }, { 0, 0, 0, 0 },
	};
	int c;

	run->duration_ns = 3000000000u;
	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			run->duration_ns =
				option_number(TOOL, "--seconds", optarg, 1, 60) * 1000000000u;
			break;
		case 'z':
			run->frame_bytes =
				(uint32_t)option_number(TOOL, "--size", optarg, 62, 65535);
			break;
		case 'x':
			card->xdp_mode = option_choice(TOOL, "--xdp", optarg, option_xdp_modes);
			break;
		case 'l':
			card->lib_dir = optarg;
			break;
		case 'h':
			option_help(usage);
		default:
			option_misused(usage);
		}
	}
	if (argc - optind != 4)
		option_misused(usage);
	card->ifname = argv[optind + 1];
	run->own = parse_address(argv[optind + 2]);
	run->peer = parse_address(argv[optind + 3]);
	return (enum role)option_choice(TOOL, "command", argv[optind], roles);
}

/* Sets the default frame size, and checks that the NIC can send such frames. */
static int check_frame(struct wire_run *run, enum role role)
{
	const struct card *card = run->card;
	uint32_t min = run_header_bytes(run) + WIRE_STAMP_BYTES;
	char why[64];

	if (!run->frame_bytes)
		run->frame_bytes = role == ROLE_SEND || role == ROLE_RECEIVE ? card->frame_bytes_max
				   : min > WIRE_PING_BYTES                   ? min
									     : WIRE_PING_BYTES;
	if (run->frame_bytes < min) {
		snprintf(why, sizeof(why), "--size %u: at least %u in this address family",
			 run->frame_bytes, min);
		return print_error(why);
	}
	if (run->frame_bytes > card->frame_bytes_max)
		return print_error("--size exceeds the interface's MTU");
	if (card_frags(card, run->frame_bytes) > card->nic->caps.tx_frags_max)
		return print_error(
			"the kernel cannot send frames of several buffers (6.6 or later can)");
	return 0;
}

static void report(const struct wire_run *run, enum role role, const struct card_options *opt,
		   const struct wire_result *result, struct samples *rtt)
{
	double seconds = (double)(result->last_ns - result->first_ns) / 1e9;

	printf("{\"tool\": \"harp-wire\", \"role\": \"%s\", \"interface\": \"%s\", \"mode\": "
	       "\"%s\", \"mtu_bytes\": %u, \"frame_bytes\": %u, \"descriptors_per_frame\": %u, "
	       "\"seconds\": %.6f, \"frames\": %" PRIu64 ", \"bytes\": %" PRIu64
	       ", \"lost\": %" PRIu64 ", \"rtt_ns\": ",
	       roles[role], opt->ifname, run->card->mode, run->card->nic->caps.mtu_bytes,
	       run->frame_bytes, card_frags(run->card, run->frame_bytes), seconds, result->frames,
	       result->bytes, result->lost);
	samples_json(rtt, stdout);
	printf("}\n");
}

static int run_role(struct wire_run *run, enum role role, const struct card_options *opt)
{
	struct wire_result result = { 0 };
	struct samples rtt = { 0 };

	run_headers(run);
	if (role == ROLE_PING && samples_init(&rtt, PING_SAMPLES_MAX))
		return print_error("out of memory");
	if (role == ROLE_RECEIVE || role == ROLE_PONG) {
		signal(SIGTERM, stop_signal);
		printf("ready\n");
		fflush(stdout);
	}
	switch (role) {
	case ROLE_SEND:
		run_send(run, &result);
		break;
	case ROLE_RECEIVE:
		run_recv(run, &result);
		break;
	case ROLE_PING:
		run_ping(run, &result, &rtt);
		break;
	case ROLE_PONG:
		run_pong(run, &result);
		break;
	}
	report(run, role, opt, &result, &rtt);
	samples_destroy(&rtt);
	return 0;
}

int main(int argc, char **argv)
{
	struct card card = { 0 };
	struct card_options opt = { 0 };
	struct wire_run run = { .card = &card, .stop = &stop };
	enum role role = parse(argc, argv, &run, &opt);
	char why[256] = "";
	int rc;

	if (card_open(&card, &opt, &run.own, why, sizeof(why)))
		return print_error(why);
	rc = check_frame(&run, role);
	if (!rc)
		rc = run_role(&run, role, &opt);
	card_close(&card);
	return rc;
}
