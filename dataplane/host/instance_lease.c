/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance_lease.c - opens a stack on a queue leased from harpd, without privileges.
 *
 * harpd has created the queue, entered it in the XDP program's map and reserved the ports. In the
 * NIC's network namespace the process reads the interface from the kernel. In another namespace it
 * cannot, and asks harpd (netwatch.h).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/instance_setup.h"
#include "host/netlink_get.h"

static int lease_link_up(const struct instance_setup *o, struct harp_instance *instance, bool up,
			 uint32_t mtu_bytes)
{
	if (!up)
		return why_fail(&o->why, -ENETDOWN, "the interface is down or has no carrier");
	instance->up = true;
	instance->mtu_bytes = mtu_bytes;
	return 0;
}

/* Reads the interface from the kernel. */
static int lease_read_local(struct instance_setup *o, struct harp_instance *instance)
{
	const struct harp_lease_leased *grant = &instance->lease->grant;
	struct netlink_get_link link;
	int rc = setup_netlink(o, instance, false);

	if (rc)
		return rc;
	rc = netlink_get_link(&instance->queries, grant->ifindex, &link);
	if (rc)
		return why_fail(&o->why, rc, "harpd's interface %u does not exist here: %s",
				grant->ifindex, strerror(-rc));
	if (strcmp(link.ifname, instance->ifname) != 0 ||
	    memcmp(link.mac, grant->mac, sizeof(link.mac)) != 0)
		return why_fail(&o->why, -EPROTO,
				"harpd's interface %u is %s here, or has another MAC address",
				grant->ifindex, link.ifname);
	return lease_link_up(o, instance, link.up, link.mtu_bytes);
}

/* Stores a NETWORK message, because there is no stack yet to apply it to. */
static void lease_apply(void *ctx, const struct harp_lease_header *message)
{
	if (message->type == HARP_LEASE_NETWORK)
		memcpy(ctx, message, sizeof(struct harp_lease_network));
}

/* Reads the interface from harpd. */
static int lease_read_harpd(struct instance_setup *o, struct harp_instance *instance,
			    struct harp_lease_network *network)
{
	struct lease *lease = instance->lease;
	int rc = netwatch_open(&instance->netwatch, lease->socket, &lease->grant, lease_apply,
			       network, &o->why);

	if (rc)
		return rc;
	neighbors_remote(&instance->neighbors, instance->netwatch);
	if (memcmp(network->mac, lease->grant.mac, sizeof(network->mac)) != 0)
		return why_fail(&o->why, -EPROTO, "harpd's interface has two MAC addresses");
	return lease_link_up(o, instance, network->link == HARP_LEASE_LINK_UP, network->mtu_bytes);
}

static void lease_describe(struct harp_instance *instance)
{
	const struct harp_lease_leased *grant = &instance->lease->grant;
	size_t used;

	setup_mode(instance, grant->native);
	used = strlen(instance->describe);
	snprintf(instance->describe + used, sizeof(instance->describe) - used,
		 ", ports %u-%u, leased from %s", grant->port_min, grant->port_max,
		 instance->lease->daemon);
}

static int lease_publish(const struct instance_setup *o, struct harp_instance *instance)
{
	const struct lease *lease = instance->lease;
	const struct harp_lease_leased *grant = &lease->grant;
	int rc = instance_publish(instance, lease->page, grant->page_bytes, grant->lease_id,
				  grant->netns, o->opt.label);

	return rc ? why_fail(&o->why, -EPROTO, "harpd's statistics page of %u bytes: %s",
			     grant->page_bytes, strerror(-rc))
		  : 0;
}

int setup_lease(struct instance_setup *o, struct harp_instance *instance)
{
	struct harp_lease_network network = { 0 };
	struct harp_queue queue;
	struct lease *lease;
	bool other_netns;
	int rc = lease_take(&instance->lease, &o->opt, &o->why);

	if (rc)
		return rc;
	lease = instance->lease;
	instance->queue = lease->grant.queue;
	instance->rss = o->opt.rss ? *o->opt.rss : lease->grant.rss;
	if (!o->opt.rss)
		instance->rss.queues = lease->grant.queue_count;
	o->opt.port_min = lease->grant.port_min;
	o->opt.port_max = lease->grant.port_max;
	o->link.ifindex = lease->grant.ifindex;
	other_netns = lease_in_other_netns(lease);
	lease_queue(lease, &queue);
	rc = harp_nic_af_xdp_adopt(&instance->nic, &queue, o->why.text, o->why.size);
	if (!rc)
		rc = other_netns ? lease_read_harpd(o, instance, &network)
				 : lease_read_local(o, instance);
	if (rc)
		return rc;
	o->link.mtu_bytes = instance->mtu_bytes;
	lease_describe(instance);
	rc = setup_stack(o, instance);
	if (!rc)
		rc = lease_publish(o, instance);
	if (rc)
		return rc;
	if (!instance->netwatch)
		return setup_kernel_tables(o, instance);
	setup_route_cache(o, instance, &network.tables);
	return 0;
}
