/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of ours in somebody else's process. */
#ifndef HARP_HOST_THREAD_H
#define HARP_HOST_THREAD_H

#include <pthread.h>

/* Starts a thread that takes none of the application's signals. 0, or -errno. */
int thread_start(pthread_t *id, void *(*run)(void *), void *arg, const char *name);

#endif
