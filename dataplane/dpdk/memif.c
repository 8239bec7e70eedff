/* SPDX-License-Identifier: Apache-2.0 */
/* memif.c - parses a memif port's text: arguments for the switch, and arguments for the driver. */
#include "dpdk/memif.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "dpdk/port.h"

#define MEMIF_FOLDER "/tmp/harp-memif-%u" /* the user's number is appended */

/* The driver ignores all arguments if it does not know one. zero-copy= is left out: it shares
 * DPDK's own memory, whose files are not sealed. */
static const struct {
	const char *key;
	bool is_switch; /* the driver gets another value */
} memif_keys[] = {
	{ "role=", false },           { "bsize=", false },
	{ "rsize=", false },          { "mac=", false },
	{ "secret=", false },         { "id=", true },
	{ "socket-abstract=", true }, { "socket=", true },
};
#define MEMIF_KEYS ARRAY_SIZE(memif_keys)

bool memif_is(const char *device)
{
	return strncmp(device, "net_memif", 9) == 0;
}

static const char *memif_argument_or(const char *device, const char *key, const char *otherwise)
{
	const char *value = driver_argument(device, key);

	return value ? value : otherwise;
}

/* The name, and the arguments passed to the driver unchanged. */
static int memif_rest(struct memif_text *out, const char *device, const struct why *why)
{
	const char *at = device;
	size_t used = 0;

	for (;;) {
		size_t len = strcspn(at, ","), i = MEMIF_KEYS;

		if (at != device) {
			for (i = 0; i < MEMIF_KEYS; i++)
				if (strncmp(at, memif_keys[i].key, strlen(memif_keys[i].key)) == 0)
					break;
			if (i == MEMIF_KEYS)
				return why_fail(why, -EINVAL, "has an unknown argument: %.*s",
						(int)len, at);
		}
		if (i == MEMIF_KEYS || !memif_keys[i].is_switch)
			used += (size_t)snprintf(out->rest + used, sizeof(out->rest) - used,
						 "%s%.*s", used ? "," : "", (int)len, at);
		if (used >= sizeof(out->rest))
			return why_fail(why, -EINVAL, "has arguments that are too long");
		if (at[len] == '\0')
			return 0;
		at += len + 1;
	}
}

/* A path; or, only on request, an abstract name (without a trailing NUL, as other programs use
 * it). */
static int memif_address(struct memif_text *out, const char *device, const struct why *why)
{
	const char *name = driver_argument(device, "socket=");
	const char *abstract = memif_argument_or(device, "socket-abstract=", "no");
	bool is_path = strncmp(abstract, "no", 2) == 0;
	char path[sizeof(out->address.un.sun_path)];
	size_t len;

	if (!is_path && strncmp(abstract, "yes", 3) != 0)
		return why_fail(why, -EINVAL, "socket-abstract is \"yes\" or \"no\"");
	if (!is_path && !name)
		return why_fail(why, -EINVAL, "an abstract socket needs a name; say socket=NAME");
	out->is_default = !name;
	if (!name) {
		snprintf(path, sizeof(path), MEMIF_FOLDER "/memif.sock", geteuid());
		name = path;
	}
	len = strcspn(name, ",");
	if (len == 0 || len >= sizeof(path))
		return why_fail(why, -EINVAL, "a socket's name has 1 to %zu characters",
				sizeof(path) - 1);
	out->address.un.sun_family = AF_UNIX;
	memcpy(out->address.un.sun_path + !is_path, name, len);
	out->address.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
	return 0;
}

static int memif_role(struct memif_text *out, const char *device, const struct why *why)
{
	static const char *const roles[] = { "client", "slave", "server", "master" };
	const char *role = memif_argument_or(device, "role=", roles[0]);
	size_t i = 0;

	while (i < 4 && strncmp(role, roles[i], strlen(roles[i])) != 0)
		i++;
	out->is_server = i >= 2;
	return i < 4 ? 0 : why_fail(why, -EINVAL, "its role is \"server\" or \"client\"");
}

int memif_parse(struct memif_text *out, const char *device, const struct why *why)
{
	int err;

	*out = (struct memif_text){
		.id = (uint32_t)strtoul(memif_argument_or(device, "id=", "0"), NULL, 10),
	};
	err = memif_rest(out, device, why);
	if (!err)
		err = memif_role(out, device, why);
	return err ? err : memif_address(out, device, why);
}

int memif_folder(const struct why *why)
{
	struct stat folder;
	char path[64];

	snprintf(path, sizeof(path), MEMIF_FOLDER, geteuid());
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return why_fail(why, -errno,
				"%s can't be made: %s; name a socket with socket=", path,
				strerror(errno));
	if (lstat(path, &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() &&
	    (folder.st_mode & 0077) == 0)
		return 0;
	return why_fail(why, -EPERM,
			"%s is not a folder that this user alone can open (mode 0700); remove it, "
			"or name a socket with socket=",
			path);
}
