/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_mtu.c - packetization layer path MTU discovery (RFC 4821) between two stacks, over a
 * path that drops large packets silently: black holes are detected, the search finds the MTU, and
 * no byte is lost.
 *
 * The path is two queues between callback NICs, with a delay, a limit on the size of IP packets
 * that may change at any time, and random loss.
 */
#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "stack/stack.h"

#define PATH_PACKETS 4096u
#define PATH_BYTES 9100u
#define STEP_NS 100000u
#define DELAY_NS 200000u
#define MS 1000000ull
#define S 1000000000ull
#define PORT 7000

struct packet {
	uint64_t due_ns;
	uint32_t len;
	uint8_t bytes[PATH_BYTES];
};

/* Packets on the way from one side to the other. */
struct path {
	struct packet *ring;
	unsigned head, tail;
	uint64_t swallowed;
};

struct side {
	struct path *in, *out;
	struct harp_nic *nic;
	struct harp_stack *stack;
};

static struct {
	struct path paths[2];
	struct side sides[2];
	struct harp_listener *listener;
	struct harp_conn *from, *to;
	uint64_t now_ns, sent, received;
	uint32_t mtu_bytes, loss_ppm;
	struct rng rng;
} net;

static size_t net_receive(void *ctx, void *buf, size_t cap)
{
	struct path *path = ((struct side *)ctx)->in;
	struct packet *p = &path->ring[path->head % PATH_PACKETS];

	if (path->head == path->tail || p->due_ns > net.now_ns)
		return 0;
	CHECK(p->len <= cap);
	memcpy(buf, p->bytes, p->len);
	path->head++;
	return p->len;
}

static int net_send(void *ctx, const void *frame, size_t len)
{
	struct path *path = ((struct side *)ctx)->out;
	struct packet *p = &path->ring[path->tail % PATH_PACKETS];

	CHECK(len <= PATH_BYTES && path->tail - path->head < PATH_PACKETS);
	if (len - 14 > net.mtu_bytes || rng_below(&net.rng, 1000000) < net.loss_ppm) {
		path->swallowed++;
		return 0;
	}
	p->due_ns = net.now_ns + DELAY_NS;
	p->len = (uint32_t)len;
	memcpy(p->bytes, frame, len);
	path->tail++;
	return 0;
}

static uint64_t stat_of(int side, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(net.sides[side].stack, name, &value), 0);
	return value;
}

static uint8_t byte_of(uint64_t at)
{
	return (uint8_t)(at * 7 + (at >> 8) * 3 + (at >> 16));
}

static void step(uint64_t step_ns)
{
	static uint8_t buf[65536];
	ssize_t n;

	for (int i = 0; i < 2; i++)
		harp_stack_poll(net.sides[i].stack, net.now_ns);
	while (net.to && (n = harp_conn_recv(net.to, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < n; i++) {
			if (buf[i] != byte_of(net.received + (uint64_t)i)) {
				CHECK_EQ(buf[i], byte_of(net.received + (uint64_t)i));
				break;
			}
		}
		net.received += (uint64_t)n;
	}
	net.now_ns += step_ns;
}

static void set_up(bool v6, uint32_t nic_mtu_bytes, uint32_t loss_ppm)
{
	struct harp_endpoint at = { .port = PORT };
	struct harp_tcp_options tcp = { .size = sizeof(tcp) };

	net.now_ns = 10 * S;
	net.sent = net.received = 0;
	net.mtu_bytes = nic_mtu_bytes;
	net.loss_ppm = 0;
	net.from = net.to = NULL;
	rng_seed(&net.rng, 7);
	for (unsigned i = 0; i < 2; i++) {
		struct side *s = &net.sides[i];
		struct harp_nic_callbacks nic = { .size = sizeof(nic),
						  .mtu_bytes = nic_mtu_bytes,
						  .mac = { 2, 0, 0, 0, 0, (uint8_t)(1 + i) },
						  .ctx = s,
						  .receive = net_receive,
						  .send = net_send };
		struct harp_stack_options options = {
			.size = sizeof(options), .max_conns = 4, .now_ns = net.now_ns, .seed = i + 1
		};
		struct harp_addr own = harp_addr_v4(10, 0, 0, (uint8_t)(1 + i));

		if (v6)
			own = (struct harp_addr){ { 0xfd, [15] = (uint8_t)(1 + i) } };
		net.paths[i].head = net.paths[i].tail = 0;
		net.paths[i].swallowed = 0;
		s->in = &net.paths[1 - i];
		s->out = &net.paths[i];
		CHECK_EQ(harp_nic_callback_create(&s->nic, &nic), 0);
		CHECK_EQ(harp_stack_create(&s->stack, s->nic, &options), 0);
		CHECK_EQ(harp_stack_address_add(s->stack, &own, v6 ? 64 : 24), 0);
		at.addr = own;
	}
	CHECK_EQ(harp_tcp_listen(net.sides[1].stack, &at, &tcp, &net.listener), 0);
	CHECK_EQ(harp_tcp_connect(net.sides[0].stack, NULL, &at, &tcp, &net.from), 0);
	for (int i = 0; i < 10000 && !net.to; i++) {
		step(STEP_NS);
		(void)harp_tcp_accept(net.listener, &net.to);
	}
	CHECK(net.to != NULL);
	net.loss_ppm = loss_ppm;
}

static void tear_down(void)
{
	harp_conn_abort(net.from);
	harp_conn_abort(net.to);
	harp_listener_close(net.listener);
	net.to = NULL;
	for (int i = 0; i < 3; i++)
		step(STEP_NS);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(stat_of(i, "frames_tcp_tx"), 0);
		CHECK_EQ(stat_of(i, "frames_tcp_rx"), 0);
		harp_stack_destroy(net.sides[i].stack);
		harp_nic_destroy(net.sides[i].nic);
	}
}

/* Bytes flow for so long; how many arrived. */
static uint64_t flow(uint64_t ns)
{
	static uint8_t buf[16384];
	uint64_t until_ns = net.now_ns + ns, before = net.received;

	while (net.now_ns < until_ns) {
		size_t room = harp_conn_send_space(net.from);
		struct iovec iov = { buf, room < sizeof(buf) ? room : sizeof(buf) };
		ssize_t n;

		for (size_t i = 0; i < iov.iov_len; i++)
			buf[i] = byte_of(net.sent + i);
		n = harp_conn_send(net.from, &iov, 1);
		if (n > 0)
			net.sent += (uint64_t)n;
		step(STEP_NS);
	}
	return net.received - before;
}

/* Time passes; nothing is sent. */
static void idle(uint64_t ns)
{
	uint64_t until_ns = net.now_ns + ns;

	while (net.now_ns < until_ns)
		step(net.received < net.sent ? STEP_NS : 100 * MS);
	CHECK_EQ(net.received, net.sent);
}

static uint32_t headers(bool v6)
{
	return (v6 ? 40 : 20) + 20 + 12;
}

/* The path's MTU is reduced without an ICMP error. */
static void test_black_hole(bool v6, uint32_t nic_mtu_bytes, uint32_t path_mtu_bytes)
{
	uint32_t top = nic_mtu_bytes - headers(v6), fits = path_mtu_bytes - headers(v6);
	uint64_t repairs;

	set_up(v6, nic_mtu_bytes, 0);
	flow(20 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, top);
	CHECK_EQ(stat_of(0, "tcp_retransmits"), 0);
	net.mtu_bytes = path_mtu_bytes;
	for (int i = 0; i < 1000 && stat_of(0, "tcp_mtu_black_holes") == 0; i++)
		flow(1 * MS);
	CHECK_EQ(stat_of(0, "tcp_mtu_black_holes"), 1);
	/* The search begins after the recovery. */
	for (int i = 0; i < 1000 && stat_of(0, "tcp_mtu_probes") == 0; i++)
		flow(STEP_NS);
	CHECK_EQ(stat_of(0, "tcp_mtu_probes"), 1);
	CHECK(stat_of(0, "tcp_resegmented") > 0);
	/* The size found is within 16 bytes, and lost probes were no congestion signal. */
	repairs = stat_of(0, "tcp_fast_retransmits") + stat_of(0, "tcp_rto");
	flow(500 * MS);
	CHECK(net.from->snd.mss_bytes <= fits && net.from->snd.mss_bytes + 16u > fits);
	CHECK(stat_of(0, "tcp_mtu_probes_lost") >= 3);
	CHECK_EQ(stat_of(0, "tcp_fast_retransmits") + stat_of(0, "tcp_rto"), repairs);
	/* The search is over: no probe for ten minutes. */
	repairs = stat_of(0, "tcp_mtu_probes");
	flow(200 * MS);
	CHECK_EQ(stat_of(0, "tcp_mtu_probes"), repairs);
	idle(700 * S);
	net.mtu_bytes = nic_mtu_bytes;
	flow(100 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, top);
	CHECK_EQ(stat_of(0, "tcp_mtu_black_holes"), 1);
	idle(1 * S);
	tear_down();
}

static void limit_segments(uint32_t mss_bytes)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };

	CHECK_EQ(harp_conn_options(net.from, &opt), 0);
	opt.mss_bytes = mss_bytes;
	CHECK_EQ(harp_conn_set_options(net.from, &opt), 0);
}

AFTER_EACH(tear_down())

/* The application limits segments while a probe of the path is on its way: the probe that arrives
 * raises nothing above the limit, and without the limit the search goes on. */
TEST(an_application_limit_bounds_the_search)
{
	uint32_t top = 9000 - headers(false), fits = 4000 - headers(false);
	uint64_t probes;

	set_up(false, 9000, 0);
	net.mtu_bytes = 4000;
	for (int i = 0;
	     i < 10000 && (net.from->mtu.state != MTU_PROBING || net.from->mtu.probe_bytes > fits);
	     i++)
		flow(STEP_NS);
	CHECK_EQ(net.from->mtu.state, MTU_PROBING);
	CHECK(net.from->snd.mss_bytes > 600);
	limit_segments(600);
	probes = stat_of(0, "tcp_mtu_probes");
	for (int i = 0; i < 100; i++) {
		flow(MS);
		CHECK_EQ(net.from->snd.mss_bytes, 588);
	}
	CHECK_EQ(stat_of(0, "tcp_mtu_probes"), probes);
	limit_segments(3000);
	flow(500 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, 2988);
	/* As after the handshake: the largest size, until the black hole is detected. */
	limit_segments(0);
	CHECK_EQ(net.from->mtu.top_bytes, top);
	flow(2000 * MS);
	CHECK(net.from->snd.mss_bytes <= fits && net.from->snd.mss_bytes + 16u > fits);
	idle(1 * S);
}

/* A small MTU from the beginning: the handshake passes, data does not. */
static void test_narrow_from_the_beginning(bool v6)
{
	uint32_t fits = 1380 - headers(v6);

	set_up(v6, 1500, 0);
	net.mtu_bytes = 1380;
	flow(1200 * MS);
	CHECK(net.from->snd.mss_bytes <= fits && net.from->snd.mss_bytes + 16u > fits);
	idle(1 * S);
	tear_down();
}

/* IPv4 has a second base below the first. */
TEST(a_path_below_the_base_mtu_is_found)
{
	set_up(false, 1500, 0);
	net.mtu_bytes = 600;
	flow(4 * S);
	CHECK_EQ(stat_of(0, "tcp_mtu_black_holes"), 2);
	CHECK(net.from->snd.mss_bytes <= 548 && net.from->snd.mss_bytes >= 500);
	idle(1 * S);
}

/* An outage looks like a black hole: large segments return after it. */
static void test_dead_for_a_while(bool v6)
{
	set_up(v6, 1500, 0);
	flow(20 * MS);
	net.mtu_bytes = 0;
	flow(2 * S);
	net.mtu_bytes = 1500;
	flow(1500 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, 1500 - headers(v6));
	idle(1 * S);
	tear_down();
}

/* With random loss in addition, every byte arrives. */
static void test_losses_besides(bool v6)
{
	set_up(v6, 1500, 10000);
	for (int i = 0; i < 4; i++) {
		net.mtu_bytes = i % 2 ? 1300 : 1500;
		CHECK(flow(1 * S) > 0);
	}
	idle(3 * S);
	CHECK(stat_of(0, "tcp_mtu_probes") > 0);
	tear_down();
}

int main(void)
{
	for (int i = 0; i < 2; i++) {
		net.paths[i].ring = calloc(PATH_PACKETS, sizeof(struct packet));
		if (!net.paths[i].ring)
			return 1;
	}
	for (int v6 = 0; v6 < 2; v6++) {
		test_black_hole(v6, 1500, 1400);
		test_black_hole(v6, 9000, 1500);
		test_black_hole(v6, 9000, 4000);
		test_narrow_from_the_beginning(v6);
		test_dead_for_a_while(v6);
		test_losses_besides(v6);
	}
	check_run();
	free(net.paths[0].ring);
	free(net.paths[1].ring);
	return check_done();
}
