/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h - a bounded ring of the newest packets, which can be written as pcapng. */
#ifndef HARP_NIC_CAPTURE_H
#define HARP_NIC_CAPTURE_H

#include "memory/frame.h"

struct capture;

enum capture_direction { /* the values of epb_flags, pcapng section 4.3.1 */
			 CAPTURE_IN = 1,
			 CAPTURE_OUT = 2,
};

/* Creates a ring of ring_bytes that holds up to snap_len bytes of a packet (0: all, up to 64 KiB).
 * -EINVAL: too small for one packet; -ENOMEM. */
int capture_create(struct capture **out, size_t ring_bytes, uint32_t snap_len);
void capture_destroy(struct capture *capture);
/* Records a packet: the bytes from head to the end of f, f's fragments, and for a GSO packet the
 * `more` packets after f. Drops the oldest packets as needed. */
void capture_packet(struct capture *capture, enum capture_direction direction, uint64_t now_ns,
		    const uint8_t *head, struct frame *f, uint32_t more);
/* Number of packets in the ring, and of packets dropped from it. */
uint64_t capture_count(const struct capture *capture);
uint64_t capture_dropped(const struct capture *capture);
/* Writes all packets, oldest first, as one pcapng section. ifname names the interface. 0 or the
 * -errno of write(). */
int capture_write(const struct capture *capture, int fd, const char *ifname,
		  int64_t wall_offset_ns);

#endif
