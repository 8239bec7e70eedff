/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - one interface to TCP streams of the HARP stack and of the kernel, for one thread. */
#ifndef HARP_TOOLS_STREAM_H
#define HARP_TOOLS_STREAM_H

#include <stdbool.h>
#include <stdio.h>

#include "harp_host.h"

#define STREAMS_MAX 64u /* concurrent streams */

struct stream_options {
	bool external;                  /* send messages from registered memory */
	bool kernel, spin, frames, ecn; /* spin: never sleep */
	const char *ifname, *lib_dir;
	const char *daemon; /* harpd's socket, to lease the queue; NULL: open the queue */
	const char *cc;     /* congestion control; NULL: the default */
	uint32_t queue, xdp_mode, copy_mode;
	uint32_t unsent_bytes;       /* limit of unsent bytes in a HARP connection */
	uint32_t rcvbuf_bytes;       /* SO_RCVBUF of kernel sockets; 0: the kernel's choice */
	struct harp_endpoint local;  /* a server's address */
	struct harp_endpoint remote; /* a client's peer */
};

struct stream_host; /* a stack, or the kernel */
struct stream;      /* a connection */

typedef int (*stream_take_fn)(void *ctx, const uint8_t *data, size_t len); /* 0 or -errno */

/*
 * Calls return a count, 0 or -errno. After -EAGAIN, call turn() and retry. turn() polls the stack,
 * and sleeps if there is nothing to do (unless spinning). A stream of accept() or connect() is
 * valid until hangup(), or until its host is closed.
 */
struct stream_ops {
	int (*open)(struct stream_host *host, char *why, size_t why_len);
	int (*listen)(struct stream_host *host);
	int (*accept)(struct stream_host *host, struct stream **out);
	/* Starts to connect; connected() returns the result. */
	int (*connect)(struct stream_host *host, struct stream **out);
	int (*connected)(struct stream *s);
	ssize_t (*send)(struct stream *s, const void *data, size_t len);
	ssize_t (*recv)(struct stream *s, void *data, size_t len); /* 0: end of stream */
	/* Passes pieces of received data to take() in place. Returns the bytes, or take()'s
	 * error. */
	ssize_t (*recv_in_place)(struct stream *s, stream_take_fn take, void *ctx);
	/* Register memory for send_in_place(). memory_remove() waits until the stack has read
	 * it. */
	int (*memory_add)(struct stream_host *host, const void *base, size_t bytes);
	int (*memory_remove)(struct stream_host *host, const void *base, size_t bytes);
	/* Like send(), without a copy: the data must not change until the peer has received it. */
	ssize_t (*send_in_place)(struct stream *s, const void *data, size_t len);
	int (*shutdown)(struct stream *s); /* ends the sending direction */
	void (*hangup)(struct stream *s);
	void (*turn)(struct stream_host *host);
	/* Prints a JSON object of the connection, of its host, or of both. Either may be NULL. */
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

struct stream_host *stream_harp(void); /* NULL: out of memory */
struct stream_host *stream_kernel(void);
uint64_t stream_clock_ns(void);

#endif
