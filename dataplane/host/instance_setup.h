/* SPDX-License-Identifier: Apache-2.0 */
/* instance_setup.h - setup of an instance: stand-alone (instance_open.c) or leased
 * (instance_lease.c). */
#ifndef HARP_HOST_INSTANCE_SETUP_H
#define HARP_HOST_INSTANCE_SETUP_H

#include "base/why.h"
#include "host/instance.h"
#include "nic/af_xdp_link.h"

struct instance_setup {
	struct harp_instance_options opt; /* a copy of the caller's */
	struct af_xdp_link link;          /* for a lease: only index and MTU */
	struct why why;
};

/* Sets the data path's mode and its descriptions in instance and instance->nic. */
void setup_mode(struct harp_instance *instance, bool native);
/* Creates the stack on instance->nic. */
int setup_stack(const struct instance_setup *o, struct harp_instance *instance);
/* Opens rtnetlink and neighbors of o->link in this network namespace. privileged: with
 * CAP_NET_ADMIN. */
int setup_netlink(const struct instance_setup *o, struct harp_instance *instance, bool privileged);
/* Reads the host's addresses and routes. Requires open monitor and queries. */
int setup_kernel_tables(const struct instance_setup *o, struct harp_instance *instance);
/* Applies addresses and routes that were read earlier. */
void setup_route_cache(const struct instance_setup *o, struct harp_instance *instance,
		       const struct harp_lease_tables *tables);
/* Opens a leased instance. */
int setup_lease(struct instance_setup *o, struct harp_instance *instance);

#endif
