/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eal_log.c - passes DPDK's log messages, line by line, to the caller's log function instead of the
 * process's output.
 *
 * DPDK logs to a stream that can be replaced. Some of its start code also prints to stdout and
 * stderr. In glibc these are variables, so this code replaces them during the start; output of
 * other threads passes to the original stream. Drivers log each lost packet in the polling thread,
 * so this code limits the number of lines and counts the dropped ones.
 */
#include "dpdk/eal_log.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <rte_interrupts.h>
#include <rte_log.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define EAL_LINE_BYTES 512
#define EAL_LINES_MAX 10u /* lines passed on per window */
#define EAL_WINDOW_NS 10000000000u

static struct {
	pthread_mutex_t lock;
	char line[EAL_LINE_BYTES]; /* incomplete line */
	size_t used;
	uint64_t window_ns;       /* start of the window */
	uint64_t passed, dropped; /* lines in the window */
	bool has_error;           /* text[] belongs to an error */
	char text[EAL_TEXT_BYTES];
	FILE *log_stream, *out_stream, *err_stream, *out_before, *err_before;
	void (*leaving)(void), (*ended)(void);
	pthread_t quiet; /* the thread whose output is captured */
} eal_log = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The log function. Its lock is held during calls, and recursive, because the function may cause
 * log messages. */
static struct {
	pthread_mutex_t lock;
	harp_log_fn log;
	void *ctx;
} eal_log_sink = { .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP };

static __thread bool eal_log_in_sink;

void eal_log_to(harp_log_fn log, void *ctx)
{
	pthread_mutex_lock(&eal_log_sink.lock);
	eal_log_sink.log = log;
	eal_log_sink.ctx = ctx;
	pthread_mutex_unlock(&eal_log_sink.lock);
}

static enum harp_log_level eal_log_level(void)
{
	switch (rte_log_cur_msg_loglevel()) {
	case RTE_LOG_EMERG:
	case RTE_LOG_ALERT:
	case RTE_LOG_CRIT:
	case RTE_LOG_ERR:
		return HARP_LOG_ERROR;
	case RTE_LOG_WARNING:
		return HARP_LOG_WARN;
	default:
		return HARP_LOG_DEBUG;
	}
}

/* Calls the log function without the lock, because it may print, and this thread's output is
 * captured. */
static void eal_log_emit(enum harp_log_level level, const char *line)
{
	pthread_mutex_unlock(&eal_log.lock);
	pthread_mutex_lock(&eal_log_sink.lock);
	eal_log_in_sink = true;
	if (eal_log_sink.log)
		eal_log_sink.log(eal_log_sink.ctx, level, line);
	eal_log_in_sink = false;
	pthread_mutex_unlock(&eal_log_sink.lock);
	pthread_mutex_lock(&eal_log.lock);
}

/* Starts a window; reports how many lines the last one dropped. Under the lock. */
static void eal_log_window(uint64_t now_ns)
{
	uint64_t dropped = eal_log.dropped;
	char line[96];

	eal_log.window_ns = now_ns;
	eal_log.passed = eal_log.dropped = 0;
	if (dropped == 0)
		return;
	snprintf(line, sizeof(line), "%" PRIu64 " more lines of DPDK were dropped", dropped);
	eal_log_emit(HARP_LOG_INFO, line);
}

/* Handles a line that may occur for every packet. Under the lock. */
static void eal_log_limited(const char *line)
{
	uint64_t now_ns = clock_ns();

	if (now_ns - eal_log.window_ns >= EAL_WINDOW_NS)
		eal_log_window(now_ns);
	if (eal_log.passed++ < EAL_LINES_MAX)
		eal_log_emit(HARP_LOG_INFO, line);
	else
		eal_log.dropped++;
}

/* True for an error message without consequences: only secondary processes, which do not exist
 * here, would request memif's regions this way. */
static bool eal_log_is_harmless(const char *line)
{
	return strstr(line, "Failed to register mp action callback") != NULL;
}

/* Handles a complete line, under the lock. Logs DPDK's errors as information, because not all of
 * them are errors for HARP, and HARP's error texts quote the relevant ones. */
static void eal_log_line(enum harp_log_level level)
{
	char line[EAL_LINE_BYTES];

	while (eal_log.used > 0 && isspace((unsigned char)eal_log.line[eal_log.used - 1]))
		eal_log.used--;
	memcpy(line, eal_log.line, eal_log.used);
	line[eal_log.used] = '\0';
	eal_log.used = 0;
	if (line[0] == '\0')
		return;
	if (eal_log_is_harmless(line))
		level = HARP_LOG_DEBUG;
	if (!eal_log.has_error && (level == HARP_LOG_ERROR || !eal_log.text[0])) {
		snprintf(eal_log.text, sizeof(eal_log.text), "%.*s", EAL_TEXT_BYTES - 1, line);
		eal_log.has_error = level == HARP_LOG_ERROR;
	}
	/* A caller that requested debug messages gets all of them. */
	if (level == HARP_LOG_DEBUG)
		eal_log_emit(level, line);
	else
		eal_log_limited(line);
}

void eal_log_forward(const char *line)
{
	pthread_mutex_lock(&eal_log.lock);
	eal_log_limited(line);
	pthread_mutex_unlock(&eal_log.lock);
}

void eal_log_flush(void)
{
	pthread_mutex_lock(&eal_log.lock);
	eal_log_window(clock_ns());
	pthread_mutex_unlock(&eal_log.lock);
}

static void eal_log_text(const char *text, size_t bytes, enum harp_log_level level)
{
	pthread_mutex_lock(&eal_log.lock);
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] == '\n')
			eal_log_line(level);
		else if (eal_log.used < sizeof(eal_log.line) - 1)
			eal_log.line[eal_log.used++] = text[i];
	}
	pthread_mutex_unlock(&eal_log.lock);
}

static ssize_t eal_log_write(void *cookie, const char *text, size_t bytes)
{
	(void)cookie;
	eal_log_text(text, bytes, eal_log_level());
	/* The message of memif in this thread before it ends a connection (link.c). */
	if (rte_thread_is_intr() && (memmem(text, bytes, "Invalid message size", 20) ||
				     memmem(text, bytes, "Disconnect received", 19)))
		eal_log.leaving();
	if (memmem(text, bytes, "Disconnected, id:", 17))
		eal_log.ended();
	return (ssize_t)bytes;
}

/* Handles output to stdout or stderr while they are replaced. */
static ssize_t eal_print_write(void *cookie, const char *text, size_t bytes)
{
	FILE *before = *(FILE **)cookie;

	if (!eal_log_in_sink &&
	    pthread_equal(__atomic_load_n(&eal_log.quiet, __ATOMIC_ACQUIRE), pthread_self()))
		eal_log_text(text, bytes, HARP_LOG_DEBUG);
	else
		fwrite(text, 1, bytes, before);
	return (ssize_t)bytes;
}

static FILE *eal_stream(void *cookie, cookie_write_function_t *write_text)
{
	FILE *stream = fopencookie(cookie, "w", (cookie_io_functions_t){ .write = write_text });

	if (stream)
		setvbuf(stream, NULL, _IONBF, 0); /* unbuffered: each call is one write */
	return stream;
}

int eal_log_open(void (*leaving)(void), void (*ended)(void))
{
	eal_log.leaving = leaving;
	eal_log.ended = ended;
	eal_log.log_stream = eal_stream(NULL, eal_log_write);
	eal_log.out_stream = eal_stream(&eal_log.out_before, eal_print_write);
	eal_log.err_stream = eal_stream(&eal_log.err_before, eal_print_write);
	if (!eal_log.log_stream || !eal_log.out_stream || !eal_log.err_stream)
		return -ENOMEM;
	return rte_openlog_stream(eal_log.log_stream) == 0 ? 0 : -ENOMEM;
}

void eal_log_quiet(bool on)
{
	if (on) {
		__atomic_store_n(&eal_log.quiet, pthread_self(), __ATOMIC_RELEASE);
		eal_log.out_before = stdout;
		eal_log.err_before = stderr;
		stdout = eal_log.out_stream;
		stderr = eal_log.err_stream;
		return;
	}
	stdout = eal_log.out_before;
	stderr = eal_log.err_before;
	/* The streams stay, because a thread may still be writing to one. */
	__atomic_store_n(&eal_log.quiet, (pthread_t)0, __ATOMIC_RELEASE);
}

void eal_log_mark(void)
{
	pthread_mutex_lock(&eal_log.lock);
	eal_log.text[0] = '\0';
	eal_log.has_error = false;
	pthread_mutex_unlock(&eal_log.lock);
}

void eal_log_message(char text[EAL_TEXT_BYTES])
{
	pthread_mutex_lock(&eal_log.lock);
	memcpy(text, eal_log.text, EAL_TEXT_BYTES);
	pthread_mutex_unlock(&eal_log.lock);
}
