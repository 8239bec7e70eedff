/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - what harp-bench prints: a JSON document, progress events, lines of source and sink.
 *
 * Units are in the names: us, GB/s (1e9 bytes).
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#ifndef HARP_VERSION
#define HARP_VERSION "unknown"
#endif

static const char *const mode_names[] = {
	[MODE_LAT] = "lat",           [MODE_BW] = "bw",     [MODE_ALLREDUCE] = "allreduce",
	[MODE_ALLTOALL] = "alltoall", [MODE_IDLE] = "idle", [MODE_SOURCE] = "source",
	[MODE_SINK] = "sink",
};

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

/* bytes in ns, as GB/s. */
static double report_gbps(double bytes, uint64_t ns)
{
	return ns ? bytes / (double)ns : 0;
}

static void report_comma(struct bench *bench)
{
	fflush(bench->results);
	if (bench->results_len)
		fputs(",", bench->results);
}

static void report_summary(FILE *f, const struct samples_summary *s)
{
	fprintf(f,
		"{\"count\":%llu,\"min_us\":%.3f,\"p50_us\":%.3f,\"p90_us\":%.3f,\"p99_us\":%.3f,"
		"\"p99_9_us\":%.3f,\"max_us\":%.3f,\"mean_us\":%.3f}",
		(unsigned long long)s->count, s->min_us, s->p50_us, s->p90_us, s->p99_us,
		s->p999_us, s->max_us, s->mean_us);
}

void report_lat(struct bench *bench, size_t bytes, const struct samples_summary *s, uint64_t wrong)
{
	report_comma(bench);
	fprintf(bench->results, "{\"size_bytes\":%zu,\"half_round_trip\":", bytes);
	report_summary(bench->results, s);
	fprintf(bench->results, ",\"wrong\":%llu}", (unsigned long long)wrong);
}

void report_bw(struct bench *bench, size_t bytes, uint64_t messages, const struct bench_rank *ranks)
{
	uint64_t window_ns = ranks[1].end_ns - ranks[1].start_ns;

	report_comma(bench);
	fprintf(bench->results,
		"{\"size_bytes\":%zu,\"messages\":%llu,\"window_us\":%.3f,\"rate_gb_per_s\":%.4f,"
		"\"wrong\":%llu}",
		bytes, (unsigned long long)messages, report_us(window_ns),
		report_gbps((double)messages * (double)bytes, window_ns),
		(unsigned long long)(ranks[0].wrong + ranks[1].wrong));
}

void report_alltoall(struct bench *bench, size_t bytes, uint64_t iterations,
		     const struct bench_rank *ranks)
{
	int n = bench->options.ranks;
	uint64_t wrong = 0, time_ns = 0;
	double algbw, busbw;

	for (int r = 0; r < n; r++) {
		wrong += ranks[r].wrong;
		time_ns += ranks[r].time_ns / (uint64_t)n;
	}
	algbw = report_gbps((double)bytes, time_ns);
	busbw = algbw * (n - 1) / n;
	report_comma(bench);
	fprintf(bench->results,
		"{\"size_bytes\":%zu,\"iterations\":%llu,\"time_us\":%.3f,\"algbw_gb_per_s\":%.4f,"
		"\"busbw_gb_per_s\":%.4f,\"wrong\":%llu}",
		bytes, (unsigned long long)iterations, report_us(time_ns), algbw, busbw,
		(unsigned long long)wrong);
}

void report_allreduce(struct bench *bench, size_t bytes, uint64_t iterations,
		      const struct bench_rank *ranks, const struct samples_summary *s)
{
	int n = bench->options.ranks;
	uint64_t wrong = 0, time_ns = 0;
	double algbw, busbw;

	for (int r = 0; r < n; r++) {
		wrong += ranks[r].wrong;
		time_ns += ranks[r].time_ns;
	}
	time_ns /= (uint64_t)n;
	algbw = report_gbps((double)bytes, time_ns);
	busbw = algbw * 2.0 * (n - 1) / n;
	report_comma(bench);
	fprintf(bench->results,
		"{\"size_bytes\":%zu,\"count\":%zu,\"type\":\"float\",\"redop\":\"sum\","
		"\"iterations\":%llu,\"time_us\":%.3f,\"algbw_gb_per_s\":%.4f,"
		"\"busbw_gb_per_s\":%.4f,\"wrong\":%llu,\"iteration\":",
		bytes, bytes / sizeof(float), (unsigned long long)iterations, report_us(time_ns),
		algbw, busbw, (unsigned long long)wrong);
	report_summary(bench->results, s);
	fputs("}", bench->results);
}

/* Of a core. */
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

static void report_json(struct bench *bench, int rc)
{
	struct ncclplay_properties p;
	struct ncclplay_stats s;

	ncclplay_properties(bench->play, &p);
	ncclplay_stats(bench->play, &s);
	fflush(bench->results);
	printf("{\"tool\":\"harp-bench\",\"version\":\"%s\",\"mode\":\"%s\",\"ok\":%s,\"exit\":%d,",
	       HARP_VERSION, mode_names[bench->mode], rc ? "false" : "true", rc);
	fputs("\"error\":", stdout);
	json_string(stdout, rc == NCCLPLAY_WRONG && !*ncclplay_error(bench->play)
				    ? "data arrived wrong"
				    : ncclplay_error(bench->play));
	fputs(",\"net\":", stdout);
	json_string(stdout, p.net);
	fputs(",\"plugin\":", stdout);
	json_string(stdout, p.path);
	fputs(",\"device\":", stdout);
	json_string(stdout, p.dev);
	printf(",\"abi\":%d,\"speed_mbps\":%d,\"ranks\":%d,\"channels\":%d,\"protocol\":\"%s\","
	       "\"datacheck\":%s,\"connect_us\":%.3f,\"results\":[%s],",
	       p.abi, p.speed_mbps, bench->options.ranks, bench->options.channels,
	       bench->options.ll ? "LL" : "Simple", bench->datacheck ? "true" : "false",
	       (double)bench->play->connect_ns / 1e3,
	       bench->results_text ? bench->results_text : "");
	printf("\"rank0\":{\"sent_bytes\":%llu,\"sent_messages\":%llu,\"received_bytes\":%llu,"
	       "\"received_messages\":%llu},\"wrong\":%llu,\"log\":[",
	       (unsigned long long)s.sent_bytes, (unsigned long long)s.sent_messages,
	       (unsigned long long)s.received_bytes, (unsigned long long)s.received_messages,
	       (unsigned long long)bench->wrong);
	{
		char text[NCCLPLAY_ERROR_BYTES];
		uint64_t cursor = 0;
		bool more = false;
		int level;

		while ((level = ncclplay_log_next(&cursor, text, sizeof(text))) != 0) {
			printf("%s{\"level\":\"%s\",\"text\":", more ? "," : "",
			       level == 2 ? "WARN" : "INFO");
			json_string(stdout, text);
			fputs("}", stdout);
			more = true;
		}
	}
	fputs("]}\n", stdout);
}

int report_end(struct bench *bench, int rc)
{
	if (!rc && bench->wrong)
		rc = NCCLPLAY_WRONG;
	if (rc)
		fprintf(stderr, "harp-bench: rank %d: %s\n", bench->options.rank,
			*ncclplay_error(bench->play) ? ncclplay_error(bench->play)
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

void report_event(struct bench *bench, const char *event, uint64_t done)
{
	char line[256];
	int n;

	if (bench->progress_fd < 0)
		return;
	n = snprintf(line, sizeof(line),
		     "{\"event\":\"%s\",\"rank\":%d,\"step\":%zu,\"steps\":%zu,\"size_bytes\":%zu,"
		     "\"done\":%llu,\"total\":%llu}\n",
		     event, bench->options.rank, bench->step, bench->steps, bench->step_bytes,
		     (unsigned long long)done, (unsigned long long)bench->step_total);
	if (write(bench->progress_fd, line, (size_t)n) < 0)
		bench->progress_fd = -1; /* the reader is gone: measure on */
}

void report_role(struct bench *bench, const char *event, const char *extra)
{
	struct ncclplay_stats s;

	ncclplay_stats(bench->play, &s);
	printf("{\"event\":\"%s\",\"rank\":%d,\"pid\":%d,\"at_ns\":%llu,\"received_messages\":%llu,"
	       "\"sent_messages\":%llu,\"received_bytes\":%llu,\"sent_bytes\":%llu%s",
	       event, bench->options.rank, (int)getpid(), (unsigned long long)play_now_ns(),
	       (unsigned long long)s.received_messages, (unsigned long long)s.sent_messages,
	       (unsigned long long)s.received_bytes, (unsigned long long)s.sent_bytes, extra);
	if (*ncclplay_error(bench->play)) {
		int nccl = ncclplay_error_nccl(bench->play);

		printf(",\"nccl\":%d,\"result\":\"%s\",\"text\":", nccl, net_result_name(nccl));
		json_string(stdout, ncclplay_error(bench->play));
	}
	printf("}\n");
	fflush(stdout);
}
