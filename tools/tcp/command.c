/* SPDX-License-Identifier: Apache-2.0 */
/* command.c - harp-tcp's command line. */
#include "command.h"

#include <getopt.h>
#include <stdlib.h>

#include "common/options.h"

#define TOOL "harp-tcp"
/* Limit for all connections together, so that data is still in the cache when it is sent. */
#define UNSENT_BYTES (1u << 20)

static const char usage[] =
	"usage: harp-tcp serve|sink ADDRESS PORT [options]\n"
	"       harp-tcp send|recv ADDRESS PORT [options]          to a `serve`\n"
	"       harp-tcp message ADDRESS PORT [options]            to a `sink`\n"
	"\n"
	"Sends verified bytes and messages over the HARP stack, or over kernel TCP with --kernel.\n"
	"ADDRESS: 10.0.0.1, fd00::1, fe80::1%eth0; for serve and sink also 0.0.0.0 and ::.\n"
	"message: --flows connections send messages of --size bytes, with at most --depth in flight, for\n"
	"--seconds or --count. A message's latency ends when its receipt arrives. Prints JSON.\n"
	"\n"
	"  --ifname NAME      interface of the HARP stack, or dpdk:SPEC (required without --kernel)\n"
	"  --kernel           use kernel sockets\n"
	"  --bytes N          bytes to send or receive (16777216)\n"
	"  --count N          serve, sink: exit after N connections (1); message: messages per\n"
	"                     connection, instead of --seconds\n"
	"  --repeat N         send, recv: number of connections, one after the other (1)\n"
	"  --size N           message size (65536)\n"
	"  --flows N  --depth N  --seconds S  --skip S   message (1, 16, 3, 0.5)\n"
	"  --timeout S        fail after S seconds without progress (20)\n"
	"  --half-close       recv: shut down the sending direction before receiving\n"
	"  --spin             never sleep\n"
	"  --frames           send with the stack's own frames\n"
	"  --external         message: send from registered memory without a copy (DPDK)\n"
	"  --verify           sink: verify every byte of every message\n"
	"  --cc NAME          congestion control\n"
	"  --ecn              request ECN (HARP only; for kernel TCP, use the sysctl)\n"
	"  --rcvbuf N         receive buffer of kernel sockets, bytes\n"
	"  --daemon SOCKET    lease the queue from harpd\n"
	"  --queue N  --xdp auto|generic|native|native-or-none\n"
	"  --copy auto|copy|zero-copy  --lib-dir DIR\n"
	"  -o text|json       output (text)\n"
	"`serve` and `sink` print \"ready\" when they accept connections.\n";

/* Parses seconds with a fraction; returns nanoseconds. */
static uint64_t parse_duration(const char *name, const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0 && value <= 3600)) {
		fprintf(stderr, "harp-tcp: %s %s: not a number of seconds in 0..3600\n", name,
			text);
		exit(2);
	}
	return (uint64_t)(value * 1e9);
}

/* Parses the options of streams; false if c is another option. */
static bool parse_stream(int c, struct stream_options *stream)
{
	switch (c) {
	case 'i':
		stream->ifname = optarg;
		return true;
	case 'k':
		stream->kernel = true;
		return true;
	case 's':
		stream->spin = true;
		return true;
	case 'f':
		stream->frames = true;
		return true;
	case 'X':
		stream->external = true;
		return true;
	case 'C':
		stream->cc = optarg;
		return true;
	case 'e':
		stream->ecn = true;
		return true;
	case 'R':
		stream->rcvbuf_bytes =
			(uint32_t)option_number(TOOL, "--rcvbuf", optarg, 1, 1u << 30);
		return true;
	case 'q':
		stream->queue = (uint32_t)option_number(TOOL, "--queue", optarg, 0, 255);
		return true;
	case 'x':
		stream->xdp_mode = option_choice(TOOL, "--xdp", optarg, option_xdp_modes);
		return true;
	case 'c':
		stream->copy_mode = option_choice(TOOL, "--copy", optarg, option_copy_modes);
		return true;
	case 'l':
		stream->lib_dir = optarg;
		return true;
	case 'D':
		stream->daemon = optarg;
		return true;
	default:
		return false;
	}
}

static void parse_option(int c, struct options *o)
{
	switch (c) {
	case 'b':
		o->bytes = option_number(TOOL, "--bytes", optarg, 0, 1ull << 50);
		break;
	case 'n':
		o->count = (uint32_t)option_number(TOOL, "--count", optarg, 1, 1u << 24);
		break;
	case 'r':
		o->repeat = (uint32_t)option_number(TOOL, "--repeat", optarg, 1, 1u << 24);
		break;
	case 'z':
		o->size = (uint32_t)option_number(TOOL, "--size", optarg, 1, MESSAGE_MAX);
		break;
	case 'w':
		o->flows = (uint32_t)option_number(TOOL, "--flows", optarg, 1, STREAMS_MAX);
		break;
	case 'd':
		o->depth = (uint32_t)option_number(TOOL, "--depth", optarg, 1, MESSAGE_DEPTH_MAX);
		break;
	case 'S':
		o->run_ns = parse_duration("--seconds", optarg);
		break;
	case 'K':
		o->skip_ns = parse_duration("--skip", optarg);
		break;
	case 'H':
		o->half_close = true;
		break;
	case 'V':
		o->verify = true;
		break;
	case 't':
		o->timeout_ns = option_number(TOOL, "--timeout", optarg, 1, 3600) * 1000000000u;
		break;
	case 'o':
		o->json = option_choice(TOOL, "-o", optarg, option_outputs);
		break;
	case 'h':
		option_help(usage);
	default:
		option_misused(usage);
	}
}

static void parse_arguments(char **args, struct options *o)
{
	static const char *const commands[] = { "send", "recv", "message", "serve", "sink", NULL };
	struct harp_endpoint *end;

	o->command = (enum command)option_choice(TOOL, "command", args[0], commands);
	end = o->command >= COMMAND_SERVE ? &o->stream.local : &o->stream.remote;
	if (option_endpoint(args[1], end)) {
		fprintf(stderr, "harp-tcp: %s is not an IP address\n", args[1]);
		exit(2);
	}
	end->port = (uint16_t)option_number(TOOL, "PORT", args[2], 1, 65535);
	if (!o->count && o->command >= COMMAND_SERVE)
		o->count = 1;
	if (o->skip_ns >= o->run_ns) {
		fprintf(stderr, "harp-tcp: --skip must be less than --seconds\n");
		exit(2);
	}
}

void command_parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "ifname", 1, 0, 'i' },     { "kernel", 0, 0, 'k' },
		{ "bytes", 1, 0, 'b' },      { "count", 1, 0, 'n' },
		{ "size", 1, 0, 'z' },       { "timeout", 1, 0, 't' },
		{ "spin", 0, 0, 's' },       { "frames", 0, 0, 'f' },
		{ "queue", 1, 0, 'q' },      { "xdp", 1, 0, 'x' },
		{ "copy", 1, 0, 'c' },       { "lib-dir", 1, 0, 'l' },
		{ "repeat", 1, 0, 'r' },     { "flows", 1, 0, 'w' },
		{ "depth", 1, 0, 'd' },      { "seconds", 1, 0, 'S' },
		{ "skip", 1, 0, 'K' },       { "cc", 1, 0, 'C' },
		{ "rcvbuf", 1, 0, 'R' },     { "ecn", 0, 0, 'e' },
		{ "half-close", 0, 0, 'H' }, { "verify", 0, 0, 'V' },
		{ "external", 0, 0, 'X' },   { "daemon", 1, 0, 'D' },
		{ "help", 0, 0, 'h' },       { 0, 0, 0, 0 },
	};
	int c;

	*o = (struct options){ .timeout_ns = 20000000000u,
			       .bytes = 16u << 20,
			       .size = 65536,
			       .repeat = 1,
			       .flows = 1,
			       .depth = 16,
			       .run_ns = 3000000000u,
			       .skip_ns = 500000000u };
	while ((c = getopt_long(argc, argv, "o:h", longs, NULL)) != -1)
		if (!parse_stream(c, &o->stream))
			parse_option(c, o);
	if (argc - optind != 3 || (!o->stream.kernel && !o->stream.ifname))
		option_misused(usage);
	parse_arguments(argv + optind, o);
	o->stream.unsent_bytes = UNSENT_BYTES / o->flows;
}
