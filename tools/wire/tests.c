/* SPDX-License-Identifier: Apache-2.0 */
/* tests.c - the measurements of harp-wire: full frames in one direction, and round trips. */
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "wire.h"

#define QUIET_NS 20000000u /* without packets for this long, none is in flight */
#define PING_LOST_NS 100000000u
#define DRAIN_NS UINT64_C(2000000000) /* packets that arrive later are not the peer's */
#define YIELD_EVERY 512u              /* empty polls between sched_yield()s: cores may be shared */

#define ETHERNET_BYTES 14u
#define IPV4_BYTES 20u
#define IPV6_BYTES 40u
#define TCP_BYTES 20u

uint64_t wire_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t run_header_bytes(const struct wire_run *run)
{
	return ETHERNET_BYTES + TCP_BYTES + (harp_addr_is_v4(&run->own) ? IPV4_BYTES : IPV6_BYTES);
}

static uint8_t *headers_ipv4(const struct wire_run *run, uint8_t *ip, uint16_t total)
{
	uint16_t checksum;

	ip[0] = 0x45;
	be16_store(ip + 2, total);
	be16_store(ip + 6, 0x4000); /* don't fragment */
	ip[8] = 64;
	ip[9] = IPPROTO_TCP;
	memcpy(ip + 12, run->own.bytes + 12, 4);
	memcpy(ip + 16, run->peer.bytes + 12, 4);
	checksum = csum_finish(csum_partial(ip, IPV4_BYTES, 0));
	memcpy(ip + 10, &checksum, 2);
	return ip + IPV4_BYTES;
}

static uint8_t *headers_ipv6(const struct wire_run *run, uint8_t *ip, uint16_t total)
{
	ip[0] = 0x60;
	be16_store(ip + 4, (uint16_t)(total - IPV6_BYTES));
	ip[6] = IPPROTO_TCP;
	ip[7] = 64;
	memcpy(ip + 8, run->own.bytes, 16);
	memcpy(ip + 24, run->peer.bytes, 16);
	return ip + IPV6_BYTES;
}

/* TCP segments between the addresses. Ethernet broadcast, as the XDP program checks only IP. */
void run_headers(struct wire_run *run)
{
	bool v4 = harp_addr_is_v4(&run->own);
	uint16_t total = (uint16_t)(run->frame_bytes - ETHERNET_BYTES);
	uint8_t *eth = run->headers, *ip = eth + ETHERNET_BYTES, *tcp;

	run->header_bytes = run_header_bytes(run);
	memset(run->headers, 0, sizeof(run->headers));
	memset(eth, 0xff, 6);
	memcpy(eth + 6, run->card->nic->caps.mac, 6);
	be16_store(eth + 12, v4 ? 0x0800 : 0x86dd);
	tcp = v4 ? headers_ipv4(run, ip, total) : headers_ipv6(run, ip, total);
	be16_store(tcp, WIRE_PORT);
	be16_store(tcp + 2, WIRE_PORT);
	tcp[12] = 5 << 4;
	tcp[13] = 0x10; /* ACK */
}

static void result_count(struct wire_result *result, uint64_t now_ns, uint32_t frames,
			 uint64_t bytes)
{
	if (!result->frames)
		result->first_ns = now_ns;
	result->last_ns = now_ns;
	result->frames += frames;
	result->bytes += bytes;
}

/* Fills a burst with packets; returns the number of descriptors. */
static unsigned burst_fill(struct wire_run *run, struct harp_desc *descs)
{
	unsigned frags = card_frags(run->card, run->frame_bytes), count = 0;

	while (count + frags <= WIRE_BURST &&
	       card_packet(run->card, run->frame_bytes, descs + count)) {
		memcpy(card_at(run->card, descs[count].addr), run->headers, run->header_bytes);
		count += frags;
	}
	return count;
}

void run_send(struct wire_run *run, struct wire_result *result)
{
	struct card *card = run->card;
	unsigned frags = card_frags(card, run->frame_bytes);
	uint64_t start_ns = wire_clock_ns(), now_ns = start_ns;
	struct harp_desc descs[WIRE_BURST];
	unsigned idle = 0;

	while (now_ns - start_ns < run->duration_ns) {
		unsigned count = burst_fill(run, descs);
		unsigned sent = card->nic->ops->tx(card->nic, descs, count, now_ns);

		for (unsigned i = sent; i < count; i++)
			card_release(card, descs[i].addr);
		card->nic->ops->kick(card->nic, now_ns);
		card_housekeeping(card, now_ns);
		now_ns = wire_clock_ns();
		if (sent) {
			result_count(result, now_ns, sent / frags,
				     (uint64_t)(sent / frags) * run->frame_bytes);
			idle = 0;
		} else if (++idle % YIELD_EVERY == 0) {
			sched_yield();
		}
	}
}

/* Receives a burst and returns its frames to the NIC. Returns the number of packets; adds to
 * *bytes. */
static unsigned burst_recv(struct wire_run *run, uint64_t now_ns, uint64_t *bytes)
{
	struct harp_nic *nic = run->card->nic;
	struct harp_desc descs[WIRE_BURST];
	uint64_t addrs[WIRE_BURST];
	unsigned count = nic->ops->rx(nic, descs, WIRE_BURST, now_ns), packets = 0, filled;

	for (unsigned i = 0; i < count; i++) {
		addrs[i] = descs[i].addr & ~(uint64_t)(nic->caps.frame_size - 1);
		*bytes += descs[i].len;
		packets += !(descs[i].flags & HARP_DESC_MORE);
	}
	filled = count ? nic->ops->fill(nic, addrs, count) : 0;
	while (filled < count)
		card_release(run->card, addrs[filled++]);
	return packets;
}

void run_recv(struct wire_run *run, struct wire_result *result)
{
	uint64_t stop_ns = 0, now_ns;
	unsigned idle = 0;

	for (;;) {
		uint64_t bytes = 0;
		unsigned packets;

		now_ns = wire_clock_ns();
		packets = burst_recv(run, now_ns, &bytes);
		if (!stop_ns && *run->stop)
			stop_ns = now_ns;
		if (stop_ns && now_ns - stop_ns > DRAIN_NS)
			break;
		if (packets) {
			result_count(result, now_ns, packets, bytes);
			idle = 0;
			continue;
		}
		if (++idle % YIELD_EVERY == 0)
			sched_yield();
		if (stop_ns && now_ns - stop_ns > QUIET_NS && now_ns - result->last_ns > QUIET_NS)
			break;
	}
}

/* ---- round trips ---------------------------------------------------------------------------- */

static bool send_number(struct wire_run *run, uint64_t number, uint64_t now_ns)
{
	struct harp_desc descs[WIRE_FRAGS_MAX];
	struct harp_nic *nic = run->card->nic;
	unsigned frags = card_frags(run->card, run->frame_bytes);
	uint8_t *frame;

	if (!card_packet(run->card, run->frame_bytes, descs))
		return false;
	frame = card_at(run->card, descs[0].addr);
	memcpy(frame, run->headers, run->header_bytes);
	memcpy(frame + run->header_bytes, &number, sizeof(number));
	if (!nic->ops->tx(nic, descs, frags, now_ns)) {
		for (unsigned i = 0; i < frags; i++)
			card_release(run->card, descs[i].addr);
		return false;
	}
	nic->ops->kick(nic, now_ns);
	return true;
}

/* Receives a packet, if there is one, and returns its number in *number. */
static bool recv_number(struct wire_run *run, uint64_t *number, uint64_t now_ns)
{
	struct harp_nic *nic = run->card->nic;
	struct harp_desc descs[WIRE_BURST];
	bool is_first = true, has_number = false;
	unsigned count = nic->ops->rx(nic, descs, WIRE_BURST, now_ns);

	for (unsigned i = 0; i < count; i++) {
		uint64_t chunk = descs[i].addr & ~(uint64_t)(nic->caps.frame_size - 1);

		if (is_first && descs[i].len >= run->header_bytes + WIRE_STAMP_BYTES) {
			memcpy(number, card_at(run->card, descs[i].addr) + run->header_bytes,
			       sizeof(*number));
			has_number = true;
		}
		is_first = !(descs[i].flags & HARP_DESC_MORE);
		if (!nic->ops->fill(nic, &chunk, 1))
			card_release(run->card, chunk);
	}
	return has_number;
}

void run_ping(struct wire_run *run, struct wire_result *result, struct samples *samples)
{
	uint64_t start_ns = wire_clock_ns(), now_ns = start_ns, number = 0, answer;

	while (now_ns - start_ns < run->duration_ns) {
		uint64_t sent_ns = wire_clock_ns();
		unsigned idle = 0;
		bool is_answered = false;

		now_ns = sent_ns;
		number++;
		if (send_number(run, number, now_ns)) {
			while (!is_answered && now_ns - sent_ns < PING_LOST_NS) {
				is_answered = recv_number(run, &answer, now_ns) && answer == number;
				now_ns = wire_clock_ns();
				if (!is_answered && ++idle % YIELD_EVERY == 0)
					sched_yield();
			}
		}
		card_housekeeping(run->card, now_ns);
		if (is_answered) {
			samples_add(samples, now_ns - sent_ns);
			result_count(result, now_ns, 1, run->frame_bytes);
		} else {
			result->lost++;
		}
	}
}

void run_pong(struct wire_run *run, struct wire_result *result)
{
	uint64_t number = 0;
	unsigned idle = 0;

	while (!*run->stop) {
		uint64_t now_ns = wire_clock_ns();

		if (recv_number(run, &number, now_ns)) {
			if (send_number(run, number, now_ns))
				result_count(result, now_ns, 1, run->frame_bytes);
			else
				result->lost++;
			card_housekeeping(run->card, now_ns);
			idle = 0;
			continue;
		}
		if (++idle % YIELD_EVERY == 0)
			sched_yield();
	}
}
