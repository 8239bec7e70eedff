/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - what some of DPDK's drivers don't say of themselves, by name, and nothing else does. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dpdk/port.h"

static const struct {
	const char *name;
	uint32_t traits;
} drivers[] = {
	/* memif admits to 1518 bytes; what is larger goes through in chains of its buffers. */
	{ "net_memif",
	  DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_DIALS | DRIVER_READS },
	{ "net_ring", DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE | DRIVER_READS },
	{ "net_null", DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE | DRIVER_READS },
	{ "net_pcap", DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_KERNEL | DRIVER_READS },
	{ "net_af_packet",
	  DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_KERNEL | DRIVER_SLOTS | DRIVER_READS },
	{ "net_af_xdp", DRIVER_COPIES | DRIVER_KERNEL | DRIVER_PULLS | DRIVER_READS },
	/* tap counts Ethernet's header to the MTU when it cuts: it refuses to make segments of full length. */
	{ "net_tap", DRIVER_ANY_LENGTH | DRIVER_COPIES | DRIVER_NO_TSO | DRIVER_READS },
};

uint32_t driver_traits(const char *driver)
{
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		if (strncmp(driver, drivers[i].name, strlen(drivers[i].name)) == 0)
			return drivers[i].traits;
	return 0;
}

static bool driver_is_memif(const char *device)
{
	return strncmp(device, "net_memif", 9) == 0;
}

/* The value of an argument ("key=" in "name,key=value,..."), which ends at a comma; NULL: not given. */
static const char *driver_argument(const char *device, const char *key)
{
	const char *at = device;
	size_t len = strlen(key);

	while ((at = strchr(at, ',')) != NULL)
		if (strncmp(++at, key, len) == 0)
			return at + len;
	return NULL;
}

/* memif ignores all of its arguments when it does not know one. */
static bool driver_memif_knows(const char *device)
{
	static const char *const keys[] = { "role",      "id",        "bsize",
					    "rsize",     "socket",    "socket-abstract",
					    "owner-uid", "owner-gid", "mac",
					    "secret",    "zero-copy" };
	const char *at = device;

	while ((at = strchr(at, ',')) != NULL) {
		size_t len = strcspn(++at, "=,"), i = 0;

		while (i < sizeof(keys) / sizeof(keys[0]) &&
		       (strncmp(at, keys[i], len) != 0 || keys[i][len] != '\0'))
			i++;
		if (i == sizeof(keys) / sizeof(keys[0]))
			return false;
	}
	return true;
}

bool driver_dials(const char *device)
{
	const char *role = driver_argument(device, "role=");

	return driver_is_memif(device) &&
	       !(role && (strncmp(role, "server", 6) == 0 || strncmp(role, "master", 6) == 0));
}

/*
 * A memif server that was killed leaves its socket's file, and the next one could not bind. A file that refuses
 * connections has no server any more. A living one must not hear of it: DPDK 22.11 panics when who connected has
 * gone before it is greeted. So it is asked for as a stream, which memif's sockets are not (EPROTOTYPE).
 */
static void driver_memif_stale(const char *device)
{
	const char *path = driver_argument(device, "socket="),
		   *abstract = driver_argument(device, "socket-abstract=");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (!path || !abstract || strncmp(abstract, "no", 2) != 0 || driver_dials(device))
		return;
	if ((size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%.*s",
			     (int)strcspn(path, ","), path) >= sizeof(address.sun_path))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 && errno == ECONNREFUSED)
		unlink(address.sun_path);
	close(fd);
}

int driver_device(const char *device, uint32_t frame_size, char *out, size_t out_len)
{
	const uint32_t room = frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM;
	int len;

	if (driver_is_memif(device) && !driver_memif_knows(device))
		return -EINVAL;
	if (driver_is_memif(device))
		driver_memif_stale(device);
	/* memif copies a whole packet at a time where its buffers are as large as an mbuf's room, and no larger:
	 * then, and only then, both of its directions have a fast path. */
	if (driver_is_memif(device) && !driver_argument(device, "bsize="))
		len = snprintf(out, out_len, "%s,bsize=%u", device, room);
	/* af_packet's slots divide a block, and with what the kernel puts before a packet fit into an mbuf. */
	else if ((driver_traits(device) & DRIVER_SLOTS) && !driver_argument(device, "framesz="))
		len = snprintf(out, out_len, "%s,blocksz=%u,framesz=%u", device, 2 * frame_size,
			       frame_size / 2);
	else
		len = snprintf(out, out_len, "%s", device);
	return len >= 0 && (size_t)len < out_len ? len : -ENAMETOOLONG;
}
