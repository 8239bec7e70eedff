/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - log lines, written by NCCL's logger (abi/lifetime.c). Silent before the first init and
 * after the last finalize. */
#ifndef HARP_PLUGIN_LOG_H
#define HARP_PLUGIN_LOG_H

enum plugin_log_level { PLUGIN_WARN, PLUGIN_INFO };
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#define WARN(...) plugin_log(PLUGIN_WARN, __func__, __LINE__, __VA_ARGS__)
/* WARN if is_due, else INFO. */
#define WARN_IF(is_due, ...)                                                                       \
	plugin_log((is_due) ? PLUGIN_WARN : PLUGIN_INFO, __func__, __LINE__, __VA_ARGS__)
#define INFO(...) plugin_log(PLUGIN_INFO, __func__, __LINE__, __VA_ARGS__)

#endif
