/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flow_rules.c - flow rules, over a double of a device that has some, has none, or is full.
 *
 * The device has two rules for each of HARP's, one for each family, and never one of them alone.
 */
#include <errno.h>
#include <netinet/in.h>
#include <rte_byteorder.h>
#include <rte_flow.h>

#include "check.h"
#include "dpdk/port.h"

#define FLOWS 64u
#define PORTS 8u
#define FIRST_PORT 61000u
#define QUEUES 4u

/* What the device has. */
static struct rte_flow {
	bool there, v6;
	uint8_t protocol;
	uint16_t local_port, queue;
} flows[FLOWS];

static unsigned calls_until_refused; /* of validate() and create(); 0: nothing is refused */
static int refusal;
static unsigned locked;
static struct dpdk_port port = { .id = 7, .queues = QUEUES };

static struct harp_dpdk_port *opaque(void)
{
	return (struct harp_dpdk_port *)&port;
}

static bool refused(void)
{
	return calls_until_refused && --calls_until_refused == 0;
}

/* ---- DPDK's, and port.c's ---------------------------------------------------------------------- */

static struct rte_flow flow_read(const struct rte_flow_attr *attr, const struct rte_flow_item *item,
				 const struct rte_flow_action *action)
{
	struct rte_flow flow = { .there = true };
	const struct rte_flow_action_queue *to = action[0].conf;

	CHECK(attr->ingress && !attr->egress && !attr->transfer);
	CHECK_EQ(item[0].type, RTE_FLOW_ITEM_TYPE_ETH);
	CHECK(item[1].type == RTE_FLOW_ITEM_TYPE_IPV4 || item[1].type == RTE_FLOW_ITEM_TYPE_IPV6);
	flow.v6 = item[1].type == RTE_FLOW_ITEM_TYPE_IPV6;
	CHECK(!item[0].spec && !item[1].spec); /* any address */
	if (item[2].type == RTE_FLOW_ITEM_TYPE_TCP) {
		const struct rte_flow_item_tcp *tcp = item[2].spec, *mask = item[2].mask;
		const struct rte_flow_item_tcp only = { .hdr.dst_port = UINT16_MAX };

		flow.protocol = IPPROTO_TCP;
		flow.local_port = rte_be_to_cpu_16(tcp->hdr.dst_port);
		CHECK_MEM(mask, &only, sizeof(only));
	} else {
		const struct rte_flow_item_udp *udp = item[2].spec, *mask = item[2].mask;
		const struct rte_flow_item_udp only = { .hdr.dst_port = UINT16_MAX };

		CHECK_EQ(item[2].type, RTE_FLOW_ITEM_TYPE_UDP);
		flow.protocol = IPPROTO_UDP;
		flow.local_port = rte_be_to_cpu_16(udp->hdr.dst_port);
		CHECK_MEM(mask, &only, sizeof(only));
	}
	CHECK_EQ(item[3].type, RTE_FLOW_ITEM_TYPE_END);
	CHECK_EQ(action[0].type, RTE_FLOW_ACTION_TYPE_QUEUE);
	CHECK_EQ(action[1].type, RTE_FLOW_ACTION_TYPE_END);
	CHECK(to->index < QUEUES);
	flow.queue = to->index;
	return flow;
}

int rte_flow_validate(uint16_t id, const struct rte_flow_attr *attr,
		      const struct rte_flow_item pattern[], const struct rte_flow_action actions[],
		      struct rte_flow_error *error)
{
	CHECK_EQ(id, port.id);
	CHECK(error);
	(void)flow_read(attr, pattern, actions);
	return refused() ? refusal : 0;
}

struct rte_flow *rte_flow_create(uint16_t id, const struct rte_flow_attr *attr,
				 const struct rte_flow_item pattern[],
				 const struct rte_flow_action actions[],
				 struct rte_flow_error *error)
{
	unsigned i = 0;

	CHECK_EQ(id, port.id);
	CHECK(error);
	if (refused())
		return NULL;
	while (i < FLOWS && flows[i].there)
		i++;
	CHECK(i < FLOWS);
	flows[i] = flow_read(attr, pattern, actions);
	return &flows[i];
}

int rte_flow_destroy(uint16_t id, struct rte_flow *flow, struct rte_flow_error *error)
{
	CHECK_EQ(id, port.id);
	CHECK(error);
	CHECK(flow->there);
	flow->there = false;
	return 0;
}

void port_lock_all(void)
{
	CHECK_EQ(locked++, 0);
}

void port_unlock_all(void)
{
	CHECK_EQ(--locked, 0);
}

static unsigned device_has(bool v6, uint8_t protocol, uint16_t local_port, uint16_t queue)
{
	unsigned count = 0;

	for (unsigned i = 0; i < FLOWS; i++)
		count += flows[i].there && flows[i].v6 == v6 && flows[i].protocol == protocol &&
			 flows[i].local_port == local_port && flows[i].queue == queue;
	return count;
}

static unsigned device_count(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < FLOWS; i++)
		count += flows[i].there;
	CHECK_EQ(locked, 0);
	return count;
}

/* ---- the tests --------------------------------------------------------------------------------- */

TEST(a_rule_exists_for_each_family)
{
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 3, true), 0);
	CHECK_EQ(device_has(false, IPPROTO_TCP, 61000, 3), 1);
	CHECK_EQ(device_has(true, IPPROTO_TCP, 61000, 3), 1);
	CHECK_EQ(device_count(), 2);
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 1, true), -EEXIST);
	CHECK_EQ(port_steer(opaque(), IPPROTO_UDP, 61000, 1, true), 0); /* another protocol's */
	CHECK_EQ(device_count(), 4);
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 0, false), 0);
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 0, false), -ENOENT);
	CHECK_EQ(port_steer(opaque(), IPPROTO_UDP, 61001, 0, false), -ENOENT);
	CHECK_EQ(port_steer(opaque(), IPPROTO_UDP, 61000, 0, false), 0);
	CHECK_EQ(device_count(), 0);
	CHECK_EQ(port_steer(opaque(), IPPROTO_ICMP, 61000, 0, true), -EINVAL);
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, QUEUES, true), -EINVAL);
	CHECK_EQ(device_count(), 0);
}

/* Whichever of the four calls the device refuses, no rule stays, and its answer is returned. */
TEST(a_refused_rule_leaves_none)
{
	static const struct {
		int device, returned;
	} answers[] = {
		{ -ENOSYS, -ENOTSUP },
		{ -EINVAL, -ENOTSUP },
		{ -EOPNOTSUPP, -ENOTSUP },
		{ -ENOSPC, -ENOSPC }, /* it has rules, and no room */
	};

	for (unsigned i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		for (unsigned call = 1; call <= 4; call++) {
			bool validates = call & 1;

			refusal = answers[i].device;
			calls_until_refused = call;
			CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 0, true),
				 validates ? answers[i].returned : -EIO);
			CHECK_EQ(calls_until_refused, 0);
			CHECK_EQ(device_count(), 0);
		}
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 0, true), 0);
	CHECK_EQ(port_steer(opaque(), IPPROTO_TCP, 61000, 0, false), 0);
}

/* Local port FIRST_PORT + i: TCP's and UDP's in turn, each to another queue. */
static uint8_t rule_protocol(unsigned i)
{
	return i % 2 ? IPPROTO_UDP : IPPROTO_TCP;
}

static void check_rules(unsigned count)
{
	CHECK_EQ(device_count(), 2 * count);
	for (unsigned i = 0; i < count; i++)
		for (unsigned v6 = 0; v6 < 2; v6++)
			CHECK_EQ(device_has(v6, rule_protocol(i), (uint16_t)(FIRST_PORT + i),
					    (uint16_t)(i % QUEUES)),
				 1);
}

/* A stopped device has none; started again it has them all, or returns why not. */
TEST(a_started_device_has_its_rules_again)
{
	for (unsigned i = 0; i < PORTS; i++)
		CHECK_EQ(port_steer(opaque(), rule_protocol(i), (uint16_t)(FIRST_PORT + i),
				    i % QUEUES, true),
			 0);
	check_rules(PORTS);
	port_rules_stop(&port);
	CHECK_EQ(device_count(), 0);
	CHECK_EQ(port_rules_start(&port), 0);
	check_rules(PORTS);
	port_rules_stop(&port);
	refusal = -ENOSPC;
	calls_until_refused = 11; /* the third rule's second */
	CHECK_EQ(port_rules_start(&port), -ENOSPC);
	CHECK_EQ(device_count(), 4);
	/* A rule that the device does not have is removed like any other. */
	CHECK_EQ(port_steer(opaque(), rule_protocol(PORTS - 1), FIRST_PORT + PORTS - 1, 0, false),
		 0);
	port_rules_stop(&port);
	CHECK_EQ(port_rules_start(&port), 0);
	check_rules(PORTS - 1);
	port_rules_flush(&port);
	CHECK_EQ(device_count(), 0);
	CHECK(!port.rules && port.rule_count == 0);
}
