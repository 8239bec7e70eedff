/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_page.h - the statistics page: shared memory in which a process publishes statistics.
 *
 * A page belongs to one stack, or to one job: a process with NCCL's plugin, with or without stacks.
 * It is a memfd named "harp-page" (its link in /proc/PID/fd is HARP_PAGE_LINK), sealed against
 * growing, shrinking and further seals. harpd creates the page of a leased stack; a stand-alone
 * process creates its own, as every job does. Only the owner writes it. Readers may come and go
 * without the owner's knowledge and cannot disturb it.
 *
 * In a stack's page the parts HARP_PAGE_JOB to _LANES are empty; in a job's page
 * HARP_PAGE_COUNTERS, _HISTOGRAMS, _FLOWS and _XSTATS are, and its identity has no interface. A
 * page with items in HARP_PAGE_JOB is a job's.
 *
 * Layout. Integers are in the host's byte order. At offset 0 is struct harp_page_header. Its table
 * has the position of each part: at `offset` (a multiple of 64, within the page) a struct
 * harp_page_lock, then `count` items at intervals of `stride` bytes. A page of zeros (magic 0) has
 * not been published yet. Strings shorter than their field are NUL-terminated.
 *
 * Compatibility. A reader refuses another `version`. Within a version parts, items and fields are
 * only appended. A reader ignores parts and items it does not know, truncates longer items, and
 * extends shorter ones with 0.
 *
 * The seqlock. `sequence` is odd while the owner writes the protected data, and has increased by 2
 * afterwards:
 *
 *	owner					reader
 *	sequence = s | 1			s = sequence (acquire); odd: retry
 *	release fence				copy
 *	write					acquire fence
 *	sequence = (s | 1) + 1 (release)	sequence still s: valid; else retry
 *
 * A part's lock protects all its items; items of HARP_PAGE_FLOWS, _COMMS and _LANES each have their
 * own lock. The numbers of HARP_PAGE_JOB and _RAILS are written one by one: each is consistent, but
 * not the set. HARP_PAGE_XSTATS may be written by another thread than the stack's.
 *
 * Trust. A job's page is unverified input. A reader checks every offset and size against the file's
 * size, limits its retries, and sanitizes text. harp_page_check() and harp_page_read() do so; they
 * use pread(), because a mapping of another process's memory could crash the reader.
 *
 * Units: _ns nanoseconds of the owner's clock (CLOCK_MONOTONIC if the stack is an instance),
 * _bytes.
 */
#ifndef HARP_PAGE_H
#define HARP_PAGE_H

#include "harp.h"
#include "harp_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HARP_PAGE_NAME "harp-page"
#define HARP_PAGE_LINK "/memfd:harp-page (deleted)" /* readlink(/proc/PID/fd/N) */
#define HARP_PAGE_MAGIC 0x3147415050524148ull       /* "HARPPAG1" */
#define HARP_PAGE_VERSION 2u
#define HARP_PAGE_BYTES_MAX (32u << 20) /* a reader refuses more */
#define HARP_PAGE_FLOWS_MAX 65536u
#define HARP_PAGE_FLOWS_DEFAULT 1024u
#define HARP_PAGE_PERIOD_NS 1000000ull /* minimum interval of the owner's writes */
/* Maximum age of counters while the stack sleeps. */
#define HARP_PAGE_LATE_NS 100000000ull

enum harp_page_part {
	HARP_PAGE_IDENTITY = 0,   /* 1 struct harp_page_identity, written once */
	HARP_PAGE_STATUS = 1,     /* 1 struct harp_page_status */
	HARP_PAGE_COUNTERS = 2,   /* uint64_t, in the order of harp_stats.h */
	HARP_PAGE_HISTOGRAMS = 3, /* struct harp_page_histogram, in the order of HARP_HISTOGRAMS */
	HARP_PAGE_FLOWS = 4,      /* struct harp_page_flow; the owner chooses the number */
	HARP_PAGE_JOB = 5,        /* uint64_t, in the order of HARP_JOB_COUNTERS */
	HARP_PAGE_RAILS = 6,      /* struct harp_page_rail */
	HARP_PAGE_COMMS = 7,      /* struct harp_page_comm */
	HARP_PAGE_LANES = 8,      /* struct harp_page_lane; the owner chooses the number */
	/* struct harp_page_xstat; the list ends at the first without a name */
	HARP_PAGE_XSTATS = 9,
};
#define HARP_PAGE_PARTS 10u

struct harp_page_place {
	uint32_t offset; /* of the part's struct harp_page_lock */
	uint32_t stride; /* bytes from one item to the next */
	uint32_t count;  /* items */
	uint32_t reserved;
};

struct harp_page_header {
	uint64_t magic; /* written last; 0: not published yet */
	uint32_t version;
	uint32_t part_count;
	uint64_t page_bytes; /* in use; at most the file's size */
	struct harp_page_place parts[HARP_PAGE_PARTS];
};

struct harp_page_lock {
	uint64_t sequence;
	uint64_t written_ns; /* time of the owner's last write to the part */
	uint64_t reserved[6];
};

/* Identity of the publisher, passed to harp_stack_publish_to(). */
struct harp_page_identity {
	uint32_t size;          /* sizeof(struct harp_page_identity), set by the caller */
	uint32_t pid;           /* in the owner's PID namespace */
	uint32_t queue;         /* of the NIC */
	uint32_t instance;      /* index of the instance in the process, from 0 */
	uint64_t lease_id;      /* harpd's; 0: stand-alone */
	uint64_t netns;         /* inode of the NIC's network namespace; 0: not known */
	uint64_t start_wall_ns; /* CLOCK_REALTIME */
	char ifname[16];
	char label[64];     /* for display, such as "train.py rank 3" */
	char describe[256]; /* harp_instance_describe() */
	char library[16];   /* such as "0.1.0"; the library writes it */
};

struct harp_page_status {
	uint64_t published_ns; /* the stack's clock at the last publication */
	uint64_t publications;
	uint64_t flows_open; /* connections in any state but CLOSED; of a job: lanes */
	/* upper bound of those that have no record because the page is too small */
	uint64_t flows_hidden;
	uint32_t ended; /* 1: the owner has ended, and the values are final */
	uint32_t reserved;
	char note[160]; /* the owner's last harp_stack_publish_note() */
	/* Of a job. */
	uint64_t comms_open;
	uint64_t comms_hidden; /* those without a record */
};

/* A counter of the NIC's driver, by the driver's name (DPDK's xstats), for the whole port. The
 * instance on queue 0 publishes it once a second. Names are arbitrary and may be repeated. */
struct harp_page_xstat {
	char name[64];
	uint64_t value;
};
#define HARP_PAGE_XSTATS_MAX 512u

/* ------------------------------------------------------------------------------------------------
 * Histograms. X(name, help): all of durations in nanoseconds. Append only.
 *
 * Buckets are logarithmic, four to an octave: bucket 0 counts values up to 128 ns; bucket i
 * (1..126) those above harp_histogram_upper_ns(i - 1) up to harp_histogram_upper_ns(i), included;
 * bucket 127 all others.
 */
#define HARP_HISTOGRAMS(X)                                                                         \
	X(tcp_rtt, "round-trip times that TCP measured, of acknowledged segments")                 \
	X(poll_gap, "time between polls of the stack, including sleep")                            \
	X(message_latency, "time from a message's request to its completion")

#define HARP_HISTOGRAM_ENUM(name, help) HARP_HISTOGRAM_##name,
enum harp_histogram { HARP_HISTOGRAMS(HARP_HISTOGRAM_ENUM) HARP_HISTOGRAM_COUNT };
#undef HARP_HISTOGRAM_ENUM

#define HARP_HISTOGRAM_BUCKETS 128u
#define HARP_HISTOGRAM_FIRST_NS 128u

struct harp_page_histogram {
	uint64_t count;  /* values seen: the sum of the buckets */
	uint64_t sum_ns; /* of the values */
	uint64_t bucket[HARP_HISTOGRAM_BUCKETS];
};

/* ------------------------------------------------------------------------------------------------
 * Flows. X(name, help): numbers of one connection, as struct harp_tcp_info has them. Append only.
 */
#define HARP_FLOW_VALUES(X)                                                                        \
	X(state, "enum harp_tcp_state; 0: the record is empty")                                    \
	X(serial, "connections of this stack when this one was opened: distinguishes a reused "    \
		  "record from the same flow")                                                     \
	X(updated_ns, "when the record was written; the stack's clock")                            \
	X(congestion, "enum harp_congestion in force")                                             \
	X(snd_mss_bytes, "largest payload of a segment sent")                                      \
	X(srtt_ns, "smoothed round-trip time; 0: no sample yet")                                   \
	X(rttvar_ns, "its variation")                                                              \
	X(rtt_ns_min, "smallest round-trip time measured; 0: none")                                \
	X(rto_ns, "retransmission timeout, including backoff")                                     \
	X(cwnd_bytes, "congestion window")                                                         \
	X(ssthresh_bytes, "slow start threshold")                                                  \
	X(snd_wnd_bytes, "the peer's receive window")                                              \
	X(rcv_wnd_bytes, "our receive window")                                                     \
	X(in_flight_bytes, "sent and not acknowledged")                                            \
	X(unsent_bytes, "accepted from the application and not sent")                              \
	X(unread_bytes, "received in order and not read by the application")                       \
	X(sent_bytes, "payload sent, without retransmissions")                                     \
	X(acked_bytes, "payload that the peer acknowledged")                                       \
	X(received_bytes, "payload received in order")                                             \
	X(retransmits, "segments retransmitted")                                                   \
	X(lost_segs, "segments that counted as lost")                                              \
	X(rto_count, "retransmission timeouts")                                                    \
	X(pacing_bytes_per_s, "pacing rate; 0: not paced")                                         \
	X(last_rcv_ns, "when the last segment was received; the stack's clock")

#define HARP_FLOW_LABEL_BYTES 64u

#define HARP_FLOW_FIELD(name, help) uint64_t name;
struct harp_page_flow {
	uint64_t sequence;                       /* the record's seqlock */
	uint8_t local_addr[16], remote_addr[16]; /* as struct harp_addr */
	uint16_t local_port, remote_port;
	uint32_t scope_id;
	char label[HARP_FLOW_LABEL_BYTES]; /* harp_conn_set_label() */
	HARP_FLOW_VALUES(HARP_FLOW_FIELD)
};
#undef HARP_FLOW_FIELD

/* ------------------------------------------------------------------------------------------------
 * A job: its comms, their lanes, and the NICs that they use. A comm is one NCCL connection, one
 * direction.
 *
 * Counters of the process since its plugin's first init. X(name, help). Append only. Values per NIC
 * (HARP_RAIL_VALUES) are not repeated here.
 */
#define HARP_JOB_COUNTERS(X)                                                                       \
	X(comms_opened, "comms established")                                                       \
	X(comms_failed, "comms that ended with an error")                                          \
	X(lanes_died_reset, "lanes lost while their comm was open: reset by the peer or the path") \
	X(lanes_died_timeout, "lanes lost: no acknowledgment for too long")                        \
	X(lanes_died_closed, "lanes lost: closed by the peer without CLOSE")                       \
	X(lanes_died_unreachable, "lanes lost: no route to the peer")                              \
	X(lanes_died_interface, "lanes lost: this host's interface is removed or down")            \
	X(lanes_died_protocol, "lanes lost: received data was damaged")                            \
	X(lanes_died_other, "lanes lost: another error")                                           \
	X(lanes_replaced, "lanes established to replace a lost one")                               \
	X(lanes_stalled, "times that a lane made no progress and other lanes took its chunks")     \
	X(messages_harp, "messages sent by HARP TCP alone")                                        \
	X(messages_kernel, "messages sent by kernel TCP alone")                                    \
	X(messages_mixed, "messages sent over lanes of both kinds")                                \
	X(rails_down, "times that a NIC in use had no working lane left")                          \
	X(rails_up, "times that such a NIC had a working lane again")                              \
	X(connects_failed, "further lanes that could not be established, per attempt")             \
	X(unauthenticated_peers, "connections to our listeners that failed authentication")        \
	X(ports_refused, "DPDK ports that could not be used at the start: the next best path is")

#define HARP_JOB_ENUM(name, help) HARP_JOB_##name,
enum harp_job_counter { HARP_JOB_COUNTERS(HARP_JOB_ENUM) HARP_JOB_COUNT };
#undef HARP_JOB_ENUM

/* HARP's TCP on an AF_XDP queue, kernel TCP, HARP's TCP on a DPDK port. */
enum harp_page_kind { HARP_PAGE_KIND_HARP = 1, HARP_PAGE_KIND_KERNEL = 2, HARP_PAGE_KIND_DPDK = 4 };
enum harp_page_side { HARP_PAGE_SIDE_SEND = 1, HARP_PAGE_SIDE_RECEIVE = 2 };

/* Sums of lanes of one kind over one NIC, for all comms, including closed ones. X(name, help).
 * Append only. */
#define HARP_RAIL_VALUES(X)                                                                        \
	X(kind, "enum harp_page_kind; 0: the record is empty")                                     \
	X(down, "1: no comm that uses this NIC has a working lane over it")                        \
	X(lanes_open, "lanes that are open now")                                                   \
	X(lanes_opened, "lanes established")                                                       \
	X(lanes_died, "lanes lost while their comm was open")                                      \
	X(lanes_rehashed, "lanes replaced to use another source port")                             \
	X(sent_bytes, "bytes sent on its lanes, including headers and control records")            \
	X(received_bytes, "bytes received on its lanes, likewise")                                 \
	X(payload_bytes, "bytes of messages among these, sent and received")                       \
	X(chunks_sent, "chunks sent on its lanes")                                                 \
	X(chunks_moved_away, "chunks moved from its lanes to others")                              \
	X(chunks_moved_here, "chunks moved from other lanes to its lanes")                         \
	X(chunks_duplicate, "duplicate chunks received on its lanes")                              \
	X(retransmits, "segments that TCP retransmitted")

/* Numbers of a comm. */
#define HARP_COMM_VALUES(X)                                                                        \
	X(state, "enum harp_page_comm_state; 0: the record is empty")                              \
	X(serial, "comms of this process when this one was opened")                                \
	X(updated_ns, "when the record was written; CLOCK_MONOTONIC")                              \
	X(opened_ns, "when the comm was established; CLOCK_MONOTONIC")                             \
	X(comm_id, "its number on the wire: the same at both ends")                                \
	X(side, "enum harp_page_side")                                                             \
	X(lanes_open, "lanes that it has")                                                         \
	X(lanes_died, "lanes that it lost")                                                        \
	X(lanes_replaced, "lanes established to replace lost ones")                                \
	X(requests, "requests completed")                                                          \
	X(bytes, "bytes of these requests' messages")                                              \
	X(messages_harp, "messages sent by HARP TCP alone")                                        \
	X(messages_kernel, "messages sent by kernel TCP alone")                                    \
	X(messages_mixed, "messages sent over lanes of both kinds")                                \
	X(fallback, "enum harp_page_fallback: why it began on a kernel lane")

/* A lane's position in its comm. When a lane is lost, another one may replace it, and the counters
 * continue. */
#define HARP_LANE_VALUES(X)                                                                        \
	X(state, "enum harp_page_lane_state; 0: the record is empty")                              \
	X(serial, "lane positions of this process when this one was created")                      \
	X(updated_ns, "when the record was written; CLOCK_MONOTONIC")                              \
	X(opened_ns, "when the lane was established; CLOCK_MONOTONIC")                             \
	X(comm, "serial of its comm")                                                              \
	X(index, "its number in the comm")                                                         \
	X(kind, "enum harp_page_kind")                                                             \
	X(encrypted, "1: everything on it is encrypted")                                           \
	X(backup, "1: used only while other lanes fail")                                           \
	X(lanes, "lanes that have had this position")                                              \
	X(end, "enum harp_page_lane_end of the last one that was lost")                            \
	X(sent_bytes, "bytes sent on it, including headers and control records")                   \
	X(received_bytes, "bytes received on it, likewise")                                        \
	X(payload_bytes, "bytes of messages that it carried, in the comm's direction")             \
	X(chunks_sent, "chunks sent on it")                                                        \
	X(chunks_moved_away, "chunks moved from it to other lanes")                                \
	X(chunks_moved_here, "chunks moved from other lanes to it")                                \
	X(chunks_duplicate, "duplicate chunks received on it")                                     \
	X(rehashes, "times that it was replaced to use another source port")                       \
	X(stalls, "times that it made no progress and other lanes took its chunks")                \
	X(tcp_ns, "when TCP was queried for the following; CLOCK_MONOTONIC; 0: never")             \
	X(srtt_ns, "smoothed round-trip time; 0: no sample yet")                                   \
	X(in_flight_bytes, "sent and not acknowledged")                                            \
	X(unsent_bytes, "accepted and not sent")                                                   \
	X(retransmits, "segments that TCP retransmitted")

enum harp_page_comm_state { HARP_PAGE_COMM_OPEN = 1, HARP_PAGE_COMM_FAILED = 2 };
enum harp_page_lane_state {
	HARP_PAGE_LANE_OPEN = 1,
	HARP_PAGE_LANE_STALLED = 2, /* no progress: other lanes take over its chunks */
	HARP_PAGE_LANE_DEAD = 3,
};

/* Why a lane was lost. X(name). Append only. */
#define HARP_LANE_ENDS(X)                                                                          \
	X(reset)                                                                                   \
	X(timeout)                                                                                 \
	X(closed)                                                                                  \
	X(unreachable)                                                                             \
	X(interface)                                                                               \
	X(protocol)                                                                                \
	X(other)
#define HARP_LANE_END_ENUM(name) HARP_PAGE_LANE_END_##name,
enum harp_page_lane_end { HARP_PAGE_LANE_END_none, HARP_LANE_ENDS(HARP_LANE_END_ENUM) };
#undef HARP_LANE_END_ENUM

/* Why a comm began on a kernel lane. X(name, help). Append only. */
#define HARP_FALLBACKS(X)                                                                          \
	X(setting, "HARP_PATH is kernel")                                                          \
	X(default_route, "the NIC carries the default route, and no setting names it")             \
	X(loopback, "the loopback interface has no queue")                                         \
	X(generic_copy, "AF_XDP has generic copy mode only, which is slower than kernel TCP here") \
	X(policy, "the path policy prefers kernel TCP for messages of all sizes")                  \
	X(permission, "harpd leases no queue to this user, and the process lacks capabilities")    \
	X(busy, "all queues of the NIC, or of harpd, are in use")                                  \
	X(unavailable, "the queue or port cannot be opened; the job's log has the reason")         \
	X(peer, "this host has HARP lanes; the peer has none, or is not reachable over this NIC")
#define HARP_FALLBACK_ENUM(name, help) HARP_PAGE_FALLBACK_##name,
enum harp_page_fallback { HARP_PAGE_FALLBACK_none, HARP_FALLBACKS(HARP_FALLBACK_ENUM) };
#undef HARP_FALLBACK_ENUM

#define HARP_PAGE_ENUM_RAIL(name, help) HARP_RAIL_##name,
enum harp_rail_value { HARP_RAIL_VALUES(HARP_PAGE_ENUM_RAIL) HARP_RAIL_COUNT };
#define HARP_PAGE_ENUM_COMM(name, help) HARP_COMM_##name,
enum harp_comm_value { HARP_COMM_VALUES(HARP_PAGE_ENUM_COMM) HARP_COMM_COUNT };
#define HARP_PAGE_ENUM_LANE(name, help) HARP_LANE_##name,
enum harp_lane_value { HARP_LANE_VALUES(HARP_PAGE_ENUM_LANE) HARP_LANE_COUNT };
#undef HARP_PAGE_ENUM_RAIL
#undef HARP_PAGE_ENUM_COMM
#undef HARP_PAGE_ENUM_LANE

#define HARP_PAGE_RAILS_MAX 64u

struct harp_page_rail {
	char ifname[16];
	struct harp_page_histogram srtt; /* of its lanes, sampled while they carry data */
	uint64_t value[HARP_RAIL_COUNT];
};

struct harp_page_comm {
	uint64_t sequence;       /* the record's seqlock */
	uint8_t remote_addr[16]; /* of the peer, from its first lane; as struct harp_addr */
	uint16_t remote_port;
	uint16_t reserved;
	uint32_t scope_id;
	char ifname[16]; /* the NIC that NCCL requested */
	uint64_t value[HARP_COMM_COUNT];
};

struct harp_page_lane {
	uint64_t sequence;                       /* the record's seqlock */
	uint8_t local_addr[16], remote_addr[16]; /* as struct harp_addr */
	uint16_t local_port, remote_port;
	uint32_t scope_id;
	char ifname[16]; /* of its NIC */
	uint64_t value[HARP_LANE_COUNT];
};

/* ------------------------------------------------------------------------------------------------
 * The owner's side: by the thread that may poll the stack.
 */
/* Bytes of a page for this number of flows; 0: HARP_PAGE_FLOWS_DEFAULT; at most
 * HARP_PAGE_FLOWS_MAX. Only existing flows use memory. */
HARP_API size_t harp_page_bytes(uint32_t flows);
/* Creates a page's memory: a sealed memfd of zeros, close-on-exec, which the caller closes. -EINVAL
 * too many flows, -EMFILE, -ENFILE, -ENOMEM. */
HARP_API int harp_page_create_fd(uint32_t flows, int *fd);
/*
 * From now on harp_stack_poll() writes the stack's statistics to page (bytes long, aligned to 64,
 * zeros or an earlier owner's), at most once per HARP_PAGE_PERIOD_NS of its clock, without system
 * calls or locks. The page must stay mapped until harp_stack_destroy(), which writes final values,
 * or until a call with page NULL, which does so, too. Space after the fixed parts is for flows.
 * -EINVAL: unaligned, too small for the fixed parts, or an identity of a wrong size.
 */
HARP_API int harp_stack_publish_to(struct harp_stack *stack, void *page, size_t bytes,
				   const struct harp_page_identity *identity);
/* Sets status.note to one line ("the interface is down"), or "" for none. An instance sets it for
 * its interface. */
HARP_API void harp_stack_publish_note(struct harp_stack *stack, const char *text);
/*
 * Publishes the NIC driver's counters, replacing the previous ones; at most HARP_PAGE_XSTATS_MAX.
 * One thread at a time, not necessarily the stack's. Call between harp_stack_publish_to() and the
 * end of publishing.
 */
HARP_API void harp_stack_publish_xstats(struct harp_stack *stack,
					const struct harp_page_xstat *xstats, unsigned count,
					uint64_t now_ns);
/* Counts a value. Does nothing without a page. */
HARP_API void harp_stack_observe(struct harp_stack *stack, enum harp_histogram histogram,
				 uint64_t value_ns);
/* Sets the purpose of the connection, shown in its record, such as "send comm 3 -> rank 1".
 * Truncated to 63 bytes. */
HARP_API void harp_conn_set_label(struct harp_conn *conn, const char *label);

/* ------------------------------------------------------------------------------------------------
 * The owner's side of a job's page.
 */
struct harp_page_job {
	struct harp_page_status *status;
	uint64_t *counters;           /* HARP_JOB_COUNT */
	struct harp_page_rail *rails; /* HARP_PAGE_RAILS_MAX */
	struct harp_page_comm *comms;
	struct harp_page_lane *lanes;
	uint32_t comm_room, lane_room;
	uint64_t *status_sequence; /* the seqlock of *status */
};
/* Bytes of a job's page for this number of lanes, at most HARP_PAGE_FLOWS_MAX; 0: none. */
HARP_API size_t harp_page_job_bytes(uint32_t lanes);
/* As harp_page_create_fd(). */
HARP_API int harp_page_create_job_fd(uint32_t lanes, int *fd);
/* Writes header and identity to a new page (harp_page_job_bytes(lanes) long, zeros, aligned to 64),
 * which makes it valid for readers. out: positions of its parts. -EINVAL: too many lanes,
 * unaligned; identity of a wrong size. */
HARP_API int harp_page_job_begin(void *page, uint32_t lanes,
				 const struct harp_page_identity *identity,
				 struct harp_page_job *out);
/* The owner's side of a seqlock: encloses writes of the protected data. One writer at a time. */
HARP_API void harp_page_write_begin(uint64_t *sequence);
HARP_API void harp_page_write_end(uint64_t *sequence);

/* ------------------------------------------------------------------------------------------------
 * The reader's side: any process that may open the memfd.
 */
/*
 * Checks that harp_page_read() can read this descriptor. 0; -ENODATA not published yet; -EPERM
 * wrong seals; -EFBIG, -EMSGSIZE wrong size; -EPROTO not a page, or an invalid table;
 * -EPROTONOSUPPORT another version. why (may be NULL) gets one line.
 */
HARP_API int harp_page_check(int fd, char *why, size_t why_len);
/*
 * Copies items first.. of a part to items, at intervals of item_bytes. Shorter items are extended
 * with zeros, longer ones truncated. A record whose lock is held persistently is returned as zeros,
 * that is, empty. Returns the number of items (at most max; 0 after the last, and for a part that
 * an older owner does not have). -EBUSY: the owner writes persistently, or died during a write; and
 * the errors of harp_page_check(), whose checks are repeated, except for seals.
 */
HARP_API int harp_page_read(int fd, enum harp_page_part part, uint32_t first, void *items,
			    uint32_t item_bytes, uint32_t max);

/* Names and helps of the lists above; NULL after the last. */
HARP_API const char *harp_histogram_name(unsigned index);
HARP_API const char *harp_histogram_help(unsigned index);
/* The largest value in the bucket; UINT64_MAX for the last bucket and beyond. */
HARP_API uint64_t harp_histogram_upper_ns(unsigned bucket);
/* The bucket of a value. */
HARP_API unsigned harp_histogram_bucket(uint64_t value_ns);
HARP_API const char *harp_flow_value_name(unsigned index);
HARP_API const char *harp_flow_value_help(unsigned index);
HARP_API const char *harp_job_counter_name(unsigned index);
HARP_API const char *harp_job_counter_help(unsigned index);
HARP_API const char *harp_rail_value_name(unsigned index);
HARP_API const char *harp_rail_value_help(unsigned index);
HARP_API const char *harp_comm_value_name(unsigned index);
HARP_API const char *harp_comm_value_help(unsigned index);
HARP_API const char *harp_lane_value_name(unsigned index);
HARP_API const char *harp_lane_value_help(unsigned index);
/* Name of an enum harp_page_lane_end, such as "reset"; NULL for none, and after the last. */
HARP_API const char *harp_lane_end_name(unsigned end);
/* Name and help of an enum harp_page_fallback, such as "default_route". */
HARP_API const char *harp_fallback_name(unsigned fallback);
HARP_API const char *harp_fallback_help(unsigned fallback);

#ifdef __cplusplus
}
#endif

#endif
