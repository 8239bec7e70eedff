/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_budget.c - frame budgets that the stack tunes: they follow the reader and share the
 * limit of the pool.
 *
 * The wire has a round trip of 1 ms and 25 Gbit/s. Stack 0 sends. tests/sim/goodput.c shows that
 * tuned budgets fill such a wire.
 */
#include "net_rig.h"

#define CONNS_MAX 16u
#define BASE_FRAMES 256u
#define POLL_NS 2000u

struct flow {
	struct harp_conn *sender, *receiver;
	uint64_t sent, received;
	bool is_writable, is_sending, is_reading;
};

static struct flow flows[CONNS_MAX];
static unsigned flow_count;
static uint64_t polled_ns[2];

static void flows_open(uint32_t frames)
{
	net_open((struct net_setup){
		.wire = { .frame_count = frames,
			  .packets_max = 65536,
			  .seed = 1,
			  .impair = { .delay_ns = MS / 2,
				      .rate_bps = 25000000000,
				      .queue_bytes = 4 << 20 } },
		.stack = { .max_conns = 2 * CONNS_MAX },
	});
	net_listen(0);
	flow_count = 0;
}

static void flows_close(void)
{
	for (unsigned i = 0; i < flow_count; i++) {
		harp_conn_abort(flows[i].sender);
		harp_conn_abort(flows[i].receiver);
	}
	CHECK_EQ(net.stack[1]->tcp.grown_count, 0);
	CHECK_EQ(net.stack[1]->tcp.grown_frames, 0);
	CHECK(TAILQ_EMPTY(&net.stack[1]->tcp.grown));
	net_close();
}

static void flow_send(struct flow *flow)
{
	static uint8_t bytes[65536];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };

	while (flow->is_sending && flow->is_writable) {
		ssize_t n = harp_conn_send(flow->sender, &iov, 1);

		flow->is_writable = n > 0;
		flow->sent += n > 0 ? (uint64_t)n : 0;
		CHECK(n > 0 || n == -EAGAIN);
	}
}

static void flow_read(struct flow *flow)
{
	static uint8_t bytes[65536];
	ssize_t n;

	if (!flow->receiver || !flow->is_reading)
		return;
	while ((n = harp_conn_recv(flow->receiver, bytes, sizeof(bytes))) > 0)
		flow->received += (uint64_t)n;
	CHECK_EQ(n, -EAGAIN);
}

/* Checks the stack's sums against the budgets. */
static void check_grown(void)
{
	const struct tcp *tcp = &net.stack[1]->tcp;
	const struct harp_conn *conn;
	uint32_t count = 0, frames = 0;

	TAILQ_FOREACH(conn, &tcp->grown, link.grown)
	{
		count++;
		frames += conn->frames.rx_budget;
		CHECK(conn->frames.rx_budget > BASE_FRAMES);
		CHECK(conn->budget.rx_frames_limit >= conn->frames.rx_budget);
	}
	CHECK_EQ(count, tcp->grown_count);
	CHECK_EQ(frames, tcp->grown_frames);
}

static void net_poll(unsigned i)
{
	struct harp_conn *conn;
	uint32_t events;

	harp_stack_poll(net.stack[i], net.now_ns);
	polled_ns[i] = net.now_ns;
	while ((conn = harp_stack_next_event(net.stack[i], &events)) != NULL) {
		struct flow *flow = harp_conn_user(conn);

		if (i == 0 && flow && (events & HARP_EVENT_WRITABLE))
			flow->is_writable = true;
	}
	for (unsigned f = 0; f < flow_count; f++) {
		if (i == 0)
			flow_send(&flows[f]);
		else
			flow_read(&flows[f]);
	}
}

static uint64_t net_due_ns(unsigned i)
{
	uint64_t due_ns = net_next_ns(i);

	return due_ns < polled_ns[i] + POLL_NS ? polled_ns[i] + POLL_NS : due_ns;
}

static void net_run(uint64_t ns)
{
	uint64_t until_ns = net.now_ns + ns;

	for (;;) {
		uint64_t due_ns[2] = { net_due_ns(0), net_due_ns(1) };
		uint64_t next_ns = due_ns[0] < due_ns[1] ? due_ns[0] : due_ns[1];

		if (next_ns > until_ns)
			break;
		net.now_ns = next_ns;
		for (unsigned i = 0; i < 2; i++)
			if (due_ns[i] <= next_ns)
				net_poll(i);
	}
	net.now_ns = until_ns;
	net_poll(0);
	net_poll(1);
}

static struct flow *flow_open(uint32_t rx_frames, uint32_t tx_frames)
{
	struct flow *flow = &flows[flow_count++];
	struct harp_tcp_options tcp = { .size = sizeof(tcp), .tx_frames = tx_frames, .user = flow };
	struct harp_endpoint remote = { .addr = net_addr(false, 1), .port = NET_PORT };

	*flow = (struct flow){ .is_reading = true };
	CHECK_EQ(harp_tcp_connect(net.stack[0], NULL, &remote, &tcp, &flow->sender), 0);
	for (unsigned i = 0; i < 100 && !flow->receiver; i++) {
		net_run(MS / 10);
		(void)harp_tcp_accept(net.listener, &flow->receiver);
	}
	CHECK(flow->receiver != NULL);
	if (rx_frames) {
		CHECK_EQ(harp_conn_options(flow->receiver, &tcp), 0);
		tcp.rx_frames = rx_frames;
		CHECK_EQ(harp_conn_set_options(flow->receiver, &tcp), 0);
	}
	return flow;
}

static void flow_start(struct flow *flow)
{
	flow->is_sending = true;
	flow->is_writable = true;
	flow_send(flow);
}

static struct flow *flow_open_sending(void)
{
	struct flow *flow = flow_open(0, 0);

	flow_start(flow);
	return flow;
}

AFTER_EACH(flows_close())

TEST(a_budget_set_by_the_application_is_not_tuned)
{
	struct flow *flow;

	flows_open(65536);
	flow = flow_open(300, 280);
	flow_start(flow);
	net_run(30 * MS);
	CHECK_EQ(flow->receiver->frames.rx_budget, 300);
	CHECK_EQ(flow->sender->frames.tx_budget, 280);
	CHECK_EQ(net.stack[1]->tcp.grown_count, 0);
}

TEST(unread_data_does_not_grow_the_budget)
{
	struct flow *flow;

	flows_open(65536);
	flow = flow_open_sending();
	flow->is_reading = false;
	net_run(30 * MS);
	CHECK_EQ(flow->receiver->frames.rx_budget, BASE_FRAMES);
}

TEST(a_slow_stream_does_not_grow_its_budget)
{
	static uint8_t bytes[16384];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct flow *flow;

	flows_open(65536);
	flow = flow_open(0, 0);
	for (unsigned i = 0; i < 1000; i++) { /* 32 KiB per round trip */
		CHECK_EQ(harp_conn_send(flow->sender, &iov, 1), sizeof(bytes));
		net_run(MS / 2);
	}
	CHECK_EQ(flow->receiver->frames.rx_budget, BASE_FRAMES);
}

TEST(many_connections_share_the_pool)
{
	uint32_t limit;
	uint64_t min_received = UINT64_MAX;

	flows_open(6144);
	limit = net.stack[1]->tcp.shared_frames / 2;
	for (unsigned i = 0; i < CONNS_MAX / 2; i++)
		flow_open_sending();
	for (unsigned i = 0; i < 100; i++) {
		net_run(MS);
		check_grown();
		CHECK(net.stack[1]->pool.free_count > 0);
		CHECK_EQ(net.stack[1]->io.fill_held, net.stack[1]->io.fill_target);
	}
	/* Until the other connections are measured, a share may exceed what they leave. */
	CHECK(net.stack[1]->tcp.grown_frames <= limit + limit / 2);
	for (unsigned i = 0; i < flow_count; i++)
		min_received = flows[i].received < min_received ? flows[i].received : min_received;
	CHECK(min_received > 1000000);
	CHECK_EQ(net.stack[1]->stats.drop_tcp_rx_budget, 0);
}

/* One connection has grown to the limit. When others start, its budget shrinks, the right edge of
 * its window does not move left, and data in flight is accepted. */
TEST(the_first_connection_returns_its_surplus)
{
	struct flow *first;
	uint32_t frames_alone;

	flows_open(8192);
	first = flow_open_sending();
	net_run(30 * MS);
	frames_alone = first->receiver->frames.rx_budget;
	CHECK(frames_alone > 1500);
	for (unsigned i = 0; i < 3; i++)
		flow_open_sending();
	net_run(100 * MS);
	check_grown();
	CHECK(first->receiver->frames.rx_budget < frames_alone);
	CHECK_EQ(net.stack[1]->stats.drop_tcp_rx_budget, 0);
	CHECK_EQ(net.stack[1]->stats.drop_tcp_window, 0);
}

TEST(an_idle_connection_returns_its_share)
{
	struct flow *first, *second;

	flows_open(8192);
	first = flow_open_sending();
	net_run(30 * MS);
	CHECK(first->receiver->on_list.grown);
	first->is_sending = false;
	net_run(2 * S);
	CHECK(first->receiver->on_list.grown); /* no other connection needs it */
	second = flow_open_sending();
	net_run(30 * MS);
	CHECK(!first->receiver->on_list.grown);
	CHECK_EQ(first->receiver->frames.rx_budget, BASE_FRAMES);
	CHECK(second->receiver->frames.rx_budget > 1500);
	/* It grows again when it sends. */
	second->is_sending = false;
	flow_start(first);
	net_run(60 * MS);
	check_grown();
	CHECK(first->receiver->on_list.grown);
	CHECK(first->receiver->frames.rx_budget > 1500); /* the pause was not the round trip */
	CHECK_EQ(net.stack[1]->stats.drop_tcp_rx_budget, 0);
}

/* Senders leave free frames in the pool, so all of them make progress. */
TEST(senders_share_the_pool)
{
	flows_open(6144);
	for (unsigned i = 0; i < 4; i++)
		flow_open_sending();
	net_run(50 * MS);
	for (unsigned i = 0; i < 4; i++) {
		CHECK(flows[i].sender->frames.tx_held <= net.stack[0]->tcp.shared_frames / 2);
		CHECK(flows[i].received > 1000000);
	}
	CHECK(net.stack[0]->pool.free_count > 0);
}

/* Sends what the connection accepts, and returns how many bytes it had received. */
static uint64_t exchange(struct harp_conn *conn)
{
	static uint8_t bytes[16384];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	uint64_t received = 0;
	ssize_t n;

	while ((n = harp_conn_recv(conn, bytes, sizeof(bytes))) > 0)
		received += (uint64_t)n;
	CHECK_EQ(n, -EAGAIN);
	while ((n = harp_conn_send(conn, &iov, 1)) > 0)
		;
	CHECK_EQ(n, -EAGAIN);
	return received;
}

/* Their first frames alone are more than the pool has. Neither stack refuses all data because its
 * own data uses all frames. */
TEST(more_connections_than_the_pool_has_frames_for_send_both_ways)
{
	uint64_t received = 0;

	flows_open(96);
	CHECK(CONNS_MAX * TCP_FRAMES_BUDGET_MIN > net.stack[0]->tcp.shared_frames);
	for (unsigned i = 0; i < CONNS_MAX; i++)
		flow_open(0, 0);
	for (unsigned i = 0; i < 1000; i++) {
		net_run(MS);
		for (unsigned f = 0; f < flow_count; f++) {
			flows[f].received += exchange(flows[f].receiver);
			received += exchange(flows[f].sender);
		}
	}
	for (unsigned f = 0; f < flow_count; f++)
		received += flows[f].received;
	CHECK(received > 10000000);
}
