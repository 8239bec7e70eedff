/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ports_memif.c - memif ports that are opened again and again, peers that end or stop during the
 * handshake, and who may be a peer.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ports.h"

#define BACKLOG_MOST 256
#define OTHER_USER 65534u

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

/* ADD_REGION with a memory file of so many bytes; false when the server has hung up. */
static bool say_region(int fd, uint64_t said_bytes, off_t bytes, bool is_sealed)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS } };
	uint8_t message[128] = { 4 };
	struct iovec iov = { .iov_base = message, .iov_len = sizeof(message) };
	const struct msghdr header = { .msg_iov = &iov,
				       .msg_iovlen = 1,
				       .msg_control = control.bytes,
				       .msg_controllen = sizeof(control) };
	ssize_t sent;
	int file = memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(file >= 0 && ftruncate(file, bytes) == 0);
	if (is_sealed)
		CHECK_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	memcpy(message + 4, &said_bytes, sizeof(said_bytes));
	memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
	sent = sendmsg(fd, &header, MSG_NOSIGNAL);
	if (sent < 0)
		CHECK(errno == EPIPE || errno == ECONNRESET);
	else
		CHECK_EQ(sent, sizeof(message));
	close(file);
	return sent > 0;
}

/* A message with two descriptors, where the protocol has one. */
static void say_two(int fd)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr header;
	} control = { .header = { .cmsg_len = CMSG_LEN(2 * sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS } };
	uint8_t message[128] = { 4 };
	struct iovec iov = { .iov_base = message, .iov_len = sizeof(message) };
	const struct msghdr header = { .msg_iov = &iov,
				       .msg_iovlen = 1,
				       .msg_control = control.bytes,
				       .msg_controllen = sizeof(control) };
	const int files[2] = { fd, fd };

	memcpy(CMSG_DATA(&control.header), files, sizeof(files));
	CHECK_EQ(sendmsg(fd, &header, MSG_NOSIGNAL), sizeof(message));
}

/* Clients that end before they are greeted, or in the middle of the handshake, as those do that are
 * killed: the server lives, has none of their descriptors, and takes the next one. */
void case_memif_client_flees(void)
{
	static const uint8_t init[128] = { 3, 0, 0, 2 }; /* version 2.0, server 0 */
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
			CHECK_EQ(recv(fd, greeting, sizeof(greeting), 0), sizeof(greeting));
		if (i % 8 == 1)
			CHECK_EQ(send(fd, init, sizeof(init), MSG_NOSIGNAL), sizeof(init));
		/* A server that still holds the client before has refused this one. */
		if (i % 16 == 1)
			say_region(fd, 4096, 4096, true);
		if (i % 16 == 9)
			say_two(fd);
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

/* A server that is stopped, and whose socket takes no more calls: opening a client and closing it do
 * not wait for it. Clients that ended meanwhile do not end the server when it goes on. */
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

/* A client of another number gets no link; a socket has one server. */
void case_memif_ids(void)
{
	char server[256], client[256];
	struct end a, b, other;

	peers_begin();
	with_id(server, sizeof(server), peers_server, 1);
	with_id(client, sizeof(client), peers_client, 1);
	CHECK(end_open(&a, peers_server, 0) && end_open(&other, client, 0));
	CHECK(end_open(&b, peers_client, 0));
	CHECK(end_until(&a, &b, 1000, 1514, 1));
	CHECK(end_wait_up(&other, false));
	CHECK_EQ(other.received, 0);
	CHECK_EQ(port_try(&(struct harp_dpdk_port *){ NULL }, server, 0), -EBUSY);
	CHECK(strstr(why, "its socket has a server"));
	CHECK(end_until(&b, &a, 1000, 1514, 1));
	end_close(&other);
	end_close(&b);
	end_close(&a);
	peers_end();
}

/* ---- what was logged --------------------------------------------------------------------------- */

static const char *expected;
static unsigned heard_count;

static void hear(void *ctx, enum harp_log_level level, const char *line)
{
	(void)ctx;
	CHECK(level == HARP_LOG_DEBUG || !strstr(line, "Failed"));
	if (strstr(line, expected))
		__atomic_add_fetch(&heard_count, 1, __ATOMIC_RELEASE);
}

static void expect(const char *words)
{
	const struct harp_dpdk_eal_options opt = { .size = sizeof(opt), .log = hear };

	expected = words;
	__atomic_store_n(&heard_count, 0, __ATOMIC_RELEASE);
	CHECK_EQ(api->start(&opt, why, sizeof(why)), 0);
}

static bool was_heard(void)
{
	uint64_t until_ns = test_now_ns() + 60000000000u;

	while (!__atomic_load_n(&heard_count, __ATOMIC_ACQUIRE) && test_now_ns() < until_ns)
		usleep(1000);
	return __atomic_load_n(&heard_count, __ATOMIC_ACQUIRE) > 0;
}

/* ---- ends that differ -------------------------------------------------------------------------- */

/* A client of a longer MTU sends the server packets of several frames, and nothing else is written
 * to. One of a shorter MTU is refused. */
void case_memif_mtus(void)
{
	struct end a, b;

	peers_begin();
	expect("its buffers are shorter than this end's packets");
	if (!end_open(&a, peers_server, 1500))
		return;
	if (end_open(&b, peers_client, 9000)) {
		CHECK(end_until(&b, &a, 1000, 9014, 1));
		a.wrong = 0; /* pieces that it did not make */
		CHECK(end_until(&b, &a, 1000, 1514, 1));
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		CHECK_EQ(a.wrong + b.wrong, 0);
		end_close(&b);
	}
	end_close(&a);
	CHECK_EQ(heard_count, 0);
	if (end_open(&a, peers_server, 9000) && end_open(&b, peers_client, 1500)) {
		CHECK(was_heard());
		CHECK(end_wait_up(&b, false));
		end_close(&b);
		end_close(&a);
	}
	peers_end();
}

static int port_of_queues(struct end *end, const char *device, uint32_t queues)
{
	const struct harp_dpdk_port_options opt = {
		.size = sizeof(opt),
		.device = device,
		.queues = queues,
		.frame_count = END_FRAMES,
	};

	return api->port_open(&end->port, &opt, why, sizeof(why));
}

/* A client of fewer queues is refused: the server's second queue would read the first one's ring. */
void case_memif_queues(void)
{
	struct end a = { 0 }, b = { 0 };

	peers_begin();
	expect("it has fewer queues than this end");
	CHECK_EQ(port_of_queues(&a, peers_server, 2), 0);
	CHECK_EQ(port_of_queues(&b, peers_client, 1), 0);
	CHECK(was_heard());
	CHECK(end_wait_up(&a, false));
	api->port_close(b.port);
	CHECK_EQ(port_of_queues(&b, peers_client, 2), 0);
	CHECK(end_wait_up(&a, true) && end_wait_up(&b, true));
	api->port_close(b.port);
	api->port_close(a.port);
	peers_end();
}

/* Receives until the server hangs up; the last message. */
static void receive_all(int fd, uint8_t last[129])
{
	ssize_t len;

	memset(last, 0, 129);
	while ((len = recv(fd, last, 128, 0)) > 0)
		CHECK_EQ(len, 128);
}

/* A region that its client could shrink, or that is shorter than it says, would end the server. */
void case_memif_seals(void)
{
	static const struct {
		uint64_t said_bytes;
		bool is_sealed;
	} cases[] = { { 65536, false }, { 65537, true }, { UINT64_MAX, true } };
	static const uint8_t init[128] = { 3, 0, 0, 2 };
	uint8_t last[129];
	struct end a, b;

	peers_begin();
	if (!end_open(&a, peers_server, 0))
		return;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = memif_caller(0);

		CHECK_EQ(send(fd, init, sizeof(init), MSG_NOSIGNAL), sizeof(init));
		CHECK(say_region(fd, cases[i].said_bytes, 65536, cases[i].is_sealed));
		receive_all(fd, last);
		CHECK_EQ(last[0], 8);
		CHECK(strstr((const char *)last + 6, "sealed against shrinking"));
		close(fd);
	}
	if (end_open(&b, peers_client, 0)) {
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		end_close(&b);
	}
	end_close(&a);
	peers_end();
}

/* ---- who may be a peer ------------------------------------------------------------------------- */

static struct sockaddr_un abstract_name(char *name, size_t size, socklen_t *len)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	snprintf(name, size, "harp-test-%d", (int)getpid());
	strcpy(at.sun_path + 1, name);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
	return at;
}

/* Another user does not open the file; whoever calls at an abstract name, which anybody may, is
 * refused before it is greeted. Our own client connects to both. */
static void users_server(const char *device, const struct sockaddr_un *at, socklen_t len, int err)
{
	char client[256];
	struct end a, b;
	int status;
	pid_t child;

	if (!end_open(&a, device, 0))
		return;
	child = fork();
	if (child == 0) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		uint8_t byte;

		if (setuid(OTHER_USER) < 0)
			_exit(1);
		if (connect(fd, (const struct sockaddr *)at, len) < 0)
			_exit(errno == err ? 0 : 2);
		_exit(err == 0 && recv(fd, &byte, 1, 0) == 0 ? 0 : 3);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	snprintf(client, sizeof(client), "net_memif1,role=client%s", strstr(device, ",id=0"));
	if (end_open(&b, client, 0)) {
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		end_close(&b);
	}
	end_close(&a);
}

/* Where the server's name is another user's, the client does not say a word. */
static void users_client(const char *name, const struct sockaddr_un *at, socklen_t len)
{
	struct end end;
	char device[256], byte;
	int ready[2], status;
	pid_t child;

	CHECK_EQ(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), peer;

		if (setuid(OTHER_USER) < 0 || bind(fd, (const struct sockaddr *)at, len) < 0 ||
		    listen(fd, 4) < 0 || write(ready[1], "", 1) != 1)
			_exit(1);
		peer = accept(fd, NULL, NULL);
		_exit(recv(peer, &byte, 1, 0) == 0 ? 0 : 2);
	}
	CHECK_EQ(read(ready[0], &byte, 1), 1);
	expect("its server is refused: it runs as user 65534");
	snprintf(device, sizeof(device), "net_memif0,role=client,socket=%s,socket-abstract=yes",
		 name);
	if (end_open(&end, device, 0)) {
		CHECK(was_heard());
		CHECK(end_wait_up(&end, false));
		end_close(&end);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	close(ready[0]);
	close(ready[1]);
}

void case_memif_users(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX }, abstract;
	char name[64], device[256];
	struct stat file;
	struct end end;
	socklen_t len;

	if (geteuid() != 0)
		_exit(check_skip("another user: only root becomes one"));
	peers_begin();
	CHECK_EQ(chmod(peers_folder, 0755), 0);
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/m.sock", peers_folder);
	if (end_open(&end, peers_server, 0)) {
		CHECK_EQ(stat(at.sun_path, &file), 0);
		CHECK_EQ(file.st_mode & 07777, 0600);
		end_close(&end);
	}
	users_server(peers_server, &at, sizeof(at), EACCES);
	abstract = abstract_name(name, sizeof(name), &len);
	snprintf(device, sizeof(device),
		 "net_memif0,role=server,id=0,socket=%s,socket-abstract=yes", name);
	expect("a client is refused: it runs as user 65534");
	users_server(device, &abstract, len, 0);
	CHECK(was_heard());
	users_client(name, &abstract, len);
	peers_end();
}

static void folder_refused(const char *folder)
{
	struct harp_dpdk_port *port;

	CHECK_EQ(port_try(&port, "net_memif0,role=server", 0), -EPERM);
	CHECK(strstr(why, folder) && strstr(why, "this user alone"));
}

/* Without a name the socket lies in a folder of this user's, which is not taken from another one. */
void case_memif_folder(void)
{
	static const char folder[] = "/tmp/harp-memif-0";
	struct stat made;
	struct end a, b;

	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
		_exit(check_skip("a /tmp of its own: only root has one"));
	CHECK_EQ(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	CHECK_EQ(mount("none", "/tmp", "tmpfs", 0, "mode=1777"), 0);
	CHECK_EQ(mkdir(folder, 0700), 0);
	CHECK_EQ(chown(folder, OTHER_USER, 0), 0);
	folder_refused(folder);
	CHECK_EQ(chown(folder, 0, 0), 0);
	CHECK_EQ(chmod(folder, 0750), 0);
	folder_refused(folder);
	CHECK_EQ(rmdir(folder), 0);
	CHECK_EQ(mkdir("/tmp/elsewhere", 0700), 0);
	CHECK_EQ(symlink("/tmp/elsewhere", folder), 0);
	folder_refused(folder);
	CHECK_EQ(unlink(folder), 0);
	CHECK_EQ(port_try(&(struct harp_dpdk_port *){ NULL }, "net_memif0,socket-abstract=yes", 0),
		 -EINVAL);
	CHECK(strstr(why, "an abstract socket needs a name"));
	if (!end_open(&a, "net_memif0,role=server", 0))
		return;
	CHECK_EQ(stat(folder, &made), 0);
	CHECK_EQ(made.st_mode & 07777, 0700);
	CHECK_EQ(stat("/tmp/harp-memif-0/memif.sock", &made), 0);
	CHECK_EQ(made.st_mode & 07777, 0600);
	if (end_open(&b, "net_memif1", 0)) {
		CHECK(end_until(&a, &b, 1000, 1514, 1));
		end_close(&b);
	}
	end_close(&a);
}
