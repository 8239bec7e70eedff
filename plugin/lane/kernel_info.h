/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_info.h - what the kernel says of a socket's TCP. */
#ifndef HARP_PLUGIN_KERNEL_INFO_H
#define HARP_PLUGIN_KERNEL_INFO_H

#include "lane/lane.h"

/* sent_bytes: taken by it so far. Two system calls; all 0 when it can't tell. */
void kernel_info(int fd, uint64_t sent_bytes, struct lane_info *info);

/* What the last look at a socket found. The caller's, at first all 0. */
struct kernel_silence {
	uint64_t asked_ns; /* the first look that found the question which is out; 0: none is */
	uint64_t looked_ns;
	uint32_t segments; /* that had come */
};
/* For how long its peer has not answered, as far as the calls show: never longer than it was, and shorter by less than
 * the time between two calls. One system call. */
uint64_t kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns);

#endif
