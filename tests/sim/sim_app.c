/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_app.c - applications of the simulator: they send a known stream and check the received one.
 *
 * An application has a turn only when its connection has an event (harp_stack_next_event()) or its
 * own time (wake_ns) has come. If the stack loses an event, the connection stalls, which sim.c
 * detects.
 */
#include "sim.h"

#include <errno.h>
#include <string.h>

#define APP_TURN_NS 1000u /* between turns of an application that has more to do */

static uint64_t app_mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
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

static struct sim_app *app_peer(struct sim *sim, const struct sim_app *app)
{
	struct sim_pair *pair = &sim->pairs[app->pair];

	return &pair->app[app == &pair->app[SIM_CLIENT]];
}

static void app_wake(struct sim_app *app, uint64_t at_ns)
{
	if (at_ns < app->wake_ns)
		app->wake_ns = at_ns;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static bool app_check(struct sim *sim, struct sim_app *app, const uint8_t *bytes, size_t len)
{
	const struct sim_app *peer = app_peer(sim, app);
	uint64_t plant = sim->scenario->world.plant_bytes;
	uint8_t expected[512];

	while (len > 0) {
		size_t n = len < sizeof(expected) ? len : sizeof(expected);

		sim_bytes(peer->stream, app->received, expected, n);
		if (plant > app->received && plant <= app->received + n)
			expected[plant - 1 - app->received] ^= 1;
		if (memcmp(expected, bytes, n) != 0)
			return runner_fail("connection %u, stack %u: wrong bytes near %llu",
					   app->pair, app->stack,
					   (unsigned long long)app->received);
		app->received += n;
		sim->bytes += n;
		bytes += n;
		len -= n;
	}
	if (app->received > peer->sent)
		return runner_fail("connection %u, stack %u: %llu bytes received, %llu sent",
				   app->pair, app->stack, (unsigned long long)app->received,
				   (unsigned long long)peer->sent);
	app->progress_ns = sim->now_ns;
	return true;
}

/* Each app_recv function returns the number of bytes, 0 at the end of the stream, or -errno. */
static ssize_t app_recv_copy(struct sim *sim, struct sim_app *app)
{
	static uint8_t buffer[65536];
	size_t len = 1 + rng_below(&sim->rng, sizeof(buffer));
	ssize_t n = harp_conn_recv(app->conn, buffer, len);

	if (n > 0 && !app_check(sim, app, buffer, (size_t)n))
		return -EBADMSG;
	return n;
}

static ssize_t app_recv_peek(struct sim *sim, struct sim_app *app)
{
	struct iovec iov[8];
	int n = harp_conn_peek(app->conn, iov, 1 + (int)rng_below(&sim->rng, 8));
	size_t take = 0;

	for (int i = 0; i < n; i++) {
		size_t len = iov[i].iov_len;

		if (i == n - 1)
			len = 1 + rng_below(&sim->rng, (uint32_t)len);
		if (!app_check(sim, app, iov[i].iov_base, len))
			return -EBADMSG;
		take += len;
	}
	if (n > 0)
		harp_conn_consume(app->conn, take);
	return n > 0 ? (ssize_t)take : n;
}

static void app_release_frames(struct sim_app *app)
{
	while (app->held_count > 0)
		harp_frame_release(app->conn, app->held[--app->held_count]);
}

static ssize_t app_recv_frame(struct sim *sim, struct sim_app *app)
{
	struct harp_frame *frame;
	int n = harp_conn_recv_frame(app->conn, &frame);
	ssize_t len;

	if (n <= 0) {
		app_release_frames(app); /* held frames close the window */
		return n;
	}
	len = (ssize_t)frame->len;
	if (app->held_count == 4)
		app_release_frames(app);
	app->held[app->held_count++] = frame;
	return app_check(sim, app, frame->data, frame->len) ? len : -EBADMSG;
}

/* May begin a pause. Returns true while the application pauses reading. */
static bool app_pause(struct sim *sim, struct sim_app *app)
{
	if (app->spec->pause_ns && !app->paused && app->received >= app->spec->pause_at) {
		app->paused = true;
		app->stall_until_ns = sim->now_ns + app->spec->pause_ns;
	} else if (sim->now_ns >= app->stall_until_ns && app->spec->stall_ns &&
		   rng_below(&sim->rng, 1000000) < app->spec->stall_ppm) {
		app->stall_until_ns = sim->now_ns + 1 + rng_u64(&sim->rng) % app->spec->stall_ns;
	}
	if (sim->now_ns >= app->stall_until_ns)
		return false;
	app_release_frames(app);
	app_wake(app, app->stall_until_ns);
	return true;
}

static bool app_receive(struct sim *sim, struct sim_app *app)
{
	unsigned calls = 1 + rng_below(&sim->rng, 32);

	if (app->eof || app_pause(sim, app))
		return true;
	while (calls-- > 0) {
		ssize_t n;

		if (app->spec->recv == SCN_RECV_COPY)
			n = app_recv_copy(sim, app);
		else if (app->spec->recv == SCN_RECV_PEEK)
			n = app_recv_peek(sim, app);
		else
			n = app_recv_frame(sim, app);
		if (n == -EAGAIN)
			return true;
		if (n == -EBADMSG)
			return false;
		if (n <= 0) {
			app->eof = true;
			app->progress_ns = sim->now_ns;
			return n == 0 || sim_check_error(sim, app, (int)n);
		}
	}
	app_wake(app, sim->now_ns + APP_TURN_NS);
	return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

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
		harp_frame_release(app->conn, frame); /* released without being sent */
		return 0;
	}
	frame->len = len < frame->capacity ? (uint32_t)len : frame->capacity;
	sim_bytes(app->stream, app->sent, frame->data, frame->len);
	len = frame->len;
	err = harp_conn_send_frame(app->conn, frame);
	if (err)
		harp_frame_release(app->conn, frame);
	return err ? err : (ssize_t)len;
}

/* The number of bytes that the application may have sent by now. */
static uint64_t app_allowance(const struct sim *sim, const struct sim_app *app)
{
	const struct sim_pair *pair = &sim->pairs[app->pair];
	const struct scn_conn *spec = pair->spec;
	bool client = app == &pair->app[SIM_CLIENT];
	uint64_t allowed = app->send_total;

	if (spec->kind == SCN_RPC && client)
		allowed = (app->received / spec->answer_bytes + 1) * spec->request_bytes;
	else if (spec->kind == SCN_RPC)
		allowed = app->received / spec->request_bytes * spec->answer_bytes;
	else if (spec->kind == SCN_HALF && !client && !app->eof)
		allowed = 0;
	return allowed < app->send_total ? allowed : app->send_total;
}

static bool app_finish(struct sim *sim, struct sim_app *app)
{
	int err;

	if (app->spec->hold_ns && app->hold_until_ns == 0)
		app->hold_until_ns = sim->now_ns + app->spec->hold_ns;
	if (sim->now_ns < app->hold_until_ns) {
		app_wake(app, app->hold_until_ns);
		return true;
	}
	app->shut = true;
	app->progress_ns = sim->now_ns;
	err = harp_conn_shutdown(app->conn, SHUT_WR);
	return err == 0 || sim_check_error(sim, app, err);
}

static bool app_send(struct sim *sim, struct sim_app *app)
{
	unsigned calls = 1 + rng_below(&sim->rng, 8);
	uint64_t allowed = app_allowance(sim, app);

	while (app->sent < allowed && calls-- > 0 && !app->wait_writable) {
		uint64_t left = allowed - app->sent;
		size_t len = 1 + rng_below(&sim->rng, (uint32_t)(app->spec->piece_bytes +
								 !app->spec->piece_bytes));
		bool frames = app->spec->send == SCN_SEND_FRAMES ||
			      (app->spec->send == SCN_SEND_MIXED && rng_below(&sim->rng, 2));
		ssize_t n;

		len = len < left ? len : (size_t)left;
		if (app->spec->send == SCN_SEND_EXTERNAL)
			n = sim_memory_send(sim, app, len);
		else
			n = frames ? app_send_frame(sim, app, len) : app_send_copy(sim, app, len);
		if (n == -EAGAIN)
			app->wait_writable = true;
		else if (n < 0)
			return sim_check_error(sim, app, (int)n);
		else
			app->sent += (uint64_t)n;
	}
	if (app->sent == app->send_total)
		return app_finish(sim, app);
	if (app->sent < allowed && !app->wait_writable)
		app_wake(app, sim->now_ns + APP_TURN_NS);
	return true;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

static void app_close(struct sim *sim, struct sim_app *app, bool abort)
{
	app_release_frames(app);
	if (abort) {
		sim->pairs[app->pair].excused = true;
		harp_conn_abort(app->conn);
	} else {
		harp_conn_close(app->conn);
	}
	app->conn = NULL;
	app->closed = true;
	app->wake_ns = SIM_NEVER_NS;
	app->progress_ns = sim->now_ns;
}

void sim_app_lose_stack(struct sim_app *app)
{
	app->conn = NULL;
	app->held_count = 0;
	app->closed = true;
	app->wake_ns = SIM_NEVER_NS;
}

bool sim_app_turn(struct sim *sim, struct sim_app *app)
{
	int err;

	app->ready = false;
	app->wake_ns = SIM_NEVER_NS;
	if (!app->conn)
		return true;
	err = harp_conn_error(app->conn);
	if (err) {
		if (!sim_check_error(sim, app, err))
			return false;
		app_close(sim, app, false);
		return true;
	}
	if (!app->connected)
		return true;
	/* Read first: received data may allow a send. */
	if (!app_receive(sim, app) || (!app->shut && !app_send(sim, app)))
		return false;
	err = harp_conn_error(app->conn);
	if (app->spec->abort_at && app->sent + 1 >= app->spec->abort_at)
		app_close(sim, app, true);
	else if ((app->shut && app->eof) || err)
		app_close(sim, app, false);
	return true;
}
