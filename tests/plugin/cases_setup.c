/* SPDX-License-Identifier: Apache-2.0 */
/* cases_setup.c - properties, registration, connecting: everything before the first message. */
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "cases.h"

#define GARBAGE ((void *)(uintptr_t)0x57a1e)

static void check_properties(struct net *net, const struct nccl_props_v12 *props)
{
	REQUIRE(props->name && !strcmp(props->name, host_ifname()));
	REQUIRE(props->pci_path == NULL);
	REQUIRE(props->guid != 0);
	REQUIRE(props->ptr_support == NCCL_PTR_HOST);
	REQUIRE(hosts_are_ports() ? props->speed_mbps > 0 : props->speed_mbps == 10000);
	REQUIRE(props->port == 0);
	/* The same on all hosts and paths, since ranks with different values could deadlock. */
	REQUIRE(props->latency_us == 10);
	REQUIRE(props->max_comms >= 65536 && props->max_recvs == 1);
	if (net->version >= 7)
		REQUIRE(props->device_type == NCCL_DEVICE_HOST && props->device_version == 0);
	if (net->version >= 8)
		REQUIRE(props->reg_is_global == 0);
	if (net->version >= 9) {
		REQUIRE(props->force_flush == 0);
		REQUIRE(props->vprops.ndevs == 1 && props->vprops.devs[0] == 0);
		REQUIRE(props->max_p2p_bytes > 0 && props->max_p2p_bytes <= 1ull << 40);
		REQUIRE(props->max_coll_bytes > 0 && props->max_coll_bytes <= 1ull << 40);
	}
	if (net->version >= 11)
		REQUIRE(props->max_multi_request_size == 1);
	if (net->version >= 12)
		REQUIRE(props->rail_id == -1 && props->plane_id == -1);
}

static void *properties_thread(void *arg)
{
	struct net *net = arg;

	for (unsigned i = 0; i < 10000; i++) {
		struct nccl_props_v12 props;
		int count = -1;

		memset(&props, 0xa5, sizeof(props));
		OK(net_devices(net, &count));
		REQUIRE(count == 1);
		OK(net_properties(net, 0, &props));
		check_properties(net, &props);
	}
	return NULL;
}

void case_properties(const char *plugin, int version)
{
	struct nccl_props_v12 first, second;
	struct library lib;
	pthread_t threads[4];

	library_open(&lib, plugin, version);
	REQUIRE(!strcmp(net_name(&lib.net), "HARP"));
	for (unsigned i = 0; i < 4; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, properties_thread, &lib.net));
	for (unsigned i = 0; i < 4; i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	memset(&first, 0, sizeof(first));
	memset(&second, 0, sizeof(second));
	OK(net_properties(&lib.net, 0, &first));
	/* A second init does not change the properties. */
	OK(net_init(&lib.net, log_collect));
	OK(net_properties(&lib.net, 0, &second));
	REQUIRE(!memcmp(&first, &second, sizeof(first)));
	EXPECT(net_properties(&lib.net, 1, &second), NCCL_INVALID_ARGUMENT);
	EXPECT(net_properties(&lib.net, -1, &second), NCCL_INVALID_ARGUMENT);
}

void case_null_arguments(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	char handle[NCCL_HANDLE_BYTES] = "", byte = 5, received = 0;
	struct pair pair;
	void *out = GARBAGE;
	int done = 77;

	library_load(&lib, plugin, version);
	/* Before init. */
	net->ctx = NULL;
	if (version >= 11) {
		REQUIRE(net_listen(net, 0, handle, &out) != NCCL_SUCCESS && !out);
	} else if (!hosts_are_ports()) { /* net_init() sets the variables of the ports */
		/* NCCL 2.22 and 2.23 do not call init after they have reloaded the library. */
		OK(net_listen(net, 0, handle, &out));
		OK(net_close_listen(net, out));
	}
	OK(net_finalize(net));
	OK(net_init(net, log_collect));
	REQUIRE(net_listen(net, 7, handle, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_listen(net, -1, handle, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_listen(net, 0, NULL, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_connect(net, 0, NULL, &out) != NCCL_SUCCESS && !out);
	out = GARBAGE;
	REQUIRE(net_accept(net, NULL, &out) != NCCL_SUCCESS && !out);
	out = GARBAGE;
	REQUIRE(net_isend(net, NULL, &byte, 1, 0, NULL, &out) != NCCL_SUCCESS && !out);
	out = NCCL_REQUEST_OPTIONAL;
	REQUIRE(net_irecv(net, NULL, &byte, 1, 0, NULL, &out) != NCCL_SUCCESS && !out);
	REQUIRE(net_test(net, NULL, &done, NULL) != NCCL_SUCCESS && done == 0);
	out = GARBAGE;
	REQUIRE(net_reg_mr(net, NULL, &byte, 1, NCCL_PTR_HOST, &out) != NCCL_SUCCESS && !out);
	OK(net_iflush(net, NULL, &out));
	OK(net_dereg_mr(net, NULL, NULL));
	OK(net_close_send(net, NULL));
	OK(net_close_recv(net, NULL));
	OK(net_close_listen(net, NULL));
	/* The library still works. */
	pair_open(net, &pair);
	out = GARBAGE;
	REQUIRE(net_isend(net, pair.send, NULL, 1, 0, NULL, &out) != NCCL_SUCCESS && !out);
	out = GARBAGE;
	REQUIRE(net_irecv(net, pair.recv, NULL, 1, 0, NULL, &out) != NCCL_SUCCESS && !out);
	EXPECT(net_dereg_mr(net, pair.send, GARBAGE), NCCL_INVALID_ARGUMENT);
	complete_both(net, post_send(net, pair.send, &byte, 1, 0),
		      post_recv(net, pair.recv, &received, 1, 0), NULL, NULL);
	REQUIRE(received == byte);
	pair_close(net, &pair);
	library_close(&lib);
}

/* An invalid argument causes one WARN, and the output is set to NULL. */
#define EXPECT_INVALID(call)                                                                       \
	do {                                                                                       \
		unsigned warnings_before = log_warnings();                                         \
		out = GARBAGE;                                                                     \
		EXPECT(call, NCCL_INVALID_ARGUMENT);                                               \
		REQUIRE(!out && log_warnings() == warnings_before + 1);                            \
		REQUIRE(strstr(log_last_warning(), "NET/HARP: "));                                 \
	} while (0)

void case_misuse(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	struct pair pair;
	char bytes[8];
	void *out, *many[8], *mhandles[8] = { NULL };
	size_t sizes[8] = { 0 };
	int tags[8] = { 0 };

	library_load(&lib, plugin, version);
	setenv("HARP_FRAMES", "many", 1);
	EXPECT(net_init(net, log_collect), NCCL_INVALID_ARGUMENT);
	REQUIRE(log_warnings() == 1 && strstr(log_last_warning(), "HARP_FRAMES"));
	REQUIRE(version < 11 || !net->ctx);
	unsetenv("HARP_FRAMES");
	OK(net_init(net, log_collect));
	pair_open(net, &pair);
	for (unsigned i = 0; i < 8; i++)
		many[i] = bytes;
	for (int n = -1; n <= 8; n++)
		if (n != 1)
			EXPECT_INVALID(net_irecv_list(net, pair.recv, n, many, sizes, tags,
						      mhandles, &out));
	EXPECT_INVALID(net_isend(net, pair.send, bytes, (size_t)-1, 0, NULL, &out));
	EXPECT_INVALID(net_irecv(net, pair.recv, bytes, (size_t)INT_MIN, 0, NULL, &out));
	EXPECT_INVALID(net_isend(net, pair.recv, bytes, 1, 0, NULL, &out));
	EXPECT_INVALID(net_irecv(net, pair.send, bytes, 1, 0, NULL, &out));
	EXPECT_INVALID(net_reg_mr(net, pair.send, bytes, (size_t)-1, NCCL_PTR_HOST, &out));
	EXPECT_INVALID(net_reg_mr(net, pair.send, bytes, 1, NCCL_PTR_CUDA, &out));
	EXPECT_INVALID(net_reg_mr(net, pair.send, bytes, 1, NCCL_PTR_DMABUF, &out));
	EXPECT_INVALID(net_reg_mr(net, pair.send, bytes, 1, 0, &out));
	pair_close(net, &pair);
	library_close(&lib);
}

/* Counts this process's sockets with this DS field. */
static unsigned count_sockets_with_tos(int expected_tos)
{
	unsigned count = 0;

	for (int fd = 0; fd < 1024; fd++) {
		socklen_t len = sizeof(int);
		int tos = -1;

		if (!getsockopt(fd, IPPROTO_IP, IP_TOS, &tos, &len))
			count += tos == expected_tos;
	}
	return count;
}

/* NCCL gives it at init since v11, at connect in v10. Checked on the sockets of kernel lanes. */
void case_traffic_class(const char *plugin, int version)
{
	const char *path = getenv("HARP_PATH");
	struct library lib;
	struct pair pair;

	if (!path || strcmp(path, "kernel") != 0)
		return;
	library_load(&lib, plugin, version);
	lib.net.traffic_class = 104;
	OK(net_init(&lib.net, log_collect));
	pair_open(&lib.net, &pair);
	REQUIRE((count_sockets_with_tos(104) > 0) == (version >= 10));
	pair_close(&lib.net, &pair);
	library_close(&lib);
}

/* ---- connecting ------------------------------------------------------------------------------ */
void case_accept_twice(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	char handle[NCCL_HANDLE_BYTES], copies[2][NCCL_HANDLE_BYTES];
	void *listen, *sends[2] = { NULL }, *recvs[2] = { NULL };
	unsigned sent[2] = { 100, 200 }, received[2] = { 0 };

	library_open(&lib, plugin, version);
	OK(net_listen(net, 0, handle, &listen));
	for (unsigned i = 0; i < 2; i++) {
		memcpy(copies[i], handle, sizeof(handle));
		WAIT_UNTIL(sends[i] && recvs[i])
		{
			if (!sends[i])
				OK(net_connect(net, 0, copies[i], &sends[i]));
			if (!recvs[i])
				OK(net_accept(net, listen, &recvs[i]));
		}
	}
	REQUIRE(recvs[0] != recvs[1] && sends[0] != sends[1]);
	OK(net_close_listen(net, listen));
	for (unsigned i = 0; i < 2; i++) {
		complete_both(net, post_send(net, sends[i], &sent[i], sizeof(sent[i]), 0),
			      post_recv(net, recvs[i], &received[i], sizeof(received[i]), 0), NULL,
			      NULL);
		REQUIRE(received[i] == sent[i]);
		OK(net_close_recv(net, recvs[i]));
		OK(net_close_send(net, sends[i]));
	}
	library_close(&lib);
}

void case_early_connect(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	char handle[NCCL_HANDLE_BYTES];
	uint8_t out[1000], in[1000] = { 0 };
	void *listen, *send = NULL, *recv = NULL, *request = NULL;
	int size = -1;

	library_open(&lib, plugin, version);
	OK(net_listen(net, 0, handle, &listen));
	fill(out, sizeof(out), 1);
	/* NCCL's service thread continues without waiting for accept, too. */
	for (uint64_t start = now_ms(); !send && now_ms() - start < 300;)
		OK(net_connect(net, 0, handle, &send));
	if (send)
		request = post_send(net, send, out, sizeof(out), 0);
	WAIT_UNTIL(send && recv)
	{
		if (!recv)
			OK(net_accept(net, listen, &recv));
		if (!send)
			OK(net_connect(net, 0, handle, &send));
	}
	if (!request)
		request = post_send(net, send, out, sizeof(out), 0);
	complete_both(net, request, post_recv(net, recv, in, sizeof(in), 0), NULL, &size);
	REQUIRE(size == sizeof(in) && is_filled(in, sizeof(in), 1));
	OK(net_close_listen(net, listen));
	OK(net_close_send(net, send));
	OK(net_close_recv(net, recv));
	library_close(&lib);
}

void case_many_at_once(const char *plugin, int version)
{
	enum { MANY = 16 };
	static struct pair pairs[MANY];
	struct library lib;
	struct net *net = &lib.net;
	char handles[MANY][NCCL_HANDLE_BYTES];
	unsigned open = 0, received[MANY], sent[MANY];

	library_open(&lib, plugin, version);
	for (unsigned i = 0; i < MANY; i++) {
		OK(net_listen(net, 0, handles[i], &pairs[i].listen));
		for (unsigned j = 0; j < i; j++)
			REQUIRE(memcmp(handles[i], handles[j], NCCL_HANDLE_BYTES));
	}
	WAIT_UNTIL(open == 2 * MANY)
	{
		open = 0;
		for (unsigned i = 0; i < MANY; i++) {
			if (!pairs[i].send)
				OK(net_connect(net, 0, handles[i], &pairs[i].send));
			if (!pairs[MANY - 1 - i].recv)
				OK(net_accept(net, pairs[MANY - 1 - i].listen,
					      &pairs[MANY - 1 - i].recv));
		}
		for (unsigned i = 0; i < MANY; i++)
			open += (pairs[i].send ? 1u : 0u) + (pairs[i].recv ? 1u : 0u);
	}
	for (unsigned i = 0; i < MANY; i++) {
		sent[i] = 1000 + i;
		complete_both(net, post_send(net, pairs[i].send, &sent[i], 4, 0),
			      post_recv(net, pairs[i].recv, &received[i], 4, 0), NULL, NULL);
		REQUIRE(received[i] == 1000 + i);
	}
	for (unsigned i = 0; i < MANY; i++)
		pair_close(net, &pairs[i]);
	library_close(&lib);
}

/* ---- failed connects ------------------------------------------------------------------------- */
void case_corrupt_handle(const char *plugin, int version)
{
	static char handles[NCCL_HANDLE_BYTES][NCCL_HANDLE_BYTES];
	bool ended[NCCL_HANDLE_BYTES] = { false };
	struct library lib;
	struct net *net = &lib.net;
	struct pair good;
	unsigned left = NCCL_HANDLE_BYTES;
	uint8_t byte = 5, received = 0;

	setenv("HARP_CONNECT_TIMEOUT_MS", "1000", 1);
	library_open(&lib, plugin, version);
	pair_open(net, &good);
	for (unsigned i = 0; i < NCCL_HANDLE_BYTES; i++) {
		memcpy(handles[i], good.handle, NCCL_HANDLE_BYTES);
		handles[i][i] ^= (char)(1u << (i % 8));
	}
	WAIT_UNTIL(left == 0)
	{
		for (unsigned i = 0; i < NCCL_HANDLE_BYTES; i++) {
			enum nccl_result result;
			void *comm = GARBAGE;

			if (ended[i])
				continue;
			result = net_connect(net, 0, handles[i], &comm);
			if (comm)
				fail(__FILE__, __LINE__, "byte %u changed: connected", i);
			if (result == NCCL_SUCCESS)
				continue;
			if (result != NCCL_INVALID_USAGE && result != NCCL_REMOTE_ERROR &&
			    result != NCCL_SYSTEM_ERROR)
				fail(__FILE__, __LINE__, "byte %u changed: result %d", i,
				     (int)result);
			if (!log_warnings())
				fail(__FILE__, __LINE__, "byte %u changed: no WARN", i);
			ended[i] = true;
			left--;
		}
		/* The listener accepts none of them and does not block. */
		void *comm = GARBAGE;
		OK(net_accept(net, good.listen, &comm));
		REQUIRE(!comm);
	}
	complete_both(net, post_send(net, good.send, &byte, 1, 0),
		      post_recv(net, good.recv, &received, 1, 0), NULL, NULL);
	REQUIRE(received == byte);
	pair_close(net, &good);
	library_close(&lib);
}

void case_refused(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	char handle[NCCL_HANDLE_BYTES];
	enum nccl_result result = NCCL_SUCCESS;
	void *listen, *comm = GARBAGE;

	setenv("HARP_CONNECT_TIMEOUT_MS", "1000", 1);
	library_open(&lib, plugin, version);
	OK(net_listen(net, 0, handle, &listen));
	OK(net_close_listen(net, listen));
	WAIT_UNTIL(result != NCCL_SUCCESS)
	{
		comm = GARBAGE;
		result = net_connect(net, 0, handle, &comm);
		REQUIRE(!comm);
	}
	EXPECT(result, NCCL_REMOTE_ERROR);
	REQUIRE(log_warnings() == 1);
	library_close(&lib);
}

void case_abandoned(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	unsigned threads, fds;
	char handles[2][NCCL_HANDLE_BYTES];
	void *listens[2], *comm;

	warm_up(plugin, version);
	threads = count_threads();
	fds = count_fds();
	library_open(&lib, plugin, version);
	for (unsigned i = 0; i < 2; i++) {
		comm = NULL;
		OK(net_listen(net, 0, handles[i], &listens[i]));
		OK(net_connect(net, 0, handles[i], &comm));
		if (i == 1)
			OK(net_accept(net, listens[i], &comm));
	}
	/* After an abort, NCCL does not close comms. */
	library_close(&lib);
	require_no_leaks(threads, fds);
}
