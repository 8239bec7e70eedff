/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.c - sends messages on many connections, and measures the latency of each.
 *
 * A message's latency starts when it may be sent (fewer than depth messages are in flight, and the
 * previous one was sent) and ends when its receipt arrives. All messages that start in the measured
 * part count, even if they end later. Goodput counts the receipts that arrive in the measured part.
 * With --count, all messages are measured.
 */
#include "message.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/samples.h"
#include "pattern.h"

#define SAMPLES_MAX (1u << 21)

struct flow {
	struct stream *s;
	uint8_t *messages;        /* one per message in flight with --external, else one */
	uint8_t *message;         /* the current message */
	bool has_message;         /* a message is being sent */
	bool registered;          /* `messages` is registered memory */
	uint32_t sent_bytes;      /* bytes of the current message */
	uint64_t begun, answered; /* number of messages */
	uint64_t starts_ns[MESSAGE_DEPTH_MAX];
	uint64_t receipt;
	uint32_t receipt_bytes;
	uint64_t counted_bytes; /* bytes whose receipts arrived in the measured part */
};

struct sending {
	const struct options *o;
	struct flow *flows;
	struct samples times;
	uint64_t begin_ns, end_ns; /* the measured part */
	uint64_t progress_ns;      /* time of the last progress */
};

/* With --external, a slot is reused after its receipt arrived. */
static uint32_t message_slots(const struct options *o)
{
	return o->stream.external ? o->depth : 1;
}

static size_t messages_bytes(const struct options *o)
{
	return (size_t)message_slots(o) * o->size;
}

static void message_prepare(const struct options *o, struct flow *flow)
{
	const uint32_t size = o->size;
	const struct message_head head = { MESSAGE_MAGIC, size, flow->begun };

	flow->message = flow->messages + flow->begun % message_slots(o) * size;
	memcpy(flow->message, &head, sizeof(head));
	memcpy(flow->message + size - sizeof(flow->begun), &flow->begun, sizeof(flow->begun));
}

/* Whether the flow has begun all its messages. */
static bool flow_is_complete(const struct sending *all, const struct flow *flow, uint64_t now_ns)
{
	return all->o->count ? flow->begun == all->o->count : now_ns >= all->end_ns;
}

/* Continues the current message or begins the next one. False if there is nothing to send. */
static bool flow_prepare(const struct sending *all, struct flow *flow, uint64_t now_ns)
{
	if (flow->has_message)
		return true;
	if (flow_is_complete(all, flow, now_ns) || flow->begun - flow->answered >= all->o->depth)
		return false;
	message_prepare(all->o, flow);
	flow->starts_ns[flow->begun % MESSAGE_DEPTH_MAX] = stream_clock_ns();
	flow->begun++;
	flow->sent_bytes = 0;
	flow->has_message = true;
	return true;
}

/* Sends until the connection accepts no more. */
static int flow_send(struct sending *all, struct flow *flow, uint64_t now_ns)
{
	const struct stream_ops *ops = flow->s->host->ops;
	const uint32_t size = all->o->size;

	while (flow_prepare(all, flow, now_ns)) {
		const uint8_t *from = flow->message + flow->sent_bytes;
		size_t left = size - flow->sent_bytes;
		ssize_t rc = all->o->stream.external ? ops->send_in_place(flow->s, from, left)
						     : ops->send(flow->s, from, left);

		if (rc == -EAGAIN)
			return 0;
		if (rc < 0)
			return (int)rc;
		all->progress_ns = now_ns;
		flow->sent_bytes += (uint32_t)rc;
		flow->has_message = flow->sent_bytes < size;
	}
	return 0;
}

static int flow_take_receipt(struct sending *all, struct flow *flow)
{
	uint64_t now_ns = stream_clock_ns();
	uint64_t start_ns = flow->starts_ns[flow->answered % MESSAGE_DEPTH_MAX];

	if (flow->receipt != flow->answered)
		return -EBADMSG;
	flow->answered++;
	flow->receipt_bytes = 0;
	all->progress_ns = now_ns;
	if (now_ns >= all->begin_ns && now_ns < all->end_ns)
		flow->counted_bytes += all->o->size;
	if (start_ns >= all->begin_ns)
		samples_add(&all->times, now_ns - start_ns);
	return 0;
}

static int flow_recv(struct sending *all, struct flow *flow)
{
	for (;;) {
		uint8_t *to = (uint8_t *)&flow->receipt + flow->receipt_bytes;
		ssize_t rc = flow->s->host->ops->recv(flow->s, to,
						      sizeof(flow->receipt) - flow->receipt_bytes);

		if (rc == -EAGAIN)
			return 0;
		if (rc <= 0)
			return rc ? (int)rc : -ECONNRESET;
		flow->receipt_bytes += (uint32_t)rc;
		if (flow->receipt_bytes == sizeof(flow->receipt)) {
			int error = flow_take_receipt(all, flow);

			if (error)
				return error;
		}
	}
}

static int sending_connect(struct sending *all, struct stream_host *host)
{
	uint64_t deadline_ns = stream_clock_ns() + all->o->timeout_ns;
	int rc = 0;

	for (uint32_t i = 0; i < all->o->flows && !rc; i++)
		rc = host->ops->connect(host, &all->flows[i].s);
	for (uint32_t i = 0; i < all->o->flows && !rc;) {
		rc = host->ops->connected(all->flows[i].s);
		if (!rc) {
			i++;
		} else if (rc == -EAGAIN) {
			host->ops->turn(host);
			rc = stream_clock_ns() < deadline_ns ? 0 : -ETIMEDOUT;
		}
	}
	return rc;
}

/* With --count, the last receipt ends the measured part. */
static void sending_check_end(struct sending *all, uint64_t now_ns)
{
	bool is_complete = all->o->count > 0;

	for (uint32_t i = 0; i < all->o->flows && is_complete; i++)
		is_complete = all->flows[i].answered == all->o->count;
	if (is_complete)
		all->end_ns = now_ns;
}

static int sending_run(struct sending *all, struct stream_host *host)
{
	bool busy = true;

	all->progress_ns = stream_clock_ns();
	all->begin_ns = all->progress_ns + (all->o->count ? 0 : all->o->skip_ns);
	all->end_ns = all->o->count ? UINT64_MAX : all->progress_ns + all->o->run_ns;
	while (busy) {
		uint64_t now_ns = stream_clock_ns();

		sending_check_end(all, now_ns);
		busy = now_ns < all->end_ns;
		for (uint32_t i = 0; i < all->o->flows; i++) {
			int rc = flow_recv(all, &all->flows[i]);

			if (!rc)
				rc = flow_send(all, &all->flows[i], now_ns);
			if (rc)
				return rc;
			busy |= all->flows[i].answered < all->flows[i].begun;
		}
		if (now_ns > all->progress_ns + all->o->timeout_ns)
			return -ETIMEDOUT;
		host->ops->turn(host);
	}
	return 0;
}

static void sending_report(struct sending *all, struct stream_host *host)
{
	const struct options *o = all->o;
	double seconds = (double)(all->end_ns - all->begin_ns) / 1e9;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < o->flows; i++)
		bytes += all->flows[i].counted_bytes;
	printf("{\"tool\": \"harp-tcp\", \"test\": \"message\", \"size\": %u, \"depth\": %u, "
	       "\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"messages\": %zu, \"message_ns\": ",
	       o->size, o->depth, seconds, bytes, all->times.count);
	samples_json(&all->times, stdout);
	printf(", \"flows\": [");
	for (uint32_t i = 0; i < o->flows; i++) {
		struct flow *flow = &all->flows[i];

		printf("%s{\"bytes\": %" PRIu64 ", \"conn\": ", i ? ", " : "", flow->counted_bytes);
		host->ops->describe(NULL, flow->s, stdout);
		printf("}");
	}
	printf("], \"host\": ");
	host->ops->describe(host, NULL, stdout);
	printf("}\n");
}

static int flow_init(const struct options *o, struct flow *flow)
{
	void *messages;

	if (posix_memalign(&messages, 4096, messages_bytes(o)))
		return -ENOMEM;
	flow->messages = messages;
	for (uint32_t i = 0; i < message_slots(o); i++)
		pattern_repeat(MESSAGE_SEED, MESSAGE_PERIOD_BYTES,
			       flow->messages + (size_t)i * o->size, o->size);
	return 0;
}

static int sending_init(struct sending *all)
{
	int rc = samples_init(&all->times, SAMPLES_MAX);

	all->flows = calloc(all->o->flows, sizeof(*all->flows));
	if (!all->flows)
		return -ENOMEM;
	for (uint32_t i = 0; i < all->o->flows && !rc; i++)
		rc = flow_init(all->o, &all->flows[i]);
	return rc;
}

/* Registers the messages as external memory. */
static int sending_register(struct sending *all, struct stream_host *host)
{
	int rc = 0;

	for (uint32_t i = 0; i < all->o->flows && all->o->stream.external && !rc; i++) {
		rc = host->ops->memory_add(host, all->flows[i].messages, messages_bytes(all->o));
		all->flows[i].registered = !rc;
	}
	if (rc)
		fprintf(stderr, "harp-tcp: --external: registering memory: %s\n", strerror(-rc));
	return rc;
}

static void sending_destroy(struct sending *all, struct stream_host *host)
{
	for (uint32_t i = 0; all->flows && i < all->o->flows; i++) {
		if (all->flows[i].s)
			host->ops->hangup(all->flows[i].s);
		if (all->flows[i].registered)
			host->ops->memory_remove(host, all->flows[i].messages,
						 messages_bytes(all->o));
		free(all->flows[i].messages);
	}
	free(all->flows);
	samples_destroy(&all->times);
}

int message_send(struct stream_host *host, const struct options *o)
{
	struct sending all = { .o = o };
	char remote[HARP_ENDPOINT_TEXT_MAX];
	int rc = o->size < MESSAGE_SIZE_MIN ? -EMSGSIZE : sending_init(&all);

	if (!rc)
		rc = sending_register(&all, host);
	if (!rc)
		rc = sending_connect(&all, host);
	if (!rc)
		rc = sending_run(&all, host);
	if (rc)
		fprintf(stderr, "harp-tcp: %s: %s\n",
			harp_endpoint_format(&o->stream.remote, remote), strerror(-rc));
	else
		sending_report(&all, host);
	sending_destroy(&all, host);
	return rc ? 1 : 0;
}
