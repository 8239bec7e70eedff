/* SPDX-License-Identifier: Apache-2.0 */
/* stream_harp.c - streams of a HARP instance, with the poll loop of an application of
 * harp_host.h. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/options.h"
#include "stream.h"

#define CONTROL_EVERY_NS 100000000u
#define IDLE_TURNS 2000u /* idle turns before it sleeps */
#define SLEEP_NS_MAX 50000000u
#define SLEEP_BLIND_NS 50000 /* poll interval of a NIC without a descriptor to wait on */
#define SLACK_NS 1000u       /* timer slack: stack timers may be tens of microseconds */
#define RX_FRAMES 1024u
#define PIECES_MAX 64
#define HANGUP_NS_MAX 5000000000u

static void harp_turn(struct stream_host *host);

struct harp_stream {
	struct stream s; /* first member */
	struct harp_conn *conn;
	uint32_t events; /* all events of conn so far */
};

struct harp_streams {
	struct stream_host host; /* first member */
	struct harp_instance *instance;
	struct harp_stack *stack;
	struct harp_listener *listener;
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

static struct harp_streams *streams(struct stream_host *host)
{
	return (struct harp_streams *)host;
}

static void harp_log(void *ctx, enum harp_log_level level, const char *message)
{
	(void)ctx;
	if (level <= HARP_LOG_INFO)
		fprintf(stderr, "harp-tcp: %s\n", message);
}

/* Sets the options of connections. Returns -EINVAL for an unknown congestion control. */
static int harp_options(const struct stream_options *opt, struct harp_tcp_options *tcp)
{
	int congestion = opt->cc ? harp_congestion_from_name(opt->cc) : HARP_CONGESTION_DEFAULT;

	if (congestion < 0)
		return congestion;
	*tcp = (struct harp_tcp_options){
		.size = sizeof(*tcp),
		.rx_frames = RX_FRAMES,
		.unsent_bytes_max = opt->unsent_bytes,
		.congestion = (uint32_t)congestion,
		.ecn = opt->ecn ? HARP_ECN_REQUEST : HARP_ECN_DEFAULT,
	};
	return 0;
}

static int harp_open(struct stream_host *host, char *why, size_t why_len)
{
	struct harp_instance_options options = {
		.size = sizeof(options),
		.ifname = host->opt.ifname,
		.queue = host->opt.queue,
		.xdp_mode = host->opt.xdp_mode,
		.copy_mode = host->opt.copy_mode,
		.lib_dir = host->opt.lib_dir,
		.daemon_socket = host->opt.daemon,
		.log = harp_log,
	};
	struct harp_tcp_options tcp;
	int rc = harp_options(&host->opt, &tcp);

	if (rc) {
		snprintf(why, why_len, "--cc %s: no such congestion control", host->opt.cc);
		return rc;
	}
	option_dpdk("harp-tcp", &options);
	(void)prctl(PR_SET_TIMERSLACK, SLACK_NS);
	rc = harp_instance_open(&streams(host)->instance, &options, why, why_len);
	if (!rc)
		streams(host)->stack = harp_instance_stack(streams(host)->instance);
	return rc;
}

static int harp_listen(struct stream_host *host)
{
	struct harp_tcp_options tcp;

	harp_options(&host->opt, &tcp); /* valid: harp_open() checked */
	return harp_tcp_listen(streams(host)->stack, &host->opt.local, &tcp,
			       &streams(host)->listener);
}

static struct harp_stream *harp_stream_new(struct stream_host *host)
{
	struct harp_stream *h = calloc(1, sizeof(*h));

	if (h)
		h->s.host = host;
	return h;
}

static int harp_accept(struct stream_host *host, struct stream **out)
{
	struct harp_stream *h;
	struct harp_conn *conn;
	int rc = harp_tcp_accept(streams(host)->listener, &conn);

	if (rc)
		return rc;
	h = harp_stream_new(host);
	if (!h) {
		harp_conn_abort(conn);
		return -ENOMEM;
	}
	h->conn = conn;
	harp_conn_set_user(conn, h);
	*out = &h->s;
	return 0;
}

/* The source address of the route. Without a route, the stack chooses. */
static struct harp_endpoint harp_source(struct stream_host *host)
{
	const struct harp_endpoint *remote = &host->opt.remote;
	struct harp_endpoint source = { .scope_id = remote->scope_id };
	struct harp_host_route route;

	if (!harp_instance_route(streams(host)->instance, &remote->addr, &route))
		source.addr = route.source;
	return source;
}

static int harp_connect(struct stream_host *host, struct stream **out)
{
	const struct harp_endpoint source = harp_source(host);
	struct harp_tcp_options tcp;
	struct harp_stream *h = harp_stream_new(host);
	int rc;

	if (!h)
		return -ENOMEM;
	harp_options(&host->opt, &tcp);
	tcp.user = h;
	rc = harp_tcp_connect(streams(host)->stack, &source, &host->opt.remote, &tcp, &h->conn);
	if (rc) {
		free(h);
		return rc;
	}
	*out = &h->s;
	return 0;
}

static int harp_connected(struct stream *s)
{
	if (self(s)->events & HARP_EVENT_CLOSED)
		return harp_conn_error(self(s)->conn);
	return self(s)->events & HARP_EVENT_CONNECTED ? 0 : -EAGAIN;
}

/* Sends in the stack's own frames. The copy stands for an application that produces data in
 * frames. */
static ssize_t harp_send_frames(struct harp_stream *h, const uint8_t *data, size_t len)
{
	size_t sent = 0, space = harp_conn_send_space(h->conn);

	if (space == 0)
		return harp_conn_error(h->conn) ? harp_conn_error(h->conn) : -EAGAIN;
	len = len < space ? len : space;
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
	ssize_t rc = s->host->opt.frames ? harp_send_frames(self(s), data, len)
					 : harp_conn_send(self(s)->conn, &iov, 1);

	if (rc > 0)
		streams(s->host)->idle = 0;
	return rc;
}

static ssize_t harp_recv(struct stream *s, void *data, size_t len)
{
	ssize_t rc = harp_conn_recv(self(s)->conn, data, len);

	if (rc > 0)
		streams(s->host)->idle = 0;
	return rc;
}

static ssize_t harp_recv_in_place(struct stream *s, stream_take_fn take, void *ctx)
{
	struct iovec pieces[PIECES_MAX];
	int count = harp_conn_peek(self(s)->conn, pieces, PIECES_MAX), rc = 0;
	size_t len = 0;

	for (int i = 0; i < count && !rc; i++) {
		rc = take(ctx, pieces[i].iov_base, pieces[i].iov_len);
		len += pieces[i].iov_len;
	}
	if (rc)
		return rc;
	if (count <= 0)
		return count;
	harp_conn_consume(self(s)->conn, len);
	streams(s->host)->idle = 0;
	return (ssize_t)len;
}

static int harp_memory_add(struct stream_host *host, const void *base, size_t bytes)
{
	return harp_stack_memory_add(streams(host)->stack, base, bytes);
}

static int harp_memory_remove(struct stream_host *host, const void *base, size_t bytes)
{
	uint64_t end_ns = stream_clock_ns() + HANGUP_NS_MAX;
	int rc;

	while ((rc = harp_stack_memory_remove(streams(host)->stack, base, bytes)) == -EBUSY &&
	       stream_clock_ns() < end_ns)
		harp_turn(host);
	return rc;
}

static ssize_t harp_send_in_place(struct stream *s, const void *data, size_t len)
{
	ssize_t rc = harp_conn_send_external(self(s)->conn, data, len);

	if (rc > 0)
		streams(s->host)->idle = 0;
	return rc;
}

static int harp_shutdown(struct stream *s)
{
	return harp_conn_shutdown(self(s)->conn, SHUT_WR);
}

/* Sleeps on the queue and the netlink worker until the stack's next deadline. */
static void harp_sleep(struct harp_streams *h, uint64_t now_ns)
{
	struct pollfd fds[] = {
		{ .fd = harp_instance_fd(h->instance), .events = POLLIN },
		{ .fd = harp_instance_control_fd(h->instance), .events = POLLIN },
	};
	uint64_t deadline_ns = harp_stack_next_deadline_ns(h->stack);
	struct timespec wait = { .tv_nsec = SLEEP_NS_MAX };

	if (deadline_ns <= now_ns)
		return;
	if (fds[0].fd < 0)
		wait.tv_nsec = SLEEP_BLIND_NS;
	if (deadline_ns - now_ns < (uint64_t)wait.tv_nsec)
		wait.tv_nsec = (long)(deadline_ns - now_ns);
	if (ppoll(fds, 2, &wait, NULL) > 0 && fds[1].revents)
		h->control_ns = 0;
}

static void harp_turn(struct stream_host *host)
{
	struct harp_streams *h = streams(host);
	uint64_t now_ns = stream_clock_ns();
	struct harp_stream *stream;
	struct harp_conn *conn;
	uint32_t events;

	if (harp_instance_control_pending(h->instance) ||
	    now_ns - h->control_ns > CONTROL_EVERY_NS) {
		harp_instance_control(h->instance, now_ns);
		h->control_ns = now_ns;
	}
	if (harp_stack_poll(h->stack, now_ns) > 0)
		h->idle = 0;
	while ((conn = harp_stack_next_event(h->stack, &events))) {
		h->idle = 0;
		if ((stream = harp_conn_user(conn)))
			stream->events |= events;
	}
	/* Idle: packets that arrive from now on make the descriptor readable. */
	if (++h->idle < IDLE_TURNS)
		return;
	if (host->opt.spin)
		sched_yield();
	else
		harp_sleep(h, now_ns);
}

/* Whether all sent data and the FIN are acknowledged, or never will be. */
static bool harp_is_delivered(const struct harp_conn *conn)
{
	struct harp_tcp_info info;

	harp_conn_info(conn, &info);
	switch ((enum harp_tcp_state)info.state) {
	case HARP_TCP_SYN_SENT: /* not connected: no data was sent */
	case HARP_TCP_FIN_WAIT_2:
	case HARP_TCP_TIME_WAIT:
	case HARP_TCP_CLOSED:
		return true;
	default:
		return false;
	}
}

/* Waits for the ACK of the FIN: after the process exits, the kernel resets the connection. */
static void harp_hangup(struct stream *s)
{
	struct harp_conn *conn = self(s)->conn;
	uint64_t end_ns = stream_clock_ns() + HANGUP_NS_MAX;

	if (harp_conn_shutdown(conn, SHUT_WR) == 0)
		while (!harp_is_delivered(conn) && stream_clock_ns() < end_ns)
			harp_turn(s->host);
	harp_conn_set_user(conn, NULL);
	harp_conn_close(conn);
	free(s);
}

static void describe_conn(const struct harp_conn *conn, FILE *out)
{
	struct harp_tcp_info info = { 0 };

	harp_conn_info(conn, &info);
	fprintf(out,
		", \"cc\": \"%s\", \"srtt_ns\": %" PRIu64
		", \"snd_mss_bytes\": %u, \"rcv_mss_bytes\": %u, \"options\": %u"
		", \"retransmits\": %" PRIu64 ", \"bytes_acked\": %" PRIu64
		", \"bytes_received\": %" PRIu64 ", \"bytes_retransmitted\": %" PRIu64,
		harp_congestion_name((enum harp_congestion)info.congestion), info.srtt_ns,
		info.snd_mss_bytes, info.rcv_mss_bytes, info.options, info.retransmits,
		info.bytes_acked, info.bytes_received, info.bytes_retransmitted);
}

static void describe_instance(struct harp_instance *instance, FILE *out)
{
	struct harp_nic_stats nic = { 0 };
	uint64_t counts[32] = { 0 }, value;
	int verdicts = harp_instance_steering(instance, counts, 32);

	fprintf(out, ", \"path\": \"%s\", \"steering\": {", harp_instance_describe(instance));
	for (int i = 0; i < verdicts && i < 32; i++)
		fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", harp_steering_name((unsigned)i),
			counts[i]);
	fprintf(out, "}, \"stats\": {");
	for (unsigned i = 0; i < harp_stats_count(); i++) {
		value = 0;
		harp_stack_stat(harp_instance_stack(instance), harp_stats_name(i), &value);
		fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", harp_stats_name(i), value);
	}
	harp_instance_nic(instance)->ops->stats(harp_instance_nic(instance), &nic);
	fprintf(out,
		"}, \"nic\": {\"rx_dropped\": %" PRIu64 ", \"rx_ring_full\": %" PRIu64
		", \"rx_fill_empty\": %" PRIu64 ", \"tx_invalid\": %" PRIu64 ", \"kicks\": %" PRIu64
		", \"copied_bytes\": %" PRIu64 ", \"driver_copied_bytes\": %" PRIu64 "}",
		nic.rx_dropped, nic.rx_ring_full, nic.rx_fill_empty, nic.tx_invalid, nic.kicks,
		nic.copied_bytes, nic.driver_copied_bytes);
}

static void harp_describe(struct stream_host *host, struct stream *s, FILE *out)
{
	fprintf(out, "{\"kind\": \"harp\"");
	if (s)
		describe_conn(self(s)->conn, out);
	if (host)
		describe_instance(streams(host)->instance, out);
	fprintf(out, "}");
}

static void harp_close(struct stream_host *host)
{
	struct harp_streams *h = streams(host);
	uint64_t end_ns = stream_clock_ns() + 50000000u;

	/* Send the FIN and the last ACK; the stack drops everything else. */
	while (h->stack && stream_clock_ns() < end_ns) {
		harp_stack_poll(h->stack, stream_clock_ns());
		sched_yield();
	}
	harp_instance_close(h->instance);
	free(h);
}

struct stream_host *stream_harp(void)
{
	static const struct stream_ops ops = {
		.open = harp_open,
		.listen = harp_listen,
		.accept = harp_accept,
		.connect = harp_connect,
		.connected = harp_connected,
		.send = harp_send,
		.recv = harp_recv,
		.recv_in_place = harp_recv_in_place,
		.memory_add = harp_memory_add,
		.memory_remove = harp_memory_remove,
		.send_in_place = harp_send_in_place,
		.shutdown = harp_shutdown,
		.hangup = harp_hangup,
		.turn = harp_turn,
		.describe = harp_describe,
		.close = harp_close,
	};
	struct harp_streams *h = calloc(1, sizeof(*h));

	if (h)
		h->host.ops = &ops;
	return h ? &h->host : NULL;
}
