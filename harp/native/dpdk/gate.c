/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - keeps bursts out of memif's driver while its interrupt thread takes a connection down.
 *
 * Each thread counts itself in and out of the drivers in a place of its own (shared by a few, where there are many
 * threads). The thread that shuts the gate waits until all places are empty; a thread that finds it shut skips this burst. The
 * driver guards nothing else against its interrupt thread either: so ports of memif are started,
 * stopped, closed and asked for their link there.
 */
#include <rte_ethdev.h>
#include <sched.h>
#include <string.h>

#include "dpdk_private.h"

#define PLACES 64u

static struct {
	_Alignas(64) uint32_t inside;
} places[PLACES];
static uint32_t place_next, shut;
static __thread uint32_t place_own; /* its number + 1 */

bool dpdk_gate_enter(void)
{
	if (!place_own)
		place_own = __atomic_fetch_add(&place_next, 1, __ATOMIC_RELAXED) % PLACES + 1;
	/* Pairs with that of dpdk_gate_shut(): either we see it shut, or it sees us inside. */
	__atomic_add_fetch(&places[place_own - 1].inside, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&shut, __ATOMIC_SEQ_CST))
		return true;
	dpdk_gate_leave();
	return false;
}

void dpdk_gate_leave(void)
{
	__atomic_sub_fetch(&places[place_own - 1].inside, 1, __ATOMIC_RELEASE);
}

void dpdk_gate_shut(void)
{
	__atomic_add_fetch(&shut, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < PLACES; i++)
		while (__atomic_load_n(&places[i].inside, __ATOMIC_SEQ_CST))
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
