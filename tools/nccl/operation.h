/* SPDX-License-Identifier: Apache-2.0 */
/* operation.h - a collective or point-to-point operation whose result can be verified. */
#ifndef NCCL_OPERATION_H
#define NCCL_OPERATION_H

#include "emulation.h"
#include "nccl.h"

enum { OPERATION_ROOT = 0 }; /* root of broadcast and reduce */

struct operation_kind;

/* `bytes` is the size in nccl-tests' first column: that of the larger buffer of a rank. */
struct operation {
	const struct operation_kind *kind;
	size_t bytes;
	int rank, nranks;
	char *source, *target; /* device memory */
	size_t source_bytes, target_bytes, buffer_bytes;
};

/* Returns false for an unknown operation. rank and nranks are those of the communicator. */
bool operation_open(struct operation *operation, const char *name, size_t bytes, int rank,
		    int nranks);
void operation_close(struct operation *operation);
void operation_fill(struct operation *operation, unsigned seed);
int operation_start(const struct operation *operation, const struct nccl *nccl, nccl_comm comm,
		    struct stream *stream); /* an ncclResult_t */
size_t operation_count_wrong(const struct operation *operation, unsigned seed); /* bytes */

#endif
