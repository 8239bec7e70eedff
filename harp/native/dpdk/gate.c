/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - keeps bursts out of memif's driver while its interrupt thread takes a connection down.
 *
 * Each thread counts itself in and out of the drivers. The thread that shuts the gate waits until
 * no thread is inside; a thread that finds it shut skips this burst. The driver guards nothing else
 * against its interrupt thread either: so ports of memif are started, stopped, closed and asked for
 * their link there.
 */
#include <rte_ethdev.h>
#include <sched.h>
#include <string.h>

#include "dpdk_private.h"

static uint32_t inside, shut;

bool dpdk_gate_enter(void)
{
	/* Pairs with that of dpdk_gate_shut(): either we see it shut, or it sees us inside. */
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

static bool connects(uint16_t port)
{
	struct rte_eth_dev_info info;

	return !rte_eth_dev_info_get(port, &info) && !strcmp(info.driver_name, "net_memif");
}

int dpdk_in_driver_thread(uint16_t port, int (*run)(uint16_t port, void *argument), void *argument)
{
	struct call call = { .run = run, .port = port, .argument = argument };
	int result;

	if (!connects(port))
		return run(port, argument);
	result = dpdk_library()->run_in_intr(call_run, &call);
	return result ? result : call.result;
}
