/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - harp-wire: raw frames between two AF_XDP queues, with the NIC code, the XDP program and
 * the MTU of the stack, but without the stack. This is the upper bound for every other measurement.
 * harp.dpdk measures the same on DPDK ports.
 */
#ifndef HARP_TOOLS_WIRE_H
#define HARP_TOOLS_WIRE_H

#include <signal.h>
#include <stdbool.h>

#include "common/samples.h"
#include "harp_host.h"
#include "xdp/harp_xdp.h"

#define WIRE_BURST 64u
#define WIRE_FRAGS_MAX 8u
#define WIRE_HEADER_BYTES_MAX 74u /* Ethernet, IPv6, TCP */
#define WIRE_PING_BYTES 64u
#define WIRE_STAMP_BYTES 8u /* ping-pong number, after the headers */
#define WIRE_PORT 61000u    /* the frames are TCP segments from and to this port */

uint64_t wire_clock_ns(void);

/* ---- card.c: an AF_XDP queue with its XDP program, and a pool of frames ---- */
struct card {
	struct harp_nic *nic;
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp;
	void *library;
	uint32_t *free; /* numbers of the free frames */
	uint32_t free_count;
	uint32_t frame_bytes_max; /* MTU and Ethernet header */
	char mode[96];
};
struct card_options {
	const char *ifname, *lib_dir;
	uint32_t xdp_mode;
};
int card_open(struct card *card, const struct card_options *opt, const struct harp_addr *own,
	      char *why, size_t why_len);
void card_close(struct card *card);
/* Number of descriptors for a frame of `bytes`, divided as the stack divides segments. */
unsigned card_frags(const struct card *card, uint32_t bytes);
/* Allocates frames for a packet and fills its descriptors; false if the pool is empty. */
bool card_packet(struct card *card, uint32_t bytes, struct harp_desc *descs);
uint8_t *card_at(const struct card *card, uint64_t addr);
/* Returns a frame to the pool. */
void card_release(struct card *card, uint64_t addr);
/* Returns completed frames to the pool. */
void card_housekeeping(struct card *card, uint64_t now_ns);

/* ---- tests.c --------------------------------------------------------------------------------- */
struct wire_run {
	struct card *card;
	struct harp_addr own, peer;
	uint32_t frame_bytes;
	uint64_t duration_ns;
	volatile sig_atomic_t *stop; /* ends run_recv() and run_pong() */
	uint32_t header_bytes;
	uint8_t headers[WIRE_HEADER_BYTES_MAX];
};
struct wire_result {
	uint64_t frames, bytes, lost;
	uint64_t first_ns, last_ns;
};
/* Size of the Ethernet, IP and TCP headers. */
uint32_t run_header_bytes(const struct wire_run *run);
void run_headers(struct wire_run *run);
/* Sends full frames for duration_ns. */
void run_send(struct wire_run *run, struct wire_result *result);
/* Receives until *stop is set, then receives the packets in flight. */
void run_recv(struct wire_run *run, struct wire_result *result);
/* Repeatedly sends a frame and waits for its answer, for duration_ns. */
void run_ping(struct wire_run *run, struct wire_result *result, struct samples *samples);
void run_pong(struct wire_run *run, struct wire_result *result);

#endif
