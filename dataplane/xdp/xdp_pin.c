/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_pin.c - pins an XDP program in a bpffs, where it outlives its creator, replaces it while it
 * is attached, and removes it. The next harpd adopts it (xdp_adopt.c).
 *
 * A directory contains each map by name, `program` and `link`. `link` is created last and removed
 * first, so a directory without it was left by an interrupted process. During a replacement there
 * is also `program_new`.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/util.h"
#include "xdp/xdp.h"

int xdp_pin_path(char path[PATH_MAX], const char *dir, const char *name)
{
	int len = snprintf(path, PATH_MAX, "%s/%s", dir, name);

	return len < 0 || len >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int pin_one(int fd, const char *dir, const char *name)
{
	char path[PATH_MAX];
	int rc = xdp_pin_path(path, dir, name);

	return rc ? rc : bpf_obj_pin(fd, path);
}

static int pin_remove(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int rc = xdp_pin_path(path, dir, name);

	if (rc)
		return rc;
	return unlink(path) ? -errno : 0;
}

int xdp_pin_dir_check(const char *dir)
{
	struct statfs fs;

	if (statfs(dir, &fs))
		return -errno;
	return fs.f_type == BPF_FS_MAGIC ? 0 : -EOPNOTSUPP;
}

/* ---- pinning -------------------------------------------------------------------------------- */

#define PIN_NAMES_MAX (XDP_MAP_COUNT + 2u)

struct pin {
	const char *name;
	int fd;
};

/* Lists the objects to pin, in this order; returns their number. */
static unsigned pin_list(const struct harp_xdp *xdp, struct pin pins[PIN_NAMES_MAX])
{
	unsigned count = 0;

	for (unsigned i = 0; i < XDP_MAP_COUNT; i++)
		pins[count++] = (struct pin){ xdp_map_name(i), xdp->map_fds[i] };
	pins[count++] = (struct pin){ XDP_PIN_PROGRAM, xdp->program_fd };
	pins[count++] = (struct pin){ XDP_PIN_LINK, xdp->link_fd };
	return count;
}

static int pin_all(const struct harp_xdp *xdp, const char *dir)
{
	struct pin pins[PIN_NAMES_MAX];
	unsigned count = pin_list(xdp, pins), pinned = 0;
	int rc = 0;

	while (pinned < count && !rc) {
		rc = pin_one(pins[pinned].fd, dir, pins[pinned].name);
		pinned += !rc;
	}
	while (rc && pinned)
		pin_remove(dir, pins[--pinned].name);
	return rc;
}

int xdp_pin(struct harp_xdp *xdp, const char *dir)
{
	const char *last = strrchr(dir, '/');
	bool created;
	int rc;

	if (xdp->pin_dir[0])
		return -EBUSY;
	if (strlen(dir) >= sizeof(xdp->pin_dir))
		return -ENAMETOOLONG;
	if (strchr(last ? last + 1 : dir, '.'))
		return -EINVAL;
	created = mkdir(dir, 0700) == 0;
	if (!created && errno != EEXIST)
		return -errno;
	rc = xdp_pin_dir_check(dir);
	if (!rc)
		rc = pin_all(xdp, dir);
	if (rc && created)
		rmdir(dir);
	if (!rc)
		strcpy(xdp->pin_dir, dir);
	return rc;
}

int xdp_pin_link(const struct harp_xdp *xdp)
{
	pin_remove(xdp->pin_dir, XDP_PIN_LINK);
	return pin_one(xdp->link_fd, xdp->pin_dir, XDP_PIN_LINK);
}

int xdp_unpin(const char *dir)
{
	static const char *const first[] = { XDP_PIN_LINK, XDP_PIN_PROGRAM, XDP_PIN_PROGRAM_NEW };
	const unsigned count = ARRAY_SIZE(first);
	unsigned removed = 0;
	int rc, error;

	rc = xdp_pin_dir_check(dir);
	if (rc)
		return rc == -EACCES ? -EPERM : -ENOENT;
	for (unsigned i = 0; i < count + XDP_MAP_COUNT; i++) {
		error = pin_remove(dir, i < count ? first[i] : xdp_map_name(i - count));
		removed += !error;
		if (error && error != -ENOENT && !rc)
			rc = error;
	}
	rmdir(dir); /* fails if other files are in it */
	if (rc)
		return rc;
	return removed ? 0 : -ENOENT;
}

/* ---- replacing ------------------------------------------------------------------------------ */

int xdp_replace(struct harp_xdp *xdp, char *text, size_t text_len)
{
	struct why why = { .text = text, .size = text_len };
	char from[PATH_MAX] = "", to[PATH_MAX];
	int new_fd, rc;

	why_about(&why, "%s", xdp->ifname);
	rc = xdp_load(&why, &new_fd, xdp->map_fds);
	if (rc)
		return rc;
	if (xdp->pin_dir[0]) {
		rc = xdp_pin_path(from, xdp->pin_dir, XDP_PIN_PROGRAM_NEW);
		if (!rc)
			rc = xdp_pin_path(to, xdp->pin_dir, XDP_PIN_PROGRAM);
		if (!rc) {
			unlink(from); /* left by an interrupted replacement */
			rc = bpf_obj_pin(new_fd, from);
		}
		if (rc)
			why_fail(&why, rc, "pinning the new program in %s: %s", xdp->pin_dir,
				 strerror(-rc));
	}
	if (!rc) {
		rc = bpf_link_update(xdp->link_fd, new_fd, NULL);
		if (rc)
			why_fail(&why, rc, "replacing the program: %s", strerror(-rc));
	}
	if (rc) {
		if (from[0])
			unlink(from);
		close(new_fd);
		return rc;
	}
	close(xdp->program_fd);
	xdp->program_fd = new_fd;
	if (from[0] && rename(from, to))
		return why_fail(&why, -errno, "renaming %s: %s", from, strerror(errno));
	return 0;
}
