/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choice.h - which kinds of lane a message goes by: HARP's, the kernel's, or both.
 *
 * Pure: no clock, no locks; the same calls give the same answers. Its owner is the sending end of a
 * comm, which calls everything under comm->lock.
 */
#ifndef HARP_PLUGIN_CHOICE_H
#define HARP_PLUGIN_CHOICE_H

#include "lane.h"
#include "plugin.h"

#define CHOICE_CLASSES 21u /* of sizes: up to 64 B, up to 128 B ... up to 64 MiB and more */
#define CHOICE_CELLS (2 * CHOICE_CLASSES)
#define CHOICE_COSTS 12u          /* of a way: the last so many count */
#define CHOICE_BOTH_BYTES 131072u /* longer messages may go by both kinds at once */

enum choice_way { WAY_HARP, WAY_KERNEL, WAY_BOTH, CHOICE_WAYS }; /* mask of kinds, less one */

/* What one way took lately; ns, or the mean of a batch. */
struct choice_cost {
	uint32_t ns[CHOICE_COSTS];
	uint8_t count, next;
};

/* Messages of one size class, sent one at a time or in streams. */
struct choice_cell {
	struct choice_cost cost[CHOICE_WAYS];
	uint64_t batch_ns;
	uint8_t batch_count, batch_way;
	uint32_t head_ns; /* what the head of the last burst took, less for each end behind it */
	uint8_t way;      /* what it goes by */
	uint8_t home;     /* and would, were all kinds alive */
	uint8_t tried;    /* a bit for each way measured since a kind came back */
	bool used,
		own; /* a message was there; the way is of its own measuring, not a neighbour's */
	bool fresh;  /* its way was measured since the last probe */
	uint8_t probes;  /* since a kind came back, up to 255 */
	uint8_t rival;   /* the way probed last */
	uint8_t dropped; /* trials that were not waited for */
	uint8_t leans; /* towards that way: 1 + it, 0: towards none; it was better by less than the margin */
	uint8_t since_look;
	uint8_t rest;  /* messages that are not looked at: enough is known */
	uint32_t wait; /* messages until the next probe */
	uint32_t backoff;
	uint16_t since_probe; /* costs of the way in use since then */
	uint16_t alarm;       /* so many at least before its getting worse calls for a probe */
	uint32_t settled_ns;  /* what the way took when it was found the best */
};

/* Messages in a row sent by another way than the best known, to measure it; or by both, taking turns. */
struct choice_probe {
	bool active; /* until the last of them is done */
	bool turns;
	uint8_t cell, way;
	uint8_t slow;  /* costs far above those of the way in use */
	uint16_t left; /* still to be sent that way */
	uint16_t sent;
	uint16_t costs;  /* measured */
	uint16_t missed; /* messages since the last of it, while there are more to send */
	uint64_t last;   /* message */
	struct choice_cost used, rivals; /* turns: of the way in use and of the other, meanwhile */
};

struct choice_flight {
	uint8_t cell, class, way;
	bool counts;
	bool kept;  /* what choice_take() was told */
	bool alone; /* nothing was in flight, and what has come since shows no stream */
	bool doubt; /* one has come since */
	bool exact; /* what it takes is to be seen exactly */
	bool blind; /* its end says no more than that a socket has taken it */
};

struct choice_count {
	uint64_t messages[CHOICE_WAYS], bytes[CHOICE_WAYS];
};

struct choice {
	uint8_t kinds, seen, allowed; /* masks of enum lane_kind: alive, ever alive; the path's */
	uint8_t last_way;
	bool mute; /* the peer does not answer who asks for an ACK */
	bool news;
	bool learnt;     /* a verdict that choice_memory.c has not heard of */
	uint64_t heard;  /* of it, until then */
	uint16_t flying; /* messages taken and not done */
	uint16_t most,
		most_before; /* in flight besides a new one, since there was none; and the time before */
	uint8_t lone; /* messages that were seen to end before the next one came, since a stream was seen; up to CHOICE_LONE */
	uint8_t doubts; /* flights with a doubt since one was seen to end alone, or a stream; up to CHOICE_DOUBTS */
	uint8_t unseen; /* that began alone and of which nobody saw when they were delivered, in a row */
	uint32_t same; /* messages in a row by last_way */
	uint64_t random;
	uint64_t announce_ns, announce_gap_ns; /* not before; and then not for so long */
	uint64_t rtt_ns[2];                    /* of WAY_HARP, WAY_KERNEL; 0: not measured */
	uint32_t announced;                    /* sum of what was said last */
	uint8_t said[CHOICE_CELLS];            /* the way, and 1; 0: nothing */
	struct choice_probe probe;
	struct choice_flight flights[PLUGIN_REQUESTS_MAX]; /* message m in slot m % 32 */
	struct choice_cell cells[CHOICE_CELLS];            /* one at a time, then streams */
	struct choice_count counts[CHOICE_CLASSES];
};

void choice_init(struct choice *choice, enum plugin_path path, uint64_t seed);
/* Mask of the kinds that have a working lane now. */
void choice_kinds_alive(struct choice *choice, unsigned kinds);
/* A preamble's round trip on a lane of that kind: what is known before the first message. */
void choice_rtt(struct choice *choice, enum lane_kind kind, uint64_t rtt_ns);
/*
 * A new message, in order: the kinds that may carry it, those alive at most. 0: none is alive that the path allows.
 * kept: unless choice_is_exact() says so it is done when its lane's TCP has delivered it, by the kernel when the socket has
 * taken it.
 */
unsigned choice_take(struct choice *choice, uint64_t message, uint64_t size, bool kept);
/* Would this message, taken now, show that the one in flight, which began alone, was of a stream? Then it is worth while to see first
 * whether that one is done by now. */
bool choice_would_join(const struct choice *choice, uint64_t message, bool kept);
/* Of a message that nothing was in flight besides, or one small one that may have ended: is it to be done when the peer has
 * it, whichever way it goes? Not any more once others show that it was one of a stream. */
bool choice_is_exact(const struct choice *choice, uint64_t message);
/* It is done, in order; it went by `kinds`. service_ns: done(m) - max(posted(m), done(m-1)). before: the next one, the last, has
 * just been posted, and nobody had looked whether this one is done. */
void choice_done(struct choice *choice, uint64_t message, uint64_t size, unsigned kinds,
		 uint64_t service_ns, bool before);
/* No message comes any more: a trial under way is judged by what it has. */
void choice_end(struct choice *choice);
/* Is there something to announce? One comparison, for each turn. */
static inline bool choice_has_news(const struct choice *choice, uint64_t now_ns)
{
	return choice->news && now_ns >= choice->announce_ns;
}
/* One line for people on what goes how, and the numbers behind it. */
void choice_words(const struct choice *choice, char *text, size_t len);
/* The same, and what has changed since the last time. False: nothing new. */
bool choice_announce(struct choice *choice, uint64_t now_ns, char *text, size_t len);
/* What went how; empty: nothing. "messages sent, by size: 64 B: 9 HARP, 1 kernel; ..." */
void choice_report(const struct choice *choice, char *text, size_t len);
unsigned choice_class(uint64_t size);

/*
 * choice_memory.c, process-wide, any thread: what comms to a host know of it.
 *
 * _join: a comm begins with what is known. _hear: before a message, in case its size is new to the comm and another one has
 * learnt it since. _save: the comm has learnt something. _tell: it has news; true: text is to be said to people, as no
 * comm to that host has said it. _leave: it ends; text is what went how by all comms to that host, when it is the last of
 * them, else empty.
 */
void choice_join(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns);
void choice_hear(struct choice *choice, uint64_t size, int dev, const struct harp_addr *remote,
		 uint64_t now_ns);
void choice_save(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns);
bool choice_tell(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns,
		 char *text, size_t len);
void choice_leave(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns,
		  char *text, size_t len);

/* For choice_memory.c and choice_text.c. */
uint32_t choice_typical(const struct choice_cost *cost); /* lower median, 0: none */
uint32_t choice_low(const struct choice_cost *cost);     /* two in three are above, 0: none */
bool choice_allows(const struct choice *choice, unsigned cell, unsigned way);
void choice_push(struct choice_cost *cost, uint32_t ns);

#endif
