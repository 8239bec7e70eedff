/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nicio.h - between frames and a NIC: bursts in, bursts out, completions, the fill ring, counters
 * and the capture tap.
 */
#ifndef HARP_NIC_NICIO_H
#define HARP_NIC_NICIO_H

#include "harp_stats.h"
#include "memory/frame.h"

#define NICIO_BURST 64u
#define NICIO_FILL_MIN 512u /* frames for receiving at first: see nicio_fill_adapt() */
/* Descriptors of one received packet that we believe: 64 KiB in the smallest pieces, 1792 bytes. */
#define NICIO_FRAGS_MAX 40u

/*
 * A packet on its way out. Headers grow downwards in the first frame's headroom: each layer moves
 * `head` down and writes; the frame's own data/len stay the payload, so that it can be
 * retransmitted.
 */
struct packet_out {
	struct frame *frame; /* first frame; fragments by ->frag carry only payload */
	uint8_t *head;       /* first byte written so far; starts at frame->pub.data */
	uint32_t len;        /* bytes of the packet from head, fragments included */
	uint32_t flags;      /* HARP_DESC_TX_*: what the card does to it */
	uint32_t frags;      /* descriptors; 0: not counted yet */
	/* A train (HARP_DESC_TX_TSO): segments by frame->next, cut_bytes of len in those after the first.
	 * 0 and 0: one packet. */
	uint32_t segments, cut_bytes;
};

struct capture; /* nic/capture.h */

struct nicio {
	struct harp_nic *nic;
	struct frame_pool *pool;
	struct harp_stats *stats;
	struct capture *capture; /* NULL: off */
	uint64_t now_ns;
	uint32_t fill_max;    /* as many as the NIC takes and the pool can spare */
	uint32_t fill_burst;  /* received in full bursts in a row */
	uint32_t fill_target; /* frames we want the NIC to hold for receiving */
	uint32_t fill_held;
	uint32_t tx_held;     /* descriptors not completed, those waiting in tx[] included */
	unsigned tx_count;    /* descriptors waiting for nicio_flush */
	unsigned tx_refused;  /* so many of them the NIC had no room for at the last one */
	uint64_t tx_moved_ns; /* descriptors went out or came back */
	bool kick_wanted;
	uint32_t features;      /* HARP_NIC_* */
	uint32_t tx_frags_max;  /* descriptors of a packet */
	uint32_t tx_ring;       /* descriptors that the NIC holds */
	uint32_t tso_bytes_max; /* payload of a train; 0: the card cuts nothing */
	struct harp_desc tx[NICIO_BURST];
};

/* What the NIC can do, whichever version of harp_nic.h it was compiled with: without what came later. */
struct harp_nic_caps nicio_caps(const struct harp_nic *nic);
int nicio_init(struct nicio *io, struct harp_nic *nic, struct frame_pool *pool,
	       struct harp_stats *stats);

/* Receives packets: each is a frame (stack_refs 1, data/len = its Ethernet bytes) with fragments by
 * ->frag. Returns how many. Packets the NIC handed over badly are dropped and counted. max bounds
 * the descriptors too: less than NICIO_FRAGS_MAX may starve the largest packets. */
unsigned nicio_rx(struct nicio *io, struct frame **packets, unsigned max);
/* Room for a packet of `frags` descriptors? Flushes when needed to make room. */
bool nicio_tx_make_ready(struct nicio *io, unsigned frags);
static inline bool nicio_tx_ready(struct nicio *io, unsigned frags)
{
	return (frags <= io->tx_frags_max && io->tx_count + frags <= NICIO_BURST &&
		io->tx_held + frags <= io->tx_ring) ||
	       nicio_tx_make_ready(io, frags);
}
/* Queues a packet (one nic_ref per frame). The caller has asked nicio_tx_ready(). */
void nicio_tx(struct nicio *io, const struct packet_out *out);
/* Memory that may be sent in place: harp_stack_memory_add(), harp_stack_memory_remove(). */
int nicio_memory_add(struct nicio *io, const void *base, size_t bytes);
int nicio_memory_remove(struct nicio *io, const void *base, size_t bytes);
/* Packets with bytes of it that wait for the NIC to take them are lost: TCP sends them again, from elsewhere. */
void nicio_memory_forget(struct nicio *io, const void *base, size_t bytes);
/* Gives queued packets to the NIC and kicks it. */
void nicio_flush(struct nicio *io);
/* Takes completed frames home. */
void nicio_complete(struct nicio *io);
/* So many frames may arrive while nobody polls: the NIC holds as many from now on, as far as it can. */
static inline void nicio_fill_raise(struct nicio *io, uint32_t frames)
{
	if (frames > io->fill_max)
		frames = io->fill_max;
	if (frames > io->fill_target)
		io->fill_target = frames;
}
/* Tops the NIC's receive ring up to fill_target. */
void nicio_fill(struct nicio *io);

#endif
