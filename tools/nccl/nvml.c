/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml.c - libnvidia-ml.so.1 with one GPU: no NVLink, no fabric, no confidential computing.
 *
 * NCCL looks up the functions by name and accepts that some are missing, unless a comment says
 * otherwise.
 */
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { NVML_SUCCESS = 0, NVML_NOT_SUPPORTED = 3 };

/* Declares a function and starts its definition. */
#define NVML(name, ...)                                                                            \
	EXPORT int name(__VA_ARGS__);                                                              \
	int name(__VA_ARGS__)
/* A function that is not supported; its arguments do not matter. */
#define NVML_UNSUPPORTED(name)                                                                     \
	NVML(name, void)                                                                           \
	{                                                                                          \
		return NVML_NOT_SUPPORTED;                                                         \
	}

static int nvml_device; /* its address is the handle */

NVML(nvmlInit, void)
{
	return NVML_SUCCESS;
}

NVML(nvmlInit_v2, void)
{
	return NVML_SUCCESS;
}

NVML(nvmlShutdown, void)
{
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCount, unsigned *count)
{
	*count = 1;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCount_v2, unsigned *count)
{
	return nvmlDeviceGetCount(count);
}

NVML(nvmlDeviceGetHandleByPciBusId, const char *bus_id, void **device)
{
	(void)bus_id;
	*device = &nvml_device;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, void **device)
{
	return nvmlDeviceGetHandleByPciBusId(bus_id, device);
}

NVML(nvmlDeviceGetHandleByIndex, unsigned index, void **device)
{
	(void)index;
	*device = &nvml_device;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetHandleByIndex_v2, unsigned index, void **device)
{
	return nvmlDeviceGetHandleByIndex(index, device);
}

NVML(nvmlDeviceGetIndex, void *device, unsigned *index)
{
	(void)device;
	*index = 0;
	return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(int result);
const char *nvmlErrorString(int result)
{
	return result == NVML_SUCCESS ? "Success" : "Not Supported";
}

NVML(nvmlDeviceGetCudaComputeCapability, void *device, int *major, int *minor)
{
	(void)device;
	*major = 8;
	*minor = 0;
	return NVML_SUCCESS;
}

struct nvml_pci_info {
	char bus_id_legacy[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

/* NCCL 2.30 and later call it without checking that it exists. */
NVML(nvmlDeviceGetPciInfo_v3, void *device, struct nvml_pci_info *info)
{
	(void)device;
	*info = (struct nvml_pci_info){
		.bus = 0x99,
		.device_id = 0x20b010de, /* A100 */
		.subsystem_id = 0x134f10de,
	};
	snprintf(info->bus_id_legacy, sizeof(info->bus_id_legacy), "0000:99:00.0");
	snprintf(info->bus_id, sizeof(info->bus_id), "00000000:99:00.0");
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetPcieLinkMaxSpeed, void *device, unsigned *speed_mbps)
{
	(void)device;
	*speed_mbps = 16000;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCurrPcieLinkGeneration, void *device, unsigned *generation)
{
	(void)device;
	*generation = 4;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCurrPcieLinkWidth, void *device, unsigned *width)
{
	(void)device;
	*width = 16;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetP2PStatus, void *device, void *peer, int index, int *status)
{
	(void)device;
	(void)peer;
	(void)index;
	*status = 1; /* chipset not supported */
	return NVML_SUCCESS;
}

NVML_UNSUPPORTED(nvmlDeviceGetFieldValues)
NVML_UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkCapability)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NVML_UNSUPPORTED(nvmlDeviceGetNvLinkState)
NVML_UNSUPPORTED(nvmlDeviceGetPciInfoExt)
NVML_UNSUPPORTED(nvmlDeviceGetPlatformInfo)
NVML_UNSUPPORTED(nvmlSystemGetConfComputeSettings)
NVML_UNSUPPORTED(nvmlSystemGetConfComputeState)
