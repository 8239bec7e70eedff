/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.c - the CUDA runtime functions that NCCL calls, for one device.
 *
 * library.c redirects each function in the table at the end from the library to this file. A call
 * of another function ends the process with its name. Signatures are those of NVIDIA's CUDA runtime
 * API, with opaque handles as void pointers. Trailing arguments that are not used (flags, a pool, a
 * limit) are omitted, because x86-64 passes arguments in registers.
 */
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum cuda_error err_t;

static const char cuda_bus_id[] = "0000:99:00.0"; /* not in sysfs, as in a VM: NCCL accepts that */

/* For calls that only matter on a real GPU: registration of host memory, limits, capture modes. */
static err_t succeed(void)
{
	return CUDA_SUCCESS;
}

/* For the current device, 0, and for access to a peer, which is not possible. */
static err_t return_zero(int *value)
{
	*value = 0;
	return CUDA_SUCCESS;
}

/* ---- streams --------------------------------------------------------------------------------- */

struct stream *cuda_stream(void *handle)
{
	static struct stream *default_stream;

	/* cudaStreamLegacy is 1, cudaStreamPerThread 2: both are the default stream here. */
	if ((uintptr_t)handle > 2)
		return handle;
	if (!__atomic_load_n(&default_stream, __ATOMIC_ACQUIRE)) {
		struct stream *fresh = stream_open(), *none = NULL;

		if (!__atomic_compare_exchange_n(&default_stream, &none, fresh, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			stream_close(fresh);
	}
	return default_stream;
}

/* Ignores the flags: no stream synchronizes with the default stream, as NCCL requests. */
static err_t stream_create(void **stream)
{
	*stream = stream_open();
	return CUDA_SUCCESS;
}

static err_t stream_destroy(void *stream)
{
	stream_close(cuda_stream(stream));
	return CUDA_SUCCESS;
}

static err_t stream_synchronize_call(void *stream)
{
	stream_synchronize(cuda_stream(stream));
	return CUDA_SUCCESS;
}

static err_t stream_query(void *stream)
{
	return stream_is_idle(cuda_stream(stream)) ? CUDA_SUCCESS : CUDA_NOT_READY;
}

static err_t stream_wait_event(void *stream, void *event, unsigned flags)
{
	(void)flags;
	event_wait(event, cuda_stream(stream));
	return CUDA_SUCCESS;
}

static err_t launch_host_function(void *stream, void (*function)(void *), void *arg)
{
	stream_call(cuda_stream(stream), function, arg);
	return CUDA_SUCCESS;
}

/* Streams are never captured into a graph: status 0. */
static err_t stream_is_capturing(void *stream, int *status)
{
	(void)stream;
	*status = 0;
	return CUDA_SUCCESS;
}

/* ---- events ---------------------------------------------------------------------------------- */

static err_t event_create(void **event)
{
	*event = event_open();
	return CUDA_SUCCESS;
}

static err_t event_destroy(void *event)
{
	event_close(event);
	return CUDA_SUCCESS;
}

static err_t event_record_call(void *event, void *stream)
{
	event_record(event, cuda_stream(stream));
	return CUDA_SUCCESS;
}

static err_t event_query(void *event)
{
	return event_is_complete(event) ? CUDA_SUCCESS : CUDA_NOT_READY;
}

static err_t event_synchronize_call(void *event)
{
	event_synchronize(event);
	return CUDA_SUCCESS;
}

/* ---- copies ---------------------------------------------------------------------------------- */

struct copy {
	void *target;
	const void *source; /* may point to staged */
	size_t bytes;
	int value; /* for memset, which has no source */
	char staged[];
};

static void copy_run(void *arg)
{
	struct copy *copy = arg;

	if (copy->source)
		memcpy(memory_view(copy->target), memory_view(copy->source), copy->bytes);
	else
		memset(memory_view(copy->target), copy->value, copy->bytes);
	free(copy);
}

static bool copy_is_pageable(const void *address)
{
	struct memory_block block;

	return !memory_is_device(address) && !memory_find(address, &block);
}

/*
 * When the call returns, pageable memory has been read and written: NCCL relies on both (CUDA
 * runtime API, "API synchronization behavior").
 */
static err_t memcpy_async(void *target, const void *source, size_t bytes, int kind, void *stream)
{
	bool is_staged = copy_is_pageable(source);
	struct copy *copy = emulation_alloc(sizeof(*copy) + (is_staged ? bytes : 0));

	(void)kind;
	*copy = (struct copy){ .target = target, .source = source, .bytes = bytes };
	if (is_staged)
		copy->source = memcpy(copy->staged, source, bytes);
	stream_call(cuda_stream(stream), copy_run, copy);
	if (copy_is_pageable(target))
		stream_synchronize(cuda_stream(stream));
	return CUDA_SUCCESS;
}

static err_t memcpy_call(void *target, const void *source, size_t bytes, int kind)
{
	memcpy_async(target, source, bytes, kind, NULL);
	return stream_synchronize_call(NULL);
}

static err_t memset_async(void *target, int value, size_t bytes, void *stream)
{
	struct copy *copy = emulation_alloc(sizeof(*copy));

	*copy = (struct copy){ .target = target, .bytes = bytes, .value = value };
	stream_call(cuda_stream(stream), copy_run, copy);
	return CUDA_SUCCESS;
}

static err_t memset_call(void *target, int value, size_t bytes)
{
	memset_async(target, value, bytes, NULL);
	return stream_synchronize_call(NULL);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static err_t malloc_call(void **address, size_t bytes)
{
	*address = memory_alloc(MEMORY_DEVICE, bytes);
	return *address ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

static err_t free_call(void *address)
{
	memory_free(MEMORY_DEVICE, address);
	return CUDA_SUCCESS;
}

static void free_later(void *address)
{
	memory_free(MEMORY_DEVICE, address);
}

static err_t free_async(void *address, void *stream)
{
	stream_call(cuda_stream(stream), free_later, address);
	return CUDA_SUCCESS;
}

static err_t pool_create(void **pool, const void *properties)
{
	(void)properties;
	*pool = emulation_alloc(1);
	return CUDA_SUCCESS;
}

static err_t pool_destroy(void *pool)
{
	free(pool);
	return CUDA_SUCCESS;
}

/* All pinned memory is mapped and portable. */
static err_t host_alloc(void **address, size_t bytes)
{
	*address = memory_alloc(MEMORY_PINNED, bytes);
	return CUDA_SUCCESS;
}

static err_t free_host(void *address)
{
	memory_free(MEMORY_PINNED, address);
	return CUDA_SUCCESS;
}

static err_t host_device_pointer(void **device, void *host, unsigned flags)
{
	(void)flags;
	*device = host;
	return CUDA_SUCCESS;
}

static err_t memory_info(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = *total_bytes = MEMORY_DEVICE_BYTES;
	return CUDA_SUCCESS;
}

struct pointer_attributes {
	int type, device;
	void *device_pointer, *host_pointer;
};

static err_t pointer_attributes(struct pointer_attributes *attributes, const void *address)
{
	struct memory_block block = { .kind = MEMORY_PAGEABLE };
	void *pointer = (void *)(uintptr_t)address;

	memory_find(address, &block);
	*attributes = (struct pointer_attributes){
		.type = (int)block.kind,
		.device_pointer = pointer,
		.host_pointer = block.kind == MEMORY_DEVICE ? NULL : pointer,
	};
	return CUDA_SUCCESS;
}

/* ---- the device ------------------------------------------------------------------------------ */

int cuda_driver_version(void)
{
	/* NCCL 2.18 to 2.32 for CUDA 12 accept it, and request no newer functions. */
	return 12080;
}

/* cudaDeviceAttr and CUdevice_attribute share their numbers. */
int cuda_attribute(int attribute)
{
	switch (attribute) {
	case 1: /* threads per block */
		return 1024;
	case 8: /* shared memory per block */
		return 48 << 10;
	case 10: /* threads per warp */
		return 32;
	case 16: /* multiprocessors */
		return 64;
	case 39: /* threads per multiprocessor */
		return 2048;
	case 41: /* unified addressing */
		return 1;
	case 75: /* compute capability, major: Ampere, which has no fabric and no multicast */
		return 8;
	case 76: /* compute capability, minor */
		return 0;
	case 97: /* shared memory per block, after opting in */
		return 163 << 10;
	case 102: /* virtual memory management */
	case 110: /* GPUDirect RDMA of such memory */
	case 115: /* memory pools */
	case 116: /* GPUDirect RDMA */
	case 117: /* GPUDirect RDMA: how to flush */
	case 124: /* DMA-BUF */
	case 128: /* fabric handles */
	case 132: /* multicast */
		return 0;
	default:
		emulation_fail("NCCL %d reads device attribute %d, which is not emulated; add it "
			       "to cuda_attribute()",
			       library_version(), attribute);
	}
}

static err_t device_attribute(int *value, int attribute, int device)
{
	(void)device;
	*value = cuda_attribute(attribute);
	return CUDA_SUCCESS;
}

static err_t driver_version(int *version)
{
	*version = cuda_driver_version();
	return CUDA_SUCCESS;
}

static err_t set_device(int device)
{
	return device ? CUDA_INVALID_DEVICE : CUDA_SUCCESS;
}

static err_t device_count(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

static const char *error_string(err_t error)
{
	switch (error) {
	case CUDA_SUCCESS:
		return "no error";
	case CUDA_INVALID_VALUE:
		return "invalid argument";
	case CUDA_OUT_OF_MEMORY:
		return "out of memory";
	case CUDA_INVALID_DEVICE:
		return "invalid device ordinal";
	case CUDA_NOT_READY:
		return "device not ready";
	case CUDA_NOT_SUPPORTED:
		return "operation not supported";
	}
	return "unknown error";
}

/* The start of cudaDeviceProp. NCCL does not read the other fields. */
struct device_properties {
	char name[256];
	char uuid[16], luid[8];
	unsigned luid_mask;
	size_t memory_bytes;
};

_Static_assert(offsetof(struct device_properties, memory_bytes) == 288,
	       "cudaDeviceProp of CUDA 12");

static err_t device_properties(struct device_properties *properties, int device)
{
	(void)device;
	*properties = (struct device_properties){ .name = "emulated GPU",
						  .memory_bytes = MEMORY_DEVICE_BYTES };
	return CUDA_SUCCESS;
}

static err_t pci_bus_id(char *bus_id, int bytes, int device)
{
	(void)device;
	snprintf(bus_id, (size_t)bytes, "%s", cuda_bus_id);
	return CUDA_SUCCESS;
}

static err_t device_get_limit(size_t *value, int limit)
{
	(void)limit;
	*value = 1024;
	return CUDA_SUCCESS;
}

/* Memory cannot be shared with another process: the other rank is on another host. */
static err_t ipc_handle(void *handle, void *address)
{
	(void)handle;
	(void)address;
	return CUDA_NOT_SUPPORTED;
}

/* ---- kernels --------------------------------------------------------------------------------- */

struct function_attributes {
	size_t shared_bytes, constant_bytes, local_bytes;
	int threads_max, registers, ptx_version, binary_version, cache_mode,
		dynamic_shared_bytes_max, carveout;
};

static err_t function_attributes(struct function_attributes *attributes, const void *function)
{
	(void)function;
	*attributes = (struct function_attributes){
		.threads_max = 1024,
		.registers = 96,
		.ptx_version = 80,
		.binary_version = 80,
		.dynamic_shared_bytes_max = 48 << 10,
	};
	return CUDA_SUCCESS;
}

static err_t function_by_symbol(const void **function, const void *symbol)
{
	*function = symbol;
	return CUDA_SUCCESS;
}

struct launch {
	const char *kernel;
	unsigned blocks;
	size_t bytes;
	char args[] __attribute__((aligned(16)));
};

static void launch_run(void *arg)
{
	struct launch *launch = arg;

	kernel_run(launch->kernel, launch->args, launch->bytes, launch->blocks);
	free(launch);
}

void cuda_launch(const void *function, unsigned blocks, struct stream *stream, const void *args,
		 size_t bytes)
{
	struct launch *launch = emulation_alloc(sizeof(*launch) + bytes);

	launch->kernel = library_name_at(function);
	launch->blocks = blocks;
	launch->bytes = bytes;
	memcpy(launch->args, args, bytes);
	stream_call(stream, launch_run, launch);
}

/* NCCL up to 2.21: kernels take (comm, channelMask, workHead). */
static void launch_three(const void *function, unsigned blocks, void *stream, void **args)
{
	uint64_t words[3];

	for (size_t i = 0; i < 3; i++)
		memcpy(&words[i], args[i], sizeof(words[i]));
	cuda_launch(function, blocks, cuda_stream(stream), words, sizeof(words));
}

struct dimensions {
	unsigned x, y, z;
};

struct launch_config {
	struct dimensions grid, block;
	size_t shared_bytes;
	void *stream, *attributes;
	unsigned attribute_count;
};

static err_t launch_kernel_ex(const struct launch_config *config, const void *function, void **args)
{
	launch_three(function, config->grid.x, config->stream, args);
	return CUDA_SUCCESS;
}

static err_t launch_kernel(const void *function, struct dimensions grid, struct dimensions block,
			   void **args, size_t shared_bytes, void *stream)
{
	(void)block;
	(void)shared_bytes;
	launch_three(function, grid.x, stream, args);
	return CUDA_SUCCESS;
}

/* ---- the driver's entry points --------------------------------------------------------------- */

static err_t driver_entry_point(const char *name, void **function, unsigned long long flags,
				int *status)
{
	(void)flags;
	*function = cuda_driver_function(name);
	if (status)
		*status = 0;
	return CUDA_SUCCESS;
}

static err_t driver_entry_point_by_version(const char *name, void **function, unsigned version,
					   unsigned long long flags, int *status)
{
	(void)version;
	return driver_entry_point(name, function, flags, status);
}

#define ENTRY(name, function)                                                                      \
	{                                                                                          \
		name, (void *)function                                                             \
	}

const struct replacement cuda_runtime[] = {
	ENTRY("cudaDeviceCanAccessPeer", return_zero),
	ENTRY("cudaDeviceGetAttribute", device_attribute),
	ENTRY("cudaDeviceGetLimit", device_get_limit),
	ENTRY("cudaDeviceGetPCIBusId", pci_bus_id),
	ENTRY("cudaDeviceSetLimit", succeed),
	ENTRY("cudaDriverGetVersion", driver_version),
	ENTRY("cudaEventCreate", event_create),
	ENTRY("cudaEventCreateWithFlags", event_create),
	ENTRY("cudaEventDestroy", event_destroy),
	ENTRY("cudaEventQuery", event_query),
	ENTRY("cudaEventRecord", event_record_call),
	ENTRY("cudaEventSynchronize", event_synchronize_call),
	ENTRY("cudaFree", free_call),
	ENTRY("cudaFreeAsync", free_async),
	ENTRY("cudaFreeHost", free_host),
	ENTRY("cudaFuncGetAttributes", function_attributes),
	ENTRY("cudaFuncSetAttribute", succeed),
	ENTRY("cudaGetDevice", return_zero),
	ENTRY("cudaGetDeviceCount", device_count),
	ENTRY("cudaGetDeviceProperties_v2", device_properties),
	ENTRY("cudaGetDriverEntryPoint", driver_entry_point),
	ENTRY("cudaGetDriverEntryPointByVersion", driver_entry_point_by_version),
	ENTRY("cudaGetErrorName", error_string),
	ENTRY("cudaGetErrorString", error_string),
	ENTRY("cudaGetFuncBySymbol", function_by_symbol),
	ENTRY("cudaGetLastError", succeed),
	ENTRY("cudaHostAlloc", host_alloc),
	ENTRY("cudaHostGetDevicePointer", host_device_pointer),
	ENTRY("cudaHostRegister", succeed),
	ENTRY("cudaHostUnregister", succeed),
	ENTRY("cudaIpcGetMemHandle", ipc_handle),
	ENTRY("cudaLaunchHostFunc", launch_host_function),
	ENTRY("cudaLaunchKernel", launch_kernel),
	ENTRY("cudaLaunchKernelExC", launch_kernel_ex),
	ENTRY("cudaMalloc", malloc_call),
	ENTRY("cudaMallocAsync", malloc_call),
	ENTRY("cudaMallocFromPoolAsync", malloc_call),
	ENTRY("cudaMallocHost", host_alloc),
	ENTRY("cudaMemGetInfo", memory_info),
	ENTRY("cudaMemPoolCreate", pool_create),
	ENTRY("cudaMemPoolDestroy", pool_destroy),
	ENTRY("cudaMemPoolSetAttribute", succeed),
	ENTRY("cudaMemPoolTrimTo", succeed),
	ENTRY("cudaMemcpy", memcpy_call),
	ENTRY("cudaMemcpyAsync", memcpy_async),
	ENTRY("cudaMemset", memset_call),
	ENTRY("cudaMemsetAsync", memset_async),
	ENTRY("cudaPeekAtLastError", succeed),
	ENTRY("cudaPointerGetAttributes", pointer_attributes),
	ENTRY("cudaRuntimeGetVersion", driver_version),
	ENTRY("cudaSetDevice", set_device),
	ENTRY("cudaStreamCreate", stream_create),
	ENTRY("cudaStreamCreateWithFlags", stream_create),
	ENTRY("cudaStreamCreateWithPriority", stream_create),
	ENTRY("cudaStreamDestroy", stream_destroy),
	ENTRY("cudaStreamGetCaptureInfo", stream_is_capturing),
	ENTRY("cudaStreamGetCaptureInfo_v2", stream_is_capturing),
	ENTRY("cudaStreamGetCaptureInfo_v3", stream_is_capturing),
	ENTRY("cudaStreamIsCapturing", stream_is_capturing),
	ENTRY("cudaStreamQuery", stream_query),
	ENTRY("cudaStreamSynchronize", stream_synchronize_call),
	ENTRY("cudaStreamWaitEvent", stream_wait_event),
	ENTRY("cudaThreadExchangeStreamCaptureMode", succeed),
	{ 0 },
};
