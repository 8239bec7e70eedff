/* SPDX-License-Identifier: Apache-2.0 */
/* test_callback.c - a NIC whose functions are callbacks: packets of all sizes, retries, and invalid
 * arguments. */
#include "harp_nic.h"

#include <errno.h>

#include "check.h"

struct user {
	size_t rx_len[16]; /* lengths of the packets to receive; 0 ends the list */
	unsigned rx_next;
	bool rx_oversize; /* the next receive() returns more than cap */
	uint8_t sent[10000];
	size_t sent_len;
	unsigned sends;
	int send_error;
};

static size_t user_receive(void *ctx, void *buf, size_t cap)
{
	struct user *u = ctx;

	if (u->rx_oversize) {
		u->rx_oversize = false;
		return cap + 1;
	}
	size_t len = u->rx_len[u->rx_next];

	if (len == 0)
		return 0;
	u->rx_next++;
	CHECK(len <= cap);
	for (size_t i = 0; i < len; i++)
		((uint8_t *)buf)[i] = (uint8_t)(len + i);
	return len;
}

static int user_send(void *ctx, const void *frame, size_t len)
{
	struct user *u = ctx;

	u->sends++;
	if (u->send_error)
		return u->send_error;
	memcpy(u->sent, frame, len);
	u->sent_len = len;
	return 0;
}

/* Creates a NIC and fills it with `fill` frames. */
static struct harp_nic *create(struct user *u, uint32_t mtu_bytes, uint32_t fill)
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
		uint64_t addr = i * nic->caps.frame_size + 5; /* any offset in the frame */

		CHECK_EQ(nic->ops->fill(nic, &addr, 1), 1);
	}
	return nic;
}

static void check_receive(uint32_t mtu_bytes)
{
	struct user u;
	struct harp_nic *nic = create(&u, mtu_bytes, 40);
	struct harp_desc d[16];
	struct harp_nic_stats s;
	size_t lens[] = { 60, mtu_bytes + 14, 1, mtu_bytes + 18 };
	unsigned n, next_desc = 0;

	memcpy(u.rx_len, lens, sizeof(lens));
	u.rx_oversize = true;
	n = nic->ops->rx(nic, d, 16, 0);
	for (unsigned k = 0; k < 4; k++) {
		size_t got = 0;

		do {
			for (uint32_t i = 0; i < d[next_desc].len; i++)
				if (nic->caps.frame_base[d[next_desc].addr + i] !=
				    (uint8_t)(lens[k] + got + i)) {
					CHECK(false);
					break;
				}
			got += d[next_desc].len;
		} while (d[next_desc++].flags & HARP_DESC_MORE);
		CHECK_EQ(got, lens[k]);
	}
	CHECK_EQ(next_desc, n);
	nic->ops->stats(nic, &s);
	CHECK_EQ(s.copied_bytes, lens[0] + lens[1] + lens[2] + lens[3]);
	CHECK_EQ(s.rx_invalid, 1);
	harp_nic_destroy(nic);
}

TEST(packets_of_every_size_are_received)
{
	check_receive(1500);
	check_receive(9000);
}

TEST(without_frames_nothing_is_received)
{
	struct user u;
	struct harp_nic *nic = create(&u, 9000, 2); /* a jumbo packet may need three */
	struct harp_desc d[16];
	struct harp_nic_stats s;

	u.rx_len[0] = 60;
	CHECK_EQ(nic->ops->rx(nic, d, 16, 0), 0);
	CHECK_EQ(u.rx_next, 0); /* receive() is not called without frames for a packet */
	nic->ops->stats(nic, &s);
	CHECK_EQ(s.rx_fill_empty, 1);
	uint64_t outside = (uint64_t)nic->caps.frame_size * nic->caps.frame_count;

	nic->ops->fill(nic, &outside, 1); /* ignored */
	CHECK_EQ(nic->ops->rx(nic, d, 16, 0), 0);
	harp_nic_destroy(nic);
}

TEST(a_refused_packet_is_retried_whole)
{
	struct user u;
	struct harp_nic *nic = create(&u, 9000, 0);
	uint64_t frame = nic->caps.frame_size, done[64];
	struct harp_desc d[3] = {
		{ 5 * frame + 100, 3000, HARP_DESC_MORE },
		{ 6 * frame + 128, 3001, 0 },
		{ 7 * frame, 60, 0 },
	};
	struct harp_nic_stats s;

	for (uint32_t i = 0; i < 6001; i++)
		nic->caps.frame_base[i < 3000 ? d[0].addr + i : d[1].addr + i - 3000] = (uint8_t)i;
	u.send_error = -EAGAIN;
	CHECK_EQ(nic->ops->tx(nic, d, 3, 0), 0);
	CHECK_EQ(u.sends, 1); /* the second packet waits */
	CHECK_EQ(nic->ops->complete(nic, done, 64, 0), 0);
	u.send_error = 0;
	CHECK_EQ(nic->ops->tx(nic, d, 2, 0), 2); /* the retry */
	CHECK_EQ(u.sent_len, 6001);
	for (uint32_t i = 0; i < 6001; i++)
		if (u.sent[i] != (uint8_t)i) {
			CHECK_EQ(u.sent[i], (uint8_t)i);
			break;
		}
	CHECK_EQ(nic->ops->tx(nic, d, 1, 0), 0); /* a packet without its last frame */
	CHECK_EQ(nic->ops->complete(nic, done, 64, 0), 2);
	CHECK_EQ(done[1], d[1].addr);
	u.send_error = -EIO; /* any other error drops the packet; its frames complete */
	CHECK_EQ(nic->ops->tx(nic, d + 2, 1, 0), 1);
	u.send_error = 0;
	d[2].len = nic->caps.frame_size + 1;
	CHECK_EQ(nic->ops->tx(nic, d + 2, 1, 0), 1); /* exceeds its frame: not sent */
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
