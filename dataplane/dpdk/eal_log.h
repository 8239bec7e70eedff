/* SPDX-License-Identifier: Apache-2.0 */
/* eal_log.h - passes DPDK's log messages to the log function, and the last ones to error texts. */
#ifndef HARP_DPDK_EAL_LOG_H
#define HARP_DPDK_EAL_LOG_H

#include <stdbool.h>

#include "harp.h"

#define EAL_TEXT_BYTES 160

/* Sets the log function; NULL: none. On return, no call of the previous one is in progress. */
void eal_log_to(harp_log_fn log, void *ctx);
/* Passes DPDK's log to the log function. In DPDK's interrupt thread, calls leaving when memif is
 * about to end a connection, and ended afterwards. -errno. */
int eal_log_open(void (*leaving)(void), void (*ended)(void));
/* true: this thread is about to call DPDK code that prints; false: the call has returned. One
 * thread at a time. */
void eal_log_quiet(bool on);
/* Reports how many lines were not passed on. */
void eal_log_flush(void);
/* Logs a line of HARP, with the same limit. */
void eal_log_forward(const char *line);
/* Clears the recorded message. */
void eal_log_mark(void);
/* The most relevant line since the mark: DPDK's first error, else its last line; "" if there was
 * none. */
void eal_log_message(char text[EAL_TEXT_BYTES]);

#endif
