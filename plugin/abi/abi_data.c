/* SPDX-License-Identifier: Apache-2.0 */
/* abi_data.c - NCCL's calls on memory and messages, in every version's form; see abi.c. */
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>

#include "abi/abi_impl.h"

/* ------------------------------------------------------------------------------------------------
 * Memory.
 */
enum nccl_result abi_reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
	void *handle = NULL;
	int rc;

	if (!mhandle)
		return ABI_MISUSE(-EFAULT, "regMr: no place for the memory handle");
	*mhandle = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!comm)
		return ABI_MISUSE(-EBADF, "regMr: no comm");
	if (type != NCCL_PTR_HOST)
		return ABI_MISUSE(-EOPNOTSUPP,
				  "regMr: memory type %d is not host memory, the only one that "
				  "ptrSupport offers",
				  type);
	if (!data && size > 0)
		return ABI_MISUSE(-EINVAL, "regMr: %zu bytes at no address", size);
	rc = plugin_reg_mr(comm, data, size, &handle);
	if (rc)
		return abi_result(rc);
	*mhandle = handle;
	return NCCL_SUCCESS;
}

enum nccl_result abi_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
	if (size < 0) {
		if (mhandle)
			*mhandle = NULL;
		return ABI_MISUSE(-EINVAL, "regMr: size %d is negative", size);
	}
	return abi_reg_mr_v8(comm, data, (size_t)size, type, mhandle);
}

enum nccl_result abi_dereg_mr_v6(void *comm, void *mhandle)
{
	int rc;

	(void)comm;
	if (!mhandle || lifetime_in_child())
		return NCCL_SUCCESS;
	rc = plugin_dereg_mr(mhandle);
	if (rc == -ENOENT)
		return ABI_MISUSE(-EINVAL, "deregMr: no memory is registered as %p, or no more",
				  mhandle);
	return abi_result(rc);
}

/* ------------------------------------------------------------------------------------------------
 * Profiler events: one for each isend and irecv that has a profiler handle.
 */

/* A function of libnccl's, the same for all communicators. Writer: init. Reader: isend, irecv, test. */
static _Atomic(nccl_profiler) abi_profiler;

void abi_set_profiler(nccl_profiler profiler)
{
	if (profiler)
		atomic_store_explicit(&abi_profiler, profiler, memory_order_release);
}

static void abi_event_start(struct request *request, void *phandle)
{
	nccl_profiler profiler = atomic_load_explicit(&abi_profiler, memory_order_acquire);
	struct comm_event *event = profiler ? plugin_event_begin(request) : NULL;

	/* No event is no reason to fail: the profiler has lost it. */
	if (event && profiler(&event->handle, NCCL_PROFILER_START, phandle, HARP_PROFILER_PLUGIN_ID,
			      &event->data))
		event->handle = NULL;
}

static void abi_event_stop(struct request *request, int error)
{
	struct comm_event *event = plugin_event_end(request, error);

	if (event)
		atomic_load_explicit(&abi_profiler,
				     memory_order_acquire)(&event->handle,
							   NCCL_PROFILER_UPDATE_AND_STOP, NULL,
							   HARP_PROFILER_PLUGIN_ID, &event->data);
}

/* ------------------------------------------------------------------------------------------------
 * Data.
 */
enum nccl_result abi_isend_v9(void *send_comm, void *data, size_t size, int tag, void *mhandle,
			      void **request)
{
	struct request *posted = NULL;
	int rc;

	if (!request)
		return ABI_MISUSE(-EFAULT, "isend: no place for the request");
	*request = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!send_comm)
		return ABI_MISUSE(-EBADF, "isend: no comm");
	if (!data && size > 0)
		return ABI_MISUSE(-EFAULT, "isend: %zu bytes at no address", size);
	rc = plugin_isend(send_comm, data, size, tag, mhandle, &posted);
	if (rc)
		return abi_result(rc);
	*request = posted;
	return NCCL_SUCCESS;
}

enum nccl_result abi_isend_v6(void *send_comm, void *data, int size, int tag, void *mhandle,
			      void **request)
{
	if (size < 0) {
		if (request)
			*request = NULL;
		return ABI_MISUSE(-EINVAL, "isend: size %d is negative", size);
	}
	return abi_isend_v9(send_comm, data, (size_t)size, tag, mhandle, request);
}

enum nccl_result abi_isend_v10(void *send_comm, void *data, size_t size, int tag, void *mhandle,
			       void *phandle, void **request)
{
	enum nccl_result result = abi_isend_v9(send_comm, data, size, tag, mhandle, request);

	if (phandle && result == NCCL_SUCCESS && *request)
		abi_event_start(*request, phandle);
	return result;
}

enum nccl_result abi_irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
			      void **mhandles, void **request)
{
	struct request *posted = NULL;
	int rc;

	if (!request)
		return ABI_MISUSE(-EFAULT, "irecv: no place for the request");
	*request = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!recv_comm)
		return ABI_MISUSE(-EBADF, "irecv: no comm");
	if (n != 1)
		return ABI_MISUSE(-EINVAL, "irecv: %d buffers at once, maxRecvs is 1", n);
	if (!data || !sizes)
		return ABI_MISUSE(-EFAULT, "irecv: no list of buffers or sizes");
	if (!data[0] && sizes[0] > 0)
		return ABI_MISUSE(-EFAULT, "irecv: %zu bytes at no address", sizes[0]);
	rc = plugin_irecv(recv_comm, data[0], sizes[0], tags ? tags[0] : 0,
			  mhandles ? mhandles[0] : NULL, &posted);
	if (rc)
		return abi_result(rc);
	*request = posted;
	return NCCL_SUCCESS;
}

enum nccl_result abi_irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags,
			      void **mhandles, void **request)
{
	size_t size = 0;

	if (n == 1 && sizes) {
		if (sizes[0] < 0) {
			if (request)
				*request = NULL;
			return ABI_MISUSE(-EINVAL, "irecv: size %d is negative", sizes[0]);
		}
		size = (size_t)sizes[0];
	}
	return abi_irecv_v9(recv_comm, n, data, sizes ? &size : NULL, tags, mhandles, request);
}

enum nccl_result abi_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
			       void **mhandles, void **phandles, void **request)
{
	enum nccl_result result = abi_irecv_v9(recv_comm, n, data, sizes, tags, mhandles, request);

	if (phandles && phandles[0] && result == NCCL_SUCCESS && *request)
		abi_event_start(*request, phandles[0]);
	return result;
}

/* Host memory has nothing to flush: no request means done. */
enum nccl_result abi_iflush_v6(void *recv_comm, int n, void **data, int *sizes, void **mhandles,
			       void **request)
{
	(void)recv_comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mhandles;
	if (request)
		*request = NULL;
	return NCCL_SUCCESS;
}

enum nccl_result abi_test_v6(void *request, int *done, int *sizes)
{
	size_t size = 0;
	int rc;

	if (!done)
		return ABI_MISUSE(-EFAULT, "test: no place for the answer");
	*done = 0;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!request || request == NCCL_REQUEST_OPTIONAL)
		return ABI_MISUSE(-EBADF, "test: %p is no request", request);
	rc = plugin_test(request, done, &size);
	if (rc || *done)
		abi_event_stop(request, rc);
	if (rc) {
		*done = 0;
		return abi_result(rc);
	}
	/* sizes is an int in every version. */
	if (*done && sizes)
		*sizes = size > INT_MAX ? INT_MAX : (int)size;
	return NCCL_SUCCESS;
}
