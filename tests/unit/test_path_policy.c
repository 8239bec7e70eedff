/* SPDX-License-Identifier: Apache-2.0 */
/* test_path_policy.c - which messages prefer HARP lanes, by path, device, MTU and segmentation offload. */
#include "comm/path_policy.h"

#include "check.h"

static const struct device ethernet = { .mtu_bytes = 1500, .segments = true };

static uint64_t limit(const struct device *device, enum plugin_path path, uint32_t xdp_bytes_max)
{
	struct plugin_config config = { .path = path, .xdp_bytes_max = xdp_bytes_max };

	return path_policy_harp_bytes_max(device, &config);
}

static void test_forced_paths(void)
{
	CHECK_EQ(limit(&ethernet, PATH_KERNEL, 4096), 0);
	CHECK_EQ(limit(&ethernet, PATH_XDP, 4096), PATH_POLICY_ALL);
	CHECK_EQ(limit(&ethernet, PATH_DPDK, 4096), PATH_POLICY_ALL);
}

static void test_auto_by_mtu_and_offload(void)
{
	struct device device = ethernet;

	CHECK_EQ(limit(&device, PATH_AUTO, 0), 3000);
	device.segments = false;
	CHECK_EQ(limit(&device, PATH_AUTO, 0), 24000);
	device.mtu_bytes = 9000;
	CHECK_EQ(limit(&device, PATH_AUTO, 0), 144000);
	device.segments = true;
	CHECK_EQ(limit(&device, PATH_AUTO, 0), 18000);
	CHECK_EQ(limit(&device, PATH_AUTO, 777), 777);
}

/* The kernel has no sockets on these, whatever the limit. */
static void test_devices_of_harp_alone(void)
{
	struct device port = { .mtu_bytes = 1500, .dpdk = true }, leased = ethernet;

	leased.netns = 4026531840;
	CHECK_EQ(limit(&port, PATH_AUTO, 777), PATH_POLICY_ALL);
	CHECK_EQ(limit(&leased, PATH_AUTO, 777), PATH_POLICY_ALL);
}

int main(void)
{
	test_forced_paths();
	test_auto_by_mtu_and_offload();
	test_devices_of_harp_alone();
	return check_done();
}
