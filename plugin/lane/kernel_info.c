/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_info.c - what the kernel says of a socket's TCP. */
#include "lane/kernel_info.h"

#include <linux/sockios.h>
#include <linux/tcp.h> /* glibc's struct tcp_info ends before the last fields */
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/*
 * Theory of operation
 *
 * Silence. Linux counts a TCP_USER_TIMEOUT also while the window is closed, whether or not the peer
 * answers the probes, against RFC 9293 section 3.8.6.1: a rank that rests for two minutes would be
 * given up. So the option is not used; the lane tells for how long a question has gone unanswered (data
 * unacknowledged, a probe) and the comm gives up. How long ago the last answer came says nothing by
 * itself: a closed window is probed every two minutes at last.
 *
 * When a question was asked the kernel does not say: tcpi_last_data_sent passes over probes, and counts what is sent
 * again. So a question counts from the first look that finds it, and one that is out at two looks with an answer between
 * them may be another: it counts from the second. No peer is given up early by that, nor later than by the time between
 * two looks. Whether there was an answer the count of segments tells exactly, where the clocks don't (the kernel's goes in
 * steps of up to 10 ms, and ours may have been read a while ago). Segments that are no answer, which anybody
 * can make, are counted too: hence a look at the time of the last ACK as well.
 */

#define CLOCKS_DIFFER_NS 1000000000ull /* by less than that */

void kernel_info(int fd, uint64_t sent_bytes, struct lane_info *info)
{
	struct tcp_info tcp = { 0 };
	socklen_t len = sizeof(tcp);
	uint64_t waiting_bytes;
	int queued = 0;

	memset(info, 0, sizeof(*info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &len) || ioctl(fd, SIOCOUTQ, &queued) ||
	    queued < 0)
		return;
	waiting_bytes = (uint64_t)queued < sent_bytes ? (uint64_t)queued : sent_bytes;
	info->srtt_ns = tcp.tcpi_rtt * 1000ull;
	info->rto_ns = (tcp.tcpi_rto * 1000ull) >> (tcp.tcpi_backoff & 31);
	info->in_flight_bytes = (uint64_t)tcp.tcpi_unacked * tcp.tcpi_snd_mss;
	if (info->in_flight_bytes > waiting_bytes) /* whole segments were counted */
		info->in_flight_bytes = waiting_bytes;
	/* The peer takes more and nothing leaves: the interface is down, or the route is gone. Or its window is closed
	 * and it does not answer probes, as one that only rests would. */
	if (!info->in_flight_bytes && waiting_bytes &&
	    (tcp.tcpi_snd_wnd >= tcp.tcpi_snd_mss || tcp.tcpi_probes))
		info->in_flight_bytes = waiting_bytes;
	info->unsent_bytes = waiting_bytes - info->in_flight_bytes;
	info->acked_bytes = sent_bytes - waiting_bytes;
	info->retransmits = tcp.tcpi_total_retrans;
}

uint64_t kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	uint64_t answered_ns, since_ns;
	bool answered;

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	answered_ns = now_ns - info.tcpi_last_ack_recv * 1000000ull;
	answered = info.tcpi_segs_in != silence->segments &&
		   answered_ns + CLOCKS_DIFFER_NS > silence->looked_ns;
	silence->segments = info.tcpi_segs_in;
	silence->looked_ns = now_ns;
	/* Probes: of a closed window and keepalive; any ACK sets the count back. */
	if (!info.tcpi_unacked && !info.tcpi_probes) {
		silence->asked_ns = 0;
		return 0;
	}
	if (!silence->asked_ns || answered)
		silence->asked_ns = now_ns;
	since_ns = answered_ns > silence->asked_ns ? answered_ns : silence->asked_ns;
	/* Threads take turns here, and the one that looked last may have a clock older than ours. */
	return now_ns > since_ns ? now_ns - since_ns : 0;
}
