/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_host.h - a stack whose peer is the input: frames in, frames out, the application's calls.
 *
 * The stack has 10.0.0.1 and fd00::1, its peer 10.0.0.2 and fd00::2. Made for each input, with few frames, so
 * that inputs can use them up.
 */
#ifndef HARP_TESTS_FUZZ_HOST_H
#define HARP_TESTS_FUZZ_HOST_H

#include "fuzz.h"
#include "stack/stack.h"

#define FUZZ_HOST_FRAME_MAX 1518u
#define FUZZ_HOST_QUEUE 64u
#define FUZZ_HOST_PORT 61000u
#define FUZZ_PEER_PORT 5000u
#define FUZZ_PEER_ISS 70000u
#define FUZZ_NS_PER_MS 1000000ull

/* What the stack said last on the connection. */
struct fuzz_seen {
	uint32_t seq, ack, end_seq;
	uint32_t tsval;
	uint16_t port; /* the stack's */
	uint8_t flags;
	bool any;
};

struct fuzz_host {
	struct harp_nic *nic;
	struct harp_stack *stack;
	struct harp_listener *listener;
	struct harp_conn *conn; /* NULL: not yet, or closed */
	uint64_t now_ns;
	bool v6;
	struct fuzz_seen seen;
	uint64_t sent_frames, sent_bytes;
	unsigned head, tail;
	struct {
		uint32_t len;
		uint8_t bytes[FUZZ_HOST_FRAME_MAX];
	} queue[FUZZ_HOST_QUEUE];
};

struct fuzz_host_options {
	bool own_neighbors; /* the stack speaks ARP and ND itself */
	bool v6;
	uint32_t frames; /* 0: 192 */
};

void fuzz_host_open(struct fuzz_host *host, const struct fuzz_host_options *opt);
/* Everything ends; every frame, timer and flow must be back. */
void fuzz_host_close(struct fuzz_host *host);
/* A frame arrives with the next poll; false when too many wait. */
bool fuzz_host_put(struct fuzz_host *host, const uint8_t *frame, size_t len);
void fuzz_host_poll(struct fuzz_host *host, uint64_t later_ns);
/* Opens host->conn to the peer, up to ESTABLISHED, or listens and accepts. */
void fuzz_host_connect(struct fuzz_host *host, bool timestamps);
void fuzz_host_listen(struct fuzz_host *host);

/* A TCP segment of the peer's, with good checksums. */
struct fuzz_segment {
	uint32_t seq, ack;
	uint16_t wnd, src_port, dst_port;
	uint8_t flags;
	uint8_t tos;
	uint8_t options[40];
	uint32_t options_len; /* a multiple of 4 */
	uint32_t len;         /* payload: fuzz_byte(seq + i) */
};
uint8_t fuzz_byte(uint32_t seq);
void fuzz_host_segment(struct fuzz_host *host, const struct fuzz_segment *seg);
/* Ethernet and IP headers before len bytes at frame + the header's length, which it returns. */
size_t fuzz_host_ip(const struct fuzz_host *host, uint8_t *frame, uint8_t proto, size_t len);
/* Makes the checksums of an arriving frame right, as far as its headers make sense. */
void fuzz_repair(uint8_t *frame, size_t len);

#endif
