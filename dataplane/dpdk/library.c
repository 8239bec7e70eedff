/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - libharp-dpdk.so's only symbol. */
#include "dpdk/eal.h"
#include "dpdk/port.h"

static const struct harp_dpdk_api api = {
	.version = HARP_DPDK_VERSION,
	.start = eal_start,
	.port_open = port_open,
	.port_nic = port_nic,
	.port_info = port_info,
	.port_rss = port_rss,
	.port_xstats = port_xstats,
	.port_close = port_close,
	.guard = link_guard,
	.run_in_intr = link_run_there,
	.memif_probe = memif_handle_probe,
	.memif_ready = memif_handle_ready,
	.memif_leave = memif_handle_leave,
	.memif_close = memif_handle_close,
};

const struct harp_dpdk_api *harp_dpdk_api(void)
{
	return &api;
}
