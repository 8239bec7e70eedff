/* SPDX-License-Identifier: Apache-2.0 */
/* queue_placement.c - chooses source ports by the queues that they map to. */
#include "wire/queue_placement.h"

#include <errno.h>
#include <string.h>

#include "wire/record.h"

#define KEY_BYTES_MIN 40u
/* Step from one source port to the next: a prime above the number of ports visits each port
 * once. */
#define STRIDE 65521u

/* docs/lanes.md section 3.2. */
#define AT_KIND 0
#define AT_KEY_BYTES 1
#define AT_TABLE_COUNT 2
#define AT_QUEUE 4
#define AT_QUEUES 6
#define AT_KEY 8

void placement_own(struct placement_end *end, const struct harp_rss *rss, uint32_t queue)
{
	memset(end, 0, sizeof(*end));
	end->queue = (uint16_t)queue;
	end->queues = (uint16_t)(rss->queues < UINT16_MAX ? rss->queues : UINT16_MAX);
	switch ((enum harp_rss_kind)rss->kind) {
	case HARP_RSS_NONE:
		end->kind = PLACEMENT_ONE_QUEUE;
		break;
	case HARP_RSS_TOEPLITZ:
		end->kind = PLACEMENT_TOEPLITZ;
		end->known = true;
		end->rss = *rss;
		break;
	case HARP_RSS_UNKNOWN:
	default:
		end->kind = PLACEMENT_UNKNOWN;
	}
}

size_t placement_encode(const struct placement_end *end, uint8_t out[PLACEMENT_BYTES_MAX])
{
	const struct harp_rss *rss = &end->rss;
	size_t bitmap = (rss->table_count + 7u) / 8u;
	uint8_t *bits;

	if (end->kind != PLACEMENT_TOEPLITZ || !end->known)
		return 0;
	memset(out, 0, AT_KEY + rss->key_bytes + bitmap);
	out[AT_KIND] = PLACEMENT_TOEPLITZ;
	out[AT_KEY_BYTES] = (uint8_t)rss->key_bytes;
	wire_put16(out + AT_TABLE_COUNT, (uint16_t)rss->table_count);
	wire_put16(out + AT_QUEUE, end->queue);
	wire_put16(out + AT_QUEUES, end->queues);
	memcpy(out + AT_KEY, rss->key, rss->key_bytes);
	bits = out + AT_KEY + rss->key_bytes;
	for (uint32_t i = 0; i < rss->table_count; i++)
		if (rss->table[i] == end->queue)
			bits[i / 8] |= (uint8_t)(1u << (i % 8));
	return AT_KEY + rss->key_bytes + bitmap;
}

int placement_decode(struct placement_end *end, const uint8_t *in, size_t len)
{
	struct harp_rss *rss = &end->rss;
	const uint8_t *bits;

	memset(end, 0, sizeof(*end));
	if (len < AT_KEY)
		return -EPROTO;
	rss->kind = HARP_RSS_TOEPLITZ;
	rss->key_bytes = in[AT_KEY_BYTES];
	rss->table_count = wire_get16(in + AT_TABLE_COUNT);
	end->queue = wire_get16(in + AT_QUEUE);
	end->queues = wire_get16(in + AT_QUEUES);
	if (in[AT_KIND] != PLACEMENT_TOEPLITZ || rss->key_bytes < KEY_BYTES_MIN ||
	    rss->key_bytes > HARP_RSS_KEY_MAX || !rss->table_count ||
	    rss->table_count > HARP_RSS_TABLE_MAX || end->queue >= end->queues ||
	    len != AT_KEY + rss->key_bytes + (rss->table_count + 7u) / 8u)
		return -EPROTO;
	end->kind = PLACEMENT_TOEPLITZ;
	end->known = true;
	rss->queues = end->queues;
	memcpy(rss->key, in + AT_KEY, rss->key_bytes);
	bits = in + AT_KEY + rss->key_bytes;
	/* Any number other than the listener's queue stands for the other queues. */
	for (uint32_t i = 0; i < rss->table_count; i++)
		rss->table[i] =
			bits[i / 8] & 1u << (i % 8) ? end->queue : (uint16_t)(end->queue + 1u);
	return 0;
}

/* ---- ports ---------------------------------------------------------------------------------- */

static bool end_takes_any_port(const struct placement_end *end)
{
	return end->kind == PLACEMENT_NONE || end->kind == PLACEMENT_ONE_QUEUE;
}

void placement_begin(struct placement *p, const struct placement_end *own,
		     const struct placement_end *peer, const struct harp_endpoint *local,
		     const struct harp_endpoint *remote, uint16_t first, uint16_t last,
		     uint64_t random)
{
	memset(p, 0, sizeof(*p));
	p->own = own;
	p->peer = peer;
	p->local = *local;
	p->remote = *remote;
	p->first = first;
	p->count = last >= first ? (uint32_t)(last - first) + 1u : 0;
	p->start = (uint32_t)random;
}

bool placement_takes_any_port(const struct placement *p)
{
	return end_takes_any_port(p->own) && end_takes_any_port(p->peer);
}

bool placement_is_computed(const struct placement *p)
{
	return !p->try_all && (end_takes_any_port(p->own) || p->own->known) &&
	       (end_takes_any_port(p->peer) || p->peer->known);
}

/* May packets from src to dst arrive on the queue of that end? */
static bool end_may_receive(const struct placement_end *end, const struct harp_endpoint *src,
			    const struct harp_endpoint *dst)
{
	return !end->known || harp_rss_queue(&end->rss, src, dst) == end->queue;
}

uint16_t placement_next(struct placement *p)
{
	while (p->at < p->count) {
		uint64_t step = p->start + (uint64_t)p->at++ * STRIDE;

		p->local.port = (uint16_t)(p->first + step % p->count);
		if (p->try_all || (end_may_receive(p->own, &p->remote, &p->local) &&
				   end_may_receive(p->peer, &p->local, &p->remote)))
			return p->local.port;
	}
	return 0;
}
