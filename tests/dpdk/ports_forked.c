/* SPDX-License-Identifier: Apache-2.0 */
/* ports_forked.c - what a driver has taken is not kept by a child that was forked meanwhile. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ports.h"

/* Descriptors of tap devices that this process has. */
static int forked_taps(void)
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

/* Rings of packet sockets that it has mapped. */
static int forked_rings(void)
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

static int forked_count(int (*count)(void))
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
		_exit(CHECK_SKIP); /* only root may */
	end_open(&end, "net_tap0,iface=harpforked", 0);
	CHECK(forked_taps() > 0);
	CHECK_EQ(forked_count(forked_taps), 0);
	CHECK(forked_taps() > 0); /* the parent's are its own */
	end_close(&end);
	CHECK_EQ(forked_taps(), 0);
	end_open(&end, "net_af_packet0,iface=lo", 0);
	CHECK(forked_rings() > 0);
	CHECK_EQ(forked_count(forked_rings), 0);
	end_close(&end);
	CHECK_EQ(forked_rings(), 0);
}
