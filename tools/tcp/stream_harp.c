/* SPDX-License-Identifier: Apache-2.0 */
/* stream_harp.c - the stream of a HARP instance: the loop that an application of harp_host.h writes. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stream.h"

#define CONTROL_EVERY_NS 100000000u
#define IDLE_TURNS 2000u /* then sleep, unless spinning */
#define SLEEP_MS_MAX 50

struct harp_stream {
	struct stream s; /* first */
	struct harp_instance *instance;
	struct harp_stack *stack;
	struct harp_listener *listener;
	struct harp_conn *conn;
	uint32_t events; /* seen of conn */
	uint64_t control_ns;
	unsigned idle;
};

uint64_t stream_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct harp_stream *self(struct stream *s)
{
	return (struct harp_stream *)s;
}

static void harp_say(void *ctx, enum harp_log_level level, const char *message)
{
	(void)ctx;
	if (level <= HARP_LOG_INFO)
		fprintf(stderr, "harp-tcp: %s\n", message);
}

static int harp_open(struct stream *s, const struct stream_options *opt, char *why, size_t why_len)
{
	const struct harp_instance_options options = {
		.size = sizeof(options),
		.ifname = opt->ifname,
		.queue = opt->queue,
		.xdp_mode = opt->xdp_mode,
		.copy_mode = opt->copy_mode,
		.lib_dir = opt->lib_dir,
		.log = harp_say,
	};
	int rc = harp_instance_open(&self(s)->instance, &options, why, why_len);

	s->opt = *opt;
	if (!rc)
		self(s)->stack = harp_instance_stack(self(s)->instance);
	return rc;
}

static int harp_listen(struct stream *s)
{
	const struct harp_tcp_options tcp = { .size = sizeof(tcp), .rx_frames = 1024 };

	return harp_tcp_listen(self(s)->stack, &s->opt.local, &tcp, &self(s)->listener);
}

static int harp_accept(struct stream *s)
{
	int rc = harp_tcp_accept(self(s)->listener, &self(s)->conn);

	self(s)->events = 0;
	return rc;
}

static int harp_connect(struct stream *s)
{
	const struct harp_tcp_options tcp = { .size = sizeof(tcp), .rx_frames = 1024 };

	return harp_tcp_connect(self(s)->stack, NULL, &s->opt.remote, &tcp, &self(s)->conn);
}

static int harp_connected(struct stream *s)
{
	if (self(s)->events & HARP_EVENT_CLOSED)
		return harp_conn_error(self(s)->conn);
	return self(s)->events & HARP_EVENT_CONNECTED ? 0 : -EAGAIN;
}

/* With the stack's own frames: the pattern is copied here, as an application would produce it there. */
static ssize_t harp_send_frames(struct harp_stream *h, const uint8_t *data, size_t len)
{
	size_t sent = 0;

	while (sent < len) {
		struct harp_frame *frame;
		int rc = harp_frame_alloc(h->conn, &frame);

		if (rc)
			return sent ? (ssize_t)sent : rc;
		frame->len =
			len - sent < frame->capacity ? (uint32_t)(len - sent) : frame->capacity;
		memcpy(frame->data, data + sent, frame->len);
		sent += frame->len;
		rc = harp_conn_send_frame(h->conn, frame);
		if (rc) {
			harp_frame_release(h->conn, frame);
			return rc;
		}
	}
	return (ssize_t)sent;
}

static ssize_t harp_send(struct stream *s, const void *data, size_t len)
{
	const struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = len };
	ssize_t rc = s->opt.frames ? harp_send_frames(self(s), data, len)
				   : harp_conn_send(self(s)->conn, &iov, 1);

	if (rc > 0)
		self(s)->idle = 0;
	return rc;
}

static ssize_t harp_recv(struct stream *s, void *data, size_t len)
{
	ssize_t rc = harp_conn_recv(self(s)->conn, data, len);

	if (rc > 0)
		self(s)->idle = 0;
	return rc;
}

static void harp_hangup(struct stream *s)
{
	harp_conn_close(self(s)->conn);
	self(s)->conn = NULL;
}

/* Sleeps on the queue and the kernel's news until the stack's next deadline. */
static void harp_sleep(struct harp_stream *h, uint64_t now_ns)
{
	struct pollfd fds[] = {
		{ .fd = harp_instance_fd(h->instance), .events = POLLIN },
		{ .fd = harp_instance_control_fd(h->instance), .events = POLLIN },
	};
	uint64_t deadline_ns = harp_stack_next_deadline_ns(h->stack);
	uint64_t wait_ms = SLEEP_MS_MAX;

	if (deadline_ns <= now_ns)
		return;
	if (deadline_ns - now_ns < wait_ms * 1000000u)
		wait_ms = (deadline_ns - now_ns) / 1000000u;
	if (poll(fds, 2, (int)wait_ms) > 0 && fds[1].revents)
		h->control_ns = 0;
}

static void harp_turn(struct stream *s)
{
	struct harp_stream *h = self(s);
	uint64_t now_ns = stream_clock_ns();
	struct harp_conn *conn;
	uint32_t events;

	if (harp_instance_control_pending(h->instance) ||
	    now_ns - h->control_ns > CONTROL_EVERY_NS) {
		harp_instance_control(h->instance, now_ns);
		h->control_ns = now_ns;
	}
	if (harp_stack_poll(h->stack, now_ns) > 0)
		h->idle = 0;
	while ((conn = harp_stack_next_event(h->stack, &events)))
		if (conn == h->conn)
			h->events |= events;
	if (++h->idle < IDLE_TURNS)
		return;
	if (s->opt.spin)
		sched_yield();
	else
		harp_sleep(h, now_ns);
}

static void harp_describe(struct stream *s, FILE *out)
{
	struct harp_stream *h = self(s);
	struct harp_tcp_info info = { 0 };
	struct harp_nic_stats nic;
	uint64_t counts[32] = { 0 }, value;
	int verdicts = harp_instance_steering(h->instance, counts, 32);

	if (h->conn)
		harp_conn_info(h->conn, &info, sizeof(info));
	fprintf(out,
		"{\"kind\": \"harp\", \"path\": \"%s\", \"srtt_ns\": %" PRIu64
		", \"rtt_ns_min\": %" PRIu64 ", \"snd_mss_bytes\": %u, \"rcv_mss_bytes\": %u, "
		"\"options\": %u, \"retransmits\": %" PRIu64 ", \"rto_count\": %" PRIu64
		", \"snd_cwnd_bytes\": %" PRIu64 ", \"bytes_acked\": %" PRIu64
		", \"bytes_received\": %" PRIu64,
		harp_instance_describe(h->instance), info.srtt_ns, info.rtt_ns_min,
		info.snd_mss_bytes, info.rcv_mss_bytes, info.options, info.retransmits,
		info.rto_count, info.snd_cwnd_bytes, info.bytes_acked, info.bytes_received);
	fprintf(out, ", \"steering\": {");
	for (int i = 0; i < verdicts && i < 32; i++)
		fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", harp_steering_name((unsigned)i),
			counts[i]);
	fprintf(out, "}, \"stats\": {");
	for (unsigned i = 0; i < harp_stats_count(); i++) {
		value = 0;
		harp_stack_stat(h->stack, harp_stats_name(i), &value);
		fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", harp_stats_name(i), value);
	}
	harp_instance_nic(h->instance)->ops->stats(harp_instance_nic(h->instance), &nic);
	fprintf(out,
		"}, \"nic\": {\"rx_packets\": %" PRIu64 ", \"tx_packets\": %" PRIu64
		", \"rx_dropped\": %" PRIu64 ", \"rx_ring_full\": %" PRIu64
		", \"rx_fill_empty\": %" PRIu64 ", \"tx_invalid\": %" PRIu64 ", \"kicks\": %" PRIu64
		"}}",
		nic.rx_packets, nic.tx_packets, nic.rx_dropped, nic.rx_ring_full, nic.rx_fill_empty,
		nic.tx_invalid, nic.kicks);
}

static void harp_close(struct stream *s)
{
	struct harp_stream *h = self(s);
	uint64_t end_ns = stream_clock_ns() + 50000000u;

	/* The FIN and the last ACK leave; then whatever is left dies with the stack. */
	while (h->stack && stream_clock_ns() < end_ns) {
		harp_stack_poll(h->stack, stream_clock_ns());
		sched_yield();
	}
	harp_instance_close(h->instance);
	free(h);
}

struct stream *stream_harp(void)
{
	static const struct stream_ops ops = {
		.open = harp_open,
		.listen = harp_listen,
		.accept = harp_accept,
		.connect = harp_connect,
		.connected = harp_connected,
		.send = harp_send,
		.recv = harp_recv,
		.hangup = harp_hangup,
		.turn = harp_turn,
		.describe = harp_describe,
		.close = harp_close,
	};
	struct harp_stream *h = calloc(1, sizeof(*h));

	if (h)
		h->s.ops = &ops;
	return h ? &h->s : NULL;
}
