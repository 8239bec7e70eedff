/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.c - see profile.h.
 *
 * A profile is the part of TOML that `harpctl tune` writes: `key = "string"`, `key = number`, [[nic]], comments and
 * empty lines. Anything else is an error: a profile that this reader understands, a TOML parser understands in the same way
 * (tests/python/test_profile.py).
 */
#include "device/profile.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "process/toml_scan.h"

#define PROFILE_BYTES_MAX (64u * 1024u)
#define PROFILE_BLANKS " \t"
#define PROFILE_VERSION "1"

enum profile_key {
	PROFILE_KEY_VERSION,
	PROFILE_KEY_HOST,
	PROFILE_KEY_IFNAME,
	PROFILE_KEY_MODE,
	PROFILE_KEY_HARP_UP_TO,
	PROFILE_KEY_PEERS,
	PROFILE_KEY_COUNT,
};
static const char *const profile_keys[] = {
	[PROFILE_KEY_VERSION] = "version",       [PROFILE_KEY_HOST] = "host",
	[PROFILE_KEY_IFNAME] = "ifname",         [PROFILE_KEY_MODE] = "mode",
	[PROFILE_KEY_HARP_UP_TO] = "harp_up_to", [PROFILE_KEY_PEERS] = "peers",
};
#define PROFILE_TOP (1u << PROFILE_KEY_VERSION | 1u << PROFILE_KEY_HOST)
#define PROFILE_NIC                                                                                \
	(1u << PROFILE_KEY_IFNAME | 1u << PROFILE_KEY_MODE | 1u << PROFILE_KEY_HARP_UP_TO)

static const char *const profile_modes[] = {
	[HARP_MODE_NONE] = "none",
	[HARP_MODE_GENERIC_COPY] = "generic-copy",
	[HARP_MODE_NATIVE_COPY] = "native-copy",
	[HARP_MODE_ZERO_COPY] = "zero-copy",
	[HARP_MODE_DPDK] = "dpdk",
};
static const char *const profile_classes[] = {
	[PATH_CLASS_NONE] = "none",
	[PATH_CLASS_4K] = "4KiB",
	[PATH_CLASS_64K] = "64KiB",
	[PATH_CLASS_ALL] = "all",
};

struct profile_reader {
	const char *host;
	struct profile *out;
	unsigned line;
	unsigned top_keys, nic_keys; /* seen: at the top, in this [[nic]] */
	char *why;
	size_t why_len;
};

static int __attribute__((format(printf, 2, 3)))
profile_fail(const struct profile_reader *r, const char *format, ...)
{
	int used = snprintf(r->why, r->why_len, "line %u: ", r->line);
	va_list args;

	va_start(args, format);
	vsnprintf(r->why + used, r->why_len - (size_t)used, format, args);
	va_end(args);
	return -EINVAL;
}

bool profile_has_peer(const struct profile_entry *entry, const struct harp_addr *peer)
{
	for (unsigned bit = 0; bit < entry->peers_bits; bit++)
		if ((entry->peers.bytes[bit / 8] ^ peer->bytes[bit / 8]) & 0x80 >> bit % 8)
			return false;
	return true;
}

/* "10.1.0.0/16": no bit is set behind the prefix. */
static bool profile_peers(char *text, struct profile_entry *entry)
{
	char *slash = strchr(text, '/'), *digit;
	unsigned bits = 0, bits_max;

	if (!slash)
		return false;
	*slash = '\0';
	if (harp_addr_parse(text, &entry->peers))
		return false;
	bits_max = harp_addr_is_v4(&entry->peers) ? 32 : 128;
	for (digit = slash + 1; *digit >= '0' && *digit <= '9' && bits <= bits_max; digit++)
		bits = bits * 10 + (unsigned)(*digit - '0');
	if (*digit || digit == slash + 1 || bits > bits_max)
		return false;
	/* IPv4 addresses are the last 32 bits of an IPv6 address. */
	entry->peers_bits = bits + (128 - bits_max);
	for (unsigned bit = entry->peers_bits; bit < 128; bit++)
		if (entry->peers.bytes[bit / 8] & 0x80 >> bit % 8)
			return false;
	return true;
}

static bool profile_choice(const char *text, const char *const *words, unsigned count,
			   unsigned *out)
{
	for (*out = 0; *out < count; ++*out)
		if (!strcmp(text, words[*out]))
			return true;
	return false;
}

static int profile_nic_value(const struct profile_reader *r, enum profile_key key, char *text)
{
	struct profile_entry *entry = &r->out->entries[r->out->count - 1];
	unsigned word;

	switch (key) {
	case PROFILE_KEY_IFNAME:
		if (!text[0] || strlen(text) >= sizeof(entry->ifname))
			return profile_fail(r, "ifname must be 1 to 15 characters");
		strcpy(entry->ifname, text);
		return 0;
	case PROFILE_KEY_MODE:
		if (!profile_choice(text, profile_modes, HARP_MODE_COUNT, &word) ||
		    word == HARP_MODE_NONE || word == HARP_MODE_DPDK)
			return profile_fail(r,
					    "mode must be generic-copy, native-copy or zero-copy");
		entry->mode = word;
		return 0;
	case PROFILE_KEY_HARP_UP_TO:
		if (!profile_choice(text, profile_classes, PATH_CLASS_ALL + 1, &word))
			return profile_fail(r, "harp_up_to must be none, 4KiB, 64KiB or all");
		entry->harp_up_to = word;
		return 0;
	default:
		if (!profile_peers(text, entry))
			return profile_fail(r, "peers must be a prefix such as 10.1.0.0/16");
		return 0;
	}
}

/* The value of a key, in place: a string without escapes, or a number, which is returned as its digits. */
static char *profile_value(char *text, bool *is_string)
{
	char *end;

	*is_string = *text == '"';
	if (*is_string) {
		end = strpbrk(++text, "\"\\");
		if (!end || *end != '"')
			return NULL;
		*end++ = '\0';
	} else {
		end = text + strspn(text, "0123456789");
		if (end == text)
			return NULL;
	}
	if (end[strspn(end, PROFILE_BLANKS)] && end[strspn(end, PROFILE_BLANKS)] != '#')
		return NULL;
	if (!*is_string)
		*end = '\0';
	return text;
}

static int profile_assign(struct profile_reader *r, char *text)
{
	char *end = text + strspn(text, "abcdefghijklmnopqrstuvwxyz_"), *value;
	unsigned key, *seen = r->out->count ? &r->nic_keys : &r->top_keys;
	unsigned allowed = r->out->count ? PROFILE_NIC | 1u << PROFILE_KEY_PEERS : PROFILE_TOP;
	bool is_string;

	value = end + strspn(end, PROFILE_BLANKS);
	if (end == text || *value != '=')
		return profile_fail(r, "neither key = value nor [[nic]]");
	value += 1 + strspn(value + 1, PROFILE_BLANKS);
	*end = '\0';
	if (!profile_choice(text, profile_keys, PROFILE_KEY_COUNT, &key) || !(allowed & 1u << key))
		return profile_fail(r, "unknown key %.32s", text);
	if (*seen & 1u << key)
		return profile_fail(r, "%s is set twice", text);
	*seen |= 1u << key;
	value = profile_value(value, &is_string);
	if (!value || is_string == (key == PROFILE_KEY_VERSION))
		return profile_fail(r, "%s needs a %s", text,
				    key == PROFILE_KEY_VERSION ? "number"
							       : "string in double quotes");
	if (key == PROFILE_KEY_VERSION && strcmp(value, PROFILE_VERSION))
		return profile_fail(r, "version %.16s; this HARP reads version " PROFILE_VERSION,
				    value);
	if (key == PROFILE_KEY_HOST && strcmp(value, r->host))
		return profile_fail(r, "it is of host %.64s, and this is %s", value, r->host);
	return allowed == PROFILE_TOP ? 0 : profile_nic_value(r, key, value);
}

/* A table has ended: is all there that it needs? */
static int profile_end_table(const struct profile_reader *r)
{
	unsigned needed = r->out->count ? PROFILE_NIC : PROFILE_TOP;
	unsigned missing = needed & ~(r->out->count ? r->nic_keys : r->top_keys);

	if (!missing)
		return 0;
	return profile_fail(r, "%s is missing above", profile_keys[__builtin_ctz(missing)]);
}

static int profile_line(struct profile_reader *r, char *text)
{
	static const char head[] = "[[nic]]";
	int rc;

	text += strspn(text, PROFILE_BLANKS);
	if (!*text || *text == '#')
		return 0;
	if (*text != '[')
		return profile_assign(r, text);
	if (strncmp(text, head, sizeof(head) - 1))
		return profile_fail(r, "the only table is [[nic]]");
	text += sizeof(head) - 1;
	text += strspn(text, PROFILE_BLANKS);
	if (*text && *text != '#')
		return profile_fail(r, "neither key = value nor [[nic]]");
	rc = profile_end_table(r);
	if (rc)
		return rc;
	if (r->out->count == PROFILE_ENTRIES_MAX)
		return profile_fail(r, "more than %u [[nic]]", PROFILE_ENTRIES_MAX);
	r->out->entries[r->out->count++] = (struct profile_entry){ .line = r->line };
	r->nic_keys = 0;
	return 0;
}

static int profile_text(struct profile_reader *r, char *text)
{
	int rc = 0;

	for (char *next; text && !rc; text = next) {
		r->line++;
		next = strchr(text, '\n');
		if (next) {
			if (next > text && next[-1] == '\r')
				next[-1] = '\0';
			*next++ = '\0';
		}
		/* TOML's comments and strings have no other control characters. */
		for (const char *c = text; *c; c++)
			if (((unsigned char)*c < ' ' && *c != '\t') || (unsigned char)*c > '~')
				return profile_fail(r, "not plain ASCII text");
		rc = profile_line(r, text);
	}
	return rc ? rc : profile_end_table(r);
}

int profile_read(const char *path, const char *host, struct profile *out, char *why, size_t why_len)
{
	static char text[PROFILE_BYTES_MAX + 2]; /* under ctx_lock, as toml_scan.c */
	struct profile_reader r = { .host = host, .out = out, .why = why, .why_len = why_len };
	int rc = toml_read(path, text, PROFILE_BYTES_MAX, why, why_len);

	out->count = 0;
	if (rc <= 0)
		return rc;
	rc = profile_text(&r, text);
	if (!rc)
		return 1;
	out->count = 0;
	return rc;
}
