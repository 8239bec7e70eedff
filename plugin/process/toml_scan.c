/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toml_scan.c - whether harp.toml requires encryption, for a job that harpd cannot tell.
 *
 * This is no TOML parser, and errs on the safe side: a line that mentions `encrypt` or `key_file`, or has what could
 * hide them, counts as a requirement. Exempt are comments and the plain assignments encrypt = "off" and
 * encrypt = "auto". tests/python/test_toml_scan.py compares it with a parser.
 */
#include "process/toml_scan.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/trust.h"

/* As FILE_BYTES_MAX of harp/config/document.py. */
#define TOML_BYTES_MAX (256u * 1024u)
#define TOML_BLANKS " \t"

static int toml_check(int fd, char *why, size_t why_len)
{
	struct stat st;

	if (fstat(fd, &st))
		snprintf(why, why_len, "fstat: %s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		snprintf(why, why_len, "it is not a regular file");
	else if (!trust_user(st.st_uid))
		snprintf(why, why_len,
			 "it belongs to user %u, and must belong to root or to this user (%u)",
			 (unsigned)st.st_uid, (unsigned)geteuid());
	else if (st.st_mode & (S_IWGRP | S_IWOTH))
		snprintf(why, why_len, "others may write it (mode %03o): chmod go-w",
			 (unsigned)(st.st_mode & 0777));
	else
		return 0;
	return -EINVAL;
}

/* Does text begin with word, after blanks? Returns what follows, else NULL. */
static const char *toml_skip(const char *text, const char *word)
{
	size_t len = strlen(word);

	text += strspn(text, TOML_BLANKS);
	return strncmp(text, word, len) == 0 ? text + len : NULL;
}

/* encrypt = "off" or "auto", in either kind of quotes, and perhaps a comment. */
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
	/* Escapes can spell either name. In a string of several lines a line that begins with # is no comment. */
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
	size_t len = 0;
	ssize_t n = 0;
	/* O_NONBLOCK: a FIFO is refused, not waited for. */
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	if (fd < 0) {
		snprintf(why, why_len, "%s", strerror(errno));
		return -EINVAL;
	}
	rc = toml_check(fd, why, why_len);
	while (!rc && len <= bytes_max && (n = read(fd, text + len, bytes_max + 1 - len)) > 0)
		len += (size_t)n;
	if (!rc && n < 0) {
		snprintf(why, why_len, "%s", strerror(errno));
		rc = -EINVAL;
	}
	text[len] = '\0';
	if (!rc && (len > bytes_max || strlen(text) != len)) {
		snprintf(why, why_len, "it is no TOML file: too large, or not text");
		rc = -EINVAL;
	}
	close(fd);
	return rc ? rc : 1;
}

int toml_scan_encrypt(const char *path, unsigned *line, char *why, size_t why_len)
{
	static char text[TOML_BYTES_MAX + 2]; /* under ctx_lock */
	int rc = toml_read(path, text, TOML_BYTES_MAX, why, why_len);

	return rc <= 0 ? rc : toml_scan_text(text, line);
}
