/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_query.c - reads the XDP program of an interface, and whether it is HARP's. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <string.h>
#include <unistd.h>

#include "xdp/xdp.h"

int64_t xdp_attached(uint32_t ifindex, bool *native)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	int rc = bpf_xdp_query((int)ifindex, 0, &query);

	if (rc)
		return rc;
	*native = query.drv_prog_id;
	if (query.drv_prog_id)
		return query.drv_prog_id;
	return query.skb_prog_id ? query.skb_prog_id : query.hw_prog_id;
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
	return !rc && !strcmp(info.name, XDP_PROGRAM_NAME);
}
