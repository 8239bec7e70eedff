/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_library.c - finds and opens libharp-xdp.so, the only part of HARP that needs libbpf. */
#include "host/xdp_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define XDP_LIBRARY "libharp-xdp.so"

static void *library_in(const char *dir, size_t dir_len)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%.*s/%s", (int)dir_len, dir, XDP_LIBRARY) >=
	    (int)sizeof(path))
		return NULL;
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *library_beside_us(void)
{
	Dl_info self;
	const char *slash;

	if (!dladdr((void *)(uintptr_t)xdp_library_open, &self) || !self.dli_fname)
		return NULL;
	slash = strrchr(self.dli_fname, '/');
	return slash ? library_in(self.dli_fname, (size_t)(slash - self.dli_fname)) : NULL;
}

int xdp_library_open(const char *lib_dir, void **handle, const struct harp_xdp_api **api, char *why,
		     size_t why_len)
{
	const struct harp_xdp_api *(*entry)(void);
	const char *words;
	void *library;

	if (lib_dir) {
		library = library_in(lib_dir, strlen(lib_dir));
	} else {
		library = library_beside_us();
		if (!library)
			library = dlopen(XDP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	}
	if (!library) {
		words = dlerror();
		if (why)
			snprintf(why, why_len, "%s; install libbpf1, or say where %s lies",
				 words ? words : "cannot load", XDP_LIBRARY);
		return -ENOENT;
	}
	*(void **)&entry = dlsym(library, "harp_xdp_api");
	*api = entry ? entry() : NULL;
	if (!*api || (*api)->version != HARP_XDP_VERSION) {
		if (why)
			snprintf(why, why_len,
				 "%s is of another version of HARP; install both anew",
				 XDP_LIBRARY);
		dlclose(library);
		return -ENOENT;
	}
	*handle = library;
	return 0;
}
