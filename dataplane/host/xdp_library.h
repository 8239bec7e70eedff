/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_library.h - finds and loads libharp-xdp.so, the only part of HARP that needs libbpf. */
#ifndef HARP_HOST_XDP_LIBRARY_H
#define HARP_HOST_XDP_LIBRARY_H

#include "xdp/harp_xdp.h"

/* lib_dir NULL: the directory of this code's library or program, then the loader's search path.
 * -ENOENT with one line in why. The caller calls dlclose() on *handle. */
int xdp_library_open(const char *lib_dir, void **handle, const struct harp_xdp_api **api, char *why,
		     size_t why_len);

#endif
