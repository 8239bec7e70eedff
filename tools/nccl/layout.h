/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - offsets of the fields that NCCL shares with its kernels.
 *
 * NCCL's internal structs differ between versions. harp.nccl.layout reads their layouts from the
 * debug information of the library and writes them to a file, which layout_load() reads. NCCL's
 * sources (src/include/device.h, src/device/) show the meaning of the fields.
 */
#ifndef NCCL_LAYOUT_H
#define NCCL_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct field {
	const char *name;
	unsigned offset_bits, bits; /* bits 0: not in this version */
};

/* "comm" is ncclDevComm up to NCCL 2.27, and ncclKernelComm since. */
#define LAYOUT_FIELDS(X)                                                                           \
	X(comm_rank, "comm.rank")                                                                  \
	X(comm_nranks, "comm.nRanks")                                                              \
	X(comm_buffer_bytes, "comm.buffSizes")                                                     \
	X(comm_p2p_chunk_bytes, "comm.p2pChunkSize")                                               \
	X(comm_work_consumed, "comm.workConsumed")                                                 \
	X(comm_abort_flag, "comm.abortFlag")                                                       \
	X(comm_channels, "comm.channels")                                                          \
	X(channel_peers, "ncclDevChannel.peers")                                                   \
	X(channel_ring_prev, "ncclDevChannel.ring.prev")                                           \
	X(channel_ring_next, "ncclDevChannel.ring.next")                                           \
	X(channel_ring_index, "ncclDevChannel.ring.index")                                         \
	X(channel_ring_ranks, "ncclDevChannel.ring.userRanks")                                     \
	X(channel_fifo_done, "ncclDevChannel.workFifoDone")                                        \
	X(peer_send, "ncclDevChannelPeer.send")                                                    \
	X(peer_recv, "ncclDevChannelPeer.recv")                                                    \
	X(conn_buffers, "ncclConnInfo.buffs")                                                      \
	X(conn_tail, "ncclConnInfo.tail")                                                          \
	X(conn_head, "ncclConnInfo.head")                                                          \
	X(conn_step_bytes, "ncclConnInfo.stepSize")                                                \
	X(conn_fifo, "ncclConnInfo.connFifo")                                                      \
	X(conn_sizes, "ncclConnInfo.sizesFifo")                                                    \
	X(conn_offsets, "ncclConnInfo.offsFifo")                                                   \
	X(conn_step, "ncclConnInfo.step")                                                          \
	X(fifo_mode, "ncclConnFifo.mode")                                                          \
	X(fifo_offset, "ncclConnFifo.offset")                                                      \
	X(fifo_size, "ncclConnFifo.size")                                                          \
	X(args_comm, "ncclDevKernelArgs.comm")                                                     \
	X(args_channel_mask, "ncclDevKernelArgs.channelMask")                                      \
	X(args_storage, "ncclDevKernelArgs.workStorageType")                                       \
	X(args_work_mask, "ncclDevKernelArgs.workMask")                                            \
	X(args_work_buffer, "ncclDevKernelArgs.workBuf")                                           \
	X(batch_next_jump, "ncclDevWorkBatch.nextJump")                                            \
	X(batch_next_extends, "ncclDevWorkBatch.nextExtends")                                      \
	X(batch_work_type, "ncclDevWorkBatch.workType")                                            \
	X(batch_function, "ncclDevWorkBatch.funcId")                                               \
	X(batch_offset_base, "ncclDevWorkBatch.offsetBase")                                        \
	X(batch_offset_bits, "ncclDevWorkBatch.offsetBitset")                                      \
	X(coll_channel_low, "ncclDevWorkColl.channelLo")                                           \
	X(coll_channel_high, "ncclDevWorkColl.channelHi")                                          \
	X(coll_registered, "ncclDevWorkColl.regUsed")                                              \
	X(coll_net_registered, "ncclDevWorkColl.netRegUsed")                                       \
	X(coll_root, "ncclDevWorkColl.root")                                                       \
	X(coll_target, "ncclDevWorkColl.recvbuff")                                                 \
	X(coll_source, "ncclDevWorkColl.sendbuff")                                                 \
	X(coll_count_low, "ncclDevWorkColl.cbd.countLo")                                           \
	X(coll_count_mid, "ncclDevWorkColl.cbd.countMid")                                          \
	X(coll_count_high, "ncclDevWorkColl.cbd.countHi")                                          \
	X(coll_grains_low, "ncclDevWorkColl.cbd.chunkGrainsLo")                                    \
	X(coll_grains_mid, "ncclDevWorkColl.cbd.chunkGrainsMid")                                   \
	X(coll_grains_high, "ncclDevWorkColl.cbd.chunkGrainsHi")                                   \
	X(p2p_send_address, "ncclDevWorkP2p.sendAddr")                                             \
	X(p2p_recv_address, "ncclDevWorkP2p.recvAddr")                                             \
	X(p2p_send_bytes, "ncclDevWorkP2p.sendBytes")                                              \
	X(p2p_recv_bytes, "ncclDevWorkP2p.recvBytes")                                              \
	X(p2p_send_rank, "ncclDevWorkP2p.sendRank")                                                \
	X(p2p_recv_rank, "ncclDevWorkP2p.recvRank")                                                \
	X(p2p_channels, "ncclDevWorkP2p.nP2pChannels")                                             \
	X(p2p_channel_base, "ncclDevWorkP2p.channelBase")                                          \
	X(p2p_send_channels, "ncclDevWorkP2p.nSendChannels")                                       \
	X(p2p_recv_channels, "ncclDevWorkP2p.nRecvChannels")                                       \
	X(p2p_send_chunk, "ncclDevWorkP2p.sendChunkSize_u32fp8")                                   \
	X(p2p_recv_chunk, "ncclDevWorkP2p.recvChunkSize_u32fp8")                                   \
	X(p2p_send_ll, "ncclDevWorkP2p.sendProtoLL")                                               \
	X(p2p_recv_ll, "ncclDevWorkP2p.recvProtoLL")                                               \
	X(p2p_send_registered, "ncclDevWorkP2p.sendNetReg")                                        \
	X(p2p_recv_registered, "ncclDevWorkP2p.recvNetReg")                                        \
	X(work_type, "ncclWorkHeader.type")                                                        \
	X(work_function, "ncclWorkHeader.funcIndex")                                               \
	X(work_is_last, "ncclWorkHeader.isLast")                                                   \
	X(work_in_fifo, "ncclWorkHeader.inFifo")                                                   \
	X(work_next, "ncclWorkHeader.workNext")                                                    \
	X(work_done_acks, "ncclWorkHeader.doneAcks")                                               \
	X(work_p2p, "ncclWork.p2pElems")                                                           \
	X(elem_peer, "ncclWorkElemP2p.peer")                                                       \
	X(elem_protocol, "ncclWorkElemP2p.proto")                                                  \
	X(elem_type, "ncclWorkElemP2p.p2pType")                                                    \
	X(elem_groups, "ncclWorkElemP2p.ngroups")                                                  \
	X(elem_buffer_high, "ncclWorkElemP2p.buffHi32")                                            \
	X(elem_buffer_low, "ncclWorkElemP2p.buffLo32")                                             \
	X(elem_count_high, "ncclWorkElemP2p.countHi32")                                            \
	X(elem_count_low, "ncclWorkElemP2p.countLo32")                                             \
	X(elem_chunk, "ncclWorkElemP2p.chunkSize")

/* Sizes of structs and values of enumerators. */
#define LAYOUT_NUMBERS(X)                                                                          \
	X(conn_bytes, "sizeof ncclConnInfo")                                                       \
	X(fifo_bytes, "sizeof ncclConnFifo")                                                       \
	X(channel_bytes, "sizeof ncclDevChannel")                                                  \
	X(args_bytes, "sizeof ncclDevKernelArgs")                                                  \
	X(batch_bytes, "sizeof ncclDevWorkBatch")                                                  \
	X(p2p_bytes, "sizeof ncclDevWorkP2p")                                                      \
	X(coll_bytes, "sizeof ncclDevWorkColl")                                                    \
	X(work_bytes, "sizeof ncclWork")                                                           \
	X(elem_bytes, "sizeof ncclWorkElemP2p")                                                    \
	X(type_count, "ncclNumTypes")                                                              \
	X(reduction_count, "ncclNumDevRedOps")                                                     \
	X(reduction_sum, "ncclDevSum")                                                             \
	X(function_allgatherv, "ncclFuncAllGatherV")                                               \
	X(work_is_p2p, "ncclDevWorkTypeP2p")                                                       \
	X(work_is_coll, "ncclDevWorkTypeColl")                                                     \
	X(storage_args, "ncclDevWorkStorageTypeArgs")                                              \
	X(storage_fifo, "ncclDevWorkStorageTypeFifo")

#define LAYOUT_ABSENT (-1) /* a number that is not in this version */

struct layout {
#define X(id, text) struct field id;
	LAYOUT_FIELDS(X)
#undef X
#define X(id, text) long id;
	LAYOUT_NUMBERS(X)
#undef X
};

extern struct layout layout;

void layout_load(const char *path);

static inline bool field_exists(struct field field)
{
	return field.bits > 0;
}

/* These fail if the version does not have the field. `base` may be a device address. */
char *field_at(const void *base, struct field field);
uint64_t field_value(const void *base, struct field field);
void *field_pointer(const void *base, struct field field);
int field_int(const void *base, struct field field);
void field_set(const void *base, struct field field, uint64_t value); /* not for bit fields */

#endif
