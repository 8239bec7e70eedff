/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sackout.c - the receiver's SACK blocks: RFC 2018 section 4, RFC 2883.
 *
 * The ranges are the four most recently changed ones, in the order of RFC 2018. If a segment
 * extends an older range, which is no longer in the array, the block reports only a part of that
 * range, which is permitted. So the reassembly list is never searched to build a block.
 */
#include "transport/tcp.h"

static void sackout_remove(struct harp_conn *conn, uint32_t i)
{
	conn->sackout.count--;
	for (; i < conn->sackout.count; i++)
		conn->sackout.block[i] = conn->sackout.block[i + 1];
}

void tcp_sackout_kept(struct harp_conn *conn, uint32_t start_seq, uint32_t end_seq)
{
	uint32_t i = 0;

	if (!(conn->options & HARP_TCPI_SACK))
		return;
	/* Merges adjacent and overlapping ranges. */
	while (i < conn->sackout.count) {
		if (seq_gt(conn->sackout.block[i].start_seq, end_seq) ||
		    seq_lt(conn->sackout.block[i].end_seq, start_seq)) {
			i++;
			continue;
		}
		start_seq = seq_min(start_seq, conn->sackout.block[i].start_seq);
		end_seq = seq_max(end_seq, conn->sackout.block[i].end_seq);
		sackout_remove(conn, i);
		i = 0; /* the larger range may touch others */
	}
	if (conn->sackout.count < TCP_SACK_BLOCKS_MAX)
		conn->sackout.count++;
	for (i = conn->sackout.count - 1; i > 0; i--)
		conn->sackout.block[i] = conn->sackout.block[i - 1];
	conn->sackout.block[0].start_seq = start_seq;
	conn->sackout.block[0].end_seq = end_seq;
}

void tcp_sackout_advance(struct harp_conn *conn)
{
	for (uint32_t i = conn->sackout.count; i-- > 0;) {
		if (seq_leq(conn->sackout.block[i].start_seq, conn->rcv.nxt_seq))
			sackout_remove(conn, i);
	}
}

void tcp_sackout_evicted(struct harp_conn *conn, uint32_t seq)
{
	for (uint32_t i = conn->sackout.count; i-- > 0;) {
		if (seq_leq(conn->sackout.block[i].end_seq, seq))
			continue;
		conn->sackout.block[i].end_seq = seq;
		if (seq_geq(conn->sackout.block[i].start_seq, seq))
			sackout_remove(conn, i);
	}
}

void tcp_sackout_duplicate(struct harp_conn *conn, uint32_t start_seq, uint32_t end_seq)
{
	if (!(conn->options & HARP_TCPI_SACK) || !seq_lt(start_seq, end_seq))
		return;
	conn->sackout.dsack_start_seq = start_seq;
	conn->sackout.dsack_end_seq = end_seq;
}

uint32_t tcp_sackout_blocks(const struct harp_conn *conn, uint32_t room_bytes,
			    struct tcp_options *opt)
{
	uint32_t count_max = room_bytes < 4 ? 0 : (room_bytes - 4) / 8;

	opt->sack_count = 0;
	if (count_max > TCP_SACK_BLOCKS_MAX)
		count_max = TCP_SACK_BLOCKS_MAX;
	if (conn->sackout.dsack_start_seq != conn->sackout.dsack_end_seq && count_max > 0) {
		opt->sack[0].start_seq = conn->sackout.dsack_start_seq;
		opt->sack[0].end_seq = conn->sackout.dsack_end_seq;
		opt->sack_count = 1;
	}
	for (uint32_t i = 0; i < conn->sackout.count && opt->sack_count < count_max; i++)
		opt->sack[opt->sack_count++] = conn->sackout.block[i];
	return opt->sack_count;
}
