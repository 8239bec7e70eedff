/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - error texts of lanes, and warnings that are logged once per peer. */
#include "lane/lane.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "process/config.h"
#include "process/log.h"

#define LANE_NOTICES 64u
#define LANE_NOTICE_NS_MIN 60000000000ull
#define LANE_NOTICE_RAIL_NS 5000000000ull

static pthread_mutex_t lane_notices_lock = PTHREAD_MUTEX_INITIALIZER;
/* Under lane_notices_lock: the last addresses that were logged. */
static struct {
	struct harp_addr peer;
	enum lane_notice notice;
	uint64_t named_ns; /* 0: empty */
} lane_notices[LANE_NOTICES];
static unsigned lane_notices_next;

bool lane_notice_due(enum lane_notice notice, const struct harp_addr *peer, uint64_t now_ns)
{
	uint64_t timeout_ns = plugin_config()->user_timeout_ns;
	uint64_t quiet_ns = timeout_ns > LANE_NOTICE_NS_MIN ? timeout_ns : LANE_NOTICE_NS_MIN;
	unsigned i;
	bool is_due;

	if (notice == LANE_NOTICE_RAIL_DOWN || notice == LANE_NOTICE_RAIL_UP)
		quiet_ns = LANE_NOTICE_RAIL_NS;
	pthread_mutex_lock(&lane_notices_lock);
	for (i = 0; i < LANE_NOTICES; i++)
		if (lane_notices[i].named_ns && lane_notices[i].notice == notice &&
		    !memcmp(&lane_notices[i].peer, peer, sizeof(*peer)))
			break;
	is_due = i == LANE_NOTICES || now_ns - lane_notices[i].named_ns >= quiet_ns;
	if (i == LANE_NOTICES) {
		i = lane_notices_next++ % LANE_NOTICES;
		lane_notices[i].peer = *peer;
		lane_notices[i].notice = notice;
	}
	if (is_due)
		lane_notices[i].named_ns = now_ns;
	pthread_mutex_unlock(&lane_notices_lock);
	return is_due;
}

void lane_notices_forget(void)
{
	pthread_mutex_lock(&lane_notices_lock);
	memset(lane_notices, 0, sizeof(lane_notices));
	pthread_mutex_unlock(&lane_notices_lock);
}

void lane_warn_silent(struct lane *lane, uint64_t now_ns)
{
	char text[256];

	lane->ops->describe(lane, text, sizeof(text));
	WARN_IF(lane_notice_due(LANE_NOTICE_SILENT, &lane->remote.addr, now_ns),
		"peer silent for %llu s on %s: still waiting (gives up after %llu s without an "
		"acknowledgment; is the host or the path down?)",
		LANE_SILENCE_WARN_NS / 1000000000u, text,
		(unsigned long long)(plugin_config()->user_timeout_ns / 1000000000u));
}

const char *lane_kind_text(const struct lane *lane)
{
	if (lane->beneath)
		return lane->kind_bit == LANE_HARP ? "encrypted harp-tcp" : "encrypted kernel-tcp";
	return lane->kind_bit == LANE_HARP ? "harp-tcp" : "kernel-tcp";
}

int lane_errno(int error)
{
	/* Linux reports ICMPv6 "administratively prohibited" as EACCES, and ICMP's as
	 * EHOSTUNREACH. */
	return error == EACCES ? -EHOSTUNREACH : -error;
}

const char *lane_error_text(int error)
{
	switch (-error) {
	case EPIPE:
		return "connection closed by the peer";
	case ETIMEDOUT:
		return "no answer in time";
	case EHOSTUNREACH:
		return "no route to the host, a firewall or route that rejects it, or it does not answer";
	case EADDRNOTAVAIL:
		return "no local address or port left";
	case EPERM:
		return "a firewall of this host forbids it";
	case ENOSPC:
		return "HARP's stack has no room for another connection";
	case ENOMEM:
	case ENOBUFS:
		return "out of memory";
	case EBADMSG:
		return "an encrypted segment was altered, repeated or left out on the way";
	default:
		return strerror(-error);
	}
}

const char *lane_error_remedy(int error, const char *otherwise)
{
	switch (-error) {
	case EMFILE:
	case ENFILE:
		return " (raise the limit: ulimit -n)";
	case ENOMEM:
	case ENOBUFS:
	case ENOSPC:
		return "";
	default:
		return otherwise;
	}
}
