/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - harp-wire: raw frames and round trips between two hosts, without any stack. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/options.h"
#include "wire.h"

#define TOOL "harp-wire"
#define PING_SAMPLES_MAX (4u << 20)
#define DATA_PORT 61000u

static const char usage[] =
	"usage: harp-wire serve IFNAME ADDRESS [options]\n"
	"       harp-wire send|pingpong IFNAME PEER-ADDRESS [options]\n"
	"\n"
	"Raw frames between two AF_XDP queues: the NIC code, XDP program and MTU of the HARP stack, but no\n"
	"stack. `serve` answers one client and ends; it prints \"ready\" when it accepts connections. The\n"
	"client prints a JSON document.\n"
	"\n"
	"  --seconds N        duration (3; at most 60)\n"
	"  --size BYTES       frame with its Ethernet header (send: the MTU's; pingpong: 64, IPv6 82)\n"
	"  --xdp MODE         auto, generic, native or native-or-none (auto)\n"
	"  --lib-dir DIR      directory of libharp-xdp.so\n";

struct options {
	const char *address;
	bool serve;
	enum wire_test test;
	double seconds;
	uint32_t size;
	struct card_options card;
};

static int complain(const char *line)
{
	fprintf(stderr, "harp-wire: %s\n", line);
	return 1;
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "seconds", 1, 0, 's' }, { "size", 1, 0, 'z' }, { "xdp", 1, 0, 'x' },
		{ "lib-dir", 1, 0, 'l' }, { "help", 0, 0, 'h' }, { 0, 0, 0, 0 },
	};
	static const char *const commands[] = { "send", "pingpong", "serve", NULL };
	uint32_t command;
	int c;

	*o = (struct options){ .seconds = 3, .card = { .port = DATA_PORT } };
	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			o->seconds = (double)option_number(TOOL, "--seconds", optarg, 1, 60);
			break;
		case 'z':
			o->size = (uint32_t)option_number(TOOL, "--size", optarg, 62, 65535);
			break;
		case 'x':
			o->card.xdp_mode = option_choice(TOOL, "--xdp", optarg, option_xdp_modes);
			break;
		case 'l':
			o->card.lib_dir = optarg;
			break;
		case 'h':
			option_help(usage);
		default:
			option_misused(usage);
		}
	}
	if (argc - optind != 3)
		option_misused(usage);
	command = option_choice(TOOL, "command", argv[optind], commands);
	o->serve = command == 2;
	o->test = (enum wire_test)command;
	o->card.ifname = argv[optind + 1];
	o->address = argv[optind + 2];
}

static void hello_fill(struct wire_hello *hello, const struct card *card)
{
	hello->magic = WIRE_MAGIC;
	hello->mtu_bytes = card->nic->caps.mtu_bytes;
	hello->data_port = card->port;
	memcpy(hello->mac, card->nic->caps.mac, sizeof(hello->mac));
}

/* ---- the server ----------------------------------------------------------------------------- */

static int serve_test(struct wire_run *run)
{
	struct wire_result result = { 0 };
	char done;
	int rc;

	if (run->peer.test == WIRE_SEND)
		run_recv(run, &result);
	else
		run_pong(run, &result);
	rc = control_recv(run->control, &done, 1);
	return rc ? rc : control_send(run->control, &result, sizeof(result));
}

static int serve(const struct options *o)
{
	struct control control;
	struct card card = { 0 };
	struct wire_run run = { .card = &card, .control = &control };
	char why[256] = "";
	int listener, rc;

	listener = control_listen(o->address, why, sizeof(why));
	if (listener < 0)
		return complain(why);
	printf("ready\n");
	fflush(stdout);
	rc = control_accept(&control, listener);
	close(listener);
	if (rc || control_recv(&control, &run.peer, sizeof(run.peer)) ||
	    run.peer.magic != WIRE_MAGIC || run.peer.test > WIRE_PINGPONG)
		return complain("the client closed the connection or is not harp-wire");
	rc = card_open(&card, &o->card, &control.local.addr, why, sizeof(why));
	if (rc) {
		close(control.fd); /* the client sees the end; the reason is printed here */
		return complain(why);
	}
	run.own = run.peer;
	hello_fill(&run.own, &card);
	if (run.peer.frame_bytes > card.frame_bytes_max) {
		rc = complain("the client's frames exceed this side's MTU");
	} else {
		run_headers(&run);
		if (control_send(&control, &run.own, sizeof(run.own)) || serve_test(&run))
			rc = complain("the client closed the connection");
	}
	card_close(&card);
	close(control.fd);
	return rc;
}

/* ---- the client ----------------------------------------------------------------------------- */

static double elapsed_s(const struct wire_result *result)
{
	return result->last_ns > result->first_ns
		       ? (double)(result->last_ns - result->first_ns) / 1e9
		       : 1e-9;
}

static void report(const struct options *o, const struct wire_run *run,
		   const struct wire_result *own, const struct wire_result *peer,
		   struct samples *rtt)
{
	static const char *const names[] = { "send", "pingpong" };
	const struct wire_result *received = o->test == WIRE_SEND ? peer : own;
	double seconds = elapsed_s(received);

	printf("{\"tool\": \"harp-wire\", \"test\": \"%s\", \"interface\": \"%s\", \"mode\": "
	       "\"%s\", \"mtu_bytes\": %u, \"frame_bytes\": %u, \"descriptors_per_frame\": %u, "
	       "\"seconds\": %.3f, ",
	       names[o->test], o->card.ifname, run->card->mode, run->own.mtu_bytes,
	       run->own.frame_bytes, card_frags(run->card, run->own.frame_bytes), seconds);
	if (o->test == WIRE_PINGPONG) {
		printf("\"round_trips\": %zu, \"lost\": %" PRIu64 ", \"rtt_ns\": ", rtt->count,
		       own->lost);
		samples_json(rtt, stdout);
	} else {
		printf("\"frames_per_s\": %.0f, \"gbit_per_s\": %.3f, \"sent\": %" PRIu64
		       ", \"received\": %" PRIu64,
		       (double)peer->frames / seconds, (double)peer->bytes * 8e-9 / seconds,
		       own->frames, peer->frames);
	}
	printf("}\n");
}

static int client_test(const struct options *o, struct wire_run *run)
{
	struct wire_result own = { 0 }, peer = { 0 };
	struct samples rtt = { 0 };
	char done = 1;
	int rc = 0;

	if (o->test == WIRE_SEND) {
		run_send(run, &own);
	} else {
		rc = samples_init(&rtt, PING_SAMPLES_MAX);
		if (!rc)
			run_ping(run, &own, &rtt);
	}
	if (!rc)
		rc = control_send(run->control, &done, 1);
	if (!rc)
		rc = control_recv(run->control, &peer, sizeof(peer));
	if (rc)
		rc = complain("the server closed the connection");
	else
		report(o, run, &own, &peer, &rtt);
	samples_destroy(&rtt);
	return rc;
}

static uint32_t client_frame_bytes(const struct options *o, const struct card *card, uint32_t least)
{
	if (o->size)
		return o->size;
	if (o->test != WIRE_PINGPONG)
		return card->frame_bytes_max;
	return least > WIRE_PING_BYTES ? least : WIRE_PING_BYTES;
}

static int client(const struct options *o)
{
	struct control control;
	struct card card = { 0 };
	struct wire_run run = { .card = &card, .control = &control };
	char why[256] = "";
	uint32_t least;
	int rc = control_connect(&control, o->address, why, sizeof(why));

	if (rc)
		return complain(why);
	if (card_open(&card, &o->card, &control.local.addr, why, sizeof(why)))
		return complain(why);
	hello_fill(&run.own, &card);
	run.own.test = o->test;
	run.own.duration_ns = (uint64_t)(o->seconds * 1e9);
	least = run_header_bytes(&control) + WIRE_STAMP_BYTES;
	run.own.frame_bytes = client_frame_bytes(o, &card, least);
	if (run.own.frame_bytes < least) {
		snprintf(why, sizeof(why), "--size %u: %u is the least in this family", o->size,
			 least);
		rc = complain(why);
	} else if (run.own.frame_bytes > card.frame_bytes_max)
		rc = complain("--size exceeds the interface's MTU");
	else if (card_frags(&card, run.own.frame_bytes) > card.nic->caps.tx_frags_max)
		rc = complain("the kernel cannot send a frame of so many pieces (6.6 can)");
	if (!rc &&
	    (control_send(&control, &run.own, sizeof(run.own)) ||
	     control_recv(&control, &run.peer, sizeof(run.peer)) || run.peer.magic != WIRE_MAGIC))
		rc = complain("the server refused: its own output says why");
	if (!rc) {
		run_headers(&run);
		rc = client_test(o, &run);
	}
	card_close(&card);
	close(control.fd);
	return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct options o;

	parse(argc, argv, &o);
	return o.serve ? serve(&o) : client(&o);
}
