/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-tcp: sends verified bytes over the HARP stack or kernel TCP, in any combination of
 * the two. message.c and sink.c send and receive messages.
 *
 * The client first sends a request with the test and the number of bytes. `send`: the client sends
 * a pattern, and the server answers with the number of verified bytes. `recv`: the server sends it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "command.h"
#include "pattern.h"

#define REQUEST_MAGIC 0x48545033u /* "HTP3" */
#define CHUNK_BYTES 65536u

enum test { TEST_SEND = COMMAND_SEND, TEST_RECV = COMMAND_RECV };
struct request { /* in host byte order: both ends are the same build */
	uint32_t magic, test;
	uint64_t bytes, seed;
};

static uint64_t deadline_ns; /* deadline of the current wait */
static const struct options *settings;

static void wait_begin(void)
{
	deadline_ns = stream_clock_ns() + settings->timeout_ns;
}

static bool wait_turn(struct stream_host *host)
{
	host->ops->turn(host);
	return stream_clock_ns() < deadline_ns;
}

/* ---- sending and receiving ------------------------------------------------------------------ */

static int send_all(struct stream *s, const void *data, size_t len)
{
	const uint8_t *at = data;

	wait_begin();
	while (len) {
		ssize_t rc = s->host->ops->send(s, at, len);

		if (rc == -EAGAIN && !wait_turn(s->host))
			return -ETIMEDOUT;
		if (rc == -EAGAIN)
			continue;
		if (rc < 0)
			return (int)rc;
		at += rc;
		len -= (size_t)rc;
		wait_begin();
	}
	return 0;
}

/* Receives up to len bytes; returns 0 at the end of the stream. */
static ssize_t recv_some(struct stream *s, void *data, size_t len)
{
	ssize_t rc;

	wait_begin();
	while ((rc = s->host->ops->recv(s, data, len)) == -EAGAIN)
		if (!wait_turn(s->host))
			return -ETIMEDOUT;
	return rc;
}

static int recv_all(struct stream *s, void *data, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t rc = recv_some(s, (uint8_t *)data + at, len - at);

		if (rc <= 0)
			return rc ? (int)rc : -ECONNRESET;
		at += (size_t)rc;
	}
	return 0;
}

static int pattern_send(struct stream *s, const struct request *request)
{
	static uint8_t chunk[CHUNK_BYTES];
	int rc = 0;

	for (uint64_t at = 0; at < request->bytes && !rc;) {
		size_t len = request->bytes - at < CHUNK_BYTES ? (size_t)(request->bytes - at)
							       : CHUNK_BYTES;

		pattern_fill(request->seed, at, chunk, len);
		rc = send_all(s, chunk, len);
		at += len;
	}
	return rc;
}

/* Receives what pattern_send() sends; -EBADMSG at the first byte that differs. */
static int pattern_recv(struct stream *s, const struct request *request)
{
	static uint8_t chunk[CHUNK_BYTES], expected[CHUNK_BYTES];

	for (uint64_t at = 0; at < request->bytes;) {
		uint64_t left = request->bytes - at;
		ssize_t rc = recv_some(s, chunk, left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES);

		if (rc <= 0)
			return rc ? (int)rc : -ECONNRESET;
		pattern_fill(request->seed, at, expected, (size_t)rc);
		if (memcmp(chunk, expected, (size_t)rc))
			return -EBADMSG;
		at += (uint64_t)rc;
	}
	return 0;
}

/* ---- the server ----------------------------------------------------------------------------- */

static int serve_one(struct stream *s)
{
	struct request request;
	char rest;
	int rc = recv_all(s, &request, sizeof(request));

	if (rc)
		return rc;
	if (request.magic != REQUEST_MAGIC || request.test > TEST_RECV)
		return -EPROTO;
	if (request.test == TEST_RECV) {
		rc = pattern_send(s, &request);
	} else {
		rc = pattern_recv(s, &request);
		if (!rc)
			rc = send_all(s, &request.bytes, sizeof(request.bytes));
	}
	if (rc)
		return rc;
	/* The client closes first, after it has received everything. */
	rc = (int)recv_some(s, &rest, 1);
	return rc > 0 ? -EPROTO : rc;
}

static int serve(struct stream_host *host, const struct options *o)
{
	int rc = host->ops->listen(host);
	struct stream *s;

	if (rc) {
		fprintf(stderr, "harp-tcp: listening on port %u: %s\n", o->stream.local.port,
			strerror(-rc));
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (uint32_t i = 0; i < o->count && !rc; i++) {
		while ((rc = host->ops->accept(host, &s)) == -EAGAIN)
			host->ops->turn(host);
		if (rc) {
			fprintf(stderr, "harp-tcp: accepting: %s\n", strerror(-rc));
			break;
		}
		rc = serve_one(s);
		if (rc)
			fprintf(stderr, "harp-tcp: connection %u: %s\n", i, strerror(-rc));
		if (o->json) {
			host->ops->describe(host, s, stdout);
			printf("\n");
			fflush(stdout);
		}
		host->ops->hangup(s);
	}
	return rc ? 1 : 0;
}

/* ---- the client ----------------------------------------------------------------------------- */

static int client_connect(struct stream_host *host, struct stream **s)
{
	int rc;

	wait_begin();
	rc = host->ops->connect(host, s);
	if (rc) {
		*s = NULL;
		return rc;
	}
	while ((rc = host->ops->connected(*s)) == -EAGAIN)
		if (!wait_turn(host))
			return -ETIMEDOUT;
	return rc;
}

static int client_test(struct stream *s, const struct options *o, const struct request *request)
{
	uint64_t answer;
	int rc = send_all(s, request, sizeof(*request));

	if (rc)
		return rc;
	if (request->test == TEST_RECV) {
		rc = o->half_close ? s->host->ops->shutdown(s) : 0;
		return rc ? rc : pattern_recv(s, request);
	}
	rc = pattern_send(s, request);
	if (!rc)
		rc = recv_all(s, &answer, sizeof(answer));
	return !rc && answer != request->bytes ? -EBADMSG : rc;
}

static void client_report(struct stream *s, const struct options *o, const struct request *request,
			  uint64_t elapsed_ns)
{
	const char *test = request->test == TEST_SEND ? "send" : "recv";
	double seconds = (double)elapsed_ns / 1e9;

	if (!o->json) {
		printf("%s: %" PRIu64 " bytes verified in %.3f s, %.2f Gbit/s\n", test,
		       request->bytes, seconds, (double)request->bytes * 8e-9 / seconds);
		return;
	}
	printf("{\"tool\": \"harp-tcp\", \"test\": \"%s\", \"bytes\": %" PRIu64
	       ", \"seconds\": %.6f, \"conn\": ",
	       test, request->bytes, seconds);
	s->host->ops->describe(s->host, s, stdout);
	printf("}\n");
	fflush(stdout);
}

/* One connection, from connect to close. */
static int client_once(struct stream_host *host, const struct options *o,
		       const struct request *request)
{
	char remote[HARP_ENDPOINT_TEXT_MAX];
	uint64_t start_ns = stream_clock_ns();
	struct stream *s;
	int rc = client_connect(host, &s);

	if (!rc)
		rc = client_test(s, o, request);
	if (rc)
		fprintf(stderr, "harp-tcp: %s: %s\n",
			harp_endpoint_format(&o->stream.remote, remote), strerror(-rc));
	else
		client_report(s, o, request, stream_clock_ns() - start_ns);
	if (s)
		host->ops->hangup(s);
	return rc;
}

static int client(struct stream_host *host, const struct options *o)
{
	const struct request request = {
		.magic = REQUEST_MAGIC,
		.test = o->command,
		.bytes = o->bytes,
		.seed = 0x48415250,
	};
	int rc = 0;

	for (uint32_t i = 0; i < o->repeat && !rc; i++)
		rc = client_once(host, o, &request);
	return rc ? 1 : 0;
}

static int run(struct stream_host *host, const struct options *o)
{
	switch (o->command) {
	case COMMAND_SERVE:
		return serve(host, o);
	case COMMAND_SINK:
		return message_sink(host, o);
	case COMMAND_MESSAGE:
		return message_send(host, o);
	default:
		return client(host, o);
	}
}

int main(int argc, char **argv)
{
	struct stream_host *host;
	struct options o;
	char why[256] = "";
	int rc;

	command_parse(argc, argv, &o);
	settings = &o;
	host = o.stream.kernel ? stream_kernel() : stream_harp();
	if (!host) {
		fprintf(stderr, "harp-tcp: out of memory\n");
		return 1;
	}
	host->opt = o.stream;
	rc = host->ops->open(host, why, sizeof(why));
	if (rc) {
		fprintf(stderr, "harp-tcp: %s\n", why);
		free(host);
		return 1;
	}
	rc = run(host, &o);
	host->ops->close(host);
	return rc;
}
