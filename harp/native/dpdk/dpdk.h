/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk.h - what harp.dpdk needs of C besides DPDK's own functions (rte.cdef): the environment, calls that memif
 * restricts, bursts, traffic.
 *
 * Two compilers read this file: C's, and cffi's (ffi.py leaves out the lines that begin with '#'), which checks
 * every layout against C's. So no macros and no inline functions here.
 *
 * Calls return 0 or -errno; why is one line for people, "net_memif0: cause; remedy". Nothing here locks or checks
 * its arguments: the Python side lets one thread at a time use a queue, and none a port that is being closed; in a
 * forked child it calls nothing but what is marked.
 */
#ifndef HARP_NATIVE_DPDK_H
#define HARP_NATIVE_DPDK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

/* ------------------------------------------------------------------------------------------------
 * The environment (EAL), which is libharp-dpdk.so's: stacks and bindings of a process share one.
 */
struct dpdk_eal_options {
	const char *library; /* path of libharp-dpdk.so */
	const char *args;    /* more arguments of EAL, or NULL */
	uint32_t huge_pages; /* 0: if there are enough. 1: never. 2: or fail */
	uint32_t memory_mib; /* 0: the library's default */
	int log_fd;          /* EAL's own messages are written there; -1: nowhere */
};
/* Also in a forked child. */
int dpdk_start(const struct dpdk_eal_options *opt, char *why, size_t why_len);
int dpdk_running(void); /* 1, 0, or -ECHILD: it was started before a fork */
/* -EBUSY: buffers are in use. Also in a forked child, where it frees nothing. */
int dpdk_pool_free(struct rte_mempool *pool);

/* ------------------------------------------------------------------------------------------------
 * Ports: configured and started any number of times, and gone after close().
 */
struct harp_dpdk_memif; /* of a port that is a memif; NULL: of another */
struct dpdk_port_options {
	uint32_t rx_queues, tx_queues;
	uint32_t rx_descriptors, tx_descriptors; /* of each queue; made to fit the device */
	uint32_t mtu_bytes;                      /* 0: 1500, or less if the device has less */
	uint32_t promiscuous;
	struct rte_mempool *pool; /* to receive into */
};
struct dpdk_link {
	uint32_t up, full_duplex, speed_mbps; /* 0: not known */
};
int dpdk_memif_probe(struct harp_dpdk_memif **out, const char *device, char *why, size_t why_len);
int dpdk_port_configure(uint16_t port, const struct dpdk_port_options *opt, char *why,
			size_t why_len);
/* -ECONNREFUSED: the server of a memif client is not there. */
int dpdk_port_start(uint16_t port, struct harp_dpdk_memif *memif);
int dpdk_port_stop(uint16_t port, struct harp_dpdk_memif *memif);
/* Stops, closes and removes the device. */
int dpdk_port_close(uint16_t port, struct harp_dpdk_memif *memif);
int dpdk_port_link(uint16_t port, struct dpdk_link *out);

/* ------------------------------------------------------------------------------------------------
 * Bursts: packets that are the caller's, in one array. A packet is one buffer or a chain of them (segments).
 */
struct dpdk_burst {
	uint32_t size;              /* packets that fit */
	uint32_t count;             /* packets that it has */
	struct rte_mbuf *packets[]; /* size of them */
};
struct dpdk_burst *dpdk_burst_create(uint32_t size); /* NULL: no memory */
/* They free its packets. Also in a forked child, where the packets are the parent's. */
void dpdk_burst_clear(struct dpdk_burst *burst);
void dpdk_burst_destroy(struct dpdk_burst *burst);
/* One packet more, of undefined contents, in as many segments as it takes. The burst has room. -ENOBUFS: the
 * pool has fewer, and none is taken; -EMSGSIZE: too many segments. */
int dpdk_burst_add(struct dpdk_burst *burst, struct rte_mempool *pool, uint32_t bytes);
/* Receives into an empty burst. */
void dpdk_receive(uint16_t port, uint16_t queue, struct dpdk_burst *burst);
/* Sends the packets that the device takes. They are the driver's and leave the burst. */
void dpdk_send(uint16_t port, uint16_t queue, struct dpdk_burst *burst);

/* ------------------------------------------------------------------------------------------------
 * Traffic: loops that run in C for span_ns at most, so that Python is asked now and then. They add to *count.
 */
struct dpdk_count {
	uint64_t packets, bytes; /* moved */
	uint64_t calls, idle;    /* bursts tried, and those that moved nothing */
	uint64_t first_ns,
		last_ns; /* CLOCK_MONOTONIC: of the first and the last burst that moved any */
};
/* Sends the burst's packets again and again, kept, 32 a call, at most `packets` of them. */
int dpdk_generate(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint64_t packets,
		  uint64_t span_ns, struct dpdk_count *count);
/* Receives, until `packets` more have come (0: no limit), and frees them, or (echo) sends them back
 * with source and destination MAC exchanged. */
void dpdk_sink(uint16_t port, uint16_t queue, uint64_t packets, uint64_t span_ns, bool echo,
	       struct dpdk_count *count);
/* Sends the burst's first packet and waits for an answer, at most `rounds` times; round trips to rtt_ns.
 * Returns how many were answered; each unanswered one waits for wait_ns. */
int dpdk_ping(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t rounds,
	      uint64_t wait_ns, uint64_t *rtt_ns);

#endif
