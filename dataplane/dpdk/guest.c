/* SPDX-License-Identifier: Apache-2.0 */
/* guest.c - memif ports that somebody else drives in this process (harp.dpdk), behind our relay. */
#include <errno.h>
#include <rte_dev.h>

#include "dpdk/eal_log.h"
#include "dpdk/port.h"
#include "dpdk/relay.h"

struct guest_probing {
	const char *device;
	const struct why *why;
	struct relay *relay;
	int err;
};

/* harp_dpdk.h's is opaque. */
static struct relay *guest_relay(struct harp_dpdk_memif *memif)
{
	return (struct relay *)(uintptr_t)memif;
}

static void guest_probe_device(void *arg)
{
	struct guest_probing *probing = arg;
	char text[RELAY_TEXT_BYTES], words[EAL_WORDS_BYTES];

	probing->err = relay_open(&probing->relay, probing->device, text, probing->why);
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

	why_about(&why, "%s", device);
	link_run_there(guest_probe_device, &probing);
	if (probing.err)
		relay_close(probing.relay);
	else
		*out = (struct harp_dpdk_memif *)probing.relay;
	return probing.err;
}

void guest_memif_hold(struct harp_dpdk_memif *memif)
{
	relay_hold(guest_relay(memif));
}

void guest_memif_release(struct harp_dpdk_memif *memif)
{
	relay_release(guest_relay(memif));
}

void guest_memif_close(struct harp_dpdk_memif *memif)
{
	relay_close(guest_relay(memif));
}
