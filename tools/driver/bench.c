/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - harp-bench: one rank of a benchmark that calls an ncclNet plugin as NCCL does.
 *
 * Exit codes: 0 correct, 1 wrong data, 2 usage, 3 hang, 4 plugin error, 5 another rank or the root,
 * 6 interrupted. harpctl starts one process per rank; this program measures.
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
	"  lat                 ping-pong between 2 ranks: half round trip, percentiles\n"
	"  bw                  stream from rank 0 to rank 1, 8 messages in flight\n"
	"  idle                processor time of ranks that wait: asleep, then for rank 0\n"
	"  alltoall            each rank sends size / ranks bytes to every other rank\n"
	"  allreduce           ring all-reduce of float32 over all ranks, nccl-tests' columns\n"
	"  source, sink        one end of an endless stream, for tests that kill the peer or cut its\n"
	"                      path. JSON lines. SIGUSR1 to the source ends the stream in order\n"
	"Rank 0 prints a JSON document.\n"
	"which plugin\n"
	"  --plugin NAME|PATH  as NCCL_NET_PLUGIN (default: that variable, else libnccl-net.so)\n"
	"  --abi N             ncclNetPlugin_vN, 6..12 (default: the newest)\n"
	"  --ifname IF         sets NCCL_SOCKET_IFNAME\n"
	"  --dev N             the plugin's device (default 0)\n"
	"  --devices N         channels alternate over this number of devices from that one on (default 1)\n"
	"what to run\n"
	"  -b, --minbytes S    first size (K, M, G: powers of 1024)\n"
	"  -e, --maxbytes S    last size\n"
	"  -f, --stepfactor N  next size = size * N\n"
	"  --sizes S[:N[:W]],..  these sizes instead, with messages and warm-up of their own\n"
	"  -n, --iters N       messages or iterations (default: by size)\n"
	"  -w, --warmup N      before those\n"
	"  --channels N        connections per direction (default 1)\n"
	"  --ll                all-reduce with NCCL's LL protocol instead of Simple\n"
	"  --seconds S         idle: length of each of the two waits (default 60)\n"
	"  --datacheck 0|1     verify every byte in a pass of its own (default 1)\n"
	"how\n"
	"  --timeout S         longest time without progress (default 60)\n"
	"  --cpu N             pin progress and service thread to processor N\n"
	"  --rest US           sleep for so long after passes that moved nothing (default 0: spin)\n"
	"  --progress-fd N     JSON lines of progress to file descriptor N\n"
	"  --tick MS           source, sink: a JSON line of progress at this interval\n"
	"  --fork-child        source, sink: fork a child that sleeps\n"
	"  --abrupt            source, sink with -n: exit without closing\n";

static int bench_usage(const char *what, const char *value)
{
	if (what)
		fprintf(stderr, "harp-bench: %s%s%s\n", what, value ? ": " : "",
			value ? value : "");
	fputs("harp-bench --help lists modes and options\n", stderr);
	return NCCLPLAY_USAGE;
}

static bool parse_number(const char *text, double least, double most, double *out)
{
	char *end;

	errno = 0;
	*out = strtod(text, &end);
	return end != text && !*end && !errno && *out >= least && *out <= most;
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

enum {
	O_RANK = 256,
	O_RANKS,
	O_ROOT,
	O_PLUGIN,
	O_ABI,
	O_IFNAME,
	O_DEV,
	O_CHANNELS,
	O_LL,
	O_DATACHECK,
	O_TIMEOUT,
	O_CPU,
	O_PROGRESS_FD,
	O_FORK_CHILD,
	O_ABRUPT,
	O_SECONDS,
	O_TICK,
	O_DEVICES,
	O_REST,
	O_SIZES,
	O_HELP
};

static const struct option long_options[] = {
	{ "rank", 1, NULL, O_RANK },
	{ "ranks", 1, NULL, O_RANKS },
	{ "root", 1, NULL, O_ROOT },
	{ "plugin", 1, NULL, O_PLUGIN },
	{ "abi", 1, NULL, O_ABI },
	{ "ifname", 1, NULL, O_IFNAME },
	{ "dev", 1, NULL, O_DEV },
	{ "channels", 1, NULL, O_CHANNELS },
	{ "ll", 0, NULL, O_LL },
	{ "datacheck", 1, NULL, O_DATACHECK },
	{ "timeout", 1, NULL, O_TIMEOUT },
	{ "cpu", 1, NULL, O_CPU },
	{ "progress-fd", 1, NULL, O_PROGRESS_FD },
	{ "fork-child", 0, NULL, O_FORK_CHILD },
	{ "abrupt", 0, NULL, O_ABRUPT },
	{ "seconds", 1, NULL, O_SECONDS },
	{ "tick", 1, NULL, O_TICK },
	{ "devices", 1, NULL, O_DEVICES },
	{ "rest", 1, NULL, O_REST },
	{ "sizes", 1, NULL, O_SIZES },
	{ "minbytes", 1, NULL, 'b' },
	{ "maxbytes", 1, NULL, 'e' },
	{ "stepfactor", 1, NULL, 'f' },
	{ "iters", 1, NULL, 'n' },
	{ "warmup", 1, NULL, 'w' },
	{ "help", 0, NULL, O_HELP },
	{ NULL, 0, NULL, 0 },
};

/* "8:1000:100,64K:50,1M" */
static bool parse_sizes(struct bench *bench, const char *text)
{
	char item[64];

	for (bench->steps = 0; *text; bench->steps++) {
		struct bench_size *size = &bench->sizes[bench->steps];
		size_t length = strcspn(text, ",");
		char *messages, *warm = NULL;
		double n = 0, w = 0;

		if (bench->steps == BENCH_SIZES_MAX || length >= sizeof(item))
			return false;
		memcpy(item, text, length);
		item[length] = '\0';
		messages = strchr(item, ':');
		if (messages)
			*messages++ = '\0';
		warm = messages ? strchr(messages, ':') : NULL;
		if (warm)
			*warm++ = '\0';
		if (!parse_size(item, &size->bytes) ||
		    (messages && !parse_number(messages, 1, 1e9, &n)) ||
		    (warm && !parse_number(warm, 0, 1e9, &w)))
			return false;
		size->messages = (uint64_t)n;
		size->warm = warm ? (uint64_t)w : UINT64_MAX;
		text += length + (text[length] == ',');
	}
	return bench->steps > 0;
}

/* One option with a number; false when it is out of range. */
static bool bench_number(struct bench *bench, int option, const char *text)
{
	struct ncclplay_options *o = &bench->options;
	double n;

	switch (option) {
	case O_RANK:
		return parse_number(text, 0, NCCLPLAY_RANKS_MAX - 1, &n) &&
		       (o->rank = (int)n, true);
	case O_RANKS:
		return parse_number(text, 1, NCCLPLAY_RANKS_MAX, &n) && (o->ranks = (int)n, true);
	case O_ABI:
		return parse_number(text, NET_ABI_OLDEST, NET_ABI_NEWEST, &n) &&
		       (o->abi = (int)n, true);
	case O_DEV:
		return parse_number(text, 0, 1023, &n) && (o->dev = (int)n, true);
	case O_CHANNELS:
		return parse_number(text, 1, NCCLPLAY_CHANNELS_MAX, &n) &&
		       (o->channels = (int)n, true);
	case O_DATACHECK:
		return parse_number(text, 0, 1, &n) && (bench->datacheck = n > 0, true);
	case O_SECONDS:
		return parse_number(text, 0.1, 86400, &bench->seconds);
	case O_TICK:
		return parse_number(text, 1, 60000, &n) && (bench->tick_ms = (uint64_t)n, true);
	case O_DEVICES:
		return parse_number(text, 1, 1023, &n) && (o->devices = (int)n, true);
	case O_REST:
		return parse_number(text, 0, 999999, &n) && (o->rest_us = (unsigned)n, true);
	case O_SIZES:
		return parse_sizes(bench, text);
	case O_TIMEOUT:
		return parse_number(text, 0.1, 86400, &n) && (o->timeout_s = n, true);
	case O_CPU:
		return parse_number(text, 0, 1023, &n) && (o->cpu = (int)n, o->pin = true);
	case O_PROGRESS_FD:
		return parse_number(text, 0, 65535, &n) && (bench->progress_fd = (int)n, true);
	case 'b':
		return parse_size(text, &bench->first_bytes);
	case 'e':
		return parse_size(text, &bench->last_bytes);
	case 'f':
		return parse_number(text, 2, 1 << 20, &n) && (bench->factor = (size_t)n, true);
	case 'n':
		return parse_number(text, 1, 1e9, &n) && (bench->iterations = (uint64_t)n, true);
	default:
		return parse_number(text, 0, 1e9, &n) && (bench->warm = (uint64_t)n, true);
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
		return setenv("NCCL_SOCKET_IFNAME", optarg, 1) ? NCCLPLAY_PEER : 0;
	case O_LL:
		bench->options.ll = true;
		return 0;
	case O_FORK_CHILD:
		bench->fork_child = true;
		return 0;
	case O_ABRUPT:
		bench->abrupt = true;
		return 0;
	case '?':
		return bench_usage(NULL, NULL);
	default:
		if (!bench_number(bench, option, optarg)) {
			fprintf(stderr, "harp-bench: bad value or out of range: %s (see --help)\n",
				optarg);
			return NCCLPLAY_USAGE;
		}
		return 0;
	}
}

static void bench_sizes_range(struct bench *bench)
{
	bench->last_bytes = 0;
	for (size_t i = 0; i < bench->steps; i++) {
		if (bench->sizes[i].bytes < bench->first_bytes)
			bench->first_bytes = bench->sizes[i].bytes;
		if (bench->sizes[i].bytes > bench->last_bytes)
			bench->last_bytes = bench->sizes[i].bytes;
	}
}

/* Those of --sizes, else from first to last by factor: no size_t can be doubled BENCH_SIZES_MAX times. */
static void bench_sizes_make(struct bench *bench)
{
	size_t bytes = bench->first_bytes;

	if (!bench->steps) {
		do {
			bench->sizes[bench->steps++] =
				(struct bench_size){ .bytes = bytes, .warm = UINT64_MAX };
			bytes *= bench->factor;
		} while (bytes && bytes <= bench->last_bytes);
	}
	for (size_t i = 0; i < bench->steps; i++) {
		if (!bench->sizes[i].messages)
			bench->sizes[i].messages = bench->iterations;
		if (bench->sizes[i].warm == UINT64_MAX)
			bench->sizes[i].warm = bench->warm;
	}
}

static int bench_check(struct bench *bench)
{
	static const struct {
		size_t first, last, factor;
	} defaults[] = {
		[MODE_LAT] = { 8, 32 << 10, 4 },       [MODE_BW] = { 64 << 10, 1 << 20, 4 },
		[MODE_IDLE] = { 4096, 4096, 2 },       [MODE_ALLREDUCE] = { 8, 16 << 20, 8 },
		[MODE_ALLTOALL] = { 64, 16 << 20, 8 }, [MODE_SOURCE] = { 65536, 65536, 2 },
		[MODE_SINK] = { 65536, 65536, 2 },
	};
	bool two = bench->mode == MODE_LAT || bench->mode == MODE_BW;

	if (bench->steps) {
		if (!two && bench->mode != MODE_ALLREDUCE && bench->mode != MODE_ALLTOALL)
			return bench_usage("--sizes goes with lat, bw, alltoall and allreduce",
					   NULL);
		if (bench->first_bytes != SIZE_MAX || bench->last_bytes != SIZE_MAX ||
		    bench->factor)
			return bench_usage("--sizes goes without -b, -e and -f", NULL);
		bench_sizes_range(bench);
	}
	if (bench->first_bytes == SIZE_MAX)
		bench->first_bytes = defaults[bench->mode].first;
	if (bench->last_bytes == SIZE_MAX)
		bench->last_bytes = bench->first_bytes > defaults[bench->mode].last
					    ? bench->first_bytes
					    : defaults[bench->mode].last;
	if (!bench->factor)
		bench->factor = defaults[bench->mode].factor;
	if (bench->mode > MODE_ALLREDUCE)
		bench->last_bytes = bench->first_bytes;
	if (bench->last_bytes < bench->first_bytes)
		return bench_usage("-e is smaller than -b", NULL);
	if (bench->first_bytes == 0 && bench->last_bytes > 0)
		return bench_usage("-b 0 has no next size: give -e 0 with it", NULL);
	if (bench->mode == MODE_ALLREDUCE && (bench->first_bytes % 4 || bench->first_bytes < 4))
		return bench_usage("allreduce: -b must be a multiple of 4 (float32)", NULL);
	if (bench->mode == MODE_ALLTOALL) {
		if (bench->options.ranks < 2)
			return bench_usage("alltoall needs --ranks 2 or more", NULL);
		bench->options.mesh = true;
		bench->options.channels *= bench->options.ranks - 1;
		if (bench->options.channels > NCCLPLAY_CHANNELS_MAX)
			return bench_usage("alltoall: fewer ranks or --channels", NULL);
	} else if (bench->mode != MODE_ALLREDUCE && bench->last_bytes > (size_t)64 << 20)
		return bench_usage("a message has at most 64M (NCCL's have 1M)", NULL);
	if (two && bench->options.ranks != 2)
		return bench_usage("lat and bw need --ranks 2", NULL);
	if (bench->options.ranks < 1 || bench->options.rank < 0)
		return bench_usage("--rank and --ranks are needed", NULL);
	if (bench->mode == MODE_IDLE)
		bench->options.timeout_s =
			(bench->options.timeout_s > 0 ? bench->options.timeout_s : 60) +
			bench->seconds;
	if (bench->options.ll && bench->mode != MODE_ALLREDUCE)
		return bench_usage("--ll goes with allreduce", NULL);
	bench_sizes_make(bench);
	return 0;
}

static int bench_parse(struct bench *bench, int argc, char **argv)
{
	static const char *const modes[] = { "lat",       "bw",     "idle", "alltoall",
					     "allreduce", "source", "sink" };
	int option, rc;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		fputs(usage, stdout);
		exit(0);
	}
	for (bench->mode = MODE_LAT; bench->mode <= MODE_SINK; bench->mode++)
		if (argc > 1 && !strcmp(argv[1], modes[bench->mode]))
			break;
	if (bench->mode > MODE_SINK)
		return bench_usage(argc > 1 ? "no such mode" : "a mode is needed",
				   argc > 1 ? argv[1] : NULL);
	optind = 2;
	while ((option = getopt_long(argc, argv, "b:e:f:n:w:", long_options, NULL)) != -1) {
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

static void bench_tick(void *arg, uint64_t moved)
{
	struct bench *bench = arg;

	report_event(bench, "progress", moved - bench->step_start);
	if (bench->tick_ms && bench->mode > MODE_ALLREDUCE)
		report_role(bench, "tick", "");
}

static struct ncclplay *bench_playing; /* for the signal handler */

static void bench_signal(int signal)
{
	(void)signal;
	/* It sets one lock-free flag. NOLINTNEXTLINE(bugprone-signal-handler) */
	ncclplay_interrupt(bench_playing);
}

atomic_bool bench_stop;

static void bench_stop_signal(int signal)
{
	(void)signal;
	atomic_store(&bench_stop, true);
}

static int bench_run(struct bench *bench)
{
	int rc = ncclplay_connect(bench->play);

	bench->results = open_memstream(&bench->results_text, &bench->results_len);
	if (!rc && !bench->results)
		rc = NCCLPLAY_PEER;
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
		.options = { .rank = -1, .channels = 1 },
		.first_bytes = SIZE_MAX,
		.last_bytes = SIZE_MAX,
		.warm = UINT64_MAX,
		.datacheck = true,
		.progress_fd = -1,
		.seconds = 60,
	};
	char error[NCCLPLAY_ERROR_BYTES];
	int rc, closed;

	rc = bench_parse(&bench, argc, argv);
	if (rc)
		return rc;
	signal(SIGPIPE, SIG_IGN);
	rc = ncclplay_open(&bench.options, &bench.play, error, sizeof(error));
	if (rc) {
		fprintf(stderr, "harp-bench: rank %d: %s\n", bench.options.rank, error);
		return rc;
	}
	bench_playing = bench.play;
	signal(SIGINT, bench_signal);
	signal(SIGTERM, bench_signal);
	signal(SIGUSR1, bench_stop_signal);
	bench.play->tick = bench_tick;
	bench.play->tick_ns = bench.tick_ms * 1000000;
	bench.play->tick_arg = &bench;
	if (bench.mode != MODE_ALLREDUCE && bench.mode != MODE_ALLTOALL &&
	    bench.last_bytes > bench.play->slot_bytes)
		bench.play->slot_bytes = (bench.last_bytes + 4095) / 4096 * 4096;
	rc = report_end(&bench, bench_run(&bench));
	report_event(&bench, "end", 0);
	bench.play->tick = NULL;
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	closed = ncclplay_close(bench.play);
	if (closed && !rc)
		fprintf(stderr, "harp-bench: rank %d: closing failed (%s)\n", bench.options.rank,
			closed == NCCLPLAY_HANG ? "the plugin does not return" : "plugin error");
	fflush(stdout);
	if (closed == NCCLPLAY_HANG)
		_exit(rc ? rc : closed); /* threads are inside the plugin */
	return rc ? rc : closed;
}
