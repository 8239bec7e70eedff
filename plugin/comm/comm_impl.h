/* SPDX-License-Identifier: Apache-2.0 */
/* comm_impl.h - shared by the files of a comm. The comm's poller is held unless stated
 * otherwise. */
#ifndef HARP_PLUGIN_COMM_IMPL_H
#define HARP_PLUGIN_COMM_IMPL_H

#include "comm/comm.h"

/* Limits of a lane in one turn, for fairness to other comms: payload, and records without data. */
#define COMM_TURN_BYTES_MAX 262144u
#define COMM_IDLE_RECORDS_MAX 1024u

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

static inline bool comm_lane_turn_is_over(const struct comm_lane *l)
{
	return l->turn_bytes >= COMM_TURN_BYTES_MAX || l->idle_records >= COMM_IDLE_RECORDS_MAX;
}

/* Of a lane's byte count, the bytes of our records. The count is less than the preamble's bytes
 * while its last message is not acknowledged. */
static inline uint64_t comm_lane_record_bytes(const struct comm_lane *l, uint64_t lane_bytes)
{
	return lane_bytes > l->sent_bytes ? lane_bytes - l->sent_bytes : 0;
}

static inline bool comm_lane_has_out(const struct comm_lane *l)
{
	return l->out.header_sent < l->out.header_bytes || l->out.payload_left;
}

/* ---- comm_state.c --------------------------------------------------------------------------- */

/* Schedules work for the lane: in this turn if it is reachable, else in its engine's next turn. */
void comm_wake(struct comm_lane *l);
void comm_wake_all(struct comm *comm);
/* Completes the oldest request. observer: a reachable lane that counts the latency, or NULL. */
void comm_complete(struct comm *comm, struct comm_lane *observer, size_t size);
/* Sets the sticky failure and logs one WARN. Lanes send CLOSE unless a record is partly sent. l:
 * the lane that caused it, or NULL. */
void comm_fail(struct comm *comm, struct comm_lane *l, int error, enum close_reason reason,
	       const struct record *detail, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
void comm_fail_protocol(struct comm *comm, struct comm_lane *l, const char *what);
/* Records that the lanes have ended: an error as soon as a request is outstanding. */
void comm_end_by_error(struct comm *comm, struct comm_lane *l, int error);
void comm_end_by_record(struct comm *comm, const struct record *close);
/* Turns a recorded end into a failure if a request is outstanding. */
void comm_report_end(struct comm *comm);
const char *comm_lane_end_text(int error, bool in_message, char *buf, size_t len);
void comm_out_begin(struct comm_lane *l, const struct record *record);
/* Pushes l->out. 1: all of it is sent, 0: the lane is full, or the error, which is sticky. */
int comm_lane_push(struct comm_lane *l);
/* Reads a record's header, and the payload of a CREDIT. 1: done; 0: incomplete; or the error: the
 * lane has ended (-EPIPE: by FIN), or comm_fail_protocol() was called (-EPROTO). */
int comm_read_record(struct comm_lane *l, struct record *record);
/* Sends CLOSE unless a partly sent record is in the way. True: the lane has taken it and everything
 * before it. */
bool comm_lane_send_close(struct comm_lane *l, const struct record *close);

/* ---- comm_turn.c ---------------------------------------------------------------------------- */

/* Why a turn is taken. */
enum comm_turn {
	COMM_TURN_POST,       /* a request was posted: kernel lanes are not read */
	COMM_TURN_TEST,       /* the application or an engine polls */
	COMM_TURN_BACKGROUND, /* the control thread: kernel lanes are read even if no receive is
				 posted */
};
/* Takes one turn for the lanes of an engine (its poller is held), or NULL: for kernel lanes. If
 * another thread holds the comm's poller, that thread takes the turn. Comm's poller not held. */
void comm_turn(struct comm *comm, struct comm_engine *engine, uint64_t now_ns, enum comm_turn why);
/* Same, with the comm's poller held. */
void comm_advance(struct comm *comm, struct comm_engine *engine, uint64_t now_ns,
		  enum comm_turn why);
/* Waits for the comm's poller, for set-up and close; releases it after taking missed turns. */
void comm_acquire(struct comm *comm);
void comm_release(struct comm *comm);
/* Polls by the application: after posting, and in test(). */
void comm_poll_posted(struct comm *comm, const struct request *request);
void comm_poll(struct comm *comm);
void comm_engine_run(struct work *work, uint64_t now_ns);
void comm_lane_notify(struct lane *lane, uint64_t now_ns);

/* ---- comm_lane.c ---------------------------------------------------------------------------- */

/* Makes a lane, which joins in comm_adopt(). NULL: out of memory. The poller of lane->poller is
 * held. */
struct comm_lane *comm_lane_new(struct comm *comm, struct lane *lane,
				const struct comm_lane_options *opt);
/* Puts attached lanes into the lane table. */
void comm_adopt(struct comm *comm);
/* Samples the lane's TCP if that is due, which may end the lane. */
void comm_lane_sample(struct comm_lane *l);
/* Ends the lane and moves its chunks to others. The caller does not use the lane afterwards. */
void comm_lane_die(struct comm_lane *l, int error, bool stalled);
/* The last lane has died, and none has replaced it in time. */
void comm_end_without_lanes(struct comm *comm);
/* The lane accepts no more records; it is read to its end. */
void comm_lane_drain(struct comm_lane *l);
/* Closes and frees reachable dead lanes. */
void comm_free_dead_lanes(struct comm *comm);
/* Sends CLOSE on reachable lanes and closes them. */
void comm_close_lanes(struct comm *comm);

/* ---- comm_send.c ---------------------------------------------------------------------------- */

int comm_send_init(struct comm *comm, const struct comm_options *opt); /* -ENOMEM */
void comm_send_free(struct comm *comm);
/* Reads the receiver's records from a reachable lane. 1: there may be more, 0: nothing more has
 * arrived, or the error that ended the lane. */
int comm_send_read(struct comm_lane *l);
/* Sends on reachable lanes, and completes requests. */
void comm_send_run(struct comm *comm);
/* Releases a lane's chunks. lost: unacknowledged ones move to other lanes. Returns how many. */
unsigned comm_send_release(struct comm_lane *l, bool lost);
/* Is there a buffered send that no ACK covers? */
bool comm_send_has_buffered(const struct comm *comm);
bool comm_send_has_undelivered(const struct comm *comm);
/* Completes requests that a reachable lane has delivered, before its end is handled. */
void comm_send_finish_lane(struct comm_lane *l);

/* ---- comm_recv.c ---------------------------------------------------------------------------- */

int comm_recv_init(struct comm *comm); /* -ENOMEM */
void comm_recv_free(struct comm *comm);
/* Same as comm_send_read(), for the sender's records. */
int comm_recv_read(struct comm_lane *l);
/* Delivers unexpected messages whose receives are posted, and sends CREDIT and ACK. */
void comm_recv_run(struct comm *comm);

/* ---- comm_ack.c ----------------------------------------------------------------------------- */

/* Counts a complete message. */
void ack_message_done(struct comm *comm, uint64_t bytes);
/* Counts delivered bytes of a message, headers included. */
void ack_count(struct comm *comm, uint64_t message, uint64_t bytes);
/* Repeats the last CREDIT and ACK, which may be lost. */
void ack_again(struct comm *comm);
/* May the sender be waiting in the middle of a message? */
bool ack_is_urgent(const struct comm *comm);
/* Sends due records on reachable lanes; wakes the control lane if it is not reachable. */
void ack_run(struct comm *comm);

#endif
