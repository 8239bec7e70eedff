/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_pin.c - a steering program that outlives its maker: pinned in a bpffs, adopted by the next, replaced
 * under way, removed.
 *
 * A directory holds a name for each map, `program` and `link`; the link comes last and goes first, so that a
 * directory without it is one whose maker died in between, and nothing is attached. While a newer program
 * takes over there is `program_new` too. Who adopts believes nothing: the maps must be of our layout, the
 * program ours and working with these very maps, and the link that of this program on this interface.
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

#include "nic/af_xdp_link.h"
#include "xdp/xdp.h"

#define PIN_LINK "link"
#define PIN_PROGRAM "program"
#define PIN_PROGRAM_NEW "program_new"
#define PIN_MAP_IDS_MAX 16u

static int pin_path(char path[PATH_MAX], const char *dir, const char *name)
{
	int len = snprintf(path, PATH_MAX, "%s/%s", dir, name);

	return len < 0 || len >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int pin_one(int fd, const char *dir, const char *name)
{
	char path[PATH_MAX];
	int rc = pin_path(path, dir, name);

	return rc ? rc : bpf_obj_pin(fd, path);
}

static int pin_remove(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int rc = pin_path(path, dir, name);

	if (rc)
		return rc;
	return unlink(path) ? -errno : 0;
}

/* -ENOENT no such directory, -EOPNOTSUPP not on a bpffs. */
static int pin_dir_check(const char *dir)
{
	struct statfs fs;

	if (statfs(dir, &fs))
		return -errno;
	return fs.f_type == BPF_FS_MAGIC ? 0 : -EOPNOTSUPP;
}

/* ---- pinning -------------------------------------------------------------------------------- */

static int pin_all(const struct harp_xdp *xdp, const char *dir)
{
	unsigned pinned = 0;
	int rc = 0;

	while (pinned < XDP_MAP_COUNT && !rc) {
		rc = pin_one(xdp->map_fds[pinned], dir, xdp_map_name(pinned));
		pinned += !rc;
	}
	if (!rc) {
		rc = pin_one(xdp->program_fd, dir, PIN_PROGRAM);
		if (!rc) {
			rc = pin_one(xdp->link_fd, dir, PIN_LINK);
			if (rc)
				pin_remove(dir, PIN_PROGRAM);
		}
	}
	while (rc && pinned)
		pin_remove(dir, xdp_map_name(--pinned));
	return rc;
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
	rc = pin_dir_check(dir);
	if (!rc)
		rc = pin_all(xdp, dir);
	if (rc && made)
		rmdir(dir);
	if (!rc)
		strcpy(xdp->pin_dir, dir);
	return rc;
}

int xdp_unpin(const char *dir)
{
	static const char *const first[] = { PIN_LINK, PIN_PROGRAM, PIN_PROGRAM_NEW };
	unsigned removed = 0;
	int rc, one;

	rc = pin_dir_check(dir);
	if (rc)
		return rc == -EACCES ? -EPERM : -ENOENT;
	for (unsigned i = 0; i < 3 + XDP_MAP_COUNT; i++) {
		one = pin_remove(dir, i < 3 ? first[i] : xdp_map_name(i - 3));
		removed += !one;
		if (one && one != -ENOENT && !rc)
			rc = one;
	}
	rmdir(dir); /* stays while something else is in it */
	if (rc)
		return rc;
	return removed ? 0 : -ENOENT;
}

/* ---- adopting ------------------------------------------------------------------------------- */

/* A descriptor of a pinned object; -ENOENT, -ESTALE what is there is none, -EPERM. */
static int adopt_open(const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat at;
	int rc = pin_path(path, dir, name), fd;

	if (rc)
		return rc;
	fd = bpf_obj_get(path);
	if (fd != -EACCES)
		return fd;
	/* The answer, too, to directories and the like. */
	return !lstat(path, &at) && !S_ISREG(at.st_mode) ? -ESTALE : -EPERM;
}

static int adopt_maps(struct harp_xdp *xdp, const struct why *why, const char *dir,
		      unsigned *missing)
{
	for (unsigned i = 0; i < XDP_MAP_COUNT; i++) {
		int fd = adopt_open(dir, xdp_map_name(i));

		xdp->map_fds[i] = fd < 0 ? -1 : fd;
		*missing += fd == -ENOENT;
		if (fd < 0 && fd != -ENOENT)
			return why_fail(why, fd, "%s/%s: %s", dir, xdp_map_name(i),
					fd == -ESTALE ? "not a map of HARP's" : strerror(-fd));
	}
	return 0;
}

static int adopt_map_shape(const struct why *why, const char *dir, unsigned map, int fd,
			   uint32_t *id)
{
#define XDP_MAP_SHAPE(name, type, key, value, entries) { type, key, value, entries },
	static const struct {
		uint32_t type, key_size, value_size, max_entries;
	} shapes[] = { XDP_MAPS(XDP_MAP_SHAPE) };
#undef XDP_MAP_SHAPE
	struct bpf_map_info info = { 0 };
	uint32_t len = sizeof(info);
	int rc = bpf_obj_get_info_by_fd(fd, &info, &len);

	if (rc)
		return why_fail(why, rc, "%s/%s: %s", dir, xdp_map_name(map), strerror(-rc));
	*id = info.id;
	if (info.type == shapes[map].type && info.key_size == shapes[map].key_size &&
	    info.value_size == shapes[map].value_size &&
	    info.max_entries == shapes[map].max_entries)
		return 0;
	return why_fail(why, -ESTALE,
			"%s/%s is not a map of this HARP's; `harpctl stop` removes what is "
			"pinned there",
			dir, xdp_map_name(map));
}

/* Another layout may have other maps: where it says which it is, that is looked at first. */
static int adopt_layout_number(const struct harp_xdp *xdp, const struct why *why, const char *dir)
{
	uint32_t zero = 0, layout = 0, id;
	int rc = adopt_map_shape(why, dir, XDP_MAP_layout, xdp->map_fds[XDP_MAP_layout], &id);

	if (rc)
		return rc;
	rc = bpf_map_lookup_elem(xdp->map_fds[XDP_MAP_layout], &zero, &layout);
	if (rc)
		return why_fail(why, rc, "%s/layout: %s", dir, strerror(-rc));
	if (layout == STEER_LAYOUT)
		return 0;
	return why_fail(why, -ESTALE,
			"pinned in %s by another version of HARP (layout %u, ours is %u); run that "
			"version, or `harpctl stop` and start anew",
			dir, layout, STEER_LAYOUT);
}

static int adopt_shapes(const struct harp_xdp *xdp, const struct why *why, const char *dir,
			uint32_t map_ids[XDP_MAP_COUNT])
{
	int rc = 0;

	for (unsigned i = 0; i < XDP_MAP_COUNT && !rc; i++)
		rc = adopt_map_shape(why, dir, i, xdp->map_fds[i], &map_ids[i]);
	return rc;
}

/* Is it the steering program, number id, over these maps? */
static bool adopt_is_program(int fd, uint32_t id, const uint32_t map_ids[XDP_MAP_COUNT])
{
	uint32_t used[PIN_MAP_IDS_MAX];
	struct bpf_prog_info info = { .nr_map_ids = PIN_MAP_IDS_MAX, .map_ids = (uintptr_t)used };
	uint32_t len = sizeof(info), found = 0;

	if (bpf_obj_get_info_by_fd(fd, &info, &len) || info.id != id ||
	    info.type != BPF_PROG_TYPE_XDP || strcmp(info.name, XDP_PROGRAM_NAME))
		return false;
	for (unsigned map = 0; map < XDP_MAP_layout; map++)
		for (unsigned i = 0; i < info.nr_map_ids && i < PIN_MAP_IDS_MAX; i++)
			found += used[i] == map_ids[map];
	return found == XDP_MAP_layout;
}

/*
 * The program that the link has. A replace that was cut off between updating the link and renaming the
 * pin has left the new one under its first name.
 */
static int adopt_program(struct harp_xdp *xdp, const char *dir, uint32_t id,
			 const uint32_t map_ids[XDP_MAP_COUNT])
{
	char from[PATH_MAX], to[PATH_MAX];
	int fd = adopt_open(dir, PIN_PROGRAM);

	if (fd >= 0 && adopt_is_program(fd, id, map_ids)) {
		xdp->program_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	fd = adopt_open(dir, PIN_PROGRAM_NEW);
	if (fd >= 0 && adopt_is_program(fd, id, map_ids) && !pin_path(from, dir, PIN_PROGRAM_NEW) &&
	    !pin_path(to, dir, PIN_PROGRAM) && !rename(from, to)) {
		xdp->program_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	return -ESTALE;
}

static int adopt_link(struct harp_xdp *xdp, const struct why *why, const char *dir,
		      const uint32_t map_ids[XDP_MAP_COUNT])
{
	struct bpf_link_info info = { 0 };
	uint32_t len = sizeof(info);
	int rc = bpf_obj_get_info_by_fd(xdp->link_fd, &info, &len);

	if (rc)
		return why_fail(why, rc, "%s/" PIN_LINK ": %s", dir, strerror(-rc));
	if (info.type != BPF_LINK_TYPE_XDP || info.xdp.ifindex != xdp->ifindex ||
	    xdp_attached(xdp->ifindex, &xdp->native) != info.prog_id)
		return why_fail(why, -ESTALE,
				"what is pinned in %s is not attached to this interface (it was "
				"made anew?); `harpctl stop` removes it",
				dir);
	rc = adopt_program(xdp, dir, info.prog_id, map_ids);
	if (rc)
		why_fail(why, rc,
			 "%s/" PIN_PROGRAM " is not the steering program that is attached; "
			 "`harpctl stop` removes what is pinned there",
			 dir);
	return rc;
}

static int adopt_all(struct harp_xdp *xdp, const struct why *why, const char *dir)
{
	uint32_t map_ids[XDP_MAP_COUNT];
	unsigned missing = 0;
	int rc = adopt_maps(xdp, why, dir, &missing);

	if (rc)
		return rc;
	rc = adopt_open(dir, PIN_LINK);
	missing += rc == -ENOENT;
	if (rc < 0 && rc != -ENOENT)
		return why_fail(why, rc, "%s/" PIN_LINK ": %s", dir,
				rc == -ESTALE ? "not a link of HARP's" : strerror(-rc));
	xdp->link_fd = rc < 0 ? -1 : rc;
	if (missing == XDP_MAP_COUNT + 1)
		return why_fail(why, -ENOENT, "nothing of HARP's is pinned in %s", dir);
	rc = xdp->map_fds[XDP_MAP_layout] < 0 ? 0 : adopt_layout_number(xdp, why, dir);
	if (rc)
		return rc;
	if (missing)
		return why_fail(why, -ESTALE,
				"%s is incomplete: its maker died while it pinned or removed; "
				"`harpctl stop` removes the rest",
				dir);
	rc = adopt_shapes(xdp, why, dir, map_ids);
	return rc ? rc : adopt_link(xdp, why, dir, map_ids);
}

int xdp_adopt(struct harp_xdp **out, const char *dir, const char *ifname, char *text,
	      size_t text_len)
{
	struct why why = { .text = text, .size = text_len };
	struct af_xdp_link link;
	struct harp_xdp *xdp;
	int rc = af_xdp_link_read(ifname, &link);

	*out = NULL;
	why_about(&why, "%s", ifname);
	if (rc)
		return why_fail(&why, rc, "cannot be used: %s", strerror(-rc));
	if (strlen(dir) >= PATH_MAX)
		return why_fail(&why, -ENAMETOOLONG, "the directory's name is too long");
	rc = pin_dir_check(dir);
	if (rc == -EOPNOTSUPP || rc == -ENOENT || rc == -ENOTDIR)
		return why_fail(&why, -ENOENT, "nothing of HARP's is pinned in %s", dir);
	if (rc)
		return why_fail(&why, rc == -EACCES ? -EPERM : rc, "%s: %s", dir, strerror(-rc));
	xdp = xdp_new(ifname, link.ifindex);
	if (!xdp)
		return why_fail(&why, -ENOMEM, "out of memory");
	rc = adopt_all(xdp, &why, dir);
	if (rc) {
		xdp_detach(xdp);
		return rc;
	}
	strcpy(xdp->pin_dir, dir);
	*out = xdp;
	return 0;
}

/* ---- replacing ------------------------------------------------------------------------------ */

int xdp_replace(struct harp_xdp *xdp, char *text, size_t text_len)
{
	struct why why = { .text = text, .size = text_len };
	bool pinned = xdp->pin_dir[0];
	char from[PATH_MAX], to[PATH_MAX];
	int program_fd, rc;

	why_about(&why, "%s", xdp->ifname);
	rc = xdp_load(&why, &program_fd, xdp->map_fds);
	if (rc)
		return rc;
	if (pinned) {
		rc = pin_path(from, xdp->pin_dir, PIN_PROGRAM_NEW);
		if (!rc)
			rc = pin_path(to, xdp->pin_dir, PIN_PROGRAM);
		if (!rc) {
			unlink(from); /* of a replace that was cut off before it took over */
			rc = bpf_obj_pin(program_fd, from);
		}
		if (rc)
			why_fail(&why, rc, "pinning the new program in %s: %s", xdp->pin_dir,
				 strerror(-rc));
	}
	if (!rc) {
		rc = bpf_link_update(xdp->link_fd, program_fd, NULL);
		if (rc)
			why_fail(&why, rc, "the new program cannot take over: %s", strerror(-rc));
		if (rc && pinned)
			unlink(from);
	}
	if (rc) {
		close(program_fd);
		return rc;
	}
	close(xdp->program_fd);
	xdp->program_fd = program_fd;
	if (pinned && rename(from, to))
		return why_fail(&why, -errno, "renaming %s: %s", from, strerror(errno));
	return 0;
}
