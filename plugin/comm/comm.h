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
 *   comm_send_lanes.c  the sending end of several lanes: acknowledgements, a lane's turn
 *   comm_plan.c        the sending end of several lanes: what goes next, by which lane
 *   comm_recv_lanes.c  the receiving end of several lanes: placing, early messages
 *   comm_tell.c        the receiving end of several lanes: CREDIT and ACK
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

#include "poll/kernel_driver.h"
#include "lane/lane.h"
#include "stats/lane_page.h"
#include "plugin.h"
#include "comm/ranges.h"
#include "wire/record.h"
#include "comm/stripe.h"

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
#define COMM_EARLY_MAX                                                                             \
	(2 * COMM_CHUNKS_MAX) /* so are those that come before their receive is posted */
/* Small messages of several lanes, kept by their sender until an ACK covers them (docs/lanes.md section 4.2). */
#define COMM_KEPT_BYTES_MAX 65536u
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
	bool unrated; /* it has much under way, and its rate is not known: info() tells */
	uint64_t silence_due_ns; /* when it is asked again */
	bool silence_warned;
	bool watching;
	bool send_broken; /* the lane takes nothing more */
	bool told_close;
	bool heard_close;     /* a receiver of several lanes: nothing follows */
	bool unread;          /* and its turn has left something that is here */
	size_t in_head_bytes; /* of the header being read */
	uint8_t in_head[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX];
	struct comm_out out;
	struct comm_in in;
	uint64_t ack_turn;     /* 1 + its engine's runs when an ACK was first due; 0: none waits */
	uint32_t turn_bytes;   /* of payload, in this turn: sent (begun), or read */
	uint32_t vain_records; /* read in this turn, and brought nothing new */
	bool sees_early;       /* there were early ones when it had the lock last: a receiver */
	struct comm_lane *next_polled, **pprev_polled; /* of its kernel driver */

	/* Lock. */
	struct comm_lane *next_all;
	bool dead;    /* off the table: nobody posts its work, whose last run frees it */
	bool waits;   /* has not read everything: nothing is posted */
	bool blocked; /* has not read everything: another lane writes there */
	bool repeats; /* brought a duplicate: tell CREDIT and ACK again, here */
	/* It reads or writes these bytes of a message right now: in the request's memory, or in memory of the
	 * comm's (early). */
	enum comm_uses { COMM_USES_NONE, COMM_USES_REQUEST, COMM_USES_EARLY, COMM_USES_KEPT } uses;
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
	bool again;  /* another one had it before */
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

enum comm_loss {
	COMM_LOSS_SLOW,    /* much slower than its siblings of the same kind, and still there */
	COMM_LOSS_BY_PEER, /* reset or closed */
	COMM_LOSS,
};
/* What a lane's owner is told of it. A baton is held: must not block, nor call the comm. True: the peer has ended it because
 * another that the owner dials takes its place, and it is no death. */
typedef bool comm_lane_lost(struct comm *comm, unsigned index, enum comm_loss loss);

/* The lane that small messages go by at the moment; kinds 0: none. */
struct comm_habit {
	uint8_t lane, kinds;
	uint64_t since_ns, until_bytes; /* in the lane's count of what it was given */
};

/* What the lanes of a comm share. */
struct comm_several {
	_Alignas(64) atomic_bool lock;
	/* Not in the lock's word: gcc reads these three at once, and ThreadSanitizer the lock with them. */
	_Alignas(8) bool closing;                /* no lane may join */
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
	comm_lane_lost *lane_lost;
	/* Its tender is at rest: this is posted to that driver when there is something to look after. */
	struct work *rouse;
	struct driver *rouse_driver;
	bool restless;    /* it may not be any more */
	uint64_t done_ns; /* when the last request was done */
	/* Send. */
	uint64_t acked_message, acked_offset; /* all of messages before, and so much of that one */
	struct comm_chunk *chunks;            /* COMM_CHUNKS_MAX */
	struct comm_list unused, moved;       /* moved: of lanes that died */
	struct comm_kept *kept;               /* COMM_KEPT_MAX */
	uint8_t *kept_data;                   /* COMM_KEPT_BYTES_MAX for each */
	uint64_t kept_free;                   /* bit i: kept[i] */
	int told; /* lane for the next of a new message, as of told_ns; -1 */
	uint64_t told_ns;
	uint64_t
		harp_bytes_max; /* messages of up to this many bytes go over HARP lanes; path_policy.h */
	struct comm_habit habit;
	/* Receive. */
	struct ranges ranges;
	struct comm_early *early;
	bool ack_due, credit_due; /* credit_due: again, though nothing is new */
	uint64_t ack_bytes;       /* received since the last ACK */
	uint64_t ack_message;     /* messages received, as it told */
	unsigned ack_kept;        /* kept messages received since */
	bool pauses;              /* the last time that nothing was outstanding, for a while */
	bool peer_closed;         /* CLOSE has come by a lane: */
	struct record peer_close; /* it */
	/* Appended under the lock, read by the application without: count by release / acquire. */
	atomic_uint driver_count;
	atomic_uint harp_drivers; /* of them: engines; added to before the count is */
	struct comm_driver drivers[COMM_LANES_MAX];
	/* Hints between the application and the lanes; relaxed. */
	atomic_uint_fast64_t kernel_active_ns; /* a kernel lane brought something */
	atomic_uint_fast64_t kernel_message;   /* the last that one took or brought */
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
	comm_lane_lost *lane_lost;     /* NULL: nobody wants to know */
	uint64_t harp_bytes_max;       /* several, send: path_policy.h */
};

/* Takes the lane (baton of lane->driver held): one of the kernel's moves to the comm's own driver.
 * -ENOMEM leaves it. */
int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt);
/* A further lane, or a new one in the place of that index; as comm_create() takes it. Any thread. -ENOTCONN:
 * the comm is ending, -EINVAL: it is of one lane, -ENOMEM: each leaves the lane. */
int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt);
/* Is one of that index attached, and has not died? The comm has several. Any thread. */
bool comm_has_lane(struct comm *comm, unsigned index);
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
/* Requests that are not done, so that lanes may touch the application's memory. The application,
 * which posts none meanwhile. */
bool comm_has_requests(const struct comm *comm);
/* The keeper, at times: what was given to lanes of a comm of several, and what kernel lanes have to do, is seen through though nobody
 * polls it. reads: the kernel lanes of a receiver that nobody has polled lately are read, too. False: there was nothing. */
bool comm_tend(struct comm *comm, uint64_t now_ns, bool reads);
/* Has it kernel lanes to be read? */
bool comm_is_read(const struct comm *comm);
/* True: there is nothing to see through, and work is posted to driver when there is, once. */
bool comm_rest(struct comm *comm, struct driver *driver, struct work *work);
/* It is not posted from here on: comm_rest() is false. */
void comm_rest_never(struct comm *comm);
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

#endif
