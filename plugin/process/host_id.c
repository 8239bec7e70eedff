/* SPDX-License-Identifier: Apache-2.0 */
/* host_id.c - see host_id.h. */
#include "process/host_id.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire/blake2s.h"

int host_id_read(uint64_t netns_ino, uint8_t out[HOST_ID_BYTES])
{
	struct blake2s state;
	struct stat netns;
	char boot_id[64];
	ssize_t n;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	n = read(fd, boot_id, sizeof(boot_id));
	close(fd);
	if (n <= 0)
		return -EIO;
	/* thread-self: /proc/self is the process's first thread. */
	if (stat("/proc/thread-self/ns/net", &netns))
		return -errno;
	if (netns_ino)
		netns.st_ino = netns_ino;
	blake2s_init(&state, HOST_ID_BYTES, NULL, 0);
	blake2s_update(&state, boot_id, (size_t)n);
	blake2s_update(&state, &netns.st_dev, sizeof(netns.st_dev));
	blake2s_update(&state, &netns.st_ino, sizeof(netns.st_ino));
	blake2s_final(&state, out);
	return 0;
}
