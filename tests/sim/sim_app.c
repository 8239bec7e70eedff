/* SPDX-License-Identifier: Apache-2.0 */
/* sim_app.c - applications of the simulator: they send a known stream and check the one they get. */
#include "sim.h"

#include <errno.h>
#include <string.h>

static uint64_t app_mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

uint8_t sim_byte(uint64_t stream, uint64_t at)
{
	return (uint8_t)(app_mix(stream + at / 8 * 0x9e3779b97f4a7c15ull) >> (at % 8 * 8));
}

void sim_bytes(uint64_t stream, uint64_t at, uint8_t *out, size_t len)
{
	while (len > 0) {
		uint64_t word = app_mix(stream + at / 8 * 0x9e3779b97f4a7c15ull) >> (at % 8 * 8);
		size_t n = 8 - at % 8;

		n = n < len ? n : len;
		memcpy(out, &word, n);
		out += n;
		at += n;
		len -= n;
	}
}

static bool app_check(struct sim *sim, struct sim_app *app, const struct sim_app *peer,
		      const uint8_t *bytes, size_t len)
{
	uint8_t want[512];

	while (len > 0) {
		size_t n = len < sizeof(want) ? len : sizeof(want);

		sim_bytes(peer->stream, app->received, want, n);
		if (memcmp(want, bytes, n) != 0)
			return sim_fail(sim, "wrong bytes near %llu of stream %llx",
					(unsigned long long)app->received,
					(unsigned long long)peer->stream);
		app->received += n;
		sim->bytes += n;
		bytes += n;
		len -= n;
	}
	if (app->received > peer->send_total)
		return sim_fail(sim, "more bytes than were sent");
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Sending.
 */
static ssize_t app_send_copy(struct sim *sim, struct sim_app *app, size_t len)
{
	static uint8_t buffer[65536];
	struct iovec iov[2];
	size_t cut = rng_below(&sim->rng, (uint32_t)len + 1);

	sim_bytes(app->stream, app->sent, buffer, len);
	iov[0] = (struct iovec){ .iov_base = buffer, .iov_len = cut };
	iov[1] = (struct iovec){ .iov_base = buffer + cut, .iov_len = len - cut };
	return harp_conn_send(app->conn, iov, 2);
}

static ssize_t app_send_frame(struct sim *sim, struct sim_app *app, size_t len)
{
	struct harp_frame *frame;
	int err = harp_frame_alloc(app->conn, &frame);

	if (err)
		return err;
	if (rng_below(&sim->rng, 16) == 0) {
		harp_frame_release(app->conn, frame); /* thought better of it */
		return 0;
	}
	frame->len = len < frame->capacity ? (uint32_t)len : frame->capacity;
	sim_bytes(app->stream, app->sent, frame->data, frame->len);
	len = frame->len;
	err = harp_conn_send_frame(app->conn, frame);
	return err ? err : (ssize_t)len;
}

static bool app_send(struct sim *sim, struct sim_app *app)
{
	unsigned calls = 1 + rng_below(&sim->rng, 8);

	while (app->sent < app->send_total && calls-- > 0 && !app->wait_writable) {
		uint64_t left = app->send_total - app->sent;
		size_t len = 1 + rng_below(&sim->rng, app->piece_max);
		bool frames = app->send == SIM_SEND_FRAMES ||
			      (app->send == SIM_SEND_MIXED && rng_below(&sim->rng, 2));
		ssize_t n;

		len = len < left ? len : (size_t)left;
		n = frames ? app_send_frame(sim, app, len) : app_send_copy(sim, app, len);
		if (n == -EAGAIN)
			app->wait_writable = true;
		else if (n < 0 && !sim->may_fail)
			return sim_fail(sim, "send: %s", strerror((int)-n));
		else if (n < 0)
			return true;
		else
			app->sent += (uint64_t)n;
	}
	if (app->sent == app->send_total && !app->shut) {
		int err = harp_conn_shutdown(app->conn);

		if (err && !sim->may_fail)
			return sim_fail(sim, "shutdown: %s", strerror(-err));
		app->shut = true;
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Receiving. Each returns bytes, 0 at the end, or -errno.
 */
static ssize_t app_recv_copy(struct sim *sim, struct sim_app *app, const struct sim_app *peer)
{
	static uint8_t buffer[65536];
	size_t len = 1 + rng_below(&sim->rng, sizeof(buffer));
	ssize_t n = harp_conn_recv(app->conn, buffer, len);

	if (n > 0 && !app_check(sim, app, peer, buffer, (size_t)n))
		return -EBADMSG;
	return n;
}

static ssize_t app_recv_peek(struct sim *sim, struct sim_app *app, const struct sim_app *peer)
{
	struct iovec iov[8];
	int n = harp_conn_peek(app->conn, iov, 1 + (int)rng_below(&sim->rng, 8));
	size_t take = 0;

	for (int i = 0; i < n; i++) {
		size_t len = iov[i].iov_len;

		if (i == n - 1)
			len = 1 + rng_below(&sim->rng, (uint32_t)len);
		if (!app_check(sim, app, peer, iov[i].iov_base, len))
			return -EBADMSG;
		take += len;
	}
	if (n > 0)
		harp_conn_consume(app->conn, take);
	return n > 0 ? (ssize_t)take : n;
}

static void app_give_back(struct sim_app *app)
{
	while (app->held_count > 0)
		harp_frame_release(app->conn, app->held[--app->held_count]);
}

static ssize_t app_recv_frame(struct sim *sim, struct sim_app *app, const struct sim_app *peer)
{
	struct harp_frame *frame;
	int n = harp_conn_recv_frame(app->conn, &frame);
	ssize_t len;

	if (n <= 0)
		return n;
	len = (ssize_t)frame->len;
	if (!app_check(sim, app, peer, frame->data, frame->len)) {
		harp_frame_release(app->conn, frame);
		return -EBADMSG;
	}
	if (app->held_count == 4)
		app_give_back(app);
	app->held[app->held_count++] = frame;
	return len;
}

static bool app_receive(struct sim *sim, struct sim_app *app, const struct sim_app *peer)
{
	unsigned calls = 1 + rng_below(&sim->rng, 32);

	app->more = false;
	if (app->eof || sim->now_ns < app->stall_until_ns)
		return true;
	if (rng_below(&sim->rng, 1000000) < app->stall_ppm) {
		app->stall_until_ns = sim->now_ns + 1 + rng_u64(&sim->rng) % app->stall_ns_max;
		return true;
	}
	while (calls-- > 0) {
		ssize_t n;

		if (app->recv == SIM_RECV_COPY)
			n = app_recv_copy(sim, app, peer);
		else if (app->recv == SIM_RECV_PEEK)
			n = app_recv_peek(sim, app, peer);
		else
			n = app_recv_frame(sim, app, peer);
		if (n == -EAGAIN)
			break;
		if (n == 0) {
			app->eof = true;
			if (app->received != peer->send_total && !sim->may_fail)
				return sim_fail(sim, "end of stream after %llu of %llu bytes",
						(unsigned long long)app->received,
						(unsigned long long)peer->send_total);
			break;
		}
		if (n < 0) {
			if (n == -EBADMSG || !sim->may_fail)
				return sim->reason[0]
					       ? false
					       : sim_fail(sim, "receive: %s", strerror((int)-n));
			app->eof = true;
			break;
		}
		app->more = calls == 0;
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * A turn.
 */
static void app_close(struct sim_app *app, bool abort)
{
	app_give_back(app);
	if (abort)
		harp_conn_abort(app->conn);
	else
		harp_conn_close(app->conn);
	app->conn = NULL;
	app->closed = true;
}

bool sim_app_turn(struct sim *sim, struct sim_pair *pair, enum sim_side side)
{
	struct sim_app *app = &pair->app[side];
	const struct sim_app *peer = &pair->app[!side];

	if (!app->conn || !app->connected)
		return true;
	if (harp_conn_error(app->conn)) {
		if (!sim->may_fail)
			return sim_fail(sim, "connection died: %s",
					strerror(-harp_conn_error(app->conn)));
		app_close(app, false);
		return true;
	}
	if (!app->shut && !app_send(sim, app))
		return false;
	if (!app_receive(sim, app, peer))
		return false;
	if (app->aborts && app->sent >= app->send_total / 2)
		app_close(app, true);
	else if (app->shut && app->eof)
		app_close(app, false);
	return true;
}

uint64_t sim_app_next_ns(const struct sim_app *app)
{
	if (!app->conn || !app->connected || app->eof)
		return UINT64_MAX;
	if (app->more)
		return 0;
	return app->stall_until_ns > 0 ? app->stall_until_ns : UINT64_MAX;
}
