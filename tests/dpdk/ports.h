/* SPDX-License-Identifier: Apache-2.0 */
/* ports.h - what the tests of libharp-dpdk.so share: a port, its frames, packets with a number in them. */
#ifndef HARP_TESTS_DPDK_PORTS_H
#define HARP_TESTS_DPDK_PORTS_H

#include <sys/types.h>

#include "check.h"
#include "dpdk/harp_dpdk.h"

#define END_FRAMES 1024u
#define END_DATA_AT 448u

/* A port with one NIC, and the test as its stack: it holds what neither NIC nor driver has. */
struct end {
	struct harp_dpdk_port *port;
	struct harp_nic *nic;
	uint64_t free[END_FRAMES];
	unsigned free_count, filled, sent;
	uint32_t next_out, next_in; /* numbers of packets */
	uint64_t received, wrong;   /* packets; those out of order or spoilt */
};

extern const struct harp_dpdk_api *api;
extern char why[512];

/* Opens a port; what port_open() says, and why. */
int port_try(struct harp_dpdk_port **port, const char *device, uint32_t mtu_bytes);
/* Opens a port and its first queue, or ends the process with the reason. */
void end_open(struct end *end, const char *device, uint32_t mtu_bytes);
/* Opens the first queue again; the test has all frames. */
void end_take(struct end *end);
void end_close(struct end *end);
/* Gives the NIC frames until it has so many. */
void end_fill(struct end *end, unsigned want);
/* Offers packets of len bytes in pieces; how many were taken. */
unsigned end_send(struct end *end, unsigned packets, uint32_t len, unsigned pieces);
void end_receive(struct end *end);
void end_complete(struct end *end);
/* Sends and receives until so many packets have arrived, or until nothing has for five seconds: false. */
bool end_until(struct end *from, struct end *to, uint64_t packets, uint32_t len, unsigned pieces);
/* Waits for the link: five seconds. */
bool end_wait_up(const struct end *end, bool up);
uint64_t test_now_ns(void);
unsigned descriptors(void); /* that this process has */
/* The most within some milliseconds: DPDK's interrupt thread closes and opens one now and then. */
unsigned descriptors_most(void);

/* A process that sends or receives on a port for ever, and says on a pipe when it is up. */
__attribute__((noreturn)) void peer_main(const char *device, int ready_fd);

/* The two texts of a memif, in a folder of the test's own. Before DPDK is started: children start it for themselves. */
extern char peers_folder[64], peers_server[256], peers_client[256];
void peers_begin(void);
void peers_end(void);
/* A process with a port, up. */
pid_t peer_start(const char *device);
void peer_kill(pid_t peer);
/* Something arrives, whatever its numbers. */
bool peer_hears(struct end *end);

#endif
