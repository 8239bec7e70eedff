/* SPDX-License-Identifier: Apache-2.0 */
/* queues.c - assigns a port's queues, and recovers frames of a queue's last user from the
 * driver. */
#include <errno.h>
#include <rte_errno.h>

#include "dpdk/quiesce.h"
#include "dpdk/port.h"

#define PORT_DRAIN_BURSTS 1024u /* more than any ring holds */

void port_drain(struct dpdk_port *port)
{
	struct rte_mbuf *packets[NIC_BURST];

	for (uint16_t q = 0; q < port->queues; q++)
		for (unsigned bursts = 0; bursts < PORT_DRAIN_BURSTS; bursts++) {
			uint16_t n = rte_eth_rx_burst(port->id, q, packets, NIC_BURST);

			rte_pktmbuf_free_bulk(packets, n);
			if (n == 0)
				break;
		}
}

static bool port_has_other_users(const struct dpdk_port *port, uint32_t queue)
{
	for (uint16_t q = 0; q < port->queues; q++)
		if (q != queue && __atomic_load_n(&port->nics[q].is_taken, __ATOMIC_ACQUIRE))
			return true;
	return false;
}

/* True if the driver holds pool or external frames. */
static bool port_queue_is_held(const struct dpdk_port *port, uint32_t queue)
{
	const struct dpdk_nic *nic = &port->nics[queue];

	return pool_count_held(nic->pool) > 0 || (nic->external && external_is_held(nic->external));
}

/* Recovers all frames by restarting the port; packets in flight are lost. */
static int port_restart(struct dpdk_port *port, const struct why *why)
{
	struct forked before;
	int err = 0;

	if (!quiesce_begin(port)) {
		quiesce_end(port);
		return why_fail(why, -EBUSY, "a thread has been in its driver for a second");
	}
	forked_before(&before);
	if (port->started) {
		port_drain(port);
		link_stop(port, false);
		err = port_queues_setup(port, why);
		if (!err)
			err = link_start(port);
	}
	forked_after(&before);
	if (err)
		why_fail(why, err, "cannot be restarted: %s", rte_strerror(-err));
	quiesce_end(port);
	return err;
}

void port_flush(struct dpdk_nic *nic, enum port_flush how)
{
	/* Discards the reason of a failure: a port that does not restart has no link. */
	const struct why no_why = { 0 };
	struct sigpipe was;

	port_enter(&was);
	if (how == PORT_FLUSH_PORT)
		(void)port_restart(nic->port, &no_why);
	else if (nic->port->started && rte_eth_dev_tx_queue_stop(nic->port_id, nic->queue) == 0)
		(void)rte_eth_dev_tx_queue_start(nic->port_id, nic->queue);
	port_leave(&was);
}

/* Recovers the frames of one queue by restarting it. */
static int port_queue_restart(struct dpdk_port *port, uint32_t queue, const struct why *why)
{
	int err;

	if (!port_queue_is_held(port, queue) || !port->nics[queue].was_used)
		return 0;
	if (port_has_other_users(port, queue))
		return why_fail(
			why, -EBUSY,
			"its driver still holds frames of the queue's last user, and other queues "
			"are in use; close them all first");
	err = port_restart(port, why);
	if (!err && port_queue_is_held(port, queue))
		return why_fail(why, -EBUSY,
				"its driver keeps frames of the queue's last user; close the port");
	return err;
}

int port_nic(struct harp_dpdk_port *harp_port, uint32_t queue, struct harp_nic **out,
	     char *why_text, size_t why_len)
{
	struct why why = { .text = why_text, .size = why_len };
	struct dpdk_port *port = port_of(harp_port);
	struct dpdk_nic *nic;
	struct sigpipe was;
	int err = 0;

	why_about(&why, "%s queue %u", port->name, queue);
	if (queue >= port->queues)
		return why_fail(&why, -EINVAL,
				"no such queue; the port has %u queues, numbered from 0",
				port->queues);
	port_enter(&was);
	nic = &port->nics[queue];
	err = eal_usable(&why);
	if (!err && __atomic_load_n(&nic->is_taken, __ATOMIC_ACQUIRE))
		err = why_fail(&why, -EBUSY, "in use by this process");
	if (!err)
		err = port_queue_restart(port, queue, &why);
	if (!err) {
		pool_reset(nic->pool);
		if (nic->external)
			external_reset(nic->external);
		nic_init(nic, port, (uint16_t)queue);
		nic->is_taken = true;
		nic->was_used = true;
		*out = &nic->nic;
	}
	port_leave(&was);
	return err;
}
