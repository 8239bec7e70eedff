/* SPDX-License-Identifier: Apache-2.0 */
/* The environment: libharp-dpdk.so starts it, so that the stacks of this process find the same one. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_mempool.h>
#include <rte_mbuf.h>
#include <rte_version.h>
#include <stdio.h>
#include <string.h>

#include "dpdk_private.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static const struct harp_dpdk_api *library_api;
static bool forked;

static void forget(void)
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

const char *dpdk_version(void)
{
	return rte_version();
}

bool dpdk_huge_pages(void)
{
	return dpdk_running() == 1 && rte_eal_has_hugepages();
}

static void log_to_fd(void *ctx, enum harp_log_level level, const char *text)
{
	(void)level;
	dprintf((int)(intptr_t)ctx, "%s\n", text);
}

/* The library stays open for good: EAL's threads run in it. */
static const struct harp_dpdk_api *api_of(const char *path, char *why, size_t why_len)
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
	bool plain;
	int result;

	if (dpdk_running() == -ECHILD)
		return dpdk_why(why, why_len, -ECHILD,
				"DPDK was started before this process was forked; start "
				"it in the process that uses it");
	api = api_of(opt->library, why, why_len);
	if (!api)
		return -ELIBACC;
	/* Options replace the log that a stack of this process may have given: defaults leave it. */
	plain = !opt->huge_pages && !opt->memory_mib && !opt->args && opt->log_fd < 0;
	pthread_mutex_lock(&lock);
	if (opt->log_fd >= 0) {
		eal.ctx = (void *)(intptr_t)opt->log_fd;
		eal.log = log_to_fd;
	}
	result = api->start(plain ? NULL : &eal, why, why_len);
	if (!result && !started) {
		library_api = api;
		pthread_atfork(NULL, NULL, forget);
		api->guard(dpdk_gate_shut, dpdk_gate_open);
		__atomic_store_n(&started, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* ------------------------------------------------------------------------------------------------
 * Pools.
 */
#define POOL_COUNT_MAX (1u << 22)
#define ROOM_MIN (RTE_PKTMBUF_HEADROOM + 64u)

int dpdk_pool_create(struct rte_mempool **out, uint32_t count, uint32_t room_bytes, char *why,
		     size_t why_len)
{
	static unsigned serial;
	char name[RTE_MEMPOOL_NAMESIZE];

	*out = NULL;
	if (dpdk_running() != 1)
		return dpdk_why(why, why_len, -ENOTCONN, "DPDK is not started in this process");
	if (!count || count > POOL_COUNT_MAX)
		return dpdk_why(why, why_len, -EINVAL, "pool of %u buffers: 1 to %u are possible",
				count, POOL_COUNT_MAX);
	if (room_bytes < ROOM_MIN || room_bytes > UINT16_MAX)
		return dpdk_why(why, why_len, -EINVAL,
				"buffers of %u bytes: %u to %u are possible, %u of them head room",
				room_bytes, ROOM_MIN, UINT16_MAX, RTE_PKTMBUF_HEADROOM);
	snprintf(name, sizeof(name), "harp-py-%u",
		 __atomic_fetch_add(&serial, 1, __ATOMIC_RELAXED));
	*out = rte_pktmbuf_pool_create(name, count, 0, 0, (uint16_t)room_bytes, SOCKET_ID_ANY);
	if (!*out)
		return dpdk_why(
			why, why_len, -ENOMEM,
			"no memory for %u buffers of %u bytes: %s; ask for fewer, or start DPDK with "
			"more (memory_mib)",
			count, room_bytes, rte_strerror(rte_errno));
	return 0;
}

uint32_t dpdk_pool_in_use(const struct rte_mempool *pool)
{
	return dpdk_running() == 1 ? rte_mempool_in_use_count(pool) : 0;
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
