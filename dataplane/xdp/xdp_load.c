/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_load.c - loads the XDP program into the kernel, with new or existing maps. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "steer_object.h" /* generated: the program's ELF file */
#include "xdp/xdp.h"

/* libbpf prints through one function per process. During a load, that function stores the first
 * warning of this thread, and passes messages of other threads to the previous function. */
static _Thread_local char *captured_text;
static libbpf_print_fn_t print_before;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER; /* one loader at a time */
#define CAPTURED_BYTES 160

static int __attribute__((format(printf, 2, 0)))
capture_print(enum libbpf_print_level level, const char *format, va_list args)
{
	if (!captured_text)
		return print_before ? print_before(level, format, args) : 0;
	if (level == LIBBPF_WARN && !captured_text[0]) {
		vsnprintf(captured_text, CAPTURED_BYTES, format, args);
		captured_text[strcspn(captured_text, "\n")] = '\0';
	}
	return 0;
}

static void capture_begin(char *buf)
{
	pthread_mutex_lock(&print_lock);
	buf[0] = '\0';
	captured_text = buf;
	print_before = libbpf_set_print(capture_print);
}

static void capture_end(void)
{
	libbpf_set_print(print_before);
	captured_text = NULL;
	pthread_mutex_unlock(&print_lock);
}

/* ---- loading -------------------------------------------------------------------------------- */

const char *xdp_map_name(unsigned map)
{
#define XDP_MAP_NAME(name, type, key, value, entries) #name,
	static const char *const names[] = { XDP_MAPS(XDP_MAP_NAME) };
#undef XDP_MAP_NAME

	return names[map];
}

/* Duplicates a descriptor, so that it outlives its object. */
static int load_duplicate(int fd)
{
	int copy = fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);

	return copy < 0 && fd >= 0 ? -errno : copy;
}

static int load_refused(const struct why *why, int rc, const char *text)
{
	if (rc == -EPERM || rc == -EACCES)
		return why_fail(why, -EPERM,
				"loading the XDP program needs CAP_BPF and CAP_NET_ADMIN; run as "
				"root or add them");
	return why_fail(why, rc, "the kernel rejects the XDP program: %s (%s)", strerror(-rc),
			text);
}

static int load_reuse(struct bpf_object *object, const int map_fds[XDP_MAP_COUNT])
{
	int rc = 0;

	for (unsigned i = 0; i < XDP_MAP_COUNT && !rc; i++) {
		struct bpf_map *map = bpf_object__find_map_by_name(object, xdp_map_name(i));

		rc = map ? bpf_map__reuse_fd(map, map_fds[i]) : -ENOENT;
	}
	return rc;
}

/* Duplicates the maps of a loaded object, which can then be closed. */
static int load_take_maps(const struct bpf_object *object, int map_fds[XDP_MAP_COUNT])
{
	const uint32_t zero = 0, layout = STEER_LAYOUT;
	int rc = 0;

	for (unsigned i = 0; i < XDP_MAP_COUNT && rc >= 0; i++)
		rc = map_fds[i] =
			load_duplicate(bpf_object__find_map_fd_by_name(object, xdp_map_name(i)));
	if (rc >= 0)
		rc = bpf_map_update_elem(map_fds[XDP_MAP_layout], &zero, &layout, BPF_ANY);
	return rc < 0 ? rc : 0;
}

/* A signal makes the kernel's verifier return EAGAIN, and libbpf gives up after a few attempts. A
 * profiler's timer would prevent each of them. */
static int load_without_signals(struct bpf_object *object)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = bpf_object__load(object);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int xdp_load(const struct why *why, int *program_fd, int map_fds[XDP_MAP_COUNT])
{
	LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = XDP_PROGRAM_NAME);
	struct bpf_object *object;
	char text[CAPTURED_BYTES];
	int rc;

	capture_begin(text);
	object = bpf_object__open_mem(steer_object, sizeof(steer_object), &options);
	rc = object ? 0 : -errno;
	if (!rc && map_fds[0] >= 0)
		rc = load_reuse(object, map_fds);
	if (!rc)
		rc = load_without_signals(object);
	capture_end();
	if (rc) {
		bpf_object__close(object);
		return load_refused(why, rc, text);
	}
	rc = *program_fd = load_duplicate(
		bpf_program__fd(bpf_object__find_program_by_name(object, XDP_PROGRAM_NAME)));
	if (rc >= 0 && map_fds[0] < 0)
		rc = load_take_maps(object, map_fds);
	bpf_object__close(object);
	return rc >= 0 ? 0
		       : why_fail(why, rc, "keeping the XDP program and its maps: %s",
				  strerror(-rc));
}

int64_t xdp_attached(uint32_t ifindex, bool *native)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	int rc = bpf_xdp_query((int)ifindex, 0, &query);

	if (rc)
		return rc;
	*native = query.drv_prog_id;
	if (query.drv_prog_id)
		return query.drv_prog_id;
	return query.skb_prog_id ? query.skb_prog_id : query.hw_prog_id;
}

bool xdp_is_ours(int64_t id)
{
	struct bpf_prog_info info = { 0 };
	uint32_t len = sizeof(info);
	int fd = bpf_prog_get_fd_by_id((uint32_t)id), rc;

	if (fd < 0)
		return false;
	rc = bpf_obj_get_info_by_fd(fd, &info, &len);
	close(fd);
	return !rc && !strcmp(info.name, XDP_PROGRAM_NAME);
}
