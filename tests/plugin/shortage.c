/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shortage.c - a whole life of the library, again and again: each time another of the things that it asks of the C library
 * and the kernel is refused, once or from then on.
 *
 * shortage PLUGIN SCENE once|for-good [STEP [FIRST]]   exit 0 passed, 1 failed, 2 wrong usage, 77 cannot run here
 * SCENE: one (one kernel lane), several (kernel lanes), xdp or auto (two hosts). STEP: each STEP-th call alone, from FIRST on.
 *
 * A call may fail; it must not crash or hang, and not be silent: what is not done in time has an error at either end. What
 * was opened can be closed, and nothing is left: no thread, no descriptor, no memory. And the same process can then do
 * all of it without a fault.
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
#include "scarce.h"

#define VERSION 12
#define RUN_SECONDS_MAX 40u
#define SETUP_MS_MAX 8000u
#define READY_MS_MAX 3000u
#define MESSAGE_MS_MAX 8000u
#define MESSAGES 4u
#define NOT_REACHED 3 /* a run's exit status */

static const size_t sizes[MESSAGES] = { 8, 3000, 70000, 300000 };
static uint8_t out[MESSAGES][300000], in[MESSAGES][300000];

/* ---- a life ------------------------------------------------------------------------------------ */

struct life {
	struct library lib;
	bool near_open, far_open;
	void *listen, *send, *recv;
	void *send_memory, *recv_memory;
};

static bool ok(enum nccl_result result)
{
	return result == NCCL_SUCCESS;
}

/* One library or two, each with a context of its own. */
static bool life_begin(struct life *life)
{
	struct net *net = &life->lib.net, *far = net->far;

	net->far = NULL;
	life->near_open = ok(net_init(net, log_collect));
	if (life->near_open && far)
		life->far_open = ok(net_init(far, log_collect));
	net->far = far;
	return life->near_open && (!far || life->far_open);
}

static bool life_connect(struct life *life)
{
	struct net *net = &life->lib.net;
	char handle[NCCL_HANDLE_BYTES];
	uint64_t start = now_ms();
	int devices = 0;

	if (!ok(net_devices(net, &devices)) || !devices)
		return false;
	if (!ok(net_listen(net, 0, handle, &life->listen)))
		return false;
	while (!life->send || !life->recv) {
		if (!life->send && !ok(net_connect(net, 0, handle, &life->send)))
			return false;
		if (!life->recv && !ok(net_accept(net, life->listen, &life->recv)))
			return false;
		/* An end with a comm detects the other's failure when it uses the comm; accept reports the
		 * failures of a peer that was sent READY. */
		if (now_ms() - start > (life->send ? READY_MS_MAX : SETUP_MS_MAX)) {
			REQUIRE(!life->send && scarce_refused()[0]);
			return false;
		}
		usleep(50);
	}
	return true;
}

enum fate { PENDING, DONE, FAILED };

static void ask(struct net *net, void *request, size_t size, enum fate *fate)
{
	int done = 0, got = -1;

	if (*fate != PENDING)
		return;
	if (!ok(net_test(net, request, &done, &got)))
		*fate = FAILED;
	else if (done)
		*fate = DONE;
	if (*fate == DONE && size)
		REQUIRE((size_t)got == size);
}

/* Both ends get a result. */
static bool life_message(struct life *life, unsigned i)
{
	struct net *net = &life->lib.net;
	enum fate sent = PENDING, received = PENDING;
	void *send = NULL, *recv = NULL;
	uint64_t start = now_ms();

	memset(in[i], 0, sizes[i]);
	while (sent == PENDING || received == PENDING) {
		if (!recv && !ok(net_irecv(net, life->recv, in[i], sizeof(in[i]), 0, NULL, &recv)))
			received = FAILED;
		if (!send && !ok(net_isend(net, life->send, out[i], sizes[i], 0, NULL, &send)))
			sent = FAILED;
		if (send)
			ask(net, send, 0, &sent);
		if (recv)
			ask(net, recv, sizes[i], &received);
		/* A send that the kernel has accepted is complete. */
		if (now_ms() - start > MESSAGE_MS_MAX)
			fail(__FILE__, __LINE__,
			     "message %u: sending %d, receiving %d (last WARN: %s)", i, sent,
			     received, log_last_warning());
		if (sent == FAILED && received == PENDING && !recv)
			break;
		usleep(20);
	}
	REQUIRE(received != DONE || filled(in[i], sizes[i], i));
	return sent == DONE && received == DONE;
}

static bool life_talk(struct life *life)
{
	struct net *net = &life->lib.net;

	if (!ok(net_reg_mr(net, life->send, out, sizeof(out), NCCL_PTR_HOST, &life->send_memory)))
		life->send_memory = NULL;
	if (!ok(net_reg_mr(net, life->recv, in, sizeof(in), NCCL_PTR_HOST, &life->recv_memory)))
		life->recv_memory = NULL;
	for (unsigned i = 0; i < MESSAGES; i++)
		if (!life_message(life, i))
			return false;
	return true;
}

static void life_end(struct life *life)
{
	struct net *net = &life->lib.net, *far = net->far;

	if (life->send_memory)
		OK(net_dereg_mr(net, life->send, life->send_memory));
	if (life->recv_memory)
		OK(net_dereg_mr(net, life->recv, life->recv_memory));
	if (life->send)
		OK(net_close_send(net, life->send));
	if (life->recv)
		OK(net_close_recv(net, life->recv));
	if (life->listen)
		OK(net_close_listen(net, life->listen));
	net->far = NULL;
	if (life->near_open)
		OK(net_finalize(net));
	if (life->far_open)
		OK(net_finalize(far));
	net->far = far;
}

/* All of it. faults: some things are refused. */
static void live(const char *plugin, bool faults)
{
	struct life life = { 0 };
	bool begun, connected = false, talked = false;

	library_load(&life.lib, plugin, VERSION);
	begun = life_begin(&life);
	if (begun)
		connected = life_connect(&life);
	if (connected)
		talked = life_talk(&life);
	if (!faults && !talked)
		fail(__FILE__, __LINE__,
		     "without a fault: begun %d, connected %d, talked %d (last WARN: %s)", begun,
		     connected, talked, log_last_warning());
	life_end(&life);
	if (faults && !talked && !log_warnings())
		fail(__FILE__, __LINE__, "it failed, and no line says why");
	/* The destructor must clean up even if a call fails. */
	library_unload(&life.lib);
}

/* ---- many -------------------------------------------------------------------------------------- */

static void run(const char *plugin, unsigned at, bool for_good)
{
	unsigned threads, fds, leaks;
	bool reached;

	for (unsigned i = 0; i < MESSAGES; i++)
		fill(out[i], sizes[i], i);
	threads = count_threads();
	fds = count_fds();
	scarce_begin(at, for_good);
	live(plugin, true);
	scarce_end();
	reached = scarce_refused()[0] != '\0';
	leaks = scarce_leaks();
	REQUIRE(!leaks);
	nothing_left(threads, fds);
	if (reached)
		live(plugin, false);
	nothing_left(threads, fds);
	_exit(reached ? 0 : NOT_REACHED);
}

/* Shows its output if it fails. */
static int run_apart(const char *plugin, unsigned at, bool for_good)
{
	FILE *said = tmpfile();
	char line[1024];
	pid_t child;
	int status;

	REQUIRE(said);
	fflush(NULL);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		alarm(RUN_SECONDS_MAX);
		dup2(fileno(said), STDERR_FILENO);
		run(plugin, at, for_good);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	if (status && !(WIFEXITED(status) && WEXITSTATUS(status) == NOT_REACHED)) {
		printf("call %u refused: ended %s %d\n", at,
		       WIFSIGNALED(status) ? "by signal" : "with",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		rewind(said);
		while (fgets(line, sizeof(line), said))
			printf("   %s", line);
	}
	fclose(said);
	return status;
}

static bool set_scene(const char *scene, const char *plugin)
{
	static char directory[PATH_MAX];
	bool hosts = !strcmp(scene, "xdp") || !strcmp(scene, "auto");

	REQUIRE(realpath(plugin, directory));
	*strrchr(directory, '/') = '\0';
	setenv("HARP_LIBDIR", directory, 0);
	setenv("HARP_DAEMON", "off", 1);
	setenv("HARP_CONNECT_TIMEOUT_MS", "1500", 0);
	setenv("HARP_USER_TIMEOUT_MS", "1500", 0);
	setenv("HARP_KERNEL_LANES", strcmp(scene, "one") ? "3" : "1", 0);
	if (hosts) {
		setenv("HARP_PATH", scene, 1);
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
	bool for_good = argc > 3 && !strcmp(argv[3], "for-good");
	unsigned step = argc > 4 ? (unsigned)atoi(argv[4]) : 1,
		 at = argc > 5 ? (unsigned)atoi(argv[5]) : 1;
	unsigned failed = 0, runs = 0;
	uint64_t start = now_ms();
	int status = 0;

	if (argc < 4 || !step) {
		fprintf(stderr,
			"usage: shortage PLUGIN one|several|xdp|auto once|for-good [STEP [FIRST]]\n");
		return 2;
	}
	if (!set_scene(argv[2], argv[1])) {
		fprintf(stderr, "skipped: network namespaces of its own need root\n");
		return 77;
	}
	for (;; at += step, runs++) {
		status = run_apart(argv[1], at, for_good);
		if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_REACHED)
			break;
		failed += status != 0;
	}
	remove_hosts();
	printf("%u lives with one fault each (of %u calls), %u failed, %llu ms\n", runs, at, failed,
	       (unsigned long long)(now_ms() - start));
	return failed || !runs;
}
