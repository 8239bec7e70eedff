/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c - finds the device that a port's text names, and attaches its driver. */
#include <errno.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <stdio.h>
#include <string.h>

#include "dpdk/eal_log.h"
#include "dpdk/port.h"

int port_name(struct dpdk_port *port, const char *device, const struct why *why)
{
	size_t len = strcspn(device, ",");

	if (len == 0 || len >= sizeof(port->name))
		return why_fail(why, -EINVAL,
				"is not a device; name a PCI address or a virtual device with its "
				"arguments, such as net_memif0,role=client");
	snprintf(port->name, sizeof(port->name), "%.*s", (int)len, device);
	return 0;
}

/* Drivers return -1 for any failure; their messages have the reason. */
static int port_probe_error(int err, const char *text)
{
	if (err != -1)
		return err;
	if (strcasestr(text, "permission denied") || strcasestr(text, "not permitted"))
		return -EPERM;
	if (strcasestr(text, "in use"))
		return -EBUSY;
	return strcasestr(text, "no such") ? -ENODEV : -EINVAL;
}

/* Formats a failure of rte_dev_probe(). */
static int port_probe_failed(const char *device, int err, const struct why *why)
{
	char text[EAL_TEXT_BYTES];

	eal_log_message(text);
	if (err == -EEXIST)
		return why_fail(why, -EBUSY, "is already open in this process");
	if (err == -EFAULT || strstr(text, "failed to parse device") || strstr(text, "annot find"))
		return why_fail(
			why, -ENODEV,
			"DPDK has no such device or driver (%s); check the name, and whether "
			"the driver's package is installed",
			text);
	err = port_probe_error(err, text);
	return why_fail(why, err, "cannot be opened as \"%s\": %s", device,
			text[0] ? text : rte_strerror(-err));
}

struct port_probing {
	struct dpdk_port *port;
	const struct harp_dpdk_port_options *opt;
	const struct why *why;
	int err;
};

/* Probes the device. */
static void port_probe_device(void *arg)
{
	struct port_probing *probing = arg;
	const struct harp_dpdk_port_options *opt = probing->opt;
	struct dpdk_port *port = probing->port;
	uint32_t mtu = opt->mtu_bytes ? opt->mtu_bytes : RTE_ETHER_MTU;
	uint32_t frame_size = port_frame_size(NULL, port->traits, mtu);
	const char *asked = opt->device;
	char device[MEMIF_TEXT_BYTES];

	if (port->traits & DRIVER_CONNECTS) {
		probing->err = memif_parse(&port->memif, opt->device, probing->why);
		if (!probing->err)
			probing->err = memif_prepare(&port->memif, probing->why);
		if (probing->err)
			return;
		asked = port->memif.text;
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

int port_probe(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
	       const struct why *why)
{
	struct port_probing probing = { .port = port, .opt = opt, .why = why };
	int err;

	if (rte_eth_dev_get_port_by_name(port->name, &port->id) == 0)
		return why_fail(why, -EBUSY, "is already open in this process");
	port->traits = driver_traits(opt->device);
	err = link_run(port, port_probe_device, &probing);
	if (err)
		return why_fail(why, err, "no event for DPDK's interrupt thread: %s",
				strerror(-err));
	if (probing.err)
		return probing.err;
	if (rte_eth_dev_get_port_by_name(port->name, &port->id) != 0)
		return why_fail(why, -ENODEV, "is not an Ethernet device");
	err = rte_eth_dev_info_get(port->id, &port->info);
	if (err)
		return why_fail(why, err, "reading its properties: %s", rte_strerror(-err));
	port->device = port->info.device;
	port->traits = driver_traits(port->info.driver_name);
	return 0;
}
