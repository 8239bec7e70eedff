/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuner_abi.h - NCCL's tuner ABI, versions 2 (NCCL 2.21) to 6, written from its specification.
 *
 * A tuner is a data symbol `ncclTunerPlugin_vN`. If no tuner is named, NCCL looks for it in the net
 * plugin's library, and uses the newest version that it knows. Types are named after the oldest
 * version that has them.
 */
#ifndef HARP_TUNER_ABI_H
#define HARP_TUNER_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "abi/nccl_abi.h"

enum tuner_function {
	TUNER_BROADCAST,
	TUNER_REDUCE,
	TUNER_ALL_GATHER,
	TUNER_REDUCE_SCATTER,
	TUNER_ALL_REDUCE,
	TUNER_FUNCTIONS,
};
enum tuner_algorithm {
	TUNER_TREE,
	TUNER_RING,
	TUNER_COLLNET_DIRECT,
	TUNER_COLLNET_CHAIN,
	TUNER_NVLS,
	TUNER_NVLS_TREE,
	TUNER_PAT,
	TUNER_ALGORITHMS,
};
enum tuner_protocol { TUNER_LL, TUNER_LL128, TUNER_SIMPLE, TUNER_PROTOCOLS };

#define TUNER_COST_IGNORED (-1.0f) /* the combination is impossible or not allowed */
#define NCCL_LOG_TUNING 64ul

typedef enum nccl_result nccl_tuner_init_v2(size_t ranks, size_t nodes, nccl_logger logger,
					    void **context);
/* NCCL's model: NVLink domains and constants, not used here. */
typedef enum nccl_result nccl_tuner_init_v5(void **context, uint64_t comm_id, size_t ranks,
					    size_t nodes, nccl_logger logger, void *nvl_domains,
					    void *constants);
typedef enum nccl_result nccl_tuner_info_v2(void *context, int function, size_t bytes, int collnet,
					    int nvls, int pipe_ops, int *algorithm, int *protocol,
					    int *channels);
/* costs: contiguous float [algorithms][protocols], in us. */
typedef enum nccl_result nccl_tuner_info_v3(void *context, int function, size_t bytes, int pipe_ops,
					    float **costs, int algorithms, int protocols,
					    int *channels);
typedef enum nccl_result nccl_tuner_info_v4(void *context, int function, size_t bytes, int pipe_ops,
					    float **costs, int algorithms, int protocols,
					    int registered, int *channels);
typedef enum nccl_result nccl_tuner_finalize_v2(void *context);
typedef enum nccl_result nccl_tuner_chunk_v6(void *context, int function, size_t bytes,
					     int algorithm, int protocol, int channels,
					     size_t *chunk_bytes);

#define NCCL_TUNER_COMMON(init_form, info_form)                                                    \
	const char *name;                                                                          \
	nccl_tuner_init_##init_form *init;                                                         \
	nccl_tuner_info_##info_form *get_coll_info;                                                \
	nccl_tuner_finalize_v2 *finalize
struct nccl_tuner_v2 {
	NCCL_TUNER_COMMON(v2, v2);
};
struct nccl_tuner_v3 {
	NCCL_TUNER_COMMON(v2, v3);
};
struct nccl_tuner_v4 {
	NCCL_TUNER_COMMON(v2, v4);
};
struct nccl_tuner_v5 {
	NCCL_TUNER_COMMON(v5, v4);
};
struct nccl_tuner_v6 {
	NCCL_TUNER_COMMON(v5, v4);
	nccl_tuner_chunk_v6 *get_chunk_size;
};
static_assert(sizeof(struct nccl_tuner_v2) == 4 * sizeof(void *), "the table of v2 to v5");
static_assert(sizeof(struct nccl_tuner_v6) == 5 * sizeof(void *), "the table of v6");

#endif
