/* SPDX-License-Identifier: Apache-2.0 */
/* pending_room.h - room at a door: from which hosts its pending_set are, and who has to go when there is no more. */
#ifndef HARP_PLUGIN_GUEST_ROOM_H
#define HARP_PLUGIN_GUEST_ROOM_H

#include "connect/pending.h"

/* Where its pending is from; the pending is counted there. */
struct pending_host *admission_come(struct pending_set *pending_set, const struct harp_addr *addr);
/* A pending goes. */
void admission_leave(struct pending *pending);
/* May one more be given READY who wants a comm of that listen id? Yes where *out, if not NULL, goes. */
bool admission_lets_in(struct pending_set *pending_set, uint64_t listen_id, struct pending **out);
/* There are too many strangers, or known ones: who goes. */
struct pending *admission_excess(struct pending_set *pending_set, bool known);

#endif
