/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_gro.c - GRO batches: consecutive packets of one burst whose headers differ only in sequence
 * number, identification and checksums.
 *
 * Nearly all packets of a stream are of this kind. Each layer would return the same verdict as for
 * the previous packet, because its state has not changed since. So a batch skips the layers. It
 * verifies checksums, and those conditions of the fast path that may have changed. The result for
 * an accepted packet is that of tcp_input(); other packets are left to tcp_input(), unmodified.
 * Unlike the kernel's GRO, this does not merge packets.
 */
#include "transport/tcp_gro.h"

#include <string.h>

#include "base/endian.h"
#include "network/ipv4.h"

typedef uint64_t gro_vec __attribute__((vector_size(16), aligned(1), may_alias));

void tcp_gro_begin(struct tcp_gro *gro, struct harp_conn *conn)
{
	const struct tcp_segment *seg = &gro->seg;
	const struct packet_in *in = &gro->in;
	/* tcp_fast_in() has advanced data to the payload. */
	const uint8_t *th = in->frame->pub.data - seg->header_bytes;
	ptrdiff_t ip_at = in->ip_header - gro->head, tcp_at = th - gro->head;
	bool v4 = in->ip_header[0] >> 4 == 4;

	/* No trailing bytes, and no IPv4 options. */
	if (tcp_at + in->len != gro->bytes || tcp_at + seg->header_bytes > TCP_GRO_HEADERS_BYTES ||
	    gro->bytes < TCP_GRO_HEADERS_BYTES || (v4 && tcp_at - ip_at != IPV4_HEADER_BYTES))
		return;
	gro->conn = conn;
	if (gro->ip_at == ip_at && gro->tcp_at == tcp_at && gro->v4 == v4 &&
	    gro->header_bytes == seg->header_bytes)
		return; /* the mask of the last batch is still valid */
	gro->ip_at = (uint8_t)ip_at;
	gro->tcp_at = (uint8_t)tcp_at;
	gro->header_bytes = seg->header_bytes;
	gro->v4 = v4;
	memset(gro->same, 0, sizeof(gro->same));
	memset(gro->same, 0xff, (size_t)tcp_at + seg->header_bytes);
	if (v4) {
		memset(gro->same + ip_at + offsetof(struct ipv4_header, id), 0, sizeof(be16_t));
		memset(gro->same + ip_at + offsetof(struct ipv4_header, csum), 0, sizeof(uint16_t));
	}
	memset(gro->same + tcp_at + 4, 0, 4);  /* sequence number */
	memset(gro->same + tcp_at + 16, 0, 4); /* checksum, urgent pointer */
}

static inline bool gro_same_headers(const struct tcp_gro *gro, const uint8_t *head)
{
	gro_vec differ = { 0 };

	for (unsigned i = 0; i < TCP_GRO_HEADERS_BYTES; i += sizeof(gro_vec))
		differ |= (*(const gro_vec *)(head + i) ^ *(const gro_vec *)(gro->head + i)) &
			  *(const gro_vec *)(gro->same + i);
	return (differ[0] | differ[1]) == 0;
}

static inline bool gro_follows(const struct tcp_gro *gro, const struct frame *f)
{
	const uint8_t *head = f->pub.data;

	return f->pub.len == gro->bytes && !f->frag && gro_same_headers(gro, head) &&
	       (!gro->v4 || csum_finish(csum_words(head + gro->ip_at, IPV4_HEADER_BYTES, 0)) == 0);
}

bool tcp_gro_in(struct tcp_gro *gro, struct frame *f)
{
	struct harp_conn *conn = gro->conn;
	uint8_t *head = f->pub.data;

	if (!gro_follows(gro, f))
		return false;
	gro->in.frame = f;
	gro->in.csum_valid = (f->flags & FRAME_RX_CSUM_VALID) != 0;
	gro->seg.seq = be32_load(head + gro->tcp_at + 4);
	f->pub.data += gro->tcp_at;
	f->pub.len -= gro->tcp_at;
	if (!tcp_checksum_valid(conn->tcp, &gro->in) || !tcp_fast_next(conn, &gro->seg)) {
		f->pub.data = head;
		f->pub.len = gro->bytes;
		return false;
	}
	conn->tcp->stats->tcp_segs_in++;
	conn->acct.segs_in++;
	gro->head = head;
	return true;
}
