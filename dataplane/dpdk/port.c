/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port.c - opens, starts, asks and closes Ethernet devices of DPDK's.
 *
 * One lock guards the list of ports and everything that changes one. What a NIC does between goes past it.
 */
#include <errno.h>
#include <pthread.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/eal.h"
#include "dpdk/eal_log.h"
#include "dpdk/gate.h"
#include "dpdk/port.h"
#include "dpdk/relay.h"

#define PORT_DRAIN_BURSTS 1024u /* more than any ring holds */

/* harp_dpdk.h's is opaque. */
static struct dpdk_port *port_of(const struct harp_dpdk_port *port)
{
	return (struct dpdk_port *)(uintptr_t)port;
}

static pthread_mutex_t port_lock = PTHREAD_MUTEX_INITIALIZER;

void port_lock_all(void)
{
	pthread_mutex_lock(&port_lock);
}

bool port_trylock_all(void)
{
	return pthread_mutex_trylock(&port_lock) == 0;
}

void port_unlock_all(void)
{
	pthread_mutex_unlock(&port_lock);
}

/* A call of the application's: it is not to end by what the driver does. */
static void port_enter(struct sigpipe *was)
{
	sigpipe_block(was);
	port_lock_all();
}

static void port_leave(const struct sigpipe *was)
{
	port_unlock_all();
	sigpipe_restore(was);
}

/* ---- finding a device -------------------------------------------------------------------------- */

static int port_name(struct dpdk_port *port, const char *device, const struct why *why)
{
	size_t len = strcspn(device, ",");

	if (len == 0 || len >= sizeof(port->name))
		return why_fail(why, -EINVAL,
				"is no device; name a PCI address or a virtual device with its "
				"arguments, like net_memif0,role=client");
	snprintf(port->name, sizeof(port->name), "%.*s", (int)len, device);
	return 0;
}

/* Drivers say -1 for anything: their words know better. */
static int port_probe_error(int err, const char *words)
{
	if (err != -1)
		return err;
	if (strcasestr(words, "permission denied") || strcasestr(words, "not permitted"))
		return -EPERM;
	if (strcasestr(words, "in use"))
		return -EBUSY;
	return strcasestr(words, "no such") ? -ENODEV : -EINVAL;
}

/* One sentence for what rte_dev_probe() refused. */
static int port_probe_failed(const char *device, int err, const struct why *why)
{
	char words[EAL_WORDS_BYTES];

	eal_log_words(words);
	if (err == -EEXIST)
		return why_fail(why, -EBUSY, "is open in this process already");
	if (err == -EFAULT || strstr(words, "failed to parse device") ||
	    strstr(words, "annot find"))
		return why_fail(
			why, -ENODEV,
			"DPDK has no such device or driver (%s); look at the name, and whether "
			"the driver's package is installed",
			words);
	err = port_probe_error(err, words);
	return why_fail(why, err, "can't be opened as \"%s\": %s", device,
			words[0] ? words : rte_strerror(-err));
}

struct port_probing {
	struct dpdk_port *port;
	const struct harp_dpdk_port_options *opt;
	const struct why *why;
	int err;
};

/* Makes DPDK find the device and its driver take it. */
static void port_probe_device(void *arg)
{
	struct port_probing *probing = arg;
	const struct harp_dpdk_port_options *opt = probing->opt;
	struct dpdk_port *port = probing->port;
	uint32_t mtu = opt->mtu_bytes ? opt->mtu_bytes : RTE_ETHER_MTU;
	uint32_t frame_size =
		opt->frame_size ? opt->frame_size : port_frame_size(NULL, port->traits, mtu);
	const char *asked = opt->device;
	char text[RELAY_TEXT_BYTES], device[RELAY_TEXT_BYTES];

	if (port->traits & DRIVER_DIALS) {
		probing->err = relay_open(&port->relay, opt->device, text, probing->why);
		if (probing->err)
			return;
		asked = text;
	}
	if (driver_device(asked, frame_size, device, sizeof(device)) < 0) {
		probing->err = why_fail(probing->why, -EINVAL, "has arguments that are too long");
		return;
	}
	eal_log_mark();
	probing->err = rte_dev_probe(device);
	if (probing->err)
		probing->err = port_probe_failed(opt->device, probing->err, probing->why);
}

static int port_probe(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
		      const struct why *why)
{
	struct port_probing probing = { .port = port, .opt = opt, .why = why };
	int err;

	if (rte_eth_dev_get_port_by_name(port->name, &port->id) == 0)
		return why_fail(why, -EBUSY, "is open in this process already");
	port->traits = driver_traits(opt->device);
	link_run(port, port_probe_device, &probing);
	if (probing.err)
		return probing.err;
	if (rte_eth_dev_get_port_by_name(port->name, &port->id) != 0)
		return why_fail(why, -ENODEV, "is no Ethernet device");
	err = rte_eth_dev_info_get(port->id, &port->info);
	if (err)
		return why_fail(why, err, "does not say what it is: %s", rte_strerror(-err));
	port->device = port->info.device;
	port->traits = driver_traits(port->info.driver_name);
	return 0;
}

/* What waits in it, in the rings of a net_ring for one, would be lost with it. */
static void port_drain(struct dpdk_port *port)
{
	struct rte_mbuf *packets[NIC_BURST];

	for (uint16_t q = 0; q < port->queues; q++)
		for (unsigned turns = 0; turns < PORT_DRAIN_BURSTS; turns++) {
			uint16_t n = rte_eth_rx_burst(port->id, q, packets, NIC_BURST);

			rte_pktmbuf_free_bulk(packets, n);
			if (n == 0)
				break;
		}
}

/* ---- opening ----------------------------------------------------------------------------------- */

static bool port_is_virtual(const struct dpdk_port *port)
{
	return strcmp(rte_bus_name(rte_dev_bus(port->device)), "vdev") == 0;
}

/* A virtual device's driver reads memory like everyone, if it reads it at all: those that hand packets on to other
 * devices (bonding, failsafe) or to another process (virtio_user) are no use, as nobody tells those where it is.
 * Another device is told. */
static int port_external(struct dpdk_port *port, uint16_t queue, const struct why *why)
{
	bool virtual = port_is_virtual(port);
	int err = external_create(&port->nics[queue].external, port->external_count,
				  virtual ? NULL : port->device, rte_eth_dev_socket_id(port->id));

	return err ? why_fail(why, err,
			      "no memory for %u external frames; give DPDK more "
			      "(HARP_DPDK_MEMORY_MIB)",
			      port->external_count)
		   : 0;
}

static int port_pools(struct dpdk_port *port, const struct why *why)
{
	int err = 0;

	if (port_is_virtual(port) && !(port->traits & DRIVER_READS))
		port->external_count = 0;
	port->nics = calloc(port->queues, sizeof(*port->nics));
	if (!port->nics)
		return why_fail(why, -ENOMEM, "out of memory");
	for (uint16_t q = 0; q < port->queues && !err; q++) {
		err = pool_create(&port->nics[q].pool,
				  &(struct pool_options){
					  .frame_size = port->frame_size,
					  .frame_count = port->frame_count,
					  .spare_count = port->spare_count,
					  .numa_node = rte_eth_dev_socket_id(port->id),
				  },
				  why);
		if (!err && port->external_count > 0)
			err = port_external(port, q, why);
		if (!err)
			nic_init(&port->nics[q], port, q);
	}
	return err;
}

static int port_start(struct dpdk_port *port, const struct why *why)
{
	char words[EAL_WORDS_BYTES];
	int err;

	eal_log_mark();
	err = rte_eth_dev_start(port->id);
	if (err) {
		eal_log_words(words);
		return why_fail(why, err, "can't be started: %s",
				words[0] ? words : rte_strerror(-err));
	}
	port->started = true;
	/* Neighbour discovery asks groups (RFC 4861); where a device can't be told, it takes everything. */
	rte_eth_allmulticast_enable(port->id);
	return 0;
}

static void port_stop(void *arg)
{
	struct dpdk_port *port = arg;

	if (port->started)
		rte_eth_dev_stop(port->id);
	rte_eth_dev_close(port->id);
}

/* What is left of a device whose driver took it, and of its memory. */
static void port_free(struct dpdk_port *port)
{
	link_remove(port);
	port_rules_flush(port);
	if (port->started && !(port->traits & DRIVER_DIALS))
		port_drain(port);
	relay_hold(port->relay);
	if (port->device) {
		link_run(port, port_stop, port);
		rte_dev_remove(port->device);
	}
	relay_close(port->relay);
	for (uint16_t q = 0; port->nics && q < port->queues; q++) {
		external_destroy(port->nics[q].external);
		pool_retire(port->nics[q].pool);
	}
	free(port->nics);
	free(port);
}

int port_open(struct harp_dpdk_port **out, const struct harp_dpdk_port_options *opt, char *why_text,
	      size_t why_len)
{
	struct why why = { .text = why_text, .size = why_len };
	struct dpdk_port *port;
	struct forked before;
	struct sigpipe was;
	int err;

	if (!opt || opt->size != sizeof(*opt) || !opt->device)
		return -EINVAL;
	why_about(&why, "%.*s", (int)strcspn(opt->device, ","), opt->device);
	err = eal_start(NULL, why_text, why_len);
	if (err)
		return err;
	port = calloc(1, sizeof(*port));
	if (!port)
		return why_fail(&why, -ENOMEM, "out of memory");
	port_enter(&was);
	pool_reap();
	forked_before(&before);
	err = port_name(port, opt->device, &why);
	if (!err)
		err = port_probe(port, opt, &why);
	if (!err)
		err = port_configure(port, opt, &why);
	if (!err)
		err = port_pools(port, &why);
	if (!err)
		err = port_queues_setup(port, &why);
	if (!err)
		err = port_start(port, &why);
	if (!err)
		err = interface_mtu(port, &why);
	if (!err && (port->traits & DRIVER_DIALS))
		link_add(port);
	if (err)
		port_free(port);
	forked_after(&before);
	port_leave(&was);
	if (!err)
		*out = (struct harp_dpdk_port *)port;
	return err;
}

/* ---- the NICs ---------------------------------------------------------------------------------- */

static bool port_others_taken(const struct dpdk_port *port, uint32_t queue)
{
	for (uint16_t q = 0; q < port->queues; q++)
		if (q != queue && __atomic_load_n(&port->nics[q].taken, __ATOMIC_ACQUIRE))
			return true;
	return false;
}

/* The driver holds frames, of the pool or external. */
static bool port_queue_out(const struct dpdk_port *port, uint32_t queue)
{
	const struct dpdk_nic *nic = &port->nics[queue];

	return pool_out(nic->pool) > 0 || (nic->external && external_out(nic->external));
}

/* What its driver holds of its queues' frames comes home, as they are set up anew. What is in flight is lost. */
static int port_restart(struct dpdk_port *port, const struct why *why)
{
	struct forked before;
	int err = 0;

	if (!gate_shut(port)) {
		gate_open(port);
		return why_fail(why, -EBUSY, "a thread has not left its driver for a second");
	}
	forked_before(&before);
	if (port->started) {
		port_rules_stop(port);
		port_drain(port);
		relay_hold(port->relay);
		rte_eth_dev_stop(port->id);
		err = port_queues_setup(port, why);
		if (!err)
			err = rte_eth_dev_start(port->id);
		if (!err)
			err = port_rules_start(port);
		relay_release(port->relay);
	}
	forked_after(&before);
	if (err)
		why_fail(why, err, "can't be started again: %s", rte_strerror(-err));
	gate_open(port);
	return err;
}

void port_flush(struct dpdk_nic *nic, enum port_flush how)
{
	const struct why nobody = { 0 }; /* a port that does not start again has no link */
	struct sigpipe was;

	port_enter(&was);
	if (how == PORT_FLUSH_PORT)
		(void)port_restart(nic->port, &nobody);
	else if (nic->port->started && rte_eth_dev_tx_queue_stop(nic->port_id, nic->queue) == 0)
		(void)rte_eth_dev_tx_queue_start(nic->port_id, nic->queue);
	port_leave(&was);
}

/* A queue that was in use, likewise. */
static int port_queue_again(struct dpdk_port *port, uint32_t queue, const struct why *why)
{
	int err;

	if (!port_queue_out(port, queue) || !port->nics[queue].used)
		return 0;
	if (port_others_taken(port, queue))
		return why_fail(
			why, -EBUSY,
			"its driver still holds frames of the queue's last user, while other queues "
			"are in use; close them all first");
	err = port_restart(port, why);
	if (!err && port_queue_out(port, queue))
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
		return why_fail(&why, -EINVAL, "the port was opened with %u queues", port->queues);
	port_enter(&was);
	nic = &port->nics[queue];
	err = eal_usable(&why);
	if (!err && __atomic_load_n(&nic->taken, __ATOMIC_ACQUIRE))
		err = why_fail(&why, -EBUSY, "is in use in this process");
	if (!err)
		err = port_queue_again(port, queue, &why);
	if (!err) {
		pool_reset(nic->pool);
		if (nic->external)
			external_reset(nic->external);
		nic_init(nic, port, (uint16_t)queue);
		nic->taken = true;
		nic->used = true;
		*out = &nic->nic;
	}
	port_leave(&was);
	return err;
}

/* ---- asking ------------------------------------------------------------------------------------ */

int port_info(const struct harp_dpdk_port *harp_port, struct harp_dpdk_info *out)
{
	const struct dpdk_port *port = port_of(harp_port);
	struct rte_eth_link link = { 0 };

	*out = (struct harp_dpdk_info){
		.huge_pages = eal_huge_pages(),
		.numa_node = rte_eth_dev_socket_id(port->id),
		.mtu_bytes = port->mtu_bytes,
		.queues = port->queues,
		.frame_size = port->frame_size,
		.frame_count = port->frame_count,
		.features = port->features,
		.driver_copies = (port->traits & DRIVER_COPIES) != 0,
	};
	snprintf(out->device, sizeof(out->device), "%s", port->name);
	snprintf(out->driver, sizeof(out->driver), "%s", port->info.driver_name);
	snprintf(out->dpdk, sizeof(out->dpdk), "%s", rte_version());
	if (strchr(port->name, ':'))
		snprintf(out->pci, sizeof(out->pci), "%.31s", port->name);
	memcpy(out->mac, port->mac.addr_bytes, sizeof(out->mac));
	if (__atomic_load_n(&port->started, __ATOMIC_RELAXED) &&
	    rte_eth_link_get_nowait(port->id, &link) == 0) {
		out->up = link.link_status == RTE_ETH_LINK_UP;
		out->speed_mbps = link.link_speed == UINT32_MAX ? 0 : link.link_speed;
	}
	return 0;
}

static int port_xstats_get(const struct dpdk_port *port, char (*names)[64], uint64_t *values,
			   unsigned max)
{
	int count = rte_eth_xstats_get_names(port->id, NULL, 0), fill;
	struct rte_eth_xstat_name *all_names;
	struct rte_eth_xstat *all;

	if (count <= 0 || max == 0)
		return count;
	all_names = calloc((size_t)count, sizeof(*all_names));
	all = calloc((size_t)count, sizeof(*all));
	fill = -ENOMEM;
	if (all_names && all &&
	    rte_eth_xstats_get_names(port->id, all_names, (unsigned)count) == count)
		fill = rte_eth_xstats_get(port->id, all, (unsigned)count);
	for (int i = 0; i < fill && i < count && (unsigned)i < max; i++) {
		if (all[i].id >= (uint64_t)count)
			continue;
		snprintf(names[i], 64, "%s", all_names[all[i].id].name);
		values[i] = all[i].value;
	}
	free(all_names);
	free(all);
	return fill < 0 ? fill : count;
}

int port_xstats(const struct harp_dpdk_port *harp_port, char (*names)[64], uint64_t *values,
		unsigned max)
{
	int count;

	/* The device is not stopped, or brought up anew, meanwhile. */
	pthread_mutex_lock(&port_lock);
	count = port_xstats_get(port_of(harp_port), names, values, max);
	pthread_mutex_unlock(&port_lock);
	return count;
}

void port_close(struct harp_dpdk_port *harp_port)
{
	struct dpdk_port *port = port_of(harp_port);
	struct sigpipe was;

	if (!port)
		return;
	port_enter(&was);
	port_free(port);
	forked_closed();
	port_leave(&was);
}
