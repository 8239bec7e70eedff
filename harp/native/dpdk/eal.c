/* SPDX-License-Identifier: Apache-2.0 */
/* Starts DPDK's environment by libharp-dpdk.so, so that the stacks of this process share it. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rte_mempool.h>
#include <stdio.h>

#include "dpdk_private.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static const struct harp_dpdk_api *library_api;
static bool forked;

static void mark_forked(void)
{
	forked = started;
}

int dpdk_why(char *why, size_t why_len, int error, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, why_len, format, ap);
	va_end(ap);
	return error;
}

const struct harp_dpdk_api *dpdk_library(void)
{
	return library_api;
}

int dpdk_running(void)
{
	if (__atomic_load_n(&forked, __ATOMIC_RELAXED))
		return -ECHILD;
	return __atomic_load_n(&started, __ATOMIC_ACQUIRE);
}

static void log_to_fd(void *ctx, enum harp_log_level level, const char *text)
{
	(void)level;
	dprintf((int)(intptr_t)ctx, "%s\n", text);
}

/* The library stays open, because EAL's threads run in it. */
static const struct harp_dpdk_api *load_api(const char *path, char *why, size_t why_len)
{
	const struct harp_dpdk_api *(*entry)(void);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library) {
		dpdk_why(why, why_len, 0, "libharp-dpdk.so can't be loaded: %s", dlerror());
		return NULL;
	}
	*(void **)&entry = dlsym(library, "harp_dpdk_api");
	if (!entry || entry()->version != HARP_DPDK_VERSION) {
		dpdk_why(why, why_len, 0,
			 "%s is of another version of HARP: install both from one build", path);
		return NULL;
	}
	return entry();
}

int dpdk_start(const struct dpdk_eal_options *opt, char *why, size_t why_len)
{
	struct harp_dpdk_eal_options eal = {
		.size = sizeof(eal),
		.huge_pages = opt->huge_pages,
		.memory_mib = opt->memory_mib,
		.args = opt->args,
	};
	const struct harp_dpdk_api *api;
	bool has_defaults;
	int result;

	if (dpdk_running() == -ECHILD)
		return dpdk_why(why, why_len, -ECHILD,
				"DPDK was started before this process was forked; start "
				"it in the process that uses it");
	api = load_api(opt->library, why, why_len);
	if (!api)
		return -ELIBACC;
	/* NULL keeps the log that a stack of this process may have set; options replace it. */
	has_defaults = !opt->huge_pages && !opt->memory_mib && !opt->args && opt->log_fd < 0;
	pthread_mutex_lock(&lock);
	if (opt->log_fd >= 0) {
		eal.ctx = (void *)(intptr_t)opt->log_fd;
		eal.log = log_to_fd;
	}
	result = api->start(has_defaults ? NULL : &eal, why, why_len);
	if (!result && !started) {
		library_api = api;
		pthread_atfork(NULL, NULL, mark_forked);
		api->guard(dpdk_gate_shut, dpdk_gate_open);
		__atomic_store_n(&started, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

int dpdk_pool_free(struct rte_mempool *pool)
{
	if (dpdk_running() != 1)
		return -ECHILD;
	if (rte_mempool_in_use_count(pool))
		return -EBUSY;
	rte_mempool_free(pool);
	return 0;
}
