/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_take.h - may a DPDK port be taken from the kernel? */
#ifndef HARP_HOST_DPDK_TAKE_H
#define HARP_HOST_DPDK_TAKE_H

#include <stddef.h>

#include "harp_host.h"

/*
 * Refuses a device by whose interface the host's default route leaves, of either family, unless the port's text says
 * take=default-route: whoever took it would cut the host off. 0, or -EBUSY with one line in why that begins with the
 * device. Interfaces are those of the calling thread's network namespace.
 */
int dpdk_take_check(const struct harp_port_spec *spec, char *why, size_t why_len);
/* The same with another /sys/bus/pci/devices, for tests. */
int dpdk_take_check_at(const struct harp_port_spec *spec, const char *pci_devices, char *why,
		       size_t why_len);

#endif
