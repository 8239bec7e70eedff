/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c - finds the device that a port's specification names, and attaches its driver. */
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

/* Drivers return -1 for any failure. Derives the error from their message. */
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

struct port_probe_args {
	struct dpdk_port *port;
	const struct harp_dpdk_port_options *opt;
	const struct why *why;
	int err;
};

static void port_probe_device(void *arg)
{
	struct port_probe_args *args = arg;
	const struct harp_dpdk_port_options *opt = args->opt;
	struct dpdk_port *port = args->port;
	uint32_t mtu = opt->mtu_bytes ? opt->mtu_bytes : RTE_ETHER_MTU;
	uint32_t frame_size = port_frame_size(NULL, port->traits, mtu);
	const char *text = opt->device;
	char device[MEMIF_TEXT_BYTES];

	if (port->traits & DRIVER_CONNECTS) {
		args->err = memif_parse(&port->memif, opt->device, args->why);
		if (!args->err)
			args->err = memif_prepare(&port->memif, args->why);
		if (args->err)
			return;
		text = port->memif.text;
	}
	if (driver_device(text, frame_size, device, sizeof(device)) < 0) {
		args->err = why_fail(args->why, -EINVAL, "has arguments that are too long");
		return;
	}
	eal_log_mark();
	args->err = rte_dev_probe(device);
	if (args->err)
		args->err = port_probe_failed(opt->device, args->err, args->why);
}

int port_probe(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
	       const struct why *why)
{
	struct port_probe_args args = { .port = port, .opt = opt, .why = why };
	int err;

	if (rte_eth_dev_get_port_by_name(port->name, &port->id) == 0)
		return why_fail(why, -EBUSY, "is already open in this process");
	port->traits = driver_traits(opt->device);
	err = link_run(port, port_probe_device, &args);
	if (err)
		return why_fail(why, err, "no event for DPDK's interrupt thread: %s",
				strerror(-err));
	if (args.err)
		return args.err;
	if (rte_eth_dev_get_port_by_name(port->name, &port->id) != 0)
		return why_fail(why, -ENODEV, "is not an Ethernet device");
	err = rte_eth_dev_info_get(port->id, &port->info);
	if (err)
		return why_fail(why, err, "reading its properties: %s", rte_strerror(-err));
	port->device = port->info.device;
	port->traits = driver_traits(port->info.driver_name);
	return 0;
}
