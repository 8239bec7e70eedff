/* SPDX-License-Identifier: Apache-2.0 */
/* ports_relay.c - memif ports opened again and again, and peers that flee, stand still, or share a socket. */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ports.h"

#define BACKLOG_MOST 256

/* Both ends in one process, a hundred times, shaking hands or before: sockets get the numbers of sockets that have
 * just been closed, and greetings find nobody. No descriptor is lost. */
void case_memif_again(void)
{
	unsigned fds = 0;

	peers_begin();
	for (unsigned i = 0; i < 100; i++) {
		struct end a, b;

		if (!end_open(&a, peers_server, 0))
			break;
		if (end_open(&b, peers_client, 0)) {
			if (i % 4 == 0)
				CHECK(end_until(&a, &b, 100, 1514, 1));
			CHECK_EQ(a.wrong + b.wrong, 0);
			end_close(i & 1 ? &a : &b);
			end_close(i & 1 ? &b : &a);
		} else {
			end_close(&a);
		}
		if (i == 9)
			fds = descriptors_most();
	}
	CHECK_EQ(descriptors_most(), fds);
	peers_end();
}

int memif_caller(int flags)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | flags, 0);

	CHECK(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/m.sock", peers_folder);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -errno;
}

/* Says it with descriptors, which nobody takes. */
static void say_with_files(int fd, const void *bytes, size_t len, size_t files)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr header;
	} control = { .header = { .cmsg_len = CMSG_LEN(files * sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS } };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
	const struct msghdr message = { .msg_iov = &iov,
					.msg_iovlen = 1,
					.msg_control = control.bytes,
					.msg_controllen = CMSG_SPACE(files * sizeof(int)) };
	const int those[2] = { fd, fd };

	memcpy(CMSG_DATA(&control.header), those, files * sizeof(int));
	CHECK_EQ(sendmsg(fd, &message, MSG_NOSIGNAL), (ssize_t)len);
}

/* Clients that leave before they are greeted, or say what no memif says: the server hears the next one, and has none of
 * their descriptors. */
void case_memif_client_flees(void)
{
	static const uint8_t garbage[128] = { 3, 0, 2, 0,
					      77 }; /* asks for a port that is not there */
	uint64_t until_ns;
	unsigned fds;
	struct end a, b;

	peers_begin();
	if (!end_open(&a, peers_server, 0))
		return;
	end_close(&a);
	fds = descriptors_most();
	if (!end_open(&a, peers_server, 0))
		return;
	for (unsigned i = 0; i < 2000; i++) {
		int fd = memif_caller(0);
		uint8_t greeting[128];

		CHECK(fd >= 0);
		if (i % 4 == 1)
			say_with_files(fd, garbage, sizeof(garbage), i % 3);
		if (i % 8 == 2)
			CHECK_EQ(recv(fd, greeting, sizeof(greeting), 0), sizeof(greeting));
		if (i % 8 == 2 || i % 8 == 3)
			CHECK_EQ(send(fd, garbage, i % sizeof(garbage) + 1, MSG_NOSIGNAL),
				 i % sizeof(garbage) + 1);
		close(fd);
	}
	if (end_open(&b, peers_client, 0)) {
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		CHECK_EQ(a.wrong + b.wrong, 0);
		end_close(&b);
	}
	end_close(&a);
	for (until_ns = test_now_ns() + 60000000000u; descriptors() > fds;)
		if (test_now_ns() > until_ns)
			break;
	CHECK(descriptors() <= fds);
	peers_end();
}

/* A server that is stopped, and whose socket takes no more calls: opening a client and closing it don't wait for it. */
void case_memif_server_stands(void)
{
	int fds[BACKLOG_MOST], count = 0, fd = 0;
	struct end end;
	siginfo_t info;
	pid_t peer;

	peers_begin();
	peer = peer_start(peers_server);
	kill(peer, SIGSTOP);
	CHECK_EQ(waitid(P_PID, (id_t)peer, &info, WSTOPPED | WNOWAIT), 0);
	while (count < BACKLOG_MOST && (fd = memif_caller(SOCK_NONBLOCK)) >= 0)
		fds[count++] = fd;
	CHECK_EQ(fd, -EAGAIN);
	if (end_open(&end, peers_client, 0)) {
		CHECK(end_wait_up(&end, false));
		end_close(&end);
	}
	if (end_open(&end, peers_client, 0)) {
		while (count > 0)
			close(fds[--count]);
		kill(peer, SIGCONT);
		CHECK(end_wait_up(&end, true));
		CHECK(peer_hears(&end));
		end_close(&end);
	}
	peer_kill(peer);
	peers_end();
}

/* A child that has inherited the driver's sockets keeps nobody from seeing that they are closed. */
void case_memif_inherited(void)
{
	struct end a, b;
	pid_t child = 0;

	peers_begin();
	for (unsigned i = 0; i < 3; i++) {
		if (!end_open(&a, peers_server, 0) || !end_open(&b, peers_client, 0))
			break;
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		if (!child)
			child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
		end_close(i & 1 ? &a : &b);
		CHECK(end_wait_up(i & 1 ? &b : &a, false));
		end_close(i & 1 ? &b : &a);
	}
	peer_kill(child);
	peers_end();
}

/* A server, and a child of its that lives until a pipe is closed. */
__attribute__((noreturn)) static void parent_main(int ready_fd, const int alive[2])
{
	struct end end;
	char byte;

	close(alive[1]);
	if (!end_open(&end, peers_server, 0))
		_exit(1);
	if (fork() == 0) {
		close(ready_fd);
		_exit(read(alive[0], &byte, 1) != 0);
	}
	if (write(ready_fd, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* A server dies whose child lives on: its client sees it, and another server has the socket. */
void case_memif_orphan(void)
{
	int ready[2], alive[2];
	struct end a, b;
	pid_t parent;
	char byte;

	peers_begin();
	CHECK_EQ(pipe(ready) | pipe(alive), 0);
	parent = fork();
	if (parent == 0)
		parent_main(ready[1], alive);
	close(ready[1]);
	CHECK_EQ(read(ready[0], &byte, 1), 1);
	if (end_open(&b, peers_client, 0)) {
		CHECK(end_wait_up(&b, true));
		kill(parent, SIGKILL);
		waitpid(parent, NULL, 0);
		CHECK(end_wait_up(&b, false));
		if (end_open(&a, peers_server, 0)) {
			CHECK(end_until(&a, &b, 1000, 1514, 1));
			end_close(&a);
		}
		end_close(&b);
	}
	close(alive[1]);
	peers_end();
}

static void with_id(char *out, size_t len, const char *device, unsigned id)
{
	const char *at = strstr(device, "id=0");

	snprintf(out, len, "%.*sid=%u%s", (int)(at - device), device, id, at + 4);
	out[strlen("net_memif")] = (char)(out[strlen("net_memif")] + 2 * (char)id);
}

/* Two servers on one socket: each has its own client, and one leaves without the other. */
void case_memif_ids(void)
{
	char other_server[256], other_client[256], third[256];
	struct end a[2], b[2];

	peers_begin();
	with_id(other_server, sizeof(other_server), peers_server, 1);
	with_id(other_client, sizeof(other_client), peers_client, 1);
	CHECK(end_open(&a[0], peers_server, 0) && end_open(&a[1], other_server, 0));
	CHECK(end_open(&b[0], peers_client, 0) && end_open(&b[1], other_client, 0));
	snprintf(third, sizeof(third), "%s", other_server);
	third[strlen("net_memif")] = '8';
	CHECK_EQ(port_try(&(struct harp_dpdk_port *){ NULL }, third, 0), -EBUSY);
	CHECK(strstr(why, "id=1"));
	for (unsigned i = 0; i < 2; i++) {
		uint64_t others = a[!i].received + b[!i].received;

		CHECK(end_until(&a[i], &b[i], 1000, 1514, 1));
		CHECK_EQ(a[!i].received + b[!i].received, others);
	}
	end_close(&a[0]);
	CHECK(end_wait_up(&b[0], false));
	CHECK(end_until(&b[1], &a[1], 1000, 1514, 1));
	end_close(&a[1]);
	end_close(&b[0]);
	end_close(&b[1]);
	peers_end();
}
