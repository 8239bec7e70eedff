/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - a TCP stream of the HARP stack's or of the kernel's, driven by one thread in one way. */
#ifndef HARP_TOOLS_STREAM_H
#define HARP_TOOLS_STREAM_H

#include <stdbool.h>
#include <stdio.h>

#include "harp_host.h"

struct stream_options {
	bool kernel, spin, frames;
	const char *ifname, *lib_dir;
	uint32_t queue, xdp_mode, copy_mode;
	struct harp_endpoint local, remote;
};

/*
 * Calls return a count or 0, or -errno; -EAGAIN: call turn() and try again. turn() advances the stack
 * and sleeps when there is nothing to do (unless spinning).
 */
struct stream;
struct stream_ops {
	int (*open)(struct stream *s, const struct stream_options *opt, char *why, size_t why_len);
	int (*listen)(struct stream *s);
	int (*accept)(struct stream *s);  /* 0: a connection is there */
	int (*connect)(struct stream *s); /* begins; connected() tells */
	int (*connected)(struct stream *s);
	ssize_t (*send)(struct stream *s, const void *data, size_t len);
	ssize_t (*recv)(struct stream *s, void *data, size_t len); /* 0: end of stream */
	void (*hangup)(struct stream *s); /* ends the connection; the next accept() may come */
	void (*turn)(struct stream *s);
	void (*describe)(struct stream *s, FILE *out); /* a JSON object */
	void (*close)(struct stream *s);
};
struct stream {
	const struct stream_ops *ops;
	struct stream_options opt;
};

struct stream *stream_harp(void); /* NULL: no memory */
struct stream *stream_kernel(void);
uint64_t stream_clock_ns(void);

#endif
