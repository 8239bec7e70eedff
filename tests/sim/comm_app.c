/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_app.c - the two applications of a comm: one posts sends, the other receives, as NCCL does,
 * and both check memory.
 *
 * Theory of operation. The bytes of a message are a function of comm, message and offset. A receive
 * buffer and the memory in front of it and behind it are filled with an old pattern. At each step
 * that delivers bytes, and by samples at other steps, every aligned unit of 8 bytes must be wholly
 * old or wholly new. With kernel lanes it may be new from its start only, because recv() may leave
 * it so for a moment. The memory around the buffer stays old.
 *
 * When the receive completes, the message must be new and the bytes behind it old. The buffer is
 * then filled with another pattern, kept for a while, and must not change again. A send's memory is
 * overwritten as soon as the send completes, so that a later read delivers wrong bytes.
 */
#include "comm_sim.h"
#include "comm/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define APP_OLD 0xa5u
#define APP_RETIRED 0x3cu /* completed */
#define APP_SENT 0x77u
#define APP_GUARD_BYTES 64u
#define APP_SAMPLE_BYTES 512u
#define APP_IDLE_NS_MAX (5 * CSIM_MS)

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t app_word(const struct csim_app *app, uint64_t message, uint64_t word)
{
	uint64_t x = app->sim->comms[app->number].spec->stream + message * 0x9e3779b97f4a7c15u +
		     word * 0xbf58476d1ce4e5b9u;

	x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
	return x ^ (x >> 29);
}

static void app_bytes(const struct csim_app *app, uint64_t message, uint64_t at, uint8_t *out,
		      size_t len)
{
	while (len) {
		uint64_t word = app_word(app, message, at / 8);
		size_t skip = at % 8, n = 8 - skip < len ? 8 - skip : len;

		memcpy(out, (const uint8_t *)&word + skip, n);
		out += n;
		at += n;
		len -= n;
	}
}

static bool app_is_filled(const uint8_t *bytes, uint8_t value, size_t len)
{
	return !len || (bytes[0] == value && memcmp(bytes, bytes + 1, len - 1) == 0);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static void buffer_make(struct csim_buffer *b, size_t size, size_t misalign, uint8_t fill)
{
	size_t all = size + misalign + 2 * APP_GUARD_BYTES;

	b->base = aligned_alloc(64, (all + 63) & ~(size_t)63);
	if (!b->base)
		abort();
	b->data = b->base + APP_GUARD_BYTES + misalign;
	b->size = size;
	memset(b->base, fill, all);
}

static void buffer_free(struct csim_buffer *b)
{
	free(b->base);
	memset(b, 0, sizeof(*b));
}

/* Keeps a buffer that must not change any more; frees the oldest of a few. */
static void buffer_retire(struct csim_app *app, struct csim_buffer *b)
{
	struct csim_buffer *slot = &app->retired[app->retired_next++ % 4];

	if (slot->base && !app_is_filled(slot->data, APP_RETIRED, slot->size))
		(void)runner_fail("comm %u: the buffer of message %llu changed after completion",
				  app->number, (unsigned long long)slot->message);
	buffer_free(slot);
	*slot = *b;
	memset(slot->data, APP_RETIRED, slot->size);
	memset(b, 0, sizeof(*b));
}

struct csim_buffer *csim_retired_buffer(struct csim *sim, unsigned comm)
{
	struct csim_app *app = &sim->comms[comm].app[CSIM_RECV];

	return app->retired_next ? &app->retired[(app->retired_next - 1) % 4] : NULL;
}

/* ---- checking memory ------------------------------------------------------------------------- */

static bool app_unit_is_torn(const uint8_t *unit, const uint8_t *fresh, size_t len, bool prefixes)
{
	size_t n = 0;

	if (memcmp(unit, fresh, len) == 0 || app_is_filled(unit, APP_OLD, len))
		return false;
	if (!prefixes)
		return true;
	while (n < len && unit[n] == fresh[n])
		n++;
	return !app_is_filled(unit + n, APP_OLD, len - n);
}

/* Kernel lanes: recv() may have written only the start of a unit. */
static bool app_has_kernel_lanes(const struct csim_app *app)
{
	const struct comm_scenario *s = app->sim->scenario;

	for (unsigned i = 0; i < s->lane_count; i++) {
		if (s->lanes[i].comm == app->number && s->lanes[i].kind == CSN_KERNEL)
			return true;
	}
	return false;
}

/* Checks the units of a posted receive buffer between two offsets. NCCL's LL protocols use aligned
 * buffers. In other buffers, chunks of several lanes may meet within a unit, at multiples of 64. */
static bool app_check_units(struct csim_app *app, const struct csim_buffer *b, size_t from,
			    size_t to)
{
	bool prefixes = app_has_kernel_lanes(app);
	uint8_t fresh[8];

	from -= ((uintptr_t)b->data + from) % 8 < from ? ((uintptr_t)b->data + from) % 8 : from;
	while (from < to && from < b->total) {
		size_t len = 8 - ((uintptr_t)b->data + from) % 8;

		if (len > 64 - from % 64)
			len = 64 - from % 64;
		if (len > b->total - from)
			len = b->total - from;
		app_bytes(app, b->message, from, fresh, len);
		if (app_unit_is_torn(b->data + from, fresh, len, prefixes))
			return runner_fail(
				"comm %u: message %llu: the unit at %zu is neither old nor new",
				app->number, (unsigned long long)b->message, from);
		from += len;
	}
	if (to > b->total && b->size > b->total &&
	    !app_is_filled(b->data + b->total, APP_OLD, b->size - b->total))
		return runner_fail("comm %u: bytes behind message %llu were written", app->number,
				   (unsigned long long)b->message);
	return true;
}

static bool app_check_guards(struct csim_app *app, const struct csim_buffer *b)
{
	if (app_is_filled(b->base, APP_OLD, (size_t)(b->data - b->base)) &&
	    app_is_filled(b->data + b->size, APP_OLD, APP_GUARD_BYTES))
		return true;
	return runner_fail("comm %u: memory around the buffer of message %llu was written",
			   app->number, (unsigned long long)b->message);
}

bool csim_app_check(struct csim_app *app, bool all)
{
	bool good = true;

	for (unsigned i = 0; i < 4 && good; i++) {
		const struct csim_buffer *b = &app->retired[i];
		size_t from = 0, len = b->size;

		if (!b->base || (!all && i != app->sim->steps % 4))
			continue;
		if (!all && len > APP_SAMPLE_BYTES) {
			len = APP_SAMPLE_BYTES;
			from = rng_below(&app->sim->check_rng, (uint32_t)(b->size - len));
		}
		if (!app_is_filled(b->data + from, APP_RETIRED, len))
			good = runner_fail(
				"comm %u: the buffer of message %llu changed after completion",
				app->number, (unsigned long long)b->message);
	}
	if (app->side == CSIM_SEND || app->error)
		return good;
	for (uint64_t m = app->done; m < app->posted && good; m++) {
		const struct csim_buffer *b = &app->buffers[m % PLUGIN_REQUESTS_MAX];
		size_t from = 0, to = b->size;

		if (!all && (m != app->done + app->sim->steps % 4))
			continue;
		if (!all && b->size > APP_SAMPLE_BYTES) {
			from = rng_below(&app->sim->check_rng, (uint32_t)b->size);
			to = from + APP_SAMPLE_BYTES;
		}
		good = app_check_guards(app, b) && app_check_units(app, b, from, to);
	}
	return good;
}

/* Checks the edges of the delivered bytes, where a unit may be torn. */
bool csim_check_delivered(struct csim *sim, const uint8_t *dst, size_t len)
{
	for (unsigned c = 0; c < sim->scenario->comm_count; c++) {
		struct csim_app *app = &sim->comms[c].app[CSIM_RECV];

		for (uint64_t m = app->done; m < app->posted; m++) {
			const struct csim_buffer *b = &app->buffers[m % PLUGIN_REQUESTS_MAX];
			size_t at = (size_t)(dst - b->data);

			if (!b->base || dst < b->data || dst >= b->data + b->size)
				continue;
			if (len > b->size - at)
				return runner_fail("comm %u: message %llu overruns its buffer", c,
						   (unsigned long long)m);
			return app_check_units(app, b, at, at + 16) &&
			       app_check_units(app, b, at + len > 24 ? at + len - 24 : 0,
					       at + len + 24);
		}
	}
	return true;
}

/* ---- posting --------------------------------------------------------------------------------- */

static void app_prepare(struct csim_app *app, struct csim_buffer *b)
{
	const struct csn_comm *c = app->sim->comms[app->number].spec;
	uint64_t m = app->posted;
	size_t total = app->sim->comms[app->number].sizes[m], size = total;

	if (app->side == CSIM_SEND) {
		buffer_make(b, size, (size_t)(app_word(app, m, 1) % 8), APP_SENT);
		app_bytes(app, m, 0, b->data, size);
	} else {
		if (c->slack_bytes)
			size += app_word(app, m, 2) % (c->slack_bytes + 1);
		if (c->truncate_at == m + 1 && total)
			size = app_word(app, m, 3) % total;
		buffer_make(b, size, (size_t)c->misalign_bytes, APP_OLD);
	}
	b->message = m;
	b->total = total < size ? total : size;
}

static uint64_t app_random_below(struct csim_app *app, uint64_t bound)
{
	return bound ? rng_u64(&app->sim->rng) % bound : 0;
}

static void app_fail(struct csim_app *app, int error)
{
	app->error = error;
	csim_note(app->sim, "comm %u: %s end failed: %d", app->number,
		  app->side ? "receiving" : "sending", error);
	(void)csim_check_error(app, error);
	/* No buffer may change from now on. */
	for (uint64_t m = app->done; m < app->posted; m++) {
		struct csim_buffer *b = &app->buffers[m % PLUGIN_REQUESTS_MAX];

		if (app->side == CSIM_RECV && b->base)
			(void)app_check_guards(app, b);
		if (b->base)
			buffer_retire(app, b);
	}
	app->close_ns = app->sim->now_ns + app_random_below(app, CSIM_MS);
}

/* ---- completing ------------------------------------------------------------------------------ */

static bool app_check_message(struct csim_app *app, struct csim_buffer *b, size_t size)
{
	uint8_t fresh[256];

	if (size != app->sim->comms[app->number].sizes[b->message])
		return runner_fail(
			"comm %u: message %llu has %zu bytes instead of %llu", app->number,
			(unsigned long long)b->message, size,
			(unsigned long long)app->sim->comms[app->number].sizes[b->message]);
	for (size_t at = 0; at < size; at += sizeof(fresh)) {
		size_t n = size - at < sizeof(fresh) ? size - at : sizeof(fresh);

		app_bytes(app, b->message, at, fresh, n);
		if (memcmp(b->data + at, fresh, n) != 0)
			return runner_fail("comm %u: message %llu has wrong bytes near %zu",
					   app->number, (unsigned long long)b->message, at);
	}
	if (!app_is_filled(b->data + size, APP_OLD, b->size - size))
		return runner_fail("comm %u: bytes behind message %llu were written", app->number,
				   (unsigned long long)b->message);
	app->sim->bytes += size;
	return app_check_guards(app, b);
}

/* False: the oldest request is not complete. */
static bool app_test(struct csim_app *app)
{
	struct csim_buffer *b = &app->buffers[app->done % PLUGIN_REQUESTS_MAX];
	size_t size = SIZE_MAX;
	int done = -1, rc;

	if (app->done == app->posted || app->error)
		return false;
	rc = comm_test(b->request, &done, &size);
	if (rc) {
		app_fail(app, rc);
		return false;
	}
	if (!done)
		return false;
	if (app->side == CSIM_RECV)
		(void)app_check_message(app, b, size);
	else if (size != b->size)
		(void)runner_fail("comm %u: test() returns %zu bytes of message %llu", app->number,
				  size, (unsigned long long)b->message);
	runner_trace((app->number << 8 | (unsigned)app->side << 4 | 1) ^ app->sim->now_ns << 16);
	app->done++;
	app->progress_ns = app->sim->now_ns;
	buffer_retire(app, b);
	return true;
}

/* False: nothing was posted. */
static bool app_post(struct csim_app *app)
{
	const struct csim_comm *k = &app->sim->comms[app->number];
	uint64_t burst = app->side == CSIM_SEND ? k->spec->s_burst : k->spec->r_burst;
	uint64_t gap_ns = app->side == CSIM_SEND ? k->spec->s_gap_ns : k->spec->r_gap_ns;
	struct csim_buffer *b = &app->buffers[app->posted % PLUGIN_REQUESTS_MAX];
	int rc;

	if (app->error || app->posted == k->spec->messages || app->posted - app->done >= burst ||
	    app->posted - app->done >= PLUGIN_REQUESTS_MAX || app->next_post_ns > app->sim->now_ns)
		return false;
	app_prepare(app, b);
	/* Take the slot first: comm_post() may deliver bytes. */
	app->posted++;
	rc = comm_post(app->comm, b->data, b->size, (int)(b->message & 0xffff), NULL, &b->request);
	if (rc || !b->request) {
		app->posted--;
		buffer_free(b);
		while (rc && app_test(app)) /* requests completed before the error count */
			;
		if (rc && !app->error)
			app_fail(app, rc);
		else if (!rc && app->posted - app->done < PLUGIN_REQUESTS_MAX)
			(void)runner_fail("comm %u rejected request %llu", app->number,
					  (unsigned long long)app->posted);
		return false;
	}
	if (gap_ns && (app->posted % burst == 0 || app->posted == k->spec->messages))
		app->next_post_ns = app->sim->now_ns + app_random_below(app, gap_ns);
	return true;
}

/* ---- turns ----------------------------------------------------------------------------------- */

void csim_app_end(struct csim_app *app, bool abort)
{
	struct comm *comm = app->comm;

	if (app->closed)
		return;
	csim_note(app->sim, "comm %u: %s end closes%s", app->number,
		  app->side ? "receiving" : "sending",
		  app->done < app->posted && !app->error ? " with requests in flight" : "");
	app->closed = true;
	app->in_turn = true;
	if (comm && app->sim->comms[app->number].spec->multi_lane)
		csim_reconnect_close(app, abort);
	else if (comm)
		comm_close(comm, abort);
	app->in_turn = false;
	app->comm = NULL;
	/* Nor may a buffer change after the close. */
	for (uint64_t m = app->done; m < app->posted; m++) {
		struct csim_buffer *b = &app->buffers[m % PLUGIN_REQUESTS_MAX];

		if (app->side == CSIM_RECV && b->base)
			(void)app_check_guards(app, b);
		if (b->base)
			buffer_retire(app, b);
	}
	app->done_at_close = app->done;
	app->done = app->posted;
	app->wake_ns = CSIM_NEVER_NS;
	csim_wake_apps(app->sim, app->host);
}

/* Returns true when it is time to close; may set that time. */
static bool app_can_close(struct csim_app *app)
{
	const struct csn_comm *c = app->sim->comms[app->number].spec;
	uint64_t close_at = app->side == CSIM_SEND ? c->s_close_at : c->r_close_at;
	uint64_t wait_ns = app->side == CSIM_SEND ? c->s_close_ns : c->r_close_ns;

	if (close_at && app->posted >= close_at - 1 && app->close_ns == CSIM_NEVER_NS) {
		app->sim->comms[app->number].excused = true;
		app->close_ns = app->sim->now_ns;
	}
	if (app->done == c->messages && app->close_ns == CSIM_NEVER_NS)
		app->close_ns = app->sim->now_ns + wait_ns;
	return app->close_ns <= app->sim->now_ns;
}

void csim_app_turn(struct csim_app *app)
{
	struct csim *sim = app->sim;
	const struct csn_comm *c = sim->comms[app->number].spec;
	uint64_t poll_ns = app->side == CSIM_SEND ? c->s_poll_ns : c->r_poll_ns;
	bool has_progress = false;

	app->in_turn = true;
	if (sim->scenario->world.no_ticks)
		app->comm->checked_ns = sim->now_ns;
	if (!app->error) {
		while (app_post(app) && !runner_has_failed())
			has_progress = true;
		while (app_test(app) && !runner_has_failed())
			has_progress = true;
		if (has_progress) /* a slot is free for the next one */
			(void)app_post(app);
	}
	app->in_turn = false;
	if (!sim->depth && app_can_close(app)) { /* a close waits for pollers */
		csim_app_end(app, false);
		return;
	}
	app->poll_ns = has_progress ? poll_ns : app->poll_ns + app->poll_ns / 2 + 1;
	if (app->poll_ns > APP_IDLE_NS_MAX)
		app->poll_ns = APP_IDLE_NS_MAX;
	app->wake_ns = sim->now_ns + 1 + app_random_below(app, app->poll_ns);
	/* Without requests, sleep until the next post. */
	if (app->done == app->posted && app->next_post_ns > app->wake_ns)
		app->wake_ns = app->next_post_ns;
	if (app->close_ns < app->wake_ns)
		app->wake_ns = app->close_ns;
}

/* ---- setup ----------------------------------------------------------------------------------- */

static uint64_t app_size(const struct csn_comm *c, struct rng *rng)
{
	uint64_t max = c->size_max, size = rng_u64(rng) % (max + 1);
	uint32_t kind = rng_below(rng, 8);

	switch (c->sizes) {
	case CSN_SIZES_TINY:
		return rng_u64(rng) % (max < 64 ? max + 1 : 65);
	case CSN_SIZES_LL:
		return size & ~7u;
	case CSN_SIZES_ALL:
		return max;
	case CSN_SIZES_BULK:
		return kind ? max : size;
	default:
		if (kind == 0)
			return 0;
		if (kind < 3)
			return size & ~63u;
		if (kind < 5) /* near a power of two */
			size = (1u << rng_below(rng, 20)) - 1 + rng_below(rng, 3);
		return size > max ? max : size;
	}
}

bool csim_apps_make(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		struct csim_comm *k = &sim->comms[i];
		const struct csn_comm *c = &sim->scenario->comms[i];
		struct rng rng;

		rng_seed(&rng, c->stream);
		k->spec = c;
		k->no_lane_ns = CSIM_NEVER_NS;
		k->sizes = calloc(c->messages ? c->messages : 1, sizeof(*k->sizes));
		if (!k->sizes)
			abort();
		for (uint64_t m = 0; m < c->messages; m++)
			k->sizes[m] = app_size(c, &rng);
		for (unsigned side = 0; side < 2; side++) {
			k->app[side] = (struct csim_app){
				.sim = sim,
				.number = i,
				.side = side,
				.host = (unsigned)(side == CSIM_SEND ? c->from : c->to),
				.wake_ns = CSIM_NEVER_NS,
				.close_ns = CSIM_NEVER_NS,
				.poll_ns = 1000,
			};
		}
	}
	return true;
}

void csim_apps_destroy(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		struct csim_comm *k = &sim->comms[i];

		for (unsigned side = 0; side < 2; side++) {
			struct csim_app *app = &k->app[side];

			for (unsigned b = 0; b < PLUGIN_REQUESTS_MAX; b++)
				buffer_free(&app->buffers[b]);
			for (unsigned b = 0; b < 4; b++)
				buffer_free(&app->retired[b]);
		}
		free(k->sizes);
	}
}
