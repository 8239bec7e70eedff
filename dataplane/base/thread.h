/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of the library in an application's process. */
#ifndef HARP_BASE_THREAD_H
#define HARP_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread with all signals blocked, because they belong to the application. name: at most
 * 15 bytes. 0, or -errno. */
int thread_start(pthread_t *id, void *(*run)(void *), void *arg, const char *name);

/* Initializes a condition variable whose timeouts use the monotonic clock. */
void thread_cond_init(pthread_cond_t *cond);

/* For use between iterations of a spinning thread. */
static inline void thread_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

#endif
