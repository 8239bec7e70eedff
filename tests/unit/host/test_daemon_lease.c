/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_lease.c - a lease that came and cannot be used: harpd hears of it at once, and no descriptor
 * stays behind. harpd is the other end of a socket, which has said beforehand what it will say.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "fds.h"
#include "harpd_end.h"

static char why[512];
static struct harp_lease_leased leased;
static unsigned descriptors;

/* A harpd that leases well; what it says of the lease can be changed. */
static void good(void)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	memset(&leased, 0, sizeof(leased));
	leased.header = header(HARP_LEASE_LEASED, sizeof(leased), 2);
	leased.lease_id = LEASE_ID;
	strcpy(leased.ifname, "eth1");
	leased.ifindex = 7;
	leased.queue = 1;
	leased.queue_count = 4;
	leased.port_min = 61000;
	leased.port_max = 61255;
	descriptors = HARP_LEASE_FDS;
}

/* Descriptors beyond those that are open and `room` more cannot be had. */
static void limit(unsigned room, rlim_t *before)
{
	struct rlimit files;
	int next = dup(ends[1]);

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	*before = files.rlim_cur;
	files.rlim_cur = (rlim_t)next + room;
	close(next);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
}

static void unlimit(rlim_t before)
{
	struct rlimit files;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = before;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
}

/* Asks for a lease of eth1; room: for descriptors, ~0u: as many as come. */
static int ask(uint32_t queue, unsigned room, int fds[HARP_LEASE_FDS])
{
	struct harp_lease_welcome welcome = {
		.header = header(HARP_LEASE_WELCOME, sizeof(welcome), 1),
		.daemon = "harpd test",
	};
	struct harp_lease_request request = { .ifname = "eth1", .queue = queue };
	struct harp_lease_header done = header(HARP_LEASE_DONE, sizeof(done), 3);
	struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
	struct harp_lease_leased out;
	struct harp_daemon *daemon;
	rlim_t before = 0;
	int rc;

	say(&welcome, sizeof(welcome), 0);
	CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), 0);
	say(&leased, sizeof(leased), descriptors);
	say(&done, sizeof(done), 0);
	if (room != ~0u)
		limit(room, &before);
	rc = daemon_lease(daemon, &request, &out, fds, &reason);
	if (room != ~0u)
		unlimit(before);
	harp_daemon_close(daemon);
	return rc;
}

#define REFUSES(error, room, words)                                                                \
	do {                                                                                       \
		int fds[HARP_LEASE_FDS];                                                           \
		unsigned before = fds_open() - 2;                                                  \
		CHECK_EQ(ask(HARP_LEASE_QUEUE_ANY, room, fds), error);                             \
		CHECK(came_back());                                                                \
		CHECK_EQ(fds_open(), before);                                                      \
		explained(why, words, __LINE__);                                                   \
	} while (0)

static void taken(unsigned count)
{
	int fds[HARP_LEASE_FDS];

	CHECK_EQ(ask(1, ~0u, fds), 0);
	CHECK(!came_back());
	for (unsigned i = 0; i < count; i++) {
		CHECK(fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		close(fds[i]);
	}
}

TEST(taken)
{
	good();
	taken(HARP_LEASE_FDS);
}

/* The kernel gives as many as fit, and no error. */
TEST(too_many_open_files)
{
	for (unsigned room = 0; room < HARP_LEASE_FDS; room++) {
		good();
		REFUSES(-EMFILE, room, "raise `ulimit -n`");
	}
}

TEST(unusable)
{
	good();
	descriptors = 2;
	REFUSES(-EPROTO, ~0u, "has 2 descriptors, not 3");
	good();
	descriptors = HARP_LEASE_FDS + 1;
	REFUSES(-EPROTO, ~0u, "has 4 descriptors, not 3");
	good();
	leased.port_min = 0;
	REFUSES(-EPROTO, ~0u, "the ports 0 to 61255");
	good();
	leased.queue = 4;
	REFUSES(-EPROTO, ~0u, "leases queue 4 of 4");
	good();
	strcpy(leased.ifname, "eth2");
	REFUSES(-EPROTO, ~0u, "another interface");
	good();
	leased.rss_kind = HARP_LEASE_RSS_TOEPLITZ;
	leased.rss_key_bytes = 39;
	leased.rss_table_count = 128;
	REFUSES(-EPROTO, ~0u, "RSS of kind 2, 39 bytes of key");
	good();
	leased.rss_table_count = HARP_LEASE_RSS_TABLE_MAX + 1;
	REFUSES(-EPROTO, ~0u, "RSS of kind 0, 0 bytes of key, 513 entries");
}

/* What is no lease is not given back. */
TEST(nonsense)
{
	int fds[HARP_LEASE_FDS];

	good();
	leased.header.serial = 9;
	CHECK_EQ(ask(1, ~0u, fds), -EPROTO);
	CHECK(!came_back());
	good();
	leased.header.type = HARP_LEASE_WELCOME;
	CHECK_EQ(ask(1, ~0u, fds), -EPROTO);
	CHECK(!came_back());
}
