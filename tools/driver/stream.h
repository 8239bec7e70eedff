/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - message streams and ping-pong between ring neighbors, as operations. */
#ifndef HARP_DRIVER_STREAM_H
#define HARP_DRIVER_STREAM_H

#include "play.h"

enum stream_role {
	STREAM_SEND = 1,
	STREAM_RECEIVE = 2,
	STREAM_BOTH = 3, /* independent streams in both directions */
	STREAM_PING = 4, /* sends first, then answers each receive; the other end is STREAM_PONG */
	STREAM_PONG = 5,
};

/* Start and end of the measurement at one end: completion of the last warm-up message and of the
 * last message. */
struct stream_window {
	uint64_t start_ns, end_ns;
};

struct stream_op {
	struct op op; /* first member */
	struct play *play;
	enum stream_role role;
	size_t bytes;
	uint64_t warmup;      /* messages per channel before the measurement */
	uint64_t messages;    /* per channel, after the warm-up; UINT64_MAX: endless */
	bool check;           /* fill and verify every byte */
	uint64_t *samples_ns; /* ping: `messages` half round trips */
	uint64_t sample, pinged_ns;
	struct stream_window sent, received;
	uint64_t wrong; /* messages with a wrong byte */
	/* Ends an endless stream; NULL: never. When it is true, each channel sends as many empty
	 * messages as may be outstanding, which tell the receiver to stop. */
	const atomic_bool *stop;
	uint64_t first_empty[PLAY_CHANNELS_MAX]; /* sender: number of the first; 0: not yet */
};

/* All channels carry the stream; ping and pong use channel 0. */
void stream_prepare(struct stream_op *stream, struct play *play, enum stream_role role,
		    size_t bytes, uint64_t warmup, uint64_t messages, bool check,
		    uint64_t *samples_ns);

#endif
