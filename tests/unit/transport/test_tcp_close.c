/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_close.c - every way to end: both orders of FIN, half close, resets, TIME-WAIT. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* The peer sends FIN. */
static void peer_fin(void)
{
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	rig_poll(&rig);
}

static void peer_acks(void)
{
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
}

/* Our FIN has left. */
static void expect_fin(void)
{
	const struct rig_seg *s = rig_expect(&rig, TCP_ACK | TCP_FIN | TCP_PSH);

	rig.ack = s->seq + s->len + 1;
}

TEST(abort_and_bytes_before_a_reset)
{
	uint8_t buf[64];

	rig_begin(&rig, NULL);
	rig_sends(&rig, TCP_ACK, 20);
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0));
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 20); /* what came before it */
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), -ECONNRESET);
	harp_conn_abort(rig.conn); /* dead already: no RST for an RST */
	rig.conn = NULL;
	rig.out_head = rig.out_tail;
	rig_poll(&rig);
	rig_silent(&rig);
	rig.seq = RIG_PEER_ISS;
	rig_established(&rig, NULL);
	harp_conn_abort(rig.conn);
	rig.conn = NULL;
	rig_poll(&rig);
	rig_expect(&rig, TCP_RST | TCP_ACK);
}

TEST(time_wait_slots_are_taken_back)
{
	rig_open(&rig); /* eight slots */
	for (unsigned i = 0; i < 12; i++) {
		rig.seq = RIG_PEER_ISS;
		rig_established(&rig, NULL);
		rig_app_closes(&rig);
		expect_fin();
		peer_fin();
		rig_expect(&rig, TCP_ACK);
		rig.out_head = rig.out_tail;
		rig_events(&rig);
	}
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 8);
}

static unsigned descriptors; /* that ports may take */

static int port_takes(void *ctx, uint16_t port)
{
	if (descriptors == 0)
		return -EMFILE;
	descriptors--;
	return 0;
}

static void port_gives_back(void *ctx, uint16_t port)
{
	descriptors++;
}

/* A port is held by a descriptor: without another one TIME-WAIT gives way to who connects, and nobody else. */
TEST(time_wait_gives_its_port_back)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	struct harp_conn *conn;

	rig_open(&rig);
	rig.stack->tcp.ports.acquire = port_takes;
	rig.stack->tcp.ports.release = port_gives_back;
	descriptors = 1;
	rig_established(&rig, NULL);
	CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, NULL, &conn), -EMFILE);
	rig_app_closes(&rig);
	expect_fin();
	CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, NULL, &conn), -EMFILE);
	peer_fin();
	rig_expect(&rig, TCP_ACK);
	rig_events(&rig);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 1);
	rig.seq = RIG_PEER_ISS;
	rig_established(&rig, NULL);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 1);
	CHECK_EQ(descriptors, 0);
	rig_close(&rig);
	CHECK_EQ(descriptors, 1);
}

/* The port of the connection that is closed now. */
static uint16_t closed_into_time_wait(void)
{
	uint16_t port;

	rig.seq = RIG_PEER_ISS;
	rig_established(&rig, NULL);
	port = rig.port;
	rig_app_closes(&rig);
	expect_fin();
	peer_fin();
	rig_expect(&rig, TCP_ACK);
	rig_silent(&rig);
	rig_events(&rig);
	return port;
}

/* Hundreds of connections come and go: those in TIME-WAIT hold a bounded number of ports, the
 * newest ones. */
TEST(time_wait_holds_few_ports)
{
	uint16_t newest = 0;

	rig_open_conns(&rig, 64);
	rig.stack->tcp.ports.acquire = port_takes;
	rig.stack->tcp.ports.release = port_gives_back;
	descriptors = TCP_TIME_WAIT_PORTS_MAX + 1;
	for (unsigned i = 1; i <= 330; i++) {
		newest = closed_into_time_wait();
		CHECK_EQ(rig_stat(&rig, "tcp_conns"),
			 i < TCP_TIME_WAIT_PORTS_MAX ? i : TCP_TIME_WAIT_PORTS_MAX);
	}
	CHECK_EQ(descriptors, 1);
	CHECK(port_used(&rig.stack->tcp.ports, newest));
	rig_wait(&rig, 61 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
	CHECK_EQ(descriptors, TCP_TIME_WAIT_PORTS_MAX + 1);
}

/* FINs of one burst: the one that has to go has not acknowledged its FIN yet. */
TEST(time_wait_gives_way_acknowledged)
{
	enum { CONNS = TCP_TIME_WAIT_PORTS_MAX + 1 };
	struct {
		uint16_t port;
		uint32_t seq, ack;
	} peers[CONNS];

	rig_open_conns(&rig, 64);
	rig.timestamps = false; /* they would differ */
	for (unsigned i = 0; i < CONNS; i++) {
		rig.seq = RIG_PEER_ISS;
		rig_established(&rig, NULL);
		rig_app_closes(&rig);
		expect_fin();
		peer_acks();
		rig_poll(&rig);
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

static void peer_says(uint16_t peer_port, struct rig_say say)
{
	say.peer_port = peer_port;
	rig_says(&rig, say);
}

/* Those that were accepted share their listener's port, and are not counted. */
TEST(accepted_time_wait_is_not_bounded)
{
	rig_open_conns(&rig, 64);
	rig_listen(&rig, 64);
	for (uint16_t i = 1; i <= 2 * TCP_TIME_WAIT_PORTS_MAX; i++) {
		uint16_t peer_port = (uint16_t)(RIG_PEER_PORT + i);

		rig.seq = RIG_PEER_ISS;
		peer_says(peer_port, rig_syn(&rig, TCP_SYN));
		rig.ack = rig_expect(&rig, TCP_SYN | TCP_ACK)->seq + 1;
		rig.seq++;
		peer_says(peer_port, rig_usual(&rig, TCP_ACK, 0));
		CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
		rig_app_closes(&rig);
		expect_fin();
		peer_says(peer_port, rig_usual(&rig, TCP_ACK | TCP_FIN, 0));
		rig_poll(&rig);
		rig.seq++;
		rig_expect(&rig, TCP_ACK);
		CHECK_EQ(rig_stat(&rig, "tcp_conns"), i);
	}
}

/* RFC 9293 section 3.10.4, SYN-SENT and SYN-RECEIVED: "queue this until entering ESTABLISHED". */
TEST(closed_for_sending_while_connecting)
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
	rig.ack++;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(rig.conn->state, HARP_TCP_FIN_WAIT_2);
}

/* A FIN takes a sequence number, and so room in the window (RFC 9293 section 3.4): one that leaves behind a closed window
 * would be dropped, and then wait for a time-out that had backed off. */
static void test_a_fin_waits_for_the_window(uint32_t bytes)
{
	static uint8_t data[400];
	struct iovec iov = { data, bytes };
	struct rig_say say;

	rig_begin(&rig, NULL);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.wnd = bytes >> 2; /* its scale */
	rig_says(&rig, say);
	if (bytes > 0) /* they fill it, and the FIN would leave with them */
		CHECK_EQ(harp_conn_send(rig.conn, &iov, 1), bytes);
	rig_app_closes(&rig);
	if (bytes > 0) {
		say.ack = rig.ack = rig_expect(&rig, TCP_ACK)->seq + bytes;
		say.wnd = 0;
		rig_says(&rig, say);
	}
	CHECK_EQ(rig_pending(&rig), 0);
	for (unsigned i = 0; i < 100; i++) { /* 10 s; probes are answered */
		rig_wait(&rig, 100 * RIG_MS);
		while (rig_pending(&rig) > 0) {
			CHECK(!(rig.out[rig.out_head++ % RIG_QUEUE].flags & TCP_FIN));
			rig_says(&rig, say);
		}
	}
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	rig_poll(&rig);
	rig.ack = rig_expect(&rig, TCP_ACK | TCP_FIN | TCP_PSH)->seq + 1;
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 0));
	rig_poll(&rig);
	rig_wait(&rig, 61 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
	rig.out_head = rig.out_tail;
	rig_close(&rig);
}

int main(void)
{
	check_run();
	test_a_fin_waits_for_the_window(0);
	test_a_fin_waits_for_the_window(400);
	return check_done();
}
