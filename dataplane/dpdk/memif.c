/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memif.c - one end of a memif: its arguments, and its socket's file.
 *
 * DPDK's driver does the handshake and trusts the peer, so the peer must run as the same user. The
 * driver does not expose its sockets, so their peer's user cannot be queried. Instead the socket's
 * folder belongs to this user, with mode 0700.
 */
#include "dpdk/memif.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "dpdk/port.h"

#define MEMIF_DEFAULT_SOCKET "/tmp/harp-memif-%u/memif.sock" /* %u: the user id */
/* The driver's socket, and three for DPDK's interrupt thread, which creates a new epoll. */
#define MEMIF_FDS 4u

/* The accepted arguments, because the driver ignores all arguments if it does not know one.
 * zero-copy= is not accepted: it shares all of DPDK's memory with the peer. */
static const char *const memif_keys[] = {
	"role=", "id=", "bsize=", "rsize=", "mac=", "secret=", "socket=", "socket-abstract=",
};

bool memif_is(const char *device)
{
	return strncmp(device, "net_memif", 9) == 0;
}

static const char *memif_argument_or(const char *device, const char *key, const char *otherwise)
{
	const char *value = driver_argument(device, key);

	return value ? value : otherwise;
}

static int memif_check_keys(const char *device, const struct why *why)
{
	unsigned seen = 0;

	for (const char *at = strchr(device, ','); at; at = strchr(at, ',')) {
		int len = (int)strcspn(++at, ",");
		size_t i = 0;

		while (i < ARRAY_SIZE(memif_keys) &&
		       strncmp(at, memif_keys[i], strlen(memif_keys[i])) != 0)
			i++;
		if (i == ARRAY_SIZE(memif_keys))
			return why_fail(why, -EINVAL, "has an unknown argument: %.*s", len, at);
		if (seen & 1u << i)
			return why_fail(why, -EINVAL, "has a repeated argument: %s", memif_keys[i]);
		seen |= 1u << i;
	}
	return 0;
}

static int memif_role(struct memif *out, const char *device, const struct why *why)
{
	static const char *const roles[] = { "client", "slave", "server", "master" };
	const char *role = memif_argument_or(device, "role=", roles[0]);
	size_t i = 0;

	while (i < ARRAY_SIZE(roles) && strncmp(role, roles[i], strlen(roles[i])) != 0)
		i++;
	out->is_server = i >= 2;
	return i < ARRAY_SIZE(roles)
		       ? 0
		       : why_fail(why, -EINVAL, "its role must be \"server\" or \"client\"");
}

static int memif_address(struct memif *out, const char *device, const struct why *why)
{
	const char *name = driver_argument(device, "socket=");
	char *path = out->address.sun_path;
	size_t len = name ? strcspn(name, ",") : 1;

	if (strncmp(memif_argument_or(device, "socket-abstract=", "no"), "no", 2) != 0)
		return why_fail(why, -EINVAL,
				"an abstract socket is open to every user; remove socket-abstract= "
				"and name a file with socket=");
	if (len == 0 || len >= sizeof(out->address.sun_path))
		return why_fail(why, -EINVAL, "a socket's name has 1 to %zu characters",
				sizeof(out->address.sun_path) - 1);
	out->address.sun_family = AF_UNIX;
	if (name)
		memcpy(path, name, len);
	else
		snprintf(path, sizeof(out->address.sun_path), MEMIF_DEFAULT_SOCKET, geteuid());
	return 0;
}

int memif_parse(struct memif *out, const char *device, const struct why *why)
{
	int err, len;

	*out = (struct memif){ .is_server = false };
	err = memif_check_keys(device, why);
	if (!err)
		err = memif_role(out, device, why);
	if (!err)
		err = memif_address(out, device, why);
	if (err)
		return err;
	len = snprintf(out->text, sizeof(out->text), "%s%s%s%s", device,
		       driver_argument(device, "socket=") ? "" : ",socket=",
		       driver_argument(device, "socket=") ? "" : out->address.sun_path,
		       driver_argument(device, "socket-abstract=") ? "" : ",socket-abstract=no");
	return (size_t)len < sizeof(out->text)
		       ? 0
		       : why_fail(why, -EINVAL, "has arguments that are too long");
}

/* Creates the socket's folder, or checks that only this user can search it. */
static int memif_folder(const struct memif *memif, const struct why *why)
{
	char path[sizeof(memif->address.sun_path)];
	struct stat folder;
	char *slash;

	memcpy(path, memif->address.sun_path, sizeof(path));
	slash = strrchr(path, '/');
	if (slash)
		slash[slash == path] = '\0';
	else
		strcpy(path, ".");
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return why_fail(why, -errno,
				"%s cannot be created: %s; name a socket in a folder of this user "
				"with socket=",
				path, strerror(errno));
	if (lstat(path, &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() &&
	    (folder.st_mode & 0077) == 0)
		return 0;
	return why_fail(why, -EPERM,
			"%s is not a folder that only this user can open; set its mode to 0700, "
			"or name a socket in another one with socket=",
			path);
}

/* Checks that descriptors are free. Without them the driver leaves a device that cannot be removed,
 * and DPDK's interrupt thread aborts the process. */
static int memif_descriptors(const struct why *why)
{
	int fds[MEMIF_FDS], err = 0;
	unsigned count = 0;

	while (count < MEMIF_FDS && !err) {
		fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (fds[count] < 0)
			err = -errno;
		else
			count++;
	}
	while (count > 0)
		close(fds[--count]);
	return err ? why_fail(why, err, "no free descriptors for its driver's socket: %s",
			      strerror(-err))
		   : 0;
}

/* Connects with another socket type. The kernel refuses with EPROTOTYPE, which the server does not
 * notice, or with another error if a killed server has left the file. */
bool memif_has_server(const struct memif *memif)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool has_server;

	if (fd < 0)
		return false;
	has_server =
		connect(fd, (const struct sockaddr *)&memif->address, sizeof(memif->address)) < 0 &&
		errno == EPROTOTYPE;
	close(fd);
	return has_server;
}

int memif_prepare(const struct memif *memif, const struct why *why)
{
	const char *path = memif->address.sun_path;
	struct stat file;
	int err = memif_folder(memif, why);

	if (!err)
		err = memif_descriptors(why);
	if (err || !memif->is_server || lstat(path, &file) < 0)
		return err;
	if (!S_ISSOCK(file.st_mode))
		return why_fail(why, -EEXIST,
				"its socket's path is a file of another type; remove it, or name "
				"another path");
	if (memif_has_server(memif))
		return why_fail(why, -EBUSY, "Address already in use: its socket has a server");
	return unlink(path) < 0 && errno != ENOENT
		       ? why_fail(why, -errno, "%s cannot be removed: %s", path, strerror(errno))
		       : 0;
}

/* The driver of DPDK 22.11 frees a listener's state, but never closes the listener. A connection
 * that it has not accepted would keep the interrupt thread busy forever, so the socket's name is
 * removed first. A file replaces it, which the driver removes; without the file it would remove the
 * socket of a server that starts meanwhile. */
void memif_retire(const struct memif *memif)
{
	char path[sizeof(memif->address.sun_path) + 8];
	int fd;

	snprintf(path, sizeof(path), "%s.closed", memif->address.sun_path);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	close(fd);
	if (rename(path, memif->address.sun_path) < 0)
		unlink(path);
}
