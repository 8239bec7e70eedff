/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_dpdk.h - libharp-dpdk.so: DPDK's environment, and NICs on its Ethernet devices. Private to
 * HARP: the host layer loads the library on demand and never unloads it, so only it depends on
 * DPDK.
 *
 * The environment (EAL) starts once per process, in a separate thread, which it pins and never
 * ends. It cannot be restarted, and its memory outlives every port. A *port* is an Ethernet device
 * owned by this process; each of its queue pairs is a NIC (harp_nic.h) for one stack. Ports can be
 * opened and closed repeatedly.
 *
 * Calls return 0 or -errno; why receives one line, "net_memif0: cause; remedy". Any thread may call
 * these functions; one thread at a time calls a NIC's functions (harp_nic.h).
 */
#ifndef HARP_DPDK_H
#define HARP_DPDK_H

#include "harp_host.h"

#define HARP_DPDK_VERSION 5u

struct harp_dpdk_port;
struct harp_dpdk_memif; /* of a port that harp.dpdk drives */

/* Options of the first start in a process; those of a later start must match (-EALREADY). */
struct harp_dpdk_eal_options {
	uint32_t size;       /* sizeof(struct harp_dpdk_eal_options) */
	uint32_t huge_pages; /* 0: if enough are free. 1: never. 2: required */
	uint32_t memory_mib; /* for all ports of the process; 0: 256 */
	const char *args;    /* more EAL arguments, separated by spaces; NULL: none */
	void *ctx;
	/* receives DPDK's messages, in any thread; NULL: none. A later start replaces it */
	harp_log_fn log;
};

struct harp_dpdk_port_options {
	uint32_t size; /* sizeof(struct harp_dpdk_port_options) */
	/* PCI address, or virtual device with its arguments: "net_memif0,role=client" */
	const char *device;
	uint32_t mtu_bytes;   /* 0: the device's MTU, at most 1500 unless configured larger */
	uint32_t queues;      /* queue pairs */
	uint32_t frame_count; /* per queue */
};

struct harp_dpdk_api {
	uint32_t version; /* HARP_DPDK_VERSION */
	uint32_t reserved;
	/* Starts the environment; 0 if it runs already. opt NULL: defaults. -ENOTSUP another DPDK
	 * version than at build time, -ENOMEM huge pages or memory, -EALREADY it runs with other
	 * options, -EIO DPDK refused, with its message in why. */
	int (*start)(const struct harp_dpdk_eal_options *opt, char *why, size_t why_len);
	/* Opens, configures and starts a device; starts the environment if necessary. -ENODEV no
	 * such device or driver, -EBUSY in use by this or another process, -EINVAL, -ENOMEM,
	 * -ENOTSUP, other -errno of its driver. */
	int (*port_open)(struct harp_dpdk_port **out, const struct harp_dpdk_port_options *opt,
			 char *why, size_t why_len);
	/* The NIC of one queue pair; -EBUSY if it is in use. harp_nic_destroy() returns it. */
	int (*port_nic)(struct harp_dpdk_port *port, uint32_t queue, struct harp_nic **out,
			char *why, size_t why_len);
	/* Current properties, without addresses: queries the driver for the link. */
	void (*port_info)(const struct harp_dpdk_port *port, struct harp_instance_port *out);
	/* The queue that the device chooses for a packet (RSS). */
	int (*port_rss)(const struct harp_dpdk_port *port, struct harp_rss *out);
	/* The driver's own counters. Fills at most max of both arrays, returns the total number.
	 * names: 64 bytes each. */
	int (*port_xstats)(const struct harp_dpdk_port *port, char (*names)[64], uint64_t *values,
			   unsigned max);
	/* Stops, closes and removes the device. Its NICs must have been destroyed. */
	void (*port_close)(struct harp_dpdk_port *port);
	/* For ports driven outside of this library (harp.dpdk): when a memif peer disconnects, the
	 * driver unmaps its rings, even during bursts. Before that, DPDK's interrupt thread calls
	 * leaving(), which must return after the last burst in progress. Afterwards it calls
	 * done(). Once per process; after start(). */
	void (*guard)(void (*leaving)(void), void (*done)(void));
	/* For harp.dpdk: runs a function in DPDK's interrupt thread, one per iteration. memifs must
	 * be started, stopped, closed and queried for their link there. Call after memif_probe(),
	 * not in that thread. */
	int (*run_in_intr)(void (*run)(void *arg), void *arg);
	/* For harp.dpdk: rte_dev_probe() of a memif whose socket only this user can reach. Call
	 * memif_ready() before starting the memif (-ECONNREFUSED: a client without a server),
	 * memif_leave() before stopping it, and memif_close() before closing it. Not in DPDK's
	 * interrupt thread. */
	int (*memif_probe)(struct harp_dpdk_memif **out, const char *device, char *why,
			   size_t why_len);
	int (*memif_ready)(struct harp_dpdk_memif *memif);
	void (*memif_leave)(struct harp_dpdk_memif *memif, uint16_t port);
	void (*memif_close)(struct harp_dpdk_memif *memif);
};

/* The library's only symbol. */
__attribute__((visibility("default"))) const struct harp_dpdk_api *harp_dpdk_api(void);

#endif
