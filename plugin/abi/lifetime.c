/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.c - who ends what, and when: contexts, the library's unloading, exit() and fork().
 *
 * Contexts. Since v11 NCCL carries a context of ours through the calls and ends it. Before, there
 * is none and no finalize either: those versions share one implicit context, made by the first init,
 * or by the first other call, and ended by this library's destructor at dlclose.
 *
 * Exit. The destructor also runs at exit(), when NCCL's threads may be inside us still. As long as
 * comms are open it then leaves everything as it is: the kernel clears up after the process. (With
 * none open, finalize does what it always does, among it the linger for the peers' last segments.)
 *
 * Fork. A child shares our descriptors and memory but has none of our threads. If it was forked
 * while a context lived, every entry in it fails or, where NCCL would clean up, succeeds and does
 * nothing.
 */
#include "abi/lifetime.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "process/log.h"

/* ---- the log: every word this library says goes through NCCL's logger, and none without it ------- */

#define LOG_LINE_BYTES 1024

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned log_users; /* under log_lock */
/* Writer: under log_lock. Reader: any thread; the function behind it is NCCL's and outlives us. */
static _Atomic(nccl_logger) log_logger;

/* Every context opens the log once, before anything it may want to say, and closes it last. A NULL logger is silence. */
static void log_open(nccl_logger logger)
{
	pthread_mutex_lock(&log_lock);
	log_users++;
	if (logger)
		atomic_store(&log_logger, logger);
	pthread_mutex_unlock(&log_lock);
}

static void log_close(void)
{
	pthread_mutex_lock(&log_lock);
	if (log_users > 0 && --log_users == 0)
		atomic_store(&log_logger, (nccl_logger)NULL);
	pthread_mutex_unlock(&log_lock);
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	static const enum nccl_log_level levels[] = {
		[PLUGIN_WARN] = NCCL_LOG_WARN,
		[PLUGIN_INFO] = NCCL_LOG_INFO,
		[PLUGIN_TRACE] = NCCL_LOG_TRACE,
	};
	nccl_logger logger = atomic_load(&log_logger);
	char text[LOG_LINE_BYTES];
	va_list args;

	if (!logger)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	logger(levels[level], NCCL_LOG_INIT | NCCL_LOG_NET, func, line, "NET/HARP: %s", text);
}

/* ---- fork and exit ------------------------------------------------------------------------------- */

static atomic_uint lifetime_contexts; /* alive, the implicit one included */
static atomic_uint lifetime_comms;    /* open comms and listeners */
static atomic_bool lifetime_forked;   /* Writer: a forked child, while it has one thread */

static pthread_mutex_t lifetime_implicit_lock = PTHREAD_MUTEX_INITIALIZER;
/* Writer: under lifetime_implicit_lock. Reader: any shim of v6 to v10. */
static _Atomic(struct plugin_ctx *) lifetime_implicit_ctx;
static pid_t lifetime_implicit_owner;
static bool lifetime_unloaded; /* under lifetime_implicit_lock: no context any more */
static bool lifetime_exiting;  /* Writer: exit(), before the destructor reads it */

static void lifetime_fork_child(void)
{
	if (atomic_load_explicit(&lifetime_contexts, memory_order_relaxed) > 0)
		atomic_store_explicit(&lifetime_forked, true, memory_order_relaxed);
}

/*
 * Registered by init. Runs before the destructor at exit(), since what atexit() was given after the
 * start goes before the loader's own clean-up, and after it at dlclose(), where it is run by the
 * first entry of .fini_array, that is last.
 */
static void lifetime_note_exit(void *unused)
{
	(void)unused;
	lifetime_exiting = true;
}

/* What atexit() of a library is made of. ThreadSanitizer's atexit() forgets whose function it is, and calls it when the
 * library has gone. */
int lifetime_at_exit(void (*run)(void *), void *arg, void *library) __asm__("__cxa_atexit");
extern void *lifetime_library __asm__("__dso_handle") __attribute__((visibility("hidden")));

__attribute__((constructor)) static void lifetime_load(void)
{
	pthread_atfork(NULL, NULL, lifetime_fork_child);
}

bool lifetime_in_child(void)
{
	return atomic_load_explicit(&lifetime_forked, memory_order_relaxed);
}

/* ---- contexts -------------------------------------------------------------------------------- */

int lifetime_open(struct plugin_ctx **out, uint64_t comm_id, int traffic_class, nccl_logger logger)
{
	int rc = -EPROTONOSUPPORT;

	log_open(logger);
	if (lifetime_in_child()) {
		WARN("this process was forked from one that was using HARP, and cannot use it too: "
		     "start it by exec (Python: the \"spawn\" start method), or fork before NCCL "
		     "is initialised");
	} else {
		rc = plugin_init(out, comm_id, traffic_class);
	}
	if (rc)
		log_close();
	else
		atomic_fetch_add(&lifetime_contexts, 1);
	return rc;
}

void lifetime_close(struct plugin_ctx *ctx)
{
	plugin_finalize(ctx);
	atomic_fetch_sub(&lifetime_contexts, 1);
	log_close();
}

void lifetime_comm_opened(void)
{
	atomic_fetch_add(&lifetime_comms, 1);
}

void lifetime_comm_closed(void)
{
	atomic_fetch_sub(&lifetime_comms, 1);
}

/* ---- the implicit context, and its end ------------------------------------------------------- */

int lifetime_implicit_open(nccl_logger logger)
{
	struct plugin_ctx *ctx = NULL;
	int rc = 0;

	if (lifetime_in_child())
		return lifetime_open(&ctx, 0, NCCL_TRAFFIC_CLASS_UNSET, logger);
	pthread_mutex_lock(&lifetime_implicit_lock);
	if (lifetime_unloaded) {
		rc = -ESHUTDOWN;
	} else if (!atomic_load(&lifetime_implicit_ctx)) {
		rc = lifetime_open(&ctx, 0, NCCL_TRAFFIC_CLASS_UNSET, logger);
		if (!rc) {
			if (!lifetime_implicit_owner)
				lifetime_at_exit(lifetime_note_exit, NULL, lifetime_library);
			lifetime_implicit_owner = getpid();
			atomic_store(&lifetime_implicit_ctx, ctx);
		}
	} else if (logger) {
		/* The context may have been opened without one; it holds the log open. */
		log_open(logger);
		log_close();
	}
	pthread_mutex_unlock(&lifetime_implicit_lock);
	return rc;
}

/*
 * NCCL 2.22 and 2.23 close the library with the last communicator, which ends the context, and open
 * it again for the next one without calling init: for them it has been initialized.
 */
struct plugin_ctx *lifetime_implicit(void)
{
	struct plugin_ctx *ctx = atomic_load_explicit(&lifetime_implicit_ctx, memory_order_acquire);

	if (ctx || lifetime_in_child() || lifetime_implicit_open(NULL))
		return ctx;
	return atomic_load_explicit(&lifetime_implicit_ctx, memory_order_acquire);
}

__attribute__((destructor)) static void lifetime_unload(void)
{
	struct plugin_ctx *ctx;

	/* At exit(), NCCL's threads may call us after this. */
	pthread_mutex_lock(&lifetime_implicit_lock);
	lifetime_unloaded = true;
	ctx = atomic_load(&lifetime_implicit_ctx);
	pthread_mutex_unlock(&lifetime_implicit_lock);
	/* The owner: children made by a bare clone() run no fork handler. */
	if (!ctx || lifetime_in_child() || getpid() != lifetime_implicit_owner)
		return;
	/* NCCL's logger may be gone by now. */
	log_close();
	if (lifetime_exiting && atomic_load(&lifetime_comms) > 0)
		return;
	atomic_store(&lifetime_implicit_ctx, (struct plugin_ctx *)NULL);
	plugin_finalize(ctx);
}
