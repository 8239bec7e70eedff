/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forked.c - keeps forked children from holding a driver's descriptors: a NIC in VFIO, a tap
 * device, an XDP or packet socket.
 *
 * Drivers open them without close-on-exec. While a child has one open or mapped, the kernel keeps
 * the resource of a process that may have exited. So this code records descriptors that appear
 * while a port is opened. A child closes them if they are still descriptors of drivers (the number
 * may have been reused). Children do not inherit their mappings.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "dpdk/port.h"

#define FORKED_AF_XDP 44

/* Writers hold the ports' lock; a forked child has no other thread. */
static int forked_fds[FORKED_MAX];
static unsigned forked_count;

/* Async-signal-safe. */
static bool forked_is_driver_fd(int fd)
{
	static const char *const files[] = { "/dev/net/tun", "/dev/vfio/", "anon_inode:[vfio" };
	char name[32] = "/proc/self/fd/", target[64] = { 0 }, digits[12];
	size_t at = strlen(name), n = 0;
	int domain = 0;
	socklen_t len = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0)
		return domain == FORKED_AF_XDP || domain == AF_PACKET;
	do {
		digits[n++] = (char)('0' + fd % 10);
	} while ((fd /= 10) > 0);
	while (n > 0)
		name[at++] = digits[--n];
	if (readlink(name, target, sizeof(target) - 1) < 0)
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		if (strncmp(target, files[i], strlen(files[i])) == 0)
			return true;
	return false;
}

static bool forked_has(const int *fds, unsigned count, int fd)
{
	for (unsigned i = 0; i < count; i++)
		if (fds[i] == fd)
			return true;
	return false;
}

/* Collects the open descriptors that belong to drivers. */
static unsigned forked_collect(int fds[FORKED_MAX])
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned count = 0;

	while (dir && (entry = readdir(dir)) != NULL && count < FORKED_MAX)
		if (entry->d_name[0] != '.' && forked_is_driver_fd(atoi(entry->d_name)))
			fds[count++] = atoi(entry->d_name);
	if (dir)
		closedir(dir);
	return count;
}

void forked_before(struct forked *before)
{
	before->count = forked_collect(before->fds);
}

/* Excludes mappings (socket rings, NIC registers) from inheritance. */
static void forked_exclude_maps(int fd)
{
	char name[32], target[64] = "", line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t from, to;

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	if (readlink(name, target, sizeof(target) - 2) > 0)
		strcat(target, "\n");
	while (maps && target[0] && fgets(line, sizeof(line), maps)) {
		const char *match = strstr(line, target);

		if (match && sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2)
			madvise((void *)from, to - from, MADV_DONTFORK);
	}
	if (maps)
		fclose(maps);
}

void forked_after(const struct forked *before)
{
	struct forked now;

	now.count = forked_collect(now.fds);
	for (unsigned i = 0; i < now.count && forked_count < FORKED_MAX; i++) {
		if (forked_has(before->fds, before->count, now.fds[i]))
			continue;
		forked_exclude_maps(now.fds[i]);
		if (!forked_has(forked_fds, forked_count, now.fds[i]))
			forked_fds[forked_count++] = now.fds[i];
	}
}

void forked_closed(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < forked_count; i++)
		if (forked_is_driver_fd(forked_fds[i]))
			forked_fds[count++] = forked_fds[i];
	forked_count = count;
}

void forked_child(void)
{
	for (unsigned i = 0; i < forked_count; i++)
		if (forked_is_driver_fd(forked_fds[i]))
			close(forked_fds[i]);
	forked_count = 0;
}
