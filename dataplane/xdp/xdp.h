/* SPDX-License-Identifier: Apache-2.0 */
/* xdp.h - a loaded steering program's parts, between its loading (xdp_load.c), its attaching and maps
 * (xdp.c, xdp_beside.c, xdp_look.c), and its pins (xdp_pin.c, xdp_adopt.c). */
#ifndef HARP_XDP_XDP_H
#define HARP_XDP_XDP_H

#include <limits.h>
#include <net/if.h>
#include <pthread.h>

#include "base/why.h"
#include "xdp/harp_xdp.h"
#include "xdp/side.h"

#define XDP_PROGRAM_NAME "harp_steer"
#define XDP_ASIDE_NAME "harp_aside"
#define XDP_SIDE_NAME "harp_side"
/* enum bpf_attach_type and bpf_link_type of Linux 6.6. */
#define XDP_TCX_INGRESS ((enum bpf_attach_type)46)
#define XDP_LINK_TYPE_TCX 11u
#define XDP_TCX_FIRST (1u << 3) /* BPF_F_BEFORE: before all programs that are there */

/* The maps, by their names in steer.bpf.c and in a directory of pins. X(name, type, key bytes, value bytes,
 * entries) */
#define XDP_MAPS(X)                                                                                \
	X(xsks, BPF_MAP_TYPE_XSKMAP, 4, 4, STEER_QUEUES_MAX)                                       \
	X(ports, BPF_MAP_TYPE_ARRAY, 4, 4, STEER_PORTS)                                            \
	X(addresses, BPF_MAP_TYPE_HASH, 16, 4, STEER_ADDRESSES_MAX)                                \
	X(verdicts, BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, STEER_VERDICTS_MAX)                           \
	X(arrivals, BPF_MAP_TYPE_PERCPU_ARRAY, 4, sizeof(struct steer_arrivals), STEER_QUEUES_MAX) \
	X(restricted, BPF_MAP_TYPE_ARRAY, 4, 4, 1)                                                 \
	X(sources_v4, BPF_MAP_TYPE_LPM_TRIE, sizeof(struct steer_source_v4), 4, STEER_SOURCES_MAX) \
	X(sources_v6, BPF_MAP_TYPE_LPM_TRIE, sizeof(struct steer_source_v6), 4, STEER_SOURCES_MAX) \
	X(layout, BPF_MAP_TYPE_ARRAY, 4, 4, 1)
#define XDP_MAP_ENUM(name, type, key, value, entries) XDP_MAP_##name,
enum xdp_map { XDP_MAPS(XDP_MAP_ENUM) XDP_MAP_COUNT };
#undef XDP_MAP_ENUM

struct harp_xdp {
	int link_fd, program_fd;           /* on the interface: harp_steer, or harp_aside */
	int side_link_fd, side_program_fd; /* harp_side, on the device beside; else -1 */
	int mark_link_fd;                  /* the same on its end here, for who looks for it */
	int map_fds[XDP_MAP_COUNT];
	struct side side;
	uint32_t ifindex;
	bool native;
	/* As it was asked for. */
	bool sparing, may_be_beside;
	uint32_t queues; /* that the interface can have, by its driver; 0: it does not say */
	/* xdp_look.c's. */
	bool gone, nowhere; /* the interface; the program is attached nowhere */
	uint32_t first;     /* program at the ingress hook */
	char trouble[160];
	pthread_mutex_t maps_lock; /* entries are read, changed and written */
	char ifname[IFNAMSIZ];
	char pin_dir[PATH_MAX]; /* empty: not pinned */
};

/* An object without anything in it. NULL: out of memory. */
struct harp_xdp *xdp_new(const char *ifname, uint32_t ifindex);
const char *xdp_map_name(unsigned map);
/* Loads harp_steer; over the maps given, or new ones if map_fds[0] is -1, which it then fills in. */
int xdp_load(const struct why *why, int *program_fd, int map_fds[XDP_MAP_COUNT]);
/* The same with harp_aside, which sends to that device, and harp_side for it. */
int xdp_load_aside(const struct why *why, uint32_t side_ifindex, int *program_fd,
		   int *side_program_fd, int map_fds[XDP_MAP_COUNT]);
/* Number of the XDP program attached, or of HARP's at the ingress hook, or on the device beside; 0 none, -errno; native: in
 * which mode. */
int64_t xdp_attached(uint32_t ifindex, bool *native);
/* The number of the program on the device beside; 0: none. Anybody may ask. */
int64_t xdp_attached_side(uint32_t ifindex);
/* Is that program a steering program of HARP's? False, too, when we may not know. */
bool xdp_is_ours(int64_t id);
/* Is the program of that number on that interface of this thread's network namespace: an XDP one, or (aside) one at the
 * ingress hook? */
bool xdp_is_attached(uint32_t ifindex, uint32_t id, bool aside);
/* The number of the program that is first at the ingress hook; 0: there is none, or we may not know. */
uint32_t xdp_ingress_first(uint32_t ifindex);
/* A link of what is loaded, which is on the interface or beside it. A descriptor, or -errno. */
int xdp_link_create(const struct harp_xdp *xdp, bool native);
/* Beside the interface, or on it. reason: why generic, for people. 0: why says which. */
int xdp_attach_generic(struct harp_xdp *xdp, const struct why *why, const char *reason);

/* What the kernel says of an interface. */
struct beside_interface {
	uint32_t queues;       /* that it can have */
	uint32_t joined_bytes; /* of packets that were joined, at most */
};
#define BESIDE_JOINED_BYTES_MAX 65536u
int beside_interface(uint32_t ifindex, struct beside_interface *found);
/*
 * harp_aside on the interface, and a device beside it for what is HARP's. -EBUSY HARP is there already; other failures: what this kernel or this process cannot, nothing is left, and why
 * says it.
 */
int xdp_beside(struct harp_xdp *xdp, const struct why *why);
/* sources_set of harp_xdp.h. */
int xdp_sources_set(struct harp_xdp *xdp, const struct harp_xdp_source *sources, unsigned count);
/* look of harp_xdp.h. */
int xdp_look(struct harp_xdp *xdp, char *why, size_t why_len);
/* Detaches, unless what it had is pinned. */
void xdp_unlink(struct harp_xdp *xdp);
void xdp_detach(struct harp_xdp *xdp);

/* Names in a directory of pins, beside the maps'. */
#define XDP_PIN_LINK "link"
#define XDP_PIN_PROGRAM "program"
#define XDP_PIN_SIDE_LINK "side_link"
#define XDP_PIN_SIDE_PROGRAM "side_program"
#define XDP_PIN_MARK_LINK "mark_link"
#define XDP_PIN_NEW "_new" /* a program's, while it takes the other one's place */

/* DIR/NAME; -ENAMETOOLONG. */
int xdp_pin_path(char path[PATH_MAX], const char *dir, const char *name);
/* Of what is pinned in BPFFS/NAME: the file that side_keep() takes, BPFFS.netns, and NAME. */
int xdp_pin_netns(char path[PATH_MAX], const char **name, const char *dir);
/* -ENOENT no such directory, -EOPNOTSUPP not on a bpffs. */
int xdp_pin_dir_check(const char *dir);
/* The link is another one than the one that is pinned. */
int xdp_pin_link_anew(const struct harp_xdp *xdp);

int xdp_pin(struct harp_xdp *xdp, const char *dir);
int xdp_adopt(struct harp_xdp **out, const char *dir, const char *ifname, char *why,
	      size_t why_len);
int xdp_replace(struct harp_xdp *xdp, char *why, size_t why_len);
int xdp_unpin(const char *dir);

#endif
