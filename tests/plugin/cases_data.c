/* SPDX-License-Identifier: Apache-2.0 */
/* cases_data.c - messages between a sender and a receiver, neither of which fails. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cases.h"
#include "harp_profiler.h"

#define MIB (1024u * 1024u)
#define GUARD 64u

/* Sends size bytes from out + skew; the receive is posted at in + skew for capacity bytes. */
static void transfer(struct net *net, struct pair *pair, uint8_t *out, uint8_t *in, size_t skew,
		     size_t size, size_t capacity)
{
	unsigned seed = (unsigned)(size * 31 + skew);
	int sent = -1, received = -1;
	void *recv, *send;

	memset(in, 0x5a, skew + capacity + GUARD);
	fill(out + skew, size, seed);
	recv = post_recv(net, pair->recv, in + skew, capacity, 1);
	send = post_send(net, pair->send, out + skew, size, 1);
	complete_both(net, send, recv, &sent, &received);
	if ((size_t)received != size || (size_t)sent != size)
		fail(__FILE__, __LINE__, "%zu bytes: %d sent, %d received", size, sent, received);
	if (!is_filled(in + skew, size, seed))
		fail(__FILE__, __LINE__, "%zu bytes at offset %zu: wrong", size, skew);
	for (size_t i = 0; i < skew; i++)
		REQUIRE(in[i] == 0x5a);
	for (size_t i = skew + size; i < skew + capacity + GUARD; i++)
		REQUIRE(in[i] == 0x5a);
}

void case_sizes(const char *plugin, int version)
{
	static const size_t sizes[] = { 0,      1,       7,    8,       9,          15,
					63,     64,      65,   511,     1459,       1460,
					4095,   4096,    4097, 65535,   262143,     262144,
					262145, MIB - 1, MIB,  MIB + 1, 3 * MIB + 5 };
	struct library lib;
	struct pair pair;
	uint8_t *out = malloc(64 * MIB + 2 * GUARD), *in = malloc(64 * MIB + 2 * GUARD);
	int sent = -1, received = -1;

	REQUIRE(out && in);
	library_open(&lib, plugin, version);
	pair_open(&lib.net, &pair);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		transfer(&lib.net, &pair, out, in, 0, sizes[i], sizes[i]);
		transfer(&lib.net, &pair, out, in, 1 + i % 8, sizes[i], sizes[i] + i);
		transfer(&lib.net, &pair, out, in, 8, sizes[i], 4 * MIB);
	}
	/* An empty message with a NULL address. */
	complete_both(&lib.net, post_send(&lib.net, pair.send, NULL, 0, 0),
		      post_recv(&lib.net, pair.recv, NULL, 0, 0), &sent, &received);
	REQUIRE(sent == 0 && received == 0);
	transfer(&lib.net, &pair, out, in, 0, 64 * MIB, 64 * MIB);
	transfer(&lib.net, &pair, out, in, 3, 64 * MIB - 3, 64 * MIB - 3);
	pair_close(&lib.net, &pair);
	library_close(&lib);
	free(out);
	free(in);
}

/* Tests a request until it completes or fails; returns the last result. */
static enum nccl_result wait_result(struct net *net, void *request)
{
	enum nccl_result result = NCCL_SUCCESS;
	int done = 0;

	WAIT_UNTIL(done || result != NCCL_SUCCESS)
	{
		done = 77;
		result = net_test(net, request, &done, NULL);
		REQUIRE(result == NCCL_SUCCESS ? done == 0 || done == 1 : done == 0);
	}
	return result;
}

/* Truncated to 32 bits, either of these sizes would be 0. */
void case_long_sizes(const char *plugin, int version)
{
	const size_t sizes[] = { 5ull << 32, 6ull << 32 };
	uint64_t word = 7, received_word = 0;
	struct library lib;
	struct pair pair;
	void *memory;

	if (version < 9)
		return;
	memory = mmap(NULL, sizes[1], PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	REQUIRE(memory != MAP_FAILED);
	library_open(&lib, plugin, version);
	pair_open(&lib.net, &pair);
	complete_both(&lib.net, post_send(&lib.net, pair.send, &word, sizeof(word), 0),
		      post_recv(&lib.net, pair.recv, memory, sizes[1], 0), NULL, NULL);
	REQUIRE(*(uint64_t *)memory == word);
	post_send(&lib.net, pair.send, memory, sizes[0], 0);
	EXPECT(wait_result(&lib.net, post_recv(&lib.net, pair.recv, &received_word,
					       sizeof(received_word), 0)),
	       NCCL_INVALID_USAGE);
	REQUIRE(strstr(log_last_warning(), "truncated"));
	pair_close(&lib.net, &pair);
	library_close(&lib);
}

void case_requests(const char *plugin, int version)
{
	enum { MANY = NCCL_REQUESTS_MAX };
	struct library lib;
	struct net *net = &lib.net;
	struct pair pair;
	void *sends[MANY + 1], *recvs[MANY + 1], *extra;
	uint64_t out[MANY + 1], in[MANY + 1] = { 0 };

	library_open(&lib, plugin, version);
	pair_open(net, &pair);
	for (unsigned i = 0; i < MANY; i++) {
		out[i] = i * 3;
		recvs[i] = NULL;
		OK(net_irecv(net, pair.recv, &in[i], 8, 0, NULL, &recvs[i]));
		REQUIRE(recvs[i]);
	}
	extra = NCCL_REQUEST_OPTIONAL;
	OK(net_irecv(net, pair.recv, &in[MANY], 8, 0, NULL, &extra));
	REQUIRE(!extra);
	for (unsigned i = 0; i < MANY; i++) {
		sends[i] = NULL;
		OK(net_isend(net, pair.send, &out[i], 8, 0, NULL, &sends[i]));
		REQUIRE(sends[i]);
	}
	extra = sends[0];
	OK(net_isend(net, pair.send, &out[0], 8, 0, NULL, &extra));
	REQUIRE(!extra);
	/* One completion frees one request. */
	complete_both(net, sends[0], recvs[0], NULL, NULL);
	out[MANY] = MANY * 3;
	sends[MANY] = recvs[MANY] = NULL;
	OK(net_irecv(net, pair.recv, &in[MANY], 8, 0, NULL, &recvs[MANY]));
	OK(net_isend(net, pair.send, &out[MANY], 8, 0, NULL, &sends[MANY]));
	REQUIRE(recvs[MANY] && sends[MANY]);
	for (unsigned i = 1; i <= MANY; i++)
		complete_both(net, sends[i], recvs[i], NULL, NULL);
	for (unsigned i = 0; i <= MANY; i++)
		REQUIRE(in[i] == i * 3);
	pair_close(net, &pair);
	library_close(&lib);
}

/* Keeps a window of receives posted ahead of a window of sends, as NCCL does. */
void case_fifo(const char *plugin, int version)
{
	enum { COUNT = 400, WINDOW = 8, CAPACITY = 40000 };
	static uint8_t out[WINDOW][CAPACITY], in[WINDOW][CAPACITY];
	void *sends[WINDOW] = { NULL }, *recvs[WINDOW] = { NULL };
	unsigned posted_sends = 0, posted_recvs = 0, sent = 0, received = 0;
	struct library lib;
	struct net *net = &lib.net;
	struct pair pair;

	library_open(&lib, plugin, version);
	pair_open(net, &pair);
	WAIT_UNTIL(sent == COUNT && received == COUNT)
	{
		unsigned slot;
		int done, size;

		slot = posted_recvs % WINDOW;
		if (posted_recvs < COUNT && posted_recvs - received < WINDOW) {
			OK(net_irecv(net, pair.recv, in[slot], CAPACITY, (int)posted_recvs, NULL,
				     &recvs[slot]));
			posted_recvs += recvs[slot] != NULL;
		}
		slot = posted_sends % WINDOW;
		if (posted_sends < COUNT && posted_sends - sent < WINDOW) {
			fill(out[slot], posted_sends * 97 % CAPACITY, posted_sends);
			OK(net_isend(net, pair.send, out[slot], posted_sends * 97 % CAPACITY,
				     (int)posted_sends, NULL, &sends[slot]));
			posted_sends += sends[slot] != NULL;
		}
		if (sent < posted_sends) {
			OK(net_test(net, sends[sent % WINDOW], &done, &size));
			sent += (unsigned)done;
		}
		if (received < posted_recvs) {
			slot = received % WINDOW;
			OK(net_test(net, recvs[slot], &done, &size));
			if (done) {
				REQUIRE((unsigned)size == received * 97 % CAPACITY);
				REQUIRE(is_filled(in[slot], (size_t)size, received));
				received++;
			}
		}
	}
	pair_close(net, &pair);
	library_close(&lib);
}

/* The profiler's events per direction. It declines events of more than EVENT_BYTES_MAX bytes. */
enum { EVENT_BYTES_MAX = 100000 };
static struct {
	unsigned started, stopped, declined;
	const struct harp_profiler_event *running; /* one at a time */
	struct harp_profiler_event last;
} profiled[2];
static char phandle;

static enum nccl_result profiler(void **handle, int type, void *parent, int64_t plugin_id,
				 void *data)
{
	const struct harp_profiler_event *event = data;

	REQUIRE(plugin_id == HARP_PROFILER_PLUGIN_ID);
	REQUIRE(event->size == sizeof(*event) && event->direction < 2);
	if (type == NCCL_PROFILER_START) {
		REQUIRE(!*handle && parent == &phandle);
		REQUIRE(event->posted_ns && !event->done_ns && !event->lane_kinds);
		if (event->bytes > EVENT_BYTES_MAX) {
			profiled[event->direction].declined++;
			return NCCL_SUCCESS;
		}
		REQUIRE(!profiled[event->direction].running);
		profiled[event->direction].running = event;
		profiled[event->direction].started++;
		*handle = &profiled[event->direction];
		return NCCL_SUCCESS;
	}
	REQUIRE(type == NCCL_PROFILER_UPDATE_AND_STOP);
	REQUIRE(*handle == &profiled[event->direction] &&
		profiled[event->direction].running == event);
	profiled[event->direction].running = NULL;
	profiled[event->direction].stopped++;
	profiled[event->direction].last = *event;
	return NCCL_SUCCESS;
}

static void check_event(const struct harp_profiler_event *event, size_t size, unsigned message)
{
	REQUIRE(event->bytes == size && event->message == message && event->error == 0);
	REQUIRE(event->done_ns >= event->posted_ns);
	REQUIRE(event->wait_ns <= event->done_ns - event->posted_ns);
	REQUIRE(event->lane_kinds > 0 && event->lane_kinds < 4);
	REQUIRE(event->comm != 0 && event->remote_port != 0);
}

void case_events(const char *plugin, int version)
{
	static const size_t sizes[] = { 0, 5, 70000, EVENT_BYTES_MAX + 1, 8 };
	static uint8_t out[EVENT_BYTES_MAX + GUARD + 1], in[EVENT_BYTES_MAX + GUARD + 1];
	unsigned expected = 0, declined = 0;
	struct library lib;
	struct pair pair;

	/* v10 reports events to HARP's own profiler only; this variable enables it. */
	REQUIRE(setenv("HARP_TRACE", "/", 1) == 0);
	library_load(&lib, plugin, version);
	lib.net.profiler = lib.far.profiler = profiler;
	OK(net_init(&lib.net, log_collect));
	pair_open(&lib.net, &pair);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		/* The last message has no handle. */
		lib.net.phandle = lib.far.phandle =
			i + 1 < sizeof(sizes) / sizeof(sizes[0]) ? &phandle : NULL;
		transfer(&lib.net, &pair, out, in, 0, sizes[i], sizes[i]);
		if (version >= 10 && lib.net.phandle) {
			expected += sizes[i] <= EVENT_BYTES_MAX;
			declined += sizes[i] > EVENT_BYTES_MAX;
		}
		for (unsigned d = 0; d < 2; d++) {
			REQUIRE(profiled[d].started == expected && profiled[d].stopped == expected);
			REQUIRE(profiled[d].declined == declined);
			if (expected == i + 1)
				check_event(&profiled[d].last, sizes[i], i);
		}
	}
	REQUIRE(version < 10 || profiled[0].last.comm == profiled[1].last.comm);
	pair_close(&lib.net, &pair);
	library_close(&lib);
}

void case_truncated(const char *plugin, int version)
{
	static uint8_t out[2 * MIB], in[2 * MIB];
	static const size_t sizes[][2] = { { 100, 99 }, { 1, 0 }, { 2 * MIB, MIB } };
	struct library lib;
	struct net *net = &lib.net;

	library_open(&lib, plugin, version);
	for (unsigned i = 0; i < 3; i++) {
		unsigned warned = log_warnings();
		struct pair pair;
		void *recv, *request = (void *)(uintptr_t)0x57a1e;
		uint8_t byte;

		pair_open(net, &pair);
		memset(in, 0x5a, sizeof(in));
		recv = post_recv(net, pair.recv, in, sizes[i][1], 0);
		post_send(net, pair.send, out, sizes[i][0], 0);
		EXPECT(wait_result(net, recv), NCCL_INVALID_USAGE);
		/* The sender, also in this process, logs the error once as well. */
		REQUIRE(log_warnings() - warned <= 2);
		REQUIRE(strstr(log_last_warning(), "truncated"));
		REQUIRE(in[sizes[i][1]] == 0x5a);
		/* The error is permanent: NCCL 2.19 to 2.25 continue to call. */
		for (unsigned n = 0; n < 100; n++) {
			EXPECT(net_irecv(net, pair.recv, &byte, 1, 0, NULL, &request),
			       NCCL_INVALID_USAGE);
			REQUIRE(!request);
			EXPECT(wait_result(net, recv), NCCL_INVALID_USAGE);
		}
		REQUIRE(log_warnings() - warned <= 2);
		pair_close(net, &pair);
	}
	library_close(&lib);
}

enum { DIRECTION_ROUNDS = 40 };

struct direction {
	struct pair pair;
	uint8_t out[MIB], in[MIB];
	unsigned rounds;
	void *send, *recv;
};

/* Advances a round: posts both requests, tests them, checks the message. */
static void direction_step(struct net *net, struct direction *direction, unsigned salt)
{
	int done = 0;

	if (direction->rounds == DIRECTION_ROUNDS)
		return;
	if (!direction->send && !direction->recv) {
		fill(direction->out, MIB, direction->rounds + salt);
		direction->send = post_send(net, direction->pair.send, direction->out, MIB, 0);
		direction->recv = post_recv(net, direction->pair.recv, direction->in, MIB, 0);
	}
	if (direction->send)
		OK(net_test(net, direction->send, &done, NULL));
	if (done)
		direction->send = NULL;
	done = 0;
	if (direction->recv)
		OK(net_test(net, direction->recv, &done, NULL));
	if (done)
		direction->recv = NULL;
	if (!direction->send && !direction->recv) {
		REQUIRE(is_filled(direction->in, MIB, direction->rounds + salt));
		direction->rounds++;
	}
}

void case_two_directions(const char *plugin, int version)
{
	static struct direction directions[2];
	struct library lib;

	library_open(&lib, plugin, version);
	for (unsigned i = 0; i < 2; i++)
		pair_open(&lib.net, &directions[i].pair);
	for (unsigned round = 1; round <= 2 * DIRECTION_ROUNDS; round++) {
		WAIT_UNTIL(directions[0].rounds + directions[1].rounds >= round)
		{
			direction_step(&lib.net, &directions[0], 0);
			direction_step(&lib.net, &directions[1], 1);
		}
	}
	for (unsigned i = 0; i < 2; i++)
		pair_close(&lib.net, &directions[i].pair);
	library_close(&lib);
}

/* One of several ranks in a process, which all run the same calls concurrently. */
static void *rank_thread(void *arg)
{
	enum { ROUNDS = 6, MESSAGES = 30, SIZE = 20000 };
	struct library *lib = arg;
	struct net net = lib->net, far = lib->far;
	uint8_t *out = malloc(SIZE), *in = malloc(SIZE);

	REQUIRE(out && in);
	if (net.far)
		net.far = &far;
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct nccl_props_v12 props;
		struct pair pair;

		OK(net_init(&net, log_collect));
		OK(net_properties(&net, 0, &props));
		pair_open(&net, &pair);
		for (unsigned i = 0; i < MESSAGES; i++) {
			size_t size = (i * 701 + round) % SIZE;

			fill(out, size, i + round);
			complete_both(&net, post_send(&net, pair.send, out, size, 0),
				      post_recv(&net, pair.recv, in, SIZE, 0), NULL, NULL);
			REQUIRE(is_filled(in, size, i + round));
		}
		pair_close(&net, &pair);
		OK(net_finalize(&net));
	}
	free(out);
	free(in);
	return NULL;
}

void case_threads(const char *plugin, int version)
{
	enum { THREADS = 5 };
	struct library lib;
	pthread_t threads[THREADS];

	library_open(&lib, plugin, version);
	for (unsigned i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, rank_thread, &lib));
	for (unsigned i = 0; i < THREADS; i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	library_close(&lib);
}

/*
 * The sender's thread sleeps after it posted, as NCCL's does. Small sends must complete before a
 * receive is posted, and arrive without further calls of the sender.
 */
void case_idle(const char *plugin, int version)
{
	enum { COUNT = 8, SIZE = 4096 };
	static uint8_t out[COUNT][SIZE], in[COUNT][SIZE];
	struct library lib;
	struct pair pair;
	void *sends[COUNT];

	library_open(&lib, plugin, version);
	pair_open(&lib.net, &pair);
	for (unsigned i = 0; i < COUNT; i++) {
		fill(out[i], SIZE, i);
		sends[i] = post_send(&lib.net, pair.send, out[i], SIZE, 0);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		complete(&lib.net, sends[i]);
		memset(out[i], 0, SIZE);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		void *recv = post_recv(&lib.net, pair.recv, in[i], SIZE, 0);

		REQUIRE(complete(&lib.net, recv) == SIZE && is_filled(in[i], SIZE, i));
	}
	pair_close(&lib.net, &pair);
	library_close(&lib);
}
