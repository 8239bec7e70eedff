/* SPDX-License-Identifier: Apache-2.0 */
/* rounds.c - the patience of a connect; see rounds.h. */
#include "connect/rounds.h"

/*
 * Theory of operation
 *
 * Hundreds of connects at once, a peer whose XDP program is being attached, and a crowded listener pass; a listener that
 * has gone does not. So how long a connect goes on depends on the answers. An answer after CHALLENGE, or silence: the whole
 * timeout. A reset at HELLO, which a closed listener and a crowded one send: a third. No answer at any port: a tenth. A
 * proof that does not hold: four rounds, as often as a damaged packet may be the reason.
 */

#define PAUSE_NS 50000000ull /* after the first round; doubles, */
#define PAUSE_DOUBLES 4u     /* so often */
#define ROUNDS_MIN 4u
#define PATIENCE_REFUSED 10u /* this part of the whole time */
#define PATIENCE_UNKNOWN 3u

void rounds_init(struct rounds *r, uint64_t timeout_ns, uint64_t spread)
{
	*r = (struct rounds){ .timeout_ns = timeout_ns, .spread = spread };
}

void rounds_note(struct rounds *r, enum rounds_kind kind)
{
	if (kind > r->kind)
		r->kind = kind;
}

bool rounds_reports(struct rounds *r, enum rounds_detail detail, bool cut_short)
{
	if (detail < r->detail || (cut_short && r->rounds))
		return false;
	r->detail = detail;
	return true;
}

static bool rounds_has_patience(const struct rounds *r, uint64_t now_ns)
{
	/* Another poller's clock may be older than that of the round before. */
	uint64_t in_vain_ns = now_ns > r->in_vain_ns ? now_ns - r->in_vain_ns : 0;

	switch (r->kind) {
	case ROUNDS_TURNED_AWAY:
		return true;
	case ROUNDS_UNKNOWN:
		return in_vain_ns < r->timeout_ns / PATIENCE_UNKNOWN;
	case ROUNDS_REFUSED:
		return r->rounds < ROUNDS_MIN || in_vain_ns < r->timeout_ns / PATIENCE_REFUSED;
	case ROUNDS_WRONG:
		break;
	}
	return r->rounds < ROUNDS_MIN;
}

bool rounds_again(struct rounds *r, uint64_t now_ns)
{
	uint64_t pause_ns = PAUSE_NS << (r->rounds < PAUSE_DOUBLES ? r->rounds : PAUSE_DOUBLES);
	bool again;

	r->rounds++;
	if (r->kind == ROUNDS_TURNED_AWAY)
		r->in_vain_ns = 0;
	else if (!r->in_vain_ns)
		r->in_vain_ns = now_ns;
	if (r->kind >= ROUNDS_UNKNOWN)
		pause_ns += r->spread % pause_ns;
	r->not_before_ns = now_ns + pause_ns;
	again = rounds_has_patience(r, now_ns);
	r->kind = ROUNDS_WRONG;
	r->detail = ROUNDS_NOT_TRIED;
	return again;
}
