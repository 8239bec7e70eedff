/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect_host.h - a host that is not there: its NICs, its routes, and the ways to a peer that candidates.c would find. For one
 * program each. */
#ifndef HARP_TESTS_UPKEEP_HOST_H
#define HARP_TESTS_UPKEEP_HOST_H

#include <errno.h>

#include "connect/candidates.h"
#include "check.h"
#include "context/plugin.h"

#define HOST_NICS 4u

/* NIC n is interface 10 + n, and has 10.0.n.1. */
static struct device nics[HOST_NICS];
/* An address's last byte but one names the NIC that it leaves by. */
static struct {
	int rc;
	bool is_local;
	unsigned asked;
} route;

/* What candidates_list() was asked, and how often what it gave was given back. */
static struct {
	unsigned listed, forgotten;
	int dev;
	struct engine_set *engines;
	struct handle handle;
} asked;

/* The ways to a peer: of the test's making. */
static void host_ways(struct candidates *out, const struct engine_set *engines,
		      const struct handle *handle);

static inline void host_init(void)
{
	memset(&route, 0, sizeof(route));
	memset(&asked, 0, sizeof(asked));
	memset(nics, 0, sizeof(nics));
	for (unsigned i = 0; i < HOST_NICS; i++) {
		nics[i].ifindex = 10 + i;
		nics[i].has_v4 = nics[i].has_v6 = true;
		nics[i].addr_v4 = harp_addr_v4(10, 0, (uint8_t)i, 1);
		nics[i].addr_v6.bytes[0] = 0xfd;
		nics[i].addr_v6.bytes[15] = (uint8_t)i;
	}
}

/* The peer's, whose way leads over that NIC. */
static inline struct harp_addr peer_v4(unsigned nic, unsigned host)
{
	return harp_addr_v4(10, 0, (uint8_t)nic, (uint8_t)host);
}

static inline struct harp_addr peer_v6(unsigned nic, unsigned host, bool link_local)
{
	struct harp_addr addr = { { 0 } };

	addr.bytes[0] = link_local ? 0xfe : 0xfd;
	addr.bytes[1] = link_local ? 0x80 : 0;
	addr.bytes[14] = (uint8_t)nic;
	addr.bytes[15] = (uint8_t)host;
	return addr;
}

int harp_host_route(const struct harp_addr *dst, struct harp_host_route *out)
{
	route.asked++;
	memset(out, 0, sizeof(*out));
	if (route.rc)
		return route.rc;
	out->ifindex = 10u + dst->bytes[14];
	out->is_local = route.is_local;
	return 0;
}

const struct device *plugin_device(int dev)
{
	CHECK(dev >= 0 && dev < (int)HOST_NICS);
	return &nics[dev];
}

void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct handle *handle)
{
	asked.listed++;
	asked.dev = dev;
	asked.engines = engines;
	asked.handle = *handle;
	memset(out, 0, sizeof(*out));
	host_ways(out, engines, handle);
}

void candidates_forget(struct candidates *c)
{
	asked.forgotten++;
}

#endif
