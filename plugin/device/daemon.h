/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - harpd's devices and settings, queried by the first init.
 */
#ifndef HARP_PLUGIN_DAEMON_H
#define HARP_PLUGIN_DAEMON_H

#include "device/device.h"
#include "process/config.h"

/*
 * Reads the configuration: the environment, which overrides harp.toml's settings from harpd. Logs
 * the choice and its reason. -EINVAL: a bad value, or a harp.toml that cannot be read;
 * -EPROTONOSUPPORT: HARP_DAEMON=require and no harpd; -EIO: harpd does not answer, and harp.toml
 * may require encryption.
 */
int plugin_daemon_load(void);
/* The NICs that harpd leases; none without harpd. */
const struct harp_lease_device *plugin_daemon_devices(unsigned *count);
/* harpd's socket if it leases this device, else NULL, with one line in why. */
const char *plugin_daemon_socket(const struct device *device, char *why, size_t why_len);
/* Does harpd lease this device with a generic XDP program? */
bool plugin_daemon_is_generic(const struct device *device);
/* The inode number of this process's network namespace (harp_lease.h); 0: unknown. */
uint64_t plugin_netns(void);

#endif
