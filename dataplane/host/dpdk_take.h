/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_take.h - checks whether a DPDK port may be taken from the kernel. */
#ifndef HARP_HOST_DPDK_TAKE_H
#define HARP_HOST_DPDK_TAKE_H

#include <stddef.h>

#include "harp_host.h"

/*
 * Refuses a device whose interface carries the host's default route (IPv4 or IPv6), because opening
 * it would cut the host off. take=default-route in the port's specification permits it. Considers
 * the calling thread's network namespace. 0, or -EBUSY with a line in why that begins with the
 * device.
 */
int dpdk_take_check(const struct harp_port_spec *spec, char *why, size_t why_len);
/* The same with another /sys/bus/pci/devices, for tests. */
int dpdk_take_check_at(const struct harp_port_spec *spec, const char *pci_devices, char *why,
		       size_t why_len);

#endif
