/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance_open.c - opens a stack on a NIC that the kernel keeps using.
 *
 * Theory of operation
 *
 * Opening goes from what fails most cheaply to what others could notice: options and privileges, the
 * XDP program (which instances of this process on other queues of the interface may have attached
 * already; with empty maps it redirects no packet), the AF_XDP queue, the stack, the host's addresses and
 * routes, and only as the last step the socket in the program's map. What fails unwinds the steps
 * before it in reverse; harp_instance_close() is the same unwinding from the end.
 *
 * The program redirects to a port only while the stack uses it: the stack's port_acquire hook binds a
 * kernel socket to the port, so that no one else can have it, then sets the map, which keeps the queue of
 * the stack as the port's home; port_release goes the other way. When we die, the kernel drops link, map
 * and sockets, and packets to the port meet no listener: the peers get RST.
 *
 * All that is of an instance that stands alone. One that is leased (instance_lease.c) gets queue and ports from
 * harpd, which has program and map; stack and hooks are the same, and control too where the process is in the NIC's
 * network namespace. Elsewhere harpd tells what the monitor would (netwatch.h). One on a DPDK
 * port (instance_dpdk.c) has nothing to do with the kernel.
 *
 * The stack's hooks run inside harp_stack_poll() and only take notes. harp_instance_control(), called
 * by the same thread, speaks to the kernel: it hears the monitor (link, addresses, routes,
 * neighbours), copies what changed into the stack, and has the neighbours that were wanted asked for. It
 * waits for nothing: a question may take the kernel long, so a thread asks it (asker.h).
 */
#include <errno.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/opening.h"
#include "host/privilege.h"
#include "nic/af_xdp_link.h"

#define OWNERLESS_TRIES                                                                            \
	10u /* of 2 s each; 20 s were seen on a machine with ten times the work for it */

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

static void hook_neighbour_wanted(void *ctx, const struct harp_addr *next_hop)
{
	neighbours_wanted(&((struct harp_instance *)ctx)->neighbours, next_hop);
}

static void hook_neighbour_confirmed(void *ctx, const struct harp_addr *next_hop)
{
	neighbours_confirmed(&((struct harp_instance *)ctx)->neighbours, next_hop);
}

/* The ports of a lease are its own already, and packets to others never come here. */
static int hook_port_acquire(void *ctx, uint16_t port)
{
	struct harp_instance *instance = ctx;

	if (instance->lease)
		return lease_has_port(instance->lease, port) ? 0 : -EADDRNOTAVAIL;
	return ports_acquire(&instance->ports, port);
}

static void hook_port_release(void *ctx, uint16_t port)
{
	struct harp_instance *instance = ctx;

	if (!instance->lease)
		ports_release(&instance->ports, port);
}

static int hook_udp_port_acquire(void *ctx, uint16_t port)
{
	struct harp_instance *instance = ctx;

	if (instance->lease)
		return lease_has_port(instance->lease, port) ? 0 : -EADDRNOTAVAIL;
	return ports_acquire(&instance->udp_ports, port);
}

static void hook_udp_port_release(void *ctx, uint16_t port)
{
	struct harp_instance *instance = ctx;

	if (!instance->lease)
		ports_release(&instance->udp_ports, port);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* The caller may have been built with the first version of the options, or with a later one. */
static int opening_version(struct opening *o, const struct harp_instance_options *opt)
{
	size_t first = offsetof(struct harp_instance_options, daemon_socket);
	const char *ifname = opt && opt->ifname ? opt->ifname : "(none)";

	if (opt && opt->queue == HARP_LEASE_QUEUE_ANY)
		why_about(&o->why, "%s", ifname);
	else
		why_about(&o->why, "%s queue %u", ifname, opt ? opt->queue : 0);
	if (!opt || opt->size < first)
		return why_fail(&o->why, -EINVAL, "options of an older size; rebuild the caller");
	memcpy(&o->opt, opt, opt->size < sizeof(*opt) ? opt->size : sizeof(*opt));
	if (o->opt.ifname && instance_dpdk_text(o->opt.ifname))
		return 0;
	if (!o->opt.ifname || !o->opt.ifname[0] || strlen(o->opt.ifname) >= IFNAMSIZ)
		return why_fail(&o->why, -EINVAL, "an interface has a name of 1 to %d bytes",
				IFNAMSIZ - 1);
	return 0;
}

static int opening_options(struct opening *o)
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
				"no such queue; the interface has %u, counted from 0",
				o->link.rx_queues);
	if (!o->link.up || !o->link.carrier)
		return why_fail(&o->why, -ENETDOWN, "the interface %s",
				o->link.up ? "has no carrier; look at the cable or the peer"
					   : "is down; `ip link set dev ... up`");
	if (privilege_missing(missing, sizeof(missing)))
		return why_fail(&o->why, -EPERM, "%s missing; run as root or add %s", missing,
				strchr(missing, ',') ? "them" : "it");
	return 0;
}

int opening_stack(const struct opening *o, struct harp_instance *instance)
{
	struct harp_stack_options opt = {
		.size = sizeof(opt),
		.max_conns = o->opt.max_conns,
		.port_min = o->opt.port_min,
		.port_max = o->opt.port_max,
		.neighbour_mode = HARP_NEIGHBOUR_EXTERNAL,
		.seed = o->opt.seed,
		.scope_id = o->link.ifindex,
		.hooks = {
			.ctx = instance,
			.log = hook_log,
			.requests = hook_requests,
			.neighbour_wanted = hook_neighbour_wanted,
			.neighbour_confirmed = hook_neighbour_confirmed,
			.port_acquire = hook_port_acquire,
			.port_release = hook_port_release,
		},
		.udp_port_acquire = hook_udp_port_acquire,
		.udp_port_release = hook_udp_port_release,
	};
	struct timespec now;
	int rc;

	if (instance->dpdk)
		instance_dpdk_hooks(instance, &opt);
	clock_gettime(CLOCK_MONOTONIC, &now);
	opt.now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	rc = harp_stack_create(&instance->stack, instance->nic, &opt);
	if (rc)
		return why_fail(&o->why, rc, "the stack: %s; look at frames and port range",
				strerror(-rc));
	instance->neighbours.stack = instance->stack;
	return 0;
}

int opening_netlink(const struct opening *o, struct harp_instance *instance, bool privileged)
{
	/* The monitor first: what changes while we read is heard. */
	int rc = netlink_open(&instance->monitor, RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_IFADDR |
							  RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_IFADDR |
							  RTMGRP_IPV6_ROUTE);

	if (!rc)
		rc = netlink_open(&instance->questions, 0);
	if (rc)
		return why_fail(&o->why, rc, "rtnetlink: %s", strerror(-rc));
	rc = neighbours_open(&instance->neighbours, instance->ifname, o->link.ifindex, privileged);
	return rc ? why_fail(&o->why, rc, "a UDP socket on the interface: %s", strerror(-rc)) : 0;
}

void opening_mirror(const struct opening *o, struct harp_instance *instance,
		    const struct harp_lease_tables *found)
{
	instance->mirror = (struct mirror){
		.stack = instance->stack,
		.api = instance->api,
		.xdp = instance->xdp,
		.ifindex = o->link.ifindex,
	};
	mirror_apply(&instance->mirror, found);
	if (!instance->mirror.now.address_count)
		instance_log(instance, HARP_LOG_WARN,
			     "%s has no usable IP address yet; `ip address add ... dev %s`",
			     instance->ifname, instance->ifname);
}

int opening_kernel_tables(const struct opening *o, struct harp_instance *instance)
{
	struct harp_lease_tables found;
	int rc = mirror_read(o->link.ifindex, &instance->questions, &found);

	if (rc)
		return why_fail(&o->why, rc, "rtnetlink: %s", strerror(-rc));
	opening_mirror(o, instance, &found);
	instance->asker.look = instance->shared ? instance_check_program : NULL;
	instance->asker.look_ctx = instance;
	rc = asker_start(&instance->asker, instance->monitor.fd, o->link.ifindex,
			 &instance->questions, &instance->questions_lock);
	return rc ? why_fail(&o->why, rc, "cannot start a thread: %s; raise the limit (ulimit -u)",
			     strerror(-rc))
		  : 0;
}

static int opening_attach(const struct opening *o, struct harp_instance *instance)
{
	const struct xdp_wish wish = {
		.ifname = o->opt.ifname,
		.ifindex = o->link.ifindex,
		.mode = o->opt.xdp_mode,
		.lib_dir = o->opt.lib_dir,
	};
	char why[320];
	int rc = xdp_shared_get(&instance->shared, &wish, why, sizeof(why));

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

void opening_mode(struct harp_instance *instance, bool native)
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

static int opening_queue(const struct opening *o, struct harp_instance *instance)
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

	/* Its release waits for a kernel thread and for locks of the whole host's. Whoever uses the
	 * queue needs a program that brings it packets, and the only one is ours. */
	for (unsigned i = 0;
	     rc == -EBUSY && i < OWNERLESS_TRIES && xdp_shared_users(instance->shared) == 1; i++) {
		if (!i)
			instance_log(instance, HARP_LOG_INFO,
				     "%s queue %u is busy, and nobody uses it: the kernel is about "
				     "to release it, which is waited for",
				     instance->ifname, o->opt.queue);
		rc = harp_nic_af_xdp_create(&instance->nic, &opt, o->why.text, o->why.size);
	}
	if (!rc)
		opening_mode(instance, instance->api->native(instance->xdp));
	return rc;
}

static int opening_rss(const struct opening *o, struct harp_instance *instance)
{
	int rc = 0;

	if (o->opt.rss)
		instance->rss = *o->opt.rss;
	else
		rc = harp_rss_read(o->opt.ifname, &instance->rss);
	return rc ? why_fail(&o->why, rc, "its receive queues: %s", strerror(-rc)) : 0;
}

static int opening_map(const struct opening *o, struct harp_instance *instance)
{
	unsigned users = xdp_shared_users(instance->shared);
	int rc = instance->api->xsk_set(instance->xdp, o->opt.queue,
					harp_nic_af_xdp_fd(instance->nic));

	if (rc)
		return why_fail(&o->why, rc, "putting the socket in the steering map: %s",
				strerror(-rc));
	/* Whoever connects may find the right source ports (plugin/connect/opening.c does): no reason to warn. */
	if (instance->rss.queues > users)
		instance_log(
			instance, HARP_LOG_INFO,
			"%s has %u receive queues, and this process has instances on %u of them: "
			"connections of queue %u whose packets arrive on another one do not come about%s; "
			"`ethtool -L %s combined 1` if that is too few",
			instance->ifname, instance->rss.queues, users, o->opt.queue,
			instance->rss.kind == HARP_RSS_TOEPLITZ
				? ""
				: " (the NIC does not say which do)",
			instance->ifname);
	return 0;
}

/* Everything by ourselves. */
static int opening_alone(struct opening *o, struct harp_instance *instance)
{
	int rc = opening_options(o);

	instance->mtu_bytes = o->link.mtu_bytes;
	instance->up = true;
	if (!rc)
		rc = opening_rss(o, instance);
	if (!rc)
		rc = opening_attach(o, instance);
	if (!rc)
		rc = opening_queue(o, instance);
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
		rc = opening_stack(o, instance);
	if (!rc)
		rc = opening_netlink(o, instance, true);
	if (!rc)
		rc = opening_kernel_tables(o, instance);
	if (!rc)
		rc = opening_map(o, instance);
	return rc;
}

int harp_instance_open(struct harp_instance **out, const struct harp_instance_options *opt,
		       char *why, size_t why_len)
{
	struct opening o = { .why = { .text = why, .size = why_len } };
	struct harp_instance *instance;
	int rc;

	*out = NULL;
	if (why && why_len)
		why[0] = '\0';
	rc = opening_version(&o, opt);
	if (rc)
		return rc;
	instance = calloc(1, sizeof(*instance));
	if (!instance)
		return why_fail(&o.why, -ENOMEM, "out of memory");
	instance->monitor.fd = instance->questions.fd = instance->page.fd = -1;
	instance->neighbours.probe_v4_fd = instance->neighbours.probe_v6_fd = -1;
	pthread_mutex_init(&instance->questions_lock, NULL);
	pthread_mutex_init(&instance->watch.lock, NULL);
	instance->queue = o.opt.queue;
	instance->ctx = o.opt.ctx;
	instance->log = o.opt.log;
	instance->requests = o.opt.requests;
	snprintf(instance->ifname, sizeof(instance->ifname), "%s", o.opt.ifname);
	if (instance_dpdk_text(o.opt.ifname))
		rc = opening_dpdk(&o, instance);
	else
		rc = o.opt.daemon_socket ? opening_lease(&o, instance)
					 : opening_alone(&o, instance);
	if (rc) {
		harp_instance_close(instance);
		return rc;
	}
	if (!harp_instance_lease(instance))
		instance_page_open(instance, o.opt.label);
	instance_dpdk_published(instance);
	*out = instance;
	return 0;
}
