/* SPDX-License-Identifier: Apache-2.0 */
/* rails.c - what is told of an acceptor's NICs, and which NICs of ours go with them. */
#include "connect/rails.h"

#include <errno.h>
#include <string.h>

#include "comm/comm.h"
#include "process/parallel.h"
#include "wire/record.h"

#define HEAD_BYTES 4u
#define ENTRY_BYTES 32u
#define AT_ADDR 0
#define AT_HARP_PORT 16
#define AT_KERNEL_PORT 18
#define AT_PLACEMENT 20
#define AT_NIC 21
#define AT_QUEUES 22
#define AT_QUEUE 24
#define AT_SPEED 28

/* ---- the extension ---------------------------------------------------------------------------- */

size_t rails_encode(const struct rails *rails, uint8_t out[RAILS_BYTES_MAX])
{
	if (!rails->count)
		return 0;
	memset(out, 0, HEAD_BYTES + ENTRY_BYTES * rails->count);
	out[0] = (uint8_t)rails->count;
	for (unsigned i = 0; i < rails->count; i++) {
		const struct rail_entry *entry = &rails->entry[i];
		uint8_t *at = out + HEAD_BYTES + ENTRY_BYTES * i;

		memcpy(at + AT_ADDR, entry->addr.bytes, 16);
		wire_put16(at + AT_HARP_PORT, entry->harp_port);
		wire_put16(at + AT_KERNEL_PORT, entry->kernel_port);
		at[AT_PLACEMENT] = entry->placement;
		at[AT_NIC] = entry->nic;
		wire_put16(at + AT_QUEUES, entry->queues);
		wire_put16(at + AT_QUEUE, entry->queue);
		wire_put32(at + AT_SPEED, entry->speed_mbps);
	}
	return HEAD_BYTES + ENTRY_BYTES * rails->count;
}

static bool rails_has(const struct rails *rails, const struct rail_entry *entry)
{
	for (unsigned i = 0; i < rails->count; i++) {
		const struct rail_entry *other = &rails->entry[i];

		if (other->nic == entry->nic &&
		    harp_addr_is_v4(&other->addr) == harp_addr_is_v4(&entry->addr))
			return true;
	}
	return false;
}

int rails_decode(struct rails *out, const uint8_t *in, size_t len)
{
	memset(out, 0, sizeof(*out));
	if (len < HEAD_BYTES || !in[0] || in[0] > RAIL_ENTRIES_MAX ||
	    len != HEAD_BYTES + (size_t)ENTRY_BYTES * in[0])
		return -EPROTO;
	for (unsigned i = 0; i < in[0]; i++) {
		const uint8_t *at = in + HEAD_BYTES + ENTRY_BYTES * i;
		struct rail_entry entry = {
			.nic = at[AT_NIC],
			.harp_port = wire_get16(at + AT_HARP_PORT),
			.kernel_port = wire_get16(at + AT_KERNEL_PORT),
			.placement = at[AT_PLACEMENT],
			.queues = wire_get16(at + AT_QUEUES),
			.queue = wire_get16(at + AT_QUEUE),
			.speed_mbps = wire_get32(at + AT_SPEED),
		};

		memcpy(entry.addr.bytes, at + AT_ADDR, 16);
		if (entry.nic >= RAIL_ENTRIES_MAX || (!entry.harp_port && !entry.kernel_port) ||
		    rails_has(out, &entry))
			return -EPROTO;
		out->entry[out->count++] = entry;
	}
	return 0;
}

/* ---- which go together ------------------------------------------------------------------------ */

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

/* How many leading parts of two PCI paths are the same: bridges that both are behind. */
static unsigned pci_shared(const char *a, const char *b)
{
	unsigned shared = 0;

	for (size_t i = 0; a[i] && a[i] == b[i]; i++)
		shared += a[i] == '/';
	return shared;
}

/* How well a device does beside dev; larger is better. */
static unsigned rails_score(const struct device *own, const struct device *device)
{
	unsigned score = pci_shared(own->pci_path, device->pci_path);

	if (score > 15)
		score = 15;
	if (own->numa_node == device->numa_node)
		score += 16;
	if (device->speed_mbps >= own->speed_mbps)
		score += 32;
	/* The way to the rest of the world is not for bulk, where there is another. */
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
			lanes += parallel_of(devs[i]).lanes;
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

/* The next pair: of NICs that no other pair uses, as they don't share what may break. The second may use one of
 * the first's, where one side has no other. */
static bool rails_next(const int *devs, unsigned dev_count, const struct rails *peer,
		       rails_reaches *reaches, void *ctx, const struct rail_pair *pairs,
		       unsigned count, struct rail_pair *out)
{
	for (int shared = 0; shared < (count == 1 ? 2 : 1); shared++) {
		for (unsigned d = 0; d < dev_count; d++) {
			for (unsigned i = 0; i < peer->count; i++) {
				const struct rail_entry *entry = &peer->entry[i];

				if (pair_uses(pairs, count, devs[d], entry->nic, shared) ||
				    !reaches(ctx, devs[d], entry))
					continue;
				*out = (struct rail_pair){ .dev = devs[d], .nic = entry->nic };
				return true;
			}
		}
	}
	return false;
}

unsigned rails_pair(const int *devs, unsigned dev_count, const struct rails *peer,
		    rails_reaches *reaches, void *ctx, struct rail_pair out[RAIL_PAIRS_MAX])
{
	unsigned count = 0, allowed = rails_allowed();

	out[count++] = (struct rail_pair){ .dev = devs[0] };
	while (count < allowed &&
	       rails_next(devs, dev_count, peer, reaches, ctx, out, count, &out[count])) {
		out[count].backup = plugin_config()->rails == RAILS_BACKUP;
		count++;
	}
	return count;
}
