/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_adopt.c - adopts the objects that another process has pinned (xdp_pin.c).
 *
 * Verifies that the maps have our layout, that the program is ours and uses these maps, and that
 * the link attaches this program to this interface.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nic/af_xdp_link.h"
#include "xdp/xdp.h"

#define MAP_IDS_MAX 16u

/* Opens a pinned object; -ENOENT, -ESTALE not a BPF object, -EPERM. */
static int adopt_open(const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat status;
	int rc = xdp_pin_path(path, dir, name), fd;

	if (rc)
		return rc;
	fd = bpf_obj_get(path);
	if (fd != -EACCES)
		return fd;
	/* A directory or another file type causes this error, too. */
	return !lstat(path, &status) && !S_ISREG(status.st_mode) ? -ESTALE : -EPERM;
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
					fd == -ESTALE ? "not a map of HARP" : strerror(-fd));
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
	return why_fail(
		why, -ESTALE,
		"%s/%s is not a map of this version of HARP; `harpctl stop` removes what is "
		"pinned there",
		dir, xdp_map_name(map));
}

/* Checks the layout version first, because another layout may have other maps. */
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
			"version, or `harpctl stop` and start it again",
			dir, layout, STEER_LAYOUT);
}

/* True if this is our program, with this id and these maps (except `layout`, which no program
 * reads). */
static bool adopt_is_program(int fd, uint32_t id, const uint32_t map_ids[XDP_MAP_COUNT])
{
	uint32_t used[MAP_IDS_MAX];
	struct bpf_prog_info info = { .nr_map_ids = MAP_IDS_MAX, .map_ids = (uintptr_t)used };
	uint32_t len = sizeof(info), matches = 0;

	if (bpf_obj_get_info_by_fd(fd, &info, &len) || info.id != id ||
	    info.type != BPF_PROG_TYPE_XDP || strcmp(info.name, XDP_PROGRAM_NAME))
		return false;
	for (unsigned map = 0; map < XDP_MAP_layout; map++)
		for (unsigned i = 0; i < info.nr_map_ids && i < MAP_IDS_MAX; i++)
			matches += used[i] == map_ids[map];
	return matches == XDP_MAP_layout;
}

/*
 * Returns the link's program as a descriptor, or -ESTALE. A replacement interrupted between the
 * update of the link and the rename of the pin leaves the new program under its temporary name.
 */
static int adopt_program(const char *dir, uint32_t id, const uint32_t map_ids[XDP_MAP_COUNT])
{
	char from[PATH_MAX], to[PATH_MAX];
	int fd = adopt_open(dir, XDP_PIN_PROGRAM);

	if (fd >= 0 && adopt_is_program(fd, id, map_ids))
		return fd;
	if (fd >= 0)
		close(fd);
	fd = adopt_open(dir, XDP_PIN_PROGRAM_NEW);
	if (fd >= 0 && adopt_is_program(fd, id, map_ids) &&
	    !xdp_pin_path(from, dir, XDP_PIN_PROGRAM_NEW) &&
	    !xdp_pin_path(to, dir, XDP_PIN_PROGRAM) && !rename(from, to))
		return fd;
	if (fd >= 0)
		close(fd);
	return -ESTALE;
}

static int adopt_link(struct harp_xdp *xdp, const struct why *why, const char *dir)
{
	int rc = adopt_open(dir, XDP_PIN_LINK);

	xdp->link_fd = rc < 0 ? -1 : rc;
	if (rc >= 0 || rc == -ENOENT)
		return 0;
	return why_fail(why, rc, "%s/" XDP_PIN_LINK ": %s", dir,
			rc == -ESTALE ? "not a link of HARP" : strerror(-rc));
}

static int adopt_attached(struct harp_xdp *xdp, const struct why *why, const char *dir,
			  const uint32_t map_ids[XDP_MAP_COUNT])
{
	struct bpf_link_info info = { 0 };
	uint32_t len = sizeof(info);
	int rc = bpf_obj_get_info_by_fd(xdp->link_fd, &info, &len);

	if (rc)
		return why_fail(why, rc, "%s/" XDP_PIN_LINK ": %s", dir, strerror(-rc));
	if (info.type != BPF_LINK_TYPE_XDP || info.xdp.ifindex != xdp->ifindex ||
	    xdp_attached(xdp->ifindex, &xdp->native) != info.prog_id)
		return why_fail(why, -ESTALE,
				"the program pinned in %s is not attached to this interface (was "
				"the interface recreated?); `harpctl stop` removes it",
				dir);
	xdp->program_fd = adopt_program(dir, info.prog_id, map_ids);
	if (xdp->program_fd >= 0)
		return 0;
	return why_fail(why, -ESTALE,
			"%s/" XDP_PIN_PROGRAM " is not the XDP program that is attached; "
			"`harpctl stop` removes what is pinned there",
			dir);
}

static int adopt_all(struct harp_xdp *xdp, const struct why *why, const char *dir)
{
	uint32_t map_ids[XDP_MAP_COUNT];
	unsigned missing = 0;
	int rc = adopt_maps(xdp, why, dir, &missing);

	if (!rc)
		rc = adopt_link(xdp, why, dir);
	if (rc)
		return rc;
	missing += xdp->link_fd < 0;
	if (missing == XDP_MAP_COUNT + 1)
		return why_fail(why, -ENOENT, "nothing of HARP is pinned in %s", dir);
	rc = xdp->map_fds[XDP_MAP_layout] < 0 ? 0 : adopt_layout_number(xdp, why, dir);
	if (rc)
		return rc;
	if (missing)
		return why_fail(why, -ESTALE,
				"%s is incomplete: a process died while it pinned or removed "
				"objects; `harpctl stop` removes the rest",
				dir);
	for (unsigned i = 0; i < XDP_MAP_COUNT && !rc; i++)
		rc = adopt_map_shape(why, dir, i, xdp->map_fds[i], &map_ids[i]);
	return rc ? rc : adopt_attached(xdp, why, dir, map_ids);
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
	rc = xdp_pin_dir_check(dir);
	if (rc == -EOPNOTSUPP || rc == -ENOENT || rc == -ENOTDIR)
		return why_fail(&why, -ENOENT, "nothing of HARP is pinned in %s", dir);
	if (rc)
		return why_fail(&why, rc == -EACCES ? -EPERM : rc, "%s: %s", dir, strerror(-rc));
	xdp = xdp_new(ifname, link.ifindex);
	if (!xdp)
		return why_fail(&why, -ENOMEM, "out of memory");
	strcpy(xdp->pin_dir, dir);
	rc = adopt_all(xdp, &why, dir);
	if (rc) {
		xdp_detach(xdp);
		return rc;
	}
	if (xdp->native)
		why_say(&why, "native XDP: taken over");
	else
		xdp_explain_generic(&why, "taken over");
	*out = xdp;
	return 0;
}
