/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow_rules.c - flow rules (rte_flow): direct packets of a protocol and local port to a queue, if
 * the device supports it.
 *
 * A rule of HARP is two rules of the device, one per family. Only a trial shows whether they are
 * supported.
 */
#include <errno.h>
#include <netinet/in.h>
#include <rte_byteorder.h>
#include <rte_flow.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/port.h"

struct port_rule {
	uint8_t protocol;
	uint16_t local_port, queue;
	struct rte_flow *flows[2]; /* IPv4, IPv6 */
};

static struct rte_flow *rule_make(const struct dpdk_port *port, bool v6, uint8_t protocol,
				  uint16_t local_port, uint16_t queue, int *err)
{
	const struct rte_flow_attr attr = { .ingress = 1 };
	struct rte_flow_action_queue to = { .index = queue };
	struct rte_flow_item_tcp tcp = { .hdr.dst_port = rte_cpu_to_be_16(local_port) };
	struct rte_flow_item_tcp tcp_mask = { .hdr.dst_port = UINT16_MAX };
	struct rte_flow_item_udp udp = { .hdr.dst_port = rte_cpu_to_be_16(local_port) };
	struct rte_flow_item_udp udp_mask = { .hdr.dst_port = UINT16_MAX };
	const bool is_tcp = protocol == IPPROTO_TCP;
	const struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = v6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4 },
		{ .type = is_tcp ? RTE_FLOW_ITEM_TYPE_TCP : RTE_FLOW_ITEM_TYPE_UDP,
		  .spec = is_tcp ? (const void *)&tcp : &udp,
		  .mask = is_tcp ? (const void *)&tcp_mask : &udp_mask },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	const struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error error = { 0 };
	struct rte_flow *flow = NULL;

	*err = rte_flow_validate(port->id, &attr, pattern, actions, &error);
	if (*err == 0) {
		flow = rte_flow_create(port->id, &attr, pattern, actions, &error);
		*err = flow ? 0 : -EIO;
	}
	if (*err == -ENOSYS || *err == -EINVAL || *err == -EOPNOTSUPP)
		*err = -ENOTSUP;
	return flow;
}

static void rule_destroy(const struct dpdk_port *port, struct port_rule *rule)
{
	struct rte_flow_error error;

	for (int i = 0; i < 2; i++) {
		if (rule->flows[i])
			rte_flow_destroy(port->id, rule->flows[i], &error);
		rule->flows[i] = NULL;
	}
}

static int rule_create(const struct dpdk_port *port, struct port_rule *rule)
{
	int err = 0;

	for (int i = 0; i < 2 && !err; i++)
		rule->flows[i] = rule_make(port, i == 1, rule->protocol, rule->local_port,
					   rule->queue, &err);
	if (err)
		rule_destroy(port, rule);
	return err;
}

static struct port_rule *rule_find(const struct dpdk_port *port, uint8_t protocol,
				   uint16_t local_port)
{
	for (unsigned i = 0; i < port->rule_count; i++)
		if (port->rules[i].protocol == protocol && port->rules[i].local_port == local_port)
			return &port->rules[i];
	return NULL;
}

static int rule_add(struct dpdk_port *port, uint8_t protocol, uint16_t local_port, uint32_t queue)
{
	struct port_rule rule = { .protocol = protocol,
				  .local_port = local_port,
				  .queue = (uint16_t)queue },
			 *more;
	int err;

	if (rule_find(port, protocol, local_port))
		return -EEXIST;
	more = realloc(port->rules, (port->rule_count + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	port->rules = more;
	err = rule_create(port, &rule);
	if (!err)
		port->rules[port->rule_count++] = rule;
	return err;
}

int port_steer(struct harp_dpdk_port *harp_port, uint8_t protocol, uint16_t local_port,
	       uint32_t queue, bool add)
{
	struct dpdk_port *port = (struct dpdk_port *)harp_port;
	struct port_rule *rule;
	int err;

	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || queue >= port->queues)
		return -EINVAL;
	port_lock_all();
	rule = rule_find(port, protocol, local_port);
	if (add) {
		err = rule_add(port, protocol, local_port, queue);
	} else if (rule) {
		rule_destroy(port, rule);
		*rule = port->rules[--port->rule_count];
		err = 0;
	} else {
		err = -ENOENT;
	}
	port_unlock_all();
	return err;
}

void port_rules_stop(struct dpdk_port *port)
{
	for (unsigned i = 0; i < port->rule_count; i++)
		rule_destroy(port, &port->rules[i]);
}

int port_rules_start(struct dpdk_port *port)
{
	int err = 0;

	for (unsigned i = 0; i < port->rule_count && !err; i++)
		err = rule_create(port, &port->rules[i]);
	return err;
}

void port_rules_flush(struct dpdk_port *port)
{
	port_rules_stop(port);
	free(port->rules);
	port->rules = NULL;
	port->rule_count = 0;
}
