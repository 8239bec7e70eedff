/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_sim.h - the simulator of comms: the plugin's comms over HARP and kernel lanes, under a
 * virtual clock. All hosts run in one process and one thread, and every step is checked.
 *
 *	comm_sim.c         the schedule of hosts, engines and applications
 *	comm_host.c        hosts: NICs, wires, engines (with the turn of engine_turn.c)
 *	comm_stream.c      the simulated kernel: connections as lane_kernel.c calls them
 *	comm_lanes.c       first lanes, and the state of all lanes
 *	comm_connect.c     further lanes: control threads, listeners and attempts of the plugin
 *	comm_reconnect.c   the plan of further lanes, and checks of connector.c
 *	comm_app.c         applications: post, test, close, and check every byte and every buffer
 *	comm_idle_check.c  checks that a comm that has something to do was woken
 *	comm_check.c       errors that the scenario explains; resources left at the end
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
#define CSIM_LANES_MAX 256u /* lanes opened in a run, reopened ones included */

struct csim;
struct csim_lane;
struct attempt;
struct attempt_ops;
struct pending_set;
struct stack_listener;

enum csim_side { CSIM_SEND = 0, CSIM_RECV = 1 };

/* ---- hosts ----------------------------------------------------------------------------------- */

struct csim_nic {
	struct engine engine;      /* first member, as code casts it to the NIC */
	struct engine_set engines; /* only `engine` */
	struct harp_nic *port;     /* port of the rail's wire */
	struct csim *sim;
	unsigned host, rail;
	struct harp_listener *listener;
	/* Listeners for lanes that the plugin opens, or NULL. */
	struct stack_listener *lane_listener;
	struct pending_set *kernel_pending;
	bool gone, reported;       /* removed; the engine has noticed */
	uint64_t cut_until_ns;     /* nothing arrives at it */
	uint64_t cut_out_until_ns; /* nothing that it sends arrives */
	uint64_t due_ns;           /* the background poller's next turn, drawn when it became due */
	uint64_t last_turn_ns;
};

struct csim_host {
	struct csim_nic *nics[CSN_RAILS_MAX];
	struct poller connect_poller; /* of kernel lanes without a comm */
	struct poller control;        /* comm_connect.c */
	struct control_timers timers;
	uint64_t control_ns, control_due_ns; /* wake time; earliest time of any work */
	uint64_t stall_until_ns, freeze_until_ns;
	bool dead;
	struct poller *held;    /* a poller that a preempted thread holds */
	struct comm *held_comm; /* the comm of that poller; NULL: an engine's poller */
	uint64_t held_until_ns;
};

/* ---- lanes ----------------------------------------------------------------------------------- */

struct csim_end {
	struct lane *lane; /* NULL: not open yet, or closed by its owner */
	bool joined;       /* part of its comm */
	bool closed;
};

struct csim_lane {
	struct csim *sim;
	const struct csn_lane *spec;
	unsigned number, index; /* in csim.lanes; in its comm */
	struct csim_end end[2];
	uint16_t port; /* HARP: port of the connector */
	struct csim_stream *stream;
	uint64_t silent_until_ns[2]; /* by sending side: nothing arrives until then */
	uint64_t silent_since_ns;
	bool by_plugin;          /* opened by the plugin, not a first lane */
	struct attempt *attempt; /* while it opens */
	bool broken;             /* reset, or silent forever */
	bool disturbed;          /* the scenario explains its loss */
};

/* ---- comms ----------------------------------------------------------------------------------- */

struct csim_buffer {
	uint8_t *base, *data; /* as allocated; as passed to the comm */
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
	uint64_t posted, done;  /* messages */
	uint64_t done_at_close; /* messages done when it closed */
	uint64_t wake_ns, poll_ns, next_post_ns, close_ns, progress_ns;
	int error;
	bool closed, in_turn;
	struct csim_buffer retired[4]; /* completed; must not change */
	unsigned retired_next;
	struct connector *connector; /* of a sender with further lanes */
};

/* State of a planned lane, which comm_reconnect.c records. */
struct csim_planned {
	bool up, attempting;
	uint64_t since_ns; /* since when it is up, down or attempting */
	uint16_t port;     /* of a HARP lane */
	uint64_t opened, rehashed;
};

struct csim_comm {
	const struct csn_comm *spec;
	struct csim_app app[2];
	uint64_t *sizes;     /* of its messages */
	unsigned lanes;      /* lanes in the scenario */
	bool excused;        /* the scenario explains an error */
	uint64_t no_lane_ns; /* since when it has no usable lane; CSIM_NEVER_NS: it has one */
	struct csim_planned planned[COMM_LANES_MAX];
	uint64_t lanes_died, lanes_replaced;
	uint64_t no_lane_until_ns; /* end of the last long time without a usable lane */
};

/* The comm's path policy (path_policy.h), by the number of its stream. */
#define CSIM_STREAM_KERNEL 1u /* a stream whose messages prefer kernel lanes */
#define CSIM_STREAM_HARP 13u  /* a stream whose messages prefer HARP lanes */
static inline uint64_t csim_harp_bytes_max(const struct csim_comm *k)
{
	static const uint64_t policies[] = { 0, 512, 65536, UINT64_MAX };

	return policies[k->spec->stream / 4 % 4];
}

struct csim {
	const struct comm_scenario *scenario;
	struct rng rng, check_rng; /* check_rng: chooses the memory to check */
	uint64_t now_ns, zero_ns;  /* zero_ns: all comms are connected */
	uint64_t heal_ns;          /* the last disturbance ended */
	struct harp_wire *wires[CSN_RAILS_MAX];
	struct csim_nic nics[CSN_NICS_MAX];
	struct csim_host hosts[CSN_HOSTS_MAX];
	struct csim_comm comms[CSN_COMMS_MAX];
	struct csim_lane lanes[CSIM_LANES_MAX];
	unsigned lane_count;
	uint8_t event_state[CSN_EVENTS_MAX]; /* 0: pending, 1: active, 2: over */
	uint64_t steps, bytes;
	uint64_t attempts, rehashes, deaths; /* lanes of connector.c */
	unsigned yields;                     /* calls of sched_yield() in this step */
	unsigned depth;                      /* nesting of interleaved threads */
	bool verbose;                        /* logs what happens */
	bool unchecked;   /* checks memory at completion only, not at each step */
	uint64_t streams; /* existing streams */
	uint64_t syns;    /* streams that wait to be accepted */
};

bool csim_run(struct csim *sim, const struct comm_scenario *scenario, bool dump);
void csim_note(struct csim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* In the middle of a send or receive: may run turns of other threads of the host. */
void csim_interleave(struct csim *sim, unsigned host);
/* Wakes applications of the host after an event. */
void csim_wake_apps(struct csim *sim, unsigned host);
static inline bool csim_chance(struct rng *rng, uint64_t ppm)
{
	return ppm && rng_below(rng, 1000000) < ppm;
}
static inline bool csim_is_frozen(const struct csim *sim, unsigned host)
{
	return sim->hosts[host].dead || sim->hosts[host].freeze_until_ns > sim->now_ns;
}

/* ---- comm_host.c ---- */
bool csim_hosts_make(struct csim *sim);
void csim_hosts_impair(struct csim *sim);
void csim_hosts_destroy(struct csim *sim);
uint64_t csim_nic_next_ns(struct csim_nic *nic);
/* path NULL: the path of the scenario. */
void csim_nic_impair(struct csim_nic *nic, const struct scn_impair *path);
/* Frees its lanes; their connections end with the stack. */
void csim_nic_drop(struct csim_nic *nic);
/* After the death of the process: the host replies with RSTs. */
void csim_nic_kill(struct csim_nic *nic);
struct harp_addr csim_addr(const struct csim *sim, unsigned host, unsigned rail);
/* Sends an RST to one end of a HARP lane as if from its peer. fits: with the expected sequence
 * number. */
void csim_inject_rst(struct csim *sim, struct csim_lane *lane, enum csim_side victim, bool fits);

/* ---- comm_stream.c ---- */
struct csim_stream;
void csim_streams_begin(struct csim *sim);
/* Creates the connection of a first lane, already open. */
void csim_stream_make(struct csim_lane *lane);
void csim_stream_reset(struct csim_stream *stream, bool keep, bool fin);
void csim_stream_slow(struct csim_stream *stream, bool slow);
/* When the state next changes for a side; or CSIM_NEVER_NS. */
uint64_t csim_stream_next_ns(const struct csim_stream *stream, enum csim_side side);
void csim_stream_clear_events(struct csim_stream *stream, enum csim_side side);
/* When the receiver's host can accept it; CSIM_NEVER_NS: accepted, or nothing arrives. */
uint64_t csim_stream_syn_ns(const struct csim_stream *stream);
/* Creates end[CSIM_RECV].lane. Returns its descriptor. */
int csim_stream_accept(struct csim_stream *stream, struct poller *poller);
/* When a level-triggered epoll of that host next reports one of the events; or CSIM_NEVER_NS. */
uint64_t csim_stream_level_ns(int fd, unsigned host, uint32_t events);
bool csim_streams_check_end(struct csim *sim);

/* ---- comm_lanes.c ---- */
bool csim_lanes_start(struct csim *sim);
/* Routes the operations of a HARP lane through comm_lanes.c. */
void csim_lane_adopt(struct lane *lane);
/* Finds the lane of a connection that a NIC accepted; or NULL. */
struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane);
/* The lane with that index of a comm in the scenario. */
const struct csn_lane *csim_lane_spec(const struct csim *sim, unsigned comm, unsigned index);
struct csim_lane *csim_lane_new(struct csim *sim, const struct csn_lane *spec, unsigned index);
/* After a turn of a host: accepts connections and adds open first lanes to their comms. */
void csim_lanes_settle(struct csim *sim, unsigned host);
/* Until this time, nothing that the sender sends arrives. */
uint64_t csim_lane_silent_until_ns(const struct csim_lane *lane, enum csim_side sender);
bool csim_lane_is_silent(const struct csim_lane *lane, enum csim_side sender);
/* Has it joined the comm at both ends without any disturbance? */
bool csim_lane_is_usable(const struct csim_lane *lane);
static inline unsigned csim_lane_host(const struct csim_lane *lane, enum csim_side side)
{
	const struct csn_comm *c = &lane->sim->scenario->comms[lane->spec->comm];

	return (unsigned)(side == CSIM_SEND ? c->from : c->to);
}

/* ---- comm_reconnect.c ---- */
void csim_reconnect_begin(struct csim *sim);
void csim_reconnect_create(struct csim_lane *first);
int csim_reconnect_accept(struct csim_lane *first, struct comm_options *opt);
/* Starts to open further lanes. */
void csim_reconnect_start(struct csim_app *app);
/* Closes the comm. */
void csim_reconnect_close(struct csim_app *app, bool abort);
void csim_reconnect_record_loss(struct csim_comm *k, unsigned index, enum comm_loss loss);
bool csim_reconnect_check(struct csim_app *app);
void csim_planned_begin_attempt(struct csim_comm *k, unsigned index);
/* port: port of the new HARP lane. */
void csim_planned_end_attempt(struct csim_comm *k, struct csim_planned *planned, int error,
			      uint16_t port);
/* Checks that no undisturbed attempt fails. */
void csim_check_attempt_failure(const struct csim_lane *lane, int error);

/* ---- comm_connect.c ---- */
extern struct attempt_ops csim_attempt_ops; /* operations of the plugin's attempts */
void csim_connect_begin(struct csim *sim);
/* Chooses the host to whose control thread control_post() and similar calls refer. The plugin has
 * one control thread. */
void csim_control_select(struct csim *sim, unsigned host);
struct csim_host *csim_control_host(void);
void csim_control_make(struct csim_host *host);
uint64_t csim_controls_next_ns(struct csim *sim);
void csim_controls_run(struct csim *sim);
void csim_controls_end(struct csim *sim);
/* Opens listeners for the lanes that the plugin opens. */
void csim_listeners_open(struct csim *sim);
void csim_listeners_drop(struct csim_host *host);
uint64_t csim_listener_next_ns(const struct csim_nic *nic);
/* After a turn of the NIC's host: records which lanes have arrived and joined. */
void csim_listener_settle(struct csim_nic *nic);
/* The lane whose attempt is starting. */
struct csim_lane *csim_starting_lane(void);
struct csim_lane *csim_attempt_lane(struct csim *sim, const struct attempt *attempt);
/* Is this the connector's port of that HARP lane? */
bool csim_lane_has_port(const struct csim_lane *lane, uint16_t port);
/* The lane at an end, joined or not; or NULL. */
struct lane *csim_lane_end(const struct csim_lane *lane, enum csim_side side);

/* ---- comm_app.c ---- */
bool csim_apps_make(struct csim *sim);
void csim_app_turn(struct csim_app *app);
/* Closes the comm when the process dies or the run ends. */
void csim_app_end(struct csim_app *app, bool abort);
/* Checks a sample of the buffers, or all. */
bool csim_app_check(struct csim_app *app, bool all);
/* Checks the buffer that bytes were delivered to. */
bool csim_check_delivered(struct csim *sim, const uint8_t *dst, size_t len);
void csim_apps_destroy(struct csim *sim);
struct csim_buffer *csim_retired_buffer(struct csim *sim, unsigned comm);

/* ---- comm_share.c ---- */
/* Writes or compares the table of the cost of a slow lane. Returns the exit status for main(). */
int comm_share(const char *path, bool update);

/* ---- comm_idle_check.c ---- */
/* Checks a comm before time passes: it must have nothing to do. */
bool csim_check_idle(struct csim_app *app);

/* ---- comm_check.c ---- */
/* Receives each log line of the plugin. */
void csim_check_log(enum plugin_log_level level, const char *text);
bool csim_check_error(struct csim_app *app, int error);
bool csim_check_progress(struct csim *sim);
bool csim_check_lost_lane(struct csim_lane *lane, enum csim_side side);
bool csim_check_end(struct csim *sim);
void csim_dump(struct csim *sim);

#endif
