/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_host.c - hosts of the simulation: NICs on the wires of the rails, stacks, and engines that
 * run the plugin's turn (engine_turn.c). Functions of this file replace engine.c,
 * engine_background.c, control.c and the instance.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/endian.h"
#include "double_env.h"
#include "lane/lane_harp.h"
#include "nic/wire.h"
#include "packet.h"
#include "stack/stack.h"

#define HOST_PORT 7000u
#define HOST_FRAMES 2048u
#define HOST_PACKETS 4096u

/* ---- test doubles of instance.c and engine*.c ------------------------------------------------ */

static struct csim_nic *host_nic(const struct harp_instance *instance)
{
	return (struct csim_nic *)(uintptr_t)instance;
}

int harp_instance_control(struct harp_instance *instance, uint64_t now_ns)
{
	struct csim_nic *nic = host_nic(instance);

	(void)now_ns;
	nic->reported = nic->gone;
	return nic->gone ? -ENODEV : 0;
}

bool harp_instance_control_pending(const struct harp_instance *instance)
{
	return host_nic(instance)->gone != host_nic(instance)->reported;
}

const char *harp_instance_describe(const struct harp_instance *instance)
{
	(void)instance;
	return "simulated";
}

const struct harp_rss *harp_instance_rss(const struct harp_instance *instance)
{
	static const struct harp_rss one = { .kind = HARP_RSS_NONE, .queues = 1 };

	(void)instance;
	return &one;
}

uint32_t harp_instance_queue(const struct harp_instance *instance)
{
	(void)instance;
	return 0;
}

const struct harp_lease_leased *harp_instance_lease(const struct harp_instance *instance)
{
	(void)instance;
	return NULL;
}

int harp_instance_fd(const struct harp_instance *instance)
{
	(void)instance;
	return -1;
}

/* Work was posted: the background poller runs at once. */
void engine_wake(struct poller *poller)
{
	struct csim_nic *nic = (struct csim_nic *)poller;

	nic->due_ns = nic->due_ns < nic->sim->now_ns ? nic->due_ns : nic->sim->now_ns;
}

void engine_advance(struct poller *poller, uint64_t now_ns)
{
	struct csim_nic *nic = (struct csim_nic *)poller;

	if (engine_turn(&nic->engine, now_ns))
		csim_wake_apps(nic->sim, nic->host);
}

/* ---- NICs: ports of the wire that drop packets of a cut path --------------------------------- */

static struct csim *host_sim;
static const struct harp_nic_ops *wire_ops;
static struct harp_nic_ops card_ops; /* wire_ops with another rx */

/* Finds the lane of a TCP packet that arrived at this NIC, and its sender. NULL: no lane. */
static struct csim_lane *card_lane(struct csim_nic *nic, const uint8_t *eth, uint32_t len,
				   enum csim_side *sender)
{
	bool v4 = len >= 54 && be16_load(eth + 12) == 0x0800;
	const uint8_t *tcp = v4 ? eth + 34 : eth + 54;
	struct csim *sim = nic->sim;

	if ((!v4 && (len < 74 || be16_load(eth + 12) != 0x86dd)) || eth[v4 ? 23 : 20] != 6)
		return NULL;
	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *lane = &sim->lanes[i];

		if (lane->spec->kind != CSN_HARP || lane->spec->rail != nic->rail)
			continue;
		for (unsigned side = 0; side < 2; side++) {
			if (csim_lane_host(lane, !side) == nic->host &&
			    eth[11] == csim_lane_host(lane, side) &&
			    csim_lane_has_port(lane,
					       be16_load(tcp + (side == CSIM_SEND ? 0 : 2)))) {
				*sender = side;
				return lane;
			}
		}
	}
	return NULL;
}

static bool card_is_dropped(struct csim_nic *nic, const uint8_t *eth, uint32_t len)
{
	struct csim *sim = nic->sim;
	enum csim_side sender;
	struct csim_lane *lane;
	unsigned from = len > 14 ? eth[11] : 0;

	if (nic->cut_until_ns > sim->now_ns || nic->gone)
		return true;
	if (from < sim->scenario->world.hosts &&
	    sim->hosts[from].nics[nic->rail]->cut_out_until_ns > sim->now_ns)
		return true;
	lane = card_lane(nic, eth, len, &sender);
	return lane && csim_lane_is_silent(lane, sender);
}

static unsigned card_rx(struct harp_nic *port, struct harp_desc *descs, unsigned max,
			uint64_t now_ns)
{
	struct csim_nic *nic = host_sim->nics;
	unsigned got, kept = 0, n;

	while (nic->port != port)
		nic++;
	do {
		got = wire_ops->rx(port, descs, max, now_ns);
		for (unsigned i = 0; i < got; i += n) {
			bool is_dropped =
				card_is_dropped(nic, port->caps.frame_base + descs[i].addr,
						descs[i].len);

			for (n = 1; i + n < got && (descs[i + n - 1].flags & HARP_DESC_MORE);)
				n++;
			for (unsigned d = i; is_dropped && d < i + n; d++)
				wire_ops->fill(port, &descs[d].addr, 1);
			if (is_dropped)
				continue;
			memmove(descs + kept, descs + i, n * sizeof(*descs));
			kept += n;
		}
	} while (got > 0 && kept == 0);
	return kept;
}

uint64_t csim_nic_next_ns(struct csim_nic *nic)
{
	uint64_t next_ns = earlier(engine_deadline_ns(&nic->engine), csim_listener_next_ns(nic));

	return earlier(next_ns, nic->port->ops->next_ns(nic->port));
}

/* ---- setup ----------------------------------------------------------------------------------- */

struct harp_addr csim_addr(const struct csim *sim, unsigned host, unsigned rail)
{
	struct harp_addr addr = { { 0xfd } };

	if (sim->scenario->world.family == 4)
		return harp_addr_v4(10, 0, (uint8_t)rail, (uint8_t)(host + 1));
	addr.bytes[1] = (uint8_t)rail;
	addr.bytes[15] = (uint8_t)(host + 1);
	return addr;
}

void csim_nic_impair(struct csim_nic *nic, const struct scn_impair *path)
{
	struct harp_wire_impair impair =
		scn_impair_wire(path ? path : &nic->sim->scenario->nics[nic - nic->sim->nics]);

	(void)harp_wire_set_impair(nic->sim->wires[nic->rail], nic->host, &impair);
}

static int nic_stack_make(struct csim_nic *nic, bool listens)
{
	struct csim *sim = nic->sim;
	struct harp_stack_options options = {
		.size = sizeof(options),
		.max_conns = 256,
		.seed = rng_u64(&sim->rng),
		.now_ns = sim->now_ns,
		.hooks = { .ctx = &nic->engine, .requests = engine_requests },
	};
	struct harp_addr addr = csim_addr(sim, nic->host, nic->rail);
	struct harp_endpoint at = { .port = HOST_PORT };
	struct harp_tcp_options tcp;
	int err = harp_stack_create(&nic->engine.stack, nic->port, &options);

	if (!err)
		err = harp_stack_address_add(nic->engine.stack, &addr,
					     sim->scenario->world.family == 4 ? 24 : 64);
	lane_harp_tcp_options(&tcp, 0);
	if (!err && listens)
		err = harp_tcp_listen(nic->engine.stack, &at, &tcp, &nic->listener);
	return err;
}

static int nic_make(struct csim *sim, unsigned host, unsigned rail)
{
	struct csim_nic *nic = &sim->nics[host * sim->scenario->world.rails + rail];

	sim->hosts[host].nics[rail] = nic;
	nic->sim = sim;
	nic->host = host;
	nic->rail = rail;
	nic->port = harp_wire_port(sim->wires[rail], host);
	wire_ops = nic->port->ops;
	card_ops = *wire_ops;
	card_ops.rx = card_rx;
	nic->port->ops = &card_ops;
	nic->engine.instance = (struct harp_instance *)nic;
	nic->engine.dev = (int)rail;
	nic->due_ns = CSIM_NEVER_NS;
	snprintf(nic->engine.name, sizeof(nic->engine.name), "h%ur%u", host, rail);
	nic->engines.count = 1;
	nic->engines.engines[0] = &nic->engine;
	poller_init(&nic->engine.poller, engine_advance);
	nic->engine.poller.wake = engine_wake;
	return nic_stack_make(nic, true);
}

static void connect_poller_advance(struct poller *poller, uint64_t now_ns)
{
	(void)poller_run_ready(poller, now_ns);
}

bool csim_hosts_make(struct csim *sim)
{
	const struct csn_world *w = &sim->scenario->world;
	int err = 0;

	host_sim = sim;
	env_device_count = (int)w->rails;
	for (unsigned rail = 0; rail < w->rails && !err; rail++) {
		struct harp_wire_options options = {
			.size = sizeof(options),
			.ports = (uint32_t)w->hosts,
			.frame_size = w->mtu_bytes > 2000 ? 4096 : 2048,
			.frame_count = HOST_FRAMES,
			.mtu_bytes = (uint32_t)w->mtu_bytes,
			.packets_max = HOST_PACKETS,
			.seed = rng_u64(&sim->rng),
			.impair = { .delay_ns = CSIM_US },
		};

		err = harp_wire_create(&sim->wires[rail], &options);
	}
	for (unsigned host = 0; host < w->hosts && !err; host++) {
		poller_init(&sim->hosts[host].connect_poller, connect_poller_advance);
		csim_control_make(&sim->hosts[host]);
		for (unsigned rail = 0; rail < w->rails && !err; rail++)
			err = nic_make(sim, host, rail);
	}
	return !err || runner_fail("cannot create the hosts: %s", strerror(-err));
}

void csim_hosts_impair(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->nic_count; i++)
		csim_nic_impair(&sim->nics[i], NULL);
}

void csim_hosts_destroy(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->nic_count; i++) {
		if (sim->nics[i].engine.stack)
			harp_stack_destroy(sim->nics[i].engine.stack);
	}
	for (unsigned rail = 0; rail < sim->scenario->world.rails; rail++)
		harp_wire_destroy(sim->wires[rail]);
}

void csim_nic_drop(struct csim_nic *nic)
{
	while (!LIST_EMPTY(&nic->engine.lanes)) {
		struct engine_lane *l = LIST_FIRST(&nic->engine.lanes);

		LIST_REMOVE(l, link);
		free(container_of(l, struct lane_harp, member));
	}
	nic->engine.closing_count = 0;
}

void csim_nic_kill(struct csim_nic *nic)
{
	struct wire_port *port = (struct wire_port *)nic->port;

	csim_nic_drop(nic);
	nic->listener = NULL;
	harp_stack_destroy(nic->engine.stack);
	nic->engine.stack = NULL;
	/* Its frames have no owner now; the next stack fills all of them again. */
	port->fill_count = 0;
	port->sent_count = 0;
	if (nic_stack_make(nic, false))
		(void)runner_fail("host %u: cannot create the stack that replies after the death",
				  nic->host);
}

/* ---- forged packets -------------------------------------------------------------------------- */

/* Builds an RST without options and data. Returns its length. */
static uint32_t rst_packet(const struct csim *sim, unsigned from, unsigned to, unsigned rail,
			   uint8_t *eth, uint16_t sport, uint16_t dport, uint32_t seq)
{
	struct harp_addr src = csim_addr(sim, from, rail), dst = csim_addr(sim, to, rail);
	uint32_t headers = packet_headers(eth, sim->hosts[to].nics[rail]->port->caps.mac,
					  sim->hosts[from].nics[rail]->port->caps.mac, &src, &dst,
					  IP_PROTO_TCP, 20);
	uint8_t *tcp = eth + headers;

	memset(tcp, 0, 20);
	be16_store(tcp, sport);
	be16_store(tcp + 2, dport);
	be32_store(tcp + 4, seq);
	tcp[12] = 5 << 4;
	tcp[13] = TCP_RST;
	packet_seal(tcp, 16, 20, &src, &dst, IP_PROTO_TCP);
	return headers + 20;
}

void csim_inject_rst(struct csim *sim, struct csim_lane *lane, enum csim_side victim, bool fits)
{
	struct lane_harp *victim_lane = (struct lane_harp *)csim_lane_end(lane, victim);
	struct lane_harp *peer_lane = (struct lane_harp *)csim_lane_end(lane, !victim);
	unsigned to = csim_lane_host(lane, victim), from = csim_lane_host(lane, !victim);
	unsigned rail = (unsigned)lane->spec->rail;
	uint8_t eth[128];
	uint32_t seq, len;

	if (!victim_lane || victim_lane->lane.error)
		return;
	/* The peer's next sequence number, so that the RST is valid behind the data in flight. */
	seq = peer_lane && !peer_lane->lane.error ? peer_lane->conn->snd.nxt_seq
						  : victim_lane->conn->rcv.nxt_seq;
	if (!fits)
		seq += 1 + rng_below(&sim->rng, 2000000000);
	len = rst_packet(sim, from, to, rail, eth, victim_lane->conn->remote_port,
			 victim_lane->conn->local_port, seq);
	wire_path_send((struct wire_port *)sim->hosts[from].nics[rail]->port, eth, len,
		       sim->now_ns);
}
