/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_connect.c - the plugin opens further lanes: connector.c, attempt.c and the preamble on the
 * sender's host, listener.c, pending.c and registry.c on the receiver's. Functions of this file
 * replace control.c, acceptor.c, peers.c, keyfile.c and lane_encrypted.c.
 *
 * Theory of operation. Each host has a control thread, which takes turns as the real one does
 * (posted work, sources, timers), after a small delay. A HARP lane is identified by its port: while
 * it opens, by the port of each SYN, later by its own. A kernel lane is identified by its
 * descriptor. The attempt and the listener own the ends of a lane until the plugin attaches them to
 * their comms.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "connect/attempt.h"
#include "connect/listener.h"
#include "connect/peers.h"
#include "connect/ctx.h"
#include "connect/registry.h"
#include "lane/lane.h"
#include "lane/lane_harp.h"
#include "process/forkguard.h"
#include "process/keyfile.h"

/* Test doubles have the parameters of the functions that they replace. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define CONTROL_WAKE_NS 20000u /* maximum delay of a woken control thread */

static struct csim *connect_sim;
static struct csim_host *control_host;
static struct csim_lane *starting_lane; /* lane of the attempt that starts */
static struct {
	struct control_source *source; /* NULL: removed */
	uint32_t events;
} control_sources[2 * CSIM_LANES_MAX];
static unsigned control_source_count;

void csim_control_select(struct csim *sim, unsigned host)
{
	control_host = &sim->hosts[host];
}

struct csim_host *csim_control_host(void)
{
	return control_host;
}

struct csim_lane *csim_starting_lane(void)
{
	return starting_lane;
}

/* ---- test doubles ---------------------------------------------------------------------------- */

ssize_t getrandom(void *buf, size_t len, unsigned flags)
{
	uint8_t *out = buf;

	for (size_t i = 0; i < len; i++)
		out[i] = (uint8_t)rng_u64(&connect_sim->rng);
	return (ssize_t)len;
}

const uint8_t *keyfile_key(void)
{
	return NULL;
}

int lane_encrypt(struct lane **lane, uint64_t sent_bytes, const uint8_t out[CRYPTO_KEY_BYTES],
		 const uint8_t in[CRYPTO_KEY_BYTES])
{
	abort(); /* no key, so no encryption */
}

bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out)
{
	return false;
}

void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end)
{
}

void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
}

bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	return false;
}

/* The acceptor accepts no first lanes. */
uint8_t acceptor_nics(int dev, struct nic_endpoints out[PREAMBLE_NICS_MAX])
{
	return 0;
}

int forkguard_accept(int fd, struct sockaddr_storage *peer)
{
	abort(); /* control_accept() calls pending_set_add() instead */
}

int __real_registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
			 const struct comm_lane_options *opt);
int __wrap_registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
			 const struct comm_lane_options *opt);

/* It holds the lock of the registry, on which an interleaved thread would deadlock. */
int __wrap_registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
			 const struct comm_lane_options *opt)
{
	int rc;

	connect_sim->depth++;
	rc = __real_registry_join(comm_id, key, lane, opt);
	connect_sim->depth--;
	return rc;
}

/* ---- the control thread ---------------------------------------------------------------------- */

struct poller *control_poller(void)
{
	return &control_host->control;
}

void control_post(struct work *work)
{
	poller_post(&control_host->control, work);
}

void control_call(void (*run)(void *arg), void *arg)
{
	/* Work that was posted earlier runs first. */
	(void)poller_run_ready(&control_host->control, connect_sim->now_ns);
	run(arg);
}

static void control_schedule(struct poller *poller)
{
	struct csim_host *host = container_of(poller, struct csim_host, control);
	uint64_t due_ns = connect_sim->now_ns + rng_below(&connect_sim->rng, CONTROL_WAKE_NS);

	if (due_ns < host->control_ns)
		host->control_ns = due_ns;
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	control_timer_unlink(timer);
	if (at_ns == UINT64_MAX)
		return;
	timer->at_ns = at_ns;
	LIST_INSERT_HEAD(&control_host->timers, timer, link);
}

int control_watch(struct control_source *source, int fd, uint32_t events)
{
	/* Sometimes the kernel has no memory for it. */
	if (csim_chance(&connect_sim->rng, connect_sim->scenario->world.no_epoll_ppm))
		return -ENOSPC;
	if (control_source_count == 2 * CSIM_LANES_MAX)
		abort();
	source->fd = fd;
	source->watched = true;
	control_sources[control_source_count].source = source;
	control_sources[control_source_count++].events = events;
	return 0;
}

void control_rewatch(struct control_source *source, uint32_t events)
{
	for (unsigned i = 0; i < control_source_count; i++) {
		if (control_sources[i].source == source)
			control_sources[i].events = events;
	}
}

void control_unwatch(struct control_source *source)
{
	for (unsigned i = 0; source->watched && i < control_source_count; i++) {
		if (control_sources[i].source == source)
			control_sources[i].source = NULL;
	}
	source->watched = false;
	while (control_source_count && !control_sources[control_source_count - 1].source)
		control_source_count--;
}

/* When the source is next ready on that host; CSIM_NEVER_NS: the source belongs to another host. */
static uint64_t source_ns(unsigned number, unsigned host)
{
	const struct control_source *source = control_sources[number].source;

	return source ? csim_stream_level_ns(source->fd, host, control_sources[number].events)
		      : CSIM_NEVER_NS;
}

/* Finds the next connection to the kernel listeners of that host, and its arrival time. */
static struct csim_lane *host_syn(unsigned host, uint64_t *at_ns)
{
	struct csim_lane *next = NULL;

	*at_ns = CSIM_NEVER_NS;
	for (unsigned i = 0; connect_sim->syns && i < connect_sim->lane_count; i++) {
		struct csim_lane *lane = &connect_sim->lanes[i];

		if (lane->stream && csim_lane_host(lane, CSIM_RECV) == host &&
		    csim_stream_syn_ns(lane->stream) < *at_ns) {
			*at_ns = csim_stream_syn_ns(lane->stream);
			next = lane;
		}
	}
	return next;
}

static void control_accept(struct csim_lane *lane, uint64_t now_ns)
{
	unsigned host = csim_lane_host(lane, CSIM_RECV);
	struct csim_nic *nic = connect_sim->hosts[host].nics[lane->spec->rail];
	int fd = csim_stream_accept(lane->stream, control_poller());

	pending_set_add(nic->kernel_pending, lane->end[CSIM_RECV].lane, fd, now_ns);
}

static void control_turn(struct poller *poller, uint64_t now_ns)
{
	struct csim_host *host = container_of(poller, struct csim_host, control);
	unsigned number = (unsigned)(host - connect_sim->hosts);
	struct control_timer *timer;
	struct csim_lane *lane;
	uint64_t at_ns;

	control_host = host;
	(void)poller_run_ready(poller, now_ns);
	while ((lane = host_syn(number, &at_ns)) && at_ns <= now_ns)
		control_accept(lane, now_ns);
	for (unsigned i = 0; i < control_source_count; i++) {
		if (source_ns(i, number) <= now_ns)
			control_sources[i].source->ready(control_sources[i].source, now_ns);
	}
	for (;;) {
		LIST_FOREACH(timer, &host->timers, link)
		if (timer->at_ns <= now_ns)
			break;
		if (!timer)
			return;
		control_timer_unlink(timer);
		timer->run(timer, now_ns);
	}
}

void csim_control_make(struct csim_host *host)
{
	poller_init(&host->control, control_turn);
	host->control.wake = control_schedule;
	host->control_ns = CSIM_NEVER_NS;
}

uint64_t csim_controls_next_ns(struct csim *sim)
{
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned h = 0; h < sim->scenario->world.hosts; h++) {
		struct csim_host *host = &sim->hosts[h];
		const struct control_timer *timer;
		uint64_t due_ns;

		if (host->dead)
			continue;
		(void)host_syn(h, &due_ns);
		due_ns = earlier(due_ns, host->control_ns);
		LIST_FOREACH(timer, &host->timers, link)
		due_ns = earlier(due_ns, timer->at_ns);
		for (unsigned i = 0; i < control_source_count; i++)
			due_ns = earlier(due_ns, source_ns(i, h));
		host->control_due_ns = due_ns;
		if (due_ns != CSIM_NEVER_NS)
			next_ns = earlier(next_ns, later(due_ns, host->freeze_until_ns));
	}
	return next_ns;
}

void csim_controls_run(struct csim *sim)
{
	for (unsigned h = 0; h < sim->scenario->world.hosts; h++) {
		struct csim_host *host = &sim->hosts[h];

		if (host->control_due_ns > sim->now_ns || csim_is_frozen(sim, h))
			continue;
		host->control_ns = CSIM_NEVER_NS;
		(void)poller_run(&host->control, sim->now_ns);
	}
}

/* Like control_stop(): posted work still runs. */
void csim_controls_end(struct csim *sim)
{
	for (unsigned h = 0; h < sim->scenario->world.hosts; h++) {
		csim_control_select(sim, h);
		while (poller_run_ready(&sim->hosts[h].control, sim->now_ns))
			;
		csim_listeners_drop(&sim->hosts[h]);
	}
}

/* ---- listeners ------------------------------------------------------------------------------- */

static void listener_open(struct csim_nic *nic, uint64_t kind)
{
	if (kind == CSN_KERNEL && !nic->kernel_pending) {
		nic->kernel_pending = calloc(1, sizeof(*nic->kernel_pending));
		if (!nic->kernel_pending)
			abort();
		pending_set_init(nic->kernel_pending, (int)nic->rail, NULL);
	}
	if (kind == CSN_HARP && !nic->lane_listener &&
	    stack_listener_open(&nic->lane_listener, (int)nic->rail, &nic->engine))
		(void)runner_fail("host %u rail %u: cannot open the lane listener", nic->host,
				  nic->rail);
}

void csim_listeners_open(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->lane_count; i++) {
		const struct csn_lane *l = &sim->scenario->lanes[i];
		const struct csn_comm *c = &sim->scenario->comms[l->comm];

		if (c->multi_lane)
			listener_open(sim->hosts[c->to].nics[l->rail], l->kind);
	}
}

void csim_listeners_drop(struct csim_host *host)
{
	for (unsigned rail = 0; rail < connect_sim->scenario->world.rails; rail++) {
		struct csim_nic *nic = host->nics[rail];

		control_host = host;
		if (nic->kernel_pending)
			pending_set_close(nic->kernel_pending);
		free(nic->kernel_pending);
		nic->kernel_pending = NULL;
		/* Its connections end with the stack. */
		nic->engine.listener = NULL;
		free(nic->lane_listener);
		nic->lane_listener = NULL;
	}
}

uint64_t csim_listener_next_ns(const struct csim_nic *nic)
{
	return nic->lane_listener && nic->lane_listener->pending_set.count
		       ? nic->lane_listener->pending_set.next_ns
		       : CSIM_NEVER_NS;
}

/* ---- lanes that open ------------------------------------------------------------------------- */

struct csim_lane *csim_attempt_lane(struct csim *sim, const struct attempt *attempt)
{
	for (unsigned i = 0; i < sim->lane_count; i++) {
		if (sim->lanes[i].attempt == attempt)
			return &sim->lanes[i];
	}
	return NULL;
}

bool csim_lane_has_port(const struct csim_lane *lane, uint16_t port)
{
	if (lane->port == port)
		return true;
	if (!lane->attempt)
		return false;
	if (lane->attempt->lane)
		return lane->attempt->lane->local.port == port;
	for (unsigned i = 0; i < lane->attempt->search.lane_count; i++) {
		if (lane->attempt->search.lanes[i]->local.port == port)
			return true;
	}
	return false;
}

struct lane *csim_lane_end(const struct csim_lane *lane, enum csim_side side)
{
	struct csim_nic *nic = lane->sim->hosts[csim_lane_host(lane, side)].nics[lane->spec->rail];
	struct harp_addr from =
		csim_addr(lane->sim, csim_lane_host(lane, CSIM_SEND), (unsigned)lane->spec->rail);

	if (lane->end[side].lane || !lane->attempt)
		return lane->end[side].lane;
	if (side == CSIM_SEND) {
		const struct port_search *o = &lane->attempt->search;

		return lane->attempt->lane || !o->lane_count ? lane->attempt->lane
							     : o->lanes[o->lane_count - 1];
	}
	for (unsigned i = 0; nic->lane_listener && i < PENDING_MAX; i++) {
		struct lane *pending = nic->lane_listener->pending_set.pending[i].lane;

		if (pending && csim_lane_has_port(lane, pending->remote.port) &&
		    memcmp(&pending->remote.addr, &from, sizeof(from)) == 0)
			return pending;
	}
	return NULL;
}

static bool lane_is_pending(const struct csim_nic *nic, const struct lane *lane)
{
	const struct pending_set *sets[] = { nic->kernel_pending,
					     nic->lane_listener ? &nic->lane_listener->pending_set
								: NULL };

	for (unsigned s = 0; s < 2; s++) {
		for (unsigned i = 0; sets[s] && i < PENDING_MAX; i++) {
			if (sets[s]->pending[i].lane == lane)
				return true;
		}
	}
	return false;
}

/* One of the SYNs of a lane continues to HELLO: this connection is the end of the lane. The end has
 * joined when it is no longer pending. */
void csim_listener_settle(struct csim_nic *nic)
{
	struct csim *sim = nic->sim;

	for (unsigned i = 0; nic->lane_listener && i < PENDING_MAX; i++) {
		const struct pending *pending = &nic->lane_listener->pending_set.pending[i];
		struct csim_lane *l = pending->lane && pending->identified
					      ? csim_lane_from(nic, pending->lane)
					      : NULL;

		if (!l)
			continue;
		csim_lane_adopt(pending->lane);
		l->end[CSIM_RECV].lane = pending->lane;
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *l = &sim->lanes[i];
		struct csim_end *end = &l->end[CSIM_RECV];

		if (l->by_plugin && end->lane && l->spec->rail == nic->rail &&
		    csim_lane_host(l, CSIM_RECV) == nic->host)
			end->joined |= !lane_is_pending(nic, end->lane);
	}
}

/* ---- connect attempts ------------------------------------------------------------------------ */

static void connect_ended(struct attempt *attempt, int error, const char *text, uint64_t now_ns)
{
	struct csim_comm *k = &connect_sim->comms[attempt->comm_id];
	struct csim_lane *lane = csim_attempt_lane(connect_sim, attempt);
	struct csim_planned *planned = &k->planned[attempt->own.index], old = *planned;

	csim_control_select(connect_sim, k->app[CSIM_SEND].host);
	if (lane) {
		if (error)
			csim_check_attempt_failure(lane, error);
		lane->attempt = NULL;
		lane->broken |= error != 0;
		lane->disturbed |= error != 0;
	}
	if (lane && !error) {
		lane->port = attempt->lane->local.port;
		lane->end[CSIM_SEND].lane = attempt->lane;
		lane->end[CSIM_SEND].joined = true;
		if (lane->spec->kind == CSN_HARP)
			csim_lane_adopt(attempt->lane);
	}
	csim_planned_end_attempt(k, planned, error, lane ? lane->port : 0);
	attempt_ops.ended(attempt, error, text, now_ns);
	if (lane && !error && !lane->end[CSIM_SEND].lane) { /* the comm rejected it */
		lane->end[CSIM_SEND].joined = false;
		*planned = old;
		csim_planned_end_attempt(k, planned, -ENOTCONN, 0);
	}
	if (lane)
		csim_note(connect_sim, "lane %u: attempt ended: %d", lane->number, error);
}

static void connect_stop(struct attempt *attempt)
{
	struct csim_lane *lane = csim_attempt_lane(connect_sim, attempt);

	if (lane) {
		lane->broken = lane->disturbed = true;
		lane->attempt = NULL;
	}
	attempt_ops.stop(attempt);
}

static void connect_start(struct attempt *attempt, uint64_t now_ns)
{
	struct csim *sim = connect_sim;

	csim_planned_begin_attempt(&sim->comms[attempt->comm_id], attempt->own.index);
	if (sim->lane_count == CSIM_LANES_MAX) {
		attempt->ops->ended(attempt, -EMFILE, "", now_ns);
		return;
	}
	starting_lane =
		csim_lane_new(sim,
			      csim_lane_spec(sim, (unsigned)attempt->comm_id, attempt->own.index),
			      attempt->own.index);
	starting_lane->attempt = attempt;
	starting_lane->by_plugin = true;
	attempt_ops.start(attempt, now_ns);
}

struct attempt_ops csim_attempt_ops;

void csim_connect_begin(struct csim *sim)
{
	connect_sim = sim;
	control_source_count = 0;
	csim_attempt_ops = (struct attempt_ops){ .start = connect_start,
						 .advance = attempt_ops.advance,
						 .stop = connect_stop,
						 .ended = connect_ended };
}
