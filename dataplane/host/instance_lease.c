/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance_lease.c - opens a stack on a queue that harpd leases: no privilege, no program, no map.
 *
 * What the process cannot do for itself harpd has done: the queue is made and in the steering map, the
 * ports are reserved, and the sockets through which the NIC's network namespace is asked are open. What
 * is left is to believe none of it: the kernel is asked what the interface is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/opening.h"
#include "host/question.h"

/* The interface as the kernel of its namespace sees it, through the socket that came with it. */
static int lease_link(struct opening *o, struct harp_instance *instance)
{
	const struct harp_lease_leased *told = &instance->lease->told;
	struct question_link link;
	int rc = question_link(&instance->questions, told->ifindex, &link);

	if (rc)
		return why_fail(&o->why, rc, "harpd's netlink socket knows no interface %u: %s",
				told->ifindex, strerror(-rc));
	if (strcmp(link.ifname, instance->ifname) != 0 ||
	    memcmp(link.mac, told->mac, sizeof(link.mac)) != 0)
		return why_fail(&o->why, -EPROTO,
				"harpd's netlink socket knows interface %u as %s, or by another "
				"MAC address than harpd",
				told->ifindex, link.ifname);
	if (!link.up)
		return why_fail(&o->why, -ENETDOWN, "the interface is down or has no carrier");
	instance->up = true;
	instance->mtu_bytes = link.mtu_bytes;
	o->link.ifindex = told->ifindex;
	o->link.mtu_bytes = link.mtu_bytes;
	return 0;
}

static void lease_rss(const struct harp_lease_leased *told, struct harp_rss *out)
{
	*out = (struct harp_rss){
		.kind = told->rss_kind,
		.key_bytes = told->rss_key_bytes,
		.table_count = told->rss_table_count,
		.queues = told->queue_count,
	};
	memcpy(out->key, told->rss_key, sizeof(out->key));
	memcpy(out->table, told->rss_table, sizeof(out->table));
}

static void lease_describe(struct harp_instance *instance)
{
	const struct harp_lease_leased *told = &instance->lease->told;
	struct harp_nic_caps *caps = &instance->nic->caps;
	const char *copy = strstr(caps->mode, "zero-copy") ? "zero-copy" : "copy";
	const char *mode = told->native ? "native" : "generic";

	snprintf(caps->mode, sizeof(caps->mode), "af_xdp %s %s queue %u", mode, copy, told->queue);
	snprintf(
		instance->describe, sizeof(instance->describe),
		"AF_XDP %s %s on %s queue %u, MTU %u, %u frames of %u, ports %u-%u, leased from %s",
		mode, copy, instance->ifname, told->queue, caps->mtu_bytes, caps->frame_count,
		caps->frame_size, told->port_min, told->port_max, instance->lease->daemon);
}

static int lease_publish(const struct opening *o, struct harp_instance *instance)
{
	const struct lease *lease = instance->lease;
	const struct harp_lease_leased *told = &lease->told;
	int rc = instance_publish(instance, lease->page, told->page_bytes, told->lease_id,
				  told->netns, o->opt.label);

	return rc ? why_fail(&o->why, -EPROTO, "harpd's statistics page of %u bytes: %s",
			     told->page_bytes, strerror(-rc))
		  : 0;
}

int opening_lease(struct opening *o, struct harp_instance *instance)
{
	struct harp_queue queue;
	struct lease *lease;
	int rc = lease_take(&instance->lease, &o->opt, &o->why);

	if (rc)
		return rc;
	lease = instance->lease;
	instance->queue = lease->told.queue;
	if (o->opt.rss)
		instance->rss = *o->opt.rss;
	else
		lease_rss(&lease->told, &instance->rss);
	o->opt.port_min = lease->told.port_min;
	o->opt.port_max = lease->told.port_max;
	netlink_adopt(&instance->monitor, lease_hand_on(lease, HARP_LEASE_FD_MONITOR));
	netlink_adopt(&instance->questions, lease_hand_on(lease, HARP_LEASE_FD_QUESTIONS));
	lease_queue(lease, &queue);
	rc = harp_nic_af_xdp_adopt(&instance->nic, &queue, o->why.text, o->why.size);
	if (!rc)
		rc = lease_link(o, instance);
	if (rc)
		return rc;
	lease_describe(instance);
	neighbours_init(&instance->neighbours, lease->told.ifindex,
			lease->fds[HARP_LEASE_FD_PROBE_V4], lease->fds[HARP_LEASE_FD_PROBE_V6]);
	rc = opening_stack(o, instance);
	if (!rc)
		rc = lease_publish(o, instance);
	if (!rc)
		rc = opening_kernel_tables(o, instance);
	return rc;
}
