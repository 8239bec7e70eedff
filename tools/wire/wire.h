/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - harp-wire: the limit that everything else is compared with. Raw frames between two AF_XDP
 * queues or DPDK ports, with the NIC code, the steering program and the MTU of the stack, but no stack.
 */
#ifndef HARP_TOOLS_WIRE_H
#define HARP_TOOLS_WIRE_H

#include <stdbool.h>

#include "common/samples.h"
#include "dpdk/harp_dpdk.h"
#include "harp_host.h"
#include "xdp/harp_xdp.h"

#define WIRE_BURST 64u
#define WIRE_FRAGS_MAX 8u
#define WIRE_SECONDS_MAX 64u
#define WIRE_HEADER_BYTES_MAX 74u /* Ethernet, IPv6, TCP */
#define WIRE_PING_BYTES 64u
#define WIRE_STAMP_BYTES 8u /* ping-pong number, after the headers */

uint64_t wire_clock_ns(void);

/* ---- card.c: a queue and a pool of frames; of AF_XDP, with a steering program, or of a DPDK port --------- */
struct card {
	struct harp_nic *nic;
	const struct harp_dpdk_api *dpdk;
	struct harp_dpdk_port *dpdk_port; /* NULL: AF_XDP */
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp;
	void *library;
	uint16_t port;  /* the frames are TCP segments to this port of our address */
	uint32_t *free; /* frames that are ours, by number */
	uint32_t free_count;
	uint32_t frame_bytes_max; /* longest frame: MTU and Ethernet header */
	char mode[96];
};
struct card_options {
	const char *ifname, *lib_dir;
	uint32_t queue, xdp_mode, copy_mode, frame_count;
	uint16_t port;
};
/* What can be said of it before it is opened: a DPDK port's text, and whether there is its library. */
int card_check(const struct card_options *opt, char *why, size_t why_len);
int card_open(struct card *card, const struct card_options *opt, const struct harp_addr *own,
	      char *why, size_t why_len);
void card_close(struct card *card);
/* Waits until frames can pass: a DPDK port's peer may be on its way. -ENETDOWN it did not come. */
int card_link(const struct card *card);
/* card_dpdk.c. text: the port's, without "dpdk:". */
int card_dpdk_check(const struct card_options *opt, const char *text, char *why, size_t why_len);
int card_dpdk_open(struct card *card, const struct card_options *opt, const char *text, char *why,
		   size_t why_len);
void card_dpdk_close(struct card *card);
/* Descriptors of a frame of `bytes`, cut as the stack cuts its segments. */
unsigned card_frags(const struct card *card, uint32_t bytes);
/* Takes frames from the pool and describes one packet in them; false when the pool is dry. */
bool card_packet(struct card *card, uint32_t bytes, struct harp_desc *descs);
uint8_t *card_at(const struct card *card, uint64_t addr);
/* Returns frames to the pool. */
void card_release(struct card *card, uint64_t addr);
/* Completed frames go home; empty frames go to the NIC. */
void card_housekeeping(struct card *card, uint64_t now_ns);

/* ---- control.c: the two sides agree over a TCP connection of the kernel's ---------------------- */
enum wire_test { WIRE_SEND, WIRE_RECV, WIRE_PINGPONG }; /* as the client sees it */
struct wire_hello { /* fixed-width and same-endian: both ends are one build */
	uint32_t magic, test, frame_bytes, mtu_bytes;
	uint32_t payload; /* both sides move it: payload.c */
	uint64_t duration_ns;
	uint8_t mac[6];
	uint16_t data_port;
};
#define WIRE_MAGIC 0x48575232u /* "HWR2" */
struct wire_result {
	uint64_t frames, bytes, lost;
	uint64_t first_ns, last_ns; /* of this side's clock */
	uint32_t seconds;           /* valid entries of per_second */
	uint32_t per_second[WIRE_SECONDS_MAX];
	uint64_t kicks, ring_full, fill_empty, dropped;
};
struct control {
	int fd;
	struct harp_endpoint local, remote;
};
int control_listen(const char *address, uint16_t port, char *why, size_t why_len);
int control_accept(struct control *control, int listener);
int control_connect(struct control *control, const char *address, uint16_t port, char *why,
		    size_t why_len);
int control_send(const struct control *control, const void *data, size_t len);
int control_recv(const struct control *control, void *data, size_t len);
/* 1 when the peer said something (or went), 0 when not; does not wait. */
int control_ready(const struct control *control);

/* ---- payload.c: memory that frames' bytes come from and go to ----------------------------------- */
struct payload {
	uint8_t *memory; /* NULL: nobody touches them */
	uint32_t at, sum;
};
int payload_open(struct payload *payload);
void payload_close(struct payload *payload);
void payload_put(struct payload *payload, uint8_t *piece, uint32_t bytes);
void payload_take(struct payload *payload, const uint8_t *piece, uint32_t bytes);

/* ---- tests.c ---------------------------------------------------------------------------------- */
struct wire_run {
	struct card *card;
	struct control *control;
	struct wire_hello own, peer;
	struct payload payload;
	uint32_t header_bytes;
	uint8_t headers[WIRE_HEADER_BYTES_MAX];
};
/* Ethernet, IP of the control connection's family, TCP. */
uint32_t run_header_bytes(const struct control *control);
void run_headers(struct wire_run *run);
/* Sends full frames for duration_ns. */
void run_send(struct wire_run *run, struct wire_result *result);
/* Receives until the peer says on the control connection that it is done, then what is under way. */
void run_recv(struct wire_run *run, struct wire_result *result);
void run_ping(struct wire_run *run, struct wire_result *result, struct samples *samples);
void run_pong(struct wire_run *run, struct wire_result *result);

#endif
