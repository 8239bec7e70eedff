/* SPDX-License-Identifier: Apache-2.0 */
/* comm_impl.h - what the files of a comm have of each other. The comm's poller is held, unless it says otherwise. */
#ifndef HARP_PLUGIN_COMM_IMPL_H
#define HARP_PLUGIN_COMM_IMPL_H

#include "comm/comm.h"

#define COMM_TURN_BYTES_MAX 262144u /* a lane moves in a turn: others wait for their turns */
#define COMM_IDLE_RECORDS_MAX 1024u /* of no use that a lane reads in a turn */

/* The live lanes. */
#define COMM_FOR_EACH_LANE(comm, l)                                                                \
	for (uint32_t left_##l = (comm)->scheduler.live; left_##l; left_##l &= left_##l - 1)       \
		if (((l) = (comm)->lanes[__builtin_ctz(left_##l)]) != NULL)

static inline struct request *comm_request(struct comm *comm, uint64_t message)
{
	return &comm->requests[message % PLUGIN_REQUESTS_MAX];
}

static inline uint64_t comm_posted(const struct comm *comm)
{
	return atomic_load_explicit(&comm->posted, memory_order_acquire);
}

static inline bool comm_has_failed(const struct comm *comm)
{
	return atomic_load_explicit(&comm->error, memory_order_relaxed) != 0;
}

/* Can the lane be read and written in this turn? */
static inline bool comm_lane_is_reachable(const struct comm_lane *l)
{
	return l->engine == l->comm->engine;
}

static inline bool comm_lane_is_over(const struct comm_lane *l)
{
	return l->turn_bytes >= COMM_TURN_BYTES_MAX || l->idle_records >= COMM_IDLE_RECORDS_MAX;
}

static inline bool comm_lane_has_out(const struct comm_lane *l)
{
	return l->out.header_sent < l->out.header_bytes || l->out.payload_left;
}

/* ---- comm_state.c ------------------------------------------------------------------------------------ */

/* The lane has something to do: in this turn, if it is reachable, or its engine's next. */
void comm_wake(struct comm_lane *l);
void comm_wake_all(struct comm *comm);
/* The oldest request is done. observer: a reachable lane that counts the latency, or NULL. */
void comm_complete(struct comm *comm, struct comm_lane *observer, size_t size);
/* Sticky failure with one WARN; lanes send CLOSE where their streams allow it. l: the lane that showed it, or NULL. */
void comm_fail(struct comm *comm, struct comm_lane *l, int error, enum close_reason reason,
	       const struct record *detail, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
void comm_fail_protocol(struct comm *comm, struct comm_lane *l, const char *what);
/* Lanes or peer have ended: an error as soon as a request is outstanding. */
void comm_end_by_error(struct comm *comm, struct comm_lane *l, int error);
void comm_end_by_record(struct comm *comm, const struct record *close);
/* Makes the end an error if a request is outstanding. */
void comm_settle(struct comm *comm);
const char *comm_lane_end_text(int error, bool in_message, char *buf, size_t len);
void comm_out_begin(struct comm_lane *l, const struct record *record);
/* Pushes l->out. 1: nothing is left, 0: the lane is full, or the error, which stays. */
int comm_lane_push(struct comm_lane *l);
/* Reads the header of a record, and a CREDIT's payload behind it. 1; 0: more is to come; or the error: the lane has
 * ended (-EPIPE: by FIN), or, -EPROTO, comm_fail_protocol() was called. */
int comm_read_record(struct comm_lane *l, struct record *record);
/* Sends CLOSE, unless a record is stuck in the middle. True: it and all before it is with the lane. */
bool comm_lane_send_close(struct comm_lane *l, const struct record *close);

/* ---- comm_turn.c ------------------------------------------------------------------------------- */

/* Why a turn is taken. */
enum comm_turn {
	COMM_TURN_POST,       /* a request was posted: kernel lanes are not read */
	COMM_TURN_TEST,       /* the application, or an engine, polls */
	COMM_TURN_BACKGROUND, /* the control thread: kernel lanes are read whatever is posted */
};
/* One turn: lanes of the engine, whose poller is held, or (NULL) kernel lanes. If another thread holds the comm's
 * poller, that one sees to it. Comm's poller not held. */
void comm_turn(struct comm *comm, struct comm_engine *engine, uint64_t now_ns, enum comm_turn why);
/* The same by a thread that holds the comm's poller. */
void comm_advance(struct comm *comm, struct comm_engine *engine, uint64_t now_ns,
		  enum comm_turn why);
/* Waits for the comm's poller, for set-up and close; and gives it back, with turns that were missed meanwhile. */
void comm_hold(struct comm *comm);
void comm_leave(struct comm *comm);
/* The application's polls. */
void comm_poll_posted(struct comm *comm, const struct request *request);
void comm_poll(struct comm *comm);
void comm_engine_run(struct work *work, uint64_t now_ns);
void comm_lane_notify(struct lane *lane, uint64_t now_ns);

/* ---- comm_lane.c ------------------------------------------------------------------------------- */

/* For the comm; it joins by comm_adopt(). NULL: out of memory. The poller of lane->poller is held. */
struct comm_lane *comm_lane_new(struct comm *comm, struct lane *lane,
				const struct comm_lane_options *opt,
				void (*notify)(struct lane *lane, uint64_t now_ns));
/* Lanes that were attached come on the table. */
void comm_adopt(struct comm *comm);
/* Looks now and then how the lane does, which may end it. */
void comm_lane_sample(struct comm_lane *l);
/* The lane has ended; its chunks move to others. Not to be touched any more, unless it is the last one and has more to
 * be read. */
void comm_lane_die(struct comm_lane *l, int error, bool stalled);
/* The last lane has died, and no other has come. */
void comm_end_without_lanes(struct comm *comm);
/* It takes nothing more. */
void comm_lane_drain(struct comm_lane *l);
/* Closes dead lanes that are reachable. */
void comm_free_dead_lanes(struct comm *comm);
/* Reachable lanes say CLOSE, and are closed. */
void comm_close_lanes(struct comm *comm);

/* ---- comm_send.c ------------------------------------------------------------------------------- */

int comm_send_init(struct comm *comm, const struct comm_options *opt); /* -ENOMEM */
void comm_send_free(struct comm *comm);
/* Reads the receiver's records from a reachable lane. 1: there may be more, 0: there is no more, or why the lane has ended. */
int comm_send_read(struct comm_lane *l);
/* Sends what reachable lanes can take, and completes requests. */
void comm_send_run(struct comm *comm);
/* The chunks of a lane that has died, or, not lost, is closed in order. Returns how many others will send. */
unsigned comm_send_release(struct comm_lane *l, bool lost);
/* Is there a buffered send that no ACK covers? */
bool comm_send_has_buffered(const struct comm *comm);
bool comm_send_has_undelivered(const struct comm *comm);
/* Completes what the lane has delivered, before its end is noticed. The turn reaches the lane. */
void comm_send_finish_lane(struct comm_lane *l);

/* ---- comm_recv.c ------------------------------------------------------------------------------- */

int comm_recv_init(struct comm *comm); /* -ENOMEM */
void comm_recv_free(struct comm *comm);
/* As comm_send_read(). */
int comm_recv_read(struct comm_lane *l);
/* Unexpected messages whose receives are posted go to their places; CREDIT and ACK go out. */
void comm_recv_run(struct comm *comm);

/* ---- comm_ack.c -------------------------------------------------------------------------------- */

/* A message is complete. */
void ack_message_done(struct comm *comm, uint64_t bytes);
/* A record, or what has come of one, is in its place. */
void ack_count(struct comm *comm, uint64_t message, uint64_t bytes);
/* All records that were sent to the sender may be lost. */
void ack_again(struct comm *comm);
/* May the sender be waiting in the middle of a message? */
bool ack_is_urgent(const struct comm *comm);
/* Sends what is due on reachable lanes; wakes the control lane if it is not. */
void ack_run(struct comm *comm);

#endif
