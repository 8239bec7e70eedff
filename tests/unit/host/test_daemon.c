/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon.c - the job's side of the lease protocol: greeting, leases of queues and of DPDK
 * ports. An invalid reply is an error with a reason; the job releases the lease and leaves no
 * descriptor open.
 *
 * harpd is the other end of a socket pair, whose reply is sent before the request. Each descriptor
 * that it passes is a copy of that end.
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

/* Jobs and harpd may have different builds, so the layout of the messages must not change. */
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
static int ends[2]; /* the job's, until a call takes it over; harpd's */
static bool is_released;
static rlim_t fds_max = RLIM_INFINITY;        /* descriptors that the job can receive */
static uint32_t queue = HARP_LEASE_QUEUE_ANY; /* requested by the job */

/* harpd's reply: valid unless a test changes it. */
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
	size_t size; /* 0: harpd closes the connection */
	unsigned fds;
} reply;

/* ---- harpd ----------------------------------------------------------------------------------- */

static struct harp_lease_device *device_of(unsigned index)
{
	return (struct harp_lease_device *)(void *)(reply.bytes +
						    sizeof(struct harp_lease_welcome)) +
	       index;
}

static void begin_reply(uint16_t type, size_t size, uint32_t serial, unsigned fds)
{
	memset(&reply, 0, sizeof(reply));
	reply.header = lease_header(type, size, serial);
	reply.size = size;
	reply.fds = fds;
}

static void make_welcome(uint32_t devices, const char *settings)
{
	size_t listed = sizeof(struct harp_lease_welcome) + devices * sizeof(*device_of(0));

	begin_reply(HARP_LEASE_WELCOME, listed + strlen(settings), 1, 0);
	strcpy(reply.welcome.daemon, "harpd test");
	reply.welcome.device_count = devices;
	reply.welcome.settings_bytes = (uint32_t)strlen(settings);
	for (uint32_t i = 0; i < devices; i++)
		*device_of(i) = (struct harp_lease_device){ .ifname = "eth1",
							    .ifindex = 7,
							    .flags = HARP_LEASE_DEVICE_UP };
	memcpy(reply.bytes + listed, settings, strlen(settings));
}

static void make_hello(void)
{
	make_welcome(1, "A=1\n");
}

static void make_welcome_port(void)
{
	make_welcome(1, "");
	*device_of(0) = (struct harp_lease_device){
		.ifname = "rail0", .flags = HARP_LEASE_DEVICE_DPDK | HARP_LEASE_DEVICE_UP
	};
}

static void make_refusal(uint32_t serial, int error, const char *text)
{
	begin_reply(HARP_LEASE_REFUSED, sizeof(reply.refused), serial, 0);
	reply.refused.error = error;
	memcpy(reply.refused.why, text, strnlen(text, sizeof(reply.refused.why)));
}

static void make_lease(void)
{
	begin_reply(HARP_LEASE_LEASED, sizeof(reply.leased), 2, HARP_LEASE_FDS);
	reply.leased.lease_id = LEASE_ID;
	strcpy(reply.leased.ifname, "eth1");
	reply.leased.ifindex = 7;
	reply.leased.queue = 1;
	reply.leased.queue_count = 4;
	reply.leased.port_min = 61000;
	reply.leased.port_max = 61255;
}

static void make_port_of(const char *spec)
{
	begin_reply(HARP_LEASE_PORT, sizeof(reply.port) + strlen(spec), 2, 2);
	reply.port.lease_id = LEASE_ID;
	reply.port.page_count = 2;
	reply.port.page_bytes = 4096;
	reply.port.spec_bytes = (uint32_t)strlen(spec);
	memcpy(reply.text, spec, strlen(spec));
}

static void make_port(void)
{
	make_port_of(SPEC);
}

static void send_as_harpd(const void *bytes, size_t size, unsigned fds)
{
	CHECK_EQ(pass_fds(ends[1], bytes, size, ends[1], fds), size);
}

static void open_ends(void)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

/* Returns the type of the job's next message; 0: there is none. */
static unsigned receive_type(void)
{
	union {
		struct harp_lease_header header;
		struct harp_lease_release release;
		uint8_t bytes[1024];
	} message;
	ssize_t got;

	do { /* a job that closes with unread messages resets the connection */
		got = recv(ends[1], &message, sizeof(message), MSG_DONTWAIT);
	} while (got < 0 && errno == ECONNRESET);
	if (got < (ssize_t)sizeof(message.header))
		return 0;
	if (message.header.type == HARP_LEASE_RELEASE)
		CHECK(message.release.lease_id == LEASE_ID);
	return message.header.type;
}

/* Reads all messages of the job: HELLO, with a lease also LEASE, and perhaps RELEASE. */
static void close_ends(bool of_lease)
{
	CHECK_EQ(receive_type(), HARP_LEASE_HELLO);
	if (of_lease)
		CHECK_EQ(receive_type(), HARP_LEASE_LEASE);
	is_released = receive_type() == HARP_LEASE_RELEASE;
	CHECK_EQ(receive_type(), 0);
	close(ends[1]);
}

/* ---- the job: each request returns the result of its call ------------------------------------ */

static int hello(void)
{
	struct harp_daemon *daemon;
	int rc;

	open_ends();
	if (reply.size)
		send_as_harpd(&reply, reply.size, reply.fds);
	else
		shutdown(ends[1], SHUT_WR);
	rc = daemon_open_on(&daemon, ends[0], "test", 1000, &reason);
	CHECK((rc == 0) == (daemon != NULL));
	harp_daemon_close(daemon);
	close_ends(false);
	return rc;
}

/* Opens a connection to harpd, which sends WELCOME, `reply` and DONE. */
static struct harp_daemon *open_greeted(void)
{
	struct harp_lease_welcome welcome = {
		.header = lease_header(HARP_LEASE_WELCOME, sizeof(welcome), 1),
	};
	struct harp_lease_header done = lease_header(HARP_LEASE_DONE, sizeof(done), 3);
	struct harp_daemon *daemon;

	open_ends();
	send_as_harpd(&welcome, sizeof(welcome), 0);
	CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), 0);
	send_as_harpd(&reply, reply.size, reply.fds);
	send_as_harpd(&done, sizeof(done), 0);
	return daemon;
}

/* Closes the descriptors of a granted lease. */
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
	struct harp_daemon *daemon = open_greeted();
	struct rlimit files, limit;
	struct harp_lease_leased out;
	int fds[HARP_LEASE_FDS], rc, next = dup(ends[1]);

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	limit = files;
	if (fds_max != RLIM_INFINITY)
		limit.rlim_cur = (rlim_t)next + fds_max;
	close(next);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
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
	struct harp_daemon *daemon = open_greeted();
	int rc = daemon_lease_port(daemon, "rail0", 2, "rank 0", &leased_port, &reason);

	harp_daemon_close(daemon);
	close_ends(true);
	close_all(leased_port.page_fds, rc ? 0 : leased_port.page_count);
	return rc;
}

static void check_fails(int (*request)(void), int error, bool releases, const char *text, int line)
{
	unsigned before = fds_open();

	CHECK_EQ(request(), error);
	CHECK_EQ(is_released, releases);
	CHECK_EQ(fds_open(), before);
	if (!strstr(why, text) || strncmp(why, "here: ", 6) || strchr(why, '\n')) {
		fprintf(stderr, "%d: \"%s\" does not contain \"%s\"\n", line, why, text);
		check_failed();
	}
}

/* harpd's reply is valid except for `change`, so the request fails. releases: the job releases the
 * lease. */
#define FAILS(request, change, error, releases, text)                                              \
	do {                                                                                       \
		make_##request();                                                                  \
		change;                                                                            \
		check_fails(request, error, releases, text, __LINE__);                             \
	} while (0)
/* The reply is a protocol error; the job releases a lease. */
#define INVALID(request, change, text) FAILS(request, change, -EPROTO, request != hello, text)

/* ---- the greeting ---------------------------------------------------------------------------- */

TEST(invalid_headers_are_refused)
{
	FAILS(hello, reply.size = 0, -ECONNRESET, false, "closed the connection without an answer");
	INVALID(hello, reply.size = 3, "is not harpd");
	INVALID(hello, reply.header.magic++, "is not harpd");
	INVALID(hello, reply.header.version = 0, "is not harpd");
	INVALID(hello, reply.header.size++, "bytes and states");
	INVALID(hello, reply.header.serial = 2, "answers request 2 instead of 1");
	INVALID(hello, reply.header.type = HARP_LEASE_LEASED, "type 4 instead of 2");
	INVALID(hello, reply.size = reply.header.size = 40, "has 40 bytes, not 56");
	INVALID(hello, reply.size = reply.header.size = 70000, "too many");
}

TEST(invalid_welcomes_are_refused)
{
	INVALID(hello, make_welcome(40, ""), "lists 40 devices; at most 32 are possible");
	INVALID(hello, reply.welcome.device_count = 2, "too short for 2 devices");
	INVALID(hello, reply.welcome.device_count = ~0u, "lists 4294967295 devices");
	INVALID(hello, reply.welcome.settings_bytes = ~0u, "and 4294967295 bytes of settings");
	INVALID(hello, reply.bytes[reply.size - 2] = '\0', "settings are not text");
	INVALID(hello, (make_welcome(3, ""), device_of(2)->ifname[0] = '\0'),
		"device 2 has no name");
	INVALID(hello, memset(device_of(0)->ifname, 'x', 16), "device 0 has no name");
	INVALID(hello, strcpy(device_of(0)->ifname, "../../etc"), "device 0 has no name");
	INVALID(hello, strcpy(device_of(0)->ifname, "a\nb"), "device 0 has no name");
	INVALID(hello, device_of(0)->ifindex = 0, "device 0 has no name or index");
	INVALID(hello, (make_welcome_port(), device_of(0)->ifindex = 4),
		"device 0 has no name or index");
	make_welcome_port(); /* a DPDK port is not a kernel interface */
	CHECK_EQ(hello(), 0);
}

TEST(unexpected_descriptors_are_closed)
{
	INVALID(hello, reply.fds = 1, "has 1 descriptors, not 0");
	INVALID(hello, reply.fds = PASS_FDS_MAX, "too many descriptors");
	FAILS(hello, (make_refusal(1, EACCES, "no"), reply.fds = 3), -EACCES, false,
	      "harpd refuses: no");
	INVALID(hello, reply.header.serial = reply.fds = 9, "answers request 9");
}

TEST(a_refusal_gives_the_reason)
{
	FAILS(hello, make_refusal(1, EDQUOT, "user 7 has 64 of 64 leases\n\x07stop"), -EDQUOT,
	      false, "harpd refuses: user 7 has 64 of 64 leases??stop");
	FAILS(hello, make_refusal(1, EBUSY, ""), -EBUSY, false,
	      "harpd refuses: Device or resource busy");
	INVALID(hello, make_refusal(1, 0, "x"), "refuses with error 0");
	INVALID(hello, make_refusal(1, -13, "x"), "refuses with error -13");
	INVALID(hello, make_refusal(1, 4096, "x"), "refuses with error 4096");
	FAILS(hello,
	      (make_refusal(1, EACCES, ""),
	       memset(reply.refused.why, 'w', sizeof(reply.refused.why))),
	      -EACCES, false, "harpd refuses: wwww");
	INVALID(hello, (make_refusal(1, EACCES, "x"), reply.size = reply.header.size = 30),
		"refusal has 30 bytes");
	FAILS(port, make_refusal(2, EBUSY, "rail0 is leased to process 7"), -EBUSY, false,
	      "harpd refuses: rail0 is leased to process 7");
}

/* harpd refuses before it reads the request. If it closes with the request unread, the connection
 * is reset; the job still reports the reason. */
TEST(a_refusal_before_the_request_is_read)
{
	for (unsigned unread = 0; unread < 2; unread++) {
		struct harp_daemon *daemon;

		make_refusal(0, EUSERS, "no place");
		open_ends();
		if (unread)
			CHECK_EQ(send(ends[0], "x", 1, 0), 1);
		send_as_harpd(&reply, reply.size, 0);
		close(ends[1]);
		CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), -EUSERS);
		CHECK(strstr(why, "harpd refuses: no place"));
	}
}

/* ---- leases ---------------------------------------------------------------------------------- */

TEST(valid_leases_are_kept)
{
	make_lease();
	CHECK_EQ(lease(), 0);
	CHECK(!is_released);
	queue = 1;
	CHECK_EQ(lease(), 0);
	CHECK(!is_released);
	queue = HARP_LEASE_QUEUE_ANY;
	make_port();
	CHECK_EQ(port(), 0);
	CHECK(!is_released);
	CHECK(leased_port.lease_id == LEASE_ID);
	CHECK_EQ(leased_port.page_count, 2);
	CHECK_EQ(leased_port.page_bytes, 4096);
	CHECK_STR(leased_port.spec, SPEC);
	CHECK_STR(leased_port.port.device, "net_memif0,role=client");
	CHECK_STR(leased_port.port.name, "rail0");
}

/* The kernel passes as many descriptors as fit and reports no error. */
TEST(missing_descriptors_release_the_lease)
{
	for (fds_max = 0; fds_max < HARP_LEASE_FDS; fds_max++)
		FAILS(lease, (void)0, -EMFILE, true, "raise `ulimit -n`");
	fds_max = RLIM_INFINITY;
}

TEST(an_invalid_lease_is_released)
{
	INVALID(lease, reply.fds = 2, "has 2 descriptors, not 3");
	INVALID(lease, reply.fds = 4, "has 4 descriptors, not 3");
	INVALID(lease, reply.leased.port_min = 0, "leases ports 0 to 61255");
	INVALID(lease, reply.leased.queue = 4, "leases queue 4 of 4");
	queue = 1;
	INVALID(lease, reply.leased.queue = 2, "leases queue 2 instead");
	queue = HARP_LEASE_QUEUE_ANY;
	INVALID(lease, reply.leased.ifname[3] = '2', "another interface");
	INVALID(lease,
		(reply.leased.rss.kind = HARP_RSS_TOEPLITZ, reply.leased.rss.key_bytes = 39,
		 reply.leased.rss.table_count = 128),
		"RSS of kind 2, 39 bytes of key");
	INVALID(lease, reply.leased.rss.table_count = HARP_RSS_TABLE_MAX + 1,
		"RSS of kind 0, 0 bytes of key, 513 entries");
}

TEST(an_invalid_port_is_released)
{
	INVALID(port, reply.fds = 1, "2 queues with 1 statistics pages");
	INVALID(port, reply.port.page_count = reply.fds = 0, "0 queues with 0 statistics pages");
	INVALID(port, reply.port.page_count = reply.fds = HARP_LEASE_PORT_PAGES_MAX + 1,
		"65 queues with 65 statistics pages");
	INVALID(port, reply.port.spec_bytes++, "truncated or too long");
	INVALID(port, reply.port.spec_bytes = ~0u, "truncated or too long");
	INVALID(port, reply.text[4] = '\0', "text of the port is invalid");
	INVALID(port, make_port_of("net_memif0;name=rail0;ip=10.9.0.1;queues=2"),
		"text of the port is invalid");
	INVALID(port, make_port_of("net_memif0;name=rail1;queues=2"),
		"leases port rail1 with 2 queues instead");
	INVALID(port, make_port_of("net_memif0;name=rail0"),
		"leases port rail0 with 1 queues instead");
	INVALID(port, reply.size = reply.header.size = sizeof(reply.port) - 4,
		"has 36 bytes, not 40");
	/* The name belongs to a NIC, so harpd leases one of its queues. */
	INVALID(port, reply.header.type = HARP_LEASE_LEASED, "type 4 instead of 10");
}

/* A reply that grants no lease leaves nothing to release. */
TEST(an_invalid_reply_releases_no_lease)
{
	FAILS(lease, reply.header.serial = 9, -EPROTO, false, "answers request 9");
	FAILS(lease, reply.header.type = HARP_LEASE_WELCOME, -EPROTO, false, "type 2 instead of 4");
	FAILS(port, reply.header.serial = 9, -EPROTO, false, "answers request 9");
	FAILS(port, reply.header.type = HARP_LEASE_DONE, -EPROTO, false, "type 7 instead of 10");
}

TEST(an_invalid_port_name_is_refused)
{
	struct harp_daemon *daemon;

	make_port();
	daemon = open_greeted();
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

static void restart_listener(int type)
{
	if (listener >= 0)
		close(listener);
	unlink(path);
	listener = lease_listen(path, type);
}

/* harpd: answers one greeting unless it is silent, and waits until the job disconnects. */
static void *serve_one(void *is_silent)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	char end;

	CHECK_EQ(recv(fd, &greeting, sizeof(greeting), 0), sizeof(greeting));
	if (!is_silent)
		CHECK_EQ(send(fd, &reply, reply.size, 0), reply.size);
	while (recv(fd, &end, 1, 0) > 0)
		;
	close(fd);
	return NULL;
}

static struct harp_daemon *connect_to_server(void)
{
	struct harp_daemon *daemon;

	CHECK_EQ(pthread_create(&server, NULL, serve_one, NULL), 0);
	CHECK_EQ(harp_daemon_connect(&daemon, path, "test of a job's side, a long name", why,
				     sizeof(why)),
		 0);
	return daemon;
}

static void disconnect(struct harp_daemon *daemon)
{
	harp_daemon_close(daemon);
	CHECK_EQ(pthread_join(server, NULL), 0);
}

TEST(a_welcome_is_read)
{
	const struct harp_lease_device *devices;
	struct harp_daemon *daemon;
	unsigned count;

	make_welcome(2, "HARP_PATH=xdp\nHARP_FRAMES=4096\n");
	strcpy(device_of(1)->ifname, "fifteen-letters");
	memcpy(device_of(1)->pci_path, "/sys/\x1b[31mred", 14);
	reply.header.size += 100; /* a later version appends fields */
	reply.size += 100;
	daemon = connect_to_server();
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
	disconnect(daemon);
	harp_daemon_close(NULL);
}

static void check_connect_fails(int error, const char *socket_path, const char *text)
{
	struct harp_daemon *daemon;
	unsigned before = fds_open();

	CHECK_EQ(harp_daemon_connect(&daemon, socket_path, NULL, why, sizeof(why)), error);
	CHECK(!daemon);
	CHECK_EQ(fds_open(), before);
	if (!strstr(why, text)) {
		fprintf(stderr, "\"%s\" does not contain \"%s\"\n", why, text);
		check_failed();
	}
}

TEST(a_missing_harpd_is_reported)
{
	char longer[200];
	int file;

	memset(longer, 'l', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	check_connect_fails(-EINVAL, NULL, "the path of a socket");
	check_connect_fails(-EINVAL, "", "the path of a socket");
	check_connect_fails(-EINVAL, longer, "the path of a socket");
	check_connect_fails(-ENOENT, "/nonexistent/harpd.sock", "harpctl start");
	close(listener); /* a stale socket */
	listener = -1;
	check_connect_fails(-ECONNREFUSED, path, "no process listens");
	unlink(path);
	file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	check_connect_fails(-ECONNREFUSED, path, "no process listens");
	close(file);
	restart_listener(SOCK_STREAM);
	check_connect_fails(-EPROTO, path, "is not harpd");
	restart_listener(SOCK_SEQPACKET);
}

/* A process of user `job` connects to a harpd of user `daemon`. */
static void check_trust(uid_t daemon, uid_t job, int error)
{
	int status = -1;
	pid_t child;

	CHECK_EQ(seteuid(daemon), 0);
	restart_listener(SOCK_SEQPACKET);
	CHECK_EQ(chmod(path, 0666), 0);
	CHECK_EQ(seteuid(0), 0);
	make_welcome(0, "HARP_ENCRYPT=off\n");
	child = fork();
	if (child == 0) {
		check_failures = 0;
		CHECK_EQ(setuid(job), 0);
		if (error)
			check_connect_fails(error, path, "harpd must run as root or as this user");
		else
			disconnect(connect_to_server());
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

/* A rootless container maps only its own user, so it sees the host's root as an unmapped user. */
static void test_rootless_container(void)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		check_failures = 0;
		make_welcome(0, "");
		CHECK_EQ(setuid(60001), 0);
		CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0); /* undoes setuid()'s effect on /proc */
		if (unshare(CLONE_NEWUSER) != 0)
			_exit(CHECK_SKIP);
		write_to("/proc/self/uid_map", "1000 60001 1");
		CHECK_EQ(geteuid(), 1000);
		disconnect(connect_to_server());
		_exit(check_failures != 0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_SKIP));
}

TEST(only_a_harpd_of_root_or_the_same_user_is_trusted)
{
	if (geteuid() != 0)
		return;
	CHECK_EQ(chmod(folder, 0777), 0);
	check_trust(0, 0, 0);
	check_trust(0, 65534, 0);
	check_trust(65534, 65534, 0);
	check_trust(65534, 0, -EPERM);
	check_trust(65534, 60001, -EPERM);
	check_trust(60001, 65534, -EPERM);
	check_trust(0, 60001, 0);
	test_rootless_container();
	CHECK_EQ(chmod(folder, 0700), 0);
	restart_listener(SOCK_SEQPACKET);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	alarms++;
}

/* A stopped harpd does not reply, or accepts no connections. */
TEST(a_silent_harpd_times_out)
{
	const struct sigaction action = { .sa_handler = on_alarm }; /* no SA_RESTART */
	const struct itimerval often = { { .tv_usec = 20000 }, { .tv_usec = 20000 } },
			       never = { 0 };
	struct why timeout_reason = { .text = why, .size = sizeof(why) };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct harp_daemon *daemon;
	unsigned before = fds_open();
	int pending[16], count = 0;

	CHECK_EQ(pthread_create(&server, NULL, serve_one, path), 0);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &timeout_reason), -ETIMEDOUT);
	CHECK(strstr(why, "does not answer within 1 s"));
	CHECK_EQ(pthread_join(server, NULL), 0);
	CHECK_EQ(fds_open(), before);
	make_welcome(0, "");
	CHECK_EQ(pthread_create(&server, NULL, serve_one, NULL), 0);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &timeout_reason), 0);
	why[0] = '\0';
	CHECK_EQ(daemon_release(daemon, LEASE_ID, &timeout_reason), -ETIMEDOUT);
	CHECK(strstr(why, "does not answer within 1 s"));
	disconnect(daemon);
	strcpy(address.sun_path, path);
	do { /* until the backlog is full */
		pending[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	} while (connect(pending[count++], (struct sockaddr *)&address, sizeof(address)) == 0 &&
		 count < 16);
	/* Signals that interrupt every wait (a profiler's timer) do not extend the timeout. */
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &timeout_reason), -ETIMEDOUT);
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(strstr(why, "accepts no connections"));
	CHECK(alarms > 10);
	while (count)
		close(pending[--count]);
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
		return check_skip("cannot create a folder in /tmp");
	snprintf(path, sizeof(path), "%s/harpd.sock", folder);
	restart_listener(SOCK_SEQPACKET);
	check_run();
	close(listener);
	unlink(path);
	rmdir(folder);
	return check_done();
}
