/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - whose queues this process uses: harpd's, asked once at the first init, or its own.
 */
#ifndef HARP_PLUGIN_DAEMON_H
#define HARP_PLUGIN_DAEMON_H

#include "plugin.h"

/*
 * Reads the configuration: the environment, and beneath it what harpd says of harp.toml, if HARP_DAEMON lets
 * us ask and there is a harpd. What was chosen, and why, is logged. -EINVAL a bad value; -EPROTONOSUPPORT
 * HARP_DAEMON=require, and there is none.
 */
int plugin_daemon_load(void);
/* The NICs that harpd leases; none without it. */
const struct harp_lease_device *plugin_daemon_devices(unsigned *count);
/* harpd's socket when it leases this device, else NULL, and why not (one line). */
const char *plugin_daemon_socket(const struct device *device, char *why, size_t why_len);
/* Of this process's network namespace, as harp_lease.h numbers them; 0: not known. */
uint64_t plugin_netns(void);

#endif
