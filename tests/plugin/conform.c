/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform.c - NCCL's contract, case by case, against the real library through one version's table.
 *
 * conform PLUGIN VERSION [CASE...]   exit 0 passed, 1 failed, 2 wrong usage, 77 cannot run here
 * Kernel lanes over lo. With CONFORM_HOSTS=2 two hosts (namespaces with a veth pair between them) and
 * HARP lanes, or what HARP_PATH says; with CONFORM_FAMILY=6 these have IPv6 addresses only.
 * With CONFORM_HOSTS=dpdk the hosts are DPDK ports, the two ends of a memif; no privilege is needed.
 * With CONFORM_ENCRYPTED=1 lanes are encrypted, with a key of the run's own. CONFORM_VERBOSE=1 shows the log.
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

static bool run_case(const struct conform_case *one, const char *plugin, int version)
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
		/* Alone in its group, so that its own children end with it. */
		setpgid(0, 0);
		alarm(CASE_SECONDS_MAX);
		one->run(plugin, version);
		exit(0);
	}
	while (waitpid(child, &status, 0) < 0)
		;
	kill(-child, SIGKILL);
	if (status)
		hosts_cut(false); /* it may have failed in between */
	printf("v%d %-20s %-6s %6llu ms  %s\n", version, one->name, status ? "FAILED" : "ok",
	       (unsigned long long)(now_ms() - start), one->sentence);
	if (WIFSIGNALED(status))
		printf("   ended by signal %d (%s)\n", WTERMSIG(status),
		       strsignal(WTERMSIG(status)));
	return status == 0;
}

/* Sets HARP_ENCRYPT with a key of this run, in a file that is removed after the cases. */
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

static bool wanted(const char *name, char **names)
{
	if (!*names)
		return true;
	for (; *names; names++)
		if (!strcmp(*names, name))
			return true;
	return false;
}

/* Beside the plugin, which copies of it are not. */
static const char *set_libdir(const char *plugin)
{
	static char directory[PATH_MAX];

	REQUIRE(realpath(plugin, directory));
	*strrchr(directory, '/') = '\0';
	setenv("HARP_LIBDIR", directory, 0);
	return directory;
}

/* Meson's exit status of a test that cannot run here. */
static int skip(const char *why)
{
	fprintf(stderr, "skipped: %s\n", why);
	return 77;
}

/* Was it built with DPDK? */
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
		/* No kernel resets the connections of a port whose process is dead. */
		setenv("HARP_USER_TIMEOUT_MS", "2000", 0);
	} else if (hosts && !strcmp(hosts, "2")) {
		if (!make_two_hosts(argv[1], family && !strcmp(family, "6")))
			return skip("network namespaces of its own need root");
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
		if (!wanted(cases[i].name, argv + 3))
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
