/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - one end of an NCCL connection: requests on one side, records on lanes on the other.
 *
 *   comm.c       the application's side, creation and close, events for NCCL's profiler
 *   comm_turn.c  turns: its poller, the engines of its lanes, the control thread
 *   comm_lane.c  lanes join, are sampled, die
 *   comm_state.c completion, failure, records out and in
 *   comm_send.c  the sender: chunks, credits, buffered sends, acknowledgements
 *   comm_recv.c  the receiver: delivery, unexpected messages
 *   comm_ack.c   when a receiver sends CREDIT and ACK records
 *   scheduler.c  which lane takes the next chunk
 *   ranges.c     which bytes of the messages under way have arrived
 *
 * Ownership. "Application": the thread that posts and tests, one at a time (NCCL contract section 3.1). "Poller": the
 * thread that holds comm->poller. The application publishes requests with `posted` (release); the poller publishes
 * results with request->state and comm->error (release).
 */
#ifndef HARP_PLUGIN_COMM_H
#define HARP_PLUGIN_COMM_H

#include <sys/queue.h>

#include "comm/comm_event.h"
#include "comm/ranges.h"
#include "comm/scheduler.h"
#include "lane/kernel_poll.h"
#include "lane/lane.h"
#include "poll/poller.h"
#include "process/config.h"
#include "process/log.h"
#include "stats/lane_page.h"
#include "wire/record.h"

#define PLUGIN_REQUESTS_MAX 32u
#define COMM_LANES_MAX SCHEDULER_LANES_MAX
#define COMM_RECONNECT_WAIT_NS                                                                     \
	500000000ull /* the connector reconnects a comm's last lane at once */
#define COMM_EAGER_BYTES_MIN 4096u
#define COMM_EAGER_MESSAGES 256u /* begun beyond the credits, at most */
#define COMM_BULK_BYTES 32768u   /* larger messages make the receiver send credits early */
#define COMM_CREDIT_MESSAGES 64u /* received since the last CREDIT: one is due */
/* Chunks that a sender has not had acknowledged, at most. So a receiver has no more ranges and holes, and allows for
 * twice as many. At 128 KiB each it is 64 MiB: 5 ms at 100 Gbit/s. */
#define COMM_CHUNKS_MAX 512u
#define COMM_RANGES_MAX (2 * COMM_CHUNKS_MAX)
#define COMM_UNEXPECTED_MAX (2 * COMM_CHUNKS_MAX)
/* Buffered sends (docs/lanes.md section 4.2). */
#define COMM_BUFFER_BYTES_MAX 65536u
#define COMM_BUFFERS_MAX 64u       /* bits of a word */
#define COMM_BUFFERED_MESSAGES 16u /* received since the last ACK: one is due */

enum comm_side { COMM_SEND, COMM_RECV };

enum request_state {
	REQUEST_FREE,   /* the application's */
	REQUEST_POSTED, /* the poller's */
	REQUEST_DONE,   /* the application's again */
};

struct request {
	_Alignas(64) struct comm *comm;
	atomic_int state;
	int tag;
	uint8_t *data;
	const void *memory; /* memory.c's handle of the registration; NULL: none was given */
	size_t size;        /* posted */
	size_t size_done;   /* of the message, when done */
	uint64_t posted_ns;
	struct comm_event *event; /* NULL: no profiler wants it */
	/* Poller. */
	uint64_t begun_ns;  /* the first record was cut, or came */
	uint64_t end_bytes; /* send, no failover: where it ends in the stream of records */
	uint64_t received;  /* receive: bytes in place */
	uint64_t total;     /* receive: of the message, once begun */
	uint8_t kinds;      /* send: enum lane_kind, the lanes that it prefers */
	uint8_t used_kinds; /* those that had a part of it */
	int8_t buffer;      /* send: its buffer, -1: none */
	bool begun;         /* receive: a record of it has come */
};

/* A record on its way out. */
struct comm_out {
	uint8_t header[2 * RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX]; /* CREDIT and ACK */
	size_t header_bytes, header_sent;
	const uint8_t *payload; /* NULL: zeros, as the message is done */
	size_t payload_left;
	uint64_t message; /* of a DATA record */
	int8_t buffer;    /* that the payload lies in; -1: the request's memory */
};

/* A DATA record whose header has come. */
struct comm_in {
	bool here;
	bool admitted; /* checked against its receive */
	uint64_t message, offset, total;
	uint32_t length, done, tag;
};

struct comm_list { /* of chunks, by their numbers; -1: none */
	int16_t head, tail;
};

struct comm_lane {
	struct comm *comm;
	struct comm_engine *engine; /* NULL: a kernel lane */
	struct lane *lane;          /* NULL once closed */
	struct lane_stats *stats;
	struct comm_lane *next; /* of those that join, or are dead */
	bool dead;              /* off the table; its engine's next turn closes it */
	enum lane_kind kind;
	uint8_t index;
	bool backup;
	int dev;
	uint64_t sent_bytes; /* of the preamble: where our records begin in the lane's count */
	uint64_t rtt_ns;     /* measured by the preamble */

	atomic_bool event; /* of the lane since its last turn. Writer: its engine's poller */
	bool ready;        /* there may be something to do, whatever the lane says */
	bool full;         /* the last push ended there */
	bool close_sent, close_received;
	bool waits;     /* a receiver: what is next has no receive */
	bool duplicate; /* brought one: CREDIT and ACK go out here */
	bool unrated;   /* much is under way and its rate is not known */
	bool silence_warned;
	int send_error;       /* it takes nothing more; 0: it does */
	size_t in_head_bytes; /* of the header being read */
	uint8_t in_head[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX];
	struct comm_in in;
	struct comm_out out;
	struct comm_list under_way; /* chunks given to it and not acknowledged */
	uint64_t sampled_ns, read_ns, silence_due_ns;
	uint64_t delivered_bytes; /* send: of our records, when last asked */
	uint32_t turn_bytes;      /* of payload in this turn */
	uint32_t idle_records;    /* read in this turn, and of no use */
};

/* An engine that carries lanes of the comm, from the first one on. */
struct comm_engine {
	struct comm *comm;
	_Atomic(struct poller *) poller; /* NULL: none, and none behind it */
	struct work work, close_work;
	struct comm_lane *dead; /* to be closed by the next turn that holds both */
};

/* A DATA record that was sent and that no ACK covers. */
struct comm_chunk {
	uint64_t message, offset;
	uint32_t length;
	int16_t next;
	int8_t buffer; /* -1: the request's memory */
	bool resent;   /* another lane has it too */
	bool again;    /* another lane had it before */
};

/* A buffered send: a small message that was copied, so that its request is done when a lane has delivered it. */
struct comm_buffer {
	uint64_t message;
	uint32_t size, tag;
	uint8_t kinds;
	struct comm_lane *lane; /* that carries it; NULL: it has died */
	uint64_t end_bytes;     /* done when that lane has delivered so much */
};

struct comm_send_state {
	uint64_t current;        /* message being cut, = messages cut completely */
	uint64_t offset;         /* of it: bytes that are cut */
	uint64_t granted;        /* receives that the peer advertised */
	uint64_t data_bytes;     /* of DATA records cut, headers included */
	uint64_t credited_bytes; /* data_bytes at the end of message granted-1, once cut */
	uint64_t end_ring[COMM_EAGER_MESSAGES]; /* data_bytes behind each message not yet granted */
	/* With failover. */
	uint64_t acked_message, acked_offset; /* all of messages before, and so much of that one */
	struct comm_chunk *chunks;            /* COMM_CHUNKS_MAX */
	struct comm_list unused, moved;       /* moved: of lanes that died */
	struct comm_buffer *buffers;          /* COMM_BUFFERS_MAX; NULL: no sends are buffered */
	uint8_t *buffer_data;                 /* COMM_BUFFER_BYTES_MAX for each */
	uint64_t buffers_free;                /* bit i: buffers[i] */
	uint64_t harp_bytes_max;              /* path_policy.h */
	/* The sticky lane of small messages; kinds 0: none. */
	struct {
		uint8_t lane, kinds;
		uint64_t since_ns, until_bytes;
	} sticky;
};

/* A chunk that came before its receive was posted. */
struct comm_unexpected {
	struct comm_unexpected *next;
	uint64_t message, offset, total;
	uint32_t length, tag;
	uint8_t kind; /* enum lane_kind of the lane that brought it */
	bool complete;
	_Alignas(64) uint8_t data[];
};

struct comm_recv_state {
	uint64_t advertised; /* receives */
	uint64_t bytes_since_credit, messages_since_credit;
	bool bulk; /* the last message was large */
	/* With failover. */
	struct ranges ranges;
	struct comm_unexpected *unexpected;
	bool ack_due, credit_due; /* credit_due: again, though nothing is new */
	uint64_t ack_bytes;       /* received since the last ACK */
	uint64_t ack_message;     /* messages received, as it said */
	unsigned ack_buffered;    /* buffered messages received since */
	bool peer_closed;         /* CLOSE has come by a lane: */
	struct record peer_close; /* it */
};

enum comm_loss {
	COMM_LOSS_SLOW, /* much slower than its siblings of the same kind, and still there */
	COMM_LOSS,
};
/* Says what became of a lane. The comm's poller is held: must not block, nor call the comm. */
typedef void comm_lane_lost(struct comm *comm, unsigned index, enum comm_loss loss);

struct comm {
	/* Written when it is made. */
	enum comm_side side;
	bool failover;  /* more than one lane may come: chunks, ACK records, lanes that die */
	bool no_credit; /* the sender wants none */
	bool has_kernel_lanes; /* it may have */
	uint32_t eager_bytes;
	uint32_t buffer_bytes;      /* messages of up to so many are buffered; 0: none is */
	uint64_t reconnect_wait_ns; /* so long the last lane's death is waited out */
	struct plugin_ctx *ctx;
	uint64_t comm_id;
	struct harp_endpoint remote; /* of the first lane, for people */
	comm_lane_lost *lane_lost;
	struct comm_stats *stats;
	/* Their owners'. */
	LIST_ENTRY(comm) ctx_link;    /* in ctx's list, under its lock */
	struct comm *next;            /* in the acceptor's list; once closed, in background.c's */
	uint64_t close_deadline_ns;   /* background.c's */
	struct registry_entry *entry; /* registry.c's; NULL: no further lanes are let in */
	struct connector *connector;  /* connector.c's; NULL: no further lanes are connected */
	unsigned registered;          /* memory.c's: pieces of memory, under its lock */

	/* Application. */
	uint64_t app_posted;
	struct comm_event *events; /* of the requests' slots; NULL: none was asked for */
	uint64_t kernel_polled_ns;
	uint64_t ticked_ns;
	atomic_uint_fast64_t posted; /* Writer: application, release. Reader: poller, acquire */
	atomic_int error;            /* Writer: poller, release. Reader: application, acquire */
	struct request requests[PLUGIN_REQUESTS_MAX]; /* message m is in slot m % 32 */

	/* Any thread. */
	_Alignas(64) struct poller poller;
	atomic_uint_fast64_t missed;         /* turns wanted while it was held; comm_turn.c */
	_Atomic(struct comm_lane *) joining; /* a stack */
	atomic_uint present;                 /* bit i: lane i is attached and has not died */
	atomic_bool ended;                   /* no lane may join */
	atomic_bool awaited;                 /* a request is outstanding */
	struct comm_engine engines[COMM_LANES_MAX];
	/* Hints for the application; relaxed. */
	atomic_uint_fast64_t kernel_active_ns; /* a kernel lane brought something */
	atomic_uint_fast64_t kernel_message;   /* the last one that a kernel lane took or brought */
	atomic_bool kernel_due;                /* a kernel lane has something to do */

	/* Poller. */
	struct comm_engine *engine; /* whose poller is held in this turn, too */
	uint64_t completed;         /* requests done */
	uint64_t now_ns;            /* of the present turn */
	struct kernel_poll kernel_poll;
	struct comm_lane *lanes[COMM_LANES_MAX]; /* live, by index */
	struct comm_lane *dead;                  /* kernel lanes to be closed */
	struct scheduler scheduler;
	int control;                /* index of the control lane, -1 */
	bool closing;               /* comm_close() is at it */
	bool abort;                 /* close, whatever the state */
	struct record close;        /* what lanes say of the failure */
	uint64_t last_lane_died_ns; /* the last lane died; 0: there is one */
	int last_lane_error;
	int end_error; /* lanes or peer have ended; an error as soon as a request waits */
	char end_text[96];
	union {
		struct comm_send_state tx;
		struct comm_recv_state rx;
	};
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
	bool multi_lane;      /* both sides plan more than one lane, from the first record on */
	bool buffered;        /* several: the connector buffers small messages */
	uint64_t comm_id;
	uint64_t reconnect_wait_ns;    /* so long the last lane's death is waited out */
	struct comm_lane_options lane; /* of the first */
	comm_lane_lost *lane_lost;     /* NULL: not reported */
	uint64_t harp_bytes_max;       /* several, send: path_policy.h */
};

/* Takes the lane; the poller of lane->poller is held. -ENOMEM leaves it. */
int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt);
/* A further lane, or a replacement of that index. The poller of lane->poller is held; never waits. -ENOTCONN: the comm is
 * ending, -EINVAL: it has one lane, -ENOMEM: each leaves the lane. */
int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt);
/* Is a lane of that index attached, and has not died? Any thread. */
bool comm_has_lane(struct comm *comm, unsigned index);
/* Ends and frees; the caller has taken it off its ctx's list, and no lane is attached to it any more. abort: RST in
 * any case. */
void comm_close(struct comm *comm, bool abort);
/* As comm_close(comm, true) by a caller that holds the poller of its only lane so far, before anyone else knows the comm. */
void comm_drop(struct comm *comm);
/* The application takes a registration back. When a request that is not done was posted with it, or with none and lies
 * in its bytes, the comm fails (-ECANCELED). Returns when no such request's memory is read or written any more. Any
 * thread, no poller held; the comm is not being closed. */
void comm_cancel_memory(struct comm *comm, const void *memory, const void *base, size_t bytes);
int comm_post(struct comm *comm, void *data, size_t size, int tag, const void *memory,
	      struct request **out);
int comm_test(struct request *request, int *done, size_t *size);
/* Are there requests that are not done? The application, which posts none meanwhile. */
bool comm_has_requests(const struct comm *comm);

/* The control thread, now and then: what was given to lanes, and what kernel lanes have to do, goes on though the
 * application does not poll. Kernel lanes of a receiver that was not polled lately are read, too. False: nothing was on
 * its way. */
bool comm_run_background(struct comm *comm, uint64_t now_ns);
/* Its application has nothing under way and may close it. Is there a buffered send that was reported done and is not
 * delivered? Any thread. */
bool comm_has_undelivered(struct comm *comm);
/* One line for people: by which lanes. True: kernel lanes only. */
bool comm_describe(struct comm *comm, char *buf, size_t len);

#endif
