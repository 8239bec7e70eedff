/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - what some of DPDK's drivers don't say of themselves, by name, and nothing else does. */
#include <errno.h>
#include <rte_dev.h>
#include <rte_devargs.h>
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
	/* af_packet admits to 1518 bytes; what its slots hold goes through. */
	{ "net_af_packet", DRIVER_ANY_LENGTH | DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_KERNEL |
				   DRIVER_SLOTS | DRIVER_READS },
	{ "net_af_xdp",
	  DRIVER_COPIES | DRIVER_KERNEL | DRIVER_PULLS | DRIVER_READS | DRIVER_CHUNKS },
	{ "net_vhost", DRIVER_TAKES_LATE | DRIVER_COPIES | DRIVER_READS | DRIVER_TRAINS },
	/* tap sends no packet that is longer than it admits to (MTU 1504), and counts Ethernet's header to the MTU when
	 * it cuts: it refuses to make segments of full length. */
	{ "net_tap", DRIVER_COPIES | DRIVER_NO_TSO | DRIVER_READS | DRIVER_MAKES },
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

/* Has this process a memif on that socket? Several may share one. */
static bool driver_memif_ours(const char *path, size_t len)
{
	for (uint16_t id = 0; id < RTE_MAX_ETHPORTS; id++) {
		const struct rte_devargs *args;
		struct rte_eth_dev_info info;
		const char *theirs;

		if (!rte_eth_dev_is_valid_port(id) || rte_eth_dev_info_get(id, &info) ||
		    !driver_is_memif(info.driver_name))
			continue;
		args = rte_dev_devargs(info.device);
		theirs = args && args->args ? strstr(args->args, "socket=") : NULL;
		if (theirs && strcspn(theirs + 7, ",") == len && !strncmp(theirs + 7, path, len))
			return true;
	}
	return false;
}

/*
 * A memif server that was killed leaves its socket's file, and the next one could not bind. A file that refuses
 * connections has no server any more. One that has a server is not for the driver to try: when it fails it removes the
 * file, and the server that lives could not be found any more. We ask as a stream: a server must not hear of it, as
 * DPDK 22.11 aborts its process where a client leaves before it was greeted. -EADDRINUSE.
 */
static int driver_memif_socket(const char *device)
{
	const char *path = driver_argument(device, "socket="),
		   *abstract = driver_argument(device, "socket-abstract=");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t len = path ? strcspn(path, ",") : 0;
	int fd, rc = 0;

	if (!path || !abstract || strncmp(abstract, "no", 2) != 0 || driver_dials(device) ||
	    len >= sizeof(address.sun_path))
		return 0;
	memcpy(address.sun_path, path, len);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return 0;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		if (errno == ECONNREFUSED)
			unlink(address.sun_path);
		else if (errno == EPROTOTYPE && !driver_memif_ours(path, len))
			rc = -EADDRINUSE;
	}
	close(fd);
	return rc;
}

uint32_t driver_slot_bytes(uint32_t frame_size)
{
	uint32_t most = frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM + DRIVER_SLOT_KEPT;

	return most < 4096 ? most < 2048 ? 1024 : 2048 : most & ~4095u;
}

int driver_device(const char *device, uint32_t frame_size, char *out, size_t out_len)
{
	const uint32_t room = frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM;
	const uint32_t slot = driver_slot_bytes(frame_size);
	int len;

	if (driver_is_memif(device) && !driver_memif_knows(device))
		return -EINVAL;
	len = driver_is_memif(device) ? driver_memif_socket(device) : 0;
	if (len < 0)
		return len;
	/* memif copies a whole packet at a time where its buffers are as large as an mbuf's room, and no larger:
	 * then, and only then, both of its directions have a fast path. */
	if (driver_is_memif(device) && !driver_argument(device, "bsize="))
		len = snprintf(out, out_len, "%s,bsize=%u", device, room);
	/* af_packet's slots divide a block of whole pages, and what they hold fits into an mbuf. */
	else if ((driver_traits(device) & DRIVER_SLOTS) && !driver_argument(device, "framesz="))
		len = snprintf(out, out_len, "%s,blocksz=%u,framesz=%u", device,
			       slot < 4096 ? 4096 : slot, slot);
	else
		len = snprintf(out, out_len, "%s", device);
	return len >= 0 && (size_t)len < out_len ? len : -ENAMETOOLONG;
}
