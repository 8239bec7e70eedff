/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform.c - runs the cases of NCCL's contract with the real library and one version's table.
 *
 * conform PLUGIN VERSION [CASE...]   exit 0 passed, 1 failed, 2 wrong usage, 77 cannot run here
 * Environment; the default is kernel lanes over lo:
 * CONFORM_HOSTS=2      two namespaces joined by a veth pair, HARP lanes unless HARP_PATH is set
 * CONFORM_FAMILY=6     IPv6 addresses only, with CONFORM_HOSTS=2
 * CONFORM_HOSTS=dpdk   DPDK ports, the two ends of a memif; needs no privilege
 * CONFORM_ENCRYPTED=1  encrypted lanes with a new key
 * CONFORM_VERBOSE=1    print the plugin's log
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

#define CASE_SECONDS_MAX 120u

static const struct conform_case {
	const char *name, *sentence;
	void (*run)(const char *plugin, int version);
} cases[] = {
#define CASE(name, sentence) { #name, sentence, case_##name },
	CASES(CASE)
#undef CASE
};
#define CASE_COUNT (sizeof(cases) / sizeof(cases[0]))

static bool run_case(const struct conform_case *test_case, const char *plugin, int version)
{
	uint64_t start = now_ms();
	pid_t child;
	int status;

	fflush(NULL);
	child = fork();
	if (child < 0) {
		perror("fork");
		return false;
	}
	if (child == 0) {
		/* A process group, so that the case's children can be killed with it. */
		setpgid(0, 0);
		alarm(CASE_SECONDS_MAX);
		test_case->run(plugin, version);
		exit(0);
	}
	while (waitpid(child, &status, 0) < 0)
		;
	kill(-child, SIGKILL);
	if (status)
		hosts_cut(false); /* the case may have failed during a cut */
	printf("v%d %-20s %-6s %6llu ms  %s\n", version, test_case->name, status ? "FAILED" : "ok",
	       (unsigned long long)(now_ms() - start), test_case->sentence);
	if (WIFSIGNALED(status))
		printf("   ended by signal %d (%s)\n", WTERMSIG(status),
		       strsignal(WTERMSIG(status)));
	return status == 0;
}

/* The key file of this run, removed after the cases. */
static char key_file[] = "/tmp/conform-key-XXXXXX";

static void make_key(void)
{
	int fd = mkstemp(key_file); /* mode 0600 */

	REQUIRE(fd >= 0);
	REQUIRE(dprintf(fd, "%064llx\n", (unsigned long long)now_ms()) == 65);
	REQUIRE(close(fd) == 0);
	setenv("HARP_ENCRYPT", "aes-256-gcm", 1);
	setenv("HARP_KEY_FILE", key_file, 1);
}

static bool is_selected(const char *name, char **names)
{
	if (!*names)
		return true;
	for (; *names; names++)
		if (!strcmp(*names, name))
			return true;
	return false;
}

/* Copies of the plugin find the other libraries in the original's directory. */
static const char *set_libdir(const char *plugin)
{
	static char directory[PATH_MAX];

	REQUIRE(realpath(plugin, directory));
	*strrchr(directory, '/') = '\0';
	setenv("HARP_LIBDIR", directory, 0);
	return directory;
}

/* Returns Meson's exit status for a skipped test. */
static int skip(const char *why)
{
	fprintf(stderr, "skipped: %s\n", why);
	return 77;
}

/* True if the plugin was built with DPDK. */
static bool has_dpdk(const char *plugin)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/libharp-dpdk.so", set_libdir(plugin));
	return access(path, R_OK) == 0;
}

int main(int argc, char **argv)
{
	int version = argc > 2 ? atoi(argv[2]) : 0;
	const char *hosts = getenv("CONFORM_HOSTS"), *family = getenv("CONFORM_FAMILY");
	bool encrypted = getenv("CONFORM_ENCRYPTED") != NULL;
	unsigned run = 0, failed = 0;

	if (!net_is_valid(version)) {
		fprintf(stderr, "usage: conform PLUGIN VERSION [CASE...]   VERSION: %d to %d\n",
			NCCL_ABI_OLDEST, NCCL_ABI_NEWEST);
		return 2;
	}
	if (encrypted && system("ldconfig -p | grep -q 'libcrypto\\.so\\.3 '"))
		return skip("libcrypto.so.3 is not installed");
	if (hosts && !strcmp(hosts, "dpdk")) {
		if (!has_dpdk(argv[1]))
			return skip("built without DPDK");
		make_two_ports(argv[1]);
		setenv("HARP_PATH", "dpdk", 0);
		setenv("HARP_DPDK_ARGS", "--no-pci", 0);
		setenv("HARP_DPDK_HUGE_PAGES", "never", 0);
		/* After a process dies, no kernel resets the connections of its DPDK port. */
		setenv("HARP_USER_TIMEOUT_MS", "2000", 0);
	} else if (hosts && !strcmp(hosts, "2")) {
		if (!make_two_hosts(argv[1], family && !strcmp(family, "6")))
			return skip("network namespaces need root");
		set_libdir(argv[1]);
		setenv("HARP_PATH", "xdp", 0);
		setenv("NCCL_SOCKET_IFNAME", "=ha,hb", 0);
	} else {
		make_one_host();
		setenv("HARP_PATH", "kernel", 0);
		setenv("NCCL_SOCKET_IFNAME", "=lo", 0);
	}
	if (encrypted)
		make_key();
	for (size_t i = 0; i < CASE_COUNT; i++) {
		if (!is_selected(cases[i].name, argv + 3))
			continue;
		run++;
		failed += !run_case(&cases[i], argv[1], version);
	}
	remove_hosts();
	if (encrypted)
		unlink(key_file);
	if (run == 0) {
		fprintf(stderr, "conform: no such case; there are:\n");
		for (size_t i = 0; i < CASE_COUNT; i++)
			fprintf(stderr, "  %-20s %s\n", cases[i].name, cases[i].sentence);
		return 2;
	}
	return failed ? 1 : 0;
}
