/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon.c - a job's side of the conversation with harpd, against a harpd that says what a test wants:
 * nonsense of every kind, nothing, too much. Each is one error, and no descriptor stays behind.
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
#include "pass_fds.h"

#define DEVICES_MAX 40u

/* Jobs and harpd may be of different builds: what they say to each other stays as it is. */
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
STAYS(offsetof(struct harp_lease_leased, rss_table), 184);
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

/* What harpd answers to HELLO: a good WELCOME, then changed. */
struct script {
	union {
		struct harp_lease_welcome welcome;
		struct harp_lease_refused refused;
		uint8_t bytes[80000];
	} answer;
	size_t bytes; /* 0: hangs up */
	unsigned fds; /* that come with it */
	bool mute;    /* answers nothing and stays */
};

static char folder[] = "/tmp/harp-test-daemon-XXXXXX", path[sizeof(folder) + 16];
static char why[512];
static int door = -1, type_of_door = SOCK_SEQPACKET;
static struct script script;
static struct harp_lease_hello hello;

static void open_door(void)
{
	if (door >= 0)
		close(door);
	unlink(path);
	door = lease_listen(path, type_of_door);
}

/* ---- harpd ---------------------------------------------------------------------------------- */

static void answer(int fd)
{
	CHECK_EQ(pass_fds(fd, &script.answer, script.bytes, fd, script.fds), script.bytes);
}

static void *serve_one(void *unused)
{
	int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	char end;

	CHECK_EQ(recv(fd, &hello, sizeof(hello), 0), sizeof(hello));
	if (script.bytes && !script.mute)
		answer(fd);
	if (script.bytes)
		(void)!recv(fd, &end, 1, 0); /* until the job hangs up */
	close(fd);
	return NULL;
}

/* A good answer with so many devices. */
static void good(uint32_t devices, const char *settings)
{
	struct harp_lease_device device = {
		.ifname = "eth1",
		.ifindex = 7,
		.flags = HARP_LEASE_DEVICE_UP,
		.pci_path = "/sys/devices/pci0000:00/0000:00:05.0",
	};
	uint8_t *at = script.answer.bytes + sizeof(struct harp_lease_welcome);

	memset(&script, 0, sizeof(script));
	script.answer.welcome = (struct harp_lease_welcome){
		.header = lease_header(HARP_LEASE_WELCOME, 0, 1),
		.daemon = "harpd test",
		.device_count = devices,
		.settings_bytes = (uint32_t)strlen(settings),
	};
	for (uint32_t i = 0; i < devices; i++, at += sizeof(device))
		memcpy(at, &device, sizeof(device));
	memcpy(at, settings, strlen(settings));
	script.bytes = (size_t)(at - script.answer.bytes) + strlen(settings);
	script.answer.welcome.header.size = (uint32_t)script.bytes;
}

static struct harp_lease_device *device_of(unsigned index)
{
	uint8_t *at = script.answer.bytes + sizeof(struct harp_lease_welcome);

	return (struct harp_lease_device *)(void *)(at + index * sizeof(struct harp_lease_device));
}

static void refuse(int error, const char *text)
{
	good(0, "");
	script.answer.refused = (struct harp_lease_refused){
		.header = lease_header(HARP_LEASE_REFUSED, sizeof(struct harp_lease_refused), 1),
		.error = error,
	};
	memcpy(script.answer.refused.why, text, strnlen(text, sizeof(script.answer.refused.why)));
	script.bytes = sizeof(struct harp_lease_refused);
}

static pthread_t server;

/* Hangs up; harpd, which waits for that, ends. */
static void hang_up(struct harp_daemon *daemon)
{
	harp_daemon_close(daemon);
	CHECK_EQ(pthread_join(server, NULL), 0);
}

/* Connects to the scripted harpd; out NULL: and hangs up. */
static int converse(struct harp_daemon **out)
{
	struct harp_daemon *daemon;
	int rc;

	CHECK_EQ(pthread_create(&server, NULL, serve_one, NULL), 0);
	rc = harp_daemon_connect(&daemon, path, "test of a job's side, a long name", why,
				 sizeof(why));
	CHECK((rc == 0) == (daemon != NULL));
	if (out)
		*out = daemon;
	else
		hang_up(daemon);
	return rc;
}

#define FAILS(error, words)                                                                        \
	do {                                                                                       \
		unsigned before = fds_open();                                                      \
		CHECK_EQ(converse(NULL), error);                                                   \
		CHECK_EQ(fds_open(), before);                                                      \
		if (!strstr(why, words) || strncmp(why, path, strlen(path)) ||                     \
		    strchr(why, '\n')) {                                                           \
			fprintf(stderr, "%d: \"%s\" instead of \"%s\"\n", __LINE__, why, words);   \
			check_failed();                                                            \
		}                                                                                  \
	} while (0)

/* ---- tests ---------------------------------------------------------------------------------- */

TEST(a_welcome_is_read)
{
	const struct harp_lease_device *devices;
	struct harp_daemon *daemon;
	unsigned count;

	good(2, "HARP_PATH=xdp\nHARP_FRAMES=4096\n");
	strcpy(device_of(1)->ifname, "fifteen-letters");
	memcpy(device_of(1)->pci_path, "/sys/\x1b[31mred", 14);
	script.bytes += 100; /* what a later version appends */
	script.answer.welcome.header.size += 100;
	CHECK_EQ(converse(&daemon), 0);
	devices = harp_daemon_devices(daemon, &count);
	CHECK_EQ(count, 2);
	CHECK_STR(devices[0].ifname, "eth1");
	CHECK_STR(devices[1].ifname, "fifteen-letters");
	CHECK_STR(devices[1].pci_path, "/sys/?[31mred");
	CHECK_STR(harp_daemon_settings(daemon), "HARP_PATH=xdp\nHARP_FRAMES=4096\n");
	CHECK_STR(harp_daemon_name(daemon), "harpd test");
	CHECK_EQ(hello.header.type, HARP_LEASE_HELLO);
	CHECK_EQ(hello.header.size, sizeof(hello));
	CHECK_EQ(hello.client[31], 0);
	CHECK(!strncmp(hello.client, "test of a job's side", 20));
	hang_up(daemon);
	harp_daemon_close(NULL);
	good(0, "");
	CHECK_EQ(converse(NULL), 0);
}

/* Said before the question came; behind a reset where harpd left something unread. */
TEST(a_refusal_before_the_request_is_read)
{
	for (unsigned unread = 0; unread < 2; unread++) {
		struct why reason = { .text = why, .size = sizeof(why) };
		struct harp_daemon *daemon;
		int ends[2];

		refuse(EUSERS, "no place");
		script.answer.refused.header.serial = 0;
		CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
		if (unread)
			CHECK_EQ(send(ends[0], "x", 1, 0), 1);
		answer(ends[1]);
		close(ends[1]);
		CHECK_EQ(daemon_open_on(&daemon, ends[0], "test", 1000, &reason), -EUSERS);
		CHECK(strstr(why, "harpd refuses: no place"));
	}
}

TEST(invalid_headers_are_refused)
{
	good(1, "");
	script.bytes = 0;
	FAILS(-ECONNRESET, "closed the connection without an answer");
	good(1, "");
	script.bytes = 3;
	FAILS(-EPROTO, "is not harpd");
	good(1, "");
	script.answer.welcome.header.magic++;
	FAILS(-EPROTO, "is not harpd");
	good(1, "");
	script.answer.welcome.header.version = 0;
	FAILS(-EPROTO, "is not harpd");
	good(1, "");
	script.answer.welcome.header.size++;
	FAILS(-EPROTO, "bytes and states");
	good(1, "");
	script.answer.welcome.header.serial = 2;
	FAILS(-EPROTO, "answers request 2 instead of 1");
	good(1, "");
	script.answer.welcome.header.type = HARP_LEASE_LEASED;
	FAILS(-EPROTO, "type 4 instead of 2");
	good(1, "");
	script.bytes = script.answer.welcome.header.size = 40;
	FAILS(-EPROTO, "has 40 bytes, not 56");
	good(1, "");
	script.bytes = script.answer.welcome.header.size = 70000;
	FAILS(-EPROTO, "too many");
}

TEST(invalid_welcomes_are_refused)
{
	good(DEVICES_MAX, "");
	FAILS(-EPROTO, "lists 40 devices; at most 32 are possible");
	good(1, "");
	script.answer.welcome.device_count = 2;
	FAILS(-EPROTO, "too short for 2 devices");
	good(1, "");
	script.answer.welcome.device_count = 0xffffffffu;
	FAILS(-EPROTO, "lists 4294967295 devices");
	good(1, "A=1\n");
	script.answer.welcome.settings_bytes = 0xffffffffu;
	FAILS(-EPROTO, "and 4294967295 bytes of settings");
	good(1, "A=1\n");
	script.answer.bytes[script.bytes - 2] = '\0';
	FAILS(-EPROTO, "settings are not text");
	good(3, "");
	device_of(2)->ifname[0] = '\0';
	FAILS(-EPROTO, "device 2 has no name");
	good(1, "");
	memset(device_of(0)->ifname, 'x', 16);
	FAILS(-EPROTO, "device 0 has no name");
	good(1, "");
	strcpy(device_of(0)->ifname, "../../etc");
	FAILS(-EPROTO, "device 0 has no name");
	good(1, "");
	strcpy(device_of(0)->ifname, "a\nb");
	FAILS(-EPROTO, "device 0 has no name");
	good(1, "");
	device_of(0)->ifindex = 0;
	FAILS(-EPROTO, "device 0 has no name or index");
}

TEST(unexpected_descriptors_are_closed)
{
	good(1, "");
	script.fds = 1;
	FAILS(-EPROTO, "has 1 descriptors, not 0");
	script.fds = PASS_FDS_MAX;
	FAILS(-EPROTO, "too many descriptors");
	refuse(EACCES, "no");
	script.fds = 3;
	FAILS(-EACCES, "harpd refuses: no");
	good(1, "");
	script.answer.welcome.header.serial = 9;
	script.fds = 7;
	FAILS(-EPROTO, "answers request 9");
}

TEST(a_refusal_gives_the_reason)
{
	refuse(EDQUOT, "user 7 has 64 of 64 leases\n\x07stop");
	FAILS(-EDQUOT, "harpd refuses: user 7 has 64 of 64 leases??stop");
	refuse(EBUSY, "");
	FAILS(-EBUSY, "harpd refuses: Device or resource busy");
	refuse(0, "x");
	FAILS(-EPROTO, "refuses with error 0");
	refuse(-13, "x");
	FAILS(-EPROTO, "refuses with error -13");
	refuse(4096, "x");
	FAILS(-EPROTO, "refuses with error 4096");
	refuse(EACCES, "x");
	memset(script.answer.refused.why, 'w', sizeof(script.answer.refused.why));
	FAILS(-EACCES, "harpd refuses: wwww");
	refuse(EACCES, "x");
	script.bytes = script.answer.refused.header.size = 30;
	FAILS(-EPROTO, "refusal has 30 bytes");
}

static void no_door(int error, const char *where, const char *words)
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
	no_door(-EINVAL, NULL, "the path of a socket");
	no_door(-EINVAL, "", "the path of a socket");
	no_door(-EINVAL, longer, "the path of a socket");
	no_door(-ENOENT, "/nonexistent/harpd.sock", "harpctl start");
	close(door); /* a socket that its owner left behind */
	door = -1;
	no_door(-ECONNREFUSED, path, "no process listens");
	unlink(path);
	file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	no_door(-ECONNREFUSED, path, "no process listens");
	close(file);
	type_of_door = SOCK_STREAM;
	open_door();
	no_door(-EPROTO, path, "is not harpd");
	type_of_door = SOCK_SEQPACKET;
	open_door();
}

/* Whose harpd this process (of user `job`) believes: root's, its own user's, and no other's. */
static void believes(uid_t listener, uid_t job, int error)
{
	int status = -1;
	pid_t child;

	CHECK_EQ(seteuid(listener), 0);
	open_door();
	CHECK_EQ(chmod(path, 0666), 0);
	CHECK_EQ(seteuid(0), 0);
	good(0, "HARP_ENCRYPT=off\n");
	child = fork();
	if (child == 0) {
		check_failures = 0;
		CHECK_EQ(setuid(job), 0);
		if (error)
			no_door(error, path, "harpd must run as root or as this user");
		else
			CHECK_EQ(converse(NULL), 0);
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

/* A rootless container maps its own user alone, and sees the host's root as a user that is not mapped. */
static void test_rootless_container(void)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		check_failures = 0;
		good(0, "");
		CHECK_EQ(setuid(60001), 0);
		CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0); /* its files in /proc are its own again */
		if (unshare(CLONE_NEWUSER) != 0)
			_exit(CHECK_SKIP);
		write_to("/proc/self/uid_map", "1000 60001 1");
		CHECK_EQ(geteuid(), 1000);
		CHECK_EQ(converse(NULL), 0);
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
	believes(0, 0, 0);
	believes(0, 65534, 0);
	believes(65534, 65534, 0);
	believes(65534, 0, -EPERM);
	believes(65534, 60001, -EPERM);
	believes(60001, 65534, -EPERM);
	believes(0, 60001, 0);
	test_rootless_container();
	CHECK_EQ(chmod(folder, 0700), 0);
	open_door();
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	alarms++;
}

/* A harpd that is stopped: one that takes no call, and one that took it. */
TEST(a_silent_harpd_times_out)
{
	const struct sigaction action = { .sa_handler = on_alarm }; /* no SA_RESTART */
	const struct itimerval often = { { .tv_usec = 20000 }, { .tv_usec = 20000 } },
			       never = { 0 };
	struct why reason = { .text = why, .size = sizeof(why) };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct harp_daemon *daemon;
	unsigned before = fds_open();
	int crowd[16], count = 0;

	good(1, "");
	script.mute = true;
	CHECK_EQ(pthread_create(&server, NULL, serve_one, NULL), 0);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &reason), -ETIMEDOUT);
	CHECK(strstr(why, "does not answer within 1 s"));
	CHECK_EQ(pthread_join(server, NULL), 0);
	CHECK_EQ(fds_open(), before);
	strcpy(address.sun_path, path);
	do { /* until the queue of callers is full */
		crowd[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	} while (connect(crowd[count++], (struct sockaddr *)&address, sizeof(address)) == 0 &&
		 count < 16);
	/* A timer whose signals end every wait (a profiler's) does not extend the timeout. */
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	CHECK_EQ(daemon_open(&daemon, path, "test", 1000, &reason), -ETIMEDOUT);
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(strstr(why, "accepts no connections"));
	CHECK(alarms > 10);
	while (count)
		close(crowd[--count]);
}

/* Options of the first version, which ended before daemon_socket, are taken; older ones are not. */
TEST(older_options_are_accepted)
{
	struct harp_instance *instance;
	struct harp_instance_options opt = {
		.size = offsetof(struct harp_instance_options, daemon_socket),
		.ifname = "harp-none0",
		.daemon_socket = "/nonexistent/harpd.sock", /* beyond its size: not there */
	};

	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -ENODEV);
	CHECK(strstr(why, "harp-none0 queue 0: no such interface") != NULL);
	opt.size = sizeof(opt);
	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -ENOENT);
	CHECK(strstr(why, "/nonexistent/harpd.sock: no such socket") != NULL);
	opt.size = 8;
	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -EINVAL);
	opt.size = sizeof(opt);
	opt.ifname = "a-name-that-is-too-long";
	CHECK_EQ(harp_instance_open(&instance, &opt, why, sizeof(why)), -EINVAL);
}

int main(void)
{
	if (!mkdtemp(folder))
		return check_skip("no folder can be made in /tmp");
	snprintf(path, sizeof(path), "%s/harpd.sock", folder);
	open_door();
	check_run();
	close(door);
	unlink(path);
	rmdir(folder);
	return check_done();
}
