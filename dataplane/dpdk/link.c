/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - ports whose driver connects to a peer: memif's.
 *
 * Theory of operation
 *
 * memif connects once, when it is started, and says no more when that fails or the server dies. So a thread looks at its
 * clients every tenth of a second, and starts those whose link is down anew: a server may come later than its
 * client, die and come back.
 *
 * When a peer dies, or says goodbye, memif's control channel is closed in DPDK's interrupt thread, which unmaps the rings
 * at once, under bursts that are copying from them. There is no hook before that but the driver's own log: at its debug
 * level it says, in that thread, that what it received ends the connection. At this line the gates of all such ports
 * are shut and their bursts awaited; an alarm, which runs in the same thread and therefore after the driver has
 * done, opens them. From then on the driver knows that it is not connected.
 */
#include <errno.h>
#include <rte_alarm.h>
#include <rte_interrupts.h>
#include <signal.h>
#include <time.h>

#include "dpdk/gate.h"
#include "dpdk/port.h"

#define LINK_LOOK_NS 100000000l
#define LINK_RETRY_NS 1000000000u /* after a start that worked: the peers are shaking hands */

/* Ports that have peers. Writers hold the ports' lock and link_list_lock, link_leaving() the latter alone. */
static struct dpdk_port *link_ports;
static pthread_mutex_t link_list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t link_changed = PTHREAD_COND_INITIALIZER;
static bool link_thread_runs;
static unsigned
	link_left; /* gates shut by link_leaving(), and not yet opened. Under link_list_lock */

static uint64_t link_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Under the ports' lock. */
static void link_look(struct dpdk_port *port, uint64_t now_ns)
{
	struct rte_eth_link link = { 0 };

	if (!port->reconnects || now_ns < port->retry_ns)
		return;
	if (port->started && rte_eth_link_get_nowait(port->id, &link) == 0 &&
	    link.link_status == RTE_ETH_LINK_UP)
		return;
	if (gate_shut(port)) {
		if (port->started) {
			rte_eth_dev_stop(port->id);
			port->started = false;
			gate_shut(port); /* not started: shut for as long */
		}
		if (rte_eth_dev_start(port->id) == 0) {
			port->started = true;
			port->retry_ns = now_ns + LINK_RETRY_NS;
			gate_open(port);
		}
	}
	gate_open(port);
}

static void *link_thread(void *arg)
{
	struct timespec until;

	(void)arg;
	pthread_setname_np(pthread_self(), "harp-dpdk-link");
	for (;;) {
		port_lock_all();
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			link_look(p, link_now_ns());
		port_unlock_all();
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += LINK_LOOK_NS;
		if (until.tv_nsec >= 1000000000l) {
			until.tv_nsec -= 1000000000l;
			until.tv_sec++;
		}
		pthread_mutex_lock(&link_list_lock);
		if (link_ports)
			pthread_cond_timedwait(&link_changed, &link_list_lock, &until);
		while (!link_ports)
			pthread_cond_wait(&link_changed, &link_list_lock);
		pthread_mutex_unlock(&link_list_lock);
	}
	return NULL;
}

/* The thread, with all signals blocked: they are the application's. */
static void link_thread_start(void)
{
	sigset_t all, before;
	pthread_t thread;

	if (link_thread_runs)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	link_thread_runs = pthread_create(&thread, NULL, link_thread, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (link_thread_runs)
		pthread_detach(thread);
}

void link_add(struct dpdk_port *port)
{
	pthread_mutex_lock(&link_list_lock);
	port->next = link_ports;
	link_ports = port;
	if (link_left > 0)
		gate_shut(port); /* link_done() opens the gates of all */
	pthread_cond_signal(&link_changed);
	pthread_mutex_unlock(&link_list_lock);
	link_thread_start();
}

void link_remove(struct dpdk_port *port)
{
	pthread_mutex_lock(&link_list_lock);
	for (struct dpdk_port **at = &link_ports; *at; at = &(*at)->next)
		if (*at == port) {
			*at = port->next;
			break;
		}
	pthread_mutex_unlock(&link_list_lock);
}

/* The driver has done what it was about to do. */
static void link_done(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&link_list_lock);
	if (link_left > 0)
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			gate_open(p);
	link_left = 0;
	pthread_mutex_unlock(&link_list_lock);
}

void link_leaving(void)
{
	pthread_mutex_lock(&link_list_lock);
	if (link_left == 0 && rte_eal_alarm_set(1, link_done, NULL) == 0) {
		link_left = 1;
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			gate_shut(p);
	}
	pthread_mutex_unlock(&link_list_lock);
}
