/* SPDX-License-Identifier: Apache-2.0 */
/* instance_dpdk.h - an instance on a queue of a DPDK port: what it does otherwise than one that the kernel knows. */
#ifndef HARP_HOST_INSTANCE_DPDK_H
#define HARP_HOST_INSTANCE_DPDK_H

#include "host/dpdk_news.h"
#include "host/dpdk_port.h"
#include "host/dpdk_xstats.h"

struct opening;

struct instance_dpdk {
	struct dpdk_port *port;
	struct dpdk_sink sink;
	void *page;                    /* statistics, of a leased port; NULL: none of harpd's */
	struct harp_lease_leased told; /* of such a port */
	struct harp_addr link_local;   /* zero: none */
	struct dpdk_reader reader;     /* of what its siblings hear */
	struct dpdk_xstats *xstats;    /* NULL: another queue's instance publishes them */
};

/* The port's text, or NULL: ifname is an interface. */
const char *instance_dpdk_text(const char *ifname);
/* Everything, o->opt.ifname being such a port. */
int opening_dpdk(struct opening *o, struct harp_instance *instance);
/* The hooks of its stack. */
void instance_dpdk_hooks(struct harp_instance *instance, struct harp_stack_options *opt);

/* The doors of harp_host.h for such an instance. */
int instance_dpdk_control(struct harp_instance *instance, uint64_t now_ns);
bool instance_dpdk_control_pending(const struct harp_instance *instance);
int instance_dpdk_route(const struct harp_instance *instance, const struct harp_addr *dst,
			struct harp_host_route *out);
void instance_dpdk_fork_child(const struct harp_instance *instance);
/* Once it publishes: what the driver counts, too. */
void instance_dpdk_published(struct harp_instance *instance);
/* Before the stack ends. */
void instance_dpdk_quiet(struct harp_instance *instance);
/* After the stack. */
void instance_dpdk_close(struct harp_instance *instance);

#endif
