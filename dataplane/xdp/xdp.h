/* SPDX-License-Identifier: Apache-2.0 */
/* xdp.h - a loaded steering program's parts, between its loading (xdp_load.c), its attaching and maps
 * (xdp.c), and its pins (xdp_pin.c). */
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
/* enum bpf_attach_type of Linux 6.6. */
#define XDP_TCX_INGRESS ((enum bpf_attach_type)46)

/* The maps, by their names in steer.bpf.c and in a directory of pins. X(name, type, key bytes, value bytes,
 * entries) */
#define XDP_MAPS(X)                                                                                \
	X(xsks, BPF_MAP_TYPE_XSKMAP, 4, 4, STEER_QUEUES_MAX)                                       \
	X(ports, BPF_MAP_TYPE_ARRAY, 4, 4, STEER_PORTS)                                            \
	X(addresses, BPF_MAP_TYPE_HASH, 16, 4, STEER_ADDRESSES_MAX)                                \
	X(verdicts, BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, STEER_VERDICTS_MAX)                           \
	X(arrivals, BPF_MAP_TYPE_PERCPU_ARRAY, 4, sizeof(struct steer_arrivals), STEER_QUEUES_MAX) \
	X(layout, BPF_MAP_TYPE_ARRAY, 4, 4, 1)
#define XDP_MAP_ENUM(name, type, key, value, entries) XDP_MAP_##name,
enum xdp_map { XDP_MAPS(XDP_MAP_ENUM) XDP_MAP_COUNT };
#undef XDP_MAP_ENUM

struct harp_xdp {
	int link_fd, program_fd;           /* on the interface: harp_steer, or harp_aside */
	int side_link_fd, side_program_fd; /* harp_side, on the device beside; else -1 */
	int map_fds[XDP_MAP_COUNT];
	struct side side;
	uint32_t ifindex;
	bool native;
	pthread_mutex_t ports_lock; /* an entry is read, changed and written */
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
/* Is that program a steering program of HARP's? False, too, when we may not know. */
bool xdp_is_ours(int64_t id);
/*
 * harp_aside on the interface, and a device beside it for what is HARP's, with so many queues; 0: as the interface can
 * have. -EBUSY HARP is there already; other failures: what this kernel or this process cannot, nothing is left, and why
 * says it.
 */
int xdp_beside(struct harp_xdp *xdp, const struct why *why, uint32_t queues);
/* Detaches, unless what it had is pinned. */
void xdp_unlink(struct harp_xdp *xdp);
void xdp_detach(struct harp_xdp *xdp);

int xdp_pin(struct harp_xdp *xdp, const char *dir);
int xdp_adopt(struct harp_xdp **out, const char *dir, const char *ifname, char *why,
	      size_t why_len);
int xdp_replace(struct harp_xdp *xdp, char *why, size_t why_len);
int xdp_unpin(const char *dir);

#endif
