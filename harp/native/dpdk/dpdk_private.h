/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder tell each other. */
#ifndef HARP_NATIVE_DPDK_PRIVATE_H
#define HARP_NATIVE_DPDK_PRIVATE_H

#include <rte_common.h>

#include "dpdk.h"
#include "harp_dpdk.h"

/* Writes the line and returns the error. */
__attribute__((format(printf, 4, 5))) int dpdk_why(char *why, size_t why_len, int error,
						   const char *format, ...);
/* rte_eth_tx_burst() of packets that stay the caller's; returns how many. */
uint32_t dpdk_send_kept(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint32_t count);

/* libharp-dpdk.so's; NULL: not started. */
const struct harp_dpdk_api *dpdk_library(void);

/* Around each burst; false: not now, and nothing to leave. gate.c */
bool dpdk_gate_enter(void);
void dpdk_gate_leave(void);
void dpdk_gate_shut(void);
void dpdk_gate_open(void);
/* Runs it in the thread in which the port's driver connects, and waits for it. */
int dpdk_in_driver_thread(uint16_t port, int (*run)(uint16_t port, void *argument), void *argument);
/* rte_eth_rx_burst() and rte_eth_tx_burst() through the gate. */
struct rte_mbuf;
uint16_t dpdk_rx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count);
uint16_t dpdk_tx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count);

#endif
