/* SPDX-License-Identifier: Apache-2.0 */
/* ports.h - shared by the tests of libharp-dpdk.so: a port, its frames, numbered packets. */
#ifndef HARP_TESTS_DPDK_PORTS_H
#define HARP_TESTS_DPDK_PORTS_H

#include <sys/types.h>

#include "check.h"
#include "dpdk/harp_dpdk.h"

#define END_FRAMES 1024u
#define END_DATA_AT 448u

/* A port with one NIC. The test is its stack and holds the frames that the NIC does not have. */
struct end {
	struct harp_dpdk_port *port;
	struct harp_nic *nic;
	uint64_t free[END_FRAMES];
	unsigned free_count, filled, sent;
	uint32_t next_out, next_in; /* numbers of packets */
	uint64_t received, wrong;   /* packets; those out of order or damaged */
};

extern const struct harp_dpdk_api *api;
extern char why[512];

/* Opens a port; returns port_open()'s result, with the reason in why. */
int port_try(struct harp_dpdk_port **port, const char *device, uint32_t mtu_bytes);
/* Opens a port and its first queue, or ends the process with the reason. */
void end_open(struct end *end, const char *device, uint32_t mtu_bytes);
/* Opens the first queue again; the test has all frames. */
void end_take(struct end *end);
void end_close(struct end *end);
/* Gives the NIC frames until it has `want`. */
void end_fill(struct end *end, unsigned want);
/* Sends packets of len bytes in pieces; returns how many were accepted. */
unsigned end_send(struct end *end, unsigned packets, uint32_t len, unsigned pieces);
void end_receive(struct end *end);
void end_complete(struct end *end);
/* Sends and receives until `packets` have arrived. False: not within a minute. */
bool end_until(struct end *from, struct end *to, uint64_t packets, uint32_t len, unsigned pieces);
/* Waits for the link, at most a minute. */
bool end_wait_up(const struct end *end, bool up);
uint64_t test_now_ns(void);
unsigned descriptors(void); /* that this process has */
/* Sends and receives on a port until it is killed; writes to the pipe when the port is open. */
__attribute__((noreturn)) void peer_main(const char *device, int ready_fd);

/* The two ends of a memif, in a new folder. Call it before DPDK starts. */
extern char peers_folder[64], peers_server[256], peers_client[256];
void peers_begin(void);
void peers_end(void);
/* Starts a process with an open port. */
pid_t peer_start(const char *device);
void peer_kill(pid_t peer);
/* Waits for 1000 packets, whatever their numbers. */
bool peer_hears(struct end *end);

#endif
