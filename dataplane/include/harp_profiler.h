/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_profiler.h - the events that HARP's net plugin reports to an NCCL profiler.
 *
 * Since net v10 (NCCL 2.26) NCCL passes a callback to net plugins. The plugin reports one event for
 * each isend and irecv with a profiler handle. A profiler that sets ncclProfileNetPlugin in its
 * activation mask gets
 *
 *	startEvent: descriptor type ncclProfileNetPlugin, netPlugin.id HARP_PROFILER_PLUGIN_ID,
 *		netPlugin.data a struct harp_profiler_event with the values known at posting;
 *	recordEventState with ncclProfilerNetPluginUpdate (profiler v4 and later): netPlugin.data
 *		the same struct, complete;
 *	stopEvent.
 *
 * NCCL 2.26 and 2.27 (net v10) get events only if HARP_TRACE is set: 2.27 crashes when a net plugin
 * starts an event and the profiler gave no handle to its parents.
 *
 * The plugin makes the three calls in the thread in which NCCL posts and tests. The struct keeps
 * its address from startEvent until stopEvent returns, so a profiler v3, which gets no update, may
 * keep the pointer and read it in stopEvent. If a comm closes during a message, the event is never
 * stopped.
 */
#ifndef HARP_PROFILER_H
#define HARP_PROFILER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "HA", version 1. NCCL's plugins have ids 1 and 2, shifted in the same way. */
#define HARP_PROFILER_PLUGIN_ID ((int64_t)0x4841 << 16 | 1)

enum harp_profiler_direction { HARP_PROFILER_SEND, HARP_PROFILER_RECEIVE };
/* Bits of lane_kinds. */
#define HARP_PROFILER_LANE_HARP 1u   /* HARP's own TCP, on AF_XDP or DPDK */
#define HARP_PROFILER_LANE_KERNEL 2u /* a kernel socket */

/* Times are of CLOCK_MONOTONIC. Members from done_ns on are 0 at the start. */
struct harp_profiler_event {
	uint32_t size; /* of this struct, as the plugin has it: later versions append members */
	uint8_t direction;
	uint8_t reserved[3];
	uint64_t comm;           /* as in `harpctl flows`; the same at both ends */
	uint64_t message;        /* number in the comm, from 0; the same at both ends */
	uint64_t bytes;          /* at the start: of the buffer; at the end: of the message */
	uint8_t remote_addr[16]; /* of the peer; IPv4 in its mapped form */
	uint16_t remote_port;    /* host byte order */
	uint8_t reserved2[6];
	uint64_t posted_ns; /* isend or irecv */
	uint64_t done_ns;   /* test() reported it */
	uint64_t wait_ns;   /* from posted_ns to the first byte sent or received */
	uint64_t rtt_ns; /* smoothed round trip of a lane of the comm, TCP's latest; 0: unknown */
	uint64_t
		/* of all lanes of the comm since posted_ns; TCP is queried every 10 ms at most */
		retransmits;
	int32_t error;       /* -errno that the message ended with, or 0 */
	uint32_t lane_kinds; /* that carried the message */
};

#ifdef __cplusplus
}
#endif

#endif
