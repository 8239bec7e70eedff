/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_close.c - TIME-WAIT: its slots and ports, and connects that reuse its 4-tuple; FIN
 * before ESTABLISHED. */
#include "rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static void peer_sends(uint8_t flags, uint32_t len)
{
	rig_sends(&rig, flags, len);
	rig_poll(&rig);
}

/* Connects and closes before the peer, into TIME-WAIT. Returns the connection's port. */
static uint16_t connect_and_close(void)
{
	rig_established(&rig, NULL);
	rig_app_closes(&rig);
	rig_expect_fin(&rig);
	peer_sends(TCP_ACK | TCP_FIN, 0);
	rig_expect(&rig, TCP_ACK);
	rig_silent(&rig);
	rig_events(&rig);
	return rig.port;
}

TEST(a_connect_takes_a_slot_of_time_wait)
{
	rig_open(&rig); /* eight slots */
	for (unsigned i = 0; i < 12; i++)
		connect_and_close();
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 8);
}

static unsigned descriptors; /* left for ports */

static int take_descriptor(void *ctx, uint8_t protocol, uint16_t port)
{
	if (descriptors == 0)
		return -EMFILE;
	descriptors--;
	return 0;
}

static void return_descriptor(void *ctx, uint8_t protocol, uint16_t port)
{
	descriptors++;
}

/* Hundreds of connections open and close. Only the newest ones stay in TIME-WAIT, so they hold a
 * bounded number of ports. */
TEST(time_wait_holds_a_bounded_number_of_ports)
{
	uint16_t newest = 0;

	rig_open_conns(&rig, 64);
	rig.stack->options.hooks.port_acquire = take_descriptor;
	rig.stack->options.hooks.port_release = return_descriptor;
	descriptors = TCP_TIME_WAIT_PORTS_MAX + 1;
	for (unsigned i = 1; i <= 330; i++) {
		newest = connect_and_close();
		CHECK_EQ(rig_stat(&rig, "tcp_conns"),
			 i < TCP_TIME_WAIT_PORTS_MAX ? i : TCP_TIME_WAIT_PORTS_MAX);
	}
	CHECK_EQ(descriptors, 1);
	CHECK(port_used(&rig.stack->tcp.ports, newest));
	rig_wait(&rig, 61 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
	CHECK_EQ(descriptors, TCP_TIME_WAIT_PORTS_MAX + 1);
}

/* FINs arrive in one burst: a connection acknowledges its FIN before it loses its slot. */
TEST(time_wait_acknowledges_the_fin_before_it_is_evicted)
{
	enum { CONNS = TCP_TIME_WAIT_PORTS_MAX + 1 };
	struct {
		uint16_t port;
		uint32_t seq, ack;
	} peers[CONNS];

	rig_open_conns(&rig, 64);
	rig.timestamps = false; /* connections would differ in their TSecr */
	for (unsigned i = 0; i < CONNS; i++) {
		rig.seq = RIG_PEER_ISS;
		rig_established(&rig, NULL);
		rig_app_closes(&rig);
		rig_expect_fin(&rig);
		peer_sends(TCP_ACK, 0);
		peers[i].port = rig.port;
		peers[i].seq = rig.seq;
		peers[i].ack = rig.ack;
	}
	rig_silent(&rig);
	for (unsigned i = 0; i < CONNS; i++) {
		rig.port = peers[i].port;
		rig.seq = peers[i].seq;
		rig.ack = peers[i].ack;
		rig_put(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 0));
	}
	rig_poll(&rig);
	for (unsigned i = 0; i < CONNS; i++)
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq + 1);
	rig_silent(&rig);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), TCP_TIME_WAIT_PORTS_MAX);
}

/* Accepted connections share their listener's port, so the limit does not apply. */
TEST(accepted_time_wait_is_not_bounded)
{
	rig_open_conns(&rig, 64);
	rig_listen(&rig, 64);
	for (uint16_t i = 1; i <= 2 * TCP_TIME_WAIT_PORTS_MAX; i++) {
		rig.seq = RIG_PEER_ISS;
		rig.peer_port = (uint16_t)(RIG_PEER_PORT + i);
		rig_accept(&rig);
		rig_app_closes(&rig);
		rig_expect_fin(&rig);
		peer_sends(TCP_ACK | TCP_FIN, 0);
		rig_expect(&rig, TCP_ACK);
		CHECK_EQ(rig_stat(&rig, "tcp_conns"), i);
	}
}

/* RFC 9293 section 3.10.4, SYN-SENT and SYN-RECEIVED: "queue this until entering ESTABLISHED". */
TEST(a_shutdown_while_connecting_is_queued)
{
	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_WR), 0);
	rig_poll(&rig);
	rig_silent(&rig);
	rig_says(&rig, rig_syn(&rig, TCP_SYN | TCP_ACK));
	rig.seq++;
	CHECK(rig.out[(rig.out_tail - 1) % RIG_QUEUE].flags & TCP_FIN);
	CHECK_EQ(rig.conn->state, HARP_TCP_FIN_WAIT_1);
	rig.out_head = rig.out_tail;
	rig_acks(&rig, 1);
	CHECK_EQ(rig.conn->state, HARP_TCP_FIN_WAIT_2);
}

static void shut_down_into_time_wait(void)
{
	rig_app_shuts(&rig);
	peer_sends(TCP_ACK, 0);
	peer_sends(TCP_ACK | TCP_FIN, 0);
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(rig.conn->state, HARP_TCP_TIME_WAIT);
}

static void close_into_time_wait(void)
{
	shut_down_into_time_wait();
	harp_conn_close(rig.conn);
	rig.conn = NULL;
}

/* Connects again from the port of the connection in TIME-WAIT. */
static int connect_again_with(const struct harp_tcp_options *opt)
{
	struct harp_endpoint local = { .port = rig.port };
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };

	return harp_tcp_connect(rig.stack, &local, &remote, opt, &rig.conn);
}

static int connect_again(void)
{
	return connect_again_with(NULL);
}

TEST(a_connect_takes_over_time_wait_after_a_second)
{
	uint32_t old_nxt, old_seq, old_tsval, own_tsval;
	const struct rig_seg *s;
	struct rig_say say;

	rig_begin(&rig, NULL);
	/* So much data that the sequence numbers are ahead of the ISN clock. */
	for (unsigned i = 0; i < 1000; i++) {
		s = rig_writes(&rig, 1000);
		rig.ack += s->len;
		peer_sends(TCP_ACK, 0);
	}
	own_tsval = s->opt.tsval;
	close_into_time_wait();
	old_nxt = rig.ack;
	old_seq = rig.seq;
	old_tsval = rig.tsval;
	/* Reuse waits until the timestamp clocks of both ends have ticked, which takes up to a
	 * second. */
	rig_wait(&rig, RIG_S - 1);
	CHECK_EQ(connect_again(), -EADDRINUSE);
	rig_wait(&rig, 1);
	CHECK_EQ(connect_again(), 0);
	rig_poll(&rig);
	s = rig_expect(&rig, TCP_SYN);
	CHECK_EQ(s->src_port, rig.port);
	CHECK(seq_gt(s->seq, old_nxt));
	CHECK((int32_t)(s->opt.tsval - own_tsval) > 0);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 1);
	rig.ack = s->seq + 1;
	/* The peer did not receive the ACK of its FIN and retransmits it; the stack answers with a
	 * RST. */
	say = rig_usual(&rig, TCP_ACK | TCP_FIN, 0);
	say.seq = old_seq - 1;
	say.ack = old_nxt;
	rig_says(&rig, say);
	CHECK_EQ(rig_expect(&rig, TCP_RST)->seq, old_nxt);
	rig.tsval += 1000;
	rig.seq = old_seq - 100; /* the peer's ISN is among its old sequence numbers */
	rig_syn_acked(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	/* PAWS rejects an old segment in the window. */
	rig.tsval = old_tsval;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 50));
	CHECK_EQ(rig_stat(&rig, "drop_tcp_paws"), 1);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
}

/* The 4-tuple is not reused unless both connections have timestamps, because old and new segments
 * cannot be distinguished. Nor is it while the application holds the connection, or if the
 * connection was accepted. */
TEST(a_connect_does_not_take_over_time_wait)
{
	rig_open(&rig);
	rig.timestamps = false;
	rig_established(&rig, NULL);
	close_into_time_wait();
	rig_wait(&rig, 59 * RIG_S);
	CHECK_EQ(connect_again(), -EADDRINUSE);
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(connect_again(), 0);
	rig_close(&rig);

	rig_begin(&rig, NULL);
	shut_down_into_time_wait();
	rig_wait(&rig, 2 * RIG_S);
	struct harp_conn *old_conn = rig.conn;

	CHECK_EQ(connect_again(), -EADDRINUSE);
	harp_conn_close(old_conn);
	CHECK_EQ(connect_again_with(RIG_OPTIONS(.options_off = HARP_TCPI_TIMESTAMPS)), -EADDRINUSE);
	CHECK_EQ(connect_again(), 0);
	rig_close(&rig);

	/* An accepted connection whose listener is closed. */
	rig_open(&rig);
	rig_listen(&rig, 4);
	rig_accept(&rig);
	harp_listener_close(rig.listener);
	rig.listener = NULL;
	close_into_time_wait();
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(connect_again(), -EADDRINUSE);
	rig_close(&rig);
}
