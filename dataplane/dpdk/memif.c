/* SPDX-License-Identifier: Apache-2.0 */
/* memif.c - the text of a memif port: what of it is the relay's, and what the driver's. */
#include "dpdk/memif.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/port.h"

/* The driver's own defaults. */
#define MEMIF_SOCKET "/run/memif.sock"
#define MEMIF_ABSTRACT "yes"

/* memif ignores all of its arguments when it does not know one. */
static const struct {
	const char *key;
	bool relays; /* the driver is told something else */
} memif_keys[] = {
	{ "role=", false },     { "bsize=", false },    { "rsize=", false },
	{ "mac=", false },      { "secret=", false },   { "zero-copy=", false },
	{ "id=", true },        { "socket=", true },    { "socket-abstract=", true },
	{ "owner-uid=", true }, { "owner-gid=", true },
};
#define MEMIF_KEYS (sizeof(memif_keys) / sizeof(memif_keys[0]))

bool memif_is(const char *device)
{
	return strncmp(device, "net_memif", 9) == 0;
}

static const char *memif_argument_or(const char *device, const char *key, const char *otherwise)
{
	const char *value = driver_argument(device, key);

	return value ? value : otherwise;
}

/* The name, and the arguments that are not the relay's. */
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
				return why_fail(
					why, -EINVAL,
					"has an argument that its driver does not know: %.*s",
					(int)len, at);
		}
		if (i == MEMIF_KEYS || !memif_keys[i].relays)
			used += (size_t)snprintf(out->rest + used, sizeof(out->rest) - used,
						 "%s%.*s", used ? "," : "", (int)len, at);
		if (used >= sizeof(out->rest))
			return why_fail(why, -EINVAL, "has arguments that are too long");
		if (at[len] == '\0')
			return 0;
		at += len + 1;
	}
}

/* A path, or an abstract name as memif's other programs write one: without a NUL at its end. */
static int memif_address(struct memif_text *out, const char *device, const struct why *why)
{
	const char *name = memif_argument_or(device, "socket=", MEMIF_SOCKET),
		   *abstract = memif_argument_or(device, "socket-abstract=", MEMIF_ABSTRACT);
	bool path = strncmp(abstract, "no", 2) == 0;
	size_t len = strcspn(name, ",");

	if (!path && strncmp(abstract, "yes", 3) != 0)
		return why_fail(why, -EINVAL, "socket-abstract is \"yes\" or \"no\"");
	if (len == 0 || len >= sizeof(out->address.sun_path))
		return why_fail(why, -EINVAL, "a socket's name has 1 to %zu characters",
				sizeof(out->address.sun_path) - 1);
	out->address.sun_family = AF_UNIX;
	memcpy(out->address.sun_path + !path, name, len);
	out->address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
	return 0;
}

static int memif_role(struct memif_text *out, const char *device, const struct why *why)
{
	static const char *const roles[] = { "client", "slave", "server", "master" };
	const char *role = memif_argument_or(device, "role=", roles[0]);
	size_t i = 0;

	while (i < 4 && strncmp(role, roles[i], strlen(roles[i])) != 0)
		i++;
	out->serves = i >= 2;
	return i < 4 ? 0 : why_fail(why, -EINVAL, "its role is \"server\" or \"client\"");
}

int memif_parse(struct memif_text *out, const char *device, const struct why *why)
{
	int err;

	*out = (struct memif_text){
		.id = (uint32_t)strtoul(memif_argument_or(device, "id=", "0"), NULL, 10),
		.uid = (uid_t)strtol(memif_argument_or(device, "owner-uid=", "-1"), NULL, 10),
		.gid = (gid_t)strtol(memif_argument_or(device, "owner-gid=", "-1"), NULL, 10),
	};
	err = memif_rest(out, device, why);
	if (!err)
		err = memif_role(out, device, why);
	return err ? err : memif_address(out, device, why);
}
