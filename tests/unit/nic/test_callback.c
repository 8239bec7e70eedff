/* SPDX-License-Identifier: Apache-2.0 */
/* test_callback.c - a NIC of two functions: packets of every size, -EAGAIN, and invalid callers. */
#include "harp_nic.h"

#include <errno.h>

#include "check.h"

struct user {
	size_t rx_len[16]; /* lengths of packets to hand over, 0 ends */
	unsigned rx_at;
	bool rx_lie; /* returns a length above cap once */
	uint8_t sent[10000];
	size_t sent_len;
	unsigned sends;
	int answer;
};

static size_t user_receive(void *ctx, void *buf, size_t cap)
{
	struct user *u = ctx;

	if (u->rx_lie) {
		u->rx_lie = false;
		return cap + 1;
	}
	size_t len = u->rx_len[u->rx_at];

	if (len == 0)
		return 0;
	u->rx_at++;
	CHECK(len <= cap);
	for (size_t i = 0; i < len; i++)
		((uint8_t *)buf)[i] = (uint8_t)(len + i);
	return len;
}

static int user_send(void *ctx, const void *frame, size_t len)
{
	struct user *u = ctx;

	u->sends++;
	if (u->answer)
		return u->answer;
	memcpy(u->sent, frame, len);
	u->sent_len = len;
	return 0;
}

static struct harp_nic *make(struct user *u, uint32_t mtu_bytes, uint32_t fill)
{
	struct harp_nic_callbacks cb = {
		.size = sizeof(cb),
		.mtu_bytes = mtu_bytes,
		.frame_count = 128,
		.mac = { 2, 0, 0, 0, 0, 1 },
		.ctx = u,
		.receive = user_receive,
		.send = user_send,
	};
	struct harp_nic *nic = NULL;

	memset(u, 0, sizeof(*u));
	CHECK_EQ(harp_nic_callback_create(&nic, &cb), 0);
	for (uint64_t i = 0; i < fill; i++) {
		uint64_t addr = i * nic->caps.frame_size + 5; /* any offset within */

		CHECK_EQ(nic->ops->fill(nic, &addr, 1), 1);
	}
	return nic;
}

static void receive(uint32_t mtu_bytes)
{
	struct user u;
	struct harp_nic *nic = make(&u, mtu_bytes, 40);
	struct harp_desc d[16];
	struct harp_nic_stats s;
	size_t lens[] = { 60, mtu_bytes + 14, 1, mtu_bytes + 18 };
	unsigned n, at = 0;

	memcpy(u.rx_len, lens, sizeof(lens));
	u.rx_lie = true;
	n = nic->ops->rx(nic, d, 16, 0);
	for (unsigned k = 0; k < 4; k++) {
		size_t got = 0;

		do {
			for (uint32_t i = 0; i < d[at].len; i++)
				if (nic->caps.frame_base[d[at].addr + i] !=
				    (uint8_t)(lens[k] + got + i)) {
					CHECK(false);
					break;
				}
			got += d[at].len;
		} while (d[at++].flags & HARP_DESC_MORE);
		CHECK_EQ(got, lens[k]);
	}
	CHECK_EQ(at, n);
	nic->ops->stats(nic, &s);
	CHECK_EQ(s.copied_bytes, lens[0] + lens[1] + lens[2] + lens[3]);
	CHECK_EQ(s.rx_invalid, 1);
	harp_nic_destroy(nic);
}

TEST(packets_of_every_size_are_received)
{
	receive(1500);
	receive(9000);
}

TEST(without_frames_nothing_is_received)
{
	struct user u;
	struct harp_nic *nic = make(&u, 9000, 2); /* a jumbo packet may need three */
	struct harp_desc d[16];
	struct harp_nic_stats s;

	u.rx_len[0] = 60;
	CHECK_EQ(nic->ops->rx(nic, d, 16, 0), 0);
	CHECK_EQ(u.rx_at, 0); /* not called without room for a packet */
	nic->ops->stats(nic, &s);
	CHECK_EQ(s.rx_fill_empty, 1);
	uint64_t outside = (uint64_t)nic->caps.frame_size * nic->caps.frame_count;

	nic->ops->fill(nic, &outside, 1); /* ignored */
	CHECK_EQ(nic->ops->rx(nic, d, 16, 0), 0);
	harp_nic_destroy(nic);
}

TEST(a_packet_is_sent_whole_or_again)
{
	struct user u;
	struct harp_nic *nic = make(&u, 9000, 0);
	uint64_t frame = nic->caps.frame_size, done[64];
	struct harp_desc d[3] = {
		{ 5 * frame + 100, 3000, HARP_DESC_MORE },
		{ 6 * frame + 128, 3001, 0 },
		{ 7 * frame, 60, 0 },
	};
	struct harp_nic_stats s;

	for (uint32_t i = 0; i < 6001; i++)
		nic->caps.frame_base[i < 3000 ? d[0].addr + i : d[1].addr + i - 3000] = (uint8_t)i;
	u.answer = -EAGAIN;
	CHECK_EQ(nic->ops->tx(nic, d, 3, 0), 0);
	CHECK_EQ(u.sends, 1); /* the rest waits behind it */
	CHECK_EQ(nic->ops->complete(nic, done, 64, 0), 0);
	u.answer = 0;
	CHECK_EQ(nic->ops->tx(nic, d, 2, 0), 2); /* the same one again */
	CHECK_EQ(u.sent_len, 6001);
	for (uint32_t i = 0; i < 6001; i++)
		if (u.sent[i] != (uint8_t)i) {
			CHECK_EQ(u.sent[i], (uint8_t)i);
			break;
		}
	CHECK_EQ(nic->ops->tx(nic, d, 1, 0), 0); /* a packet without its end */
	CHECK_EQ(nic->ops->complete(nic, done, 64, 0), 2);
	CHECK_EQ(done[1], d[1].addr);
	u.answer = -EIO; /* any other error: the packet is gone, its frames come back */
	CHECK_EQ(nic->ops->tx(nic, d + 2, 1, 0), 1);
	u.answer = 0;
	d[2].len = nic->caps.frame_size + 1;
	CHECK_EQ(nic->ops->tx(nic, d + 2, 1, 0), 1); /* out of its frame: not sent */
	CHECK_EQ(nic->ops->complete(nic, done, 64, 0), 2);
	nic->ops->stats(nic, &s);
	CHECK_EQ(s.tx_invalid, 2);
	CHECK_EQ(s.copied_bytes, 6001);
	CHECK_EQ(u.sends, 3);
	harp_nic_destroy(nic);
}

TEST(invalid_callbacks_are_refused)
{
	struct harp_nic_callbacks good = {
		.size = sizeof(good), .receive = user_receive, .send = user_send,
	}, bad;
	struct harp_nic *nic = NULL;

	CHECK_EQ(harp_nic_callback_create(&nic, NULL), -EINVAL);
	bad = good;
	bad.send = NULL;
	CHECK_EQ(harp_nic_callback_create(&nic, &bad), -EINVAL);
	bad = good;
	bad.frame_size = 1000;
	CHECK_EQ(harp_nic_callback_create(&nic, &bad), -EINVAL);
	bad = good;
	bad.mac[0] = 1;
	CHECK_EQ(harp_nic_callback_create(&nic, &bad), -EINVAL);
	bad = good;
	bad.size = 4;
	CHECK_EQ(harp_nic_callback_create(&nic, &bad), -EINVAL);
	CHECK(nic == NULL);
	CHECK_EQ(harp_nic_callback_create(&nic, &good), 0);
	CHECK_EQ(nic->caps.mtu_bytes, 1500);
	CHECK_EQ(nic->caps.frame_size, 2048);
	harp_nic_destroy(nic);
}
