/* SPDX-License-Identifier: Apache-2.0 */
/* test_device.c - which interfaces become devices, with which addresses. */
#include "device_rig.h"

/* Loopback, four NICs, one of them down, docker, a bridge. */
static void build_usual_host(void)
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

TEST(names_match_as_in_NCCL_SOCKET_IFNAME)
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

TEST(named_interfaces_are_chosen)
{
	build_usual_host();
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

/* A group of the default order is used only if the groups before it are empty. */
TEST(the_best_group_is_the_default)
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

TEST(the_first_usable_address_of_a_family_is_used)
{
	static const uint8_t link_local[16] = { 0xfe, 0x80, [15] = 7 };
	char text[INET6_ADDRSTRLEN];

	build_usual_host();
	add_address("eth0:1", UP, "10.0.0.99", 0);
	add_address("eth0", UP, "fd00::6", 0);
	CHECK_STR(scan("eth", 0, NULL), "eth0 eth1 eth10");
	CHECK(devices[0].has_v4 && devices[0].has_v6);
	CHECK_EQ(devices[0].addr_v4.bytes[15], 5);
	CHECK_STR(inet_ntop(AF_INET6, devices[0].addr_v4.bytes, text, sizeof(text)),
		  "::ffff:10.0.0.5");
	CHECK_STR(inet_ntop(AF_INET6, devices[0].addr_v6.bytes, text, sizeof(text)), "fd00::5");
	/* A link-local address only if there is no other. */
	CHECK(devices[1].has_v4 && !devices[1].has_v6);
	CHECK(!devices[2].has_v4 && devices[2].has_v6 &&
	      harp_addr_is_link_local(&devices[2].addr_v6));
	CHECK_MEM(devices[2].addr_v6.bytes, link_local, 16);
	scan("", AF_INET, NULL);
	CHECK(devices[0].has_v4 && !devices[0].has_v6);
	scan("=eth0", AF_INET6, NULL);
	CHECK(!devices[0].has_v4 && devices[0].has_v6);
	CHECK_EQ(devices[0].ifindex, 4);
	CHECK_EQ(devices[0].mtu_bytes, 9000);
	CHECK(devices[0].has_default_route);
	scan("eth1", 0, NULL);
	CHECK(!devices[0].has_default_route);
}

/* The kernel's order of the addresses does not matter. */
TEST(the_IPv6_address_that_lasts_longest_is_chosen)
{
	static const char *const by_preference[] = { "fd00::d0",   "fd00::1e", "fe80::de",
						     "fe80::1",    "fd00::de", "fd00::7e",
						     "2001:db8::1" };
	char text[INET6_ADDRSTRLEN];

	for (unsigned best = 0; best < 7; best++) {
		for (unsigned reversed = 0; reversed < 2; reversed++) {
			reset();
			for (unsigned i = 0; i <= best; i++)
				add_address("eth0", UP, by_preference[reversed ? best - i : i], 4);
			CHECK_STR(scan("", 0, NULL), best < 2 ? "" : "eth0");
			if (best < 2)
				continue;
			CHECK_STR(inet_ntop(AF_INET6, devices[0].addr_v6.bytes, text, sizeof(text)),
				  by_preference[best]);
			CHECK_EQ(harp_addr_is_link_local(&devices[0].addr_v6), best < 4);
		}
	}
	/* The first of equal addresses; all are equal if the kernel reports no states. */
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
	/* With an IPv4 address, the link-local one is not used. */
	add_address("eth1", UP, "10.0.0.5", 0);
	CHECK_STR(scan("=eth1", 0, NULL), "eth1");
	CHECK(devices[0].has_v4 && !devices[0].has_v6);
}
