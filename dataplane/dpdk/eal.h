/* SPDX-License-Identifier: Apache-2.0 */
/* eal.h - DPDK's environment, which is started once per process, and its messages. */
#ifndef HARP_DPDK_EAL_H
#define HARP_DPDK_EAL_H

#include <stdbool.h>

#include "base/why.h"
#include "dpdk/harp_dpdk.h"

/* As harp_dpdk_api.start. */
int eal_start(const struct harp_dpdk_eal_options *opt, char *why, size_t why_len);
/* 0, or -errno with the reason: it is not started, or a parent process started it. */
int eal_usable(const struct why *why);
bool eal_huge_pages(void);

#endif
