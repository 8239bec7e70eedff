/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk.h - what harp.dpdk asks of DPDK: environment, pools, ports, bursts, traffic.
 *
 * Two compilers read this file: C's, and cffi's (ffi.py leaves out the lines that begin with '#'), which checks
 * every layout against C's. So no macros and no inline functions here.
 *
 * Calls return 0 or -errno; why is one line for people, "net_memif0: cause; remedy". Nothing here locks: the
 * Python side lets one thread at a time use a queue, and none a port that is being closed. In a forked child
 * every call returns -ECHILD and frees nothing: the memory is the parent's.
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
int dpdk_start(const struct dpdk_eal_options *opt, char *why, size_t why_len);
int dpdk_running(void); /* 1, 0, or -ECHILD: it was started before a fork */
const char *dpdk_version(void);
bool dpdk_huge_pages(void); /* it has its memory from there */

/* ------------------------------------------------------------------------------------------------
 * Pools of packet buffers of room_bytes each, head room included.
 */
int dpdk_pool_create(struct rte_mempool **out, uint32_t count, uint32_t room_bytes, char *why,
		     size_t why_len);
uint32_t dpdk_pool_in_use(const struct rte_mempool *pool);
int dpdk_pool_free(struct rte_mempool *pool); /* -EBUSY: some are in use */

/* ------------------------------------------------------------------------------------------------
 * Ports. A port is made by probe(), configured and started any number of times, and gone after close().
 */
struct dpdk_port_options {
	uint32_t rx_queues, tx_queues;
	uint32_t rx_descriptors, tx_descriptors; /* of each queue; made to fit the device */
	uint32_t mtu_bytes;                      /* 0: 1500, or less if the device has less */
	uint32_t promiscuous;
	struct rte_mempool *pool; /* to receive into */
};
struct dpdk_port_info {
	char name[64];                           /* as DPDK names it */
	char driver[32];                         /* "net_memif" */
	char bus[16];                            /* "vdev", "pci" */
	char rx_offloads[512], tx_offloads[512]; /* names with spaces between */
	uint8_t mac[6];
	uint8_t promiscuous, started;
	uint8_t up, full_duplex;
	uint8_t driver_copies; /* the driver copies packets (memif, tap, af_packet, pcap) */
	uint8_t reserved;
	int32_t numa_node;   /* -1: none */
	uint32_t speed_mbps; /* 0: not known */
	uint32_t mtu_bytes, mtu_bytes_max, packet_bytes_max;
	uint32_t rx_queues, tx_queues, rx_queues_max, tx_queues_max;
	uint32_t rx_descriptors_max, tx_descriptors_max;
	uint32_t rss_key_bytes, rss_table;
};
struct dpdk_port_stats {
	uint64_t rx_packets, tx_packets, rx_bytes, tx_bytes;
	uint64_t rx_missed, rx_errors, tx_errors, rx_no_buffer;
};
struct dpdk_xstat_name {
	char text[64];
};
int dpdk_port_probe(uint16_t *port, const char *device, char *why, size_t why_len);
int dpdk_port_configure(uint16_t port, const struct dpdk_port_options *opt, char *why,
			size_t why_len);
int dpdk_port_start(uint16_t port, char *why, size_t why_len);
int dpdk_port_stop(uint16_t port);
int dpdk_port_close(uint16_t port); /* stops, closes and removes the device */
int dpdk_port_info(uint16_t port, struct dpdk_port_info *out);
int dpdk_port_set_mtu(uint16_t port, uint32_t mtu_bytes);
int dpdk_port_set_mac(uint16_t port, const uint8_t mac[6]);
int dpdk_port_set_promiscuous(uint16_t port, int on);
int dpdk_port_stats(uint16_t port, struct dpdk_port_stats *out);
int dpdk_port_stats_reset(uint16_t port);
/* The driver's own counters: how many there are; at most max are filled in. */
int dpdk_port_xstats(uint16_t port, struct dpdk_xstat_name *names, uint64_t *values, unsigned max);

/* ------------------------------------------------------------------------------------------------
 * Bursts: packets that are the caller's, in one array. A packet is one buffer or a chain of them (segments).
 */
struct dpdk_burst {
	uint32_t size;              /* packets that fit */
	uint32_t count;             /* packets that it has */
	struct rte_mbuf *packets[]; /* size of them */
};
struct dpdk_segment {
	uint8_t *data;
	uint32_t bytes;
};
struct dpdk_burst *dpdk_burst_create(uint32_t size); /* NULL: no memory */
void dpdk_burst_clear(struct dpdk_burst *burst);     /* frees its packets */
void dpdk_burst_destroy(struct dpdk_burst *burst);
/* Fills the burst with `count` packets of `bytes` each, as many segments as that takes, contents undefined.
 * -ENOBUFS the pool has fewer (none is taken), -EMSGSIZE a packet would need too many segments. */
int dpdk_burst_allocate(struct dpdk_burst *burst, struct rte_mempool *pool, uint32_t count,
			uint32_t bytes);
/* One packet more, with these bytes (COPY). -ENOBUFS, -EMSGSIZE; -EINVAL the burst is full. */
int dpdk_burst_append(struct dpdk_burst *burst, struct rte_mempool *pool, const void *data,
		      uint32_t bytes);
uint32_t dpdk_packet_bytes(const struct dpdk_burst *burst, uint32_t index);
void dpdk_packet_lengths(const struct dpdk_burst *burst, uint32_t *bytes);
/* Its segments: how many there are; at most max are filled in. */
int dpdk_packet_segments(const struct dpdk_burst *burst, uint32_t index, struct dpdk_segment *out,
			 unsigned max);
/* Copies (COPY) between a packet and memory; -ERANGE when that is not all within the packet. */
int dpdk_packet_read(const struct dpdk_burst *burst, uint32_t index, uint32_t offset, void *out,
		     uint32_t bytes);
int dpdk_packet_write(struct dpdk_burst *burst, uint32_t index, uint32_t offset, const void *from,
		      uint32_t bytes);
/* Receives into an empty burst; returns how many packets. */
int dpdk_receive(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t max);
/* Sends from the packet at `first` on; returns how many the device took. Those are the driver's and leave the burst,
 * unless keep: then the burst has them still, and they may be sent again. */
int dpdk_send(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t first, bool keep);

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
/* Receives and frees, until `packets` more have come (0: no limit). */
int dpdk_sink(uint16_t port, uint16_t queue, uint64_t packets, uint64_t span_ns,
	      struct dpdk_count *count);
/* Sends back what comes, source and destination MAC exchanged. */
int dpdk_echo(uint16_t port, uint16_t queue, uint64_t span_ns, struct dpdk_count *count);
/* Sends the burst's first packet and waits for an answer, at most `rounds` times; round trips to rtt_ns.
 * Returns how many were answered; each unanswered one waits for wait_ns. */
int dpdk_ping(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t rounds,
	      uint64_t wait_ns, uint64_t *rtt_ns);

#endif
