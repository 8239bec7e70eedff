/* SPDX-License-Identifier: Apache-2.0 */
/* card.c - an AF_XDP queue with its XDP program and a pool of frames. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/library.h"
#include "memory/frame.h"
#include "wire.h"

#define ETHERNET_BYTES 14u
#define FRAMES 8192u

static int card_pool(struct card *card)
{
	const struct harp_nic_caps *caps = &card->nic->caps;
	uint64_t addrs[WIRE_BURST];
	uint32_t half = caps->frame_count / 2;

	card->free = malloc(caps->frame_count * sizeof(*card->free));
	if (!card->free)
		return -ENOMEM;
	while (card->free_count < caps->frame_count) {
		card->free[card->free_count] = card->free_count;
		card->free_count++;
	}
	/* Up to half of the frames are for receiving, as many as the ring accepts. */
	for (uint32_t filled = 0; filled < half && filled < caps->rx_ring;) {
		unsigned count = 0, accepted;

		for (; count < WIRE_BURST; count++)
			addrs[count] = (uint64_t)card->free[--card->free_count] * caps->frame_size;
		accepted = card->nic->ops->fill(card->nic, addrs, count);
		while (count-- > accepted)
			card_release(card, addrs[count]);
		if (!accepted)
			break;
		filled += accepted;
	}
	return 0;
}

static int card_xdp_open(struct card *card, const struct card_options *opt, char *why,
			 size_t why_len)
{
	struct harp_af_xdp_options nic = {
		.size = sizeof(nic),
		.ifname = opt->ifname,
		.frame_count = FRAMES,
	};
	int rc = library_open_xdp(opt->lib_dir, &card->library, &card->api, why, why_len);

	if (rc)
		return rc;
	rc = card->api->attach(&card->xdp, opt->ifname, opt->xdp_mode, why, why_len);
	if (rc)
		return rc;
	rc = harp_nic_af_xdp_create(&card->nic, &nic, why, why_len);
	if (rc)
		return rc;
	snprintf(card->mode, sizeof(card->mode), "af_xdp %s %s",
		 card->api->native(card->xdp) ? "native" : "generic",
		 strstr(card->nic->caps.mode, "zero-copy") ? "zero-copy" : "copy");
	return 0;
}

/* From now on, the XDP program redirects frames for our port to the queue. */
static int card_steer(const struct card *card, const struct card_options *opt,
		      const struct harp_addr *own, char *why, size_t why_len)
{
	int rc = card->api->address_set(card->xdp, own->bytes, true);

	if (!rc)
		rc = card->api->ports_set(card->xdp, STEER_PORT_TCP, WIRE_PORT, WIRE_PORT,
					  HARP_XDP_QUEUE_ANY, true);
	if (!rc)
		rc = card->api->xsk_set(card->xdp, 0, harp_nic_af_xdp_fd(card->nic));
	if (rc)
		snprintf(why, why_len, "%s: setting up the XDP program's maps: %s", opt->ifname,
			 strerror(-rc));
	return rc;
}

int card_open(struct card *card, const struct card_options *opt, const struct harp_addr *own,
	      char *why, size_t why_len)
{
	int rc;

	*card = (struct card){ 0 };
	rc = card_xdp_open(card, opt, why, why_len);
	if (!rc) {
		card->frame_bytes_max = card->nic->caps.mtu_bytes + ETHERNET_BYTES;
		rc = card_pool(card);
		if (rc)
			snprintf(why, why_len, "%s: out of memory", opt->ifname);
	}
	if (!rc)
		rc = card_steer(card, opt, own, why, why_len);
	if (rc)
		card_close(card);
	return rc;
}

void card_close(struct card *card)
{
	if (card->xdp)
		card->api->detach(card->xdp);
	harp_nic_destroy(card->nic);
	free(card->free);
	if (card->library)
		dlclose(card->library);
	*card = (struct card){ 0 };
}

uint8_t *card_at(const struct card *card, uint64_t addr)
{
	return card->nic->caps.frame_base + addr;
}

void card_release(struct card *card, uint64_t addr)
{
	card->free[card->free_count++] = (uint32_t)(addr / card->nic->caps.frame_size);
}

/* Offset of the data in a frame. */
static uint32_t card_headroom_bytes(const struct card *card)
{
	return card->nic->caps.frame_reserved + FRAME_HEADROOM_BYTES;
}

static uint32_t card_piece_bytes(const struct card *card)
{
	return card->nic->caps.frame_size - card_headroom_bytes(card);
}

unsigned card_frags(const struct card *card, uint32_t bytes)
{
	return (bytes + card_piece_bytes(card) - 1) / card_piece_bytes(card);
}

bool card_packet(struct card *card, uint32_t bytes, struct harp_desc *descs)
{
	unsigned frags = card_frags(card, bytes);

	if (card->free_count < frags)
		return false;
	for (unsigned i = 0; i < frags; i++) {
		uint64_t chunk =
			(uint64_t)card->free[--card->free_count] * card->nic->caps.frame_size;
		uint32_t len = bytes < card_piece_bytes(card) ? bytes : card_piece_bytes(card);

		descs[i] = (struct harp_desc){
			.addr = chunk + card_headroom_bytes(card),
			.len = len,
			.flags = i + 1 < frags ? HARP_DESC_MORE : 0,
		};
		bytes -= len;
	}
	return true;
}

void card_housekeeping(struct card *card, uint64_t now_ns)
{
	uint64_t addrs[WIRE_BURST];
	unsigned count;

	while ((count = card->nic->ops->complete(card->nic, addrs, WIRE_BURST, now_ns)))
		while (count--)
			card_release(card, addrs[count]);
}
