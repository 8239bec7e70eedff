/* SPDX-License-Identifier: Apache-2.0 */
/* comm_impl.h - what the files of a comm have of each other; who touches what is said in comm.h. */
#ifndef HARP_PLUGIN_COMM_IMPL_H
#define HARP_PLUGIN_COMM_IMPL_H

#include "comm/comm.h"

/* ---- comm.c, for the rest ---------------------------------------------------------------------- */

static inline struct request *comm_request(struct comm *comm, uint64_t message)
{
	return &comm->requests[message % PLUGIN_REQUESTS_MAX];
}
/* Baton, or lock. observer: counts the latency; its baton is held. */
void comm_complete(struct comm *comm, struct comm_lane *observer, size_t size);
/* Sticky failure with one WARN; tells the peer by CLOSE where the stream allows it. l: the lane whose baton is
 * held, or NULL; lock not held. */
void comm_fail(struct comm *comm, struct comm_lane *l, int error, enum close_reason reason,
	       const struct record *detail, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
/* The two halves of it, of which the words are said in between. The first failure is the one (true), and fills in close; of
 * several lanes, no request is begun to be touched from there on. Lock not held. */
bool comm_fail_first(struct comm *comm, int error, struct record *close);
/* Behind the words: who sees the error finds them said (ncclGetLastError()). */
void comm_fail_publish(struct comm *comm, int error);
void comm_fail_protocol(struct comm *comm, struct comm_lane *l, const char *what);
void comm_fail_truncated(struct comm *comm, struct comm_lane *l, const struct record *record,
			 size_t posted);
/* All is over: an error as soon as a request is or becomes outstanding. Baton, or lock. */
void comm_end(struct comm *comm, int error, const char *text);
/* The same, in the words of a lane that died of error. */
void comm_end_by_error(struct comm *comm, int error);
void comm_end_by_record(struct comm *comm, const struct record *close);
/* Makes the end an error if a request is outstanding. Lock not held. */
void comm_settle(struct comm *comm, struct comm_lane *l);

/* ---- comm_lane.c; baton held ------------------------------------------------------------------- */

struct comm_lane *comm_lane_new(struct comm *comm, struct lane *lane,
				const struct comm_lane_options *opt);
/* Closes the lane, if it has one still. */
void comm_lane_shut(struct comm_lane *l, bool abort);
/* And frees l. */
void comm_lane_free(struct comm_lane *l, bool abort);
void comm_lane_watch(struct comm_lane *l, bool wanted);
/* A lane without events. */
void comm_lane_ask_silence(struct comm_lane *l, uint64_t now_ns);
/* The drivers of kernel lanes, for a comm over that device; and their end: no worker takes a turn from there on.
 * Twice is no harm. */
int comm_kernels_open(struct comm *comm, int dev);
void comm_kernels_close(struct comm *comm);
/* How long it may be between two looks at how it does. */
uint64_t comm_lane_ask_ns(const struct comm_lane *l); /* comm_lanes.c */
/* A kernel lane comes to its driver. */
void comm_lane_poll(struct comm_lane *l);
/* Pushes l->out. 1: nothing is left to push, 0: the lane is full, or the error. */
int comm_out_push(struct comm_lane *l);
void comm_out_begin(struct comm_lane *l, const struct record *record);
/* Reads the header of a record, and a CREDIT's payload behind it. 1, 0 (more is to come), or the error: the
 * lane has ended (-ECONNRESET: by FIN), or, -EPROTO, comm_fail_protocol() was called. */
int comm_read_record(struct comm_lane *l, struct record *record);
/* CLOSE, unless a record is stuck in the middle. True: it and all before it is with the lane. */
bool comm_lane_tell(struct comm_lane *l, const struct record *close);
/* The same of a failure. Of several lanes, the rest of a record that has begun to leave may be the application's again, by
 * another lane or by deregMr: the RST must do then. */
bool comm_lane_tell_failed(struct comm_lane *l, const struct record *close);
/* What is said of a lane that ended so. */
const char *comm_lane_end_text(int error, bool in_message, char *buf, size_t len);

/* ---- comms of one lane; baton held ------------------------------------------------------------- */

void comm_send_advance(struct comm_lane *l, uint64_t now_ns);
void comm_recv_advance(struct comm_lane *l, uint64_t now_ns);
/* Payload that the next DATA record of the current message may carry, of `left`; -1: not even a header. */
int64_t comm_send_allowance(const struct comm *comm, uint64_t left);
/* A record with so much of the current message has been cut. True: the message is cut to its end. */
bool comm_send_cut(struct comm *comm, uint64_t length);
/* What a CREDIT says of receives posted. */
void comm_send_grant(struct comm *comm, uint64_t granted);
/* Is there something to be told that the sender may be waiting for? */
bool comm_recv_credit_due(const struct comm *comm, uint64_t posted);
/* So much of a record of that message has gone to its place. */
void comm_recv_count(struct comm *comm, uint64_t message, uint64_t bytes);
/* Puts a CREDIT into l->out. */
void comm_recv_credit(struct comm_lane *l, uint64_t posted);

/* ---- comms of several lanes -------------------------------------------------------------------- */

static inline void comm_lock(struct comm *comm)
{
	extern void comm_lock_wait(struct comm_several * s);

	if (atomic_exchange_explicit(&comm->several->lock, true, memory_order_acquire))
		comm_lock_wait(comm->several);
}
static inline void comm_unlock(struct comm *comm)
{
	atomic_store_explicit(&comm->several->lock, false, memory_order_release);
}
/* comm_lanes.c; lock held */
void comm_wake(struct comm *comm, int index);
void comm_wake_all(struct comm *comm);
/* By who takes turns of kernel lanes himself, and need not rouse the tender. */
void comm_look_all(struct comm *comm);
/* There is something to look after, though nobody may poll any more. */
void comm_rouse(struct comm *comm);
/* The lane begins to touch bytes of a message, and ends. */
void comm_use(struct comm_lane *l, int uses, uint64_t message, uint64_t begin, uint64_t end);
void comm_unuse(struct comm_lane *l);
/* Does another lane, right now? */
bool comm_is_used(struct comm_lane *l, uint64_t message, uint64_t begin, uint64_t end);
/* Publishes the failure when nobody touches requests any more. */
void comm_publish(struct comm *comm);
/* Chooses the control lane anew. */
void comm_lanes_control(struct comm *comm);
/* Baton held, lock not. */
void comm_lane_run(struct work *work, uint64_t now_ns);
void comm_lane_notify(struct lane *lane, uint64_t now_ns);

/* So many records that bring nothing new a lane reads in a turn. */
#define COMM_VAIN_RECORDS_MAX 1024u
static inline bool comm_lane_is_vain(const struct comm_lane *l)
{
	return l->vain_records >= COMM_VAIN_RECORDS_MAX;
}
/* And it moves so much payload: other lanes wait, engines among them, and the turn's time is that of its beginning. */
#define COMM_TURN_BYTES_MAX 262144u
static inline bool comm_lane_is_over(const struct comm_lane *l)
{
	return l->turn_bytes >= COMM_TURN_BYTES_MAX || comm_lane_is_vain(l);
}
/* Lock not held: another turn of it, whether or not there is an event. */
void comm_lane_again(struct comm_lane *l);

/* comm_join.c */
int comm_several_new(struct comm *comm, const struct comm_options *opt);
void comm_several_free(struct comm *comm);
/* Lock held. In the place of the one of that index, if there is one. False: the comm has no room for its driver, and nothing has
 * changed. */
bool comm_lanes_join(struct comm *comm, struct comm_lane *l, uint64_t rtt_ns, uint64_t now_ns);
enum comm_death {
	COMM_DEATH_ENDED,   /* its stream has */
	COMM_DEATH_SILENT,  /* for longer than TCP's patience */
	COMM_DEATH_STALLED, /* and other lanes get on */
};
/* Baton held, lock not: the lane has ended. Its chunks move, and its last run frees it. False: it is the last by now, and stays. */
bool comm_lane_die(struct comm_lane *l, int error, enum comm_death how);
/* As above, of one that takes nothing more. True: it stays to be read, as what has come by it may come by no other. What it waited
 * for may be over by now: its work is posted then. */
bool comm_lane_mute(struct comm_lane *l);
/* Lock held: the last lane has died of error. */
void comm_end_by_lanes(struct comm *comm, int error);
/* Baton held: the work of a dead lane runs. */
void comm_lane_bury(struct comm_lane *l);
void comm_several_close(struct comm *comm);

/* comm_several.c: which lanes are to look at the new request, and who drives them */
void comm_several_post(struct comm *comm, struct request *request);
void comm_several_poll(struct comm *comm);

/* comm_send_lanes.c */
/* Lock held. */
void comm_tx_post(struct comm *comm, struct request *request);
void comm_tx_advance(struct comm_lane *l, uint64_t now_ns);
/* 1: nothing is left to push, 0: the lane is full, or the error. */
int comm_tx_push(struct comm_lane *l, uint64_t now_ns);
/* Lock held: the chunks of a lane that has died, or, not lost, is closed in order. Returns how many others will send. */
unsigned comm_tx_orphan(struct comm_lane *l, bool lost);
/* Lock held: requests that are acknowledged and that no lane reads any more. */
void comm_tx_complete(struct comm *comm, struct comm_lane *observer);
/* Lock held. 0, or -EPROTO: of what was never sent. */
int comm_tx_ack(struct comm *comm, uint64_t message, uint64_t offset);

/* comm_plan.c; lock held */
/* The lane that should take what is next is told so, unless it is self. */
void comm_tx_kick(struct comm *comm, struct comm_lane *self, uint64_t now_ns);
/* The next chunk becomes the lane's, and the record in its out. False: it is another's, or there is none. */
bool comm_tx_claim(struct comm_lane *l, uint64_t now_ns);

/* comm_kept.c; lock held but for _new and _free */
int comm_kept_new(struct comm *comm); /* -ENOMEM */
void comm_kept_free(struct comm *comm);
/* Is the message to be kept? Then it is sent in one chunk. */
static inline bool comm_is_kept(const struct comm *comm, uint64_t size)
{
	return size <= comm->several->kept_bytes && comm->several->kept_bytes;
}
/* A place for one more, the lowest; -1: there is none until an ACK comes. */
int comm_kept_place(const struct comm *comm);
/* Copies the request there. */
void comm_kept_take(struct comm *comm, int place, struct request *request, uint64_t message);
uint8_t *comm_kept_data(const struct comm *comm, int place);
/* Is one of them, of which no ACK has come, not delivered either as its lane's TCP says? */
bool comm_kept_owes(const struct comm *comm);
/* What is acknowledged and not being read is forgotten. */
void comm_kept_shed(struct comm *comm);
/* Of a request that has been cut: it is kept, and delivered as its lane says. */
bool comm_kept_is_done(const struct comm *comm, const struct request *request);

/* comm_recv_lanes.c */
/* Lock held: the peer's CLOSE; the comm ends when what was sent before it is here. */
void comm_rx_close(struct comm *comm, const struct record *close);
void comm_rx_post(struct comm *comm); /* lock held */
/* Lock held. The last lane has ended, and what it brought is here and waits for receives: it stays, to take it there. So it does
 * where one was posted since it looked. */
bool comm_rx_rests(struct comm_lane *l);
void comm_rx_advance(struct comm_lane *l, uint64_t now_ns);

/* comm_tell.c */
/* Lock held: a message is complete, and its ACK is due. */
void comm_rx_due(struct comm_lane *l);
/* Lock held: a receive has just been posted. */
void comm_rx_resumes(struct comm *comm, uint64_t posted);
/* Baton held: is what is due to go in the next turn? */
bool comm_rx_puts_off(struct comm_lane *l);
/* Baton held. 1: nothing is left to be told here, 0: the lane is full, or the error. */
int comm_rx_tell(struct comm_lane *l, uint64_t now_ns);
/* Lock held. In the middle of a turn, before the payload: may the sender be waiting for what it is not told? */
bool comm_rx_tells_early(const struct comm *comm, uint64_t posted);
/* What is to be told, on the control lane if its driver is that of l. */
void comm_rx_tell_early(struct comm_lane *l, uint64_t now_ns);

/* comm_early.c; lock held but for _new and _free */
struct comm_early *comm_early_new(const struct comm_in *in);
void comm_early_free(struct comm_early *early);
struct comm_early *comm_early_find(struct comm *comm, uint64_t message, uint64_t offset);
/* May one more of that length wait? */
bool comm_early_fits(struct comm *comm, uint32_t length);
void comm_early_add(struct comm *comm, struct comm_early *early);
void comm_early_remove(struct comm *comm, struct comm_early *early);
/* One that can go to its place, or has none any more; it is marked as moving. */
struct comm_early *comm_early_take(struct comm *comm);

#endif
