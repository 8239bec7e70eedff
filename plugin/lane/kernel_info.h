/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_info.h - the state of a kernel socket's TCP. */
#ifndef HARP_PLUGIN_KERNEL_INFO_H
#define HARP_PLUGIN_KERNEL_INFO_H

#include "lane/lane.h"

/* sent_bytes: accepted by the socket so far. Two system calls; all 0 if they fail. */
void kernel_info(int fd, uint64_t sent_bytes, struct lane_info *info);

/* The state between two calls of kernel_silence_ns(). The caller's, zero at first. */
struct kernel_silence {
	uint64_t unanswered_ns; /* the first call that saw the outstanding data or probe; 0: none */
	uint64_t checked_ns;
	uint32_t segments; /* received */
};
/* How long the peer has not answered outstanding data or probes: never too long, and too short by
 * less than the time between two calls. One system call. */
uint64_t kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns);

#endif
