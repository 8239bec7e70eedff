/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire.c - the simulated wire: delay, rate, strict mode, and limits. The simulations test the
 * rest: order, marks and inbound limits (sim_cc), the switch, links that go down, and random
 * impairments that a seed replays (sim_run).
 */
#include "harp_nic.h"

#include <errno.h>
#include <stdlib.h>

#include "base/endian.h"
#include "check.h"

#define US 1000u
#define MS 1000000u

static struct harp_wire *wire;
static struct harp_nic *a, *b; /* its two ports */

static void wire_open(struct harp_wire_options opt)
{
	opt.size = sizeof(opt);
	CHECK_EQ(harp_wire_create(&wire, &opt), 0);
	a = harp_wire_port(wire, 0);
	b = harp_wire_port(wire, 1);
	for (unsigned p = 0; p < 2; p++) {
		struct harp_nic *nic = p ? b : a;

		for (uint64_t i = 0; i < nic->caps.rx_ring; i++) {
			uint64_t addr = i * nic->caps.frame_size;

			CHECK_EQ(nic->ops->fill(nic, &addr, 1), 1);
		}
	}
}

static void wire_close(void)
{
	harp_wire_destroy(wire);
	wire = NULL;
}

AFTER_EACH(wire_close())

/* Sends len bytes that begin with a serial number, from frames above the receive frames. */
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
	unsigned sent = nic->ops->tx(nic, descs, n, now_ns);

	nic->ops->complete(nic, done, 16, now_ns);
	return sent;
}

/* Receives a packet and returns its serial; -1: none is due, -2: it is corrupt. */
static int64_t receive(struct harp_nic *nic, uint64_t now_ns, uint32_t *len_out)
{
	static uint8_t packet[70000];
	struct harp_desc descs[16];
	uint32_t len = 0;
	/* One packet: the largest one in this test has five descriptors. */
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
			return -2;
	*len_out = len;
	return serial;
}

static struct harp_wire_stats stats_of(unsigned port)
{
	struct harp_wire_stats s;

	CHECK_EQ(harp_wire_stats(wire, port, &s), 0);
	return s;
}

TEST(delay_and_rate_are_exact)
{
	uint32_t len;

	/* At 1 Gbit/s, 1250 bytes take 10 us. */
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
	send(a, 9, 1250, 20 * US); /* the queue has drained to one packet */
	CHECK_EQ(b->ops->next_ns(b), 1 * MS + 40 * US);
}

static unsigned receive_burst(struct harp_nic *nic)
{
	struct harp_desc descs[16];

	return nic->ops->rx(nic, descs, 16, 0);
}

TEST(strict_mode_detects_writes_to_sent_frames)
{
	wire_open((struct harp_wire_options){ .strict = 1, .complete_delay_ns = 5 * US });

	uint64_t tx_frame = (uint64_t)a->caps.rx_ring * a->caps.frame_size, done[4];
	struct harp_desc d = { tx_frame + 100, 200, 0 };

	CHECK_EQ(a->ops->tx(a, &d, 1, 0), 1);
	a->caps.frame_base[tx_frame + 99] ^= 1; /* outside the packet: allowed */
	a->caps.frame_base[tx_frame + 300] ^= 1;
	CHECK_EQ(a->ops->complete(a, done, 4, 5 * US - 1), 0);
	CHECK_EQ(a->ops->next_ns(a), 5 * US);
	CHECK_EQ(a->ops->complete(a, done, 4, 5 * US), 1);
	CHECK_EQ(done[0] / a->caps.frame_size, tx_frame / a->caps.frame_size);
	CHECK_EQ(stats_of(0).strict_violations, 0);
	CHECK_EQ(a->ops->tx(a, &d, 1, 0), 1);
	a->caps.frame_base[tx_frame + 299] ^= 1; /* its last byte: a violation */
	CHECK_EQ(a->ops->complete(a, done, 4, 5 * US), 1);
	CHECK_EQ(stats_of(0).strict_violations, 1);
}

TEST(limits_are_enforced)
{
	wire_open((struct harp_wire_options){
		.packets_max = 3, .frame_count = 16, .tx_frags_max = 2 });

	uint64_t tx_frame = (uint64_t)a->caps.rx_ring * a->caps.frame_size, done[32];
	struct harp_nic_stats s;
	struct harp_desc d[16] = { { tx_frame, 60, 0 } };

	for (unsigned i = 0; i < 16; i++)
		d[i] = d[0];
	CHECK_EQ(a->ops->tx(a, d, 16, 0), 8); /* the ring has half of the 16 frames */
	CHECK_EQ(stats_of(0).queue_dropped, 5);
	CHECK_EQ(a->ops->complete(a, done, 32, 0), 8);
	CHECK_EQ(receive_burst(b), 3);
	/* Only whole packets are accepted. */
	d[1].flags = HARP_DESC_MORE;
	CHECK_EQ(a->ops->tx(a, d, 2, 0), 1);
	/* Invalid packets are completed and counted. */
	d[0] = (struct harp_desc){ tx_frame, 0, 0 };
	d[1] = (struct harp_desc){ tx_frame + 2000, 60, 0 };
	d[2] = (struct harp_desc){ UINT64_MAX, 60, 0 };
	d[3] = (struct harp_desc){ tx_frame, 1519, 0 }; /* above MTU and headers */
	d[4].flags = d[5].flags = HARP_DESC_MORE;       /* three fragments, two allowed */
	CHECK_EQ(a->ops->tx(a, d, 7, 0), 7);
	CHECK_EQ(a->ops->complete(a, done, 32, 0), 8);
	a->ops->stats(a, &s);
	CHECK_EQ(s.tx_invalid, 5);
	/* Without receive frames, an arriving packet is lost. */
	for (unsigned i = 0; i < 8; i++) {
		send(a, i, 60, 0);
		receive_burst(b);
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
