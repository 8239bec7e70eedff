/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lane_kernel.c - kernel lanes over real sockets. The functions for a lane's system calls are
 * doubles, which count the calls and can fail.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <sys/syscall.h>

#include "base/sockaddr.h"
#include "check.h"
#include "double_env.h"
#include "process/forkguard.h"
#include "lane/kernel_poll.h"
#include "lane/lane.h"

enum { LANES = 16, BULK = 50000 };

/* ---- system calls ---------------------------------------------------------------------------- */

static struct {
	unsigned recv, send, poll, quickack, fail_left;
	int fail_errno;
} calls;

static bool calls_fail(void)
{
	if (!calls.fail_left)
		return false;
	calls.fail_left--;
	errno = calls.fail_errno;
	return true;
}

ssize_t recv(int fd, void *data, size_t len, int flags)
{
	calls.recv++;
	return calls_fail() ? -1 : syscall(SYS_recvfrom, fd, data, len, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	calls.recv++;
	return calls_fail() ? -1 : syscall(SYS_recvmsg, fd, msg, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	calls.send++;
	return calls_fail() ? -1 : syscall(SYS_sendmsg, fd, msg, flags);
}

ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
	calls.send++;
	return calls_fail() ? -1 : syscall(SYS_sendto, fd, from, bytes, flags, NULL, 0);
}

int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	struct timespec none = { 0, 0 };

	CHECK_EQ(timeout_ms, 0);
	calls.poll++;
	return (int)syscall(SYS_ppoll, fds, count, &none, NULL, 0);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	calls.quickack += level == IPPROTO_TCP && name == TCP_QUICKACK;
	return (int)syscall(SYS_setsockopt, fd, level, name, value, len);
}

static void calls_reset(void)
{
	memset(&calls, 0, sizeof(calls));
}

static unsigned calls_all(void)
{
	return calls.recv + calls.send + calls.poll + calls.quickack;
}

static void calls_make_fail(int error, unsigned times)
{
	calls.fail_errno = error;
	calls.fail_left = times;
}

/* ---- lanes of one comm; the other ends are plain blocking sockets ---------------------------- */

struct rig {
	struct kernel_poll poll;
	struct poller comm;    /* of the comm */
	struct poller outside; /* of lanes before they join */
	int listener;
	unsigned count;
	struct lane *lanes[LANES];
	int fds[LANES], peers[LANES];
};

static void rig_begin_turn(struct rig *r)
{
	kernel_poll_begin(&r->poll, clock_now_ns());
}

static void rig_open(struct rig *r, unsigned count)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);

	memset(r, 0, sizeof(*r));
	poller_init(&r->comm, NULL);
	poller_init(&r->outside, NULL);
	r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	lane_kernel_options(r->listener);
	CHECK(!bind(r->listener, (struct sockaddr *)&addr, len) && !listen(r->listener, LANES) &&
	      !getsockname(r->listener, (struct sockaddr *)&addr, &len));
	for (r->count = 0; r->count < count; r->count++) {
		int *peer = &r->peers[r->count], fd;
		struct harp_endpoint local, remote;
		struct sockaddr_storage from;

		*peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(!connect(*peer, (struct sockaddr *)&addr, len));
		fd = forkguard_accept(r->listener, &from);
		CHECK(fd >= 0);
		r->fds[r->count] = fd;
		sockaddr_to_endpoint(&from, &remote);
		memcpy(&from, &addr, sizeof(addr));
		sockaddr_to_endpoint(&from, &local);
		CHECK_EQ(lane_kernel_adopt(&r->outside, fd, &local, &remote, &r->lanes[r->count]),
			 0);
		lane_kernel_join(r->lanes[r->count], &r->comm, &r->poll);
		CHECK(r->lanes[r->count]->poller == &r->comm);
	}
	calls_reset();
}

static void rig_close_lane(struct rig *r, unsigned i)
{
	if (r->lanes[i])
		r->lanes[i]->ops->close(r->lanes[i], false);
	if (r->peers[i] >= 0)
		close(r->peers[i]);
	r->lanes[i] = NULL;
	r->peers[i] = -1;
}

static void rig_close(struct rig *r)
{
	for (unsigned i = 0; i < r->count; i++)
		rig_close_lane(r, i);
	CHECK(!r->poll.members);
	if (r->listener >= 0)
		close(r->listener);
	r->listener = -1;
	calls_reset();
}

static struct rig rig; /* of the test that runs */
AFTER_EACH(rig_close(&rig))

/* Returns when all bytes are in the lane's socket. Nothing may read them meanwhile. */
static void peer_write(struct rig *r, unsigned i, const void *data, size_t len)
{
	int before = 0, queued = 0;

	CHECK(!ioctl(r->fds[i], FIONREAD, &before));
	CHECK_EQ(write(r->peers[i], data, len), (ssize_t)len);
	while (queued < before + (int)len && !check_failures)
		CHECK(!ioctl(r->fds[i], FIONREAD, &queued));
}

static ssize_t rig_recv(struct rig *r, unsigned i, void *dst, size_t len, unsigned unit)
{
	return r->lanes[i]->ops->recv(r->lanes[i], dst, len, unit);
}

static ssize_t rig_send(struct rig *r, unsigned i, const void *data, size_t len)
{
	struct iovec iov = { (void *)(uintptr_t)data, len };

	return r->lanes[i]->ops->send(r->lanes[i], &iov, 1);
}

/* ---- system calls per record ----------------------------------------------------------------- */

static uint8_t source[BULK + 140], sink[BULK + 140];

static void fill_source(void)
{
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)(i * 7 + (i >> 8));
}

TEST(a_small_record_costs_one_receive)
{
	rig_open(&rig, 1);
	peer_write(&rig, 0, source, 104);
	rig_begin_turn(&rig);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), 40);
	CHECK_EQ(rig_recv(&rig, 0, sink + 40, 64, 8), 64);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), -EAGAIN);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), -EAGAIN);
	CHECK_EQ(calls_all(), 2); /* the second one finds nothing */
	CHECK_MEM(sink, source, 104);
	calls_reset();
	rig_begin_turn(&rig);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), -EAGAIN);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), -EAGAIN);
	CHECK_EQ(calls_all(), 1);
}

/* Receives bytes `from` to `to` of a large payload, which ends at `end`; one receive per turn. */
static void rig_recv_large(struct rig *r, size_t from, size_t to, size_t end)
{
	while (from < to && !check_failures) {
		ssize_t n;

		rig_begin_turn(r);
		n = rig_recv(r, 0, sink + from, end - from, 8);
		CHECK(n > 0 || n == -EAGAIN);
		from += n > 0 ? (size_t)n : 0;
	}
	CHECK_EQ(from, to);
}

TEST(one_call_receives_a_large_payload_and_the_next_header)
{
	rig_open(&rig, 1);
	memset(sink, 0, sizeof(sink));
	peer_write(&rig, 0, source, 40);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), 40);
	peer_write(&rig, 0, source + 40, BULK / 2);
	rig_recv_large(&rig, 40, 40 + BULK / 2, 40 + BULK);
	peer_write(&rig, 0, source + 40 + BULK / 2, BULK / 2 + 100);
	calls_reset();
	rig_recv_large(&rig, 40 + BULK / 2, 40 + BULK, 40 + BULK);
	CHECK_EQ(rig_recv(&rig, 0, sink + 40 + BULK, 40, 1), 40);
	CHECK_EQ(calls_all(), 1);
	/* The next payload is not read ahead: it is received into its own memory. */
	CHECK_EQ(rig_recv(&rig, 0, sink + 80 + BULK, 60, 8), 60);
	CHECK_EQ(calls_all(), 2);
	CHECK_MEM(sink, source, BULK + 140);
}

TEST(only_a_peer_that_waits_for_acknowledgments_gets_them_at_once)
{
	rig_open(&rig, 1);
	calls_reset();
	rig.lanes[0]->ops->acknowledge(rig.lanes[0]);
	CHECK_EQ(calls.quickack, 0);
	lane_kernel_ack_promptly(rig.lanes[0]);
	peer_write(&rig, 0, source, 40);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), 40);
	CHECK_EQ(calls.quickack, 0);
	rig.lanes[0]->ops->acknowledge(rig.lanes[0]);
	CHECK_EQ(calls.quickack, 1);
}

/* ---- several lanes of one comm --------------------------------------------------------------- */

/* Receives on every lane, as a comm does. Returns the lane that had data, or -1. */
static int rig_recv_all(struct rig *r)
{
	int ready_lane = -1;

	rig_begin_turn(r);
	for (unsigned i = 0; i < r->count; i++)
		if (r->lanes[i] && rig_recv(r, i, sink, 40, 1) > 0)
			ready_lane = (int)i;
	return ready_lane;
}

static void rig_drain(struct rig *r)
{
	for (int i = 0; i < 4; i++)
		rig_recv_all(r);
	calls_reset();
}

TEST(an_idle_turn_of_many_lanes_costs_one_system_call_at_most)
{
	rig_open(&rig, LANES);
	rig_drain(&rig);
	for (int turn = 0; turn < 100; turn++)
		CHECK_EQ(rig_recv_all(&rig), -1);
	CHECK(calls_all() <= 100);
	for (int turn = 0; turn < 100; turn++)
		CHECK_EQ(rig_recv_all(&rig), -1);
	CHECK(calls_all() <= 110); /* without events poll() is called every 16th time */
}

TEST(a_message_is_found_on_any_lane)
{
	rig_open(&rig, LANES);
	rig_drain(&rig);
	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < LANES; i++) {
			int ready_lane = -1;

			peer_write(&rig, i, source, 40);
			for (int turn = 0; turn < 16 && ready_lane < 0; turn++)
				ready_lane = rig_recv_all(&rig);
			CHECK_EQ(ready_lane, (int)i);
		}
	}
	/* Small messages on one lane: a receive each, and polls of the other lanes. */
	rig_drain(&rig);
	for (int message = 0; message < 100; message++) {
		peer_write(&rig, 5, source, 40);
		while (rig_recv_all(&rig) < 0 && !check_failures)
			;
	}
	CHECK(calls_all() <= 300);
}

TEST(each_turn_of_the_control_thread_reads_all_lanes)
{
	uint64_t now_ns;

	rig_open(&rig, LANES);
	rig_drain(&rig);
	for (int turn = 0; turn < 200; turn++)
		CHECK_EQ(rig_recv_all(&rig), -1);
	now_ns = clock_now_ns();
	for (unsigned i = 0; i < LANES; i++) {
		peer_write(&rig, i, source, 40);
		now_ns += 100000000;
		kernel_poll_begin(&rig.poll, now_ns);
		CHECK_EQ(rig_recv(&rig, i, sink, 40, 1), 40);
	}
}

TEST(data_before_fin_or_rst_is_read_and_then_the_end)
{
	for (int reset = 0; reset < 2; reset++) {
		struct linger linger = { 1, 0 };
		ssize_t n = -EAGAIN;

		rig_open(&rig, 3);
		rig_drain(&rig);
		peer_write(&rig, 1, source, 60);
		if (reset)
			CHECK(!setsockopt(rig.peers[1], SOL_SOCKET, SO_LINGER, &linger,
					  sizeof(linger)));
		close(rig.peers[1]);
		rig.peers[1] = -1;
		while (rig_recv_all(&rig) < 0 && !check_failures)
			;
		/* Data that was queued before RST comes first. */
		CHECK_EQ(rig_recv(&rig, 1, sink, 20, 8), 20);
		for (int turn = 0; turn < 100 && n == -EAGAIN; turn++) {
			rig_begin_turn(&rig);
			n = rig_recv(&rig, 1, sink, 40, 1);
		}
		CHECK_EQ(n, reset ? -ECONNRESET : 0);
		rig_begin_turn(&rig);
		CHECK_EQ(rig_recv(&rig, 1, sink, 40, 1), reset ? -ECONNRESET : 0);
		rig_close(&rig);
	}
}

/* After a check that found nothing: the peer sends a message, and closes with RST. */
TEST(data_before_a_send_that_failed_is_read_in_the_same_turn)
{
	struct linger linger = { 1, 0 };

	rig_open(&rig, 3);
	rig_drain(&rig);
	rig_begin_turn(&rig);
	kernel_poll_check(&rig.poll);
	peer_write(&rig, 1, source, 60);
	CHECK(!setsockopt(rig.peers[1], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	close(rig.peers[1]);
	rig.peers[1] = -1;
	CHECK_EQ(rig_recv(&rig, 1, sink, 60, 8), -EAGAIN);
	CHECK(rig_send(&rig, 1, source, 40) < 0);
	CHECK_EQ(rig_recv(&rig, 1, sink, 60, 8), 60);
}

TEST(a_full_socket_is_not_written_to_until_it_has_space)
{
	ssize_t n = 1;
	uint64_t sent = 0, got = 0;

	rig_open(&rig, 2);
	while (n > 0) {
		rig_begin_turn(&rig);
		n = rig_send(&rig, 0, source, sizeof(source));
		sent += n > 0 ? (uint64_t)n : 0;
	}
	CHECK_EQ(n, -EAGAIN);
	calls_reset();
	for (int turn = 0; turn < 100; turn++) {
		rig_begin_turn(&rig);
		CHECK_EQ(rig_send(&rig, 0, source, sizeof(source)), -EAGAIN);
	}
	CHECK(calls.send <= 2); /* a late acknowledgment may have freed space */
	CHECK(calls.poll <= 100);
	/* The other lane is not blocked. */
	rig_begin_turn(&rig);
	CHECK_EQ(rig_send(&rig, 1, source, 100), 100);
	while (got < sent / 2) {
		n = read(rig.peers[0], sink, sizeof(sink));
		CHECK(n > 0);
		got += (uint64_t)n;
	}
	do {
		rig_begin_turn(&rig);
		n = rig_send(&rig, 0, source, sizeof(source));
	} while (n == -EAGAIN);
	CHECK(n > 0);
}

TEST(a_single_lane_is_read_without_a_poll)
{
	rig_open(&rig, 3);
	rig_drain(&rig);
	peer_write(&rig, 2, source, 40);
	rig_close_lane(&rig, 0);
	rig_close_lane(&rig, 1);
	CHECK_EQ(rig_recv_all(&rig), 2);
	CHECK_EQ(calls.poll, 0);
	CHECK(!rig.poll.hot || rig.poll.hot == rig.poll.members);
}

/* ---- errors and TCP_INFO --------------------------------------------------------------------- */

TEST(an_interrupted_call_is_repeated)
{
	rig_open(&rig, 1);
	peer_write(&rig, 0, source, 40);
	rig_begin_turn(&rig);
	calls_make_fail(EINTR, 3);
	CHECK_EQ(rig_recv(&rig, 0, sink, 40, 1), 40);
	calls_make_fail(EINTR, 3);
	CHECK_EQ(rig_send(&rig, 0, source, 40), 40);
	CHECK_EQ(calls.recv, 4);
	CHECK_EQ(calls.send, 4);
}

/* No event reports that memory is free again, so the next call retries. */
TEST(a_send_that_failed_without_kernel_memory_is_retried)
{
	rig_open(&rig, 2);
	rig_drain(&rig);
	calls_make_fail(ENOBUFS, 1);
	rig_begin_turn(&rig);
	CHECK_EQ(rig_send(&rig, 0, source, 40), -EAGAIN);
	CHECK_EQ(rig_send(&rig, 0, source, 40), 40);
	CHECK_EQ(rig.lanes[0]->error, 0);
}

TEST(TCP_INFO_reports_acknowledged_in_flight_and_unsent_bytes)
{
	struct lane_info info;
	uint64_t sent = 0;
	ssize_t n;

	rig_open(&rig, 1);
	rig_begin_turn(&rig);
	while ((n = rig_send(&rig, 0, source, sizeof(source))) > 0) {
		sent += (uint64_t)n;
		rig_begin_turn(&rig);
	}
	rig.lanes[0]->ops->info(rig.lanes[0], &info);
	CHECK_EQ(rig.lanes[0]->ops->done_bytes(rig.lanes[0]), (int64_t)sent);
	CHECK_EQ(info.acked_bytes + info.in_flight_bytes + info.unsent_bytes, sent);
	CHECK(info.unsent_bytes > 0); /* the peer's window is closed */
	CHECK(info.srtt_ns > 0);
	CHECK(info.rto_ns >= info.srtt_ns);
	for (uint64_t got = 0; got < sent;) {
		n = read(rig.peers[0], sink, sizeof(sink));
		CHECK(n > 0);
		got += (uint64_t)n;
	}
	do
		rig.lanes[0]->ops->info(rig.lanes[0], &info);
	while (info.acked_bytes < sent);
	CHECK_EQ(info.in_flight_bytes + info.unsent_bytes, 0);
}

TEST(an_accepted_socket_has_the_options_of_its_listener)
{
	static const struct {
		int level, name;
	} options[] = {
		{ IPPROTO_TCP, TCP_NODELAY },  { SOL_SOCKET, SO_KEEPALIVE },
		{ IPPROTO_TCP, TCP_KEEPIDLE }, { IPPROTO_TCP, TCP_KEEPINTVL },
		{ IPPROTO_TCP, TCP_KEEPCNT },
	};
	struct sockaddr_in peer_addr = { 0 }, lane_addr = { 0 };
	socklen_t len = sizeof(peer_addr);

	rig_open(&rig, 1);
	for (unsigned i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		int expected = 0, lane = -1;
		socklen_t size = sizeof(expected);

		CHECK(!getsockopt(rig.listener, options[i].level, options[i].name, &expected,
				  &size));
		CHECK(!getsockopt(rig.fds[0], options[i].level, options[i].name, &lane, &size));
		CHECK(expected > 0);
		CHECK_EQ(lane, expected);
	}
	CHECK(!getsockname(rig.peers[0], (struct sockaddr *)&peer_addr, &len));
	CHECK_EQ(rig.lanes[0]->remote.port, ntohs(peer_addr.sin_port));
	CHECK(!getsockname(rig.fds[0], (struct sockaddr *)&lane_addr, &len));
	CHECK_EQ(rig.lanes[0]->local.port, ntohs(lane_addr.sin_port));
}

int main(void)
{
	fill_source();
	check_run();
	return check_done();
}
