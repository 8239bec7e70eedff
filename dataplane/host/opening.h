/* SPDX-License-Identifier: Apache-2.0 */
/* opening.h - the opening of an instance, by ourselves (instance_open.c) or by a lease (instance_lease.c). */
#ifndef HARP_HOST_OPENING_H
#define HARP_HOST_OPENING_H

#include "base/why.h"
#include "host/instance.h"
#include "nic/af_xdp_link.h"

struct opening {
	struct harp_instance_options opt; /* size is the caller's: what it did not have is 0 */
	struct af_xdp_link link;          /* of a lease: index and MTU alone */
	struct why why;
};

/* How packets come to instance->nic, for people as well. */
void opening_mode(struct harp_instance *instance, bool native);
/* The stack on instance->nic. */
int opening_stack(const struct opening *o, struct harp_instance *instance);
/* rtnetlink and neighbors of the interface o->link, in this network namespace. privileged: with CAP_NET_ADMIN. */
int opening_netlink(const struct opening *o, struct harp_instance *instance, bool privileged);
/* The host's addresses and routes; monitor and questions are open. */
int opening_kernel_tables(const struct opening *o, struct harp_instance *instance);
/* Addresses and routes that were read before. */
void opening_mirror(const struct opening *o, struct harp_instance *instance,
		    const struct harp_lease_tables *found);
/* Everything, from harpd. */
int opening_lease(struct opening *o, struct harp_instance *instance);

#endif
