/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_dpdk.c - a libharp-dpdk.so without DPDK: its ports are in memory. Tests of the library's
 * users load it. Not thread-safe.
 *
 * The devices are "fake0" to "fake7"; each even one is linked to the next. Device arguments:
 * 	down    the link is down until FAKE_DPDK_UP is in the environment
 * 	narrow  a router behind the device answers IP packets above 1300 bytes with an ICMP error
 *
 * TCP and UDP packets arrive at queue (source port + destination port) modulo queues, all others at
 * queue 0. FAKE_DPDK_XSTATS is the number of driver counters (default 3); negative: an error.
 * FAKE_DPDK_OLD: the library reports another version.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/harp_dpdk.h"
#include "packet.h"

#define PORTS 8u
#define QUEUES_MAX 4u
#define PACKETS_MAX 512u
#define PACKET_BYTES 2048u
#define ETHERNET_BYTES 14u
#define NARROW_BYTES 1300u

struct fake_queue {
	struct harp_dpdk_port *port;
	struct harp_nic *nic;
	uint32_t first, count;
	uint32_t bytes[PACKETS_MAX];
	uint8_t packets[PACKETS_MAX][PACKET_BYTES];
};
struct harp_dpdk_port {
	bool open, down, narrow;
	unsigned index;
	uint32_t queues, mtu_bytes, frame_count;
	char device[64];
	struct fake_queue queue[QUEUES_MAX];
};

static struct harp_dpdk_port ports[PORTS];
static harp_log_fn eal_log;
static void *eal_ctx;

static bool port_up(const struct harp_dpdk_port *port)
{
	return !port->down || getenv("FAKE_DPDK_UP");
}

/* ---- packets --------------------------------------------------------------------------------- */

static uint32_t port_queue(const struct harp_dpdk_port *port, const uint8_t *frame, size_t len)
{
	bool v4 = len >= 38 && frame[12] == 8 && frame[13] == 0;
	bool v6 = len >= 58 && frame[12] == 0x86 && frame[13] == 0xdd;
	const uint8_t *l4 = frame + (v4 ? 34 : 54);
	uint8_t protocol = v4 ? frame[23] : v6 ? frame[20] : 0;
	uint32_t from, to;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	from = (uint32_t)(l4[0] << 8 | l4[1]);
	to = (uint32_t)(l4[2] << 8 | l4[3]);
	return (from + to) % port->queues;
}

static void queue_put(struct fake_queue *q, const void *frame, size_t len)
{
	uint32_t at = (q->first + q->count) % PACKETS_MAX;

	if (q->count == PACKETS_MAX)
		return;
	q->count++;
	q->bytes[at] = (uint32_t)len;
	memcpy(q->packets[at], frame, len);
}

/* Sends "packet too big" with the first bytes of the packet (RFC 1191, RFC 8201). Its source is
 * the packet's destination. */
static void router_refuse(struct harp_dpdk_port *port, const uint8_t *frame)
{
	const bool v4 = frame[12] == 8;
	const uint32_t quoted = v4 ? 28 : 48;
	const uint8_t proto = v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	const uint8_t *packet = frame + ETHERNET_BYTES;
	struct harp_addr src, dst;
	uint8_t error[ETHERNET_BYTES + 96] = { 0 }, *icmp;
	uint16_t sum;

	if (v4) {
		src = harp_addr_v4(packet[16], packet[17], packet[18], packet[19]);
		dst = harp_addr_v4(packet[12], packet[13], packet[14], packet[15]);
	} else {
		memcpy(src.bytes, packet + 24, 16);
		memcpy(dst.bytes, packet + 8, 16);
	}
	icmp = error + packet_headers(error, frame + 6, frame, &src, &dst, proto, 8 + quoted);
	icmp[0] = v4 ? 3 : 2;
	icmp[1] = v4 ? 4 : 0;
	be16_store(icmp + 6, NARROW_BYTES);
	memcpy(icmp + 8, packet, quoted);
	sum = csum_finish(csum_partial(icmp, 8 + quoted,
				       v4 ? 0 : ip_pseudo_sum(&src, &dst, proto, 8 + quoted)));
	memcpy(icmp + 2, &sum, sizeof(sum));
	queue_put(&port->queue[0], error, (size_t)(icmp - error) + 8 + quoted);
}

static int queue_send(void *ctx, const void *frame, size_t len)
{
	struct harp_dpdk_port *port = ((struct fake_queue *)ctx)->port,
			      *peer = &ports[port->index ^ 1];

	if (!peer->open || !port_up(port) || !port_up(peer) || len > PACKET_BYTES)
		return 0; /* lost */
	if (port->narrow && len > ETHERNET_BYTES + NARROW_BYTES)
		router_refuse(port, frame);
	else
		queue_put(&peer->queue[port_queue(peer, frame, len)], frame, len);
	return 0;
}

static size_t queue_receive(void *ctx, void *buf, size_t cap)
{
	struct fake_queue *q = ctx;
	size_t len;

	if (!q->count)
		return 0;
	len = q->bytes[q->first];
	if (len <= cap)
		memcpy(buf, q->packets[q->first], len);
	q->first = (q->first + 1) % PACKETS_MAX;
	q->count--;
	return len;
}

/* ---- the library ----------------------------------------------------------------------------- */

static int fake_start(const struct harp_dpdk_eal_options *opt, char *why, size_t why_len)
{
	(void)why;
	(void)why_len;
	eal_log = opt ? opt->log : eal_log;
	eal_ctx = opt ? opt->ctx : eal_ctx;
	if (eal_log)
		eal_log(eal_ctx, HARP_LOG_INFO, "EAL: started");
	return 0;
}

static int fake_port_open(struct harp_dpdk_port **out, const struct harp_dpdk_port_options *opt,
			  char *why, size_t why_len)
{
	unsigned index;
	struct harp_dpdk_port *port;

	if (sscanf(opt->device, "fake%u", &index) != 1 || index >= PORTS ||
	    opt->queues > QUEUES_MAX) {
		snprintf(why, why_len, "%s: no such device", opt->device);
		return -ENODEV;
	}
	port = &ports[index];
	if (port->open) {
		snprintf(why, why_len, "%s: in use", opt->device);
		return -EBUSY;
	}
	memset(port, 0, sizeof(*port));
	port->open = true;
	port->index = index;
	port->queues = opt->queues;
	port->mtu_bytes = opt->mtu_bytes ? opt->mtu_bytes : 1500;
	port->frame_count = opt->frame_count;
	port->down = strstr(opt->device, ",down") != NULL;
	port->narrow = strstr(opt->device, ",narrow") != NULL;
	snprintf(port->device, sizeof(port->device), "%s", opt->device);
	for (uint32_t i = 0; i < port->queues; i++)
		port->queue[i].port = port;
	*out = port;
	return 0;
}

static int fake_port_nic(struct harp_dpdk_port *port, uint32_t queue, struct harp_nic **out,
			 char *why, size_t why_len)
{
	struct harp_nic_callbacks callbacks = {
		.size = sizeof(callbacks),
		.mtu_bytes = port->mtu_bytes,
		.frame_count = port->frame_count,
		.mac = { 2, 0, 0, 0, 0, (uint8_t)(port->index + 1) },
		.ctx = &port->queue[queue],
		.receive = queue_receive,
		.send = queue_send,
	};

	if (port->queue[queue].nic) {
		snprintf(why, why_len, "%s: queue %u is in use", port->device, queue);
		return -EBUSY;
	}
	(void)harp_nic_callback_create(out, &callbacks);
	port->queue[queue].nic = *out;
	return 0;
}

static void fake_port_info(const struct harp_dpdk_port *port, struct harp_instance_port *out)
{
	*out = (struct harp_instance_port){
		.driver = "net_fake",
		.dpdk = "DPDK 0.0",
		.mac = { 2, 0, 0, 0, 0, (uint8_t)(port->index + 1) },
		.up = port_up(port),
		.numa_node = -1,
		.mtu_bytes = port->mtu_bytes,
		.queues = port->queues,
		.driver_copies = 1,
	};
	memcpy(out->device, port->device, sizeof(out->device));
}

static int fake_port_rss(const struct harp_dpdk_port *port, struct harp_rss *out)
{
	*out = (struct harp_rss){ .kind = HARP_RSS_UNKNOWN, .queues = port->queues };
	return 0;
}

static int fake_port_xstats(const struct harp_dpdk_port *port, char (*names)[64], uint64_t *values,
			    unsigned max)
{
	const char *count = getenv("FAKE_DPDK_XSTATS");
	int total = count ? atoi(count) : 3;

	(void)port;
	for (int i = 0; i < total && (unsigned)i < max; i++) {
		snprintf(names[i], 64, i == 2 ? "odd \x1b[2J \"name\"" : "counter_%d", i);
		if (i == 1)
			names[i][0] = '\0';
		values[i] = (uint64_t)i + 1;
	}
	return total;
}

static void fake_port_close(struct harp_dpdk_port *port)
{
	port->open = false;
}

const struct harp_dpdk_api *harp_dpdk_api(void)
{
	static struct harp_dpdk_api api = {
		.start = fake_start,
		.port_open = fake_port_open,
		.port_nic = fake_port_nic,
		.port_info = fake_port_info,
		.port_rss = fake_port_rss,
		.port_xstats = fake_port_xstats,
		.port_close = fake_port_close,
	};

	api.version = getenv("FAKE_DPDK_OLD") ? 0 : HARP_DPDK_VERSION;
	return &api;
}
