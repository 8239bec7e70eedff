/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance.c - a running instance: applies kernel events to the stack, and the stack's requests to
 * the kernel. Theory of operation: instance_open.c.
 */
#include "host/instance.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harp_page.h"
#include "host/netlink_get.h"

void __attribute__((format(printf, 3, 4)))
instance_log(const struct harp_instance *instance, enum harp_log_level level, const char *format,
	     ...)
{
	char line[320];
	va_list args;

	if (!instance->log)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	instance->log(instance->ctx, level, line);
}

/* Called last, because harpd may lease the queue again at once. */
static void instance_return(struct harp_instance *instance)
{
	char text[320];
	struct why why = { .text = text, .size = sizeof(text) };

	why_about(&why, "%s", instance->ifname);
	if (lease_return(instance->lease, &why))
		instance_log(instance, HARP_LOG_WARN, "the lease ends with the process: %s", text);
}

void harp_instance_close(struct harp_instance *instance)
{
	if (!instance)
		return;
	netlink_worker_stop(&instance->worker);
	instance_dpdk_stop(instance);
	harp_stack_destroy(instance->stack);
	instance_page_close(&instance->page);
	if (instance->ports.held)
		ports_destroy(&instance->ports);
	if (instance->udp_ports.held)
		ports_destroy(&instance->udp_ports);
	if (instance->xdp)
		instance->api->xsk_set(instance->xdp, instance->queue, -1);
	pthread_mutex_destroy(&instance->watch.lock);
	xdp_shared_put(instance->shared);
	instance_dpdk_close(instance);
	harp_nic_destroy(instance->nic);
	netlink_close(&instance->monitor);
	netlink_close(&instance->queries);
	neighbors_close(&instance->neighbors);
	netwatch_close(instance->netwatch);
	instance_return(instance);
	pthread_mutex_destroy(&instance->queries_lock);
	free(instance);
}

void harp_instance_fork_child(struct harp_instance *instance)
{
	if (!instance)
		return;
	if (instance->page.fd >= 0)
		close(instance->page.fd);
	if (instance->dpdk) {
		instance_dpdk_fork_child(instance);
		return;
	}
	xdp_shared_fork_child(instance->shared);
	for (unsigned i = 0; i < instance->ports.count; i++)
		close(instance->ports.fds[i]);
	for (unsigned i = 0; i < instance->udp_ports.count; i++)
		close(instance->udp_ports.fds[i]);
	close(harp_nic_af_xdp_fd(instance->nic));
	neighbors_fork_child(&instance->neighbors);
	if (instance->netwatch) {
		netwatch_fork_child(instance->netwatch);
	} else {
		close(instance->monitor.fd);
		close(instance->queries.fd);
	}
	if (instance->lease)
		lease_fork_child(instance->lease);
}

/* ---- control -------------------------------------------------------------------------------- */

/* The stack uses the kernel's MAC address. */
static void control_mac(struct harp_instance *instance, const uint8_t *now)
{
	uint8_t *mac = instance->nic->caps.mac;

	if (!memcmp(mac, now, sizeof(instance->nic->caps.mac)))
		return;
	memcpy(mac, now, sizeof(instance->nic->caps.mac));
	instance_log(instance, HARP_LOG_WARN,
		     "%s: the MAC address is now %02x:%02x:%02x:%02x:%02x:%02x", instance->ifname,
		     mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

static void control_up(struct harp_instance *instance, bool up)
{
	if (up != instance->up) {
		instance_log(instance, HARP_LOG_WARN, "%s is %s", instance->ifname,
			     up ? "up again"
				: "down; its connections wait until it is up or they time out");
		harp_stack_publish_note(instance->stack, up ? "" : "the interface is down");
	}
	instance->up = up;
}

static void control_mtu(struct harp_instance *instance, uint32_t mtu_bytes)
{
	if (mtu_bytes != instance->mtu_bytes)
		instance_log(instance, HARP_LOG_WARN,
			     "%s: the MTU changed from %u to %u; HARP uses %u until restarted",
			     instance->ifname, instance->mtu_bytes, mtu_bytes,
			     instance->nic->caps.mtu_bytes);
	instance->mtu_bytes = mtu_bytes;
}

static void control_removed(struct harp_instance *instance)
{
	if (!instance->gone)
		harp_stack_publish_note(instance->stack, "the interface was removed");
	instance->gone = true;
}

static void control_link(struct harp_instance *instance, const struct nlmsghdr *message)
{
	const struct ifinfomsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[IFLA_MAX + 1], *mac;

	if ((uint32_t)body->ifi_index != instance->cache.ifindex)
		return;
	/* `ip link set xdp off` and similar commands cause this event. The task finds other changes
	 * within a second. */
	if (instance->shared)
		netlink_worker_run_task(&instance->worker);
	if (message->nlmsg_type == RTM_DELLINK) {
		/* When a port leaves a bridge, the kernel also sends a DELLINK, with the family
		 * AF_BRIDGE. */
		if (body->ifi_family == AF_UNSPEC)
			control_removed(instance);
		return;
	}
	control_up(instance, netlink_link_is_up(body));
	netlink_attributes(message, sizeof(*body), attributes, IFLA_MAX);
	mac = attributes[IFLA_ADDRESS];
	if (mac && RTA_PAYLOAD(mac) == sizeof(instance->nic->caps.mac))
		control_mac(instance, RTA_DATA(mac));
	control_mtu(instance, netlink_u32(attributes[IFLA_MTU], instance->mtu_bytes));
}

static int control_event(void *ctx, const struct nlmsghdr *message)
{
	struct harp_instance *instance = ctx;

	switch (message->nlmsg_type) {
	case RTM_NEWLINK:
	case RTM_DELLINK:
		control_link(instance, message);
		break;
	case RTM_NEWADDR:
	case RTM_DELADDR:
	case RTM_NEWROUTE:
	case RTM_DELROUTE:
		instance->tables_changed = true;
		break;
	case RTM_NEWNEIGH:
	case RTM_DELNEIGH:
		neighbors_event(&instance->neighbors, message);
		break;
	default:
		break;
	}
	return 0;
}

/* Reads everything again after lost events. */
static void control_lost(struct harp_instance *instance)
{
	struct netlink_get_link link;
	int rc;

	pthread_mutex_lock(&instance->queries_lock);
	rc = netlink_get_link(&instance->queries, instance->cache.ifindex, &link);
	pthread_mutex_unlock(&instance->queries_lock);
	instance->gone |= rc == -ENODEV;
	if (!rc)
		control_up(instance, link.up);
	instance->tables_changed = true;
	neighbors_resync(&instance->neighbors);
}

/* Warns about addresses that the kernel removed; connections may still use them. */
static void control_warn_removed(struct harp_instance *instance,
				 const struct harp_lease_tables *before)
{
	const struct harp_lease_tables *now = &instance->cache.now;
	char text[HARP_ADDR_TEXT_MAX];

	for (unsigned i = 0; i < before->address_count; i++) {
		const struct harp_addr *addr = &before->addresses[i];

		if (!route_cache_has_address(now, addr))
			instance_log(instance, HARP_LOG_WARN,
				     "%s was removed from %s; its connections wait until it "
				     "returns or they time out",
				     harp_addr_format(addr, text), instance->ifname);
	}
}

static void control_apply(struct harp_instance *instance, const struct harp_lease_tables *tables)
{
	struct harp_lease_tables before = instance->cache.now;

	route_cache_apply(&instance->cache, tables);
	control_warn_removed(instance, &before);
}

static void control_tables(struct harp_instance *instance)
{
	struct harp_lease_tables tables;
	int rc;

	if (netlink_worker_tables(&instance->worker, &tables, &rc)) {
		/* The tables changed during the read: read again. */
		instance->tables_changed |= rc != 0;
		if (!rc)
			control_apply(instance, &tables);
	}
	if (instance->tables_changed)
		netlink_worker_request_tables(&instance->worker);
	instance->tables_changed = false;
}

static void control_kernel(struct harp_instance *instance)
{
	netlink_worker_clear(&instance->worker);
	if (netlink_events(&instance->monitor, control_event, instance) == -ENOBUFS)
		control_lost(instance);
	if (!instance->gone)
		control_tables(instance);
}

static void apply_network(struct harp_instance *instance, const struct harp_lease_network *network)
{
	if (network->link == HARP_LEASE_LINK_GONE)
		control_removed(instance);
	if (instance->gone)
		return;
	control_up(instance, network->link == HARP_LEASE_LINK_UP);
	control_mac(instance, network->mac);
	control_mtu(instance, network->mtu_bytes);
	control_apply(instance, &network->tables);
	if (network->header.serial) /* this harpd does not know the neighbors yet */
		neighbors_resync(&instance->neighbors);
}

static void apply_message(void *ctx, const struct harp_lease_header *message)
{
	struct harp_instance *instance = ctx;

	if (message->type == HARP_LEASE_NETWORK)
		apply_network(instance, (const void *)message);
	else
		neighbors_message(&instance->neighbors, (const void *)message);
}

static void control_harpd(struct harp_instance *instance, uint64_t now_ns)
{
	bool lost = netwatch_events(instance->netwatch, now_ns, apply_message, instance) != 0;

	if (lost && !instance->netwatch_lost)
		instance_log(instance, HARP_LOG_WARN,
			     "%s: routes and neighbors are not updated: %s", instance->ifname,
			     instance->netwatch->why);
	if (!lost && instance->netwatch_lost)
		instance_log(instance, HARP_LOG_INFO, "%s: harpd sends routes and neighbors again",
			     instance->ifname);
	instance->netwatch_lost = lost;
}

/* Task of the netlink worker: checks that the XDP program is still attached. True: the poller must
 * read the result. */
bool instance_check_program(void *ctx)
{
	struct harp_instance *instance = ctx;
	struct program_watch *watch = &instance->watch;
	char text[sizeof(watch->text)];
	int rc = xdp_shared_check(instance->shared, text, sizeof(text));
	bool changed;

	pthread_mutex_lock(&watch->lock);
	changed = rc != watch->error || (!rc && text[0]);
	if (changed) {
		watch->error = rc;
		snprintf(watch->text, sizeof(watch->text), "%s", text);
	}
	pthread_mutex_unlock(&watch->lock);
	return changed;
}

static int control_program(struct harp_instance *instance)
{
	struct program_watch *watch = &instance->watch;
	int rc;

	pthread_mutex_lock(&watch->lock);
	if (watch->text[0])
		instance_log(instance, HARP_LOG_WARN, "%s", watch->text);
	watch->text[0] = '\0';
	rc = watch->error;
	pthread_mutex_unlock(&watch->lock);
	return rc && rc != -ENODEV ? -ENOLINK : rc;
}

int harp_instance_control(struct harp_instance *instance, uint64_t now_ns)
{
	int rc;

	if (instance->dpdk)
		return instance_dpdk_control(instance, now_ns);
	if (instance->netwatch)
		control_harpd(instance, now_ns);
	else
		control_kernel(instance);
	if (!instance->gone)
		neighbors_work(&instance->neighbors, &instance->worker, now_ns);
	rc = instance->shared ? control_program(instance) : 0;
	instance->gone |= rc == -ENODEV;
	if (instance->gone)
		return -ENODEV;
	if (rc)
		return rc;
	return instance->up ? 0 : -ENETDOWN;
}

int harp_instance_route(struct harp_instance *instance, const struct harp_addr *dst,
			struct harp_host_route *out)
{
	int rc;

	if (instance->dpdk)
		return instance_dpdk_route(instance, dst, out);
	pthread_mutex_lock(&instance->queries_lock);
	if (instance->netwatch)
		rc = netwatch_route(instance->netwatch, dst, out);
	else
		rc = netlink_get_route_from(&instance->queries, instance->cache.ifindex, dst, out);
	pthread_mutex_unlock(&instance->queries_lock);
	return rc;
}

bool harp_instance_control_pending(const struct harp_instance *instance)
{
	if (instance->dpdk)
		return instance_dpdk_control_pending(instance);
	return instance->neighbors.pending || instance->tables_changed ||
	       netlink_worker_answered(&instance->worker);
}

/* accessors */

struct harp_stack *harp_instance_stack(struct harp_instance *instance)
{
	return instance->stack;
}

struct harp_nic *harp_instance_nic(struct harp_instance *instance)
{
	return instance->nic;
}

int harp_instance_fd(const struct harp_instance *instance)
{
	const struct harp_nic_ops *ops = instance->nic->ops;

	return ops->fd ? ops->fd(instance->nic) : -1;
}

int harp_instance_control_fd(const struct harp_instance *instance)
{
	if (instance->dpdk)
		return instance->dpdk->reader.fd;
	return instance->netwatch ? instance->netwatch->fd : instance->monitor.fd;
}

const struct harp_rss *harp_instance_rss(const struct harp_instance *instance)
{
	return &instance->rss;
}

uint32_t harp_instance_queue(const struct harp_instance *instance)
{
	return instance->queue;
}

const char *harp_instance_describe(const struct harp_instance *instance)
{
	return instance->describe;
}

enum harp_instance_mode harp_instance_mode(const struct harp_instance *instance)
{
	return instance->dpdk ? HARP_MODE_DPDK : instance->mode;
}

const struct harp_lease_leased *harp_instance_lease(const struct harp_instance *instance)
{
	if (instance->dpdk && instance->dpdk->port->lease)
		return &instance->dpdk->grant;
	return instance->lease ? &instance->lease->grant : NULL;
}

int harp_instance_steering(const struct harp_instance *instance, uint64_t *counts, unsigned max)
{
	unsigned count = max < STEER_VERDICT_COUNT ? max : STEER_VERDICT_COUNT;
	int rc;

	if (!instance->xdp)
		return -ENOTSUP;
	rc = instance->api->verdicts(instance->xdp, counts, count);
	return rc ? rc : STEER_VERDICT_COUNT;
}

#define STEER_NAME(name, help) #name,
#define STEER_HELP(name, help) help,

const char *harp_steering_name(unsigned index)
{
	static const char *const names[] = { STEER_VERDICTS(STEER_NAME) };

	return index < STEER_VERDICT_COUNT ? names[index] : NULL;
}

const char *harp_steering_help(unsigned index)
{
	static const char *const helps[] = { STEER_VERDICTS(STEER_HELP) };

	return index < STEER_VERDICT_COUNT ? helps[index] : NULL;
}
