/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - libnccl-profiler-harp.so: writes a job's network events to files, for `harpctl trace`.
 *
 * Theory of operation
 * -------------------
 * NCCL loads this library with NCCL_PROFILER_PLUGIN=harp. It is separate from the net plugin, so
 * that NCCL runs no profiler in jobs without a trace. Their interface is harp_profiler.h.
 *
 * HARP_TRACE names a directory. Each process writes one file there, HOST-PID.jsonl, with one JSON
 * object per line: the process, then a line for each message that is posted and for each that is
 * done. Each line is written immediately by one write(), which Linux appends atomically, so the
 * file of a hung or killed process shows the messages that it was waiting for. A file ends at
 * TRACE_BYTES_MAX.
 *
 * The trace begins with the first communicator and ends with the last.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harp_profiler.h"
#include "profiler/profiler_abi.h"

#define TRACE_BYTES_MAX (1ull << 30)
#define TRACE_LINE_BYTES 512u
#define TRACE_EXPORT __attribute__((visibility("default")))

/* A communicator, as NCCL's context. */
struct trace_comm {
	nccl_profiler_logger logger;
};

/* A message in progress, as NCCL's handle. */
struct trace_event {
	const struct harp_profiler_event
		*data; /* owned by the net plugin; valid until the event stops */
	uint64_t number;
};

static struct trace_event trace_other; /* handle of events that are not traced */

static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned trace_comms; /* under trace_lock */
static atomic_int trace_fd = -1;
static atomic_uint_fast64_t trace_events, trace_bytes;
static atomic_bool trace_ended; /* the file is full, or cannot be written */

static void trace_warn(nccl_profiler_logger logger, const char *path, const char *what, int error)
{
	if (logger)
		logger(NCCL_PROFILER_LOG_WARN, NCCL_PROFILER_SUBSYSTEM_INIT, __func__, __LINE__,
		       "PROFILER/HARP: %s: %s: %s; network events are not traced", path, what,
		       strerror(error));
}

__attribute__((format(printf, 1, 2))) static void trace_line(const char *format, ...)
{
	int fd = atomic_load_explicit(&trace_fd, memory_order_relaxed), length;
	char line[TRACE_LINE_BYTES];
	va_list args;

	if (fd < 0 || atomic_load_explicit(&trace_ended, memory_order_relaxed))
		return;
	va_start(args, format);
	length = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (length <= 0 || (size_t)length >= sizeof(line))
		return;
	if (atomic_fetch_add(&trace_bytes, (uint64_t)length) + (uint64_t)length > TRACE_BYTES_MAX ||
	    write(fd, line, (size_t)length) != length)
		atomic_store(&trace_ended, true);
}

static uint64_t trace_clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Control characters are left out. */
static void trace_word(char *text)
{
	char *out = text;

	for (; *text; text++)
		if ((unsigned char)*text >= ' ' && (unsigned char)*text < 127 && *text != '"' &&
		    *text != '\\')
			*out++ = *text;
	*out = '\0';
}

/* trace_lock held. */
static void trace_open(const char *directory, nccl_profiler_logger logger)
{
	char host[HOST_NAME_MAX + 1] = "", path[PATH_MAX], program[64];
	int fd;

	gethostname(host, sizeof(host) - 1);
	trace_word(host);
	snprintf(program, sizeof(program), "%s", program_invocation_short_name);
	trace_word(program);
	if (snprintf(path, sizeof(path), "%s/%s-%d.jsonl", directory, host, (int)getpid()) >=
	    (int)sizeof(path)) {
		trace_warn(logger, "HARP_TRACE", "too long", ENAMETOOLONG);
		return;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		trace_warn(logger, path, "the trace cannot be created", errno);
		return;
	}
	atomic_store(&trace_ended, false);
	atomic_store(&trace_fd, fd);
	/* Both clocks: events use the monotonic one; the other aligns the traces of several
	 * hosts. */
	trace_line("{\"harp_trace\": 1, \"host\": \"%s\", \"pid\": %d, \"program\": \"%s\", "
		   "\"wall_ns\": %" PRIu64 ", \"monotonic_ns\": %" PRIu64 "}\n",
		   host, (int)getpid(), program, trace_clock_ns(CLOCK_REALTIME),
		   trace_clock_ns(CLOCK_MONOTONIC));
	if (logger)
		logger(NCCL_PROFILER_LOG_INFO, NCCL_PROFILER_SUBSYSTEM_INIT, __func__, __LINE__,
		       "PROFILER/HARP: network events are traced to %s", path);
}

/* ---- communicators --------------------------------------------------------------------------- */

static int trace_init(void **context, int *mask, nccl_profiler_logger logger)
{
	const char *directory = getenv("HARP_TRACE");
	struct trace_comm *comm = calloc(1, sizeof(*comm));

	*mask = 0;
	*context = comm;
	if (!comm)
		return 0;
	comm->logger = logger;
	pthread_mutex_lock(&trace_lock);
	if (trace_comms++ == 0) {
		if (directory && directory[0])
			trace_open(directory, logger);
		else if (logger)
			logger(NCCL_PROFILER_LOG_WARN, NCCL_PROFILER_SUBSYSTEM_INIT, __func__,
			       __LINE__,
			       "PROFILER/HARP: HARP_TRACE is not set: network events are not "
			       "traced; set it to a directory");
	}
	if (atomic_load(&trace_fd) >= 0)
		*mask = NCCL_PROFILE_NET_PLUGIN;
	pthread_mutex_unlock(&trace_lock);
	return 0;
}

static int trace_init_v3(void **context, int *mask)
{
	return trace_init(context, mask, NULL);
}

static int trace_init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash,
			 int nodes, int ranks, int rank, nccl_profiler_logger logger)
{
	(void)comm_name;
	(void)comm_hash;
	(void)nodes;
	(void)ranks;
	(void)rank;
	return trace_init(context, mask, logger);
}

static int trace_init_v5(void **context, uint64_t comm_id, int *mask, const char *comm_name,
			 int nodes, int ranks, int rank, nccl_profiler_logger logger)
{
	return trace_init_v4(context, mask, comm_name, comm_id, nodes, ranks, rank, logger);
}

static int trace_finalize(void *context)
{
	struct trace_comm *comm = context;

	if (!comm)
		return 0;
	pthread_mutex_lock(&trace_lock);
	if (--trace_comms == 0 && atomic_load(&trace_fd) >= 0) {
		if (atomic_load(&trace_ended))
			trace_warn(comm->logger, "HARP_TRACE", "the trace is not complete", EFBIG);
		close(atomic_exchange(&trace_fd, -1));
	}
	pthread_mutex_unlock(&trace_lock);
	free(comm);
	return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void trace_peer(const struct harp_profiler_event *data, char *out, size_t len)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	bool is_v4 = !memcmp(data->remote_addr, mapped, sizeof(mapped));
	char text[INET6_ADDRSTRLEN] = "";

	inet_ntop(is_v4 ? AF_INET : AF_INET6, data->remote_addr + (is_v4 ? 12 : 0), text,
		  sizeof(text));
	snprintf(out, len, is_v4 ? "%s:%u" : "[%s]:%u", text, data->remote_port);
}

static int trace_start(void *context, void **handle, struct nccl_profiler_descr *descr)
{
	const struct harp_profiler_event *data = descr->net_plugin.data;
	char peer[INET6_ADDRSTRLEN + 8];
	struct trace_event *event;

	(void)context;
	/* Parents of the net plugin's events. NCCL 2.27 crashes if an event's parents have no
	 * handle. */
	*handle = &trace_other;
	if (descr->type != NCCL_PROFILE_NET_PLUGIN)
		return 0;
	*handle = NULL;
	/* Another net plugin's event. */
	if (descr->net_plugin.id != HARP_PROFILER_PLUGIN_ID || !data || data->size < sizeof(*data))
		return 0;
	event = malloc(sizeof(*event));
	if (!event)
		return 0;
	*event = (struct trace_event){ .data = data, .number = atomic_fetch_add(&trace_events, 1) };
	trace_peer(data, peer, sizeof(peer));
	trace_line("{\"start\": %" PRIu64 ", \"rank\": %d, \"direction\": \"%s\", "
		   "\"comm\": \"%016" PRIx64 "\", \"message\": %" PRIu64 ", \"peer\": \"%s\", "
		   "\"bytes\": %" PRIu64 ", \"ns\": %" PRIu64 "}\n",
		   event->number, descr->rank,
		   data->direction == HARP_PROFILER_SEND ? "send" : "receive", data->comm,
		   data->message, peer, data->bytes, data->posted_ns);
	*handle = event;
	return 0;
}

static int trace_stop(void *handle)
{
	struct trace_event *event = handle;

	if (!event || event == &trace_other)
		return 0;
	trace_line("{\"end\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"ns\": %" PRIu64
		   ", \"wait_ns\": %" PRIu64 ", \"rtt_ns\": %" PRIu64 ", \"retransmits\": %" PRIu64
		   ", \"lane_kinds\": %u, \"error\": %d}\n",
		   event->number, event->data->bytes, event->data->done_ns, event->data->wait_ns,
		   event->data->rtt_ns, event->data->retransmits, event->data->lane_kinds,
		   event->data->error);
	free(event);
	return 0;
}

/* The data is read when the event stops. */
static int trace_record(void *handle, int state, void *args)
{
	(void)handle;
	(void)state;
	(void)args;
	return 0;
}

/* ---- the tables ------------------------------------------------------------------------------ */

#define TRACE_TABLE(version, form)                                                                 \
	TRACE_EXPORT extern const struct nccl_profiler_##form ncclProfiler_##version;              \
	const struct nccl_profiler_##form ncclProfiler_##version = {                               \
		.name = "HARP",                                                                    \
		.init = trace_init_##form,                                                         \
		.start_event = trace_start,                                                        \
		.stop_event = trace_stop,                                                          \
		.record_event_state = trace_record,                                                \
		.finalize = trace_finalize,                                                        \
	}
TRACE_TABLE(v3, v3);
TRACE_TABLE(v4, v4);
TRACE_TABLE(v5, v5);
TRACE_TABLE(v6, v5);
TRACE_TABLE(v7, v5);
