/* SPDX-License-Identifier: Apache-2.0 */
/* af_xdp_link.c - reads interface properties by ioctl, without privileges. */
#include "nic/af_xdp_link.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"

static int link_ethtool(int fd, struct ifreq *request, void *command)
{
	request->ifr_data = command;
	return ioctl(fd, SIOCETHTOOL, request) < 0 ? -errno : 0;
}

static uint32_t link_offloads(int fd, struct ifreq *request)
{
	static const struct {
		uint32_t command, value_mask, offload;
	} queries[] = {
		{ ETHTOOL_GRXCSUM, ~0u, OFFLOAD_RX_CSUM },
		{ ETHTOOL_GTXCSUM, ~0u, OFFLOAD_TX_CSUM },
		{ ETHTOOL_GSG, ~0u, OFFLOAD_SG },
		{ ETHTOOL_GTSO, ~0u, OFFLOAD_TSO },
		{ ETHTOOL_GGSO, ~0u, OFFLOAD_GSO },
		{ ETHTOOL_GGRO, ~0u, OFFLOAD_GRO },
		{ ETHTOOL_GFLAGS, ETH_FLAG_LRO, OFFLOAD_LRO },
	};
	uint32_t offloads = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(queries); i++) {
		struct ethtool_value answer = { .cmd = queries[i].command };

		if (link_ethtool(fd, request, &answer) == 0 &&
		    (answer.data & queries[i].value_mask))
			offloads |= queries[i].offload;
	}
	return offloads;
}

static void link_driver_and_queues(int fd, struct ifreq *request, struct af_xdp_link *out)
{
	struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };
	struct ethtool_channels channels = { .cmd = ETHTOOL_GCHANNELS };

	if (link_ethtool(fd, request, &driver) == 0) {
		driver.driver[sizeof(driver.driver) - 1] = '\0';
		memcpy(out->driver, driver.driver, sizeof(out->driver));
	}
	if (link_ethtool(fd, request, &channels) == 0) {
		out->rx_queues = channels.rx_count + channels.combined_count;
		out->rx_queues_max = channels.max_rx + channels.max_combined;
		out->tx_queues = channels.tx_count + channels.combined_count;
	}
}

int af_xdp_link_read(const char *ifname, struct af_xdp_link *out)
{
	struct ethtool_value carrier = { .cmd = ETHTOOL_GLINK };
	struct ifreq request = { 0 };
	int fd, rc = 0;

	memset(out, 0, sizeof(*out));
	if (!ifname || !ifname[0] || strlen(ifname) >= sizeof(request.ifr_name))
		return -EINVAL;
	strcpy(request.ifr_name, ifname);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, SIOCGIFINDEX, &request) < 0)
		goto error;
	out->ifindex = (uint32_t)request.ifr_ifindex;
	if (ioctl(fd, SIOCGIFMTU, &request) < 0)
		goto error;
	out->mtu_bytes = (uint32_t)request.ifr_mtu;
	if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
		goto error;
	out->up = request.ifr_flags & IFF_UP;
	if (ioctl(fd, SIOCGIFHWADDR, &request) < 0)
		goto error;
	if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER &&
	    request.ifr_hwaddr.sa_family != ARPHRD_LOOPBACK) {
		rc = -EINVAL;
		goto out;
	}
	out->loopback = request.ifr_hwaddr.sa_family == ARPHRD_LOOPBACK;
	memcpy(out->mac, request.ifr_hwaddr.sa_data, sizeof(out->mac));
	/* Not IFF_RUNNING, which follows the carrier up to a second late. */
	out->carrier = link_ethtool(fd, &request, &carrier) || carrier.data;
	link_driver_and_queues(fd, &request, out);
	out->offloads = link_offloads(fd, &request);
	goto out;
error:
	rc = -errno;
out:
	close(fd);
	return rc;
}

static bool link_driver_in(const struct af_xdp_link *link, const char *const *names)
{
	for (; *names; names++)
		if (strcmp(link->driver, *names) == 0)
			return true;
	return false;
}

bool af_xdp_link_partial_csum(const struct af_xdp_link *link)
{
	/* Drivers whose sender may be a kernel on the same host, which leaves checksums to a NIC
	 * that the packet never reaches. */
	static const char *const names[] = { "veth",   "bridge",     "tun",          "macvlan",
					     "ipvlan", "virtio_net", "xen_netfront", "vif",
					     "dummy",  NULL };
	return link_driver_in(link, names);
}

bool af_xdp_link_prefers_generic(const struct af_xdp_link *link)
{
	/* veth: native XDP disables the kernel's segmentation offload (26-40 down to 5-7 Gbit/s).
	 * The others have no native XDP. */
	static const char *const names[] = { "veth", "bridge", "macvlan", "ipvlan", "dummy", NULL };
	return link_driver_in(link, names);
}

bool af_xdp_link_is_stacked(const struct af_xdp_link *link)
{
	static const char *const names[] = { "bonding", "team", "802.1Q VLAN Support", NULL };
	return link_driver_in(link, names);
}
