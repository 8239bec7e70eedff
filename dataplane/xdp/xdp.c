/* SPDX-License-Identifier: Apache-2.0 */
/* xdp.c - libharp-xdp.so: the XDP program attached to an interface, its maps and counters. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "harp_host.h"
#include "nic/af_xdp_link.h"
#include "xdp/xdp.h"

/* ---- attaching ------------------------------------------------------------------------------ */

static int64_t xdp_attached_id(uint32_t ifindex)
{
	bool native;

	return xdp_attached(ifindex, &native);
}

struct harp_xdp *xdp_new(const char *ifname, uint32_t ifindex)
{
	struct harp_xdp *xdp = calloc(1, sizeof(*xdp));

	if (!xdp)
		return NULL;
	xdp->link_fd = xdp->program_fd = -1;
	for (unsigned i = 0; i < XDP_MAP_COUNT; i++)
		xdp->map_fds[i] = -1;
	xdp->ifindex = ifindex;
	pthread_mutex_init(&xdp->maps_lock, NULL);
	snprintf(xdp->ifname, sizeof(xdp->ifname), "%s", ifname);
	return xdp;
}

static int xdp_link_create(const struct harp_xdp *xdp, bool native)
{
	LIBBPF_OPTS(bpf_link_create_opts, options,
		    .flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE);

	return bpf_link_create(xdp->program_fd, (int)xdp->ifindex, BPF_XDP, &options);
}

static int xdp_link(struct harp_xdp *xdp, bool native)
{
	int fd = xdp_link_create(xdp, native);

	if (fd < 0)
		return fd;
	xdp->link_fd = fd;
	xdp->native = native;
	return 0;
}

static void xdp_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Closes the last references, so that the kernel detaches the program unless the link is pinned. */
static void xdp_unlink(struct harp_xdp *xdp)
{
	xdp_close(&xdp->link_fd);
	xdp_close(&xdp->program_fd);
}

static int xdp_link_busy(const struct harp_xdp *xdp, const struct why *why)
{
	int64_t id = xdp_attached_id(xdp->ifindex);

	if (id > 0 && xdp_is_ours(id))
		return why_fail(
			why, -EBUSY,
			"HARP's XDP program is attached already (program %lld), by harpd or "
			"another process; processes share an interface through harpd (`harpctl "
			"start`); `harpctl stop` removes what a dead harpd left",
			(long long)id);
	return why_fail(why, -EBUSY,
			"XDP program %lld is attached already; detach it (`ip link set %s xdp "
			"off`), stop its owner, or use another interface",
			(long long)id, xdp->ifname);
}

static int xdp_link_failed(const struct harp_xdp *xdp, const struct why *why, int rc)
{
	switch (rc) {
	case -EBUSY:
	case -EEXIST:
		return xdp_link_busy(xdp, why);
	case -EPERM:
		return why_fail(why, rc,
				"attaching XDP needs CAP_NET_ADMIN; run as root or add it");
	case -ERANGE:
		return why_fail(why, -EOPNOTSUPP,
				"the driver has no native XDP at this MTU; use generic mode");
	case -EOPNOTSUPP:
		return why_fail(why, rc, "the driver has no native XDP; use generic mode");
	default:
		return why_fail(why, rc, "attaching XDP: %s", strerror(-rc));
	}
}

/*
 * Attaches in native mode if that keeps the kernel's MTU, queues and offloads. 0: attached; 1: not
 * attached, with the cause in `reason`; or -errno.
 */
static int xdp_try_native(struct harp_xdp *xdp, const struct why *why,
			  const struct af_xdp_link *before, char *reason, size_t reason_len)
{
	struct af_xdp_link after;
	int rc = xdp_link(xdp, true);

	if (rc == -EBUSY || rc == -EEXIST || rc == -EPERM)
		return xdp_link_failed(xdp, why, rc);
	if (rc) {
		snprintf(reason, reason_len, "driver %s rejects native XDP: %s", before->driver,
			 strerror(-rc));
		xdp_unlink(xdp);
		return 1;
	}
	rc = af_xdp_link_read(xdp->ifname, &after);
	if (rc)
		return why_fail(why, rc, "vanished: %s", strerror(-rc));
	if (after.mtu_bytes == before->mtu_bytes && after.rx_queues == before->rx_queues &&
	    after.tx_queues == before->tx_queues && after.offloads == before->offloads)
		return 0;
	snprintf(reason, reason_len,
		 "native XDP changes MTU %u to %u, queues %u/%u to %u/%u, offloads %#x to %#x",
		 before->mtu_bytes, after.mtu_bytes, before->rx_queues, before->tx_queues,
		 after.rx_queues, after.tx_queues, before->offloads, after.offloads);
	xdp_unlink(xdp);
	return 1;
}

/*
 * Generic mode is expensive for the kernel with any driver. Before the program runs, the kernel
 * copies each packet that is cloned, nonlinear, or has less than 256 bytes of headroom, which
 * includes the kernel's bulk traffic. It also disables GRO before the program
 * (docs/performance.md).
 */
void xdp_explain_generic(const struct why *why, const char *reason)
{
	why_say(why,
		"generic XDP (%s): the kernel copies all packets that it receives on this "
		"interface once more and disables GRO before XDP; its bulk throughput drops "
		"by up to a third",
		reason);
}

static int xdp_attach_generic(struct harp_xdp *xdp, const struct why *why, const char *reason)
{
	int rc = xdp_load(why, &xdp->program_fd, xdp->map_fds);

	if (rc)
		return rc;
	rc = xdp_link(xdp, false);
	if (rc)
		return xdp_link_failed(xdp, why, rc);
	xdp_explain_generic(why, reason);
	return 0;
}

/* Attaches in native mode if it costs the kernel nothing. Otherwise attaches in generic mode, or
 * not at all if native_only. */
static int xdp_attach_auto(struct harp_xdp *xdp, const struct why *why,
			   const struct af_xdp_link *before, bool native_only)
{
	char reason[160];
	int rc = 1;

	if (af_xdp_link_prefers_generic(before)) {
		snprintf(reason, sizeof(reason), "driver %s", before->driver);
	} else {
		rc = xdp_load(why, &xdp->program_fd, xdp->map_fds);
		if (!rc)
			rc = xdp_try_native(xdp, why, before, reason, sizeof(reason));
		if (!rc)
			return why_fail(why, 0,
					"native XDP: MTU, queues and offloads stay the same");
		if (rc < 0)
			return rc;
	}
	if (!native_only)
		return xdp_attach_generic(xdp, why, reason);
	return why_fail(why, -ECANCELED,
			"AF_XDP is available in generic copy mode only (%s): nothing is attached",
			reason);
}

void xdp_detach(struct harp_xdp *xdp)
{
	if (!xdp)
		return;
	/* Detaches explicitly, because a forked child may still have the link open. */
	if (xdp->attached && !xdp->pin_dir[0])
		bpf_link_detach(xdp->link_fd);
	xdp_unlink(xdp);
	for (unsigned i = 0; i < XDP_MAP_COUNT; i++)
		xdp_close(&xdp->map_fds[i]);
	pthread_mutex_destroy(&xdp->maps_lock);
	free(xdp);
}

/* Attaches in the requested mode, or in the best one for the driver. */
static int xdp_attach_mode(struct harp_xdp *xdp, const struct why *why, uint32_t mode,
			   const struct af_xdp_link *before)
{
	int rc;

	switch (mode) {
	case HARP_XDP_GENERIC:
		return xdp_attach_generic(xdp, why, "as requested");
	case HARP_XDP_NATIVE:
		rc = xdp_load(why, &xdp->program_fd, xdp->map_fds);
		if (rc)
			return rc;
		rc = xdp_link(xdp, true);
		return rc ? xdp_link_failed(xdp, why, rc)
			  : why_fail(why, 0, "native XDP: as requested");
	default:
		return xdp_attach_auto(xdp, why, before, mode == HARP_XDP_NATIVE_OR_NONE);
	}
}

static int xdp_attach(struct harp_xdp **out, const char *ifname, uint32_t mode, char *text,
		      size_t text_len)
{
	struct why why = { .text = text, .size = text_len };
	struct af_xdp_link before;
	struct harp_xdp *xdp;
	int rc;

	*out = NULL;
	why_about(&why, "%s", ifname);
	rc = af_xdp_link_read(ifname, &before);
	if (rc)
		return why_fail(&why, rc, "cannot be used: %s", strerror(-rc));
	if (af_xdp_link_is_stacked(&before))
		return why_fail(
			&why, -EOPNOTSUPP,
			"an AF_XDP socket on a device of driver %s receives nothing; name a "
			"NIC that is in no bond and carries untagged packets, or use kernel "
			"lanes (HARP_PATH=auto or kernel)",
			before.driver);
	xdp = xdp_new(ifname, before.ifindex);
	if (!xdp)
		return why_fail(&why, -ENOMEM, "out of memory");
	if (xdp_attached_id(before.ifindex) > 0)
		rc = xdp_link_busy(xdp, &why);
	else
		rc = xdp_attach_mode(xdp, &why, mode, &before);
	if (rc) {
		xdp_detach(xdp);
		return rc;
	}
	xdp->attached = true;
	*out = xdp;
	return 0;
}

/*
 * The kernel reports neither a forced detachment (`ip link set DEV xdp off`, BPF_LINK_DETACH) nor a
 * program that replaces ours, so the owner polls.
 */
static int xdp_check(struct harp_xdp *xdp, char *text, size_t text_len)
{
	struct why why = { .text = text, .size = text_len };
	struct bpf_link_info info = { 0 };
	uint32_t len = sizeof(info);
	char ifname[IFNAMSIZ];
	int fd, rc;

	if (text_len)
		text[0] = '\0';
	why_about(&why, "%s", xdp->ifname);
	/* The interface was removed, or moved to another network namespace, where our program must
	 * not stay. */
	if (!if_indextoname(xdp->ifindex, ifname)) {
		bpf_link_detach(xdp->link_fd);
		return -ENODEV;
	}
	/* A process that has lost the privilege to query keeps its state. */
	if (bpf_obj_get_info_by_fd(xdp->link_fd, &info, &len) || info.xdp.ifindex)
		return 0;
	fd = xdp_link_create(xdp, xdp->native);
	if (fd < 0)
		return why_fail(&why, fd == -EEXIST ? -EBUSY : fd,
				"the XDP program was detached by force and cannot be attached "
				"again: %s; HARP's connections on this interface end",
				fd == -EBUSY || fd == -EEXIST ? "another XDP program is attached"
							      : strerror(-fd));
	/* Keeps the descriptor number, because forked children close by number. */
	rc = dup3(fd, xdp->link_fd, O_CLOEXEC) < 0 ? -errno : 0;
	close(fd);
	if (!rc && xdp->pin_dir[0])
		rc = xdp_pin_link(xdp);
	return why_fail(&why, rc, "the XDP program was detached by force; it is attached again%s%s",
			rc ? ", but not pinned: " : "", rc ? strerror(-rc) : "");
}

/* ---- maps ----------------------------------------------------------------------------------- */

static bool xdp_native(const struct harp_xdp *xdp)
{
	return xdp->native;
}

static int xdp_xsk_set(struct harp_xdp *xdp, uint32_t queue, int fd)
{
	if (queue >= STEER_QUEUES_MAX)
		return -EINVAL;
	return fd >= 0 ? bpf_map_update_elem(xdp->map_fds[XDP_MAP_xsks], &queue, &fd, BPF_ANY)
		       : bpf_map_delete_elem(xdp->map_fds[XDP_MAP_xsks], &queue);
}

static uint32_t xdp_port_value(uint32_t value, uint32_t protocol, uint32_t rx_queue, bool ours)
{
	bool tcp = protocol == STEER_PORT_TCP;
	uint32_t has_queue = tcp ? STEER_QUEUE_SET_TCP : STEER_QUEUE_SET_UDP;
	unsigned shift = tcp ? STEER_QUEUE_TCP_SHIFT : STEER_QUEUE_UDP_SHIFT;

	value &= ~(protocol | has_queue | (uint32_t)STEER_QUEUE_MASK << shift);
	if (ours)
		value |= protocol;
	if (ours && rx_queue != HARP_XDP_QUEUE_ANY)
		value |= has_queue | rx_queue << shift;
	return value;
}

static int xdp_ports_set(struct harp_xdp *xdp, uint32_t protocols, uint16_t first, uint16_t last,
			 uint32_t rx_queue, bool ours)
{
	static const uint32_t flags[] = { STEER_PORT_TCP, STEER_PORT_UDP };
	int rc = 0;

	if (!protocols || (protocols & ~(uint32_t)(STEER_PORT_TCP | STEER_PORT_UDP)) ||
	    first > last ||
	    (ours && rx_queue >= STEER_QUEUES_MAX && rx_queue != HARP_XDP_QUEUE_ANY))
		return -EINVAL;
	pthread_mutex_lock(&xdp->maps_lock);
	for (uint32_t port = first, value; port <= last && !rc; port++) {
		rc = bpf_map_lookup_elem(xdp->map_fds[XDP_MAP_ports], &port, &value);
		for (unsigned i = 0; i < 2 && !rc; i++)
			if (protocols & flags[i])
				value = xdp_port_value(value, flags[i], rx_queue, ours);
		if (!rc)
			rc = bpf_map_update_elem(xdp->map_fds[XDP_MAP_ports], &port, &value,
						 BPF_ANY);
	}
	pthread_mutex_unlock(&xdp->maps_lock);
	return rc;
}

/* Instances share addresses, so another instance may have removed this one already. */
static int xdp_address_set(struct harp_xdp *xdp, const uint8_t address[16], bool ours)
{
	int fd = xdp->map_fds[XDP_MAP_addresses], rc;
	uint32_t value = 1;

	if (ours)
		return bpf_map_update_elem(fd, address, &value, BPF_ANY);
	rc = bpf_map_delete_elem(fd, address);
	return rc == -ENOENT ? 0 : rc;
}

static int xdp_verdicts(const struct harp_xdp *xdp, uint64_t *counts, unsigned count)
{
	int processors = libbpf_num_possible_cpus(), rc = 0;
	uint64_t *per_cpu;

	if (processors < 0)
		return processors;
	per_cpu = calloc((size_t)processors, sizeof(*per_cpu));
	if (!per_cpu)
		return -ENOMEM;
	for (uint32_t i = 0; i < count && !rc; i++) {
		counts[i] = 0;
		if (i >= STEER_VERDICT_COUNT)
			continue;
		rc = bpf_map_lookup_elem(xdp->map_fds[XDP_MAP_verdicts], &i, per_cpu);
		for (int p = 0; p < processors && !rc; p++)
			counts[i] += per_cpu[p];
	}
	free(per_cpu);
	return rc;
}

static int xdp_arrivals(const struct harp_xdp *xdp, struct steer_arrivals *sums, unsigned count)
{
	int processors = libbpf_num_possible_cpus(), rc = 0;
	struct steer_arrivals *per_cpu;

	if (processors < 0)
		return processors;
	per_cpu = calloc((size_t)processors, sizeof(*per_cpu));
	if (!per_cpu)
		return -ENOMEM;
	memset(sums, 0, count * sizeof(*sums));
	for (uint32_t i = 0; i < count && i < STEER_QUEUES_MAX && !rc; i++) {
		rc = bpf_map_lookup_elem(xdp->map_fds[XDP_MAP_arrivals], &i, per_cpu);
		for (int p = 0; p < processors && !rc; p++) {
			sums[i].packets += per_cpu[p].packets;
			sums[i].mismatches += per_cpu[p].mismatches;
			sums[i].flows |= per_cpu[p].flows;
		}
	}
	free(per_cpu);
	return rc;
}

static unsigned xdp_fds(const struct harp_xdp *xdp, int *fds, unsigned max)
{
	const int own[] = { xdp->link_fd, xdp->program_fd };
	unsigned count = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(own) && count < max; i++)
		if (own[i] >= 0)
			fds[count++] = own[i];
	for (unsigned i = 0; i < XDP_MAP_COUNT && count < max; i++)
		fds[count++] = xdp->map_fds[i];
	return count;
}

const struct harp_xdp_api *harp_xdp_api(void)
{
	static const struct harp_xdp_api api = {
		.version = HARP_XDP_VERSION,
		.attach = xdp_attach,
		.native = xdp_native,
		.xsk_set = xdp_xsk_set,
		.ports_set = xdp_ports_set,
		.address_set = xdp_address_set,
		.verdicts = xdp_verdicts,
		.fds = xdp_fds,
		.detach = xdp_detach,
		.attached_id = xdp_attached_id,
		.pin = xdp_pin,
		.adopt = xdp_adopt,
		.replace = xdp_replace,
		.unpin = xdp_unpin,
		.arrivals = xdp_arrivals,
		.check = xdp_check,
		.sources_set = xdp_sources_set,
		.libbpf_version = libbpf_version_string,
	};
	return &api;
}
