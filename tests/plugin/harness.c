/* SPDX-License-Identifier: Apache-2.0 */
/* harness.c - see harness.h. */
#include "harness.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void fail(const char *file, int line, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

static struct timespec clock_stopped_at;
static atomic_bool clock_is_stopped;

/* Overrides the C library's function, for the plugin as well. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *now)
{
	if (id == CLOCK_MONOTONIC && atomic_load(&clock_is_stopped)) {
		*now = clock_stopped_at;
		return 0;
	}
	return (int)syscall(SYS_clock_gettime, id, now);
}

void clock_stop(void)
{
	/* The loader must resolve the plugin's calls to the override. */
	REQUIRE(dlsym(RTLD_DEFAULT, "clock_gettime") == (void *)clock_gettime);
	REQUIRE(clock_gettime(CLOCK_MONOTONIC, &clock_stopped_at) == 0);
	atomic_store(&clock_is_stopped, true);
}

void clock_resume(void)
{
	atomic_store(&clock_is_stopped, false);
}

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

bool yield_or_time_out(const char *file, int line, uint64_t start_ms)
{
	if (now_ms() - start_ms > WAIT_MS_MAX)
		fail(file, line, "timed out after %u ms (last WARN: %s)", WAIT_MS_MAX,
		     log_last_warning());
	sched_yield();
	return true;
}

/* ---- the log --------------------------------------------------------------------------------- */
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_warning[1024];
static unsigned log_warning_count, log_line_count;

__attribute__((format(printf, 5, 6))) static void log_line(enum nccl_log_level level,
							   unsigned long flags, const char *func,
							   int line, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	(void)flags;
	(void)func;
	(void)line;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	pthread_mutex_lock(&log_mutex);
	log_line_count++;
	if (level == NCCL_LOG_WARN) {
		log_warning_count++;
		memcpy(log_warning, text, sizeof(text));
	}
	pthread_mutex_unlock(&log_mutex);
	if (getenv("CONFORM_VERBOSE"))
		fprintf(stderr, "[%d] %d %s\n", (int)getpid(), (int)level, text);
}
const nccl_logger log_collect = log_line;

const char *log_last_warning(void)
{
	static _Thread_local char copy[1024];

	pthread_mutex_lock(&log_mutex);
	memcpy(copy, log_warning, sizeof(copy));
	pthread_mutex_unlock(&log_mutex);
	return copy;
}

unsigned log_warnings(void)
{
	pthread_mutex_lock(&log_mutex);
	unsigned count = log_warning_count;
	pthread_mutex_unlock(&log_mutex);
	return count;
}

unsigned log_lines(void)
{
	pthread_mutex_lock(&log_mutex);
	unsigned count = log_line_count;
	pthread_mutex_unlock(&log_mutex);
	return count;
}

/* ---- the library ----------------------------------------------------------------------------- */
enum host this_host;
static int host_netns[3]; /* 0 with one host */
static bool hosts_use_ports;
static unsigned host_loads;
static char host_far_copy[64];
static const char *host_far_addr; /* the receiver's */

bool hosts_are_ports(void)
{
	return hosts_use_ports;
}

static bool hosts_are_two(void)
{
	return host_netns[HOST_RECEIVER] || hosts_are_ports();
}

/*
 * A socket per load, because net_memif of DPDK 22.11 continues to listen after its port is closed.
 * Both processes of a memif count loads alike.
 */
static const char *host_port(enum host host)
{
	static char texts[3][256];

	snprintf(texts[host], sizeof(texts[host]),
		 "net_memif%d,role=%s,socket=%s.%u;name=%s;ip=10.77.0.%d/24", host,
		 host == HOST_SENDER ? "server" : "client", host_far_copy, host_loads,
		 host == HOST_SENDER ? "ha" : "hb", host);
	return texts[host];
}

static void library_load_one(void **handle, struct net *net, const char *path, int version,
			     enum host host)
{
	char symbol[32];

	*handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!*handle)
		fail(__FILE__, __LINE__, "%s", dlerror());
	snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
	*net = (struct net){
		.version = version,
		.table = dlsym(*handle, symbol),
		.traffic_class = NCCL_TRAFFIC_CLASS_UNSET,
		.netns = host_netns[host],
		.port = hosts_are_ports() ? host_port(host) : NULL,
	};
	if (!net->table)
		fail(__FILE__, __LINE__, "%s: no symbol %s", path, symbol);
}

void library_load(struct library *lib, const char *path, int version)
{
	enum host near = this_host == HOST_RECEIVER ? HOST_RECEIVER : HOST_SENDER;

	memset(lib, 0, sizeof(*lib));
	host_loads++;
	library_load_one(&lib->handle, &lib->net, path, version, near);
	if (hosts_are_two() && this_host == HOST_BOTH) {
		library_load_one(&lib->far_handle, &lib->far, host_far_copy, version,
				 HOST_RECEIVER);
		lib->net.far = &lib->far;
	}
}

void library_open(struct library *lib, const char *path, int version)
{
	library_load(lib, path, version);
	OK(net_init(&lib->net, log_collect));
}

void library_unload(struct library *lib)
{
	REQUIRE(dlclose(lib->handle) == 0);
	REQUIRE(!lib->far_handle || dlclose(lib->far_handle) == 0);
}

void library_close(struct library *lib)
{
	OK(net_finalize(&lib->net));
	library_unload(lib);
}

/* ---- connections ----------------------------------------------------------------------------- */

/* A pending call sets the comm to NULL. */
static void *try_connect(struct net *net, char *handle)
{
	void *comm = (void *)(uintptr_t)0x57a1e;

	OK(net_connect(net, 0, handle, &comm));
	REQUIRE(comm != (void *)(uintptr_t)0x57a1e);
	return comm;
}

static void *try_accept(struct net *net, void *listen)
{
	void *comm = (void *)(uintptr_t)0x57a1e;

	OK(net_accept(net, listen, &comm));
	REQUIRE(comm != (void *)(uintptr_t)0x57a1e);
	return comm;
}

void *end_connect(struct net *net, const char *handle)
{
	char own[NCCL_HANDLE_BYTES];
	void *comm = NULL;

	memcpy(own, handle, sizeof(own));
	WAIT_UNTIL(comm)
	comm = try_connect(net, own);
	return comm;
}

void *end_accept(struct net *net, void *listen)
{
	void *comm = NULL;

	WAIT_UNTIL(comm)
	comm = try_accept(net, listen);
	return comm;
}

void pair_open(struct net *net, struct pair *pair)
{
	char handle[NCCL_HANDLE_BYTES];

	memset(pair, 0, sizeof(*pair));
	memset(handle, 0xee, sizeof(handle));
	OK(net_listen(net, 0, handle, &pair->listen));
	REQUIRE(pair->listen);
	/* NCCL's buffer is temporary: the plugin must not keep its address. */
	memcpy(pair->handle, handle, sizeof(handle));
	memset(handle, 0xee, sizeof(handle));
	memcpy(handle, pair->handle, sizeof(handle));
	WAIT_UNTIL(pair->send && pair->recv)
	{
		if (!pair->send)
			pair->send = try_connect(net, handle);
		if (!pair->recv)
			pair->recv = try_accept(net, pair->listen);
	}
}

void pair_close(struct net *net, struct pair *pair)
{
	OK(net_close_listen(net, pair->listen));
	OK(net_close_send(net, pair->send));
	OK(net_close_recv(net, pair->recv));
	memset(pair, 0, sizeof(*pair));
}

/* ---- messages -------------------------------------------------------------------------------- */
void *post_send(struct net *net, void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	WAIT_UNTIL(request)
	{
		request = (void *)(uintptr_t)0x57a1e;
		OK(net_isend(net, comm, data, size, tag, NULL, &request));
	}
	return request;
}

void *post_recv(struct net *net, void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	WAIT_UNTIL(request)
	{
		request = NCCL_REQUEST_OPTIONAL;
		OK(net_irecv(net, comm, data, size, tag, NULL, &request));
		REQUIRE(request != NCCL_REQUEST_OPTIONAL);
	}
	return request;
}

int complete(struct net *net, void *request)
{
	int done = 0, size = -1;

	WAIT_UNTIL(done)
	{
		done = 77;
		OK(net_test(net, request, &done, &size));
		REQUIRE(done == 0 || done == 1);
	}
	return size;
}

void complete_both(struct net *net, void *send, void *recv, int *sent, int *received)
{
	int send_done = 0, recv_done = 0;

	WAIT_UNTIL(send_done && recv_done)
	{
		if (!send_done)
			OK(net_test(net, send, &send_done, sent));
		if (!recv_done)
			OK(net_test(net, recv, &recv_done, received));
	}
}

static uint8_t pattern(size_t at, unsigned seed)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;

	return (uint8_t)(x >> 32);
}

void fill(uint8_t *data, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		data[i] = pattern(i, seed);
}

bool is_filled(const uint8_t *data, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++) {
		if (data[i] != pattern(i, seed)) {
			fprintf(stderr, "byte %zu of %zu differs\n", i, size);
			return false;
		}
	}
	return true;
}

/* ---- this process ---------------------------------------------------------------------------- */
static unsigned count_entries(const char *path, const char *but)
{
	DIR *dir = opendir(path);
	unsigned count = 0;
	char link[64];

	if (!dir)
		fail(__FILE__, __LINE__, "cannot read %s", path);
	for (struct dirent *entry; (entry = readdir(dir)); count++) {
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link));

		if (but && len > 0 && !strncmp(link, but, strlen(but)))
			count--;
	}
	closedir(dir);
	return count;
}

unsigned count_threads(void)
{
	return count_entries("/proc/self/task", NULL) - 2; /* . and .. */
}

unsigned count_fds(void)
{
	/* Over DPDK ports only net_memif has sockets, and it leaks some: see host_port().
	 * 3: ".", ".." and the directory itself. */
	return count_entries("/proc/self/fd", hosts_are_ports() ? "socket:" : NULL) - 3;
}

void require_no_leaks(unsigned threads, unsigned fds)
{
	WAIT_UNTIL(count_threads() == threads && (!hosts_are_ports() || count_fds() == fds));
	if (count_threads() != threads || count_fds() != fds)
		fail(__FILE__, __LINE__, "%u threads and %u descriptors, not %u and %u",
		     count_threads(), count_fds(), threads, fds);
}

/* Sets an interface up and waits until it is running. */
static void interface_up(const char *ifname)
{
	struct ifreq request = { .ifr_flags = 0 };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", ifname);
	REQUIRE(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0);
	request.ifr_flags |= IFF_UP;
	REQUIRE(ioctl(fd, SIOCSIFFLAGS, &request) == 0);
	WAIT_UNTIL(request.ifr_flags & IFF_RUNNING)
	REQUIRE(ioctl(fd, SIOCGIFFLAGS, &request) == 0);
	close(fd);
}

void make_one_host(void)
{
	if (!unshare(CLONE_NEWNET))
		interface_up("lo");
}

const char *host_ifname(void)
{
	if (!hosts_are_two())
		return "lo";
	return this_host == HOST_RECEIVER ? "hb" : "ha";
}

__attribute__((format(printf, 1, 2))) static void shell(const char *fmt, ...)
{
	char command[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(command, sizeof(command), fmt, args);
	va_end(args);
	if (system(command))
		fail(__FILE__, __LINE__, "failed: %s", command);
}

void remove_hosts(void)
{
	if (!host_far_copy[0])
		return;
	unlink(host_far_copy);
	*strrchr(host_far_copy, '/') = '\0';
	rmdir(host_far_copy);
}

static void make_far_copy(const char *plugin)
{
	char directory[] = "/tmp/conform-XXXXXX";

	REQUIRE(mkdtemp(directory));
	snprintf(host_far_copy, sizeof(host_far_copy), "%s/%s", directory, "libnccl-net-harp.so");
	shell("cp %s %s", plugin, host_far_copy);
}

void make_two_ports(const char *plugin)
{
	make_far_copy(plugin);
	hosts_use_ports = true;
}

static void *store_tid(void *tid)
{
	*(pid_t *)tid = gettid();
	return NULL;
}

void warm_up(const char *plugin, int version)
{
	struct library lib;
	pthread_t thread;
	char task[64];
	pid_t tid;

	REQUIRE(!pthread_create(&thread, NULL, store_tid, &tid) && !pthread_join(thread, NULL));
	snprintf(task, sizeof(task), "/proc/self/task/%d", tid);
	WAIT_UNTIL(access(task, F_OK) != 0);
	if (!hosts_are_ports())
		return;
	library_open(&lib, plugin, version);
	library_close(&lib);
}

bool make_two_hosts(const char *plugin, bool ipv6)
{
	host_far_addr = ipv6 ? "fd77::2" : "10.77.0.2";
	for (int host = HOST_SENDER; host <= HOST_RECEIVER; host++) {
		if (unshare(CLONE_NEWNET))
			return false;
		interface_up("lo");
		host_netns[host] = open("/proc/self/ns/net", O_RDONLY);
		REQUIRE(host_netns[host] > 0);
	}
	shell("ip link add hb type veth peer name ha netns /proc/self/fd/%d && "
	      "%s && ip addr add %s/%d dev hb %s && ip link set hb up",
	      host_netns[HOST_SENDER],
	      ipv6 ? "echo 0 >/proc/sys/net/ipv6/conf/hb/accept_dad" : "true", host_far_addr,
	      ipv6 ? 64 : 24, ipv6 ? "nodad" : "");
	REQUIRE(setns(host_netns[HOST_SENDER], CLONE_NEWNET) == 0);
	if (ipv6)
		shell("echo 0 >/proc/sys/net/ipv6/conf/ha/accept_dad && "
		      "ip addr add fd77::1/64 dev ha nodad");
	else
		shell("ip addr add 10.77.0.1/24 dev ha");
	interface_up("ha");
	for (int host = HOST_SENDER; host <= HOST_RECEIVER; host++)
		fcntl(host_netns[host], F_SETFD, FD_CLOEXEC);
	make_far_copy(plugin);
	return true;
}

bool hosts_cut(bool cut)
{
	if (!host_netns[HOST_RECEIVER])
		return false;
	REQUIRE(setns(host_netns[HOST_SENDER], CLONE_NEWNET) == 0);
	/* A wrong MAC address: the kernel would report a failed ARP resolution to the sockets. */
	if (cut)
		shell("ip neigh replace %s lladdr 02:00:00:00:00:99 nud permanent dev ha",
		      host_far_addr);
	else
		shell("ip neigh flush dev ha nud permanent");
	return true;
}
