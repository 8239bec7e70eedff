/* SPDX-License-Identifier: Apache-2.0 */
/* xdp.c - libharp-xdp.so: the steering program's life: load, attach, maps, counters, detach. */
#include "xdp/harp_xdp.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harp_host.h"
#include "nic/af_xdp_link.h"
#include "steer_object.h" /* generated: the program's ELF file */

struct harp_xdp {
	struct bpf_object *object;
	int program_fd, link_fd;
	int xsks_fd, ports_fd, addresses_fd, verdicts_fd;
	uint32_t ifindex;
	bool native;
};

/* Where an error goes: one line, "eth0: cause; remedy". */
struct reason {
	const char *ifname;
	char *text;
	size_t len;
};

static int __attribute__((format(printf, 3, 4)))
reason_set(const struct reason *why, int error, const char *format, ...)
{
	va_list args;
	int used;

	if (!why->text || !why->len)
		return error;
	used = snprintf(why->text, why->len, "%s: ", why->ifname);
	if (used < 0 || (size_t)used >= why->len)
		return error;
	va_start(args, format);
	vsnprintf(why->text + used, why->len - (size_t)used, format, args);
	va_end(args);
	return error;
}

/* ---- libbpf's own words --------------------------------------------------------------------- */

/* libbpf prints through one function per process; while we load, this thread keeps the first warning
 * and other threads' go on to whoever had the printing before. */
static _Thread_local char *captured;
static libbpf_print_fn_t print_before;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER; /* one loader at a time */
#define CAPTURED_MAX 160

static int __attribute__((format(printf, 2, 0)))
capture_print(enum libbpf_print_level level, const char *format, va_list args)
{
	if (!captured)
		return print_before ? print_before(level, format, args) : 0;
	if (level == LIBBPF_WARN && !captured[0]) {
		vsnprintf(captured, CAPTURED_MAX, format, args);
		captured[strcspn(captured, "\n")] = '\0';
	}
	return 0;
}

static void capture_begin(char *buf)
{
	pthread_mutex_lock(&print_lock);
	buf[0] = '\0';
	captured = buf;
	print_before = libbpf_set_print(capture_print);
}

static void capture_end(void)
{
	libbpf_set_print(print_before);
	captured = NULL;
	pthread_mutex_unlock(&print_lock);
}

/* ---- loading -------------------------------------------------------------------------------- */

static int xdp_map_fd(const struct harp_xdp *xdp, const char *name)
{
	return bpf_object__find_map_fd_by_name(xdp->object, name);
}

static int xdp_load(struct harp_xdp *xdp, const struct reason *why)
{
	LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = "harp_steer");
	struct bpf_program *program;
	char words[CAPTURED_MAX];
	int rc;

	capture_begin(words);
	xdp->object = bpf_object__open_mem(steer_object, sizeof(steer_object), &options);
	rc = xdp->object ? bpf_object__load(xdp->object) : -errno;
	capture_end();
	if (rc == -EPERM || rc == -EACCES)
		return reason_set(
			why, -EPERM,
			"loading the steering program needs CAP_BPF and CAP_NET_ADMIN; run as "
			"root or add them");
	if (rc)
		return reason_set(why, rc, "the kernel refuses the steering program: %s (%s)",
				  strerror(-rc), words);
	program = bpf_object__find_program_by_name(xdp->object, "harp_steer");
	xdp->program_fd = program ? bpf_program__fd(program) : -ENOENT;
	xdp->xsks_fd = xdp_map_fd(xdp, "xsks");
	xdp->ports_fd = xdp_map_fd(xdp, "ports");
	xdp->addresses_fd = xdp_map_fd(xdp, "addresses");
	xdp->verdicts_fd = xdp_map_fd(xdp, "verdicts");
	if (xdp->program_fd < 0 || xdp->xsks_fd < 0 || xdp->ports_fd < 0 || xdp->addresses_fd < 0 ||
	    xdp->verdicts_fd < 0)
		return reason_set(why, -ENOENT, "the steering program lacks a map; rebuild HARP");
	return 0;
}

/* ---- attaching ------------------------------------------------------------------------------ */

static int64_t xdp_attached_id(uint32_t ifindex)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	int rc = bpf_xdp_query((int)ifindex, 0, &query);

	if (rc)
		return rc;
	if (query.drv_prog_id)
		return query.drv_prog_id;
	return query.skb_prog_id ? query.skb_prog_id : query.hw_prog_id;
}

static int xdp_link(struct harp_xdp *xdp, bool native)
{
	LIBBPF_OPTS(bpf_link_create_opts, options,
		    .flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE);
	int fd = bpf_link_create(xdp->program_fd, (int)xdp->ifindex, BPF_XDP, &options);

	if (fd < 0)
		return fd;
	xdp->link_fd = fd;
	xdp->native = native;
	return 0;
}

static void xdp_unlink(struct harp_xdp *xdp)
{
	if (xdp->link_fd >= 0)
		close(xdp->link_fd); /* the last reference: the kernel detaches */
	xdp->link_fd = -1;
}

static int xdp_link_failed(const struct harp_xdp *xdp, const struct reason *why, int rc)
{
	switch (rc) {
	case -EBUSY:
	case -EEXIST:
		return reason_set(
			why, -EBUSY,
			"XDP program %lld is attached already; detach it (`ip link set %s xdp "
			"off`), stop its owner, or use another interface",
			(long long)xdp_attached_id(xdp->ifindex), why->ifname);
	case -EPERM:
		return reason_set(why, rc,
				  "attaching XDP needs CAP_NET_ADMIN; run as root or add it");
	case -ERANGE:
		return reason_set(why, -EOPNOTSUPP,
				  "the driver takes no native XDP at this MTU; use generic mode");
	case -EOPNOTSUPP:
		return reason_set(why, rc, "the driver has no native XDP; use generic mode");
	default:
		return reason_set(why, rc, "attaching XDP: %s", strerror(-rc));
	}
}

/*
 * Native, if it costs the kernel nothing that can be seen: MTU, queues, offloads. Returns 0 attached,
 * 1 not (lost says why, nothing is attached), or -errno.
 */
static int xdp_try_native(struct harp_xdp *xdp, const struct reason *why,
			  const struct af_xdp_link *before, char *lost, size_t lost_len)
{
	struct af_xdp_link after;
	int rc = xdp_link(xdp, true);

	if (rc == -EBUSY || rc == -EEXIST || rc == -EPERM)
		return xdp_link_failed(xdp, why, rc);
	if (rc) {
		snprintf(lost, lost_len, "driver %s refuses native XDP: %s", before->driver,
			 strerror(-rc));
		return 1;
	}
	rc = af_xdp_link_read(why->ifname, &after);
	if (rc)
		return reason_set(why, rc, "vanished: %s", strerror(-rc));
	if (after.mtu_bytes == before->mtu_bytes && after.rx_queues == before->rx_queues &&
	    after.tx_queues == before->tx_queues && after.offloads == before->offloads)
		return 0;
	snprintf(lost, lost_len,
		 "native XDP changes MTU %u to %u, queues %u/%u to %u/%u, offloads %#x to %#x",
		 before->mtu_bytes, after.mtu_bytes, before->rx_queues, before->tx_queues,
		 after.rx_queues, after.tx_queues, before->offloads, after.offloads);
	xdp_unlink(xdp);
	return 1;
}

static int xdp_attach_auto(struct harp_xdp *xdp, const struct reason *why,
			   const struct af_xdp_link *before)
{
	char lost[160];
	int rc;

	if (af_xdp_link_wants_generic(before)) {
		snprintf(lost, sizeof(lost), "driver %s", before->driver);
	} else {
		rc = xdp_try_native(xdp, why, before, lost, sizeof(lost));
		if (rc <= 0) {
			if (!rc)
				reason_set(why, 0,
					   "native XDP: it changes neither MTU, queues "
					   "nor offloads");
			return rc;
		}
	}
	rc = xdp_link(xdp, false);
	return rc ? xdp_link_failed(xdp, why, rc) : reason_set(why, 0, "generic XDP: %s", lost);
}

static void xdp_detach(struct harp_xdp *xdp)
{
	if (!xdp)
		return;
	xdp_unlink(xdp);
	bpf_object__close(xdp->object);
	free(xdp);
}

static int xdp_attach(struct harp_xdp **out, const char *ifname, uint32_t mode, char *text,
		      size_t text_len)
{
	const struct reason why = { ifname, text, text_len };
	struct af_xdp_link before;
	struct harp_xdp *xdp;
	int64_t other;
	int rc;

	*out = NULL;
	rc = af_xdp_link_read(ifname, &before);
	if (rc)
		return reason_set(&why, rc, "cannot be used: %s", strerror(-rc));
	other = xdp_attached_id(before.ifindex);
	xdp = calloc(1, sizeof(*xdp));
	if (!xdp)
		return reason_set(&why, -ENOMEM, "out of memory");
	xdp->link_fd = -1;
	xdp->ifindex = before.ifindex;
	if (other > 0) {
		rc = xdp_link_failed(xdp, &why, -EBUSY);
		goto fail;
	}
	rc = xdp_load(xdp, &why);
	if (rc)
		goto fail;
	if (mode == HARP_XDP_AUTO) {
		rc = xdp_attach_auto(xdp, &why, &before);
	} else {
		rc = xdp_link(xdp, mode == HARP_XDP_NATIVE);
		if (rc)
			xdp_link_failed(xdp, &why, rc);
		else
			reason_set(&why, 0, "%s XDP: as asked", xdp->native ? "native" : "generic");
		if (rc == -EEXIST)
			rc = -EBUSY;
		if (rc == -ERANGE)
			rc = -EOPNOTSUPP;
	}
	if (rc)
		goto fail;
	*out = xdp;
	return 0;
fail:
	xdp_detach(xdp);
	return rc;
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
	return fd >= 0 ? bpf_map_update_elem(xdp->xsks_fd, &queue, &fd, BPF_ANY)
		       : bpf_map_delete_elem(xdp->xsks_fd, &queue);
}

static int xdp_port_set(struct harp_xdp *xdp, uint32_t protocol, uint16_t port, bool ours)
{
	uint32_t key = port, value = 0;
	int rc = bpf_map_lookup_elem(xdp->ports_fd, &key, &value);

	if (rc)
		return rc;
	value = ours ? value | protocol : value & ~protocol;
	return bpf_map_update_elem(xdp->ports_fd, &key, &value, BPF_ANY);
}

static int xdp_address_set(struct harp_xdp *xdp, const uint8_t address[16], bool ours)
{
	uint32_t value = 1;

	return ours ? bpf_map_update_elem(xdp->addresses_fd, address, &value, BPF_ANY)
		    : bpf_map_delete_elem(xdp->addresses_fd, address);
}

static int xdp_verdicts(const struct harp_xdp *xdp, uint64_t *counts, unsigned count)
{
	int processors = libbpf_num_possible_cpus(), rc = 0;
	uint64_t *each;

	if (processors < 0)
		return processors;
	each = calloc((size_t)processors, sizeof(*each));
	if (!each)
		return -ENOMEM;
	for (uint32_t i = 0; i < count && !rc; i++) {
		counts[i] = 0;
		if (i >= STEER_VERDICT_COUNT)
			continue;
		rc = bpf_map_lookup_elem(xdp->verdicts_fd, &i, each);
		for (int p = 0; p < processors && !rc; p++)
			counts[i] += each[p];
	}
	free(each);
	return rc;
}

static unsigned xdp_fds(const struct harp_xdp *xdp, int *fds, unsigned max)
{
	const int all[] = { xdp->link_fd,
			    xdp->program_fd,
			    xdp->xsks_fd,
			    xdp->ports_fd,
			    xdp->addresses_fd,
			    xdp->verdicts_fd,
			    bpf_object__btf_fd(xdp->object) };
	unsigned count = 0;

	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]) && count < max; i++)
		if (all[i] >= 0)
			fds[count++] = all[i];
	return count;
}

const struct harp_xdp_api *harp_xdp_api(void)
{
	static const struct harp_xdp_api api = {
		.version = HARP_XDP_VERSION,
		.verdict_count = STEER_VERDICT_COUNT,
		.attach = xdp_attach,
		.native = xdp_native,
		.xsk_set = xdp_xsk_set,
		.port_set = xdp_port_set,
		.address_set = xdp_address_set,
		.verdicts = xdp_verdicts,
		.fds = xdp_fds,
		.detach = xdp_detach,
		.attached_id = xdp_attached_id,
	};
	return &api;
}
