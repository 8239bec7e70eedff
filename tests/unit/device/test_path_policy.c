/* SPDX-License-Identifier: Apache-2.0 */
/* test_path_policy.c - which messages prefer HARP lanes, by path, NIC mode, segmentation offload
 * and profile; and bad profiles. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "device/path_policy.h"
#include "process/config.h"
#include "process/log.h"

static const struct device ethernet = { .ifname = "eth1", .mtu_bytes = 1500, .segments = true };
static const struct profile no_profile;

/* Only path_policy() and path_policy_load() use it, which are not tested here. */
const struct plugin_config *plugin_config(void)
{
	static const struct plugin_config config;

	return &config;
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
}

static uint64_t get_limit(const struct device *device, enum harp_instance_mode mode,
			  enum plugin_path path, uint32_t xdp_bytes_max)
{
	struct plugin_config config = { .path = path, .xdp_bytes_max = xdp_bytes_max };

	return path_policy_of(device, mode, NULL, &config, &no_profile).harp_bytes_max;
}

TEST(HARP_PATH_decides)
{
	for (unsigned mode = 0; mode < HARP_MODE_COUNT; mode++) {
		CHECK_EQ(get_limit(&ethernet, mode, PATH_KERNEL, 4096), 0);
		CHECK_EQ(get_limit(&ethernet, mode, PATH_XDP, 4096), PATH_POLICY_ALL);
		CHECK_EQ(get_limit(&ethernet, mode, PATH_DPDK, 4096), PATH_POLICY_ALL);
	}
}

TEST(the_defaults_follow_mode_and_offload)
{
	static const struct {
		enum harp_instance_mode mode;
		uint64_t with_offload, without;
	} rows[] = {
		{ HARP_MODE_NONE, 0, 0 },
		{ HARP_MODE_GENERIC_COPY, 0, 0 },
		{ HARP_MODE_NATIVE_COPY, 4096, 65536 },
		{ HARP_MODE_ZERO_COPY, 65536, PATH_POLICY_ALL },
		{ HARP_MODE_DPDK, PATH_POLICY_ALL, PATH_POLICY_ALL },
	};
	struct device no_offload = ethernet;

	static_assert(sizeof(rows) / sizeof(rows[0]) == HARP_MODE_COUNT, "all modes");
	no_offload.segments = false;
	for (unsigned i = 0; i < HARP_MODE_COUNT; i++) {
		CHECK_EQ(get_limit(&ethernet, rows[i].mode, PATH_AUTO, 0), rows[i].with_offload);
		CHECK_EQ(get_limit(&no_offload, rows[i].mode, PATH_AUTO, 0), rows[i].without);
		CHECK_EQ(get_limit(&ethernet, rows[i].mode, PATH_AUTO, 777), 777);
	}
}

/* Kernel sockets cannot use these devices. */
TEST(devices_without_a_kernel_path_use_HARP_lanes)
{
	struct device port = { .mtu_bytes = 1500, .dpdk = true }, leased = ethernet;

	leased.netns = 4026531840;
	CHECK_EQ(get_limit(&port, HARP_MODE_DPDK, PATH_AUTO, 777), PATH_POLICY_ALL);
	CHECK_EQ(get_limit(&leased, HARP_MODE_GENERIC_COPY, PATH_AUTO, 777), PATH_POLICY_ALL);
}

/* ---- the profile ----------------------------------------------------------------------------- */

static char file[] = "/tmp/harp-profile-XXXXXX";
static char why[256];

static int read_text(const char *text, struct profile *out)
{
	FILE *f = fopen(file, "w");

	CHECK(f && fputs(text, f) >= 0 && !fclose(f));
	why[0] = '\0';
	return profile_read(file, "node7", out, why, sizeof(why));
}

#define TOP "version = 1\nhost = \"node7\"\n"
#define NIC "[[nic]]\nifname = \"eth1\"\nmode = \"generic-copy\"\nharp_up_to = \"4KiB\"\n"

static uint64_t get_limit_to_peer(const struct profile *profile, const char *text)
{
	const struct plugin_config config = { .path = PATH_AUTO };
	struct harp_addr peer;

	if (text)
		CHECK_EQ(harp_addr_parse(text, &peer), 0);
	return path_policy_of(&ethernet, HARP_MODE_GENERIC_COPY, text ? &peer : NULL, &config,
			      profile)
		.harp_bytes_max;
}

TEST(a_profile_replaces_the_defaults)
{
	struct profile profile;
	struct device other = ethernet;
	const struct plugin_config config = { .path = PATH_AUTO };

	CHECK_EQ(read_text("# measured\r\n" TOP "\n[[nic]] # first\n"
			   "ifname = \"eth1\"\nmode = \"generic-copy\"\n"
			   "peers = \"10.1.0.0/16\"  # a rack\nharp_up_to = \"64KiB\"\n"
			   "[[nic]]\nifname = \"eth1\"\nmode = \"generic-copy\"\n"
			   "\tpeers = \"fd00:7::/32\"\nharp_up_to=\"all\"\n" NIC,
			   &profile),
		 1);
	CHECK_EQ(profile.count, 3);
	CHECK_EQ(get_limit_to_peer(&profile, "10.1.255.9"), 65536);
	CHECK_EQ(get_limit_to_peer(&profile, "10.2.0.1"), 4096);
	CHECK_EQ(get_limit_to_peer(&profile, "fd00:7::1"), PATH_POLICY_ALL);
	CHECK_EQ(get_limit_to_peer(&profile, "fd00:8::1"), 4096);
	/* Without a peer: the maximum of all peers. */
	CHECK_EQ(get_limit_to_peer(&profile, NULL), PATH_POLICY_ALL);
	/* A mode that was not measured, and another NIC. */
	CHECK_EQ(path_policy_of(&ethernet, HARP_MODE_ZERO_COPY, NULL, &config, &profile)
			 .harp_bytes_max,
		 65536);
	strcpy(other.ifname, "eth2");
	CHECK_EQ(path_policy_of(&other, HARP_MODE_GENERIC_COPY, NULL, &config, &profile)
			 .harp_bytes_max,
		 0);
	CHECK_EQ(read_text(TOP, &profile), 1);
	CHECK_EQ(profile.count, 0);
}

TEST(a_bad_profile_is_an_error_with_its_line)
{
	static const struct {
		const char *text, *why;
	} bad[] = {
		{ "", "version is missing" },
		{ "version = 1\n" NIC, "line 2: host is missing above" },
		{ "version = 2\nhost = \"node7\"\n", "line 1: version must be 1" },
		{ "version = \"1\"\n", "version must be 1" },
		{ "version = 1\nhost = \"node8\"\n", "of host node8, and this is node7" },
		{ "version = 1\nhost = node7\n",
		  "host must be the name of this host in double quotes" },
		{ TOP "host = \"node7\"\n", "line 3: host is set twice" },
		{ TOP "speed = 1\n", "line 3: unknown key speed" },
		{ TOP "ifname = \"eth1\"\n", "unknown key ifname" },
		{ TOP "[nic]\n", "the only tables are [tuner] and [[nic]]" },
		{ TOP "[[nic]] x\n", "line 3: neither" },
		{ TOP "nonsense\n", "line 3: neither" },
		{ TOP "[[nic]]\n" NIC, "line 4: ifname is missing above" },
		{ TOP "[[nic]]\nifname = \"\"\n", "1 to 15 characters" },
		{ TOP "[[nic]]\nifname = \"sixteen_letters_\"\n", "1 to 15 characters" },
		{ TOP "[[nic]]\nifname = \"a\\u0062\"\n",
		  "ifname must be 1 to 15 characters in double quotes" },
		{ TOP "[[nic]]\nifname = \"a\n",
		  "ifname must be 1 to 15 characters in double quotes" },
		{ TOP "[[nic]]\nifname = \"a\" b\n",
		  "ifname must be 1 to 15 characters in double quotes" },
		{ TOP "[[nic]]\nifname = \"\xc3\xa4\"\n", "not plain ASCII" },
		{ TOP "[[nic]]\nmode = \"dpdk\"\n", "mode must be" },
		{ TOP "[[nic]]\nmode = \"copy\"\n", "mode must be" },
		{ TOP NIC "harp_up_to = \"all\"\n", "harp_up_to is set twice" },
		{ TOP "[[nic]]\nharp_up_to = \"5KiB\"\n", "harp_up_to must be \"none\"" },
		{ TOP NIC "peers = \"10.1.0.0\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"10.1.0.0/33\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"10.1.0.0/\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"10.1.0.0/8\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"10.1.0.0/8x\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"rack7/8\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"fd00::/129\"\n", "peers must be a prefix" },
		{ TOP NIC "peers = \"fd00::/99999999999999999999\"\n", "peers must be a prefix" },
	};
	struct profile profile;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int rc = read_text(bad[i].text, &profile);

		if (rc != -EINVAL || !strstr(why, bad[i].why))
			printf("%s\n%d %s\n", bad[i].text, rc, why);
		CHECK_EQ(rc, -EINVAL);
		CHECK(strstr(why, bad[i].why));
		CHECK_EQ(profile.count, 0);
	}
}

TEST(a_profile_must_be_a_file_that_others_cannot_write)
{
	struct profile profile;
	char *text = malloc(1 << 17);
	size_t used;

	CHECK_EQ(profile_read("/nonexistent/profile.toml", "node7", &profile, why, sizeof(why)), 0);
	CHECK_EQ(profile_read("/tmp", "node7", &profile, why, sizeof(why)), -EINVAL);
	CHECK_EQ(read_text(TOP, &profile), 1);
	CHECK_EQ(chmod(file, 0666), 0);
	CHECK_EQ(profile_read(file, "node7", &profile, why, sizeof(why)), -EINVAL);
	CHECK(strstr(why, "others may write it"));
	CHECK_EQ(chmod(file, 0600), 0);
	used = (size_t)sprintf(text, "%s", TOP);
	for (unsigned i = 0; i <= PROFILE_ENTRIES_MAX; i++)
		used += (size_t)sprintf(text + used, "%s", NIC);
	CHECK_EQ(read_text(text, &profile), -EINVAL);
	CHECK(strstr(why, "more than 64 [[nic]]"));
	memset(text, '\n', 1 << 17);
	text[(1 << 17) - 1] = '\0';
	CHECK_EQ(read_text(text, &profile), -EINVAL);
	CHECK(strstr(why, "too large"));
	free(text);
}

int main(void)
{
	int fd = mkstemp(file);

	CHECK(fd >= 0);
	close(fd);
	check_run();
	unlink(file);
	return check_done();
}
