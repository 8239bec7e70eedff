/* SPDX-License-Identifier: Apache-2.0 */
/* Configures, starts, stops and closes ports. */
#include <errno.h>
#include <rte_dev.h>
#include <rte_ethdev.h>
#include <string.h>

#include "dpdk_private.h"

#define ETHERNET_BYTES (RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN)

static int explain(uint16_t port, char *why, size_t why_len, int error, const char *step)
{
	char name[RTE_ETH_NAME_MAX_LEN] = "";

	rte_eth_dev_get_name_by_port(port, name);
	return dpdk_why(why, why_len, error, "%s: %s: %s", name, step, strerror(-error));
}

int dpdk_memif_probe(struct harp_dpdk_memif **out, const char *device, char *why, size_t why_len)
{
	return dpdk_library()->memif_probe(out, device, why, why_len);
}

/* ------------------------------------------------------------------------------------------------
 * Configuring.
 */
static int check_options(uint16_t port, const struct dpdk_port_options *opt,
			 const struct rte_eth_dev_info *info, char *why, size_t why_len)
{
	char name[RTE_ETH_NAME_MAX_LEN] = "";

	rte_eth_dev_get_name_by_port(port, name);
	if (!opt->rx_queues || opt->rx_queues > info->max_rx_queues || !opt->tx_queues ||
	    opt->tx_queues > info->max_tx_queues)
		return dpdk_why(
			why, why_len, -EINVAL,
			"%s: %u receive and %u transmit queues: 1 to %u and 1 to %u are possible",
			name, opt->rx_queues, opt->tx_queues, info->max_rx_queues,
			info->max_tx_queues);
	/* memif reports a limit of 1518 bytes, but accepts packets of several buffers. */
	if (opt->mtu_bytes && (opt->mtu_bytes < info->min_mtu || opt->mtu_bytes > info->max_mtu) &&
	    !dpdk_is_memif(info))
		return dpdk_why(why, why_len, -EINVAL, "%s: MTU %u: %u to %u are possible", name,
				opt->mtu_bytes, info->min_mtu, info->max_mtu);
	return 0;
}

static void fill_configuration(const struct dpdk_port_options *opt,
			       const struct rte_eth_dev_info *info, struct rte_eth_conf *conf)
{
	uint32_t room = rte_pktmbuf_data_room_size(opt->pool) - RTE_PKTMBUF_HEADROOM;
	uint32_t mtu = opt->mtu_bytes ? opt->mtu_bytes : RTE_MIN(1500u, (uint32_t)info->max_mtu);

	memset(conf, 0, sizeof(*conf));
	conf->rxmode.mtu =
		dpdk_is_memif(info) ? RTE_MIN(mtu, info->max_rx_pktlen - ETHERNET_BYTES) : mtu;
	if (mtu + ETHERNET_BYTES > room)
		conf->rxmode.offloads |= info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
	conf->txmode.offloads = info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	if (opt->rx_queues > 1 && info->flow_type_rss_offloads) {
		conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf->rx_adv_conf.rss_conf.rss_hf =
			info->flow_type_rss_offloads &
			(RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP);
	}
}

static int set_up_queues(uint16_t port, const struct dpdk_port_options *opt,
			 const struct rte_eth_conf *conf, struct rte_eth_dev_info *info)
{
	uint16_t rx = (uint16_t)RTE_MIN(opt->rx_descriptors, UINT16_MAX);
	uint16_t tx = (uint16_t)RTE_MIN(opt->tx_descriptors, UINT16_MAX);
	uint32_t queue;
	int result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);

	info->default_rxconf.offloads = conf->rxmode.offloads;
	info->default_txconf.offloads = conf->txmode.offloads;
	for (queue = 0; !result && queue < opt->rx_queues; queue++)
		result = rte_eth_rx_queue_setup(port, (uint16_t)queue, rx,
						(unsigned)rte_eth_dev_socket_id(port),
						&info->default_rxconf, opt->pool);
	for (queue = 0; !result && queue < opt->tx_queues; queue++)
		result = rte_eth_tx_queue_setup(port, (uint16_t)queue, tx,
						(unsigned)rte_eth_dev_socket_id(port),
						&info->default_txconf);
	return result;
}

int dpdk_port_configure(uint16_t port, const struct dpdk_port_options *opt, char *why,
			size_t why_len)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	int result = rte_eth_dev_info_get(port, &info);

	if (result)
		return explain(port, why, why_len, result, "reading its properties");
	result = check_options(port, opt, &info, why, why_len);
	if (result)
		return result;
	fill_configuration(opt, &info, &conf);
	result = rte_eth_dev_configure(port, (uint16_t)opt->rx_queues, (uint16_t)opt->tx_queues,
				       &conf);
	if (result)
		return explain(port, why, why_len, result, "configuring it");
	result = set_up_queues(port, opt, &conf, &info);
	if (result)
		return explain(port, why, why_len, result, "setting up its queues");
	/* Some drivers set the device's MTU only by this call; others do not support it. */
	if (opt->mtu_bytes && !dpdk_is_memif(&info)) {
		result = rte_eth_dev_set_mtu(port, (uint16_t)opt->mtu_bytes);
		if (result && result != -ENOTSUP)
			return explain(port, why, why_len, result, "setting its MTU");
	}
	/* Errors are ignored: a device may have no filter. */
	if (opt->promiscuous)
		rte_eth_promiscuous_enable(port);
	else
		rte_eth_promiscuous_disable(port);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Calls in the driver's thread (gate.c).
 */
static int start(uint16_t port, void *argument)
{
	(void)argument;
	return rte_eth_dev_start(port);
}

static int stop(uint16_t port, void *argument)
{
	(void)argument;
	return rte_eth_dev_stop(port);
}

static int close_and_remove(uint16_t port, void *argument)
{
	struct rte_device *device = argument;
	int result;

	rte_eth_dev_stop(port);
	result = rte_eth_dev_close(port);
	return result ? result : rte_dev_remove(device);
}

int dpdk_port_start(uint16_t port, struct harp_dpdk_memif *memif)
{
	int result = memif ? dpdk_library()->memif_ready(memif) : 0;

	return result ? result : dpdk_in_driver_thread(port, start, NULL);
}

int dpdk_port_stop(uint16_t port, struct harp_dpdk_memif *memif)
{
	if (memif)
		dpdk_library()->memif_leave(memif, port);
	return dpdk_in_driver_thread(port, stop, NULL);
}

int dpdk_port_close(uint16_t port, struct harp_dpdk_memif *memif)
{
	struct rte_eth_dev_info info;
	int result = rte_eth_dev_info_get(port, &info);

	if (result)
		return result;
	if (memif) {
		dpdk_library()->memif_leave(memif, port);
		dpdk_library()->memif_close(memif);
	}
	return dpdk_in_driver_thread(port, close_and_remove, info.device);
}

static int read_link(uint16_t port, void *argument)
{
	return rte_eth_link_get_nowait(port, argument);
}

int dpdk_port_link(uint16_t port, struct dpdk_link *out)
{
	struct rte_eth_link link = { 0 };
	int result = dpdk_in_driver_thread(port, read_link, &link);

	out->up = link.link_status == RTE_ETH_LINK_UP;
	out->full_duplex = link.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	out->speed_mbps = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
	return result;
}
