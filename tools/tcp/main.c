/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - harp-tcp: moves verified bytes and measures round trips over the HARP stack or the kernel's
 * TCP, in any combination of both ends.
 *
 * A client's connection begins with a request: what to do, how much. `send`: the client sends the
 * pattern, the server answers with count and digest. `recv`: the other way about. `echo`: the server
 * returns messages of `size` bytes as they come.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/endpoint.h"
#include "common/options.h"
#include "common/samples.h"
#include "pattern.h"
#include "stream.h"

#define TOOL "harp-tcp"
#define REQUEST_MAGIC 0x48545032u /* "HTP2" */
#define CHUNK_BYTES 65536u
#define ECHO_MAX 65536u

enum test { TEST_SEND, TEST_RECV, TEST_ECHO };
struct request { /* both ends are one build */
	uint32_t magic, test;
	uint64_t bytes, seed; /* echo: bytes is the number of round trips */
	uint32_t size, reserved;
};
struct answer {
	uint64_t bytes, digest;
};

struct options {
	struct stream_options stream;
	bool serve, json;
	struct request request;
	uint32_t connections;
	uint64_t timeout_ns;
};

static const char usage[] =
	"usage: harp-tcp serve ADDRESS PORT [options]\n"
	"       harp-tcp send|recv|echo ADDRESS PORT [options]\n"
	"\n"
	"Verified bytes and round trips over the HARP stack, or the kernel's TCP with --kernel.\n"
	"ADDRESS: 10.0.0.1, fd00::1, fe80::1%eth0; of serve also 0.0.0.0 and ::.\n"
	"\n"
	"  --ifname NAME      the interface of the HARP stack (needed without --kernel)\n"
	"  --kernel           kernel sockets\n"
	"  --bytes N          bytes to move (16777216)\n"
	"  --count N          echo: round trips (10000); serve: connections before it ends (1)\n"
	"  --size N           echo: message size (8)\n"
	"  --timeout S        give up after so long without progress (20)\n"
	"  --spin             never sleep\n"
	"  --frames           send with the stack's own frames\n"
	"  --queue N  --xdp auto|generic|native  --copy auto|copy|zero-copy  --lib-dir DIR\n"
	"  -o text|json       output (text)\n"
	"`serve` prints \"ready\" when it may be called.\n";

static uint64_t deadline_ns; /* of the present wait */
static const struct options *settings;

static void wait_begin(void)
{
	deadline_ns = stream_clock_ns() + settings->timeout_ns;
}

static bool wait_turn(struct stream *s)
{
	s->ops->turn(s);
	return stream_clock_ns() < deadline_ns;
}

/* ---- moving bytes --------------------------------------------------------------------------- */

static int send_all(struct stream *s, const void *data, size_t len)
{
	const uint8_t *at = data;

	wait_begin();
	while (len) {
		ssize_t rc = s->ops->send(s, at, len);

		if (rc == -EAGAIN && !wait_turn(s))
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
	while ((rc = s->ops->recv(s, data, len)) == -EAGAIN)
		if (!wait_turn(s))
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

static int pattern_send(struct stream *s, const struct request *request, uint64_t *digest)
{
	static uint8_t chunk[CHUNK_BYTES];
	int rc = 0;

	*digest = DIGEST_START;
	for (uint64_t at = 0; at < request->bytes && !rc;) {
		size_t len = request->bytes - at < CHUNK_BYTES ? (size_t)(request->bytes - at)
							       : CHUNK_BYTES;

		pattern_fill(request->seed, at, chunk, len);
		*digest = digest_add(*digest, chunk, len);
		rc = send_all(s, chunk, len);
		at += len;
	}
	return rc;
}

/* Receives what pattern_send() sends; -EBADMSG at the first byte that differs. */
static int pattern_recv(struct stream *s, const struct request *request, struct answer *answer)
{
	static uint8_t chunk[CHUNK_BYTES], wanted[CHUNK_BYTES];

	*answer = (struct answer){ .digest = DIGEST_START };
	while (answer->bytes < request->bytes) {
		uint64_t left = request->bytes - answer->bytes;
		ssize_t rc = recv_some(s, chunk, left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES);

		if (rc <= 0)
			return rc ? (int)rc : -ECONNRESET;
		pattern_fill(request->seed, answer->bytes, wanted, (size_t)rc);
		if (memcmp(chunk, wanted, (size_t)rc))
			return -EBADMSG;
		answer->digest = digest_add(answer->digest, chunk, (size_t)rc);
		answer->bytes += (uint64_t)rc;
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
	struct answer answer;
	uint64_t digest;
	char rest;
	int rc = recv_all(s, &request, sizeof(request));

	if (rc)
		return rc;
	if (request.magic != REQUEST_MAGIC || request.test > TEST_ECHO || request.size > ECHO_MAX)
		return -EPROTO;
	switch ((enum test)request.test) {
	case TEST_SEND:
		rc = pattern_recv(s, &request, &answer);
		if (!rc)
			rc = send_all(s, &answer, sizeof(answer));
		break;
	case TEST_RECV:
		rc = pattern_send(s, &request, &digest);
		break;
	case TEST_ECHO:
		rc = serve_echo(s, &request);
		break;
	}
	if (rc)
		return rc;
	/* The client closes first; its end of stream says that it has everything. */
	rc = (int)recv_some(s, &rest, 1);
	return rc > 0 ? -EPROTO : rc;
}

static int serve(struct stream *s, const struct options *o)
{
	int rc = s->ops->listen(s);

	if (rc) {
		fprintf(stderr, "harp-tcp: listening on port %u: %s\n", o->stream.local.port,
			strerror(-rc));
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (uint32_t i = 0; i < o->connections && !rc; i++) {
		while ((rc = s->ops->accept(s)) == -EAGAIN)
			s->ops->turn(s);
		if (!rc)
			rc = serve_one(s);
		if (rc)
			fprintf(stderr, "harp-tcp: connection %u: %s\n", i, strerror(-rc));
		if (o->json) {
			s->ops->describe(s, stdout);
			printf("\n");
			fflush(stdout);
		}
		s->ops->hangup(s);
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

static int client_test(struct stream *s, const struct options *o, struct answer *answer,
		       struct samples *rtt)
{
	const struct request *request = &o->request;
	uint64_t digest;
	int rc;

	wait_begin();
	rc = s->ops->connect(s);
	while (!rc && (rc = s->ops->connected(s)) == -EAGAIN)
		rc = wait_turn(s) ? 0 : -ETIMEDOUT;
	if (rc)
		return rc;
	rc = send_all(s, request, sizeof(*request));
	if (rc)
		return rc;
	switch ((enum test)request->test) {
	case TEST_SEND:
		rc = pattern_send(s, request, &digest);
		if (!rc)
			rc = recv_all(s, answer, sizeof(*answer));
		if (!rc && (answer->digest != digest || answer->bytes != request->bytes))
			rc = -EBADMSG;
		break;
	case TEST_RECV:
		rc = pattern_recv(s, request, answer);
		break;
	case TEST_ECHO:
		rc = client_echo(s, request, rtt);
		break;
	}
	return rc;
}

static void client_report(struct stream *s, const struct options *o, const struct answer *answer,
			  struct samples *rtt, uint64_t elapsed_ns)
{
	static const char *const names[] = { "send", "recv", "echo" };
	double seconds = (double)elapsed_ns / 1e9;

	if (!o->json && o->request.test == TEST_ECHO) {
		printf("%zu round trips of %u bytes: p50 %.2f us, p99 %.2f us\n", rtt->count,
		       o->request.size, samples_percentile(rtt, 500) / 1e3,
		       samples_percentile(rtt, 990) / 1e3);
	} else if (!o->json) {
		printf("%s: %" PRIu64 " bytes verified in %.3f s, %.2f Gbit/s, digest %016" PRIx64
		       "\n",
		       names[o->request.test], answer->bytes, seconds,
		       (double)answer->bytes * 8e-9 / seconds, answer->digest);
	} else {
		printf("{\"tool\": \"harp-tcp\", \"test\": \"%s\", \"bytes\": %" PRIu64
		       ", \"digest\": \"%016" PRIx64
		       "\", \"seconds\": %.6f, \"size\": %u, \"rtt_ns\": ",
		       names[o->request.test], answer->bytes, answer->digest, seconds,
		       o->request.size);
		samples_json(rtt, stdout);
		printf(", \"conn\": ");
		s->ops->describe(s, stdout);
		printf("}\n");
	}
}

static int client(struct stream *s, const struct options *o)
{
	struct answer answer = { 0 };
	struct samples rtt = { 0 };
	char remote[HARP_ENDPOINT_TEXT_MAX];
	uint64_t start_ns = stream_clock_ns();
	int rc = 0;

	if (o->request.test == TEST_ECHO)
		rc = samples_init(&rtt, o->request.bytes);
	if (!rc)
		rc = client_test(s, o, &answer, &rtt);
	if (rc)
		fprintf(stderr, "harp-tcp: %s: %s\n",
			harp_endpoint_format(&o->stream.remote, remote), strerror(-rc));
	else
		client_report(s, o, &answer, &rtt, stream_clock_ns() - start_ns);
	samples_destroy(&rtt);
	s->ops->hangup(s);
	return rc ? 1 : 0;
}

/* ---- options -------------------------------------------------------------------------------- */

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "ifname", 1, 0, 'i' }, { "kernel", 0, 0, 'k' }, { "bytes", 1, 0, 'b' },
		{ "count", 1, 0, 'n' },  { "size", 1, 0, 'z' },   { "timeout", 1, 0, 't' },
		{ "spin", 0, 0, 's' },   { "frames", 0, 0, 'f' }, { "queue", 1, 0, 'q' },
		{ "xdp", 1, 0, 'x' },    { "copy", 1, 0, 'c' },   { "lib-dir", 1, 0, 'l' },
		{ "help", 0, 0, 'h' },   { 0, 0, 0, 0 },
	};
	static const char *const commands[] = { "send", "recv", "echo", "serve", NULL };
	uint64_t count = 0, bytes = 16u << 20;
	struct harp_endpoint *end;
	int c;

	*o = (struct options){ .timeout_ns = 20000000000u };
	o->request = (struct request){ .magic = REQUEST_MAGIC, .seed = 0x48415250, .size = 8 };
	while ((c = getopt_long(argc, argv, "o:h", longs, NULL)) != -1) {
		switch (c) {
		case 'i':
			o->stream.ifname = optarg;
			break;
		case 'k':
			o->stream.kernel = true;
			break;
		case 'b':
			bytes = option_number(TOOL, "--bytes", optarg, 0, 1ull << 50);
			break;
		case 'n':
			count = option_number(TOOL, "--count", optarg, 1, 1u << 24);
			break;
		case 'z':
			o->request.size =
				(uint32_t)option_number(TOOL, "--size", optarg, 1, ECHO_MAX);
			break;
		case 't':
			o->timeout_ns =
				option_number(TOOL, "--timeout", optarg, 1, 3600) * 1000000000u;
			break;
		case 's':
			o->stream.spin = true;
			break;
		case 'f':
			o->stream.frames = true;
			break;
		case 'q':
			o->stream.queue = (uint32_t)option_number(TOOL, "--queue", optarg, 0, 255);
			break;
		case 'x':
			o->stream.xdp_mode = option_choice(TOOL, "--xdp", optarg, option_xdp_modes);
			break;
		case 'c':
			o->stream.copy_mode =
				option_choice(TOOL, "--copy", optarg, option_copy_modes);
			break;
		case 'l':
			o->stream.lib_dir = optarg;
			break;
		case 'o':
			o->json = option_choice(TOOL, "-o", optarg, option_outputs);
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (argc - optind != 3 || (!o->stream.kernel && !o->stream.ifname)) {
		fputs(usage, stderr);
		exit(2);
	}
	o->request.test = option_choice(TOOL, "command", argv[optind], commands);
	o->serve = o->request.test == 3;
	o->connections = count ? (uint32_t)count : 1;
	o->request.bytes = o->request.test == TEST_ECHO ? (count ? count : 10000) : bytes;
	end = o->serve ? &o->stream.local : &o->stream.remote;
	if (endpoint_parse(argv[optind + 1], end)) {
		fprintf(stderr, "harp-tcp: %s is not an IP address\n", argv[optind + 1]);
		exit(2);
	}
	end->port = (uint16_t)option_number(TOOL, "PORT", argv[optind + 2], 1, 65535);
}

int main(int argc, char **argv)
{
	struct options o;
	struct stream *s;
	char why[256] = "";
	int rc;

	parse(argc, argv, &o);
	settings = &o;
	s = o.stream.kernel ? stream_kernel() : stream_harp();
	if (!s) {
		fprintf(stderr, "harp-tcp: out of memory\n");
		return 1;
	}
	rc = s->ops->open(s, &o.stream, why, sizeof(why));
	if (rc) {
		fprintf(stderr, "harp-tcp: %s\n", why);
		free(s);
		return 1;
	}
	rc = o.serve ? serve(s, &o) : client(s, &o);
	s->ops->close(s);
	return rc;
}
