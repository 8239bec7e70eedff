/* SPDX-License-Identifier: Apache-2.0 */
/* library.h - loads an optional library of HARP: libharp-xdp.so, which needs libbpf, or
 * libharp-dpdk.so, which needs DPDK. */
#ifndef HARP_HOST_LIBRARY_H
#define HARP_HOST_LIBRARY_H

#include "xdp/harp_xdp.h"

/* Loads libharp-NAME.so, calls its harp_NAME_api() and checks the version that the result begins
 * with. lib_dir NULL: the directory of this code's library or program, then the loader's search
 * path. -ENOENT: see dlerror(); -ELIBBAD: another version. */
int library_open(const char *name, const char *lib_dir, uint32_t version, void **handle,
		 const void **api);
/* The same for libharp-xdp.so. -ENOENT with one line in why. The caller calls dlclose() on
 * *handle. */
int library_open_xdp(const char *lib_dir, void **handle, const struct harp_xdp_api **api, char *why,
		     size_t why_len);

#endif
