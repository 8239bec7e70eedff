/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_relay.c - the bounds of memif's relay, over doubles of what DPDK does: how many ports there may be, which stranger has
 * to go and when, and what is left of a start that failed.
 */
#include <dirent.h>
#include <errno.h>
#include <rte_dev.h>
#include <rte_interrupts.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "dpdk/eal_log.h"
#include "dpdk/relay.h"
#include "dpdk/relay_hub.h"

#define SECOND_NS UINT64_C(1000000000)

/* ---- DPDK -------------------------------------------------------------------------------------- */

static int refusal; /* what registering says */
static uint64_t handles;

struct rte_intr_handle *rte_intr_instance_alloc(uint32_t flags)
{
	(void)flags;
	handles++;
	return (struct rte_intr_handle *)(void *)&handles;
}

int rte_intr_fd_set(struct rte_intr_handle *handle, int fd)
{
	(void)handle;
	CHECK(fd >= 0);
	return 0;
}

int rte_intr_type_set(struct rte_intr_handle *handle, enum rte_intr_handle_type type)
{
	(void)handle;
	(void)type;
	return 0;
}

int rte_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn run,
			       void *arg)
{
	(void)handle;
	(void)run;
	(void)arg;
	return refusal;
}

int rte_dev_probe(const char *device)
{
	(void)device;
	return -ENODEV;
}

void eal_log_mark(void)
{
}

void eal_log_words(char words[EAL_WORDS_BYTES])
{
	words[0] = '\0';
}

/* ------------------------------------------------------------------------------------------------ */

static unsigned descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* What a start that failed has made the next one uses: however often it fails, no more is open. */
static void test_a_start_that_fails(void)
{
	unsigned fds;

	refusal = -ENOSPC;
	CHECK_EQ(hub_start(), -ENOSPC);
	fds = descriptors();
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(hub_start(), -ENOSPC);
	CHECK_EQ(descriptors(), fds);
	refusal = 0;
	CHECK_EQ(hub_start(), 0);
	CHECK_EQ(descriptors(), fds);
	CHECK_EQ(handles, 1);
}

static int relay_try(struct relay **relay, unsigned i, char *words, size_t len)
{
	const struct why why = { .text = words, .size = len };
	char device[64], text[RELAY_TEXT_BYTES];

	snprintf(device, sizeof(device), "net_memif%u,role=client,socket=harp-test-%u", i, i);
	return relay_open(relay, device, text, &why);
}

/* One more port than there is room for is refused, and taken when another has gone. */
static void test_the_last_port(void)
{
	struct relay *relays[RELAY_PORTS_MAX + 1];
	char words[256] = "";

	for (unsigned i = 0; i < RELAY_PORTS_MAX; i++)
		CHECK_EQ(relay_try(&relays[i], i, words, sizeof(words)), 0);
	CHECK_EQ(relay_try(&relays[RELAY_PORTS_MAX], RELAY_PORTS_MAX, words, sizeof(words)),
		 -ENOSPC);
	CHECK(strstr(words, "64 memif ports"));
	relay_close(relays[0]);
	CHECK_EQ(relay_try(&relays[0], 0, words, sizeof(words)), 0);
	for (unsigned i = 0; i < RELAY_PORTS_MAX; i++)
		relay_close(relays[i]);
}

/* ---- strangers. The thread sleeps: nothing that it waits for happens ---------------------------- */

static struct listener one = { .fd = -1, .serves = true },
		       other = { .fd = -1, .serves = true, .next = &one };

/* A caller; the test's end of its socket. */
static int stranger(struct pair *pair, struct listener *listener, uint64_t since_ns)
{
	int ends[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
	*pair = (struct pair){ .next = hub.pairs,
			       .listener = listener,
			       .peer = ends[0],
			       .driver = -1,
			       .since_ns = since_ns,
			       .said = HANDSHAKE_BEGIN };
	hub.pairs = pair;
	hub.pair_count++;
	return ends[1];
}

static bool is_gone(int fd)
{
	char byte;

	return recv(fd, &byte, 1, 0) == 0;
}

static void forget(int *fds, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		close(fds[i]);
	for (const struct pair *pair = hub.pairs; pair; pair = pair->next)
		if (pair->peer >= 0)
			close(pair->peer);
	hub.pairs = NULL;
	hub.pair_count = 0;
}

/* Each has its time, and who has shaken hands has any. */
static void test_their_time(void)
{
	struct pair pairs[3];
	int fds[3];

	for (unsigned i = 0; i < 3; i++)
		fds[i] = stranger(&pairs[i], &one, (i + 1) * SECOND_NS);
	pairs[0].known = true;
	CHECK_EQ(strangers_late(3 * SECOND_NS), RELAY_GREET_NS - SECOND_NS);
	CHECK_EQ(strangers_late(2 * SECOND_NS + RELAY_GREET_NS - 1), 1);
	CHECK(!is_gone(fds[1]));
	CHECK_EQ(strangers_late(2 * SECOND_NS + RELAY_GREET_NS), SECOND_NS);
	CHECK(is_gone(fds[1]) && !is_gone(fds[2]) && !is_gone(fds[0]));
	CHECK_EQ(strangers_late(100 * SECOND_NS), UINT64_MAX);
	CHECK(is_gone(fds[2]) && !is_gone(fds[0]));
	forget(fds, 3);
}

/* When there are as many as there may be the server with the most loses its oldest. */
static void test_the_most_and_the_oldest(void)
{
	static struct pair pairs[RELAY_STRANGERS_MAX];
	int fds[RELAY_STRANGERS_MAX];
	const unsigned few = 3;

	for (unsigned i = 0; i < few; i++)
		fds[i] = stranger(&pairs[i], &other, SECOND_NS);
	for (unsigned i = few; i < RELAY_STRANGERS_MAX; i++)
		fds[i] = stranger(&pairs[i], &one, 2 * SECOND_NS + i);
	/* Of its own a newcomer waits for a moment; the other's newcomer doesn't. */
	CHECK(!strangers_room(&one, 2 * SECOND_NS + RELAY_MOMENT_NS));
	CHECK(!is_gone(fds[few]));
	CHECK(strangers_room(&other, 2 * SECOND_NS));
	CHECK(is_gone(fds[few]) && !is_gone(fds[few + 1]));
	close(fds[few]);
	fds[few] = stranger(&(struct pair){ 0 }, &other, 2 * SECOND_NS);
	CHECK(strangers_room(&one, 3 * SECOND_NS));
	CHECK(is_gone(fds[few + 1]) && !is_gone(fds[few + 2]));
	for (unsigned i = 0; i <= few; i++)
		CHECK(!is_gone(fds[i]));
	CHECK(strangers_room(&one, 3 * SECOND_NS)); /* there is room now */
	CHECK(!is_gone(fds[few + 2]));
	forget(fds, RELAY_STRANGERS_MAX);
}

/* Those that were sent away, and have not ended yet, may be as many again; of one server no more than half. */
static void test_those_that_leave(void)
{
	static struct pair pairs[RELAY_PAIRS_MAX / 2];

	for (unsigned i = 0; i < RELAY_PAIRS_MAX / 2; i++) {
		close(stranger(&pairs[i], &one, SECOND_NS));
		close(pairs[i].peer);
		pairs[i].peer = -1;
	}
	CHECK(!strangers_room(&one, 9 * SECOND_NS));
	CHECK(strangers_room(&other, 9 * SECOND_NS));
	forget(NULL, 0);
}

int main(void)
{
	test_a_start_that_fails();
	test_the_last_port();
	pthread_mutex_lock(&hub.lock);
	hub.listeners = &other;
	test_their_time();
	test_the_most_and_the_oldest();
	test_those_that_leave();
	return check_done(); /* the lock is kept: the thread is not to look at what was made up */
}
