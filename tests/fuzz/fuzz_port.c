/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_port.c - the text of a DPDK port: rejected with one line, or parsed, formatted and parsed
 * alike. */
#include "fuzz.h"
#include "harp_host.h"

#include <errno.h>

static void check_port(const struct harp_port_spec *spec)
{
	CHECK(spec->device[0] && memchr(spec->device, '\0', sizeof(spec->device)));
	CHECK(spec->name[0] && memchr(spec->name, '\0', sizeof(spec->name)));
	CHECK(spec->address_count <= HARP_PORT_ADDRESSES_MAX);
	CHECK(spec->route_count <= HARP_PORT_ROUTES_MAX);
	CHECK(spec->queues >= 1 && spec->queues <= 64);
	CHECK(spec->vlan_id <= 4094 && spec->mtu_bytes <= 16000);
	for (uint32_t i = 0; i < spec->address_count; i++)
		CHECK(spec->prefix_lens[i] <= (harp_addr_is_v4(&spec->addresses[i]) ? 32u : 128u));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	char formatted[HARP_PORT_TEXT_MAX], why[320], *text = malloc(len + 1);
	struct harp_port_spec spec, reparsed;
	int rc;

	CHECK(text);
	memcpy(text, bytes, len);
	text[len] = '\0';
	rc = harp_port_spec_parse(text, &spec, why, sizeof(why));
	free(text);
	if (rc) {
		CHECK(rc == -EINVAL && why[0] && !strchr(why, '\n'));
		return 0;
	}
	CHECK(!why[0]);
	check_port(&spec);
	CHECK(harp_port_spec_format(&spec, formatted, sizeof(formatted)) == (int)strlen(formatted));
	CHECK(harp_port_spec_parse(formatted, &reparsed, NULL, 0) == 0);
	CHECK(memcmp(&spec, &reparsed, sizeof(spec)) == 0);
	return 0;
}
