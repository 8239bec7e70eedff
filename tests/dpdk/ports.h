/* SPDX-License-Identifier: Apache-2.0 */
/* ports.h - for tests of libharp-dpdk.so: a port, its frames, numbered packets. */
#ifndef HARP_TESTS_DPDK_PORTS_H
#define HARP_TESTS_DPDK_PORTS_H

#include <sys/types.h>

#include "check.h"
#include "dpdk/harp_dpdk.h"

#define END_FRAMES 1024u
#define END_DATA_AT 448u

/* A port with one NIC. The test takes the place of the stack and owns the frames that the NIC does
 * not hold. */
struct end {
	struct harp_dpdk_port *port;
	struct harp_nic *nic;
	uint64_t free[END_FRAMES];
	unsigned free_count, filled, sent;
	uint32_t next_out, next_in; /* numbers of packets */
	uint64_t received, errors;  /* packets; packets out of order or corrupt */
};

extern const struct harp_dpdk_api *api;
extern char why[512];

/* Opens a port; returns port_open()'s result, with the reason in why. */
int port_try(struct harp_dpdk_port **port, const char *device, uint32_t mtu_bytes);
/* Opens a port and its first queue; on an error, prints it and exits. */
void end_open(struct end *end, const char *device, uint32_t mtu_bytes);
/* Opens the first queue of an open port; the test then owns all frames. */
void end_open_queue(struct end *end);
void end_close(struct end *end);
/* Gives the NIC frames until it holds `target`. */
void end_fill(struct end *end, unsigned target);
/* Sends packets of len bytes, each in `pieces` frames; returns how many were accepted. */
unsigned end_send(struct end *end, unsigned packets, uint32_t len, unsigned pieces);
void end_receive(struct end *end);
void end_complete(struct end *end);
/* Sends until `packets` have arrived. False: not within a minute. */
bool end_transfer(struct end *from, struct end *to, uint64_t packets, uint32_t len,
		  unsigned pieces);
/* Waits at most a minute for the state of the link. */
bool end_wait_up(const struct end *end, bool up);
uint64_t test_now_ns(void);
unsigned count_fds(void); /* open descriptors of this process */
/* Sends and receives on a port until the process is killed; writes to ready_fd when it is open. */
__attribute__((noreturn)) void peer_main(const char *device, int ready_fd);

/* The devices of a memif whose socket is in a new folder. */
extern char peers_folder[64], peers_server[256], peers_client[256];
void peers_begin(void);
void peers_end(void);
/* Starts a process that runs peer_main(); returns when its port is open. */
pid_t peer_start(const char *device);
void peer_kill(pid_t peer);
/* Waits for 1000 packets and ignores their numbers. False: not within a minute. */
bool receive_from_peer(struct end *end);

#endif
