/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - ports whose driver connects to a peer: memif.
 *
 * Theory of operation
 *
 * DPDK's interrupt thread establishes and ends memif connections. The driver does not synchronize
 * that thread with threads that start, stop or close the device. So the interrupt thread makes
 * those calls as well: an event runs one call per iteration. A socket closed by one call thus has
 * no pending event when the next call opens a socket with the same number.
 *
 * A memif client connects once, when it is started, and its start fails without a server. Ten times
 * a second, link_tick() starts stopped clients that have a server, and stops clients that have lost
 * theirs. It does not stop a client in a handshake: a server of DPDK 22.11 aborts its process if a
 * client leaves before the server's first message. So closing a client first waits for the end of
 * its handshake.
 *
 * When a peer exits or disconnects, the driver unmaps the rings at once, while bursts may copy from
 * them. Its log is the only earlier hook: at debug level it reports, in the interrupt thread, that
 * a message ends the connection. On this line, link_leaving() quiesces all such ports. An alarm
 * runs after the driver has finished and resumes them; by then the driver knows that it is
 * disconnected. A second line reports each end of a connection; link_ends counts them.
 */
#include <errno.h>
#include <rte_alarm.h>
#include <rte_interrupts.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/util.h"
#include "dpdk/quiesce.h"
#include "dpdk/port.h"

#define LINK_POLL_US 100000u
#define LINK_UP_WAIT_MS 1000u
#define LINK_ROUNDS 8 /* iterations of the interrupt thread; each reads one message */

/* Ports with peers. Writers hold the ports' lock and link_list_lock; link_leaving() holds only the
 * latter. */
static struct dpdk_port *link_ports;
static pthread_mutex_t link_list_lock = PTHREAD_MUTEX_INITIALIZER;
static bool link_armed;        /* link_tick() is scheduled; under link_list_lock */
static unsigned link_quiesced; /* link_leaving() has quiesced the ports; under link_list_lock */

/* For ports of harp.dpdk (harp_dpdk.h: guard). Under link_list_lock. */
static void (*link_others_leaving)(void);
static void (*link_others_done)(void);

static uint32_t link_ends; /* written in the interrupt thread */

void link_ended(void)
{
	__atomic_add_fetch(&link_ends, 1, __ATOMIC_RELEASE);
}

uint32_t link_end_count(void)
{
	return __atomic_load_n(&link_ends, __ATOMIC_ACQUIRE);
}

static bool link_is_up(uint16_t id)
{
	struct rte_eth_link link = { 0 };

	return rte_eth_link_get_nowait(id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

static void link_set_started(struct dpdk_port *port, bool started)
{
	__atomic_store_n(&port->started, started, __ATOMIC_RELAXED);
}

/* Starts or stops a port, never both in one event, because the socket's number may be reused in
 * between. A port that is not started stays quiesced. Under the ports' lock. */
static void link_check(struct dpdk_port *port)
{
	if (port->memif.is_server)
		return;
	if (!port->started) {
		port->link_ends = link_end_count();
		if (memif_has_server(&port->memif) && rte_eth_dev_start(port->id) == 0) {
			link_set_started(port, true);
			quiesce_end(port);
		}
	} else if (port->link_ends != link_end_count() && !link_is_up(port->id)) {
		if (quiesce_begin(port)) {
			rte_eth_dev_stop(port->id);
			link_set_started(port, false);
		} else {
			quiesce_end(port);
		}
	}
}

/* Runs ten times a second in the interrupt thread, while there are ports. */
static void link_tick(void *arg)
{
	(void)arg;
	/* The lock's holder may be waiting for this thread in link_run(). */
	if (port_trylock_all()) {
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			link_check(p);
		port_unlock_all();
	}
	pthread_mutex_lock(&link_list_lock);
	link_armed = link_ports && rte_eal_alarm_set(LINK_POLL_US, link_tick, NULL) == 0;
	pthread_mutex_unlock(&link_list_lock);
}

/* ---- calls in the interrupt thread ---- */

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
	pthread_mutex_lock(&link_call.lock);
	(void)eventfd_read(rte_intr_fd_get(link_call.handle), &count);
	if (link_call.run)
		link_call.run(link_call.arg);
	link_call.run = NULL;
	pthread_cond_signal(&link_call.changed);
	pthread_mutex_unlock(&link_call.lock);
}

/* The event is never removed, and neither is the interrupt thread. */
static int link_event_create(void)
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

int link_run_in_intr(void (*run)(void *arg), void *arg)
{
	int err = 0;

	pthread_mutex_lock(&link_call.turn);
	if (!link_call.handle)
		err = link_event_create();
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
	if (port->traits & DRIVER_CONNECTS)
		return link_run_in_intr(run, arg);
	run(arg);
	return 0;
}

/* ---- ports ---- */

struct link_start_args {
	struct dpdk_port *port;
	int err;
};

static void link_start_device(void *arg)
{
	struct link_start_args *args = arg;
	struct dpdk_port *port = args->port;

	port->link_ends = link_end_count();
	if ((port->traits & DRIVER_CONNECTS) && !port->memif.is_server &&
	    !memif_has_server(&port->memif))
		args->err = -ECONNREFUSED;
	else
		args->err = rte_eth_dev_start(port->id);
}

int link_start(struct dpdk_port *port)
{
	struct link_start_args args = { .port = port };

	link_run(port, link_start_device, &args);
	link_set_started(port, args.err == 0);
	if (!args.err || !(port->traits & DRIVER_CONNECTS) || port->memif.is_server)
		return args.err;
	quiesce_begin(port); /* link_check() ends it */
	return 0;
}

static void link_no_op(void *arg)
{
	(void)arg;
}

void link_wait_up(uint16_t id, uint32_t ends)
{
	for (unsigned i = 0; i < LINK_UP_WAIT_MS && ends == link_end_count(); i++) {
		if (link_is_up(id))
			return;
		usleep(1000);
	}
}

void link_retire(const struct memif *memif)
{
	memif_retire(memif);
	for (unsigned i = 0; i < LINK_ROUNDS; i++)
		link_run_in_intr(link_no_op, NULL);
}

static void link_stop_device(void *arg)
{
	const struct dpdk_port *port = arg;

	if (port->started)
		rte_eth_dev_stop(port->id);
}

static void link_close_device(void *arg)
{
	rte_eth_dev_close(((const struct dpdk_port *)arg)->id);
}

void link_stop(struct dpdk_port *port, bool is_last)
{
	bool connects = port->traits & DRIVER_CONNECTS;

	if (connects && port->started && !port->memif.is_server)
		link_wait_up(port->id, port->link_ends);
	if (connects && is_last && port->memif.is_server)
		link_retire(&port->memif);
	link_run(port, link_stop_device, port);
	link_set_started(port, false);
	if (is_last)
		link_run(port, link_close_device, port);
}

void link_add(struct dpdk_port *port)
{
	pthread_mutex_lock(&link_list_lock);
	port->next = link_ports;
	link_ports = port;
	if (link_quiesced > 0)
		quiesce_begin(port); /* link_done() ends it for all ports */
	if (!link_armed)
		link_armed = rte_eal_alarm_set(LINK_POLL_US, link_tick, NULL) == 0;
	pthread_mutex_unlock(&link_list_lock);
}

void link_remove(struct dpdk_port *port)
{
	pthread_mutex_lock(&link_list_lock);
	LIST_UNLINK(link_ports, port, next);
	pthread_mutex_unlock(&link_list_lock);
}

/* Alarm: runs after the driver has ended the connection. */
static void link_done(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&link_list_lock);
	if (link_quiesced > 0) {
		for (struct dpdk_port *p = link_ports; p; p = p->next)
			quiesce_end(p);
		if (link_others_done)
			link_others_done();
	}
	link_quiesced = 0;
	pthread_mutex_unlock(&link_list_lock);
}

void link_leaving(void)
{
	pthread_mutex_lock(&link_list_lock);
	if (link_quiesced == 0 && rte_eal_alarm_set(1, link_done, NULL) == 0) {
		link_quiesced = 1;
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
	if (link_quiesced > 0)
		leaving(); /* link_done() calls done() */
	link_others_leaving = leaving;
	link_others_done = done;
	pthread_mutex_unlock(&link_list_lock);
}
