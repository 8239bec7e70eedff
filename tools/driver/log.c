/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - NCCL's logger: prints lines as NCCL_DEBUG says, and stores the last ones.
 *
 * The logger has no context argument, so the lines are those of the process, which has one rank.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "play.h"

#define LOG_LINES 256u

enum { LEVEL_VERSION = 1, LEVEL_WARN = 2, LEVEL_INFO = 3, LEVEL_TRACE = 5 };

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	int level;
	char text[PLAY_ERROR_BYTES];
} log_ring[LOG_LINES];
static uint64_t log_count; /* all lines; line n is at (n - 1) % LOG_LINES */
static char log_warn[PLAY_ERROR_BYTES];
static const struct play *log_play;

static int log_threshold(void)
{
	const char *debug = getenv("NCCL_DEBUG");

	if (!debug)
		return 0;
	if (!strcasecmp(debug, "VERSION"))
		return LEVEL_VERSION;
	if (!strcasecmp(debug, "WARN"))
		return LEVEL_WARN;
	if (!strcasecmp(debug, "INFO"))
		return LEVEL_INFO;
	if (!strcasecmp(debug, "TRACE"))
		return LEVEL_TRACE;
	return 0;
}

void log_attach(const struct play *play)
{
	pthread_mutex_lock(&log_lock);
	log_play = play;
	pthread_mutex_unlock(&log_lock);
}

static void log_print(const struct play *play, int level, const char *file, int line,
		      const char *text)
{
	const char *kind = level == LEVEL_WARN ? "WARN" : level == LEVEL_TRACE ? "TRACE" : "INFO";
	long tid = syscall(SYS_gettid);

	if (level == LEVEL_WARN)
		fprintf(stderr, "%s:%d:%ld [%d] %s:%d NCCL WARN %s\n", play->host, getpid(), tid,
			play->options.rank, file ? file : "?", line, text);
	else
		fprintf(stderr, "%s:%d:%ld [%d] NCCL %s %s\n", play->host, getpid(), tid,
			play->options.rank, kind, text);
}

void log_line(int level, const char *file, int line, const char *fmt, ...)
{
	char text[PLAY_ERROR_BYTES];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);

	pthread_mutex_lock(&log_lock);
	log_ring[log_count % LOG_LINES].level = level;
	memcpy(log_ring[log_count % LOG_LINES].text, text, sizeof(text));
	log_count++;
	if (level == LEVEL_WARN)
		memcpy(log_warn, text, sizeof(text));
	if (log_play && level <= log_threshold())
		log_print(log_play, level, file, line, text);
	pthread_mutex_unlock(&log_lock);
}

void log_last_warn(char *text, size_t len)
{
	pthread_mutex_lock(&log_lock);
	snprintf(text, len, "%s", log_warn);
	pthread_mutex_unlock(&log_lock);
}

int log_next(uint64_t *cursor, char *text, size_t text_len)
{
	int level = 0;

	pthread_mutex_lock(&log_lock);
	if (log_count > LOG_LINES && *cursor < log_count - LOG_LINES)
		*cursor = log_count - LOG_LINES;
	if (*cursor < log_count) {
		level = log_ring[*cursor % LOG_LINES].level;
		snprintf(text, text_len, "%s", log_ring[*cursor % LOG_LINES].text);
		(*cursor)++;
	}
	pthread_mutex_unlock(&log_lock);
	return level;
}
