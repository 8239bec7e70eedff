/* SPDX-License-Identifier: Apache-2.0 */
/* sink.c - receives messages on many connections and sends receipts. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "pattern.h"

#define CHUNKS_A_TURN 4u /* chunks of a connection before the next connection */
/* Two periods, to compare with at least one period of the pattern from any offset. */
#define BODY_BYTES (2u * MESSAGE_PERIOD_BYTES)

struct source {
	struct stream *s;    /* NULL: closed */
	const uint8_t *body; /* BODY_BYTES of the pattern; NULL: do not verify */
	struct message_head head;
	uint64_t at;     /* received bytes of the current message */
	uint64_t serial; /* of the current message */
	uint64_t tail;
	uint64_t receipt; /* next receipt to send */
	uint32_t receipt_sent_bytes;
	uint64_t bytes;
};

static int sink_check_head(const struct source *source)
{
	const struct message_head *head = &source->head;

	return head->magic == MESSAGE_MAGIC && head->serial == source->serial &&
			       head->size >= MESSAGE_SIZE_MIN && head->size <= MESSAGE_MAX
		       ? 0
		       : -EBADMSG;
}

/* Copies the part of [at, at + len) that is in [begin, begin + size) of the message. */
static void sink_copy(void *to, uint64_t begin, size_t size, uint64_t at, const uint8_t *data,
		      size_t len)
{
	uint64_t from = at > begin ? at : begin;
	uint64_t end = at + len < begin + size ? at + len : begin + size;

	if (from < end)
		memcpy((uint8_t *)to + (from - begin), data + (from - at), end - from);
}

/* Verifies data at offset `at` of the message, except head and tail. */
static bool sink_body_is_good(const struct source *source, uint64_t at, const uint8_t *data,
			      size_t len)
{
	uint64_t tail = source->head.size - sizeof(uint64_t);
	uint64_t end = at + len < tail ? at + len : tail;

	for (size_t n; source->body && at < end; at += n, data += n) {
		size_t from = at % MESSAGE_PERIOD_BYTES;

		n = end - at < BODY_BYTES - from ? end - at : BODY_BYTES - from;
		if (memcmp(data, source->body + from, n) != 0)
			return false;
	}
	return true;
}

static int sink_take(void *ctx, const uint8_t *data, size_t len)
{
	struct source *source = ctx;

	source->bytes += len;
	while (len) {
		uint64_t at = source->at;
		size_t take = len;
		size_t size;

		if (at < sizeof(source->head)) { /* the head has the size of the message */
			if (take > sizeof(source->head) - at)
				take = sizeof(source->head) - at;
			sink_copy(&source->head, 0, sizeof(source->head), at, data, take);
			source->at += take;
			if (source->at == sizeof(source->head) && sink_check_head(source))
				return -EBADMSG;
		} else {
			size = source->head.size;
			if (take > size - at)
				take = size - at;
			if (!sink_body_is_good(source, at, data, take))
				return -EBADMSG;
			sink_copy(&source->tail, size - sizeof(uint64_t), sizeof(uint64_t), at,
				  data, take);
			source->at += take;
			if (source->at == size) {
				if (source->tail != source->serial)
					return -EBADMSG;
				source->serial++;
				source->at = 0;
			}
		}
		data += take;
		len -= take;
	}
	return 0;
}

static int sink_send_receipts(struct source *source)
{
	while (source->receipt < source->serial) {
		const uint8_t *from = (const uint8_t *)&source->receipt;
		ssize_t rc =
			source->s->host->ops->send(source->s, from + source->receipt_sent_bytes,
						   sizeof(source->receipt) -
							   source->receipt_sent_bytes);

		if (rc == -EAGAIN)
			return 0;
		if (rc < 0)
			return (int)rc;
		source->receipt_sent_bytes += (uint32_t)rc;
		if (source->receipt_sent_bytes == sizeof(source->receipt)) {
			source->receipt_sent_bytes = 0;
			source->receipt++;
		}
	}
	return 0;
}

/* Returns 1 while the connection is open, 0 at an orderly end, or -errno. */
static int sink_turn(struct source *source)
{
	for (unsigned i = 0; i < CHUNKS_A_TURN; i++) {
		ssize_t len = source->s->host->ops->recv_in_place(source->s, sink_take, source);
		int rc;

		if (len == 0)
			return source->at ? -ECONNRESET : 0;
		if (len < 0 && len != -EAGAIN)
			return (int)len;
		rc = sink_send_receipts(source);
		if (rc)
			return rc;
		if (len < 0)
			break;
	}
	return 1;
}

static void sink_end(struct stream_host *host, struct source *source, const struct options *o)
{
	if (o->json) {
		printf("{\"bytes\": %" PRIu64 ", \"messages\": %" PRIu64
		       ", \"verified\": %s, \"conn\": ",
		       source->bytes, source->serial, source->body ? "true" : "false");
		host->ops->describe(host, source->s, stdout);
		printf("}\n");
		fflush(stdout);
	}
	host->ops->hangup(source->s);
	source->s = NULL;
}

static int sink_all(struct stream_host *host, const struct options *o, struct source *sources)
{
	uint32_t begun = 0, ended = 0;

	while (ended < o->count) {
		if (begun < o->count) {
			int rc = host->ops->accept(host, &sources[begun].s);

			if (!rc)
				begun++;
			else if (rc != -EAGAIN)
				return rc;
		}
		for (uint32_t i = 0; i < begun; i++) {
			int rc = sources[i].s ? sink_turn(&sources[i]) : 1;

			if (rc < 0)
				return rc;
			if (rc == 0) {
				sink_end(host, &sources[i], o);
				ended++;
			}
		}
		host->ops->turn(host);
	}
	return 0;
}

int message_sink(struct stream_host *host, const struct options *o)
{
	struct source *sources = calloc(o->count, sizeof(*sources));
	uint8_t *body = o->verify ? malloc(BODY_BYTES) : NULL;
	int rc = sources && (body || !o->verify) ? host->ops->listen(host) : -ENOMEM;

	if (body)
		pattern_repeat(MESSAGE_SEED, MESSAGE_PERIOD_BYTES, body, BODY_BYTES);
	for (uint32_t i = 0; sources && i < o->count; i++)
		sources[i].body = body;
	if (rc) {
		fprintf(stderr, "harp-tcp: listening on port %u: %s\n", o->stream.local.port,
			strerror(-rc));
	} else {
		printf("ready\n");
		fflush(stdout);
		rc = sink_all(host, o, sources);
		if (rc)
			fprintf(stderr, "harp-tcp: a connection: %s\n", strerror(-rc));
	}
	free(sources);
	free(body);
	return rc ? 1 : 0;
}
