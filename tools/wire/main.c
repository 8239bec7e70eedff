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
#define CONTROL_PORT 7100u
#define DATA_PORT 61000u
#define NO_LINK "the port has no link: is its peer there, the cable in?"

static const char usage[] =
	"usage: harp-wire serve IFNAME ADDRESS [options]\n"
	"       harp-wire send|recv|pingpong IFNAME PEER-ADDRESS [options]\n"
	"\n"
	"Raw frames between two AF_XDP queues: the NIC code, steering program and MTU of the HARP stack,\n"
	"but no stack. `serve` answers one client and ends; it prints \"ready\" when it may be called.\n"
	"IFNAME may be a DPDK port, dpdk:DEVICE[;key=value]...; the addresses are then the kernel's on\n"
	"another interface, over which both sides agree.\n"
	"\n"
	"  --seconds N        duration (3; at most 60)\n"
	"  --size BYTES       frame with its Ethernet header (send, recv: the MTU's; pingpong: 64, IPv6 82)\n"
	"  --queue N          receive queue (0)\n"
	"  --xdp MODE         not with dpdk: auto, generic, native or native-or-none (auto)\n"
	"  --copy MODE        not with dpdk: auto, copy or zero-copy (auto)\n"
	"  --payload          each frame's bytes are copied from 4 MiB of memory and into as much, and summed\n"
	"                     on both sides, as by any stack (send, recv; the client's word)\n"
	"  --frames N         frames of the region (8192)\n"
	"  --port N           control connection's port (7100)\n"
	"  --data-port N      the frames' TCP port (61000)\n"
	"  --lib-dir DIR      where libharp-xdp.so or libharp-dpdk.so lies\n"
	"  -o text|json       output (text)\n";

struct options {
	const char *ifname, *address;
	bool serve, json, payload;
	enum wire_test test;
	double seconds;
	uint32_t size;
	uint16_t control_port;
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
		{ "seconds", 1, 0, 's' }, { "size", 1, 0, 'z' },      { "queue", 1, 0, 'q' },
		{ "xdp", 1, 0, 'x' },     { "copy", 1, 0, 'c' },      { "frames", 1, 0, 'f' },
		{ "port", 1, 0, 'p' },    { "data-port", 1, 0, 'd' }, { "lib-dir", 1, 0, 'l' },
		{ "help", 0, 0, 'h' },    { "payload", 0, 0, 'y' },   { 0, 0, 0, 0 },
	};
	static const char *const commands[] = { "send", "recv", "pingpong", "serve", NULL };
	uint32_t command;
	int c;

	*o = (struct options){ .seconds = 3,
			       .control_port = CONTROL_PORT,
			       .card = { .frame_count = 8192, .port = DATA_PORT } };
	while ((c = getopt_long(argc, argv, "o:h", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			o->seconds = (double)option_number(TOOL, "--seconds", optarg, 1, 60);
			break;
		case 'z':
			o->size = (uint32_t)option_number(TOOL, "--size", optarg, 62, 65535);
			break;
		case 'q':
			o->card.queue = (uint32_t)option_number(TOOL, "--queue", optarg, 0,
								STEER_QUEUES_MAX - 1);
			break;
		case 'x':
			o->card.xdp_mode = option_choice(TOOL, "--xdp", optarg, option_xdp_modes);
			break;
		case 'c':
			o->card.copy_mode =
				option_choice(TOOL, "--copy", optarg, option_copy_modes);
			break;
		case 'f':
			o->card.frame_count =
				(uint32_t)option_number(TOOL, "--frames", optarg, 256, 1u << 20);
			break;
		case 'p':
			o->control_port = (uint16_t)option_number(TOOL, "--port", optarg, 1, 65535);
			break;
		case 'd':
			o->card.port =
				(uint16_t)option_number(TOOL, "--data-port", optarg, 1, 65535);
			break;
		case 'l':
			o->card.lib_dir = optarg;
			break;
		case 'y':
			o->payload = true;
			break;
		case 'o':
			o->json = option_choice(TOOL, "--output", optarg, option_outputs);
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
	o->serve = command == 3;
	o->test = (enum wire_test)command;
	o->ifname = o->card.ifname = argv[optind + 1];
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
	char done = 1;
	int rc = 0;

	switch ((enum wire_test)run->peer.test) {
	case WIRE_SEND:
		run_recv(run, &result);
		break;
	case WIRE_RECV:
		run_send(run, &result);
		rc = control_send(run->control, &done, 1);
		break;
	case WIRE_PINGPONG:
		run_pong(run, &result);
		break;
	}
	if (!rc && run->peer.test != WIRE_RECV)
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

	if (card_check(&o->card, why, sizeof(why)))
		return complain(why);
	listener = control_listen(o->address, o->control_port, why, sizeof(why));
	if (listener < 0)
		return complain(why);
	printf("ready\n");
	fflush(stdout);
	rc = control_accept(&control, listener);
	close(listener);
	if (rc || control_recv(&control, &run.peer, sizeof(run.peer)) ||
	    run.peer.magic != WIRE_MAGIC || run.peer.test > WIRE_PINGPONG)
		return complain("the client went away or is not harp-wire");
	rc = card_open(&card, &o->card, &control.local.addr, why, sizeof(why));
	if (rc) {
		close(control.fd); /* the client sees that we are gone; the reason is here */
		return complain(why);
	}
	if (run.peer.payload && payload_open(&run.payload))
		rc = complain("out of memory");
	run.own = run.peer;
	hello_fill(&run.own, &card);
	if (!rc && run.peer.frame_bytes > card.frame_bytes_max)
		rc = complain("the client's frames exceed this side's MTU");
	if (!rc) {
		run_headers(&run);
		if (control_send(&control, &run.own, sizeof(run.own)))
			rc = complain("the client went away");
	}
	if (!rc && card_link(&card))
		rc = complain(NO_LINK);
	else if (!rc)
		rc = serve_test(&run) ? complain("the client went away") : 0;
	payload_close(&run.payload);
	card_close(&card);
	close(control.fd);
	return rc;
}

/* ---- the client ----------------------------------------------------------------------------- */

static void print_counts(const char *name, const struct wire_result *result)
{
	printf("\"%s\": {\"frames\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"per_second\": [", name,
	       result->frames, result->bytes);
	for (uint32_t i = 0; i < result->seconds; i++)
		printf("%s%u", i ? ", " : "", result->per_second[i]);
	printf("], \"kicks\": %" PRIu64 ", \"rx_ring_full\": %" PRIu64
	       ", \"rx_fill_empty\": %" PRIu64 ", \"rx_dropped\": %" PRIu64 "}",
	       result->kicks, result->ring_full, result->fill_empty, result->dropped);
}

static double elapsed_s(const struct wire_result *result)
{
	return result->last_ns > result->first_ns
		       ? (double)(result->last_ns - result->first_ns) / 1e9
		       : 1e-9;
}

static void report(const struct options *o, const struct wire_run *run,
		   const struct wire_result *sent, const struct wire_result *received,
		   struct samples *rtt)
{
	static const char *const names[] = { "send", "recv", "pingpong" };
	double rate = (double)received->frames / elapsed_s(received);
	double gbit = (double)received->bytes * 8e-9 / elapsed_s(received);

	if (o->json) {
		printf("{\"tool\": \"harp-wire\", \"test\": \"%s\", \"interface\": \"%s\", \"mode\": "
		       "\"%s\", \"mtu_bytes\": %u, \"frame_bytes\": %u, \"descriptors_per_frame\": "
		       "%u, \"seconds\": %.3f, ",
		       names[o->test], o->ifname, run->card->mode, run->own.mtu_bytes,
		       run->own.frame_bytes, card_frags(run->card, run->own.frame_bytes),
		       elapsed_s(received));
		if (o->test == WIRE_PINGPONG) {
			printf("\"round_trips\": %zu, \"lost\": %" PRIu64 ", \"rtt_ns\": ",
			       rtt->count, sent->lost);
			samples_json(rtt, stdout);
		} else {
			printf("\"frames_per_s\": %.0f, \"gbit_per_s\": %.3f, ", rate, gbit);
			print_counts("sent", sent);
			printf(", ");
			print_counts("received", received);
		}
		printf("}\n");
		return;
	}
	printf("%s, MTU %u, %s, frames of %u bytes (%u descriptors)\n", run->card->mode,
	       run->own.mtu_bytes, names[o->test], run->own.frame_bytes,
	       card_frags(run->card, run->own.frame_bytes));
	if (o->test == WIRE_PINGPONG)
		printf("%zu round trips, %" PRIu64 " lost; rtt p50 %.2f us, p99 %.2f us\n",
		       rtt->count, sent->lost, samples_percentile(rtt, 500) / 1e3,
		       samples_percentile(rtt, 990) / 1e3);
	else
		printf("%.0f frames/s, %.2f Gbit/s received; %" PRIu64 " sent, %" PRIu64
		       " received\n",
		       rate, gbit, sent->frames, received->frames);
}

static int client_test(const struct options *o, struct wire_run *run)
{
	struct wire_result own = { 0 }, peer = { 0 };
	struct samples rtt = { 0 };
	char done = 1;
	int rc = 0;

	switch (o->test) {
	case WIRE_SEND:
		run_send(run, &own);
		break;
	case WIRE_RECV:
		run_recv(run, &own);
		rc = control_recv(run->control, &done, 1);
		break;
	case WIRE_PINGPONG:
		rc = samples_init(&rtt, PING_SAMPLES_MAX);
		if (!rc)
			run_ping(run, &own, &rtt);
		break;
	}
	if (!rc && o->test != WIRE_RECV)
		rc = control_send(run->control, &done, 1);
	if (!rc)
		rc = control_recv(run->control, &peer, sizeof(peer));
	if (rc)
		rc = complain("the server went away");
	else if (o->test == WIRE_RECV)
		report(o, run, &peer, &own, NULL);
	else
		report(o, run, &own, o->test == WIRE_SEND ? &peer : &own, &rtt);
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
	int rc = control_connect(&control, o->address, o->control_port, why, sizeof(why));

	if (rc)
		return complain(why);
	if (card_open(&card, &o->card, &control.local.addr, why, sizeof(why)))
		return complain(why);
	hello_fill(&run.own, &card);
	run.own.test = o->test;
	run.own.payload = o->payload;
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
	if (!rc && card_link(&card))
		rc = complain(NO_LINK);
	if (!rc && o->payload && payload_open(&run.payload))
		rc = complain("out of memory");
	if (!rc) {
		run_headers(&run);
		rc = client_test(o, &run);
	}
	payload_close(&run.payload);
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
