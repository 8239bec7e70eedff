/* SPDX-License-Identifier: Apache-2.0 */
/* trust.c - the users whose programs and files this process trusts. */
#include "base/trust.h"

#include <stdio.h>
#include <unistd.h>

/* The kernel's DEFAULT_OVERFLOWUID: a user that the user namespace does not map. */
#define TRUST_UNMAPPED 65534u
#define TRUST_ALL_USERS 4294967295u

/* user_namespaces(7): the initial namespace maps every user to itself, in one line. */
static bool trust_namespace_is_partial(void)
{
	unsigned inside, outside, count;
	FILE *map = fopen("/proc/self/uid_map", "re");
	bool partial;

	if (!map)
		return false;
	partial =
		fscanf(map, "%u %u %u", &inside, &outside, &count) == 3 && count != TRUST_ALL_USERS;
	fclose(map);
	return partial;
}

bool trust_user(uid_t uid)
{
	return uid == 0 || uid == geteuid() ||
	       (uid == TRUST_UNMAPPED && trust_namespace_is_partial());
}
