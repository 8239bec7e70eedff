/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - ports whose driver connects to a peer: memif.
 *
 * Theory of operation
 *
 * Memif connections are established and ended in DPDK's interrupt thread. The driver does not
 * synchronize that thread with threads that start, stop or close the device, so those calls are
 * made there as well: an event runs one call per iteration of the interrupt thread. A socket closed
 * by one call thus has no pending event when the next call opens a socket with the same number.
 *
 * A memif client connects once, when it is started; memif_switch.c handles a server that starts
 * later. Ten times a second, clients that have lost their server are restarted.
 *
 * When a peer exits or disconnects, the driver unmaps the rings at once, while bursts may copy from
 * them. The only earlier hook is its log: at debug level it reports, in the interrupt thread, that
 * a message ends the connection. On this line all such ports are quiesced; an alarm, which runs
 * after the driver is done, ends that. From then on the driver knows that it is disconnected.
 */
#include <errno.h>
#include <rte_alarm.h>
#include <rte_interrupts.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "dpdk/quiesce.h"
#include "dpdk/port.h"
#include "dpdk/memif_switch.h"

#define LINK_LOOK_US 100000u
#define LINK_RETRY_NS 1000000000u /* after a successful start: handshake in progress */

/* Ports with peers. Writers hold the ports' lock and link_list_lock, link_leaving() only the
 * latter. */
static struct dpdk_port *link_ports;
static pthread_mutex_t link_list_lock = PTHREAD_MUTEX_INITIALIZER;
static bool link_armed;    /* link_tick() is scheduled. Under link_list_lock */
static unsigned link_left; /* quiesced by link_leaving(). Under link_list_lock */

/* For ports of harp.dpdk (harp_dpdk.h: guard). Under link_list_lock */
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
	if (quiesce_begin(port)) {
		if (port->started) {
			rte_eth_dev_stop(port->id);
			__atomic_store_n(&port->started, false, __ATOMIC_RELAXED);
			quiesce_begin(port); /* not started: quiesced until it is */
		}
		if (rte_eth_dev_start(port->id) == 0) {
			__atomic_store_n(&port->started, true, __ATOMIC_RELAXED);
			port->retry_ns = now_ns + LINK_RETRY_NS;
			quiesce_end(port);
		}
	}
	quiesce_end(port);
}

/* Ten times a second in the interrupt thread, while there are ports. */
static void link_tick(void *arg)
{
	(void)arg;
	/* The lock's holder may be waiting for this thread: link_run(). */
	if (port_trylock_all()) {
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			link_look(p, link_now_ns());
		port_unlock_all();
	}
	pthread_mutex_lock(&link_list_lock);
	link_armed = link_ports && rte_eal_alarm_set(LINK_LOOK_US, link_tick, NULL) == 0;
	pthread_mutex_unlock(&link_list_lock);
}

/* ---- calls in the interrupt thread
 * ------------------------------------------------------------- */

static struct {
	pthread_mutex_t turn; /* one call at a time */
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed;
	struct rte_intr_handle *handle; /* NULL: not created */
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

/* The event is never removed, like the interrupt thread. */
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

/* ---- ports
 * ------------------------------------------------------------------------------------- */

void link_add(struct dpdk_port *port)
{
	pthread_mutex_lock(&link_list_lock);
	port->next = link_ports;
	link_ports = port;
	if (link_left > 0)
		quiesce_begin(port); /* link_done() ends it for all */
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

/* The driver has finished. */
static void link_done(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&link_list_lock);
	if (link_left > 0) {
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			quiesce_end(p);
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
			quiesce_begin(p);
		if (link_others_leaving)
			link_others_leaving();
	}
	pthread_mutex_unlock(&link_list_lock);
}

void link_guard(void (*leaving)(void), void (*done)(void))
{
	pthread_mutex_lock(&link_list_lock);
	if (link_left > 0)
		leaving(); /* link_done() calls done() */
	link_others_leaving = leaving;
	link_others_done = done;
	pthread_mutex_unlock(&link_list_lock);
}
