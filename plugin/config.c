/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the HARP_* variables, read strictly: what is not understood is said, never guessed. */
#include "config.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config_keys.h"

#define CONFIG_PREFIX "HARP_"
/* A name further away than this many edits is no misspelling. */
#define CONFIG_HINT_EDITS_MAX 4u
#define CONFIG_NAME_BYTES_MAX 64u

enum config_type { CONFIG_U32, CONFIG_MS, CONFIG_US, CONFIG_CHOICE, CONFIG_TEXT, CONFIG_TOOL };

struct config_key {
	const char *name;
	enum config_type type;
	size_t offset;
	const char *unit;
	uint64_t min, max;
	const char *preset;
};

static const struct config_key config_keys[] = {
#define KEY(name, type, field, unit, min, max, preset, help)                                       \
	{ #name, CONFIG_##type, offsetof(struct plugin_config, field), unit, min, max, preset },
	CONFIG_KEYS(KEY)
#undef KEY
};
#define CONFIG_KEY_COUNT (sizeof(config_keys) / sizeof(config_keys[0]))

/* The words of a CHOICE stand in the order of its enum. */
static_assert(PATH_AUTO == 0 && PATH_XDP == 1 && PATH_KERNEL == 2, "HARP_PATH");
static_assert(HARP_XDP_AUTO == 0 && HARP_XDP_GENERIC == 1 && HARP_XDP_NATIVE == 2, "HARP_XDP_MODE");
static_assert(HARP_CONGESTION_DEFAULT == 0 && HARP_CONGESTION_NEWRENO == 1 &&
		      HARP_CONGESTION_CUBIC == 2 && HARP_CONGESTION_DCTCP == 3 &&
		      HARP_CONGESTION_DELAY == 4,
	      "HARP_CONGESTION");
static_assert(HARP_ECN_DEFAULT == 0 && HARP_ECN_OFF == 1 && HARP_ECN_REQUEST == 2, "HARP_ECN");
static_assert(sizeof(enum harp_congestion) == 4 && sizeof(enum harp_ecn) == 4, "CHOICE fields");
static_assert(sizeof(enum plugin_path) == 4 && sizeof(enum harp_xdp_mode) == 4, "CHOICE fields");

static struct plugin_config config_current; /* Writer: plugin_config_load, at the first init */

/* Digits only: no sign, no space, no base prefix. */
static bool config_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	uint64_t value = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || value > UINT64_MAX / 10 - 1)
			return false;
		value = value * 10 + (uint64_t)(*text - '0');
	}
	*out = value;
	return value >= min && value <= max;
}

static bool config_parse_choice(const char *text, const char *words, uint32_t *out)
{
	size_t len = strlen(text);

	for (uint32_t index = 0; words; index++) {
		const char *end = strchr(words, '|');
		size_t word_len = end ? (size_t)(end - words) : strlen(words);

		if (word_len == len && !strncmp(words, text, len)) {
			*out = index;
			return true;
		}
		words = end ? end + 1 : NULL;
	}
	return false;
}

static bool config_set(struct plugin_config *config, const struct config_key *key, const char *text)
{
	char *field = (char *)config + key->offset;
	uint64_t number;
	uint32_t number32;

	switch (key->type) {
	case CONFIG_U32:
		if (!config_parse_number(text, key->min, key->max, &number))
			return false;
		number32 = (uint32_t)number;
		memcpy(field, &number32, sizeof(number32));
		return true;
	case CONFIG_MS:
	case CONFIG_US:
		if (!config_parse_number(text, key->min, key->max, &number))
			return false;
		number *= key->type == CONFIG_MS ? 1000000u : 1000u;
		memcpy(field, &number, sizeof(number));
		return true;
	case CONFIG_CHOICE:
		if (!config_parse_choice(text, key->unit, &number32))
			return false;
		memcpy(field, &number32, sizeof(number32));
		return true;
	case CONFIG_TEXT:
		if (strlen(text) > key->max)
			return false;
		strcpy(field, text);
		return true;
	case CONFIG_TOOL:
		return true;
	}
	return false;
}

static void config_warn_value(const struct config_key *key, const char *text)
{
	switch (key->type) {
	case CONFIG_CHOICE:
		WARN("%s=\"%.100s\" is not understood: it must be one of %s", key->name, text,
		     key->unit);
		break;
	case CONFIG_TEXT:
		WARN("%s=\"%.40s...\" is too long: at most %llu characters", key->name, text,
		     (unsigned long long)key->max);
		break;
	default:
		WARN("%s=\"%.100s\" is not understood: it must be a whole number of %s from %llu "
		     "to %llu (default %s)",
		     key->name, text, key->unit, (unsigned long long)key->min,
		     (unsigned long long)key->max, key->preset);
	}
}

/* Levenshtein's distance: insertions, deletions and substitutions. */
static unsigned config_edits(const char *a, size_t a_len, const char *b)
{
	unsigned row[CONFIG_NAME_BYTES_MAX + 1];
	size_t b_len = strlen(b);

	assert(b_len <= CONFIG_NAME_BYTES_MAX);
	for (size_t j = 0; j <= b_len; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= a_len; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= b_len; j++) {
			unsigned best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[b_len];
}

static const struct config_key *config_find(const char *name, size_t len)
{
	for (size_t i = 0; i < CONFIG_KEY_COUNT; i++)
		if (strlen(config_keys[i].name) == len && !strncmp(config_keys[i].name, name, len))
			return &config_keys[i];
	return NULL;
}

static void config_warn_unknown(const char *name, size_t len)
{
	unsigned least = CONFIG_HINT_EDITS_MAX + 1;
	const char *nearest = NULL;
	char list[512] = "";
	size_t used = 0;

	for (size_t i = 0; i < CONFIG_KEY_COUNT && len <= CONFIG_NAME_BYTES_MAX; i++) {
		unsigned edits = config_edits(name, len, config_keys[i].name);

		if (edits < least) {
			least = edits;
			nearest = config_keys[i].name;
		}
	}
	if (nearest) {
		WARN("the variable %.*s is unknown and ignored: did you mean %s?", (int)len, name,
		     nearest);
		return;
	}
	for (size_t i = 0; i < CONFIG_KEY_COUNT && used < sizeof(list) - CONFIG_NAME_BYTES_MAX; i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, " %s",
					 config_keys[i].name);
	WARN("the variable %.*s is unknown and ignored; there are:%s",
	     (int)(len < CONFIG_NAME_BYTES_MAX ? len : CONFIG_NAME_BYTES_MAX), name, list);
}

static const char *config_lookup(char *const *environment, const char *name)
{
	size_t len = strlen(name);

	for (; *environment; environment++)
		if (!strncmp(*environment, name, len) && (*environment)[len] == '=')
			return *environment + len + 1;
	return "";
}

/* NCCL's own variables: never an error of ours, NCCL has read them before. */
static int config_read_nccl(struct plugin_config *config, char *const *environment)
{
	const char *family = config_lookup(environment, "NCCL_SOCKET_FAMILY");
	const char *ifname = config_lookup(environment, "NCCL_SOCKET_IFNAME");

	if (!strcmp(family, "AF_INET"))
		config->family = AF_INET;
	else if (!strcmp(family, "AF_INET6"))
		config->family = AF_INET6;
	else if (*family)
		INFO("NCCL_SOCKET_FAMILY=\"%.100s\" is neither AF_INET nor AF_INET6: ignored",
		     family);
	if (!config->ifname[0]) {
		if (strlen(ifname) >= sizeof(config->ifname)) {
			WARN("NCCL_SOCKET_IFNAME=\"%.40s...\" is too long: at most %zu characters",
			     ifname, sizeof(config->ifname) - 1);
			return -EINVAL;
		}
		strcpy(config->ifname, ifname);
	}
	/* "Anything but those" names nobody. */
	config->ifname_set = config->ifname[0] && config->ifname[0] != '^';
	return 0;
}

int config_read(struct plugin_config *out, char *const *environment)
{
	int result = 0;

	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
		bool good = config_set(out, &config_keys[i], config_keys[i].preset);

		assert(good);
		(void)good;
	}
	for (char *const *entry = environment; *entry; entry++) {
		const char *name = *entry, *equals = strchr(name, '=');
		const struct config_key *key;

		if (strncmp(name, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) || !equals)
			continue;
		key = config_find(name, (size_t)(equals - name));
		if (!key) {
			config_warn_unknown(name, (size_t)(equals - name));
		} else if (equals[1] && !config_set(out, key, equals + 1)) {
			config_warn_value(key, equals + 1);
			result = -EINVAL;
		}
	}
	if (out->congestion == HARP_CONGESTION_DCTCP && out->ecn == HARP_ECN_OFF) {
		WARN("HARP_CONGESTION=dctcp needs ECN: HARP_ECN must not be off");
		result = -EINVAL;
	}
	return result ? result : config_read_nccl(out, environment);
}

/* The directory of the file that this function was loaded from; empty when it cannot be told. */
static void config_own_directory(char *out, size_t len)
{
	Dl_info info;
	char path[PATH_MAX];
	char *slash;

	if (!dladdr(&config_current, &info) || !info.dli_fname || !realpath(info.dli_fname, path))
		return;
	slash = strrchr(path, '/');
	if (!slash || slash == path || (size_t)(slash - path) >= len)
		return;
	*slash = '\0';
	strcpy(out, path);
}

int plugin_config_load(void)
{
	struct plugin_config config;
	int result = config_read(&config, environ);

	if (result)
		return result;
	if (!config.lib_dir[0])
		config_own_directory(config.lib_dir, sizeof(config.lib_dir));
	config_current = config;
	return 0;
}

const struct plugin_config *plugin_config(void)
{
	return &config_current;
}
