/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_info.h - what the kernel says of a socket's TCP. */
#ifndef HARP_PLUGIN_KERNEL_INFO_H
#define HARP_PLUGIN_KERNEL_INFO_H

#include "lane.h"

/* sent_bytes: taken by it so far. Two system calls; all 0 when it can't tell. */
void kernel_info(int fd, uint64_t sent_bytes, struct lane_info *info);
/* For how long its peer has not answered, as far as the calls show. *unanswered_ns: the caller's, at first 0. One system
 * call. */
uint64_t kernel_silence_ns(int fd, uint64_t *unanswered_ns, uint64_t now_ns);

#endif
