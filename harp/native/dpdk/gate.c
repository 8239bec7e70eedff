/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - keeps bursts out of memif's driver while its interrupt thread ends a connection.
 *
 * A counter has the number of threads in drivers. The thread that shuts the gate waits until it is
 * 0; a thread that finds the gate shut skips its burst. The driver has no locks against its
 * interrupt thread. So start, stop, close and link status of memif ports run in the interrupt
 * thread, too.
 */
#include <rte_ethdev.h>
#include <sched.h>

#include "dpdk_private.h"

static uint32_t inside, shut;

bool dpdk_gate_enter(void)
{
	/* Pairs with dpdk_gate_shut(): this thread sees `shut`, or that one sees `inside`. */
	__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&shut, __ATOMIC_SEQ_CST))
		return true;
	dpdk_gate_leave();
	return false;
}

void dpdk_gate_leave(void)
{
	__atomic_sub_fetch(&inside, 1, __ATOMIC_RELEASE);
}

void dpdk_gate_shut(void)
{
	__atomic_add_fetch(&shut, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST))
		sched_yield(); /* a burst takes microseconds */
}

void dpdk_gate_open(void)
{
	__atomic_sub_fetch(&shut, 1, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------------------------------------
 * Calls in the interrupt thread.
 */
struct call {
	int (*run)(uint16_t port, void *argument);
	uint16_t port;
	void *argument;
	int result;
};

static void call_run(void *argument)
{
	struct call *call = argument;

	call->result = call->run(call->port, call->argument);
}

int dpdk_in_driver_thread(uint16_t port, int (*run)(uint16_t port, void *argument), void *argument)
{
	struct call call = { .run = run, .port = port, .argument = argument };
	struct rte_eth_dev_info info;
	int result;

	if (rte_eth_dev_info_get(port, &info) || !dpdk_is_memif(&info))
		return run(port, argument);
	result = dpdk_library()->run_in_intr(call_run, &call);
	return result ? result : call.result;
}
