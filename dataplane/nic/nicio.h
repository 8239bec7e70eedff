/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nicio.h - moves frames to and from a NIC: reception, transmission, completion, fill ring,
 * counters and capture.
 */
#ifndef HARP_NIC_NICIO_H
#define HARP_NIC_NICIO_H

#include "harp_stats.h"
#include "memory/frame.h"

#define NICIO_BURST 64u
#define NICIO_FILL_MIN 512u /* initial receive frames: see nicio_fill_adapt() */
/* Maximum descriptors of a received packet: 64 KiB in the smallest fragments, 1792 bytes. */
#define NICIO_FRAGS_MAX 40u

/*
 * A packet to be sent. Headers grow downwards in the first frame's headroom: each layer decrements
 * `head` and writes. The frame's data and len remain those of the payload, for retransmission.
 */
struct packet_out {
	struct frame *frame; /* first frame; fragments by ->frag carry only payload */
	uint8_t *head;       /* first byte written so far; starts at frame->pub.data */
	uint32_t len;        /* bytes of the packet from head, including fragments */
	uint32_t flags;      /* HARP_DESC_TX_*: offloads */
	uint32_t frags;      /* descriptors; 0: not counted yet */
	/* GSO packet (HARP_DESC_TX_TSO): number of segments, linked by frame->next; cut_bytes of
	 * len belong to those after the first. 0 and 0: a single packet. */
	uint32_t segments, cut_bytes;
};

struct capture; /* nic/capture.h */

struct nicio {
	struct harp_nic *nic;
	struct frame_pool *pool;
	struct harp_stats *stats;
	struct capture *capture; /* NULL: off */
	uint64_t now_ns;
	uint32_t fill_max;    /* limit of the NIC and of the pool */
	uint32_t fill_burst;  /* consecutive full receive bursts */
	uint32_t fill_target; /* target number of receive frames that the NIC holds */
	uint32_t fill_held;
	uint32_t tx_held;     /* descriptors not completed, including those in tx[] */
	unsigned tx_count;    /* descriptors waiting for nicio_flush() */
	unsigned tx_refused;  /* number of these that the NIC refused last time */
	uint64_t tx_moved_ns; /* time of the last transmission or completion */
	bool kick_due;
	uint32_t features;      /* HARP_NIC_* */
	uint32_t tx_frags_max;  /* descriptors of a packet */
	uint32_t tx_ring;       /* descriptors that the NIC can hold */
	uint32_t tso_bytes_max; /* maximum payload of a GSO packet; 0: no TSO */
	struct harp_desc tx[NICIO_BURST];
};

/* The NIC's capabilities as far as the stack uses them. */
struct harp_nic_caps nicio_caps(const struct harp_nic *nic);
int nicio_init(struct nicio *io, struct harp_nic *nic, struct frame_pool *pool,
	       struct harp_stats *stats);

/* Receives packets: each is a frame (stack_refs 1, data/len = its Ethernet bytes) with fragments by
 * ->frag. Returns their number. Drops and counts invalid packets. */
unsigned nicio_rx(struct nicio *io, struct frame *packets[NICIO_BURST]);
/* True if a packet of `frags` descriptors fits, perhaps after a flush. */
bool nicio_tx_make_ready(struct nicio *io, unsigned frags);
static inline bool nicio_tx_ready(struct nicio *io, unsigned frags)
{
	return (frags <= io->tx_frags_max && io->tx_count + frags <= NICIO_BURST &&
		io->tx_held + frags <= io->tx_ring) ||
	       nicio_tx_make_ready(io, frags);
}
/* Queues a packet (one nic_ref per frame). Requires nicio_tx_ready(). */
void nicio_tx(struct nicio *io, const struct packet_out *out);
/* Memory that may be sent in place: see harp_stack_memory_add(), harp_stack_memory_remove(). */
int nicio_memory_add(struct nicio *io, const void *base, size_t bytes);
int nicio_memory_remove(struct nicio *io, const void *base, size_t bytes);
/* Drops queued packets that refer to this memory; TCP retransmits them from copies. If the NIC
 * still reads the memory while it is being removed, makes it stop (memory_flush). */
void nicio_memory_forget(struct nicio *io, const void *base, size_t bytes);
/* Passes queued packets to the NIC and kicks it. */
void nicio_flush(struct nicio *io);
/* Releases completed frames. */
void nicio_complete(struct nicio *io);
/* Ensures that this many frames can arrive between polls, within the NIC's limit. */
static inline void nicio_fill_raise(struct nicio *io, uint32_t frames)
{
	if (frames > io->fill_max)
		frames = io->fill_max;
	if (frames > io->fill_target)
		io->fill_target = frames;
}
/* Fills the NIC's receive ring up to fill_target. */
void nicio_fill(struct nicio *io);

#endif
