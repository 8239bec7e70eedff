/* SPDX-License-Identifier: Apache-2.0 */
/* test_af_xdp_link.c - what an interface's driver tells of AF_XDP on it. */
#include "check.h"
#include "nic/af_xdp_link.h"

static bool is_stacked(const char *driver)
{
	struct af_xdp_link link = { 0 };

	snprintf(link.driver, sizeof(link.driver), "%s", driver);
	return af_xdp_link_is_stacked(&link);
}

TEST(bonds_teams_and_vlans_are_stacked)
{
	CHECK(is_stacked("bonding"));
	CHECK(is_stacked("team"));
	CHECK(is_stacked("802.1Q VLAN Support"));
	CHECK(!is_stacked("veth"));
	CHECK(!is_stacked("mlx5_core"));
	CHECK(!is_stacked(""));
}
