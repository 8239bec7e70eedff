/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forked.c - a forked child does not keep what drivers have taken: a card in VFIO, a tap device, an XDP or packet socket.
 *
 * Drivers open them without close-on-exec, and while a child has one open the kernel keeps it for a process that may have
 * ended. So those that appear while a port is opened are noted, and closed in children: only what is, at the
 * fork too, of a kind that drivers have, as its number may have become somebody else's.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dpdk/port.h"

#define FORKED_AF_XDP 44

/* Writers hold the ports' lock; the child of a fork has no other thread. */
static int forked_fds[FORKED_MAX];
static unsigned forked_count;

/* Async-signal-safe, all of it. */
static bool forked_is_drivers(int fd)
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
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
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

/* Those that are a driver's, of all that are open. */
static unsigned forked_look(int fds[FORKED_MAX])
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned count = 0;

	while (dir && (entry = readdir(dir)) != NULL && count < FORKED_MAX)
		if (entry->d_name[0] != '.' && forked_is_drivers(atoi(entry->d_name)))
			fds[count++] = atoi(entry->d_name);
	if (dir)
		closedir(dir);
	return count;
}

void forked_before(struct forked *before)
{
	before->count = forked_look(before->fds);
}

void forked_after(const struct forked *before)
{
	struct forked now;

	now.count = forked_look(now.fds);
	for (unsigned i = 0; i < now.count && forked_count < FORKED_MAX; i++)
		if (!forked_has(before->fds, before->count, now.fds[i]) &&
		    !forked_has(forked_fds, forked_count, now.fds[i]))
			forked_fds[forked_count++] = now.fds[i];
}

void forked_closed(void)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < forked_count; i++)
		if (forked_is_drivers(forked_fds[i]))
			forked_fds[kept++] = forked_fds[i];
	forked_count = kept;
}

void forked_child(void)
{
	for (unsigned i = 0; i < forked_count; i++)
		if (forked_is_drivers(forked_fds[i]))
			close(forked_fds[i]);
	forked_count = 0;
}
