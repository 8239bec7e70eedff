/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - one end of a connection: requests on one side, records on lanes on the other.
 *
 *   comm.c             the application's side, completing, failing, closing
 *   comm_lane.c        one lane of a comm: its records out and in, its silence, its end
 *   comm_lanes.c       what the lanes of a comm share, and a lane's turn
 *   comm_join.c        lanes join a comm, die, are replaced, are closed
 *   comm_several.c     a comm of several lanes as the application drives it
 *   comm_send.c        the sending end of a comm of one lane, and the credits of every comm
 *   comm_recv.c        the receiving end of a comm of one lane
 *   comm_send_lanes.c  the sending end of several lanes: chunks, acknowledgements, moves
 *   comm_recv_lanes.c  the receiving end of several lanes: placing, early messages, ACK
 *   comm_choice.c      the sending end of several lanes: which kinds carry a message
 *   comm_early.c       memory for chunks that came before their receive was posted
 *   comm_kept.c        the sending end of several lanes: copies of small messages, until they are acknowledged
 *
 * Who touches what. The application's thread (one at a time, NCCL contract section 3.1) fills request slots
 * and reads their state. "Baton" belongs to who holds the baton of that lane's driver. In a comm of several
 * lanes there may be as many drivers as lanes: what they share is under comm->several->lock, and "lock" below
 * means it; a comm of one lane has no lock and its baton takes its place. Memory order: the application
 * publishes with `posted`, the other side with each request's `state` and with `error`.
 */
#ifndef HARP_PLUGIN_COMM_H
#define HARP_PLUGIN_COMM_H

#include "kernel_driver.h"
#include "lane.h"
#include "lane_page.h"
#include "plugin.h"
#include "ranges.h"
#include "record.h"
#include "stripe.h"

#define COMM_LANES_MAX STRIPE_LANES_MAX
#define COMM_REVIVE_NS 500000000ull /* the connector dials a comm's last lane again at once */
#define COMM_EAGER_BYTES_MIN 4096u
#define COMM_EAGER_MESSAGES 256u /* begun beyond the credits, at most */
#define COMM_BULK_BYTES 32768u   /* larger messages put the receiver in bulk mode */
#define COMM_CREDIT_MESSAGES 64u /* received since the last CREDIT: tell again */
/* A sender has so many chunks under way at most; so the ranges that have arrived and the holes between them are
 * no more at a receiver, which allows for twice as many. At 128 KiB each it is 64 MiB: 5 ms at 100 Gbit/s. */
#define COMM_CHUNKS_MAX 512u
#define COMM_RANGES_MAX (2 * COMM_CHUNKS_MAX)
/* Small messages of several lanes, kept by their sender until an ACK covers them (docs/lanes.md section 4.2). */
#define COMM_KEPT_BYTES_MAX 4096u
#define COMM_KEPT_MAX 64u      /* a sender keeps so many at most: bits of a word */
#define COMM_KEPT_MESSAGES 16u /* received since the last ACK: tell */

enum comm_side { COMM_SEND, COMM_RECV };

enum request_state {
	REQUEST_FREE,   /* the application's */
	REQUEST_POSTED, /* the lanes' */
	REQUEST_DONE,   /* the application's again */
};

struct request {
	_Alignas(64) struct comm *comm;
	atomic_int state; /* POSTED: published by comm->posted. DONE: release / acquire in test */
	int tag;
	uint8_t *data;
	const void *
		memory; /* the registration that it lies in, memory.c's handle; NULL: none was given */
	size_t size;    /* posted */
	size_t size_done;   /* of the message, when done */
	uint64_t posted_ns; /* the clock at comm_post() */
	union {
		uint64_t end_bytes; /* one lane, send: stream position behind it */
		uint64_t received;  /* several, receive: bytes in place */
	};
	/* Several lanes; lock. */
	uint64_t total;  /* receive: of the message, once begun */
	uint8_t kinds;   /* send: enum lane_kind, the lanes that may carry it */
	uint8_t carried; /* and those that did */
	uint8_t users;   /* lanes that read or write its memory right now */
	uint8_t kept;    /* send: 1 + its place in the table of kept ones, 0: it is not kept */
	bool begun;      /* receive: a record of it is here */
};

/* A record on its way out. */
struct comm_out {
	uint8_t header[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX]; /* and a CREDIT's payload */
	size_t header_bytes, header_sent;
	const uint8_t *payload; /* in the request's memory; NULL: zeros, as it is done */
	size_t payload_left;
};

/* A DATA record of which the header is here. */
struct comm_in {
	bool here;
	bool admitted; /* checked against its receive */
	uint64_t message, offset, total;
	uint32_t length, done, tag;
};

struct comm_list { /* of chunks, by their numbers; -1: none */
	int16_t head, tail;
};

/* Since the lane came. Writer: under the lock. */
struct comm_lane_counts {
	uint64_t bytes_out, chunks_out; /* payload of DATA, begun */
	uint64_t bytes_in, chunks_in;   /* placed for the first time */
	uint64_t moved_in;              /* chunks of lanes that died */
	uint64_t moved_out;             /* chunks that it took along when it died */
	uint64_t resent;                /* chunks of a stalled lane, sent again by this one */
	uint64_t duplicates;            /* chunks that had come before */
};

struct comm_lane {
	struct comm *comm;
	uint8_t index;
	bool backup;
	int dev;
	enum lane_kind kind;
	struct lane_row *row; /* its place on the statistics page; may be NULL */
	struct work work;     /* run: comm_lane_run */

	/* Baton. */
	struct lane *lane;   /* NULL once closed */
	uint64_t sent_bytes; /* of the preamble: where our records begin in the lane's count */
	uint64_t turned_ns, asked_ns, looked_ns; /* last turn; info(); read by a sender */
	bool rated;                              /* its rate was known at the last info() */
	uint64_t silence_asked_ns;
	bool silence_warned;
	bool watching;
	bool send_broken; /* the lane takes nothing more */
	bool told_close;
	size_t in_head_bytes; /* of the header being read */
	uint8_t in_head[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX];
	struct comm_out out;
	struct comm_in in;
	struct comm_lane *next_polled, **pprev_polled; /* of its kernel driver */

	/* Lock. */
	struct comm_lane *next_all;
	bool dead;    /* off the table: nobody posts its work, whose last run frees it */
	bool waits;   /* has not read everything: nothing is posted */
	bool blocked; /* has not read everything: another lane writes there */
	bool repeats; /* brought a duplicate: tell CREDIT and ACK again, here */
	/* It reads or writes these bytes of a message right now: in the request's memory, or in memory of the
	 * comm's (early). */
	enum { COMM_USES_NONE, COMM_USES_REQUEST, COMM_USES_EARLY, COMM_USES_KEPT } uses;
	uint64_t use_message, use_begin, use_end;
	bool full;            /* its last push ended there: room will be told, or it is polled */
	uint64_t out_message; /* of the DATA record in out */
	int16_t out_kept;     /* its place in the table of kept ones, -1 */
	uint64_t done_bytes;  /* of DATA, headers included: delivered, as the lane says */
	struct comm_list under_way; /* chunks given to it and not acknowledged */
	struct comm_lane_counts counts;
};

/* Of a DATA record that was sent, until an ACK covers it. */
struct comm_chunk {
	uint64_t message, offset;
	uint32_t length;
	int16_t next;
	int16_t kept; /* place of its message in the table of kept ones, -1: it is the application's memory */
	bool resent; /* another lane has it too */
};

/* A message that its sender keeps. */
struct comm_kept {
	uint64_t message;
	uint32_t size, tag;
	uint8_t kinds;
	uint8_t users;          /* lanes that read it right now */
	struct comm_lane *lane; /* has it; NULL: that one has died */
	uint64_t end_bytes;     /* done when that lane's done_bytes are there */
};

struct comm_send_state {
	uint64_t current;        /* message being cut into records, = messages cut completely */
	uint64_t offset;         /* of it: bytes put into records */
	uint64_t granted;        /* receives posted by the peer, as told */
	uint64_t data_bytes;     /* of DATA records begun, headers included */
	uint64_t credited_bytes; /* data_bytes at the end of message granted-1, once sent */
	uint64_t end_ring[COMM_EAGER_MESSAGES]; /* data_bytes behind each message not yet granted */
};

struct comm_recv_state {
	uint64_t told; /* receives told to the peer */
	uint64_t bytes_since_told, messages_since_told;
	bool bulk; /* the last message was large */
	/* One lane. */
	bool in_message;       /* a first record is here */
	uint64_t current;      /* message being received, = messages received completely */
	uint64_t offset;       /* of it */
	uint64_t total;        /* of it, once its first record is here */
	uint64_t payload_left; /* of the present DATA record */
};

/* A chunk that came before its receive was posted, in memory of ours. */
struct comm_early {
	struct comm_early *next;
	uint64_t message, offset, total;
	uint32_t length, tag;
	bool complete;
	bool moving; /* to its place, by someone */
	_Alignas(64) uint8_t data[];
};

/* A driver of kernel lanes. */
struct comm_kernel {
	struct kernel_driver kd;  /* first */
	struct comm_lane *polled; /* its lanes; its baton */
};

struct comm_driver {
	struct comm *comm;
	struct driver *driver;
	struct work look_work, close_work, flush_work;
};

/* What the lanes of a comm share. */
struct comm_several {
	_Alignas(64) atomic_bool lock;
	bool closing;                            /* no lane may join */
	bool said;                               /* the WARN of `failing` */
	int failing;                             /* the error to be, once nobody touches requests */
	struct record close;                     /* what is told of it */
	unsigned users;                          /* lanes that touch requests */
	bool blocked;                            /* some lane is */
	int control;                             /* index of the control lane, -1 */
	struct comm_lane *lanes[COMM_LANES_MAX]; /* live, by index */
	struct comm_lane *all;                   /* those that die, too */
	uint32_t watched;                        /* lanes that watch */
	uint64_t orphaned_ns;                    /* the last lane died; 0: there is one */
	int orphan_error;                        /* of what */
	uint64_t revive_ns;
	uint32_t kept_bytes; /* messages of up to so many are kept; 0: none is */
	struct stripe stripe;
	void (*lane_lost)(struct comm *comm, unsigned index, bool slow);
	/* Send. */
	uint64_t acked_message, acked_offset; /* all of messages before, and so much of that one */
	struct comm_chunk *chunks;            /* COMM_CHUNKS_MAX */
	struct comm_list unused, moved;       /* moved: of lanes that died */
	struct comm_kept *kept;               /* COMM_KEPT_MAX */
	uint8_t *kept_data;                   /* COMM_KEPT_BYTES_MAX for each */
	uint64_t kept_free;                   /* bit i: kept[i] */
	struct choice *choice;                /* of the kinds that carry a message */
	int choice_dev;                       /* of the first lane: what is learnt is kept by it */
	uint64_t done_ns;                     /* when the last request was done */
	/* Receive. */
	struct ranges ranges;
	struct comm_early *early;
	bool ack_due, credit_due; /* credit_due: again, though nothing is new */
	uint64_t ack_bytes;       /* received since the last ACK */
	unsigned ack_kept;        /* kept messages received since */
	bool peer_closed;         /* CLOSE has come by a lane: */
	struct record peer_close; /* it */
	/* Appended under the lock, read by the application without: count by release / acquire. */
	atomic_uint driver_count;
	atomic_uint harp_drivers; /* of them: engines; added to before the count is */
	struct comm_driver drivers[COMM_LANES_MAX];
	/* Hints between the application and the lanes; relaxed. */
	atomic_uint_fast64_t kernel_active_ns; /* a kernel lane brought something */
	atomic_uint kernel_pushing;            /* kernel lanes whose socket is full */
	/* Application. */
	uint64_t ticked_ns, kernel_polled_ns;
};

struct comm {
	/* Application. */
	enum comm_side side;
	uint64_t app_posted;
	atomic_uint_fast64_t posted;  /* Writer: application, release. Reader: lanes, acquire */
	atomic_int error;             /* Writer: lanes, release. Reader: application, acquire */
	struct comm_lane *only;       /* of a comm of one lane; else NULL */
	struct comm_several *several; /* of a comm of several lanes; else NULL */
	struct plugin_ctx *ctx;
	struct comm *next, **pprev; /* in ctx's list, under its lock; once closed, in linger.c's */
	uint64_t linger_until_ns;   /* linger.c's */
	struct registry_entry *entry; /* registry.c's; NULL: no further lanes are let in */
	uint64_t comm_id;
	struct harp_endpoint remote; /* of the first lane, for people */
	struct upkeep *upkeep;       /* upkeep.c's; NULL: no further lanes are dialled */
	struct comm_row *row;        /* on the statistics page; may be NULL */
	unsigned registered;         /* memory.c's: pieces of memory, under its lock */
	struct request requests[PLUGIN_REQUESTS_MAX]; /* message m is in slot m % 32 */

	/* Baton, or lock. */
	_Alignas(64) uint64_t completed; /* requests done */
	uint64_t now_ns;                 /* of the present turn */
	uint32_t eager_bytes;
	bool no_credit; /* the sender wants none */
	bool abort;     /* close: whatever the state */
	int end_error; /* the lanes or the peer have ended; an error once somebody wants something */
	char end_text[96];
	union {
		struct comm_send_state tx;
		struct comm_recv_state rx;
	};

	struct work close_work; /* of a comm of one lane */
	/* Of kernel lanes, which are spread over them by their index. None where there can be no kernel lane;
	 * never changes. */
	struct comm_kernel *kernels;
	unsigned kernel_count;
};

struct comm_lane_options {
	uint8_t index;       /* in the comm, below COMM_LANES_MAX */
	int dev;             /* the device whose NIC it leaves by */
	bool backup;         /* used only while no other lane works */
	uint64_t sent_bytes; /* put into the lane before: the preamble */
	uint64_t rtt_ns;     /* measured in the preamble; 0: it was not */
};

struct comm_options {
	struct plugin_ctx *ctx;
	enum comm_side side;
	uint32_t eager_bytes; /* the smaller of both sides' */
	bool no_credit;       /* means nothing when several */
	bool several;         /* both sides plan more than one lane, from the first record on */
	bool kept;            /* several: the connector has said that it keeps small messages */
	uint64_t comm_id;
	uint64_t revive_ns;            /* for so long the last lane's death is waited out */
	struct comm_lane_options lane; /* of the first */
	/* A lane has died, or is much slower than its siblings of the same kind (slow). Called with a
	 * baton held: must not block, nor call the comm. NULL: nobody wants to know. */
	void (*lane_lost)(struct comm *comm, unsigned index, bool slow);
};

/* Takes the lane (baton of lane->driver held): one of the kernel's moves to the comm's own driver.
 * -ENOMEM leaves it. */
int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt);
/* A further lane, or a new one in the place of that index; as comm_create() takes it. Any thread. -ENOTCONN:
 * the comm is ending, -EINVAL: it is of one lane, -ENOMEM: each leaves the lane. */
int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt);
/* Ends and frees; the caller has taken it off its ctx's list, and nobody attaches to it any more. abort: RST in
 * any case. */
void comm_close(struct comm *comm, bool abort);
/* As comm_close(comm, true) by who already holds the baton of its only lane so far and knows that no work is
 * queued. */
void comm_drop(struct comm *comm);
/* The application takes a registration back. When a request that is not done was posted with it, or with none and lies
 * in its bytes, the comm fails (-ECANCELED). Returns when no such request's memory is read or written any more. Any
 * thread, no baton held; the comm is not being closed. */
void comm_withdraw(struct comm *comm, const void *memory, const void *base, size_t bytes);
int comm_post(struct comm *comm, void *data, size_t size, int tag, const void *memory,
	      struct request **out);
int comm_test(struct request *request, int *done, size_t *size);
/* The keeper, at times: what was given to lanes of a comm of several is seen through though nobody polls it. */
void comm_tend(struct comm *comm, uint64_t now_ns);
/* Its application has nothing under way and may close it. Is a message that it was told is done not delivered yet, so that
 * its lane's death would take it along? Any thread. */
bool comm_owes(struct comm *comm);
/* One line for people: by which lanes. */
void comm_describe(struct comm *comm, char *buf, size_t len);
/* The kernel's lanes alone. */
bool comm_is_polled(struct comm *comm);

/* A lane as others may look at it. */
struct comm_lane_view {
	unsigned index;
	int dev;
	enum lane_kind kind;
	bool backup, stalled, slow, control;
	struct harp_endpoint local, remote;
	uint64_t srtt_ns, rate_bytes_per_s, under_way_bytes; /* estimates of a sender */
	struct comm_lane_counts counts;
};
/* The live lanes of a comm of several. Any thread, while the comm can't be closed. Returns how many. */
unsigned comm_lane_views(struct comm *comm, struct comm_lane_view views[COMM_LANES_MAX]);

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
bool comm_recv_credit_due(struct comm *comm, uint64_t posted);
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

/* comm_join.c */
int comm_several_new(struct comm *comm, const struct comm_options *opt);
void comm_several_free(struct comm *comm);
/* Lock held. */
bool comm_lanes_join(struct comm *comm, struct comm_lane *l, uint64_t rtt_ns, uint64_t now_ns);
bool comm_driver_is_kernel(const struct comm *comm, const struct driver *driver);
/* Baton held, lock not: the lane has ended. Its chunks move, and its last run frees it. */
void comm_lane_die(struct comm_lane *l, int error, const char *text);
/* As above, of one that takes nothing more. True: it stays to be read, as what has come by it may come by no other. */
bool comm_lane_mute(struct comm_lane *l);
/* Lock held: the last lane has died of error. */
void comm_end_by_lanes(struct comm *comm, int error);
/* Baton held: the work of a dead lane runs. */
void comm_lane_bury(struct comm_lane *l);
void comm_several_close(struct comm *comm);

/* comm_several.c: which lanes are to look at the new request, and who drives them */
void comm_several_post(struct comm *comm, struct request *request);
void comm_several_poll(struct comm *comm);

/* comm_choice.c; of a sender, and the lock held where it says nothing else */
int comm_choice_new(struct comm *comm, int dev); /* nobody else knows the comm; -ENOMEM */
void comm_choice_free(struct comm *comm);        /* keeps and says what was learnt; as above */
/* A lane is in the table now, or out of it. rtt_ns: of its preamble; 0: not measured. */
void comm_choice_lanes(struct comm *comm, const struct comm_lane *l, uint64_t rtt_ns);
/* The request just posted, before its first chunk. True: there is something to say. */
bool comm_choice_take(struct comm *comm, struct request *request);
void comm_choice_done(struct comm *comm, const struct request *request);
void comm_choice_say(struct comm *comm, uint64_t now_ns); /* lock not held */

/* comm_send_lanes.c */
/* Lock held. True: comm_choice_say() has something to say. */
bool comm_tx_post(struct comm *comm, struct request *request);
void comm_tx_advance(struct comm_lane *l, uint64_t now_ns);
/* 1: nothing is left to push, 0: the lane is full, or the error. */
int comm_tx_push(struct comm_lane *l, uint64_t now_ns);
/* Lock held: the lane that should take what is next is told so, unless it is self. */
void comm_tx_kick(struct comm *comm, struct comm_lane *self, uint64_t now_ns);
/* Lock held: the chunks of a lane that has died, or, not lost, is closed in order. Returns how many others will send. */
unsigned comm_tx_orphan(struct comm_lane *l, bool lost);
/* Lock held: requests that are acknowledged and that no lane reads any more. */
void comm_tx_complete(struct comm *comm, struct comm_lane *observer);
/* Lock held. 0, or -EPROTO: of what was never sent. */
int comm_tx_ack(struct comm *comm, uint64_t message, uint64_t offset);

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
void comm_rx_advance(struct comm_lane *l, uint64_t now_ns);

/* comm_early.c; lock held but for _new and _free */
struct comm_early *comm_early_new(const struct comm_in *in);
void comm_early_free(struct comm_early *early);
struct comm_early *comm_early_find(struct comm *comm, uint64_t message, uint64_t offset);
/* May one more of that length wait? */
bool comm_early_fits(struct comm *comm, uint32_t length);
void comm_early_add(struct comm *comm, struct comm_early *early);
void comm_early_remove(struct comm *comm, struct comm_early *early);
/* One that can go to its place; it is marked as moving. */
struct comm_early *comm_early_take(struct comm *comm);

#endif
