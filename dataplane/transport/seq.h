/* SPDX-License-Identifier: Apache-2.0 */
/* seq.h - sequence number arithmetic modulo 2^32 (RFC 9293 section 3.4). */
#ifndef HARP_TRANSPORT_SEQ_H
#define HARP_TRANSPORT_SEQ_H

#include <stdbool.h>
#include <stdint.h>

static inline bool seq_lt(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0;
}
static inline bool seq_leq(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) <= 0;
}
static inline bool seq_gt(uint32_t a, uint32_t b)
{
	return seq_lt(b, a);
}
static inline bool seq_geq(uint32_t a, uint32_t b)
{
	return seq_leq(b, a);
}
/* True if seq, a former SND.NXT, is not acknowledged yet. The functions above would consider an
 * acknowledged seq as ahead again once SND.UNA has passed it by half of the sequence space. */
static inline bool seq_awaited(uint32_t seq, uint32_t snd_una, uint32_t snd_nxt)
{
	return seq - snd_una - 1 < snd_nxt - snd_una;
}
static inline uint32_t seq_max(uint32_t a, uint32_t b)
{
	return seq_lt(a, b) ? b : a;
}
static inline uint32_t seq_min(uint32_t a, uint32_t b)
{
	return seq_lt(a, b) ? a : b;
}

#endif
