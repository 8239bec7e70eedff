/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harpd_end.h - a harpd that is the other end of a socket, and has said beforehand what it will say. Every descriptor
 * that it passes is that end itself.
 */
#ifndef HARP_TESTS_HARPD_END_H
#define HARP_TESTS_HARPD_END_H

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "host/daemon.h"
#include "pass_fds.h"

#define LEASE_ID 0x1122334455667788ull

static int ends[2]; /* ours, until it is handed over; harpd's */

static struct harp_lease_header header(uint16_t type, size_t bytes, uint32_t serial)
{
	return (struct harp_lease_header){
		.magic = HARP_LEASE_MAGIC,
		.version = HARP_LEASE_VERSION,
		.type = type,
		.size = (uint32_t)bytes,
		.serial = serial,
	};
}

static void say(void *bytes, size_t count, unsigned fds)
{
	CHECK(pass_fds(ends[1], bytes, count, ends[1], fds) == (ssize_t)count);
}

/* The next message that harpd heard; 0: none is left. */
static unsigned heard(uint64_t *lease_id)
{
	union {
		struct harp_lease_header header;
		struct harp_lease_release release;
		uint8_t bytes[1024];
	} message;
	ssize_t got;

	do { /* who went without reading everything is told first */
		got = recv(ends[1], &message, sizeof(message), MSG_DONTWAIT);
	} while (got < 0 && errno == ECONNRESET);
	if (got < (ssize_t)sizeof(message.header))
		return 0;
	*lease_id = message.header.type == HARP_LEASE_RELEASE ? message.release.lease_id : 0;
	return message.header.type;
}

/* What harpd has heard, from HELLO to the end; returned: whether the lease came back. */
static bool came_back(void)
{
	uint64_t id;
	bool back;

	CHECK_EQ(heard(&id), HARP_LEASE_HELLO);
	CHECK_EQ(heard(&id), HARP_LEASE_LEASE);
	back = heard(&id) == HARP_LEASE_RELEASE;
	if (back)
		CHECK(id == LEASE_ID);
	CHECK_EQ(heard(&id), 0);
	close(ends[1]);
	return back;
}

/* The line that explains a refusal to "here" has these words. */
static void explained(const char *why, const char *words, int line)
{
	if (strstr(why, words) && strncmp(why, "here: ", 6) == 0)
		return;
	fprintf(stderr, "%d: \"%s\" instead of \"%s\"\n", line, why, words);
	check_failures++;
}

#endif
