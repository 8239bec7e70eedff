/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_hystart.c - HyStart++ (RFC 9406), with thresholds for round trips of 20 us as well as 200 ms.
 *
 * The RFC's MIN_RTT_THRESH of 4 ms is for the noise of the Internet: where a round trip takes 50 us it
 * would never be reached before the queue overflows. Ours is 100 us: more than our own receivers may hold
 * back an ACK (TCP_ACK_HOLD_BULK_NS, 40 us) and a poll or two, and 125 KB of queue at 10 Gbit/s. An
 * eighth of the round trip, RFC 9406's own rule, goes beyond it from 0.8 ms on.
 *
 * N_RTT_SAMPLE = 8 presumes an ACK for every second segment. Our receivers acknowledge up to 16 at
 * once, so an ACK counts as half its segments, yet never as more than half of the eight: one late
 * ACK must not decide.
 *
 * L, the most that an ACK may add, is infinite: the sender is paced (section 4.3).
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
			/* The exit was spurious: go on as before. */
			h->css = 0;
		}
	}
	if (!seq_awaited(h->round_end_seq, ev->snd_una_seq, ev->snd_nxt_seq)) {
		/* "If the transition into CSS happens in the middle of a round, that partial round counts". */
		if (h->css && ++h->css_rounds >= HYSTART_CSS_ROUNDS)
			*leave = true;
		hystart_next_round(h, ev);
	}
	if (*leave)
		h->off = 1;
	return grow;
}
