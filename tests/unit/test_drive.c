/* SPDX-License-Identifier: Apache-2.0 */
/* test_drive.c - threads use and wait on the stacks of a drive while its background poller runs.
 * argv[1]: the folder of the fake libharp-dpdk.so (fake_dpdk.c). */
#include "../../harp/native/drive.h"

#include <pthread.h>

#include "dpdk_rig.h"
#include "net_rig.h"

#define PAIRS 3u

static struct drive *drive; /* polls both stacks of the net */

/* One direction of a connection; a drive_try_fn moves its bytes. */
struct transfer {
	struct harp_conn *conn;
	size_t bytes_done;
	int rc;
	bool is_corrupt;
};

static void open_drive(void)
{
	const struct drive_options opt = { .spin_ns = 20000 };
	struct drive_member members[2] = { { 0 } };

	net_open((struct net_setup){ .wire = { .strict = 1 },
				     .stack = { .now_ns = drive_now_ns() } });
	for (unsigned i = 0; i < 2; i++) {
		members[i].stack = net.stack[i];
		members[i].nic = net.tap[i].inner;
	}
	CHECK_EQ(drive_create(&drive, members, 2, &opt), 0);
	drive_enter(drive);
	drive_advance(drive);
	net_listen(0);
	drive_leave(drive);
}

static void close_drive(void)
{
	drive_stop(drive);
	drive_stop(drive);
	CHECK(drive_stopped(drive));
	drive_free(drive);
	net.now_ns = drive_now_ns();
	net_close();
}

static int try_accept(void *ctx)
{
	struct transfer *t = ctx;
	int rc = harp_tcp_accept(net.listener, &t->conn);

	return rc == -EAGAIN ? 0 : rc ? rc : 1;
}

static int try_send(void *ctx)
{
	struct transfer *t = ctx;
	uint8_t bytes[4096];
	struct iovec iov = { .iov_base = bytes };
	ssize_t sent;

	while (t->bytes_done < BYTES) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)((t->bytes_done + i) * 7);
		iov.iov_len = BYTES - t->bytes_done < sizeof(bytes) ? BYTES - t->bytes_done
								    : sizeof(bytes);
		sent = harp_conn_send(t->conn, &iov, 1);
		if (sent == -EAGAIN || sent == -ENOTCONN)
			return 0;
		if (sent < 0)
			return (int)sent;
		t->bytes_done += (size_t)sent;
	}
	return 1;
}

static int try_receive(void *ctx)
{
	struct transfer *t = ctx;
	uint8_t bytes[4096];
	ssize_t got;

	while (t->bytes_done < BYTES) {
		got = harp_conn_recv(t->conn, bytes, sizeof(bytes));
		if (got == -EAGAIN)
			return 0;
		if (got <= 0)
			return got ? (int)got : -EPIPE;
		for (ssize_t i = 0; i < got; i++)
			t->is_corrupt |= bytes[i] != (uint8_t)((t->bytes_done + (size_t)i) * 7);
		t->bytes_done += (size_t)got;
	}
	return 1;
}

static void *run_sender(void *arg)
{
	struct transfer *t = arg;
	const struct harp_endpoint to = { .addr = net_addr(false, 1), .port = NET_PORT };

	drive_enter(drive);
	t->rc = harp_tcp_connect(net.stack[0], NULL, &to, NULL, &t->conn);
	drive_leave(drive);
	if (!t->rc)
		t->rc = drive_wait(drive, try_send, t, DRIVE_FOREVER);
	return NULL;
}

static void *run_receiver(void *arg)
{
	struct transfer *t = arg;

	t->rc = drive_wait(drive, try_accept, t, DRIVE_FOREVER);
	if (t->rc == 1)
		t->rc = drive_wait(drive, try_receive, t, DRIVE_FOREVER);
	return NULL;
}

/* Senders and receivers wait while this thread enters the drive: every byte arrives, and every
 * wait ends. */
TEST(threads_share_a_drive)
{
	struct transfer transfers[2 * PAIRS] = { { 0 } };
	pthread_t threads[2 * PAIRS];
	uint64_t polls = 0, before;

	open_drive();
	for (unsigned i = 0; i < 2 * PAIRS; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, i % 2 ? run_receiver : run_sender,
					&transfers[i]),
			 0);
	}
	for (unsigned i = 0; i < 1000; i++) {
		before = polls;
		drive_enter(drive);
		CHECK(drive_inside(drive));
		drive_enter(drive);
		CHECK_EQ(harp_stack_stat(net.stack[0], "polls", &polls), 0);
		CHECK(polls >= before);
		drive_leave(drive);
		CHECK_EQ(drive_wait(drive, try_accept, &transfers[1], DRIVE_FOREVER), -EDEADLK);
		drive_leave(drive);
		CHECK(!drive_inside(drive));
	}
	for (unsigned i = 0; i < 2 * PAIRS; i++) {
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
		CHECK_EQ(transfers[i].rc, 1);
		CHECK_EQ(transfers[i].bytes_done, BYTES);
		CHECK(!transfers[i].is_corrupt);
	}
	close_drive();
}

TEST(a_wait_times_out)
{
	struct transfer t = { 0 };
	uint64_t start;

	open_drive();
	start = drive_now_ns();
	CHECK_EQ(drive_wait(drive, try_accept, &t, start + 20 * MS), -ETIMEDOUT);
	CHECK(drive_now_ns() >= start + 20 * MS);
	CHECK_EQ(drive_wait(drive, try_accept, &t, 0), -ETIMEDOUT);
	close_drive();
}

TEST(a_stop_ends_every_wait)
{
	struct transfer transfers[PAIRS] = { { 0 } };
	pthread_t threads[PAIRS];

	open_drive();
	for (unsigned i = 0; i < PAIRS; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, run_receiver, &transfers[i]), 0);
	}
	drive_stop(drive);
	for (unsigned i = 0; i < PAIRS; i++) {
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
		CHECK_EQ(transfers[i].rc, -ECANCELED);
	}
	CHECK_EQ(drive_wait(drive, try_accept, &transfers[0], DRIVE_FOREVER), -ECANCELED);
	close_drive();
}

TEST(invalid_members_are_refused)
{
	struct drive_member members[DRIVE_MEMBERS_MAX + 1] = { { 0 } };
	const struct drive_options opt = { 0 };

	CHECK_EQ(drive_create(&drive, members, 0, &opt), -EINVAL);
	CHECK_EQ(drive_create(&drive, members, DRIVE_MEMBERS_MAX + 1, &opt), -EINVAL);
	CHECK(!drive);
	drive_free(NULL);
}

static int try_never(void *ctx)
{
	return 0;
}

/* Enters the drive, because the background poller uses the stack, too. */
static uint64_t polls_of(struct harp_instance *instance)
{
	uint64_t polls;

	drive_enter(drive);
	polls = stat_of(instance, "polls");
	drive_leave(drive);
	return polls;
}

/* On a NIC without interrupts, the poll interval grows from 50 us to a millisecond. */
TEST(polling_backs_off_on_a_nic_without_interrupts)
{
	const struct drive_options opt = { .spin_ns = 0 };
	struct harp_instance *instance = open_queue("dpdk:fake0;ip=10.0.0.1/24", 0);
	struct drive_member member = { .stack = harp_instance_stack(instance),
				       .nic = harp_instance_nic(instance),
				       .instance = instance };
	uint64_t polls;

	CHECK_EQ(harp_instance_fd(instance), -1);
	CHECK_EQ(drive_create(&drive, &member, 1, &opt), 0);
	polls = polls_of(instance);
	CHECK_EQ(drive_wait(drive, try_never, NULL, drive_now_ns() + 300 * MS), -ETIMEDOUT);
	polls = polls_of(instance) - polls;
	CHECK(polls > 1 && polls < 600); /* 6000 at 50 us each */
	drive_stop(drive);
	drive_free(drive);
	harp_instance_close(instance);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 1;
	lib_dir = argv[1];
	setenv("FAKE_DPDK_UP", "1", 1);
	check_run();
	return check_done();
}
