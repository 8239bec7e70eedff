/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_library.c - see xdp_library.h. */
#include "host/xdp_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "host/library.h"

#define XDP_LIBRARY "libharp-xdp.so"

int xdp_library_open(const char *lib_dir, void **handle, const struct harp_xdp_api **api, char *why,
		     size_t why_len)
{
	const struct harp_xdp_api *(*entry)(void);
	const char *words;
	void *library;

	library = library_load(XDP_LIBRARY, lib_dir);
	if (!library) {
		words = dlerror();
		if (why)
			snprintf(why, why_len, "%s; install libbpf1, or set the folder of %s",
				 words ? words : "cannot load", XDP_LIBRARY);
		return -ENOENT;
	}
	*(void **)&entry = dlsym(library, "harp_xdp_api");
	*api = entry ? entry() : NULL;
	if (!*api || (*api)->version != HARP_XDP_VERSION) {
		if (why)
			snprintf(why, why_len, "%s is of another version of HARP; reinstall both",
				 XDP_LIBRARY);
		dlclose(library);
		return -ENOENT;
	}
	*handle = library;
	return 0;
}
