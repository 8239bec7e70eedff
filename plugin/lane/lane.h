/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - a lane: one reliable byte stream of a comm, over HARP's TCP or a kernel TCP socket.
 *
 * All functions are called with the poller of lane->poller held, unless stated otherwise.
 */
#ifndef HARP_PLUGIN_LANE_H
#define HARP_PLUGIN_LANE_H

#include "poll/poller.h"
#include "harp.h"
#include "wire/crypto.h"

struct kernel_poll;
struct lane;

enum lane_state { LANE_CONNECTING, LANE_OPEN, LANE_DEAD };

/* Pieces up to this size are copied, even from registered memory: descriptors cost more than a
 * copy, and small sends are done when they are copied. */
#define LANE_COPIED_BYTES_MAX 4096u

/* A peer from which an answer is due for this long is reported once. */
#define LANE_SILENCE_WARN_NS 5000000000ull

/* Bits of a mask. */
enum lane_kind { LANE_HARP = 1, LANE_KERNEL = 2 };

/* The state of a lane's TCP. Unknown values are 0. */
struct lane_info {
	uint64_t srtt_ns;
	uint64_t rto_ns; /* without backoff */
	/* Sent and not acknowledged. If the window is open and nothing is sent, the unsent bytes
	 * count instead. */
	uint64_t in_flight_bytes;
	uint64_t unsent_bytes; /* accepted by send(), held back by window or congestion control */
	uint64_t acked_bytes;  /* acknowledged by the peer's TCP, of the bytes given to send() */
	uint64_t retransmits;
};

struct lane_ops {
	/* LANE_CONNECTING until the stream is open; LANE_DEAD: see lane->error. */
	enum lane_state (*state)(struct lane *lane);
	/* Sends bytes; returns how many were accepted (may be short), -EAGAIN, or the error. The
	 * bytes are copied, except from registered memory (memory.h), which must not change before
	 * done_bytes() counts them or the lane is closed. If it does change, because another lane
	 * has delivered the bytes, this lane may send the new contents. */
	ssize_t (*send)(struct lane *lane, const struct iovec *iov, int iov_count);
	/*
	 * Receives up to len bytes to dst in stream order. unit 1: control bytes, copied in any
	 * way. unit 8: payload for memory that a GPU may be reading (contract section 4.3). It is
	 * written in aligned 8-byte units in address order; up to 7 bytes may be held back until
	 * more arrive, except at dst+len. Returns bytes written, 0 at end of stream, -EAGAIN, or
	 * the error.
	 */
	ssize_t (*recv)(struct lane *lane, void *dst, size_t len, unsigned unit);
	/* Bytes given to send() that have been copied (pieces of LANE_COPIED_BYTES_MAX always are),
	 * and count as delivered: those acknowledged by the peer (HARP lane), or accepted by the
	 * kernel (kernel lane). */
	uint64_t (*copied_bytes)(struct lane *lane);
	uint64_t (*done_bytes)(struct lane *lane);
	/* Acknowledges the received data without delay: the peer waits for done_bytes(). */
	void (*acknowledge)(struct lane *lane);
	/* Fills *info. May cost system calls: call it at most a few times per millisecond. */
	void (*info)(struct lane *lane, struct lane_info *info);
	/* Ends and frees the lane. abort: RST; else an orderly close, in the background. */
	void (*close)(struct lane *lane, bool abort);
	/* Writes one line: kind, both endpoints, and the path of a HARP lane. */
	void (*describe)(struct lane *lane, char *buf, size_t len);
};

struct lane {
	const struct lane_ops *ops;
	struct poller *poller;
	/* Called (poller held) when the lane opened, died, or became readable or writable, or bytes
	 * were acknowledged. HARP lanes call it for the stack's events. Kernel lanes never do:
	 * their owner polls them. */
	void (*notify)(struct lane *lane, uint64_t now_ns);
	void *owner;
	/* The owner's flag: a request is outstanding, so the lane probes its peer at intervals.
	 * NULL: no probes. */
	const atomic_bool *awaited;
	struct lane *beneath; /* the lane that carries an encrypted lane; else NULL */
	enum lane_kind kind_bit;
	int error; /* -errno once dead */
	struct harp_endpoint local, remote;
};

/* lane_kernel.c. The new lane belongs to that poller. */
/* local: the source address, zero: the kernel chooses; its port is ignored. */
int lane_kernel_connect(struct poller *poller, const struct harp_endpoint *local,
			const struct harp_endpoint *remote, int dscp, struct lane **out);
/* Its socket, for epoll; owned by the lane. */
int lane_kernel_fd(struct lane *lane);
/* Takes ownership of a socket from forkguard_accept(), whose listener has lane_kernel_options(). */
int lane_kernel_adopt(struct poller *poller, int fd, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, struct lane **out);
/* Sets the options of a socket or a listener, whose accepted sockets inherit them. */
void lane_kernel_options(int fd);
/* Moves a kernel lane, also one beneath an encrypted lane, to its comm's poller and kernel_poll.
 * Both pollers are held. */
void lane_kernel_join(struct lane *lane, struct poller *poller, struct kernel_poll *poll);
/* May a comm's kernel lane have data to read? */
bool lane_kernel_is_due(struct lane *lane);
/* The peer's done_bytes() counts acknowledged bytes: acknowledge() is to have an effect. */
void lane_kernel_ack_promptly(struct lane *lane);
/* How long the peer has not answered; see kernel_silence_ns(). 0 for other lanes. */
uint64_t lane_kernel_silence_ns(struct lane *lane, uint64_t now_ns);

/* lane.c. One warning per peer instead of one per comm: returns true if this notice was not logged
 * for the address within the user timeout or a minute, whichever is longer; for rails within 5 s.
 * Any thread. */
enum lane_notice {
	LANE_NOTICE_SILENT,
	LANE_NOTICE_GIVEN_UP,
	LANE_NOTICE_RAIL_DOWN,
	LANE_NOTICE_RAIL_UP,
};
bool lane_notice_due(enum lane_notice notice, const struct harp_addr *peer, uint64_t now_ns);
/* Called after the last context has ended: notices are due again. */
void lane_notices_forget(void);
/* "kernel-tcp", "encrypted harp-tcp". */
const char *lane_kind_text(const struct lane *lane);
/* A lane's -errno for the errno of a socket call. */
int lane_errno(int error);
/* A short text for a lane's -errno: "Connection refused". */
const char *lane_error_text(int error);
/* Warns of a peer that has not answered for LANE_SILENCE_WARN_NS. */
void lane_warn_silent(struct lane *lane, uint64_t now_ns);
/* What to do about the error, to append to its text. otherwise: for errors that are no local
 * shortage. */
const char *lane_error_remedy(int error, const char *otherwise);

/*
 * lane_encrypted.c. Replaces *lane, which is open and past its preamble, by an encrypted lane that
 * owns it (docs/lanes.md section 8). Byte counts of the new lane are plaintext bytes. sent_bytes:
 * sent on the lane before (the preamble). Poller held. -ENOMEM leaves *lane as it was. The keys are
 * copied; the caller wipes its own.
 */
int lane_encrypt(struct lane **lane, uint64_t sent_bytes, const uint8_t send_key[CRYPTO_KEY_BYTES],
		 const uint8_t recv_key[CRYPTO_KEY_BYTES]);
/* For tests, before the first segment: sets the numbers of the next segments. Keys stay the
 * same. */
void lane_encrypted_renumber(struct lane *lane, uint64_t send_segment, uint64_t recv_segment);

/* lane_harp.c, on an engine's poller; poller held. */
struct engine;
int lane_harp_connect(struct engine *engine, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, int dscp, struct lane **out);
/* -EAGAIN when no connection waits. */
int lane_harp_accept(struct engine *engine, struct harp_listener *listener, struct lane **out);
/* For any kind of lane; others than HARP lanes ignore them. */
/* Counts a request's latency from post to completion. */
void lane_harp_observe(struct lane *lane, uint64_t latency_ns);
/* Sets the lane's purpose, shown by statistics: "NCCL send". */
void lane_harp_label(struct lane *lane, const char *text);

#endif
