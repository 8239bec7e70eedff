/* SPDX-License-Identifier: Apache-2.0 */
/* guest_room.h - room at a door: from which hosts its guests are, and who has to go when there is no more. */
#ifndef HARP_PLUGIN_GUEST_ROOM_H
#define HARP_PLUGIN_GUEST_ROOM_H

#include "connect/guest.h"

/* Where its guest is from; the guest is counted there. */
struct guest_host *guest_room_come(struct guests *guests, const struct harp_addr *addr);
/* A guest goes. */
void guest_room_leave(struct guest *guest);
/* May one more be given READY who wants a comm of that listen id? Yes where *out, if not NULL, goes. */
bool guest_room_lets_in(struct guests *guests, uint64_t listen_id, struct guest **out);
/* There are too many strangers, or known ones: who goes. */
struct guest *guest_room_excess(struct guests *guests, bool known);

#endif
