/* SPDX-License-Identifier: Apache-2.0 */
/* Ports: any Ethernet device of DPDK's, from its name to its counters. */
#include <errno.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_ethdev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk_private.h"

#define ETHERNET_BYTES (RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN)
#define NAME_MAX_BYTES 64

static int refuse(uint16_t port, char *why, size_t why_len, int error, const char *step)
{
	char name[RTE_ETH_NAME_MAX_LEN] = "";

	rte_eth_dev_get_name_by_port(port, name);
	return dpdk_why(why, why_len, error, "%s: %s: %s", name, step, strerror(-error));
}

static int refuse_probe(const char *device, char *why, size_t why_len, int error)
{
	if (error == -EEXIST || error == -EBUSY)
		return dpdk_why(why, why_len, -EBUSY,
				"%s: in use, by this process or another one; close it there first",
				device);
	/* What buses and drivers say of names and arguments that they don't know; -EPERM is a bare -1. */
	if (error == -ENODEV || error == -ENOENT || error == -EINVAL || error == -EFAULT ||
	    error == -EPERM)
		return dpdk_why(
			why, why_len, -ENODEV,
			"%s: no such device, or its driver refuses it or its arguments; names look like "
			"0000:00:05.0 (bound to vfio-pci) and net_memif0,role=client, and DPDK's log says more "
			"(harp.dpdk.start(log=sys.stderr))",
			device);
	return dpdk_why(why, why_len, error, "%s: DPDK can't open it: %s", device,
			strerror(-error));
}

/* Of ports that are memifs; NULL: another. */
static struct harp_dpdk_memif *memifs[RTE_MAX_ETHPORTS];

static void leave(uint16_t port)
{
	if (port < RTE_MAX_ETHPORTS && memifs[port])
		dpdk_library()->memif_leave(memifs[port], port);
}

int dpdk_port_probe(uint16_t *port, const char *device, char *why, size_t why_len)
{
	struct harp_dpdk_memif *memif = NULL;
	struct rte_dev_iterator it;
	char name[NAME_MAX_BYTES];
	uint16_t id, found = RTE_MAX_ETHPORTS;
	int result;

	if (dpdk_running() != 1)
		return dpdk_why(why, why_len, -ENOTCONN, "DPDK is not started in this process");
	if (strcspn(device, ",") >= sizeof(name) || !*device || *device == ',')
		return dpdk_why(why, why_len, -EINVAL, "'%.80s' names no device", device);
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(device, ","), device);
	/* A virtual device that exists is found, not made again. */
	if (!rte_eth_dev_get_port_by_name(name, &id))
		return refuse_probe(device, why, why_len, -EBUSY);
	if (strncmp(device, "net_memif", 9) == 0) {
		result = dpdk_library()->memif_probe(&memif, device, why, why_len);
		if (result)
			return result == -EINVAL ? -ENODEV : result;
	} else {
		result = rte_dev_probe(device);
		if (result)
			return refuse_probe(device, why, why_len, result);
	}
	RTE_ETH_FOREACH_MATCHING_DEV(id, device, &it)
	{
		found = id;
		rte_eth_iterator_cleanup(&it);
		break;
	}
	if (found == RTE_MAX_ETHPORTS && !rte_eth_dev_get_port_by_name(name, &id))
		found = id;
	if (found == RTE_MAX_ETHPORTS)
		return dpdk_why(why, why_len, -ENODEV, "%s: it is there, but is no Ethernet device",
				device);
	memifs[found] = memif;
	*port = found;
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Configuring.
 */
/* memif says that its packets are at most 1518 bytes and refuses more, yet carries whatever its buffers hold. */
static bool mtu_is_buffers(const struct rte_eth_dev_info *info)
{
	return strcmp(info->driver_name, "net_memif") == 0;
}

static int check_options(uint16_t port, const struct dpdk_port_options *opt,
			 const struct rte_eth_dev_info *info, char *why, size_t why_len)
{
	char name[RTE_ETH_NAME_MAX_LEN] = "";

	rte_eth_dev_get_name_by_port(port, name);
	if (!opt->rx_queues || opt->rx_queues > info->max_rx_queues || !opt->tx_queues ||
	    opt->tx_queues > info->max_tx_queues)
		return dpdk_why(
			why, why_len, -EINVAL,
			"%s: %u receive and %u transmit queues: it has at most %u and %u, and needs one "
			"of each",
			name, opt->rx_queues, opt->tx_queues, info->max_rx_queues,
			info->max_tx_queues);
	if (opt->mtu_bytes && (opt->mtu_bytes < info->min_mtu || opt->mtu_bytes > info->max_mtu) &&
	    !mtu_is_buffers(info))
		return dpdk_why(why, why_len, -EINVAL, "%s: MTU %u: it takes %u to %u", name,
				opt->mtu_bytes, info->min_mtu, info->max_mtu);
	return 0;
}

static void configuration(const struct dpdk_port_options *opt, const struct rte_eth_dev_info *info,
			  struct rte_eth_conf *conf)
{
	uint32_t room = rte_pktmbuf_data_room_size(opt->pool) - RTE_PKTMBUF_HEADROOM;
	uint32_t mtu = opt->mtu_bytes ? opt->mtu_bytes : RTE_MIN(1500u, (uint32_t)info->max_mtu);

	memset(conf, 0, sizeof(*conf));
	conf->rxmode.mtu =
		mtu_is_buffers(info) ? RTE_MIN(mtu, info->max_rx_pktlen - ETHERNET_BYTES) : mtu;
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
		return refuse(port, why, why_len, result, "asking what it is");
	result = check_options(port, opt, &info, why, why_len);
	if (result)
		return result;
	configuration(opt, &info, &conf);
	result = rte_eth_dev_configure(port, (uint16_t)opt->rx_queues, (uint16_t)opt->tx_queues,
				       &conf);
	if (result)
		return refuse(port, why, why_len, result, "configuring it");
	result = set_up_queues(port, opt, &conf, &info);
	if (result)
		return refuse(port, why, why_len, result, "setting up its queues");
	/* Some drivers give it to their device only so; where there is nothing to set that is no error. */
	if (opt->mtu_bytes && !mtu_is_buffers(&info)) {
		result = rte_eth_dev_set_mtu(port, (uint16_t)opt->mtu_bytes);
		if (result && result != -ENOTSUP)
			return refuse(port, why, why_len, result, "setting its MTU");
	}
	/* Devices without a filter have nothing to switch. */
	if (opt->promiscuous)
		rte_eth_promiscuous_enable(port);
	else
		rte_eth_promiscuous_disable(port);
	return 0;
}

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

int dpdk_port_start(uint16_t port, char *why, size_t why_len)
{
	int result;

	if (port < RTE_MAX_ETHPORTS && memifs[port] && dpdk_library()->memif_ready(memifs[port]))
		return refuse(port, why, why_len, -ECONNREFUSED,
			      "starting it: its server is not there, start that first");
	result = dpdk_in_driver_thread(port, start, NULL);
	return result ? refuse(port, why, why_len, result, "starting it") : 0;
}

int dpdk_port_stop(uint16_t port)
{
	leave(port);
	return dpdk_in_driver_thread(port, stop, NULL);
}

int dpdk_port_close(uint16_t port)
{
	struct rte_eth_dev_info info;
	int result;

	if (dpdk_running() != 1)
		return -ECHILD;
	result = rte_eth_dev_info_get(port, &info);
	if (result)
		return result;
	leave(port);
	if (memifs[port])
		dpdk_library()->memif_close(memifs[port]);
	memifs[port] = NULL;
	return dpdk_in_driver_thread(port, close_and_remove, info.device);
}

/* ------------------------------------------------------------------------------------------------
 * What it is, and what it has counted.
 */
static void offload_names(uint64_t offloads, const char *(*name)(uint64_t), char *out, size_t size)
{
	size_t at = 0;

	out[0] = 0;
	for (uint64_t bit = 1; bit; bit <<= 1) {
		const char *text = name(bit);
		size_t len = strlen(text);

		if (!(offloads & bit) || at + len + 2 > size)
			continue;
		if (at)
			out[at++] = ' ';
		memcpy(out + at, text, len + 1);
		at += len;
	}
}

static bool driver_copies(const char *driver)
{
	static const char *const copying[] = { "net_memif",     "net_tap",  "net_tun",
					       "net_af_packet", "net_pcap", "net_af_xdp" };

	for (size_t i = 0; i < RTE_DIM(copying); i++)
		if (strcmp(driver, copying[i]) == 0)
			return true;
	return false;
}

static int ask_link(uint16_t port, void *argument)
{
	return rte_eth_link_get_nowait(port, argument);
}

static void info_link(uint16_t port, struct dpdk_port_info *out)
{
	struct rte_eth_link link = { 0 };

	if (dpdk_in_driver_thread(port, ask_link, &link))
		return;
	out->up = link.link_status == RTE_ETH_LINK_UP;
	out->full_duplex = link.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	out->speed_mbps = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
}

int dpdk_port_info(uint16_t port, struct dpdk_port_info *out)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac = { 0 };
	uint16_t mtu = 0;
	int result = rte_eth_dev_info_get(port, &info);

	memset(out, 0, sizeof(*out));
	if (result)
		return result;
	rte_eth_dev_get_name_by_port(port, out->name);
	snprintf(out->driver, sizeof(out->driver), "%s", info.driver_name);
	if (info.device)
		snprintf(out->bus, sizeof(out->bus), "%s", rte_bus_name(rte_dev_bus(info.device)));
	offload_names(info.rx_offload_capa, rte_eth_dev_rx_offload_name, out->rx_offloads,
		      sizeof(out->rx_offloads));
	offload_names(info.tx_offload_capa, rte_eth_dev_tx_offload_name, out->tx_offloads,
		      sizeof(out->tx_offloads));
	if (!rte_eth_macaddr_get(port, &mac))
		memcpy(out->mac, mac.addr_bytes, sizeof(out->mac));
	rte_eth_dev_get_mtu(port, &mtu);
	out->promiscuous = rte_eth_promiscuous_get(port) == 1;
	out->driver_copies = driver_copies(info.driver_name);
	out->numa_node = rte_eth_dev_socket_id(port);
	out->mtu_bytes = mtu;
	out->mtu_bytes_max = info.max_mtu;
	out->packet_bytes_max = info.max_rx_pktlen;
	out->rx_queues = info.nb_rx_queues;
	out->tx_queues = info.nb_tx_queues;
	out->rx_queues_max = info.max_rx_queues;
	out->tx_queues_max = info.max_tx_queues;
	out->rx_descriptors_max = info.rx_desc_lim.nb_max;
	out->tx_descriptors_max = info.tx_desc_lim.nb_max;
	out->rss_key_bytes = info.hash_key_size;
	out->rss_table = info.reta_size;
	info_link(port, out);
	return 0;
}

int dpdk_port_set_mtu(uint16_t port, uint32_t mtu_bytes)
{
	return mtu_bytes > UINT16_MAX ? -EINVAL : rte_eth_dev_set_mtu(port, (uint16_t)mtu_bytes);
}

int dpdk_port_set_mac(uint16_t port, const uint8_t mac[6])
{
	struct rte_ether_addr address;

	memcpy(address.addr_bytes, mac, sizeof(address.addr_bytes));
	return rte_eth_dev_default_mac_addr_set(port, &address);
}

int dpdk_port_set_promiscuous(uint16_t port, int on)
{
	return on ? rte_eth_promiscuous_enable(port) : rte_eth_promiscuous_disable(port);
}

int dpdk_port_stats(uint16_t port, struct dpdk_port_stats *out)
{
	struct rte_eth_stats stats;
	int result = rte_eth_stats_get(port, &stats);

	if (result)
		return result;
	*out = (struct dpdk_port_stats){
		.rx_packets = stats.ipackets,
		.tx_packets = stats.opackets,
		.rx_bytes = stats.ibytes,
		.tx_bytes = stats.obytes,
		.rx_missed = stats.imissed,
		.rx_errors = stats.ierrors,
		.tx_errors = stats.oerrors,
		.rx_no_buffer = stats.rx_nombuf,
	};
	return 0;
}

int dpdk_port_stats_reset(uint16_t port)
{
	int result = rte_eth_stats_reset(port);
	int extended = rte_eth_xstats_reset(port);

	return result ? result : extended;
}

int dpdk_port_xstats(uint16_t port, struct dpdk_xstat_name *names, uint64_t *values, unsigned max)
{
	struct rte_eth_xstat_name *all = NULL;
	struct rte_eth_xstat *counts = NULL;
	int count = rte_eth_xstats_get_names(port, NULL, 0);

	if (count <= 0 || !max)
		return count;
	all = calloc((size_t)count, sizeof(*all));
	counts = calloc((size_t)count, sizeof(*counts));
	if (!all || !counts || rte_eth_xstats_get_names(port, all, (unsigned)count) != count ||
	    rte_eth_xstats_get(port, counts, (unsigned)count) != count)
		count = -EAGAIN;
	for (int i = 0; i < count && (unsigned)i < max; i++) {
		memcpy(names[i].text, all[counts[i].id].name, sizeof(names[i].text));
		names[i].text[sizeof(names[i].text) - 1] = 0;
		values[i] = counts[i].value;
	}
	free(all);
	free(counts);
	return count;
}
