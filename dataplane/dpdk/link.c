/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - ports whose driver connects to a peer: memif's.
 *
 * Theory of operation
 *
 * A memif connection is made and ended in DPDK's interrupt thread. Nothing in the driver keeps that
 * thread apart from threads that start, stop or close the device, so they do it there: an event of
 * ours runs one call in each round of the interrupt thread. A socket that one call closes has no
 * event left when the next call opens a socket with the same number.
 *
 * A memif client connects once, when it is started; memif_switch.c makes that work for a server that
 * comes later. Every tenth of a second clients that have lost their server are restarted.
 *
 * When a peer dies, or says goodbye, the driver unmaps the rings at once, under bursts that are copying from them.
 * There is no hook before that but its own log: at its debug level it says, in the interrupt thread, that what
 * it received ends the connection. At this line the gates of all such ports are shut and their bursts awaited; an
 * alarm, which comes after the driver has done, opens them. From then on the driver knows that it is not connected.
 */
#include <errno.h>
#include <rte_alarm.h>
#include <rte_interrupts.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "dpdk/gate.h"
#include "dpdk/port.h"
#include "dpdk/memif_switch.h"

#define LINK_LOOK_US 100000u
#define LINK_RETRY_NS 1000000000u /* after a start that worked: the peers are shaking hands */

/* Ports that have peers. Writers hold the ports' lock and link_list_lock, link_leaving() the latter alone. */
static struct dpdk_port *link_ports;
static pthread_mutex_t link_list_lock = PTHREAD_MUTEX_INITIALIZER;
static bool link_armed; /* link_tick() will come. Under link_list_lock */
static unsigned
	link_left; /* gates shut by link_leaving(), and not yet opened. Under link_list_lock */

/* Of ports that are not ours (harp_dpdk.h: guard). Under link_list_lock */
static void (*link_others_leaving)(void);
static void (*link_others_done)(void);

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

	if (now_ns < port->retry_ns || !memif_is_lost(port->memif))
		return;
	if (port->started && rte_eth_link_get_nowait(port->id, &link) == 0 &&
	    link.link_status == RTE_ETH_LINK_UP)
		return;
	if (gate_shut(port)) {
		if (port->started) {
			rte_eth_dev_stop(port->id);
			__atomic_store_n(&port->started, false, __ATOMIC_RELAXED);
			gate_shut(port); /* not started: shut for as long */
		}
		if (rte_eth_dev_start(port->id) == 0) {
			__atomic_store_n(&port->started, true, __ATOMIC_RELAXED);
			port->retry_ns = now_ns + LINK_RETRY_NS;
			gate_open(port);
		}
	}
	gate_open(port);
}

/* Every tenth of a second, in the interrupt thread, as long as there are ports. */
static void link_tick(void *arg)
{
	(void)arg;
	/* Who holds the lock may be waiting for this thread: link_run(). */
	if (port_trylock_all()) {
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			link_look(p, link_now_ns());
		port_unlock_all();
	}
	pthread_mutex_lock(&link_list_lock);
	link_armed = link_ports && rte_eal_alarm_set(LINK_LOOK_US, link_tick, NULL) == 0;
	pthread_mutex_unlock(&link_list_lock);
}

/* ---- calls in the interrupt thread ------------------------------------------------------------- */

static struct {
	pthread_mutex_t turn; /* one call at a time */
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t changed;
	struct rte_intr_handle *handle; /* NULL: not made */
	void (*run)(void *arg);         /* NULL: done */
	void *arg;
} link_call = {
	.turn = PTHREAD_MUTEX_INITIALIZER,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
};

static void link_event(void *arg)
{
	eventfd_t count;

	(void)arg;
	(void)eventfd_read(rte_intr_fd_get(link_call.handle), &count);
	pthread_mutex_lock(&link_call.lock);
	if (link_call.run)
		link_call.run(link_call.arg);
	link_call.run = NULL;
	pthread_cond_signal(&link_call.changed);
	pthread_mutex_unlock(&link_call.lock);
}

/* The event. It stays, as the interrupt thread does. */
static int link_event_make(void)
{
	struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), err = fd < 0 ? -errno : 0;

	if (!err && (!handle || rte_intr_fd_set(handle, fd) ||
		     rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT)))
		err = -ENOMEM;
	if (!err)
		err = rte_intr_callback_register(handle, link_event, NULL);
	if (!err) {
		link_call.handle = handle;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	rte_intr_instance_free(handle);
	return err;
}

int link_run_there(void (*run)(void *arg), void *arg)
{
	int err = 0;

	pthread_mutex_lock(&link_call.turn);
	if (!link_call.handle)
		err = link_event_make();
	if (!err) {
		pthread_mutex_lock(&link_call.lock);
		link_call.run = run;
		link_call.arg = arg;
		(void)eventfd_write(rte_intr_fd_get(link_call.handle), 1);
		while (link_call.run)
			pthread_cond_wait(&link_call.changed, &link_call.lock);
		pthread_mutex_unlock(&link_call.lock);
	}
	pthread_mutex_unlock(&link_call.turn);
	return err;
}

int link_run(const struct dpdk_port *port, void (*run)(void *arg), void *arg)
{
	if (port->traits & DRIVER_DIALS)
		return link_run_there(run, arg);
	run(arg);
	return 0;
}

/* ---- ports ------------------------------------------------------------------------------------- */

void link_add(struct dpdk_port *port)
{
	pthread_mutex_lock(&link_list_lock);
	port->next = link_ports;
	link_ports = port;
	if (link_left > 0)
		gate_shut(port); /* link_done() opens the gates of all */
	if (!link_armed)
		link_armed = rte_eal_alarm_set(LINK_LOOK_US, link_tick, NULL) == 0;
	pthread_mutex_unlock(&link_list_lock);
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
	if (link_left > 0) {
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			gate_open(p);
		if (link_others_done)
			link_others_done();
	}
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
		if (link_others_leaving)
			link_others_leaving();
	}
	pthread_mutex_unlock(&link_list_lock);
}

void link_guard(void (*leaving)(void), void (*done)(void))
{
	pthread_mutex_lock(&link_list_lock);
	if (link_left > 0)
		leaving(); /* link_done() will say the other word */
	link_others_leaving = leaving;
	link_others_done = done;
	pthread_mutex_unlock(&link_list_lock);
}
