/* SPDX-License-Identifier: Apache-2.0 */
/* test_workers.c - the threads beside NCCL's: they help when kicked, keep away, and end. */
#include "poll/workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "process/cores.h"
#include "double_env.h"
#include "process/forkguard.h"
#include "poll/kernel_driver.h"

enum { DRIVERS = 8, THREADS = 2 };

struct job {
	struct kernel_driver kd; /* first */
	unsigned turns;          /* baton */
	unsigned left;           /* baton: turns that move something */
	bool in_turn;            /* baton */
	uint64_t now_ns;         /* baton: of the last turn */
	atomic_uint seen;        /* of turns */
	pthread_t by;            /* baton: who took the last turn */
};

/* Stands in for cores.c. */
static unsigned cores = 8;

unsigned cores_usable(void)
{
	return cores;
}

/* Stand in for forkguard.c: these drivers have no lanes. */
int forkguard_epoll(void)
{
	return -1;
}

void forkguard_close(int fd)
{
	(void)fd;
}

static void job_turn(struct kernel_driver *kd, uint64_t now_ns)
{
	struct job *job = (struct job *)kd;

	CHECK(!job->in_turn);
	job->now_ns = now_ns;
	job->in_turn = true;
	job->turns++;
	job->by = pthread_self();
	if (job->left) {
		job->left--;
		kd->moved_bytes += 100;
	}
	job->in_turn = false;
	atomic_fetch_add(&job->seen, 1);
}

static void job_open(struct job *job)
{
	memset(job, 0, sizeof(*job));
	kernel_driver_open(&job->kd, 0, job_turn);
}

static unsigned job_seen(struct job *job)
{
	return atomic_load(&job->seen);
}

static void wait_for(struct job *job, unsigned turns)
{
	while (job_seen(job) < turns)
		sched_yield();
}

/* Nobody is in a turn, and nobody takes one before it is given. */
static void take_baton(struct job *job)
{
	while (!driver_take(&job->kd.driver))
		sched_yield();
}

static void wait_idle(struct job *job)
{
	unsigned before;

	do { /* idle again: no turn while we sleep for as long as several spins */
		struct timespec nap = { .tv_nsec = 2000000 };

		before = job_seen(job);
		nanosleep(&nap, NULL);
	} while (job_seen(job) != before);
}

/* A kick brings turns, as long as something moves, by another thread. */
static void test_kick(void)
{
	unsigned before;
	struct job job;

	job_open(&job);
	job.left = 10000;
	workers_kick(&job.kd);
	wait_for(&job, 10000);
	wait_idle(&job);
	take_baton(&job);
	CHECK_EQ(job.left, 0);
	CHECK(!pthread_equal(job.by, pthread_self()));
	driver_give(&job.kd.driver);
	/* And again, from its sleep. The turns may be over before we get on: counted from before the kick. */
	before = job_seen(&job);
	workers_kick(&job.kd);
	wait_for(&job, before + 1);
	kernel_driver_close(&job.kd);
}

/* Another has had the baton since the worker read its clock, with a later one: time does not go back. */
static void test_the_clock_does_not_go_back(void)
{
	const uint64_t later_ns = UINT64_MAX / 2;
	struct job job;

	job_open(&job);
	CHECK(driver_turn(&job.kd.driver, later_ns));
	workers_kick(&job.kd);
	wait_for(&job, 2);
	take_baton(&job);
	CHECK_EQ(job.now_ns, later_ns);
	driver_give(&job.kd.driver);
	kernel_driver_close(&job.kd);
}

/* A baton that somebody keeps is no hindrance to the others. */
static void test_held(void)
{
	struct job held, other;

	job_open(&held);
	job_open(&other);
	CHECK(driver_take(&held.kd.driver));
	workers_kick(&held.kd);
	other.left = 1000;
	workers_kick(&other.kd);
	wait_for(&other, 1000);
	CHECK_EQ(job_seen(&held), 0);
	driver_give(&held.kd.driver);
	kernel_driver_close(&held.kd);
	kernel_driver_close(&other.kd);
}

static void *kicker(void *arg)
{
	struct job *jobs = arg;

	for (unsigned i = 0; i < 20000; i++) {
		struct job *job = &jobs[i % DRIVERS];

		workers_kick(&job->kd);
		if (i % 7 == 0)
			driver_poll(&job->kd.driver);
	}
	return NULL;
}

/* Several threads kick and poll; no turn overlaps another (job_turn looks), and all of them are served. */
static void test_crowd(void)
{
	static struct job jobs[DRIVERS];
	pthread_t kickers[2];

	for (unsigned i = 0; i < DRIVERS; i++) {
		job_open(&jobs[i]);
		jobs[i].left = 500;
	}
	for (unsigned i = 0; i < 2; i++)
		CHECK(!pthread_create(&kickers[i], NULL, kicker, jobs));
	/* A worker gives up whom others poll all the time; a lane with more to move kicks again. */
	for (unsigned i = 0; i < DRIVERS; i++) {
		while (job_seen(&jobs[i]) < 500) {
			workers_kick(&jobs[i].kd);
			sched_yield();
		}
	}
	for (unsigned i = 0; i < 2; i++)
		pthread_join(kickers[i], NULL);
	for (unsigned i = 0; i < DRIVERS; i++) /* one of them on its way, perhaps */
		kernel_driver_close(&jobs[i].kd);
}

/* Closing returns when nobody is in a turn, nor will be: the memory may go. */
static void test_close(void)
{
	for (unsigned i = 0; i < 2000; i++) {
		struct job *job = aligned_alloc(64, (sizeof(*job) + 63) & ~(size_t)63);

		CHECK(job);
		job_open(job);
		job->left = i % 50;
		workers_kick(&job->kd);
		if (i % 3 == 0)
			wait_for(job, 1);
		kernel_driver_close(&job->kd);
		memset(job, 0xff, sizeof(*job));
		free(job);
	}
}

static unsigned threads_now(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[128];
	unsigned threads = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Threads: %u", &threads) == 1)
			break;
	if (file)
		fclose(file);
	return threads;
}

/* One core: a helper could only be in the way of who polls. */
static void test_cores(void)
{
	unsigned before = threads_now();
	struct job job;

	cores = 1;
	job_open(&job);
	workers_kick(&job.kd);
	CHECK_EQ(threads_now(), before);
	kernel_driver_close(&job.kd);
	workers_stop();
	cores = 2; /* crowded: one, that yields */
	job_open(&job);
	CHECK_EQ(threads_now(), before + 1);
	job.left = 1000;
	workers_kick(&job.kd);
	wait_for(&job, 1000);
	kernel_driver_close(&job.kd);
	workers_stop();
	CHECK_EQ(threads_now(), before);
	cores = 8;
}

int main(void)
{
	struct job job;

	env_config.kernel_threads = THREADS;
	test_kick();
	test_the_clock_does_not_go_back();
	test_held();
	test_crowd();
	test_close();
	workers_stop();
	test_cores();
	job_open(&job); /* after a stop it begins anew */
	workers_kick(&job.kd);
	wait_for(&job, 1);
	kernel_driver_close(&job.kd);
	workers_stop();
	workers_stop();
	return check_done();
}
