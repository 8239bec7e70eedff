/* SPDX-License-Identifier: Apache-2.0 */
/* rails.c - pairs the NICs of this process with those of a peer. */
#include "connect/rails.h"

#include <string.h>

#include "comm/comm.h"
#include "device/device.h"
#include "process/config.h"

static unsigned rails_allowed(void)
{
	switch (plugin_config()->rails) {
	case RAILS_OWN:
		return 1;
	case RAILS_BACKUP:
		return 2;
	case RAILS_ALL:
		break;
	}
	return RAIL_PAIRS_MAX;
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

unsigned rails_devices(int dev, int out[RAIL_PAIRS_MAX])
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

unsigned rails_lanes(int dev, bool harp)
{
	enum plugin_path path = plugin_config()->path;
	int devs[RAIL_PAIRS_MAX];
	unsigned count = rails_devices(dev, devs), lanes = 0;

	for (unsigned i = 0; i < count; i++) {
		if (harp && path != PATH_KERNEL)
			lanes += plugin_config()->lanes;
		if (!plugin_path_is_harp(path) && !plugin_device(devs[i])->netns)
			lanes += device_kernel_lanes(plugin_device(devs[i]));
	}
	if (!lanes)
		return 1;
	return lanes < COMM_LANES_MAX ? lanes : COMM_LANES_MAX;
}

uint8_t rails_lanes_taken(int dev)
{
	if (plugin_config()->path != PATH_AUTO && rails_lanes(dev, true) == 1)
		return 1;
	return COMM_LANES_MAX;
}

static bool pair_uses(const struct rail_pair *pairs, unsigned count, int dev, unsigned nic,
		      bool both)
{
	for (unsigned i = 0; i < count; i++) {
		bool own = pairs[i].dev == dev, theirs = pairs[i].nic == nic;

		if (both ? own && theirs : own || theirs)
			return true;
	}
	return false;
}

/* The next pair: of NICs that no other pair uses, so that one failure does not affect both. The
 * second pair may reuse a NIC if one side has no other. */
static bool rails_next(const int *devs, unsigned dev_count, const struct rails *peer,
		       rails_reaches *reaches, const struct rail_pair *pairs, unsigned count,
		       struct rail_pair *out)
{
	for (int shared = 0; shared < (count == 1 ? 2 : 1); shared++) {
		for (unsigned d = 0; d < dev_count; d++) {
			for (unsigned i = 0; i < peer->count; i++) {
				const struct rail_entry *entry = &peer->entry[i];

				if (pair_uses(pairs, count, devs[d], entry->nic, shared) ||
				    !reaches(devs[d], entry))
					continue;
				*out = (struct rail_pair){ .dev = devs[d], .nic = entry->nic };
				return true;
			}
		}
	}
	return false;
}

unsigned rails_pair(const int *devs, unsigned dev_count, const struct rails *peer,
		    rails_reaches *reaches, struct rail_pair out[RAIL_PAIRS_MAX])
{
	unsigned count = 0, allowed = rails_allowed();

	out[count++] = (struct rail_pair){ .dev = devs[0] };
	while (count < allowed &&
	       rails_next(devs, dev_count, peer, reaches, out, count, &out[count])) {
		out[count].backup = plugin_config()->rails == RAILS_BACKUP;
		count++;
	}
	return count;
}
