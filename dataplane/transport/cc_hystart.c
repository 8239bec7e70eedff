/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_hystart.c - HyStart++ (RFC 9406), with thresholds for round-trip times from 20 us to 200 ms.
 *
 * The RFC's MIN_RTT_THRESH of 4 ms suits the jitter of the Internet. With a round trip of 50 us the
 * queue would overflow before that threshold. This file uses 100 us: more than a HARP receiver may
 * delay an ACK (TCP_ACK_HOLD_BULK_NS, 40 us) plus a poll or two, and 125 KB of queue at 10 Gbit/s.
 * For round trips above 0.8 ms, the RFC's rule, one eighth of the round trip, exceeds it.
 *
 * N_RTT_SAMPLE = 8 presumes an ACK for every second segment. HARP receivers acknowledge up to 16
 * segments at once. So an ACK counts as half of its segments, but as at most four samples, because
 * a single late ACK must not decide.
 *
 * L, the limit of growth per ACK, is infinite, because the sender is paced (section 4.3).
 */
#include "transport/cc_hystart.h"

#include "transport/seq.h"

static void hystart_next_round(struct hystart *h, const struct cc_event *ev)
{
	h->round_end_seq = ev->snd_nxt_seq;
	h->rtt_ns_last = h->rtt_ns_now;
	h->rtt_ns_now = HYSTART_RTT_NONE;
	h->samples = 0;
}

void hystart_begin(struct hystart *h, const struct cc_event *ev)
{
	*h = (struct hystart){ .rtt_ns_now = HYSTART_RTT_NONE };
	hystart_next_round(h, ev);
}

static void hystart_sample(struct hystart *h, const struct cc_event *ev)
{
	uint32_t rtt_ns = ev->rtt_ns < HYSTART_RTT_NONE ? (uint32_t)ev->rtt_ns : HYSTART_RTT_NONE;
	uint32_t pairs = ev->acked_bytes / (2 * ev->mss_bytes);

	if (ev->rtt_ns == 0)
		return;
	if (rtt_ns < h->rtt_ns_now)
		h->rtt_ns_now = rtt_ns;
	pairs = pairs < 1 ? 1 : pairs;
	pairs = pairs > HYSTART_RTT_SAMPLES / 2 ? HYSTART_RTT_SAMPLES / 2 : pairs;
	if (h->samples < HYSTART_RTT_SAMPLES)
		h->samples = (uint8_t)(h->samples + pairs);
}

static bool hystart_delay_grew(const struct hystart *h)
{
	uint32_t threshold_ns = h->rtt_ns_last / HYSTART_RTT_DIVISOR;

	if (h->rtt_ns_now == HYSTART_RTT_NONE || h->rtt_ns_last == HYSTART_RTT_NONE)
		return false;
	if (threshold_ns < HYSTART_RTT_THRESH_NS_MIN)
		threshold_ns = HYSTART_RTT_THRESH_NS_MIN;
	if (threshold_ns > HYSTART_RTT_THRESH_NS_MAX)
		threshold_ns = HYSTART_RTT_THRESH_NS_MAX;
	return h->rtt_ns_now >= (uint64_t)h->rtt_ns_last + threshold_ns;
}

uint32_t hystart_acked(struct hystart *h, const struct cc_event *ev, bool *leave)
{
	uint32_t grow = h->css ? ev->acked_bytes / HYSTART_CSS_GROWTH_DIVISOR : ev->acked_bytes;

	*leave = false;
	hystart_sample(h, ev);
	if (h->samples >= HYSTART_RTT_SAMPLES) {
		if (!h->css && hystart_delay_grew(h)) {
			h->css = 1;
			h->css_rounds = 0;
			h->css_rtt_ns_baseline = h->rtt_ns_now;
		} else if (h->css && h->rtt_ns_now < h->css_rtt_ns_baseline) {
			/* The exit was spurious: resume slow start. */
			h->css = 0;
		}
	}
	if (!seq_awaited(h->round_end_seq, ev->snd_una_seq, ev->snd_nxt_seq)) {
		/* Section 4.2: "If the transition into CSS happens in the middle of a round, that
		 * partial round counts". */
		if (h->css && ++h->css_rounds >= HYSTART_CSS_ROUNDS)
			*leave = true;
		hystart_next_round(h, ev);
	}
	if (*leave)
		h->off = 1;
	return grow;
}
