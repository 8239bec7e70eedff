/* SPDX-License-Identifier: Apache-2.0 */
/* test_parallel.c - how many kernel lanes a comm has over a NIC, with a fake PCI function. */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "process/config.h"

static struct device device;
static struct plugin_config config;

const struct plugin_config *plugin_config(void)
{
	return &config;
}

/* Writes the PCI function's vendor file; NULL: removes it. */
static void write_vendor(const char *text)
{
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s/vendor", device.pci_path);
	unlink(path);
	if (!text)
		return;
	file = fopen(path, "w");
	CHECK(file && fputs(text, file) >= 0 && !fclose(file));
}

static void expect(const char *vendor, int nccl_threads, int nccl_sockets, unsigned lanes)
{
	unsigned got;

	config.nccl_threads = nccl_threads;
	config.nccl_sockets_per_thread = nccl_sockets;
	write_vendor(vendor);
	got = device_kernel_lanes(&device);
	CHECK_EQ(got, lanes);
}

TEST(the_vendor_decides_how_many_kernel_lanes)
{
	expect("0x1d0f\n", -1, -1, 16);
	expect("0x1ae0\n", -1, -1, 4);
	expect("0x8086\n", -1, -1, 1);
	expect(NULL, -1, -1, 1);
	expect("", -1, -1, 1);
	expect("ENA\n", -1, -1, 1);
}

TEST(NCCLs_variables_replace_the_vendor)
{
	expect("0x1d0f\n", 4, -1, 16); /* NCCL would use 32 sockets */
	expect("0x1d0f\n", -1, 2, 4);
	expect("0x1d0f\n", 0, -1, 1);
	expect("0x1ae0\n", -1, 3, 12);
	expect(NULL, 3, -1, 3);
	expect(NULL, 2, 8, 16);
	expect(NULL, -1, 8, 1); /* without threads, sockets do not count */
	expect(NULL, 99, 1, 16);
	expect(NULL, 2147483647, 2147483647, 16);
	expect(NULL, 2, 0, 1);
}

TEST(HARP_KERNEL_LANES_replaces_vendor_and_variables)
{
	config.kernel_lanes = 3;
	expect("0x1d0f\n", -1, -1, 3);
	expect(NULL, 2, 8, 3);
	config.kernel_lanes = 0;
}

TEST(a_device_without_a_PCI_function_has_one_lane)
{
	char path[sizeof(device.pci_path)];

	config.nccl_threads = config.nccl_sockets_per_thread = -1;
	snprintf(path, sizeof(path), "%s", device.pci_path);
	device.pci_path[0] = '\0';
	CHECK_EQ(device_kernel_lanes(&device), 1);
	snprintf(device.pci_path, sizeof(device.pci_path), "%s", path);
}

int main(void)
{
	snprintf(device.pci_path, sizeof(device.pci_path), "/tmp/harp-test-parallel-XXXXXX");
	CHECK(mkdtemp(device.pci_path));
	check_run();
	write_vendor(NULL);
	rmdir(device.pci_path);
	return check_done();
}
