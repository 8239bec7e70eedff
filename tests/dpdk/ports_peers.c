/* SPDX-License-Identifier: Apache-2.0 */
/* ports_peers.c - two processes on a memif; one is killed during traffic and restarted. */
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ports.h"

char peers_folder[64], peers_server[256], peers_client[256];

void peers_begin(void)
{
	snprintf(peers_folder, sizeof(peers_folder), "/tmp/harp-dpdk-XXXXXX");
	CHECK(mkdtemp(peers_folder) != NULL);
	snprintf(peers_server, sizeof(peers_server),
		 "net_memif0,role=server,id=0,socket=%s/m.sock,socket-abstract=no", peers_folder);
	snprintf(peers_client, sizeof(peers_client),
		 "net_memif1,role=client,id=0,socket=%s/m.sock,socket-abstract=no", peers_folder);
}

void peers_end(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/m.sock", peers_folder);
	unlink(path);
	CHECK_EQ(rmdir(peers_folder), 0);
}

/* Sends and receives at full speed. Without progress, yields to a peer on the same core and returns
 * false. */
static bool end_exchange(struct end *end)
{
	uint64_t received = end->received;
	bool has_progress;

	end_fill(end, END_FRAMES / 2);
	end_receive(end);
	has_progress = end_send(end, 32, 1514, 1) > 0 || end->received != received;
	if (!has_progress)
		sched_yield();
	end_complete(end);
	return has_progress;
}

/* Receives, or yields. */
static void end_receive_or_yield(struct end *end)
{
	uint64_t received = end->received;

	end_fill(end, END_FRAMES / 2);
	end_receive(end);
	if (end->received == received)
		sched_yield();
}

void peer_main(const char *device, int ready_fd)
{
	struct end end;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	end_open(&end, device, 0);
	if (write(ready_fd, "", 1) != 1)
		_exit(1);
	for (;;)
		end_exchange(&end);
}

/* Uses exec, because a forked child cannot use its parent's DPDK. */
pid_t peer_start(const char *device)
{
	char byte, fd[16];
	int ready[2];
	pid_t child;

	fflush(NULL);
	CHECK_EQ(pipe(ready), 0);
	snprintf(fd, sizeof(fd), "%d", ready[1]);
	child = fork();
	if (child == 0) {
		close(ready[0]);
		execl("/proc/self/exe", "dpdk_ports", "peer", device, fd, (char *)NULL);
		_exit(1);
	}
	close(ready[1]);
	CHECK_EQ(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return child;
}

void peer_kill(pid_t peer)
{
	int status;

	kill(peer, SIGKILL);
	CHECK_EQ(waitpid(peer, &status, 0), peer);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it was still running */
}

bool receive_from_peer(struct end *end)
{
	uint64_t until_ns = test_now_ns() + 60000000000u, before = end->received;

	while (end->received < before + 1000 && test_now_ns() < until_ns)
		end_receive_or_yield(end);
	end->errors = 0;
	return end->received >= before + 1000;
}

TEST(memif_connects_two_ports_of_a_process)
{
	struct harp_nic_stats stats;
	struct end a, b;

	peers_begin();
	end_open(&a, peers_server, 9000);
	end_open(&b, peers_client, 9000);
	CHECK(end_wait_up(&a, true) && end_wait_up(&b, true));
	CHECK(end_transfer(&a, &b, 20000, 9014, 1));
	CHECK(end_transfer(&b, &a, 20000, 1514, 1));
	/* The ring's slots do not keep the flags of an earlier chain. */
	for (unsigned i = 0; i < 100; i++) {
		CHECK(end_transfer(&a, &b, 7, 9014, 3));
		CHECK(end_transfer(&a, &b, 300, 60, 1));
	}
	CHECK_EQ(a.errors + b.errors, 0);
	b.nic->ops->stats(b.nic, &stats);
	CHECK_EQ(stats.copied_bytes, 0);
	CHECK(stats.driver_copied_bytes >= 20000ull * (9014 + 1514));
	end_close(&b);
	CHECK(end_wait_up(&a, false));
	end_close(&a);
	peers_end();
}

/* Kills the peer five times while this process sends and receives. */
static void check_peer_deaths(const char *ours, const char *theirs)
{
	pid_t peer = peer_start(theirs);
	struct end end;

	end_open(&end, ours, 0);
	for (unsigned i = 0; i < 5; i++) {
		CHECK(end_wait_up(&end, true));
		CHECK(receive_from_peer(&end));
		peer_kill(peer);
		/* Exchange packets until the driver detects the death. */
		uint64_t until_ns = test_now_ns() + 60000000000u;
		struct harp_instance_port info = { .up = 1 };

		while (info.up && test_now_ns() < until_ns) {
			unsigned rounds = 0;

			/* A yield may take tens of milliseconds, so the link is read after each. */
			while (rounds < 1000 && end_exchange(&end))
				rounds++;
			api->port_info(end.port, &info);
		}
		CHECK_EQ(info.up, 0);
		CHECK_EQ(end.free_count + end.filled + end.sent, END_FRAMES);
		peer = peer_start(theirs);
	}
	CHECK(receive_from_peer(&end));
	peer_kill(peer);
	end_close(&end);
}

TEST(a_memif_client_survives_its_server)
{
	peers_begin();
	check_peer_deaths(peers_client, peers_server);
	peers_end();
}

TEST(a_memif_server_survives_its_client)
{
	peers_begin();
	check_peer_deaths(peers_server, peers_client);
	peers_end();
}
