/* SPDX-License-Identifier: Apache-2.0 */
/*
 * af_xdp_abi.h - the AF_XDP system interface. Declares the parts that Debian 12's headers (Linux
 * 6.1) lack and asserts every layout.
 *
 * Source: include/uapi/linux/if_xdp.h and Documentation/networking/af_xdp.rst of Linux 6.18.
 */
#ifndef HARP_NIC_AF_XDP_ABI_H
#define HARP_NIC_AF_XDP_ABI_H

#include <assert.h>
#include <linux/if_xdp.h>
#include <stddef.h>
#include <sys/socket.h>

#include "harp_nic.h"

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif

/* Linux 6.6: packets of several descriptors ("Multi-Buffer Support"). */
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif
/* Linux 6.17: number of packets that one sendto() sends in copy mode (32 before). */
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

/* The kernel reserves this at the beginning of each chunk for XDP (include/net/xdp.h). */
#define AF_XDP_HEADROOM_BYTES 256u
/* Copy mode builds one skb: its linear part and MAX_SKB_FRAGS (17) fragments. */
#define AF_XDP_COPY_FRAGS_MAX 18u
/* A zero-copy driver that accepts XDP_USE_SG has an xdp_zc_max_segs of at least 2. */
#define AF_XDP_ZEROCOPY_FRAGS_MIN 2u

static_assert(sizeof(struct sockaddr_xdp) == 16, "struct sockaddr_xdp");
static_assert(offsetof(struct sockaddr_xdp, sxdp_queue_id) == 8, "struct sockaddr_xdp");
static_assert(sizeof(struct xdp_umem_reg) == 32, "struct xdp_umem_reg");
static_assert(offsetof(struct xdp_umem_reg, flags) == 24, "struct xdp_umem_reg");
static_assert(sizeof(struct xdp_ring_offset) == 32, "offsets with flags (Linux 5.4)");
static_assert(sizeof(struct xdp_mmap_offsets) == 128, "struct xdp_mmap_offsets");
static_assert(sizeof(struct xdp_statistics) == 48, "statistics of Linux 5.9");

/* The NIC interface uses the rings' descriptors without conversion. */
static_assert(sizeof(struct harp_desc) == sizeof(struct xdp_desc), "desc");
static_assert(offsetof(struct harp_desc, addr) == offsetof(struct xdp_desc, addr), "desc.addr");
static_assert(offsetof(struct harp_desc, len) == offsetof(struct xdp_desc, len), "desc.len");
static_assert(offsetof(struct harp_desc, flags) == offsetof(struct xdp_desc, options), "flags");
static_assert(HARP_DESC_MORE == XDP_PKT_CONTD, "more descriptors follow");

#endif
