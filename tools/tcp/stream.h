/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - TCP streams of the HARP stack or of the kernel behind one interface, for one thread. */
#ifndef HARP_TOOLS_STREAM_H
#define HARP_TOOLS_STREAM_H

#include <stdbool.h>
#include <stdio.h>

#include "harp_host.h"

#define STREAMS_MAX 64u /* at once */

struct stream_options {
	bool external;                  /* messages are sent from where they lie */
	bool kernel, spin, frames, ecn; /* spin: never sleep */
	const char *ifname, *lib_dir;
	const char *daemon; /* harpd's socket: lease the queue. NULL: open it */
	const char *cc;     /* congestion control; NULL: the default */
	uint32_t queue, xdp_mode, copy_mode;
	uint32_t unsent_bytes;       /* that a HARP connection accepts before any of it was sent */
	uint32_t rcvbuf_bytes;       /* SO_RCVBUF of kernel sockets; 0: the kernel's choice */
	struct harp_endpoint local;  /* of a server */
	struct harp_endpoint remote; /* of a client: its peer */
};

struct stream_host; /* a stack, or the kernel */
struct stream;      /* a connection */

typedef int (*stream_take_fn)(void *ctx, const uint8_t *data, size_t len); /* 0 or -errno */

/*
 * Calls return a count or 0, or -errno; -EAGAIN: call turn() and try again. turn() advances the stack
 * and sleeps when there is nothing to do (unless spinning). A stream from accept() or connect() lives
 * until hangup(), or until its host is closed.
 */
struct stream_ops {
	int (*open)(struct stream_host *host, char *why, size_t why_len);
	int (*listen)(struct stream_host *host);
	int (*accept)(struct stream_host *host, struct stream **out);
	int (*connect)(struct stream_host *host,
		       struct stream **out); /* begins; connected() has the result */
	int (*connected)(struct stream *s);
	ssize_t (*send)(struct stream *s, const void *data, size_t len);
	ssize_t (*recv)(struct stream *s, void *data, size_t len); /* 0: end of stream */
	/* Passes received data to take() in place, piece by piece; returns the bytes, or take()'s error. */
	ssize_t (*recv_in_place)(struct stream *s, stream_take_fn take, void *ctx);
	/* Memory that send_in_place() may send from; until memory_remove(), which waits until the stack has read it. */
	int (*memory_add)(struct stream_host *host, const void *base, size_t bytes);
	int (*memory_remove)(struct stream_host *host, const void *base, size_t bytes);
	/* As send(), but the bytes are read where they lie, and must stay until the peer has them. */
	ssize_t (*send_in_place)(struct stream *s, const void *data, size_t len);
	int (*shutdown)(struct stream *s); /* no more to send; receiving goes on */
	void (*hangup)(struct stream *s);
	void (*turn)(struct stream_host *host);
	/* A JSON object: of the connection, of its host, or of both in one. Either may be NULL. */
	void (*describe)(struct stream_host *host, struct stream *s, FILE *out);
	void (*close)(struct stream_host *host);
};
struct stream_host {
	const struct stream_ops *ops;
	struct stream_options opt;
};
struct stream {
	struct stream_host *host;
};

struct stream_host *stream_harp(void); /* NULL: no memory */
struct stream_host *stream_kernel(void);
uint64_t stream_clock_ns(void);

#endif
