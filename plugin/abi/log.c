/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - every word this library says goes through NCCL's logger, and none without it. */
#include "abi/log.h"
#include "process/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define LOG_LINE_BYTES 1024

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned log_users; /* under log_lock */
/* Writer: under log_lock. Reader: any thread; the function behind it is NCCL's and outlives us. */
static _Atomic(nccl_logger) log_logger;

void log_open(nccl_logger logger)
{
	pthread_mutex_lock(&log_lock);
	log_users++;
	if (logger)
		atomic_store(&log_logger, logger);
	pthread_mutex_unlock(&log_lock);
}

void log_close(void)
{
	pthread_mutex_lock(&log_lock);
	if (log_users > 0 && --log_users == 0)
		atomic_store(&log_logger, (nccl_logger)NULL);
	pthread_mutex_unlock(&log_lock);
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	static const enum nccl_log_level levels[] = {
		[PLUGIN_WARN] = NCCL_LOG_WARN,
		[PLUGIN_INFO] = NCCL_LOG_INFO,
		[PLUGIN_TRACE] = NCCL_LOG_TRACE,
	};
	nccl_logger logger = atomic_load(&log_logger);
	char text[LOG_LINE_BYTES];
	va_list args;

	if (!logger)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	logger(levels[level], NCCL_LOG_INIT | NCCL_LOG_NET, func, line, "NET/HARP: %s", text);
}
