/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc.h - congestion control behind four hooks: how much may be in flight.
 *
 * What was lost, and what is in flight, is tcp_loss.c's business; a controller is only told. It keeps
 * cwnd_bytes and ssthresh_bytes, and has a little memory of its own in every connection.
 */
#ifndef HARP_TRANSPORT_CC_H
#define HARP_TRANSPORT_CC_H

#include <stdint.h>

struct cc {
	const struct cc_ops *ops;
	uint32_t cwnd_bytes;
	uint32_t ssthresh_bytes;
	uint64_t priv[6]; /* the controller's own */
};

struct cc_event {
	uint64_t now_ns;
	uint32_t mss_bytes;
	uint32_t flight_bytes; /* outstanding before this ACK */
	uint32_t acked_bytes;  /* newly acknowledged */
	uint64_t rtt_ns;       /* 0: no sample */
	uint8_t limited;       /* the window, not the application, held back the sender */
};

struct cc_ops {
	const char *name;
	/* The connection is established. */
	void (*init)(struct cc *cc, const struct cc_event *ev);
	/* New data was acknowledged outside of recovery, or slow start after a timeout goes on. */
	void (*acked)(struct cc *cc, const struct cc_event *ev);
	/* Loss was seen by duplicate ACKs: once per window of data. */
	void (*congestion)(struct cc *cc, const struct cc_event *ev);
	/* The retransmission timer fired, the first time for this window. */
	void (*timeout)(struct cc *cc, const struct cc_event *ev);
};

extern const struct cc_ops cc_newreno;

#endif
