/* SPDX-License-Identifier: Apache-2.0 */
/* cases_blocking.c - calls do not block, and connections leak nothing. */
#include <string.h>

#include "cases.h"
#include "blocking.h"

static void exercise_connection(struct net *net, struct pair *pair)
{
	static uint8_t out[100000], in[100000];
	void *send_memory = NULL, *recv_memory = NULL, *send = NULL, *recv = NULL;
	int sent = 0, received = 0, size = 0;

	fill(out, sizeof(out), 1);
	OK_NONBLOCKING(net_reg_mr(net, pair->send, out, sizeof(out), NCCL_PTR_HOST, &send_memory));
	OK_NONBLOCKING(net_reg_mr(net, pair->recv, in, sizeof(in), NCCL_PTR_HOST, &recv_memory));
	while (!recv)
		OK_NONBLOCKING(net_irecv(net, pair->recv, in, sizeof(in), 0, recv_memory, &recv));
	while (!send)
		OK_NONBLOCKING(net_isend(net, pair->send, out, sizeof(out), 0, send_memory, &send));
	WAIT_UNTIL(sent && received)
	{
		if (!sent)
			OK_NONBLOCKING(net_test(net, send, &sent, NULL));
		if (!received)
			OK_NONBLOCKING(net_test(net, recv, &received, &size));
	}
	REQUIRE(size == sizeof(in) && is_filled(in, sizeof(in), 1));
	OK_NONBLOCKING(net_dereg_mr(net, pair->send, send_memory));
	OK_NONBLOCKING(net_dereg_mr(net, pair->recv, recv_memory));
	OK_NONBLOCKING(net_close_listen(net, pair->listen));
	OK_NONBLOCKING(net_close_send(net, pair->send));
	OK_NONBLOCKING(net_close_recv(net, pair->recv));
}

void case_calls_return(const char *plugin, int version)
{
	struct library lib;
	struct net *net = &lib.net;
	struct pair pair = { .send = NULL };

	library_open(&lib, plugin, version);
	/* The first listen and the first connect open the interfaces, which may block. */
	OK(net_listen(net, 0, pair.handle, &pair.listen));
	OK(net_connect(net, 0, pair.handle, &pair.send));
	for (unsigned round = 0; round < 3; round++) {
		WAIT_UNTIL(pair.send && pair.recv)
		{
			if (!pair.send)
				OK_NONBLOCKING(net_connect(net, 0, pair.handle, &pair.send));
			if (!pair.recv)
				OK_NONBLOCKING(net_accept(net, pair.listen, &pair.recv));
		}
		exercise_connection(net, &pair);
		memset(&pair, 0, sizeof(pair));
		OK_NONBLOCKING(net_listen(net, 0, pair.handle, &pair.listen));
	}
	OK_NONBLOCKING(net_close_listen(net, pair.listen));
	library_close(&lib);
}

/* TCP_TIME_WAIT_PORTS_MAX: each host's stack holds a descriptor per connection in TIME-WAIT. */
#define TIME_WAIT_MAX 16u

static void run_connections(struct net *net, struct pair *pairs, unsigned count)
{
	unsigned out = 1, in = 0;

	for (unsigned i = 0; i < count; i++) {
		pair_open(net, &pairs[i]);
		complete_both(net, post_send(net, pairs[i].send, &out, 4, 0),
			      post_recv(net, pairs[i].recv, &in, 4, 0), NULL, NULL);
	}
	for (unsigned i = 0; i < count; i++)
		pair_close(net, &pairs[i]);
}

void case_many_connections(const char *plugin, int version)
{
	enum { CONNECTIONS = 330, BURST = 10 };
	static struct pair pairs[BURST];
	struct library lib;
	unsigned threads, fds;

	warm_up(plugin, version);
	library_open(&lib, plugin, version);
	run_connections(&lib.net, pairs, 1);
	threads = count_threads();
	fds = count_fds() + (strcmp(host_ifname(), "lo") ? 2 * TIME_WAIT_MAX : 0);
	for (unsigned i = 0; i < CONNECTIONS / BURST; i++)
		run_connections(&lib.net, pairs, BURST);
	WAIT_UNTIL(count_threads() <= threads && count_fds() <= fds);
	library_close(&lib);
}
