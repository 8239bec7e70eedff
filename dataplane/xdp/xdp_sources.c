/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_sources.c - the sources that may send to HARP's ports: the maps `restricted`, `sources_v4`,
 * `sources_v6`.
 *
 * A change adds new prefixes before it removes old ones. So a packet that both lists allow is never
 * dropped, and one that neither allows is never accepted.
 */
#include <assert.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "xdp/xdp.h"

static_assert(sizeof(struct steer_source_v4) == 8 && sizeof(struct steer_source_v6) == 20,
	      "a key has no padding, because the kernel reads all of it");

/* A key of either map; IPv4's is shorter. */
typedef struct steer_source_v6 sources_key;

struct sources_list {
	unsigned count;
	sources_key keys[STEER_SOURCES_MAX];
};

/* One family's map. */
struct sources_map {
	int fd;
	uint8_t address_bytes;
	struct sources_list current, target;
};

static bool sources_contain(const struct sources_list *list, const sources_key *key)
{
	for (unsigned i = 0; i < list->count; i++)
		if (!memcmp(&list->keys[i], key, sizeof(*key)))
			return true;
	return false;
}

/* Rejects bits after the prefix, which would create duplicate keys. */
static bool sources_is_prefix(const struct harp_xdp_source *source)
{
	if ((source->address_bytes != 4 && source->address_bytes != 16) ||
	    source->prefix_bits > 8 * source->address_bytes)
		return false;
	for (unsigned bit = source->prefix_bits; bit < 8u * source->address_bytes; bit++)
		if (source->address[bit / 8] & 0x80 >> bit % 8)
			return false;
	return true;
}

static int sources_target_add(struct sources_map *map, const struct harp_xdp_source *source)
{
	sources_key key = { .prefix_bits = source->prefix_bits };

	memcpy(key.address, source->address, map->address_bytes);
	if (sources_contain(&map->target, &key))
		return 0;
	if (map->target.count == STEER_SOURCES_MAX)
		return -E2BIG;
	map->target.keys[map->target.count++] = key;
	return 0;
}

static int sources_read(struct sources_map *map)
{
	sources_key key = { 0 }, *last = NULL;
	int rc = 0;

	while (map->current.count < STEER_SOURCES_MAX &&
	       !(rc = bpf_map_get_next_key(map->fd, last, &key))) {
		map->current.keys[map->current.count] = key;
		last = &map->current.keys[map->current.count++];
	}
	return rc == -ENOENT ? 0 : rc;
}

static int sources_add(struct sources_map *map)
{
	const uint32_t value = 1;
	int rc = 0;

	for (unsigned i = 0; i < map->target.count && !rc; i++)
		rc = bpf_map_update_elem(map->fd, &map->target.keys[i], &value, BPF_ANY);
	return rc;
}

/* Removes the prefixes of list that are not in other. */
static int sources_remove(struct sources_map *map, const struct sources_list *list,
			  const struct sources_list *other)
{
	int rc = 0, error;

	for (unsigned i = 0; i < list->count; i++) {
		if (sources_contain(other, &list->keys[i]))
			continue;
		error = bpf_map_delete_elem(map->fd, &list->keys[i]);
		if (error && error != -ENOENT && !rc)
			rc = error;
	}
	return rc;
}

static int sources_replace(struct harp_xdp *xdp, struct sources_map maps[2])
{
	const uint32_t zero = 0, restricted = maps[0].target.count || maps[1].target.count;
	int rc = 0, error;

	for (unsigned i = 0; i < 2 && !rc; i++)
		rc = sources_read(&maps[i]);
	if (rc)
		return rc;
	for (unsigned i = 0; i < 2 && !rc; i++)
		rc = sources_add(&maps[i]);
	if (!rc)
		rc = bpf_map_update_elem(xdp->map_fds[XDP_MAP_restricted], &zero, &restricted,
					 BPF_ANY);
	for (unsigned i = 0; i < 2; i++) {
		/* After a failure, removes the added prefixes. */
		error = rc ? sources_remove(&maps[i], &maps[i].target, &maps[i].current)
			   : sources_remove(&maps[i], &maps[i].current, &maps[i].target);
		if (!rc)
			rc = error;
	}
	return rc;
}

int xdp_sources_set(struct harp_xdp *xdp, const struct harp_xdp_source *sources, unsigned count)
{
	struct sources_map *maps = calloc(2, sizeof(*maps));
	int rc = 0;

	if (!maps)
		return -ENOMEM;
	maps[0].fd = xdp->map_fds[XDP_MAP_sources_v4];
	maps[0].address_bytes = 4;
	maps[1].fd = xdp->map_fds[XDP_MAP_sources_v6];
	maps[1].address_bytes = 16;
	for (unsigned i = 0; i < count && !rc; i++)
		rc = sources_is_prefix(&sources[i])
			     ? sources_target_add(&maps[sources[i].address_bytes == 16],
						  &sources[i])
			     : -EINVAL;
	if (!rc) {
		pthread_mutex_lock(&xdp->maps_lock);
		rc = sources_replace(xdp, maps);
		pthread_mutex_unlock(&xdp->maps_lock);
	}
	free(maps);
	return rc;
}
