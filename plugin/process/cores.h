/* SPDX-License-Identifier: Apache-2.0 */
/* cores.h - how many processor cores this process may use, and which. */
#ifndef HARP_PLUGIN_CORES_H
#define HARP_PLUGIN_CORES_H

#include <stdbool.h>

/*
 * What the cgroups of a process leave it, in whole cores, rounded up; 0: no limit. proc_cgroup is its
 * /proc/self/cgroup, mounts the folder under which version 2 (or version 1's "cpu") is mounted.
 */
unsigned cores_of_cgroup(const char *proc_cgroup, const char *mounts);
/* Cores this process may use: its affinity, and no more than its cgroups leave it. At least 1. */
unsigned cores_usable(void);
/* May this process's threads run there? */
bool cores_allowed(unsigned core);

#endif
