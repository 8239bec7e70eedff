/* SPDX-License-Identifier: Apache-2.0 */
/* operation.h - one collective or exchange, with data that can be verified byte by byte. */
#ifndef NCCL_OPERATION_H
#define NCCL_OPERATION_H

#include "emulation.h"
#include "nccl.h"

enum { OPERATION_ROOT = 0 }; /* of broadcast and reduce */

struct operation_kind;

/* Bytes are those of nccl-tests' first column: of what one rank has in the larger buffer. */
struct operation {
	const struct operation_kind *kind;
	size_t bytes;
	int rank, nranks;
	char *source, *target; /* device memory */
	size_t source_bytes, target_bytes, buffer_bytes;
};

/* False: there is no such operation. The rank and nranks are those of the communicator. */
bool operation_open(struct operation *operation, const char *name, size_t bytes, int rank,
		    int nranks);
void operation_close(struct operation *operation);
void operation_fill(struct operation *operation, unsigned seed);
int operation_start(const struct operation *operation, const struct nccl *nccl, nccl_comm comm,
		    struct stream *stream); /* an ncclResult_t */
size_t operation_count_wrong(const struct operation *operation, unsigned seed); /* bytes */

#endif
