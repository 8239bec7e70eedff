/* SPDX-License-Identifier: Apache-2.0 */
/* steer.c - flow rules: packets to a local port go to a queue, where the device has them. */
#include <errno.h>

#include "dpdk/port.h"

int port_steer(struct harp_dpdk_port *harp_port, uint8_t protocol, uint16_t local_port,
	       uint32_t queue, bool add)
{
	(void)harp_port, (void)protocol, (void)local_port, (void)queue, (void)add;
	return -ENOTSUP;
}
