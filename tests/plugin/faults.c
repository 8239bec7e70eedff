/* SPDX-License-Identifier: Apache-2.0 */
/* faults.c - see faults.h. */
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Theory of operation
 *
 * A call is HARP's if its return address lies in one of HARP's files. A table holds each block that
 * HARP allocated and nobody has freed. Blocks that the C library allocated for HARP (getifaddrs())
 * are not in it.
 *
 * The allocator's real functions have names of their own. dlsym() finds all others; it may allocate
 * and thus call an override.
 */

#define BLOCKS 65536u
#define TRACE 12

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static atomic_bool is_armed;
static atomic_uint calls, exhausted; /* exhausted: set of enum fault_kind */
static unsigned fault_call;
static bool fault_is_permanent;
static char injected[512];

struct block {
	_Atomic(void *) address; /* NULL: never used; &freed: free */
	void *caller;
};
static struct block blocks[BLOCKS];
static char freed;
static atomic_bool is_tracking;

static bool is_harp_address(const void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "harp") &&
	       strstr(info.dli_fname, ".so");
}

/* Omits dladdr()'s symbol: HARP's functions are hidden, so the nearest symbol is another one. */
static void name(char *text, size_t len, const char *call, const void *caller)
{
	Dl_info info;

	if (!dladdr(caller, &info))
		return;
	snprintf(text, len, "%s from %s+%#zx", call, strrchr(info.dli_fname, '/') + 1,
		 (size_t)((const char *)caller - (const char *)info.dli_fbase));
}

static bool inject(enum fault_kind kind, const char *call, const void *caller)
{
	unsigned number;

	if (!atomic_load_explicit(&is_armed, memory_order_relaxed) || !is_harp_address(caller))
		return false;
	number = atomic_fetch_add(&calls, 1) + 1;
	if (atomic_load(&exhausted) & kind)
		return true;
	if (number != fault_call)
		return false;
	if (fault_is_permanent)
		atomic_store(&exhausted, kind);
	name(injected, sizeof(injected), call, caller);
	/* The process may crash because of the fault. */
	(void)!write(STDERR_FILENO, injected, strlen(injected));
	(void)!write(STDERR_FILENO, " failed\n", 8);
	return true;
}

void faults_begin(unsigned call, bool permanent)
{
	fault_call = call;
	fault_is_permanent = permanent;
	injected[0] = '\0';
	atomic_store(&calls, 0);
	atomic_store(&exhausted, 0);
	atomic_store(&is_tracking, true);
	atomic_store(&is_armed, true);
}

void faults_end(void)
{
	atomic_store(&is_armed, false);
}

const char *faults_injected(void)
{
	return injected;
}

static void *track(void *block, void *caller)
{
	size_t slot = ((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15ull >> 48;

	if (!block || !atomic_load_explicit(&is_tracking, memory_order_relaxed) ||
	    !is_harp_address(caller))
		return block;
	for (size_t i = 0; i < BLOCKS; i++) {
		struct block *b = &blocks[(slot + i) % BLOCKS];
		void *old = atomic_load(&b->address);

		if ((old && old != &freed) ||
		    !atomic_compare_exchange_strong(&b->address, &old, block))
			continue;
		b->caller = caller;
		break;
	}
	return block;
}

static void untrack(const void *block)
{
	size_t slot = ((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15ull >> 48;

	if (!block || !atomic_load_explicit(&is_tracking, memory_order_relaxed))
		return;
	for (size_t i = 0; i < BLOCKS; i++) {
		struct block *b = &blocks[(slot + i) % BLOCKS];
		void *old = atomic_load(&b->address);

		if (!old)
			return;
		if (old != block)
			continue;
		atomic_store(&b->address, (void *)&freed);
		return;
	}
}

unsigned faults_count_leaks(void)
{
	unsigned count = 0;
	char text[256];

	atomic_store(&is_tracking, false);
	for (size_t i = 0; i < BLOCKS; i++) {
		void *address = atomic_load(&blocks[i].address);

		if (!address || address == &freed)
			continue;
		count++;
		snprintf(text, sizeof(text), "%p", blocks[i].caller);
		name(text, sizeof(text), "memory", blocks[i].caller);
		fprintf(stderr, "never freed: %s\n", text);
	}
	return count;
}

#pragma GCC visibility push(default) /* the loader must find these */

#define HERE __builtin_return_address(0)
#define INJECT(kind) inject(kind, __func__, HERE)

void *malloc(size_t bytes)
{
	if (INJECT(FAULT_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	return track(__libc_malloc(bytes), HERE);
}

void *calloc(size_t count, size_t bytes)
{
	if (INJECT(FAULT_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	return track(__libc_calloc(count, bytes), HERE);
}

void *realloc(void *block, size_t bytes)
{
	void *moved;

	if (INJECT(FAULT_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	untrack(block);
	moved = __libc_realloc(block, bytes);
	return track(moved, HERE);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	if (INJECT(FAULT_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	return track(__libc_memalign(alignment, bytes), HERE);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
	if (INJECT(FAULT_MEMORY))
		return ENOMEM;
	*block = track(__libc_memalign(alignment, bytes), HERE);
	return *block ? 0 : ENOMEM;
}

void free(void *block)
{
	untrack(block);
	__libc_free(block);
}

/* The C library's definition of the function that uses this macro. */
#define NEXT(type)                                                                                 \
	({                                                                                         \
		static _Atomic(void *) next_;                                                      \
		if (!atomic_load(&next_))                                                          \
			atomic_store(&next_, dlsym(RTLD_NEXT, __func__));                          \
		(type) atomic_load(&next_);                                                        \
	})

#define FAULTY(kind, error, result, type, name, parameters, arguments)                             \
	type name parameters                                                                       \
	{                                                                                          \
		if (INJECT(kind)) {                                                                \
			errno = error;                                                             \
			return result;                                                             \
		}                                                                                  \
		return NEXT(type(*) parameters) arguments;                                         \
	}

FAULTY(FAULT_MEMORY, ENOMEM, MAP_FAILED, void *, mmap64,
       (void *at, size_t bytes, int prot, int flags, int fd, off64_t offset),
       (at, bytes, prot, flags, fd, offset))
FAULTY(FAULT_DESCRIPTORS, EMFILE, -1, int, socket, (int domain, int type, int protocol),
       (domain, type, protocol))
FAULTY(FAULT_DESCRIPTORS, EMFILE, -1, int, accept4,
       (int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags),
       (fd, addr, len, flags))
FAULTY(FAULT_DESCRIPTORS, EMFILE, -1, int, eventfd, (unsigned count, int flags), (count, flags))
FAULTY(FAULT_DESCRIPTORS, EMFILE, -1, int, epoll_create1, (int flags), (flags))
FAULTY(FAULT_DESCRIPTORS, EMFILE, -1, int, memfd_create, (const char *name, unsigned flags),
       (name, flags))
FAULTY(FAULT_DESCRIPTORS, EMFILE, NULL, DIR *, opendir, (const char *path), (path))
FAULTY(FAULT_DESCRIPTORS, EMFILE, NULL, FILE *, fopen64,
       (const char *restrict path, const char *restrict mode), (path, mode))
FAULTY(FAULT_DESCRIPTORS, EMFILE, -1, int, getifaddrs, (struct ifaddrs * *list), (list))
FAULTY(FAULT_CALLS, EADDRINUSE, -1, int, bind, (int fd, const struct sockaddr *addr, socklen_t len),
       (fd, addr, len))
FAULTY(FAULT_CALLS, EADDRINUSE, -1, int, listen, (int fd, int backlog), (fd, backlog))
FAULTY(FAULT_CALLS, ENETUNREACH, -1, int, connect,
       (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
FAULTY(FAULT_CALLS, ENOBUFS, -1, int, setsockopt,
       (int fd, int level, int option, const void *value, socklen_t len),
       (fd, level, option, value, len))
FAULTY(FAULT_CALLS, ENOBUFS, -1, int, getsockopt,
       (int fd, int level, int option, void *restrict value, socklen_t *restrict len),
       (fd, level, option, value, len))
FAULTY(FAULT_CALLS, ENOBUFS, -1, int, getsockname,
       (int fd, struct sockaddr *restrict addr, socklen_t *restrict len), (fd, addr, len))
FAULTY(FAULT_CALLS, ENOSPC, -1, int, ftruncate64, (int fd, off64_t bytes), (fd, bytes))
FAULTY(FAULT_CALLS, EPERM, -1, int, setns, (int fd, int kind), (fd, kind))
FAULTY(FAULT_CALLS, EAGAIN, -1, ssize_t, getrandom, (void *to, size_t bytes, unsigned flags),
       (to, bytes, flags))

/* Only EPOLL_CTL_ADD can fail: the others need no new resource. */
int epoll_ctl(int fd, int op, int of, struct epoll_event *event)
{
	if (op == EPOLL_CTL_ADD && INJECT(FAULT_CALLS)) {
		errno = ENOSPC;
		return -1;
	}
	return NEXT(int (*)(int, int, int, struct epoll_event *))(fd, op, of, event);
}

int pthread_create(pthread_t *restrict id, const pthread_attr_t *restrict attr,
		   void *(*run)(void *), void *restrict arg)
{
	if (INJECT(FAULT_THREADS))
		return EAGAIN;
	return NEXT(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
			    void *))(id, attr, run, arg);
}

int open64(const char *path, int flags, ...)
{
	va_list args;
	int mode;

	if (INJECT(FAULT_DESCRIPTORS)) {
		errno = EMFILE;
		return -1;
	}
	va_start(args, flags);
	mode = va_arg(args, int);
	va_end(args);
	return NEXT(int (*)(const char *, int, ...))(path, flags, mode);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	if (INJECT(FAULT_CALLS)) {
		errno = EPERM;
		return -1;
	}
	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	return NEXT(int (*)(int, unsigned long, ...))(fd, request, arg);
}

#pragma GCC visibility pop
