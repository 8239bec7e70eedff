/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_port.c - DPDK ports as devices: those of HARP_DPDK and of harpd, and the list of
 * devices if some cannot be opened. Opening a port is a double; interfaces are this host's (lo).
 */
#include "device/scan.h"

#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "device/daemon.h"
#include "process/log.h"
#include "process/config.h"

static struct plugin_config config;
static struct harp_lease_device leased[4];
static unsigned leased_count;
static char warning[16384], info[16384];
static unsigned warnings;

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	va_list args;

	char *text = level == PLUGIN_WARN ? warning : info; /* all lines since configure() */
	size_t used = strlen(text);

	warnings += level == PLUGIN_WARN;
	va_start(args, fmt);
	vsnprintf(text + used, sizeof(warning) - used, fmt, args);
	va_end(args);
}

const struct plugin_config *plugin_config(void)
{
	return &config;
}

const struct harp_lease_device *plugin_daemon_devices(unsigned *count)
{
	*count = leased_count;
	return leased;
}

uint64_t plugin_netns(void)
{
	return 4026531840u;
}

int harp_host_has_default_route(const char *ifname)
{
	return 0;
}

int harp_host_address_state(const char *ifname, const struct harp_addr *addr)
{
	return HARP_ADDRESS_PREFERRED;
}

/* ---- ports to open --------------------------------------------------------------------------- */

static struct device ports[4]; /* of the calls of record_port() */
static unsigned port_count;

static void configure(enum plugin_path path, const char *dpdk)
{
	memset(&config, 0, sizeof(config));
	config.path = path;
	config.instances = 1;
	snprintf(config.dpdk, sizeof(config.dpdk), "%s", dpdk);
	leased_count = 0;
	warnings = 0;
	warning[0] = info[0] = '\0';
}

static int record_port(int dev, struct harp_instance_port *out, char *why, size_t why_len)
{
	ports[port_count++] = *plugin_device(dev);
	snprintf(why, why_len, "only recorded");
	return -ENODEV;
}

/* Records the ports to open. Without a usable interface, the load fails and can be repeated. */
static unsigned record_ports(void)
{
	port_count = 0;
	warnings = 0;
	warning[0] = info[0] = '\0';
	if (!config.ifname[0]) {
		strcpy(config.ifname, "no-such-nic");
		config.ifname_is_nccl = true;
	}
	CHECK(plugin_devices_load(record_port) < 0);
	return port_count;
}

static struct harp_lease_device *add_leased(const char *name, uint32_t queues_free)
{
	struct harp_lease_device *d = &leased[leased_count++];
	struct harp_addr v4 = harp_addr_v4(10, 9, 0, 7);

	memset(d, 0, sizeof(*d));
	snprintf(d->ifname, sizeof(d->ifname), "%s", name);
	d->flags = HARP_LEASE_DEVICE_DPDK;
	d->queues = 2;
	d->queues_free = queues_free;
	d->numa_node = 1;
	d->guid = 77;
	d->speed_mbps = 25000;
	d->mtu_bytes = 9000;
	memcpy(d->addr_v4, v4.bytes, sizeof(d->addr_v4));
	return d;
}

TEST(ports_of_HARP_DPDK_are_devices)
{
	configure(PATH_AUTO, "  net_memif0,role=client;ip=10.9.0.1/24;ip=fe80::9/64;ip=fd00::1/64 "
			     "0000:3b:00.0;ip=10.9.1.1/24;name=fast;queues=4;mtu=9000 ");
	config.instances = 2;
	CHECK_EQ(record_ports(), 2);
	CHECK_STR(ports[0].ifname, "net_memif0");
	CHECK_STR(ports[0].port,
		  "net_memif0,role=client;ip=10.9.0.1/24;ip=fe80::9/64;ip=fd00::1/64");
	CHECK(ports[0].dpdk && ports[0].has_v4 && ports[0].has_v6);
	CHECK_EQ(ports[0].addr_v4.bytes[15], 1);
	/* The address that is not link-local. */
	CHECK_EQ(ports[0].addr_v6.bytes[0], 0xfd);
	CHECK_EQ(ports[0].queues, 2); /* HARP_INSTANCES */
	CHECK_EQ(ports[0].ifindex, 0);
	CHECK_STR(ports[1].ifname, "fast");
	CHECK_EQ(ports[1].queues, 4); /* queues=4 is greater */
	CHECK_EQ(ports[1].mtu_bytes, 9000);
	CHECK(ports[0].netns && ports[1].netns);
}

TEST(a_bad_HARP_DPDK_is_an_error)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{ "net_memif0;ip=10.9.0.1",
		  "HARP_DPDK=\"net_memif0;ip=10.9.0.1\" is not understood" },
		{ "a;ip=10.0.0.1/8 b;ip=10.0.0.2/8;name=a", "two ports a" },
		{ "a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G",
		  "more than 32 ports" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		configure(PATH_AUTO, cases[i].text);
		CHECK_EQ(plugin_devices_load(record_port), -EINVAL);
		CHECK(strstr(warning, cases[i].message));
		port_count = 0;
	}
	configure(PATH_AUTO, "   ");
	CHECK_EQ(record_ports(), 0);
	CHECK_EQ(plugin_ports_refused(), 0);
}

TEST(a_port_has_addresses_of_the_configured_family)
{
	configure(PATH_AUTO, "a;ip=10.9.0.1/24 b;ip=fd00::1/64 c");
	CHECK_EQ(record_ports(), 2);
	CHECK_EQ(plugin_ports_refused(), 3);
	CHECK(strstr(warning, "DPDK port c is not used"));
	CHECK(strstr(warning, "no IP address") && strstr(warning, ";ip=ADDRESS/LENGTH"));
	config.family = AF_INET6;
	CHECK_EQ(record_ports(), 1);
	CHECK_STR(ports[0].ifname, "b");
	CHECK(strstr(warning, "no IPv6 address"));
	config.family = AF_INET;
	CHECK_EQ(record_ports(), 1);
	CHECK(ports[0].has_v4 && !ports[0].has_v6);
	CHECK(strstr(warning, "no IPv4 address"));
}

TEST(HARP_IFNAME_chooses_ports)
{
	configure(PATH_AUTO, "net_memif0;ip=10.9.0.1/24 net_ring0;ip=10.9.1.1/24");
	strcpy(config.ifname, "net_ring");
	CHECK_EQ(record_ports(), 1);
	CHECK_STR(ports[0].ifname, "net_ring0");
	CHECK(strstr(info, "net_memif0") && strstr(info, "HARP_IFNAME"));
	strcpy(config.ifname, "^=net_ring0,eth0");
	config.path = PATH_DPDK; /* interfaces are ignored */
	CHECK_EQ(record_ports(), 1);
	CHECK_STR(ports[0].ifname, "net_memif0");
	/* NCCL_SOCKET_IFNAME selects no port. */
	config.path = PATH_AUTO;
	config.ifname[0] = '\0';
	CHECK_EQ(record_ports(), 2);
}

TEST(ports_of_harpd_are_devices)
{
	configure(PATH_AUTO, "a;ip=10.9.0.1/24");
	add_leased("fast0", 2);
	add_leased("fast1", 0);
	add_leased("a", 1);
	leased[leased_count++] = leased[0]; /* queues of a NIC, not a port */
	leased[3].flags = HARP_LEASE_DEVICE_UP;
	config.instances = 8;
	CHECK_EQ(record_ports(), 2);
	CHECK_STR(ports[0].port, "a;ip=10.9.0.1/24"); /* HARP_DPDK has priority */
	CHECK_STR(ports[1].ifname, "fast0");
	CHECK(ports[1].dpdk && !ports[1].port);
	CHECK_EQ(ports[1].queues, 2); /* all of them */
	CHECK_EQ(ports[1].guid, 77);
	CHECK_EQ(ports[1].numa_node, 1);
	CHECK_EQ(ports[1].speed_mbps, 25000);
	CHECK(ports[1].has_v4 && !ports[1].has_v6);
	CHECK(strstr(warning, "DPDK port fast1 is not used") && strstr(warning, "another process"));
	memset(leased[0].addr_v4, 0, sizeof(leased[0].addr_v4));
	CHECK_EQ(record_ports(), 1);
	CHECK(strstr(warning, "no IP address"));
}

/* ---- properties of an open port -------------------------------------------------------------- */

TEST(an_open_port_sets_properties_of_its_device)
{
	char sysfs[] = "/tmp/harp-test-port-XXXXXX", command[512], real[256];
	const struct harp_instance_port memif = {
		.driver = "net_memif",
		.mac = { 2, 0, 0, 0, 0, 5 },
		.numa_node = -1,
		.speed_mbps = 100000,
		.mtu_bytes = 1500,
	};
	struct harp_instance_port card = memif;
	struct device device = { .numa_node = -1, .dpdk = true };

	configure(PATH_AUTO, "");
	device_port_opened(&device, &memif, &config, "/sys", 3);
	CHECK_STR(device.driver, "net_memif");
	CHECK_EQ(device.speed_mbps, 100000);
	CHECK_EQ(device.mtu_bytes, 1500);
	CHECK_EQ(device.guid, 0x020000000005ull << 16 | 3);
	CHECK_EQ(device.netns, device.guid | 1ull << 63);
	CHECK_EQ(device.numa_node, -1);
	CHECK_STR(device.pci_path, "");
	/* Without a speed, NCCL's default is used; HARP_SPEED_MBPS replaces both. */
	card.speed_mbps = 0;
	device = (struct device){ .numa_node = -1 };
	device_port_opened(&device, &card, &config, "/sys", 0);
	CHECK_EQ(device.speed_mbps, 10000);
	config.speed_mbps = 7;
	device_port_opened(&device, &memif, &config, "/sys", 0);
	CHECK_EQ(device.speed_mbps, 7);
	CHECK(mkdtemp(sysfs));
	snprintf(command, sizeof(command),
		 "cd %s && mkdir -p devices/pci0000:3a/0000:3b:00.0 bus/pci/devices && "
		 "echo 1 >devices/pci0000:3a/0000:3b:00.0/numa_node && "
		 "ln -s ../../../devices/pci0000:3a/0000:3b:00.0 bus/pci/devices/0000:3b:00.0",
		 sysfs);
	CHECK_EQ(system(command), 0);
	strcpy(card.pci, "0000:3b:00.0");
	device = (struct device){ .numa_node = -1, .guid = 9 };
	device_port_opened(&device, &card, &config, sysfs, 0);
	snprintf(real, sizeof(real), "%s/devices/pci0000:3a/0000:3b:00.0", sysfs);
	CHECK_STR(device.pci_path, real);
	CHECK_EQ(device.numa_node, 1);
	CHECK_EQ(device.guid, 9); /* harpd's */
	strcpy(card.pci, "../../../etc");
	device = (struct device){ .numa_node = -1 };
	device_port_opened(&device, &card, &config, sysfs, 0);
	CHECK_STR(device.pci_path, "");
	snprintf(command, sizeof(command), "rm -rf %s", sysfs);
	CHECK_EQ(system(command), 0);
}

/* ---- the list of devices --------------------------------------------------------------------- */

static unsigned opens;
static const char *bad_port; /* cannot be opened */

static int open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len)
{
	const struct device *device = plugin_device(dev);

	opens++;
	CHECK(device && device->dpdk);
	if (!device)
		return -EINVAL;
	if (bad_port && !strcmp(device->ifname, bad_port)) {
		snprintf(why, why_len, "no such device");
		return -ENODEV;
	}
	memset(out, 0, sizeof(*out));
	out->numa_node = -1;
	out->mac[5] = (uint8_t)dev;
	out->speed_mbps = 40000;
	return 0;
}

static int load(void)
{
	opens = 0;
	return plugin_devices_load(open_port);
}

static void check_load_fails(int rc, const char *message)
{
	CHECK_EQ(load(), rc);
	CHECK_EQ(warnings, 1);
	CHECK(strstr(warning, message));
	CHECK_EQ(plugin_device_count(), 0);
	CHECK(!plugin_device(0));
}

/* A failed load leaves no state, so the next one starts from the beginning. */
TEST(a_load_that_fails_leaves_no_device)
{
	configure(PATH_DPDK, "");
	check_load_fails(-EPROTONOSUPPORT, "there is no DPDK port: name one in HARP_DPDK");
	configure(PATH_DPDK, "a;ip=10.0.0.1/8");
	strcpy(config.ifname, "b");
	check_load_fails(-EPROTONOSUPPORT, "HARP_IFNAME must let its name through");
	configure(PATH_DPDK, "a;ip=10.0.0.1/8 b;ip=10.0.0.2/8");
	bad_port = "b";
	check_load_fails(-EPROTONOSUPPORT,
			 "HARP_PATH=dpdk, but DPDK port b cannot be used: no such device");
	CHECK_EQ(opens, 2);
	configure(PATH_DPDK, "a");
	check_load_fails(-EPROTONOSUPPORT, "no IP address");
	CHECK_EQ(opens, 0);
	configure(PATH_AUTO, "a;");
	check_load_fails(-EINVAL, "not understood");
}

/* In a separate process, because a successful load is permanent. */
static void run_in_child(void (*test)(void))
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		check_failures = 0;
		test();
		_exit(check_failures != 0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void check_path_kernel_opens_no_port(void)
{
	configure(PATH_KERNEL, "a;ip=10.0.0.1/8");
	strcpy(config.ifname, "=lo");
	CHECK_EQ(load(), 0);
	CHECK_EQ(opens, 0);
	CHECK_EQ(plugin_device_count(), 1);
	CHECK_STR(plugin_device(0)->ifname, "lo");
	CHECK(strstr(info, "HARP_PATH=kernel") && strstr(info, "not used"));
	CHECK_EQ(plugin_ports_refused(), 0);
}

static void check_interface_replaces_bad_ports(void)
{
	configure(PATH_AUTO, "a;ip=10.0.0.1/8 b");
	strcpy(config.ifname, "=lo");
	config.ifname_set = config.ifname_is_nccl = true;
	bad_port = "a";
	CHECK_EQ(load(), 0);
	CHECK_EQ(warnings, 2);
	CHECK(strstr(warning, "DPDK port b is not used") && strstr(warning, "no IP address"));
	CHECK_EQ(plugin_device_count(), 1);
	CHECK_STR(plugin_device(0)->ifname, "lo");
	CHECK(!plugin_device(0)->dpdk && !plugin_device(0)->netns);
	CHECK_EQ(plugin_ports_refused(), 2);
	/* The next load has the same devices, and opens no port. */
	CHECK_EQ(load(), 0);
	CHECK_EQ(opens, 0);
}

static void check_bad_port_is_left_out(void)
{
	configure(PATH_AUTO, "a;ip=10.0.0.1/8 b;ip=10.0.0.2/8 c;ip=10.0.0.3/8");
	strcpy(config.ifname, "=lo");
	config.ifname_set = config.ifname_is_nccl = true;
	bad_port = "b";
	CHECK_EQ(load(), 0);
	CHECK_EQ(plugin_device_count(), 2); /* without lo, which NCCL's bootstrap uses */
	CHECK_STR(plugin_device(0)->ifname, "a");
	CHECK_STR(plugin_device(1)->ifname, "c");
	CHECK_EQ(plugin_device(1)->addr_v4.bytes[15], 3);
	CHECK(plugin_device(0)->guid != plugin_device(1)->guid);
	CHECK(plugin_device(0)->netns != plugin_device(1)->netns);
	CHECK_EQ(plugin_ports_refused(), 1);
	/* The next load must open all ports that NCCL knows. */
	CHECK_EQ(load(), 0);
	CHECK_EQ(opens, 2);
	bad_port = "c";
	CHECK_EQ(load(), -EPROTONOSUPPORT);
	CHECK(strstr(warning, "DPDK port c, which NCCL knows as device 1"));
	CHECK_EQ(plugin_device_count(), 2);
}

static void check_port_named_lo(void)
{
	configure(PATH_AUTO, "a;ip=10.0.0.1/8 lo;ip=10.0.0.2/8");
	strcpy(config.ifname, "=a,lo");
	config.ifname_set = true;
	bad_port = NULL;
	CHECK_EQ(load(), 0);
	CHECK_EQ(plugin_device_count(), 2); /* the name lo means the port */
	CHECK(plugin_device(0)->dpdk && plugin_device(1)->dpdk);
}

static void check_port_and_interface(void)
{
	configure(PATH_AUTO, "a;ip=10.0.0.1/8");
	strcpy(config.ifname, "=lo,a");
	config.ifname_set = true;
	bad_port = NULL;
	CHECK_EQ(load(), 0);
	CHECK_EQ(plugin_device_count(), 2);
	CHECK_STR(plugin_device(0)->ifname, "a");
	CHECK_STR(plugin_device(1)->ifname, "lo");
}

int main(void)
{
	check_run();
	run_in_child(check_path_kernel_opens_no_port);
	run_in_child(check_interface_replaces_bad_ports);
	run_in_child(check_bad_port_is_left_out);
	run_in_child(check_port_named_lo);
	run_in_child(check_port_and_interface);
	return check_done();
}
