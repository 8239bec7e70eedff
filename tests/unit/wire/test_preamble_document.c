/* SPDX-License-Identifier: Apache-2.0 */
/* test_preamble_document.c - the worked examples of docs/lanes.md (the argument) contain the bytes
 * that the code produces. */
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

/* Does the text, without white space, contain these bytes? */
static void check_in_text(const char *digits, const char *name, const uint8_t *bytes, size_t len)
{
	char *hex = calloc(1, 2 * len + 1);

	for (size_t i = 0; i < len; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	if (!strstr(digits, hex)) {
		fprintf(stderr, "docs/lanes.md: the worked example must contain this %s:\n", name);
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

/* The example of section 8: the same preamble with a pre-shared key, and the connector's CLOSE. */
static void check_encrypted_in_text(const char *digits)
{
	size_t hello = PREAMBLE_HELLO_BYTES, challenge = PREAMBLE_CHALLENGE_BYTES + 16;
	uint8_t record[RECORD_HEADER_BYTES];
	struct iovec iov = { record, sizeof(record) };
	struct lane *lane;

	run_begin_encrypted(&r, 1, psk, psk);
	run(&r);
	CHECK_EQ(r.connected, 1);
	check_in_text(digits, "encrypted HELLO", r.connector.transcript, hello);
	check_in_text(digits, "encrypted CHALLENGE", r.connector.transcript + hello, challenge);
	check_in_text(digits, "encrypted PROOF", r.connector.transcript + hello + challenge, 32);
	check_in_text(digits, "encrypted READY", r.connector.transcript + hello + challenge + 32,
		      32);
	record_encode(record, &(struct record){ .type = RECORD_CLOSE, .message = 4 });
	lane = &r.pair.lanes[0].lane;
	CHECK_EQ(handshake_encrypt(&r.connector, &lane), 0);
	CHECK_EQ(lane->ops->send(lane, &iov, 1), sizeof(record));
	for (int i = 0; i < 200; i++)
		fake_pair_turn(&r.pair);
	check_in_text(digits, "segment", r.pair.pipes[0].bytes + r.pair.pipes[0].begin,
		      sizeof(record) + SEGMENT_EXTRA_BYTES);
	lane->ops->close(lane, true);
}

static void test_document(const char *path, bool has_crypto)
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
	comm.exists = true;
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
	if (has_crypto)
		check_encrypted_in_text(digits);
	free(digits);
}

int main(int argc, char **argv)
{
	char why[256];
	bool has_crypto = !crypto_load(why, sizeof(why));

	if (argc != 2) {
		fprintf(stderr, "usage: test_preamble_document docs/lanes.md\n");
		return 1;
	}
	if (!has_crypto)
		fprintf(stderr, "the encrypted example is not checked: %s\n", why);
	set_example_handle();
	test_document(argv[1], has_crypto);
	return check_done();
}
