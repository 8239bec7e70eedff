/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - counts the cores that affinity and cgroups leave this process. */
#include "process/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CORE_MAX 8191u /* larger than any kernel's */

/* ---- cgroups ---------------------------------------------------------------------------------- */

static bool cores_read(const char *folder, const char *file, char *out, size_t len)
{
	char path[3 * PATH_MAX];
	FILE *stream = NULL;
	bool good;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, file) < sizeof(path))
		stream = fopen(path, "re");
	if (!stream)
		return false;
	good = fgets(out, (int)len, stream) != NULL;
	fclose(stream);
	return good;
}

/* "QUOTA PERIOD" of one cgroup in whole cores; 0: no limit. */
static unsigned cores_of_quota(const char *folder)
{
	char text[64], period_text[32];
	long long quota = -1, period = 0;

	if (cores_read(folder, "cpu.max", text, sizeof(text))) {
		if (sscanf(text, "%lld %lld", &quota, &period) != 2)
			return 0; /* "max" */
	} else if (cores_read(folder, "cpu.cfs_quota_us", text, sizeof(text)) &&
		   cores_read(folder, "cpu.cfs_period_us", period_text, sizeof(period_text))) {
		quota = atoll(text);
		period = atoll(period_text);
	}
	if (quota <= 0 || period <= 0)
		return 0;
	return (unsigned)((quota + period - 1) / period);
}

/* The tightest limit from a cgroup up to the top of its hierarchy. */
static unsigned cores_upwards(const char *mount, char *path)
{
	char folder[2 * PATH_MAX];
	unsigned least = 0;

	for (;;) {
		char *slash = strrchr(path, '/');
		unsigned cores;

		snprintf(folder, sizeof(folder), "%s%s", mount, path);
		cores = cores_of_quota(folder);
		if (cores && (!least || cores < least))
			least = cores;
		if (!slash || !path[0])
			return least;
		*slash = '\0';
	}
}

static bool cores_has_cpu(char *controllers)
{
	char *rest = NULL;

	for (char *word = strtok_r(controllers, ",", &rest); word;
	     word = strtok_r(NULL, ",", &rest))
		if (!strcmp(word, "cpu"))
			return true;
	return false;
}

unsigned cores_of_cgroup(const char *proc_cgroup, const char *mounts)
{
	FILE *stream = fopen(proc_cgroup, "re");
	char line[PATH_MAX], mount[PATH_MAX];
	unsigned least = 0;

	/* Lines are ID:CONTROLLERS:PATH; version 2 has no controllers. A path that a container cannot see
	 * begins at its own root: what is missing on the way has no limit. */
	while (stream && fgets(line, sizeof(line), stream)) {
		char *controllers = strchr(line, ':'), *path;
		unsigned cores;

		path = controllers ? strchr(++controllers, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (*controllers && !cores_has_cpu(controllers))
			continue;
		snprintf(mount, sizeof(mount), "%s%s", mounts, *controllers ? "/cpu" : "");
		cores = cores_upwards(mount, path);
		if (cores && (!least || cores < least))
			least = cores;
	}
	if (stream)
		fclose(stream);
	return least;
}

/* ---- this process ----------------------------------------------------------------------------- */

static cpu_set_t *cores_affinity(size_t *bytes)
{
	cpu_set_t *set = CPU_ALLOC(CORE_MAX + 1);

	*bytes = CPU_ALLOC_SIZE(CORE_MAX + 1);
	if (set && !sched_getaffinity(0, *bytes, set))
		return set;
	CPU_FREE(set);
	return NULL;
}

unsigned cores_usable(void)
{
	unsigned limit = cores_of_cgroup("/proc/self/cgroup", "/sys/fs/cgroup"), cores = 1;
	size_t bytes;
	cpu_set_t *set = cores_affinity(&bytes);

	if (set)
		cores = (unsigned)CPU_COUNT_S(bytes, set);
	CPU_FREE(set);
	if (limit && limit < cores)
		cores = limit;
	return cores ? cores : 1;
}

bool cores_allowed(unsigned core)
{
	size_t bytes;
	cpu_set_t *set = cores_affinity(&bytes);
	bool allowed = set && CPU_ISSET_S(core, bytes, set);

	CPU_FREE(set);
	return allowed;
}
