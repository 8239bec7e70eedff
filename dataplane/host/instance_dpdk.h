/* SPDX-License-Identifier: Apache-2.0 */
/* instance_dpdk.h - the parts of an instance that differ on a DPDK port. */
#ifndef HARP_HOST_INSTANCE_DPDK_H
#define HARP_HOST_INSTANCE_DPDK_H

#include "host/dpdk_events.h"
#include "host/dpdk_port.h"
#include "host/dpdk_xstats.h"

struct instance_setup;

struct instance_dpdk {
	struct dpdk_port *port;
	struct dpdk_sink sink;
	void *page;                     /* statistics page of a leased port; NULL: not leased */
	struct harp_lease_leased grant; /* lease data */
	struct harp_addr link_local;    /* zero: none */
	struct dpdk_reader reader;      /* reads events of the port's other instances */
	struct dpdk_xstats *xstats;     /* NULL: another queue's instance publishes them */
};

/* The specification of the port that ifname names; NULL: ifname is a kernel interface. */
const char *instance_dpdk_text(const char *ifname);
/* Opens the instance; o->opt.ifname names a DPDK port. */
int setup_dpdk(struct instance_setup *o, struct harp_instance *instance);
/* Sets the stack's hooks. */
void instance_dpdk_hooks(struct harp_instance *instance, struct harp_stack_options *opt);

/* Implementations of harp_host.h for an instance on a DPDK port. */
int instance_dpdk_control(struct harp_instance *instance, uint64_t now_ns);
bool instance_dpdk_control_pending(const struct harp_instance *instance);
int instance_dpdk_route(const struct harp_instance *instance, const struct harp_addr *dst,
			struct harp_host_route *out);
void instance_dpdk_fork_child(const struct harp_instance *instance);
/* Adds the driver's counters. Call after publishing has started. */
void instance_dpdk_publish_xstats(struct harp_instance *instance);
/* Call before the stack is destroyed. */
void instance_dpdk_stop(struct harp_instance *instance);
/* Call after the stack is destroyed. */
void instance_dpdk_close(struct harp_instance *instance);

#endif
