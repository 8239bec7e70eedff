/* SPDX-License-Identifier: Apache-2.0 */
/* test_keyfile.c - a key is read only from a file that other users can neither read nor write. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "wire/crypto.h"
#include "double_env.h"
#include "process/keyfile.h"

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1B1C1D1E1F"

static char folder[] = "/tmp/harp-keyfile-XXXXXX", path[64];

static void write_file(const void *bytes, size_t len, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	CHECK_EQ(write(fd, bytes, len), len);
	CHECK_EQ(fchmod(fd, mode), 0);
	close(fd);
}

/* The file is refused with a message that contains `word`, and no byte of the key is returned. */
static void check_refused(const char *at, const char *word)
{
	uint8_t key[CRYPTO_PSK_BYTES] = { 0 }, zero[CRYPTO_PSK_BYTES] = { 0 };
	char why[384] = "";

	CHECK_EQ(keyfile_read(at, key, why, sizeof(why)), -EINVAL);
	if (!strstr(why, word)) {
		fprintf(stderr, "\"%s\" does not contain \"%s\"\n", why, word);
		check_failed();
	}
	CHECK_MEM(key, zero, sizeof(key));
}

TEST(a_key_of_64_digits_is_read)
{
	static const mode_t modes[] = { 0600, 0400, 0700 };
	static const char *const texts[] = { DIGITS "\n", DIGITS };

	for (size_t i = 0; i < 6; i++) {
		uint8_t key[CRYPTO_PSK_BYTES] = { 0 };
		char why[384];

		write_file(texts[i % 2], strlen(texts[i % 2]), modes[i / 2]);
		CHECK_EQ(keyfile_read(path, key, why, sizeof(why)), 0);
		for (uint8_t k = 0; k < CRYPTO_PSK_BYTES; k++)
			CHECK_EQ(key[k], k);
	}
}

TEST(other_contents_are_refused)
{
	static const char *const bad[] = {
		"",
		"\n",
		"00",
		DIGITS "0",
		DIGITS "\n\n",
		DIGITS "\r\n",
		DIGITS "\n" DIGITS "\n",
		" " DIGITS "\n",
		"0x0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f0\n",
		"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1g\n",
		"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1\n",
	};
	char with_nul[65] = DIGITS, *large = calloc(1, 1 << 20), why[384];
	uint8_t key[CRYPTO_PSK_BYTES];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_file(bad[i], strlen(bad[i]), 0600);
		check_refused(path, "openssl rand");
	}
	with_nul[40] = '\0';
	write_file(with_nul, 64, 0600);
	check_refused(path, "openssl rand");
	memset(large, '0', 1 << 20);
	write_file(large, 1 << 20, 0600);
	check_refused(path, "openssl rand");
	write_file(large, 64, 0600); /* the right length, but no secret */
	check_refused(path, "a key of zeros");
	large[63] = '1';
	write_file(large, 64, 0600);
	CHECK_EQ(keyfile_read(path, key, why, sizeof(why)), 0);
	free(large);
}

TEST(a_file_that_others_can_read_is_refused)
{
	static const mode_t open_modes[] = { 0640, 0604, 0620, 0602, 0610, 0601, 0666, 0777 };

	for (size_t i = 0; i < sizeof(open_modes) / sizeof(open_modes[0]); i++) {
		write_file(DIGITS, 64, open_modes[i]);
		check_refused(path, "chmod 600");
	}
}

TEST(only_regular_files_are_read)
{
	uint8_t key[CRYPTO_PSK_BYTES];
	char other[96], why[384];

	CHECK_EQ(unlink(path), 0);
	check_refused(path, "No such file");
	check_refused(folder, "not a regular file");
	check_refused("/dev/zero", "not a regular file");
	CHECK_EQ(mkfifo(path, 0600), 0);
	check_refused(path, "not a regular file"); /* at once, although it has no writer */
	CHECK_EQ(unlink(path), 0);
	write_file(DIGITS, 64, 0600);
	snprintf(other, sizeof(other), "%s.link", path);
	CHECK_EQ(symlink(path, other), 0); /* as a mounted secret is */
	CHECK_EQ(keyfile_read(other, key, why, sizeof(why)), 0);
	CHECK_EQ(unlink(other), 0);
}

static void run_as_nobody(void (*run)(void))
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		check_failures = 0;
		CHECK_EQ(setuid(65534), 0);
		run();
		_exit(check_failures != 0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

static void check_own_key_is_read(void)
{
	uint8_t key[CRYPTO_PSK_BYTES];
	char why[384];

	CHECK_EQ(keyfile_read(path, key, why, sizeof(why)), 0);
}

static void check_no_permission(void)
{
	check_refused(path, "Permission denied");
}

TEST(a_file_of_another_user_is_refused)
{
	if (geteuid() != 0)
		return;
	write_file(DIGITS, 64, 0600);
	CHECK_EQ(chown(path, 65534, 65534), 0);
	check_refused(path, "belongs to user 65534");
	CHECK_EQ(chmod(folder, 0755), 0);
	run_as_nobody(check_own_key_is_read);
	CHECK_EQ(chown(path, 0, 0), 0);
	run_as_nobody(check_no_permission);
}

/* The load fails with one WARN that contains `word`, and leaves no key. */
static void check_load_refused(const char *word)
{
	env_warns = 0;
	CHECK_EQ(keyfile_load(path), -EINVAL);
	CHECK(!keyfile_key());
	CHECK_EQ(env_warns, 1);
	if (!strstr(env_warn, word)) {
		fprintf(stderr, "\"%s\" does not contain \"%s\"\n", env_warn, word);
		check_failed();
	}
}

/* `path` is the host's key file here, and does not exist. */
TEST(without_a_key_encryption_cannot_be_required)
{
	static const char cannot_open[] = "key file /none/key (HARP_KEY_FILE, or key_file in "
					  "harp.toml): it cannot be opened";
	static const enum plugin_encrypt not_required[] = { ENCRYPT_AUTO, ENCRYPT_OFF };

	CHECK_EQ(unlink(path), 0);
	env_warns = 0;
	env_config.key_file[0] = '\0';
	for (size_t i = 0; i < 2; i++) {
		env_config.encrypt = not_required[i];
		CHECK_EQ(keyfile_load(path), 0);
		CHECK_EQ(keyfile_load("/dev/null/job.key"), 0); /* ENOTDIR */
		CHECK(!keyfile_key() && env_warns == 0);
	}
	env_config.encrypt = ENCRYPT_AES_256_GCM;
	check_load_refused("needs HARP_KEY_FILE");
	/* A configured key file must exist, whatever HARP_ENCRYPT is. */
	strcpy(env_config.key_file, "/none/key");
	check_load_refused(cannot_open);
	env_config.encrypt = ENCRYPT_AUTO;
	check_load_refused(cannot_open);
	env_config.encrypt = ENCRYPT_OFF;
	check_load_refused("HARP_ENCRYPT=off, and the key file /none/key");
	env_config.key_file[0] = '\0';
	/* A link to a secret that is not mounted yet does not permit plaintext. */
	CHECK_EQ(symlink("/none/key", path), 0);
	env_config.encrypt = ENCRYPT_AUTO;
	check_load_refused("cannot be opened: No such file");
	CHECK_EQ(unlink(path), 0);
}

static void check_load_has_no_permission(void)
{
	check_load_refused("cannot be opened: Permission denied");
}

/* The host's key file alone requires encryption, even if it cannot be read. */
TEST(the_hosts_key_file_requires_encryption)
{
	env_config.key_file[0] = '\0';
	env_config.encrypt = ENCRYPT_AUTO;
	write_file(DIGITS, 64, 0600);
	env_warns = 0;
	CHECK_EQ(keyfile_load(path), 0);
	CHECK(keyfile_key() && keyfile_key()[31] == 31 && env_warns == 0);
	env_config.encrypt = ENCRYPT_OFF;
	check_load_refused("HARP_ENCRYPT=off, and the key file");
	env_config.encrypt = ENCRYPT_AUTO;
	write_file("", 0, 0600);
	check_load_refused("hexadecimal digits");
	write_file(DIGITS, 64, 0644);
	check_load_refused("chmod 600");
	if (geteuid() != 0)
		return;
	write_file(DIGITS, 64, 0600);
	for (int searchable = 0; searchable < 2; searchable++) { /* the folder, then the file */
		CHECK_EQ(chmod(folder, searchable ? 0755 : 0700), 0);
		run_as_nobody(check_load_has_no_permission);
	}
}

TEST(a_key_is_loaded_and_forgotten)
{
	int status = -1;
	pid_t child;

	write_file(DIGITS, 64, 0600);
	strcpy(env_config.key_file, path);
	env_config.encrypt = ENCRYPT_AES_256_GCM;
	env_warns = 0;
	CHECK_EQ(keyfile_load("/none/key"), 0);
	CHECK(keyfile_key() && keyfile_key()[31] == 31 && env_warns == 0);
	child = fork(); /* a forked child does not get the key */
	if (child == 0)
		_exit(keyfile_key()[31]);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(keyfile_load("/none/key"), 0); /* a second load is harmless */
	keyfile_forget();
	CHECK(!keyfile_key());
	keyfile_forget();
}

int main(void)
{
	char why[256];

	if (crypto_load(why, sizeof(why)))
		return check_skip(why);
	CHECK(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/key", folder);
	check_run();
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(folder), 0);
	return check_done();
}
