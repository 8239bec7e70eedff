/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.c - see path_policy.h. */
#include "device/path_policy.h"

#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "harp_config.h"
#include "process/log.h"
#include "process/keyfile.h"
#include "wire/blake2s.h"

/*
 * The largest size class for HARP lanes, by the mode of the NIC and by the kernel's segmentation
 * offload there (TSO, or GSO in software). With offload, a message passes the kernel's stack once;
 * without it, each packet does.
 *
 *   generic copy   measured (docs/performance.md): HARP lanes are slower, or less than 1.3 times as
 *                  fast
 *   DPDK           the kernel has no sockets on the port
 *   others         assumptions, as no such NIC was available: HARP lanes send small messages
 *                  without passing the kernel's stack; in copy mode the kernel copies each packet,
 *                  which slows down bulk
 */
static const enum path_class path_defaults[HARP_MODE_COUNT][2] = {
	/* offload off, on */
	[HARP_MODE_NONE] = { PATH_CLASS_NONE, PATH_CLASS_NONE },
	[HARP_MODE_GENERIC_COPY] = { PATH_CLASS_NONE, PATH_CLASS_NONE },
	[HARP_MODE_NATIVE_COPY] = { PATH_CLASS_64K, PATH_CLASS_4K },
	[HARP_MODE_ZERO_COPY] = { PATH_CLASS_ALL, PATH_CLASS_64K },
	[HARP_MODE_DPDK] = { PATH_CLASS_ALL, PATH_CLASS_ALL },
};

static uint64_t path_class_bytes(enum path_class class)
{
	static const uint64_t bytes[] = {
		[PATH_CLASS_NONE] = 0,
		[PATH_CLASS_4K] = 4096,
		[PATH_CLASS_64K] = 65536,
		[PATH_CLASS_ALL] = PATH_POLICY_ALL,
	};

	return bytes[class];
}

/* The first matching entry applies. */
static bool path_by_profile(const struct profile *profile, const struct device *device,
			    enum harp_instance_mode mode, const struct harp_addr *peer,
			    enum path_class *class)
{
	bool matches = false;

	for (unsigned i = 0; i < profile->count; i++) {
		const struct profile_entry *entry = &profile->entries[i];

		if (entry->mode != mode || strcmp(entry->ifname, device->ifname) != 0 ||
		    (peer && !profile_has_peer(entry, peer)))
			continue;
		if (!matches || entry->harp_up_to > *class)
			*class = entry->harp_up_to;
		matches = true;
		/* Without a peer: entries after one for all peers have no effect. */
		if (peer || !entry->peers_bits)
			return true;
	}
	return matches;
}

struct path_policy path_policy_of(const struct device *device, enum harp_instance_mode mode,
				  const struct harp_addr *peer, const struct plugin_config *config,
				  const struct profile *profile)
{
	enum path_class class;

	if (config->path == PATH_KERNEL)
		return (struct path_policy){ 0, "HARP_PATH" };
	if (plugin_path_is_harp(config->path))
		return (struct path_policy){ PATH_POLICY_ALL, "HARP_PATH" };
	/* Kernel sockets are impossible on DPDK ports and on NICs of other network namespaces. */
	if (device->dpdk || device->netns)
		return (struct path_policy){ PATH_POLICY_ALL, "no kernel path" };
	if (config->xdp_bytes_max)
		return (struct path_policy){ config->xdp_bytes_max, "HARP_XDP_BYTES_MAX" };
	if (path_by_profile(profile, device, mode, peer, &class))
		return (struct path_policy){ path_class_bytes(class), "profile" };
	class = path_defaults[mode][device->segments];
	return (struct path_policy){ path_class_bytes(class),
				     device->segments ? "defaults, segmentation offload on"
						      : "defaults, segmentation offload off" };
}

/* Writer: path_policy_load(), at the first init. */
static struct profile path_profile;
static bool path_profile_loaded;

struct path_policy path_policy(const struct device *device, enum harp_instance_mode mode,
			       const struct harp_addr *peer)
{
	return path_policy_of(device, mode, peer, plugin_config(), &path_profile);
}

bool path_policy_tuner_times(struct profile_tuner *out)
{
	*out = path_profile.tuner;
	return path_profile_loaded;
}

uint32_t path_policy_tuner(void)
{
	return plugin_config()->tuner == TUNER_OFF ? 0 : profile_tuner_digest(&path_profile.tuner);
}

static const struct profile_entry *path_missing_nic(const struct profile *profile)
{
	for (unsigned i = 0; i < profile->count; i++)
		if (!if_nametoindex(profile->entries[i].ifname))
			return &profile->entries[i];
	return NULL;
}

void path_policy_load(void)
{
	const char *named = plugin_config()->profile,
		   *file = named[0] ? named : HARP_CONFIG_PROFILE;
	const struct profile_entry *missing;
	char host[65] = "", why[256];
	int rc;

	path_profile_loaded = true;
	gethostname(host, sizeof(host) - 1);
	rc = profile_read(file, host, &path_profile, why, sizeof(why));
	if (!rc && !named[0])
		return; /* no profile */
	if (!rc)
		snprintf(why, sizeof(why), "no such file");
	missing = rc > 0 ? path_missing_nic(&path_profile) : NULL;
	if (missing)
		snprintf(why, sizeof(why), "line %u: this host has no interface %s", missing->line,
			 missing->ifname);
	if (rc > 0 && !missing) {
		INFO("profile %s: %u entries", file, path_profile.count);
		return;
	}
	memset(&path_profile, 0, sizeof(path_profile));
	WARN("profile %s is ignored, the default path policy holds: %s; run `harpctl tune` or remove it",
	     file, why);
}

/* ---- profiles -------------------------------------------------------------------------------- */

/*
 * A profile is the subset of TOML that `harpctl tune` writes: `key = "string"`, `key = number`,
 * [tuner], [[nic]], comments and empty lines. Anything else is an error, so a TOML parser gives the
 * same result for every profile that this parser accepts (tests/python/test_profile.py).
 */

#define PROFILE_BYTES_MAX (64u * 1024u)
#define PROFILE_BLANKS " \t"

enum profile_table { PROFILE_TOP, PROFILE_TUNER, PROFILE_NIC };

struct profile_reader {
	const char *host;
	struct profile *out;
	unsigned line;
	enum profile_table table;
	unsigned keys;  /* seen in this table: bits of profile_keys[] */
	bool has_tuner; /* a [tuner] */
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

uint32_t profile_tuner_digest(const struct profile_tuner *tuner)
{
	uint32_t digest;

	if (!tuner->latency_ns)
		return 0;
	blake2s(&digest, sizeof(digest), NULL, 0, tuner, sizeof(*tuner));
	return digest ? digest : 1;
}

bool profile_has_peer(const struct profile_entry *entry, const struct harp_addr *peer)
{
	for (unsigned bit = 0; bit < entry->peers_bits; bit++)
		if ((entry->peers.bytes[bit / 8] ^ peer->bytes[bit / 8]) & 0x80 >> bit % 8)
			return false;
	return true;
}

/* Its number, or count. */
static unsigned profile_word(const char *text, const char *const *words, unsigned count)
{
	unsigned word = 0;

	while (word < count && strcmp(text, words[word]) != 0)
		word++;
	return word;
}

/* "16384:1200 65536:2300": positive numbers, the first ones increasing. */
static bool profile_curve(const char *text, struct profile_curve *curve)
{
	char at[13], mb_per_s[13];
	struct profile_point point = { 0 };
	int used;

	for (curve->count = 0; *text; curve->count++) {
		uint64_t before = point.at;

		if (curve->count == PROFILE_POINTS_MAX ||
		    sscanf(text, "%12[0-9]:%12[0-9]%n", at, mb_per_s, &used) != 2)
			return false;
		point = (struct profile_point){ strtoull(at, NULL, 10),
						strtoull(mb_per_s, NULL, 10) };
		if (point.at <= before || !point.mb_per_s || point.mb_per_s > UINT32_MAX)
			return false;
		curve->points[curve->count] = point;
		text += used;
		if (*text && (*text++ != ' ' || !*text))
			return false;
	}
	return curve->count > 0;
}

/* "10.1.0.0/16": no bit after the prefix is set. */
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

enum profile_key {
	PROFILE_VERSION,
	PROFILE_HOST,
	PROFILE_LATENCY,
	PROFILE_RATES,
	PROFILE_CHANNELS,
	PROFILE_IFNAME,
	PROFILE_MODE,
	PROFILE_HARP_UP_TO,
	PROFILE_PEERS,
	PROFILE_KEYS,
};
static const struct {
	enum profile_table table;
	const char *name, *must; /* what its value must be */
} profile_keys[PROFILE_KEYS] = {
	[PROFILE_VERSION] = { PROFILE_TOP, "version", "1, which this HARP reads" },
	[PROFILE_HOST] = { PROFILE_TOP, "host", "the name of this host in double quotes" },
	[PROFILE_LATENCY] = { PROFILE_TUNER, "latency_ns", "a number from 1 to 999999999999" },
	[PROFILE_RATES] = { PROFILE_TUNER, "rates",
			    "1 to 16 pairs such as \"16384:1200 65536:2300\", rising" },
	[PROFILE_CHANNELS] = { PROFILE_TUNER, "channels",
			       "1 to 16 pairs such as \"1:1100 2:1900\", rising" },
	[PROFILE_IFNAME] = { PROFILE_NIC, "ifname", "1 to 15 characters in double quotes" },
	[PROFILE_MODE] = { PROFILE_NIC, "mode",
			   "\"generic-copy\", \"native-copy\" or \"zero-copy\"" },
	[PROFILE_HARP_UP_TO] = { PROFILE_NIC, "harp_up_to",
				 "\"none\", \"4KiB\", \"64KiB\" or \"all\"" },
	[PROFILE_PEERS] = { PROFILE_NIC, "peers", "a prefix such as \"10.1.0.0/16\"" },
};
static_assert(PROFILE_POINTS_MAX == 16, "the texts of rates and channels");
#define PROFILE_NUMBERS (1u << PROFILE_VERSION | 1u << PROFILE_LATENCY)
#define PROFILE_OPTIONAL (1u << PROFILE_PEERS)

/* False: the value is not what it must be. */
static bool profile_set(const struct profile_reader *r, enum profile_key key, char *text)
{
	static const char *const classes[] = { "none", "4KiB", "64KiB", "all" };
	static const char *const modes[] = { "", "generic-copy", "native-copy", "zero-copy" };
	struct profile_tuner *tuner = &r->out->tuner;
	/* In PROFILE_NIC there is one. */
	struct profile_entry *entry = &r->out->entries[r->out->count ? r->out->count - 1 : 0];
	unsigned word;

	switch (key) {
	case PROFILE_VERSION:
		return !strcmp(text, "1");
	case PROFILE_HOST:
		return !strcmp(text, r->host);
	case PROFILE_LATENCY:
		tuner->latency_ns = strlen(text) <= 12 ? strtoull(text, NULL, 10) : 0;
		return tuner->latency_ns > 0;
	case PROFILE_RATES:
		return profile_curve(text, &tuner->rates);
	case PROFILE_CHANNELS:
		return profile_curve(text, &tuner->channels);
	case PROFILE_IFNAME:
		snprintf(entry->ifname, sizeof(entry->ifname), "%s", text);
		return text[0] && !strcmp(entry->ifname, text);
	case PROFILE_MODE:
		word = profile_word(text, modes, ARRAY_SIZE(modes));
		entry->mode = word;
		return word > HARP_MODE_NONE && word < ARRAY_SIZE(modes);
	case PROFILE_HARP_UP_TO:
		word = profile_word(text, classes, ARRAY_SIZE(classes));
		entry->harp_up_to = word;
		return word < ARRAY_SIZE(classes);
	default:
		return profile_peers(text, entry);
	}
}

/* ---- lines ---- */

/* The value of a key, in place: a string without escapes, or the digits of a number. */
static char *profile_value(char *text, bool is_number)
{
	char *end;

	if (is_number) {
		end = text + strspn(text, "0123456789");
	} else {
		end = *text == '"' ? strpbrk(++text, "\"\\") : NULL;
		if (!end || *end != '"')
			return NULL;
		*end++ = '\0';
	}
	if (end == text ||
	    (end[strspn(end, PROFILE_BLANKS)] && end[strspn(end, PROFILE_BLANKS)] != '#'))
		return NULL;
	if (is_number)
		*end = '\0';
	return text;
}

static int profile_assign(struct profile_reader *r, char *text)
{
	char *end = text + strspn(text, "abcdefghijklmnopqrstuvwxyz_"), *value;
	enum profile_key key = 0;

	value = end + strspn(end, PROFILE_BLANKS);
	if (end == text || *value != '=')
		return profile_fail(r, "neither key = value nor a table");
	value += 1 + strspn(value + 1, PROFILE_BLANKS);
	*end = '\0';
	while (key < PROFILE_KEYS &&
	       (profile_keys[key].table != r->table || strcmp(profile_keys[key].name, text) != 0))
		key++;
	if (key == PROFILE_KEYS)
		return profile_fail(r, "unknown key %.32s", text);
	if (r->keys & 1u << key)
		return profile_fail(r, "%s is set twice", text);
	r->keys |= 1u << key;
	value = profile_value(value, PROFILE_NUMBERS & 1u << key);
	if (value && profile_set(r, key, value))
		return 0;
	if (value && key == PROFILE_HOST)
		return profile_fail(r, "it is of host %.64s, and this is %s", value, r->host);
	return profile_fail(r, "%s must be %s", text, profile_keys[key].must);
}

/* At the end of a table: are all required keys present? */
static int profile_end_table(const struct profile_reader *r)
{
	for (unsigned key = 0; key < PROFILE_KEYS; key++)
		if (profile_keys[key].table == r->table && !(PROFILE_OPTIONAL & 1u << key) &&
		    !(r->keys & 1u << key))
			return profile_fail(r, "%s is missing above", profile_keys[key].name);
	return 0;
}

static int profile_line(struct profile_reader *r, char *text)
{
	const char *head = !strncmp(text, "[[", 2) ? "[[nic]]" : "[tuner]";
	int rc;

	if (!*text || *text == '#')
		return 0;
	if (*text != '[')
		return profile_assign(r, text);
	if (strncmp(text, head, strlen(head)) != 0)
		return profile_fail(r, "the only tables are [tuner] and [[nic]]");
	text += strlen(head);
	text += strspn(text, PROFILE_BLANKS);
	if (*text && *text != '#')
		return profile_fail(r, "neither key = value nor a table");
	rc = profile_end_table(r);
	if (rc)
		return rc;
	r->keys = 0;
	r->table = head[1] == '[' ? PROFILE_NIC : PROFILE_TUNER;
	if (r->table == PROFILE_TUNER) {
		if (r->has_tuner)
			return profile_fail(r, "a second [tuner]");
		r->has_tuner = true;
		return 0;
	}
	if (r->out->count == PROFILE_ENTRIES_MAX)
		return profile_fail(r, "more than %u [[nic]]", PROFILE_ENTRIES_MAX);
	r->out->entries[r->out->count++] = (struct profile_entry){ .line = r->line };
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
		/* TOML's comments and strings allow no other control characters. */
		for (const char *c = text; *c; c++)
			if (((unsigned char)*c < ' ' && *c != '\t') || (unsigned char)*c > '~')
				return profile_fail(r, "not plain ASCII text");
		rc = profile_line(r, text + strspn(text, PROFILE_BLANKS));
	}
	return rc ? rc : profile_end_table(r);
}

int profile_read(const char *path, const char *host, struct profile *out, char *why, size_t why_len)
{
	struct profile_reader r = { .host = host, .out = out, .why = why, .why_len = why_len };
	char *text = malloc(PROFILE_BYTES_MAX + 2);
	int rc = -EINVAL;

	memset(out, 0, sizeof(*out));
	if (!text)
		snprintf(why, why_len, "out of memory");
	else
		rc = toml_read(path, text, PROFILE_BYTES_MAX, why, why_len);
	if (rc > 0)
		rc = profile_text(&r, text) ? -EINVAL : 1;
	free(text);
	if (rc <= 0)
		memset(out, 0, sizeof(*out));
	return rc;
}
