/* SPDX-License-Identifier: Apache-2.0 */
/* test_cores.c - what cgroups leave a process, from folders made for it; what affinity leaves this one. */
#include "process/cores.h"

#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static char root[] = "/tmp/test_cores-XXXXXX";

static void put(const char *folder, const char *file, const char *text)
{
	char path[PATH_MAX];
	FILE *stream;

	snprintf(path, sizeof(path), "%s%s", root, folder);
	for (char *slash = strchr(path + strlen(root) + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(path, 0700);
		*slash = '/';
	}
	(void)mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s%s/%s", root, folder, file);
	stream = fopen(path, "w");
	CHECK(stream != NULL);
	fputs(text, stream);
	fclose(stream);
}

static unsigned cores_with(const char *proc_cgroup)
{
	char path[PATH_MAX];

	put("", "cgroup", proc_cgroup);
	snprintf(path, sizeof(path), "%s/cgroup", root);
	return cores_of_cgroup(path, root);
}

static void test_version_2(void)
{
	CHECK_EQ(cores_with("0::/\n"), 0);
	put("/none", "cpu.max", "max 100000\n");
	CHECK_EQ(cores_with("0::/none\n"), 0);
	put("/a", "cpu.max", "400000 100000\n");
	CHECK_EQ(cores_with("0::/a\n"), 4);
	/* The tightest of the way up counts; a part of a core is a core. */
	put("/a/b", "cpu.max", "max 100000\n");
	put("/a/b/c", "cpu.max", "250000 100000\n");
	CHECK_EQ(cores_with("0::/a/b\n"), 4);
	CHECK_EQ(cores_with("0::/a/b/c\n"), 3);
	/* A container's path may not be there. */
	CHECK_EQ(cores_with("0::/a/elsewhere/d\n"), 4);
	put("/tiny", "cpu.max", "1000 100000\n");
	CHECK_EQ(cores_with("0::/tiny\n"), 1);
}

static void test_version_1(void)
{
	put("/cpu/job", "cpu.cfs_quota_us", "200000\n");
	put("/cpu/job", "cpu.cfs_period_us", "100000\n");
	CHECK_EQ(cores_with("4:memory:/job\n2:cpuset:/job\n1:cpu,cpuacct:/job\n0::/\n"), 2);
	put("/cpu/free", "cpu.cfs_quota_us", "-1\n");
	put("/cpu/free", "cpu.cfs_period_us", "100000\n");
	CHECK_EQ(cores_with("1:cpu:/free\n"), 0);
	CHECK_EQ(cores_with("1:memory:/job\n"), 0);
}

static void test_nonsense(void)
{
	CHECK_EQ(cores_with(""), 0);
	CHECK_EQ(cores_with("no colons at all\n"), 0);
	CHECK_EQ(cores_with("0::\n"), 0);
	CHECK_EQ(cores_with("0:cpu\n"), 0);
	put("/odd", "cpu.max", "12 0\n");
	CHECK_EQ(cores_with("0::/odd\n"), 0);
	put("/odd", "cpu.max", "four 100000\n");
	CHECK_EQ(cores_with("0::/odd\n"), 0);
	CHECK_EQ(cores_of_cgroup("/nonexistent", root), 0);
}

static void test_affinity(void)
{
	cpu_set_t all, one;
	unsigned first = 0;

	CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
	CHECK(cores_usable() >= 1 && cores_usable() <= (unsigned)CPU_COUNT(&all));
	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
	CHECK_EQ(cores_usable(), 1);
	CHECK(cores_allowed(first));
	CHECK(!cores_allowed(first + 1));
	CHECK(!cores_allowed(1000000));
	CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

int main(void)
{
	CHECK(mkdtemp(root) != NULL);
	test_version_2();
	test_version_1();
	test_nonsense();
	test_affinity();
	nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	return check_done();
}
