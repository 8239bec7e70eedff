/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_adopt.c - takes up what another process has pinned (xdp_pin.c).
 *
 * Who adopts believes nothing: the maps must be of our layout, the programs ours and working with these very
 * maps, the links those of these programs on this interface and on the device beside it, and that device the pair of
 * what the namespace next to the bpffs keeps.
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

/* A descriptor of a pinned object; -ENOENT, -ESTALE what is there is none, -EPERM. */
static int adopt_open(const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat at;
	int rc = xdp_pin_path(path, dir, name), fd;

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

/* A program that must be there. */
struct adopt_wish {
	const char *pin, *name; /* the file's, the program's */
	enum bpf_prog_type type;
	unsigned maps; /* it works with the first so many */
};

/* Is it that program, number id, over these maps? */
static bool adopt_is_program(const struct adopt_wish *wish, int fd, uint32_t id,
			     const uint32_t map_ids[XDP_MAP_COUNT])
{
	uint32_t used[MAP_IDS_MAX];
	struct bpf_prog_info info = { .nr_map_ids = MAP_IDS_MAX, .map_ids = (uintptr_t)used };
	uint32_t len = sizeof(info), found = 0;

	if (bpf_obj_get_info_by_fd(fd, &info, &len) || info.id != id || info.type != wish->type ||
	    strcmp(info.name, wish->name))
		return false;
	for (unsigned map = 0; map < wish->maps; map++)
		for (unsigned i = 0; i < info.nr_map_ids && i < MAP_IDS_MAX; i++)
			found += used[i] == map_ids[map];
	return found == wish->maps;
}

/*
 * The program that the link has; a descriptor, or -ESTALE. A replace that was cut off between updating the
 * link and renaming the pin has left the new one under its first name.
 */
static int adopt_program(const struct adopt_wish *wish, const char *dir, uint32_t id,
			 const uint32_t map_ids[XDP_MAP_COUNT])
{
	char from[PATH_MAX], to[PATH_MAX], name[32];
	int fd = adopt_open(dir, wish->pin);

	if (fd >= 0 && adopt_is_program(wish, fd, id, map_ids))
		return fd;
	if (fd >= 0)
		close(fd);
	snprintf(name, sizeof(name), "%s" XDP_PIN_NEW, wish->pin);
	fd = adopt_open(dir, name);
	if (fd >= 0 && adopt_is_program(wish, fd, id, map_ids) && !xdp_pin_path(from, dir, name) &&
	    !xdp_pin_path(to, dir, wish->pin) && !rename(from, to))
		return fd;
	if (fd >= 0)
		close(fd);
	return -ESTALE;
}

static int adopt_link_info(const struct why *why, const char *dir, const char *name, int fd,
			   struct bpf_link_info *info)
{
	uint32_t len = sizeof(*info);
	int rc;

	memset(info, 0, sizeof(*info));
	rc = bpf_obj_get_info_by_fd(fd, info, &len);
	return rc ? why_fail(why, rc, "%s/%s: %s", dir, name, strerror(-rc)) : 0;
}

static int adopt_not_attached(const struct why *why, const char *dir)
{
	return why_fail(why, -ESTALE,
			"what is pinned in %s is not attached to this interface (it was "
			"made anew?); `harpctl stop` removes it",
			dir);
}

static int adopt_not_ours(const struct why *why, const char *dir, const char *name)
{
	return why_fail(why, -ESTALE,
			"%s/%s is not the steering program that is attached; "
			"`harpctl stop` removes what is pinned there",
			dir, name);
}

/* A link's interface is in the same place in both kinds (linux/bpf.h). */
static bool adopt_is_on(const struct bpf_link_info *info, uint32_t type, uint32_t ifindex)
{
	return info->type == type && info->xdp.ifindex == ifindex && ifindex;
}

static int adopt_on_interface(struct harp_xdp *xdp, const struct why *why, const char *dir,
			      const struct bpf_link_info *info,
			      const uint32_t map_ids[XDP_MAP_COUNT])
{
	static const struct adopt_wish steer = { XDP_PIN_PROGRAM, XDP_PROGRAM_NAME,
						 BPF_PROG_TYPE_XDP, XDP_MAP_layout };

	if (!adopt_is_on(info, BPF_LINK_TYPE_XDP, xdp->ifindex) ||
	    xdp_attached(xdp->ifindex, &xdp->native) != info->prog_id)
		return adopt_not_attached(why, dir);
	xdp->program_fd = adopt_program(&steer, dir, info->prog_id, map_ids);
	return xdp->program_fd < 0 ? adopt_not_ours(why, dir, XDP_PIN_PROGRAM) : 0;
}

struct adopt_there {
	uint32_t ifindex, id;
};

/* In the other end's network namespace. */
static int adopt_is_there(void *ctx)
{
	const struct adopt_there *there = ctx;

	return xdp_is_attached(there->ifindex, there->id, false);
}

/* What is on the device beside, and the device itself. */
static int adopt_side(struct harp_xdp *xdp, const struct why *why, const char *dir,
		      const uint32_t map_ids[XDP_MAP_COUNT])
{
	static const struct adopt_wish side = { XDP_PIN_SIDE_PROGRAM, XDP_SIDE_NAME,
						BPF_PROG_TYPE_XDP, XDP_MAP_xsks + 1 };
	struct adopt_there there;
	struct bpf_link_info info;
	char netns[PATH_MAX];
	const char *name;
	int rc;

	rc = adopt_link_info(why, dir, XDP_PIN_SIDE_LINK, xdp->side_link_fd, &info);
	if (rc)
		return rc;
	if (!info.xdp.ifindex)
		return why_fail(why, -ESTALE,
				"%s: the device beside the interface is gone; `harpctl stop` "
				"removes what is pinned there",
				dir);
	rc = xdp_pin_netns(netns, &name, dir);
	if (!rc)
		rc = side_take_up(&xdp->side, why, netns, name, xdp->ifindex);
	if (rc)
		return rc == -ENOENT ? -ESTALE : rc;
	there.ifindex = xdp->side.away_ifindex;
	there.id = info.prog_id;
	if (!adopt_is_on(&info, BPF_LINK_TYPE_XDP, xdp->side.away_ifindex) ||
	    side_inside(&xdp->side, adopt_is_there, &there) != 1)
		return adopt_not_ours(why, dir, XDP_PIN_SIDE_LINK);
	xdp->side_program_fd = adopt_program(&side, dir, info.prog_id, map_ids);
	return xdp->side_program_fd < 0 ? adopt_not_ours(why, dir, XDP_PIN_SIDE_PROGRAM) : 0;
}

static int adopt_beside(struct harp_xdp *xdp, const struct why *why, const char *dir,
			const struct bpf_link_info *info, const uint32_t map_ids[XDP_MAP_COUNT])
{
	static const struct adopt_wish aside = { XDP_PIN_PROGRAM, XDP_ASIDE_NAME,
						 BPF_PROG_TYPE_SCHED_CLS, XDP_MAP_layout };

	if (!adopt_is_on(info, XDP_LINK_TYPE_TCX, xdp->ifindex) ||
	    !xdp_is_attached(xdp->ifindex, info->prog_id, true))
		return adopt_not_attached(why, dir);
	xdp->program_fd = adopt_program(&aside, dir, info->prog_id, map_ids);
	if (xdp->program_fd < 0)
		return adopt_not_ours(why, dir, XDP_PIN_PROGRAM);
	return adopt_side(xdp, why, dir, map_ids);
}

static int adopt_incomplete(const struct why *why, const char *dir)
{
	return why_fail(why, -ESTALE,
			"%s is incomplete: its maker died while it pinned or removed; "
			"`harpctl stop` removes the rest",
			dir);
}

static int adopt_link(const struct why *why, const char *dir, const char *name, int *fd)
{
	int rc = adopt_open(dir, name);

	*fd = rc < 0 ? -1 : rc;
	if (rc >= 0 || rc == -ENOENT)
		return 0;
	return why_fail(why, rc, "%s/%s: %s", dir, name,
			rc == -ESTALE ? "not a link of HARP's" : strerror(-rc));
}

static int adopt_links(struct harp_xdp *xdp, const struct why *why, const char *dir,
		       const uint32_t map_ids[XDP_MAP_COUNT])
{
	struct bpf_link_info info;
	int rc = adopt_link_info(why, dir, XDP_PIN_LINK, xdp->link_fd, &info);

	if (rc)
		return rc;
	if (info.type != XDP_LINK_TYPE_TCX)
		return adopt_on_interface(xdp, why, dir, &info, map_ids);
	rc = adopt_link(why, dir, XDP_PIN_SIDE_LINK, &xdp->side_link_fd);
	if (!rc)
		rc = adopt_link(why, dir, XDP_PIN_MARK_LINK, &xdp->mark_link_fd);
	if (rc)
		return rc;
	if (xdp->side_link_fd < 0 || xdp->mark_link_fd < 0)
		return adopt_incomplete(why, dir);
	return adopt_beside(xdp, why, dir, &info, map_ids);
}

static int adopt_all(struct harp_xdp *xdp, const struct why *why, const char *dir)
{
	uint32_t map_ids[XDP_MAP_COUNT];
	unsigned missing = 0;
	int rc = adopt_maps(xdp, why, dir, &missing);

	if (!rc)
		rc = adopt_link(why, dir, XDP_PIN_LINK, &xdp->link_fd);
	if (rc)
		return rc;
	missing += xdp->link_fd < 0;
	if (missing == XDP_MAP_COUNT + 1)
		return why_fail(why, -ENOENT, "nothing of HARP's is pinned in %s", dir);
	rc = xdp->map_fds[XDP_MAP_layout] < 0 ? 0 : adopt_layout_number(xdp, why, dir);
	if (rc)
		return rc;
	if (missing)
		return adopt_incomplete(why, dir);
	rc = adopt_shapes(xdp, why, dir, map_ids);
	return rc ? rc : adopt_links(xdp, why, dir, map_ids);
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
		return why_fail(&why, -ENOENT, "nothing of HARP's is pinned in %s", dir);
	if (rc)
		return why_fail(&why, rc == -EACCES ? -EPERM : rc, "%s: %s", dir, strerror(-rc));
	xdp = xdp_new(ifname, link.ifindex);
	if (!xdp)
		return why_fail(&why, -ENOMEM, "out of memory");
	/* Known from now on as pinned: a failure lets go of the device beside, and does not remove it. */
	strcpy(xdp->pin_dir, dir);
	rc = adopt_all(xdp, &why, dir);
	if (rc) {
		xdp_detach(xdp);
		return rc;
	}
	*out = xdp;
	return 0;
}
