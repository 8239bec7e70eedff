/* SPDX-License-Identifier: Apache-2.0 */
/* cases_memory.c - registered memory: deregistered while in use, shared, and of unusual sizes. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "peer.h"

#define MIB (1024u * 1024u)
#define REQUESTS 32u
#define LARGE (16 * MIB) /* more than a socket buffers */

static void *reg(struct net *net, void *comm, void *data, size_t size)
{
	void *handle = NULL;

	OK(net_reg_mr(net, comm, data, size, NCCL_PTR_HOST, &handle));
	REQUIRE(handle);
	return handle;
}

/* NCCL deregisters and frees the memory before it closes the comms. A later access faults. */
static void memory_freed(struct net *net, unsigned sends, unsigned recvs, bool send_first)
{
	struct pair pair;
	uint8_t *out = map(REQUESTS * MIB), *in = map(REQUESTS * MIB);
	void *mr_out, *mr_in, *request = NULL;

	pair_open(net, &pair);
	mr_out = reg(net, pair.send, out, REQUESTS * MIB);
	mr_in = reg(net, pair.recv, in, REQUESTS * MIB);
	for (unsigned i = 0; i < recvs; i++)
		request = post_recv(net, pair.recv, in + i * MIB, MIB, 0);
	for (unsigned i = 0; i < sends; i++)
		request = post_send(net, pair.send, out + i * MIB, MIB, 0);
	for (unsigned end = 0; end < 2; end++) {
		bool send = (end == 0) == send_first;

		OK(net_dereg_mr(net, send ? pair.send : pair.recv, send ? mr_out : mr_in));
		REQUIRE(munmap(send ? out : in, REQUESTS * MIB) == 0);
		/* These calls poll the lanes, if no other thread does. */
		for (unsigned i = 0; i < 1000; i++) {
			int done;

			(void)net_test(net, request, &done, NULL);
			if (done)
				break;
		}
	}
	pair_close(net, &pair);
}

void case_memory_freed(const char *plugin, int version)
{
	struct library lib;

	library_open(&lib, plugin, version);
	for (unsigned send_first = 0; send_first < 2; send_first++) {
		memory_freed(&lib.net, 0, REQUESTS, send_first);
		memory_freed(&lib.net, REQUESTS, 0, send_first);
		memory_freed(&lib.net, REQUESTS, REQUESTS, send_first);
		memory_freed(&lib.net, REQUESTS, 5, send_first);
	}
	library_close(&lib);
}

static void child_checks_messages(const char *plugin, int version, int fd)
{
	static uint8_t in[REQUESTS][MIB];
	void *listen, *comm, *requests[REQUESTS];
	char handle[NCCL_HANDLE_BYTES];
	enum nccl_result result = NCCL_SUCCESS;
	struct library lib;
	struct net *net = &lib.net;

	library_open(&lib, plugin, version);
	OK(net_listen(net, 0, handle, &listen));
	REQUIRE(write(fd, handle, sizeof(handle)) == sizeof(handle));
	comm = end_accept(net, listen);
	for (unsigned i = 0; i < REQUESTS; i++)
		requests[i] = post_recv(net, comm, in[i], MIB, 0);
	complete(net, requests[0]);
	peer_notify(fd);
	for (unsigned i = 1; i < REQUESTS && result == NCCL_SUCCESS; i++) {
		int done = 0;

		WAIT_UNTIL(done || result != NCCL_SUCCESS)
		result = net_test(net, requests[i], &done, NULL);
		REQUIRE(!done || is_filled(in[i], MIB, i));
	}
	REQUIRE(result == NCCL_REMOTE_ERROR);
	OK(net_close_recv(net, comm));
	OK(net_close_listen(net, listen));
	library_close(&lib);
}

/*
 * The stopped peer neither receives nor acknowledges. The sender deregisters and overwrites the
 * memory nevertheless. The peer, once it continues, gets the original bytes or an error.
 */
void case_memory_stopped(const char *plugin, int version)
{
	struct peer peer = peer_start(child_checks_messages, HOST_RECEIVER, plugin, version);
	uint8_t *out = map(REQUESTS * MIB);
	struct library lib;
	struct net *net = &lib.net;
	void *comm, *mr;
	int status;

	library_open(&lib, plugin, version);
	comm = child_connect(net, peer.fd);
	mr = reg(net, comm, out, REQUESTS * MIB);
	for (unsigned i = 0; i < REQUESTS; i++)
		fill(out + (size_t)i * MIB, MIB, i);
	complete(net, post_send(net, comm, out, MIB, 0));
	peer_wait(peer.fd);
	REQUIRE(kill(peer.pid, SIGSTOP) == 0 && waitpid(peer.pid, &status, WUNTRACED) == peer.pid);
	for (unsigned i = 1; i < REQUESTS; i++)
		post_send(net, comm, out + (size_t)i * MIB, MIB, 0);
	clock_stop(); /* no timer or timeout may expire before deregMr returns */
	OK(net_dereg_mr(net, comm, mr));
	clock_resume();
	memset(out, 0xee, REQUESTS * MIB);
	REQUIRE(munmap(out, REQUESTS * MIB) == 0);
	REQUIRE(kill(peer.pid, SIGCONT) == 0);
	OK(net_close_send(net, comm));
	peer_end(&peer, 0);
	library_close(&lib);
}

/* Two comms send from one pool, as NCCL's do; one is closed while the other sends. */
void case_memory_shared(const char *plugin, int version)
{
	static uint8_t out[8 * MIB], in[MIB];
	struct library lib;
	struct net *net = &lib.net;
	struct pair pairs[2];
	void *mr[2];

	library_open(&lib, plugin, version);
	for (unsigned p = 0; p < 2; p++) {
		pair_open(net, &pairs[p]);
		mr[p] = reg(net, pairs[p].send, out, sizeof(out));
	}
	fill(out, sizeof(out), 5);
	for (unsigned i = 0; i < 8; i++) {
		unsigned p = i < 4 ? i % 2 : 1;
		uint8_t *from = out + (size_t)i * MIB;
		void *send = post_send(net, pairs[p].send, from, MIB, 0);

		if (i == 4) { /* the other comm is sending */
			OK(net_dereg_mr(net, pairs[0].send, mr[0]));
			EXPECT(net_dereg_mr(net, pairs[0].send, mr[0]), NCCL_INVALID_ARGUMENT);
			pair_close(net, &pairs[0]);
		}
		complete_both(net, send, post_recv(net, pairs[p].recv, in, MIB, 0), NULL, NULL);
		REQUIRE(memcmp(in, from, MIB) == 0);
	}
	OK(net_dereg_mr(net, pairs[1].send, mr[1]));
	complete_both(net, post_send(net, pairs[1].send, out, MIB, 0),
		      post_recv(net, pairs[1].recv, in, MIB, 0), NULL, NULL); /* unregistered */
	REQUIRE(memcmp(in, out, MIB) == 0);
	pair_close(net, &pairs[1]);
	library_close(&lib);
}

/*
 * A request depends only on the registration that it was posted with. Round 0 deregisters another
 * region with the same bytes, and one with a part of them; round 1 the request's own.
 */
static void memory_duplicate(struct net *net, bool sender)
{
	static uint8_t out[LARGE], in[LARGE];
	struct pair pair;
	uint8_t *data = sender ? out : in;
	void *comm, *memory, *same, *part, *request = NULL, *peer_request;
	enum nccl_result result = NCCL_SUCCESS;
	int done = 0;

	pair_open(net, &pair);
	comm = sender ? pair.send : pair.recv;
	fill(out, LARGE, 7);
	for (unsigned round = 0; round < 2; round++) {
		memory = reg(net, comm, data, LARGE);
		same = reg(net, comm, data, LARGE);
		part = reg(net, comm, data + 4096, LARGE / 2);
		if (sender)
			OK(net_isend(net, comm, data, LARGE, 0, memory, &request));
		else
			OK(net_irecv(net, comm, data, LARGE, 0, memory, &request));
		REQUIRE(request);
		OK(net_dereg_mr(net, comm, round ? memory : same));
		OK(net_dereg_mr(net, comm, part));
		if (round)
			break;
		peer_request = sender ? post_recv(net, pair.recv, in, LARGE, 0)
				      : post_send(net, pair.send, out, LARGE, 0);
		complete_both(net, sender ? request : peer_request, sender ? peer_request : request,
			      NULL, NULL);
		REQUIRE(is_filled(in, LARGE, 7));
		OK(net_dereg_mr(net, comm, memory));
	}
	WAIT_UNTIL(done || result != NCCL_SUCCESS)
	result = net_test(net, request, &done, NULL);
	REQUIRE(!done);
	pair_close(net, &pair);
}

void case_memory_duplicate(const char *plugin, int version)
{
	struct library lib;

	library_open(&lib, plugin, version);
	memory_duplicate(&lib.net, true);
	memory_duplicate(&lib.net, false);
	library_close(&lib);
}

/* Regions of any size and alignment; deregMr may be omitted before close. */
void case_memory_regions(const char *plugin, int version)
{
	static uint8_t small[4 * MIB], in[4 * MIB];
	const struct {
		size_t at, size;
	} regions[] = {
		{ 0, 1 },
		{ 1, 3 },
		{ 4095, 2 },
		{ 5, MIB },
		{ 5, MIB },
		{ MIB / 2 + 7, 2 * MIB + 1 },
		{ 0, sizeof(small) },
		{ 3, 0 },
	};
	size_t huge_bytes = version < 8 ? (size_t)1 << 30 : (size_t)64 << 30;
	void *handles[sizeof(regions) / sizeof(regions[0])], *mr;
	struct library lib;
	struct net *net = &lib.net;
	struct pair pair;
	uint8_t *huge;

	library_open(&lib, plugin, version);
	pair_open(net, &pair);
	huge = mmap(NULL, huge_bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	REQUIRE(huge != MAP_FAILED);
	mr = reg(net, pair.send, huge, huge_bytes);
	fill(small, sizeof(small), 9);
	for (unsigned i = 0; i < sizeof(regions) / sizeof(regions[0]); i++)
		handles[i] = reg(net, pair.send, small + regions[i].at, regions[i].size);
	/* Each message covers the ends of all regions. Each round deregisters one region. */
	for (unsigned i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
		memset(in, 0, sizeof(in));
		complete_both(net, post_send(net, pair.send, small + i, sizeof(small) - i, 0),
			      post_recv(net, pair.recv, in, sizeof(in), 0), NULL, NULL);
		REQUIRE(memcmp(in, small + i, sizeof(small) - i) == 0);
		OK(net_dereg_mr(net, pair.send, handles[i]));
	}
	memcpy(huge + huge_bytes - MIB, small, MIB);
	complete_both(net, post_send(net, pair.send, huge + huge_bytes - MIB, MIB, 0),
		      post_recv(net, pair.recv, in, MIB, 0), NULL, NULL);
	REQUIRE(memcmp(in, small, MIB) == 0);
	(void)mr; /* close deregisters it */
	pair_close(net, &pair);
	REQUIRE(munmap(huge, huge_bytes) == 0);
	library_close(&lib);
}
