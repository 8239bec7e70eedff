/* SPDX-License-Identifier: Apache-2.0 */
/* memif_handle.c - memif ports that harp.dpdk drives in this process. */
#include <errno.h>
#include <rte_dev.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/eal_log.h"
#include "dpdk/port.h"

struct memif_handle {
	struct memif memif;
	uint32_t link_ends; /* link_end_count() at the time of its start */
	bool is_started;
};

struct memif_handle_probe_args {
	struct memif *memif;
	const struct why *why;
	int err;
};

/* Opaque in harp_dpdk.h. */
static struct memif_handle *memif_handle_of(struct harp_dpdk_memif *memif)
{
	return (struct memif_handle *)(uintptr_t)memif;
}

static void memif_handle_probe_device(void *arg)
{
	struct memif_handle_probe_args *args = arg;
	char text[EAL_TEXT_BYTES];

	args->err = memif_prepare(args->memif, args->why);
	if (args->err)
		return;
	eal_log_mark();
	args->err = rte_dev_probe(args->memif->text);
	if (!args->err)
		return;
	eal_log_message(text);
	args->err = why_fail(args->why, -EINVAL, "its driver rejects it: %s", text);
}

int memif_handle_probe(struct harp_dpdk_memif **out, const char *device, char *why_text,
		       size_t why_len)
{
	struct why why = { .text = why_text, .size = why_len };
	struct memif_handle *handle = calloc(1, sizeof(*handle));
	struct memif_handle_probe_args args = { .why = &why };
	int err;

	why_about(&why, "%s", device);
	if (!handle)
		return why_fail(&why, -ENOMEM, "out of memory");
	args.memif = &handle->memif;
	err = memif_parse(&handle->memif, device, &why);
	if (!err) {
		err = link_run_in_intr(memif_handle_probe_device, &args);
		if (err)
			why_fail(&why, err, "no event for DPDK's interrupt thread: %s",
				 strerror(-err));
		else
			err = args.err;
	}
	if (err)
		free(handle);
	else
		*out = (struct harp_dpdk_memif *)handle;
	return err;
}

int memif_handle_ready(struct harp_dpdk_memif *memif)
{
	struct memif_handle *handle = memif_handle_of(memif);

	handle->link_ends = link_end_count();
	handle->is_started = true;
	return handle->memif.is_server || memif_has_server(&handle->memif) ? 0 : -ECONNREFUSED;
}

void memif_handle_leave(struct harp_dpdk_memif *memif, uint16_t port)
{
	struct memif_handle *handle = memif_handle_of(memif);

	if (!handle->memif.is_server && handle->is_started)
		link_wait_up(port, handle->link_ends);
	handle->is_started = false;
}

void memif_handle_close(struct harp_dpdk_memif *memif)
{
	struct memif_handle *handle = memif_handle_of(memif);

	if (handle->memif.is_server)
		link_retire(&handle->memif);
	free(handle);
}
