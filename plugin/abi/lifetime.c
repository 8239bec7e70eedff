/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.c - lifetime of contexts; unloading of the library, exit() and fork().
 *
 * Contexts. Since v11, NCCL passes a context to each call and ends it. Older versions have neither
 * contexts nor finalize: they share one implicit context, which the first call opens. At dlclose()
 * this library's destructor ends every context that is open, since no thread may outlive the code.
 *
 * Exit. The destructor also runs at exit(), when NCCL's threads may still be inside the plugin. It
 * waits until all lanes' data is acknowledged. If comms are open then, it leaves the cleanup to the
 * kernel. Otherwise it finalizes as usual, with the linger time for the peers' last segments.
 *
 * Fork. A child shares descriptors and memory, but has none of the threads. In a child that was
 * forked while a context existed, every call fails, or does nothing and succeeds if NCCL calls it
 * to clean up.
 */
#include "abi/lifetime.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "poll/engine.h"
#include "process/log.h"

/* ---- the log: every line goes through NCCL's logger ------------------------------------------ */

#define LOG_LINE_BYTES 1024

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
/* Contexts that are open or being opened, including the implicit one. Writer: under log_lock. */
static atomic_uint lifetime_contexts;
/* Writer: under log_lock. Reader: any thread. The function belongs to NCCL and outlives the
 * plugin. */
static _Atomic(nccl_logger) log_logger;

/* Each context opens the log first and closes it last. NULL: no log. */
static void log_open(nccl_logger logger)
{
	pthread_mutex_lock(&log_lock);
	lifetime_contexts++;
	if (logger)
		atomic_store(&log_logger, logger);
	pthread_mutex_unlock(&log_lock);
}

static void log_close(void)
{
	pthread_mutex_lock(&log_lock);
	if (--lifetime_contexts == 0)
		atomic_store(&log_logger, (nccl_logger)NULL);
	pthread_mutex_unlock(&log_lock);
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	nccl_logger logger = atomic_load(&log_logger);
	char text[LOG_LINE_BYTES];
	va_list args;

	if (!logger)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	logger(level == PLUGIN_WARN ? NCCL_LOG_WARN : NCCL_LOG_INFO, NCCL_LOG_INIT | NCCL_LOG_NET,
	       func, line, "NET/HARP: %s", text);
}

/* ---- fork and exit -------------------------------------------------------------------------- */

static atomic_bool lifetime_forked; /* Writer: a forked child, while it has one thread */

static pthread_mutex_t lifetime_implicit_lock = PTHREAD_MUTEX_INITIALIZER;
/* Writer: under lifetime_implicit_lock. Reader: any shim of v6 to v10. */
static _Atomic(struct plugin_ctx *) lifetime_implicit_ctx;
static _Atomic(pid_t) lifetime_owner; /* the process that opened the last context */
static bool lifetime_unloaded;        /* under lifetime_implicit_lock: open no more contexts */
static bool lifetime_exiting;         /* Writer: exit(), before the destructor reads it */

static void lifetime_fork_child(void)
{
	if (atomic_load_explicit(&lifetime_contexts, memory_order_relaxed) > 0)
		atomic_store_explicit(&lifetime_forked, true, memory_order_relaxed);
}

/*
 * Registered by init. At exit() it runs before the destructor, because handlers registered after
 * the start run before the loader's cleanup. At dlclose() it runs after the destructor: the first
 * entry of .fini_array runs it, and entries run in reverse order.
 */
static void lifetime_note_exit(void *unused)
{
	(void)unused;
	lifetime_exiting = true;
}

/* atexit() of a shared library. ThreadSanitizer's atexit() loses the library's handle and would
 * call the function after dlclose(). */
int lifetime_at_exit(void (*run)(void *), void *arg, void *library) __asm__("__cxa_atexit");
extern void *lifetime_library __asm__("__dso_handle") __attribute__((visibility("hidden")));

static void lifetime_register(void)
{
	lifetime_at_exit(lifetime_note_exit, NULL, lifetime_library);
}

__attribute__((constructor)) static void lifetime_load(void)
{
	pthread_atfork(NULL, NULL, lifetime_fork_child);
}

bool lifetime_in_child(void)
{
	return atomic_load_explicit(&lifetime_forked, memory_order_relaxed);
}

/* ---- contexts -------------------------------------------------------------------------------- */

int lifetime_open(struct plugin_ctx **out, int traffic_class, nccl_logger logger)
{
	static pthread_once_t registered = PTHREAD_ONCE_INIT;
	int rc = -EPROTONOSUPPORT;

	pthread_once(&registered, lifetime_register);
	log_open(logger);
	if (lifetime_in_child()) {
		WARN("this process was forked from one that was using HARP, and cannot use it too: "
		     "start it by exec (Python: the \"spawn\" start method), or fork before NCCL "
		     "is initialized");
	} else {
		rc = plugin_init(out, traffic_class);
	}
	if (rc)
		log_close();
	else
		atomic_store(&lifetime_owner, getpid());
	return rc;
}

void lifetime_close(struct plugin_ctx *ctx)
{
	plugin_finalize(ctx);
	log_close();
}

/* ---- the implicit context, and its end ------------------------------------------------------- */

int lifetime_implicit_open(nccl_logger logger)
{
	struct plugin_ctx *ctx = NULL;
	int rc = 0;

	if (lifetime_in_child())
		return lifetime_open(&ctx, NCCL_TRAFFIC_CLASS_UNSET, logger);
	pthread_mutex_lock(&lifetime_implicit_lock);
	if (lifetime_unloaded) {
		rc = -ESHUTDOWN;
	} else if (!atomic_load(&lifetime_implicit_ctx)) {
		rc = lifetime_open(&ctx, NCCL_TRAFFIC_CLASS_UNSET, logger);
		if (!rc)
			atomic_store(&lifetime_implicit_ctx, ctx);
	} else if (logger) {
		/* The context may have been opened without a logger; it keeps the log open. */
		log_open(logger);
		log_close();
	}
	pthread_mutex_unlock(&lifetime_implicit_lock);
	return rc;
}

/*
 * NCCL 2.22 and 2.23 close the library with the last communicator, which ends the context. They
 * open it again for the next one without another call of init.
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
	/* The process that opened it: fork handlers do not run in children of a bare clone(). */
	if (lifetime_in_child() || getpid() != atomic_load(&lifetime_owner))
		return;
	/* NCCL's logger may be gone by now. */
	atomic_store(&log_logger, (nccl_logger)NULL);
	if (atomic_load(&lifetime_contexts) > 0)
		engines_deliver();
	if (!lifetime_exiting) {
		plugin_finalize_all();
		return;
	}
	if (!ctx)
		return;
	log_close();
	if (!plugin_is_idle(ctx))
		return;
	atomic_store(&lifetime_implicit_ctx, (struct plugin_ctx *)NULL);
	plugin_finalize(ctx);
}
