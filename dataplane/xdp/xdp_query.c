/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_query.c - which programs are on an interface, and whose they are. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <string.h>
#include <unistd.h>

#include "xdp/xdp.h"

#define INGRESS_PROGRAMS_MAX 64u /* BPF_MPROG_MAX */

int64_t xdp_attached_side(uint32_t ifindex)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	char name[IFNAMSIZ];
	unsigned side;

	side_name(name, ifindex);
	side = if_nametoindex(name);
	return side && !bpf_xdp_query((int)side, 0, &query) ? query.skb_prog_id : 0;
}

/* The numbers of the programs at the ingress hook; returns how many. */
static uint32_t xdp_ingress(uint32_t ifindex, uint32_t ids[INGRESS_PROGRAMS_MAX])
{
	uint32_t count = INGRESS_PROGRAMS_MAX;

	if (bpf_prog_query((int)ifindex, XDP_TCX_INGRESS, 0, NULL, ids, &count))
		return 0;
	return count < INGRESS_PROGRAMS_MAX ? count : INGRESS_PROGRAMS_MAX;
}

/* The number of HARP's program at the ingress hook, or of that on the device beside for who may not ask whose those at
 * the hook are (CAP_SYS_ADMIN); 0: none. */
static int64_t xdp_attached_aside(uint32_t ifindex)
{
	uint32_t ids[INGRESS_PROGRAMS_MAX], count = xdp_ingress(ifindex, ids);

	for (uint32_t i = 0; i < count; i++)
		if (xdp_is_ours(ids[i]))
			return ids[i];
	return xdp_attached_side(ifindex);
}

uint32_t xdp_ingress_first(uint32_t ifindex)
{
	uint32_t ids[INGRESS_PROGRAMS_MAX];

	return xdp_ingress(ifindex, ids) ? ids[0] : 0;
}

bool xdp_is_attached(uint32_t ifindex, uint32_t id, bool aside)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	uint32_t ids[INGRESS_PROGRAMS_MAX], count;

	if (!aside)
		return !bpf_xdp_query((int)ifindex, 0, &query) &&
		       (query.drv_prog_id == id || query.skb_prog_id == id);
	count = xdp_ingress(ifindex, ids);
	for (uint32_t i = 0; i < count; i++)
		if (ids[i] == id)
			return true;
	return false;
}

int64_t xdp_attached(uint32_t ifindex, bool *native)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	int rc = bpf_xdp_query((int)ifindex, 0, &query);

	if (rc)
		return rc;
	*native = query.drv_prog_id;
	if (query.drv_prog_id)
		return query.drv_prog_id;
	if (query.skb_prog_id || query.hw_prog_id)
		return query.skb_prog_id ? query.skb_prog_id : query.hw_prog_id;
	return xdp_attached_aside(ifindex);
}

bool xdp_is_ours(int64_t id)
{
	struct bpf_prog_info info = { 0 };
	uint32_t len = sizeof(info);
	int fd = bpf_prog_get_fd_by_id((uint32_t)id), rc;

	if (fd < 0)
		return false;
	rc = bpf_obj_get_info_by_fd(fd, &info, &len);
	close(fd);
	return !rc && (!strcmp(info.name, XDP_PROGRAM_NAME) || !strcmp(info.name, XDP_ASIDE_NAME));
}
