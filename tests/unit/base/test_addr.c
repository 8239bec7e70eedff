/* SPDX-License-Identifier: Apache-2.0 */
/* test_addr.c - addresses as text, both ways, and what is not an address; the version. */
#include "harp.h"

#include <errno.h>

#include "check.h"

TEST(addresses_round_trip)
{
	static const char *const texts[] = {
		"0.0.0.0", "10.0.0.1", "255.255.255.255", "::",
		"::1",     "fd00::1",  "fe80::1:2:3:4",   "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	};
	char buf[HARP_ADDR_TEXT_MAX];
	struct harp_addr addr;

	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		CHECK_EQ(harp_addr_parse(texts[i], &addr), 0);
		CHECK_STR(harp_addr_format(&addr, buf), texts[i]);
		CHECK_EQ(harp_addr_is_v4(&addr), strchr(texts[i], '.') != NULL);
	}
	/* The mapped form is IPv4, however it is written. */
	CHECK_EQ(harp_addr_parse("::ffff:10.1.2.3", &addr), 0);
	CHECK(harp_addr_is_v4(&addr));
	CHECK_STR(harp_addr_format(&addr, buf), "10.1.2.3");
	struct harp_addr made = harp_addr_v4(10, 1, 2, 3);

	CHECK_MEM(&made, &addr, sizeof(addr));
}

/* fe80::/10. */
TEST(link_local_addresses_are_recognized)
{
	static const char *const yes[] = { "fe80::", "fe80::1", "febf:ffff::1" };
	static const char *const no[] = { "fe7f::1", "fec0::1", "fd00::1", "169.254.1.1", "::" };
	struct harp_addr addr;

	for (unsigned i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		CHECK_EQ(harp_addr_parse(yes[i], &addr), 0);
		CHECK(harp_addr_is_link_local(&addr));
	}
	for (unsigned i = 0; i < sizeof(no) / sizeof(no[0]); i++) {
		CHECK_EQ(harp_addr_parse(no[i], &addr), 0);
		CHECK(!harp_addr_is_link_local(&addr));
	}
}

TEST(invalid_addresses_are_refused)
{
	static const char *const texts[] = { "",          "10.0.0",    "10.0.0.256", "10.0.0.1 ",
					     "1.2.3.4:5", "fd00::1%3", "example",    ":::" };
	struct harp_addr addr = harp_addr_v4(9, 9, 9, 9), before = addr;

	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		CHECK_EQ(harp_addr_parse(texts[i], &addr), -EINVAL);
	CHECK_EQ(harp_addr_parse(NULL, &addr), -EINVAL);
	CHECK_MEM(&addr, &before, sizeof(addr)); /* untouched on failure */
}

TEST(endpoints_are_formatted)
{
	char buf[HARP_ENDPOINT_TEXT_MAX];
	struct harp_endpoint ep = { .addr = harp_addr_v4(192, 168, 100, 200), .port = 65535 };

	CHECK_STR(harp_endpoint_format(&ep, buf), "192.168.100.200:65535");
	CHECK_EQ(harp_addr_parse("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &ep.addr), 0);
	CHECK_STR(harp_endpoint_format(&ep, buf),
		  "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
	ep.scope_id = UINT32_MAX; /* no link-local address: it does not fit, and means nothing */
	CHECK_STR(harp_endpoint_format(&ep, buf),
		  "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
	CHECK_EQ(harp_addr_parse("fe80::ffff:ffff:ffff:ffff", &ep.addr), 0);
	CHECK_STR(harp_endpoint_format(&ep, buf), "[fe80::ffff:ffff:ffff:ffff%4294967295]:65535");
	ep.scope_id = 2;
	CHECK_STR(harp_endpoint_format(&ep, buf), "[fe80::ffff:ffff:ffff:ffff%2]:65535");
}

TEST(versions_are_reported)
{
	CHECK_EQ(harp_api_version(), HARP_API_VERSION);
	CHECK(harp_version()[0] >= '0' && harp_version()[0] <= '9');
}
