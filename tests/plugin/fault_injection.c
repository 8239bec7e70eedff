/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_injection.c - runs the library from load to unload with one fault: a call to the C library
 * or the kernel fails. Each run injects the fault into another call.
 *
 * fault_injection PLUGIN SETUP once|permanent [STEP [FIRST]]
 * SETUP: one (one kernel lane), several (kernel lanes), xdp or auto (two hosts)
 * permanent: later calls of the same kind fail, too
 * STEP, FIRST: inject into the calls FIRST, FIRST + STEP, ...
 * Exit status: 0 passed, 1 failed, 2 wrong usage, 77 cannot run here
 *
 * The plugin may return errors; it must not crash, hang, or fail without a log line. Everything
 * that was opened can be closed and leaks no thread, descriptor or memory. After that, the same
 * process must run once without a fault.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "faults.h"

#define VERSION 12
#define RUN_SECONDS_MAX 40u
#define SETUP_MS_MAX 8000u
#define READY_MS_MAX 3000u
#define MESSAGE_MS_MAX 8000u
#define MESSAGES 4u
#define NOT_REACHED 3 /* a run's exit status */

static const size_t sizes[MESSAGES] = { 8, 3000, 70000, 300000 };
static uint8_t out[MESSAGES][300000], in[MESSAGES][300000];

struct run {
	struct library lib;
	bool near_open, far_open;
	void *listen, *send, *recv;
	void *send_memory, *recv_memory;
};

static bool is_ok(enum nccl_result result)
{
	return result == NCCL_SUCCESS;
}

/* Calls init of both libraries separately, so that each can be finalized if it succeeded. */
static bool run_init(struct run *run)
{
	struct net *net = &run->lib.net, *far = net->far;

	net->far = NULL;
	run->near_open = is_ok(net_init(net, log_collect));
	if (run->near_open && far)
		run->far_open = is_ok(net_init(far, log_collect));
	net->far = far;
	return run->near_open && (!far || run->far_open);
}

static bool run_connect(struct run *run)
{
	struct net *net = &run->lib.net;
	char handle[NCCL_HANDLE_BYTES];
	uint64_t start = now_ms();
	int devices = 0;

	if (!is_ok(net_devices(net, &devices)) || !devices)
		return false;
	if (!is_ok(net_listen(net, 0, handle, &run->listen)))
		return false;
	while (!run->send || !run->recv) {
		if (!run->send && !is_ok(net_connect(net, 0, handle, &run->send)))
			return false;
		if (!run->recv && !is_ok(net_accept(net, run->listen, &run->recv)))
			return false;
		/* An end with a comm detects the other's failure when it uses the comm. accept
		 * reports a failure of a peer after READY. */
		if (now_ms() - start > (run->send ? READY_MS_MAX : SETUP_MS_MAX)) {
			REQUIRE(!run->send && faults_injected()[0]);
			return false;
		}
		usleep(50);
	}
	return true;
}

enum fate { PENDING, DONE, FAILED };

static void test_request(struct net *net, void *request, size_t size, enum fate *fate)
{
	int done = 0, size_received = -1;

	if (*fate != PENDING)
		return;
	if (!is_ok(net_test(net, request, &done, &size_received)))
		*fate = FAILED;
	else if (done)
		*fate = DONE;
	if (*fate == DONE && size)
		REQUIRE((size_t)size_received == size);
}

/* Transfers a message; both requests must complete or fail in time. */
static bool run_transfer(struct run *run, unsigned i)
{
	struct net *net = &run->lib.net;
	enum fate sent = PENDING, received = PENDING;
	void *send = NULL, *recv = NULL;
	uint64_t start = now_ms();

	memset(in[i], 0, sizes[i]);
	while (sent == PENDING || received == PENDING) {
		if (!recv &&
		    !is_ok(net_irecv(net, run->recv, in[i], sizeof(in[i]), 0, NULL, &recv)))
			received = FAILED;
		if (!send && !is_ok(net_isend(net, run->send, out[i], sizes[i], 0, NULL, &send)))
			sent = FAILED;
		if (send)
			test_request(net, send, 0, &sent);
		if (recv)
			test_request(net, recv, sizes[i], &received);
		/* A send that the kernel has accepted is complete. */
		if (now_ms() - start > MESSAGE_MS_MAX)
			fail(__FILE__, __LINE__,
			     "message %u: sending %d, receiving %d (last WARN: %s)", i, sent,
			     received, log_last_warning());
		if (sent == FAILED && received == PENDING && !recv)
			break;
		usleep(20);
	}
	REQUIRE(received != DONE || is_filled(in[i], sizes[i], i));
	return sent == DONE && received == DONE;
}

static bool run_exchange(struct run *run)
{
	struct net *net = &run->lib.net;

	if (!is_ok(net_reg_mr(net, run->send, out, sizeof(out), NCCL_PTR_HOST, &run->send_memory)))
		run->send_memory = NULL;
	if (!is_ok(net_reg_mr(net, run->recv, in, sizeof(in), NCCL_PTR_HOST, &run->recv_memory)))
		run->recv_memory = NULL;
	for (unsigned i = 0; i < MESSAGES; i++)
		if (!run_transfer(run, i))
			return false;
	return true;
}

static void run_close(struct run *run)
{
	struct net *net = &run->lib.net, *far = net->far;

	if (run->send_memory)
		OK(net_dereg_mr(net, run->send, run->send_memory));
	if (run->recv_memory)
		OK(net_dereg_mr(net, run->recv, run->recv_memory));
	if (run->send)
		OK(net_close_send(net, run->send));
	if (run->recv)
		OK(net_close_recv(net, run->recv));
	if (run->listen)
		OK(net_close_listen(net, run->listen));
	net->far = NULL;
	if (run->near_open)
		OK(net_finalize(net));
	if (run->far_open)
		OK(net_finalize(far));
	net->far = far;
}

/* with_faults: faults may be injected. */
static void run_all(const char *plugin, bool with_faults)
{
	struct run run = { 0 };
	bool initialized, connected = false, exchanged = false;

	library_load(&run.lib, plugin, VERSION);
	initialized = run_init(&run);
	if (initialized)
		connected = run_connect(&run);
	if (connected)
		exchanged = run_exchange(&run);
	if (!with_faults && !exchanged)
		fail(__FILE__, __LINE__,
		     "no fault: initialized %d, connected %d, exchanged %d (last WARN: %s)",
		     initialized, connected, exchanged, log_last_warning());
	run_close(&run);
	if (with_faults && !exchanged && !log_warnings())
		fail(__FILE__, __LINE__, "a call failed without a WARN");
	/* The destructor must clean up even if a call fails. */
	library_unload(&run.lib);
}

static void run_with_fault(const char *plugin, unsigned call, bool permanent)
{
	unsigned threads, fds, leaks;
	bool reached;

	for (unsigned i = 0; i < MESSAGES; i++)
		fill(out[i], sizes[i], i);
	threads = count_threads();
	fds = count_fds();
	faults_begin(call, permanent);
	run_all(plugin, true);
	faults_end();
	reached = faults_injected()[0] != '\0';
	leaks = faults_count_leaks();
	REQUIRE(!leaks);
	require_no_leaks(threads, fds);
	if (reached)
		run_all(plugin, false);
	require_no_leaks(threads, fds);
	_exit(reached ? 0 : NOT_REACHED);
}

/* Prints the child's output if it fails. */
static int run_in_child(const char *plugin, unsigned call, bool permanent)
{
	FILE *output = tmpfile();
	char line[1024];
	pid_t child;
	int status;

	REQUIRE(output);
	fflush(NULL);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		alarm(RUN_SECONDS_MAX);
		dup2(fileno(output), STDERR_FILENO);
		run_with_fault(plugin, call, permanent);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	if (status && !(WIFEXITED(status) && WEXITSTATUS(status) == NOT_REACHED)) {
		printf("fault in call %u: ended %s %d\n", call,
		       WIFSIGNALED(status) ? "by signal" : "with",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		rewind(output);
		while (fgets(line, sizeof(line), output))
			printf("   %s", line);
	}
	fclose(output);
	return status;
}

static bool set_up(const char *setup, const char *plugin)
{
	static char directory[PATH_MAX];
	bool hosts = !strcmp(setup, "xdp") || !strcmp(setup, "auto");

	REQUIRE(realpath(plugin, directory));
	*strrchr(directory, '/') = '\0';
	setenv("HARP_LIBDIR", directory, 0);
	setenv("HARP_DAEMON", "off", 1);
	setenv("HARP_CONNECT_TIMEOUT_MS", "1500", 0);
	setenv("HARP_USER_TIMEOUT_MS", "1500", 0);
	setenv("HARP_KERNEL_LANES", strcmp(setup, "one") ? "3" : "1", 0);
	if (hosts) {
		setenv("HARP_PATH", setup, 1);
		setenv("NCCL_SOCKET_IFNAME", "=ha,hb", 1);
		return make_two_hosts(plugin, false);
	}
	make_one_host();
	setenv("HARP_PATH", "kernel", 1);
	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	return true;
}

int main(int argc, char **argv)
{
	bool permanent = argc > 3 && !strcmp(argv[3], "permanent");
	unsigned step = argc > 4 ? (unsigned)atoi(argv[4]) : 1,
		 call = argc > 5 ? (unsigned)atoi(argv[5]) : 1;
	unsigned failed = 0, runs = 0;
	uint64_t start = now_ms();
	int status = 0;

	if (argc < 4 || !step) {
		fprintf(stderr, "usage: fault_injection PLUGIN one|several|xdp|auto once|permanent "
				"[STEP [FIRST]]\n");
		return 2;
	}
	if (!set_up(argv[2], argv[1])) {
		fprintf(stderr, "skipped: network namespaces need root\n");
		return 77;
	}
	for (;; call += step, runs++) {
		status = run_in_child(argv[1], call, permanent);
		if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_REACHED)
			break;
		failed += status != 0;
	}
	remove_hosts();
	printf("%u runs with one fault each (of %u calls), %u failed, %llu ms\n", runs, call,
	       failed, (unsigned long long)(now_ms() - start));
	return failed || !runs;
}
