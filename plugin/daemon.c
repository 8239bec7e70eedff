/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - whose queues this process uses: harpd's or its own.
 *
 * Where harpd's socket is, the environment alone can say; what else harp.toml says comes from there. harpd
 * is asked once, at the first init, for what it offers; leases are asked for when a device is first used
 * (harp_instance_open). A device that harpd does not offer is the process's own affair.
 */
#include "daemon.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Writer: plugin_daemon_load, at the first init. */
static struct harp_lease_device daemon_devices[HARP_LEASE_DEVICES_MAX];
static unsigned daemon_device_count;
static char daemon_socket[sizeof(((struct plugin_config *)0)->socket)]; /* empty: not used */
static char daemon_why_not[384];

uint64_t plugin_netns(void)
{
	struct stat netns;

	/* Of this thread: self is the thread that the process began with. */
	return stat("/proc/thread-self/ns/net", &netns) ? 0 : netns.st_ino;
}

static void daemon_report(const char *name)
{
	uint64_t own = plugin_netns();
	char line[512] = "";
	size_t used = 0;

	for (unsigned i = 0; i < daemon_device_count && used < sizeof(line); i++) {
		const struct harp_lease_device *device = &daemon_devices[i];

		used += (size_t)snprintf(
			line + used, sizeof(line) - used, "%s %s%s (%u of %u queues free%s)",
			i ? "," : "", device->ifname,
			device->flags & HARP_LEASE_DEVICE_DPDK ? " (DPDK port)"
			: device->netns == own                 ? ""
							       : " of another namespace",
			device->queues_free, device->queues,
			device->flags & (HARP_LEASE_DEVICE_UP | HARP_LEASE_DEVICE_DPDK) ? ""
											: ", down");
	}
	INFO("%s at %s leases%s", name, daemon_socket, daemon_device_count ? line : " nothing");
}

/* harpd's answer: its devices are kept, its settings read. */
static int daemon_take(const struct harp_daemon *daemon, const char *socket)
{
	const struct harp_lease_device *devices = harp_daemon_devices(daemon, &daemon_device_count);
	int rc = plugin_config_load(harp_daemon_settings(daemon));

	if (rc)
		return rc;
	if (plugin_config()->daemon == DAEMON_OFF) {
		daemon_device_count = 0;
		snprintf(daemon_why_not, sizeof(daemon_why_not), "harp.toml says daemon = \"off\"");
		return 0;
	}
	memcpy(daemon_devices, devices, daemon_device_count * sizeof(devices[0]));
	snprintf(daemon_socket, sizeof(daemon_socket), "%s", socket);
	daemon_why_not[0] = '\0';
	daemon_report(harp_daemon_name(daemon));
	return 0;
}

static int daemon_missing(int error)
{
	if (plugin_config()->daemon == DAEMON_REQUIRE) {
		WARN("HARP_DAEMON=require, but %s", daemon_why_not);
		return -EPROTONOSUPPORT;
	}
	/* No harpd is an ordinary state; one that cannot be spoken to is not. */
	if (error == -ENOENT)
		INFO("no harpd: %s", daemon_why_not);
	else
		WARN("harpd is not used: %s", daemon_why_not);
	return 0;
}

int plugin_daemon_load(void)
{
	char socket[sizeof(daemon_socket)], client[32];
	struct harp_daemon *daemon;
	int rc = plugin_config_load(NULL);

	daemon_device_count = 0;
	daemon_socket[0] = '\0';
	if (rc)
		return rc;
	if (plugin_config()->daemon == DAEMON_OFF) {
		snprintf(daemon_why_not, sizeof(daemon_why_not), "HARP_DAEMON=off");
		return 0;
	}
	snprintf(socket, sizeof(socket), "%s",
		 plugin_config()->socket[0] ? plugin_config()->socket : HARP_LEASE_SOCKET);
	snprintf(client, sizeof(client), "harp %s plugin", harp_version());
	rc = harp_daemon_connect(&daemon, socket, client, daemon_why_not, sizeof(daemon_why_not));
	if (rc)
		return daemon_missing(rc);
	rc = daemon_take(daemon, socket);
	harp_daemon_close(daemon);
	return rc;
}

const struct harp_lease_device *plugin_daemon_devices(unsigned *count)
{
	*count = daemon_device_count;
	return daemon_devices;
}

const char *plugin_daemon_socket(const struct device *device, char *why, size_t why_len)
{
	uint64_t netns = device->netns ? device->netns : plugin_netns();

	if (device->port)
		return NULL;
	for (unsigned i = 0; i < daemon_device_count; i++) {
		bool dpdk = daemon_devices[i].flags & HARP_LEASE_DEVICE_DPDK;

		if (!strcmp(daemon_devices[i].ifname, device->ifname) && dpdk == device->dpdk &&
		    (dpdk || daemon_devices[i].netns == netns))
			return daemon_socket;
	}
	if (daemon_socket[0])
		snprintf(why, why_len, "harpd does not lease %s", device->ifname);
	else
		snprintf(why, why_len, "%s", daemon_why_not);
	return NULL;
}
