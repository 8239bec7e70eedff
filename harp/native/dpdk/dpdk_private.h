/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations for the files of this folder. */
#ifndef HARP_NATIVE_DPDK_PRIVATE_H
#define HARP_NATIVE_DPDK_PRIVATE_H

#include <rte_ethdev.h>
#include <string.h>

#include "dpdk.h"
#include "harp_dpdk.h"

/* Writes the explanation to why, and returns the error. */
__attribute__((format(printf, 4, 5))) int dpdk_why(char *why, size_t why_len, int error,
						   const char *format, ...);
/* rte_eth_tx_burst() of packets that the caller keeps; returns how many were sent. */
uint32_t dpdk_send_kept(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint32_t count);

/* The interface of libharp-dpdk.so; NULL: DPDK is not started. */
const struct harp_dpdk_api *dpdk_library(void);

static inline bool dpdk_is_memif(const struct rte_eth_dev_info *info)
{
	return strcmp(info->driver_name, "net_memif") == 0;
}

/* Around each burst (gate.c). False: skip the burst, without dpdk_gate_leave(). */
bool dpdk_gate_enter(void);
void dpdk_gate_leave(void);
void dpdk_gate_shut(void);
void dpdk_gate_open(void);
/* Calls run() in memif's interrupt thread and waits for it; for other drivers in this thread. */
int dpdk_in_driver_thread(uint16_t port, int (*run)(uint16_t port, void *argument), void *argument);
/* rte_eth_rx_burst() and rte_eth_tx_burst() through the gate. */
uint16_t dpdk_rx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count);
uint16_t dpdk_tx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count);

#endif
