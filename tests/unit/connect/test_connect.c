/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_connect.c - plugin_connect() before a comm exists: the order of candidates, how long they
 * are retried, and the failure that is reported. The test ends attempts and sets the clock.
 * test_connector.c tests further lanes.
 */
#include <errno.h>

#include "connect/peers.h"
#include "connect_rig.h"
#include "device/path_policy.h"
#include "process/keyfile.h"

#define MS UINT64_C(1000000)
#define TIMEOUT_NS (30000 * MS)
#define ATTEMPTS_MAX 4000u

/* How an attempt ends. */
struct outcome {
	bool opened;
	int error;
	enum preamble_step step;
};
static const struct outcome refused = { false, -ECONNREFUSED, 0 },
			    silent = { false, -ETIMEDOUT, 0 },
			    wrong_proof = { true, -EKEYREJECTED, PREAMBLE_READ_CHALLENGE },
			    hello_reset = { true, -ECONNRESET, PREAMBLE_READ_CHALLENGE },
			    later_reset = { true, -ECONNRESET, PREAMBLE_READ_READY },
			    no_memory = { true, -ENOMEM, PREAMBLE_DONE },
			    success = { true, 0, PREAMBLE_DONE };

static struct plugin_ctx ctx;
static uint8_t handle_bytes[PLUGIN_HANDLE_BYTES];
static uint64_t now_ns, begin_ns;
static struct candidates available;
static struct engine harp_engine;
static bool avoided, encrypts;
static unsigned interface_opens;
static struct attempt *attempt; /* in progress */
static unsigned attempts;
static uint16_t ports[ATTEMPTS_MAX]; /* of the candidates, per attempt */
static struct comm comm;
static bool multi_lane;

/* ---- doubles --------------------------------------------------------------------------------- */

pthread_mutex_t ctx_lock = PTHREAD_MUTEX_INITIALIZER;

const uint8_t *keyfile_key(void)
{
	return encrypts ? (const uint8_t *)"key" : NULL;
}

uint32_t path_policy_tuner(void)
{
	return 7;
}

void interface_open(int dev)
{
	interface_opens++;
}

struct engine_set *interface_engines(int dev, char *why, size_t why_len)
{
	return NULL;
}

uint64_t interface_harp_bytes_max(int dev, const struct harp_addr *peer)
{
	return 0;
}

bool interface_link_is_down(int dev)
{
	return false;
}

int candidates_find(struct candidates *out, int dev, const struct handle *handle)
{
	*out = available;
	return available.count ? 0 : -EPROTONOSUPPORT;
}

void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES])
{
}

bool rails_are_multi_lane(int dev, bool harp)
{
	return true;
}

void connector_plan(struct connector *c)
{
	c->lane_count = 1;
}

bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t at_ns)
{
	return avoided;
}

void attempt_begin(struct attempt *a, uint64_t at_ns)
{
	CHECK(!attempt && attempts < ATTEMPTS_MAX);
	attempt = a;
	ports[attempts++] = a->candidate.remote.port;
	CHECK_EQ(a->own.features, FEATURE_MULTI_LANE);
}

void attempt_free(struct attempt *a)
{
	if (a == attempt)
		attempt = NULL;
	free(a);
}

int comm_create(struct comm **out, struct lane *lane, const struct comm_options *opt)
{
	CHECK_EQ(opt->side, COMM_SEND);
	*out = &comm;
	return 0;
}

void comm_close(struct comm *c, bool abort)
{
	CHECK(c == &comm && abort);
}

bool comm_describe(struct comm *c, char *buf, size_t len)
{
	buf[0] = '\0';
	return false;
}

bool comm_has_lane(struct comm *c, unsigned index)
{
	return true;
}

int comm_attach(struct comm *c, struct lane *lane, const struct comm_lane_options *opt)
{
	return -ENOTCONN;
}

/* ---- a connect ------------------------------------------------------------------------------- */

/* A connect to a peer with that many candidate addresses, kernel lanes. */
static void prepare(unsigned candidates)
{
	struct handle handle = { .tuner = 7 };

	handle.nic.addr[NIC_V4] = harp_addr_v4(10, 0, 0, 9);
	handle_encode(handle_bytes, &handle);
	memset(&available, 0, sizeof(available));
	for (; available.count < candidates; available.count++)
		available.list[available.count].remote =
			(struct harp_endpoint){ .addr = handle.nic.addr[NIC_V4],
						.port = (uint16_t)(1 + available.count) };
	env_config.connect_timeout_ns = TIMEOUT_NS;
	poller_init(&control, control_turn);
	avoided = encrypts = multi_lane = false;
	memset(&comm, 0, sizeof(comm));
	attempts = 0;
	env_warn[0] = '\0';
	begin_ns = now_ns = clock_now_ns();
}

/* One call by NCCL, and a turn of the control thread. */
static int step(struct comm **out)
{
	int rc = connect_step(&ctx, 0, handle_bytes, -1, out);

	(void)poller_run(&control, now_ns);
	return rc;
}

static void end(const struct outcome *outcome)
{
	struct attempt *a = attempt;

	a->opened = outcome->opened;
	a->preamble.step = outcome->step;
	snprintf(a->text, sizeof(a->text), "%s", strerror(-outcome->error));
	if (!outcome->error) {
		a->preamble.own.features = multi_lane ? FEATURE_MULTI_LANE : 0;
		CHECK_EQ(a->authenticated(a), 0);
	}
	atomic_store(&a->result, outcome->error);
	control_post(a->result_work);
	(void)poller_run(&control, now_ns);
}

/* Advances the clock to the first timer, and runs it. */
static void run_timer(void)
{
	struct control_timer *t = LIST_FIRST(&timers);

	now_ns = t->at_ns > now_ns ? t->at_ns : now_ns;
	control_timer_unlink(t);
	t->run(t, now_ns);
}

/* Ends attempt i with outcomes[i], later ones with the last. Returns the connect's result. */
static int connect_with(const struct outcome *const *outcomes, unsigned count, struct comm **out)
{
	unsigned next = 0;
	int rc = 0;

	for (*out = NULL; !rc && !*out && attempts < ATTEMPTS_MAX;) {
		rc = step(out);
		if (attempt) {
			end(outcomes[next]);
			next += next + 1 < count;
		} else if (!LIST_EMPTY(&timers)) {
			run_timer();
		}
	}
	(void)poller_run(&control, now_ns);
	CHECK(!ctx.connects);
	return rc;
}

static int fail_with(const struct outcome *outcome)
{
	struct comm *out;

	return connect_with(&outcome, 1, &out);
}

TEST(the_kind_of_failure_decides_how_long_a_connect_retries)
{
	static const struct {
		const struct outcome *outcome;
		uint64_t min_ns, max_ns; /* until it fails */
		unsigned attempts;       /* 0: any number */
	} cases[] = {
		{ &wrong_proof, 350 * MS, 350 * MS, 4 },
		{ &refused, TIMEOUT_NS / 10 - 800 * MS, TIMEOUT_NS / 10 + 800 * MS, 0 },
		{ &silent, TIMEOUT_NS / 10 - 800 * MS, TIMEOUT_NS / 10 + 800 * MS, 0 },
		{ &hello_reset, TIMEOUT_NS / 3 - 1600 * MS, TIMEOUT_NS / 3 + 1600 * MS, 0 },
		{ &later_reset, TIMEOUT_NS - 1600 * MS, TIMEOUT_NS, 0 },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		prepare(1);
		CHECK_EQ(fail_with(cases[i].outcome), cases[i].outcome->error);
		CHECK(now_ns - begin_ns >= cases[i].min_ns && now_ns - begin_ns <= cases[i].max_ns);
		CHECK(!cases[i].attempts || attempts == cases[i].attempts);
		CHECK(strstr(env_warn, strerror(-cases[i].outcome->error)) != NULL);
	}
	prepare(1); /* at least four rounds */
	env_config.connect_timeout_ns = 1000 * MS;
	CHECK_EQ(fail_with(&refused), -ECONNREFUSED);
	CHECK_EQ(attempts, 4);
}

/* The peer has the comm, and would refuse a second one with its id. */
TEST(without_memory_after_CONFIRM_a_connect_fails_at_once)
{
	const struct outcome *outcomes[] = { &refused, &no_memory };
	struct comm *out;

	prepare(3);
	CHECK_EQ(connect_with(outcomes, 2, &out), -ENOMEM);
	CHECK_EQ(attempts, 2);
	CHECK(strstr(env_warn, strerror(ENOMEM)) != NULL);
}

TEST(an_answer_of_the_listen_comm_restarts_the_retry_time)
{
	const struct outcome *outcomes[] = { &later_reset, &hello_reset };
	struct comm *out;

	prepare(1);
	CHECK_EQ(connect_with(outcomes, 2, &out), -ECONNRESET);
	CHECK(now_ns - begin_ns >= TIMEOUT_NS / 3 && now_ns - begin_ns < TIMEOUT_NS / 2);
}

TEST(connects_that_were_reset_together_retry_at_different_times)
{
	uint64_t first_ns = UINT64_MAX, last_ns = 0;

	for (unsigned i = 0; i < 200; i++) {
		const struct outcome *outcomes[] = { &later_reset, &success };
		struct comm *out;

		prepare(1);
		CHECK_EQ(connect_with(outcomes, 2, &out), 0);
		CHECK(now_ns - begin_ns >= 50 * MS && now_ns - begin_ns < 100 * MS);
		first_ns = now_ns - begin_ns < first_ns ? now_ns - begin_ns : first_ns;
		last_ns = now_ns - begin_ns > last_ns ? now_ns - begin_ns : last_ns;
	}
	CHECK(last_ns - first_ns > 35 * MS);
}

TEST(the_most_informative_failure_of_a_round_is_reported)
{
	static const struct {
		const struct outcome *outcomes[3];
		int error;
		const char *remedy;
	} cases[] = {
		{ { &silent, &refused, &silent }, -ECONNREFUSED, "firewall" },
		{ { &later_reset, &refused, &silent }, -ECONNRESET, "rank alive" },
		{ { &refused, &hello_reset, &refused }, -ECONNRESET, "closed this listener" },
		{ { &wrong_proof, &silent, &refused }, -EKEYREJECTED, "" },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct comm *out;

		prepare(3);
		env_config.connect_timeout_ns = 1; /* one round */
		now_ns += 10;
		CHECK_EQ(connect_with(cases[i].outcomes, 3, &out), cases[i].error);
		CHECK_EQ(attempts, 3);
		CHECK(strstr(env_warn, cases[i].remedy) != NULL);
	}
}

TEST(candidates_are_tried_in_order_in_each_round)
{
	const struct outcome *outcomes[] = { &refused, &refused, &refused, &success };
	struct comm *out;

	for (unsigned multi = 0; multi < 2; multi++) {
		prepare(2);
		multi_lane = multi;
		CHECK_EQ(connect_with(outcomes, 4, &out), 0);
		CHECK(out == &comm);
		CHECK_EQ(attempts, 4);
		for (unsigned i = 0; i < 4; i++)
			CHECK_EQ(ports[i], 1 + i % 2);
		CHECK_EQ(comm.connector != NULL, multi);
		connector_stop(comm.connector);
		connector_free(comm.connector);
		(void)poller_run(&control, now_ns);
	}
}

TEST(avoided_candidates_are_tried_only_without_others)
{
	for (unsigned kernel = 0; kernel < 2; kernel++) {
		prepare(2);
		available.pairs = 2;
		available.list[0].engine = available.list[1].engine = &harp_engine;
		available.list[0].harp = true;
		available.list[1].harp = !kernel;
		avoided = true;
		(void)fail_with(&refused);
		for (unsigned i = 0; i < attempts; i++)
			CHECK_EQ(ports[i], kernel ? 2 : 1 + i % 2); /* in every round */
		CHECK(attempts > 2);
	}
}

TEST(a_connect_fails_at_once_if_only_this_side_encrypts)
{
	prepare(1);
	encrypts = true;
	CHECK_EQ(fail_with(&hello_reset), -EPROTONOSUPPORT);
	CHECK_EQ(attempts, 1);
	CHECK(strstr(env_warn, "this process encrypts") != NULL);
}

TEST(the_first_call_of_a_connect_opens_the_interface)
{
	struct comm *out;

	prepare(1);
	interface_opens = 0;
	CHECK_EQ(step(&out), 0);
	CHECK_EQ(interface_opens, 1);
	CHECK_EQ(attempts, 1);
	CHECK_EQ(step(&out), 0);
	CHECK_EQ(interface_opens, 1);
	connect_abort(ctx.connects);
	(void)poller_run(&control, now_ns);
	CHECK(!ctx.connects && !attempt);
}

TEST(an_unusable_handle_is_an_error)
{
	struct handle handle = { .tuner = 8 };
	struct comm *out;

	prepare(0); /* no candidate: candidates_find() logs it */
	CHECK_EQ(fail_with(&refused), -EPROTONOSUPPORT);
	CHECK_EQ(attempts, 0);
	CHECK_STR(env_warn, "");
	prepare(1);
	handle_encode(handle_bytes, &handle);
	CHECK_EQ(step(&out), -EPROTONOSUPPORT);
	CHECK(strstr(env_warn, "tuner") != NULL);
	handle_bytes[0] ^= 1;
	CHECK(step(&out) < 0);
	CHECK(!ctx.connects);
}
