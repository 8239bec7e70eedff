/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_sim.h - the simulator of comms: plugin/comm*.c over lanes of both kinds, under a virtual clock, all
 * hosts in one process and one thread, checked at every step.
 *
 *	comm_sim.c         the schedule of hosts, engines and applications
 *	comm_host.c        hosts: NICs, wires, engines (the real turn of engine_turn.c)
 *	comm_stream.c      the simulated kernel: connections as lane_kernel.c calls them
 *	comm_lanes.c       first lanes, and the state of all lanes
 *	comm_connect.c     further lanes: control threads, listeners and attempts of the plugin
 *	comm_reconnect.c   their plan, and checks of connector.c
 *	comm_app.c         applications: they post, test, close, and check every byte and every buffer
 *	comm_idle_check.c  a comm that has something to do was woken
 *	comm_check.c       which errors the scenario explains; what must be gone in the end
 */
#ifndef HARP_TESTS_COMM_SIM_H
#define HARP_TESTS_COMM_SIM_H

#include "base/rng.h"
#include "comm/comm.h"
#include "comm_scenario.h"
#include "poll/engine.h"
#include "harp.h"
#include "runner.h"
#include "process/log.h"

#define CSIM_NEVER_NS UINT64_MAX
#define CSIM_US UINT64_C(1000)
#define CSIM_MS UINT64_C(1000000)
#define CSIM_S UINT64_C(1000000000)
#define CSIM_LANES_MAX 256u /* lanes ever opened, first ones and again */

struct csim;
struct csim_lane;
struct attempt;
struct attempt_ops;
struct pending_set;
struct stack_listener;

enum csim_side { CSIM_SEND = 0, CSIM_RECV = 1 };

/* ---- hosts ----------------------------------------------------------------------------------- */

struct csim_nic {
	struct engine
		engine; /* must be first: its address is also that of its struct harp_instance */
	struct engine_set engines; /* only that one */
	struct harp_nic *port;     /* of the rail's wire */
	struct csim *sim;
	unsigned host, rail;
	struct harp_listener *listener;
	/* Of lanes that the plugin opens, NULL: none. */
	struct stack_listener *lane_listener;
	struct pending_set *kernel_pending;
	bool gone, reported;       /* removed; the engine knows */
	uint64_t cut_until_ns;     /* nothing arrives */
	uint64_t cut_out_until_ns; /* nothing of it arrives anywhere */
	uint64_t due_ns;           /* the background poller's next turn, drawn when it became due */
	uint64_t turned_ns;
};

struct csim_host {
	struct csim_nic *nics[CSN_RAILS_MAX];
	struct poller connect_poller; /* of kernel lanes that have no comm yet */
	struct poller control;        /* comm_connect.c */
	struct control_timers timers;
	uint64_t control_ns, control_due_ns; /* woken; or that, or a timer or an attempt */
	uint64_t stall_until_ns, freeze_until_ns;
	bool dead;
	struct poller *held;    /* its poller is held by a thread that was preempted */
	struct comm *held_comm; /* the comm of that poller; NULL: an engine's */
	uint64_t held_until_ns;
};

/* ---- lanes ----------------------------------------------------------------------------------- */

struct csim_end {
	struct lane *lane; /* NULL: not yet, or closed by its owner */
	bool joined;       /* part of its comm */
	bool closed;
};

struct csim_lane {
	struct csim *sim;
	const struct csn_lane *spec;
	unsigned number, index; /* in csim.lanes; in its comm */
	struct csim_end end[2];
	uint16_t port; /* HARP: the connector's */
	struct csim_stream *stream;
	uint64_t silent_until_ns[2]; /* by sending side: nothing arrives */
	uint64_t silent_since_ns;
	bool by_plugin;          /* not a first lane */
	struct attempt *attempt; /* while it is being opened */
	bool broken;             /* reset, or silent forever */
	bool disturbed;          /* something in the scenario explains that it is given up */
};

/* ---- comms ----------------------------------------------------------------------------------- */

struct csim_buffer {
	uint8_t *base, *data; /* as allocated; as given to the comm */
	size_t size;          /* posted */
	uint64_t message;
	size_t total; /* of the message */
	struct request *request;
};

struct csim_app {
	struct csim *sim;
	unsigned number; /* of its comm */
	enum csim_side side;
	unsigned host;
	struct comm *comm;
	struct csim_buffer buffers[PLUGIN_REQUESTS_MAX];
	uint64_t posted, done; /* messages */
	uint64_t finished;     /* done when it closed */
	uint64_t wake_ns, poll_ns, next_post_ns, close_ns, progress_ns;
	int error;
	bool closed, closed_early, in_turn;
	struct csim_buffer retired[4]; /* given back by the comm: not to be written */
	unsigned retired_next;
	struct connector *connector; /* of a sender whose lanes are connector.c's */
};

/* comm_reconnect.c: what happened to a planned lane. */
struct csim_planned {
	bool up, attempting;
	uint64_t since_ns; /* of that */
	uint16_t port;     /* of a HARP lane */
	uint64_t opened, rerolled;
};

struct csim_comm {
	const struct csn_comm *spec;
	struct csim_app app[2];
	uint64_t *sizes;     /* of its messages */
	unsigned lanes;      /* of the scenario */
	bool excused;        /* something in the scenario explains an error */
	uint64_t no_lane_ns; /* no lane of it works since then; CSIM_NEVER_NS: one does */
	struct csim_planned planned[COMM_LANES_MAX];
	uint64_t lanes_died, lanes_replaced;
	uint64_t no_lane_until_ns; /* when that ended, for the last time that it lasted */
};

/* The comm's path policy (path_policy.h), by its stream's number as well. */
#define CSIM_STREAM_KERNEL 1u /* a stream whose messages prefer kernel lanes */
#define CSIM_STREAM_HARP 13u  /* one whose messages prefer HARP lanes */
static inline uint64_t csim_harp_bytes_max(const struct csim_comm *k)
{
	static const uint64_t policies[] = { 0, 512, 65536, UINT64_MAX };

	return policies[k->spec->stream / 4 % 4];
}

struct csim {
	const struct comm_scenario *scenario;
	struct rng rng, check_rng; /* check_rng: which memory is checked */
	uint64_t now_ns, zero_ns;  /* zero_ns: when all comms were there */
	uint64_t heal_ns;          /* the last disturbance ended */
	struct harp_wire *wires[CSN_RAILS_MAX];
	struct csim_nic nics[CSN_NICS_MAX];
	struct csim_host hosts[CSN_HOSTS_MAX];
	struct csim_comm comms[CSN_COMMS_MAX];
	struct csim_lane lanes[CSIM_LANES_MAX];
	unsigned lane_count;
	uint8_t event_state[CSN_EVENTS_MAX]; /* 0: to come, 1: going on, 2: over */
	uint64_t steps, bytes;
	uint64_t attempts, rerolls, deaths; /* of connector.c's lanes */
	unsigned yields;                    /* of threads that wait for others, in this step */
	unsigned depth;                     /* of threads in the middle of another one's step */
	bool verbose;                       /* prints what happens */
	bool unchecked;   /* memory is looked at when a message is done, not at each step */
	uint64_t streams; /* that exist */
	uint64_t syns;    /* of them, not accepted yet */
};

bool csim_run(struct csim *sim, const struct comm_scenario *scenario, bool dump);
void csim_note(struct csim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* In the middle of a send or receive: other threads of the host have a turn, perhaps. */
void csim_interleave(struct csim *sim, unsigned host);
/* Something happened that applications of the host may be interested in. */
void csim_wake_apps(struct csim *sim, unsigned host);
static inline bool csim_chance(struct rng *rng, uint64_t ppm)
{
	return ppm && rng_below(rng, 1000000) < ppm;
}
static inline bool csim_frozen(const struct csim *sim, unsigned host)
{
	return sim->hosts[host].dead || sim->hosts[host].freeze_until_ns > sim->now_ns;
}

/* ---- comm_host.c ---- */
bool csim_hosts_make(struct csim *sim);
void csim_hosts_impair(struct csim *sim);
void csim_hosts_destroy(struct csim *sim);
uint64_t csim_nic_next_ns(struct csim_nic *nic);
void csim_nic_impair(struct csim_nic *nic, const struct scn_impair *path); /* NULL: its own */
/* Frees what its lanes have here; their connections go with the stack. */
void csim_nic_drop(struct csim_nic *nic);
/* The process is dead, its lanes were closed; the host answers for it with RST. */
void csim_nic_kill(struct csim_nic *nic);
struct harp_addr csim_addr(const struct csim *sim, unsigned host, unsigned rail);
/* An RST to one end of a HARP lane, as if its peer had sent it; fits: with the number that it expects. */
void csim_inject_rst(struct csim *sim, struct csim_lane *lane, enum csim_side victim, bool fits);

/* ---- comm_stream.c ---- */
struct csim_stream;
void csim_streams_begin(struct csim *sim);
/* A first lane: connected. */
void csim_stream_make(struct csim_lane *lane);
void csim_stream_reset(struct csim_stream *stream, bool keep, bool fin);
void csim_stream_slow(struct csim_stream *stream, bool slow);
/* When something next changes for a side; CSIM_NEVER_NS. */
uint64_t csim_stream_next_ns(const struct csim_stream *stream, enum csim_side side);
void csim_stream_seen(struct csim_stream *stream, enum csim_side side);
/* When the receiver's host may accept; CSIM_NEVER_NS: it has, or nothing arrives. */
uint64_t csim_stream_syn_ns(const struct csim_stream *stream);
/* Makes end[CSIM_RECV].lane. Returns its descriptor. */
int csim_stream_accept(struct csim_stream *stream, struct poller *poller);
/* When a level-triggered epoll of that host next reports one of the events; CSIM_NEVER_NS. */
uint64_t csim_stream_level_ns(int fd, unsigned host, uint32_t events);
bool csim_streams_check_end(struct csim *sim);

/* ---- comm_lanes.c ---- */
bool csim_lanes_start(struct csim *sim);
/* A HARP lane of the simulation: its operations go through comm_lanes.c from now on. */
void csim_lane_adopt(struct lane *lane);
/* The lane that came to a NIC from there; NULL: unknown. */
struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane);
/* The scenario's lane of that index of a comm. */
const struct csn_lane *csim_lane_spec(const struct csim *sim, unsigned comm, unsigned index);
struct csim_lane *csim_lane_new(struct csim *sim, const struct csn_lane *spec, unsigned index);
/* After a turn of a host: what was accepted, what is open, what failed. */
void csim_lanes_settle(struct csim *sim, unsigned host);
/* Nothing of what the sender sends arrives, by itself: until then. */
uint64_t csim_lane_silent_until_ns(const struct csim_lane *lane, enum csim_side sender);
bool csim_lane_silent(const struct csim_lane *lane, enum csim_side sender);
/* Is it part of the comm at both ends and nothing in its way? */
bool csim_lane_works(const struct csim_lane *lane);
static inline unsigned csim_lane_host(const struct csim_lane *lane, enum csim_side side)
{
	const struct csn_comm *c = &lane->sim->scenario->comms[lane->spec->comm];

	return (unsigned)(side == CSIM_SEND ? c->from : c->to);
}

/* ---- comm_reconnect.c ---- */
void csim_reconnect_begin(struct csim *sim);
void csim_reconnect_made(struct csim_lane *first);
int csim_reconnect_accept(struct csim_lane *first, struct comm_options *opt);
/* Further lanes are opened from now on. */
void csim_reconnect_go(struct csim_app *app);
/* Closes the comm. */
void csim_reconnect_end(struct csim_app *app, bool abort);
void csim_reconnect_lost(struct csim_comm *k, unsigned index, enum comm_loss loss);
bool csim_reconnect_check(struct csim_app *app);
void csim_expect_attempt(struct csim_comm *k, unsigned index);
/* port: of the new HARP lane. */
void csim_expect_ended(struct csim_comm *k, struct csim_planned *planned, int error, uint16_t port);
/* An attempt that nothing disturbed must not fail. */
void csim_expect_no_failure(const struct csim_lane *lane, int error);

/* ---- comm_connect.c ---- */
extern struct attempt_ops csim_attempt_ops; /* of the plugin's attempts */
void csim_connect_begin(struct csim *sim);
/* control_post() and the like refer to that host's control thread from now on: the plugin has one. */
void csim_control_at(struct csim *sim, unsigned host);
struct csim_host *csim_control_host(void);
void csim_control_make(struct csim_host *host);
uint64_t csim_controls_next_ns(struct csim *sim);
void csim_controls_run(struct csim *sim);
void csim_controls_end(struct csim *sim);
/* Listeners for the lanes that the plugin opens. */
void csim_listeners_open(struct csim *sim);
void csim_listeners_drop(struct csim_host *host);
uint64_t csim_listener_next_ns(const struct csim_nic *nic);
/* After a turn of the NIC's host: which lanes have arrived, and which have joined. */
void csim_listener_settle(struct csim_nic *nic);
/* The lane whose attempt is starting. */
struct csim_lane *csim_connecting_lane(void);
struct csim_lane *csim_attempted(struct csim *sim, const struct attempt *attempt);
/* Is it that HARP lane's, at its connector? */
bool csim_lane_has_port(const struct csim_lane *lane, uint16_t port);
/* The lane at an end, joined or not; NULL: none. */
struct lane *csim_lane_end(const struct csim_lane *lane, enum csim_side side);

/* ---- comm_app.c ---- */
bool csim_apps_make(struct csim *sim);
void csim_app_turn(struct csim_app *app);
/* The process dies, or the run is over. */
void csim_app_end(struct csim_app *app, bool abort);
/* Checks buffers: some of them, or all. */
bool csim_app_check(struct csim_app *app, bool all);
/* Bytes were placed at dst. */
bool csim_placed(struct csim *sim, const uint8_t *dst, size_t len);
void csim_apps_destroy(struct csim *sim);
struct csim_buffer *csim_buffer_retired(struct csim *sim, unsigned comm);

/* ---- comm_share.c ---- */
/* Writes or compares the table of what a slow lane costs the others. Returns what main() does. */
int comm_share(const char *path, bool update);

/* ---- comm_idle_check.c ---- */
/* Time is about to pass: may it? */
bool csim_check_idle(struct csim_app *app);

/* ---- comm_check.c ---- */
/* Each line that the plugin logs. */
void csim_check_log(enum plugin_log_level level, const char *text);
bool csim_check_error(struct csim_app *app, int error);
bool csim_check_progress(struct csim *sim);
bool csim_check_lost_lane(struct csim_lane *lane, enum csim_side side);
bool csim_check_end(struct csim *sim);
void csim_dump(struct csim *sim);

#endif
