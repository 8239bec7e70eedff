/* SPDX-License-Identifier: Apache-2.0 */
/* comm_choice.c - a sender of several lanes asks choice.c which kinds take a message, and tells what it took. */
#include <errno.h>
#include <stdlib.h>

#include "choice.h"
#include "comm_impl.h"

int comm_choice_new(struct comm *comm, int dev)
{
	struct choice *choice = malloc(sizeof(*choice));

	if (!choice)
		return -ENOMEM;
	choice_init(choice, plugin_config()->path, comm->comm_id);
	choice->mute = !comm->several->asks;
	choice_join(choice, dev, &comm->remote.addr, driver_clock_ns());
	comm->several->choice = choice;
	comm->several->choice_dev = dev;
	return 0;
}

void comm_choice_free(struct comm *comm)
{
	struct choice *choice = comm->several->choice;
	char text[768], peer[HARP_ADDR_TEXT_MAX];

	if (!choice)
		return;
	choice_leave(choice, comm->several->choice_dev, &comm->remote.addr, driver_clock_ns(), text,
		     sizeof(text));
	if (*text)
		INFO("to %s: %s", harp_addr_format(&comm->remote.addr, peer), text);
	free(choice);
}

void comm_choice_lanes(struct comm *comm, const struct comm_lane *l, uint64_t rtt_ns)
{
	const struct stripe *stripe = &comm->several->stripe;
	struct choice *choice = comm->several->choice;
	unsigned kinds = 0, backups = 0;

	if (!choice)
		return;
	if (rtt_ns)
		choice_rtt(choice, l->kind, rtt_ns);
	for (uint32_t left = stripe->live; left; left &= left - 1) {
		const struct stripe_lane *lane = &stripe->lane[__builtin_ctz(left)];

		*(lane->backup ? &backups : &kinds) |= lane->kind;
	}
	choice_kinds_alive(choice, kinds ? kinds : backups);
}

bool comm_choice_would_join(const struct comm *comm, const struct request *request)
{
	return choice_would_join(comm->several->choice, comm->app_posted - 1,
				 comm_is_kept(comm, request->size));
}

bool comm_choice_take(struct comm *comm, struct request *request)
{
	struct comm_several *s = comm->several;
	struct choice *choice = s->choice;
	uint64_t message = comm->app_posted - 1;
	bool kept = comm_is_kept(comm, request->size);

	request->carried = 0;
	choice_hear(choice, request->size, s->choice_dev, &comm->remote.addr, request->posted_ns);
	request->kinds = (uint8_t)choice_take(choice, message, request->size, kept);
	request->asks = choice_is_exact(choice, message);
	/* Where others have come the first need not be waited for any more, nor a second: they were of a stream. */
	for (uint64_t m = comm->completed; m < message && m < comm->completed + 2; m++) {
		struct request *before = comm_request(comm, m);

		if (!before->asks || choice_is_exact(choice, m))
			continue;
		before->asks = false;
		comm_kept_wake(comm, before);
	}
	return choice_has_news(choice, request->posted_ns);
}

/* Is it the last one posted, and this the turn in which it was? */
static bool comm_choice_just_posted(struct comm *comm, uint64_t message)
{
	return message + 1 == atomic_load_explicit(&comm->posted, memory_order_relaxed) &&
	       comm_request(comm, message)->posted_ns == comm->now_ns;
}

void comm_choice_done(struct comm *comm, const struct request *request)
{
	struct comm_several *s = comm->several;
	uint64_t from_ns = request->posted_ns > s->done_ns ? request->posted_ns : s->done_ns;
	/* A socket has taken it in this very turn, which began when it was posted. */
	bool taken = request->kept && request->carried == LANE_KERNEL && !request->asks;
	uint64_t now_ns = comm->now_ns;

	if (taken || now_ns <= request->posted_ns) /* in a turn that began before */
		now_ns = driver_clock_ns();
	choice_done(s->choice, comm->completed, request->size, request->carried,
		    now_ns > from_ns ? now_ns - from_ns : 0,
		    comm_choice_just_posted(comm, comm->completed + 1));
	s->done_ns = now_ns;
	if (s->choice->learnt)
		choice_save(s->choice, s->choice_dev, &comm->remote.addr, comm->now_ns);
}

void comm_choice_say(struct comm *comm, uint64_t now_ns)
{
	struct comm_several *s = comm->several;
	char text[768], own[512], peer[HARP_ADDR_TEXT_MAX];
	bool new, both;

	comm_lock(comm);
	new = choice_tell(s->choice, s->choice_dev, &comm->remote.addr, now_ns, text, sizeof(text));
	both = !s->choice->news && s->choice->kinds == (LANE_HARP | LANE_KERNEL);
	if (both)
		choice_words(s->choice, own, sizeof(own));
	comm_unlock(comm);
	if (new)
		INFO("to %s: %s", harp_addr_format(&comm->remote.addr, peer), text);
	if (both)
		lane_page_comm_choice(comm->row, own);
}
