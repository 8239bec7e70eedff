/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - see library.h. */
#include "host/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void library_path(char path[PATH_MAX], const char *dir, size_t dir_len, const char *name)
{
	if (snprintf(path, PATH_MAX, "%.*s/%s", (int)dir_len, dir, name) >= PATH_MAX)
		path[0] = '\0';
}

/* The path of the file in the directory of this code's library or program; "" if it does not
 * exist. */
static void library_own_folder(char path[PATH_MAX], const char *name)
{
	Dl_info self;
	const char *slash;

	path[0] = '\0';
	if (!dladdr((void *)(uintptr_t)library_open, &self) || !self.dli_fname)
		return;
	slash = strrchr(self.dli_fname, '/');
	if (slash)
		library_path(path, self.dli_fname, (size_t)(slash - self.dli_fname), name);
	if (path[0] && access(path, F_OK) < 0)
		path[0] = '\0';
}

int library_open(const char *name, const char *lib_dir, uint32_t version, void **handle,
		 const void **api)
{
	char file[32], symbol[32], path[PATH_MAX];
	const void *(*entry)(void);

	snprintf(file, sizeof(file), "libharp-%s.so", name);
	snprintf(symbol, sizeof(symbol), "harp_%s_api", name);
	if (lib_dir)
		library_path(path, lib_dir, strlen(lib_dir), file);
	else
		library_own_folder(path, file);
	/* An existing file that cannot be loaded is an error; no other path is tried. */
	*handle = dlopen(path[0] ? path : file, RTLD_NOW | RTLD_LOCAL);
	if (!*handle)
		return -ENOENT;
	*(void **)&entry = dlsym(*handle, symbol);
	*api = entry ? entry() : NULL;
	if (*api && *(const uint32_t *)*api == version)
		return 0;
	dlclose(*handle);
	*handle = NULL;
	*api = NULL;
	return -ELIBBAD;
}

int library_open_xdp(const char *lib_dir, void **handle, const struct harp_xdp_api **api, char *why,
		     size_t why_len)
{
	const void *opened_api = NULL;
	int rc = library_open("xdp", lib_dir, HARP_XDP_VERSION, handle, &opened_api);

	*api = opened_api;
	if (rc == -ENOENT && why)
		snprintf(why, why_len, "%s; install libbpf1, or set the folder of libharp-xdp.so",
			 dlerror());
	else if (rc && why)
		snprintf(why, why_len,
			 "libharp-xdp.so is of another version of HARP; reinstall both");
	return rc ? -ENOENT : 0;
}
