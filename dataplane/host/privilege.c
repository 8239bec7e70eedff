/* SPDX-License-Identifier: Apache-2.0 */
/* privilege.c - the capabilities that an instance needs and this process lacks. */
#include "host/privilege.h"
#include "base/util.h"

#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t privilege_effective(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &head, data) < 0)
		return 0;
	return data[0].effective | (uint64_t)data[1].effective << 32;
}

static bool has_capability(uint64_t set, unsigned capability)
{
	return set >> capability & 1;
}

unsigned privilege_missing(char *buf, size_t len)
{
	static const struct {
		const char *name;
		unsigned capability;
		unsigned alternative; /* a capability that includes it, or itself */
	} needed[] = {
		{ "CAP_NET_RAW", CAP_NET_RAW, CAP_NET_RAW },       /* AF_XDP sockets */
		{ "CAP_NET_ADMIN", CAP_NET_ADMIN, CAP_NET_ADMIN }, /* attaching, neighbors */
		{ "CAP_BPF", CAP_BPF, CAP_SYS_ADMIN },             /* loading the program */
	};
	uint64_t effective = privilege_effective();
	unsigned missing = 0;
	size_t used = 0;

	if (len)
		buf[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
		if (has_capability(effective, needed[i].capability) ||
		    has_capability(effective, needed[i].alternative))
			continue;
		if (used < len) {
			int rc = snprintf(buf + used, len - used, "%s%s", missing ? ", " : "",
					  needed[i].name);
			used += rc > 0 ? (size_t)rc : 0;
		}
		missing++;
	}
	return missing;
}

bool privilege_memlock(size_t bytes)
{
	struct rlimit limit;

	if (has_capability(privilege_effective(), CAP_IPC_LOCK))
		return true;
	return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur >= bytes;
}
