/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder tell each other. */
#ifndef HARP_NATIVE_DPDK_PRIVATE_H
#define HARP_NATIVE_DPDK_PRIVATE_H

#include <rte_common.h>

#include "dpdk.h"

/* Writes the line and returns the error. */
__attribute__((format(printf, 4, 5))) int dpdk_why(char *why, size_t why_len, int error,
						   const char *format, ...);
/* rte_eth_tx_burst() of packets that stay the caller's; returns how many. */
uint32_t dpdk_send_kept(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint32_t count);

#endif
