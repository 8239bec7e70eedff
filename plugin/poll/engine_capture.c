/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_capture.c - HARP_CAPTURE: an engine's newest packets, written as a pcapng file.
 *
 * tcpdump does not see packets that AF_XDP or DPDK receives. The stack keeps copies in a ring; the
 * file is written when a lane of the engine fails, at exit, and when the engine ends.
 */
#include "poll/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "process/config.h"
#include "process/log.h"

#define CAPTURE_RING_BYTES ((size_t)64 << 20)
/* Of each packet: all headers (118 bytes at most) and the header of a record. */
#define CAPTURE_SNAP_BYTES 192u
/* Between two files: with many lanes, each failure would stop the engine for a write. */
#define CAPTURE_PAUSE_NS 1000000000ull

/* The monotonic clock's distance from the wall clock. */
static int64_t capture_wall_offset_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)clock_now_ns();
}

/* A complete file replaces the previous one, which a full disk thus leaves alone. */
static int capture_write_file(struct engine *engine, const char *path, char *temporary)
{
	int fd = mkostemp(temporary, O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = harp_stack_capture_write(engine->stack, fd, capture_wall_offset_ns());
	if (close(fd) && !rc)
		rc = -errno;
	if (!rc && rename(temporary, path))
		rc = -errno;
	if (rc)
		unlink(temporary);
	return rc;
}

void engine_capture_write(struct engine *engine)
{
	/* A directory has 255 bytes at most (harp_config.h), a name 31. */
	char host[HOST_NAME_MAX + 1] = "", path[512], temporary[sizeof(path) + 8];
	int rc;

	if (!engine->captures)
		return;
	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/%s-%d-%s.pcapng", plugin_config()->capture, host,
		 (int)getpid(), engine->name);
	snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
	rc = capture_write_file(engine, path, temporary);
	if (rc)
		WARN("%s: the captured packets cannot be written to %s: %s", engine->name, path,
		     strerror(-rc));
}

static void capture_run(struct work *work, uint64_t now_ns)
{
	struct engine *engine = container_of(work, struct engine, capture);

	if (engine->captured_ns && now_ns - engine->captured_ns < CAPTURE_PAUSE_NS)
		return;
	engine->captured_ns = now_ns;
	engine_capture_write(engine);
}

void engine_capture_post(struct engine *engine)
{
	if (engine->captures)
		poller_post(&engine->poller, &engine->capture);
}

void engine_capture_start(struct engine *engine)
{
	const char *directory = plugin_config()->capture;
	int rc;

	if (!directory[0])
		return;
	rc = access(directory, W_OK | X_OK)
		     ? -errno
		     : harp_stack_capture_start(engine->stack, CAPTURE_RING_BYTES,
						CAPTURE_SNAP_BYTES);
	engine->captures = !rc;
	engine->capture.run = capture_run;
	if (rc)
		WARN("%s: packets are not captured to HARP_CAPTURE=%s: %s", engine->name, directory,
		     strerror(-rc));
	else
		INFO("%s: packets are captured to %s", engine->name, directory);
}
