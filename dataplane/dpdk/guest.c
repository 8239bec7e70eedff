/* SPDX-License-Identifier: Apache-2.0 */
/* guest.c - memif ports that harp.dpdk drives in this process: the switch carries their handshake, too. */
#include <errno.h>
#include <rte_dev.h>
#include <string.h>

#include "dpdk/eal_log.h"
#include "dpdk/memif_switch.h"
#include "dpdk/port.h"

struct guest_probing {
	const char *device;
	const struct why *why;
	struct memif *memif;
	int err;
};

/* harp_dpdk.h's is opaque. */
static struct memif *guest_of(struct harp_dpdk_memif *memif)
{
	return (struct memif *)(uintptr_t)memif;
}

static void guest_probe_device(void *arg)
{
	struct guest_probing *probing = arg;
	char text[MEMIF_TEXT_BYTES], words[EAL_WORDS_BYTES];

	probing->err = memif_open(&probing->memif, probing->device, text, probing->why);
	if (probing->err)
		return;
	eal_log_mark();
	probing->err = rte_dev_probe(text);
	if (!probing->err)
		return;
	eal_log_words(words);
	probing->err = why_fail(probing->why, -EINVAL, "its driver refuses it: %s", words);
}

int guest_memif_probe(struct harp_dpdk_memif **out, const char *device, char *why_text,
		      size_t why_len)
{
	struct why why = { .text = why_text, .size = why_len };
	struct guest_probing probing = { .device = device, .why = &why };
	int err;

	why_about(&why, "%s", device);
	err = link_run_there(guest_probe_device, &probing);
	if (err)
		return why_fail(&why, err, "no event for DPDK's interrupt thread: %s",
				strerror(-err));
	if (probing.err)
		memif_close(probing.memif);
	else
		*out = (struct harp_dpdk_memif *)probing.memif;
	return probing.err;
}

void guest_memif_hold(struct harp_dpdk_memif *memif)
{
	memif_hold(guest_of(memif));
}

void guest_memif_release(struct harp_dpdk_memif *memif)
{
	memif_release(guest_of(memif));
}

void guest_memif_close(struct harp_dpdk_memif *memif)
{
	memif_close(guest_of(memif));
}
