/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_library.h - finds and opens libharp-dpdk.so, the only part of HARP that needs DPDK, for good. */
#ifndef HARP_HOST_DPDK_LIBRARY_H
#define HARP_HOST_DPDK_LIBRARY_H

#include "base/why.h"
#include "dpdk/harp_dpdk.h"

/* lib_dir: as library_load(). The library is never closed: DPDK's environment can be neither ended nor started
 * again, and its threads run on. -ENOENT it is not there, or not to be loaded. */
int dpdk_library_open(const char *lib_dir, const struct harp_dpdk_api **api, const struct why *why);

#endif
