/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the JSON output of harp-bench: a document, or lines of source and sink.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static void json_string(FILE *f, const char *text)
{
	fputc('"', f);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

static double report_us(uint64_t ns)
{
	return (double)ns / 1e3;
}

static void report_comma(struct bench *bench)
{
	fflush(bench->results);
	if (bench->results_len)
		fputs(",", bench->results);
}

void report_lat(struct bench *bench, const struct bench_size *size, uint64_t median_ns,
		uint64_t p99_ns, uint64_t wrong)
{
	report_comma(bench);
	fprintf(bench->results,
		"{\"size_bytes\":%zu,\"messages\":%llu,\"half_round_trip_us\":%.3f,\"p99_us\":%.3f,"
		"\"wrong\":%llu}",
		size->bytes, (unsigned long long)size->messages, report_us(median_ns),
		report_us(p99_ns), (unsigned long long)wrong);
}

void report_bw(struct bench *bench, size_t bytes, uint64_t messages, const struct bench_rank *ranks)
{
	report_comma(bench);
	fprintf(bench->results,
		"{\"size_bytes\":%zu,\"messages\":%llu,\"window_us\":%.3f,\"wrong\":%llu}", bytes,
		(unsigned long long)messages, report_us(ranks[1].end_ns - ranks[1].start_ns),
		(unsigned long long)(ranks[0].wrong + ranks[1].wrong));
}

void report_collective(struct bench *bench, const struct bench_size *size,
		       const struct bench_rank *ranks, uint64_t median_ns)
{
	uint64_t wrong = 0, time_ns = 0;

	for (int r = 0; r < bench->options.ranks; r++) {
		wrong += ranks[r].wrong;
		time_ns += ranks[r].time_ns;
	}
	report_comma(bench);
	fprintf(bench->results,
		"{\"size_bytes\":%zu,\"iterations\":%llu,\"time_us\":%.3f,\"iteration_us\":%.3f,"
		"\"wrong\":%llu}",
		size->bytes, (unsigned long long)size->messages,
		report_us(time_ns / (uint64_t)bench->options.ranks), report_us(median_ns),
		(unsigned long long)wrong);
}

/* In percent of a core. */
static double report_percent(uint64_t cpu_ns, const struct bench_wait *wait)
{
	return 1e2 * (double)cpu_ns / (double)wait->time_ns;
}

static double report_wakes(const struct bench_wait *wait)
{
	return 1e9 * (double)wait->wakes / (double)wait->time_ns;
}

void report_idle(struct bench *bench, int rank, const struct bench_idle *idle)
{
	const struct bench_wait *asleep = &idle->asleep, *waiting = &idle->waiting;
	double asleep_cpu = report_percent(asleep->cpu_ns, asleep);
	double waiting_cpu = report_percent(waiting->cpu_ns - waiting->polling_cpu_ns, waiting);
	double polling_cpu = report_percent(waiting->polling_cpu_ns, waiting);

	report_comma(bench);
	fprintf(bench->results,
		"{\"rank\":%d,\"seconds\":%.3f,\"asleep_cpu_percent\":%.4f,"
		"\"asleep_wakes_per_s\":%.1f,\"waiting_cpu_percent\":%.4f,"
		"\"waiting_wakes_per_s\":%.1f,\"polling_cpu_percent\":%.4f}",
		rank, bench->seconds, asleep_cpu, report_wakes(asleep), waiting_cpu,
		report_wakes(waiting), polling_cpu);
}

static void report_log(void)
{
	char text[PLAY_ERROR_BYTES];
	const char *comma = "";
	uint64_t cursor = 0;
	int level;

	while ((level = log_next(&cursor, text, sizeof(text))) != 0) {
		printf("%s{\"level\":\"%s\",\"text\":", comma, level == 2 ? "WARN" : "INFO");
		json_string(stdout, text);
		fputs("}", stdout);
		comma = ",";
	}
}

/* The error of this rank, or "". */
static const char *report_error(const struct bench *bench)
{
	return atomic_load(&bench->play->failed) ? bench->play->error : "";
}

static void report_json(struct bench *bench, int rc)
{
	const struct play *play = bench->play;

	fflush(bench->results);
	printf("{\"mode\":\"%s\",\"ok\":%s,\"exit\":%d,\"error\":", bench_modes[bench->mode],
	       rc ? "false" : "true", rc);
	json_string(stdout, rc == PLAY_WRONG && !*report_error(bench) ? "data arrived wrong"
								      : report_error(bench));
	fputs(",\"net\":", stdout);
	json_string(stdout, play->net.table->name);
	fputs(",\"device\":", stdout);
	json_string(stdout, play->device);
	printf(",\"ranks\":%d,\"channels\":%d,\"connect_us\":%.3f,\"results\":[%s],"
	       "\"sent_messages\":%llu,\"wrong\":%llu,\"log\":[",
	       bench->options.ranks, bench->options.channels, report_us(play->connect_ns),
	       bench->results_text ? bench->results_text : "",
	       (unsigned long long)atomic_load(&play->stats.sent_messages),
	       (unsigned long long)bench->wrong);
	report_log();
	fputs("]}\n", stdout);
}

int report_end(struct bench *bench, int rc)
{
	if (!rc && bench->wrong)
		rc = PLAY_WRONG;
	if (rc)
		fprintf(stderr, "harp-bench: rank %d: %s\n", bench->options.rank,
			*report_error(bench) ? report_error(bench)
					     : "data arrived wrong (#wrong is not 0)");
	if (bench->options.rank == 0 && bench->mode <= MODE_ALLREDUCE) {
		report_json(bench, rc);
		fflush(stdout);
	}
	if (bench->results)
		fclose(bench->results);
	free(bench->results_text);
	bench->results = NULL;
	return rc;
}

void report_role(struct bench *bench, const char *event, const char *extra)
{
	struct play *play = bench->play;

	printf("{\"event\":\"%s\",\"rank\":%d,\"pid\":%d,\"at_ns\":%llu,\"received_messages\":%llu,"
	       "\"sent_messages\":%llu,\"received_bytes\":%llu,\"sent_bytes\":%llu%s",
	       event, bench->options.rank, (int)getpid(), (unsigned long long)play_now_ns(),
	       (unsigned long long)atomic_load(&play->stats.received_messages),
	       (unsigned long long)atomic_load(&play->stats.sent_messages),
	       (unsigned long long)atomic_load(&play->stats.received_bytes),
	       (unsigned long long)atomic_load(&play->stats.sent_bytes), extra);
	if (*report_error(bench)) {
		printf(",\"nccl\":%d,\"result\":\"%s\",\"text\":", play->failed_nccl,
		       net_result_name(play->failed_nccl));
		json_string(stdout, play->error);
	}
	printf("}\n");
	fflush(stdout);
}
