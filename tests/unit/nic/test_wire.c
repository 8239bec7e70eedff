/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire.c - the wire does to packets what it was told, no more, and the same again. */
#include "harp_nic.h"

#include <errno.h>
#include <stdlib.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "base/rng.h"
#include "check.h"

#define US 1000u
#define MS 1000000u

static struct harp_wire *wire;
static struct harp_nic *a, *b, *ports[4]; /* a and b are the first two */

static void wire_open(struct harp_wire_options opt)
{
	opt.size = sizeof(opt);
	CHECK_EQ(harp_wire_create(&wire, &opt), 0);
	for (unsigned p = 0; p < (opt.ports ? opt.ports : 2); p++) {
		struct harp_nic *nic = ports[p] = harp_wire_port(wire, p);

		for (uint64_t i = 0; i < nic->caps.rx_ring; i++) {
			uint64_t addr = i * nic->caps.frame_size;

			CHECK_EQ(nic->ops->fill(nic, &addr, 1), 1);
		}
	}
	a = ports[0];
	b = ports[1];
}

static void wire_close(void)
{
	harp_wire_destroy(wire);
	wire = NULL;
}

AFTER_EACH(wire_close())

/* Sends len bytes that begin with a serial number, from a frame above those for receiving. */
static unsigned send(struct harp_nic *nic, uint32_t serial, uint32_t len, uint64_t now_ns)
{
	const struct harp_nic_caps *caps = &nic->caps;
	struct harp_desc descs[16];
	uint64_t done[16];
	unsigned n = 0;

	for (uint32_t at = 0; at < len; n++) {
		uint32_t piece = len - at < 1500 ? len - at : 1500;

		descs[n] = (struct harp_desc){ (caps->rx_ring + n) * (uint64_t)caps->frame_size,
					       piece, at + piece < len ? HARP_DESC_MORE : 0 };
		for (uint32_t i = 0; i < piece; i++)
			caps->frame_base[descs[n].addr + i] = (uint8_t)(serial + at + i);
		at += piece;
	}
	be32_store(caps->frame_base + descs[0].addr, serial);
	unsigned took = nic->ops->tx(nic, descs, n, now_ns);

	nic->ops->complete(nic, done, 16, now_ns);
	return took;
}

/* Receives one packet, checks its bytes, returns its serial; -1 when none waits. */
static int64_t receive(struct harp_nic *nic, uint64_t now_ns, uint32_t *len_out)
{
	static uint8_t packet[70000];
	struct harp_desc descs[16];
	uint32_t len = 0;
	/* one packet at a time: the largest packet here takes five */
	unsigned n = nic->ops->rx(nic, descs, nic->caps.mtu_bytes > 1900 ? 5 : 1, now_ns);

	if (n == 0)
		return -1;
	for (unsigned i = 0; i < n; i++) {
		uint64_t frame = descs[i].addr & ~(uint64_t)(nic->caps.frame_size - 1);

		CHECK_EQ(descs[i].flags, i + 1 < n ? HARP_DESC_MORE : 0);
		CHECK(descs[i].addr - frame >= nic->caps.rx_headroom);
		CHECK(descs[i].addr - frame + descs[i].len <= nic->caps.frame_size);
		memcpy(packet + len, nic->caps.frame_base + descs[i].addr, descs[i].len);
		len += descs[i].len;
		CHECK_EQ(nic->ops->fill(nic, &frame, 1), 1);
	}
	uint32_t serial = be32_load(packet);

	for (uint32_t i = 4; i < len; i++)
		if (packet[i] != (uint8_t)(serial + i))
			return -2; /* corrupted */
	*len_out = len;
	return serial;
}

static struct harp_wire_stats stats_of(unsigned port)
{
	struct harp_wire_stats s;

	CHECK_EQ(harp_wire_stats(wire, port, &s), 0);
	return s;
}

TEST(packets_arrive_in_order)
{
	uint32_t len;

	wire_open((struct harp_wire_options){ .mtu_bytes = 9000 });
	CHECK_EQ(a->caps.mac[5], 0);
	CHECK_EQ(b->caps.mac[5], 1);
	CHECK(harp_wire_port(wire, 2) == NULL);
	send(a, 1, 60, 0);
	send(a, 2, 9014, 0); /* six frames in, five out */
	send(b, 3, 1514, 0);
	CHECK_EQ(harp_wire_in_flight(wire), 3);
	CHECK_EQ(b->ops->next_ns(b), 0);
	CHECK_EQ(receive(b, 0, &len), 1);
	CHECK_EQ(len, 60);
	CHECK_EQ(receive(b, 0, &len), 2);
	CHECK_EQ(len, 9014);
	CHECK_EQ(receive(b, 0, &len), -1);
	CHECK_EQ(receive(a, 0, &len), 3);
	CHECK_EQ(harp_wire_in_flight(wire), 0);
	CHECK(b->ops->next_ns(b) == UINT64_MAX);
	CHECK_EQ(stats_of(0).delivered, 2);
	harp_nic_destroy(a); /* the wire's: nothing happens */
	harp_wire_destroy(NULL);
}

TEST(delay_and_rate_are_exact)
{
	/* 1 Gbit/s: 1250 bytes take 10 us. */
	uint32_t len;

	wire_open((struct harp_wire_options){
		.impair = { .delay_ns = 1 * MS, .rate_bps = 1000000000, .queue_bytes = 4000 },
	});
	for (uint32_t i = 0; i < 5; i++)
		send(a, i, 1250, 0);
	CHECK_EQ(stats_of(0).queue_dropped, 2); /* 4000 bytes hold three */
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t at_ns = 1 * MS + (i + 1) * 10 * US;

		CHECK_EQ(b->ops->next_ns(b), at_ns);
		CHECK_EQ(receive(b, at_ns - 1, &len), -1);
		CHECK_EQ(receive(b, at_ns, &len), i);
	}
	send(a, 9, 1250, 20 * US); /* the queue has drained to one packet by now */
	CHECK_EQ(b->ops->next_ns(b), 1 * MS + 40 * US);
}

TEST(a_deep_queue_marks_ipv4)
{
	wire_open((struct harp_wire_options){
		.impair = { .rate_bps = 1000000000, .ecn_mark_bytes = 3000 },
	});

	uint64_t out = (uint64_t)a->caps.rx_ring * a->caps.frame_size;
	uint8_t *p = a->caps.frame_base + out;
	struct harp_desc d = { out, 1000, 0 };
	unsigned marked = 0;

	for (unsigned i = 0; i < 8; i++) {
		bool ect = i != 6; /* one that can't be marked, beyond the depth */

		memset(p, 0, 1000);
		be16_store(p + 12, 0x0800);
		p[14] = 0x45;
		p[15] = ect ? 2 : 0;
		uint16_t sum = csum_finish(csum_partial(p + 14, 20, 0));

		memcpy(p + 24, &sum, 2);
		CHECK_EQ(a->ops->tx(a, &d, 1, 0), 1);
	}
	for (unsigned i = 0; i < 8; i++) {
		struct harp_desc got;

		CHECK_EQ(b->ops->rx(b, &got, 1, 1000 * MS), 1);
		const uint8_t *ip = b->caps.frame_base + got.addr + 14;

		CHECK_EQ(csum_finish(csum_partial(ip, 20, 0)), 0); /* repaired */
		CHECK_EQ(ip[1], i == 6 ? 0 : i >= 4 ? 3 : 2);
		marked += ip[1] == 3;
	}
	CHECK_EQ(stats_of(0).ce_marked, marked);
}

/* IPv6's traffic class lies across two bytes and has no checksum; a tag may come before. */
TEST(a_deep_queue_marks_ipv6)
{
	wire_open((struct harp_wire_options){
		.impair = { .rate_bps = 1000000000, .ecn_mark_bytes = 1 },
	});

	uint64_t out = (uint64_t)a->caps.rx_ring * a->caps.frame_size;
	uint8_t *p = a->caps.frame_base + out;
	struct harp_desc d = { out, 1000, 0 };

	for (unsigned i = 0; i < 5; i++) { /* the first finds the queue empty */
		uint8_t *ip = p + (i >= 3 ? 18 : 14);

		memset(p, 0, 1000);
		if (i >= 3)
			memcpy(p + 12, "\x81\0\0\7", 4);
		be16_store(ip - 2, 0x86dd);
		be32_store(ip, i == 2 ? 0x6b812345 : 0x6ba12345); /* DSCP 46; not ECT, ECT(0) */
		CHECK_EQ(a->ops->tx(a, &d, 1, 0), 1);
	}
	for (unsigned i = 0; i < 5; i++) {
		struct harp_desc got;

		CHECK_EQ(b->ops->rx(b, &got, 1, 1000 * MS), 1);
		const uint8_t *ip = b->caps.frame_base + got.addr + (i >= 3 ? 18 : 14);

		CHECK_EQ(be32_load(ip), i == 0 ? 0x6ba12345 : i == 2 ? 0x6b812345 : 0x6bb12345);
	}
	CHECK_EQ(stats_of(0).ce_marked, 3);
}

/* The switch's port towards a receiver: its senders share rate, queue and marks, also of IPv6. */
TEST(senders_share_an_inbound_limit)
{
	struct harp_wire_impair narrow = {
		.rate_bps = 1000000000, .queue_bytes = 5000, .ecn_mark_bytes = 1500, .inbound = 1
	};
	uint8_t *p, tos[16];
	unsigned got = 0, marked = 0;

	wire_open((struct harp_wire_options){ .ports = 3 });
	CHECK_EQ(harp_wire_set_impair(wire, 2, &narrow), 0);
	for (unsigned i = 0; i < 8; i++) {
		struct harp_nic *from = ports[i % 2];
		struct harp_desc d = { (uint64_t)from->caps.rx_ring * from->caps.frame_size, 1000,
				       0 };

		p = from->caps.frame_base + d.addr;
		memset(p, 0, 1000);
		memcpy(p, ports[2]->caps.mac, 6);
		be16_store(p + 12, 0x86dd);
		p[14] = 0x60;
		p[15] = i == 4 ? 0 : 0x20; /* ECT(0), save one */
		CHECK_EQ(from->ops->tx(from, &d, 1, 0), 1);
	}
	for (uint64_t now_ns = 0; now_ns <= 100 * US; now_ns += 8 * US) {
		struct harp_desc d;

		if (ports[2]->ops->rx(ports[2], &d, 1, now_ns) == 1)
			tos[got++] = ports[2]->caps.frame_base[d.addr + 15];
		CHECK(got <= now_ns / (8 * US)); /* a kilobyte at 1 Gbit/s takes 8 us */
	}
	CHECK_EQ(got, 5);
	for (unsigned i = 0; i < got; i++)
		marked += tos[i] == 0x30;
	CHECK_EQ(marked, 2); /* the third and the fourth: the fifth can't be */
	CHECK_EQ(tos[4], 0);
	CHECK_EQ(stats_of(2).ce_marked, 2);
	CHECK_EQ(stats_of(2).queue_dropped, 3);
	CHECK_EQ(stats_of(0).queue_dropped, 0);
}

/* Sends n packets 1 us apart and receives them at their times; a digest of what came, and when. */
static uint64_t run_lossy(uint64_t seed, const struct harp_wire_impair *im, unsigned n,
			  unsigned *inversions, unsigned *corrupt)
{
	uint64_t now_ns = 0, digest = 0, received = 0;
	int64_t last = -1;
	uint32_t sent = 0, len;

	wire_open((struct harp_wire_options){ .seed = seed, .impair = *im });
	*inversions = *corrupt = 0;
	while (sent < n || harp_wire_in_flight(wire) > 0) {
		uint64_t next_ns = b->ops->next_ns(b);

		if (sent < n && sent * (uint64_t)US <= next_ns) {
			now_ns = sent * (uint64_t)US;
			CHECK_EQ(send(a, sent++, 100, now_ns), 1);
			continue;
		}
		CHECK(next_ns >= now_ns);
		now_ns = next_ns;
		int64_t serial = receive(b, now_ns, &len);

		CHECK(serial != -1);
		received++;
		digest = digest * 31 + (uint64_t)serial + now_ns;
		*corrupt += serial == -2;
		if (serial >= 0) {
			*inversions += serial < last;
			last = serial;
		}
	}
	struct harp_wire_stats s = stats_of(0);

	CHECK_EQ(s.sent, n);
	CHECK_EQ(s.delivered, received);
	CHECK_EQ(s.sent - s.lost + s.duplicated, s.delivered);
	CHECK_EQ(s.queue_dropped + s.rx_no_frame, 0);
	if (im->loss_ppm)
		CHECK(s.lost > n / 50 && s.lost < n / 12); /* 5 % */
	if (im->corrupt_ppm) /* a bit of the serial number itself may go unnoticed, or double */
		CHECK(*corrupt > 0 && *corrupt <= s.corrupted * 2);
	wire_close();
	return digest;
}

TEST(impairments_replay_from_a_seed)
{
	struct harp_wire_impair all = {
		.delay_ns = 50 * US,
		.jitter_ns = 20 * US,
		.loss_ppm = 50000,
		.duplicate_ppm = 20000,
		.reorder_ppm = 30000,
		.reorder_ns = 30 * US,
		.corrupt_ppm = 10000,
	};
	struct harp_wire_impair jitter = { .delay_ns = 50 * US, .jitter_ns = 20 * US };
	unsigned inversions, corrupt;
	uint64_t first = run_lossy(7, &all, 4000, &inversions, &corrupt);

	CHECK(inversions > 0);
	CHECK_EQ(run_lossy(7, &all, 4000, &inversions, &corrupt), first); /* replayable */
	CHECK(run_lossy(8, &all, 4000, &inversions, &corrupt) != first);
	run_lossy(9, &jitter, 4000, &inversions, &corrupt);
	CHECK_EQ(inversions, 0); /* jitter alone keeps the order */
	CHECK_EQ(corrupt, 0);
}

TEST(a_link_goes_down_and_up)
{
	struct harp_wire_impair down = { .down = 1 }, up = { 0 }, bad = { .loss_ppm = 1000001 };
	uint32_t len;

	wire_open((struct harp_wire_options){ 0 });
	CHECK_EQ(harp_wire_set_impair(wire, 0, &down), 0);
	send(a, 1, 100, 0);
	CHECK_EQ(stats_of(0).lost, 1);
	send(b, 2, 100, 0); /* one direction only */
	CHECK_EQ(receive(a, 0, &len), 2);
	CHECK_EQ(harp_wire_set_impair(wire, 0, &up), 0);
	send(a, 3, 100, 0);
	CHECK_EQ(receive(b, 0, &len), 3);
	CHECK_EQ(harp_wire_set_impair(wire, 0, &bad), -EINVAL);
	CHECK_EQ(harp_wire_set_impair(wire, 2, &up), -EINVAL);
}

static void send_to(struct harp_nic *nic, const uint8_t *mac)
{
	uint64_t out = (uint64_t)nic->caps.rx_ring * nic->caps.frame_size;
	struct harp_desc d = { out, 60, 0 };

	memset(nic->caps.frame_base + out, 0, 60);
	memcpy(nic->caps.frame_base + out, mac, 6);
	CHECK_EQ(nic->ops->tx(nic, &d, 1, 0), 1);
}

static unsigned waiting(struct harp_nic *nic)
{
	struct harp_desc descs[16];

	return nic->ops->rx(nic, descs, 16, 0);
}

TEST(the_switch_forwards_by_address)
{
	static const uint8_t everyone[6] = { 255, 255, 255, 255, 255, 255 };
	static const uint8_t unknown[6] = { 0x02, 0x48, 0x41, 0x52, 0x50, 9 };

	wire_open((struct harp_wire_options){ .ports = 4 });
	send_to(ports[0], ports[2]->caps.mac);
	CHECK_EQ(waiting(ports[1]) + waiting(ports[3]) + waiting(ports[0]), 0);
	CHECK_EQ(waiting(ports[2]), 1);
	send_to(ports[1], everyone);
	send_to(ports[1], unknown);
	CHECK_EQ(waiting(ports[0]), 2);
	CHECK_EQ(waiting(ports[1]), 0);
	CHECK_EQ(waiting(ports[2]), 2);
	CHECK_EQ(waiting(ports[3]), 2);
	send_to(ports[3], ports[3]->caps.mac);
	CHECK_EQ(stats_of(3).lost, 1);
	CHECK_EQ(harp_wire_in_flight(wire), 0);
}

TEST(strict_mode_finds_writes_to_sent_frames)
{
	wire_open((struct harp_wire_options){ .strict = 1, .complete_delay_ns = 5 * US });

	uint64_t out = (uint64_t)a->caps.rx_ring * a->caps.frame_size, done[4];
	struct harp_desc d = { out + 100, 200, 0 };

	CHECK(a->caps.features & HARP_NIC_STRICT);
	CHECK_EQ(a->ops->tx(a, &d, 1, 0), 1);
	a->caps.frame_base[out + 99] ^= 1; /* beside the packet: fine */
	a->caps.frame_base[out + 300] ^= 1;
	CHECK_EQ(a->ops->complete(a, done, 4, 5 * US - 1), 0);
	CHECK_EQ(a->ops->next_ns(a), 5 * US);
	CHECK_EQ(a->ops->complete(a, done, 4, 5 * US), 1);
	CHECK_EQ(done[0] / a->caps.frame_size, out / a->caps.frame_size);
	CHECK_EQ(stats_of(0).strict_violations, 0);
	CHECK_EQ(a->ops->tx(a, &d, 1, 0), 1);
	a->caps.frame_base[out + 299] ^= 1; /* its last byte: not fine */
	CHECK_EQ(a->ops->complete(a, done, 4, 5 * US), 1);
	CHECK_EQ(stats_of(0).strict_violations, 1);
}

TEST(limits_are_enforced)
{
	wire_open((struct harp_wire_options){
		.packets_max = 3, .frame_count = 16, .tx_frags_max = 2 });

	uint64_t out = (uint64_t)a->caps.rx_ring * a->caps.frame_size, done[32];
	struct harp_nic_stats s;
	struct harp_desc d[16] = { { out, 60, 0 } };

	for (unsigned i = 0; i < 16; i++)
		d[i] = d[0];
	CHECK_EQ(a->ops->tx(a, d, 16, 0), 8); /* the ring: half of 16 frames */
	CHECK_EQ(stats_of(0).queue_dropped, 5);
	CHECK_EQ(a->ops->complete(a, done, 32, 0), 8);
	CHECK_EQ(waiting(b), 3);
	/* Only whole packets are taken. */
	d[1].flags = HARP_DESC_MORE;
	CHECK_EQ(a->ops->tx(a, d, 2, 0), 1);
	/* What can't be sent comes back, counted. */
	d[0] = (struct harp_desc){ out, 0, 0 };
	d[1] = (struct harp_desc){ out + 2000, 60, 0 };
	d[2] = (struct harp_desc){ UINT64_MAX, 60, 0 };
	d[3] = (struct harp_desc){ out, 1519, 0 }; /* above MTU, Ethernet and VLAN header */
	d[4].flags = d[5].flags = HARP_DESC_MORE;  /* three pieces, two allowed */
	CHECK_EQ(a->ops->tx(a, d, 7, 0), 7);
	CHECK_EQ(a->ops->complete(a, done, 32, 0), 8);
	a->ops->stats(a, &s);
	CHECK_EQ(s.tx_invalid, 5);
	/* No empty frame: the packet is lost when it arrives. */
	for (unsigned i = 0; i < 8; i++) {
		send(a, i, 60, 0);
		waiting(b);
	}
	CHECK(stats_of(0).rx_no_frame > 0);
	b->ops->stats(b, &s);
	CHECK_EQ(s.rx_fill_empty, stats_of(0).rx_no_frame);
}

TEST(invalid_options_are_refused)
{
	struct harp_wire_options good = { .size = sizeof(good) }, bad = good;

	bad.size = 8;
	CHECK_EQ(harp_wire_create(&wire, &bad), -EINVAL);
	bad = good;
	bad.frame_size = 3000;
	CHECK_EQ(harp_wire_create(&wire, &bad), -EINVAL);
	bad = good;
	bad.ports = 1;
	CHECK_EQ(harp_wire_create(&wire, &bad), -EINVAL);
	bad = good;
	bad.mtu_bytes = 70000;
	CHECK_EQ(harp_wire_create(&wire, &bad), -EINVAL);
	bad = good;
	bad.impair.loss_ppm = 2000000;
	CHECK_EQ(harp_wire_create(&wire, &bad), -EINVAL);
	CHECK(wire == NULL);
	CHECK_EQ(harp_wire_create(&wire, NULL), 0); /* all defaults */
}
