/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_gro.h - GRO batches: packets of a burst that continue the previous one. See tcp_gro.c. */
#ifndef HARP_TRANSPORT_TCP_GRO_H
#define HARP_TRANSPORT_TCP_GRO_H

#include "transport/tcp.h"

#define TCP_GRO_HEADERS_BYTES 96u /* Ethernet with a VLAN tag, IPv6 and TCP with timestamps: 90 */

/* Valid within one burst. */
struct tcp_gro {
	struct harp_conn *conn; /* NULL: the previous packet did not start or continue a batch */
	const uint8_t *head;    /* the previous packet */
	uint32_t bytes;         /* length of the previous packet as received from the NIC */
	uint8_t ip_at, tcp_at, header_bytes;
	bool v4;
	struct packet_in in;
	struct tcp_segment seg;              /* of the previous packet; seg.in is &in */
	uint8_t same[TCP_GRO_HEADERS_BYTES]; /* 0xff where headers must be equal */
};

/* Starts a batch: tcp_fast_in() has queued the packet of gro->head, gro->in and gro->seg as one
 * frame. */
void tcp_gro_begin(struct tcp_gro *gro, struct harp_conn *conn);
/* Continues a batch (gro->conn is set) with a packet. False: it does not belong to the batch, and
 * is unmodified. */
bool tcp_gro_in(struct tcp_gro *gro, struct frame *f);

#endif
