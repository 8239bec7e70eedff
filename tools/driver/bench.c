/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - harp-bench: one rank of a benchmark that calls an ncclNet plugin as NCCL does.
 *
 * Exit codes: 0 success, 1 wrong data, 2 bad usage, 3 hang, 4 plugin error, 5 error of another rank
 * or of the root, 6 interrupted. harpctl starts one process per rank.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static const char usage[] =
	"usage: harp-bench MODE --rank R --ranks N --root HOST:PORT [options]\n"
	"modes\n"
	"  lat                 ping-pong between 2 ranks: half round trip\n"
	"  bw                  stream from rank 0 to rank 1, 8 messages in flight\n"
	"  idle                CPU time of ranks without an operation, then of ranks that wait for rank 0\n"
	"  alltoall            each rank sends size / ranks bytes to every other rank\n"
	"  allreduce           ring all-reduce of float32 over all ranks\n"
	"  source, sink        one end of an endless stream, for tests that kill the peer or cut its\n"
	"                      path. Print JSON lines. SIGUSR1 ends the source after its last message\n"
	"Rank 0 prints a JSON document.\n"
	"options\n"
	"  --plugin NAME|PATH  as NCCL_NET_PLUGIN (default: that variable, else libnccl-net.so)\n"
	"  --ifname IF         sets NCCL_SOCKET_IFNAME\n"
	"  --devices N         distribute channels over the plugin's first N devices (default 1)\n"
	"  --sizes S[:N[:W]],..  bytes (K, M, G: powers of 1024), messages or iterations (default 100;\n"
	"                      source, sink: no limit), and warm-up messages (default N / 10 + 1)\n"
	"  --channels N        connections per direction (default 1)\n"
	"  --seconds S         idle: length of each of the two waits (default 60)\n"
	"  --datacheck 0|1     verify every byte in a separate pass (default 1)\n"
	"  --timeout S         maximum time without progress (default 60)\n"
	"  --rest US           sleep this long after idle passes (default 0: spin)\n"
	"  --tick MS           source, sink: interval of JSON lines with the progress\n"
	"  --fork-child        source, sink: fork a child that sleeps\n";

const char *const bench_modes[] = {
	[MODE_LAT] = "lat",
	[MODE_BW] = "bw",
	[MODE_IDLE] = "idle",
	[MODE_ALLTOALL] = "alltoall",
	[MODE_ALLREDUCE] = "allreduce",
	[MODE_SOURCE] = "source",
	[MODE_SINK] = "sink",
	NULL,
};

static int bench_usage(const char *what, const char *value)
{
	if (what)
		fprintf(stderr, "harp-bench: %s%s%s\n", what, value ? ": " : "",
			value ? value : "");
	fputs("harp-bench --help lists modes and options\n", stderr);
	return PLAY_USAGE;
}

static bool parse_number(const char *text, double min, double max, double *out)
{
	char *end;

	errno = 0;
	*out = strtod(text, &end);
	return end != text && !*end && !errno && *out >= min && *out <= max;
}

static bool parse_size(const char *text, size_t *out)
{
	char *end;
	unsigned long long n;
	int shift = 0;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (end == text || errno || *text == '-')
		return false;
	if (*end == 'k' || *end == 'K')
		shift = 10;
	else if (*end == 'm' || *end == 'M')
		shift = 20;
	else if (*end == 'g' || *end == 'G')
		shift = 30;
	end += shift > 0;
	if (*end == 'B' || *end == 'b')
		end++;
	*out = (size_t)n << shift;
	return !*end && *out >> shift == n && *out <= (size_t)16 << 30;
}

/* Parses --sizes, for example "8:1000:100,64K:50,1M". */
static bool parse_sizes(struct bench *bench, const char *text)
{
	char item[64];

	for (bench->steps = 0; *text; bench->steps++) {
		struct bench_size *size = &bench->sizes[bench->steps];
		size_t length = strcspn(text, ",");
		char *messages, *warmup = NULL;
		double n = bench->mode > MODE_ALLREDUCE ? 0 : 100, w;

		if (bench->steps == BENCH_SIZES_MAX || length >= sizeof(item))
			return false;
		memcpy(item, text, length);
		item[length] = '\0';
		messages = strchr(item, ':');
		if (messages)
			*messages++ = '\0';
		warmup = messages ? strchr(messages, ':') : NULL;
		if (warmup)
			*warmup++ = '\0';
		if (!parse_size(item, &size->bytes) ||
		    (messages && !parse_number(messages, 1, 1e9, &n)))
			return false;
		w = n / 10 + 1;
		if (warmup && !parse_number(warmup, 0, 1e9, &w))
			return false;
		size->messages = (uint64_t)n;
		size->warmup = (uint64_t)w;
		if (size->bytes > bench->largest_bytes)
			bench->largest_bytes = size->bytes;
		text += length + (text[length] == ',');
	}
	return bench->steps > 0;
}

enum {
	O_RANK = 256,
	O_RANKS,
	O_ROOT,
	O_PLUGIN,
	O_IFNAME,
	O_DEVICES,
	O_SIZES,
	O_CHANNELS,
	O_SECONDS,
	O_DATACHECK,
	O_TIMEOUT,
	O_REST,
	O_TICK,
	O_FORK_CHILD,
	O_HELP
};

static const struct option long_options[] = {
	{ "rank", 1, NULL, O_RANK },       { "ranks", 1, NULL, O_RANKS },
	{ "root", 1, NULL, O_ROOT },       { "plugin", 1, NULL, O_PLUGIN },
	{ "ifname", 1, NULL, O_IFNAME },   { "devices", 1, NULL, O_DEVICES },
	{ "sizes", 1, NULL, O_SIZES },     { "channels", 1, NULL, O_CHANNELS },
	{ "seconds", 1, NULL, O_SECONDS }, { "datacheck", 1, NULL, O_DATACHECK },
	{ "timeout", 1, NULL, O_TIMEOUT }, { "rest", 1, NULL, O_REST },
	{ "tick", 1, NULL, O_TICK },       { "fork-child", 0, NULL, O_FORK_CHILD },
	{ "help", 0, NULL, O_HELP },       { NULL, 0, NULL, 0 },
};

/* Parses an option with a number; false if it is out of range. */
static bool bench_number(struct bench *bench, int option, const char *text)
{
	struct play_options *o = &bench->options;
	double n;

	switch (option) {
	case O_RANK:
		return parse_number(text, 0, PLAY_RANKS_MAX - 1, &n) && (o->rank = (int)n, true);
	case O_RANKS:
		return parse_number(text, 2, PLAY_RANKS_MAX, &n) && (o->ranks = (int)n, true);
	case O_DEVICES:
		return parse_number(text, 1, 1023, &n) && (o->devices = (int)n, true);
	case O_SIZES:
		return parse_sizes(bench, text);
	case O_CHANNELS:
		return parse_number(text, 1, PLAY_CHANNELS_MAX, &n) && (o->channels = (int)n, true);
	case O_SECONDS:
		return parse_number(text, 0.1, 86400, &bench->seconds);
	case O_DATACHECK:
		return parse_number(text, 0, 1, &n) && (bench->datacheck = n > 0, true);
	case O_TIMEOUT:
		return parse_number(text, 0.1, 86400, &o->timeout_s);
	case O_REST:
		return parse_number(text, 0, 999999, &n) && (o->pause_us = (unsigned)n, true);
	default:
		return parse_number(text, 1, 60000, &n) && (bench->tick_ms = (uint64_t)n, true);
	}
}

static int bench_option(struct bench *bench, int option)
{
	switch (option) {
	case O_ROOT:
		bench->options.root = optarg;
		return 0;
	case O_PLUGIN:
		bench->options.plugin = optarg;
		return 0;
	case O_IFNAME:
		return setenv("NCCL_SOCKET_IFNAME", optarg, 1) ? PLAY_PEER : 0;
	case O_FORK_CHILD:
		bench->fork_child = true;
		return 0;
	case '?':
		return bench_usage(NULL, NULL);
	default:
		if (bench_number(bench, option, optarg))
			return 0;
		return bench_usage("bad value or out of range", optarg);
	}
}

static int bench_check_alltoall(struct bench *bench)
{
	bench->options.mesh = true;
	bench->options.channels *= bench->options.ranks - 1;
	return bench->options.channels > PLAY_CHANNELS_MAX
		       ? bench_usage("alltoall: fewer ranks or --channels", NULL)
		       : 0;
}

static int bench_check(struct bench *bench)
{
	const struct play_options *o = &bench->options;

	if (o->ranks < 2 || o->rank < 0 || o->rank >= o->ranks)
		return bench_usage("--rank and --ranks are required, with rank < ranks", NULL);
	if (!o->root)
		return bench_usage("--root is required: host:port where rank 0 listens", NULL);
	if ((bench->mode == MODE_LAT || bench->mode == MODE_BW) && o->ranks != 2)
		return bench_usage("lat and bw need --ranks 2", NULL);
	if (!bench->steps != (bench->mode == MODE_IDLE))
		return bench_usage("--sizes is required, except for idle, which has none", NULL);
	if (bench->mode > MODE_ALLREDUCE && bench->steps != 1)
		return bench_usage("source and sink need exactly one size", NULL);
	for (size_t i = 0; bench->mode == MODE_ALLREDUCE && i < bench->steps; i++)
		if (bench->sizes[i].bytes % 4 || !bench->sizes[i].bytes)
			return bench_usage("allreduce: sizes must be multiples of 4 (float32)",
					   NULL);
	if (bench->mode != MODE_ALLREDUCE && bench->mode != MODE_ALLTOALL &&
	    bench->largest_bytes > (size_t)64 << 20)
		return bench_usage("--sizes: at most 64M per message (NCCL's have 1M)", NULL);
	if (bench->mode == MODE_IDLE)
		bench->options.timeout_s += bench->seconds;
	return bench->mode == MODE_ALLTOALL ? bench_check_alltoall(bench) : 0;
}

static int bench_parse(struct bench *bench, int argc, char **argv)
{
	int option, rc;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		fputs(usage, stdout);
		exit(0);
	}
	for (bench->mode = MODE_LAT; bench_modes[bench->mode]; bench->mode++)
		if (argc > 1 && !strcmp(argv[1], bench_modes[bench->mode]))
			break;
	if (!bench_modes[bench->mode])
		return bench_usage(argc > 1 ? "no such mode" : "a mode is required",
				   argc > 1 ? argv[1] : NULL);
	optind = 2;
	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (option == O_HELP) {
			fputs(usage, stdout);
			exit(0);
		}
		rc = bench_option(bench, option);
		if (rc)
			return rc;
	}
	if (optind < argc)
		return bench_usage("not an option", argv[optind]);
	return bench_check(bench);
}

static void bench_tick(void *arg)
{
	report_role(arg, "tick", "");
}

static struct play *bench_playing; /* for the signal handler */

static void bench_signal(int signal)
{
	(void)signal;
	atomic_store(&bench_playing->interrupted, true);
}

atomic_bool bench_stop;

static void bench_stop_signal(int signal)
{
	(void)signal;
	atomic_store(&bench_stop, true);
}

static int bench_run(struct bench *bench)
{
	int rc = play_connect(bench->play);

	bench->results = open_memstream(&bench->results_text, &bench->results_len);
	if (!rc && !bench->results)
		rc = PLAY_PEER;
	if (rc)
		return rc;
	if (bench->mode == MODE_LAT)
		return bench_lat(bench);
	if (bench->mode == MODE_BW)
		return bench_bw(bench);
	if (bench->mode == MODE_IDLE)
		return bench_idle(bench);
	if (bench->mode == MODE_ALLTOALL)
		return bench_alltoall(bench);
	if (bench->mode == MODE_ALLREDUCE)
		return bench_allreduce(bench);
	return bench_role(bench);
}

int main(int argc, char **argv)
{
	struct bench bench = {
		.options = { .rank = -1, .channels = 1, .devices = 1, .timeout_s = 60 },
		.datacheck = true,
		.seconds = 60,
	};
	char error[PLAY_ERROR_BYTES];
	int rc, closed;

	rc = bench_parse(&bench, argc, argv);
	if (rc)
		return rc;
	signal(SIGPIPE, SIG_IGN);
	rc = play_open(&bench.options, &bench.play, error, sizeof(error));
	if (rc) {
		fprintf(stderr, "harp-bench: rank %d: %s\n", bench.options.rank, error);
		return rc;
	}
	bench_playing = bench.play;
	signal(SIGINT, bench_signal);
	signal(SIGTERM, bench_signal);
	signal(SIGUSR1, bench_stop_signal);
	if (bench.tick_ms && bench.mode > MODE_ALLREDUCE) {
		bench.play->tick = bench_tick;
		bench.play->tick_ns = bench.tick_ms * 1000000;
		bench.play->tick_arg = &bench;
	}
	if (bench.mode != MODE_ALLREDUCE && bench.mode != MODE_ALLTOALL &&
	    bench.largest_bytes > bench.play->slot_bytes)
		bench.play->slot_bytes = (bench.largest_bytes + 4095) / 4096 * 4096;
	rc = report_end(&bench, bench_run(&bench));
	bench.play->tick = NULL;
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	closed = play_close(bench.play);
	if (closed && !rc)
		fprintf(stderr, "harp-bench: rank %d: closing failed (%s)\n", bench.options.rank,
			closed == PLAY_HANG ? "the plugin does not return" : "plugin error");
	fflush(stdout);
	if (closed == PLAY_HANG)
		_exit(rc ? rc : closed); /* threads are inside the plugin */
	return rc ? rc : closed;
}
