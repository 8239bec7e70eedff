/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - what ends a lane of any kind, by number and in words. */
#include "lane/lane.h"

#include <errno.h>

int lane_errno(int error)
{
	/* Linux' word for what ICMPv6 calls administratively prohibited; of the same by ICMP it says the other. */
	return error == EACCES ? -EHOSTUNREACH : -error;
}

const char *lane_error_text(int error)
{
	switch (-error) {
	case ECONNREFUSED:
		return "connection refused";
	case ECONNRESET:
		return "connection reset by the peer";
	case EPIPE:
		return "connection closed by the peer";
	case ECONNABORTED:
		return "connection aborted";
	case ETIMEDOUT:
		return "no answer in time";
	case EHOSTUNREACH:
		return "no route to the host, a firewall or route that rejects it, or it does not answer";
	case ENETUNREACH:
		return "network unreachable";
	case ENETDOWN:
		return "network down";
	case EADDRNOTAVAIL:
		return "no local address or port left";
	case EPERM:
		return "a firewall of this host forbids it";
	case ENOSPC:
		return "HARP's stack has no room for another connection";
	case ENOMEM:
	case ENOBUFS:
		return "out of memory";
	case EMFILE:
	case ENFILE:
		return "too many open files";
	case EPROTO:
		return "protocol error";
	case EBADMSG:
		return "an encrypted segment was altered, repeated or left out on the way";
	default:
		return "system error";
	}
}

const char *lane_error_remedy(int error)
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
		return NULL;
	}
}
