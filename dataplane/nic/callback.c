/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callback.c - a NIC made of two functions of the caller, which receive and send packets in place
 * if they fit one frame. Larger packets pass through a buffer of the NIC.
 */
#include "harp_nic.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLBACK_RX_HEADROOM 64u
#define CALLBACK_RING_MAX 1024u
#define CALLBACK_ETH_BYTES 18u
#define CALLBACK_FRAGS_MAX 32u

struct callback_nic {
	struct harp_nic nic; /* must be first: a struct harp_nic * refers to this struct */
	struct harp_nic_callbacks user;
	struct harp_nic_stats stats;
	uint8_t *packet; /* holds one packet of packet_bytes */
	uint32_t packet_bytes;
	uint64_t *fill; /* ring of empty frames */
	uint32_t fill_head, fill_count;
	uint64_t *sent; /* ring of completed frames */
	uint32_t sent_head, sent_count;
};

static uint32_t callback_room(const struct callback_nic *cb)
{
	return cb->nic.caps.frame_size - CALLBACK_RX_HEADROOM;
}

static uint64_t callback_fill_take(struct callback_nic *cb)
{
	uint64_t addr = cb->fill[cb->fill_head] + CALLBACK_RX_HEADROOM;

	cb->fill_head = (cb->fill_head + 1) % cb->nic.caps.rx_ring;
	cb->fill_count--;
	return addr;
}

/* Receives one packet into descs; 0: none is available. Skips packets that exceed the bound. */
static unsigned callback_rx_one(struct callback_nic *cb, struct harp_desc *descs)
{
	uint8_t *base = cb->nic.caps.frame_base;
	uint32_t room = callback_room(cb);
	bool direct = cb->packet_bytes <= room;
	uint8_t *buf = direct ? base + cb->fill[cb->fill_head] + CALLBACK_RX_HEADROOM : cb->packet;
	size_t len;
	unsigned n = 0;

	do {
		len = cb->user.receive(cb->user.ctx, buf, cb->packet_bytes);
		cb->stats.rx_invalid += len > cb->packet_bytes;
	} while (len > cb->packet_bytes);

	cb->stats.copied_bytes += len;
	for (uint32_t left = (uint32_t)len; left > 0; n++) {
		uint32_t piece = left < room ? left : room;
		uint64_t addr = callback_fill_take(cb);

		if (!direct)
			memcpy(base + addr, buf + (len - left), piece);
		left -= piece;
		descs[n] = (struct harp_desc){
			.addr = addr,
			.len = piece,
			.flags = left ? HARP_DESC_MORE : 0,
		};
	}
	return n;
}

static unsigned callback_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
			    uint64_t now_ns)
{
	struct callback_nic *cb = (struct callback_nic *)nic;
	uint32_t room = callback_room(cb);
	uint32_t frags = (cb->packet_bytes + room - 1) / room;
	unsigned got = 0, n;

	(void)now_ns;
	/* Receives only if the largest packet fits. */
	while (max - got >= frags) {
		if (cb->fill_count < frags) {
			cb->stats.rx_fill_empty++;
			break;
		}
		n = callback_rx_one(cb, descs + got);
		if (n == 0)
			break;
		got += n;
	}
	return got;
}

static bool callback_desc_valid(const struct callback_nic *cb, const struct harp_desc *desc)
{
	const struct harp_nic_caps *caps = &cb->nic.caps;

	return desc->len > 0 && desc->addr < (uint64_t)caps->frame_size * caps->frame_count &&
	       (desc->addr & (caps->frame_size - 1)) + desc->len <= caps->frame_size;
}

/* Sends the packet at descs. Returns the caller's result, or -EMSGSIZE if it cannot be sent. */
static int callback_tx_one(struct callback_nic *cb, const struct harp_desc *descs, unsigned n)
{
	const uint8_t *base = cb->nic.caps.frame_base;
	uint32_t len = 0;
	int err;

	for (unsigned i = 0; i < n; i++) {
		if (!callback_desc_valid(cb, &descs[i]) || descs[i].len > cb->packet_bytes - len)
			return -EMSGSIZE;
		if (n > 1)
			memcpy(cb->packet + len, base + descs[i].addr, descs[i].len);
		len += descs[i].len;
	}
	err = cb->user.send(cb->user.ctx, n > 1 ? cb->packet : base + descs[0].addr, len);
	if (err)
		return err;
	cb->stats.copied_bytes += len;
	return 0;
}

static unsigned callback_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
			    uint64_t now_ns)
{
	struct callback_nic *cb = (struct callback_nic *)nic;
	unsigned taken = 0, n = 0;

	(void)now_ns;
	while (taken + n < count) {
		const struct harp_desc *packet = descs + taken;

		if (packet[n++].flags & HARP_DESC_MORE)
			continue;
		if (n > nic->caps.tx_ring - cb->sent_count)
			break;
		int err = callback_tx_one(cb, packet, n);

		if (err == -EAGAIN)
			break;
		cb->stats.tx_invalid += err != 0; /* any other result: the packet is dropped */
		for (unsigned i = 0; i < n; i++)
			cb->sent[(cb->sent_head + cb->sent_count++) % nic->caps.tx_ring] =
				packet[i].addr;
		taken += n;
		n = 0;
	}
	return taken;
}

static unsigned callback_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max,
				  uint64_t now_ns)
{
	struct callback_nic *cb = (struct callback_nic *)nic;
	unsigned n = 0;

	(void)now_ns;
	for (; n < max && cb->sent_count > 0; n++, cb->sent_count--) {
		addrs[n] = cb->sent[cb->sent_head];
		cb->sent_head = (cb->sent_head + 1) % nic->caps.tx_ring;
	}
	return n;
}

static unsigned callback_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned count)
{
	struct callback_nic *cb = (struct callback_nic *)nic;
	const struct harp_nic_caps *caps = &nic->caps;
	unsigned n = 0;

	for (; n < count && cb->fill_count < caps->rx_ring; n++) {
		if (addrs[n] >= (uint64_t)caps->frame_size * caps->frame_count)
			continue;
		cb->fill[(cb->fill_head + cb->fill_count++) % caps->rx_ring] =
			addrs[n] & ~(uint64_t)(caps->frame_size - 1);
	}
	return n;
}

static void callback_kick(struct harp_nic *nic, uint64_t now_ns)
{
	(void)now_ns;
	((struct callback_nic *)nic)->stats.kicks++;
}

static uint64_t callback_next_ns(struct harp_nic *nic)
{
	return ((struct callback_nic *)nic)->sent_count > 0 ? 0 : UINT64_MAX;
}

static void callback_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	*out = ((struct callback_nic *)nic)->stats;
}

static void callback_destroy(struct harp_nic *nic)
{
	struct callback_nic *cb = (struct callback_nic *)nic;

	free(nic->caps.frame_base);
	free(cb->packet);
	free(cb->fill);
	free(cb->sent);
	free(cb);
}

static const struct harp_nic_ops callback_ops = {
	.rx = callback_rx,
	.tx = callback_tx,
	.complete = callback_complete,
	.fill = callback_fill,
	.kick = callback_kick,
	.next_ns = callback_next_ns,
	.stats = callback_stats,
	.destroy = callback_destroy,
};

static int callback_options(struct harp_nic_callbacks *opt, const struct harp_nic_callbacks *from)
{
	if (!from || from->size != sizeof(*opt) || !from->receive || !from->send)
		return -EINVAL;
	*opt = *from;
	opt->mtu_bytes = opt->mtu_bytes ? opt->mtu_bytes : 1500;
	if (!opt->frame_size)
		opt->frame_size = opt->mtu_bytes <= 1800 ? 2048 : 4096;
	opt->frame_count = opt->frame_count ? opt->frame_count : 4096;
	if (opt->mtu_bytes < 68 || opt->mtu_bytes > 65535 - CALLBACK_ETH_BYTES ||
	    opt->frame_size < 512 || opt->frame_size > 1u << 20 ||
	    (opt->frame_size & (opt->frame_size - 1)) != 0 || opt->frame_count < 64 ||
	    opt->frame_count > 1u << 22 || (opt->mac[0] & 1))
		return -EINVAL;
	return 0;
}

int harp_nic_callback_create(struct harp_nic **out, const struct harp_nic_callbacks *callbacks)
{
	struct harp_nic_callbacks opt;
	int err = callback_options(&opt, callbacks);

	if (err)
		return err;
	struct callback_nic *cb = calloc(1, sizeof(*cb));

	if (!cb)
		return -ENOMEM;
	struct harp_nic_caps *caps = &cb->nic.caps;
	uint32_t half = opt.frame_count / 2;

	cb->nic.ops = &callback_ops;
	cb->user = opt;
	cb->packet_bytes = opt.mtu_bytes + CALLBACK_ETH_BYTES;
	snprintf(caps->name, sizeof(caps->name), "callback");
	snprintf(caps->mode, sizeof(caps->mode), "callback");
	caps->frame_size = opt.frame_size;
	caps->frame_count = opt.frame_count;
	caps->rx_headroom = CALLBACK_RX_HEADROOM;
	caps->rx_ring = half < CALLBACK_RING_MAX ? half : CALLBACK_RING_MAX;
	caps->tx_ring = caps->rx_ring;
	caps->tx_frags_max = CALLBACK_FRAGS_MAX;
	caps->mtu_bytes = opt.mtu_bytes;
	caps->features = HARP_NIC_TX_MULTI;
	memcpy(caps->mac, opt.mac, sizeof(opt.mac));
	caps->frame_base = calloc(opt.frame_count, opt.frame_size);
	cb->packet = malloc(cb->packet_bytes);
	cb->fill = calloc(caps->rx_ring, sizeof(*cb->fill));
	cb->sent = calloc(caps->tx_ring, sizeof(*cb->sent));
	if (!caps->frame_base || !cb->packet || !cb->fill || !cb->sent) {
		callback_destroy(&cb->nic);
		return -ENOMEM;
	}
	*out = &cb->nic;
	return 0;
}
