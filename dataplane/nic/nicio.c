/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nicio.c - packet input and output of a NIC, which is not trusted. Checks descriptors before
 * reading data; counts and ignores frames that the NIC does not hold.
 */
#include "nic/nicio.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "memory/external.h"
#include "nic/capture.h"

void harp_nic_destroy(struct harp_nic *nic)
{
	if (nic)
		nic->ops->destroy(nic);
}

#define NICIO_TSO_BYTES_MAX 65400u /* with headers, the length still fits 16 bits */

struct harp_nic_caps nicio_caps(const struct harp_nic *nic)
{
	struct harp_nic_caps caps = nic->caps;

	if (!(caps.features & HARP_NIC_TX_CSUM) || !(caps.features & HARP_NIC_TX_MULTI))
		caps.features &= ~HARP_NIC_TX_TSO;
	if (!(caps.features & HARP_NIC_TX_TSO))
		caps.tso_bytes_max = 0;
	if (caps.tso_bytes_max > NICIO_TSO_BYTES_MAX)
		caps.tso_bytes_max = NICIO_TSO_BYTES_MAX;
	if (!(caps.features & HARP_NIC_TX_MULTI) || caps.tx_frags_max < 2)
		caps.external_count = 0; /* headers need a separate descriptor */
	return caps;
}

int nicio_init(struct nicio *io, struct harp_nic *nic, struct frame_pool *pool,
	       struct harp_stats *stats)
{
	const struct harp_nic_caps caps = nicio_caps(nic);
	uint32_t half, want;

	if (caps.tx_frags_max == 0 || caps.tx_frags_max > NICIO_BURST ||
	    caps.tx_frags_max > caps.tx_ring || caps.rx_ring == 0)
		return -EINVAL;
	*io = (struct nicio){ .nic = nic,
			      .pool = pool,
			      .tx_frags_max = caps.tx_frags_max,
			      .tx_ring = caps.tx_ring,
			      .stats = stats,
			      .features = caps.features,
			      .tso_bytes_max = caps.tso_bytes_max };
	/* At most half of the frames: transmission and queues need the others. */
	half = caps.frame_count / 2;
	io->fill_max = caps.rx_ring < half ? caps.rx_ring : half;
	want = caps.rx_fill_min > NICIO_FILL_MIN ? caps.rx_fill_min : NICIO_FILL_MIN;
	io->fill_target = io->fill_max < want ? io->fill_max : want;
	return io->fill_target > 0 ? 0 : -ENOBUFS;
}

/*
 * Adapts the number of frames that the NIC holds. The fill ring is FIFO: of n frames, each is
 * reused after n packets. With a large n it is no longer cached by then. Over veth the sender's
 * core, which does the kernel's copy, took 1.6 s per GB with 2048 frames and 1.4 s with 128. So the
 * number starts low and grows when polls find so many packets that frames could run out.
 */
static void nicio_fill_adapt(struct nicio *io, unsigned got)
{
	io->fill_burst = got == NICIO_BURST ? io->fill_burst + got : 0;
	if (io->fill_burst < io->fill_target / 2 || io->fill_target == io->fill_max)
		return;
	io->fill_burst = 0;
	io->fill_target = io->fill_target < io->fill_max / 2 ? io->fill_target * 2 : io->fill_max;
}

/* The frame that the NIC returns with a packet; NULL if the NIC does not hold it. */
static inline struct frame *nicio_take(struct nicio *io, const struct harp_desc *desc)
{
	struct frame *f = frame_of_offset(io->pool, desc->addr);

	if (!f || !(f->flags & FRAME_RX_NIC))
		return NULL;
	uint32_t room = io->pool->frame_size - (uint32_t)(desc->addr & (io->pool->frame_size - 1));

	f->flags = desc->flags & HARP_DESC_RX_CSUM_VALID ? FRAME_RX_CSUM_VALID : 0;
	f->pub.data = io->pool->base + desc->addr;
	f->pub.len = desc->len;
	f->pub.capacity = room;
	f->next = NULL;
	f->frag = NULL;
	f->stack_refs = 1;
	f->csum = 0;
	f->seq = 0;
	f->sent_ns = 0;
	f->owner = 0;
	io->fill_held--;
	return f;
}

/* A packet being assembled from descriptors. */
struct nicio_chain {
	struct frame *first, *last;
	uint32_t frags, bytes;
	bool invalid;
};

static inline void nicio_chain_add(struct nicio *io, struct nicio_chain *chain,
				   const struct harp_desc *desc)
{
	struct frame *f = nicio_take(io, desc);

	chain->frags++;
	if (!f) {
		chain->invalid = true;
		return;
	}
	chain->invalid |= desc->len == 0;
	chain->invalid |= desc->len > f->pub.capacity;
	chain->invalid |= chain->frags > NICIO_FRAGS_MAX;
	chain->bytes += desc->len;
	if (chain->last)
		chain->last->frag = f;
	else
		chain->first = f;
	chain->last = f;
}

static void nicio_chain_drop(struct nicio *io, struct nicio_chain *chain)
{
	/* Probably a GSO packet of a local kernel. */
	if (chain->frags > NICIO_FRAGS_MAX)
		io->stats->drop_gso_oversize++;
	else
		io->stats->drop_nic_desc++;
	frame_release_packet(io->pool, chain->first);
}

static inline void nicio_prefetch(const struct nicio *io, const struct harp_desc *desc)
{
	if (desc->addr >= (uint64_t)io->pool->frame_count << io->pool->frame_shift)
		return;
	__builtin_prefetch(io->pool->base + desc->addr);
	__builtin_prefetch(&io->pool->frames[desc->addr >> io->pool->frame_shift], 1);
}

/* Assembles the first packet of `left` descriptors; returns the number of descriptors used. */
static inline unsigned nicio_chain(struct nicio *io, struct nicio_chain *chain,
				   const struct harp_desc *descs, unsigned left)
{
	unsigned n = 0;

	*chain = (struct nicio_chain){ 0 };
	do {
		if (n + 1 < left)
			nicio_prefetch(io, &descs[n + 1]);
		nicio_chain_add(io, chain, &descs[n]);
		if (!(descs[n++].flags & HARP_DESC_MORE))
			return n;
	} while (n < left);
	chain->invalid = true; /* the packet is incomplete */
	return n;
}

/* The common case of a packet in one frame; NULL: invalid, or more fragments. */
static inline struct frame *nicio_single(struct nicio *io, const struct harp_desc *desc)
{
	uint32_t at = (uint32_t)(desc->addr & (io->pool->frame_size - 1));

	if ((desc->flags & HARP_DESC_MORE) || desc->len == 0 ||
	    desc->len > io->pool->frame_size - at)
		return NULL;
	return nicio_take(io, desc);
}

unsigned nicio_rx(struct nicio *io, struct frame *packets[NICIO_BURST])
{
	struct harp_desc descs[NICIO_BURST];
	struct nicio_chain chain;
	unsigned got = io->nic->ops->rx(io->nic, descs, NICIO_BURST, io->now_ns);
	unsigned count = 0;

	if (got > NICIO_BURST)
		got = NICIO_BURST; /* the NIC cannot have written more without overrunning descs */
	nicio_fill_adapt(io, got);
	if (got == 0)
		return 0;
	for (unsigned i = 0; i < got;) {
		if (i + 1 < got)
			nicio_prefetch(io, &descs[i + 1]);
		chain.first = nicio_single(io, &descs[i]);
		if (chain.first) {
			chain.bytes = descs[i++].len;
			chain.invalid = false;
		} else {
			i += nicio_chain(io, &chain, descs + i, got - i);
		}
		if (__builtin_expect(chain.invalid, 0)) {
			nicio_chain_drop(io, &chain);
			continue;
		}
		io->stats->rx_bytes += chain.bytes;
		if (__builtin_expect(io->capture != NULL, 0))
			capture_packet(io->capture, CAPTURE_IN, io->now_ns, chain.first->pub.data,
				       chain.first, 0);
		packets[count++] = chain.first;
	}
	io->stats->rx_packets += count;
	io->stats->frames_rx_nic = io->fill_held;
	return count;
}

bool nicio_tx_make_ready(struct nicio *io, unsigned frags)
{
	if (frags > io->tx_frags_max)
		return false;
	if (io->tx_count + frags > NICIO_BURST)
		nicio_flush(io);
	/* tx_held includes descriptors that wait for nicio_flush(). */
	if (io->tx_held + frags > io->tx_ring)
		nicio_complete(io);
	if (io->tx_count + frags > NICIO_BURST || io->tx_held + frags > io->tx_ring) {
		io->stats->tx_ring_full++;
		return false;
	}
	return true;
}

/* The frame's address for the NIC. An external frame gets the address of its data each time. */
static inline uint64_t nicio_addr(struct nicio *io, const struct frame *f, const uint8_t *data)
{
	struct frame_pool *pool = io->pool;

	if (__builtin_expect(!frame_is_external(pool, f), 1))
		return frame_offset(pool, data);
	/* The NIC may read the frame at the old address until completion. */
	assert(f->nic_refs == 0);
	pool->external[f->index - pool->frame_count] = data;
	return (uint64_t)f->index << pool->frame_shift;
}

static inline void nicio_put(struct nicio *io, struct frame *f, const uint8_t *data, uint32_t len,
			     uint32_t flags)
{
	assert(io->tx_count < NICIO_BURST && f->nic_refs < UINT8_MAX);
	io->tx[io->tx_count++] = (struct harp_desc){
		.addr = nicio_addr(io, f, data),
		.len = len,
		.flags = flags,
	};
	f->nic_refs++;
	io->tx_held++;
}

/* Queues a packet of several descriptors. */
static void nicio_tx_chain(struct nicio *io, const struct packet_out *out, uint32_t more)
{
	struct frame *f = out->frame, *packet = f, *next;
	uint8_t *data = out->head;
	uint32_t len = (uint32_t)(f->pub.data + f->pub.len - data);
	uint32_t flags = out->flags, total = 0;

	for (;;) {
		next = frame_after(f, &packet, &more);
		nicio_put(io, f, data, len, flags | (next ? HARP_DESC_MORE : 0));
		total += len;
		if (!next)
			break;
		f = next;
		data = f->pub.data;
		len = f->pub.len;
		flags = 0;
	}
	assert(total == out->len);
}

void nicio_tx(struct nicio *io, const struct packet_out *out)
{
	struct frame *f = out->frame;
	uint32_t more = out->segments > 1 ? out->segments - 1 : 0;

	if (__builtin_expect(io->capture != NULL, 0))
		capture_packet(io->capture, CAPTURE_OUT, io->now_ns, out->head, f, more);
	io->stats->tx_packets++;
	io->stats->tx_bytes += out->len;
	if (f->frag || more > 0) {
		nicio_tx_chain(io, out, more);
		return;
	}
	assert(out->len == (uint32_t)(f->pub.data + f->pub.len - out->head));
	nicio_put(io, f, out->head, out->len, out->flags);
}

void nicio_flush(struct nicio *io)
{
	unsigned taken = 0;

	if (io->tx_count > 0) {
		taken = io->nic->ops->tx(io->nic, io->tx, io->tx_count, io->now_ns);
		taken = taken < io->tx_count ? taken : io->tx_count;
		io->tx_count -= taken;
		io->tx_moved_ns = io->now_ns;
		if (io->tx_count > 0)
			memmove(io->tx, io->tx + taken, io->tx_count * sizeof(io->tx[0]));
	}
	io->tx_refused = io->tx_count;
	/* The NIC may need a kick while it holds frames. Its kick() makes a system call only if
	 * necessary. */
	if (io->tx_held > io->tx_count || io->kick_due)
		io->nic->ops->kick(io->nic, io->now_ns);
	io->kick_due = false;
	io->stats->frames_tx_nic = io->tx_held;
}

void nicio_complete(struct nicio *io)
{
	uint64_t addrs[NICIO_BURST];
	unsigned got;

	if (io->tx_held == io->tx_count)
		return;
	do {
		got = io->nic->ops->complete(io->nic, addrs, NICIO_BURST, io->now_ns);
		for (unsigned i = 0; i < got && i < NICIO_BURST; i++) {
			struct frame *f = frame_of_offset(io->pool, addrs[i]);

			if (!f || f->nic_refs == 0) {
				io->stats->nic_completion_bad++;
				continue;
			}
			frame_nic_done(io->pool, f);
			io->tx_held--;
			io->tx_moved_ns = io->now_ns;
		}
	} while (got == NICIO_BURST);
	io->stats->frames_tx_nic = io->tx_held;
}

void nicio_fill(struct nicio *io)
{
	uint64_t addrs[NICIO_BURST];
	struct frame *frames[NICIO_BURST];

	while (io->fill_held < io->fill_target) {
		unsigned want = io->fill_target - io->fill_held, n = 0, took;

		want = want < NICIO_BURST ? want : NICIO_BURST;
		for (; n < want && (frames[n] = frame_alloc(io->pool, 0)) != NULL; n++)
			addrs[n] = (uint64_t)frames[n]->index << io->pool->frame_shift;
		if (n == 0)
			break;
		took = io->nic->ops->fill(io->nic, addrs, n);
		took = took < n ? took : n;
		for (unsigned i = 0; i < took; i++) {
			frames[i]->stack_refs = 0;
			frames[i]->flags = FRAME_RX_NIC;
		}
		for (unsigned i = took; i < n; i++)
			frame_release(io->pool, frames[i]);
		io->fill_held += took;
		io->kick_due |= took > 0;
		if (took < want)
			break;
	}
	io->stats->frames_rx_nic = io->fill_held;
	io->stats->frames_free = io->pool->free_count;
}

int nicio_memory_add(struct nicio *io, const void *base, size_t bytes)
{
	const struct harp_nic_ops *ops = io->nic->ops;
	int err;

	if (io->pool->external_count == 0 || !ops->memory_add || !ops->memory_remove)
		return -ENOTSUP;
	if (!base || bytes == 0 || (uintptr_t)base + bytes < (uintptr_t)base)
		return -EINVAL;
	err = ops->memory_add(io->nic, base, bytes);
	if (err)
		return err;
	err = external_memory_add(io->pool, base, bytes);
	if (err)
		(void)ops->memory_remove(io->nic, base, bytes); /* nothing reads it yet */
	return err;
}

int nicio_memory_remove(struct nicio *io, const void *base, size_t bytes)
{
	struct frame_memory *memory = external_find_exact(io->pool, base, bytes);
	int err;

	if (!memory)
		return -ENOENT;
	nicio_complete(io);
	if (memory->adds == 1 && memory->users > 0)
		return -EBUSY;
	err = io->nic->ops->memory_remove(io->nic, base, bytes);
	if (!err)
		external_memory_drop(io->pool, memory);
	return err;
}

/* Number of descriptors of the packet at descs; *reads: true if it has bytes in that memory. */
static unsigned nicio_packet_descs(struct nicio *io, const struct harp_desc *descs,
				   const struct frame_memory *memory, bool *reads)
{
	unsigned n = 0;

	*reads = false;
	do {
		const struct frame *f = frame_of_offset(io->pool, descs[n].addr);

		*reads |= frame_is_external(io->pool, f) && external_memory(f) == memory;
	} while (descs[n++].flags & HARP_DESC_MORE);
	return n;
}

void nicio_memory_forget(struct nicio *io, const void *base, size_t bytes)
{
	const struct frame_memory *memory = external_find_exact(io->pool, base, bytes);
	const struct harp_nic_ops *ops = io->nic->ops;
	unsigned kept = 0;

	for (unsigned at = 0, n; at < io->tx_count; at += n) {
		bool reads;

		n = nicio_packet_descs(io, io->tx + at, memory, &reads);
		if (!reads) {
			memmove(io->tx + kept, io->tx + at, n * sizeof(io->tx[0]));
			kept += n;
			continue;
		}
		io->stats->tx_forgotten++;
		for (unsigned i = at; i < at + n; i++)
			frame_nic_done(io->pool, frame_of_offset(io->pool, io->tx[i].addr));
		io->tx_held -= n;
	}
	if (memory->leaving && memory->users > 0 && ops->memory_flush)
		ops->memory_flush(io->nic, base, bytes);
	/* Without a change, tx_refused must stay: otherwise an owner that calls at each poll would
	 * make the stack always due. */
	if (kept == io->tx_count)
		return;
	io->tx_count = kept;
	io->tx_refused = 0; /* it is unknown how many of the remaining ones fit */
	io->stats->frames_tx_nic = io->tx_held;
}
