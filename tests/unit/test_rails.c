/* SPDX-License-Identifier: Apache-2.0 */
/* test_rails.c - which NICs of ours go with which of the peer's, and how many lanes that makes. */
#include <stdio.h>

#include "device/device.h"
#include "process/config.h"
#include "check.h"
#include "wire/preamble.h"
#include "connect/rails.h"
#include "process/config.h"

static struct plugin_config config = { .lanes = 1, .rails = RAILS_BACKUP };
static struct device devices[5];
static int device_count;
static unsigned kernel_lanes = 1;

const struct plugin_config *plugin_config(void)
{
	return &config;
}

int plugin_device_count(void)
{
	return device_count;
}

const struct device *plugin_device(int dev)
{
	return dev >= 0 && dev < device_count ? &devices[dev] : NULL;
}

unsigned device_kernel_lanes(const struct device *device)
{
	return kernel_lanes;
}

static void add_device(uint32_t speed_mbps, int numa_node, const char *pci_path)
{
	struct device *device = &devices[device_count];

	*device = (struct device){ .speed_mbps = speed_mbps, .numa_node = numa_node };
	snprintf(device->ifname, sizeof(device->ifname), "eth%d", device_count++);
	snprintf(device->pci_path, sizeof(device->pci_path), "%s", pci_path);
}

static void peer_nics(struct rails *rails, unsigned count)
{
	memset(rails, 0, sizeof(*rails));
	for (; rails->count < count; rails->count++)
		rails->entry[rails->count] = (struct rail_entry){
			.addr = harp_addr_v4(10, 0, (uint8_t)rails->count, 1),
			.nic = (uint8_t)rails->count,
			.kernel_port = 40000,
		};
}

/* Each of our NICs reaches the subnet of its number. */
static bool same_number(void *ctx, int dev, const struct rail_entry *entry)
{
	return dev == entry->nic;
}

static bool every(void *ctx, int dev, const struct rail_entry *entry)
{
	return true;
}

static bool nobody(void *ctx, int dev, const struct rail_entry *entry)
{
	return false;
}

TEST(nearest)
{
	int out[RAIL_PAIRS_MAX];

	device_count = 0;
	add_device(100000, 0, "pci0000:00/0000:00:01.0/0000:01:00.0");
	add_device(100000, 1, "pci0000:80/0000:80:01.0/0000:81:00.0");
	add_device(10000, 0, "pci0000:00/0000:00:02.0/0000:02:00.0");
	add_device(100000, 0, "pci0000:00/0000:00:01.0/0000:01:00.1");
	config.rails = RAILS_OWN;
	CHECK_EQ(rails_devices(1, out), 1);
	CHECK_EQ(out[0], 1);
	config.rails = RAILS_BACKUP;
	CHECK_EQ(rails_devices(0, out), 2);
	CHECK_EQ(out[1], 3); /* as fast, same node, same bridge */
	config.rails = RAILS_ALL;
	CHECK_EQ(rails_devices(0, out), 4);
	CHECK_EQ(out[2], 1); /* as fast beats near */
	CHECK_EQ(out[3], 2);
	devices[3].has_default_route = true;
	CHECK_EQ(rails_devices(0, out), 4);
	CHECK_EQ(out[3], 3); /* the way to the rest of the world last */
	snprintf(devices[1].ifname, sizeof(devices[1].ifname), "lo");
	CHECK_EQ(rails_devices(0, out), 3);
}

TEST(pairs)
{
	static const int devs[4] = { 0, 1, 2, 3 };
	struct rail_pair out[RAIL_PAIRS_MAX];
	struct rails peer;

	config.rails = RAILS_OWN;
	peer_nics(&peer, 4);
	CHECK_EQ(rails_pair(devs, 1, &peer, every, NULL, out), 1);
	config.rails = RAILS_BACKUP;
	CHECK_EQ(rails_pair(devs, 2, &peer, same_number, NULL, out), 2);
	CHECK(!out[0].backup && out[1].backup);
	CHECK(out[1].dev == 1 && out[1].nic == 1);
	config.rails = RAILS_ALL;
	CHECK_EQ(rails_pair(devs, 4, &peer, same_number, NULL, out), 4);
	for (unsigned i = 0; i < 4; i++)
		CHECK(out[i].dev == (int)i && out[i].nic == i && !out[i].backup);
	/* One NIC here, two there: what fails over there is spared; and the other way round. */
	CHECK_EQ(rails_pair(devs, 1, &peer, every, NULL, out), 2);
	CHECK(out[1].dev == 0 && out[1].nic == 1);
	peer_nics(&peer, 1);
	CHECK_EQ(rails_pair(devs, 2, &peer, every, NULL, out), 2);
	CHECK(out[1].dev == 1 && out[1].nic == 0);
	/* No way between the others; nothing told. */
	peer_nics(&peer, 4);
	CHECK_EQ(rails_pair(devs, 4, &peer, nobody, NULL, out), 1);
	peer_nics(&peer, 0);
	CHECK_EQ(rails_pair(devs, 4, &peer, every, NULL, out), 1);
}

TEST(lanes)
{
	device_count = 0;
	add_device(100000, 0, "");
	config = (struct plugin_config){ .lanes = 2, .rails = RAILS_BACKUP };
	kernel_lanes = 4;
	CHECK_EQ(rails_lanes(0, true), 6);
	CHECK_EQ(rails_lanes(0, false), 4);
	config.path = PATH_XDP;
	CHECK_EQ(rails_lanes(0, true), 2);
	CHECK_EQ(rails_lanes_taken(0), PREAMBLE_LANES_MAX);
	config.path = PATH_DPDK;
	CHECK_EQ(rails_lanes(0, true), 2);
	config.lanes = 1;
	CHECK_EQ(rails_lanes_taken(0), 1);
	config.path = PATH_KERNEL;
	CHECK_EQ(rails_lanes(0, true), 4);
	kernel_lanes = 1;
	CHECK_EQ(rails_lanes_taken(0), 1);
	config.path = PATH_AUTO; /* the peer may have what we have not */
	CHECK_EQ(rails_lanes(0, false), 1);
	CHECK_EQ(rails_lanes_taken(0), PREAMBLE_LANES_MAX);
	add_device(100000, 0, "");
	CHECK_EQ(rails_lanes(0, true), 4);
	kernel_lanes = 16;
	CHECK_EQ(rails_lanes(0, true), PREAMBLE_LANES_MAX);
	devices[0].netns = devices[1].netns = 7; /* another namespace's: HARP lanes only */
	CHECK_EQ(rails_lanes(0, true), 2);
	CHECK_EQ(rails_lanes(0, false), 1);
}
