/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.c - a job's side of the conversation with harpd (harp_lease.h).
 *
 * One message out, one in, each within a bounded time. harpd is another program, maybe of another version,
 * maybe not harpd at all: an answer counts only when it is whole, of the right kind, to the question
 * asked, with the descriptors that belong to it; of any other every descriptor is closed, and the
 * conversation is over. Text of its making is cleaned before it gets near a log.
 */
#include "host/daemon.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WAIT_HELLO_MS 3000u
/* harpd may have to make huge pages and to wait for a queue whose last owner has just died. */
#define WAIT_LEASE_MS 10000u
/* Room for more descriptors than belong to any message: what does not fit the kernel drops. */
#define FDS_MAX 32u
#define ERRNO_MAX 4095

struct harp_daemon {
	int fd;
	bool ended;       /* nothing more can be asked here */
	unsigned wait_ms; /* for an answer; a lease may take longer */
	uint32_t serial;
	uint32_t device_count;
	struct harp_lease_device devices[HARP_LEASE_DEVICES_MAX];
	char *settings;
	char name[32];
	size_t answer_bytes;
	unsigned fd_count;
	int fds[FDS_MAX];
	/* The last message; the header is whole, of the right version and serial. */
	_Alignas(uint64_t) uint8_t answer[HARP_LEASE_MESSAGE_MAX];
};

static uint64_t daemon_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* Text of fixed size from outside: ended, and nothing in it that is not one printable line. */
static void daemon_clean(char *text, size_t size)
{
	size_t len = strnlen(text, size - 1);

	text[len] = '\0';
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = '?';
}

static void daemon_drop_fds(struct harp_daemon *daemon)
{
	for (unsigned i = 0; i < daemon->fd_count; i++)
		close(daemon->fds[i]);
	daemon->fd_count = 0;
}

/* ---- one message ---------------------------------------------------------------------------- */

static int daemon_wait(const struct harp_daemon *daemon, short events, uint64_t until_ms)
{
	struct pollfd fd = { .fd = daemon->fd, .events = events };

	for (;;) {
		uint64_t now_ms = daemon_clock_ms();
		int rc = poll(&fd, 1, now_ms < until_ms ? (int)(until_ms - now_ms) : 0);

		if (rc > 0)
			return 0;
		if (rc == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

static int daemon_send(struct harp_daemon *daemon, const void *message, size_t bytes,
		       uint64_t until_ms)
{
	for (;;) {
		int rc;

		if (send(daemon->fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EAGAIN && errno != EINTR)
			return errno == EPIPE ? -ECONNRESET : -errno;
		rc = daemon_wait(daemon, POLLOUT, until_ms);
		if (rc)
			return rc;
	}
}

static void daemon_take_fds(struct harp_daemon *daemon, struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (daemon->fd_count < FDS_MAX)
				daemon->fds[daemon->fd_count++] = fd;
			else
				close(fd);
		}
	}
}

/* One message into daemon->answer and daemon->fds; -EAGAIN there is none. */
static int daemon_receive(struct harp_daemon *daemon)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_MAX * sizeof(int))];
	struct iovec piece = { .iov_base = daemon->answer, .iov_len = sizeof(daemon->answer) };
	struct msghdr message = {
		.msg_iov = &piece,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got;

	do {
		got = recvmsg(daemon->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	daemon_take_fds(daemon, &message);
	if (got == 0)
		return -ECONNRESET;
	daemon->answer_bytes = (size_t)got;
	return message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : 0;
}

/*
 * Waits for the answer. When the time is up, the way in is shut and looked at once more: either the
 * answer is there now, or it can no longer be sent, and harpd knows that nobody has what was in it.
 */
static int daemon_await(struct harp_daemon *daemon, uint64_t until_ms)
{
	int rc;

	for (;;) {
		rc = daemon_wait(daemon, POLLIN, until_ms);
		if (rc)
			break;
		rc = daemon_receive(daemon);
		if (rc != -EAGAIN)
			return rc;
	}
	daemon->ended = true;
	shutdown(daemon->fd, SHUT_RD);
	return daemon_receive(daemon) ? rc : 0;
}

/* The answer's header; type: what it should be beside REFUSED. */
static int daemon_judge(const struct harp_daemon *daemon, uint16_t type, const struct why *why)
{
	const struct harp_lease_header *header = (const void *)daemon->answer;

	if (daemon->answer_bytes < sizeof(*header) || header->magic != HARP_LEASE_MAGIC ||
	    !header->version)
		return why_fail(why, -EPROTO, "whoever listens there is not harpd");
	if (header->size != daemon->answer_bytes)
		return why_fail(why, -EPROTO, "harpd's message has %zu bytes and says %u",
				daemon->answer_bytes, header->size);
	if (header->serial != daemon->serial)
		return why_fail(why, -EPROTO, "harpd answers message %u, it was asked %u",
				header->serial, daemon->serial);
	if (header->type != type && header->type != HARP_LEASE_REFUSED)
		return why_fail(why, -EPROTO, "harpd answers with a message of type %u, not %u",
				header->type, type);
	return 0;
}

static int daemon_refused(struct harp_daemon *daemon, const struct why *why)
{
	struct harp_lease_refused refused;

	if (daemon->answer_bytes < sizeof(refused))
		return why_fail(why, -EPROTO, "harpd's refusal has %zu bytes, not %zu",
				daemon->answer_bytes, sizeof(refused));
	memcpy(&refused, daemon->answer, sizeof(refused));
	daemon_clean(refused.why, sizeof(refused.why));
	if (refused.error <= 0 || refused.error > ERRNO_MAX)
		return why_fail(why, -EPROTO, "harpd refuses with error %d", refused.error);
	return why_fail(why, -refused.error, "harpd refuses: %s",
			refused.why[0] ? refused.why : strerror(refused.error));
}

static int daemon_silent(int rc, unsigned wait_ms, const struct why *why)
{
	switch (rc) {
	case -ETIMEDOUT:
		return why_fail(why, rc, "harpd does not answer within %u s; is it stopped?",
				wait_ms / 1000);
	case -ECONNRESET:
		return why_fail(why, rc, "harpd hung up without an answer; look at its log");
	case -EMSGSIZE:
		return why_fail(why, -EPROTO, "harpd's message or its descriptors are too many");
	default:
		return why_fail(why, rc, "asking harpd: %s", strerror(-rc));
	}
}

/* Asks and waits; the answer, of this type and at least this long, is in daemon->answer, and its
 * descriptors, exactly so many, in daemon->fds. */
static int daemon_call(struct harp_daemon *daemon, void *message, size_t bytes, uint16_t type,
		       uint16_t answer_type, size_t answer_bytes, unsigned fd_count,
		       const struct why *why)
{
	const struct harp_lease_header *answer = (const void *)daemon->answer;
	struct harp_lease_header *header = message;
	unsigned wait_ms = type == HARP_LEASE_LEASE ? WAIT_LEASE_MS : daemon->wait_ms;
	uint64_t until_ms = daemon_clock_ms() + wait_ms;
	int rc;

	if (daemon->ended)
		return why_fail(why, -ENOTCONN, "the conversation with harpd is over");
	*header = (struct harp_lease_header){ .magic = HARP_LEASE_MAGIC,
					      .version = HARP_LEASE_VERSION,
					      .type = type,
					      .size = (uint32_t)bytes,
					      .serial = ++daemon->serial };
	rc = daemon_send(daemon, message, bytes, until_ms);
	if (!rc)
		rc = daemon_await(daemon, until_ms);
	if (rc)
		rc = daemon_silent(rc, wait_ms, why);
	else
		rc = daemon_judge(daemon, answer_type, why);
	if (!rc && answer->type == HARP_LEASE_REFUSED) {
		daemon_drop_fds(daemon);
		return daemon_refused(daemon, why);
	}
	if (!rc && daemon->answer_bytes < answer_bytes)
		rc = why_fail(why, -EPROTO, "harpd's message has %zu bytes, not %zu",
			      daemon->answer_bytes, answer_bytes);
	if (!rc && daemon->fd_count != fd_count)
		rc = why_fail(why, -EPROTO, "harpd's message has %u descriptors, not %u",
			      daemon->fd_count, fd_count);
	if (rc) {
		daemon->ended = true;
		daemon_drop_fds(daemon);
	}
	return rc;
}

/* ---- hello ---------------------------------------------------------------------------------- */

static bool daemon_name_good(const char name[16])
{
	size_t len = strnlen(name, 16);

	if (!len || len == 16)
		return false;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f || name[i] == '/')
			return false;
	return true;
}

static int daemon_take_devices(struct harp_daemon *daemon, uint32_t count, const struct why *why)
{
	const uint8_t *at = daemon->answer + sizeof(struct harp_lease_welcome);

	memcpy(daemon->devices, at, count * sizeof(daemon->devices[0]));
	for (uint32_t i = 0; i < count; i++) {
		struct harp_lease_device *device = &daemon->devices[i];

		if (!daemon_name_good(device->ifname) || !device->ifindex)
			return why_fail(why, -EPROTO, "harpd's device %u has no name or index", i);
		daemon_clean(device->pci_path, sizeof(device->pci_path));
	}
	daemon->device_count = count;
	return 0;
}

static int daemon_hello(struct harp_daemon *daemon, const char *client, const struct why *why)
{
	struct harp_lease_hello hello = { 0 };
	struct harp_lease_welcome welcome;
	size_t devices_bytes;
	int rc;

	snprintf(hello.client, sizeof(hello.client), "%s", client ? client : "");
	rc = daemon_call(daemon, &hello, sizeof(hello), HARP_LEASE_HELLO, HARP_LEASE_WELCOME,
			 sizeof(welcome), 0, why);
	if (rc)
		return rc;
	memcpy(&welcome, daemon->answer, sizeof(welcome));
	if (welcome.device_count > HARP_LEASE_DEVICES_MAX)
		return why_fail(why, -EPROTO, "harpd names %u devices; %u are possible",
				welcome.device_count, HARP_LEASE_DEVICES_MAX);
	devices_bytes = welcome.device_count * sizeof(daemon->devices[0]);
	if (daemon->answer_bytes - sizeof(welcome) < devices_bytes ||
	    daemon->answer_bytes - sizeof(welcome) - devices_bytes < welcome.settings_bytes)
		return why_fail(why, -EPROTO,
				"harpd's message is too short for %u devices and %u "
				"bytes of settings",
				welcome.device_count, welcome.settings_bytes);
	daemon_clean(welcome.daemon, sizeof(welcome.daemon));
	memcpy(daemon->name, welcome.daemon, sizeof(daemon->name));
	daemon->settings = malloc(welcome.settings_bytes + 1u);
	if (!daemon->settings)
		return why_fail(why, -ENOMEM, "out of memory");
	memcpy(daemon->settings, daemon->answer + sizeof(welcome) + devices_bytes,
	       welcome.settings_bytes);
	daemon->settings[welcome.settings_bytes] = '\0';
	if (strlen(daemon->settings) != welcome.settings_bytes)
		return why_fail(why, -EPROTO, "harpd's settings are no text");
	return daemon_take_devices(daemon, welcome.device_count, why);
}

static int daemon_connect(struct harp_daemon *daemon, const char *path, const struct why *why)
{
	const struct timeval limit = { .tv_sec = daemon->wait_ms / 1000 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int rc;

	if (!path || !path[0] || strlen(path) >= sizeof(address.sun_path))
		return why_fail(why, -EINVAL, "the path of a socket has 1 to %zu bytes",
				sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	daemon->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (daemon->fd < 0)
		return why_fail(why, -errno, "socket: %s", strerror(errno));
	/* Else a daemon that accepts nobody would hold us for ever. */
	setsockopt(daemon->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	do {
		rc = connect(daemon->fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	} while (rc == -EINTR);
	switch (rc) {
	case 0:
		return 0;
	case -ENOENT:
		return why_fail(why, rc, "no such socket; is harpd running (`harpctl start`)?");
	case -ECONNREFUSED:
		return why_fail(why, rc, "nobody listens; is harpd running (`harpctl start`)?");
	case -EACCES:
		return why_fail(why, rc,
				"not for this user; harp.toml says which group may use it");
	case -EAGAIN:
		return why_fail(why, -ETIMEDOUT, "harpd takes no calls; is it stopped?");
	case -EPROTOTYPE:
		return why_fail(why, -EPROTO, "whoever listens there is not harpd");
	default:
		return why_fail(why, rc, "%s", strerror(-rc));
	}
}

int daemon_open(struct harp_daemon **out, const char *socket, const char *client, unsigned wait_ms,
		struct why *why)
{
	struct harp_daemon *daemon = calloc(1, sizeof(*daemon));
	int rc;

	*out = NULL;
	why_about(why, "%s", socket ? socket : "(no socket)");
	if (!daemon)
		return why_fail(why, -ENOMEM, "out of memory");
	daemon->fd = -1;
	daemon->wait_ms = wait_ms;
	rc = daemon_connect(daemon, socket, why);
	if (!rc)
		rc = daemon_hello(daemon, client, why);
	if (rc) {
		harp_daemon_close(daemon);
		return rc;
	}
	*out = daemon;
	return 0;
}

int harp_daemon_connect(struct harp_daemon **out, const char *socket, const char *client, char *why,
			size_t why_len)
{
	struct why reason = { .text = why, .size = why_len };

	return daemon_open(out, socket, client, WAIT_HELLO_MS, &reason);
}

const struct harp_lease_device *harp_daemon_devices(const struct harp_daemon *daemon,
						    unsigned *count)
{
	*count = daemon->device_count;
	return daemon->devices;
}

const char *harp_daemon_settings(const struct harp_daemon *daemon)
{
	return daemon->settings;
}

const char *harp_daemon_name(const struct harp_daemon *daemon)
{
	return daemon->name;
}

void harp_daemon_close(struct harp_daemon *daemon)
{
	if (!daemon)
		return;
	daemon_drop_fds(daemon);
	if (daemon->fd >= 0)
		close(daemon->fd);
	free(daemon->settings);
	free(daemon);
}

/* ---- leases --------------------------------------------------------------------------------- */

static int daemon_judge_rss(const struct harp_lease_leased *leased, const struct why *why)
{
	if (!leased->queue_count || leased->queue >= leased->queue_count)
		return why_fail(why, -EPROTO, "harpd leases queue %u of %u", leased->queue,
				leased->queue_count);
	if (leased->rss_kind > HARP_LEASE_RSS_TOEPLITZ ||
	    leased->rss_key_bytes > HARP_LEASE_RSS_KEY_MAX ||
	    leased->rss_table_count > HARP_LEASE_RSS_TABLE_MAX ||
	    (leased->rss_kind == HARP_LEASE_RSS_TOEPLITZ &&
	     (leased->rss_key_bytes < 40 || !leased->rss_table_count)))
		return why_fail(why, -EPROTO,
				"harpd tells of an RSS of kind %u, %u bytes of key, %u entries",
				leased->rss_kind, leased->rss_key_bytes, leased->rss_table_count);
	return 0;
}

static int daemon_judge_lease(const struct harp_lease_request *request,
			      const struct harp_lease_leased *leased, const struct why *why)
{
	if (strncmp(leased->ifname, request->ifname, sizeof(leased->ifname)) != 0 ||
	    !leased->ifindex)
		return why_fail(why, -EPROTO, "harpd leases another interface than asked for");
	if (request->queue != HARP_LEASE_QUEUE_ANY && leased->queue != request->queue)
		return why_fail(why, -EPROTO, "harpd leases queue %u instead", leased->queue);
	if (!leased->port_min || leased->port_min > leased->port_max)
		return why_fail(why, -EPROTO, "harpd leases the ports %u to %u", leased->port_min,
				leased->port_max);
	return daemon_judge_rss(leased, why);
}

int daemon_lease(struct harp_daemon *daemon, struct harp_lease_request *request,
		 struct harp_lease_leased *out, int fds[HARP_LEASE_FDS], struct why *why)
{
	struct why quiet = { 0 };
	int rc = daemon_call(daemon, request, sizeof(*request), HARP_LEASE_LEASE, HARP_LEASE_LEASED,
			     sizeof(*out), HARP_LEASE_FDS, why);

	if (rc)
		return rc;
	memcpy(out, daemon->answer, sizeof(*out));
	rc = daemon_judge_lease(request, out, why);
	if (rc) {
		daemon_drop_fds(daemon);
		daemon_release(daemon, out->lease_id, &quiet);
		return rc;
	}
	memcpy(fds, daemon->fds, HARP_LEASE_FDS * sizeof(int));
	daemon->fd_count = 0;
	return 0;
}

int daemon_release(struct harp_daemon *daemon, uint64_t lease_id, struct why *why)
{
	struct harp_lease_release release = { .lease_id = lease_id };

	return daemon_call(daemon, &release, sizeof(release), HARP_LEASE_RELEASE, HARP_LEASE_DONE,
			   sizeof(struct harp_lease_header), 0, why);
}
