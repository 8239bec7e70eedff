/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_port.c - a DPDK port's text: refused in a line, or read, written and read again to the same. */
#include "fuzz.h"
#include "harp_host.h"

#include <errno.h>

static void port_claims(const struct harp_port_spec *spec)
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
	char back[HARP_PORT_TEXT_MAX], why[320], *text = malloc(len + 1);
	struct harp_port_spec spec, again;
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
	port_claims(&spec);
	CHECK(harp_port_spec_format(&spec, back, sizeof(back)) == (int)strlen(back));
	CHECK(harp_port_spec_parse(back, &again, NULL, 0) == 0);
	CHECK(memcmp(&spec, &again, sizeof(spec)) == 0);
	return 0;
}
