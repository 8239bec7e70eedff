/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - how many kernel lanes a comm has over a NIC: as many as NCCL's socket transport would
 * have sockets there, unless HARP is told otherwise.
 */
#ifndef HARP_PLUGIN_PARALLEL_H
#define HARP_PLUGIN_PARALLEL_H

#include "device/device.h"
#include "process/config.h"

#define PARALLEL_LANES_MAX 16u
#define PARALLEL_THREADS_MAX 16u

struct parallel {
	unsigned lanes; /* of a comm over this NIC: 1 .. PARALLEL_LANES_MAX */
};

/* Looks only at its arguments and at the vendor of device->pci_path. */
struct parallel parallel_choose(const struct device *device, const struct plugin_config *config);
/* Of device number dev, by this process's configuration. A dev that there is not gets one lane. */
struct parallel parallel_of(int dev);

#endif
