/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profiler_abi.h - NCCL's profiler ABI, versions 3 (NCCL 2.26, the first with events of net
 * plugins) to 7, as far as a profiler of network events needs it; written from its specification.
 *
 * A profiler exports one data symbol per version, `ncclProfiler_vN`; NCCL uses the newest one that
 * it knows. The versions differ in init and in other types of events, which this profiler does not
 * use.
 */
#ifndef HARP_PROFILER_ABI_H
#define HARP_PROFILER_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_PROFILE_NET_PLUGIN (1 << 7) /* activation mask, and type of a descriptor */
#define NCCL_PROFILER_LOG_WARN 2
#define NCCL_PROFILER_LOG_INFO 3
#define NCCL_PROFILER_SUBSYSTEM_INIT 1ul

typedef void (*nccl_profiler_logger)(int level, unsigned long flags, const char *func, int line,
				     const char *fmt, ...);

/* Common to all versions, for events of net plugins. */
struct nccl_profiler_descr {
	uint8_t type; /* v5 and later: the low byte of 8 */
	void *parent;
	int rank;
	struct {
		int64_t id;
		void *data;
	} net_plugin;
};
static_assert(offsetof(struct nccl_profiler_descr, rank) == 16, "descriptor");
static_assert(offsetof(struct nccl_profiler_descr, net_plugin) == 24, "descriptor");

/* Results are ncclResult_t: 0 is success. */
typedef int nccl_profiler_init_v3(void **context, int *mask);
typedef int nccl_profiler_init_v4(void **context, int *mask, const char *comm_name,
				  uint64_t comm_hash, int nodes, int ranks, int rank,
				  nccl_profiler_logger logger);
typedef int nccl_profiler_init_v5(void **context, uint64_t comm_id, int *mask,
				  const char *comm_name, int nodes, int ranks, int rank,
				  nccl_profiler_logger logger);

/* Named after the oldest version with this init. */
#define NCCL_PROFILER_TABLE(version)                                                               \
	struct nccl_profiler_##version {                                                           \
		const char *name;                                                                  \
		nccl_profiler_init_##version *init;                                                \
		int (*start_event)(void *context, void **handle, struct nccl_profiler_descr *);    \
		int (*stop_event)(void *handle);                                                   \
		int (*record_event_state)(void *handle, int state, void *args);                    \
		int (*finalize)(void *context);                                                    \
	}
NCCL_PROFILER_TABLE(v3);
NCCL_PROFILER_TABLE(v4);
NCCL_PROFILER_TABLE(v5);

#endif
