/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_leased.c - NICs that harpd leases, of this or another network namespace. */
#include "device_rig.h"
#include "process/config.h"

#define OUR_NETNS 4026531840u
#define NIC_NETNS 4026532999u

static struct harp_lease_device leased[4];
static unsigned leased_total;

static struct harp_lease_device *add_leased(const char *ifname, uint64_t netns, uint8_t tail)
{
	struct harp_lease_device *d = &leased[leased_total++];
	struct harp_addr v4 = { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, tail } };

	memset(d, 0, sizeof(*d));
	snprintf(d->ifname, sizeof(d->ifname), "%s", ifname);
	d->ifindex = 40u + tail;
	d->flags = HARP_LEASE_DEVICE_UP;
	d->mtu_bytes = 8950;
	d->speed_mbps = 100000;
	d->queues = d->queues_free = 4;
	d->numa_node = 1;
	d->netns = netns;
	d->guid = 0x020000000000ull + tail;
	memcpy(d->addr_v4, v4.bytes, sizeof(d->addr_v4));
	snprintf(d->pci_path, sizeof(d->pci_path), "/sys/devices/pci0000:00/0000:00:05.%u", tail);
	return d;
}

static const char *scan_leased(const struct plugin_config *config, uint64_t netns)
{
	struct device_host host = base_host;

	host.leased = leased;
	host.leased_count = leased_total;
	host.netns = netns;
	return scan_host(&host, config);
}

/* A container has loopback and a veth; the NICs are in the host's namespace. */
static void build_container(void)
{
	reset();
	leased_total = 0;
	add_link("lo", UP | IFF_LOOPBACK, 1, 0);
	add_address("lo", UP | IFF_LOOPBACK, "127.0.0.1", 0);
	add_link("eth0", UP, 2, 2);
	add_address("eth0", UP, "172.17.0.2", 0);
}

TEST(a_leased_NIC_of_another_namespace_is_a_device)
{
	struct plugin_config config = { 0 };

	build_container();
	add_leased("ens5", NIC_NETNS, 1);
	add_leased("ens6", NIC_NETNS, 2);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5* ens6*");
	CHECK_EQ(devices[0].ifindex, 41);
	CHECK_EQ(devices[0].mtu_bytes, 8950);
	CHECK_EQ(devices[0].speed_mbps, 100000);
	CHECK_EQ(devices[0].numa_node, 1);
	CHECK_EQ(devices[0].guid, 0x020000000001ull);
	CHECK_EQ(devices[0].netns, NIC_NETNS);
	CHECK(devices[0].has_v4 && !devices[0].has_v6 && !devices[0].has_default_route);
	CHECK_EQ(devices[0].addr_v4.bytes[15], 1);
	CHECK_STR(devices[0].pci_path, "/sys/devices/pci0000:00/0000:00:05.1");
	/* HARP_IFNAME can name a local interface. HARP_SPEED_MBPS applies to leased NICs too. */
	strcpy(config.ifname, "=eth0");
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	strcpy(config.ifname, "ens6");
	config.speed_mbps = 7;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens6*");
	CHECK_EQ(devices[0].speed_mbps, 7);
	/* Without the number of this namespace, no leased NIC is used. */
	config.ifname[0] = '\0';
	CHECK_STR(scan_leased(&config, 0), "eth0");
	config.path = PATH_KERNEL;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	config.path = PATH_AUTO;
	config.daemon = DAEMON_OFF;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
}

TEST(a_leased_NIC_of_this_namespace_is_an_interface)
{
	struct plugin_config config = { 0 };

	/* The kernel and harpd report the same interface: it is one local device. */
	build_container();
	add_leased("eth0", OUR_NETNS, 1);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	CHECK_EQ(devices[0].ifindex, 2);
	/* A NIC of another namespace with that name has priority. */
	build_container();
	add_leased("eth0", NIC_NETNS, 1);
	strcpy(config.ifname, "eth0");
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0*");
}

TEST(an_unusable_leased_NIC_is_no_device)
{
	struct plugin_config config = { 0 };
	struct harp_lease_device *d;

	build_container();
	d = add_leased("ens5", NIC_NETNS, 1);
	d->queues_free = 0;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	d->queues_free = 1;
	d->flags = 0;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	d->flags = HARP_LEASE_DEVICE_UP | HARP_LEASE_DEVICE_DEFAULT_ROUTE;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	config.ifname_set = true; /* its name is configured */
	strcpy(config.ifname, "ens5");
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5*");
	CHECK(devices[0].has_default_route);
	memset(config.ifname, 0, sizeof(config.ifname));
	/* No address, or none of the configured family. */
	d->flags = HARP_LEASE_DEVICE_UP;
	config.family = AF_INET6;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "");
	memset(d->addr_v4, 0, sizeof(d->addr_v4));
	config.family = 0;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	CHECK_EQ(inet_pton(AF_INET6, "fe80::5", d->addr_v6), 1);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5*");
	CHECK_EQ(device_scope_id(&devices[0], &devices[0].addr_v6), d->ifindex);
	CHECK_EQ(inet_pton(AF_INET6, "fd00::5", d->addr_v6), 1);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5*");
	CHECK_EQ(device_scope_id(&devices[0], &devices[0].addr_v6), 0);
}
