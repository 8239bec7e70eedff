/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_drive_blind.c - a wait on a NIC without interrupts polls less and less often. libharp-dpdk.so is a double
 * (fake_dpdk.c).
 *
 * argv[1]: the folder of the double.
 */
#include "../../harp/native/drive.h"
#include "dpdk_rig.h"

#define WAIT_NS UINT64_C(300000000)
#define LOOKS_MAX                                                                                  \
	600u /* a look a millisecond, and those of the first milliseconds; 6000 at 50 us each */

static int never(void *ctx)
{
	return 0;
}

int main(int argc, char **argv)
{
	const struct drive_options opt = { .spin_ns = 0 };
	struct harp_instance *instance;
	struct drive_member member;
	struct drive *drive;
	uint64_t looks;

	if (argc != 2)
		return 1;
	lib_dir = argv[1];
	setenv("FAKE_DPDK_UP", "1", 1);
	instance = open_queue("dpdk:fake0;ip=10.0.0.1/24", 0);
	CHECK_EQ(harp_instance_fd(instance), -1);
	member = (struct drive_member){ .stack = harp_instance_stack(instance),
					.nic = harp_instance_nic(instance),
					.instance = instance };
	CHECK_EQ(drive_create(&drive, &member, 1, &opt), 0);
	looks = stat_of(instance, "polls");
	CHECK_EQ(drive_wait(drive, never, NULL, drive_now_ns() + WAIT_NS), -ETIMEDOUT);
	looks = stat_of(instance, "polls") - looks;
	CHECK(looks > 1);
	CHECK(looks < LOOKS_MAX);
	drive_stop(drive);
	drive_free(drive);
	harp_instance_close(instance);
	return check_done();
}
