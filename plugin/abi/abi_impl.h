/* SPDX-License-Identifier: Apache-2.0 */
/* abi_impl.h - what abi.c (the tables) and abi_data.c (memory and messages) share. */
#ifndef HARP_PLUGIN_ABI_IMPL_H
#define HARP_PLUGIN_ABI_IMPL_H

#include "abi/lifetime.h"
#include "abi/nccl_abi.h"
#include "context/plugin.h"
#include "process/log.h"

/* 0 or -errno as NCCL has it. */
enum nccl_result abi_result(int rc);

/* NCCL gave us something it never should: said once here, so that the shims stay short. */
#define ABI_MISUSE(rc, ...) (WARN(__VA_ARGS__), abi_result(rc))

/* NCCL's callback for profiler events, from an init of v10 or later. NULL leaves it as it is. */
void abi_set_profiler(nccl_profiler profiler);

/* Shims for the tables: an older form widens its arguments and calls a later one. */
enum nccl_result abi_reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle);
enum nccl_result abi_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle);
enum nccl_result abi_dereg_mr_v6(void *comm, void *mhandle);
enum nccl_result abi_isend_v9(void *send_comm, void *data, size_t size, int tag, void *mhandle,
			      void **request);
enum nccl_result abi_isend_v6(void *send_comm, void *data, int size, int tag, void *mhandle,
			      void **request);
enum nccl_result abi_isend_v10(void *send_comm, void *data, size_t size, int tag, void *mhandle,
			       void *phandle, void **request);
enum nccl_result abi_irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
			      void **mhandles, void **request);
enum nccl_result abi_irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags,
			      void **mhandles, void **request);
enum nccl_result abi_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
			       void **mhandles, void **phandles, void **request);
enum nccl_result abi_iflush_v6(void *recv_comm, int n, void **data, int *sizes, void **mhandles,
			       void **request);
enum nccl_result abi_test_v6(void *request, int *done, int *sizes);

#endif
