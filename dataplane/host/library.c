/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - see library.h. */
#include "host/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void library_path(char path[PATH_MAX], const char *dir, size_t dir_len, const char *name)
{
	if (snprintf(path, PATH_MAX, "%.*s/%s", (int)dir_len, dir, name) >= PATH_MAX)
		path[0] = '\0';
}

/* The file in the directory of this code; "" if there is none. */
static void library_own_folder(char path[PATH_MAX], const char *name)
{
	Dl_info self;
	const char *slash;

	path[0] = '\0';
	if (!dladdr((void *)(uintptr_t)library_load, &self) || !self.dli_fname)
		return;
	slash = strrchr(self.dli_fname, '/');
	if (slash)
		library_path(path, self.dli_fname, (size_t)(slash - self.dli_fname), name);
	if (path[0] && access(path, F_OK) < 0)
		path[0] = '\0';
}

void *library_load(const char *name, const char *lib_dir)
{
	char path[PATH_MAX];

	if (lib_dir)
		library_path(path, lib_dir, strlen(lib_dir), name);
	else
		library_own_folder(path, name);
	/* An existing file that cannot be loaded is an error; no other path is tried. */
	return dlopen(path[0] ? path : name, RTLD_NOW | RTLD_LOCAL);
}
