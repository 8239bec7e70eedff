/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_library.c - see dpdk_library.h. */
#include "host/dpdk_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "host/library.h"

#define DPDK_LIBRARY "libharp-dpdk.so"

/* Explains the loader's error: a file of HARP or of DPDK is missing or invalid. */
static int library_refused(const struct why *why, const char *words)
{
	/* such as "librte_eal.so.23: cannot open ...", "undefined symbol: rte_eth_fp_ops, version
	 * DPDK_23" */
	if (words && (strstr(words, "librte_") || strstr(words, "version DPDK_")))
		return why_fail(why, -ENOENT,
				"%s: DPDK's libraries are missing or of another version; install "
				"them (Debian: apt-get install libdpdk-dev dpdk)",
				words);
	if (words && !strstr(words, "No such file"))
		return why_fail(why, -ENOENT, "%s; reinstall HARP", words);
	return why_fail(
		why, -ENOENT,
		"%s is not installed: HARP was built without DPDK; build it where "
		"libdpdk is (Debian: apt-get install libdpdk-dev), or set the library's folder",
		DPDK_LIBRARY);
}

int dpdk_library_open(const char *lib_dir, const struct harp_dpdk_api **api, const struct why *why)
{
	const struct harp_dpdk_api *(*entry)(void);
	void *library = library_load(DPDK_LIBRARY, lib_dir);

	*api = NULL;
	if (!library)
		return library_refused(why, dlerror());
	*(void **)&entry = dlsym(library, "harp_dpdk_api");
	*api = entry ? entry() : NULL;
	if (*api && (*api)->version == HARP_DPDK_VERSION)
		return 0;
	*api = NULL;
	dlclose(library); /* no DPDK code has run yet */
	return why_fail(why, -ENOENT, "%s is of another version of HARP; reinstall both",
			DPDK_LIBRARY);
}
