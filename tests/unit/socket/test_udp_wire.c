/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_udp_wire.c - two stacks on a bad wire: datagrams arrive whole or not at all, never altered,
 * and all that were sent are accounted for.
 *
 * A datagram has a number and is filled from it, so its receiver can tell every byte. An argument
 * gives the number of seeds.
 */
#include "net_rig.h"

#define SEEDS 16u
#define COUNT 3000u /* datagrams each way */
#define LEN_MAX 9000u

struct side {
	struct harp_udp *sock;
	uint32_t sent, received;
	uint8_t seen[COUNT]; /* how often each of the other's numbers came */
};

static struct side sides[2];
static struct rng rng;
static bool v6;

static uint8_t byte_of(uint32_t number, uint32_t at)
{
	return (uint8_t)(number * 131 + at * 7 + (at >> 8));
}

static uint32_t len_of(uint32_t number, uint32_t most)
{
	uint32_t len = 4 + number * 2654435761u % (number % 3 ? 200 : most - 3);

	return len < most ? len : most;
}

static void fill(uint8_t *at, uint32_t number, uint32_t from, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		at[i] = byte_of(number, from + i);
	if (from == 0)
		memcpy(at, &number, 4);
}

/* False: no more room now. */
static bool send_copy(struct side *s, uint32_t len)
{
	static uint8_t buf[LEN_MAX];
	struct iovec iov[3] = { { buf, len / 2 }, { buf, 0 }, { buf + len / 2, len - len / 2 } };
	ssize_t n;

	fill(buf, s->sent, 0, len);
	n = harp_udp_send(s->sock, NULL, iov, 3);
	CHECK(n == (ssize_t)len || n == -EAGAIN);
	return n >= 0;
}

static bool send_frames(struct side *s, uint32_t len)
{
	struct harp_frame *frames[8];
	uint32_t done = 0;
	int count = 0;

	while (done < len) {
		if (harp_udp_frame_alloc(s->sock, &frames[count]) != 0) {
			while (count-- > 0)
				harp_udp_frame_release(s->sock, frames[count]);
			return false;
		}
		uint32_t n =
			len - done < frames[count]->capacity ? len - done : frames[count]->capacity;

		fill(frames[count]->data, s->sent, done, n);
		frames[count++]->len = n;
		done += n;
	}
	CHECK_EQ(harp_udp_send_frames(s->sock, NULL, frames, count), 0);
	return true;
}

static void arrived(struct side *s, uint32_t number, uint32_t len, uint32_t most)
{
	CHECK(number < COUNT);
	if (number >= COUNT)
		return;
	CHECK_EQ(len, len_of(number, most));
	s->seen[number]++;
	s->received++;
}

static void receive(struct side *s, uint32_t most)
{
	static uint8_t buf[LEN_MAX], want[LEN_MAX];
	struct harp_frame *frames[8];
	uint32_t number;

	for (;;) {
		size_t len = 0;

		if (rng_below(&rng, 2)) {
			ssize_t n = harp_udp_recv(s->sock, buf, sizeof(buf), NULL);

			if (n < 0)
				break;
			len = (size_t)n;
		} else {
			int n = harp_udp_recv_frames(s->sock, frames, 8, NULL);

			if (n < 0)
				break;
			for (int i = 0; i < n; i++) {
				memcpy(buf + len, frames[i]->data, frames[i]->len);
				len += frames[i]->len;
				harp_udp_frame_release(s->sock, frames[i]);
			}
		}
		memcpy(&number, buf, 4);
		fill(want, number, 0, (uint32_t)len);
		CHECK_MEM(buf, want, len);
		arrived(s, number, (uint32_t)len, most);
	}
}

static uint32_t set_up(uint64_t seed)
{
	struct how how = {
		.wire = { .seed = seed,
			  .frame_size = rng_below(&rng, 2) ? 2048 : 4096,
			  .frame_count = 1024,
			  .mtu_bytes = rng_below(&rng, 2) ? 1500 : 8000,
			  .strict = 1,
			  .complete_delay_ns = rng_below(&rng, 50000),
			  .offloads = rng_below(&rng, 2) ? HARP_NIC_TX_CSUM : 0,
			  .impair = { .delay_ns = rng_below(&rng, 100000),
				      .rate_bps = rng_below(&rng, 2) ? 0 : 1000000000,
				      .loss_ppm = rng_below(&rng, 50000),
				      .duplicate_ppm = rng_below(&rng, 20000),
				      .reorder_ppm = rng_below(&rng, 100000),
				      .reorder_ns = 30000,
				      .corrupt_ppm = rng_below(&rng, 20000) } },
		.stack = { .seed = seed },
	};
	/* A budget smaller than the largest packet limits the datagram. */
	struct harp_udp_options udp = { .size = sizeof(udp), .tx_frames = rng_below(&rng, 2) * 4 };
	uint32_t room = 4 * (how.wire.frame_size - FRAME_HEADROOM_BYTES), most;
	uint32_t payload = how.wire.mtu_bytes - (v6 ? 48 : 28);

	net_open(how);
	memset(sides, 0, sizeof(sides));
	for (unsigned i = 0; i < 2; i++) {
		struct harp_endpoint at = { .port = NET_PORT };

		CHECK_EQ(harp_udp_open(net.stack[i], &at, &udp, &sides[i].sock), 0);
		at.addr = net_addr(v6, 1 - i);
		CHECK_EQ(harp_udp_connect(sides[i].sock, &at), 0);
	}
	most = (uint32_t)harp_udp_payload_max(sides[0].sock, NULL);
	CHECK_EQ(most, udp.tx_frames && room < payload ? room : payload);
	return most;
}

/* Each datagram that was sent was received, was lost or corrupted by the wire, or was dropped
 * and counted. */
static void account(unsigned from)
{
	const struct side *b = &sides[1 - from];
	struct harp_udp_info info;
	struct harp_wire_stats w;
	uint64_t more = 0, missing = 0;

	harp_wire_stats(net.wire, from, &w);
	harp_udp_info(b->sock, &info, sizeof(info));
	CHECK_EQ(net_stat(from, "udp_out") + net_stat(from, "drop_udp_unsent"), COUNT);
	CHECK_EQ(info.rx_datagrams, b->received);
	for (uint32_t i = 0; i < COUNT; i++) {
		more += b->seen[i] > 1 ? b->seen[i] - 1u : 0;
		missing += b->seen[i] == 0;
	}
	CHECK_EQ(b->received, COUNT - missing + more);
	CHECK(more <= w.duplicated);
	/* Corrupted packets may have died anywhere between Ethernet and UDP. */
	CHECK(missing <= w.lost + w.corrupted + w.rx_no_frame + info.rx_dropped +
				 net_stat(from, "drop_udp_unsent"));
	CHECK(net_stat(1 - from, "drop_udp_checksum") <= w.corrupted + w.duplicated);
}

static void run(uint64_t seed)
{
	uint32_t most;

	rng_seed(&rng, seed);
	most = set_up(seed);
	for (unsigned turns = 0; turns < 200000; turns++) {
		uint64_t next_ns = UINT64_MAX;
		bool idle = true;

		for (unsigned i = 0; i < 2; i++) {
			struct side *s = &sides[i];

			harp_stack_poll(net.stack[i], net.now_ns);
			receive(s, most);
			for (unsigned n = rng_below(&rng, 40); n > 0 && s->sent < COUNT; n--) {
				uint32_t len = len_of(s->sent, most);

				if (!(rng_below(&rng, 2) ? send_copy(s, len) : send_frames(s, len)))
					break;
				s->sent++;
			}
			idle &= s->sent == COUNT && net_stat(i, "frames_udp_tx") == 0;
		}
		for (unsigned i = 0; i < 2; i++)
			next_ns = net_next_ns(i) < next_ns ? net_next_ns(i) : next_ns;
		if (idle && next_ns == UINT64_MAX)
			break;
		next_ns = next_ns < net.now_ns ? net.now_ns : next_ns;
		/* While there is more to send, time advances in small steps. */
		net.now_ns = idle || next_ns < net.now_ns + 20000 ? next_ns : net.now_ns + 20000;
	}
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(sides[i].sent, COUNT);
		CHECK(sides[i].received > COUNT / 2);
		account(i);
	}
	for (unsigned i = 0; i < 2; i++) {
		harp_udp_close(sides[i].sock);
		net_step(S);
		CHECK_EQ(net_stat(i, "frames_udp_rx"), 0);
		CHECK_EQ(net_stat(i, "frames_free") + net_stat(i, "frames_rx_nic") +
				 net_stat(i, "frames_tx_nic"),
			 1024);
	}
	net_close();
}

int main(int argc, char **argv)
{
	unsigned long seeds = argc > 1 ? strtoul(argv[1], NULL, 10) : SEEDS;

	for (uint64_t seed = 0; seed < seeds && !check_failures; seed++) {
		v6 = seed & 1;
		run(seed);
		if (check_failures)
			fprintf(stderr, "seed %" PRIu64 "%s\n", seed, v6 ? ", IPv6" : "");
	}
	return check_done();
}
