/* SPDX-License-Identifier: Apache-2.0 */
/* fds.h - how many descriptors this process has, and the end of a child, for tests that nothing leaks. */
#ifndef HARP_TESTS_FDS_H
#define HARP_TESTS_FDS_H

#include <dirent.h>
#include <sys/wait.h>

static inline unsigned fds_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count - 3; /* ".", ".." and the directory itself */
}

/* Waits for it; its exit status to *status, 1000 and a signal's number when it was killed. */
static inline void waitpid_of(pid_t child, int *status)
{
	int word = 0;

	if (waitpid(child, &word, 0) == child)
		*status = WIFEXITED(word) ? WEXITSTATUS(word) : 1000 + WTERMSIG(word);
}

#endif
