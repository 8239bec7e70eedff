/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_nic.h - the interface between the stack and a NIC, and HARP's own NICs.
 *
 * A NIC is a struct of a few functions over one region of equal frames, which are identified by
 * their byte offset in the region. Calls transfer ownership: fill() gives the NIC empty frames for
 * reception, rx() returns them with a packet; tx() gives the NIC frames to send, complete() returns
 * them. One thread at a time calls the functions of a NIC.
 */
#ifndef HARP_NIC_H
#define HARP_NIC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HARP_API
#define HARP_API __attribute__((visibility("default")))
#endif

/* Has the layout of struct xdp_desc (linux/if_xdp.h), so AF_XDP rings need no conversion. */
struct harp_desc {
	uint64_t addr;  /* offset of the first byte in the region */
	uint32_t len;   /* bytes here */
	uint32_t flags; /* HARP_DESC_* */
};
#define HARP_DESC_MORE 0x1u            /* the packet continues in the next descriptor */
#define HARP_DESC_RX_CSUM_VALID 0x100u /* rx: the NIC verified the transport checksum */
/* tx, on the first descriptor of a packet, only if caps.features has it. The transport checksum
 * field holds the folded pseudo-header sum; for TSO without the length (as in Linux and DPDK). */
#define HARP_DESC_TX_CSUM 0x200u /* the NIC fills in the TCP or UDP checksum */
#define HARP_DESC_TX_TSO                                                                           \
	0x400u /* with TX_CSUM: TCP segmentation offload; segments of flags >> MSS_SHIFT bytes */
#define HARP_DESC_MSS_SHIFT 16u

/* Features, in caps.features. */
#define HARP_NIC_RX_CSUM_PARTIAL                                                                   \
	0x1u                     /* a local peer may leave only the folded pseudo-header sum
				       * in the transport checksum field (veth, bridge, tap) */
#define HARP_NIC_TX_MULTI 0x2u   /* tx() accepts packets of several descriptors */
#define HARP_NIC_TX_CSUM 0x8u    /* HARP_DESC_TX_CSUM: TCP and UDP over IPv4 and IPv6 */
#define HARP_NIC_TX_TSO 0x10u    /* HARP_DESC_TX_TSO, both families */
#define HARP_NIC_TX_TSO_V4 0x20u /* with TX_TSO: IPv4 only */
#define HARP_NIC_TX_LAZY 0x40u   /* completion of sent frames may require further transmissions */

struct harp_nic_caps {
	char name[32];       /* interface or wire port */
	char mode[64];       /* for display: "af_xdp generic copy queue 0", "wire" */
	uint8_t *frame_base; /* the region */
	uint32_t frame_size; /* bytes of each frame, a power of two */
	uint32_t frame_count;
	uint32_t rx_headroom;  /* unused bytes at the beginning of a received frame */
	uint32_t rx_ring;      /* frames that the NIC can hold for reception */
	uint32_t tx_ring;      /* frames that the NIC can hold for transmission */
	uint32_t tx_frags_max; /* descriptors of one packet, at least 1 */
	uint32_t mtu_bytes;    /* IP packet, without Ethernet header */
	uint32_t features;     /* HARP_NIC_* */
	uint8_t mac[6];
	uint8_t reserved[2];
	/* bytes at the beginning of each frame that are reserved for the NIC */
	uint32_t frame_reserved;
	uint32_t tso_bytes_max; /* of HARP_NIC_TX_TSO: TCP payload of one packet */
	/*
	 * External frames: memory outside of the region (memory_add), sent in place as a further
	 * descriptor of a packet, never the first. addr is (frame_count + i) * frame_size with i
	 * below external_count. The len bytes are at external[i], an array of the NIC that the
	 * caller writes before tx(). complete() returns the addr when the NIC no longer reads them.
	 */
	uint32_t external_count; /* 0: the NIC has no external frames */
	/* frames that the NIC needs in its ring for full performance. 0: any */
	uint32_t rx_fill_min;
	const uint8_t **external;
};

struct harp_nic_stats {
	uint64_t rx_dropped; /* by the NIC or kernel before they reached the ring */
	uint64_t rx_ring_full, rx_fill_empty, rx_invalid, tx_invalid;
	uint64_t kicks;        /* system calls made to transmit or to wake the NIC */
	uint64_t copied_bytes; /* copied by HARP's own NIC code (0 for AF_XDP) */
	/* copied by the driver, if known (memif, tap, af_packet) */
	uint64_t driver_copied_bytes;
};

struct harp_nic;

struct harp_nic_ops {
	/* Receives: fills in at most max descriptors, always of whole packets, and returns their
	 * number. The frames then belong to the caller. A packet of more than max descriptors
	 * blocks those behind it, so max is at least 64. now_ns is the clock (virtual NICs). */
	unsigned (*rx)(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
		       uint64_t now_ns);
	/* Queues packets; returns the number of descriptors taken (whole packets only). They are
	 * sent at once or at the next kick(). */
	unsigned (*tx)(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
		       uint64_t now_ns);
	/* Returns sent frames (any offset within the frame), and their number. */
	unsigned (*complete)(struct harp_nic *nic, uint64_t *addrs, unsigned max, uint64_t now_ns);
	/* Takes empty frames for reception; returns the number taken. */
	unsigned (*fill)(struct harp_nic *nic, const uint64_t *addrs, unsigned count);
	/* Sends queued packets, and wakes the NIC if necessary. */
	void (*kick)(struct harp_nic *nic, uint64_t now_ns);
	/* Earliest time at which rx() or complete() returns something; UINT64_MAX: unknown. For
	 * virtual clocks, together with harp_stack_next_deadline_ns(). May be NULL. */
	uint64_t (*next_ns)(struct harp_nic *nic);
	/* File descriptor that polls readable when packets are pending, or -1. May be NULL. */
	int (*fd)(struct harp_nic *nic);
	void (*stats)(struct harp_nic *nic, struct harp_nic_stats *out);
	void (*destroy)(struct harp_nic *nic);
	/* NULL if caps.external_count is 0. Makes memory readable for the NIC
	 * (registered, DMA-mapped if the device needs it) until memory_remove(). Memory may be
	 * added several times, and ranges may overlap. -ENOTSUP the device cannot read such memory,
	 * -ENOMEM, -EINVAL. */
	int (*memory_add)(struct harp_nic *nic, const void *base, size_t bytes);
	/* Reverts one memory_add() of exactly this range. -EBUSY while the NIC may still read it:
	 * poll and retry. -ENOENT. */
	int (*memory_remove)(struct harp_nic *nic, const void *base, size_t bytes);
	/* The caller wants this memory back and waits for complete(). Called until then; a NIC
	 * without progress drops what it was to send after a while. May be NULL. */
	void (*memory_flush)(struct harp_nic *nic, const void *base, size_t bytes);
};

/* Implementations embed this as their first member. */
struct harp_nic {
	const struct harp_nic_ops *ops;
	struct harp_nic_caps caps;
};

/* Destroys any NIC. NULL is accepted. */
HARP_API void harp_nic_destroy(struct harp_nic *nic);

/* ------------------------------------------------------------------------------------------------
 * The wire: packets in memory between two or more ports, with configurable impairments.
 * Callers pass the time; randomness comes from the seed.
 */
struct harp_wire;

struct harp_wire_impair {        /* of packets that a port sends */
	uint64_t delay_ns;       /* propagation */
	uint64_t jitter_ns;      /* added, uniform in [0, jitter_ns); does not reorder by itself */
	uint64_t rate_bps;       /* 0: infinite */
	uint64_t queue_bytes;    /* tail-drop limit of the rate limiter's queue. 0: infinite */
	uint32_t ecn_mark_bytes; /* mark CE on ECT packets above this queue depth. 0: never */
	uint32_t loss_ppm;       /* parts per million, like the following */
	uint32_t duplicate_ppm;
	uint32_t reorder_ppm; /* delayed by another reorder_ns */
	uint32_t corrupt_ppm; /* one random bit flipped */
	uint64_t reorder_ns;
	uint32_t down; /* 1: all packets are lost */
	/* 1: rate, queue and marks are those of the switch port towards this port, shared by all
	 * senders; the port itself sends without limit. queue_dropped and ce_marked are counted
	 * there, too. */
	uint32_t inbound;
};

struct harp_wire_options {
	uint32_t size;         /* sizeof(struct harp_wire_options) */
	uint32_t ports;        /* 0: 2. More than two are switched by destination MAC */
	uint32_t frame_size;   /* 0: 2048 */
	uint32_t frame_count;  /* per port. 0: 4096 */
	uint32_t mtu_bytes;    /* 0: 1500 */
	uint32_t packets_max;  /* in flight on the whole wire. 0: 8192 */
	uint32_t strict;       /* 1: hash frames at tx, check them at completion */
	uint32_t tx_frags_max; /* 0: 8 */
	uint64_t seed;
	uint64_t complete_delay_ns;     /* until a sent frame is returned. 0: at once */
	struct harp_wire_impair impair; /* initial, of every port */
	/* Since version 2: NIC offloads HARP_NIC_TX_CSUM, HARP_NIC_TX_TSO, and external frames,
	 * hashed in strict mode. */
	uint32_t offloads;
	uint32_t external_count; /* 0: none */
	uint32_t tso_bytes_max;  /* 0: 65400, the maximum */
	uint32_t reserved;
};

HARP_API int harp_wire_create(struct harp_wire **out, const struct harp_wire_options *opt);
/* The port's NIC, owned by the wire. MAC 02:48:41:52:50:<port>. NULL: out of range. */
HARP_API struct harp_nic *harp_wire_port(struct harp_wire *wire, unsigned port);
HARP_API int harp_wire_set_impair(struct harp_wire *wire, unsigned port,
				  const struct harp_wire_impair *impair);
struct harp_wire_stats {
	uint64_t sent, delivered, lost, duplicated, reordered, corrupted, queue_dropped, ce_marked;
	uint64_t rx_no_frame;       /* arrived while the port had no empty frame */
	uint64_t strict_violations; /* frames changed between tx and completion */
};
/* Of packets sent by this port. */
HARP_API int harp_wire_stats(const struct harp_wire *wire, unsigned port,
			     struct harp_wire_stats *out);
/* Packets still in flight. */
HARP_API unsigned harp_wire_in_flight(const struct harp_wire *wire);
HARP_API void harp_wire_destroy(struct harp_wire *wire);

/* ------------------------------------------------------------------------------------------------
 * A NIC made of two functions of the caller, for raw Ethernet frames. The simplest way to
 * put a stack on any packet source; it copies each packet once each way (nic copied_bytes).
 */
struct harp_nic_callbacks {
	uint32_t size;        /* sizeof(struct harp_nic_callbacks) */
	uint32_t mtu_bytes;   /* 0: 1500 */
	uint32_t frame_size;  /* 0: 2048 up to MTU 1800, else 4096 */
	uint32_t frame_count; /* 0: 4096 */
	uint8_t mac[6];
	uint8_t reserved[2];
	void *ctx;
	/* Writes one received Ethernet frame (no FCS) of at most cap bytes to buf and returns its
	 * length; 0: none. The caller must drop longer frames. */
	size_t (*receive)(void *ctx, void *buf, size_t cap);
	/* Sends one Ethernet frame. 0, or -EAGAIN: to be called again with the same frame. */
	int (*send)(void *ctx, const void *frame, size_t len);
};
HARP_API int harp_nic_callback_create(struct harp_nic **out,
				      const struct harp_nic_callbacks *callbacks);

/* ------------------------------------------------------------------------------------------------
 * AF_XDP. Opens the socket, its region and rings on one queue; it does not load or attach any XDP
 * program (harp_host.h does).
 */
struct harp_af_xdp_options {
	uint32_t size; /* sizeof(struct harp_af_xdp_options) */
	const char *ifname;
	uint32_t queue;
	uint32_t frame_count; /* 0: 8192 */
	uint32_t frame_size;  /* 2048 or 4096; 0: 2048 up to MTU 1500, else 4096 */
	uint32_t ring_size;   /* descriptors of each ring, power of two. 0: 2048 */
	/* 0: zero-copy if the driver has it, else copy. 1: copy. 2: zero-copy or fail */
	uint32_t copy_mode;
	uint32_t huge_pages; /* 0: if available. 1: never. 2: required */
	/* a queue is busy for tens of ms after its owner's exit, longer on a loaded host. 0:
	 * 2000 */
	uint32_t bind_retry_ms;
};
/* On failure why (why_len bytes, may be NULL) receives one line that names interface, queue, cause
 * and remedy. -EPERM, -ENODEV, -EBUSY, -EOPNOTSUPP, -ENOMEM, -EINVAL. */
HARP_API int harp_nic_af_xdp_create(struct harp_nic **out, const struct harp_af_xdp_options *opt,
				    char *why, size_t why_len);
/*
 * The same in two steps, for a creator and a user in different processes (harp_lease.h).
 *
 * Create: a queue without mappings. The creator passes the descriptors on and closes its own: the
 * queue exists as long as the socket or a mapping of its rings.
 */
struct harp_queue {
	uint32_t size;    /* sizeof(struct harp_queue) */
	int xsk_fd;       /* AF_XDP socket: memory registered, rings sized, bound */
	int frames_fd;    /* its memory: a memfd, sealed against resizing */
	uint32_t ifindex; /* in the NIC's network namespace */
	uint32_t queue;
	uint32_t frame_size;  /* 2048 or 4096 */
	uint32_t frame_count; /* the memfd has at least frame_count * frame_size bytes */
	uint32_t ring_size;   /* descriptors of each of the four rings */
	uint32_t mtu_bytes;
	uint32_t features;     /* HARP_NIC_* */
	uint32_t tx_frags_max; /* descriptors of one packet */
	uint8_t zero_copy;     /* 1, or 0: the kernel copies */
	uint8_t mac[6];
	uint8_t reserved;
	char ifname[16];
};
/* As harp_nic_af_xdp_create(). On success the caller owns the descriptors (close-on-exec); on
 * failure they are -1 and nothing is left. */
HARP_API int harp_queue_make(struct harp_queue *out, const struct harp_af_xdp_options *opt,
			     char *why, size_t why_len);
/*
 * Adopts a queue created by another process: maps rings and memory, and becomes its NIC. Needs no
 * privilege and no locked memory. Verifies *queue with the kernel. Takes all descriptors, on
 * failure, too. -EBADF wrong kind of descriptor, -EPROTO an impossible size or feature, -EPERM
 * memory that could shrink, -ENOMEM, other -errno.
 */
HARP_API int harp_nic_af_xdp_adopt(struct harp_nic **out, const struct harp_queue *queue, char *why,
				   size_t why_len);
/* The XSK's file descriptor, for the map of the XDP program. */
HARP_API int harp_nic_af_xdp_fd(const struct harp_nic *nic);

#ifdef __cplusplus
}
#endif

#endif
