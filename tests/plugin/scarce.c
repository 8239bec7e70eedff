/* SPDX-License-Identifier: Apache-2.0 */
/* scarce.c - see scarce.h. */
#include "scarce.h"

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
 * A call is one of HARP's when the address that it returns to lies in one of its files. Memory is followed from its
 * allocation by HARP until it is freed, in a table; what HARP frees and others have allocated (getifaddrs()) is not in it.
 *
 * The C library's allocator is reached by its own names, all others by dlsym(), which may allocate, and be asked for again
 * meanwhile.
 */

#define BLOCKS 65536u
#define TRACE 12

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static atomic_bool armed;
static atomic_uint calls, gone; /* gone: kinds that have run out */
static unsigned armed_at;
static bool armed_for_good;
static char refused[512];

struct block {
	_Atomic(void *) at; /* NULL: never used; &freed: free again */
	void *caller;
};
static struct block blocks[BLOCKS];
static char freed;
static atomic_bool following;

static bool is_harps(const void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "harp") &&
	       strstr(info.dli_fname, ".so");
}

/* Not by dladdr()'s symbol: HARP's functions are hidden, so the nearest symbol is another function. */
static void name(char *text, size_t len, const char *call, const void *caller)
{
	Dl_info info;

	if (!dladdr(caller, &info))
		return;
	snprintf(text, len, "%s from %s+%#zx", call, strrchr(info.dli_fname, '/') + 1,
		 (size_t)((const char *)caller - (const char *)info.dli_fbase));
}

static bool refuse(enum scarce_kind kind, const char *call, const void *caller)
{
	unsigned number;

	if (!atomic_load_explicit(&armed, memory_order_relaxed) || !is_harps(caller))
		return false;
	number = atomic_fetch_add(&calls, 1) + 1;
	if (atomic_load(&gone) & kind)
		return true;
	if (number != armed_at)
		return false;
	if (armed_for_good)
		atomic_store(&gone, kind);
	name(refused, sizeof(refused), call, caller);
	/* Before the process crashes because of it. */
	(void)!write(STDERR_FILENO, refused, strlen(refused));
	(void)!write(STDERR_FILENO, " refused\n", 9);
	return true;
}

void scarce_begin(unsigned at, bool for_good)
{
	armed_at = at;
	armed_for_good = for_good;
	refused[0] = '\0';
	atomic_store(&calls, 0);
	atomic_store(&gone, 0);
	atomic_store(&following, true);
	atomic_store(&armed, true);
}

void scarce_end(void)
{
	atomic_store(&armed, false);
}

const char *scarce_refused(void)
{
	return refused;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void *follow(void *block, void *caller)
{
	size_t place = ((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15ull >> 48;

	if (!block || !atomic_load_explicit(&following, memory_order_relaxed) || !is_harps(caller))
		return block;
	for (size_t i = 0; i < BLOCKS; i++) {
		struct block *b = &blocks[(place + i) % BLOCKS];
		void *was = atomic_load(&b->at);

		if ((was && was != &freed) || !atomic_compare_exchange_strong(&b->at, &was, block))
			continue;
		b->caller = caller;
		break;
	}
	return block;
}

static void unfollow(const void *block)
{
	size_t place = ((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15ull >> 48;

	if (!block || !atomic_load_explicit(&following, memory_order_relaxed))
		return;
	for (size_t i = 0; i < BLOCKS; i++) {
		struct block *b = &blocks[(place + i) % BLOCKS];
		void *was = atomic_load(&b->at);

		if (!was)
			return;
		if (was != block)
			continue;
		atomic_store(&b->at, (void *)&freed);
		return;
	}
}

unsigned scarce_leaks(void)
{
	unsigned count = 0;
	char text[256];

	atomic_store(&following, false);
	for (size_t i = 0; i < BLOCKS; i++) {
		void *at = atomic_load(&blocks[i].at);

		if (!at || at == &freed)
			continue;
		count++;
		snprintf(text, sizeof(text), "%p", blocks[i].caller);
		name(text, sizeof(text), "memory", blocks[i].caller);
		fprintf(stderr, "never freed: %s\n", text);
	}
	return count;
}

#pragma GCC visibility push(default) /* the loader is to find them */

#define HERE __builtin_return_address(0)
#define REFUSED(kind) refuse(kind, __func__, HERE)

void *malloc(size_t bytes)
{
	if (REFUSED(SCARCE_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	return follow(__libc_malloc(bytes), HERE);
}

void *calloc(size_t count, size_t bytes)
{
	if (REFUSED(SCARCE_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	return follow(__libc_calloc(count, bytes), HERE);
}

void *realloc(void *block, size_t bytes)
{
	void *moved;

	if (REFUSED(SCARCE_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	unfollow(block);
	moved = __libc_realloc(block, bytes);
	return follow(moved, HERE);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	if (REFUSED(SCARCE_MEMORY)) {
		errno = ENOMEM;
		return NULL;
	}
	return follow(__libc_memalign(alignment, bytes), HERE);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
	if (REFUSED(SCARCE_MEMORY))
		return ENOMEM;
	*block = follow(__libc_memalign(alignment, bytes), HERE);
	return *block ? 0 : ENOMEM;
}

void free(void *block)
{
	unfollow(block);
	__libc_free(block);
}

/* ---- everything else --------------------------------------------------------------------------- */

/* The next definition of the function that it is written in. */
#define NEXT(type)                                                                                 \
	({                                                                                         \
		static _Atomic(void *) next_;                                                      \
		if (!atomic_load(&next_))                                                          \
			atomic_store(&next_, dlsym(RTLD_NEXT, __func__));                          \
		(type) atomic_load(&next_);                                                        \
	})

#define SCARCE(kind, error, result, type, name, parameters, arguments)                             \
	type name parameters                                                                       \
	{                                                                                          \
		if (REFUSED(kind)) {                                                               \
			errno = error;                                                             \
			return result;                                                             \
		}                                                                                  \
		return NEXT(type(*) parameters) arguments;                                         \
	}

SCARCE(SCARCE_MEMORY, ENOMEM, MAP_FAILED, void *, mmap64,
       (void *at, size_t bytes, int prot, int flags, int fd, off64_t offset),
       (at, bytes, prot, flags, fd, offset))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, -1, int, socket, (int domain, int type, int protocol),
       (domain, type, protocol))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, -1, int, accept4,
       (int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags),
       (fd, addr, len, flags))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, -1, int, eventfd, (unsigned count, int flags), (count, flags))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, -1, int, epoll_create1, (int flags), (flags))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, -1, int, memfd_create, (const char *name, unsigned flags),
       (name, flags))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, NULL, DIR *, opendir, (const char *path), (path))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, NULL, FILE *, fopen64,
       (const char *restrict path, const char *restrict mode), (path, mode))
SCARCE(SCARCE_DESCRIPTORS, EMFILE, -1, int, getifaddrs, (struct ifaddrs * *list), (list))
SCARCE(SCARCE_CALLS, EADDRINUSE, -1, int, bind,
       (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
SCARCE(SCARCE_CALLS, EADDRINUSE, -1, int, listen, (int fd, int backlog), (fd, backlog))
SCARCE(SCARCE_CALLS, ENETUNREACH, -1, int, connect,
       (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
SCARCE(SCARCE_CALLS, ENOBUFS, -1, int, setsockopt,
       (int fd, int level, int option, const void *value, socklen_t len),
       (fd, level, option, value, len))
SCARCE(SCARCE_CALLS, ENOBUFS, -1, int, getsockopt,
       (int fd, int level, int option, void *restrict value, socklen_t *restrict len),
       (fd, level, option, value, len))
SCARCE(SCARCE_CALLS, ENOBUFS, -1, int, getsockname,
       (int fd, struct sockaddr *restrict addr, socklen_t *restrict len), (fd, addr, len))
SCARCE(SCARCE_CALLS, ENOSPC, -1, int, ftruncate64, (int fd, off64_t bytes), (fd, bytes))
SCARCE(SCARCE_CALLS, EPERM, -1, int, setns, (int fd, int kind), (fd, kind))
SCARCE(SCARCE_CALLS, EAGAIN, -1, ssize_t, getrandom, (void *to, size_t bytes, unsigned flags),
       (to, bytes, flags))

/* To give something back is never refused. */
int epoll_ctl(int fd, int op, int of, struct epoll_event *event)
{
	if (op == EPOLL_CTL_ADD && REFUSED(SCARCE_CALLS)) {
		errno = ENOSPC;
		return -1;
	}
	return NEXT(int (*)(int, int, int, struct epoll_event *))(fd, op, of, event);
}

int pthread_create(pthread_t *restrict id, const pthread_attr_t *restrict attr,
		   void *(*run)(void *), void *restrict arg)
{
	if (REFUSED(SCARCE_THREADS))
		return EAGAIN;
	return NEXT(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
			    void *))(id, attr, run, arg);
}

int open64(const char *path, int flags, ...)
{
	va_list args;
	int mode;

	if (REFUSED(SCARCE_DESCRIPTORS)) {
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

	if (REFUSED(SCARCE_CALLS)) {
		errno = EPERM;
		return -1;
	}
	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	return NEXT(int (*)(int, unsigned long, ...))(fd, request, arg);
}

#pragma GCC visibility pop
