/* SPDX-License-Identifier: Apache-2.0 */
/* test_preamble_document.c - docs/lanes.md, the argument: its worked examples are what the code says, byte for byte. */
#include <ctype.h>

#include "connect/handshake.h"
#include "preamble_rig.h"
#include "wire/record.h"
#include "wire/crypto.h"
#include "wire/handle.h"

static void print_hex(const char *name, const uint8_t *bytes, size_t len)
{
	printf("%s\n", name);
	for (size_t i = 0; i < len; i++)
		printf("%02x%s", bytes[i],
		       i % 32 == 31 || i == len - 1 ? "\n"
		       : i % 8 == 7                 ? " "
						    : "");
}

/* Does the text, spaces and line ends left out, hold these bytes? */
static void check_in_text(const char *digits, const char *name, const uint8_t *bytes, size_t len)
{
	char *hex = calloc(1, 2 * len + 1);

	for (size_t i = 0; i < len; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	if (!strstr(digits, hex)) {
		fprintf(stderr, "docs/lanes.md does not have the %s of the worked example:\n",
			name);
		print_hex(name, bytes, len);
		check_failures++;
	}
	free(hex);
}

static char *read_digits(const char *path)
{
	FILE *file = fopen(path, "r");
	char *text = calloc(1, 1 << 20);
	size_t n = 0;
	int c;

	while (file && (c = fgetc(file)) != EOF && n < (1 << 20) - 1)
		if (!isspace(c))
			text[n++] = (char)c;
	CHECK(file != NULL);
	if (file)
		fclose(file);
	return text;
}

/* The sealed example: the same preamble with a pre-shared key, and the connector's CLOSE. */
static void check_sealed_in_text(const char *digits)
{
	size_t hello = PREAMBLE_HELLO_BYTES, challenge = PREAMBLE_CHALLENGE_BYTES + 16;
	uint8_t record[RECORD_HEADER_BYTES];
	struct iovec iov = { record, sizeof(record) };
	struct lane *lane;

	run_begin_sealed(&r, 1, psk, psk);
	run(&r);
	CHECK_EQ(r.connected, 1);
	check_in_text(digits, "sealed HELLO", r.connector.transcript, hello);
	check_in_text(digits, "sealed CHALLENGE", r.connector.transcript + hello, challenge);
	check_in_text(digits, "sealed PROOF", r.connector.transcript + hello + challenge, 32);
	check_in_text(digits, "sealed READY", r.connector.transcript + hello + challenge + 32, 32);
	record_encode(record, &(struct record){ .type = RECORD_CLOSE, .message = 4 });
	lane = &r.pair.lanes[0].lane;
	CHECK_EQ(handshake_encrypt(&r.connector, &lane), 0);
	CHECK_EQ(lane->ops->send(lane, &iov, 1), sizeof(record));
	for (int i = 0; i < 200; i++)
		fake_pair_turn(&r.pair);
	check_in_text(digits, "sealed segment", r.pair.pipes[0].bytes + r.pair.pipes[0].begin,
		      sizeof(record) + SEGMENT_EXTRA_BYTES);
	lane->ops->close(lane, true);
}

static void test_document(const char *path, bool have_crypto)
{
	size_t hello = PREAMBLE_HELLO_BYTES, challenge = PREAMBLE_CHALLENGE_BYTES + 16;
	char *digits = read_digits(path);
	uint8_t bytes[PLUGIN_HANDLE_BYTES], record[RECORD_HEADER_BYTES];

	handle_encode(bytes, &handle);
	check_in_text(digits, "handle", bytes, sizeof(bytes));
	run_begin(&r, 1, FEATURE_ACK_PROMPTLY);
	run(&r);
	check_in_text(digits, "HELLO", r.connector.transcript, hello);
	check_in_text(digits, "CHALLENGE", r.connector.transcript + hello, challenge);
	check_in_text(digits, "PROOF", r.connector.transcript + hello + challenge, 32);
	check_in_text(digits, "READY", r.connector.transcript + hello + challenge + 32, 32);
	check_in_text(digits, "CONFIRM", r.connector.transcript + hello + challenge + 64,
		      PREAMBLE_CONFIRM_BYTES);
	preamble_comm_key(&r.connector, comm.key);
	check_in_text(digits, "comm key", comm.key, sizeof(comm.key));
	comm.there = true;
	comm.id = COMM_ID;
	run_further(&r, 0, COMM_ID, 1, comm.key);
	check_in_text(digits, "HELLO of a further lane", r.connector.transcript, hello);
	check_in_text(digits, "CHALLENGE of a further lane", r.connector.transcript + hello,
		      challenge);
	record_encode(record, &(struct record){ .type = RECORD_DATA,
						.length = 4096,
						.message = 3,
						.total = 5000,
						.offset = 0,
						.tag = 7 });
	check_in_text(digits, "DATA header", record, sizeof(record));
	if (have_crypto)
		check_sealed_in_text(digits);
	free(digits);
}

int main(int argc, char **argv)
{
	char why[256];
	bool have_crypto = !crypto_load(why, sizeof(why));

	if (argc != 2) {
		fprintf(stderr, "usage: test_preamble_document docs/lanes.md\n");
		return 1;
	}
	if (!have_crypto)
		fprintf(stderr, "without the sealed example: %s\n", why);
	example_handle();
	test_document(argv[1], have_crypto);
	return check_done();
}
