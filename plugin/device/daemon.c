/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - harpd's devices and settings, as seen by a job.
 *
 * Theory of operation
 *
 * The first init queries harpd for its devices and for harp.toml's settings. A lease is requested
 * when a device is first used (harp_instance_open()). The process opens other devices itself.
 *
 * harp.toml may require encryption, and that must not depend on harpd's health. So:
 *
 * - With HARP_DAEMON=off, nothing is leased, but the settings are still queried.
 * - If harpd's socket exists and harpd does not answer, init fails.
 * - Without a socket, the plugin reads /etc/harp/harp.toml itself (keyfile.h).
 *
 * HARP_ENCRYPT=aes-256-gcm is the strongest value, which harpd cannot raise: with it, a harpd that
 * does not answer is a warning.
 */
#include "device/daemon.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "harp_config.h"
#include "process/keyfile.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

/* Writer: plugin_daemon_load, at the first init. */
static struct harp_lease_device daemon_devices[HARP_LEASE_DEVICES_MAX];
static unsigned daemon_device_count;
static char daemon_socket[sizeof(((struct plugin_config *)0)->socket)]; /* empty: not used */
static char daemon_why_not[384];

uint64_t plugin_netns(void)
{
	struct stat netns;

	/* thread-self: /proc/self is the process's first thread. */
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

/* Stores harpd's answer: its settings, and its devices unless HARP_DAEMON=off. */
static int daemon_store(const struct harp_daemon *daemon, const char *socket)
{
	const struct harp_lease_device *devices;
	unsigned count;
	int rc = plugin_config_load(harp_daemon_settings(daemon));

	if (rc)
		return rc;
	if (plugin_config()->daemon == DAEMON_OFF) {
		snprintf(daemon_why_not, sizeof(daemon_why_not), "HARP_DAEMON=off");
		return 0;
	}
	devices = harp_daemon_devices(daemon, &count);
	memcpy(daemon_devices, devices, count * sizeof(devices[0]));
	daemon_device_count = count;
	snprintf(daemon_socket, sizeof(daemon_socket), "%s", socket);
	daemon_why_not[0] = '\0';
	daemon_report(harp_daemon_name(daemon));
	return 0;
}

/* No harpd is running: the plugin checks harp.toml for requirements itself. */
static int daemon_absent(void)
{
	unsigned line;
	char why[256];
	int rc = 0;

	INFO("no harpd: %s", daemon_why_not);
	if (plugin_config()->daemon == DAEMON_OFF)
		snprintf(daemon_why_not, sizeof(daemon_why_not), "HARP_DAEMON=off");
	if (plugin_config()->encrypt != ENCRYPT_AES_256_GCM)
		rc = toml_scan_encrypt(HARP_CONFIG_FILE, &line, why, sizeof(why));
	if (rc < 0) {
		WARN("%s: %s; it may require encryption: make it readable, start harpd, or "
		     "set HARP_ENCRYPT=aes-256-gcm",
		     HARP_CONFIG_FILE, why);
		return rc;
	}
	if (!rc)
		return 0;
	INFO("%s:%u: encryption is required", HARP_CONFIG_FILE, line);
	return plugin_config_load("HARP_ENCRYPT=aes-256-gcm\n");
}

static int daemon_missing(int error)
{
	if (plugin_config()->daemon == DAEMON_REQUIRE) {
		WARN("HARP_DAEMON=require, but %s", daemon_why_not);
		return -EPROTONOSUPPORT;
	}
	if (error == -ENOENT)
		return daemon_absent();
	if (plugin_config()->encrypt == ENCRYPT_AES_256_GCM) {
		WARN("harpd is not used: %s", daemon_why_not);
		return 0;
	}
	WARN("cannot learn from harpd whether harp.toml requires encryption "
	     "(HARP_ENCRYPT=aes-256-gcm needs no answer): %s",
	     daemon_why_not);
	return -EIO;
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
	snprintf(socket, sizeof(socket), "%s",
		 plugin_config()->socket[0] ? plugin_config()->socket : HARP_LEASE_SOCKET);
	snprintf(client, sizeof(client), "harp %s plugin", harp_version());
	rc = harp_daemon_connect(&daemon, socket, client, daemon_why_not, sizeof(daemon_why_not));
	if (rc)
		return daemon_missing(rc);
	rc = daemon_store(daemon, socket);
	harp_daemon_close(daemon);
	return rc;
}

const struct harp_lease_device *plugin_daemon_devices(unsigned *count)
{
	*count = daemon_device_count;
	return daemon_devices;
}

static const struct harp_lease_device *daemon_find(const struct device *device)
{
	uint64_t netns = device->netns ? device->netns : plugin_netns();

	for (unsigned i = 0; i < daemon_device_count; i++) {
		bool dpdk = daemon_devices[i].flags & HARP_LEASE_DEVICE_DPDK;

		if (!strcmp(daemon_devices[i].ifname, device->ifname) && dpdk == device->dpdk &&
		    (dpdk || daemon_devices[i].netns == netns))
			return &daemon_devices[i];
	}
	return NULL;
}

bool plugin_daemon_is_generic(const struct device *device)
{
	const struct harp_lease_device *leased = daemon_find(device);

	return leased && (leased->flags & HARP_LEASE_DEVICE_GENERIC);
}

const char *plugin_daemon_socket(const struct device *device, char *why, size_t why_len)
{
	if (device->port)
		return NULL;
	if (daemon_find(device))
		return daemon_socket;
	if (daemon_socket[0])
		snprintf(why, why_len, "harpd does not lease %s", device->ifname);
	else
		snprintf(why, why_len, "%s", daemon_why_not);
	return NULL;
}
