/* SPDX-License-Identifier: Apache-2.0 */
/* xdp.h - a loaded XDP program; shared by loading (xdp_load.c), attachment and maps (xdp.c),
 * pinning (xdp_pin.c) and adoption (xdp_adopt.c). */
#ifndef HARP_XDP_XDP_H
#define HARP_XDP_XDP_H

#include <limits.h>
#include <net/if.h>
#include <pthread.h>

#include "base/why.h"
#include "xdp/harp_xdp.h"

#define XDP_PROGRAM_NAME "harp_steer"

/* The maps, named as in steer.bpf.c and in pin directories. X(name, type, key bytes, value bytes,
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
	int link_fd, program_fd;
	int map_fds[XDP_MAP_COUNT];
	uint32_t ifindex;
	bool native;
	pthread_mutex_t maps_lock; /* held during read-modify-write of map entries */
	char ifname[IFNAMSIZ];
	bool attached;          /* attached by this process, not adopted */
	char pin_dir[PATH_MAX]; /* empty: not pinned */
};

/* Returns an empty object. NULL: out of memory. */
struct harp_xdp *xdp_new(const char *ifname, uint32_t ifindex);
const char *xdp_map_name(unsigned map);
/* Loads the program with the given maps; creates maps if map_fds[0] is -1. */
int xdp_load(const struct why *why, int *program_fd, int map_fds[XDP_MAP_COUNT]);
/* Writes that the program runs in generic mode, why, and what that costs. */
void xdp_explain_generic(const struct why *why, const char *reason);
/* Id of the attached XDP program; 0 none, -errno. native: its mode. */
int64_t xdp_attached(uint32_t ifindex, bool *native);
/* True if this program is HARP's. False if the process may not query it. */
bool xdp_is_ours(int64_t id);
/* sources_set of harp_xdp.h. */
int xdp_sources_set(struct harp_xdp *xdp, const struct harp_xdp_source *sources, unsigned count);
void xdp_detach(struct harp_xdp *xdp);

/* Names in a pin directory, in addition to those of the maps. */
#define XDP_PIN_LINK "link"
#define XDP_PIN_PROGRAM "program"
#define XDP_PIN_PROGRAM_NEW "program_new" /* while `program` is being replaced */

/* DIR/NAME; -ENAMETOOLONG. */
int xdp_pin_path(char path[PATH_MAX], const char *dir, const char *name);
/* -ENOENT no such directory, -EOPNOTSUPP not on a bpffs. */
int xdp_pin_dir_check(const char *dir);
/* Pins the link, replacing the pinned one. */
int xdp_pin_link(const struct harp_xdp *xdp);

int xdp_pin(struct harp_xdp *xdp, const char *dir);
int xdp_adopt(struct harp_xdp **out, const char *dir, const char *ifname, char *why,
	      size_t why_len);
int xdp_replace(struct harp_xdp *xdp, char *why, size_t why_len);
int xdp_unpin(const char *dir);

#endif
