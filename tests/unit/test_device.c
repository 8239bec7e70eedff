/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device.c - which interfaces are offered and what is said of them, from pictures of hosts: a
 * list of addresses as getifaddrs() gives it, and a made-up sysfs in a temporary directory.
 */
#include "device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "daemon.h"

static char sysfs[] = "/tmp/harp-test-device-XXXXXX";

/* Needed by plugin_devices_load(), which is not under test here. */
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	(void)level;
	(void)func;
	(void)line;
	(void)fmt;
}
const struct plugin_config *plugin_config(void)
{
	return NULL;
}
const struct harp_lease_device *plugin_daemon_devices(unsigned *count)
{
	*count = 0;
	return NULL;
}
uint64_t plugin_netns(void)
{
	return 1;
}
int harp_host_has_default_route(const char *ifname)
{
	return !strcmp(ifname, "eth0");
}
static int fixed_mtu(const char *ifname)
{
	return !strcmp(ifname, "eth0") ? 9000 : !strcmp(ifname, "gone") ? -ENODEV : 1500;
}

/* By the last byte of the address; the others are preferred. */
static int fixed_state(const char *ifname, const struct harp_addr *addr)
{
	switch (addr->bytes[15]) {
	case 0xd0:
		return HARP_ADDRESS_DUPLICATE;
	case 0x1e:
		return HARP_ADDRESS_TENTATIVE;
	case 0xde:
		return HARP_ADDRESS_DEPRECATED;
	case 0x7e:
		return HARP_ADDRESS_TEMPORARY;
	default:
		return !strcmp(ifname, "eth3") ? -EPERM : HARP_ADDRESS_PREFERRED;
	}
}
int harp_host_address_state(const char *ifname, const struct harp_addr *addr)
{
	return fixed_state(ifname, addr);
}

/* ------------------------------------------------------------------------------------------------
 * A picture of a host.
 */
#define UP (IFF_UP | IFF_RUNNING)
static struct ifaddrs entries[64];
static struct sockaddr_storage stores[64], masks[64];
static unsigned entry_count;

static struct ifaddrs *add_entry(const char *ifname, unsigned flags)
{
	struct ifaddrs *entry = &entries[entry_count];

	memset(entry, 0, sizeof(*entry));
	memset(&stores[entry_count], 0, sizeof(stores[0]));
	entry->ifa_name = (char *)(uintptr_t)ifname;
	entry->ifa_flags = flags;
	entry->ifa_addr = (struct sockaddr *)&stores[entry_count];
	entry->ifa_netmask = (struct sockaddr *)&masks[entry_count];
	if (entry_count > 0)
		entries[entry_count - 1].ifa_next = entry;
	entry_count++;
	return entry;
}

static void add_link(const char *ifname, unsigned flags, int ifindex, uint8_t mac_tail)
{
	struct sockaddr_ll *link = (void *)add_entry(ifname, flags)->ifa_addr;
	const uint8_t mac[6] = { 0x02, 0x11, 0x22, 0x33, 0x44, mac_tail };

	link->sll_family = AF_PACKET;
	link->sll_ifindex = ifindex;
	link->sll_halen = 6;
	memcpy(link->sll_addr, mac, 6);
}

static void add_address(const char *ifname, unsigned flags, const char *text, unsigned scope)
{
	struct ifaddrs *entry = add_entry(ifname, flags);

	if (strchr(text, ':')) {
		struct sockaddr_in6 *v6 = (void *)entry->ifa_addr;
		struct sockaddr_in6 *mask = (void *)entry->ifa_netmask;

		v6->sin6_family = AF_INET6;
		v6->sin6_scope_id = scope;
		CHECK_EQ(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
		CHECK_EQ(inet_pton(AF_INET6, "ffff:ffff:ffff:ffff::", &mask->sin6_addr), 1);
	} else {
		struct sockaddr_in *v4 = (void *)entry->ifa_addr;
		struct sockaddr_in *mask = (void *)entry->ifa_netmask;

		v4->sin_family = AF_INET;
		CHECK_EQ(inet_pton(AF_INET, text, &v4->sin_addr), 1);
		CHECK_EQ(inet_pton(AF_INET, "255.255.255.0", &mask->sin_addr), 1);
	}
}

static void reset(void)
{
	entry_count = 0;
}

/* A usual host: loopback, two NICs, one of them down, docker, a bridge. */
static void usual_host(void)
{
	reset();
	add_link("lo", UP | IFF_LOOPBACK, 1, 0);
	add_link("docker0", UP, 2, 2);
	add_link("virbr0", UP, 3, 3);
	add_link("eth0", UP, 4, 4);
	add_link("eth1", UP, 5, 5);
	add_link("eth2", IFF_UP, 6, 6);
	add_link("eth10", UP, 7, 7);
	add_address("lo", UP, "127.0.0.1", 0);
	add_address("docker0", UP, "172.17.0.1", 0);
	add_address("virbr0", UP, "192.168.122.1", 0);
	add_address("eth0", UP, "10.0.0.5", 0);
	add_address("eth1", UP, "10.1.0.5", 0);
	add_address("eth2", IFF_UP, "10.2.0.5", 0);
	add_address("lo", UP, "::1", 0);
	add_address("eth0", UP, "fe80::4", 4);
	add_address("eth0", UP, "fd00::5", 0);
	add_address("eth1", UP, "fe80::5", 5);
	add_address("eth10", UP, "fe80::7", 7);
}

static struct device devices[8];
static unsigned device_total;

/* The chosen names, separated by spaces. */
static const char *scan(const char *ifname, int family, const char *comm_id)
{
	static char names[256];
	struct plugin_config config = { .family = family };
	const struct device_host host = {
		.addresses = entries,
		.sysfs = sysfs,
		.comm_id = comm_id,
		.mtu = fixed_mtu,
		.default_route = harp_host_has_default_route,
		.address_state = fixed_state,
	};

	snprintf(config.ifname, sizeof(config.ifname), "%s", ifname);
	device_total = device_scan(&host, &config, devices, 8);
	names[0] = '\0';
	for (unsigned i = 0; i < device_total; i++) {
		if (i > 0)
			strcat(names, " ");
		strcat(names, devices[i].ifname);
	}
	return names;
}

static void test_names(void)
{
	static const struct {
		const char *list, *ifname;
		bool match, exact;
	} cases[] = {
		{ "eth", "eth0", true, false },
		{ "eth0", "eth0", true, false },
		{ "eth0", "eth01", true, false },
		{ "eth1", "eth0", false, false },
		{ "ens,eth", "eth0", true, false },
		{ "=eth0", "eth0", true, true },
		{ "=eth0", "eth01", false, false },
		{ "=eth1,eth0", "eth0", true, true },
		{ "=eth", "eth0", false, false },
		{ "^eth", "eth0", false, false },
		{ "^docker,lo", "eth0", true, false },
		{ "^docker,lo", "lo", false, false },
		{ "^docker,lo", "lowpan0", false, false },
		{ "^=lo", "lowpan0", true, false },
		{ "^=lo", "lo", false, false },
		{ ",,eth0,", "eth0", true, false },
		{ ",,", "eth0", false, false },
		{ "=", "eth0", false, false },
		{ "^", "eth0", true, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool exact = !cases[i].exact;

		CHECK_EQ(device_name_matches(cases[i].list, cases[i].ifname, &exact),
			 cases[i].match);
		CHECK_EQ(exact, cases[i].exact);
	}
}

static void test_choice(void)
{
	usual_host();
	CHECK_STR(scan("", 0, NULL), "eth0 eth1");
	CHECK_STR(scan("", AF_INET, NULL), "eth0 eth1");
	CHECK_STR(scan("", AF_INET6, NULL), "eth0");
	CHECK_STR(scan("eth1", 0, NULL), "eth1 eth10");
	CHECK_STR(scan("=eth1", 0, NULL), "eth1");
	CHECK_STR(scan("=eth10,eth0", 0, NULL), "eth0 eth10");
	CHECK_STR(scan("^eth,docker,virbr", 0, NULL), "lo");
	CHECK_STR(scan("lo", 0, NULL), "lo");
	CHECK_STR(scan("lo", AF_INET6, NULL), "");
	CHECK_STR(scan("eth2", 0, NULL), "");
	CHECK_STR(scan("eth9", 0, NULL), "");
	CHECK_STR(scan("", 0, "10.1.0.77:4000"), "eth1");
	CHECK_STR(scan("", 0, "[fd00::1]:4000"), "eth0");
	CHECK_STR(scan("", 0, "somewhere.example:4000"), "eth0 eth1");
	CHECK_STR(scan("", 0, "10.1.0.77"), "eth0 eth1");
	CHECK_STR(scan("eth0", 0, "10.1.0.77:4000"), "eth0");
}

/* Each group of the default order only when those before it are empty. */
static void test_groups(void)
{
	reset();
	add_link("lo", UP, 1, 0);
	add_link("virbr0", UP, 2, 2);
	add_address("virbr0", UP, "192.168.122.1", 0);
	CHECK_STR(scan("", 0, NULL), "virbr0");
	add_address("lo", UP, "127.0.0.1", 0);
	CHECK_STR(scan("", 0, NULL), "lo");
	add_address("docker0", UP, "172.17.0.1", 0);
	CHECK_STR(scan("", 0, NULL), "docker0");
	add_address("eno1", UP, "10.0.0.1", 0);
	CHECK_STR(scan("", 0, NULL), "eno1");
	CHECK_STR(scan("", 0, "172.17.0.9:1"), "docker0");
	add_address("ib0", UP, "10.9.0.1", 0);
	CHECK_STR(scan("", 0, "172.17.0.9:1"), "ib0");
}

static void test_addresses(void)
{
	static const uint8_t link_local[16] = { 0xfe, 0x80, [15] = 7 };
	char text[INET6_ADDRSTRLEN];

	usual_host();
	add_address("eth0:1", UP, "10.0.0.99", 0);
	add_address("eth0", UP, "fd00::6", 0);
	CHECK_STR(scan("eth", 0, NULL), "eth0 eth1 eth10");
	CHECK(devices[0].has_v4 && devices[0].has_v6 && devices[0].scope_id == 0);
	CHECK_EQ(devices[0].addr_v4.bytes[15], 5);
	CHECK_STR(inet_ntop(AF_INET6, devices[0].addr_v4.bytes, text, sizeof(text)),
		  "::ffff:10.0.0.5");
	CHECK_STR(inet_ntop(AF_INET6, devices[0].addr_v6.bytes, text, sizeof(text)), "fd00::5");
	/* Link-local only where there is nothing else. */
	CHECK(devices[1].has_v4 && !devices[1].has_v6);
	CHECK(!devices[2].has_v4 && devices[2].has_v6 && devices[2].scope_id == 7);
	CHECK_MEM(devices[2].addr_v6.bytes, link_local, 16);
	scan("", AF_INET, NULL);
	CHECK(devices[0].has_v4 && !devices[0].has_v6);
	scan("=eth0", AF_INET6, NULL);
	CHECK(!devices[0].has_v4 && devices[0].has_v6 && devices[0].scope_id == 0);
	CHECK_EQ(devices[0].ifindex, 4);
	CHECK_EQ(devices[0].mtu_bytes, 9000);
	CHECK(devices[0].has_default_route);
	scan("eth1", 0, NULL);
	CHECK(!devices[0].has_default_route);
}

/* Which IPv6 address peers are given, whatever the order they are listed in. */
static void test_v6_choice(void)
{
	static const char *const best_last[] = { "fd00::d0", "fd00::1e", "fe80::de",   "fe80::1",
						 "fd00::de", "fd00::7e", "2001:db8::1" };
	char text[INET6_ADDRSTRLEN];

	for (unsigned from = 0; from < 7; from++) {
		for (unsigned backwards = 0; backwards < 2; backwards++) {
			reset();
			for (unsigned i = 0; i <= from; i++)
				add_address("eth0", UP, best_last[backwards ? from - i : i], 4);
			CHECK_STR(scan("", 0, NULL), from < 2 ? "" : "eth0");
			if (from < 2)
				continue;
			CHECK_STR(inet_ntop(AF_INET6, devices[0].addr_v6.bytes, text, sizeof(text)),
				  best_last[from]);
			CHECK_EQ(devices[0].scope_id, from < 4 ? 4 : 0);
		}
	}
	/* The first of equals; where the kernel says nothing all are good. */
	reset();
	add_address("eth3", UP, "fd00::3", 0);
	add_address("eth3", UP, "fd00::2", 0);
	CHECK_STR(scan("", AF_INET6, NULL), "eth3");
	CHECK_EQ(devices[0].addr_v6.bytes[15], 3);
	/* An interface with only a link-local address counts when there is no other. */
	reset();
	add_address("eth0", UP, "fe80::4", 4);
	add_address("eth1", UP, "fe80::5", 5);
	add_address("lo", UP, "127.0.0.1", 0);
	CHECK_STR(scan("", 0, NULL), "eth0 eth1");
	add_address("eth2", UP, "fd00::6", 0);
	CHECK_STR(scan("", 0, NULL), "eth2");
	CHECK_STR(scan("eth", 0, NULL), "eth0 eth1 eth2");
	/* Beside IPv4 it is not offered, and names no link. */
	add_address("eth1", UP, "10.0.0.5", 0);
	CHECK_STR(scan("=eth1", 0, NULL), "eth1");
	CHECK(devices[0].has_v4 && !devices[0].has_v6 && devices[0].scope_id == 0);
}

/* ------------------------------------------------------------------------------------------------
 * sysfs.
 */
static void make_parents(char *path)
{
	for (char *slash = strchr(path + strlen(sysfs) + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0755);
		*slash = '/';
	}
}

__attribute__((format(printf, 2, 3))) static void put_file(const char *text, const char *fmt, ...)
{
	char path[512];
	size_t used = (size_t)snprintf(path, sizeof(path), "%s/", sysfs);
	va_list args;
	FILE *file;

	va_start(args, fmt);
	vsnprintf(path + used, sizeof(path) - used, fmt, args);
	va_end(args);
	make_parents(path);
	file = fopen(path, "w");
	CHECK(file);
	if (file) {
		fputs(text, file);
		fclose(file);
	}
}

static void put_link(const char *target, const char *where)
{
	char from[512], to[512];

	snprintf(from, sizeof(from), "%s/%s", sysfs, where);
	snprintf(to, sizeof(to), "%s/%s", sysfs, target);
	make_parents(from);
	CHECK_EQ(symlink(to, from), 0);
}

/* An interface directory under devices/<where>/net/, with its name under class/net. */
static void put_interface(const char *where, const char *ifname, unsigned ifindex, uint8_t mac_tail,
			  const char *speed)
{
	char target[256], link[256], text[64];

	snprintf(text, sizeof(text), "%u\n", ifindex);
	put_file(text, "devices/%s/net/%s/ifindex", where, ifname);
	snprintf(text, sizeof(text), "02:11:22:33:44:%02x\n", mac_tail);
	put_file(text, "devices/%s/net/%s/address", where, ifname);
	put_file(speed, "devices/%s/net/%s/speed", where, ifname);
	snprintf(target, sizeof(target), "devices/%s/net/%s", where, ifname);
	snprintf(link, sizeof(link), "class/net/%s", ifname);
	put_link(target, link);
}

static void hardware_host(void)
{
	reset();
	add_link("mlx0", UP, 11, 11);
	add_link("vio0", UP, 12, 12);
	add_link("mlx0.7", UP, 13, 11);
	add_link("bond0", UP, 14, 14);
	add_link("port0", UP, 15, 14);
	add_link("other", UP, 16, 16);
	add_link("gone", UP, 17, 17);
	add_link("br0p", UP, 18, 18);
	add_link("stranger", UP, 19, 19);
	for (unsigned i = 0, links = entry_count; i < links; i++)
		add_address(entries[i].ifa_name, UP, "10.0.0.5", 0);

	put_interface("pci0000:3a/0000:3a:00.0/0000:3b:00.1", "mlx0", 11, 11, "100000\n");
	put_link("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1",
		 "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/net/mlx0/device");
	put_file("1\n", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/numa_node");
	put_interface("pci0000:00/0000:00:04.0/virtio1", "vio0", 12, 12, "-1\n");
	put_link("devices/pci0000:00/0000:00:04.0/virtio1",
		 "devices/pci0000:00/0000:00:04.0/virtio1/net/vio0/device");
	put_file("-1\n", "devices/pci0000:00/0000:00:04.0/numa_node");
	put_interface("virtual", "mlx0.7", 13, 11, "100000\n");
	put_link("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/net/mlx0",
		 "devices/virtual/net/mlx0.7/lower_mlx0");
	put_interface("virtual", "bond0", 14, 14, "50000\n");
	put_interface("pci0000:3a/0000:3c:00.0", "port0", 15, 14, "25000\n");
	put_link("devices/pci0000:3a/0000:3c:00.0",
		 "devices/pci0000:3a/0000:3c:00.0/net/port0/device");
	put_file("0\n", "devices/pci0000:3a/0000:3c:00.0/numa_node");
	put_file("", "devices/pci0000:3a/0000:3c:00.0/net/port0/bonding_slave/state");
	put_link("devices/virtual/net/none", "devices/virtual/net/bond0/lower_port1");
	put_link("devices/pci0000:3a/0000:3c:00.0/net/port0",
		 "devices/virtual/net/bond0/lower_port0");
	/* Of another namespace: same name, other interface. */
	put_interface("pci0000:3a/0000:3d:00.0", "stranger", 19, 77, "200000\n");
	put_link("devices/pci0000:3a/0000:3d:00.0",
		 "devices/pci0000:3a/0000:3d:00.0/net/stranger/device");
	put_interface("virtual", "br0p", 18, 18, "1000\n");
	put_file("", "devices/virtual/net/br0p/brport/state");
	put_interface("platform/soc", "other", 16, 16, "");
}

static const struct device *find(const char *ifname)
{
	for (unsigned i = 0; i < device_total; i++)
		if (!strcmp(devices[i].ifname, ifname))
			return &devices[i];
	fprintf(stderr, "%s was not chosen\n", ifname);
	check_failed();
	return &devices[0];
}

static void check_pci(const struct device *device, const char *below)
{
	char expected[512];

	snprintf(expected, sizeof(expected), "%s/%s", sysfs, below);
	CHECK_STR(device->pci_path, *below ? expected : "");
}

static void test_hardware(void)
{
	hardware_host();
	CHECK_STR(scan("", 0, NULL), "mlx0 vio0 mlx0.7 bond0 other gone stranger");
	CHECK_EQ(find("mlx0")->speed_mbps, 100000);
	CHECK_EQ(find("mlx0")->numa_node, 1);
	check_pci(find("mlx0"), "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
	/* virtio: its parent, and the default speed for -1. */
	CHECK_EQ(find("vio0")->speed_mbps, 10000);
	CHECK_EQ(find("vio0")->numa_node, -1);
	check_pci(find("vio0"), "devices/pci0000:00/0000:00:04.0");
	/* VLAN: the wire of the interface beneath. */
	check_pci(find("mlx0.7"), "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
	CHECK_EQ(find("mlx0.7")->numa_node, 1);
	CHECK(find("mlx0.7")->guid == find("mlx0")->guid);
	/* Bond: its own speed and guid, its first port's place. */
	CHECK_EQ(find("bond0")->speed_mbps, 50000);
	check_pci(find("bond0"), "devices/pci0000:3a/0000:3c:00.0");
	CHECK_EQ(find("bond0")->guid, 0x02112233440e000e);
	/* Nothing known. */
	CHECK_EQ(find("other")->speed_mbps, 10000);
	check_pci(find("other"), "");
	CHECK_EQ(find("gone")->speed_mbps, 10000);
	CHECK_EQ(find("gone")->mtu_bytes, 0);
	CHECK_EQ(find("gone")->numa_node, -1);
	CHECK_EQ(find("stranger")->speed_mbps, 10000);
	check_pci(find("stranger"), "");
	/* Ports of bonds and bridges only when named in whole. */
	CHECK_STR(scan("port,br", 0, NULL), "");
	CHECK_STR(scan("=port0", 0, NULL), "port0");
	CHECK_STR(scan("=br0p", 0, NULL), "br0p");
}

static void test_speed_override(void)
{
	struct plugin_config config = { .speed_mbps = 400000 };
	const struct device_host host = {
		.addresses = entries,
		.sysfs = sysfs,
		.mtu = fixed_mtu,
		.default_route = harp_host_has_default_route,
		.address_state = fixed_state,
	};

	device_total = device_scan(&host, &config, devices, 2);
	CHECK_EQ(device_total, 2);
	CHECK_EQ(devices[0].speed_mbps, 400000);
	CHECK_EQ(devices[1].speed_mbps, 400000);
}

/* ------------------------------------------------------------------------------------------------
 * What harpd leases.
 */
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

static const char *scan_leased(const struct plugin_config *config, uint64_t own)
{
	static char names[128];
	size_t used = 0;
	const struct device_host host = {
		.addresses = entries,
		.sysfs = sysfs,
		.mtu = fixed_mtu,
		.default_route = harp_host_has_default_route,
		.address_state = fixed_state,
		.leased = leased,
		.leased_count = leased_total,
		.netns = own,
	};

	device_total = device_scan(&host, config, devices, 8);
	names[0] = '\0';
	for (unsigned i = 0; i < device_total; i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s%s", i ? " " : "",
					 devices[i].ifname, devices[i].netns ? "*" : "");
	return names;
}

/* A container: loopback and a veth of its own; the NICs are the host's. */
static void container(void)
{
	reset();
	leased_total = 0;
	add_link("lo", UP | IFF_LOOPBACK, 1, 0);
	add_address("lo", UP | IFF_LOOPBACK, "127.0.0.1", 0);
	add_link("eth0", UP, 2, 2);
	add_address("eth0", UP, "172.17.0.2", 0);
}

static void test_leased_elsewhere(void)
{
	struct plugin_config config = { 0 };

	container();
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
	/* Who names an interface of ours gets that one; a speed that is set holds for all. */
	strcpy(config.ifname, "=eth0");
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	strcpy(config.ifname, "ens6");
	config.speed_mbps = 7;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens6*");
	CHECK_EQ(devices[0].speed_mbps, 7);
	/* Without a namespace's number to compare with, nobody's NIC is taken for another's. */
	config.ifname[0] = '\0';
	CHECK_STR(scan_leased(&config, 0), "eth0");
	config.path = PATH_KERNEL;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	config.path = PATH_AUTO;
	config.daemon = DAEMON_OFF;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
}

static void test_leased_here(void)
{
	struct plugin_config config = { 0 };

	/* The same interface, known twice over: offered once, and as ours. */
	container();
	add_leased("eth0", OUR_NETNS, 1);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	CHECK_EQ(devices[0].ifindex, 2);
	/* Another one of its name elsewhere: the name was meant for the NIC. */
	container();
	add_leased("eth0", NIC_NETNS, 1);
	strcpy(config.ifname, "eth0");
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0*");
}

static void test_leased_unusable(void)
{
	struct plugin_config config = { 0 };
	struct harp_lease_device *d;

	container();
	d = add_leased("ens5", NIC_NETNS, 1);
	d->queues_free = 0;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	d->queues_free = 1;
	d->flags = 0;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	d->flags = HARP_LEASE_DEVICE_UP | HARP_LEASE_DEVICE_DEFAULT_ROUTE;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	config.ifname_set = true; /* then it is named */
	strcpy(config.ifname, "ens5");
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5*");
	CHECK(devices[0].has_default_route);
	memset(config.ifname, 0, sizeof(config.ifname));
	/* No address, or none of the wanted family. */
	d->flags = HARP_LEASE_DEVICE_UP;
	config.family = AF_INET6;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "");
	memset(d->addr_v4, 0, sizeof(d->addr_v4));
	config.family = 0;
	CHECK_STR(scan_leased(&config, OUR_NETNS), "eth0");
	CHECK_EQ(inet_pton(AF_INET6, "fe80::5", d->addr_v6), 1);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5*");
	CHECK_EQ(devices[0].scope_id, d->ifindex);
	CHECK_EQ(inet_pton(AF_INET6, "fd00::5", d->addr_v6), 1);
	CHECK_STR(scan_leased(&config, OUR_NETNS), "ens5*");
	CHECK_EQ(devices[0].scope_id, 0);
}

static void test_uniqueness(void)
{
	scan("", 0, NULL);
	for (unsigned i = 0; i < device_total; i++) {
		for (unsigned j = 0; j < i; j++) {
			bool one_wire = !strcmp(devices[i].ifname, "mlx0.7") &&
					!strcmp(devices[j].ifname, "mlx0");

			CHECK(strcmp(devices[i].ifname, devices[j].ifname));
			CHECK((devices[i].guid == devices[j].guid) == one_wire);
		}
	}
}

int main(void)
{
	char remove[64];

	if (!mkdtemp(sysfs))
		return check_skip("no folder can be made in /tmp");
	test_names();
	test_choice();
	test_groups();
	test_addresses();
	test_v6_choice();
	test_hardware();
	test_speed_override();
	test_uniqueness();
	test_leased_elsewhere();
	test_leased_here();
	test_leased_unusable();
	snprintf(remove, sizeof(remove), "rm -rf %s", sysfs);
	CHECK_EQ(system(remove), 0);
	return check_done();
}
