/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_library.h - finds and loads libharp-dpdk.so, the only part of HARP that needs DPDK. It is
 * never unloaded. */
#ifndef HARP_HOST_DPDK_LIBRARY_H
#define HARP_HOST_DPDK_LIBRARY_H

#include "base/why.h"
#include "dpdk/harp_dpdk.h"

/* lib_dir: as library_load(). Never unloaded: DPDK's environment can be neither ended nor
 * restarted, and its threads keep running. -ENOENT not found, or not loadable. */
int dpdk_library_open(const char *lib_dir, const struct harp_dpdk_api **api, const struct why *why);

#endif
