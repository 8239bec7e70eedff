/* SPDX-License-Identifier: Apache-2.0 */
/* rails.c - the NICs of this process that a comm may use. */
#include "connect/ctx.h"

#include <string.h>

#include "device/device.h"
#include "process/config.h"

unsigned rails_allowed(void)
{
	switch (plugin_config()->rails) {
	case RAILS_OWN:
		return 1;
	case RAILS_BACKUP:
		return 2;
	case RAILS_ALL:
		break;
	}
	return RAILS_MAX;
}

/* The number of common leading components of two PCI paths: shared bridges. */
static unsigned pci_shared(const char *a, const char *b)
{
	unsigned shared = 0;

	for (size_t i = 0; a[i] && a[i] == b[i]; i++)
		shared += a[i] == '/';
	return shared;
}

/* How well a device fits dev; larger is better. */
static unsigned rails_score(const struct device *own, const struct device *device)
{
	unsigned score = pci_shared(own->pci_path, device->pci_path);

	if (score > 15)
		score = 15;
	if (own->numa_node == device->numa_node)
		score += 16;
	if (device->speed_mbps >= own->speed_mbps)
		score += 32;
	/* Prefer NICs without the default route. */
	if (!device->has_default_route)
		score += 64;
	return score;
}

unsigned rails_devices(int dev, int out[RAILS_MAX])
{
	const struct device *own = plugin_device(dev);
	unsigned count = 0, allowed = rails_allowed();
	bool taken[PLUGIN_DEVICES_MAX] = { false };

	out[count++] = dev;
	taken[dev] = true;
	while (count < allowed) {
		unsigned best_score = 0;
		int best = -1;

		for (int i = 0; i < plugin_device_count(); i++) {
			const struct device *device = plugin_device(i);
			unsigned score = rails_score(own, device);

			if (taken[i] || !strcmp(device->ifname, "lo") ||
			    (best >= 0 && score <= best_score))
				continue;
			best = i;
			best_score = score;
		}
		if (best < 0)
			break;
		taken[best] = true;
		out[count++] = best;
	}
	return count;
}

bool rails_are_multi_lane(int dev, bool harp)
{
	enum plugin_path path = plugin_config()->path;
	int devs[RAILS_MAX];
	unsigned count = rails_devices(dev, devs), lanes = 0;

	for (unsigned i = 0; i < count; i++) {
		if (harp && path != PATH_KERNEL)
			lanes += plugin_config()->lanes;
		if (!plugin_path_is_harp(path) && !plugin_device(devs[i])->netns)
			lanes += device_kernel_lanes(plugin_device(devs[i]));
	}
	return lanes > 1;
}
