/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h - the functions of NCCL's public API that a rank calls. The numbers are from NVIDIA's
 * documentation (ncclDataType_t, ncclRedOp_t).
 */
#ifndef NCCL_NCCL_H
#define NCCL_NCCL_H

#include <stddef.h>

enum { NCCL_UINT8 = 1, NCCL_FLOAT32 = 7, NCCL_SUM = 0, NCCL_ID_BYTES = 128, NCCL_IN_PROGRESS = 7 };

struct nccl_id {
	char bytes[NCCL_ID_BYTES];
};

typedef void *nccl_comm;

/* X(name, result, arguments) */
#define NCCL_FUNCTIONS(X)                                                                          \
	X(GetUniqueId, int, (struct nccl_id *))                                                    \
	X(CommInitRank, int, (nccl_comm *, int, struct nccl_id, int))                              \
	X(CommSplit, int, (nccl_comm, int, int, nccl_comm *, void *))                              \
	X(CommFinalize, int, (nccl_comm))                                                          \
	X(CommDestroy, int, (nccl_comm))                                                           \
	X(CommAbort, int, (nccl_comm))                                                             \
	X(CommGetAsyncError, int, (nccl_comm, int *))                                              \
	X(CommCount, int, (nccl_comm, int *))                                                      \
	X(CommUserRank, int, (nccl_comm, int *))                                                   \
	X(GroupStart, int, (void))                                                                 \
	X(GroupEnd, int, (void))                                                                   \
	X(Send, int, (const void *, size_t, int, int, nccl_comm, void *))                          \
	X(Recv, int, (void *, size_t, int, int, nccl_comm, void *))                                \
	X(AllReduce, int, (const void *, void *, size_t, int, int, nccl_comm, void *))             \
	X(AllGather, int, (const void *, void *, size_t, int, nccl_comm, void *))                  \
	X(ReduceScatter, int, (const void *, void *, size_t, int, int, nccl_comm, void *))         \
	X(Broadcast, int, (const void *, void *, size_t, int, int, nccl_comm, void *))             \
	X(Reduce, int, (const void *, void *, size_t, int, int, int, nccl_comm, void *))           \
	X(GetErrorString, const char *, (int))                                                     \
	X(GetLastError, const char *, (nccl_comm))

struct nccl {
#define X(name, result, arguments) result(*name) arguments;
	NCCL_FUNCTIONS(X)
#undef X
};

#endif
