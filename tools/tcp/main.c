/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-tcp: moves verified bytes and measures round trips over the HARP stack or the kernel's
 * TCP, in any combination of both ends. message.c and sink.c are its other half.
 *
 * A client's connection begins with a request: what to do, how much. `send`: the client sends the
 * pattern, the server answers with the number of bytes that were right. `recv`: the reverse. `echo`: the server
 * returns messages of `size` bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/samples.h"
#include "message.h"
#include "command.h"
#include "pattern.h"

#define REQUEST_MAGIC 0x48545032u /* "HTP2" */
#define CHUNK_BYTES 65536u

enum test { TEST_SEND = COMMAND_SEND, TEST_RECV = COMMAND_RECV, TEST_ECHO = COMMAND_ECHO };
struct request { /* both ends are one build */
	uint32_t magic, test;
	uint64_t bytes, seed; /* echo: bytes is the number of round trips */
	uint32_t size, reserved;
};

static uint64_t deadline_ns; /* of the current wait */
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

/* ---- moving bytes --------------------------------------------------------------------------- */

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

/* Up to len bytes; 0 at the end of the stream. */
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
	for (size_t got = 0; got < len;) {
		ssize_t rc = recv_some(s, (uint8_t *)data + got, len - got);

		if (rc <= 0)
			return rc ? (int)rc : -ECONNRESET;
		got += (size_t)rc;
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
	static uint8_t chunk[CHUNK_BYTES], wanted[CHUNK_BYTES];

	for (uint64_t at = 0; at < request->bytes;) {
		uint64_t left = request->bytes - at;
		ssize_t rc = recv_some(s, chunk, left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES);

		if (rc <= 0)
			return rc ? (int)rc : -ECONNRESET;
		pattern_fill(request->seed, at, wanted, (size_t)rc);
		if (memcmp(chunk, wanted, (size_t)rc))
			return -EBADMSG;
		at += (uint64_t)rc;
	}
	return 0;
}

/* ---- the server ----------------------------------------------------------------------------- */

static int serve_echo(struct stream *s, const struct request *request)
{
	static uint8_t message[ECHO_MAX];
	int rc = 0;

	for (uint64_t i = 0; i < request->bytes && !rc; i++) {
		rc = recv_all(s, message, request->size);
		if (!rc)
			rc = send_all(s, message, request->size);
	}
	return rc;
}

static int serve_one(struct stream *s)
{
	struct request request;
	char rest;
	int rc = recv_all(s, &request, sizeof(request));

	if (rc)
		return rc;
	if (request.magic != REQUEST_MAGIC || request.test > TEST_ECHO || request.size > ECHO_MAX)
		return -EPROTO;
	switch ((enum test)request.test) {
	case TEST_SEND:
		rc = pattern_recv(s, &request);
		if (!rc)
			rc = send_all(s, &request.bytes, sizeof(request.bytes));
		break;
	case TEST_RECV:
		rc = pattern_send(s, &request);
		break;
	case TEST_ECHO:
		rc = serve_echo(s, &request);
		break;
	}
	if (rc)
		return rc;
	/* The client closes first, when it has everything. */
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

static int client_echo(struct stream *s, const struct request *request, struct samples *rtt)
{
	static uint8_t out[ECHO_MAX], in[ECHO_MAX];
	int rc = 0;

	for (uint64_t i = 0; i < request->bytes && !rc; i++) {
		uint64_t start_ns = stream_clock_ns();

		pattern_fill(request->seed, i * request->size, out, request->size);
		rc = send_all(s, out, request->size);
		if (!rc)
			rc = recv_all(s, in, request->size);
		if (!rc && memcmp(in, out, request->size))
			rc = -EBADMSG;
		samples_add(rtt, stream_clock_ns() - start_ns);
	}
	return rc;
}

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

static int client_test(struct stream *s, const struct options *o, const struct request *request,
		       struct samples *rtt)
{
	uint64_t answer;
	int rc = send_all(s, request, sizeof(*request));

	if (rc)
		return rc;
	switch ((enum test)request->test) {
	case TEST_SEND:
		rc = pattern_send(s, request);
		if (!rc)
			rc = recv_all(s, &answer, sizeof(answer));
		if (!rc && answer != request->bytes)
			rc = -EBADMSG;
		break;
	case TEST_RECV:
		rc = o->half_close ? s->host->ops->shutdown(s) : 0;
		if (!rc)
			rc = pattern_recv(s, request);
		break;
	case TEST_ECHO:
		rc = client_echo(s, request, rtt);
		break;
	}
	return rc;
}

static void client_report(struct stream *s, const struct options *o, const struct request *request,
			  struct samples *rtt, uint64_t elapsed_ns)
{
	static const char *const names[] = { "send", "recv", "echo" };
	double seconds = (double)elapsed_ns / 1e9;

	if (!o->json && request->test == TEST_ECHO) {
		printf("%zu round trips of %u bytes: p50 %.2f us, p99 %.2f us\n", rtt->count,
		       request->size, samples_percentile(rtt, 500) / 1e3,
		       samples_percentile(rtt, 990) / 1e3);
	} else if (!o->json) {
		printf("%s: %" PRIu64 " bytes verified in %.3f s, %.2f Gbit/s\n",
		       names[request->test], request->bytes, seconds,
		       (double)request->bytes * 8e-9 / seconds);
	} else {
		printf("{\"tool\": \"harp-tcp\", \"test\": \"%s\", \"bytes\": %" PRIu64
		       ", \"seconds\": %.6f, \"size\": %u, \"rtt_ns\": ",
		       names[request->test], request->test == TEST_ECHO ? 0 : request->bytes,
		       seconds, request->size);
		samples_json(rtt, stdout);
		printf(", \"conn\": ");
		s->host->ops->describe(s->host, s, stdout);
		printf("}\n");
		fflush(stdout);
	}
}

/* One connection, from connect to close. */
static int client_once(struct stream_host *host, const struct options *o,
		       const struct request *request, struct samples *rtt)
{
	char remote[HARP_ENDPOINT_TEXT_MAX];
	uint64_t start_ns = stream_clock_ns();
	struct stream *s;
	int rc = client_connect(host, &s);

	if (!rc)
		rc = client_test(s, o, request, rtt);
	if (rc)
		fprintf(stderr, "harp-tcp: %s: %s\n",
			harp_endpoint_format(&o->stream.remote, remote), strerror(-rc));
	else
		client_report(s, o, request, rtt, stream_clock_ns() - start_ns);
	if (s)
		host->ops->hangup(s);
	return rc;
}

static int client(struct stream_host *host, const struct options *o)
{
	const struct request request = {
		.magic = REQUEST_MAGIC,
		.test = o->command,
		.bytes = o->command == COMMAND_ECHO ? o->count : o->bytes,
		.seed = 0x48415250,
		.size = o->size,
	};
	struct samples rtt = { 0 };
	int rc = o->command == COMMAND_ECHO ? samples_init(&rtt, (size_t)o->count * o->repeat) : 0;

	for (uint32_t i = 0; i < o->repeat && !rc; i++)
		rc = client_once(host, o, &request, &rtt);
	samples_destroy(&rtt);
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
