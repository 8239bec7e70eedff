/* SPDX-License-Identifier: Apache-2.0 */
/* test_rails.c - which NICs of this host are paired with which NICs of the peer, and which lanes a
 * comm plans over them. */
#include <errno.h>
#include <stdio.h>

#include "check.h"
#include "connect/connector.h"
#include "device/device.h"
#include "process/config.h"

static struct plugin_config config = { .lanes = 1, .rails = RAILS_BACKUP };
static struct device devices[5];
static int device_count;
static unsigned kernel_lanes = 1;

const struct plugin_config *plugin_config(void)
{
	return &config;
}

int plugin_device_count(void)
{
	return device_count;
}

const struct device *plugin_device(int dev)
{
	return dev >= 0 && dev < device_count ? &devices[dev] : NULL;
}

unsigned device_kernel_lanes(const struct device *device)
{
	return kernel_lanes;
}

static void add_device(uint32_t speed_mbps, int numa_node, const char *pci_path)
{
	struct device *device = &devices[device_count];

	*device = (struct device){ .speed_mbps = speed_mbps, .numa_node = numa_node };
	snprintf(device->ifname, sizeof(device->ifname), "eth%d", device_count++);
	snprintf(device->pci_path, sizeof(device->pci_path), "%s", pci_path);
}

TEST(the_nearest_devices_come_first)
{
	int out[RAILS_MAX];

	device_count = 0;
	add_device(100000, 0, "pci0000:00/0000:00:01.0/0000:01:00.0");
	add_device(100000, 1, "pci0000:80/0000:80:01.0/0000:81:00.0");
	add_device(10000, 0, "pci0000:00/0000:00:02.0/0000:02:00.0");
	add_device(100000, 0, "pci0000:00/0000:00:01.0/0000:01:00.1");
	config.rails = RAILS_OWN;
	CHECK_EQ(rails_devices(1, out), 1);
	CHECK_EQ(out[0], 1);
	config.rails = RAILS_BACKUP;
	CHECK_EQ(rails_devices(0, out), 2);
	CHECK_EQ(out[1], 3); /* same speed, node and bridge */
	config.rails = RAILS_ALL;
	CHECK_EQ(rails_devices(0, out), 4);
	CHECK_EQ(out[2], 1); /* speed counts more than distance */
	CHECK_EQ(out[3], 2);
	devices[3].has_default_route = true;
	CHECK_EQ(rails_devices(0, out), 4);
	CHECK_EQ(out[3], 3); /* the NIC of the default route comes last */
	snprintf(devices[1].ifname, sizeof(devices[1].ifname), "lo");
	CHECK_EQ(rails_devices(0, out), 3);
}

TEST(a_comm_is_multi_lane_by_configuration)
{
	device_count = 0;
	add_device(100000, 0, "");
	config = (struct plugin_config){ .lanes = 1, .rails = RAILS_BACKUP };
	kernel_lanes = 1;
	CHECK(rails_are_multi_lane(0, true)); /* one lane of each kind */
	CHECK(!rails_are_multi_lane(0, false));
	config.path = PATH_XDP;
	CHECK(!rails_are_multi_lane(0, true));
	config.lanes = 2;
	CHECK(rails_are_multi_lane(0, true));
	config.path = PATH_DPDK;
	CHECK(rails_are_multi_lane(0, true));
	config.path = PATH_KERNEL;
	CHECK(!rails_are_multi_lane(0, true));
	kernel_lanes = 4;
	CHECK(rails_are_multi_lane(0, true));
	config.path = PATH_AUTO;
	kernel_lanes = 1;
	add_device(100000, 0, "");
	CHECK(rails_are_multi_lane(0, false));   /* over two NICs */
	devices[0].netns = devices[1].netns = 7; /* another namespace: HARP lanes only */
	CHECK(rails_are_multi_lane(0, true));
	CHECK(!rails_are_multi_lane(0, false));
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* NIC n is interface 10 + n, the peer's has 10.0.n.7. The third byte of an address is the number of
 * the NIC that its route uses. prepare() does not reset all_*. */
static struct connector connector;
static bool has_engines[4], engines_reach, has_harp, has_kernel;
static int route_rc, all_routes_rc;
static bool route_is_local, all_reach;

struct engine_set *interface_engines(int dev, char *why, size_t why_len)
{
	static struct engine_set set;

	return has_engines[dev] ? &set : NULL;
}

bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len)
{
	return engines_reach || all_reach;
}

int harp_host_route(const struct harp_addr *dst, struct harp_host_route *out)
{
	*out = (struct harp_host_route){ .ifindex = 10u + dst->bytes[14],
					 .is_local = route_is_local };
	return route_rc ? route_rc : all_routes_rc;
}

void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES])
{
	out->count = engines ? has_harp : has_kernel;
}

static void add_nic(void)
{
	uint8_t number = (uint8_t)connector.nic_count++;

	connector.nics[number] = (struct nic_endpoints){
		.addr[NIC_V4] = harp_addr_v4(10, 0, number, 7),
		.kernel_port[NIC_V4] = (uint16_t)(4000 + number),
	};
}

/* A comm between NIC 0 and the peer's NIC 0; each NIC has engines. */
static void prepare(enum plugin_rails rails, unsigned nics)
{
	config = (struct plugin_config){ .path = PATH_AUTO, .lanes = 2, .rails = rails };
	kernel_lanes = 3;
	device_count = 0;
	for (unsigned i = 0; i < nics; i++) {
		add_device(100000, 0, "");
		devices[i].ifindex = 10 + i;
		devices[i].has_v4 = true;
	}
	memset(&connector, 0, sizeof(connector));
	memset(has_engines, true, sizeof(has_engines));
	engines_reach = route_is_local = false;
	has_harp = has_kernel = true;
	route_rc = 0;
	connector.first_harp = true;
	add_nic();
}

/* Rails as text: this host's NIC and the peer's, b for a backup. ours, theirs: how many NICs. */
static void expect_rails(enum plugin_rails rails, unsigned ours, unsigned theirs, const char *want)
{
	char got[4 * RAILS_MAX] = "";
	size_t used = 0;

	prepare(rails, ours);
	while (connector.nic_count < theirs)
		add_nic();
	connector_plan(&connector);
	for (unsigned i = 0; i < connector.rail_count; i++) {
		const struct connector_rail *rail = &connector.rails[i];

		used += (size_t)snprintf(got + used, sizeof(got) - used, "%s%d%u%s", i ? " " : "",
					 rail->dev, (unsigned)(rail->nic - connector.nics),
					 rail->backup ? "b" : "");
	}
	CHECK_STR(got, want);
}

TEST(rails_share_no_NIC_if_there_is_another)
{
	expect_rails(RAILS_OWN, 4, 4, "00");
	expect_rails(RAILS_BACKUP, 4, 4, "00 11b");
	expect_rails(RAILS_ALL, 4, 4, "00 11 22 33");
	expect_rails(RAILS_ALL, 4, 1, "00");
	/* No route between the others. */
	all_routes_rc = -ENETUNREACH;
	expect_rails(RAILS_ALL, 4, 4, "00");
	/* One side has fewer NICs. */
	all_reach = true;
	expect_rails(RAILS_ALL, 1, 4, "00 01");
	expect_rails(RAILS_ALL, 2, 1, "00 10");
	all_reach = false;
	all_routes_rc = 0;
}

/* Lanes as text: rail and kind of each. */
static void expect_lanes(const char *want)
{
	char got[2 * COMM_LANES_MAX + 1] = "";

	connector_plan(&connector);
	for (unsigned i = 0; i < connector.lane_count; i++) {
		CHECK_EQ(connector.lanes[i].index, i);
		got[2 * i] = (char)('0' + connector.lanes[i].rail);
		got[2 * i + 1] = connector.lanes[i].harp ? 'h' : 'k';
	}
	CHECK_STR(got, want);
}

TEST(a_rail_has_lanes_of_each_kind_with_a_candidate)
{
	static const struct {
		bool engines, has_harp, has_kernel, first_harp;
		enum plugin_path path;
		uint64_t netns;
		const char *want;
	} cases[] = {
		{ true, true, true, true, PATH_AUTO, 0, "0h0h0k0k0k" },
		{ true, true, true, false, PATH_AUTO, 0, "0k0h0h0k0k" },
		{ false, true, true, false, PATH_AUTO, 0, "0k0k0k" },
		{ true, false, true, false, PATH_AUTO, 0, "0k0k0k" },
		{ true, true, false, true, PATH_AUTO, 0, "0h0h" },
		{ true, true, true, true, PATH_XDP, 0, "0h0h" },
		{ true, true, true, true, PATH_DPDK, 0, "0h0h" },
		{ true, true, true, true, PATH_AUTO, 77, "0h0h" },
		/* No candidate is left: the first lane stays in the plan. */
		{ true, false, false, false, PATH_AUTO, 0, "0k" },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		prepare(RAILS_OWN, 1);
		has_engines[0] = cases[i].engines;
		has_harp = cases[i].has_harp;
		has_kernel = cases[i].has_kernel;
		connector.first_harp = cases[i].first_harp;
		config.path = cases[i].path;
		devices[0].netns = cases[i].netns;
		expect_lanes(cases[i].want);
	}
}

TEST(each_rail_connects_to_a_NIC_that_the_peer_advertised)
{
	prepare(RAILS_ALL, 3);
	has_engines[1] = false;
	add_nic();
	add_nic();
	expect_lanes("0h0h0k0k0k"
		     "1k1k1k"
		     "2h2h2k2k2k");
	CHECK_EQ(connector.rail_count, 3);
	prepare(RAILS_BACKUP, 3);
	add_nic();
	connector_plan(&connector);
	CHECK_EQ(connector.rail_count, 2);
	CHECK(!connector.rails[0].backup && connector.rails[1].backup);
}

TEST(a_rail_needs_a_route_from_its_NIC)
{
	static const struct {
		bool engines_reach, has_v4, is_local;
		int route_rc;
		uint64_t netns;
		unsigned rails;
	} cases[] = {
		{ false, true, false, 0, 0, 2 }, { false, false, false, 0, 0, 1 },
		{ false, true, true, 0, 0, 1 },  { false, true, false, -ENETUNREACH, 0, 1 },
		{ false, true, false, 0, 7, 1 }, { true, true, false, -ENETUNREACH, 7, 2 },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		prepare(RAILS_ALL, 2);
		add_nic();
		engines_reach = cases[i].engines_reach;
		route_is_local = cases[i].is_local;
		route_rc = cases[i].route_rc;
		devices[1].has_v4 = cases[i].has_v4;
		devices[1].netns = cases[i].netns;
		connector_plan(&connector);
		CHECK_EQ(connector.rail_count, cases[i].rails);
	}
}

TEST(kernel_lanes_of_the_first_rail_are_bound_if_the_route_uses_its_NIC)
{
	prepare(RAILS_OWN, 1);
	connector_plan(&connector);
	CHECK(connector.rails[0].bound);
	prepare(RAILS_OWN, 1);
	connector.nics[0].addr[NIC_V4].bytes[14] = 1;
	connector_plan(&connector);
	CHECK(!connector.rails[0].bound);
	prepare(RAILS_OWN, 1);
	route_rc = -ENETUNREACH;
	connector_plan(&connector);
	CHECK(!connector.rails[0].bound);
	prepare(RAILS_OWN, 1); /* a link-local address has no route of its own */
	memset(connector.nics[0].addr, 0, sizeof(connector.nics[0].addr));
	connector.nics[0].addr[NIC_V6] = (struct harp_addr){ { 0xfe, 0x80 } };
	connector_plan(&connector);
	CHECK(!connector.rails[0].bound);
}
