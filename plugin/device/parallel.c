/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.c - kernel lanes per NIC; see parallel.h. */
#include "device/parallel.h"
#include "process/config.h"
#include "device/device.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/*
 * Clouds limit one flow to a part of what the machine may send, so NCCL opens several sockets where it
 * recognises one (NCCL contract section 4.5): the vendor of the NIC's PCI function decides. Its variables
 * beat that, each by itself; NCCL_NSOCKS_PERTHREAD without threads means nothing there, so
 * neither does it here. NCCL allows 64 sockets in all; ours share a message as they come along and
 * not in fixed parts, 16 of them are enough.
 */
#define PARALLEL_VENDOR_ENA 0x1d0fu
#define PARALLEL_VENDOR_GVNIC 0x1ae0u

static unsigned parallel_vendor(const struct device *device)
{
	char path[PATH_MAX];
	unsigned vendor = 0;
	FILE *file;

	if (!device->pci_path[0] ||
	    snprintf(path, sizeof(path), "%s/vendor", device->pci_path) >= (int)sizeof(path))
		return 0;
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "0x%4x", &vendor) != 1)
		vendor = 0;
	fclose(file);
	return vendor;
}

struct parallel parallel_choose(const struct device *device, const struct plugin_config *config)
{
	unsigned vendor = parallel_vendor(device), threads = 0, sockets = 1, lanes;

	if (vendor == PARALLEL_VENDOR_ENA) {
		threads = 2;
		sockets = 8;
	} else if (vendor == PARALLEL_VENDOR_GVNIC) {
		threads = 4;
	}
	if (config->nccl_threads >= 0)
		threads = (unsigned)config->nccl_threads;
	if (config->nccl_sockets_per_thread >= 0)
		sockets = (unsigned)config->nccl_sockets_per_thread;
	if (threads > PARALLEL_THREADS_MAX)
		threads = PARALLEL_THREADS_MAX;
	if (sockets > PARALLEL_LANES_MAX)
		sockets = PARALLEL_LANES_MAX;
	lanes = config->kernel_lanes ? config->kernel_lanes : threads * sockets;
	if (lanes > PARALLEL_LANES_MAX)
		lanes = PARALLEL_LANES_MAX;
	return (struct parallel){ .lanes = lanes ? lanes : 1 };
}

struct parallel parallel_of(int dev)
{
	const struct device *device = plugin_device(dev);

	if (!device)
		return (struct parallel){ .lanes = 1 };
	return parallel_choose(device, plugin_config());
}
