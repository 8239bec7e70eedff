/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of ours in somebody else's process. */
#ifndef HARP_BASE_THREAD_H
#define HARP_BASE_THREAD_H

#include <pthread.h>

#define THREAD_ANY_CORE (-1)

/* Starts a thread that takes none of the application's signals: they are not ours. name: at most 15 bytes.
 * 0, or -errno. */
int thread_start(pthread_t *id, void *(*run)(void *), void *arg, const char *name);

/* The same on one core, or THREAD_ANY_CORE. */
int thread_start_on(pthread_t *id, int core, void *(*run)(void *), void *arg, const char *name);

/* Between two looks of a thread that spins. */
static inline void thread_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

#endif
