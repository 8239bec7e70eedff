/* SPDX-License-Identifier: Apache-2.0 */
/* cases_end.c - close, death of the peer, unloading, fork and exit. */
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "peer.h"

#define MIB (1024u * 1024u)

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* ---- close ----------------------------------------------------------------------------------- */

/* sends, recvs: requests in flight. send_first: the send comm is closed first. */
static void close_in_flight(struct net *net, unsigned sends, unsigned recvs, bool send_first)
{
	struct pair pair;
	uint8_t *out = map(32 * MIB), *in = map(32 * MIB);

	pair_open(net, &pair);
	for (unsigned i = 0; i < recvs; i++)
		post_recv(net, pair.recv, in + i * MIB, MIB, 0);
	for (unsigned i = 0; i < sends; i++)
		post_send(net, pair.send, out + i * MIB, MIB, 0);
	clock_stop(); /* a close that waits would hang */
	if (send_first)
		OK(net_close_send(net, pair.send));
	OK(net_close_recv(net, pair.recv));
	/* NCCL frees the memory now: a later access faults. */
	REQUIRE(munmap(in, 32 * MIB) == 0);
	if (!send_first)
		OK(net_close_send(net, pair.send));
	REQUIRE(munmap(out, 32 * MIB) == 0);
	OK(net_close_listen(net, pair.listen));
	clock_resume();
	sleep_ms(20);
}

void case_close_in_flight(const char *plugin, int version)
{
	struct library lib;

	library_open(&lib, plugin, version);
	for (unsigned send_first = 0; send_first < 2; send_first++) {
		close_in_flight(&lib.net, 0, 32, send_first);
		close_in_flight(&lib.net, 32, 0, send_first);
		close_in_flight(&lib.net, 32, 32, send_first);
		close_in_flight(&lib.net, 32, 5, send_first);
		close_in_flight(&lib.net, 5, 32, send_first);
	}
	library_close(&lib);
}

/* ---- two processes --------------------------------------------------------------------------- */
static enum nccl_result first_error(struct net *net, void *request)
{
	enum nccl_result result = NCCL_SUCCESS;
	int done = 0;

	WAIT_UNTIL(result != NCCL_SUCCESS)
	{
		result = net_test(net, request, &done, NULL);
		REQUIRE(!done);
	}
	return result;
}

static void child_connects_and_waits(const char *plugin, int version, int fd)
{
	struct library lib;
	uint8_t byte = 3;

	library_open(&lib, plugin, version);
	complete(&lib.net, post_send(&lib.net, child_connect(&lib.net, fd), &byte, 1, 0));
	peer_notify(fd);
	for (;;)
		pause();
}

void case_peer_dies_receiving(const char *plugin, int version)
{
	struct peer peer = peer_start(child_connects_and_waits, HOST_SENDER, plugin, version);
	struct library lib;
	struct net *net = &lib.net;
	void *listen, *comm, *request, *new_request;
	uint8_t byte = 0;
	uint64_t killed;
	unsigned warnings;

	library_open(&lib, plugin, version);
	comm = peer_accept(net, &peer, &listen);
	complete(net, post_recv(net, comm, &byte, 1, 0));
	REQUIRE(byte == 3);
	peer_wait(peer.fd);
	request = post_recv(net, comm, &byte, 1, 0);
	killed = now_ms();
	peer_end(&peer, SIGKILL);
	EXPECT(first_error(net, request), NCCL_REMOTE_ERROR);
	fprintf(stderr, "error after %llu ms: %s\n", (unsigned long long)(now_ms() - killed),
		log_last_warning());
	warnings = log_warnings();
	REQUIRE(warnings == 1 || hosts_are_ports()); /* a DPDK port also reports its link */
	for (unsigned i = 0; i < 1000; i++) {
		int done = 77;

		new_request = NCCL_REQUEST_OPTIONAL;
		EXPECT(net_irecv(net, comm, &byte, 1, 0, NULL, &new_request), NCCL_REMOTE_ERROR);
		REQUIRE(!new_request);
		EXPECT(net_test(net, request, &done, NULL), NCCL_REMOTE_ERROR);
		REQUIRE(done == 0);
	}
	REQUIRE(log_warnings() == warnings);
	OK(net_close_recv(net, comm));
	OK(net_close_listen(net, listen));
	library_close(&lib);
}

static void child_accepts_and_waits(const char *plugin, int version, int fd)
{
	struct library lib;
	char handle[NCCL_HANDLE_BYTES];
	void *listen;
	uint8_t byte;

	library_open(&lib, plugin, version);
	OK(net_listen(&lib.net, 0, handle, &listen));
	REQUIRE(write(fd, handle, sizeof(handle)) == sizeof(handle));
	complete(&lib.net, post_recv(&lib.net, end_accept(&lib.net, listen), &byte, 1, 0));
	peer_notify(fd);
	for (;;)
		pause();
}

void case_peer_dies_sending(const char *plugin, int version)
{
	struct peer peer = peer_start(child_accepts_and_waits, HOST_RECEIVER, plugin, version);
	static uint8_t out[4 * MIB];
	struct library lib;
	struct net *net = &lib.net;
	void *comm, *request = NULL, *new_request;
	unsigned warnings;

	library_open(&lib, plugin, version);
	comm = child_connect(net, peer.fd);
	complete(net, post_send(net, comm, out, 1, 0));
	peer_wait(peer.fd);
	/* A send is complete once the kernel has buffered it, and it buffers tens of MiB. */
	for (unsigned i = 0; i < 16; i++)
		request = post_send(net, comm, out, sizeof(out), 0);
	peer_end(&peer, SIGKILL);
	EXPECT(first_error(net, request), NCCL_REMOTE_ERROR);
	warnings = log_warnings();
	REQUIRE(warnings == 1 || hosts_are_ports()); /* a DPDK port also reports its link */
	for (unsigned i = 0; i < 1000; i++) {
		int done = 77;

		new_request = request;
		EXPECT(net_isend(net, comm, out, 1, 0, NULL, &new_request), NCCL_REMOTE_ERROR);
		REQUIRE(!new_request);
		EXPECT(net_test(net, request, &done, NULL), NCCL_REMOTE_ERROR);
		REQUIRE(done == 0);
	}
	REQUIRE(log_warnings() == warnings);
	OK(net_close_send(net, comm));
	library_close(&lib);
}

/* ---- a sender that ends after its sends ------------------------------------------------------ */
enum { FINAL_MESSAGES = 12 };
static size_t final_message_size(unsigned i)
{
	return i % 4 == 3 ? MIB + i : i * 2000 + 1;
}

static void *child_sends_all(struct net *net, int fd)
{
	static uint8_t out[FINAL_MESSAGES][MIB + 64];
	void *comm = child_connect(net, fd), *requests[FINAL_MESSAGES];

	for (unsigned i = 0; i < FINAL_MESSAGES; i++) {
		fill(out[i], final_message_size(i), i);
		requests[i] = post_send(net, comm, out[i], final_message_size(i), 0);
	}
	for (unsigned i = 0; i < FINAL_MESSAGES; i++)
		complete(net, requests[i]);
	return comm;
}

static void child_sends_and_exits(const char *plugin, int version, int fd)
{
	struct library lib;

	library_open(&lib, plugin, version);
	child_sends_all(&lib.net, fd);
	_exit(0);
}

static void child_sends_and_closes(const char *plugin, int version, int fd)
{
	struct library lib;

	library_open(&lib, plugin, version);
	OK(net_close_send(&lib.net, child_sends_all(&lib.net, fd)));
	library_close(&lib);
	exit(0);
}

static bool has_arrived(struct net *net, void *request, const uint8_t *in, unsigned i)
{
	int done = 0, size = -1;

	OK(net_test(net, request, &done, &size));
	if (!done)
		return false;
	REQUIRE((size_t)size == final_message_size(i));
	REQUIRE(is_filled(in, (size_t)size, i));
	return true;
}

static void receive_final_messages(const char *plugin, int version,
				   void (*child)(const char *, int, int), unsigned round)
{
	static uint8_t in[FINAL_MESSAGES][MIB + 64];
	struct peer peer = peer_start(child, HOST_SENDER, plugin, version);
	struct library lib;
	struct net *net = &lib.net;
	void *listen, *comm, *requests[FINAL_MESSAGES], *more;
	unsigned received = 0;

	library_open(&lib, plugin, version);
	comm = peer_accept(net, &peer, &listen);
	memset(in, 0, sizeof(in));
	/* The last credits arrive while the sender ends. */
	for (unsigned i = 0; i < FINAL_MESSAGES; i++) {
		requests[i] = post_recv(net, comm, in[i], sizeof(in[i]), 0);
		if (round % 3 == 0)
			sched_yield();
	}
	if (round % 3 == 2) {
		/* Receives as late as possible. Over a kernel lane, the sender's requests complete,
		 * and it ends, only when the rest fits into the kernel's buffers. */
		WAIT_UNTIL(peer_is_gone(&peer, 5))
		received += received < FINAL_MESSAGES &&
			    has_arrived(net, requests[received], in[received], received);
		peer_end(&peer, 0);
	}
	for (; received < FINAL_MESSAGES; received++)
		WAIT_UNTIL(has_arrived(net, requests[received], in[received], received));
	more = NULL;
	if (net_irecv(net, comm, in[0], 1, 0, NULL, &more) == NCCL_SUCCESS && more)
		EXPECT(first_error(net, more), NCCL_REMOTE_ERROR);
	OK(net_close_recv(net, comm));
	OK(net_close_listen(net, listen));
	library_close(&lib);
	if (round % 3 != 2)
		peer_end(&peer, 0);
}

/*
 * Forks, because a process can start DPDK only once. Returns true in the child, and false in the
 * parent after the child has exited.
 */
static bool enter_child_process(void)
{
	pid_t child = fork();
	int status;

	if (child == 0)
		return true;
	REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	return false;
}

static void run_sender_round(const char *plugin, int version, void (*child)(const char *, int, int),
			     unsigned round)
{
	if (hosts_are_ports() && !enter_child_process())
		return;
	receive_final_messages(plugin, version, child, round);
	if (hosts_are_ports())
		exit(0);
}

/* Over ports, only a timeout detects the death of the peer's process. */
static unsigned sender_rounds(void)
{
	return hosts_are_ports() ? 3 : 12;
}

void case_sender_exits(const char *plugin, int version)
{
	for (unsigned round = 0; round < sender_rounds(); round++)
		run_sender_round(plugin, version, child_sends_and_exits, round);
}

void case_sender_closes(const char *plugin, int version)
{
	for (unsigned round = 0; round < sender_rounds(); round++)
		run_sender_round(plugin, version, child_sends_and_closes, round);
}

/* ---- unloading ------------------------------------------------------------------------------- */
static bool is_mapped(const char *plugin)
{
	const char *name = strrchr(plugin, '/') ? strrchr(plugin, '/') + 1 : plugin;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	bool is_found = false;

	REQUIRE(maps);
	while (fgets(line, sizeof(line), maps))
		is_found |= strstr(line, name) != NULL;
	fclose(maps);
	return is_found;
}

static void run_lifecycle(const char *plugin, int version)
{
	struct library lib;
	struct pair pair;
	unsigned out = 77, in = 0;

	library_open(&lib, plugin, version);
	pair_open(&lib.net, &pair);
	complete_both(&lib.net, post_send(&lib.net, pair.send, &out, 4, 0),
		      post_recv(&lib.net, pair.recv, &in, 4, 0), NULL, NULL);
	REQUIRE(in == 77);
	pair_close(&lib.net, &pair);
	library_close(&lib);
}

void case_lifecycle(const char *plugin, int version)
{
	unsigned threads, fds;

	warm_up(plugin, version);
	threads = count_threads();
	fds = count_fds();
	for (unsigned i = 0; i < 10; i++) {
		run_lifecycle(plugin, version);
		require_no_leaks(threads, fds);
		REQUIRE(!is_mapped(plugin));
	}
}

void case_unload_in_use(const char *plugin, int version)
{
	unsigned threads, fds;

	warm_up(plugin, version);
	threads = count_threads();
	fds = count_fds();
	for (unsigned i = 0; i < 3; i++) {
		struct library lib;
		struct pair pair;
		uint8_t byte;

		library_open(&lib, plugin, version);
		pair_open(&lib.net, &pair);
		post_recv(&lib.net, pair.recv, &byte, 1, 0);
		library_unload(&lib);
		REQUIRE(!is_mapped(plugin));
		require_no_leaks(threads, fds);
	}
}

void case_silence(const char *plugin, int version)
{
	struct library lib;
	unsigned lines;

	library_load(&lib, plugin, version);
	REQUIRE(log_lines() == 0);
	OK(net_init(&lib.net, log_collect));
	lines = log_lines();
	/* The log ends with finalize since v11, else with dlclose. An invalid call logs a WARN. */
	OK(net_finalize(&lib.net));
	if (version >= 11) {
		int done;

		lines = log_lines();
		REQUIRE(net_test(&lib.net, NULL, &done, NULL) != NCCL_SUCCESS);
	}
	library_unload(&lib);
	sleep_ms(50);
	/* Without finalize, one DPDK port closes before the other, which may log it. */
	if (version >= 11 || !hosts_are_ports())
		REQUIRE(log_lines() == lines);
}

/* ---- fork and exit --------------------------------------------------------------------------- */
static void child_of_fork(struct net *net, struct pair *pair, void *request, void *mr,
			  bool through_exit)
{
	char handle[NCCL_HANDLE_BYTES];
	void *out = NULL, *ctx = net->ctx, *far_ctx = net->far ? net->far->ctx : NULL;
	uint8_t byte = 0;
	int done = 77;

	alarm(20);
	REQUIRE(net_isend(net, pair->send, &byte, 1, 0, NULL, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_irecv(net, pair->recv, &byte, 1, 0, NULL, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_test(net, request, &done, NULL) != NCCL_SUCCESS && done == 0);
	REQUIRE(net_listen(net, 0, handle, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_connect(net, 0, handle, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_accept(net, pair->listen, &out) != NCCL_SUCCESS && !out);
	OK(net_dereg_mr(net, pair->send, mr));
	REQUIRE(net_init(net, log_collect) != NCCL_SUCCESS);
	REQUIRE(!net->far || net_init(net->far, log_collect) != NCCL_SUCCESS);
	net->ctx = ctx;
	if (net->far)
		net->far->ctx = far_ctx;
	pair_close(net, pair);
	OK(net_finalize(net));
	if (through_exit)
		exit(0);
	_exit(0);
}

void case_fork_child(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	struct pair pair;
	static unsigned out, in;
	void *mr = NULL;

	library_open(&lib, plugin, version);
	pair_open(net, &pair);
	OK(net_reg_mr(net, pair.send, &out, sizeof(out), NCCL_PTR_HOST, &mr));
	for (unsigned i = 0; i < 6; i++) {
		void *recv = post_recv(net, pair.recv, &in, 4, 0);
		int status;
		pid_t child = fork();

		if (child == 0)
			child_of_fork(net, &pair, recv, mr, i % 2);
		REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		out = 1000 + i;
		complete_both(net, post_send(net, pair.send, &out, 4, 0), recv, NULL, NULL);
		REQUIRE(in == 1000 + i);
	}
	OK(net_dereg_mr(net, pair.send, mr));
	pair_close(net, &pair);
	library_close(&lib);
}

struct poller {
	struct net *net;
	void *request;
	atomic_bool running;
};

static void *poll_forever(void *arg)
{
	struct poller *poller = arg;
	int done = 0;

	while (!done) {
		/* exit() runs in the main thread; until the process ends, test must succeed. */
		if (net_test(poller->net, poller->request, &done, NULL) != NCCL_SUCCESS)
			_exit(3);
		atomic_store(&poller->running, true);
	}
	return NULL;
}

static void exit_while_polling(const char *plugin, int version)
{
	static struct library lib;
	static struct pair pair;
	static struct poller poller;
	static uint8_t byte;
	pthread_t thread;

	/* Overwrites freed memory, so that an access to it faults. */
	mallopt(M_PERTURB, 0xa5);
	library_open(&lib, plugin, version);
	pair_open(&lib.net, &pair);
	poller.net = &lib.net;
	poller.request = post_recv(&lib.net, pair.recv, &byte, 1, 0);
	REQUIRE(!pthread_create(&thread, NULL, poll_forever, &poller));
	WAIT_UNTIL(atomic_load(&poller.running));
	exit(0);
}

void case_exit_while_polling(const char *plugin, int version)
{
	for (unsigned i = 0; i < 10; i++) {
		pid_t child = fork();
		int status;

		if (child == 0)
			exit_while_polling(plugin, version);
		REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
		if (status)
			fail(__FILE__, __LINE__, "exit %u: status 0x%x", i, (unsigned)status);
	}
}
