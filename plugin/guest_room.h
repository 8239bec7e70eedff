/* SPDX-License-Identifier: Apache-2.0 */
/* guest_room.h - room at a door: from which hosts its guests are, and who has to go when there is no more. */
#ifndef HARP_PLUGIN_GUEST_ROOM_H
#define HARP_PLUGIN_GUEST_ROOM_H

#include "guest.h"

/* Where its guest is from; the guest is counted there. */
struct guest_host *guest_room_come(struct guests *guests, const struct harp_addr *addr);
/* A guest goes. */
void guest_room_leave(struct guest *guest);
/* READY is on its way to those who want a comm of that listen id: how many they are. silent: of those who haven't acknowledged it
 * for a second the one that it left to first; NULL: there is none. */
unsigned guest_room_entering(struct guests *guests, uint64_t listen_id, struct guest **silent);
/* There are too many strangers, or known ones: who goes. */
struct guest *guest_room_excess(struct guests *guests, bool known);

#endif
