/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_hardware.c - hardware properties of interfaces, from a fake sysfs in a temporary
 * directory. */
#include "device_rig.h"
#include "process/config.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void put_link(const char *target, const char *path)
{
	char from[512], to[512];

	snprintf(from, sizeof(from), "%s/%s", sysfs, path);
	snprintf(to, sizeof(to), "%s/%s", sysfs, target);
	make_parents(from);
	CHECK_EQ(symlink(to, from), 0);
}

/* Creates the interface's directory in devices/<parent>/net, and the link to it in class/net. */
static void put_interface(const char *parent, const char *ifname, unsigned ifindex,
			  uint8_t mac_tail, const char *speed)
{
	char target[256], link[256], text[64];

	snprintf(text, sizeof(text), "%u\n", ifindex);
	put_file(text, "devices/%s/net/%s/ifindex", parent, ifname);
	snprintf(text, sizeof(text), "02:11:22:33:44:%02x\n", mac_tail);
	put_file(text, "devices/%s/net/%s/address", parent, ifname);
	put_file(speed, "devices/%s/net/%s/speed", parent, ifname);
	snprintf(target, sizeof(target), "devices/%s/net/%s", parent, ifname);
	snprintf(link, sizeof(link), "class/net/%s", ifname);
	put_link(target, link);
}

static void build_hardware_host(void)
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
	add_link("foreign", UP, 19, 19);
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
	put_file("", "bus/virtio/drivers/virtio_net/bind");
	put_link("bus/virtio/drivers/virtio_net", "devices/pci0000:00/0000:00:04.0/virtio1/driver");
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
	/* An interface of another namespace that has the same name. */
	put_interface("pci0000:3a/0000:3d:00.0", "foreign", 19, 77, "200000\n");
	put_link("devices/pci0000:3a/0000:3d:00.0",
		 "devices/pci0000:3a/0000:3d:00.0/net/foreign/device");
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

TEST(hardware_is_described_from_sysfs)
{
	build_hardware_host();
	CHECK_STR(scan("", 0, NULL), "mlx0 vio0 mlx0.7 bond0 other gone foreign");
	CHECK_EQ(find("mlx0")->speed_mbps, 100000);
	CHECK_EQ(find("mlx0")->numa_node, 1);
	check_pci(find("mlx0"), "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
	/* virtio: the PCI function of its parent, and a speed for cloud NICs instead of -1. */
	CHECK_STR(find("vio0")->driver, "virtio_net");
	CHECK_EQ(find("vio0")->speed_mbps, 25000);
	CHECK(find("vio0")->speed_is_assumed && !find("mlx0")->speed_is_assumed);
	CHECK_EQ(find("vio0")->numa_node, -1);
	check_pci(find("vio0"), "devices/pci0000:00/0000:00:04.0");
	/* VLAN: the hardware of its lower interface. */
	check_pci(find("mlx0.7"), "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
	CHECK_EQ(find("mlx0.7")->numa_node, 1);
	CHECK(find("mlx0.7")->guid == find("mlx0")->guid);
	/* Bond: its own speed and guid, the PCI function of its first port. */
	CHECK_EQ(find("bond0")->speed_mbps, 50000);
	check_pci(find("bond0"), "devices/pci0000:3a/0000:3c:00.0");
	CHECK_EQ(find("bond0")->guid, 0x02112233440e000e);
	/* Defaults, without information in sysfs. */
	CHECK_EQ(find("other")->speed_mbps, 10000);
	check_pci(find("other"), "");
	CHECK_EQ(find("gone")->speed_mbps, 10000);
	CHECK_EQ(find("gone")->mtu_bytes, 0);
	CHECK_EQ(find("gone")->numa_node, -1);
	CHECK_EQ(find("foreign")->speed_mbps, 10000);
	check_pci(find("foreign"), "");
	/* Ports of bonds and bridges are used only if named in full. */
	CHECK_STR(scan("port,br", 0, NULL), "");
	CHECK_STR(scan("=port0", 0, NULL), "port0");
	CHECK_STR(scan("=br0p", 0, NULL), "br0p");
}

TEST(HARP_SPEED_MBPS_replaces_the_speed)
{
	struct plugin_config config = { .speed_mbps = 400000 };

	device_total = device_scan(&base_host, &config, devices, 2);
	CHECK_EQ(device_total, 2);
	CHECK_EQ(devices[0].speed_mbps, 400000);
	CHECK_EQ(devices[1].speed_mbps, 400000);
}

TEST(only_a_VLAN_shares_the_guid_of_its_lower_interface)
{
	scan("", 0, NULL);
	for (unsigned i = 0; i < device_total; i++) {
		for (unsigned j = 0; j < i; j++) {
			bool is_vlan_pair = !strcmp(devices[i].ifname, "mlx0.7") &&
					    !strcmp(devices[j].ifname, "mlx0");

			CHECK(strcmp(devices[i].ifname, devices[j].ifname));
			CHECK((devices[i].guid == devices[j].guid) == is_vlan_pair);
		}
	}
}

int main(void)
{
	char remove[64];

	if (!mkdtemp(sysfs))
		return check_skip("cannot create a directory in /tmp");
	check_run();
	snprintf(remove, sizeof(remove), "rm -rf %s", sysfs);
	CHECK_EQ(system(remove), 0);
	return check_done();
}
