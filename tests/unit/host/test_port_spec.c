/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_port_spec.c - the text of a DPDK port is parsed, refused with a reason, or formatted. A port
 * whose interface has the default route is refused unless the text allows it. For that, the default
 * route of a network namespace is set to lo, and a folder replaces the PCI devices of /sys.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "harp_host.h"
#include "host/dpdk_take.h"

static struct harp_port_spec parse(const char *text)
{
	struct harp_port_spec spec, copy;
	char why[320], formatted[HARP_PORT_TEXT_MAX];
	int rc = harp_port_spec_parse(text, &spec, why, sizeof(why));

	if (rc)
		fprintf(stderr, "%s: %s\n", text, why);
	CHECK_EQ(rc, 0);
	CHECK_STR(why, "");
	CHECK(harp_port_spec_format(&spec, formatted, sizeof(formatted)) > 0);
	CHECK_EQ(harp_port_spec_parse(formatted, &copy, NULL, 0), 0);
	CHECK(memcmp(&spec, &copy, sizeof(spec)) == 0);
	return spec;
}

static void check_addr(const struct harp_addr *addr, const char *text)
{
	char buf[HARP_ADDR_TEXT_MAX];

	CHECK_STR(harp_addr_format(addr, buf), text);
}

TEST(a_device_alone_has_defaults)
{
	struct harp_port_spec spec = parse("0000:3b:00.0"), zero = { .queues = 1 };

	CHECK_STR(spec.device, "0000:3b:00.0");
	CHECK_STR(spec.name, "0000:3b:00.0");
	CHECK_EQ(spec.queues, 1u);
	strcpy(zero.device, spec.device);
	strcpy(zero.name, spec.name);
	CHECK(memcmp(&spec, &zero, sizeof(spec)) == 0);
}

TEST(every_key_is_parsed)
{
	struct harp_port_spec spec = parse(
		"net_memif0,role=client,id=0,socket=/run/m.sock;ip=10.9.0.1/24;ip=fd00:9::1/64;"
		"gw=10.9.0.254;gw=fd00:9::fe;route=10.1.2.3/16@10.9.0.253;route=fd01::/16@fe80::1;"
		"mtu=9000;vlan=5;queues=4;frames=4096;name=left;take=default-route");

	CHECK_STR(spec.device, "net_memif0,role=client,id=0,socket=/run/m.sock");
	CHECK_STR(spec.name, "left");
	CHECK_EQ(spec.mtu_bytes, 9000u);
	CHECK_EQ(spec.vlan_id, 5u);
	CHECK_EQ(spec.queues, 4u);
	CHECK_EQ(spec.frame_count, 4096u);
	CHECK(spec.take_default_route);
	CHECK_EQ(spec.address_count, 2u);
	check_addr(&spec.addresses[0], "10.9.0.1");
	CHECK_EQ(spec.prefix_lens[0], 24u);
	check_addr(&spec.addresses[1], "fd00:9::1");
	CHECK_EQ(spec.prefix_lens[1], 64u);
	check_addr(&spec.gateway_v4, "10.9.0.254");
	check_addr(&spec.gateway_v6, "fd00:9::fe");
	CHECK_EQ(spec.route_count, 2u);
	check_addr(&spec.routes[0].prefix, "10.1.0.0");
	CHECK_EQ(spec.routes[0].prefix_len, 16u);
	check_addr(&spec.routes[0].gateway, "10.9.0.253");
	check_addr(&spec.routes[1].gateway, "fe80::1");
}

TEST(a_long_device_gives_a_short_name)
{
	struct harp_port_spec spec = parse("a_device_with_a_long_name,x=1");

	CHECK_STR(spec.name, "a_device_with_a");
}

/* The port's text is refused, and the error contains `reason`. */
static void check_refused(const char *text, const char *reason)
{
	struct harp_port_spec spec, zero = { .queues = 1 };
	char why[320] = "";

	memset(&spec, 0xa5, sizeof(spec));
	CHECK_EQ(harp_port_spec_parse(text, &spec, why, sizeof(why)), -EINVAL);
	if (!strstr(why, reason))
		fprintf(stderr, "%s: \"%s\" does not contain \"%s\"\n", text, why, reason);
	CHECK(strstr(why, reason) != NULL);
	CHECK(strncmp(why, "DPDK port ", 10) == 0);
	CHECK(!strchr(why, '\n'));
	CHECK(memcmp(&spec, &zero, sizeof(spec)) == 0);
	CHECK_EQ(harp_port_spec_parse(text, &spec, NULL, 0), -EINVAL);
}

TEST(invalid_texts_are_refused)
{
	static const char *const cases[][2] = {
		{ "", "a device of 1 to 511 bytes" },
		{ ";ip=10.0.0.1/8", "a device of 1 to 511 bytes" },
		{ ",role=client", "a device of 1 to 511 bytes" },
		{ "d;", "\"\": KEY=VALUE expected" },
		{ "d;;mtu=1500", "\"\": KEY=VALUE expected" },
		{ "d;mtu", "\"mtu\": KEY=VALUE expected" },
		{ "d;mut=1500", "mut=1500: no such key; keys are ip, gw, route, name" },
		{ "d;=1500", "no such key" },
		{ "d;mtu=", "mtu=: needs a number in 68..16000" },
		{ "d;mtu=67", "mtu=67: needs a number in 68..16000" },
		{ "d;mtu=16001", "68..16000" },
		{ "d;mtu=+1500", "68..16000" },
		{ "d;mtu=0x600", "68..16000" },
		{ "d;mtu=4294968796", "68..16000" },
		{ "d;mtu=99999999999999999999", "68..16000" },
		{ "d;mtu=1500;mtu=1500", "mtu=1500: repeated" },
		{ "d;vlan=0", "vlan=0: needs a number in 1..4094" },
		{ "d;vlan=4095", "1..4094" },
		{ "d;queues=0", "queues=0: needs a number in 1..64" },
		{ "d;queues=65", "1..64" },
		{ "d;frames=255", "frames=255: needs a number in 256..1048576" },
		{ "d;ip=10.0.0.1", "ip=10.0.0.1: needs ADDRESS/LEN" },
		{ "d;ip=10.0.0.1/", "ADDRESS/LEN" },
		{ "d;ip=10.0.0.1/33", "ADDRESS/LEN" },
		{ "d;ip=fd00::1/129", "ADDRESS/LEN" },
		{ "d;ip=10.0.0/8", "ADDRESS/LEN" },
		{ "d;ip=10.0.0.1/8/8", "ADDRESS/LEN" },
		{ "d;ip=/24", "ADDRESS/LEN" },
		{ "d;ip=224.0.0.1/8", "not a host's address" },
		{ "d;ip=127.0.0.1/8", "not a host" },
		{ "d;ip=0.0.0.0/8", "not a host" },
		{ "d;ip=::/8", "not a host" },
		{ "d;ip=::1/128", "not a host" },
		{ "d;ip=ff02::1/64", "not a host" },
		{ "d;ip=10.0.0.1/8;ip=10.0.0.1/16", "ip=10.0.0.1/16: repeated" },
		{ "d;ip=10.0.0.1/8;gw=10.0.0", "gw=10.0.0: needs a router's address" },
		{ "d;ip=10.0.0.1/8;gw=0.0.0.0", "a router's address" },
		{ "d;ip=10.0.0.1/8;gw=10.0.0.2;gw=10.0.0.3",
		  "gw=10.0.0.3: repeated; each family has one" },
		{ "d;ip=10.0.0.1/8;gw=fd00::1", "the gateway fd00::1: the port has no address" },
		{ "d;gw=10.0.0.1", "the gateway 10.0.0.1: the port has no address" },
		{ "d;route=10.1.0.0/16@10.0.0.1", "the gateway 10.0.0.1: the port has no address" },
		{ "d;route=10.1.0.0/16", "route=10.1.0.0/16: needs PREFIX/LEN@GATEWAY" },
		{ "d;route=10.1.0.0@10.0.0.1", "PREFIX/LEN@GATEWAY" },
		{ "d;route=10.1.0.0/16@fd00::1", "PREFIX/LEN@GATEWAY of one family" },
		{ "d;route=10.1.0.0/16@", "PREFIX/LEN@GATEWAY" },
		{ "d;route=0.0.0.0/0@10.0.0.1", "set the default route with gw=" },
		{ "d;ip=10.0.0.1/8;route=11.1.0.0/16@10.0.0.2;route=11.1.9.9/16@10.0.0.3",
		  "repeated route to this prefix" },
		{ "d;ip=fd00::1/64;mtu=1279", "mtu=1279: IPv6 needs at least 1280" },
		{ "d;take=all", "take=all: default-route is the only value" },
		{ "d;name=", "name=: needs 1 to 15 letters" },
		{ "d;name=sixteen_bytes_xx", "1 to 15 letters" },
		{ "d;name=a/b", "1 to 15 letters" },
		{ "a/b", "the device is not a valid name" },
		{ "d;mtu= 1500", "byte 7 of its text: spaces" },
		{ "d;mtu=1500\n", "byte 11 of its text" },
		{ "d\xc3\xa9", "byte 2 of its text" },
		{ "d\ne;mtu=1", "byte 2 of its text" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_refused(cases[i][0], cases[i][1]);
}

TEST(addresses_and_routes_are_bounded)
{
	char text[HARP_PORT_TEXT_MAX], formatted[HARP_PORT_TEXT_MAX];
	struct harp_port_spec spec, copy;
	size_t len = (size_t)snprintf(text, sizeof(text), "net_tap0,iface=dtap0");
	int used;

	for (unsigned i = 0; i < HARP_PORT_ADDRESSES_MAX; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, ";ip=fd00:%x::1/64", i + 1);
	for (unsigned i = 0; i < HARP_PORT_ROUTES_MAX; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len,
					";route=fd01:%x::/32@fe80::%x", i + 1, i + 1);
	spec = parse(text);
	CHECK_EQ(spec.address_count, HARP_PORT_ADDRESSES_MAX);
	CHECK_EQ(spec.route_count, HARP_PORT_ROUTES_MAX);
	used = harp_port_spec_format(&spec, formatted, sizeof(formatted));
	CHECK_EQ(used, (int)strlen(formatted));
	copy = parse(formatted);
	CHECK(memcmp(&spec, &copy, sizeof(spec)) == 0);
	CHECK_EQ(harp_port_spec_format(&spec, formatted, (size_t)used + 1), used);
	for (size_t size = 0; size <= (size_t)used; size++)
		CHECK_EQ(harp_port_spec_format(&spec, formatted, size), -ENOSPC);
	snprintf(text + len, sizeof(text) - len, ";ip=fd99::1/64");
	check_refused(text, "ip=fd99::1/64: a port has at most 15 addresses");
	snprintf(text + len, sizeof(text) - len, ";route=fd99::/32@fe80::1");
	check_refused(text, "a port has at most 32 routes");
}

TEST(lengths_are_bounded)
{
	static char text[HARP_PORT_TEXT_MAX + 64], formatted[HARP_PORT_TEXT_MAX];
	struct harp_port_spec spec;

	memset(text, 'd', HARP_PORT_DEVICE_MAX - 1);
	spec = parse(text);
	CHECK_EQ(strlen(spec.device), HARP_PORT_DEVICE_MAX - 1u);
	CHECK(harp_port_spec_format(&spec, formatted, sizeof(formatted)) > 0);
	text[HARP_PORT_DEVICE_MAX - 1] = 'd';
	check_refused(text, "a device of 1 to 511 bytes");
	memset(text, 'd', HARP_PORT_TEXT_MAX);
	check_refused(text, "the text has more than 8191 bytes");
}

/* ---- ports of the default route -------------------------------------------------------------- */

static char folder[] = "/tmp/harp-test-take-XXXXXX";
static char why[512];
static bool in_namespace; /* this process has its own network namespace, which needs root */

/* Creates a PCI device with an interface; NULL: bound to vfio-pci. */
static void create_pci(const char *address, const char *ifname)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, address);
	CHECK_EQ(mkdir(path, 0755), 0);
	if (!ifname)
		return;
	snprintf(path, sizeof(path), "%s/%s/net", folder, address);
	CHECK_EQ(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/%s/net/%s", folder, address, ifname);
	CHECK_EQ(mkdir(path, 0755), 0);
}

static int check_take(const char *text)
{
	struct harp_port_spec spec;

	CHECK_EQ(harp_port_spec_parse(text, &spec, why, sizeof(why)), 0);
	strcpy(why, "unchanged");
	return dpdk_take_check_at(&spec, folder, why, sizeof(why));
}

TEST(a_pci_port_of_the_default_route_is_refused)
{
	if (!in_namespace)
		return;
	CHECK_EQ(check_take("0000:00:06.0,txq_inline=64;ip=10.0.0.1/8"), -EBUSY);
	CHECK(!strncmp(why, "0000:00:06.0: ", 14));
	CHECK(strstr(why, "interface lo") && strstr(why, "take=default-route"));
	CHECK_EQ(check_take("00:06.0;name=a"), -EBUSY);
	CHECK_EQ(check_take("0000:00:06.0;take=default-route"), 0);
	CHECK_STR(why, "");
	CHECK_EQ(check_take("0000:00:07.0"), 0); /* another interface */
	CHECK_EQ(check_take("0000:00:08.0"), 0); /* bound to vfio-pci */
	CHECK_EQ(check_take("0000:00:09.0"), 0); /* no such device: DPDK reports it */
	CHECK_EQ(check_take("0000:00:06.00;name=a"), -EBUSY);
}

TEST(a_virtual_port_of_the_default_route_is_refused)
{
	if (!in_namespace)
		return;
	CHECK_EQ(check_take("net_af_packet0,iface=lo"), -EBUSY);
	CHECK(!strncmp(why, "net_af_packet0: ", 16));
	CHECK_EQ(check_take("net_af_xdp1,start_queue=0,iface=lo,queue_count=1"), -EBUSY);
	CHECK_EQ(check_take("net_pcap0,rx_iface=lo"), -EBUSY);
	CHECK_EQ(check_take("net_tap0,iface=dtap0,remote=lo"), -EBUSY);
	CHECK_EQ(check_take("net_af_packet0,iface=lo;take=default-route"), 0);
	CHECK_EQ(check_take("net_af_packet0,iface=nosuch0"), 0);
	CHECK_EQ(check_take("net_af_packet0,iface=lo0123456789abcdef"), 0);
	CHECK_EQ(check_take("net_memif0,role=client,id=0,socket=/run/lo"), 0);
	CHECK_EQ(check_take("net_pcap0,rx_pcap=lo,,=,iface"), 0);
}

int main(void)
{
	char command[64];

	in_namespace = unshare(CLONE_NEWNET) == 0;
	if (in_namespace) {
		CHECK(mkdtemp(folder) != NULL);
		create_pci("0000:00:06.0", "lo");
		create_pci("0000:00:07.0", "eth9");
		create_pci("0000:00:08.0", NULL);
		CHECK_EQ(check_take("0000:00:06.0"), 0); /* no default route yet */
		CHECK_EQ(system("ip link set lo up && ip route add default dev lo"), 0);
	}
	check_run();
	if (in_namespace) {
		CHECK_EQ(system("ip route del default dev lo && ip -6 route add default dev lo"),
			 0);
		CHECK_EQ(check_take("0000:00:06.0"), -EBUSY);
		snprintf(command, sizeof(command), "rm -r %s", folder);
		CHECK_EQ(system(command), 0);
	}
	return check_done();
}
