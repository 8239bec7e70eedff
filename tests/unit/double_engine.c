/* SPDX-License-Identifier: Apache-2.0 */
/* double_engine.c - stands in for engine.c and lane_harp.c: no device has an engine. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "poll/control.h"
#include "poll/engine.h"
#include "harp_host.h"
#include "lane/lane_harp.h"
#include "wire/queue_placement.h"

enum harp_instance_mode engine_set_mode(const struct engine_set *set)
{
	(void)set;
	return HARP_MODE_NONE;
}

int engine_set_port(const struct engine_set *set, struct harp_instance_port *out)
{
	(void)set;
	(void)out;
	return -ENOTSUP;
}

enum harp_page_fallback engine_is_forbidden(const struct device *device, char *why, size_t why_len)
{
	(void)device;
	snprintf(why, why_len, "this build has no stack");
	return HARP_PAGE_FALLBACK_setting;
}

enum harp_page_fallback engine_fallback(int dev)
{
	(void)dev;
	return HARP_PAGE_FALLBACK_setting;
}

struct engine_set *engine_set_open(int dev, char *why, size_t why_len)
{
	(void)dev;
	snprintf(why, why_len, "this build has no stack");
	return NULL;
}

void engine_set_close(struct engine_set *set)
{
	(void)set;
}

unsigned engine_set_count(const struct engine_set *set)
{
	(void)set;
	return 0;
}

struct engine *engine_set_at(const struct engine_set *set, unsigned index)
{
	(void)set;
	(void)index;
	return NULL;
}

struct engine *engine_set_choose(struct engine_set *set)
{
	(void)set;
	return NULL;
}

void engine_placement(const struct engine *engine, struct placement_end *out)
{
	(void)engine;
	memset(out, 0, sizeof(*out));
}

void engine_ports(const struct engine *engine, uint16_t *first, uint16_t *last)
{
	(void)engine;
	*first = 61000;
	*last = 65535;
}

unsigned engine_index(const struct engine *engine)
{
	(void)engine;
	return 0;
}

void engine_listener_due(struct engine *engine, uint64_t at_ns)
{
	(void)engine;
	(void)at_ns;
}

void engine_set_listener(struct engine *engine, struct work *door)
{
	(void)engine;
	(void)door;
}

void engine_load(struct engine *engine, int change)
{
	(void)engine;
	(void)change;
}

struct poller *engine_poller(struct engine *engine)
{
	(void)engine;
	return NULL;
}

struct harp_stack *engine_stack(struct engine *engine)
{
	(void)engine;
	return NULL;
}

const char *engine_describe(struct engine *engine)
{
	(void)engine;
	return "none";
}

bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len)
{
	(void)engine;
	(void)dst;
	(void)source;
	snprintf(why, why_len, "this build has no stack");
	return false;
}

bool background_turn(void)
{
	return false;
}

unsigned background_sleep(struct pollfd *fds, uint64_t now_ns, uint64_t *until_ns)
{
	(void)fds;
	(void)now_ns;
	(void)until_ns;
	return 0;
}

void background_awake(const struct pollfd *fds, unsigned count)
{
	(void)fds;
	(void)count;
}

void engine_fork_prepare(void)
{
}

void engine_fork_parent(void)
{
}

void engine_fork_child(void)
{
}

int lane_harp_connect(struct engine *engine, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, int dscp, struct lane **out)
{
	(void)engine;
	(void)local;
	(void)remote;
	(void)dscp;
	*out = NULL;
	return -ENOTSUP;
}

int lane_harp_accept(struct engine *engine, struct harp_listener *listener, struct lane **out)
{
	(void)engine;
	(void)listener;
	*out = NULL;
	return -EAGAIN;
}

void lane_harp_delay_acks(struct lane *lane)
{
	(void)lane;
}

void lane_harp_observe(struct lane *lane, uint64_t latency_ns)
{
	(void)lane;
	(void)latency_ns;
}

void lane_harp_label(struct lane *lane, const char *text)
{
	(void)lane;
	(void)text;
}

void lane_harp_tcp_options(struct harp_tcp_options *opt, int dscp)
{
	(void)dscp;
	memset(opt, 0, sizeof(*opt));
}

int harp_tcp_listen(struct harp_stack *stack, const struct harp_endpoint *local,
		    const struct harp_tcp_options *opt, struct harp_listener **out)
{
	(void)stack;
	(void)local;
	(void)opt;
	*out = NULL;
	return -ENOTSUP;
}

void harp_listener_endpoint(const struct harp_listener *l, struct harp_endpoint *local)
{
	(void)l;
	memset(local, 0, sizeof(*local));
}

void harp_listener_close(struct harp_listener *listener)
{
	(void)listener;
}

int harp_host_route(const struct harp_addr *dst, struct harp_host_route *out)
{
	memset(out, 0, sizeof(*out));
	out->next_hop = *dst;
	out->is_local = 1;
	out->ifindex = 1;
	return 0;
}

int harp_host_has_default_route(const char *ifname)
{
	(void)ifname;
	return 0;
}

int harp_host_address_state(const char *ifname, const struct harp_addr *addr)
{
	(void)ifname;
	(void)addr;
	return -ENOTSUP;
}

/* No engine, and so no stack that could be asked. */
bool harp_stack_memory_supported(const struct harp_stack *stack)
{
	(void)stack;
	return false;
}

int harp_stack_memory_add(struct harp_stack *stack, const void *base, size_t bytes)
{
	(void)stack;
	(void)base;
	(void)bytes;
	return -ENOTSUP;
}

int harp_stack_memory_remove(struct harp_stack *stack, const void *base, size_t bytes)
{
	(void)stack;
	(void)base;
	(void)bytes;
	return -ENOENT;
}

ssize_t harp_stack_memory_evict(struct harp_stack *stack, const void *base, size_t bytes)
{
	(void)stack;
	(void)base;
	(void)bytes;
	return -ENOENT;
}
