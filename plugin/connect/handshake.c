/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.c - see handshake.h. */
#include "connect/handshake.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "lane/lane.h"

static int handshake_fail(struct preamble *p, int error, const char *what)
{
	p->what = what;
	return error;
}

int handshake_advance(struct preamble *p, struct lane *lane)
{
	int rc = 0;

	while (!rc) {
		struct iovec iov;
		ssize_t n;

		iov.iov_base = preamble_bytes(p, &iov.iov_len);
		if (preamble_sends(p)) {
			n = lane->ops->send(lane, &iov, 1);
		} else {
			n = lane->ops->recv(lane, iov.iov_base, iov.iov_len, 1);
			if (!n)
				return handshake_fail(p, -ECONNRESET,
						      "the peer closed the connection");
		}
		if (n == -EAGAIN)
			return 0;
		if (n < 0)
			return handshake_fail(p, (int)n, lane_error_text((int)n));
		rc = preamble_moved(p, (size_t)n);
	}
	return rc;
}

int handshake_encrypt(const struct preamble *p, struct lane **lane)
{
	struct preamble_keys keys;
	int rc;

	if (!preamble_keys(p, &keys))
		return 0;
	rc = lane_encrypt(lane, p->sent_bytes, keys.send, keys.receive);
	explicit_bzero(&keys, sizeof(keys));
	return rc;
}

void handshake_comm_options(const struct preamble *p, enum comm_side side, struct comm_options *out)
{
	const struct preamble_terms *sender = side == COMM_SEND ? &p->own : &p->peer;

	*out = (struct comm_options){
		.side = side,
		.multi_lane = (sender->features & FEATURE_MULTI_LANE) != 0,
		.no_credit = (sender->features & FEATURE_NO_CREDIT) != 0,
		.eager_bytes = p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes
									: p->peer.eager_bytes,
		.comm_id = p->comm_id,
		.lane.sent_bytes = p->sent_bytes,
	};
}
