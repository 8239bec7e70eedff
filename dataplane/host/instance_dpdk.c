/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance_dpdk.c - a stack on a queue of a DPDK port, which the kernel does not know.
 *
 * Theory of operation
 *
 * Addresses, routes, MTU and VLAN tag come from the port's specification, not from the kernel. The
 * stack resolves neighbors itself. All packets of the port belong to HARP, so there is no XDP
 * program. A local port is reserved only against other stacks of this process. Drivers have no
 * descriptor that reports link changes, so the link is polled several times a second.
 */
#include "host/instance_dpdk.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/addr.h"
#include "harp_page.h"
#include "host/lease.h"
#include "host/instance_setup.h"

#define IPV6_MTU_MIN_BYTES 1280u /* RFC 8200 section 5 */

const char *instance_dpdk_text(const char *ifname)
{
	size_t len = strlen(HARP_PORT_PREFIX);

	return strncmp(ifname, HARP_PORT_PREFIX, len) == 0 ? ifname + len : NULL;
}

/* ---- hooks of the stack --------------------------------------------------------------------- */

static int hook_port_acquire(void *ctx, uint8_t protocol, uint16_t number)
{
	struct harp_instance *instance = ctx;

	return dpdk_port_acquire(instance->dpdk->port, protocol, number, instance->queue);
}

static void hook_port_release(void *ctx, uint8_t protocol, uint16_t number)
{
	struct harp_instance *instance = ctx;

	dpdk_port_release(instance->dpdk->port, protocol, number, instance->queue);
}

static void hook_neighbor_learned(void *ctx, const struct harp_addr *addr, const uint8_t *mac,
				  uint32_t flags)
{
	const struct instance_dpdk *dpdk = ((struct harp_instance *)ctx)->dpdk;
	struct dpdk_event event = { .from = &dpdk->reader, .addr = *addr, .flags = flags };

	event.has_mac = mac != NULL;
	if (mac)
		memcpy(event.mac, mac, sizeof(event.mac));
	dpdk_events_publish(dpdk->port->events, &event);
}

static void hook_icmp_error_forward(void *ctx, const struct harp_icmp_error *error)
{
	const struct instance_dpdk *dpdk = ((struct harp_instance *)ctx)->dpdk;
	const struct dpdk_event event = { .from = &dpdk->reader,
					  .is_error = true,
					  .error = *error };

	dpdk_events_publish(dpdk->port->events, &event);
}

static bool hook_port_on_other_queue(void *ctx, uint8_t protocol, uint16_t number)
{
	const struct harp_instance *instance = ctx;

	return dpdk_port_on_other_queue(instance->dpdk->port, protocol, number, instance->queue);
}

void instance_dpdk_hooks(struct harp_instance *instance, struct harp_stack_options *opt)
{
	opt->neighbor_mode = HARP_NEIGHBOR_OWN;
	opt->vlan_id = (uint16_t)instance->dpdk->port->spec.vlan_id;
	opt->hooks.port_acquire = hook_port_acquire;
	opt->hooks.port_release = hook_port_release;
	if (instance->dpdk->port->spec.queues == 1)
		return;
	opt->neighbor_learned = hook_neighbor_learned;
	opt->port_on_other_queue = hook_port_on_other_queue;
	opt->icmp_error_forward = hook_icmp_error_forward;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* RFC 4291 appendix A: the link-local address of an EUI-48 MAC address. */
static struct harp_addr dpdk_link_local(const uint8_t mac[6])
{
	return (struct harp_addr){ .bytes = { 0xfe, 0x80, [8] = mac[0] ^ 2, mac[1], mac[2], 0xff,
					      0xfe, mac[3], mac[4], mac[5] } };
}

static int dpdk_addresses(const struct instance_setup *o, struct harp_instance *instance)
{
	const struct harp_port_spec *spec = &instance->dpdk->port->spec;
	struct harp_addr *link_local = &instance->dpdk->link_local;
	char text[HARP_ADDR_TEXT_MAX];
	int rc;

	for (uint32_t i = 0; i < spec->address_count; i++) {
		rc = harp_stack_address_add(instance->stack, &spec->addresses[i],
					    spec->prefix_lens[i]);
		if (rc)
			return why_fail(&o->why, rc, "the address %s: %s%s",
					harp_addr_format(&spec->addresses[i], text), strerror(-rc),
					instance->mtu_bytes < IPV6_MTU_MIN_BYTES
						? "; IPv6 needs an MTU of at least 1280"
						: "");
	}
	if (instance->mtu_bytes < IPV6_MTU_MIN_BYTES)
		return 0;
	*link_local = dpdk_link_local(instance->nic->caps.mac);
	rc = harp_stack_address_add(instance->stack, link_local, 64);
	return rc && rc != -EEXIST ? why_fail(&o->why, rc, "the address %s: %s",
					      harp_addr_format(link_local, text), strerror(-rc))
				   : 0;
}

static int dpdk_route_add(const struct instance_setup *o, struct harp_instance *instance,
			  const struct harp_addr *prefix, uint32_t prefix_len,
			  const struct harp_addr *gateway)
{
	char text[HARP_ADDR_TEXT_MAX];
	int rc = harp_stack_route_add(instance->stack, prefix, prefix_len, gateway, 0);

	return rc ? why_fail(&o->why, rc, "the route to %s/%u: %s", harp_addr_format(prefix, text),
			     prefix_len,
			     rc == -EEXIST ? "an address already implies it" : strerror(-rc))
		  : 0;
}

static int dpdk_routes(const struct instance_setup *o, struct harp_instance *instance)
{
	const struct harp_port_spec *spec = &instance->dpdk->port->spec;
	const struct harp_addr any_v4 = harp_addr_v4(0, 0, 0, 0), any_v6 = { { 0 } };
	int rc = 0;

	for (uint32_t i = 0; i < spec->route_count && !rc; i++)
		rc = dpdk_route_add(o, instance, &spec->routes[i].prefix,
				    spec->routes[i].prefix_len, &spec->routes[i].gateway);
	if (!rc && !addr_is_zero(&spec->gateway_v4))
		rc = dpdk_route_add(o, instance, &any_v4, 0, &spec->gateway_v4);
	if (!rc && !addr_is_zero(&spec->gateway_v6))
		rc = dpdk_route_add(o, instance, &any_v6, 0, &spec->gateway_v6);
	return rc;
}

static void dpdk_describe(struct harp_instance *instance)
{
	const struct dpdk_port *port = instance->dpdk->port;
	const struct harp_nic_caps *caps = &instance->nic->caps;

	snprintf(instance->describe, sizeof(instance->describe),
		 "%s %s on %s queue %u, MTU %u, %u frames of %u, %s", port->info.dpdk,
		 port->info.driver, port->spec.name, instance->queue, caps->mtu_bytes,
		 caps->frame_count, caps->frame_size,
		 port->info.huge_pages ? "huge pages" : "no huge pages");
	if (port->lease)
		snprintf(instance->describe + strlen(instance->describe),
			 sizeof(instance->describe) - strlen(instance->describe),
			 ", leased from %s", port->lease->daemon);
}

/* Fills in the data of a lease, so that leased ports and queues look alike to callers. */
static void dpdk_fill_lease(const struct instance_setup *o, struct harp_instance *instance)
{
	const struct dpdk_port *port = instance->dpdk->port;
	const struct harp_nic_caps *caps = &instance->nic->caps;
	struct harp_lease_leased *grant = &instance->dpdk->grant;

	*grant = (struct harp_lease_leased){
		.lease_id = port->lease->lease_id,
		.queue = instance->queue,
		.queue_count = port->spec.queues,
		.frame_size = caps->frame_size,
		.frame_count = caps->frame_count,
		.nic_features = caps->features,
		.tx_frags_max = caps->tx_frags_max,
		.mtu_bytes = caps->mtu_bytes,
		.port_min = o->opt.port_min ? o->opt.port_min : 61000,
		.port_max = o->opt.port_max ? o->opt.port_max : 65535,
		.page_bytes = port->lease->page_bytes,
		.rss = { .kind = instance->rss.kind },
	};
	snprintf(grant->ifname, sizeof(grant->ifname), "%s", port->spec.name);
	memcpy(grant->mac, caps->mac, sizeof(grant->mac));
}

/* The statistics page of a leased port's queue belongs to harpd. */
static int dpdk_publish(const struct instance_setup *o, struct harp_instance *instance)
{
	struct instance_dpdk *dpdk = instance->dpdk;
	const struct dpdk_lease *lease = dpdk->port->lease;
	int rc;

	if (!lease)
		return 0;
	dpdk_fill_lease(o, instance);
	rc = lease_page_map(lease->page_fds[instance->queue], lease->page_bytes, &dpdk->page,
			    &o->why);
	if (rc)
		return rc;
	rc = instance_publish(instance, dpdk->page, lease->page_bytes, lease->lease_id, 0,
			      o->opt.label);
	return rc ? why_fail(&o->why, -EPROTO, "harpd's statistics page of %u bytes: %s",
			     lease->page_bytes, strerror(-rc))
		  : 0;
}

static int dpdk_queue(struct instance_setup *o, struct harp_instance *instance)
{
	struct dpdk_port *port = instance->dpdk->port;
	int rc;

	if (instance->queue == HARP_LEASE_QUEUE_ANY)
		instance->queue = 0;
	if (instance->queue >= port->spec.queues)
		return why_fail(&o->why, -EINVAL,
				"no such queue; the port has %u queues, numbered from 0 (queues=)",
				port->spec.queues);
	rc = port->api->port_nic(port->port, instance->queue, &instance->nic, o->why.text,
				 o->why.size);
	if (rc)
		return rc;
	instance->mtu_bytes = instance->nic->caps.mtu_bytes;
	instance->up = atomic_load(&port->up);
	instance->rss = o->opt.rss ? *o->opt.rss : port->rss;
	dpdk_describe(instance);
	return 0;
}

static int dpdk_port(struct instance_setup *o, struct harp_instance *instance, const char *text)
{
	struct instance_dpdk *dpdk = calloc(1, sizeof(*dpdk));
	int rc;

	if (!dpdk)
		return why_fail(&o->why, -ENOMEM, "out of memory");
	instance->dpdk = dpdk;
	dpdk->reader.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	dpdk->sink = (struct dpdk_sink){ .log = o->opt.log, .ctx = o->opt.ctx };
	dpdk_sink_add(&dpdk->sink);
	if (dpdk->reader.fd < 0)
		return why_fail(&o->why, -errno, "eventfd: %s", strerror(errno));
	rc = dpdk_port_get(&dpdk->port, text, &o->opt, &o->why);
	if (rc)
		return rc;
	dpdk_events_join(dpdk->port->events, &dpdk->reader);
	snprintf(instance->ifname, sizeof(instance->ifname), "%s", dpdk->port->spec.name);
	why_about(&o->why, "%s queue %u", instance->ifname, instance->queue);
	return 0;
}

int setup_dpdk(struct instance_setup *o, struct harp_instance *instance)
{
	int rc = dpdk_port(o, instance, instance_dpdk_text(o->opt.ifname));

	if (!rc)
		rc = dpdk_queue(o, instance);
	if (!rc)
		rc = setup_stack(o, instance);
	if (!rc)
		rc = dpdk_publish(o, instance);
	if (!rc)
		rc = dpdk_addresses(o, instance);
	if (!rc)
		rc = dpdk_routes(o, instance);
	if (rc)
		return rc;
	if (!instance->dpdk->port->spec.address_count)
		instance_log(instance, HARP_LOG_WARN,
			     "%s has only a link-local IP address; set another with ip=",
			     instance->ifname);
	if (!instance->up) {
		instance_log(instance, HARP_LOG_INFO, "%s: the link is still down",
			     instance->ifname);
		instance->never_up = true;
	}
	return 0;
}

/* operation */

static void dpdk_receive_events(struct harp_instance *instance)
{
	struct instance_dpdk *dpdk = instance->dpdk;
	struct dpdk_event event;

	while (dpdk_events_next(dpdk->port->events, &dpdk->reader, &event)) {
		if (event.is_error)
			harp_stack_icmp_error(instance->stack, &event.error);
		else
			harp_stack_neighbor_learned(instance->stack, &event.addr,
						    event.has_mac ? event.mac : NULL, event.flags);
	}
}

int instance_dpdk_control(struct harp_instance *instance, uint64_t now_ns)
{
	bool changed, up = dpdk_port_up(instance->dpdk->port, now_ns, &changed);

	/* Only one instance of the port sees `changed`. The first link-up is not a warning. */
	if (changed)
		instance_log(instance, up && instance->never_up ? HARP_LOG_INFO : HARP_LOG_WARN,
			     "%s is %s", instance->ifname,
			     up ? instance->never_up ? "up" : "up again" : "down");
	if (up != instance->up)
		harp_stack_publish_note(instance->stack, up ? "" : "the link is down");
	dpdk_receive_events(instance);
	instance->never_up &= !up;
	instance->up = up;
	return up ? 0 : -ENETDOWN;
}

bool instance_dpdk_control_pending(const struct harp_instance *instance)
{
	return atomic_load_explicit(&instance->dpdk->reader.pending, memory_order_relaxed);
}

void instance_dpdk_publish_xstats(struct harp_instance *instance)
{
	struct instance_dpdk *dpdk = instance->dpdk;
	unsigned count;
	int rc;

	if (!dpdk || instance->queue)
		return;
	rc = dpdk_xstats_start(&dpdk->xstats, dpdk->port, instance->stack, &count);
	if (rc)
		instance_log(instance, HARP_LOG_WARN,
			     "%s: the driver's counters are not published: %s", instance->ifname,
			     strerror(-rc));
	else if (count > HARP_PAGE_XSTATS_MAX)
		instance_log(instance, HARP_LOG_INFO,
			     "%s: %u of the driver's %u counters are published", instance->ifname,
			     HARP_PAGE_XSTATS_MAX, count);
}

/* close */

void instance_dpdk_fork_child(const struct harp_instance *instance)
{
	/* DPDK's memory, threads and devices belong to the parent. */
	close(instance->dpdk->reader.fd);
	if (instance->dpdk->port)
		dpdk_lease_fork_child(instance->dpdk->port->lease);
}

void instance_dpdk_stop(struct harp_instance *instance)
{
	if (!instance->dpdk)
		return;
	dpdk_xstats_stop(instance->dpdk->xstats);
	instance->dpdk->xstats = NULL;
}

void instance_dpdk_close(struct harp_instance *instance)
{
	struct instance_dpdk *dpdk = instance->dpdk;
	char text[320] = "";
	struct why why = { .text = text, .size = sizeof(text) };

	if (!dpdk)
		return;
	harp_nic_destroy(instance->nic);
	instance->nic = NULL;
	if (dpdk->port) {
		dpdk_events_leave(dpdk->port->events, &dpdk->reader);
		if (dpdk->page)
			munmap(dpdk->page, dpdk->port->lease->page_bytes);
	}
	why_about(&why, "%s", instance->ifname);
	if (dpdk_port_put(dpdk->port, &why))
		instance_log(instance, HARP_LOG_WARN, "the lease ends with the process: %s", text);
	dpdk_sink_remove(&dpdk->sink);
	if (dpdk->reader.fd >= 0)
		close(dpdk->reader.fd);
	free(dpdk);
	instance->dpdk = NULL;
}

/* properties */

int instance_dpdk_route(const struct harp_instance *instance, const struct harp_addr *dst,
			struct harp_host_route *out)
{
	const struct instance_dpdk *dpdk = instance->dpdk;
	const struct harp_port_spec *spec = &dpdk->port->spec;
	int rc;

	*out = (struct harp_host_route){ .mtu_bytes = instance->nic->caps.mtu_bytes };
	snprintf(out->ifname, sizeof(out->ifname), "%s", instance->ifname);
	out->is_local = addr_equal(dst, &dpdk->link_local);
	for (uint32_t i = 0; i < spec->address_count; i++)
		out->is_local |= addr_equal(dst, &spec->addresses[i]);
	if (out->is_local) {
		out->source = out->next_hop = *dst;
		return 0;
	}
	rc = harp_stack_route(instance->stack, dst, &out->next_hop, &out->source);
	out->has_gateway = !addr_equal(dst, &out->next_hop);
	return rc;
}

int harp_instance_dpdk(const struct harp_instance *instance, struct harp_instance_port *out)
{
	const struct dpdk_port *port = instance->dpdk ? instance->dpdk->port : NULL;

	if (!port)
		return -ENOTSUP;
	*out = port->info;
	out->up = atomic_load_explicit(&port->up, memory_order_relaxed);
	out->address_count = port->spec.address_count;
	memcpy(out->addresses, port->spec.addresses, sizeof(out->addresses));
	return 0;
}
