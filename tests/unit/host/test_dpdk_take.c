/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dpdk_take.c - a DPDK port by whose interface the default route leaves is not taken unless
 * its text says so. In a network namespace whose default route leaves by lo, with PCI devices of a
 * folder of ours.
 */
#include <errno.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "host/dpdk_take.h"

static char folder[] = "/tmp/harp-test-take-XXXXXX";
static char why[512];

/* A PCI device with that interface; NULL: bound to vfio-pci. */
static void pci(const char *address, const char *ifname)
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

static int take(const char *text)
{
	struct harp_port_spec spec;

	CHECK_EQ(harp_port_spec_parse(text, &spec, why, sizeof(why)), 0);
	strcpy(why, "as before");
	return dpdk_take_check_at(&spec, folder, why, sizeof(why));
}

TEST(a_pci_port_of_the_default_route_is_refused)
{
	CHECK_EQ(take("0000:00:06.0,txq_inline=64;ip=10.0.0.1/8"), -EBUSY);
	CHECK(!strncmp(why, "0000:00:06.0: ", 14));
	CHECK(strstr(why, "interface lo") && strstr(why, "take=default-route"));
	CHECK_EQ(take("00:06.0;name=a"), -EBUSY);
	CHECK_EQ(take("0000:00:06.0;take=default-route"), 0);
	CHECK_STR(why, "");
	CHECK_EQ(take("0000:00:07.0"), 0); /* another interface */
	CHECK_EQ(take("0000:00:08.0"), 0); /* bound to vfio-pci */
	CHECK_EQ(take("0000:00:09.0"), 0); /* not there: DPDK says it better */
	CHECK_EQ(take("0000:00:06.00;name=a"), -EBUSY);
}

TEST(a_virtual_port_of_the_default_route_is_refused)
{
	CHECK_EQ(take("net_af_packet0,iface=lo"), -EBUSY);
	CHECK(!strncmp(why, "net_af_packet0: ", 16));
	CHECK_EQ(take("net_af_xdp1,start_queue=0,iface=lo,queue_count=1"), -EBUSY);
	CHECK_EQ(take("net_pcap0,rx_iface=lo"), -EBUSY);
	CHECK_EQ(take("net_tap0,iface=dtap0,remote=lo"), -EBUSY);
	CHECK_EQ(take("net_af_packet0,iface=lo;take=default-route"), 0);
	CHECK_EQ(take("net_af_packet0,iface=nosuch0"), 0);
	CHECK_EQ(take("net_af_packet0,iface=lo0123456789abcdef"), 0);
	CHECK_EQ(take("net_memif0,role=client,id=0,socket=/run/lo"), 0);
	CHECK_EQ(take("net_pcap0,rx_pcap=lo,,=,iface"), 0);
}

static int by_lo(void)
{
	return system("ip link set lo up && ip route add default dev lo");
}

int main(void)
{
	char command[64];

	if (unshare(CLONE_NEWNET) < 0)
		return check_skip("a network namespace of its own needs root");
	CHECK(mkdtemp(folder) != NULL);
	pci("0000:00:06.0", "lo");
	pci("0000:00:07.0", "eth9");
	pci("0000:00:08.0", NULL);
	CHECK_EQ(take("0000:00:06.0"), 0); /* nothing leaves by lo yet */
	CHECK_EQ(by_lo(), 0);
	check_run();
	CHECK_EQ(system("ip route del default dev lo && ip -6 route add default dev lo"), 0);
	CHECK_EQ(take("0000:00:06.0"), -EBUSY);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	CHECK_EQ(system(command), 0);
	return check_done();
}
