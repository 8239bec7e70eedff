/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - a lane: one reliable byte stream of one comm, HARP TCP or a kernel TCP socket.
 *
 * Every function is called with the poller of lane->poller held.
 */
#ifndef HARP_PLUGIN_LANE_H
#define HARP_PLUGIN_LANE_H

#include "poll/poller.h"
#include "harp.h"

struct kernel_poll;
struct lane;

enum lane_state { LANE_CONNECTING, LANE_OPEN, LANE_DEAD };

/* Bits of a mask: the kinds of lanes that may carry a message, that work at the moment. */
enum lane_kind { LANE_HARP = 1, LANE_KERNEL = 2 };

/* How a lane does, as its TCP sees it. What a side can't tell is 0. */
struct lane_info {
	uint64_t srtt_ns;
	uint64_t rto_ns; /* of its TCP, without backoff; 0: not said */
	/* Sent, not acknowledged: the peer owes an answer. Or what waits though the window is open: it ought to be sent. */
	uint64_t in_flight_bytes;
	uint64_t unsent_bytes; /* taken by send(), not sent: the window, or congestion control */
	uint64_t acked_bytes;  /* in the count of done_bytes(), by the peer's TCP */
	uint64_t retransmits;
};

struct lane_ops {
	/* LANE_CONNECTING until the stream is open; LANE_DEAD: lane->error says why. */
	enum lane_state (*state)(struct lane *lane);
	/* Takes bytes; returns how many (may be short), -EAGAIN, or the error. The bytes are copied
	 * (or the kernel has them): the caller's memory may be reused; but for memory that is registered (memory.h),
	 * which must not change before done_bytes() counts them or the lane is closed. Should it change, because another
	 * lane has delivered the bytes, those that this lane still sends may be the new ones. */
	ssize_t (*send)(struct lane *lane, const struct iovec *iov, int iov_count);
	/*
	 * Receives up to len bytes to dst in stream order. unit 1: control bytes, any way. unit 8:
	 * payload placed in memory a GPU may be reading (contract section 4.3): commits aligned
	 * 8-byte units in address order, and may hold back up to 7 bytes until more arrive, except
	 * that the bytes before dst+len are always committed once they are there. Returns bytes
	 * placed, 0 at end of stream, -EAGAIN, or the error.
	 */
	ssize_t (*recv)(struct lane *lane, void *dst, size_t len, unsigned unit);
	/* Bytes handed to send() so far that count as delivered: acknowledged (HARP), accepted by the
	 * kernel (kernel lane). */
	uint64_t (*done_bytes)(struct lane *lane);
	/* Fills *info. May cost a system call: a few times a millisecond at most, never for each packet. */
	void (*info)(struct lane *lane, struct lane_info *info);
	/* A request took so long from its posting to its end. NULL: it is not counted. */
	void (*observe)(struct lane *lane, uint64_t latency_ns);
	/* What it is for, to be shown to people: "send". NULL: it is not shown. */
	void (*label)(struct lane *lane, const char *text);
	/* Ends and frees the lane. abort: RST, else orderly in the background. */
	void (*close)(struct lane *lane, bool abort);
	/* Writes one line: kind, both endpoints, and for HARP the path. */
	void (*describe)(struct lane *lane, char *buf, size_t len);
};

struct lane {
	const struct lane_ops *ops;
	struct poller *poller;
	/* Called (poller held) when the lane became readable, writable, acknowledged more, opened or
	 * died. HARP lanes call it from the stack's events; kernel lanes never do: their owner looks
	 * at each turn. */
	void (*notify)(struct lane *lane, uint64_t now_ns);
	void *owner;
	/* The owner's: a request is outstanding, so a dead peer must be noticed (a probe every interval). NULL: never. */
	const atomic_bool *awaited;
	struct lane *beneath; /* what carries an encrypted lane; else NULL */
	enum lane_kind kind_bit;
	int error; /* -errno once dead */
	struct harp_endpoint local, remote;
};

/* lane_kernel.c. The lane belongs to that poller. */
/* local: the address that it leaves from, zero: the kernel's choice; its port is not looked at. */
int lane_kernel_connect(struct poller *poller, const struct harp_endpoint *local,
			const struct harp_endpoint *remote, int dscp, struct lane **out);
/* Its socket, to be waited for; the lane's. */
int lane_kernel_fd(struct lane *lane);
/* Takes a socket of forkguard_accept(), whose listener has the options, and knows both ends. */
int lane_kernel_adopt(struct poller *poller, int fd, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, struct lane **out);
/* Sets those of a listener: the kernel hands them on to the sockets that it lets in. */
void lane_kernel_options(int fd);
/* A kernel lane, also beneath an encrypted one, moves to its comm's poller and sockets. Both pollers are held. */
void lane_kernel_join(struct lane *lane, struct poller *poller, struct kernel_poll *poll);
/* Of a comm's lane: may it have something to read, as far as is known? */
bool lane_kernel_is_due(struct lane *lane);
/* The peer's sends are done when TCP acknowledges them: acknowledge what is received at once. */
void lane_kernel_ack_promptly(struct lane *lane);
/* For how long the peer's host has been asked and has not answered, as far as the calls show: to be
 * asked regularly. One system call. */
uint64_t lane_kernel_silence_ns(struct lane *lane, uint64_t now_ns);

/* lane.c. What a peer does to all comms with it is one warning. True: nothing of the kind was said of that address lately: for
 * 5 s of a rail, else within the user timeout, or a minute. Any thread. */
enum lane_notice {
	LANE_NOTICE_SILENT,
	LANE_NOTICE_GIVEN_UP,
	LANE_NOTICE_RAIL_DOWN,
	LANE_NOTICE_RAIL_UP,
};
bool lane_notice_due(enum lane_notice notice, const struct harp_addr *peer, uint64_t now_ns);
/* After the process's last context: what was said before is said again. */
void lane_notices_forget(void);
/* "kernel-tcp", "encrypted harp-tcp". */
const char *lane_kind_text(const struct lane *lane);
/* The -errno of a lane whose socket's call ended in error. */
int lane_errno(int error);
/* "connection refused": a few words for the usual -errno of a lane. */
const char *lane_error_text(int error);
/* What is to be done about it, to be put behind those words; otherwise: the shortage is none of this host's. */
const char *lane_error_remedy(int error, const char *otherwise);

/* lane_harp.c, on an engine's poller; poller held. */
struct engine;
int lane_harp_connect(struct engine *engine, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, int dscp, struct lane **out);
/* -EAGAIN when no connection waits. */
int lane_harp_accept(struct engine *engine, struct harp_listener *listener, struct lane **out);
/* The peer waits for no ACK of what it sends. A lane of any kind. */
void lane_harp_delay_acks(struct lane *lane);

#endif
