/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_driver.c - the CUDA driver functions that NCCL calls, for the same device as cuda.c.
 *
 * NCCL looks up many entry points and calls few. The others are stubs: a call ends the process with
 * the name of the function.
 */
#include "emulation.h"

#include <string.h>
#include <unistd.h>

typedef enum cuda_error err_t;

/* CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE */
#define DRIVER_PARAM_POINTER ((void *)1)
#define DRIVER_PARAM_BYTES ((void *)2)

/* ---- kernels --------------------------------------------------------------------------------- */

/* NCCL 2.22 and later pass the arguments as one block through `extra`. */
static err_t driver_launch(const void *function, unsigned blocks, void *stream, void **extra)
{
	const void *args = NULL;
	size_t bytes = 0;

	for (size_t i = 0; extra && extra[i]; i += 2) {
		if (extra[i] == DRIVER_PARAM_POINTER)
			args = extra[i + 1];
		else if (extra[i] == DRIVER_PARAM_BYTES)
			memcpy(&bytes, extra[i + 1], sizeof(bytes));
	}
	if (!args || !bytes)
		emulation_fail("NCCL %d launched %s() without a block of arguments",
			       library_version(), library_name_at(function));
	cuda_launch(function, blocks, cuda_stream(stream), args, bytes);
	return CUDA_SUCCESS;
}

struct driver_launch_config {
	unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
	void *stream, *attributes;
	unsigned attribute_count;
};

static err_t launch_kernel_ex(const struct driver_launch_config *config, const void *function,
			      void **params, void **extra)
{
	(void)params;
	return driver_launch(function, config->grid_x, config->stream, extra);
}

static err_t launch_kernel(const void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			   unsigned block_x, unsigned block_y, unsigned block_z,
			   unsigned shared_bytes, void *stream, void **params, void **extra)
{
	(void)grid_y;
	(void)grid_z;
	(void)block_x;
	(void)block_y;
	(void)block_z;
	(void)shared_bytes;
	(void)params;
	return driver_launch(function, grid_x, stream, extra);
}

/* ---- the device and its context -------------------------------------------------------------- */

static int driver_context; /* its address is the one context */

static err_t succeed(void)
{
	return CUDA_SUCCESS;
}

static err_t driver_version(int *version)
{
	*version = cuda_driver_version();
	return CUDA_SUCCESS;
}

static err_t device_get(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal ? CUDA_INVALID_DEVICE : CUDA_SUCCESS;
}

static err_t device_attribute(int *value, int attribute, int device)
{
	(void)device;
	*value = cuda_attribute(attribute);
	return CUDA_SUCCESS;
}

/* The process id is unique enough, because the ranks are processes of different hosts. */
static err_t device_uuid(void *uuid, int device)
{
	int words[4] = { getpid(), device };

	memcpy(uuid, words, sizeof(words));
	return CUDA_SUCCESS;
}

static err_t context_device(int *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

static err_t context_current(void **context)
{
	*context = &driver_context;
	return CUDA_SUCCESS;
}

/* ---- memory and errors ----------------------------------------------------------------------- */

static err_t address_range(void **start, size_t *bytes, void *address)
{
	struct memory_block block;

	if (!memory_find(address, &block))
		return CUDA_INVALID_VALUE;
	if (start)
		*start = block.start;
	if (bytes)
		*bytes = block.bytes;
	return CUDA_SUCCESS;
}

/* NCCL 2.30 and 2.31 call it although attribute 102 says that there is no virtual memory
 * management. */
static err_t no_virtual_memory(void)
{
	return CUDA_NOT_SUPPORTED;
}

static err_t error_string(err_t error, const char **text)
{
	*text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "an error of the emulated driver";
	return CUDA_SUCCESS;
}

#define ENTRY(name, function)                                                                      \
	{                                                                                          \
		name, (void *)function                                                             \
	}

static const struct replacement driver_calls[] = {
	ENTRY("cuCtxCreate", context_current),
	ENTRY("cuCtxDestroy", succeed),
	ENTRY("cuCtxGetCurrent", context_current),
	ENTRY("cuCtxGetDevice", context_device),
	ENTRY("cuCtxSetCurrent", succeed),
	ENTRY("cuDeviceGet", device_get),
	ENTRY("cuDeviceGetAttribute", device_attribute),
	ENTRY("cuDeviceGetUuid", device_uuid),
	ENTRY("cuDeviceGetUuid_v2", device_uuid),
	ENTRY("cuDriverGetVersion", driver_version),
	ENTRY("cuGetErrorName", error_string),
	ENTRY("cuGetErrorString", error_string),
	ENTRY("cuInit", succeed),
	ENTRY("cuLaunchKernel", launch_kernel),
	ENTRY("cuLaunchKernelEx", launch_kernel_ex),
	ENTRY("cuMemGetAddressRange", address_range),
	ENTRY("cuMemGetAllocationGranularity", no_virtual_memory),
};

void *cuda_driver_function(const char *name)
{
	for (size_t i = 0; i < sizeof(driver_calls) / sizeof(driver_calls[0]); i++)
		if (!strcmp(driver_calls[i].name, name))
			return driver_calls[i].function;
	return library_stub(name);
}
