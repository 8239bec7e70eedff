/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rss.c - receive side scaling: the queue that a NIC chooses for a packet, from the driver or
 * computed.
 *
 * Hash and input order follow "RSS Hashing Functions" (Microsoft, Windows driver documentation), as
 * all NICs with Toeplitz do: source address, destination address, source port, destination port in
 * wire order. The queue is the indirection table's entry at the hash modulo the table's size.
 */
#include "host/rss.h"

#include <dirent.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nic/af_xdp_link.h"

#define KEY_BYTES_MIN 40u /* IPv6 with ports, and a window of four bytes */
#define TABLE_COUNT_DEFAULT 128u
#define TABLE_COUNT_SANE 65536u
#define INPUT_BYTES_MAX 36u
#define RXH_TCP (RXH_IP_SRC | RXH_IP_DST | RXH_L4_B_0_1 | RXH_L4_B_2_3)

/* ---- computing ------------------------------------------------------------------------------ */

uint32_t rss_toeplitz(const uint8_t *key, const uint8_t *input, size_t len)
{
	/* The leftmost 32 bits of the key, shifted by one per input bit. */
	uint32_t window =
		(uint32_t)key[0] << 24 | (uint32_t)key[1] << 16 | (uint32_t)key[2] << 8 | key[3];
	uint32_t hash = 0;

	for (size_t i = 0; i < len; i++) {
		for (unsigned bit = 8; bit-- > 0;) {
			if (input[i] >> bit & 1)
				hash ^= window;
			window = window << 1 | (key[i + 4] >> bit & 1);
		}
	}
	return hash;
}

static size_t rss_input(uint8_t input[INPUT_BYTES_MAX], const struct harp_endpoint *src,
			const struct harp_endpoint *dst)
{
	const size_t from = harp_addr_is_v4(&src->addr) ? 12 : 0, bytes = 16 - from;

	memcpy(input, src->addr.bytes + from, bytes);
	memcpy(input + bytes, dst->addr.bytes + from, bytes);
	input[2 * bytes] = (uint8_t)(src->port >> 8);
	input[2 * bytes + 1] = (uint8_t)src->port;
	input[2 * bytes + 2] = (uint8_t)(dst->port >> 8);
	input[2 * bytes + 3] = (uint8_t)dst->port;
	return 2 * bytes + 4;
}

int harp_rss_queue(const struct harp_rss *rss, const struct harp_endpoint *src,
		   const struct harp_endpoint *dst)
{
	uint8_t input[INPUT_BYTES_MAX];
	size_t len;

	if (harp_addr_is_v4(&src->addr) != harp_addr_is_v4(&dst->addr))
		return -EINVAL;
	if (rss->kind == HARP_RSS_NONE)
		return 0;
	if (rss->kind != HARP_RSS_TOEPLITZ || rss->key_bytes < KEY_BYTES_MIN ||
	    rss->key_bytes > HARP_RSS_KEY_MAX || !rss->table_count ||
	    rss->table_count > HARP_RSS_TABLE_MAX)
		return -ENOTSUP;
	len = rss_input(input, src, dst);
	return rss->table[rss_toeplitz(rss->key, input, len) % rss->table_count];
}

/* evaluation */

/* Period of a table that is larger than ours. 0: it does not repeat. */
static uint32_t rss_table_period(const uint32_t *table, uint32_t count)
{
	const uint32_t period = HARP_RSS_TABLE_MAX;

	if (count <= period)
		return count;
	if (count % period)
		return 0;
	for (uint32_t i = period; i < count; i++)
		if (table[i] != table[i - period])
			return 0;
	return period;
}

static bool rss_fields_valid(uint32_t fields)
{
	return !fields || fields == RXH_TCP;
}

void rss_from_answers(const struct rss_answers *answers, struct harp_rss *out)
{
	uint32_t count;

	*out = (struct harp_rss){ .queues = answers->queues ? answers->queues : 1 };
	if (out->queues == 1)
		return;
	out->kind = HARP_RSS_UNKNOWN;
	if (!answers->spreads || answers->function != RSS_FUNCTION_TOEPLITZ || answers->transform ||
	    !rss_fields_valid(answers->fields_v4) || !rss_fields_valid(answers->fields_v6) ||
	    answers->key_bytes < KEY_BYTES_MIN)
		return;
	count = rss_table_period(answers->table, answers->table_count);
	for (uint32_t i = 0; i < count; i++)
		if (answers->table[i] >= out->queues)
			return;
	if (!count)
		return;
	out->kind = HARP_RSS_TOEPLITZ;
	out->table_count = count;
	for (uint32_t i = 0; i < count; i++)
		out->table[i] = (uint16_t)answers->table[i];
	out->key_bytes =
		answers->key_bytes < HARP_RSS_KEY_MAX ? answers->key_bytes : HARP_RSS_KEY_MAX;
	memcpy(out->key, answers->key, out->key_bytes);
}

/* queries */

/* Drivers without channels may have several queues nevertheless (tun, tap). */
static uint32_t rss_queues_of_sysfs(const char *ifname)
{
	char path[64];
	const struct dirent *entry;
	uint32_t count = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/sys/class/net/%.15s/queues", ifname);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		count += !strncmp(entry->d_name, "rx-", 3);
	if (dir)
		closedir(dir);
	return count;
}

static int rss_ethtool(int fd, const char *ifname, void *command)
{
	struct ifreq request = { .ifr_data = command };

	strncpy(request.ifr_name, ifname, sizeof(request.ifr_name) - 1);
	return ioctl(fd, SIOCETHTOOL, &request) < 0 ? -errno : 0;
}

static uint32_t rss_fields(int fd, const char *ifname, uint32_t flow)
{
	struct ethtool_rxnfc request = { .cmd = ETHTOOL_GRXFH, .flow_type = flow };

	return rss_ethtool(fd, ifname, &request) ? 0 : (uint32_t)request.data;
}

/* NULL: the driver does not report its hash. The caller frees it. */
static struct ethtool_rxfh *rss_hash(int fd, const char *ifname)
{
	struct ethtool_rxfh sizes = { .cmd = ETHTOOL_GRSSH }, *answer;

	if (rss_ethtool(fd, ifname, &sizes) || !sizes.indir_size || !sizes.key_size ||
	    sizes.indir_size > TABLE_COUNT_SANE || sizes.key_size > TABLE_COUNT_SANE)
		return NULL;
	answer = calloc(1, sizeof(*answer) + (size_t)sizes.indir_size * 4 + sizes.key_size);
	if (!answer)
		return NULL;
	answer->cmd = ETHTOOL_GRSSH;
	answer->indir_size = sizes.indir_size;
	answer->key_size = sizes.key_size;
	if (rss_ethtool(fd, ifname, answer) || answer->indir_size != sizes.indir_size ||
	    answer->key_size != sizes.key_size) {
		free(answer);
		return NULL;
	}
	return answer;
}

int harp_rss_read(const char *ifname, struct harp_rss *out)
{
	struct rss_answers answers = { 0 };
	struct ethtool_rxfh *hash = NULL;
	struct af_xdp_link link;
	int rc = af_xdp_link_read(ifname, &link), fd;

	memset(out, 0, sizeof(*out));
	if (rc)
		return rc;
	answers.queues = link.rx_queues ? link.rx_queues : rss_queues_of_sysfs(ifname);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (answers.queues > 1)
		hash = rss_hash(fd, ifname);
	if (hash) {
		answers.spreads = true;
		answers.function = hash->hfunc;
		answers.transform = hash->rsvd8[0]; /* input_xfrm since Linux 6.8 */
		answers.table = hash->rss_config;
		answers.table_count = hash->indir_size;
		answers.key = (const uint8_t *)(hash->rss_config + hash->indir_size);
		answers.key_bytes = hash->key_size;
		answers.fields_v4 = rss_fields(fd, ifname, TCP_V4_FLOW);
		answers.fields_v6 = rss_fields(fd, ifname, TCP_V6_FLOW);
	}
	close(fd);
	rss_from_answers(&answers, out);
	free(hash);
	return 0;
}

/* result */

static int rss_parse_key(const char *text, size_t len, struct harp_rss *out)
{
	if (len % 2 || len < 2 * KEY_BYTES_MIN || len > 2 * HARP_RSS_KEY_MAX ||
	    strspn(text, "0123456789abcdefABCDEF") < len)
		return -EINVAL;
	for (size_t i = 0; i < len / 2; i++) {
		const char digits[] = { text[2 * i], text[2 * i + 1], '\0' };

		out->key[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	out->key_bytes = (uint32_t)len / 2;
	return 0;
}

static int rss_parse_table(const char *text, struct harp_rss *out)
{
	do {
		char *end;
		unsigned long queue = strtoul(text, &end, 10);

		if (*text < '0' || *text > '9' || queue >= out->queues ||
		    out->table_count == HARP_RSS_TABLE_MAX || (*end && *end != ','))
			return -EINVAL;
		out->table[out->table_count++] = (uint16_t)queue;
		text = *end ? end + 1 : NULL;
	} while (text);
	return 0;
}

static int rss_parse_toeplitz(const char *text, struct harp_rss *out)
{
	size_t len = strcspn(text, ":");
	int rc = rss_parse_key(text, len, out);

	out->kind = HARP_RSS_TOEPLITZ;
	if (rc)
		return rc;
	if (text[len])
		return rss_parse_table(text + len + 1, out);
	for (; out->table_count < TABLE_COUNT_DEFAULT; out->table_count++)
		out->table[out->table_count] = (uint16_t)(out->table_count % out->queues);
	return 0;
}

int harp_rss_parse(const char *text, uint32_t queues, struct harp_rss *out)
{
	static const char toeplitz[] = "toeplitz:";
	int rc = -EINVAL;

	*out = (struct harp_rss){ .queues = queues ? queues : 1 };
	if (!strcmp(text, "unknown")) {
		out->kind = HARP_RSS_UNKNOWN;
		rc = 0;
	} else if (!strncmp(text, toeplitz, sizeof(toeplitz) - 1)) {
		rc = rss_parse_toeplitz(text + sizeof(toeplitz) - 1, out);
	}
	if (rc || out->queues == 1)
		*out = (struct harp_rss){ .queues = out->queues };
	return rc;
}
