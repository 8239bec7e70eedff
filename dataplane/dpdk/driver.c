/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - what some of DPDK's drivers don't say of themselves, by name, and nothing else does. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "dpdk/port.h"

static const struct {
	const char *name;
	uint32_t traits;
} drivers[] = {
	/* memif admits to 1518 bytes; what is larger goes through in chains of its buffers. */
	{ "net_memif", DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE | DRIVER_COPIES },
	{ "net_ring", DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE },
	{ "net_null", DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE },
	{ "net_pcap", DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_KERNEL },
	{ "net_af_packet", DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_KERNEL },
	{ "net_af_xdp", DRIVER_KERNEL },
	{ "net_tap", DRIVER_COPIES },
};

uint32_t driver_traits(const char *driver)
{
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		if (strcmp(driver, drivers[i].name) == 0)
			return drivers[i].traits;
	return 0;
}

int driver_device(const char *device, uint32_t frame_size, uint32_t mtu_bytes, char *out,
		  size_t out_len)
{
	int len;

	(void)mtu_bytes;
	/* memif copies a whole packet at a time where its buffers are as large as an mbuf's room, and no larger:
	 * then, and only then, both of its directions have a fast path. */
	if (strncmp(device, "net_memif", 9) == 0 && !strstr(device, "bsize="))
		len = snprintf(out, out_len, "%s,bsize=%u", device,
			       frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM);
	else
		len = snprintf(out, out_len, "%s", device);
	return len >= 0 && (size_t)len < out_len ? len : -ENAMETOOLONG;
}
