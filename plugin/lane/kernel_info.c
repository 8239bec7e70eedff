/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_info.c - the state of a kernel socket's TCP. */
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
 * Silence. Linux applies TCP_USER_TIMEOUT also while the window is closed, even if the peer answers
 * the probes, contrary to RFC 9293 section 3.8.6.1: a rank that receives nothing for two minutes
 * would time out. So HARP does not use the option. The lane reports how long data or a probe has
 * been unanswered, and the comm applies the timeout. The age of the last answer is not enough: a
 * closed window is probed only every two minutes in the end.
 *
 * The kernel does not report when it sent the unanswered segment: tcpi_last_data_sent ignores
 * probes and counts retransmissions. So silence is measured from the first call that sees
 * outstanding data or a probe. If the peer has answered between two calls, it is measured from the
 * second. Thus a timeout is never early, and late by at most the time between two calls.
 *
 * The count of received segments shows an answer exactly; clocks do not (the kernel's has a
 * granularity of up to 10 ms, and ours may have been read a while ago). The count includes segments
 * that are no answer and may be forged, so the time of the last ACK must agree.
 */

#define CLOCKS_DIFFER_NS 1000000000ull /* at most */

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
	if (info->in_flight_bytes > waiting_bytes) /* unacked counts whole segments */
		info->in_flight_bytes = waiting_bytes;
	/* The window is open and nothing is sent: the interface is down or the route is gone. Or
	 * the window is closed and probes are unanswered, which a live peer would answer. */
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
		   answered_ns + CLOCKS_DIFFER_NS > silence->checked_ns;
	silence->segments = info.tcpi_segs_in;
	silence->checked_ns = now_ns;
	/* Window probes and keepalives; any ACK resets the count. */
	if (!info.tcpi_unacked && !info.tcpi_probes) {
		silence->unanswered_ns = 0;
		return 0;
	}
	if (!silence->unanswered_ns || answered)
		silence->unanswered_ns = now_ns;
	since_ns = answered_ns > silence->unanswered_ns ? answered_ns : silence->unanswered_ns;
	/* Threads alternate, and this one's clock may be older than the last one's. */
	return now_ns > since_ns ? now_ns - since_ns : 0;
}
