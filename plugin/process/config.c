/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - HARP_* variables and harpd's settings. Parsing is strict: an invalid value is an
 * error. */
#include "process/config.h"
#include "base/util.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harp_config.h"
#include "harp_host.h"
#include "process/log.h"

#define CONFIG_PREFIX "HARP_"
#define CONFIG_COLL_PREFIX "HARP_COLL_" /* variables of libharp-coll */

/* Offsets of the job keys, the first of harp_config_key(), in struct plugin_config. */
static const size_t config_fields[] = {
#define KEY(name, type, table, key, field, ...) offsetof(struct plugin_config, field),
	HARP_CONFIG_JOB_KEYS(KEY)
#undef KEY
};
#define CONFIG_JOB_COUNT (ARRAY_SIZE(config_fields))

/* A text fits its field, and the field of a choice is an enum, in the order of the words. */
#define KEY(name, type, table, key, field, unit, min, max, ...)                                    \
	static_assert((HARP_CONFIG_##type != HARP_CONFIG_TEXT ||                                   \
		       sizeof(((struct plugin_config *)0)->field) == (max) + 1) &&                 \
			      (HARP_CONFIG_##type != HARP_CONFIG_CHOICE ||                         \
			       sizeof(((struct plugin_config *)0)->field) == sizeof(uint32_t)),    \
		      #name);
HARP_CONFIG_JOB_KEYS(KEY)
#undef KEY

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

static bool config_parse_choice(const char *text, const char *choices, uint32_t *out)
{
	size_t len = strlen(text);

	for (*out = 0; choices; ++*out) {
		size_t choice_len = strcspn(choices, "|");

		if (choice_len == len && !strncmp(choices, text, len))
			return true;
		choices = choices[choice_len] ? choices + choice_len + 1 : NULL;
	}
	return false;
}

static bool config_parse_text(const char *text, uint64_t min, uint64_t max, char *out)
{
	size_t len = strlen(text);

	if (len < min || len > max)
		return false;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == '\x7f')
			return false;
	memcpy(out, text, len + 1);
	return true;
}

static bool config_set(struct plugin_config *config, size_t index, const char *text)
{
	const struct harp_config_key *key = harp_config_key((unsigned)index);
	char *field = (char *)config + config_fields[index];
	uint64_t number;
	uint32_t number32;

	switch ((enum harp_config_type)key->type) {
	case HARP_CONFIG_U32:
		if (!config_parse_number(text, key->min, key->max, &number))
			return false;
		number32 = (uint32_t)number;
		memcpy(field, &number32, sizeof(number32));
		return true;
	case HARP_CONFIG_MS:
	case HARP_CONFIG_US:
		if (!config_parse_number(text, key->min, key->max, &number))
			return false;
		number *= key->type == HARP_CONFIG_MS ? 1000000u : 1000u;
		memcpy(field, &number, sizeof(number));
		return true;
	case HARP_CONFIG_CHOICE:
		if (!config_parse_choice(text, key->unit, &number32))
			return false;
		memcpy(field, &number32, sizeof(number32));
		return true;
	case HARP_CONFIG_TEXT:
		return config_parse_text(text, key->min, key->max, field);
	case HARP_CONFIG_BOOL:
	case HARP_CONFIG_CORES:
	case HARP_CONFIG_LIST:
	case HARP_CONFIG_PORTS:
		break; /* types of harpd's and NICs' keys only */
	}
	return false;
}

/* source: "" for the environment, else a prefix for the name in messages. */
static void config_warn_value(const struct harp_config_key *key, const char *source,
			      const char *text)
{
	switch (key->type) {
	case HARP_CONFIG_CHOICE:
		WARN("%s%s=\"%.100s\" is not understood: it must be one of %s", source, key->name,
		     text, key->unit);
		break;
	case HARP_CONFIG_TEXT:
		WARN("%s%s=\"%.40s...\" is not understood: it must be %llu to %llu characters, "
		     "none of them a control character",
		     source, key->name, text, (unsigned long long)key->min,
		     (unsigned long long)key->max);
		break;
	default:
		WARN("%s%s=\"%.100s\" is not understood: it must be a whole number%s%s from %llu "
		     "to %llu (default %s)",
		     source, key->name, text, *key->unit ? " of " : "", key->unit,
		     (unsigned long long)key->min, (unsigned long long)key->max, key->preset);
	}
}

/* The key's index in harp_config_key(), or harp_config_count() if there is none. */
static unsigned config_find(const char *name, size_t len)
{
	const struct harp_config_key *key;
	unsigned index = 0;

	for (; (key = harp_config_key(index)); index++)
		/* Keys of [[nic]] have no variables. */
		if (!strncmp(key->name, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) &&
		    strlen(key->name) == len && !strncmp(key->name, name, len))
			break;
	return index;
}

static const char *config_lookup(char *const *environment, const char *name)
{
	size_t len = strlen(name);

	for (; *environment; environment++)
		if (!strncmp(*environment, name, len) && (*environment)[len] == '=')
			return *environment + len + 1;
	return "";
}

/* A number in NCCL's syntax: decimal, 0x hexadecimal, 0 octal; -1: not set, or not a number. */
static int config_nccl_count(char *const *environment, const char *name)
{
	const char *text = config_lookup(environment, name);
	char *end;
	long count;

	errno = 0;
	count = strtol(text, &end, 0);
	if (end != text && !*end && !errno && count >= 0)
		return count < INT_MAX ? (int)count : INT_MAX;
	if (*text)
		INFO("%s=\"%.100s\" is not a count: ignored", name, text);
	return -1;
}

/* NCCL's own variables. NCCL has checked them, so invalid ones are no error. */
static int config_read_nccl(struct plugin_config *config, char *const *environment)
{
	const char *family = config_lookup(environment, "NCCL_SOCKET_FAMILY");
	const char *ifname = config_lookup(environment, "NCCL_SOCKET_IFNAME");

	config->nccl_threads = config_nccl_count(environment, "NCCL_SOCKET_NTHREADS");
	config->nccl_sockets_per_thread = config_nccl_count(environment, "NCCL_NSOCKS_PERTHREAD");
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
		config->ifname_is_nccl = true;
	}
	/* "^eth0" (all except eth0) names no interface. */
	config->ifname_set = config->ifname[0] && config->ifname[0] != '^';
	return 0;
}

/* May harpd set the key? Those of harp.toml, except the two by which a job finds harpd. Keys that
 * can load a library exist as variables only. */
static bool config_is_from_harpd(unsigned index)
{
	const struct harp_config_key *key = harp_config_key(index);

	return index < CONFIG_JOB_COUNT && key->table[0] && strcmp(key->name, "HARP_DAEMON") != 0 &&
	       strcmp(key->name, "HARP_SOCKET") != 0;
}

/*
 * One NAME=VALUE per line. An unknown name may come from a newer harpd and is logged by INFO. An
 * invalid value is an error, as in the environment: ranks with different settings may deadlock.
 */
static int config_read_settings(struct plugin_config *out, const char *settings)
{
	static const char source[] = "harp.toml of harpd: ";
	char *copy = strdup(settings), *line, *rest;
	int result = 0;

	if (!copy) {
		WARN("%sout of memory", source);
		return -ENOMEM;
	}
	for (line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *value = strchrnul(line, '=');
		unsigned index = config_find(line, (size_t)(value - line));

		if (*value)
			*value++ = '\0';
		if (!config_is_from_harpd(index)) {
			INFO("%s%.64s is not known as a key of harp.toml, and ignored", source,
			     line);
		} else if (*value && !config_set(out, index, value)) {
			config_warn_value(harp_config_key(index), source, value);
			result = -EINVAL;
		}
	}
	free(copy);
	return result;
}

static int config_read_environment(struct plugin_config *out, char *const *environment, bool hints)
{
	int result = 0;

	for (; *environment; environment++) {
		const char *name = *environment, *equals = strchr(name, '=');
		unsigned index;

		if (strncmp(name, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) || !equals ||
		    !strncmp(name, CONFIG_COLL_PREFIX, strlen(CONFIG_COLL_PREFIX)))
			continue;
		index = config_find(name, (size_t)(equals - name));
		if (index >= harp_config_count()) {
			if (hints)
				WARN("the variable %.*s is unknown and ignored; `harpctl config show` lists "
				     "those there are",
				     (int)(equals - name), name);
		} else if (index < CONFIG_JOB_COUNT && equals[1] &&
			   !config_set(out, index, equals + 1)) {
			config_warn_value(harp_config_key(index), "", equals + 1);
			result = -EINVAL;
		}
	}
	return result;
}

/* Checks beyond a single value's type: formats, and values that exclude each other. */
static int config_check_together(const struct plugin_config *config)
{
	struct harp_rss rss;
	int result = 0;

	/* The NIC's queues are checked when it is opened. */
	if (config->rss[0] && harp_rss_parse(config->rss, UINT16_MAX + 1u, &rss)) {
		WARN("HARP_RSS=\"%.40s\" is not understood: it must be empty, unknown, or "
		     "toeplitz:KEY[:TABLE] with KEY 40 to %u bytes in hexadecimal and TABLE at most "
		     "%u queue numbers with commas between",
		     config->rss, HARP_RSS_KEY_MAX, HARP_RSS_TABLE_MAX);
		result = -EINVAL;
	}
	if (config->congestion == HARP_CONGESTION_DCTCP && config->ecn == HARP_ECN_OFF) {
		WARN("HARP_CONGESTION=dctcp needs ECN: HARP_ECN must not be off");
		result = -EINVAL;
	}
	if (config->port_min > config->port_max) {
		WARN("HARP_PORT_MIN=%u is above HARP_PORT_MAX=%u", config->port_min,
		     config->port_max);
		result = -EINVAL;
	}
	return result;
}

/* The environment cannot turn off encryption that harp.toml requires. */
static int config_keep_encryption(struct plugin_config *config, enum plugin_encrypt of_settings)
{
	if (of_settings != ENCRYPT_AES_256_GCM)
		return 0;
	if (config->encrypt == ENCRYPT_OFF) {
		WARN("HARP_ENCRYPT=off, and harp.toml requires encryption (encrypt under [lanes]): unset "
		     "HARP_ENCRYPT, or change harp.toml");
		return -EINVAL;
	}
	config->encrypt = ENCRYPT_AES_256_GCM;
	return 0;
}

int config_read(struct plugin_config *out, char *const *environment, const char *settings)
{
	enum plugin_encrypt of_settings;
	int result = 0;

	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < CONFIG_JOB_COUNT; i++) {
		bool good = config_set(out, i, harp_config_key((unsigned)i)->preset);

		assert(good);
		(void)good;
	}
	if (settings)
		result = config_read_settings(out, settings);
	of_settings = out->encrypt;
	if (config_read_environment(out, environment, !settings))
		result = -EINVAL;
	if (config_keep_encryption(out, of_settings))
		result = -EINVAL;
	if (config_check_together(out))
		result = -EINVAL;
	return result ? result : config_read_nccl(out, environment);
}

/* The directory of this library's file; empty: unknown. */
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

int plugin_config_load(const char *settings)
{
	struct plugin_config config;
	int result = config_read(&config, environ, settings);

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
