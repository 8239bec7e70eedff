/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon.c - a job's side of the protocol with harpd: greeting, leases of queues and of DPDK
 * ports. An invalid answer is one error with its reason; the lease is given back, and no descriptor
 * stays open.
 *
 * harpd is the other end of a socket, which has sent its answer in advance. Every descriptor that
 * it passes is that end.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fds.h"
#include "host/daemon.h"
#include "lease_messages.h"

#define LEASE_ID 0x1122334455667788ull
#define SPEC "net_memif0,role=client;name=rail0;ip=10.9.0.1/24;queues=2"

/* Jobs and harpd may be of different builds: the layout of their messages must not change. */
#define STAYS(expression, value) static_assert((expression) == (value), "harp_lease.h")
STAYS(HARP_LEASE_MAGIC, 0x4c505248);
STAYS(HARP_LEASE_VERSION, 3);
STAYS(HARP_LEASE_HELLO, 1);
STAYS(HARP_LEASE_WELCOME, 2);
STAYS(HARP_LEASE_REFUSED, 5);
STAYS(sizeof(struct harp_lease_header), 16);
STAYS(sizeof(struct harp_lease_hello), 48);
STAYS(sizeof(struct harp_lease_welcome), 56);
STAYS(offsetof(struct harp_lease_welcome, device_count), 48);
STAYS(sizeof(struct harp_lease_device), 360);
STAYS(offsetof(struct harp_lease_device, ifindex), 16);
STAYS(offsetof(struct harp_lease_device, queues), 32);
STAYS(sizeof(struct harp_lease_request), 112);
STAYS(sizeof(struct harp_lease_leased), 1208);
STAYS(offsetof(struct harp_lease_leased, rss.table), 184);
STAYS(offsetof(struct harp_lease_routed, route.source), 32);
STAYS(sizeof(struct harp_lease_port), 40);
STAYS(sizeof(struct harp_lease_refused), 404);
STAYS(offsetof(struct harp_lease_refused, why), 20);
STAYS(sizeof(struct harp_lease_release), 24);
STAYS(HARP_LEASE_FDS, 3);
STAYS(sizeof(struct harp_lease_watch), 24);
STAYS(sizeof(struct harp_lease_route), 44);
STAYS(sizeof(struct harp_lease_tables), 3084);
STAYS(sizeof(struct harp_lease_network), 3120);
STAYS(offsetof(struct harp_lease_network, tables), 36);
STAYS(sizeof(struct harp_lease_neighbor), 24);
STAYS(offsetof(struct harp_lease_neighbors, all), 24);
STAYS(sizeof(struct harp_lease_route_query), 40);
STAYS(sizeof(struct harp_lease_routed), 80);

static char folder[] = "/tmp/harp-test-daemon-XXXXXX", path[sizeof(folder) + 16];
static char why[512];
static struct why reason = { .text = why, .size = sizeof(why), .subject = "here" };
static int ends[2]; /* ours, until it is handed over; harpd's */
static bool given_back;
static rlim_t room = RLIM_INFINITY;           /* for descriptors of a lease */
static uint32_t queue = HARP_LEASE_QUEUE_ANY; /* that the job requests */

/* What harpd sends: valid, until a test changes it. */
static struct {
	union {
		struct harp_lease_header header;
		struct harp_lease_welcome welcome;
		struct harp_lease_refused refused;
		struct harp_lease_leased leased;
		struct {
			struct harp_lease_port port;
			char text[HARP_PORT_TEXT_MAX + 64];
		};
		uint8_t bytes[80000];
	};
	size_t size; /* 0: it hangs up */
	unsigned fds;
} answer;

/* ---- harpd ----------------------------------------------------------------------------------- */

static struct harp_lease_device *device_of(unsigned index)
{
	return (struct harp_lease_device *)(void *)(answer.bytes +
						    sizeof(struct harp_lease_welcome)) +
	       index;
}

static void answer_begin(uint16_t type, size_t size, uint32_t serial, unsigned fds)
{
	memset(&answer, 0, sizeof(answer));
	answer.header = lease_header(type, size, serial);
	answer.size = size;
	answer.fds = fds;
}

static void good_welcome(uint32_t devices, const char *settings)
{
	size_t listed = sizeof(struct harp_lease_welcome) + devices * sizeof(*device_of(0));

	answer_begin(HARP_LEASE_WELCOME, listed + strlen(settings), 1, 0);
	strcpy(answer.welcome.daemon, "harpd test");
	answer.welcome.device_count = devices;
	answer.welcome.settings_bytes = (uint32_t)strlen(settings);
	for (uint32_t i = 0; i < devices; i++)
		*device_of(i) = (struct harp_lease_device){ .ifname = "eth1",
							    .ifindex = 7,
							    .flags = HARP_LEASE_DEVICE_UP };
	memcpy(answer.bytes + listed, settings, strlen(settings));
}

static void good_hello(void)
{
	good_welcome(1, "A=1\n");
}

static void good_welcome_port(void)
{
	good_welcome(1, "");
	*device_of(0) = (struct harp_lease_device){
		.ifname = "rail0", .flags = HARP_LEASE_DEVICE_DPDK | HARP_LEASE_DEVICE_UP
	};
}

static void good_refusal(uint32_t serial, int error, const char *text)
{
	answer_begin(HARP_LEASE_REFUSED, sizeof(answer.refused), serial, 0);
	answer.refused.error = error;
	memcpy(answer.refused.why, text, strnlen(text, sizeof(answer.refused.why)));
}

static void good_lease(void)
{
	answer_begin(HARP_LEASE_LEASED, sizeof(answer.leased), 2, HARP_LEASE_FDS);
	answer.leased.lease_id = LEASE_ID;
	strcpy(answer.leased.ifname, "eth1");
	answer.leased.ifindex = 7;
	answer.leased.queue = 1;
	answer.leased.queue_count = 4;
	answer.leased.port_min = 61000;
	answer.leased.port_max = 61255;
}

static void good_port_of(const char *spec)
{
	answer_begin(HARP_LEASE_PORT, sizeof(answer.port) + strlen(spec), 2, 2);
	answer.port.lease_id = LEASE_ID;
	answer.port.page_count = 2;
	answer.port.page_bytes = 4096;
	answer.port.spec_bytes = (uint32_t)strlen(spec);
	memcpy(answer.text, spec, strlen(spec));
}

static void good_port(void)
{
	good_port_of(SPEC);
}

static void say(const void *bytes, size_t size, unsigned fds)
{
	CHECK_EQ(pass_fds(ends[1], bytes, size, ends[1], fds), size);
}

static void open_ends(void)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

/* The type of the job's next message; 0: there is none. */
static unsigned received(void)
{
	union {
		struct harp_lease_header header;
		struct harp_lease_release release;
		uint8_t bytes[1024];
	} message;
	ssize_t got;

	do { /* a client that left messages unread resets the connection */
		got = recv(ends[1], &message, sizeof(message), MSG_DONTWAIT);
	} while (got < 0 && errno == ECONNRESET);
	if (got < (ssize_t)sizeof(message.header))
		return 0;
	if (message.header.type == HARP_LEASE_RELEASE)
		CHECK(message.release.lease_id == LEASE_ID);
	return message.header.type;
}

/* Reads all that the job has sent: HELLO, and with a lease LEASE and perhaps RELEASE. */
static void close_ends(bool of_lease)
{
	CHECK_EQ(received(), HARP_LEASE_HELLO);
	if (of_lease)
		CHECK_EQ(received(), HARP_LEASE_LEASE);
	given_back = received() == HARP_LEASE_RELEASE;
	CHECK_EQ(received(), 0);
	close(ends[1]);
}

/* ---- the job: each request returns what its call returned ------------------------------------ */

static int hello(void)
{
	struct harp_daemon *daemon;
	int rc;

	open_ends();
	if (answer.size)
		say(&answer, answer.size, answer.fds);
	else
		shutdown(ends[1], SHUT_WR);
	rc = daemon_open_on(&daemon, ends[0], "test", 1000, &reason);
	CHECK((rc == 0) == (daemon != NULL));
	harp_daemon_close(daemon);
	close_ends(false);
	return rc;
}

/* harpd answers the greeting, then with `answer` and DONE. */
static struct harp_daemon *greeted(void)
{
	struct harp_lease_welcome welcome = {
		.header = lease_header(HARP_LEASE_WELCOME, sizeof(welcome), 1),
	};
	struct harp_lease_header done = lease_header(HARP_LEASE_DONE, sizeof(done), 3);
	struct harp_daemon *daemon;

	open_ends();
	say(&welcome, sizeof(welcome), 0);
	CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), 0);
	say(&answer, answer.size, answer.fds);
	say(&done, sizeof(done), 0);
	return daemon;
}

/* Closes what a granted lease brought. */
static void close_all(const int *fds, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		CHECK(fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		close(fds[i]);
	}
}

static int lease(void)
{
	struct harp_lease_request request = { .ifname = "eth1", .queue = queue };
	struct harp_daemon *daemon = greeted();
	struct rlimit files, few;
	struct harp_lease_leased out;
	int fds[HARP_LEASE_FDS], rc, next = dup(ends[1]);

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	few = files;
	if (room != RLIM_INFINITY)
		few.rlim_cur = (rlim_t)next + room;
	close(next);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	rc = daemon_lease(daemon, &request, &out, fds, &reason);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
	harp_daemon_close(daemon);
	close_ends(true);
	close_all(fds, rc ? 0 : HARP_LEASE_FDS);
	return rc;
}

static struct daemon_port leased_port;

static int port(void)
{
	struct harp_daemon *daemon = greeted();
	int rc = daemon_lease_port(daemon, "rail0", 2, "rank 0", &leased_port, &reason);

	harp_daemon_close(daemon);
	close_ends(true);
	close_all(leased_port.page_fds, rc ? 0 : leased_port.page_count);
	return rc;
}

static void request_fails(int (*request)(void), int error, bool back, const char *words, int line)
{
	unsigned before = fds_open();

	CHECK_EQ(request(), error);
	CHECK_EQ(given_back, back);
	CHECK_EQ(fds_open(), before);
	if (!strstr(why, words) || strncmp(why, "here: ", 6) || strchr(why, '\n')) {
		fprintf(stderr, "%d: \"%s\" instead of \"%s\"\n", line, why, words);
		check_failed();
	}
}

/* harpd's answer to the request is valid but for `change`, so the request fails. back: the job
 * gives a lease back. */
#define FAILS(request, change, error, back, words)                                                 \
	do {                                                                                       \
		good_##request();                                                                  \
		change;                                                                            \
		request_fails(request, error, back, words, __LINE__);                              \
	} while (0)
/* The answer is invalid; a lease is given back. */
#define INVALID(request, change, words) FAILS(request, change, -EPROTO, request != hello, words)

/* ---- the greeting ---------------------------------------------------------------------------- */

TEST(invalid_headers_are_refused)
{
	FAILS(hello, answer.size = 0, -ECONNRESET, false,
	      "closed the connection without an answer");
	INVALID(hello, answer.size = 3, "is not harpd");
	INVALID(hello, answer.header.magic++, "is not harpd");
	INVALID(hello, answer.header.version = 0, "is not harpd");
	INVALID(hello, answer.header.size++, "bytes and states");
	INVALID(hello, answer.header.serial = 2, "answers request 2 instead of 1");
	INVALID(hello, answer.header.type = HARP_LEASE_LEASED, "type 4 instead of 2");
	INVALID(hello, answer.size = answer.header.size = 40, "has 40 bytes, not 56");
	INVALID(hello, answer.size = answer.header.size = 70000, "too many");
}

TEST(invalid_welcomes_are_refused)
{
	INVALID(hello, good_welcome(40, ""), "lists 40 devices; at most 32 are possible");
	INVALID(hello, answer.welcome.device_count = 2, "too short for 2 devices");
	INVALID(hello, answer.welcome.device_count = ~0u, "lists 4294967295 devices");
	INVALID(hello, answer.welcome.settings_bytes = ~0u, "and 4294967295 bytes of settings");
	INVALID(hello, answer.bytes[answer.size - 2] = '\0', "settings are not text");
	INVALID(hello, (good_welcome(3, ""), device_of(2)->ifname[0] = '\0'),
		"device 2 has no name");
	INVALID(hello, memset(device_of(0)->ifname, 'x', 16), "device 0 has no name");
	INVALID(hello, strcpy(device_of(0)->ifname, "../../etc"), "device 0 has no name");
	INVALID(hello, strcpy(device_of(0)->ifname, "a\nb"), "device 0 has no name");
	INVALID(hello, device_of(0)->ifindex = 0, "device 0 has no name or index");
	INVALID(hello, (good_welcome_port(), device_of(0)->ifindex = 4),
		"device 0 has no name or index");
	good_welcome_port(); /* a DPDK port is not a kernel interface */
	CHECK_EQ(hello(), 0);
}

TEST(unexpected_descriptors_are_closed)
{
	INVALID(hello, answer.fds = 1, "has 1 descriptors, not 0");
	INVALID(hello, answer.fds = PASS_FDS_MAX, "too many descriptors");
	FAILS(hello, (good_refusal(1, EACCES, "no"), answer.fds = 3), -EACCES, false,
	      "harpd refuses: no");
	INVALID(hello, answer.header.serial = answer.fds = 9, "answers request 9");
}

TEST(a_refusal_gives_the_reason)
{
	FAILS(hello, good_refusal(1, EDQUOT, "user 7 has 64 of 64 leases\n\x07stop"), -EDQUOT,
	      false, "harpd refuses: user 7 has 64 of 64 leases??stop");
	FAILS(hello, good_refusal(1, EBUSY, ""), -EBUSY, false,
	      "harpd refuses: Device or resource busy");
	INVALID(hello, good_refusal(1, 0, "x"), "refuses with error 0");
	INVALID(hello, good_refusal(1, -13, "x"), "refuses with error -13");
	INVALID(hello, good_refusal(1, 4096, "x"), "refuses with error 4096");
	FAILS(hello,
	      (good_refusal(1, EACCES, ""),
	       memset(answer.refused.why, 'w', sizeof(answer.refused.why))),
	      -EACCES, false, "harpd refuses: wwww");
	INVALID(hello, (good_refusal(1, EACCES, "x"), answer.size = answer.header.size = 30),
		"refusal has 30 bytes");
	FAILS(port, good_refusal(2, EBUSY, "rail0 is leased to process 7"), -EBUSY, false,
	      "harpd refuses: rail0 is leased to process 7");
}

/* harpd refuses before it receives the request, and may close with that unread, which resets the
 * connection. */
TEST(a_refusal_before_the_request_is_read)
{
	for (unsigned unread = 0; unread < 2; unread++) {
		struct harp_daemon *daemon;

		good_refusal(0, EUSERS, "no place");
		open_ends();
		if (unread)
			CHECK_EQ(send(ends[0], "x", 1, 0), 1);
		say(&answer, answer.size, 0);
		close(ends[1]);
		CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), -EUSERS);
		CHECK(strstr(why, "harpd refuses: no place"));
	}
}

/* ---- leases ---------------------------------------------------------------------------------- */

TEST(valid_leases_are_kept)
{
	good_lease();
	CHECK_EQ(lease(), 0);
	CHECK(!given_back);
	queue = 1;
	CHECK_EQ(lease(), 0);
	CHECK(!given_back);
	queue = HARP_LEASE_QUEUE_ANY;
	good_port();
	CHECK_EQ(port(), 0);
	CHECK(!given_back);
	CHECK(leased_port.lease_id == LEASE_ID);
	CHECK_EQ(leased_port.page_count, 2);
	CHECK_EQ(leased_port.page_bytes, 4096);
	CHECK_STR(leased_port.spec, SPEC);
	CHECK_STR(leased_port.port.device, "net_memif0,role=client");
	CHECK_STR(leased_port.port.name, "rail0");
}

/* The kernel passes as many descriptors as fit, and reports no error. */
TEST(missing_descriptors_give_the_lease_back)
{
	for (room = 0; room < HARP_LEASE_FDS; room++)
		FAILS(lease, (void)0, -EMFILE, true, "raise `ulimit -n`");
	room = RLIM_INFINITY;
}

TEST(an_invalid_lease_is_given_back)
{
	INVALID(lease, answer.fds = 2, "has 2 descriptors, not 3");
	INVALID(lease, answer.fds = 4, "has 4 descriptors, not 3");
	INVALID(lease, answer.leased.port_min = 0, "leases ports 0 to 61255");
	INVALID(lease, answer.leased.queue = 4, "leases queue 4 of 4");
	queue = 1;
	INVALID(lease, answer.leased.queue = 2, "leases queue 2 instead");
	queue = HARP_LEASE_QUEUE_ANY;
	INVALID(lease, answer.leased.ifname[3] = '2', "another interface");
	INVALID(lease,
		(answer.leased.rss.kind = HARP_RSS_TOEPLITZ, answer.leased.rss.key_bytes = 39,
		 answer.leased.rss.table_count = 128),
		"RSS of kind 2, 39 bytes of key");
	INVALID(lease, answer.leased.rss.table_count = HARP_RSS_TABLE_MAX + 1,
		"RSS of kind 0, 0 bytes of key, 513 entries");
}

TEST(an_invalid_port_is_given_back)
{
	INVALID(port, answer.fds = 1, "2 queues with 1 statistics pages");
	INVALID(port, answer.port.page_count = answer.fds = 0, "0 queues with 0 statistics pages");
	INVALID(port, answer.port.page_count = answer.fds = HARP_LEASE_PORT_PAGES_MAX + 1,
		"65 queues with 65 statistics pages");
	INVALID(port, answer.port.spec_bytes++, "truncated or too long");
	INVALID(port, answer.port.spec_bytes = ~0u, "truncated or too long");
	INVALID(port, answer.text[4] = '\0', "text of the port is invalid");
	INVALID(port, good_port_of("net_memif0;name=rail0;ip=10.9.0.1;queues=2"),
		"text of the port is invalid");
	INVALID(port, good_port_of("net_memif0;name=rail1;queues=2"),
		"leases port rail1 with 2 queues instead");
	INVALID(port, good_port_of("net_memif0;name=rail0"),
		"leases port rail0 with 1 queues instead");
	INVALID(port, answer.size = answer.header.size = sizeof(answer.port) - 4,
		"has 36 bytes, not 40");
	/* The name belongs to a NIC, and harpd leases a queue of it. */
	INVALID(port, answer.header.type = HARP_LEASE_LEASED, "type 4 instead of 10");
}

/* An answer that grants nothing leaves nothing to give back. */
TEST(an_invalid_message_is_no_lease)
{
	FAILS(lease, answer.header.serial = 9, -EPROTO, false, "answers request 9");
	FAILS(lease, answer.header.type = HARP_LEASE_WELCOME, -EPROTO, false,
	      "type 2 instead of 4");
	FAILS(port, answer.header.serial = 9, -EPROTO, false, "answers request 9");
	FAILS(port, answer.header.type = HARP_LEASE_DONE, -EPROTO, false, "type 7 instead of 10");
}

TEST(an_invalid_port_name_is_refused)
{
	struct harp_daemon *daemon;

	good_port();
	daemon = greeted();
	CHECK_EQ(daemon_lease_port(daemon, "", 1, NULL, &leased_port, &reason), -EINVAL);
	CHECK_EQ(daemon_lease_port(daemon, "0123456789abcdef", 1, NULL, &leased_port, &reason),
		 -EINVAL);
	CHECK_STR(why, "here: a port's name has 1 to 15 bytes");
	harp_daemon_close(daemon);
	close(ends[1]);
}

/* ---- harpd's socket -------------------------------------------------------------------------- */

static int listener = -1;
static pthread_t server;
static struct harp_lease_hello greeting;

static void listen_again(int type)
{
	if (listener >= 0)
		close(listener);
	unlink(path);
	listener = lease_listen(path, type);
}

/* A harpd that answers one greeting, or does not, and waits until the job hangs up. */
static void *serve_one(void *mute)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	char end;

	CHECK_EQ(recv(fd, &greeting, sizeof(greeting), 0), sizeof(greeting));
	if (!mute)
		CHECK_EQ(send(fd, &answer, answer.size, 0), answer.size);
	while (recv(fd, &end, 1, 0) > 0)
		;
	close(fd);
	return NULL;
}

static struct harp_daemon *connected(void)
{
	struct harp_daemon *daemon;

	CHECK_EQ(pthread_create(&server, NULL, serve_one, NULL), 0);
	CHECK_EQ(harp_daemon_connect(&daemon, path, "test of a job's side, a long name", why,
				     sizeof(why)),
		 0);
	return daemon;
}

static void hang_up(struct harp_daemon *daemon)
{
	harp_daemon_close(daemon);
	CHECK_EQ(pthread_join(server, NULL), 0);
}

TEST(a_welcome_is_read)
{
	const struct harp_lease_device *devices;
	struct harp_daemon *daemon;
	unsigned count;

	good_welcome(2, "HARP_PATH=xdp\nHARP_FRAMES=4096\n");
	strcpy(device_of(1)->ifname, "fifteen-letters");
	memcpy(device_of(1)->pci_path, "/sys/\x1b[31mred", 14);
	answer.header.size += 100; /* what a later version appends */
	answer.size += 100;
	daemon = connected();
	devices = harp_daemon_devices(daemon, &count);
	CHECK_EQ(count, 2);
	CHECK_STR(devices[0].ifname, "eth1");
	CHECK_STR(devices[1].ifname, "fifteen-letters");
	CHECK_STR(devices[1].pci_path, "/sys/?[31mred");
	CHECK_STR(harp_daemon_settings(daemon), "HARP_PATH=xdp\nHARP_FRAMES=4096\n");
	CHECK_STR(harp_daemon_name(daemon), "harpd test");
	CHECK_EQ(greeting.header.type, HARP_LEASE_HELLO);
	CHECK_EQ(greeting.header.size, sizeof(greeting));
	CHECK_EQ(greeting.client[31], 0);
	CHECK(!strncmp(greeting.client, "test of a job's side", 20));
	hang_up(daemon);
	harp_daemon_close(NULL);
}

static void cannot_connect(int error, const char *where, const char *words)
{
	struct harp_daemon *daemon;
	unsigned before = fds_open();

	CHECK_EQ(harp_daemon_connect(&daemon, where, NULL, why, sizeof(why)), error);
	CHECK(!daemon);
	CHECK_EQ(fds_open(), before);
	if (!strstr(why, words)) {
		fprintf(stderr, "\"%s\" instead of \"%s\"\n", why, words);
		check_failed();
	}
}

TEST(a_missing_harpd_is_named)
{
	char longer[200];
	int file;

	memset(longer, 'l', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	cannot_connect(-EINVAL, NULL, "the path of a socket");
	cannot_connect(-EINVAL, "", "the path of a socket");
	cannot_connect(-EINVAL, longer, "the path of a socket");
	cannot_connect(-ENOENT, "/nonexistent/harpd.sock", "harpctl start");
	close(listener); /* a socket that its owner left behind */
	listener = -1;
	cannot_connect(-ECONNREFUSED, path, "no process listens");
	unlink(path);
	file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cannot_connect(-ECONNREFUSED, path, "no process listens");
	close(file);
	listen_again(SOCK_STREAM);
	cannot_connect(-EPROTO, path, "is not harpd");
	listen_again(SOCK_SEQPACKET);
}

/* A process of user `job` connects to a harpd of user `daemon`. */
static void trusts(uid_t daemon, uid_t job, int error)
{
	int status = -1;
	pid_t child;

	CHECK_EQ(seteuid(daemon), 0);
	listen_again(SOCK_SEQPACKET);
	CHECK_EQ(chmod(path, 0666), 0);
	CHECK_EQ(seteuid(0), 0);
	good_welcome(0, "HARP_ENCRYPT=off\n");
	child = fork();
	if (child == 0) {
		check_failures = 0;
		CHECK_EQ(setuid(job), 0);
		if (error)
			cannot_connect(error, path, "harpd must run as root or as this user");
		else
			hang_up(connected());
		_exit(check_failures != 0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

static void write_to(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_CLOEXEC);

	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* A rootless container maps its own user only, so the host's root is an unmapped user. */
static void test_rootless_container(void)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		check_failures = 0;
		good_welcome(0, "");
		CHECK_EQ(setuid(60001), 0);
		CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0); /* its files in /proc are its own again */
		if (unshare(CLONE_NEWUSER) != 0)
			_exit(CHECK_SKIP);
		write_to("/proc/self/uid_map", "1000 60001 1");
		CHECK_EQ(geteuid(), 1000);
		hang_up(connected());
		_exit(check_failures != 0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_SKIP));
}

TEST(only_root_and_the_own_user_are_trusted)
{
	if (geteuid() != 0)
		return;
	CHECK_EQ(chmod(folder, 0777), 0);
	trusts(0, 0, 0);
	trusts(0, 65534, 0);
	trusts(65534, 65534, 0);
	trusts(65534, 0, -EPERM);
	trusts(65534, 60001, -EPERM);
	trusts(60001, 65534, -EPERM);
	trusts(0, 60001, 0);
	test_rootless_container();
	CHECK_EQ(chmod(folder, 0700), 0);
	listen_again(SOCK_SEQPACKET);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	alarms++;
}

/* A stopped harpd: it has accepted the connection, or accepts none. */
TEST(a_silent_harpd_times_out)
{
	const struct sigaction action = { .sa_handler = on_alarm }; /* no SA_RESTART */
	const struct itimerval often = { { .tv_usec = 20000 }, { .tv_usec = 20000 } },
			       never = { 0 };
	struct why silence = { .text = why, .size = sizeof(why) };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct harp_daemon *daemon;
	unsigned before = fds_open();
	int crowd[16], count = 0;

	CHECK_EQ(pthread_create(&server, NULL, serve_one, path), 0);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &silence), -ETIMEDOUT);
	CHECK(strstr(why, "does not answer within 1 s"));
	CHECK_EQ(pthread_join(server, NULL), 0);
	CHECK_EQ(fds_open(), before);
	good_welcome(0, "");
	CHECK_EQ(pthread_create(&server, NULL, serve_one, NULL), 0);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &silence), 0);
	why[0] = '\0';
	CHECK_EQ(daemon_release(daemon, LEASE_ID, &silence), -ETIMEDOUT);
	CHECK(strstr(why, "does not answer within 1 s"));
	hang_up(daemon);
	strcpy(address.sun_path, path);
	do { /* until the backlog is full */
		crowd[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	} while (connect(crowd[count++], (struct sockaddr *)&address, sizeof(address)) == 0 &&
		 count < 16);
	/* A timer whose signals end every wait (a profiler's) does not extend the timeout. */
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &silence), -ETIMEDOUT);
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(strstr(why, "accepts no connections"));
	CHECK(alarms > 10);
	while (count)
		close(crowd[--count]);
}

TEST(options_are_checked)
{
	struct harp_instance *instance;
	struct harp_instance_options opt = {
		.size = 8,
		.ifname = "harp-none0",
		.daemon_socket = "/nonexistent/harpd.sock",
	};

	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -EINVAL);
	opt.size = sizeof(opt);
	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -ENOENT);
	CHECK(strstr(why, "/nonexistent/harpd.sock: no such socket") != NULL);
	opt.daemon_socket = NULL;
	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -ENODEV);
	CHECK(strstr(why, "harp-none0 queue 0: no such interface") != NULL);
	opt.ifname = "a-name-that-is-too-long";
	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -EINVAL);
}

int main(void)
{
	if (!mkdtemp(folder))
		return check_skip("no folder can be made in /tmp");
	snprintf(path, sizeof(path), "%s/harpd.sock", folder);
	listen_again(SOCK_SEQPACKET);
	check_run();
	close(listener);
	unlink(path);
	rmdir(folder);
	return check_done();
}
