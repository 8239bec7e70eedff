/* SPDX-License-Identifier: Apache-2.0 */
/* ports_open.c - starts DPDK and opens ports, also repeatedly, after a fork, with bad options. */
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <rte_log.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ports.h"

/* After ten of fifty rounds, neither the heap nor the number of descriptors grows. */
TEST(reopening_leaks_nothing)
{
	size_t used = 0;
	unsigned fds = 0;

	for (unsigned i = 0; i < 50; i++) {
		struct end end;

		end_open(&end, i & 1 ? "net_ring0" : "net_null0", 0);
		end_fill(&end, 512);
		if (i & 1)
			CHECK(end_transfer(&end, &end, 200, 1514, 1));
		end_close(&end);
		if (i == 9) {
			used = mallinfo2().uordblks;
			fds = count_fds();
		}
	}
	CHECK(mallinfo2().uordblks <= used + 4096);
	CHECK_EQ(count_fds(), fds);
}

static void check_refused(const char *device, int err, const char *text)
{
	struct harp_dpdk_port *port;
	int rc = port_try(&port, device, 0);

	if (rc != err || !strstr(why, text)) {
		fprintf(stderr, "%s: %d, %s\n", device, rc, why);
		check_failed();
	}
	CHECK(strncmp(why, device, strcspn(device, ",")) == 0); /* it names the device */
}

/* A stale socket would be replaced; a directory is not. */
static void check_directory_refused(void)
{
	char folder[] = "/tmp/harp-dpdk-XXXXXX", path[64], device[128];

	CHECK(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/m.sock", folder);
	CHECK_EQ(mkdir(path, 0700), 0);
	snprintf(device, sizeof(device), "net_memif0,role=server,socket=%s,socket-abstract=no",
		 path);
	check_refused(device, -EEXIST, "another type");
	CHECK_EQ(rmdir(path) | rmdir(folder), 0);
}

static void check_long_refused(void)
{
	char path[200], device[1200];

	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	snprintf(device, sizeof(device), "net_memif0,socket=%s", path);
	check_refused(device, -EINVAL, "1 to 107 characters");
	memset(device, 'x', sizeof(device) - 1);
	device[sizeof(device) - 1] = '\0';
	memcpy(device, "net_memif0,secret=", strlen("net_memif0,secret="));
	check_refused(device, -EINVAL, "too long");
}

TEST(invalid_device_names_are_refused)
{
	struct end end;

	check_directory_refused();
	check_long_refused();
	check_refused("net_nonsense0", -ENODEV, "driver");
	check_refused("", -EINVAL, "PCI address");
	check_refused(",", -EINVAL, "PCI address");
	check_refused("ffff:ff:1f.6", -ENODEV, "");
	check_refused("net_memif0,role=emperor", -EINVAL, "");
	check_refused("net_memif0,nonsense=1", -EINVAL, "");
	check_refused("net_memif0,socket=", -EINVAL, "1 to 107 characters");
	check_refused("net_memif0,socket=x,socket-abstract=yes", -EINVAL, "open to every user");
	check_refused("net_memif0,role=server,socket-abstract=perhaps", -EINVAL,
		      "open to every user");
	check_refused("net_memif0,secret=a,id=1,secret=b", -EINVAL, "repeated argument: secret=");
	check_refused("net_memif0,role=server,socket=/nonexistent/own/m.sock,socket-abstract=no",
		      -ENOENT, "/nonexistent/own cannot be created: No such file");
	check_refused("net_af_packet0,iface=nosuchif0", -ENODEV, "nosuchif0");
	/* Afterwards a valid name works. */
	end_open(&end, "net_ring0", 0);
	check_refused("net_ring0", -EBUSY, "open in this process");
	end_close(&end);
}

static unsigned log_lines, log_summaries;

static void count_logs(void *ctx, enum harp_log_level level, const char *line)
{
	(void)ctx;
	log_lines += level == HARP_LOG_INFO && strstr(line, "a packet was lost") != NULL;
	log_summaries += strstr(line, "99990 more lines of DPDK were dropped") != NULL;
}

/* A driver may log each lost packet. Ten lines are forwarded, the others are counted. */
TEST(driver_logs_are_rate_limited)
{
	const struct harp_dpdk_eal_options opt = { .size = sizeof(opt), .log = count_logs };
	struct end end;

	CHECK_EQ(api->start(&opt, why, sizeof(why)), 0);
	end_open(&end, "net_ring0", 0);
	for (unsigned i = 0; i < 100000; i++)
		rte_log(RTE_LOG_ERR, RTE_LOGTYPE_PMD, "a packet was lost, number %u\n", i);
	CHECK_EQ(log_lines, 10);
	end_close(&end);
	CHECK_EQ(log_summaries, 1);
}

TEST(a_queue_has_one_user_at_a_time)
{
	struct harp_nic *second;
	struct end end;

	end_open(&end, "net_ring0", 0);
	CHECK_EQ(api->port_nic(end.port, 0, &second, why, sizeof(why)), -EBUSY);
	CHECK_EQ(api->port_nic(end.port, 1, &second, why, sizeof(why)), -EINVAL);
	end_fill(&end, 512);
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	/* The next user of the queue finds all frames free. */
	harp_nic_destroy(end.nic);
	end_open_queue(&end);
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	end_close(&end);
}

static int start_dpdk(uint32_t huge_pages, uint32_t memory_mib, const char *args)
{
	const struct harp_dpdk_eal_options opt = {
		.size = sizeof(opt),
		.huge_pages = huge_pages,
		.memory_mib = memory_mib,
		.args = args,
	};

	return api->start(&opt, why, sizeof(why));
}

TEST(conflicting_options_are_refused)
{
	struct end end;

	CHECK_EQ(start_dpdk(3, 0, NULL), -EINVAL);
	CHECK_EQ(start_dpdk(2, 1u << 30, NULL), -ENOMEM); /* no host has a PiB of huge pages */
	CHECK(strstr(why, "nr_hugepages"));
	/* A secondary process would wait forever for a primary that has died. */
	CHECK_EQ(start_dpdk(1, 64, "--proc-type=secondary"), -EINVAL);
	CHECK(strstr(why, "--proc-type"));
	CHECK_EQ(start_dpdk(1, 64, "--no-pci --proc-type auto"), -EINVAL);
	CHECK_EQ(start_dpdk(1, 64, "--pro=secondary"), -EINVAL);
	CHECK_EQ(start_dpdk(1, 64, "--proc-type"), -EINVAL);
	CHECK_EQ(start_dpdk(1, 64, "--proc-type primary"), 0);
	CHECK_EQ(start_dpdk(1, 64, NULL), 0);
	CHECK_EQ(start_dpdk(0, 0, NULL), 0);
	CHECK_EQ(start_dpdk(2, 0, NULL), -EALREADY);
	CHECK_EQ(start_dpdk(0, 128, NULL), -EALREADY);
	CHECK_EQ(start_dpdk(0, 0, "--no-hpet"), -EALREADY);
	end_open(&end, "net_ring0", 0);
	end_close(&end);
}

/* When EAL refuses its arguments, the error names them. A second start suggests a new process. */
TEST(invalid_eal_arguments_are_named)
{
	CHECK_EQ(start_dpdk(1, 64, "--no-such-argument"), -EIO);
	CHECK(strstr(why, "remove from HARP_DPDK_ARGS") && strstr(why, ": --no-such-argument"));
	CHECK_EQ(start_dpdk(1, 64, NULL), -EIO);
	CHECK(strstr(why, "in a new process") && strstr(why, "--no-such-argument"));
}

TEST(a_port_uses_huge_pages)
{
	struct harp_instance_port info;
	struct end end;
	int err = start_dpdk(2, 64, NULL);

	if (err == -ENOMEM)
		_exit(check_skip("64 MiB of huge pages are not free: sysctl vm.nr_hugepages=128"));
	CHECK_EQ(err, 0);
	end_open(&end, "net_ring0", 0);
	api->port_info(end.port, &info);
	CHECK_EQ(info.huge_pages, 1);
	CHECK(end_transfer(&end, &end, 10000, 1514, 1));
	CHECK_EQ(end.errors, 0);
	end_close(&end);
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* A forked child gets an error that gives the reason; the parent's port still works. */
TEST(a_forked_child_cannot_open_ports)
{
	struct end end;
	pid_t child;
	int status = 0;

	end_open(&end, "net_ring0", 0);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		struct harp_dpdk_port *port;
		int err = port_try(&port, "net_ring1", 0);

		_exit(err == -ENXIO && strstr(why, "fork") ? 0 : 1);
	}
	waitpid(child, &status, 0);
	CHECK_EQ(status, 0);
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	end_close(&end);
}

/* Counts this process's descriptors of tap devices. */
static int count_taps(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int taps = 0;

	while (dir && (entry = readdir(dir)) != NULL) {
		char target[64] = { 0 };

		if (readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1) > 0)
			taps += strcmp(target, "/dev/net/tun") == 0;
	}
	if (dir)
		closedir(dir);
	return taps;
}

/* Counts this process's mapped rings of packet sockets. */
static int count_rings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int rings = 0;

	while (maps && fgets(line, sizeof(line), maps))
		rings += strstr(line, "socket:[") != NULL;
	if (maps)
		fclose(maps);
	return rings;
}

/* Counts in a forked child. */
static int count_in_child(int (*count)(void))
{
	int status = 0;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (child == 0)
		_exit(count());
	waitpid(child, &status, 0);
	return WEXITSTATUS(status);
}

TEST(a_forked_child_keeps_no_device)
{
	struct end end;

	if (unshare(CLONE_NEWNET) != 0 || access("/dev/net/tun", R_OK | W_OK) != 0)
		_exit(CHECK_SKIP); /* needs root */
	end_open(&end, "net_tap0,iface=harpforked", 0);
	CHECK(count_taps() > 0);
	CHECK_EQ(count_in_child(count_taps), 0);
	CHECK(count_taps() > 0); /* the parent keeps its own */
	end_close(&end);
	CHECK_EQ(count_taps(), 0);
	end_open(&end, "net_af_packet0,iface=lo", 0);
	CHECK(count_rings() > 0);
	CHECK_EQ(count_in_child(count_rings), 0);
	end_close(&end);
	CHECK_EQ(count_rings(), 0);
}
