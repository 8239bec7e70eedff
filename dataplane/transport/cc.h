/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc.h - the interface of congestion controllers: four hooks that set the congestion window.
 *
 * tcp_loss.c knows which segments are lost or in flight, and sets cwnd_bytes during recovery (RFC
 * 9937). A controller sets ssthresh_bytes, the window after the recovery, in `congestion` and
 * `timeout`, and cwnd_bytes in `acked`. Its private state is in priv. tcp_loss.c saves all of
 * struct cc before a reduction and restores it if the reduction was spurious (RFC 4015), so no
 * controller needs a hook for that.
 */
#ifndef HARP_TRANSPORT_CC_H
#define HARP_TRANSPORT_CC_H

#include <stdbool.h>
#include <stdint.h>

#include "harp.h"

#define CC_WINDOW_BYTES_MAX (1u << 30)
#define CC_PRIV_WORDS 12u

struct cc {
	const struct cc_ops *ops;
	uint32_t cwnd_bytes;
	uint32_t ssthresh_bytes;
	/* computed by tcp_cc.c from the window and the round-trip time; 0: not paced */
	uint64_t pacing_bytes_per_s;
	uint64_t priv[CC_PRIV_WORDS]; /* owned by the controller */
};

enum cc_signal {
	CC_SIGNAL_NONE = 0,
	CC_SIGNAL_LOSS, /* once per window of data */
	CC_SIGNAL_ECN,  /* ECE on an ACK (RFC 3168): once per window of data */
};

struct cc_event {
	uint64_t now_ns;
	uint32_t mss_bytes;
	/* outstanding before this ACK, without bytes that had already left the network */
	uint32_t flight_bytes;
	uint32_t acked_bytes;     /* newly acknowledged, by SEG.ACK */
	uint32_t delivered_bytes; /* newly acknowledged or SACKed */
	uint32_t marked_bytes;    /* delivered_bytes if the ACK has ECE (RFC 8257 section 3.3) */
	uint32_t snd_una_seq, snd_nxt_seq; /* after this ACK; delimit round trips */
	uint64_t rtt_ns;                   /* of this ACK; 0: no sample */
	uint64_t srtt_ns, rtt_ns_min;      /* of the connection; 0: none yet */
	uint8_t limited;                   /* the window limited the sender, not the application */
	uint8_t recovering; /* tcp_loss.c sets cwnd_bytes now; controllers must not */
	uint8_t signal;     /* enum cc_signal, for `congestion` */
};

struct cc_ops {
	const char *name;
	bool constant; /* fixed window: neither paced nor reduced after idle */
	/* The connection is established. priv[0] is harp_tcp_options.fixed_window_bytes. */
	void (*init)(struct cc *cc, const struct cc_event *ev);
	/* An ACK that acknowledged or SACKed data. */
	void (*acked)(struct cc *cc, const struct cc_event *ev);
	/* ev->signal is the reason. Sets ssthresh_bytes. */
	void (*congestion)(struct cc *cc, const struct cc_event *ev);
	/* The retransmission timer fired, the first time for this window. Sets ssthresh_bytes. */
	void (*timeout)(struct cc *cc, const struct cc_event *ev);
};

extern const struct cc_ops cc_newreno, cc_cubic, cc_dctcp, cc_delay, cc_fixed;

/* RFC 6928 section 2: min (10*MSS, max (2*MSS, 14600)). Also the restart window after idling. */
static inline uint32_t cc_initial_window_bytes(uint32_t mss_bytes)
{
	uint32_t limit = 2 * mss_bytes > 14600 ? 2 * mss_bytes : 14600;

	return 10 * mss_bytes < limit ? 10 * mss_bytes : limit;
}

/* Slow start and congestion avoidance, RFC 5681 section 3.1. *counted_bytes, in priv, counts
 * acknowledged bytes that have not increased the window yet. */
void cc_reno_grow(struct cc *cc, const struct cc_event *ev, uint64_t *counted_bytes);
/* RFC 5681 equation (4): max (FlightSize / 2, 2*SMSS). */
uint32_t cc_reno_ssthresh_bytes(const struct cc_event *ev);

/* DCTCP's estimate of the fraction of marked bytes, parts per million; 0 for other controllers. */
uint32_t cc_dctcp_alpha_ppm(const struct cc *cc);

#endif
