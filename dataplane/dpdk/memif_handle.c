/* SPDX-License-Identifier: Apache-2.0 */
/* memif_handle.c - memif ports that harp.dpdk drives in this process; the memif switch carries
 * their handshake, too. */
#include <errno.h>
#include <rte_dev.h>
#include <string.h>

#include "dpdk/eal_log.h"
#include "dpdk/memif_switch.h"
#include "dpdk/port.h"

struct memif_handle_probe_args {
	const char *device;
	const struct why *why;
	struct memif *memif;
	int err;
};

/* Opaque in harp_dpdk.h. */
static struct memif *memif_handle_of(struct harp_dpdk_memif *memif)
{
	return (struct memif *)(uintptr_t)memif;
}

static void memif_handle_probe_device(void *arg)
{
	struct memif_handle_probe_args *probing = arg;
	char text[MEMIF_TEXT_BYTES], words[EAL_WORDS_BYTES];

	probing->err = memif_open(&probing->memif, probing->device, text, probing->why);
	if (probing->err)
		return;
	eal_log_mark();
	probing->err = rte_dev_probe(text);
	if (!probing->err)
		return;
	eal_log_message(words);
	probing->err = why_fail(probing->why, -EINVAL, "its driver refuses it: %s", words);
}

int memif_handle_probe(struct harp_dpdk_memif **out, const char *device, char *why_text,
		       size_t why_len)
{
	struct why why = { .text = why_text, .size = why_len };
	struct memif_handle_probe_args probing = { .device = device, .why = &why };
	int err;

	why_about(&why, "%s", device);
	err = link_run_there(memif_handle_probe_device, &probing);
	if (err)
		return why_fail(&why, err, "no event for DPDK's interrupt thread: %s",
				strerror(-err));
	if (probing.err)
		memif_close(probing.memif);
	else
		*out = (struct harp_dpdk_memif *)probing.memif;
	return probing.err;
}

void memif_handle_hold(struct harp_dpdk_memif *memif)
{
	memif_hold(memif_handle_of(memif));
}

void memif_handle_release(struct harp_dpdk_memif *memif)
{
	memif_release(memif_handle_of(memif));
}

void memif_handle_close(struct harp_dpdk_memif *memif)
{
	memif_close(memif_handle_of(memif));
}
