/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_clock.c - threads that take turns under a virtual clock.
 *
 * Theory of operation. A task is a thread, and one task runs at a time. It yields when it sleeps,
 * reads the clock, or waits for a lock that another task holds, for a condition or for a thread's
 * end. The task with the earliest wake time then runs, and the clock jumps to that time. So each
 * run of a seed is the same, and sanitizers see ordinary threads.
 */
#include "coll_sim.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TASKS_MAX 64u
#define NEVER_NS UINT64_MAX
#define CLOCK_READ_NS 300u /* virtual time between two reads of the clock */
#define YIELD_NS 5000u

struct task {
	pthread_t thread;
	pthread_cond_t turn;
	coll_task run;
	void *(*start)(void *);
	void *arg;
	uint64_t wake_ns;
	const void *waits_for; /* a condition variable */
	bool has_ended;
};

struct coll_clock sim_clock;

static struct {
	pthread_mutex_t lock;
	pthread_cond_t over;
	struct task tasks[TASKS_MAX];
	unsigned count, current;
	uint64_t limit_ns;
	bool is_running, is_over;
} tasks = { .lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER };

static __thread struct task *self; /* NULL: this thread is not a task */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *arg);
int __real_pthread_join(pthread_t thread, void **result);
int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __real_pthread_cond_signal(pthread_cond_t *cond);
int __real_clock_gettime(clockid_t id, struct timespec *now);
int __real_nanosleep(const struct timespec *duration, struct timespec *left);
int __real_sched_yield(void);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_nanosleep(const struct timespec *duration, struct timespec *left);
int __wrap_sched_yield(void);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);

/* tasks.lock is held. Returns the task to run next and advances the clock to its wake time. NULL:
 * all wait forever, or all have ended. */
static struct task *clock_next(void)
{
	struct task *next = NULL;

	for (unsigned i = 0; i < tasks.count; i++) {
		struct task *task = &tasks.tasks[(tasks.current + 1 + i) % tasks.count];

		if (!task->has_ended && task->wake_ns != NEVER_NS &&
		    (!next || task->wake_ns < next->wake_ns))
			next = task;
	}
	if (!next)
		return NULL;
	if (next->wake_ns > sim_clock.now_ns)
		sim_clock.now_ns = next->wake_ns;
	sim_clock.steps++;
	return next;
}

/* tasks.lock is held. Runs another task. Unless this task has ended, waits for its next turn. */
static void clock_switch(void)
{
	struct task *next = NULL;

	if (!runner_has_failed())
		next = clock_next();
	if (next && sim_clock.now_ns > tasks.limit_ns) {
		runner_fail("the run does not end within %.3f s", (double)sim_clock.now_ns / 1e9);
		next = NULL;
	}
	if (next) {
		tasks.current = (unsigned)(next - tasks.tasks);
		if (next == self)
			return;
		__real_pthread_cond_signal(&next->turn);
	} else {
		tasks.is_over = true;
		__real_pthread_cond_signal(&tasks.over);
	}
	while (!self->has_ended && (tasks.is_over || &tasks.tasks[tasks.current] != self))
		__real_pthread_cond_wait(&self->turn, &tasks.lock);
}

static void clock_wait_until(uint64_t wake_ns)
{
	__real_pthread_mutex_lock(&tasks.lock);
	self->wake_ns = wake_ns;
	clock_switch();
	pthread_mutex_unlock(&tasks.lock);
}

void clock_sleep(uint64_t duration_ns)
{
	clock_wait_until(sim_clock.now_ns + duration_ns + rng_below(&sim_clock.rng, 200));
}

void clock_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)runner_fail_args(format, args);
	va_end(args);
	for (;;)
		clock_wait_until(NEVER_NS);
}

static void *task_main(void *arg)
{
	self = arg;
	__real_pthread_mutex_lock(&tasks.lock);
	while (!tasks.is_running || &tasks.tasks[tasks.current] != self)
		__real_pthread_cond_wait(&self->turn, &tasks.lock);
	pthread_mutex_unlock(&tasks.lock);
	if (self->run)
		self->run(self->arg);
	else
		self->start(self->arg);
	__real_pthread_mutex_lock(&tasks.lock);
	self->has_ended = true;
	clock_switch();
	pthread_mutex_unlock(&tasks.lock);
	return NULL;
}

static struct task *task_add(coll_task run, void *(*start)(void *), void *arg)
{
	struct task *task = &tasks.tasks[tasks.count];

	if (tasks.count == TASKS_MAX)
		abort();
	*task = (struct task){
		.run = run, .start = start, .arg = arg, .wake_ns = sim_clock.now_ns
	};
	pthread_cond_init(&task->turn, NULL);
	tasks.count++;
	if (__real_pthread_create(&task->thread, NULL, task_main, task))
		abort();
	return task;
}

void clock_start(uint64_t seed)
{
	sim_clock.now_ns = 1000000;
	sim_clock.steps = 0;
	rng_seed(&sim_clock.rng, seed);
	tasks.count = tasks.current = 0;
	tasks.is_running = tasks.is_over = false;
}

void clock_add(coll_task task, void *arg)
{
	__real_pthread_mutex_lock(&tasks.lock);
	task_add(task, NULL, arg);
	pthread_mutex_unlock(&tasks.lock);
}

bool clock_run(uint64_t limit_ns)
{
	bool good = true;

	__real_pthread_mutex_lock(&tasks.lock);
	tasks.limit_ns = limit_ns;
	tasks.is_running = true;
	__real_pthread_cond_signal(&tasks.tasks[0].turn);
	while (!tasks.is_over)
		__real_pthread_cond_wait(&tasks.over, &tasks.lock);
	for (unsigned i = 0; i < tasks.count; i++)
		good = good && tasks.tasks[i].has_ended;
	if (!good)
		runner_fail("all threads wait forever");
	pthread_mutex_unlock(&tasks.lock);
	for (unsigned i = 0; i < tasks.count && good; i++)
		__real_pthread_join(tasks.tasks[i].thread, NULL);
	return good;
}

/* ---- calls of the library -------------------------------------------------------------------- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *arg)
{
	if (!self)
		return __real_pthread_create(thread, attr, start, arg);
	__real_pthread_mutex_lock(&tasks.lock);
	*thread = task_add(NULL, start, arg)->thread;
	pthread_mutex_unlock(&tasks.lock);
	return 0;
}

/* clock_run() joins the thread itself. */
int __wrap_pthread_join(pthread_t thread, void **result)
{
	struct task *task = tasks.tasks;

	if (!self)
		return __real_pthread_join(thread, result);
	while (!pthread_equal(task->thread, thread))
		task++;
	while (!task->has_ended)
		clock_sleep(CLOCK_READ_NS);
	return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	if (!self)
		return __real_pthread_mutex_lock(lock);
	while (pthread_mutex_trylock(lock))
		clock_sleep(CLOCK_READ_NS);
	return 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	if (!self)
		return __real_pthread_cond_wait(cond, lock);
	self->waits_for = cond;
	pthread_mutex_unlock(lock);
	clock_wait_until(NEVER_NS);
	return __wrap_pthread_mutex_lock(lock);
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
	if (!self)
		return __real_pthread_cond_signal(cond);
	for (unsigned i = 0; i < tasks.count; i++) {
		struct task *task = &tasks.tasks[i];

		if (task->waits_for != cond)
			continue;
		task->waits_for = NULL;
		task->wake_ns = sim_clock.now_ns;
		break;
	}
	return 0;
}

int __wrap_clock_gettime(clockid_t id, struct timespec *now)
{
	if (!self)
		return __real_clock_gettime(id, now);
	clock_sleep(CLOCK_READ_NS);
	*now = (struct timespec){ .tv_sec = (time_t)(sim_clock.now_ns / 1000000000),
				  .tv_nsec = (long)(sim_clock.now_ns % 1000000000) };
	return 0;
}

int __wrap_nanosleep(const struct timespec *duration, struct timespec *left)
{
	if (!self)
		return __real_nanosleep(duration, left);
	clock_sleep((uint64_t)duration->tv_sec * 1000000000 + (uint64_t)duration->tv_nsec);
	return 0;
}

int __wrap_sched_yield(void)
{
	if (!self)
		return __real_sched_yield();
	clock_sleep(YIELD_NS);
	return 0;
}

/* Does not change the names of the threads of this process. */
int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
	(void)thread;
	(void)name;
	return 0;
}
