/* SPDX-License-Identifier: Apache-2.0 */
/* nic.h - shared by the files of a queue pair's NIC. */
#ifndef HARP_DPDK_NIC_H
#define HARP_DPDK_NIC_H

#include "dpdk/quiesce.h"

static inline struct dpdk_nic *nic_of(struct harp_nic *nic)
{
	return (struct dpdk_nic *)nic;
}

/* Enclose code that may access the lists of the pool and of external frames. */
static inline void nic_enter(struct dpdk_nic *nic)
{
	pool_enter(nic->pool);
	external_enter(nic->external);
}

static inline void nic_leave(struct dpdk_nic *nic)
{
	external_leave(nic->external);
	pool_leave(nic->pool);
}

/* harp_nic_ops of the same names. nic_rx.c */
unsigned nic_fill(struct harp_nic *harp_nic, const uint64_t *addrs, unsigned count);
unsigned nic_rx(struct harp_nic *harp_nic, struct harp_desc *descs, unsigned max, uint64_t now_ns);

/* nic_tx.c */
unsigned nic_tx(struct harp_nic *harp_nic, const struct harp_desc *descs, unsigned count,
		uint64_t now_ns);
unsigned nic_complete(struct harp_nic *harp_nic, uint64_t *addrs, unsigned max, uint64_t now_ns);
void nic_kick(struct harp_nic *nic, uint64_t now_ns);
/* Makes the driver release sent mbufs that it has not reported, if it supports that. Enters and
 * leaves the NIC. */
void nic_clean_inside(struct dpdk_nic *nic);

#endif
