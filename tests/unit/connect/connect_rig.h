/* SPDX-License-Identifier: Apache-2.0 */
/* connect_rig.h - doubles of the control thread, connect attempts and background poller, which the
 * test runs. */
#ifndef HARP_TESTS_CONNECT_RIG_H
#define HARP_TESTS_CONNECT_RIG_H

#include "check.h"
#include "connect/connector.h"
#include "double_env.h"

static struct poller control;
static struct control_timers timers;

struct poller *control_poller(void)
{
	return &control;
}

void control_post(struct work *work)
{
	poller_post(&control, work);
}

void control_call(void (*run)(void *arg), void *arg)
{
	run(arg);
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	control_timer_unlink(timer);
	timer->at_ns = at_ns;
	if (at_ns != UINT64_MAX)
		LIST_INSERT_HEAD(&timers, timer, link);
}

static void control_turn(struct poller *poller, uint64_t now_ns)
{
	(void)poller_run_ready(poller, now_ns);
}

/* The test ends attempts. */
const struct attempt_ops attempt_ops;

struct attempt *attempt_new(const struct attempt_ops *ops)
{
	struct attempt *a = calloc(1, sizeof(*a));

	atomic_init(&a->result, ATTEMPT_RUNNING);
	return a;
}

int attempt_result(const struct attempt *a)
{
	return atomic_load(&a->result);
}

void background_begin(struct comm *c)
{
}

void background_end(struct comm *c)
{
}

#endif
