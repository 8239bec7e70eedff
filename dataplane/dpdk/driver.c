/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - driver properties that DPDK does not report, by driver name. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "dpdk/port.h"

#define DRIVER_ROOM_MORE 64u

static const struct {
	const char *name;
	uint32_t traits;
} drivers[] = {
	/* memif reports a maximum of 1518 bytes, but larger packets pass in chains of its
	 * buffers. */
	{ "net_memif",
	  DRIVER_ANY_LENGTH | DRIVER_FILLS_LATE | DRIVER_COPIES | DRIVER_CONNECTS | DRIVER_READS },
	{ "net_ring", DRIVER_ANY_LENGTH | DRIVER_FILLS_LATE | DRIVER_READS },
	{ "net_null", DRIVER_ANY_LENGTH | DRIVER_FILLS_LATE | DRIVER_READS },
	{ "net_pcap", DRIVER_FILLS_LATE | DRIVER_COPIES | DRIVER_KERNEL | DRIVER_READS },
	/* af_packet reports a maximum of 1518 bytes, but packets up to its slot size pass. */
	{ "net_af_packet", DRIVER_ANY_LENGTH | DRIVER_FILLS_LATE | DRIVER_COPIES | DRIVER_KERNEL |
				   DRIVER_SLOTS | DRIVER_READS },
	{ "net_af_xdp",
	  DRIVER_COPIES | DRIVER_KERNEL | DRIVER_PULLS | DRIVER_READS | DRIVER_CHUNKS },
	{ "net_virtio_user", DRIVER_INDIRECT },
	/* Not indirect if the host keeps buffers in order (VIRTIO_F_IN_ORDER), which is rare. */
	{ "net_virtio", DRIVER_INDIRECT },
	{ "net_vhost", DRIVER_FILLS_LATE | DRIVER_COPIES | DRIVER_READS | DRIVER_GSO },
	/* tap sends no packet longer than its reported MTU of 1504. When it segments it includes
	 * the Ethernet header in the MTU, so it rejects full-sized segments. */
	{ "net_tap", DRIVER_COPIES | DRIVER_NO_TSO | DRIVER_READS | DRIVER_CREATES_LINK },
};

uint32_t driver_traits(const char *driver)
{
	for (size_t i = 0; i < ARRAY_SIZE(drivers); i++)
		if (strncmp(driver, drivers[i].name, strlen(drivers[i].name)) == 0)
			return drivers[i].traits;
	return 0;
}

uint32_t driver_slot_bytes(uint32_t frame_size)
{
	uint32_t max =
		frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM + DRIVER_SLOT_OVERHEAD;

	return max < 4096 ? max < 2048 ? 1024 : 2048 : max & ~4095u;
}

const char *driver_argument(const char *device, const char *key)
{
	const char *at = device;
	size_t len = strlen(key);

	while ((at = strchr(at, ',')) != NULL)
		if (strncmp(++at, key, len) == 0)
			return at + len;
	return NULL;
}

int driver_device(const char *device, uint32_t frame_size, char *out, size_t out_len)
{
	const uint32_t room = frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM;
	const uint32_t slot = driver_slot_bytes(frame_size);
	int len;

	/* Newer releases of DPDK's memif copy a peer's buffer of any length into one mbuf. They do
	 * not if their own buffers are larger than an mbuf's data room. (A precaution: 22.11.11 was
	 * not seen to do so.) With larger buffers, packets of a peer with another MTU, or with
	 * memif's default of 2048 bytes, arrive in chains. */
	if (memif_is(device) && !driver_argument(device, "bsize="))
		len = snprintf(out, out_len, "%s,bsize=%u", device, room + DRIVER_ROOM_MORE);
	/* af_packet's slots divide a block of whole pages, and their contents fit an mbuf. */
	else if ((driver_traits(device) & DRIVER_SLOTS) && !driver_argument(device, "framesz="))
		len = snprintf(out, out_len, "%s,blocksz=%u,framesz=%u", device,
			       slot < 4096 ? 4096 : slot, slot);
	else
		len = snprintf(out, out_len, "%s", device);
	return len >= 0 && (size_t)len < out_len ? len : -ENAMETOOLONG;
}
