/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.c - harp-nccl-rank: one rank of NVIDIA's NCCL on an emulated GPU.
 *
 *     harp-nccl-rank LIBNCCL LAYOUT
 *
 * Reads one command per line from stdin, and answers each with a line of JSON on stdout. The output
 * of NCCL and the plugin goes to stderr. The process exits at the end of stdin. COMM is a number
 * below 8, OP a name of operation.c.
 *
 *     id                         creates a unique id                    {"id": hex}
 *     init COMM ID RANKS RANK    ncclCommInitRank()                     {"ms": ...}
 *     split COMM NEW COLOR KEY   ncclCommSplit()                        {"rank":, "ranks":}
 *     start COMM OP BYTES        starts an operation without waiting    {"bytes": ...}
 *     finish COMM [MS]           waits at most MS, checks the result    {"ms":, "wrong": bytes}
 *     time COMM OP BYTES TIMES   runs OP TIMES times, back to back      {"us": of each}
 *     abort COMM                 ncclCommAbort()                        {"ms": ...}
 *     destroy COMM               ncclCommFinalize(), ncclCommDestroy()  {"ms": ...}
 *     status                     counts threads and descriptors         {"threads":, "fds":}
 *
 * Every answer has "ok". If it is false, "error" has NCCL's error text.
 */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"
#include "operation.h"

enum { RANK_COMMS_MAX = 8, RANK_LINE_BYTES = 1024, RANK_POLL_MS = 2 };

struct rank_comm {
	nccl_comm handle;
	int rank, nranks;
	struct stream *stream;
	struct operation operation; /* the started operation; kind NULL: none */
	unsigned seed;
	double start_s;
};

static struct nccl nccl;
static struct rank_comm rank_comms[RANK_COMMS_MAX];
static FILE *rank_answers; /* the original stdout */

/* ---- answers --------------------------------------------------------------------------------- */

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Prints a successful answer; `format` has its other members. */
__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...)
{
	va_list args;

	fprintf(rank_answers, "{\"ok\": true, ");
	va_start(args, format);
	vfprintf(rank_answers, format, args);
	va_end(args);
	fprintf(rank_answers, "}\n");
	fflush(rank_answers);
}

static void answer_text(const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', rank_answers);
		fputc((unsigned char)*text < ' ' ? ' ' : *text, rank_answers);
	}
}

static void answer_error(const char *what, int result, nccl_comm comm, double since_s)
{
	fprintf(rank_answers, "{\"ok\": false, \"ms\": %.3f, \"error\": \"",
		(now_s() - since_s) * 1e3);
	answer_text(what);
	answer_text(": ");
	answer_text(nccl.GetErrorString(result));
	fputs("\", \"last_error\": \"", rank_answers);
	answer_text(nccl.GetLastError(comm));
	fprintf(rank_answers, "\"}\n");
	fflush(rank_answers);
}

/* ---- commands -------------------------------------------------------------------------------- */

static struct rank_comm *parse_comm(const char *text)
{
	char *end;
	unsigned long index = text ? strtoul(text, &end, 10) : RANK_COMMS_MAX;

	if (index >= RANK_COMMS_MAX || *end)
		emulation_fail("'%s' is not a communicator from 0 to %d", text ? text : "",
			       RANK_COMMS_MAX - 1);
	return &rank_comms[index];
}

static size_t parse_number(const char *text)
{
	char *end;
	unsigned long long value = text ? strtoull(text, &end, 10) : 0;

	if (!text || end == text || *end)
		emulation_fail("'%s' is not a number", text ? text : "");
	return value;
}

static void command_id(char **args)
{
	struct nccl_id id;
	char hex[2 * NCCL_ID_BYTES + 1];
	int result = nccl.GetUniqueId(&id);

	(void)args;
	if (result) {
		answer_error("ncclGetUniqueId", result, NULL, now_s());
		return;
	}
	for (size_t i = 0; i < NCCL_ID_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", (unsigned char)id.bytes[i]);
	answer("\"id\": \"%s\"", hex);
}

static void comm_init(struct rank_comm *comm)
{
	nccl.CommUserRank(comm->handle, &comm->rank);
	nccl.CommCount(comm->handle, &comm->nranks);
	comm->stream = stream_open();
}

static void command_init(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]);
	double start_s = now_s();
	struct nccl_id id;
	unsigned byte;
	int result;

	for (size_t i = 0; i < NCCL_ID_BYTES; i++) {
		if (!args[1] || sscanf(args[1] + 2 * i, "%2x", &byte) != 1)
			emulation_fail("'%s' is not a unique id", args[1] ? args[1] : "");
		id.bytes[i] = (char)byte;
	}
	result = nccl.CommInitRank(&comm->handle, (int)parse_number(args[2]), id,
				   (int)parse_number(args[3]));
	if (result) {
		comm->handle = NULL;
		answer_error("ncclCommInitRank", result, NULL, start_s);
		return;
	}
	comm_init(comm);
	answer("\"ms\": %.3f", (now_s() - start_s) * 1e3);
}

static void command_split(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]), *child = parse_comm(args[1]);
	double start_s = now_s();
	int result = nccl.CommSplit(comm->handle, (int)parse_number(args[2]),
				    (int)parse_number(args[3]), &child->handle, NULL);

	if (result) {
		answer_error("ncclCommSplit", result, comm->handle, start_s);
		return;
	}
	comm_init(child);
	answer("\"rank\": %d, \"ranks\": %d", child->rank, child->nranks);
}

/*
 * Waits for the work on the comm's stream. Returns 0, the comm's error, or ncclInProgress after
 * limit_ms (0: no limit).
 */
static int comm_wait(struct rank_comm *comm, size_t limit_ms)
{
	double end_s = now_s() + (double)limit_ms * 1e-3;
	int error = 0;

	while (!stream_wait(comm->stream, RANK_POLL_MS)) {
		int result = nccl.CommGetAsyncError(comm->handle, &error);

		if (result || error)
			return result ? result : error;
		if (limit_ms && now_s() > end_s)
			return NCCL_IN_PROGRESS;
	}
	return 0;
}

static void command_start(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]);
	int result;

	if (!comm->handle || comm->operation.kind)
		emulation_fail("comm %s is not open or is busy", args[0]);
	if (!args[1] || !operation_open(&comm->operation, args[1], parse_number(args[2]),
					comm->rank, comm->nranks))
		emulation_fail("'%s' is not an operation", args[1] ? args[1] : "");
	operation_fill(&comm->operation, ++comm->seed);
	comm->start_s = now_s();
	result = operation_start(&comm->operation, &nccl, comm->handle, comm->stream);
	if (result)
		answer_error(args[1], result, comm->handle, comm->start_s);
	else
		answer("\"bytes\": %zu", comm->operation.bytes);
}

static void command_finish(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]);
	double end_s;
	int result;

	if (!comm->handle || !comm->operation.kind)
		emulation_fail("comm %s has no operation", args[0]);
	result = comm_wait(comm, args[1] ? parse_number(args[1]) : 0);
	end_s = now_s();
	/* The kernel still uses the buffers of a failed operation, so they are not freed. */
	if (result) {
		answer_error("ncclCommGetAsyncError", result, comm->handle, comm->start_s);
		return;
	}
	answer("\"ms\": %.3f, \"wrong\": %zu", (end_s - comm->start_s) * 1e3,
	       operation_count_wrong(&comm->operation, comm->seed));
	operation_close(&comm->operation);
	comm->operation.kind = NULL;
}

static void command_time(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]);
	size_t times = parse_number(args[3]);
	struct operation operation;
	double start_s;
	int result = 0;

	if (!comm->handle ||
	    !operation_open(&operation, args[1], parse_number(args[2]), comm->rank, comm->nranks))
		emulation_fail("comm %s is not open, or '%s' is not an operation", args[0],
			       args[1]);
	operation_fill(&operation, 0);
	start_s = now_s();
	for (size_t i = 0; i < times && !result; i++)
		result = operation_start(&operation, &nccl, comm->handle, comm->stream);
	if (!result)
		result = comm_wait(comm, 0);
	if (result)
		answer_error(args[1], result, comm->handle, start_s);
	else
		answer("\"us\": %.3f, \"bytes\": %zu", (now_s() - start_s) * 1e6 / (double)times,
		       operation.bytes);
	if (!result)
		operation_close(&operation);
}

static void comm_destroy(struct rank_comm *comm)
{
	stream_close(comm->stream);
	if (comm->operation.kind) {
		stream_synchronize(comm->stream);
		operation_close(&comm->operation);
	}
	*comm = (struct rank_comm){ 0 };
}

static void command_abort(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]);
	double start_s = now_s();
	int result = nccl.CommAbort(comm->handle);

	if (result) {
		answer_error("ncclCommAbort", result, NULL, start_s);
		return;
	}
	answer("\"ms\": %.3f", (now_s() - start_s) * 1e3);
	comm_destroy(comm);
}

static void command_destroy(char **args)
{
	struct rank_comm *comm = parse_comm(args[0]);
	double start_s = now_s();
	int result = nccl.CommFinalize(comm->handle);

	if (!result)
		result = nccl.CommDestroy(comm->handle);
	if (result) {
		answer_error("ncclCommDestroy", result, NULL, start_s);
		return;
	}
	answer("\"ms\": %.3f", (now_s() - start_s) * 1e3);
	comm_destroy(comm);
}

static unsigned count_entries(const char *path)
{
	unsigned count = 0;
	DIR *dir = opendir(path);

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		count += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return count;
}

static void command_status(char **args)
{
	(void)args;
	answer("\"threads\": %u, \"fds\": %u", count_entries("/proc/self/task"),
	       count_entries("/proc/self/fd"));
}

static const struct command {
	const char *name;
	void (*run)(char **args);
} commands[] = {
	{ "id", command_id },       { "init", command_init },       { "split", command_split },
	{ "start", command_start }, { "finish", command_finish },   { "time", command_time },
	{ "abort", command_abort }, { "destroy", command_destroy }, { "status", command_status },
};

static void command_run(char *line)
{
	enum { ARGS_MAX = 4 };
	char *args[ARGS_MAX + 1] = { 0 }, *state, *name = strtok_r(line, " \n", &state);

	if (!name)
		return;
	for (int i = 0; i < ARGS_MAX; i++)
		args[i] = strtok_r(NULL, " \n", &state);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(commands[i].name, name)) {
			commands[i].run(args);
			return;
		}
	emulation_fail("'%s' is not a command", name);
}

/* ---- main ------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
	char line[RANK_LINE_BYTES];
	int answers;

	if (argc != 3) {
		fprintf(stderr, "usage: harp-nccl-rank LIBNCCL LAYOUT\n");
		return 2;
	}
	/* NCCL logs to stdout: redirect it to stderr. */
	answers = dup(STDOUT_FILENO);
	rank_answers = answers < 0 ? NULL : fdopen(answers, "w");
	if (!rank_answers || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		emulation_fail("stdout: %s", strerror(errno));
	setvbuf(stdout, NULL, _IOLBF, 0);
	library_open(argv[1]);
	layout_load(argv[2]);
#define X(name, result, arguments) nccl.name = (result(*) arguments)library_function("nccl" #name);
	NCCL_FUNCTIONS(X)
#undef X
	answer("\"version\": %d", library_version());
	while (fgets(line, sizeof(line), stdin))
		command_run(line);
	return 0;
}
