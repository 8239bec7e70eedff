/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eal.c - starts DPDK's environment inside an application's process.
 *
 * A process can call rte_eal_init() once. It pins its caller to a core and creates threads that
 * inherit its signal mask. So a separate thread with all signals blocked calls it and then sleeps
 * forever as DPDK's main lcore. Other threads are not affected. Threads that use ports are not
 * lcores, and none of the functions used here requires it.
 *
 * A crash leaves nothing on disk: with huge pages the environment is `--in-memory` (anonymous huge
 * pages, no files); without them it needs no runtime folder either (--no-shconf).
 */

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <rte_build_config.h>
#include <rte_bus.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_version.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "dpdk/eal_log.h"
#include "dpdk/port.h"

#define EAL_MEMORY_MIB 256u
#define EAL_ARGS_MAX 64
#define EAL_ARGS_BYTES 4096

static struct {
	pthread_mutex_t lock;
	enum { EAL_NOT_STARTED, EAL_RUNS, EAL_FAILED } state;
	bool huge_pages;
	bool forked; /* this process is a forked child of the process that started DPDK */
	struct harp_dpdk_eal_options opt;
	char args[EAL_ARGS_BYTES];     /* copy of opt.args, for comparison */
	char text[2 * EAL_TEXT_BYTES]; /* error text */
} eal = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- huge pages ---- */

static unsigned long eal_number(const char *folder, const char *size, const char *file)
{
	char path[PATH_MAX];
	unsigned long value = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s/%s", folder, size, file);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%lu", &value) != 1)
		value = 0;
	fclose(f);
	return value;
}

/* Free huge pages of all sizes, in MiB. */
static unsigned long eal_huge_mib(void)
{
	static const char folder[] = "/sys/kernel/mm/hugepages";
	unsigned long mib = 0, kib;
	struct dirent *entry;
	DIR *dir = opendir(folder);

	if (!dir)
		return 0;
	while ((entry = readdir(dir)) != NULL)
		if (sscanf(entry->d_name, "hugepages-%lukB", &kib) == 1)
			mib += eal_number(folder, entry->d_name, "free_hugepages") * kib / 1024;
	closedir(dir);
	return mib;
}

static int eal_choose_memory(const struct why *why)
{
	unsigned long mib = eal_huge_mib();

	eal.huge_pages = eal.opt.huge_pages != 1 && mib >= eal.opt.memory_mib;
	if (eal.opt.huge_pages == 2 && !eal.huge_pages)
		return why_fail(
			why, -ENOMEM,
			"%u MiB of huge pages are requested, but %lu are free; reserve more "
			"(/proc/sys/vm/nr_hugepages), or run DPDK without",
			eal.opt.memory_mib, mib);
	return 0;
}

/* ---- arguments ---- */

struct eal_args {
	int count;
	char *items[EAL_ARGS_MAX];
	char text[2 * EAL_ARGS_BYTES];
	size_t used;
};

static bool __attribute__((format(printf, 2, 3)))
eal_arg(struct eal_args *args, const char *format, ...)
{
	size_t room = sizeof(args->text) - args->used;
	va_list list;
	int len;

	va_start(list, format);
	len = vsnprintf(args->text + args->used, room, format, list);
	va_end(list);
	if (len < 0 || (size_t)len >= room || args->count == EAL_ARGS_MAX - 1)
		return false;
	args->items[args->count++] = args->text + args->used;
	args->used += (size_t)len + 1;
	return true;
}

/* The main lcore may run on all cores of the process: "0@(0-3,8)". */
static bool eal_arg_lcores(struct eal_args *args)
{
	cpu_set_t set;
	char text[1024];
	size_t used = 0;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return eal_arg(args, "--lcores=0@0");
	for (size_t cpu = 0; cpu < CPU_SETSIZE && used < sizeof(text) - 16; cpu++) {
		size_t last = cpu;

		if (!CPU_ISSET(cpu, &set))
			continue;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
			last++;
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%zu-%zu",
					 used ? "," : "", cpu, last);
		cpu = last;
	}
	return eal_arg(args, "--lcores=0@(%s)", text);
}

/*
 * True if the caller's arguments may make this a secondary process. It would wait forever for a
 * primary process and lose its ports when that process ends. getopt accepts any prefix of an
 * option, with its value after "=" or as the next argument.
 */
static bool eal_args_share(const struct eal_args *args)
{
	static const char option[] = "--proc-type";

	for (int i = 1; i < args->count; i++) {
		size_t len = strcspn(args->items[i], "=");
		const char *value = args->items[i] + len;

		if (len < strlen("--p") || strncmp(args->items[i], option, len) != 0)
			continue;
		value = *value == '=' ? value + 1 : i + 1 < args->count ? args->items[i + 1] : "";
		if (strcmp(value, "primary") != 0)
			return true;
	}
	return false;
}

static bool eal_args_make(struct eal_args *args)
{
	bool valid = eal_arg(args, "harp") && eal_arg(args, "--file-prefix=harp-%d", (int)getpid());

	valid = valid && eal_arg_lcores(args) && eal_arg(args, "--no-telemetry");
	valid = valid && eal_arg(args, "--iova-mode=va");
	/* Probes no PCI device until a port names it. */
	valid = valid && eal_arg(args, "--allow=ffff:ff:1f.7");
	if (eal.huge_pages)
		valid = valid && eal_arg(args, "--in-memory");
	else
		valid = valid && eal_arg(args, "--no-huge") && eal_arg(args, "--no-shconf") &&
			eal_arg(args, "-m") && eal_arg(args, "%u", eal.opt.memory_mib);
	/* The caller's arguments are last, so they take precedence. */
	for (const char *at = eal.args; valid && *at;) {
		size_t len = strcspn(at, " \t");

		if (len > 0)
			valid = eal_arg(args, "%.*s", (int)len, at);
		at += len;
		at += strspn(at, " \t");
	}
	return valid;
}

/* ---- the start ---- */

struct eal_run {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct eal_args args;
	bool done;
	int result, error;
};

/* DPDK's main lcore. Never returns once the environment runs. */
static void *eal_main(void *arg)
{
	struct eal_run *run = arg;
	int result;

	eal_log_quiet(true);
	result = rte_eal_init(run->args.count, run->args.items);
	eal_log_quiet(false);
	pthread_mutex_lock(&run->lock);
	run->result = result;
	run->error = rte_errno;
	run->done = true;
	pthread_cond_signal(&run->changed);
	pthread_mutex_unlock(&run->lock);
	if (result < 0)
		return NULL;
	for (;;)
		pause();
}

/* Runs eal_main() until it has a result. */
static int eal_thread(struct eal_run *run)
{
	pthread_t thread;
	int err = thread_start(&thread, eal_main, run, "harp-dpdk");

	if (err)
		return err;
	pthread_detach(thread);
	pthread_mutex_lock(&run->lock);
	while (!run->done)
		pthread_cond_wait(&run->changed, &run->lock);
	pthread_mutex_unlock(&run->lock);
	return 0;
}

static bool eal_has_pool_driver(void)
{
	for (uint32_t i = 0; i < rte_mempool_ops_table.num_ops; i++)
		if (strcmp(rte_mempool_ops_table.ops[i].name, rte_mbuf_best_mempool_ops()) == 0)
			return true;
	return false;
}

/* DPDK loads its drivers at start. Returns a required driver that is missing; NULL: none. */
static const char *eal_driver_missing(const struct eal_run *run)
{
	if (!rte_bus_find_by_name("pci"))
		return "librte_bus_pci";
	return run->result < 0 || eal_has_pool_driver() ? NULL : "librte_mempool_ring";
}

static void eal_failed(const struct eal_run *run)
{
	const char *driver = eal_driver_missing(run);
	char text[EAL_TEXT_BYTES];

	eal.state = EAL_FAILED;
	eal_log_message(text);
	/* DPDK parses arguments before it loads drivers. */
	if (run->result < 0 && run->error == EINVAL && driver && eal.args[0])
		snprintf(eal.text, sizeof(eal.text),
			 "it rejects its arguments; remove from HARP_DPDK_ARGS those that it does "
			 "not know: %.*s",
			 EAL_TEXT_BYTES - 1, eal.args);
	else if (driver)
		snprintf(eal.text, sizeof(eal.text),
			 "%s was not loaded from %s; install DPDK's drivers (Debian: apt-get "
			 "install dpdk)",
			 driver, RTE_EAL_PMD_PATH);
	else
		snprintf(eal.text, sizeof(eal.text), "%s",
			 text[0] ? text : rte_strerror(run->error));
}

static void eal_after_fork(void)
{
	eal.forked = true;
	forked_child();
}

static int eal_init(const struct why *why)
{
	/* Static, because the thread continues, and DPDK keeps its arguments. */
	static struct eal_run the_run = { .lock = PTHREAD_MUTEX_INITIALIZER,
					  .changed = PTHREAD_COND_INITIALIZER };
	struct eal_run *run = &the_run;
	int err;

	run->args.count = 0; /* from an earlier attempt that started nothing */
	run->args.used = 0;
	if (!eal_args_make(&run->args))
		return why_fail(why, -EINVAL, "too many arguments (HARP_DPDK_ARGS)");
	if (eal_args_share(&run->args))
		return why_fail(
			why, -EINVAL,
			"--proc-type in its arguments (HARP_DPDK_ARGS): HARP does not share "
			"the ports of a primary process; remove it, and name a port that "
			"this process opens itself");
	eal_log_to(eal.opt.log, eal.opt.ctx);
	err = eal_log_open(link_leaving, link_ended);
	if (!err)
		err = eal_thread(run);
	if (err)
		return why_fail(why, err, "no thread for its environment: %s", strerror(-err));
	pthread_atfork(NULL, NULL, eal_after_fork);
	rmdir(rte_eal_get_runtime_dir()); /* empty if nothing is shared, or after a failed start */
	if (run->result >= 0 && !eal_driver_missing(run)) {
		rte_log_set_level_pattern("pmd.net.memif", RTE_LOG_DEBUG); /* for link.c */
		eal.state = EAL_RUNS;
		return 0;
	}
	eal_failed(run);
	err = run->error == ENOMEM ? -ENOMEM : -EIO;
	return why_fail(why, err, "its environment did not start: %s", eal.text);
}

/* Inline functions of DPDK's headers are compiled in, so the loaded library must match them. */
static int eal_version(const struct why *why)
{
	unsigned year = 0, month = 0;

	if (sscanf(rte_version(), "DPDK %u.%u", &year, &month) == 2 && year == RTE_VER_YEAR &&
	    month == RTE_VER_MONTH)
		return 0;
	return why_fail(why, -ENOTSUP,
			"%s was loaded, and HARP was built with %u.%02u; rebuild HARP, or install "
			"that version",
			rte_version(), RTE_VER_YEAR, RTE_VER_MONTH);
}

static int eal_first(const struct harp_dpdk_eal_options *opt, const struct why *why)
{
	int err;

	eal.opt = (struct harp_dpdk_eal_options){ .size = sizeof(eal.opt) };
	eal.args[0] = '\0';
	if (opt) {
		eal.opt = *opt;
		if (opt->args && (size_t)snprintf(eal.args, sizeof(eal.args), "%s", opt->args) >=
					 sizeof(eal.args))
			return why_fail(why, -EINVAL, "too many arguments (HARP_DPDK_ARGS)");
	}
	eal.opt.args = eal.args;
	eal.opt.memory_mib = eal.opt.memory_mib ? eal.opt.memory_mib : EAL_MEMORY_MIB;
	err = eal_version(why);
	if (!err)
		err = eal_choose_memory(why);
	return err ? err : eal_init(why);
}

/* Checks that the options match the running environment. Options without a value match anything. */
static int eal_check_options(const struct harp_dpdk_eal_options *opt, const struct why *why)
{
	const char *difference = NULL;

	if (!opt)
		return 0;
	eal_log_to(opt->log, opt->ctx);
	if ((opt->huge_pages == 1 && eal.huge_pages) || (opt->huge_pages == 2 && !eal.huge_pages))
		difference = eal.huge_pages ? "with huge pages" : "without huge pages";
	else if (opt->memory_mib > eal.opt.memory_mib)
		difference = "with less memory";
	else if (opt->args && strcmp(opt->args, eal.args) != 0)
		difference = "with other arguments";
	if (!difference)
		return 0;
	return why_fail(why, -EALREADY,
			"its environment runs in this process %s and cannot be started twice",
			difference);
}

int eal_start(const struct harp_dpdk_eal_options *opt, char *why_text, size_t why_len)
{
	struct why why = { .text = why_text, .size = why_len };
	int err;

	why_about(&why, "DPDK");
	if (opt && (opt->size != sizeof(*opt) || opt->huge_pages > 2))
		return why_fail(&why, -EINVAL, "options of another version of HARP");
	if (eal.forked) /* another thread may hold its lock forever */
		return eal_usable(&why);
	pthread_mutex_lock(&eal.lock);
	switch (eal.state) {
	case EAL_NOT_STARTED:
		err = eal_first(opt, &why);
		break;
	case EAL_RUNS:
		err = eal_usable(&why);
		if (!err)
			err = eal_check_options(opt, &why);
		break;
	default:
		err = why_fail(
			&why, -EIO,
			"its environment failed in this process; try again in a new process. "
			"Its error: %s",
			eal.text);
		break;
	}
	pthread_mutex_unlock(&eal.lock);
	return err;
}

int eal_usable(const struct why *why)
{
	if (eal.state != EAL_RUNS)
		return why_fail(why, -ENXIO, "DPDK's environment has not been started");
	if (eal.forked)
		return why_fail(
			why, -ENXIO,
			"this process is a fork of the one that started DPDK, which cannot be used "
			"after fork(); exec() a new program");
	return 0;
}

bool eal_huge_pages(void)
{
	return eal.huge_pages;
}
