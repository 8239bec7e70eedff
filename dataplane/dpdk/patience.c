/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patience.c - a back-end of virtio_user's that does not answer is not waited for for ever.
 *
 * That driver asks its back-end on a unix socket when it is opened, started and stopped, and waits for the answer, as it does for
 * somebody to connect where it listens itself. A back-end that was stopped, or that waits for something itself, would hang whoever
 * closes the port. So a thread looks at the clock while such a call lasts: then it shuts the sockets at the device's path down,
 * and the driver takes its back-end for gone.
 */
#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/thread.h"
#include "dpdk/port.h"

typedef int (*patience_name_fn)(int fd, struct sockaddr *name, socklen_t *len);

static bool patience_is_at(int fd, const char *path, patience_name_fn name_of)
{
	struct sockaddr_un name = { 0 };
	socklen_t len = sizeof(name) - 1; /* the rest ends the text */

	return name_of(fd, (struct sockaddr *)&name, &len) == 0 && name.sun_family == AF_UNIX &&
	       len > offsetof(struct sockaddr_un, sun_path) && strcmp(name.sun_path, path) == 0;
}

/* Those of this process that end there, or listen there. */
static void patience_shut(const char *path)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && (patience_is_at(fd, path, getpeername) ||
						patience_is_at(fd, path, getsockname)))
			(void)shutdown(fd, SHUT_RDWR);
	}
	if (dir)
		closedir(dir);
}

static void *patience_main(void *arg)
{
	struct patience *p = arg;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&p->lock);
	while (!p->over) {
		if (pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until) !=
		    ETIMEDOUT)
			continue;
		p->lost = true;
		patience_shut(p->path);
		until.tv_sec++; /* what it has opened since */
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

void patience_begin(struct patience *p, const char *path)
{
	*p = (struct patience){ .lock = PTHREAD_MUTEX_INITIALIZER,
				.changed = PTHREAD_COND_INITIALIZER };
	snprintf(p->path, sizeof(p->path), "%s", path);
	p->watched = path[0] && thread_start(&p->thread, patience_main, p, "harp-patience") == 0;
}

bool patience_end(struct patience *p)
{
	if (!p->watched)
		return false;
	pthread_mutex_lock(&p->lock);
	p->over = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	return p->lost;
}
