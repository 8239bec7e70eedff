/* SPDX-License-Identifier: Apache-2.0 */
/* test_dial_ends.c - what a dial asks of the rest of the plugin, and that nothing is left of it however it ends. */
#include <errno.h>
#include <sys/random.h>

#include "connect/handshake.h"
#include "check.h"
#include "connect/attempt.h"
#include "process/keyfile.h"
#include "connect/peers.h"
#include "context/plugin.h"

#define NOW_NS UINT64_C(5000000000)
#define MS UINT64_C(1000000)

/* ---- the rest of the plugin ------------------------------------------------------------------------- */

static struct world {
	enum lane_state state;
	int lane_error;
	unsigned closed, opened_stopped, advanced, ended, acked_now, acked_promptly, acks_delayed;
	unsigned avoided, forgotten, learnt, connected, said;
	int connect_rc, setup_rc, preamble_rc, seal_rc, error;
	enum preamble_step step; /* where the preamble gets to */
	bool random, silence, recalls, lane_left;
	uint64_t peer_features;
	struct placement_end peer;
	char text[96];
} world;

static enum lane_state lane_state(struct lane *lane)
{
	return world.state;
}

static void lane_close(struct lane *lane, bool abort)
{
	CHECK(abort);
	world.closed++;
}

static const struct lane_ops ops = { .state = lane_state, .close = lane_close };
static struct lane lane = { .ops = &ops };
static struct attempt dial;

int lane_kernel_connect(struct poller *poller, const struct harp_endpoint *local,
			const struct harp_endpoint *remote, int dscp, struct lane **out)
{
	world.connected++;
	if (!world.connect_rc)
		*out = &lane;
	return world.connect_rc;
}

void lane_kernel_ack_now(struct lane *l)
{
	CHECK(l == &lane);
	world.acked_now++;
}

void lane_kernel_ack_promptly(struct lane *l)
{
	CHECK(l == &lane);
	world.acked_promptly++;
}

void lane_harp_delay_acks(struct lane *l)
{
	CHECK(l == &lane);
	world.acks_delayed++;
}

const char *lane_error_text(int error)
{
	return "an error";
}

void port_search_prepare(struct port_search *o, struct engine *engine,
			 const struct placement_end *peer, const struct harp_endpoint *local,
			 const struct harp_endpoint *remote, int dscp)
{
	memset(o, 0, sizeof(*o));
	o->ports_max = 99;
	world.peer = *peer;
}

int port_search_advance(struct port_search *o, uint64_t now_ns, struct lane **out)
{
	world.advanced++;
	if (world.setup_rc == 1)
		*out = &lane;
	return world.setup_rc;
}

void port_search_stop(struct port_search *o)
{
	world.opened_stopped++;
}

const char *port_search_silence(const struct port_search *o, char *buf, size_t len)
{
	snprintf(buf, len, "%s", world.silence ? "no way" : "");
	return buf;
}

bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out)
{
	if (world.recalls)
		out->queues = 7;
	return world.recalls;
}

void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end)
{
	CHECK_EQ(end->queues, 5);
	world.learnt++;
}

void peers_forget(const struct harp_endpoint *remote)
{
	world.forgotten++;
}

void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	CHECK_EQ(engine, 3);
	CHECK_EQ(now_ns, NOW_NS);
	world.avoided++;
}

unsigned engine_index(const struct engine *engine)
{
	return 3;
}

const struct plugin_config *plugin_config(void)
{
	static const struct plugin_config config = { .eager_bytes = 4096 };

	return &config;
}

const struct device *plugin_device(int dev)
{
	static const struct device device = { .ifname = "eth9" };

	return &device;
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	world.said++;
}

const uint8_t *keyfile_key(void)
{
	return NULL;
}

ssize_t getrandom(void *buf, size_t len, unsigned flags)
{
	memset(buf, 1, len);
	return world.random ? (ssize_t)len : (ssize_t)len - 1;
}

void preamble_connect(struct preamble *p, uint64_t listen_id, uint64_t comm_id,
		      const uint8_t key[PREAMBLE_KEY_BYTES], const struct preamble_terms *own)
{
	p->own = *own;
	p->step = PREAMBLE_SEND_HELLO;
}

int handshake_advance(struct preamble *p, struct lane *l)
{
	CHECK(l == &lane);
	p->step = world.step;
	p->peer.features = world.peer_features;
	return world.preamble_rc;
}

int handshake_encrypt(const struct preamble *p, struct lane **l)
{
	CHECK(*l == &lane);
	return world.seal_rc;
}

/* ---- a dial ----------------------------------------------------------------------------------------- */

static void ended(struct attempt *d, int error, const char *text, uint64_t now_ns)
{
	world.ended++;
	world.error = error;
	world.lane_left = d->lane;
	snprintf(world.text, sizeof(world.text), "%s", text);
	if (!error)
		d->lane = NULL;
}

/* The lane is being opened. */
static void begin(bool harp)
{
	world = (struct world){ .random = true, .step = PREAMBLE_READ_CHALLENGE };
	dial = (struct attempt){
		.candidate = { .harp = harp },
		.open_deadline_ns = NOW_NS + 3000 * MS,
		.deadline_ns = NOW_NS + 5000 * MS,
		.ended = ended,
	};
	attempt_start(&dial, NOW_NS);
	CHECK_EQ(world.ended, 0);
	CHECK_EQ(harp ? world.advanced : world.connected, 1);
}

/* HELLO has left. */
static void begin_open(bool harp)
{
	begin(harp);
	world.state = LANE_OPEN;
	world.setup_rc = 1;
	attempt_advance(&dial, NOW_NS);
	CHECK(dial.opened);
	CHECK_EQ(world.ended, 0);
}

/* It has failed, nothing is left, and nothing comes after it. */
static void end_failed(int error, const char *text)
{
	CHECK_EQ(world.ended, 1);
	CHECK_EQ(world.error, error);
	CHECK(strcmp(world.text, text) == 0);
	CHECK(!world.lane_left && !dial.lane && !dial.under_way);
	CHECK(world.opened_stopped);
	attempt_advance(&dial, NOW_NS + 60000 * MS);
	attempt_stop(&dial);
	CHECK_EQ(world.ended, 1);
	CHECK(world.closed <= 1);
}

TEST(nothing_opens)
{
	for (unsigned harp = 0; harp < 2; harp++) {
		begin(harp);
		attempt_advance(&dial, NOW_NS + 3000 * MS - 1);
		CHECK_EQ(world.ended, 0);
		attempt_advance(&dial, NOW_NS + 3000 * MS);
		end_failed(-ETIMEDOUT, "an error");
		CHECK_EQ(world.closed, !harp);
		CHECK_EQ(world.avoided, 0);
	}
}

TEST(nobody_accepts)
{
	for (unsigned harp = 0; harp < 2; harp++) {
		begin_open(harp);
		attempt_advance(&dial, NOW_NS + 5000 * MS - 1);
		CHECK_EQ(world.ended, 0);
		attempt_advance(&dial, NOW_NS + 5000 * MS);
		end_failed(-ETIMEDOUT, "the peer does not accept; is its rank alive?");
		CHECK_EQ(world.closed, 1);
	}
}

TEST(it_dies)
{
	begin(false);
	world.state = LANE_DEAD;
	lane.error = -EHOSTUNREACH;
	attempt_advance(&dial, NOW_NS);
	end_failed(-EHOSTUNREACH, "an error");
	CHECK_EQ(world.closed, 1);
	lane.error = 0;
	begin(true);
	world.setup_rc = -ECONNREFUSED;
	attempt_advance(&dial, NOW_NS);
	end_failed(-ECONNREFUSED, "an error");
	begin_open(true);
	world.preamble_rc = -ECONNRESET;
	attempt_advance(&dial, NOW_NS);
	end_failed(-ECONNRESET, "an error");
	begin_open(true);
	world.preamble_rc = -EPROTO;
	dial.preamble.what = "nonsense";
	attempt_advance(&dial, NOW_NS);
	end_failed(-EPROTO, "nonsense");
}

TEST(it_can_not_begin)
{
	world = (struct world){ .connect_rc = -ENETUNREACH };
	dial = (struct attempt){ .ended = ended };
	attempt_start(&dial, NOW_NS);
	end_failed(-ENETUNREACH, "an error");
	begin(false);
	world.state = LANE_OPEN;
	world.random = false;
	attempt_advance(&dial, NOW_NS);
	end_failed(-EIO, "an error");
	begin_open(false);
	world.preamble_rc = 1;
	world.seal_rc = -ENOMEM;
	attempt_advance(&dial, NOW_NS);
	end_failed(-ENOMEM, "an error");
	CHECK_EQ(world.learnt, 0);
}

/* No port got through: such a pair of queues is left alone for a while. */
TEST(no_way)
{
	begin(true);
	world.silence = true;
	world.setup_rc = -ETIMEDOUT;
	attempt_advance(&dial, NOW_NS);
	end_failed(-ETIMEDOUT, "no way");
	CHECK_EQ(world.avoided, 1);
	CHECK_EQ(world.forgotten, 1);
	CHECK_EQ(world.said, 1);
}

TEST(done)
{
	for (unsigned harp = 0; harp < 2; harp++) {
		begin_open(harp);
		CHECK_EQ(dial.preamble.own.features,
			 FEATURE_BUFFERED | (harp ? FEATURE_ACK_PROMPTLY : FEATURE_NO_CREDIT));
		CHECK_EQ(dial.preamble.own.eager_bytes, 4096);
		dial.preamble.placement = (struct placement_end){ .kind = harp ? PLACEMENT_TOEPLITZ
									       : PLACEMENT_NOT_SAID,
								  .queues = 5 };
		world.peer_features = harp ? 0 : FEATURE_ACK_PROMPTLY;
		world.step = PREAMBLE_DONE;
		world.preamble_rc = 1;
		attempt_advance(&dial, NOW_NS + 7 * MS);
		CHECK_EQ(world.ended, 1);
		CHECK_EQ(world.error, 0);
		CHECK(world.lane_left && !dial.under_way);
		CHECK_EQ(dial.rtt_ns, 7 * MS);
		CHECK_EQ(world.acked_now, 1);
		CHECK_EQ(world.acked_promptly, !harp);
		CHECK_EQ(world.acks_delayed, 1);
		CHECK_EQ(world.learnt, harp);
		attempt_advance(&dial, NOW_NS + 60000 * MS);
		attempt_stop(&dial);
		CHECK_EQ(world.ended, 1);
		CHECK_EQ(world.closed, 0);
	}
}

/* The same memory, another candidate. */
TEST(once_more)
{
	begin_open(false);
	dial.preamble.what = "nonsense";
	world.preamble_rc = -EPROTO;
	attempt_advance(&dial, NOW_NS);
	CHECK_EQ(world.ended, 1);
	world.preamble_rc = 0;
	world.state = LANE_CONNECTING;
	attempt_start(&dial, NOW_NS + 100 * MS);
	CHECK(!dial.opened && !dial.preamble.what && !dial.asked_ns && !dial.rtt_ns);
	CHECK_EQ(dial.preamble.step, PREAMBLE_SEND_HELLO);
	world.state = LANE_OPEN;
	attempt_advance(&dial, NOW_NS + 100 * MS);
	CHECK_EQ(dial.asked_ns, NOW_NS + 100 * MS);
	attempt_advance(&dial, NOW_NS + 200 * MS);
	CHECK_EQ(dial.asked_ns, NOW_NS + 100 * MS);
	attempt_stop(&dial);
	CHECK_EQ(world.ended, 1);
	CHECK_EQ(world.closed, 2);
}

/* What an opening is told of the peer's queues. */
static struct placement_end told(bool recalls, bool harp_port, uint16_t queues, uint8_t placement)
{
	world = (struct world){ .recalls = recalls };
	dial = (struct attempt){
		.ports_max = 12,
		.candidate = { .harp = true,
			       .harp_port = harp_port,
			       .peer_queues = queues,
			       .peer_queue = 2,
			       .peer_placement = placement },
		.open_deadline_ns = UINT64_MAX,
		.ended = ended,
	};
	attempt_start(&dial, NOW_NS);
	CHECK_EQ(dial.search.ports_max, 12);
	CHECK(dial.search.owner == &dial && dial.search.notify);
	/* An event of a lane gets on with it. */
	lane.owner = &dial;
	dial.search.notify(&lane, NOW_NS);
	CHECK_EQ(world.advanced, 2);
	attempt_stop(&dial);
	return world.peer;
}

TEST(the_peers_queues)
{
	struct placement_end end = told(true, true, 8, PLACEMENT_ONE_QUEUE);

	CHECK_EQ(end.queues, 7);
	end = told(false, false, 8, PLACEMENT_ONE_QUEUE);
	CHECK_EQ(end.queues, 0);
	CHECK_EQ(end.kind, PLACEMENT_NOT_SAID);
	end = told(false, true, 8, PLACEMENT_ONE_QUEUE);
	CHECK(end.queues == 8 && end.queue == 2);
	CHECK_EQ(end.kind, PLACEMENT_ONE_QUEUE);
	end = told(false, true, 8, PLACEMENT_TOEPLITZ);
	CHECK_EQ(end.kind, PLACEMENT_UNKNOWN);
	end = told(false, true, 8, PLACEMENT_NOT_SAID);
	CHECK_EQ(end.kind, PLACEMENT_NOT_SAID);
	end = told(false, true, 1, PLACEMENT_TOEPLITZ);
	CHECK_EQ(end.kind, PLACEMENT_NOT_SAID);
}
