/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk.h - C functions for harp.dpdk besides DPDK's own (rte.cdef): the environment, ports, bursts,
 * traffic.
 *
 * The C compiler and cffi read this file. cffi gets it without the lines that begin with '#'
 * (ffi.py), and checks every layout against C's. So this file has no macros and no inline
 * functions.
 *
 * Calls return 0 or -errno, and write a line to why: "net_memif0: cause; remedy". They neither lock
 * nor check arguments: the Python side serializes the calls of a queue, and makes no call while a
 * port is closed. In a forked child it makes only calls that are marked "forked child".
 */
#ifndef HARP_NATIVE_DPDK_H
#define HARP_NATIVE_DPDK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

/* ------------------------------------------------------------------------------------------------
 * The environment (EAL). libharp-dpdk.so owns it; the stacks and this binding share it.
 */
struct dpdk_eal_options {
	const char *library; /* path of libharp-dpdk.so */
	const char *args;    /* more arguments of EAL, or NULL */
	uint32_t huge_pages; /* 0: if there are enough. 1: never. 2: required */
	uint32_t memory_mib; /* 0: the library's default */
	int log_fd;          /* for EAL's own messages; -1: none */
};
/* Forked child: -ECHILD. */
int dpdk_start(const struct dpdk_eal_options *opt, char *why, size_t why_len);
int dpdk_running(void); /* 1, 0; forked child: -ECHILD if DPDK was started before the fork */
/* -EBUSY: buffers are in use. Forked child: frees nothing. */
int dpdk_pool_free(struct rte_mempool *pool);

/* ------------------------------------------------------------------------------------------------
 * Ports. They may be configured and started repeatedly; closing removes the device.
 */
struct harp_dpdk_memif; /* state of a memif port; NULL for other ports */
struct dpdk_port_options {
	uint32_t rx_queues, tx_queues;
	uint32_t rx_descriptors, tx_descriptors; /* of each queue; adapted to the device */
	uint32_t mtu_bytes;                      /* 0: 1500, or less if the device has less */
	uint32_t promiscuous;
	struct rte_mempool *pool; /* for received packets */
};
struct dpdk_link {
	uint32_t up, full_duplex;
	uint32_t speed_mbps; /* 0: unknown */
};
int dpdk_memif_probe(struct harp_dpdk_memif **out, const char *device, char *why, size_t why_len);
int dpdk_port_configure(uint16_t port, const struct dpdk_port_options *opt, char *why,
			size_t why_len);
/* -ECONNREFUSED: the server of a memif client does not run. */
int dpdk_port_start(uint16_t port, struct harp_dpdk_memif *memif);
int dpdk_port_stop(uint16_t port, struct harp_dpdk_memif *memif);
/* Stops and closes the port, and removes the device. */
int dpdk_port_close(uint16_t port, struct harp_dpdk_memif *memif);
int dpdk_port_link(uint16_t port, struct dpdk_link *out);

/* ------------------------------------------------------------------------------------------------
 * Bursts. Each owns an array of packets. A packet is a buffer or a chain of buffers (segments).
 */
struct dpdk_burst {
	uint32_t size; /* of the array */
	uint32_t count;
	struct rte_mbuf *packets[];
};
struct dpdk_burst *dpdk_burst_create(uint32_t size); /* NULL: no memory */
/* Both free its packets. Forked child: they free none, because the parent owns the packets. */
void dpdk_burst_clear(struct dpdk_burst *burst);
void dpdk_burst_destroy(struct dpdk_burst *burst);
/*
 * Adds a packet of undefined contents, in as many segments as needed. The caller ensures that count
 * < size. -ENOBUFS: the pool has too few buffers; -EMSGSIZE: too many segments.
 */
int dpdk_burst_add(struct dpdk_burst *burst, struct rte_mempool *pool, uint32_t bytes);
/* Receives into an empty burst. */
void dpdk_receive(uint16_t port, uint16_t queue, struct dpdk_burst *burst);
/* Sends as many packets as the device accepts, and removes them from the burst. */
void dpdk_send(uint16_t port, uint16_t queue, struct dpdk_burst *burst);

/* ------------------------------------------------------------------------------------------------
 * Traffic: loops that run for at most span_ns, so that Python handles signals. They add to *count.
 */
struct dpdk_count {
	uint64_t packets, bytes;
	uint64_t calls, idle;       /* all bursts, and those without packets */
	uint64_t first_ns, last_ns; /* CLOCK_MONOTONIC: first and last burst with packets */
};
/* Sends the burst's packets repeatedly, without releasing them, at most `packets` of them. */
int dpdk_generate(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint64_t packets,
		  uint64_t span_ns, struct dpdk_count *count);
/*
 * Receives `packets` more packets (0: no limit), and frees them. echo: sends them back instead,
 * with source and destination MAC exchanged.
 */
void dpdk_sink(uint16_t port, uint16_t queue, uint64_t packets, uint64_t span_ns, bool echo,
	       struct dpdk_count *count);
/*
 * Sends the burst's first packet `rounds` times, and waits up to wait_ns for each answer. Writes
 * the round-trip times of the answers to rtt_ns, and returns their number.
 */
int dpdk_ping(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t rounds,
	      uint64_t wait_ns, uint64_t *rtt_ns);

#endif
