/* SPDX-License-Identifier: Apache-2.0 */
/* rails.c - the addresses and ports of an acceptor's NICs, as CHALLENGE carries them. */
#include "wire/rails.h"

#include <errno.h>
#include <string.h>

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
