/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_dpdk.h - libharp-dpdk.so: DPDK's environment, and NICs on any of its Ethernet devices. Private to HARP: the
 * host layer opens the library on demand and for good, so that nothing else needs DPDK.
 *
 * The environment (EAL) is started once in a process, on a thread of its own, which it pins and which is
 * kept: it can't be started twice, and its memory outlives every port. A *port* is an Ethernet device that
 * this process has for itself; each of its queue pairs is a NIC (harp_nic.h) for one stack. Ports are opened and
 * closed as often as one likes.
 *
 * Calls return 0 or -errno; why is one line for people, "net_memif0: cause; remedy". Calls of this API may be made
 * by any thread; a NIC's functions by one thread at a time, as harp_nic.h says.
 */
#ifndef HARP_DPDK_H
#define HARP_DPDK_H

#include "harp_host.h"

#define HARP_DPDK_VERSION 3u

struct harp_dpdk_port;
struct harp_dpdk_memif; /* of a port that is not ours */

/* Of the process's first start; later ones find it running and must not contradict (-EALREADY). */
struct harp_dpdk_eal_options {
	uint32_t size;       /* sizeof(struct harp_dpdk_eal_options) */
	uint32_t huge_pages; /* 0: if there are enough. 1: never. 2: or fail */
	uint32_t memory_mib; /* for all ports of the process; 0: 256 */
	const char *args;    /* more arguments of EAL, with spaces between; NULL: none */
	void *ctx;
	harp_log_fn log; /* DPDK's own messages, any thread; NULL: none. Later starts replace it */
};

struct harp_dpdk_port_options {
	uint32_t size; /* sizeof(struct harp_dpdk_port_options) */
	const char *
		device; /* PCI address, or virtual device, with its arguments: "net_memif0,role=client" */
	uint32_t mtu_bytes;   /* 0: what the device has, at most 1500 unless it says so */
	uint32_t queues;      /* queue pairs; 0: 1 */
	uint32_t frame_count; /* of each queue. 0: 8192 */
	uint32_t frame_size; /* 0: the smallest power of two that a packet fits in, at least 2048 */
	uint32_t ring_size;  /* descriptors of each ring; 0: 1024; as the device allows */
	uint32_t external_count; /* external frames of each queue (harp_nic.h). 0: frame_count */
};

/* What the port is. Strings end with a NUL. */
struct harp_dpdk_info {
	char device[64]; /* as DPDK names it */
	char driver[32]; /* "net_memif" */
	char pci[32];    /* PCI address; empty: none */
	char dpdk[32];   /* "DPDK 22.11.11" */
	uint8_t mac[6];
	uint8_t huge_pages;             /* 1: its memory lies in huge pages */
	uint8_t up;                     /* link */
	int32_t numa_node;              /* -1: none */
	uint32_t mtu_bytes, speed_mbps; /* 0: not known */
	uint32_t queues, frame_size, frame_count;
	uint32_t features;   /* HARP_NIC_* of its NICs */
	uint32_t flow_rules; /* 1: steer() works */
	uint32_t
		driver_copies; /* 1: the driver copies packets (memif, tap, af_packet, pcap, ring) */
};

struct harp_dpdk_api {
	uint32_t version; /* HARP_DPDK_VERSION */
	uint32_t reserved;
	/* Starts the environment, or returns 0 when it runs. opt NULL: defaults. -ENOTSUP another DPDK than we were
	 * built with, -ENOMEM huge pages or memory, -EALREADY runs otherwise, -EIO it refused: why has its words. */
	int (*start)(const struct harp_dpdk_eal_options *opt, char *why, size_t why_len);
	/* Opens, configures and starts a device; started before if need be. -ENODEV no such device or driver, -EBUSY
	 * taken by another process or by this one, -EINVAL, -ENOMEM, -ENOTSUP, other -errno of its driver. */
	int (*port_open)(struct harp_dpdk_port **out, const struct harp_dpdk_port_options *opt,
			 char *why, size_t why_len);
	/* The NIC of one queue pair, -EBUSY when it has been taken. harp_nic_destroy() gives it back. */
	int (*port_nic)(struct harp_dpdk_port *port, uint32_t queue, struct harp_nic **out,
			char *why, size_t why_len);
	/* As it is now: asks the driver for the link. */
	int (*port_info)(const struct harp_dpdk_port *port, struct harp_dpdk_info *out);
	/* Which queue the device chooses for a packet (RSS). */
	int (*port_rss)(const struct harp_dpdk_port *port, struct harp_rss *out);
	/* A flow rule: packets of this protocol (IPPROTO_TCP, IPPROTO_UDP) to this local port go to a queue; add
	 * false takes it away. -ENOTSUP the device has none. */
	int (*port_steer)(struct harp_dpdk_port *port, uint8_t protocol, uint16_t local_port,
			  uint32_t queue, bool add);
	/* The driver's own counters. Fills at most max of both, returns how many there are. names: 64 bytes each. */
	int (*port_xstats)(const struct harp_dpdk_port *port, char (*names)[64], uint64_t *values,
			   unsigned max);
	/* Stops, closes and removes the device. Its NICs have been destroyed. */
	void (*port_close)(struct harp_dpdk_port *port);
	/* For who drives ports of its own here (harp.dpdk): when a memif peer leaves its rings are unmapped, also under
	 * bursts. leaving() is called in DPDK's interrupt thread before that, and returns when no burst is under way;
	 * done() afterwards. Once in a process; after start(). */
	void (*guard)(void (*leaving)(void), void (*done)(void));
	/* Likewise: runs a function in DPDK's interrupt thread, in which memifs are started, stopped, closed and
	 * asked for their link; one call in each of its rounds. After memif_probe(); not in that thread. */
	int (*run_there)(void (*run)(void *arg), void *arg);
	/* Likewise: rte_dev_probe() of a memif, whose handshake the switch carries. hold() ends its connection
	 * and refuses others: before it is stopped or closed. release(): before it is started again. close():
	 * after the device is gone. Not in DPDK's interrupt thread. */
	int (*memif_probe)(struct harp_dpdk_memif **out, const char *device, char *why,
			   size_t why_len);
	void (*memif_hold)(struct harp_dpdk_memif *memif);
	void (*memif_release)(struct harp_dpdk_memif *memif);
	void (*memif_close)(struct harp_dpdk_memif *memif);
};

/* The library's only symbol. */
__attribute__((visibility("default"))) const struct harp_dpdk_api *harp_dpdk_api(void);

#endif
