/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - one end of a connection: requests on one side, records on a lane on the other.
 *
 * A struct comm is touched by two parties. The application's thread (one at a time, NCCL contract
 * section 3.1) fills request slots and reads their state; everything below "baton" belongs to who holds
 * the baton of comm->driver. Memory order: the application publishes with `posted`, the baton's holder
 * with each request's `state` and with `error`.
 */
#ifndef HARP_PLUGIN_COMM_H
#define HARP_PLUGIN_COMM_H

#include "lane.h"
#include "plugin.h"
#include "record.h"

#define COMM_LANES_MAX 32u
#define COMM_REVIVE_NS 500000000ull /* the connector dials a comm's last lane again at once */
#define COMM_EAGER_BYTES_MIN 4096u
#define COMM_EAGER_MESSAGES 256u /* begun beyond the credits, at most */
#define COMM_BULK_BYTES 32768u   /* larger messages put the receiver in bulk mode */
#define COMM_CREDIT_MESSAGES 64u /* received since the last CREDIT: tell again */

enum comm_side { COMM_SEND, COMM_RECV };

enum request_state {
	REQUEST_FREE,   /* the application's */
	REQUEST_POSTED, /* the baton holder's */
	REQUEST_DONE,   /* the application's again */
};

struct request {
	_Alignas(64) struct comm *comm;
	atomic_int state; /* POSTED: published by comm->posted. DONE: release / acquire in test */
	int tag;
	uint8_t *data;
	size_t size;        /* posted */
	size_t size_done;   /* of the message, when done */
	uint64_t posted_ns; /* the clock at comm_post() */
	uint64_t end_bytes; /* send: stream position behind it */
};

/* A record on its way out. */
struct comm_out {
	uint8_t header[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX]; /* and a CREDIT's payload */
	size_t header_bytes, header_sent;
	const uint8_t *payload; /* in the request's memory */
	size_t payload_left;
};

struct comm_send_state {
	uint64_t current;        /* message being sent, = messages sent completely */
	uint64_t offset;         /* of it: bytes put into records */
	uint64_t granted;        /* receives posted by the peer, as told */
	uint64_t data_bytes;     /* of DATA records begun, headers included */
	uint64_t credited_bytes; /* data_bytes at the end of message granted-1, once sent */
	uint64_t end_ring[COMM_EAGER_MESSAGES]; /* data_bytes behind each message not yet granted */
	uint64_t looked_ns;                     /* last time the lane was read */
};

struct comm_recv_state {
	uint64_t current; /* message being received, = messages received completely */
	uint64_t offset;  /* of it */
	uint64_t total;   /* of it, once its first record is here */
	bool in_message;  /* a first record is here */
	bool bulk;        /* the last message was large */
	uint64_t told;    /* receives told to the peer */
	uint64_t bytes_since_told, messages_since_told;
	uint64_t payload_left; /* of the present DATA record */
};

struct comm {
	/* Application. */
	enum comm_side side;
	struct driver *driver; /* never changes */
	uint64_t app_posted;
	atomic_uint_fast64_t posted; /* Writer: application, release. Reader: baton, acquire */
	atomic_int error;            /* Writer: baton, release. Reader: application, acquire */
	struct plugin_ctx *ctx;
	struct comm *next, **pprev;   /* in ctx's list, under its lock */
	struct registry_entry *entry; /* registry.c's; NULL: no further lanes are let in */
	struct work work;             /* run: comm_advance */
	struct work close_work;
	struct request requests[PLUGIN_REQUESTS_MAX]; /* message m is in slot m % 32 */

	/* Baton. */
	_Alignas(64) struct lane *lane; /* NULL once closed */
	uint64_t completed;             /* requests done */
	uint64_t now_ns;                /* of the present turn */
	uint64_t sent_bytes; /* of the preamble: where our records begin in the lane's count */
	uint32_t eager_bytes;
	bool no_credit; /* the sender wants none */
	bool watching;
	bool lane_polled; /* a kernel lane: nobody notifies */
	bool abort;       /* close: whatever the state */
	bool send_broken; /* the lane takes nothing more */
	int end_error; /* the lane or the peer has ended; an error once somebody wants something */
	char end_text[96];
	uint64_t in_head_bytes; /* of the header being read */
	uint8_t in_head[RECORD_HEADER_BYTES + 8 * RECORD_CREDITS_MAX];
	struct comm_out out;
	union {
		struct comm_send_state tx;
		struct comm_recv_state rx;
	};
	struct driver own_driver;  /* of a kernel lane */
	uint64_t silence_asked_ns; /* kernel lane: when it was last asked */
	bool silence_warned;
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
/* One line for people: by which lanes. */
void comm_describe(struct comm *comm, char *buf, size_t len);
/* The kernel's lanes alone. */
bool comm_is_polled(struct comm *comm);
/* Ends and frees; the caller has taken it off its ctx's list. abort: RST in any case. */
void comm_close(struct comm *comm, bool abort);
/* As comm_close(comm, true) by who already holds the baton and knows that no work is queued. */
void comm_drop(struct comm *comm);
int comm_post(struct comm *comm, void *data, size_t size, int tag, struct request **out);
int comm_test(struct request *request, int *done, size_t *size);

/* ---- for comm_send.c and comm_recv.c; baton held ---------------------------------------------- */
void comm_send_advance(struct comm *comm, uint64_t now_ns);
void comm_recv_advance(struct comm *comm, uint64_t now_ns);
static inline struct request *comm_request(struct comm *comm, uint64_t message)
{
	return &comm->requests[message % PLUGIN_REQUESTS_MAX];
}
void comm_complete(struct comm *comm, size_t size);
/* Pushes comm->out. 1: nothing is left to push, 0: the lane is full, or the error. */
int comm_out_push(struct comm *comm);
void comm_out_begin(struct comm *comm, const struct record *record);
/* Reads the header of a record, and a CREDIT's payload behind it. 1, 0 (more is to come), or the
 * error, which has been noted by comm_end() or comm_fail_protocol(). */
int comm_read_record(struct comm *comm, struct record *record);
/* Sticky failure with one WARN; tells the peer by CLOSE where the stream allows it. */
void comm_fail(struct comm *comm, int error, enum close_reason reason, const struct record *detail,
	       const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void comm_fail_protocol(struct comm *comm, const char *what);
/* The stream is over: an error as soon as a request is or becomes outstanding. */
void comm_end(struct comm *comm, int error, const char *text);
/* The same, in the words of a lane that died of error. */
void comm_end_by_error(struct comm *comm, int error);
void comm_end_by_record(struct comm *comm, const struct record *close);

#endif
