/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port.c - opens and closes DPDK's Ethernet devices.
 *
 * One lock protects the list of ports and all changes of a port. A NIC's data path does not take
 * it.
 */
#include <errno.h>
#include <pthread.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dpdk/eal_log.h"
#include "dpdk/port.h"

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

/* SIGPIPE from drivers: virtio_user writes to a closed peer without MSG_NOSIGNAL. */
static sigset_t sigpipe_only(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	return set;
}

static void sigpipe_block(struct sigpipe *was)
{
	const sigset_t only = sigpipe_only();
	sigset_t pending;

	sigpending(&pending);
	was->pending = sigismember(&pending, SIGPIPE) == 1;
	pthread_sigmask(SIG_BLOCK, &only, &was->mask);
}

static void sigpipe_restore(const struct sigpipe *was)
{
	const sigset_t only = sigpipe_only();
	const struct timespec now = { 0 };

	if (!was->pending) /* otherwise the signal was pending before the driver's call */
		sigtimedwait(&only, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &was->mask, NULL);
}

void port_enter(struct sigpipe *was)
{
	sigpipe_block(was);
	port_lock_all();
}

void port_leave(const struct sigpipe *was)
{
	port_unlock_all();
	sigpipe_restore(was);
}

/* ---- opening ---- */

static bool port_is_virtual(const struct dpdk_port *port)
{
	return strcmp(rte_bus_name(rte_dev_bus(port->device)), "vdev") == 0;
}

/* Devices with DMA need mapped memory. Drivers of virtual devices with DRIVER_READS read memory
 * with the CPU. Other virtual devices pass packets to other devices (bonding, failsafe) or to
 * another process (virtio_user), for which no code maps the memory; port_pools() excludes them. */
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
	char text[EAL_TEXT_BYTES];
	int err;

	eal_log_mark();
	err = link_start(port);
	if (err) {
		eal_log_message(text);
		return why_fail(why, err, "cannot be started: %s",
				text[0] ? text : rte_strerror(-err));
	}
	/* Neighbor discovery uses multicast (RFC 4861). Devices without multicast filters receive
	 * everything. */
	rte_eth_allmulticast_enable(port->id);
	return 0;
}

/* Frees a probed device and the port's memory. */
static void port_free(struct dpdk_port *port)
{
	link_remove(port);
	if (port->started && !(port->traits & DRIVER_CONNECTS))
		port_drain(port);
	if (port->device) {
		link_stop(port, true);
		rte_dev_remove(port->device);
	}
	for (uint16_t q = 0; port->nics && q < port->queues; q++) {
		external_retire(port->nics[q].external);
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
	external_reap();
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
	if (!err && (port->traits & DRIVER_CONNECTS))
		link_add(port);
	if (err)
		port_free(port);
	forked_after(&before);
	port_leave(&was);
	if (!err)
		*out = (struct harp_dpdk_port *)port;
	return err;
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
	eal_log_flush();
	port_leave(&was);
}

/* ---- the library's only symbol ---- */

static const struct harp_dpdk_api api = {
	.version = HARP_DPDK_VERSION,
	.start = eal_start,
	.port_open = port_open,
	.port_nic = port_nic,
	.port_info = port_info,
	.port_rss = port_rss,
	.port_xstats = port_xstats,
	.port_close = port_close,
	.guard = link_guard,
	.run_in_intr = link_run_in_intr,
	.memif_probe = memif_handle_probe,
	.memif_ready = memif_handle_ready,
	.memif_leave = memif_handle_leave,
	.memif_close = memif_handle_close,
};

const struct harp_dpdk_api *harp_dpdk_api(void)
{
	return &api;
}
