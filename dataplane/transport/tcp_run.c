/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_run.c - a run: packets of one burst whose headers differ from the one before in nothing but what counts on.
 *
 * In a stream nearly all do: identification, sequence number and checksums are new, the rest is as it was, byte for
 * byte. Of such a packet every layer would think what it thought of the one before, whose state cannot have
 * changed meanwhile: only the run's own connection was spoken to. So the layers are not asked again. The checksums
 * are verified as always, and those of the fast path's questions asked that may have a new answer; what they let pass is taken as
 * tcp_input() would have, and anything else is left to it, untouched.
 */
#include "transport/tcp_run.h"

#include <string.h>

#include "base/endian.h"
#include "network/ipv4.h"

typedef uint64_t run_vec __attribute__((vector_size(16), aligned(1), may_alias));

void tcp_run_begin(struct tcp_run *run, struct harp_conn *conn)
{
	const struct tcp_segment *seg = &run->seg;
	const struct packet_in *in = &run->in;
	const uint8_t *th =
		in->frame->pub.data - seg->header_bytes; /* tcp_fast_in() has moved it */
	ptrdiff_t ip_at = in->ip_header - run->head, tcp_at = th - run->head;
	bool v4 = in->ip_header[0] >> 4 == 4;

	/* Nothing behind the packet, and no options of IPv4's. */
	if (tcp_at + in->len != run->bytes || tcp_at + seg->header_bytes > TCP_RUN_HEADERS_BYTES ||
	    run->bytes < TCP_RUN_HEADERS_BYTES || (v4 && tcp_at - ip_at != IPV4_HEADER_BYTES))
		return;
	run->conn = conn;
	if (run->ip_at == ip_at && run->tcp_at == tcp_at && run->v4 == v4 &&
	    run->header_bytes == seg->header_bytes)
		return; /* the mask is that of the last run */
	run->ip_at = (uint8_t)ip_at;
	run->tcp_at = (uint8_t)tcp_at;
	run->header_bytes = seg->header_bytes;
	run->v4 = v4;
	memset(run->same, 0, sizeof(run->same));
	memset(run->same, 0xff, (size_t)tcp_at + seg->header_bytes);
	if (v4) {
		memset(run->same + ip_at + offsetof(struct ipv4_header, id), 0, sizeof(be16_t));
		memset(run->same + ip_at + offsetof(struct ipv4_header, csum), 0, sizeof(uint16_t));
	}
	memset(run->same + tcp_at + 4, 0, 4);  /* sequence number */
	memset(run->same + tcp_at + 16, 0, 4); /* checksum, urgent pointer */
}

static inline bool run_same_headers(const struct tcp_run *run, const uint8_t *head)
{
	run_vec differ = { 0 };

	for (unsigned i = 0; i < TCP_RUN_HEADERS_BYTES; i += sizeof(run_vec))
		differ |= (*(const run_vec *)(head + i) ^ *(const run_vec *)(run->head + i)) &
			  *(const run_vec *)(run->same + i);
	return (differ[0] | differ[1]) == 0;
}

static inline bool run_follows(const struct tcp_run *run, const struct frame *f)
{
	const uint8_t *head = f->pub.data;

	return f->pub.len == run->bytes && !f->frag && run_same_headers(run, head) &&
	       (!run->v4 || csum_finish(csum_words(head + run->ip_at, IPV4_HEADER_BYTES, 0)) == 0);
}

bool tcp_run_in(struct tcp_run *run, struct frame *f)
{
	struct harp_conn *conn = run->conn;
	uint8_t *head = f->pub.data;

	if (!run_follows(run, f))
		return false;
	run->in.frame = f;
	run->in.csum_good = (f->flags & FRAME_RX_CSUM_GOOD) != 0;
	run->seg.seq = be32_load(head + run->tcp_at + 4);
	f->pub.data += run->tcp_at;
	f->pub.len -= run->tcp_at;
	if (!tcp_checksum_good(conn->tcp, &run->in) || !tcp_fast_again(conn, &run->seg)) {
		f->pub.data = head;
		f->pub.len = run->bytes;
		return false;
	}
	conn->tcp->stats->tcp_segs_in++;
	conn->acct.segs_in++;
	run->head = head;
	return true;
}
