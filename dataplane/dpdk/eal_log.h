/* SPDX-License-Identifier: Apache-2.0 */
/* eal_log.h - where DPDK's own messages go: to the sink, and the last of them into error texts. */
#ifndef HARP_DPDK_EAL_LOG_H
#define HARP_DPDK_EAL_LOG_H

#include <stdbool.h>

#include "harp.h"

#define EAL_WORDS_BYTES 160

/* The sink; NULL: none. When it returns, nobody is inside the one before. */
void eal_log_to(harp_log_fn log, void *ctx);
/* From now on DPDK's log goes to the sink. leaving: called in DPDK's interrupt thread when memif is about to take a
 * connection down. -errno. */
int eal_log_open(void (*leaving)(void));
/* This thread is about to call code of DPDK's that prints besides (true), or has done so. One thread at a time. */
void eal_log_quiet(bool on);
/* Says how many lines were not passed on. */
void eal_log_rest(void);
/* A line of our own among DPDK's, and limited as they are. */
void eal_log_tell(const char *line);
/* Forgets the words. */
void eal_log_mark(void);
/* The most telling of DPDK's lines since the mark: its first error, else its last line; "" if it said nothing. */
void eal_log_words(char words[EAL_WORDS_BYTES]);

#endif
