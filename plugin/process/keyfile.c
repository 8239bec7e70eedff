/* SPDX-License-Identifier: Apache-2.0 */
/* keyfile.c - reads the pre-shared key, and rejects files that other users can read. */
#include "process/keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire/crypto.h"
#include "process/config.h"
#include "process/log.h"
#include "base/util.h"
#include "base/trust.h"

#define KEYFILE_DIGITS (2 * CRYPTO_PSK_BYTES)
#define KEYFILE_PAGE_BYTES 4096u

/* In a page of its own, which is not swapped, not in core files, and empty in forked children.
 * Writers: keyfile_load() and keyfile_forget(), with the first and the last context. NULL: no
 * key. */
static uint8_t *keyfile_page;

/* ---- trusted files --------------------------------------------------------------------------- */

/* secret: no other user may read it; else no other user may write it. */
static int file_check(int fd, const char *path, bool secret, char *why, size_t why_len)
{
	mode_t others = secret ? S_IRWXG | S_IRWXO : S_IWGRP | S_IWOTH;
	struct stat st;

	if (fstat(fd, &st))
		snprintf(why, why_len, "it cannot be examined: %s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		snprintf(why, why_len, "it is not a regular file");
	else if (secret ? st.st_uid != geteuid() && st.st_uid != 0 : !trust_user(st.st_uid))
		snprintf(why, why_len,
			 "it belongs to user %u, and must belong to root or to this user (%u)",
			 (unsigned)st.st_uid, (unsigned)geteuid());
	else if ((st.st_mode & others) && secret)
		snprintf(why, why_len,
			 "it is open to its group or to others (mode %03o): chmod 600 %.200s, and "
			 "make a new key if another user may have read it",
			 (unsigned)(st.st_mode & 0777), path);
	else if (st.st_mode & others)
		snprintf(why, why_len, "others may write it (mode %03o): chmod go-w",
			 (unsigned)(st.st_mode & 0777));
	else
		return 0;
	return -EINVAL;
}

/* As toml_read(), but for what the file holds: its first bytes_max bytes, *len of them. */
static int file_read(const char *path, bool secret, char *bytes, size_t bytes_max, size_t *len,
		     char *why, size_t why_len)
{
	ssize_t n = 0;
	/* O_NONBLOCK: reject a FIFO instead of waiting for it. */
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	*len = 0;
	if (fd < 0) {
		rc = errno == ENOENT || errno == ENOTDIR ? 0 : -EINVAL;
		snprintf(why, why_len, "it cannot be opened: %s", strerror(errno));
		return rc;
	}
	rc = file_check(fd, path, secret, why, why_len);
	while (!rc && *len < bytes_max && (n = read(fd, bytes + *len, bytes_max - *len)) > 0)
		*len += (size_t)n;
	if (!rc && n < 0) {
		snprintf(why, why_len, "it cannot be read: %s", strerror(errno));
		rc = -EINVAL;
	}
	close(fd);
	return rc ? rc : 1;
}

/* ---- the key -------------------------------------------------------------------------------- */

/* text: len bytes, then a NUL. */
static int keyfile_decode(const char *text, size_t len, uint8_t key[CRYPTO_PSK_BYTES])
{
	size_t digits = strspn(text, "0123456789abcdefABCDEF");
	bool is_one_line = len == digits || (len == digits + 1 && text[digits] == '\n');

	if (digits != KEYFILE_DIGITS || !is_one_line)
		return -EINVAL;
	for (size_t i = 0; i < CRYPTO_PSK_BYTES; i++)
		(void)!sscanf(text + 2 * i, "%2hhx", &key[i]);
	return 0;
}

int keyfile_read(const char *path, uint8_t key[CRYPTO_PSK_BYTES], char *why, size_t why_len)
{
	static const uint8_t zeros[CRYPTO_PSK_BYTES];
	char text[KEYFILE_DIGITS + 3] = { 0 }; /* one more than allowed, and a NUL */
	size_t len;
	int rc = -EINVAL;

	if (file_read(path, true, text, sizeof(text) - 1, &len, why, why_len) <= 0) {
		explicit_bzero(text, sizeof(text));
		return rc;
	}
	if (keyfile_decode(text, len, key)) {
		snprintf(
			why, why_len,
			"it does not hold one line of %u hexadecimal digits: make it by `openssl rand "
			"-hex %u`",
			KEYFILE_DIGITS, CRYPTO_PSK_BYTES);
		explicit_bzero(key, CRYPTO_PSK_BYTES);
	} else if (!memcmp(key, zeros, sizeof(zeros))) {
		/* Templates and failed generators leave zeros, and attackers try them first. */
		snprintf(
			why, why_len,
			"it holds a key of zeros, which is no secret: make one by `openssl rand -hex %u`",
			CRYPTO_PSK_BYTES);
	} else {
		rc = 0;
	}
	explicit_bzero(text, sizeof(text));
	return rc;
}

static int keyfile_make_page(void)
{
	void *page = mmap(NULL, KEYFILE_PAGE_BYTES, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	/* Errors are ignored: limits or an old kernel may not allow this. */
	(void)mlock(page, KEYFILE_PAGE_BYTES);
	(void)madvise(page, KEYFILE_PAGE_BYTES, MADV_DONTDUMP);
	(void)madvise(page, KEYFILE_PAGE_BYTES, MADV_WIPEONFORK);
	keyfile_page = page;
	return 0;
}

/* Treat a file as existing unless it is known not to: a missing permission must not turn encryption
 * off. */
static bool keyfile_exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

int keyfile_load(const char *host_path)
{
	const struct plugin_config *config = plugin_config();
	const char *path = config->key_file[0] ? config->key_file : host_path;
	bool exists = config->key_file[0] || keyfile_exists(path);
	char why[384];
	int rc;

	keyfile_forget();
	if (!exists && config->encrypt != ENCRYPT_AES_256_GCM)
		return 0;
	if (config->encrypt == ENCRYPT_OFF) {
		WARN("HARP_ENCRYPT=off, and the key file %s requires encryption: unset HARP_ENCRYPT, or "
		     "remove the key",
		     path);
		return -EINVAL;
	}
	if (!exists) {
		WARN("encryption is required (HARP_ENCRYPT, or encrypt in harp.toml), and there is no key: "
		     "needs HARP_KEY_FILE, or %s: a file with a key of 64 hexadecimal digits, the same on "
		     "every host (`(umask 077; openssl rand -hex 32 >FILE)`)",
		     path);
		return -EINVAL;
	}
	rc = keyfile_make_page();
	if (rc) {
		WARN("encryption is required: no memory for the key");
		return rc;
	}
	rc = keyfile_read(path, keyfile_page, why, sizeof(why));
	if (rc)
		WARN("encryption is required: key file %s%s: %s", path,
		     config->key_file[0] ? " (HARP_KEY_FILE, or key_file in harp.toml)" : "", why);
	else if ((rc = crypto_load(why, sizeof(why))))
		WARN("encryption is required: %s", why);
	if (rc)
		keyfile_forget();
	return rc;
}

void keyfile_forget(void)
{
	if (!keyfile_page)
		return;
	explicit_bzero(keyfile_page, CRYPTO_PSK_BYTES);
	(void)munmap(keyfile_page, KEYFILE_PAGE_BYTES);
	keyfile_page = NULL;
}

const uint8_t *keyfile_key(void)
{
	return keyfile_page;
}

/* ---- harp.toml, for a job that harpd cannot tell --------------------------------------------- */

/*
 * This is not a TOML parser and errs on the safe side: a line that mentions `encrypt` or
 * `key_file`, or could hide them, counts as a requirement. Exceptions are comments and the plain
 * assignments encrypt = "off" and encrypt = "auto". tests/python/test_toml_scan.py compares it with
 * a parser.
 */

/* Same as FILE_BYTES_MAX of harp/config/document.py. */
#define TOML_BYTES_MAX (256u * 1024u)
#define TOML_BLANKS " \t"

/* If text begins with word, after blanks, returns the text after it, else NULL. */
static const char *toml_skip(const char *text, const char *word)
{
	size_t len = strlen(word);

	text += strspn(text, TOML_BLANKS);
	return strncmp(text, word, len) == 0 ? text + len : NULL;
}

/* encrypt = "off" or "auto", in either kind of quotes, with an optional comment. */
static bool toml_is_exempt(const char *text)
{
	static const char *const values[] = { "\"off\"", "'off'", "\"auto\"", "'auto'" };
	const char *value = toml_skip(text, "encrypt");

	if (value)
		value = toml_skip(value, "=");
	for (size_t i = 0; value && i < ARRAY_SIZE(values); i++) {
		const char *end = toml_skip(value, values[i]);

		if (end) {
			end += strspn(end, TOML_BLANKS "\r");
			return !*end || *end == '#';
		}
	}
	return false;
}

static bool toml_line_requires(const char *text)
{
	/* Escapes can spell either name. In a multi-line string, a line that begins with # is not a
	 * comment. */
	static const char *const signs[] = { "encrypt", "key_file", "\\", "\"\"\"", "'''" };

	if (toml_skip(text, "#") || toml_is_exempt(text))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(signs); i++)
		if (strstr(text, signs[i]))
			return true;
	return false;
}

static int toml_scan_text(char *text, unsigned *line)
{
	*line = 1;
	for (char *next; text; text = next, ++*line) {
		next = strchr(text, '\n');
		if (next)
			*next++ = '\0';
		if (toml_line_requires(text))
			return 1;
	}
	return 0;
}

int toml_read(const char *path, char *text, size_t bytes_max, char *why, size_t why_len)
{
	size_t len;
	int rc = file_read(path, false, text, bytes_max + 1, &len, why, why_len);

	text[len] = '\0';
	if (rc > 0 && (len > bytes_max || strlen(text) != len)) {
		snprintf(why, why_len, "it is no TOML file: too large, or not text");
		rc = -EINVAL;
	}
	return rc;
}

int toml_scan_encrypt(const char *path, unsigned *line, char *why, size_t why_len)
{
	static char text[TOML_BYTES_MAX + 2]; /* one init at a time */
	int rc = toml_read(path, text, TOML_BYTES_MAX, why, why_len);

	return rc <= 0 ? rc : toml_scan_text(text, line);
}
