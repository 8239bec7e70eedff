/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - one end of an NCCL connection: requests on one side, records on lanes on the other.
 *
 *   comm.c       the application's side, creation and close, events for NCCL's profiler
 *   comm_turn.c  turns: its poller, the engines of its lanes, the control thread
 *   comm_lane.c  life of a lane: joining, sampling, death
 *   comm_state.c completion, failure, records out and in
 *   comm_send.c  the sender: chunks, credits, buffered sends, acknowledgments
 *   comm_recv.c  the receiver: delivery, unexpected messages
 *   comm_ack.c   when a receiver sends CREDIT and ACK records
 *   scheduler.c  which lane takes the next chunk
 *   ranges.c     which bytes of the messages in flight have arrived
 *
 * Ownership. "Application": the thread that posts and tests, one at a time (NCCL contract
 * section 3.1). "Poller": the thread that holds comm->poller. The application publishes requests
 * with `posted` (release); the poller publishes results with request->state and comm->error
 * (release).
 */
#ifndef HARP_PLUGIN_COMM_H
#define HARP_PLUGIN_COMM_H

#include <sys/queue.h>

#include "comm/ranges.h"
#include "comm/scheduler.h"
#include "lane/kernel_poll.h"
#include "harp_profiler.h"
#include "lane/lane.h"
#include "poll/control.h"
#include "process/config.h"
#include "process/log.h"
#include "stats/lane_page.h"
#include "wire/record.h"

#define PLUGIN_REQUESTS_MAX 32u
#define COMM_LANES_MAX SCHEDULER_LANES_MAX
#define COMM_RECONNECT_WAIT_NS 500000000ull /* for which a comm without lanes waits for one */
#define COMM_END_TEXT_MAX 160
#define COMM_EAGER_BYTES_MIN 4096u
#define COMM_EAGER_MESSAGES 256u  /* begun beyond the credits, at most */
#define COMM_BULK_BYTES 32768u    /* larger messages make the receiver send credits early */
#define COMM_CREDIT_MESSAGES 128u /* received since the last CREDIT: one is due */
/* A sender's unacknowledged chunks, at most: 64 MiB in chunks of 128 KiB, or 5 ms at 100 Gbit/s.
 * This bounds the receiver's ranges; it allows twice as many. */
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
	uint64_t begun_ns;        /* when the first record was sent or received */
	uint64_t end_bytes;       /* send, single-lane: its end in the stream of records */
	uint64_t received;        /* receive: bytes delivered */
	uint64_t total;           /* receive: bytes of the message, once begun */
	uint8_t kinds;            /* send: enum lane_kind, preferred lanes */
	uint8_t used_kinds;       /* enum lane_kind, lanes that carried a part */
	struct comm_chunk *chunk; /* send: that has its copy; NULL: none */
	bool begun;               /* receive: a record has arrived */
};

/* Payloads up to this size are copied behind their header and sent with it, as one piece. */
#define COMM_JOINED_BYTES (8 * RECORD_CREDITS_MAX)
/* An outgoing record. */
struct comm_out {
	uint8_t header[2 * RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX]; /* CREDIT and ACK; or DATA
									   * and a small payload */
	size_t header_bytes, header_sent;
	const uint8_t *payload; /* NULL: send zeros, because the message is done */
	size_t payload_left;
	uint64_t message; /* of a DATA record */
	int8_t buffer;    /* that holds the payload; -1: the request's memory */
};

/* A DATA record whose header has arrived. */
struct comm_in {
	bool active;
	bool admitted; /* checked against its receive */
	uint64_t message, offset, total;
	uint32_t length, done, tag;
};

TAILQ_HEAD(comm_list, comm_chunk);

struct comm_lane {
	struct comm *comm;
	struct comm_engine *engine; /* NULL: a kernel lane */
	struct lane *lane;          /* NULL once closed */
	struct lane_stats *stats;
	struct comm_lane *next; /* in the list of joining or of dead lanes */
	bool dead;              /* off the table; the next turn that reaches it closes it */
	enum lane_kind kind;
	uint8_t index;
	bool backup;
	int dev;
	uint64_t sent_bytes; /* of the preamble, in the lane's byte count */
	uint64_t rtt_ns;     /* measured by the preamble */

	atomic_bool event; /* since its last turn. Writer: its engine's poller */
	bool ready;        /* there may be work even without an event */
	bool full;         /* the last push stopped here */
	bool close_sent, close_received;
	bool waits;     /* receiver: the next message has no receive */
	bool duplicate; /* it brought a duplicate: send CREDIT and ACK on it */
	bool unrated;   /* much is in flight and its rate is not known */
	bool silence_warned;
	int send_error;       /* sending failed with this -errno; 0: it works */
	size_t in_head_bytes; /* of the header being read */
	uint8_t in_head[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX];
	struct comm_in in;
	struct comm_out out;
	struct comm_list in_flight; /* its unacknowledged chunks */
	uint64_t sampled_ns, read_ns, silence_due_ns;
	uint64_t copied_bytes, delivered_bytes; /* send: of our records, as last updated */
	uint32_t turn_bytes;                    /* payload bytes in this turn */
	uint32_t idle_records;                  /* records read in this turn that brought no data */
};

/* An engine that carries, or carried, lanes of the comm. */
struct comm_engine {
	struct comm *comm;
	_Atomic(struct poller *) poller; /* NULL: this entry and all after it are unused */
	struct work work;
	struct comm_lane *dead; /* closed by the next turn that holds both pollers */
};

/* A DATA record that no ACK covers. */
struct comm_chunk {
	TAILQ_ENTRY(comm_chunk) link;
	uint64_t message, offset;
	uint32_t length, tag;
	struct comm_lane *lane; /* that carries it; NULL: it has died or stalled */
	uint64_t end_bytes;     /* its end in that lane's byte count */
	/* A buffered send: the copy of its message, in one chunk. Its request is done when a lane
	 * has copied it. -1: the request's memory. */
	int8_t buffer;
	uint8_t kinds; /* enum lane_kind, preferred lanes */
	bool again;    /* sent on more than one lane */
};

struct comm_send_state {
	uint64_t current;        /* message being cut; all before are cut completely */
	uint64_t offset;         /* bytes of it that are cut */
	uint64_t granted;        /* receives that the peer advertised */
	uint64_t data_bytes;     /* of DATA records cut, headers included */
	uint64_t credited_bytes; /* data_bytes at the end of message granted-1, once cut */
	uint64_t end_ring[COMM_EAGER_MESSAGES]; /* data_bytes at the end of ungranted messages */
	/* Multi-lane. */
	uint64_t acked_message,
		acked_offset;           /* acked: all messages before, and this much of that one */
	struct comm_chunk *chunks;      /* COMM_CHUNKS_MAX */
	struct comm_list unused, moved; /* moved: from dead and stalled lanes */
	uint8_t *buffer_data;           /* COMM_BUFFERS_MAX buffers */
	uint64_t buffer_message[COMM_BUFFERS_MAX];
	uint64_t buffers_free;   /* a bit for each buffer */
	uint64_t harp_bytes_max; /* path_policy.h */
	/* The sticky lane of small messages; kinds 0: none. */
	struct {
		uint8_t lane, kinds;
		uint64_t since_ns, until_bytes;
	} sticky;
};

/* A chunk that arrived before its receive was posted. */
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
	/* Multi-lane. */
	struct ranges ranges;
	struct comm_unexpected *unexpected;
	bool ack_due, credit_due; /* credit_due: repeat the last one */
	uint64_t ack_bytes;       /* received since the last ACK */
	uint64_t ack_message;     /* messages received, in the last ACK */
	unsigned ack_buffered;    /* buffered messages received since then */
	bool peer_closed;         /* peer_close has arrived */
	struct record peer_close;
};

enum comm_loss {
	COMM_LOSS_SLOW, /* much slower than its siblings of the same kind, and still there */
	COMM_LOSS,
};
/* Reports a lane's loss. The comm's poller is held: must not block or call the comm. */
typedef void comm_lane_lost(struct comm *comm, unsigned index, enum comm_loss loss);

struct comm {
	/* Written when it is made. */
	enum comm_side side;
	bool multi_lane; /* more than one lane may come: chunks, ACK records, lanes that die */
	bool no_credit;  /* the sender wants none */
	bool has_kernel_lanes; /* may have some */
	uint32_t eager_bytes;
	uint32_t buffer_bytes; /* messages up to this size are buffered */
	struct plugin_ctx *ctx;
	uint64_t comm_id;
	struct harp_endpoint remote; /* of the first lane, for messages */
	comm_lane_lost *lane_lost;
	struct comm_stats *stats;
	/* Of other modules. */
	LIST_ENTRY(comm) ctx_link; /* in ctx's list, under its lock */
	struct comm *next;         /* in the acceptor's list */
	struct {
		struct control_timer timer;
		struct work begin_work, close_work;
		uint64_t deadline_ns; /* of the end of a closed comm; 0: it is open */
		void (*end)(struct comm *comm);
	} background;                 /* background.c; owned by the control thread */
	struct registry_entry *entry; /* registry.c; NULL: no further lanes are accepted */
	struct connector *connector;  /* connector.c; NULL: no further lanes are connected */
	unsigned registered;          /* memory.c: registrations, under its lock */

	/* Application. */
	uint64_t app_posted;
	struct comm_event *events; /* for the slots of requests[]; NULL: no profiler */
	uint64_t kernel_polled_ns;
	uint64_t checked_ns;
	atomic_uint_fast64_t posted; /* Writer: application, release. Reader: poller, acquire */
	atomic_int error;            /* Writer: poller, release. Reader: application, acquire */
	struct request requests[PLUGIN_REQUESTS_MAX]; /* message m is in slot m % 32 */

	/* Any thread. */
	_Alignas(64) struct poller poller;
	atomic_uint_fast64_t missed;         /* turns requested while it was held; comm_turn.c */
	_Atomic(struct comm_lane *) joining; /* a stack */
	atomic_uint present;                 /* bit i: lane i is attached and has not died */
	atomic_bool ended;                   /* no lane may join */
	atomic_bool awaited;                 /* a request is outstanding */
	struct comm_engine engines[COMM_LANES_MAX];
	/* Hints for the application; relaxed. */
	atomic_uint_fast64_t kernel_active_ns; /* when a kernel lane last brought data */
	atomic_uint_fast64_t kernel_message;   /* the last message on a kernel lane */
	atomic_bool kernel_due;                /* a kernel lane has work */

	/* Poller. */
	struct comm_engine *engine; /* of this turn, its poller held; NULL: kernel lanes */
	uint64_t completed;         /* requests done */
	uint64_t now_ns;            /* of the present turn */
	struct kernel_poll kernel_poll;
	struct comm_lane *lanes[COMM_LANES_MAX]; /* live, by index */
	struct comm_lane *dead;                  /* kernel lanes to close */
	struct scheduler scheduler;
	int control;                /* index of the control lane, -1: none */
	bool closing;               /* comm_close() runs */
	bool abort;                 /* close with RST */
	struct record close;        /* the CLOSE record of a failure */
	uint64_t last_lane_died_ns; /* when the last lane died; 0: a lane lives */
	int last_lane_error;
	int end_error; /* the lanes have ended: becomes the error when a request is outstanding */
	char end_text[COMM_END_TEXT_MAX];
	union {
		struct comm_send_state tx;
		struct comm_recv_state rx;
	};
};

struct comm_lane_options {
	uint8_t index;       /* in the comm, below COMM_LANES_MAX */
	int dev;             /* the device whose NIC carries it */
	bool backup;         /* used only while no other lane works */
	uint64_t sent_bytes; /* sent on the lane before: the preamble */
	uint64_t rtt_ns;     /* measured in the preamble; 0: it was not */
};

struct comm_options {
	struct plugin_ctx *ctx;
	enum comm_side side;
	uint32_t eager_bytes; /* the smaller value of both sides */
	bool no_credit;       /* ignored if multi_lane */
	bool multi_lane;      /* more than one lane may come */
	uint64_t comm_id;
	struct comm_lane_options lane; /* of the first lane */
	comm_lane_lost *lane_lost;     /* NULL: losses are not reported */
	uint64_t harp_bytes_max;       /* multi_lane, send: path_policy.h */
};

/* Takes ownership of the lane, except on error. The poller of lane->poller is held. -ENOMEM. */
int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt);
/* Adds a lane, or replaces the one of that index. Takes ownership, except on error. The poller of
 * lane->poller is held; never waits. -ENOTCONN: the comm is ending, -EINVAL: it is single-lane,
 * -ENOMEM. */
int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt);
/* Is a live lane of that index attached? Any thread. */
bool comm_has_lane(struct comm *comm, unsigned index);
/* Ends and frees the comm, which is off its ctx's list and gets no more lanes. abort: send RST. */
void comm_close(struct comm *comm, bool abort);
/* The application deregisters memory. The comm fails (-ECANCELED) if an outstanding request was
 * posted with that registration, or without one and overlaps its bytes. Returns when the memory is
 * no longer accessed. Any thread, no poller held; the comm is not being closed. */
void comm_cancel_memory(struct comm *comm, const void *memory, const void *base, size_t bytes);
int comm_post(struct comm *comm, void *data, size_t size, int tag, const void *memory,
	      struct request **out);
int comm_test(struct request *request, int *done, size_t *size);
/* Are requests outstanding? Called by the application thread, or when it posts none. */
bool comm_has_requests(const struct comm *comm);

/* Called by the control thread at intervals: advances lanes while the application does not poll.
 * Also reads the kernel lanes of a receiver that was not polled lately. Returns false if nothing
 * was in flight. */
bool comm_run_background(struct comm *comm, uint64_t now_ns);
/* Is there a buffered send that was reported done and is not delivered? False while requests are
 * outstanding. Any thread. */
bool comm_has_undelivered(struct comm *comm);
/* Writes one line that describes the lanes. Returns true if all are kernel lanes. */
bool comm_describe(struct comm *comm, char *buf, size_t len);

/* ---- events for NCCL's profiler, by the application thread ----------------------------------- */

struct comm_event {
	void *handle; /* the profiler's, stored by the caller; NULL: the profiler does not want the
			 event */
	struct harp_profiler_event data;
};
/* Called right after comm_post() returned the request. NULL: out of memory. */
struct comm_event *plugin_event_begin(struct request *request);
/* Called right after comm_test() reported the request done, or failed with this -errno. NULL: the
 * request has no event, or its event no handle. */
struct comm_event *plugin_event_end(struct request *request, int error);

/* ---- background.c ---------------------------------------------------------------------------- */

/* The control thread advances the comm from now on. Any thread. */
void background_begin(struct comm *comm);
/* When this returns, the control thread no longer uses the comm. No poller held. */
void background_end(struct comm *comm);
/* Takes a comm that is off its context's list and has no outstanding requests. The control thread
 * calls end() for it, in the order of closing except for comms with undelivered messages. Never
 * waits. */
void closing_take(struct comm *comm, void (*end)(struct comm *comm));
/* Returns when all closed comms have ended: at once, or up to 2 s after the close of a comm with
 * undelivered messages. Not called by the control thread; one caller at a time. */
void closing_finish(void);

#endif
