/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - whose queues this process uses: harpd's, asked once at the first init, or its own.
 */
#ifndef HARP_PLUGIN_DAEMON_H
#define HARP_PLUGIN_DAEMON_H

#include "device/device.h"
#include "process/config.h"

/*
 * Reads the configuration: the environment, and beneath it harp.toml's settings, which harpd tells. What was chosen, and
 * why, is logged. -EINVAL a bad value, or a harp.toml that cannot be read; -EPROTONOSUPPORT HARP_DAEMON=require and no
 * harpd; -EIO harpd is there and does not answer, and harp.toml may require encryption.
 */
int plugin_daemon_load(void);
/* The NICs that harpd leases; none without it. */
const struct harp_lease_device *plugin_daemon_devices(unsigned *count);
/* harpd's socket when it leases this device, else NULL, and why not (one line). */
const char *plugin_daemon_socket(const struct device *device, char *why, size_t why_len);
/* Does harpd lease this device with a generic XDP program? */
bool plugin_daemon_is_generic(const struct device *device);
/* Of this process's network namespace, as harp_lease.h numbers them; 0: not known. */
uint64_t plugin_netns(void);

#endif
