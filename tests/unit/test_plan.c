/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan.c - which lanes a comm should have: over which NICs, how many of which kind, in which order. */
#include "device/device.h"
#include "process/config.h"
#include "connect/ctx.h"
#include "fake_routes.h"
#include "connect/reconnect_impl.h"
#include "process/config.h"

#define HARP_LANES 2u
#define KERNEL_LANES 3u /* over NIC n: n more */

/* ---- the rest of the plugin ------------------------------------------------------------------------- */

struct engine_set {
	int dev;
};

static struct engine_set sets[HOST_NICS];
static struct plugin_config config;
static struct reconnect u;
static struct rail_pair pairs[RAIL_PAIRS_MAX];
static unsigned pair_count;
static bool has_engines[HOST_NICS], engine_reaches_it;
static bool harp_ways, kernel_ways; /* candidates of that kind */
static rails_reaches *reaches;
static unsigned engine_asked;

static void host_ways(struct candidates *out, const struct engine_set *engines,
		      const struct handle *handle)
{
	out->count = engines ? harp_ways : kernel_ways;
}

const struct plugin_config *plugin_config(void)
{
	return &config;
}

unsigned device_kernel_lanes(const struct device *device)
{
	return KERNEL_LANES + (device->ifindex - 10u);
}

struct engine_set *interface_engines(int dev, char *why, size_t why_len)
{
	snprintf(why, why_len, "none");
	return has_engines[dev] ? &sets[dev] : NULL;
}

struct engine *engine_set_at(const struct engine_set *set, unsigned index)
{
	CHECK_EQ(index, 0);
	return (struct engine *)(uintptr_t)set;
}

bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len)
{
	CHECK(engine == (struct engine *)&sets[((struct engine_set *)engine)->dev]);
	CHECK_EQ(dst->bytes[15], 7);
	memset(source, 0, sizeof(*source));
	CHECK(!why && !why_len);
	engine_asked++;
	return engine_reaches_it;
}

unsigned rails_devices(int dev, int out[RAIL_PAIRS_MAX])
{
	CHECK_EQ(dev, 1);
	for (unsigned i = 0; i < 3; i++)
		out[i] = (int)i;
	return 3;
}

unsigned rails_pair(const int *devs, unsigned dev_count, const struct rails *peer,
		    rails_reaches *can, void *ctx, struct rail_pair out[RAIL_PAIRS_MAX])
{
	CHECK_EQ(dev_count, 3);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(devs[i], i);
	CHECK(peer == &u.peer_rails);
	CHECK(!ctx);
	reaches = can;
	memcpy(out, pairs, sizeof(pairs));
	return pair_count;
}

/* ---- a comm between NIC 1 and the peer's first ------------------------------------------------------- */

static void prepare(void)
{
	host_init();
	memset(&u, 0, sizeof(u));
	memset(&pairs, 0, sizeof(pairs));
	memset(has_engines, 0, sizeof(has_engines));
	for (unsigned i = 0; i < HOST_NICS; i++)
		sets[i].dev = (int)i;
	config = (struct plugin_config){ .path = PATH_AUTO, .lanes = HARP_LANES };
	pair_count = 1;
	pairs[0].dev = 1;
	engine_reaches_it = false;
	harp_ways = kernel_ways = true;
	reaches = NULL;
	engine_asked = 0;
	u.dev = 1;
	u.planned = u.taken = COMM_LANES_MAX;
	u.first_harp = true;
	u.handle = (struct handle){ .wire_min = 1,
				    .wire_max = 2,
				    .has_v4 = true,
				    .encrypted = true,
				    .harp_port = 1000,
				    .harp_placement = 3,
				    .harp_queues = 8,
				    .harp_queue = 4,
				    .kernel_port_v4 = 2000,
				    .kernel_port_v6 = 2001,
				    .v4 = peer_v4(1, 7),
				    .v6 = peer_v6(1, 7, true),
				    .scope_id = 5,
				    .listen_id = 99 };
	u.handle.ports[0] = (struct handle_port){ .port = 1001, .queue = 5 };
	u.handle.host_id[3] = 33;
	u.handle.secret[15] = 44;
}

/* The lanes as text: each rail's number, and the kind. */
static void expect_lanes(const char *want)
{
	char got[2 * COMM_LANES_MAX + 1] = "";

	reconnect_plan(&u);
	for (unsigned i = 0; i < u.lane_count; i++) {
		const struct reconnect_lane *lane = &u.lanes[i];

		CHECK_EQ(lane->index, i);
		CHECK_EQ(lane->backoff_ns, RECONNECT_BACKOFF_NS_MIN);
		CHECK(!lane->up && !lane->attempt && !lane->failures && !lane->next_ns);
		got[2 * i] = (char)('0' + lane->rail);
		got[2 * i + 1] = lane->harp ? 'h' : 'k';
		got[2 * i + 2] = 0;
	}
	CHECK_STR(got, want);
	CHECK_EQ(asked.forgotten, asked.listed);
}

/* ---- how many of which kind --------------------------------------------------------------------------- */

TEST(one_nic)
{
	prepare();
	has_engines[1] = true;
	expect_lanes("0h0h0k0k0k0k");
	CHECK_EQ(u.rail_count, 1);
	CHECK_EQ(u.rails[0].dev, 1);
	CHECK(u.rails[0].engines == &sets[1]);
	CHECK(!u.rails[0].backup);
	prepare(); /* the first is of the other kind: it comes first, and is one of them */
	has_engines[1] = true;
	u.first_harp = false;
	expect_lanes("0k0h0h0k0k0k");
}

TEST(kinds_that_there_are)
{
	prepare(); /* no engines */
	u.first_harp = false;
	expect_lanes("0k0k0k0k");
	CHECK(!u.rails[0].engines && !asked.engines);
	prepare(); /* engines, and no way from them */
	has_engines[1] = true;
	harp_ways = u.first_harp = false;
	expect_lanes("0k0k0k0k");
	prepare(); /* the kernel has no way */
	has_engines[1] = true;
	kernel_ways = false;
	expect_lanes("0h0h");
	prepare(); /* a path of HARP's alone */
	has_engines[1] = true;
	config.path = PATH_XDP;
	expect_lanes("0h0h");
	prepare();
	has_engines[1] = true;
	config.path = PATH_DPDK;
	expect_lanes("0h0h");
	prepare(); /* of another network namespace */
	has_engines[1] = true;
	nics[1].netns = 77;
	expect_lanes("0h0h");
	prepare(); /* neither is there any more: the first lane is */
	harp_ways = kernel_ways = false;
	expect_lanes("0h");
	prepare();
	harp_ways = kernel_ways = u.first_harp = false;
	expect_lanes("0k");
}

/* What each side has said is the most. */
TEST(as_many_as_both_say)
{
	prepare();
	has_engines[1] = true;
	u.planned = 4;
	expect_lanes("0h0h0k0k");
	prepare();
	has_engines[1] = true;
	u.taken = 1;
	expect_lanes("0h");
	prepare();
	has_engines[1] = true;
	config.lanes = 40;
	reconnect_plan(&u);
	CHECK_EQ(u.lane_count, COMM_LANES_MAX);
}

/* What was asked of candidates.c: both kinds of the same NICs. */
TEST(what_is_asked)
{
	prepare();
	has_engines[1] = true;
	config.path = PATH_XDP;
	expect_lanes("0h0h");
	CHECK_EQ(asked.listed, 1);
	CHECK_EQ(asked.dev, 1);
	CHECK(asked.engines == &sets[1]);
	CHECK_EQ(asked.handle.harp_port, 1000);
	prepare();
	has_engines[1] = true;
	expect_lanes("0h0h0k0k0k0k");
	CHECK_EQ(asked.listed, 2);
	CHECK(!asked.engines);
}

/* ---- several NICs ------------------------------------------------------------------------------------- */

static void add_entry(unsigned nic, const struct harp_addr *addr, uint16_t harp_port)
{
	u.peer_rails.entry[u.peer_rails.count++] =
		(struct rail_entry){ .addr = *addr,
				     .nic = (uint8_t)nic,
				     .harp_port = harp_port,
				     .kernel_port = (uint16_t)(harp_port + 1),
				     .placement = (uint8_t)(harp_port % 8),
				     .queues = (uint16_t)(harp_port + 2),
				     .queue = (uint16_t)(harp_port + 3) };
}

TEST(several_nics)
{
	const struct harp_addr v4 = peer_v4(2, 7), v6 = peer_v6(2, 7, false), other = peer_v4(3, 9);
	const struct handle *h = &u.rails[1].handle;

	prepare();
	has_engines[1] = has_engines[0] = true;
	pair_count = 3;
	pairs[1] = (struct rail_pair){ .dev = 2, .nic = 6, .backup = true };
	pairs[2] = (struct rail_pair){ .dev = 0, .nic = 8 };
	add_entry(6, &v4, 3000);
	add_entry(8, &other, 5000);
	add_entry(6, &v6, 4001);
	expect_lanes("0h0h0k0k0k0k"
		     "1k1k1k1k1k"
		     "2h2h2k2k2k");
	CHECK_EQ(u.rail_count, 3);
	CHECK_EQ(u.rails[1].dev, 2);
	CHECK(u.rails[1].backup && !u.rails[0].backup && !u.rails[2].backup);
	CHECK(!u.rails[1].engines && u.rails[2].engines == &sets[0]);
	CHECK(u.rails[1].bound && u.rails[2].bound);
	CHECK_MEM(&u.rails[0].handle, &u.handle, sizeof(u.handle));
	/* Of the peer's NIC alone, and who it is stays. */
	CHECK(h->has_v4 && h->has_v6 && h->encrypted);
	CHECK_MEM(&h->v4, &v4, sizeof(v4));
	CHECK_MEM(&h->v6, &v6, sizeof(v6));
	CHECK_EQ(h->kernel_port_v4, 3001);
	CHECK_EQ(h->kernel_port_v6, 4002);
	CHECK_EQ(h->harp_port, 4001);
	CHECK_EQ(h->harp_placement, 1);
	CHECK_EQ(h->harp_queues, 4003);
	CHECK_EQ(h->harp_queue, 4004);
	CHECK_EQ(h->ports[0].port, 0);
	CHECK_EQ(h->listen_id, 99);
	CHECK_EQ(h->host_id[3], 33);
	CHECK_EQ(h->secret[15], 44);
	h = &u.rails[2].handle;
	CHECK(h->has_v4 && !h->has_v6);
	CHECK_MEM(&h->v4, &other, sizeof(other));
	CHECK_EQ(h->kernel_port_v4, 5001);
	CHECK_EQ(h->kernel_port_v6, 0);
	CHECK_EQ(h->harp_port, 5000);
}

/* Of a NIC that the peer says nothing of any more nothing is known: not what its first one has. */
TEST(a_nic_without_entries)
{
	const struct handle *h = &u.rails[1].handle;

	prepare();
	pair_count = 2;
	pairs[1] = (struct rail_pair){ .dev = 2, .nic = 6 };
	reconnect_plan(&u);
	CHECK(!h->has_v4 && !h->has_v6);
	CHECK(!h->harp_port && !h->kernel_port_v4 && !h->kernel_port_v6 && !h->ports[0].port);
}

/* Lanes of the first rail leave by our NIC where that is what the host would do. */
TEST(the_first_is_bound)
{
	prepare();
	expect_lanes("0h0k0k0k0k");
	CHECK(u.rails[0].bound);
	CHECK_EQ(route.asked, 1);
	prepare(); /* by another NIC */
	u.handle.v4 = peer_v4(2, 7);
	reconnect_plan(&u);
	CHECK(!u.rails[0].bound);
	prepare(); /* no way at all */
	route.rc = -ENETUNREACH;
	reconnect_plan(&u);
	CHECK(!u.rails[0].bound);
	prepare(); /* IPv4 where there is both */
	u.handle.has_v6 = true;
	reconnect_plan(&u);
	CHECK(u.rails[0].bound);
	prepare(); /* IPv6 where there is no IPv4 */
	u.handle.has_v4 = false;
	u.handle.has_v6 = true;
	u.handle.v4 = peer_v4(2, 7);
	u.handle.v6 = peer_v6(1, 7, false);
	reconnect_plan(&u);
	CHECK(u.rails[0].bound);
	prepare(); /* of a link-local address the route says nothing */
	u.handle.has_v4 = false;
	u.handle.has_v6 = true;
	reconnect_plan(&u);
	CHECK(!u.rails[0].bound);
}

/* ---- is there a way? ----------------------------------------------------------------------------------- */

static bool can(int dev, const struct harp_addr *addr)
{
	const struct rail_entry entry = { .addr = *addr };

	return reaches(NULL, dev, &entry);
}

TEST(ways)
{
	const struct harp_addr v4 = peer_v4(2, 7), v6 = peer_v6(2, 7, false);

	prepare();
	reconnect_plan(&u);
	route.asked = 0;
	CHECK(can(2, &v4) && can(2, &v6));
	CHECK_EQ(engine_asked, 0);
	CHECK(!can(3, &v4)); /* it leaves by another NIC */
	nics[2].has_v4 = false;
	CHECK(!can(2, &v4) && can(2, &v6));
	nics[2].has_v4 = true;
	nics[2].has_v6 = false;
	CHECK(can(2, &v4) && !can(2, &v6));
	nics[2].has_v6 = true;
	route.is_local = true;
	CHECK(!can(2, &v4));
	route.is_local = false;
	route.rc = -ENETUNREACH;
	nics[0].ifindex = 0; /* as the route that there is not */
	CHECK(!can(0, &v4));
	route.rc = 0;
	nics[2].netns = 77;
	CHECK(!can(2, &v4));
	/* Its stack has one, or not. */
	route.asked = 0;
	has_engines[2] = engine_reaches_it = true;
	CHECK(can(2, &v4) && can(2, &v6));
	CHECK_EQ(route.asked, 0);
	CHECK_EQ(engine_asked, 2);
	engine_reaches_it = false;
	CHECK(!can(2, &v4));
	nics[2].netns = 0;
	CHECK(can(2, &v4));
	engine_reaches_it = true;
	nics[2].has_v4 = false; /* nor does the peer's kernel answer one that we have not */
	CHECK(!can(2, &v4));
}
