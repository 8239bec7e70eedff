/* SPDX-License-Identifier: Apache-2.0 */
/* ports.c - libharp-dpdk.so on net_ring and net_null: each operation of a NIC. */
#include "ports.h"

#include <dirent.h>
#include <errno.h>
#include <time.h>
#include <unistd.h>

const struct harp_dpdk_api *api;
char why[512];

uint64_t test_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- an end ---------------------------------------------------------------------------------- */

int port_try(struct harp_dpdk_port **port, const char *device, uint32_t mtu_bytes)
{
	const struct harp_dpdk_port_options opt = {
		.size = sizeof(opt),
		.device = device,
		.mtu_bytes = mtu_bytes,
		.queues = 1,
		.frame_count = END_FRAMES,
	};

	why[0] = '\0';
	return api->port_open(port, &opt, why, sizeof(why));
}

static void exit_on_error(int rc)
{
	if (!rc)
		return;
	fprintf(stderr, "%s\n", why);
	_exit(1);
}

void end_open_queue(struct end *end)
{
	*end = (struct end){ .port = end->port };
	exit_on_error(api->port_nic(end->port, 0, &end->nic, why, sizeof(why)));
	for (; end->free_count < end->nic->caps.frame_count; end->free_count++)
		end->free[end->free_count] = (uint64_t)end->free_count * end->nic->caps.frame_size;
}

void end_open(struct end *end, const char *device, uint32_t mtu_bytes)
{
	exit_on_error(port_try(&end->port, device, mtu_bytes));
	end_open_queue(end);
	CHECK_EQ(end->nic->caps.frame_count, END_FRAMES);
}

void end_close(struct end *end)
{
	harp_nic_destroy(end->nic);
	api->port_close(end->port);
}

void end_fill(struct end *end, unsigned target)
{
	uint64_t addrs[64];

	while (end->filled < target && end->free_count > 0) {
		unsigned n = 0;

		while (n < 64 && end->filled + n < target && end->free_count > 0)
			addrs[n++] = end->free[--end->free_count];
		CHECK_EQ(end->nic->ops->fill(end->nic, addrs, n), n);
		end->filled += n;
	}
}

unsigned end_send(struct end *end, unsigned packets, uint32_t len, unsigned pieces)
{
	struct harp_desc descs[64];
	unsigned n = 0, accepted, sent = 0;

	for (unsigned p = 0; p < packets && n + pieces <= 64 && end->free_count >= pieces; p++) {
		uint32_t number = end->next_out + p;

		for (unsigned i = 0; i < pieces; i++, n++) {
			uint64_t frame = end->free[--end->free_count];

			descs[n] = (struct harp_desc){
				.addr = frame + END_DATA_AT,
				.len = len / pieces,
				.flags = i + 1 < pieces ? HARP_DESC_MORE : 0,
			};
			memset(end->nic->caps.frame_base + descs[n].addr, (uint8_t)number,
			       descs[n].len);
		}
		memcpy(end->nic->caps.frame_base + descs[n - pieces].addr + 14, &number, 4);
	}
	accepted = end->nic->ops->tx(end->nic, descs, n, 1);
	CHECK(accepted <= n && accepted % pieces == 0);
	for (unsigned i = n; i > accepted; i--)
		end->free[end->free_count++] =
			descs[i - 1].addr & ~(uint64_t)(end->nic->caps.frame_size - 1);
	sent = accepted / pieces;
	end->next_out += sent;
	end->sent += accepted;
	return sent;
}

void end_complete(struct end *end)
{
	uint64_t addrs[64];
	unsigned n;

	while ((n = end->nic->ops->complete(end->nic, addrs, 64, 1)) > 0) {
		for (unsigned i = 0; i < n; i++)
			end->free[end->free_count++] =
				addrs[i] & ~(uint64_t)(end->nic->caps.frame_size - 1);
		CHECK(end->sent >= n);
		end->sent -= n;
	}
}

void end_receive(struct end *end)
{
	struct harp_desc descs[64];
	unsigned n = end->nic->ops->rx(end->nic, descs, 64, test_now_ns());
	bool first = true;

	for (unsigned i = 0; i < n; i++) {
		const uint8_t *data = end->nic->caps.frame_base + descs[i].addr;
		uint32_t number;

		end->filled--;
		CHECK((descs[i].addr & (end->nic->caps.frame_size - 1)) + descs[i].len <=
		      end->nic->caps.frame_size);
		if (first) {
			memcpy(&number, data + 14, 4);
			end->errors += number != end->next_in;
			end->next_in = number + 1;
			end->received++;
		}
		/* The last byte must belong to the same packet. */
		end->errors += data[descs[i].len - 1] != (uint8_t)(end->next_in - 1);
		first = !(descs[i].flags & HARP_DESC_MORE);
		end->free[end->free_count++] =
			descs[i].addr & ~(uint64_t)(end->nic->caps.frame_size - 1);
	}
	CHECK(n == 0 || first); /* only whole packets */
}

bool end_transfer(struct end *from, struct end *to, uint64_t packets, uint32_t len, unsigned pieces)
{
	uint64_t until_ns = test_now_ns() + 60000000000u, before = to->received;

	while (to->received - before < packets) {
		end_fill(to, END_FRAMES / 2);
		end_receive(to);
		if (from->next_out - to->next_in < 256)
			end_send(from, 16, len, pieces);
		end_complete(from);
		if (test_now_ns() > until_ns)
			return false;
	}
	return true;
}

bool end_wait_up(const struct end *end, bool up)
{
	uint64_t until_ns = test_now_ns() + 60000000000u;
	struct harp_instance_port info;

	do {
		api->port_info(end->port, &info);
		if (info.up == up)
			return true;
		usleep(1000);
	} while (test_now_ns() < until_ns);
	return false;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The port receives the mbufs that it sent, so the NIC copies them. */
TEST(a_ring_returns_packets_in_order)
{
	struct harp_nic_stats stats;
	struct harp_instance_port info;
	struct end end;

	end_open(&end, "net_ring0", 0);
	api->port_info(end.port, &info);
	CHECK_STR(info.driver, "net_ring");
	CHECK_STR(info.device, "net_ring0");
	CHECK(info.up && !info.driver_copies && info.mtu_bytes == 1500);
	CHECK(!(end.nic->caps.features & HARP_NIC_TX_LAZY)); /* the receiver frees the mbuf */
	CHECK(strncmp(info.dpdk, "DPDK ", 5) == 0);
	CHECK(!(info.mac[0] & 1));
	CHECK(end_transfer(&end, &end, 100000, 1514, 1));
	CHECK_EQ(end.errors, 0);
	end.nic->ops->stats(end.nic, &stats);
	CHECK_EQ(stats.copied_bytes, end.received * 1514);
	while (end.sent > 0) {
		end_fill(&end, END_FRAMES / 2);
		end_receive(&end);
		end_complete(&end);
	}
	CHECK_EQ(end.free_count + end.filled, END_FRAMES);
	end_close(&end);
}

/* Chains are sent whole. A chain that exceeds the receiver's burst waits for the next one. */
TEST(chained_packets_arrive_whole)
{
	struct end end;

	end_open(&end, "net_ring0", 9000);
	CHECK_EQ(end.nic->caps.frame_size, 16384);
	CHECK(end.nic->caps.features & HARP_NIC_TX_MULTI);
	for (unsigned pieces = 1; pieces <= 4; pieces++)
		CHECK(end_transfer(&end, &end, 5000, 8000, pieces));
	CHECK_EQ(end.errors, 0);
	end_close(&end);
}

/* A full ring accepts some packets; the caller keeps the others. */
TEST(a_full_ring_accepts_a_part)
{
	unsigned sent = 0, accepted;
	struct end end;

	end_open(&end, "net_ring0", 0);
	while (end.free_count > 0 && (accepted = end_send(&end, 64, 100, 1)) > 0)
		sent += accepted;
	CHECK_EQ(sent, end.sent);
	CHECK_EQ(sent + end.free_count, END_FRAMES);
	end_complete(&end);
	CHECK_EQ(end.sent, sent); /* the ring holds all of them */
	end_close(&end);
	/* Closing the port freed the packets in the ring. */
	end_open(&end, "net_ring0", 0);
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	CHECK_EQ(end.errors, 0);
	end_close(&end);
}

static unsigned warnings;

static void count_warnings(void *ctx, enum harp_log_level level, const char *line)
{
	(void)ctx;
	if (!strstr(line, "free for reception"))
		return;
	CHECK_EQ(level, HARP_LOG_INFO);
	CHECK(strstr(line, "net_null0 queue 0: too few of 1024 frames") && strstr(line, "frames="));
	warnings++;
}

/* Without free frames nothing is received. This is counted, and logged once. */
TEST(missing_receive_frames_are_logged_once)
{
	const struct harp_dpdk_eal_options options = { .size = sizeof(options),
						       .log = count_warnings };
	struct harp_nic_stats stats;
	struct end end;

	CHECK_EQ(api->start(&options, why, sizeof(why)), 0);
	end_open(&end, "net_null0", 0);
	end_receive(&end);
	CHECK_EQ(end.received, 0);
	end.nic->ops->stats(end.nic, &stats);
	CHECK(stats.rx_fill_empty > 0);
	CHECK_EQ(warnings, 1);
	end_receive(&end);
	CHECK_EQ(warnings, 1);
	end_fill(&end, 256);
	end_receive(&end);
	CHECK_EQ(end.received, 64);
	end_close(&end);
}

/* Invalid descriptors are counted, and their frames are completed. */
TEST(invalid_descriptors_are_counted)
{
	struct harp_nic_stats stats;
	struct end end;

	end_open(&end, "net_ring0", 0);
	const uint64_t region = (uint64_t)END_FRAMES * end.nic->caps.frame_size;
	const uint64_t externals =
		(uint64_t)end.nic->caps.external_count * end.nic->caps.frame_size;
	const struct harp_desc bad[] = {
		{ .addr = region, .len = 60 }, /* an external frame cannot be the first */
		{ .addr = region + externals, .len = 60 },
		{ .addr = UINT64_MAX - 8, .len = 60 },
		{ .addr = 100, .len = 60 }, /* in the mbuf */
		{ .addr = 448, .len = 0 },
		{ .addr = 448, .len = 2048 },
		{ .addr = 448, .len = UINT32_MAX },
	};
	const struct harp_desc unfinished = { .addr = 448, .len = 60, .flags = HARP_DESC_MORE };
	uint64_t addrs[8];
	unsigned completed;

	CHECK(externals > 0);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_EQ(end.nic->ops->tx(end.nic, &bad[i], 1, 1), 1);
	CHECK_EQ(end.nic->ops->tx(end.nic, &unfinished, 1, 1), 0);
	end.nic->ops->stats(end.nic, &stats);
	CHECK_EQ(stats.tx_invalid, sizeof(bad) / sizeof(bad[0]));
	completed = end.nic->ops->complete(end.nic, addrs, 8, 1);
	CHECK_EQ(completed, 5); /* those in the region, and the external frame */
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	CHECK_EQ(end.errors, 0);
	end_close(&end);
}

unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (dir && readdir(dir))
		n++;
	CHECK(n > 0);
	if (dir)
		closedir(dir);
	return n;
}

/* A process can start DPDK only once, so it runs one test. */
int main(int argc, char **argv)
{
	api = harp_dpdk_api();
	if (argc == 4 && strcmp(argv[1], "peer") == 0)
		peer_main(argv[2], atoi(argv[3]));
	CHECK_EQ(api->version, HARP_DPDK_VERSION);
	if (argc != 2)
		return 2;
	check_run_named(argv[1]);
	return check_done();
}
