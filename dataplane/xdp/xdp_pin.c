/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_pin.c - a steering program that outlives its maker: pinned in a bpffs, replaced under way, removed;
 * the next adopts it (xdp_adopt.c).
 *
 * A directory holds a name for each map, `program` and `link`, and where the program is beside the interface
 * `side_program` and `side_link`. `link` comes last and goes first, so that a directory without it is one whose maker
 * died in between, and no packet is sent anywhere. While a newer program takes over there is `program_new`, too.
 *
 * A bpffs takes no network namespace. One is mounted on a file next to the bpffs, BPFFS.netns, by whoever
 * mounts the bpffs; the other ends of all devices beside interfaces are moved there, each under its
 * directory's name. A device is kept after its names are pinned, and removed after them, before the directory:
 * so a device without a directory does not exist, whenever its maker dies.
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

#include "xdp/xdp.h"

int xdp_pin_path(char path[PATH_MAX], const char *dir, const char *name)
{
	int len = snprintf(path, PATH_MAX, "%s/%s", dir, name);

	return len < 0 || len >= PATH_MAX ? -ENAMETOOLONG : 0;
}

int xdp_pin_netns(char path[PATH_MAX], const char **name, const char *dir)
{
	const char *last = strrchr(dir, '/');
	int len;

	if (!last || last == dir || !last[1])
		return -EINVAL;
	*name = last + 1;
	len = snprintf(path, PATH_MAX, "%.*s.netns", (int)(last - dir), dir);
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

#define PIN_NAMES_MAX (XDP_MAP_COUNT + 5u)

struct pin {
	const char *name;
	int fd;
};

/* What is pinned, in this order; returns how many. */
static unsigned pin_list(const struct harp_xdp *xdp, struct pin pins[PIN_NAMES_MAX])
{
	unsigned count = 0;

	for (unsigned i = 0; i < XDP_MAP_COUNT; i++)
		pins[count++] = (struct pin){ xdp_map_name(i), xdp->map_fds[i] };
	if (xdp->side.ifindex) {
		pins[count++] = (struct pin){ XDP_PIN_MARK_LINK, xdp->mark_link_fd };
		pins[count++] = (struct pin){ XDP_PIN_SIDE_PROGRAM, xdp->side_program_fd };
		pins[count++] = (struct pin){ XDP_PIN_SIDE_LINK, xdp->side_link_fd };
	}
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

static int pin_keep_side(struct harp_xdp *xdp, const char *dir)
{
	char netns[PATH_MAX];
	const char *name;
	int rc;

	if (!xdp->side.ifindex)
		return 0;
	rc = xdp_pin_netns(netns, &name, dir);
	return rc ? rc : side_keep(&xdp->side, netns, name);
}

/* Our names in a directory; 0 also when some were missing, -ENOENT none was there. */
static int unpin_names(const char *dir)
{
	static const char *const first[] = { XDP_PIN_LINK,
					     XDP_PIN_SIDE_LINK,
					     XDP_PIN_MARK_LINK,
					     XDP_PIN_PROGRAM,
					     XDP_PIN_PROGRAM XDP_PIN_NEW,
					     XDP_PIN_SIDE_PROGRAM,
					     XDP_PIN_SIDE_PROGRAM XDP_PIN_NEW };
	const unsigned count = sizeof(first) / sizeof(first[0]);
	unsigned removed = 0;
	int rc, one;

	rc = xdp_pin_dir_check(dir);
	if (rc)
		return rc == -EACCES ? -EPERM : -ENOENT;
	for (unsigned i = 0; i < count + XDP_MAP_COUNT; i++) {
		one = pin_remove(dir, i < count ? first[i] : xdp_map_name(i - count));
		removed += !one;
		if (one && one != -ENOENT && !rc)
			rc = one;
	}
	if (rc)
		return rc;
	return removed ? 0 : -ENOENT;
}

int xdp_pin(struct harp_xdp *xdp, const char *dir)
{
	const char *last = strrchr(dir, '/');
	bool made;
	int rc;

	if (xdp->pin_dir[0])
		return -EBUSY;
	if (strlen(dir) >= sizeof(xdp->pin_dir))
		return -ENAMETOOLONG;
	if (strchr(last ? last + 1 : dir, '.'))
		return -EINVAL;
	made = mkdir(dir, 0700) == 0;
	if (!made && errno != EEXIST)
		return -errno;
	rc = xdp_pin_dir_check(dir);
	if (!rc)
		rc = pin_all(xdp, dir);
	if (!rc) {
		rc = pin_keep_side(xdp, dir);
		if (rc)
			unpin_names(dir);
	}
	if (rc && made)
		rmdir(dir);
	if (!rc)
		strcpy(xdp->pin_dir, dir);
	return rc;
}

int xdp_pin_link_anew(const struct harp_xdp *xdp)
{
	pin_remove(xdp->pin_dir, XDP_PIN_LINK);
	return pin_one(xdp->link_fd, xdp->pin_dir, XDP_PIN_LINK);
}

/* The device goes when no packet is sent there any more. */
int xdp_unpin(const char *dir)
{
	char netns[PATH_MAX];
	const char *name;
	int rc = unpin_names(dir), side;

	if (rc && rc != -ENOENT)
		return rc;
	side = xdp_pin_netns(netns, &name, dir);
	if (!side)
		side = side_forget(netns, name);
	if (side && side != -ENOENT && side != -ESTALE && side != -EINVAL)
		return side;
	rmdir(dir); /* stays while something else is in it */
	return side ? rc : 0;
}

/* ---- replacing ------------------------------------------------------------------------------ */

/* A program that takes another's place. */
struct replacing {
	int link_fd, *program_fd;
	const char *pin;
	int fresh_fd;
	char from[PATH_MAX], to[PATH_MAX]; /* pins; empty: not pinned */
};

static int replacing_pin(struct replacing *r, const char *dir)
{
	char name[32];
	int rc;

	snprintf(name, sizeof(name), "%s" XDP_PIN_NEW, r->pin);
	rc = xdp_pin_path(r->from, dir, name);
	if (!rc)
		rc = xdp_pin_path(r->to, dir, r->pin);
	if (rc)
		return rc;
	unlink(r->from); /* of a replace that was cut off before it took over */
	return bpf_obj_pin(r->fresh_fd, r->from);
}

static int replace_pinned(struct replacing *each, unsigned count, const char *dir,
			  const struct why *why)
{
	int rc = 0;

	for (unsigned i = 0; i < count && !rc && dir[0]; i++)
		rc = replacing_pin(&each[i], dir);
	return rc ? why_fail(why, rc, "pinning the new program in %s: %s", dir, strerror(-rc)) : 0;
}

/* Each at one stroke; on failure those that did take over go back. */
static int replace_links(const struct replacing *each, unsigned count, const struct why *why)
{
	unsigned done = 0;
	int rc = 0;

	while (done < count && !rc) {
		rc = bpf_link_update(each[done].link_fd, each[done].fresh_fd, NULL);
		done += !rc;
	}
	if (!rc)
		return 0;
	why_fail(why, rc, "the new program cannot take over: %s", strerror(-rc));
	while (done--)
		bpf_link_update(each[done].link_fd, *each[done].program_fd, NULL);
	return rc;
}

static void replace_undo(const struct replacing *each, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (each[i].from[0])
			unlink(each[i].from);
		if (each[i].fresh_fd >= 0)
			close(each[i].fresh_fd);
	}
}

static int replace_finish(const struct replacing *each, unsigned count, const struct why *why)
{
	int rc = 0;

	for (unsigned i = 0; i < count; i++) {
		close(*each[i].program_fd);
		*each[i].program_fd = each[i].fresh_fd;
		if (each[i].from[0] && rename(each[i].from, each[i].to) && !rc)
			rc = why_fail(why, -errno, "renaming %s: %s", each[i].from,
				      strerror(errno));
	}
	return rc;
}

/* Beside: the device's program first, so that what the other one sends has somewhere to go at any moment. */
int xdp_replace(struct harp_xdp *xdp, char *text, size_t text_len)
{
	struct replacing each[] = {
		{ xdp->side_link_fd, &xdp->side_program_fd, XDP_PIN_SIDE_PROGRAM, -1, "", "" },
		{ xdp->link_fd, &xdp->program_fd, XDP_PIN_PROGRAM, -1, "", "" },
	};
	const bool beside = xdp->side.ifindex;
	struct replacing *first = beside ? each : each + 1;
	const unsigned count = beside ? 2 : 1;
	struct why why = { .text = text, .size = text_len };
	int rc;

	why_about(&why, "%s", xdp->ifname);
	rc = beside ? xdp_load_aside(&why, xdp->side.ifindex, &each[1].fresh_fd, &each[0].fresh_fd,
				     xdp->map_fds)
		    : xdp_load(&why, &each[1].fresh_fd, xdp->map_fds);
	if (!rc)
		rc = replace_pinned(first, count, xdp->pin_dir, &why);
	if (!rc)
		rc = replace_links(first, count, &why);
	if (rc) {
		replace_undo(first, count);
		return rc;
	}
	rc = replace_finish(first, count, &why);
	if (beside) /* no packet comes there: nothing depends on it */
		bpf_link_update(xdp->mark_link_fd, xdp->side_program_fd, NULL);
	return rc;
}
