/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance_open.c - opens a stack on a NIC that is shared with the kernel.
 *
 * Theory of operation
 *
 * Steps are ordered by their effect on others: options and privileges; the XDP program (another
 * instance of this process may have attached it; with empty maps it redirects nothing); the AF_XDP
 * queue; the stack; the host's addresses and routes; and last the socket's entry in the program's
 * map. A failure undoes the steps in reverse, as harp_instance_close() does.
 *
 * The program redirects packets of a port only while the stack uses the port. The stack's
 * port_acquire hook binds a kernel socket to the port, which reserves it, then enters it in the map
 * together with the stack's queue. port_release does the reverse. When the process exits, the
 * kernel frees link, map and sockets; packets to the port then find no listener, and peers get an
 * RST.
 *
 * This describes a stand-alone instance. A leased instance (instance_lease.c) gets queue and ports
 * from harpd, which owns program and map; its stack and hooks are the same. In the NIC's network
 * namespace its control is the same, too. In another namespace, harpd sends the monitor's events
 * (netwatch.h). An instance on a DPDK port (instance_dpdk.c) does not use the kernel.
 *
 * The stack's hooks run inside harp_stack_poll() and only record requests. The same thread calls
 * harp_instance_control(), which communicates with the kernel: it reads the monitor's events (link,
 * addresses, routes, neighbors), applies changes to the stack, and requests the neighbors that the
 * stack needs. It never blocks: a thread sends requests that may take long (netlink_worker.h).
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "host/instance_setup.h"
#include "host/privilege.h"
#include "nic/af_xdp_link.h"

/* Tries of 2 s each: with ten times the usual load, the kernel needed up to 20 s. */
#define OWNERLESS_TRIES 10u

/* ---- hooks of the stack --------------------------------------------------------------------- */

static void hook_log(void *ctx, enum harp_log_level level, const char *message)
{
	struct harp_instance *instance = ctx;

	if (instance->log)
		instance->log(instance->ctx, level, message);
}

static void hook_requests(void *ctx, uint64_t now_ns)
{
	struct harp_instance *instance = ctx;

	if (instance->requests)
		instance->requests(instance->ctx, now_ns);
}

static void hook_neighbor_requested(void *ctx, const struct harp_addr *next_hop)
{
	neighbors_requested(&((struct harp_instance *)ctx)->neighbors, next_hop);
}

static void hook_neighbor_confirmed(void *ctx, const struct harp_addr *next_hop)
{
	neighbors_confirmed(&((struct harp_instance *)ctx)->neighbors, next_hop);
}

static struct ports *instance_ports(struct harp_instance *instance, uint8_t protocol)
{
	return protocol == IPPROTO_TCP ? &instance->ports : &instance->udp_ports;
}

/* harpd has reserved a lease's ports; packets to other ports never arrive. */
static int hook_port_acquire(void *ctx, uint8_t protocol, uint16_t port)
{
	struct harp_instance *instance = ctx;

	if (instance->lease)
		return lease_has_port(instance->lease, port) ? 0 : -EADDRINUSE;
	return ports_acquire(instance_ports(instance, protocol), port);
}

static void hook_port_release(void *ctx, uint8_t protocol, uint16_t port)
{
	struct harp_instance *instance = ctx;

	if (!instance->lease)
		ports_release(instance_ports(instance, protocol), port);
}

/* ---- opening -------------------------------------------------------------------------------- */

static int setup_copy(struct instance_setup *o, const struct harp_instance_options *opt)
{
	const char *ifname = opt && opt->ifname ? opt->ifname : "(none)";

	if (opt && opt->queue == HARP_LEASE_QUEUE_ANY)
		why_about(&o->why, "%s", ifname);
	else
		why_about(&o->why, "%s queue %u", ifname, opt ? opt->queue : 0);
	if (!opt || opt->size != sizeof(*opt))
		return why_fail(&o->why, -EINVAL,
				"the options have another size; rebuild the caller");
	o->opt = *opt;
	if (o->opt.ifname && instance_dpdk_text(o->opt.ifname))
		return 0;
	if (!o->opt.ifname || !o->opt.ifname[0] || strlen(o->opt.ifname) >= IFNAMSIZ)
		return why_fail(&o->why, -EINVAL, "an interface has a name of 1 to %d bytes",
				IFNAMSIZ - 1);
	return 0;
}

static int setup_options(struct instance_setup *o)
{
	const struct harp_instance_options *opt = &o->opt;
	char missing[80];
	int rc;

	if (!o->opt.frame_count)
		o->opt.frame_count = 8192;
	if (opt->xdp_mode > HARP_XDP_NATIVE_OR_NONE)
		return why_fail(&o->why, -EINVAL,
				"xdp_mode %u; 0 auto, 1 generic, 2 native, 3 native or none",
				opt->xdp_mode);
	rc = af_xdp_link_read(opt->ifname, &o->link);
	if (rc == -ENODEV)
		return why_fail(&o->why, rc, "no such interface; `ip link` lists them");
	if (rc)
		return why_fail(&o->why, rc, "cannot be used: %s", strerror(-rc));
	if (o->link.rx_queues && opt->queue >= o->link.rx_queues)
		return why_fail(&o->why, -EINVAL,
				"no such queue; the interface has %u queues, numbered from 0",
				o->link.rx_queues);
	if (!o->link.up || !o->link.carrier)
		return why_fail(&o->why, -ENETDOWN, "the interface %s",
				o->link.up ? "has no carrier; check the cable or the peer"
					   : "is down; `ip link set dev ... up`");
	if (privilege_missing(missing, sizeof(missing)))
		return why_fail(&o->why, -EPERM, "%s missing; run as root or add %s", missing,
				strchr(missing, ',') ? "them" : "it");
	return 0;
}

int setup_stack(const struct instance_setup *o, struct harp_instance *instance)
{
	struct harp_stack_options opt = {
		.size = sizeof(opt),
		.max_conns = o->opt.max_conns,
		.port_min = o->opt.port_min,
		.port_max = o->opt.port_max,
		.neighbor_mode = HARP_NEIGHBOR_EXTERNAL,
		.seed = o->opt.seed,
		.scope_id = o->link.ifindex,
		.hooks = {
			.ctx = instance,
			.log = hook_log,
			.requests = hook_requests,
			.neighbor_requested = hook_neighbor_requested,
			.neighbor_confirmed = hook_neighbor_confirmed,
			.port_acquire = hook_port_acquire,
			.port_release = hook_port_release,
		},
	};
	int rc;

	opt.now_ns = clock_ns();
	if (instance->dpdk)
		instance_dpdk_hooks(instance, &opt);
	rc = harp_stack_create(&instance->stack, instance->nic, &opt);
	if (rc)
		return why_fail(&o->why, rc,
				"the stack: %s; check the number of frames and the port range",
				strerror(-rc));
	instance->neighbors.stack = instance->stack;
	return 0;
}

int setup_netlink(const struct instance_setup *o, struct harp_instance *instance, bool privileged)
{
	/* The monitor opens first, so that it reports changes during the reads. */
	int rc = netlink_open(&instance->monitor, RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_IFADDR |
							  RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_IFADDR |
							  RTMGRP_IPV6_ROUTE);

	if (!rc)
		rc = netlink_open(&instance->queries, 0);
	if (rc)
		return why_fail(&o->why, rc, "rtnetlink: %s", strerror(-rc));
	rc = neighbors_open(&instance->neighbors, instance->ifname, o->link.ifindex, privileged);
	return rc ? why_fail(&o->why, rc, "a UDP socket on the interface: %s", strerror(-rc)) : 0;
}

void setup_route_cache(const struct instance_setup *o, struct harp_instance *instance,
		       const struct harp_lease_tables *tables)
{
	instance->cache = (struct route_cache){
		.stack = instance->stack,
		.api = instance->api,
		.xdp = instance->xdp,
		.ifindex = o->link.ifindex,
	};
	route_cache_apply(&instance->cache, tables);
	if (!instance->cache.now.address_count)
		instance_log(instance, HARP_LOG_WARN,
			     "%s has no usable IP address yet; `ip address add ... dev %s`",
			     instance->ifname, instance->ifname);
}

int setup_kernel_tables(const struct instance_setup *o, struct harp_instance *instance)
{
	struct harp_lease_tables tables;
	int rc = route_cache_read(o->link.ifindex, &instance->queries, &tables);

	if (rc)
		return why_fail(&o->why, rc, "rtnetlink: %s", strerror(-rc));
	setup_route_cache(o, instance, &tables);
	instance->worker.task = instance->shared ? instance_check_program : NULL;
	instance->worker.task_ctx = instance;
	rc = netlink_worker_start(&instance->worker, instance->monitor.fd, o->link.ifindex,
				  &instance->queries, &instance->queries_lock);
	return rc ? why_fail(&o->why, rc, "cannot start a thread: %s; raise the limit (ulimit -u)",
			     strerror(-rc))
		  : 0;
}

static int setup_attach(const struct instance_setup *o, struct harp_instance *instance)
{
	const struct xdp_request request = {
		.ifname = o->opt.ifname,
		.ifindex = o->link.ifindex,
		.mode = o->opt.xdp_mode,
		.lib_dir = o->opt.lib_dir,
	};
	char why[320];
	int rc = xdp_shared_get(&instance->shared, &request, why, sizeof(why));

	if (rc) {
		if (o->why.text)
			snprintf(o->why.text, o->why.size, "%s", why);
		return rc;
	}
	instance->api = xdp_shared_api(instance->shared);
	instance->xdp = xdp_shared_program(instance->shared);
	if (why[0])
		instance_log(instance, HARP_LOG_INFO, "%s", why);
	return 0;
}

void setup_mode(struct harp_instance *instance, bool native)
{
	struct harp_nic_caps *caps = &instance->nic->caps;
	const char *copy = strstr(caps->mode, "zero-copy") ? "zero-copy" : "copy";

	if (strstr(caps->mode, "zero-copy"))
		instance->mode = HARP_MODE_ZERO_COPY;
	else
		instance->mode = native ? HARP_MODE_NATIVE_COPY : HARP_MODE_GENERIC_COPY;
	snprintf(caps->mode, sizeof(caps->mode), "af_xdp %s %s queue %u",
		 native ? "native" : "generic", copy, instance->queue);
	snprintf(instance->describe, sizeof(instance->describe),
		 "AF_XDP %s %s on %s queue %u, MTU %u, %u frames of %u",
		 native ? "native" : "generic", copy, instance->ifname, instance->queue,
		 caps->mtu_bytes, caps->frame_count, caps->frame_size);
}

static int setup_queue(const struct instance_setup *o, struct harp_instance *instance)
{
	const struct harp_af_xdp_options opt = {
		.size = sizeof(opt),
		.ifname = o->opt.ifname,
		.queue = o->opt.queue,
		.frame_count = o->opt.frame_count,
		.copy_mode = o->opt.copy_mode,
		.huge_pages = o->opt.huge_pages,
	};
	int rc = harp_nic_af_xdp_create(&instance->nic, &opt, o->why.text, o->why.size);

	/* A kernel thread releases the queue of an exited process and may have to wait for locks.
	 * No other process can use the queue without our XDP program, so retrying is safe. */
	for (unsigned i = 0;
	     rc == -EBUSY && i < OWNERLESS_TRIES && xdp_shared_users(instance->shared) == 1; i++) {
		if (!i)
			instance_log(instance, HARP_LOG_INFO,
				     "%s queue %u is busy without a user: waiting until "
				     "the kernel releases it",
				     instance->ifname, o->opt.queue);
		rc = harp_nic_af_xdp_create(&instance->nic, &opt, o->why.text, o->why.size);
	}
	if (!rc)
		setup_mode(instance, instance->api->native(instance->xdp));
	return rc;
}

static int setup_rss(const struct instance_setup *o, struct harp_instance *instance)
{
	int rc = 0;

	if (o->opt.rss)
		instance->rss = *o->opt.rss;
	else
		rc = harp_rss_read(o->opt.ifname, &instance->rss);
	return rc ? why_fail(&o->why, rc, "its receive queues: %s", strerror(-rc)) : 0;
}

static int setup_map(const struct instance_setup *o, struct harp_instance *instance)
{
	unsigned users = xdp_shared_users(instance->shared);
	int rc = instance->api->xsk_set(instance->xdp, o->opt.queue,
					harp_nic_af_xdp_fd(instance->nic));

	if (rc)
		return why_fail(&o->why, rc, "adding the socket to the XDP program's map: %s",
				strerror(-rc));
	/* Not a warning: a connecting peer may find matching source ports (plugin/connect/). */
	if (instance->rss.queues > users)
		instance_log(
			instance, HARP_LOG_INFO,
			"%s has %u receive queues, and this process has instances on %u of them: "
			"connections of queue %u whose packets arrive on another queue cannot be "
			"established%s; if too few succeed, `ethtool -L %s combined 1`",
			instance->ifname, instance->rss.queues, users, o->opt.queue,
			instance->rss.kind == HARP_RSS_TOEPLITZ
				? ""
				: " (the NIC does not report which do)",
			instance->ifname);
	return 0;
}

/* Sets up a stand-alone instance. */
static int setup_alone(struct instance_setup *o, struct harp_instance *instance)
{
	int rc = setup_options(o);

	instance->mtu_bytes = o->link.mtu_bytes;
	instance->up = true;
	if (!rc)
		rc = setup_rss(o, instance);
	if (!rc)
		rc = setup_attach(o, instance);
	if (!rc)
		rc = setup_queue(o, instance);
	if (!rc) {
		rc = ports_init(&instance->ports, instance->api, instance->xdp, STEER_PORT_TCP,
				instance->queue);
		if (!rc)
			rc = ports_init(&instance->udp_ports, instance->api, instance->xdp,
					STEER_PORT_UDP, instance->queue);
		if (rc)
			why_fail(&o->why, rc, "out of memory");
	}
	if (!rc)
		rc = setup_stack(o, instance);
	if (!rc)
		rc = setup_netlink(o, instance, true);
	if (!rc)
		rc = setup_kernel_tables(o, instance);
	if (!rc)
		rc = setup_map(o, instance);
	return rc;
}

int harp_instance_open(struct harp_instance **out, const struct harp_instance_options *opt,
		       char *why, size_t why_len)
{
	struct instance_setup o = { .why = { .text = why, .size = why_len } };
	struct harp_instance *instance;
	int rc;

	*out = NULL;
	if (why && why_len)
		why[0] = '\0';
	rc = setup_copy(&o, opt);
	if (rc)
		return rc;
	instance = calloc(1, sizeof(*instance));
	if (!instance)
		return why_fail(&o.why, -ENOMEM, "out of memory");
	instance->monitor.fd = instance->queries.fd = instance->page.fd = -1;
	instance->neighbors.probe_v4_fd = instance->neighbors.probe_v6_fd = -1;
	pthread_mutex_init(&instance->queries_lock, NULL);
	pthread_mutex_init(&instance->watch.lock, NULL);
	instance->queue = o.opt.queue;
	instance->ctx = o.opt.ctx;
	instance->log = o.opt.log;
	instance->requests = o.opt.requests;
	snprintf(instance->ifname, sizeof(instance->ifname), "%s", o.opt.ifname);
	if (instance_dpdk_text(o.opt.ifname))
		rc = setup_dpdk(&o, instance);
	else
		rc = o.opt.daemon_socket ? setup_lease(&o, instance) : setup_alone(&o, instance);
	if (rc) {
		harp_instance_close(instance);
		return rc;
	}
	if (!harp_instance_lease(instance))
		instance_page_open(instance, o.opt.label);
	instance_dpdk_publish_xstats(instance);
	*out = instance;
	return 0;
}
