/* SPDX-License-Identifier: Apache-2.0 */
/* port_spec.c - parses and formats the specification of a DPDK port (grammar: harp_host.h). */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/util.h"
#include "base/why.h"
#include "harp_host.h"

#define PORT_MTU_MIN 68u        /* RFC 791 section 3.2 */
#define PORT_MTU_MAX 16000u     /* fits a frame of 16384 bytes */
#define PORT_MTU_IPV6_MIN 1280u /* RFC 8200 section 5 */
#define PORT_VLAN_MAX 4094u
#define PORT_QUEUES_MAX 64u
#define PORT_FRAMES_MIN 256u
#define PORT_FRAMES_MAX 1048576u

/* A key and its value during parsing. */
struct port_item {
	struct harp_port_spec *spec;
	const char *key, *value;
	const struct why *why;
};

static int __attribute__((format(printf, 2, 3)))
item_fail(const struct port_item *item, const char *format, ...)
{
	char reason[160];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	return why_fail(item->why, -EINVAL, "%s=%.64s: %s", item->key, item->value, reason);
}

static bool port_has_family(const struct harp_port_spec *spec, bool v4)
{
	for (uint32_t i = 0; i < spec->address_count; i++)
		if (harp_addr_is_v4(&spec->addresses[i]) == v4)
			return true;
	return false;
}

/* ---- values --------------------------------------------------------------------------------- */

/* Decimal digits only: no sign, space or base prefix. */
static int port_digits(const char *text, size_t len, uint32_t max, uint32_t *out)
{
	uint64_t value = 0;

	if (!len || len > 10)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		value = value * 10 + (uint64_t)(text[i] - '0');
	}
	if (value > max)
		return -EINVAL;
	*out = (uint32_t)value;
	return 0;
}

static int port_address(const char *text, size_t len, struct harp_addr *out)
{
	char copy[HARP_ADDR_TEXT_MAX];

	if (len >= sizeof(copy))
		return -EINVAL;
	memcpy(copy, text, len);
	copy[len] = '\0';
	return harp_addr_parse(copy, out);
}

/* ADDRESS/LEN of len bytes. */
static int port_prefix(const char *text, size_t len, struct harp_addr *addr, uint32_t *prefix_len)
{
	const char *slash = memchr(text, '/', len);
	size_t before = slash ? (size_t)(slash - text) : len;

	if (!slash || port_address(text, before, addr))
		return -EINVAL;
	return port_digits(slash + 1, len - before - 1, harp_addr_is_v4(addr) ? 32 : 128,
			   prefix_len);
}

static int item_number(const struct port_item *item, uint32_t min, uint32_t max, uint32_t *out)
{
	if (port_digits(item->value, strlen(item->value), max, out) || *out < min)
		return item_fail(item, "needs a number in %u..%u", min, max);
	return 0;
}

static int item_address(const struct port_item *item)
{
	struct harp_port_spec *spec = item->spec;
	struct harp_addr addr;
	uint32_t prefix_len;

	if (port_prefix(item->value, strlen(item->value), &addr, &prefix_len))
		return item_fail(item, "needs ADDRESS/LEN, such as 10.0.0.1/24 or fd00::1/64");
	if (!addr_is_unicast(&addr))
		return item_fail(item, "not a host's address");
	for (uint32_t i = 0; i < spec->address_count; i++)
		if (addr_equal(&spec->addresses[i], &addr))
			return item_fail(item, "repeated");
	if (spec->address_count == HARP_PORT_ADDRESSES_MAX)
		return item_fail(item, "a port has at most %u addresses", HARP_PORT_ADDRESSES_MAX);
	spec->addresses[spec->address_count] = addr;
	spec->prefix_lens[spec->address_count++] = prefix_len;
	return 0;
}

static int item_gateway(const struct port_item *item)
{
	struct harp_addr addr, *gateway;

	if (port_address(item->value, strlen(item->value), &addr) || !addr_is_unicast(&addr))
		return item_fail(item, "needs a router's address, such as 10.0.0.254 or fd00::fe");
	gateway = harp_addr_is_v4(&addr) ? &item->spec->gateway_v4 : &item->spec->gateway_v6;
	if (!addr_is_zero(gateway))
		return item_fail(item, "repeated; each family has one");
	*gateway = addr;
	return 0;
}

static int item_route(const struct port_item *item)
{
	struct harp_port_spec *spec = item->spec;
	const char *at = strchr(item->value, '@');
	struct harp_port_route route;

	if (!at ||
	    port_prefix(item->value, (size_t)(at - item->value), &route.prefix,
			&route.prefix_len) ||
	    port_address(at + 1, strlen(at + 1), &route.gateway) ||
	    !addr_is_unicast(&route.gateway) ||
	    harp_addr_is_v4(&route.gateway) != harp_addr_is_v4(&route.prefix))
		return item_fail(item, "needs PREFIX/LEN@GATEWAY of one family, such as "
				       "10.1.0.0/16@10.0.0.254");
	if (!route.prefix_len)
		return item_fail(item, "set the default route with gw=");
	route.prefix =
		addr_masked(&route.prefix,
			    route.prefix_len + (harp_addr_is_v4(&route.prefix) ? ADDR_V4_BITS : 0));
	for (uint32_t i = 0; i < spec->route_count; i++)
		if (spec->routes[i].prefix_len == route.prefix_len &&
		    addr_equal(&spec->routes[i].prefix, &route.prefix))
			return item_fail(item, "repeated route to this prefix");
	if (spec->route_count == HARP_PORT_ROUTES_MAX)
		return item_fail(item, "a port has at most %u routes", HARP_PORT_ROUTES_MAX);
	spec->routes[spec->route_count++] = route;
	return 0;
}

static bool port_name_valid(const char *name)
{
	size_t len = strlen(name);

	return len >= 1 && len <= 15 &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-") ==
		       len;
}

static int item_name(const struct port_item *item)
{
	if (!port_name_valid(item->value))
		return item_fail(item, "needs 1 to 15 letters, digits and _ . : -");
	strcpy(item->spec->name, item->value);
	return 0;
}

static int item_mtu(const struct port_item *item)
{
	return item_number(item, PORT_MTU_MIN, PORT_MTU_MAX, &item->spec->mtu_bytes);
}

static int item_vlan(const struct port_item *item)
{
	return item_number(item, 1, PORT_VLAN_MAX, &item->spec->vlan_id);
}

static int item_queues(const struct port_item *item)
{
	return item_number(item, 1, PORT_QUEUES_MAX, &item->spec->queues);
}

static int item_frames(const struct port_item *item)
{
	return item_number(item, PORT_FRAMES_MIN, PORT_FRAMES_MAX, &item->spec->frame_count);
}

static int item_take(const struct port_item *item)
{
	if (strcmp(item->value, "default-route") != 0)
		return item_fail(item, "default-route is the only value");
	item->spec->take_default_route = true;
	return 0;
}

/* parsing */

static const struct port_key {
	const char *key;
	bool repeated;
	int (*read)(const struct port_item *item);
} port_keys[] = {
	{ "ip", true, item_address },     { "gw", true, item_gateway },
	{ "route", true, item_route },    { "name", false, item_name },
	{ "mtu", false, item_mtu },       { "vlan", false, item_vlan },
	{ "queues", false, item_queues }, { "frames", false, item_frames },
	{ "take", false, item_take },
};
#define PORT_KEYS ARRAY_SIZE(port_keys)

/* Parses one key=value; text is a writable copy. */
static int port_item(struct harp_port_spec *spec, char *text, bool seen[PORT_KEYS],
		     const struct why *why)
{
	struct port_item item = { .spec = spec, .key = text, .why = why };
	char *equals = strchr(text, '=');

	if (!equals)
		return why_fail(why, -EINVAL, "\"%.64s\": KEY=VALUE expected between semicolons",
				text);
	*equals = '\0';
	item.value = equals + 1;
	for (size_t i = 0; i < PORT_KEYS; i++) {
		if (strcmp(text, port_keys[i].key) != 0)
			continue;
		if (seen[i] && !port_keys[i].repeated)
			return item_fail(&item, "repeated");
		seen[i] = true;
		return port_keys[i].read(&item);
	}
	return item_fail(&item, "no such key; keys are ip, gw, route, name, mtu, vlan, queues, "
				"frames, take");
}

static int port_device(struct harp_port_spec *spec, const char *text, const struct why *why)
{
	size_t len = strlen(text);

	if (!len || text[0] == ',' || len >= sizeof(spec->device))
		return why_fail(
			why, -EINVAL,
			"must begin with a device of 1 to %zu bytes, such as 0000:3b:00.0 or "
			"net_memif0,role=client",
			sizeof(spec->device) - 1);
	memcpy(spec->device, text, len + 1);
	return 0;
}

static int port_default_name(struct harp_port_spec *spec, const struct why *why)
{
	size_t len = strcspn(spec->device, ",");

	if (spec->name[0])
		return 0;
	if (len > sizeof(spec->name) - 1)
		len = sizeof(spec->name) - 1;
	memcpy(spec->name, spec->device, len);
	if (!port_name_valid(spec->name))
		return why_fail(
			why, -EINVAL,
			"the device is not a valid name (letters, digits and _ . : -); set name=");
	return 0;
}

static int port_consistent(const struct harp_port_spec *spec, const struct why *why)
{
	char text[HARP_ADDR_TEXT_MAX];
	bool has_v4 = port_has_family(spec, true), has_v6 = port_has_family(spec, false);
	const struct harp_addr *unreachable = NULL;

	if (has_v6 && spec->mtu_bytes && spec->mtu_bytes < PORT_MTU_IPV6_MIN)
		return why_fail(why, -EINVAL, "mtu=%u: IPv6 needs at least %u", spec->mtu_bytes,
				PORT_MTU_IPV6_MIN);
	if (!addr_is_zero(&spec->gateway_v4) && !has_v4)
		unreachable = &spec->gateway_v4;
	if (!addr_is_zero(&spec->gateway_v6) && !has_v6)
		unreachable = &spec->gateway_v6;
	for (uint32_t i = 0; i < spec->route_count && !unreachable; i++)
		if (harp_addr_is_v4(&spec->routes[i].gateway) ? !has_v4 : !has_v6)
			unreachable = &spec->routes[i].gateway;
	if (unreachable)
		return why_fail(why, -EINVAL,
				"the gateway %s: the port has no address of its family; set ip=",
				harp_addr_format(unreachable, text));
	return 0;
}

static int port_parse(char *text, struct harp_port_spec *spec, const struct why *why)
{
	bool seen[PORT_KEYS] = { false };
	char *next = strchr(text, ';');
	int rc;

	if (next)
		*next++ = '\0';
	rc = port_device(spec, text, why);
	while (!rc && next) {
		char *item = next;

		next = strchr(item, ';');
		if (next)
			*next++ = '\0';
		rc = port_item(spec, item, seen, why);
	}
	if (!rc)
		rc = port_default_name(spec, why);
	return rc ? rc : port_consistent(spec, why);
}

/* Sets the subject to the device without arguments, up to the first unprintable byte. */
static void port_subject(struct why *why, const char *text)
{
	size_t len = 0;

	while (text[len] > ' ' && text[len] <= '~' && text[len] != ',' && text[len] != ';')
		len++;
	why_about(why, "DPDK port %.*s", len < 40 ? (int)len : 40, text);
}

int harp_port_spec_parse(const char *text, struct harp_port_spec *out, char *why, size_t why_len)
{
	struct why reason = { .text = why, .size = why_len };
	size_t len = text ? strnlen(text, HARP_PORT_TEXT_MAX) : 0;
	char *copy;
	int rc;

	*out = (struct harp_port_spec){ .queues = 1 };
	if (why && why_len)
		why[0] = '\0';
	port_subject(&reason, text ? text : "");
	if (len == HARP_PORT_TEXT_MAX)
		return why_fail(&reason, -EINVAL, "the text has more than %u bytes",
				HARP_PORT_TEXT_MAX - 1);
	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] > '~')
			return why_fail(
				&reason, -EINVAL,
				"byte %zu of its text: spaces and non-ASCII bytes are invalid",
				i + 1);
	copy = strdup(text ? text : "");
	if (!copy)
		return why_fail(&reason, -ENOMEM, "out of memory");
	rc = port_parse(copy, out, &reason);
	free(copy);
	if (rc)
		*out = (struct harp_port_spec){ .queues = 1 };
	return rc;
}

/* formatting */

struct port_writer {
	char *buf;
	size_t size, used;
};

static void __attribute__((format(printf, 2, 3)))
writer_add(struct port_writer *w, const char *format, ...)
{
	size_t at = w->used < w->size ? w->used : w->size;
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(w->buf + at, w->size - at, format, args);
	va_end(args);
	w->used += len > 0 ? (size_t)len : 0;
}

static void writer_number(struct port_writer *w, const char *key, uint32_t value, uint32_t omitted)
{
	if (value != omitted)
		writer_add(w, ";%s=%u", key, value);
}

int harp_port_spec_format(const struct harp_port_spec *spec, char *buf, size_t size)
{
	struct port_writer w = { .buf = buf, .size = size };
	char text[HARP_ADDR_TEXT_MAX], gateway[HARP_ADDR_TEXT_MAX];

	writer_add(&w, "%s;name=%s", spec->device, spec->name);
	for (uint32_t i = 0; i < spec->address_count; i++)
		writer_add(&w, ";ip=%s/%u", harp_addr_format(&spec->addresses[i], text),
			   spec->prefix_lens[i]);
	if (!addr_is_zero(&spec->gateway_v4))
		writer_add(&w, ";gw=%s", harp_addr_format(&spec->gateway_v4, text));
	if (!addr_is_zero(&spec->gateway_v6))
		writer_add(&w, ";gw=%s", harp_addr_format(&spec->gateway_v6, text));
	for (uint32_t i = 0; i < spec->route_count; i++)
		writer_add(&w, ";route=%s/%u@%s", harp_addr_format(&spec->routes[i].prefix, text),
			   spec->routes[i].prefix_len,
			   harp_addr_format(&spec->routes[i].gateway, gateway));
	writer_number(&w, "mtu", spec->mtu_bytes, 0);
	writer_number(&w, "vlan", spec->vlan_id, 0);
	writer_number(&w, "queues", spec->queues, 1);
	writer_number(&w, "frames", spec->frame_count, 0);
	if (spec->take_default_route)
		writer_add(&w, ";take=default-route");
	return w.used < size ? (int)w.used : -ENOSPC;
}
