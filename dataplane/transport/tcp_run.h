/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_run.h - packets of a burst that go on where the one before ended: tcp_run.c. */
#ifndef HARP_TRANSPORT_TCP_RUN_H
#define HARP_TRANSPORT_TCP_RUN_H

#include "transport/tcp.h"

#define TCP_RUN_HEADERS_BYTES 96u /* Ethernet with a tag, IPv6 and TCP with timestamps have 90 */

/* Within one burst. */
struct tcp_run {
	struct harp_conn *conn; /* NULL: the packet before began or carried on none */
	const uint8_t *head;    /* the packet before, */
	uint32_t bytes;         /* as the card gave it */
	uint8_t ip_at, tcp_at, header_bytes;
	bool v4;
	struct packet_in in;
	struct tcp_segment seg;              /* of the packet before; seg.in is &in */
	uint8_t same[TCP_RUN_HEADERS_BYTES]; /* 0xff where headers are equal */
};

/* The packet at run->head, run->in and run->seg was taken by tcp_fast_in() and kept whole. */
void tcp_run_begin(struct tcp_run *run, struct harp_conn *conn);
/* Of a run that has a conn: takes the packet. False: it is another's, and as it was. */
bool tcp_run_in(struct tcp_run *run, struct frame *f);

#endif
