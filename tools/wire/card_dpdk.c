/* SPDX-License-Identifier: Apache-2.0 */
/* card_dpdk.c - a queue of a DPDK port that this process has for itself. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/why.h"
#include "host/dpdk_library.h"
#include "host/dpdk_take.h"
#include "wire.h"

#define LINK_NS UINT64_C(10000000000)
#define LINK_LOOK_NS 5000000

/* What can be said of the port before it is opened. */
static int dpdk_spec(const struct card_options *opt, const char *text, struct harp_port_spec *spec,
		     const struct harp_dpdk_api **api, const struct why *why)
{
	uint32_t queues;
	int rc;

	if (opt->xdp_mode || opt->copy_mode)
		return why_fail(why, -EINVAL, "--xdp and --copy are of AF_XDP");
	rc = harp_port_spec_parse(text, spec, why->text, why->size);
	if (rc)
		return rc;
	queues = spec->queues ? spec->queues : 1;
	if (opt->queue >= queues)
		return why_fail(why, -EINVAL,
				"queue %u is asked for and the port has %u; say queues=%u in its "
				"text",
				opt->queue, queues, opt->queue + 1);
	rc = dpdk_take_check(spec, why->text, why->size);
	return rc ? rc : dpdk_library_open(opt->lib_dir, api, why);
}

int card_dpdk_check(const struct card_options *opt, const char *text, char *why, size_t why_len)
{
	struct why told = { .text = why, .size = why_len };
	const struct harp_dpdk_api *api;
	struct harp_port_spec spec;

	why_about(&told, "%s", opt->ifname);
	return dpdk_spec(opt, text, &spec, &api, &told);
}

static int dpdk_device(struct card *card, const struct card_options *opt, const char *text,
		       const struct why *why)
{
	const struct harp_dpdk_eal_options eal = { .size = sizeof(eal) };
	struct harp_dpdk_port_options port = { .size = sizeof(port) };
	struct harp_port_spec spec;
	int rc = dpdk_spec(opt, text, &spec, &card->dpdk, why);

	if (!rc)
		rc = card->dpdk->start(&eal, why->text, why->size);
	if (rc)
		return rc;
	port.device = spec.device;
	port.mtu_bytes = spec.mtu_bytes;
	port.queues = spec.queues;
	port.frame_count = spec.frame_count ? spec.frame_count : opt->frame_count;
	return card->dpdk->port_open(&card->dpdk_port, &port, why->text, why->size);
}

int card_dpdk_open(struct card *card, const struct card_options *opt, const char *text, char *why,
		   size_t why_len)
{
	struct why told = { .text = why, .size = why_len };
	struct harp_dpdk_info info;
	int rc;

	why_about(&told, "%s", opt->ifname);
	rc = dpdk_device(card, opt, text, &told);
	if (!rc)
		rc = card->dpdk->port_nic(card->dpdk_port, opt->queue, &card->nic, why, why_len);
	if (!rc)
		rc = card->dpdk->port_info(card->dpdk_port, &info);
	if (!rc)
		snprintf(card->mode, sizeof(card->mode), "dpdk %s%s", info.driver,
			 info.driver_copies ? ", the driver copies" : "");
	return rc;
}

int card_link(const struct card *card)
{
	const struct timespec look = { .tv_nsec = LINK_LOOK_NS };
	uint64_t until_ns = wire_clock_ns() + LINK_NS;
	struct harp_dpdk_info info = { .up = 1 };

	while (card->dpdk_port && card->dpdk->port_info(card->dpdk_port, &info) == 0 && !info.up) {
		if (wire_clock_ns() >= until_ns)
			return -ENETDOWN;
		nanosleep(&look, NULL); /* drivers have no descriptor that tells */
	}
	return 0;
}

void card_dpdk_close(struct card *card)
{
	if (card->dpdk_port)
		card->dpdk->port_close(card->dpdk_port);
}
